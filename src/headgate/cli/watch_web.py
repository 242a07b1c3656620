"""`headgate watch --web`: the live page of a store, in a browser."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import click
from aiohttp import web
from aiohttp.web import BaseRequest, StreamResponse

from ..errors import InvalidConfig
from ..gateway.guards import is_loopback, refusal_of
from ..gateway.page.history import STEPS
from ..gateway.page.live import LivePage
from ..gateway.page.view import Document, store_document
from ..gateway.settings import listen_address


class StorePage:
    """What the page of a store shows: its pools as they are now, and how they were while it was shown."""

    def __init__(self, look: Callable[[], Awaitable[dict[str, Any]]], every: float) -> None:
        self._look = look
        names = ("in_flight", "waiting", "members", "windows")
        self._lines = {name: deque([0.0] * 2, maxlen=STEPS) for name in names}
        self.live = LivePage(self._document, every=every)

    async def _document(self) -> Document:
        facts = await self._look()
        pools = [pool for pool in facts["pools"].values() if pool is not None]
        members = [member for pool in pools for member in pool["members"]]
        self._lines["in_flight"].append(sum(member["in_flight"] for member in members))
        self._lines["waiting"].append(sum(member["waiting"] for member in members))
        self._lines["members"].append(len(members))
        self._lines["windows"].append(sum(pool["window"] > 0 for pool in pools))
        return store_document(facts, {name: list(points) for name, points in self._lines.items()})

    async def answer(self, request: BaseRequest) -> StreamResponse:
        """Answer a request of a browser."""
        refusal = refusal_of(request.method, request.raw_path, request.headers, ())
        if refusal is not None:
            return web.Response(status=refusal.status, text=refusal.message)
        path = request.path
        if path == "/.headgate/ui":
            return await self.live.page(request)
        if path == "/.headgate/events":
            return await self.live.events(request)
        return web.Response(status=404, text="this page does not exist")


async def show_page(look: Callable[[], Awaitable[dict[str, Any]]], listen: str, every: float) -> None:
    """Serve the page until cancelled, and say where it is."""
    host, port = listen_address(listen)
    if not is_loopback(host):
        raise InvalidConfig(
            f"--listen {listen} can be reached from elsewhere, and the page asks for no password; "
            "write 127.0.0.1:0, and let a server in front of it be reached"
        )
    page = StorePage(look, every)
    runner = web.ServerRunner(web.Server(page.answer, access_log=None), handle_signals=False)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        click.echo(f"the page is at http://{host}:{runner.addresses[0][1]}/.headgate/ui")
        await asyncio.Event().wait()
    finally:
        page.live.end()
        await runner.cleanup()
