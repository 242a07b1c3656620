"""What a framework asks that has one question before each call and says nothing after it."""

from __future__ import annotations

from typing import Any

from ..dispatch.dispatch import Dispatch
from ..dispatch.options import current_options
from ..errors import InvalidConfig
from ..gate.first_free import FirstFree


class Pace:
    """Admits a call and settles it at once, because the framework does not say when the call has ended.

    So rates and backoff windows hold calls back, while concurrency and bytes do not: no place is held.
    Tenant, priority, time-out and cost come from `headgate.call_options`.
    """

    def __init__(self, gate: Dispatch | FirstFree) -> None:
        if not isinstance(gate, (Dispatch, FirstFree)):
            raise InvalidConfig(f"gate={gate!r} is not a Dispatch; write RateLimiter(dispatch)")
        self.gate = gate

    def wait(self, tokens: int = 0) -> None:
        """Wait until a call may go."""
        self.gate.admit(**self._options(tokens)).enter().settle()

    async def wait_async(self, tokens: int = 0) -> None:
        """Wait in a task until a call may go."""
        (await self.gate.admit(**self._options(tokens)).enter_async()).settle()

    def may_go(self, tokens: int = 0) -> bool:
        """Whether a call may go right now; if so, it is counted."""
        options = self._options(tokens)
        options.pop("timeout", None)
        permit = self.gate.try_admit(**options)
        if permit is None:
            return False
        permit.settle()
        return True

    def _options(self, tokens: int) -> dict[str, Any]:
        options = current_options()
        if options is None:
            return {"tokens": tokens}
        cost = options.costs()
        return {
            "tokens": cost.pop("tokens", tokens),
            "cost": cost or None,
            "timeout": options.timeout,
            "priority": options.priority,
            "tenant": options.tenant,
        }

    def __repr__(self) -> str:
        return f"<Pace of {self.gate!r}>"
