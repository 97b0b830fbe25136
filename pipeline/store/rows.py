"""How requests and results stand in script arguments. One place a shape, so that it can't drift."""

from __future__ import annotations

import msgspec

from pipeline.message import Request, encode
from pipeline.priority import score
from tokenweir.connection import Argument
from tokenweir.wire import Result, result_fields


def request_row(entry_id: str, request: Request, *, window_s: float) -> list[Argument]:
    """The arguments of one request, as lua/part_row.lua reads them."""
    return [
        entry_id,
        request.id,
        encode(request),
        request.attempt,
        request.replay,
        request.rank,
        int(request.simple and request.edge),
        request.prompt_tokens,
        request.output_tokens,
        repr(score(request, window_s=window_s)),
        request.deadline_ms,
        request.tenant,
    ]


def result_row(result: Result, *, streamed: bool) -> list[Argument]:
    """The arguments of one terminal result, as lua/part_result.lua reads them."""
    fields: list[Argument] = []
    for name, value in result_fields(result).items():
        fields += (name, value)
    return [result.id, result.replay, int(streamed), msgspec.json.encode(result), len(fields), *fields]
