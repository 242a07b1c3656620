"""The door of a server: admits requests by user, and says in fields what is left and when to come back.

The fields are those of the IETF draft draft-ietf-httpapi-ratelimit-headers: `RateLimit-Policy` has the quota
`q` of each window of `w` seconds, `RateLimit` what remains, `r`, and the seconds `t` until it is restored.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from math import ceil
from typing import TypeAlias

from ..arguments import seconds_to_ns
from ..dispatch.dispatch import Dispatch
from ..dispatch.options import call_options
from ..errors import Closed, InvalidConfig, Refused
from ..limiters.memory_limiter import MemoryLimiter
from ..typing import Seconds

Limiter: TypeAlias = MemoryLimiter | Dispatch | Callable[[str], Dispatch]


class Door:
    """Admits requests of users at a limiter, each after a wait of at most `wait` seconds.

    A MemoryLimiter has a bucket for every user. At a Dispatch, which a `store` may share with other
    processes, all users share one limit fairly. A function of the user returns a Dispatch for each.
    """

    def __init__(self, limiter: Limiter, *, wait: Seconds = 0.0, status: int = 429) -> None:
        if not isinstance(limiter, (MemoryLimiter, Dispatch)) and not callable(limiter):
            raise InvalidConfig(
                f"limiter={limiter!r} limits nothing; give a MemoryLimiter or a Dispatch, or a function"
            )
        if status not in (429, 503):
            raise InvalidConfig(f"status={status!r} does not say to come back; write 429 or 503")
        seconds_to_ns(wait, "wait")
        self._limiter = limiter
        self._wait = wait
        self._status = status

    @asynccontextmanager
    async def admitted(self, user: str) -> AsyncIterator[dict[str, str]]:
        """A block in which a request of the user runs. Gives the fields of its response; raises a Refused.

        Calls that the request makes belong to the user, as `call_options(tenant=user)` says.
        """
        limiter = self._limiter
        if isinstance(limiter, MemoryLimiter):
            await limiter.acquire_async(user, timeout=self._wait)
            try:
                with call_options(tenant=user):
                    yield self.fields(user)
            finally:
                limiter.release(user, refund=False)
        else:
            async with self._dispatch(user).admit(tenant=user, timeout=self._wait):
                with call_options(tenant=user):
                    yield self.fields(user)

    def _dispatch(self, user: str) -> Dispatch:
        gate = self._limiter if isinstance(self._limiter, Dispatch) else self._limiter(user)  # type: ignore[operator]
        if not isinstance(gate, Dispatch):
            raise InvalidConfig(f"{self._limiter!r} gave {gate!r}, which is not a Dispatch; return one")
        return gate

    def fields(self, user: str) -> dict[str, str]:
        """What is left for this user."""
        if isinstance(self._limiter, MemoryLimiter):
            capacity = self._limiter.get_capacity(user)
            if capacity is None:
                return {}
            return _fields([("default", capacity.total, capacity.window, capacity.available)])
        rates = self._dispatch(user).snapshot().rates
        return _fields(
            (rate.name, rate.limit, rate.per, rate.level) for rate in rates if rate.unit == "requests"
        )

    def answer_to(self, refusal: Refused, user: str) -> tuple[int, str, dict[str, str]]:
        """The status, the sentence and the fields of the response to a refused request.

        `Retry-After` is when this request could go, in whole seconds, rounded up; without it no clock can
        tell.
        """
        if isinstance(refusal, Closed):
            return 503, "the service is closing", {}
        fields, after = self.fields(user), refusal.retry_after
        if after is not None:
            fields["retry-after"] = str(max(1, ceil(after)))
        return self._status, str(refusal), fields


def _fields(limits: Iterable[tuple[str, int, float, int]]) -> dict[str, str]:
    policies, states = [], []
    for name, quota, window, level in limits:
        left = max(0, level)
        # With nothing left: until the next unit. Otherwise until all of the quota is there again.
        missing = 1 - level if left == 0 else max(0, quota - level)
        policies.append(f'"{name}";q={quota};w={ceil(window)}')
        states.append(f'"{name}";r={left};t={ceil(missing * window / quota)}')
    if not policies:
        return {}
    return {"ratelimit-policy": ", ".join(policies), "ratelimit": ", ".join(states)}
