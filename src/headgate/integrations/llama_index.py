"""For LlamaIndex: a rate limiter for any LLM or embedding.

    OpenAI(model=..., rate_limiter=RateLimiter(dispatch))

Prefer a client where the class takes one, `OpenAI(http_client=headgate.http.httpx.client(), ...)`: LlamaIndex
asks its rate limiter once before each call, not before each retry, usually without tokens, and does not say
when the call has ended. So this limiter cannot limit how many calls run at once, and learns nothing from
responses.
"""

from __future__ import annotations

from llama_index.core.rate_limiter import BaseRateLimiter

from ..dispatch.dispatch import Dispatch
from ..gate.first_free import FirstFree
from .pacing import Pace


class RateLimiter(BaseRateLimiter):
    """A rate limiter for LlamaIndex that holds each call back until the `gate` admits it.

    `gate` is a Dispatch or a FirstFree; `headgate.call_options` says for whom a call is. Raises InvalidConfig
    for what is not a gate.
    """

    def __init__(self, gate: Dispatch | FirstFree) -> None:
        self._pace = Pace(gate)

    def acquire(self, num_tokens: int = 0) -> None:
        """Wait for the gate, with `num_tokens` as the estimate of the call. Raises the refusals of
        `Dispatch.admit`.
        """
        self._pace.wait(num_tokens)

    async def async_acquire(self, num_tokens: int = 0) -> None:
        """Wait for the gate in a task, with `num_tokens` as the estimate. Raises what `acquire` raises."""
        await self._pace.wait_async(num_tokens)

    def __repr__(self) -> str:
        return f"<RateLimiter at {self._pace.gate!r}>"
