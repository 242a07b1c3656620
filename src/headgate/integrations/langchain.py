"""For LangChain: a rate limiter for any chat model.

    ChatAnthropic(model=..., rate_limiter=RateLimiter(dispatch))

Prefer a client where the model takes one, `ChatOpenAI(http_client=headgate.http.httpx.client(), ...)`:
LangChain asks its rate limiter once before each call, not before each retry, and tells it neither the tokens
of a call nor its end. So this limiter counts requests, cannot limit how many run at once, and learns nothing
from responses; `dispatch.set_backoff` and other callers of the same Dispatch still hold its calls back.
"""

from __future__ import annotations

from langchain_core.rate_limiters import BaseRateLimiter

from ..dispatch.dispatch import Dispatch
from ..gate.first_free import FirstFree
from .pacing import Pace


class RateLimiter(BaseRateLimiter):
    """A rate limiter for LangChain that holds each call of a model back until the `gate` admits it.

    `gate` is a Dispatch or a FirstFree; `headgate.call_options` says for whom a call is. Raises InvalidConfig
    for what is not a gate.
    """

    def __init__(self, gate: Dispatch | FirstFree) -> None:
        self._pace = Pace(gate)

    def acquire(self, *, blocking: bool = True) -> bool:
        """Wait for the gate and return True; with `blocking=False` say at once whether a call may go now.

        Raises the refusals of `Dispatch.admit`.
        """
        if not blocking:
            return self._pace.may_go()
        self._pace.wait()
        return True

    async def aacquire(self, *, blocking: bool = True) -> bool:
        """Wait for the gate in a task and return True; with `blocking=False` say whether a call may go now.

        Raises the refusals of `Dispatch.admit`.
        """
        if not blocking:
            return self._pace.may_go()
        await self._pace.wait_async()
        return True

    def __repr__(self) -> str:
        return f"<RateLimiter at {self._pace.gate!r}>"
