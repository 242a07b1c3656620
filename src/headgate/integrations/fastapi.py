"""For FastAPI: a dependency that admits requests by user, for one route, a router or an app.

    admitted = admit(MemoryLimiter(rates="60/minute"), user=lambda request: request.headers["x-api-key"])

    @app.get("/answers", dependencies=[Depends(admitted)])

The routes may be `def` or `async def`. For all requests of an app, the middleware of
`headgate.integrations.asgi` does the same without FastAPI.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

from fastapi import HTTPException, Request, Response

from ..arguments import must_be_plain
from ..errors import Refused
from ..typing import Seconds
from .asgi import by_client
from .door import Door, Limiter


def admit(
    limiter: Limiter,
    *,
    user: Callable[[Request], str] = lambda request: by_client(request.scope),
    wait: Seconds = 0.0,
    status: int = 429,
) -> Callable[..., Any]:
    """A dependency that admits a request of its user, and gives the user to the route.

    The arguments are those of `headgate.integrations.asgi.RateLimit`: `limiter`, `wait`, `status`, and
    `user`, which is a function of the request here. A refused request raises an HTTPException with
    `Retry-After`; an admitted one gets the fields `RateLimit` and `RateLimit-Policy`, and its calls through
    adapters of headgate belong to the user.

    >>> from typing import Annotated
    >>> from fastapi import Depends, FastAPI
    >>> from headgate import MemoryLimiter
    >>> app = FastAPI()
    >>> by_user = admit(MemoryLimiter(rates="5/s burst 10"), wait=2)
    >>> @app.get("/")
    ... async def greet(user: Annotated[str, Depends(by_user)]):
    ...     return {"hello": user}
    """
    must_be_plain(user, "user", "a request")
    door = Door(limiter, wait=wait, status=status)

    async def admitted(request: Request, response: Response) -> AsyncIterator[str]:
        name = user(request)
        block = door.admitted(name)
        try:
            fields = await block.__aenter__()
        except Refused as refusal:
            code, sentence, fields = door.answer_to(refusal, name)
            raise HTTPException(code, sentence, headers=fields) from refusal
        response.headers.update(fields)
        try:
            yield name
        finally:
            await block.__aexit__(None, None, None)

    # FastAPI finds out by the annotations what to give, and they are strings here.
    admitted.__annotations__ = {"request": Request, "response": Response}
    return admitted
