"""How requests and results stand in script arguments. One place a shape, so that it can't drift."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from pipeline.message import Request, encode
from pipeline.priority import score
from tokenweir.connection import Argument
from tokenweir.wire import Result, result_fields


def request_rows(rows: Iterable[tuple[str, Request]], *, window_s: float) -> list[Argument]:
    """The arguments of requests, each with its entry's id, as lua/part_row.lua reads them."""
    packed: list[object] = []
    bodies: list[Argument] = []
    for entry_id, request in rows:
        bodies.append(encode(request))
        packed += (
            entry_id,
            request.id,
            request.attempt,
            request.replay,
            request.rank,
            request.simple and request.edge,
            request.prompt_tokens,
            request.output_tokens,
            score(request, window_s=window_s),
            request.deadline_ms,
            request.tenant,
        )
    return [msgspec.msgpack.encode(packed), *bodies]


def result_row(result: Result, *, streamed: bool) -> list[Argument]:
    """The arguments of one terminal result, as lua/part_result.lua reads them."""
    fields: list[Argument] = []
    for name, value in result_fields(result).items():
        fields += (name, value)
    return [result.id, result.replay, int(streamed), msgspec.json.encode(result), len(fields), *fields]
