"""The options that every adapter takes, and what becomes of them once they are checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias, TypedDict

from ..arguments import amount, positive_seconds_to_ns, seconds_to_ns
from ..backoff import Backoff
from ..dispatch.dispatch import Dispatch
from ..errors import InvalidConfig
from ..responses.estimate import TokenStats
from ..retries.budget import RetryBudget
from ..retries.policy import RetryPolicy
from ..typing import Seconds
from .gates import Gates, Request

Estimate: TypeAlias = Callable[[Request], int | Mapping[str, int]]

_BACKOFF = Backoff(0.5, cap=8, jitter=("factor", 0.25))


class SendOptions(TypedDict, total=False):
    """What every adapter takes besides a gate.

    `retries` is how often a refusal or a passing failure is tried again (0), after the delays of `backoff`
    and as far as `retry_budget` allows. `estimate` is a function of a `Request` that returns its tokens, or
    amounts by unit. A response that is neither read nor closed for `lease` seconds (600) gives its place
    back. `timeout` is how long a request may wait at the gate before WaitTimeout is raised.
    """

    retries: int
    backoff: Backoff | None
    retry_budget: RetryBudget | None
    estimate: Estimate | None
    lease: Seconds
    timeout: Seconds | None


@dataclass(frozen=True, slots=True)
class SendSettings:
    """The checked options of one adapter, and the token statistics that its requests share."""

    gate: Gates
    policy: RetryPolicy
    estimate: Estimate | None
    lease: int
    timeout: Seconds | None
    stats: TokenStats = field(default_factory=TokenStats)

    @classmethod
    def read(
        cls,
        gate: Gates = None,
        *,
        retries: int = 0,
        backoff: Backoff | None = None,
        retry_budget: RetryBudget | None = None,
        estimate: Estimate | None = None,
        lease: Seconds = 600.0,
        timeout: Seconds | None = None,
    ) -> SendSettings:
        """Check a gate and SendOptions. Raises InvalidLimit for an option that cannot work."""
        if gate is not None and not isinstance(gate, Dispatch) and not callable(gate):
            raise InvalidConfig(
                f"gate={gate!r} is not a Dispatch; give one, or a function of the request that returns one"
            )
        if estimate is not None and not callable(estimate):
            raise InvalidConfig(f"estimate={estimate!r} cannot be called; give a function of the request")
        if timeout is not None:
            seconds_to_ns(timeout, "timeout")
        policy = RetryPolicy(
            amount(retries, "retries"),
            backoff=_BACKOFF if backoff is None else backoff,
            idempotent=False,  # whether a request may run twice depends on the request
            retry_budget=retry_budget,
        )
        return cls(gate, policy, estimate, positive_seconds_to_ns(lease, "lease"), timeout)
