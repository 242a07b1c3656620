"""Resource: one named limit with a gate of its own, and Slot: a place at it for the length of a block."""

from __future__ import annotations

from ..errors import Closed, InvalidConfig, UnknownResource
from ..frozen import Frozen
from ..gate.admission import Admission, Permit
from ..gate.gate import Gate
from ..gate.slots import ConcurrencyRule
from ..hints import AnyRate, Callable, Mapping, Sequence
from ..limits import REQUESTS, Rate, read_cost


class Capacity(Frozen):
    """The state of one resource, as `limiter.get_capacity("api")` returns it.

    `resource` is its name. `available` requests could be taken now. Its first rate allows `total` units in
    `window` seconds. `in_flight` calls run. `share` is the part of the total that this process may use, which
    is all of it unless agents share it.

    >>> from headgate import MemoryLimiter
    >>> limiter = MemoryLimiter(rates="5/s")
    >>> limiter.set_capacity("api", 60, 60)
    >>> capacity = limiter.get_capacity("api")
    >>> capacity.total, capacity.window
    (60, 60.0)
    """

    __slots__ = ("available", "in_flight", "resource", "share", "total", "window")
    resource: str
    available: int
    total: int
    window: float
    in_flight: int
    share: int


class Acquisition(Frozen):
    """Whether a call was acquired without waiting, as `ask()` of a limiter answers; it is true if it was.

    `acquired` says so too. If it was not, `rule` is the limit that has too little, and `retry_after` the
    number of seconds after which another try could succeed, or None if no clock can tell.

    >>> from headgate import RateLimiter
    >>> limiter = RateLimiter(1)
    >>> first, second = limiter.ask(), limiter.ask()
    >>> bool(first), bool(second), second.rule
    (True, False, 'requests/minute')
    """

    __slots__ = ("acquired", "retry_after", "rule")
    acquired: bool
    retry_after: float | None
    rule: str | None

    def __bool__(self) -> bool:
        return self.acquired


def capacity_of(resource: str, rules: Sequence[AnyRate], in_flight: int, now: int) -> Capacity:
    """The state of a resource with these rules and calls."""
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


def unknown_resource(resource: str, *, again: bool) -> UnknownResource:
    """The error for a name without limits; `again` if it had some when the call began to wait."""
    if again:
        return UnknownResource(f"{resource!r} was removed while this call waited for it")
    return UnknownResource(
        f"no limit was set for {resource!r}; write e.g. set_capacity({resource!r}, 60, 60)"
    )


class Resource:
    """One resource with a gate of its own. The gate counts the calls in slots, `acquired` the other calls."""

    __slots__ = ("acquired", "gate", "places")

    def __init__(self, gate: Gate, places: ConcurrencyRule, acquired: int = 0) -> None:
        self.gate = gate
        self.places = places
        self.acquired = acquired  # calls that were not released yet

    @property
    def rates_in_force(self) -> tuple[Rate, ...]:
        return tuple(rule.rate for rule in self.gate.rules.rates)

    def capacity_now(self, name: str) -> Capacity:
        """The state of the resource now."""
        return self.gate.look(
            lambda now: capacity_of(name, self.gate.rules.rates, self.places.in_flight + self.acquired, now)
        )

    def keep(self, permit: Permit) -> None:
        """Count a call that was acquired without a block until it is released."""
        self.gate.detach(permit, self._count)

    def _count(self) -> None:
        # There cannot be more calls than the rate has units: calls that are never released stop counting.
        most = self.gate.rules.rates[0].rate.amount
        self.acquired = self.acquired + 1 if self.acquired < most else most

    def block_succeeded(self, permit: Permit) -> None:
        """A `with` block of this resource ended without an error."""

    def release(self, *, refund: bool) -> None:
        """Count one acquired call less, if there is one, and give its request back if `refund` says so."""

        def end(now: int) -> None:
            if self.acquired:
                self.acquired -= 1
                if refund:
                    for rule in self.gate.rules.rates:
                        if rule.column == REQUESTS:
                            rule.give_back(1, now)

        self.gate.change(end)

    def retire(self) -> bool:
        """Close the gate if no call waits or is inside and all buckets are full: nothing is lost with it."""
        return self.gate.close_if(
            lambda now: not self.places.in_flight and all(rule.full(now) for rule in self.gate.rules.rates)
        )


class Slot(Admission):
    """A place at a resource for the length of a `with` or `async with` block.

    `find` gives the resource, and its gate with it. If that gate is closed while the caller waits, because
    the resource was removed or forgotten, the caller goes on at the gate that `find` gives then.
    """

    __slots__ = ("cost", "find", "known", "patience", "resource")
    cost: int | Mapping[str, int]
    find: Callable[[str, bool], Resource]
    known: Resource
    patience: int | None
    resource: str

    def __enter__(self) -> Permit:
        began = self._begin()
        while True:
            try:
                return super().__enter__()
            except Closed:
                self._go_on(began)

    async def __aenter__(self) -> Permit:
        began = self._begin()
        while True:
            try:
                return await super().__aenter__()
            except Closed:
                self._go_on(began)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: object) -> None:
        if kind is None and self.permit is not None:
            self.known.block_succeeded(self.permit)
        super().__exit__(kind, error, tb)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: object
    ) -> None:
        if kind is None and self.permit is not None:
            self.known.block_succeeded(self.permit)
        await super().__aexit__(kind, error, tb)

    def keep(self, permit: Permit) -> None:
        """Leave the block without ending the call."""
        self.permit = None
        self.known.keep(permit)

    def _begin(self) -> int:
        """Go to the gate of the resource, and return the time."""
        self._go_to(self.find(self.resource, False))
        self.timeout = self.patience
        return self.gate.clock.now()

    def _go_on(self, began: int) -> None:
        """Go to the gate that replaces one that was closed; the time that was waited counts."""
        self._go_to(self.find(self.resource, True))
        if self.patience:
            self.timeout = max(1, self.patience - (self.gate.clock.now() - began))

    def _go_to(self, known: Resource) -> None:
        self.known = known
        self.gate = known.gate
        self.price = read_cost(self.gate.columns, 0, 0, self.cost)


def check_name(resource: object) -> None:
    if not isinstance(resource, str) or not resource:
        raise InvalidConfig(f'resource {resource!r} is not a name; write a string, e.g. "openai"')
