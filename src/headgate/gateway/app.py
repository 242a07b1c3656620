"""Gateway: the server, its gates, and what it counts.

async with Gateway(Settings(upstreams=(upstream("", "https://api.openai.com"),))) as gateway:
    print(gateway.url)
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import Self
from urllib.request import getproxies, proxy_bypass

import aiohttp
from aiohttp import (
    ClientError,
    ClientHttpProxyError,
    ClientPayloadError,
    ClientResponse,
    ClientResponseError,
    ClientSession,
    ClientTimeout,
    DummyCookieJar,
    TCPConnector,
    web,
)
from aiohttp.web import BaseRequest, StreamResponse
from yarl import URL

from ..dispatch.dispatch import Dispatch
from ..errors import InvalidConfig, StoreError
from ..gate.clock import SYSTEM
from ..observers import together
from ..responses.usage import Usage, unpacked
from ..typing import Clock, Observer
from .answer import UpstreamAnswer
from .body import Body, BodyStopped, read_body
from .clients import read_client
from .counts import Counts, Snapshot, take_snapshot
from .dialects import Dialect, dialect_of, error_document
from .gates import Gates
from .guards import Refusal, climbs, is_loopback, onward, refusal_of, wants_upgrade
from .hold import hold_for
from .keys import Keys, Passage
from .metrics import Metrics
from .page.own import OwnPage
from .relay import GatewayCall, Relay, say
from .settings import Settings, listen_address
from .upstreams import Routes

ADMIN = "/.headgate/"
_LARGEST_HEAD = 65_536  # bytes of the request line, and of one header
_KEEP_ALIVE = 15.0  # seconds that an idle connection to an API is kept
_CONNECT_WITHIN = 30.0
_MOST_ADDRESSES = 256
_HEAD_WITHIN = 75.0  # seconds that a connection may stay without a whole head of a request
_AT_ONCE = 0.1  # seconds that running calls have when the gateway is closed
_NO_AUTOMATIC = frozenset({"User-Agent", "Accept", "Accept-Encoding", "Content-Type"})
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

Page = Callable[[BaseRequest], Awaitable[StreamResponse]]
_log = logging.getLogger("headgate.gateway")
# Says nothing: aiohttp would write the whole line of a request that it cannot read, with its query.
_QUIET = logging.getLogger("headgate.gateway.aiohttp")
_QUIET.setLevel(logging.CRITICAL + 1)


class ProxyRefused(ConnectionRefusedError):
    """The proxy has not connected the gateway to the API: nothing was sent."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"the proxy refused to connect: {status} {message}".rstrip())
        self.status = status


class Gateway:
    """A reverse proxy that sends requests no faster than the APIs behind it allow.

    `settings` are its `Settings`. `keys` are those of the settings unless you give others. `clock` is that of
    its gates; the event loop has to keep the same time. `pages` are the paths below `/.headgate/` that it
    answers itself, and `url` is where it listens. Raises InvalidConfig if the settings do not go together,
    and OSError from `start` if it cannot listen.

    >>> import asyncio
    >>> from headgate.gateway.app import Gateway
    >>> from headgate.gateway.settings import Settings
    >>> from headgate.gateway.upstreams import upstream
    >>> async def main():
    ...     settings = Settings(upstreams=(upstream("openai"),), listen="127.0.0.1:0")
    ...     async with Gateway(settings) as gateway:
    ...         return gateway.url.startswith("http://127.0.0.1:")
    >>> asyncio.run(main())
    True
    """

    def __init__(self, settings: Settings, *, keys: Keys | None = None, clock: Clock = SYSTEM) -> None:
        self.settings = settings
        self.routes = Routes(settings.upstreams)
        address, _port = listen_address(settings.listen)
        local = is_loopback(address)
        self.keys = _keys_of(settings, local=local) if keys is None else keys
        if not local:
            check_parser()
        self._hosts = frozenset({*settings.hosts, *(() if address == "0.0.0.0" else (address,))})  # noqa: S104
        self.counts = Counts()
        self.waiting: dict[int, Relay] = {}
        self.now = clock.seconds
        self.started_at = self.now()
        self.draining = False
        self.url = ""
        self.pages: dict[str, Page] = {"health": self._health, "state": self._state}
        self._own_page = OwnPage(self)
        self.pages |= {
            "ui": self._own_page.page,
            "events": self._own_page.live.events,
            "control": self._control,
        }
        observers: list[Observer] = [self.counts, self._own_page.history.hear]
        metrics = Metrics.installed()
        if metrics is not None:
            self.pages["metrics"] = metrics.page
            observers.append(metrics.observer)
        self._gates = Gates(settings, together(*observers), clock)
        self._proxies = getproxies()
        self._addresses: dict[str, URL] = {}
        self._session: ClientSession | None = None
        self._runner: web.ServerRunner | None = None
        self._site: web.BaseSite | None = None
        self.active = 0
        self._idle = asyncio.Event()

    # -- starting and ending

    async def start(self) -> None:
        """Listen. Errors of the store and of the address are raised here."""
        try:
            await self._start()
        except BaseException:
            await self.close()
            raise

    async def _start(self) -> None:
        settings = self.settings
        loop = asyncio.get_running_loop()
        self.counts.on_window = lambda: loop.call_soon_threadsafe(self._look_at_windows)
        await self._gates.check_store()
        self._session = ClientSession(
            connector=TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE),
            timeout=ClientTimeout(total=None, sock_connect=_CONNECT_WITHIN),
            cookie_jar=DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=_NO_AUTOMATIC,
            max_line_size=_LARGEST_HEAD,
            max_field_size=_LARGEST_HEAD,
        )
        server = web.Server(
            self._handle,
            handler_cancellation=True,  # a client that hangs up leaves the line at once
            auto_decompress=False,
            keepalive_timeout=_HEAD_WITHIN,
            access_log=None,
            logger=_QUIET,
            max_line_size=_LARGEST_HEAD,
            max_field_size=_LARGEST_HEAD,
        )
        self._runner = web.ServerRunner(server, handle_signals=False, shutdown_timeout=_AT_ONCE)
        await self._runner.setup()
        host, port = listen_address(settings.listen)
        if port < 0:
            site: web.BaseSite = web.UnixSite(self._runner, host.removeprefix("unix:"))
            before = os.umask(0o177)  # for this user only, from the first moment
            try:
                await site.start()
            finally:
                os.umask(before)
            self.url = host
        else:
            site = web.TCPSite(self._runner, host, port, backlog=1_024)
            await site.start()
            bound = self._runner.addresses[0][1]
            self.url = f"http://{f'[{host}]' if ':' in host else host}:{bound}"
        self._site = site

    async def drain(self) -> None:
        """Take no new calls, refuse those that wait, and let those that were sent to the API end."""
        self.draining = True
        self._own_page.live.end()
        if self._site is not None:
            await self._site.stop()
        self._gates.close()
        if self.active:
            self._idle.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), self.settings.drain)

    async def close(self) -> None:
        """End everything now. A second call does nothing."""
        self.draining = True
        self.counts.on_window = lambda: None
        await self._own_page.close()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        if self._session is not None:
            await self._session.close()
            self._session = None
        self._gates.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    def _look_at_windows(self) -> None:
        """A window has started: clients that would wait in vain hear so at once."""
        for relay in list(self.waiting.values()):
            relay.look_at_window()

    def gates(self) -> list[Dispatch]:
        """Every gate, as of now."""
        return self._gates.all()

    # -- requests

    async def _handle(self, request: BaseRequest) -> StreamResponse:
        self.active += 1
        try:
            return await self._answer(request)
        except (OSError, ClientError):
            raise  # the client has gone, or the answer was broken off
        except Exception:
            _log.exception("%s %s failed", request.method, request.raw_path.partition("?")[0])
            raise
        finally:
            self.active -= 1
            if not self.active:
                self._idle.set()

    async def _answer(self, request: BaseRequest) -> StreamResponse:
        headers, target = request.headers, request.raw_path
        refusal = refusal_of(request.method, target, headers, self._hosts)
        if refusal is not None:
            return await self._refused(request, refusal, "other")
        if target.startswith(ADMIN):
            return await self._page(request, target)
        found = self.routes.find(target)
        if found is None:
            names = ", ".join(f"/{each.name}" for each in self.routes.all)
            return await self._refused(
                request, Refusal(404, f"no API is here; paths begin with {names}"), "other"
            )
        upstream, target = found
        path = target.partition("?")[0]
        if upstream.has_path and climbs(path):
            return await self._refused(request, Refusal(400, "a path cannot lead out of the API"), "other")
        dialect = dialect_of(path, upstream.host)
        if self.draining:
            return await self._refused(request, Refusal(503, "this gateway is being stopped"), dialect)
        if wants_upgrade(headers):
            message = "this gateway speaks HTTP only: send the request without an upgrade to another protocol"
            return await self._refused(request, Refusal(426, message), dialect)
        passage = self.keys.passage(
            upstream, target, headers, onward(request.raw_headers, headers.get("connection", ""))
        )
        if isinstance(passage, Refusal):
            return await self._refused(request, passage, dialect)
        client = read_client(headers, passage.tenant, request)
        if isinstance(client, Refusal):
            return await self._refused(request, client, dialect)
        if headers.get("expect", "").lower() == "100-continue" and request.transport is not None:
            request.transport.write(_CONTINUE)
        try:
            body = await read_body(request)
        except BodyStopped as error:
            return await self._refused(request, Refusal(408, str(error)), dialect)
        try:
            sender = await self._gates.sender(upstream, passage.digest)
        except StoreError as error:
            return await self._refused(request, Refusal(503, str(error)), dialect)
        url = upstream.address(passage.target)
        call = GatewayCall(self.count_tokens, sender, request.method, url, headers, body.known)
        hold = hold_for(
            dialect,
            headers,
            streams=body.asks_for_stream,
            http_1_1=request.version >= (1, 1),
            patience=self.settings.patience,
        )
        relay = Relay(
            self,
            request,
            call,
            lambda plain: self._send(request.method, url, passage, body, plain=plain),
            dialect=dialect,
            hold=hold,
            tenant=client.tenant,
            priority=client.priority,
            limit=min(self.settings.max_wait, client.timeout),
        )
        self.counts.calls += 1
        try:
            response = await relay.run()
        except BodyStopped as error:
            return await self._refused(request, Refusal(408, str(error)), dialect)
        if _log.isEnabledFor(logging.INFO):
            _log.info("%s %s %d, waited %.3f s", request.method, path, response.status, relay.waited)
        return response

    async def _send(
        self, method: str, url: str, passage: Passage, body: Body, *, plain: bool
    ) -> ClientResponse:
        assert self._session is not None
        headers = passage.headers
        if plain:
            headers = [pair for pair in headers if pair[0].lower() != "accept-encoding"]
            headers.append(("accept-encoding", "identity"))
        if body.is_in_slices and passage.unsized:
            headers = [*headers, ("Content-Length", str(body.length))]
        address = self._addresses.get(url)
        if address is None:
            address = URL(url, encoded=True)
            if len(self._addresses) < _MOST_ADDRESSES:
                self._addresses[url] = address
        try:
            return await self._session.request(
                method,
                address,
                headers=headers,
                data=body.to_send(),
                allow_redirects=False,
                proxy=self._proxy_for(address),
            )
        except ClientResponseError as error:  # its text has the URL, where a key can stand
            said = error.message.partition("\n")[0]
            if isinstance(error, ClientHttpProxyError):
                raise ProxyRefused(error.status, said) from None
            raise ClientPayloadError(f"what it sent is not HTTP: {said}") from None

    def _proxy_for(self, address: URL) -> str | None:
        """The proxy that the environment names for an upstream."""
        if not self._proxies or address.host is None or proxy_bypass(address.host):
            return None
        return self._proxies.get(address.scheme)

    async def _refused(self, request: BaseRequest, refusal: Refusal, dialect: Dialect) -> StreamResponse:
        document = error_document(dialect, refusal.status, f"headgate: {refusal.message}")
        headers = [("x-headgate", "refused"), ("connection", "close")]
        if refusal.status == 503:
            headers += [("retry-after", "1"), ("x-should-retry", "true")]
        elif refusal.status == 426:
            headers.append(("upgrade", "HTTP/1.1"))
        if refusal.status not in (426, 503) and not request.raw_path.startswith(ADMIN):
            self.counts.turned_away += 1
            self.counts.why_turned_away = refusal.message
        return await say(request, refusal.status, document, headers)

    # -- pages of its own

    async def _page(self, request: BaseRequest, target: str) -> StreamResponse:
        name = target.removeprefix(ADMIN).partition("?")[0]
        page = self.pages.get(name)
        if page is None:
            return await self._refused(request, Refusal(404, "this page does not exist"), "other")
        opens = name == "ui" and bool(self._own_page.token_in(request))
        if name != "health" and not opens and not self.keys.may_look(request.headers):
            return await self._refused(request, Refusal(401, "this page asks for the token"), "other")
        return await page(request)

    async def _health(self, request: BaseRequest) -> StreamResponse:
        status = "draining" if self.draining else "ok"
        headers = [("cache-control", "no-store")]
        return await say(request, 503 if self.draining else 200, {"status": status}, headers)

    async def _control(self, request: BaseRequest) -> StreamResponse:
        done = await self._own_page.control(request)
        if isinstance(done, Refusal):
            return await self._refused(request, done, "other")
        return await say(request, 200, done, [("cache-control", "no-store")])

    async def _state(self, request: BaseRequest) -> StreamResponse:
        return await say(request, 200, self.snapshot(), [("cache-control", "no-store")])

    def snapshot(self) -> Snapshot:
        """How the gateway stands, as plain data for JSON."""
        return take_snapshot(self)

    # -- counting

    def count_tokens(self, usage: Usage) -> None:
        self.counts.tokens += usage.input + usage.output

    def note_error(self, gate: Dispatch, answer: UpstreamAnswer) -> None:
        """Remember what the API said, in its own words."""
        text = unpacked(answer.start, answer.response.headers.get("content-encoding") or "")
        self.counts.note_error(str(gate.key), answer.status, text or b"", self.now())


def _keys_of(settings: Settings, *, local: bool) -> Keys:
    """What the settings say about keys and tokens."""
    injected = (
        frozenset(each.name for each in settings.upstreams if each.secret) if settings.inject else frozenset()
    )
    if settings.inject and not injected:
        variables = ", ".join(each.key_env for each in settings.upstreams if each.key_env)
        raise InvalidConfig(f"inject: the environment holds no key to inject; set {variables or 'key_env'}")
    required = bool(settings.inject) or not local
    if required and not settings.tokens:
        why = "keys are injected" if settings.inject else f"{settings.listen} can be reached from elsewhere"
        raise InvalidConfig(f"{why}, so clients need a token: set HEADGATE_TOKEN, or give --token-file FILE")
    return Keys(settings.tokens, required=required or bool(settings.tokens), injected=injected)


def check_parser() -> None:
    """Raise unless aiohttp parses HTTP by its C code: the one in Python has let requests be smuggled."""
    if aiohttp.http_parser.HttpRequestParser.__module__ == "aiohttp.http_parser":
        raise InvalidConfig(
            "aiohttp lacks its C parser here, and without it the gateway listens on this machine only; "
            "install aiohttp as a wheel, without AIOHTTP_NO_EXTENSIONS"
        )
