"""For ASGI servers (Starlette, FastAPI, Litestar, Quart): a middleware that admits requests by user.

    app.add_middleware(RateLimit, limiter=MemoryLimiter(rates="60/minute"), user=by_header("x-api-key"))

Nothing but ASGI is needed. Requests of one user wait for that user only, in the event loop, which never
blocks; streams and web sockets pass as they are.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

from ..arguments import must_be_plain
from ..errors import Refused
from ..typing import Seconds
from .door import Door, Limiter

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]


def by_client(scope: Scope) -> str:
    """The user of a request, from its ASGI `scope`: the address that the request comes from.

    >>> by_client({"type": "http", "client": ("10.0.0.7", 50123)})
    '10.0.0.7'
    """
    client = scope.get("client")
    return str(client[0]) if client else "unknown"


def by_header(name: str) -> Callable[[Scope], str]:
    """A function that reads the user from the header `name`, e.g. an API key; the address, if it is missing.

    >>> by_header("X-API-Key")({"type": "http", "headers": [(b"x-api-key", b"ann")]})
    'ann'
    """
    wanted = name.lower().encode("latin-1")

    def user(scope: Scope) -> str:
        value = next((value for field, value in scope["headers"] if field == wanted), None)
        return by_client(scope) if value is None else str(value.decode("latin-1"))

    return user


class RateLimit:
    """An ASGI middleware that admits requests by user, and answers those that it refuses.

    `app` is the application that is called. `limiter` is a MemoryLimiter with rates for every user, a
    Dispatch that all users share fairly, or a function of the user that returns a Dispatch. `user` is a
    function of the ASGI scope; for None the request is not limited. A request waits at most `wait` seconds,
    and is then answered with `status` 429 (or 503), `Retry-After` and the fields `RateLimit` and
    `RateLimit-Policy`, which every other response has too.

    Calls that a request makes through adapters of headgate belong to its user: they share fairly with those
    of others. Raises InvalidConfig or InvalidWindow for arguments that cannot work.

    >>> from headgate import MemoryLimiter
    >>> async def app(scope, receive, send): ...
    >>> app = RateLimit(app, MemoryLimiter(rates="5/s burst 10"), user=by_header("X-API-Key"), wait=2)
    """

    def __init__(
        self,
        app: App,
        limiter: Limiter,
        *,
        user: Callable[[Scope], str | None] = by_client,
        wait: Seconds = 0.0,
        status: int = 429,
    ) -> None:
        must_be_plain(user, "user", "the ASGI scope")
        self._app = app
        self._user = user
        self._door = Door(limiter, wait=wait, status=status)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        user = self._user(scope) if scope["type"] == "http" else None
        if user is None:
            await self._app(scope, receive, send)
            return
        admitted = self._door.admitted(user)
        try:
            fields = await admitted.__aenter__()
        except Refused as refusal:
            await _answer(send, *self._door.answer_to(refusal, user))
            return
        raised: tuple[Any, ...] = (None, None, None)
        try:
            await self._app(scope, receive, _with_fields(send, fields))
        except BaseException as error:
            raised = (type(error), error, error.__traceback__)
            raise
        finally:
            await admitted.__aexit__(*raised)


def _with_fields(send: Send, fields: dict[str, str]) -> Send:
    async def send_with_fields(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *_encoded(fields)]}
        await send(message)

    return send_with_fields


async def _answer(send: Send, status: int, sentence: str, fields: dict[str, str]) -> None:
    body = json.dumps({"detail": sentence}).encode()
    head = {"content-type": "application/json", "content-length": str(len(body)), **fields}
    await send({"type": "http.response.start", "status": status, "headers": _encoded(head)})
    await send({"type": "http.response.body", "body": body})


def _encoded(fields: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in fields.items()]
