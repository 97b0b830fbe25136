"""What holds for the package as a whole: its wire format, and its independence of the application around it."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.client.actors import plain
from tokenweir import Client, ConfigError
from tokenweir.wire import Result, Usage, result_fields, result_from_fields

_TEXT = st.text(st.characters(codec="utf-8"), max_size=50)
_COUNT = st.integers(0, 2**31)
_OBJECT = st.dictionaries(_TEXT, _TEXT | st.integers(-(2**53), 2**53) | st.none(), max_size=3)
# Times are written with three decimals: a thousandth of a millisecond.
_MS = st.integers(-1000, 10**12).map(lambda thousandths: thousandths / 1000)
_RESULTS = st.builds(
    Result,
    id=_TEXT,
    status=st.sampled_from(["ok", "error", "cancelled", "expired"]),
    route=st.sampled_from(["premium", "edge", "none"]),
    model=_TEXT,
    content=_TEXT,
    body=_OBJECT.map(msgspec.json.encode).map(msgspec.Raw),
    code=_TEXT,
    finish_reason=_TEXT,
    usage=st.builds(
        Usage, prompt_tokens=_COUNT, completion_tokens=_COUNT, total_tokens=_COUNT, estimated=st.booleans()
    ),
    attempt=_COUNT,
    replay=_COUNT,
    metadata=_OBJECT.map(msgspec.json.encode).map(msgspec.Raw),
    waited_ms=_MS,
    ttft_ms=_MS,
    total_ms=_MS,
)


@given(result=_RESULTS)
def test_results_come_out_as_they_went_in(result: Result) -> None:
    """Whatever the engine writes to `responses`, a reader gets back unchanged."""
    written = {
        name.encode(): value if isinstance(value, bytes) else value.encode()
        for name, value in result_fields(result).items()
    }

    assert plain(result_from_fields(written)) == plain(result)


@given(fields=st.dictionaries(st.sampled_from([*result_fields(Result(id="", status="ok"))]), st.binary(max_size=8)))
def test_any_bytes_are_survived(fields: dict[str, bytes]) -> None:
    """A result that somebody else wrote is read, or refused as unreadable; nothing else comes of it."""
    with suppress(msgspec.ValidationError):
        result_from_fields({name.encode(): value for name, value in fields.items()})


def test_an_application_may_have_modules_of_our_names(tmp_path: Path) -> None:
    """`import tokenweir` works, and its client too, in an application that has its own pipeline.py and stages.py."""
    for name in ("pipeline", "stages"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('the application was imported')\n")
    program = (
        "import asyncio, sys, tokenweir\n"
        "async def main():\n"
        "    async with tokenweir.Client('redis://127.0.0.1:1/0') as client:\n"
        "        print([getattr(tokenweir, name) is not None for name in tokenweir.__all__].count(False))\n"
        "        try: await client.submit('x')\n"
        "        except tokenweir.StoreUnavailable: print('away')\n"
        "asyncio.run(main())\n"
        "print(sorted(set(sys.modules) & {'pipeline', 'stages'}))\n"
    )

    ran = subprocess.run([sys.executable, "-W", "error", "-c", program], cwd=tmp_path, capture_output=True, text=True)

    assert (ran.stdout, ran.stderr) == ("0\naway\n[]\n", "")


def test_a_pool_name_cannot_leave_its_keys() -> None:
    """A pool's name or prefix with a brace or colon in it is refused when the client is made."""
    for pool, prefix in (("a}b", "tokenweir"), ("main", "a:b")):
        with pytest.raises(ConfigError):
            Client("redis://localhost", pool=pool, prefix=prefix)
