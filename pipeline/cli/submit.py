"""The command `submit`: one request, or a file of them."""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import Any, cast

import msgspec

from pipeline.cli.bulk import Bulk, opened_lines
from pipeline.cli.output import remark, say, say_json
from pipeline.cli.parser import UsageError
from pipeline.cli.progress import board
from pipeline.cli.request_file import Defaults
from pipeline.cli.target import Target, resolve
from tokenweir.client import Client
from tokenweir.wire import Class, Event, Result


def run(args: argparse.Namespace) -> int:
    """Queue what was given, and print its id, or the answer where that is waited for.

    Raises:
        UsageError: neither a prompt nor a file, or options that contradict each other.
    """
    if (args.prompt is None) == (args.file is None):
        raise UsageError("give a prompt, or a file of requests with -f, and not both; see `tokenweir submit --help`")
    if args.file is not None:
        if args.id or args.wait or args.stream or args.json:
            raise UsageError("--id, --wait, --stream and --json go with one request; `tokenweir results` reads many")
        return asyncio.run(_submit_file(args, resolve(args)))
    if args.json and not args.wait and not args.stream:
        raise UsageError("--json goes with --wait or --stream: without them there is no result to print")
    prompt = sys.stdin.read() if args.prompt == "-" else args.prompt
    return asyncio.run(_submit(args, prompt, resolve(args)))


async def _submit(args: argparse.Namespace, prompt: str, target: Target) -> int:
    more: dict[str, Any] = {
        "id": args.id or None,
        "tenant": args.tenant or "default",
        "priority": args.priority or "interactive",
        "task": args.task,
        "complexity": args.complexity or "",
        "max_wait": args.max_wait,
    }
    async with _client(args, target) as client:
        if args.stream:
            return await _follow(args, client, prompt, more)
        request_id = await client.submit(prompt, **more)
        if not args.wait:
            say(request_id)
            return 0
        return _finish(args, await client.result(request_id, timeout_s=args.wait))


async def _follow(args: argparse.Namespace, client: Client, prompt: str, more: dict[str, Any]) -> int:
    """Print the answer as it comes. Pieces are a preview: what they lacked is made up for from the result."""
    shown, attempt = "", 1
    result: Result | None = None
    async for event in client.stream(prompt, timeout_s=args.wait, **more):
        if event.kind == "delta" and not args.json:
            if event.attempt > attempt and shown:
                say()
                remark("the provider broke off; the answer starts again")
                shown = ""
            attempt = event.attempt
            shown += _show(event)
        result = event.result or result
    assert result is not None
    if args.json or not result.ok:
        if shown:
            say()
        return _finish(args, result)
    if not result.content.startswith(shown):
        say()
        shown = ""
    say(result.content[len(shown) :])
    return 0


def _show(event: Event) -> str:
    sys.stdout.write(event.text)
    sys.stdout.flush()
    return event.text


def _finish(args: argparse.Namespace, result: Result) -> int:
    """Print the terminal result; 1 unless it is an answer."""
    if args.json:
        say_json(result)
    elif result.ok:
        say(result.content)
    else:
        remark(f"{result.id} ended as {result.code or result.status}: {_message(result)}")
    return 0 if result.ok else 1


def _message(result: Result) -> str:
    """What the error object says."""
    body = msgspec.json.decode(result.body)
    error = body.get("error") if isinstance(body, dict) else None
    return str(error.get("message", "")) if isinstance(error, dict) else "no reason was given"


async def _submit_file(args: argparse.Namespace, target: Target) -> int:
    defaults = Defaults(
        tenant=args.tenant or "default",
        priority=cast("Class", args.priority or "batch"),
        task=args.task,
        complexity=args.complexity or "",
        max_wait=args.max_wait,
    )
    with opened_lines(args.file) as (lines, total):
        async with _client(args, target) as client:
            with board("submitting", total) as shown:
                bulk = Bulk(client, "stdin" if args.file == "-" else args.file, shown)
                await bulk.submit(lines, defaults)
    bad = f"; bad lines left out: {bulk.bad:,}" if bulk.bad else ""
    remark(f"requests submitted: {bulk.queued:,}{bad}; submitting them again queues none twice")
    return 1 if bulk.bad else 0


def _client(args: argparse.Namespace, target: Target) -> Client:
    prefix, most = target.config.redis.prefix, target.pool.max_waiting
    return Client(target.url, pool=target.pool_name, prefix=prefix, max_waiting=most, durability=args.durability)
