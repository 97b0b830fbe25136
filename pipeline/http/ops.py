"""Metrics and health of one worker process, on loopback unless configured otherwise."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest


class Ops:
    """`/metrics`, `/healthz` (the process answers) and `/readyz` (Redis serves it and it may take work).

    Args:
        refresh: called before each scrape, to read what is measured on demand.
        ready: an empty text when ready, else why not.
    """

    def __init__(
        self, registry: CollectorRegistry, *, refresh: Callable[[], Awaitable[None]], ready: Callable[[], str]
    ) -> None:
        self._registry = registry
        self._refresh = refresh
        self._ready = ready
        app = web.Application()
        app.add_routes(
            [web.get("/metrics", self._metrics), web.get("/healthz", self._healthz), web.get("/readyz", self._readyz)]
        )
        self._runner = web.AppRunner(app, access_log=None)

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port, which differs from `port` when that was 0.

        Raises:
            OSError: the address can't be used.
        """
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        await site.start()
        return int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Stop listening."""
        await self._runner.cleanup()

    async def _metrics(self, _request: web.Request) -> web.Response:
        await self._refresh()
        return web.Response(body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _healthz(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, _request: web.Request) -> web.Response:
        reason = self._ready()
        return web.Response(status=503 if reason else 200, text=f"{reason or 'ready'}\n")
