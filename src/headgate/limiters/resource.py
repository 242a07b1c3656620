"""One resource of a limiter: its gate, how it stands, and a place at it for the length of a block."""

from __future__ import annotations

from types import TracebackType

from ..errors import Closed, InvalidConfig
from ..frozen import Frozen
from ..gate.admission import Admission, Permit
from ..gate.gate import Gate
from ..gate.slots import ConcurrencyRule
from ..hints import Sequence
from ..limits import REQUESTS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..gate.decision import AnyRate
    from .memory_limiter import MemoryLimiter


class Capacity(Frozen):
    """How one resource stands. `available` of `total` could go now; `window` is in seconds.

    `share` is the part of the total that this process may use: here, all of it.
    """

    __slots__ = ("available", "in_flight", "resource", "share", "total", "window")
    resource: str
    available: int
    total: int
    window: float
    in_flight: int
    share: int


def capacity_of(resource: str, rules: Sequence[AnyRate], in_flight: int, now: int) -> Capacity:
    counting = [rule for rule in rules if rule.column == REQUESTS] or list(rules)
    rate = rules[0].rate
    return Capacity(
        resource=resource,
        available=max(0, min(rule.level(now) for rule in counting)),
        total=rate.amount,
        window=rate.per,
        in_flight=in_flight,
        share=rate.amount,
    )


class Resource:
    """One resource with a gate of its own. Slots are counted by the gate, other calls here."""

    __slots__ = ("acquired", "gate", "places")

    def __init__(self, gate: Gate, places: ConcurrencyRule, acquired: int = 0) -> None:
        self.gate = gate
        self.places = places
        self.acquired = acquired  # and not released

    def keep(self, permit: Permit) -> None:
        """What was acquired without a block is under way until it is released."""

        def count(_now: int) -> None:
            self.gate.detach(permit)
            # More calls than tokens cannot be under way: who never releases is not counted for ever.
            self.acquired = min(self.acquired + 1, self.gate.rules.rates[0].rate.amount)

        self.gate.look(count)

    def block_succeeded(self, permit: Permit) -> None:
        """A `with` block of this resource ended without an error."""

    def release(self, now: int, *, refund: bool) -> None:
        if self.acquired:
            self.acquired -= 1
            if refund:
                for rule in self.gate.rules.rates:
                    if rule.column == REQUESTS:
                        rule.give_back(1, now)

    def retire(self) -> bool:
        """Close the gate if nobody is there and nothing is missing: then it is as good as none."""

        def idle(now: int) -> bool:
            return not self.places.in_flight and all(rule.full(now) for rule in self.gate.rules.rates)

        return self.gate.close_if(idle)


class Slot(Admission):
    """A place at a resource, for the length of a block."""

    __slots__ = ("_known", "_limiter", "_patience", "_resource")
    _known: Resource
    _limiter: MemoryLimiter
    _patience: int | None
    _resource: str

    def __enter__(self) -> Permit:
        began = self._limiter._now()
        while True:
            self._come_in(began)
            try:
                return super().__enter__()
            except Closed:
                self._limiter._raise_if_gone(self._resource)

    async def __aenter__(self) -> Permit:
        began = self._limiter._now()
        while True:
            self._come_in(began)
            try:
                return await super().__aenter__()
            except Closed:
                self._limiter._raise_if_gone(self._resource)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        if kind is None and self.permit is not None:
            self._known.block_succeeded(self.permit)
        super().__exit__(kind, error, tb)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        if kind is None and self.permit is not None:
            self._known.block_succeeded(self.permit)
        await super().__aexit__(kind, error, tb)

    def keep(self, permit: Permit) -> None:
        """Leave the block without ending the call."""
        self.permit = None
        self._known.keep(permit)

    def _come_in(self, began: int) -> None:
        self._known = self._limiter._entrance(self._resource)
        self.gate = self._known.gate
        if self._patience:  # what it waited at a gate that was taken away counts
            self.timeout = max(1, self._patience - (self._limiter._now() - began))


def check_name(resource: object) -> None:
    if not isinstance(resource, str) or not resource:
        raise InvalidConfig(f'resource {resource!r} is not a name; write a string, e.g. "openai"')
