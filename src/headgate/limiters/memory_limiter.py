"""MemoryLimiter: rates for named resources in one process, set one by one or a million from a template."""

from __future__ import annotations

from _thread import allocate_lock
from itertools import islice

from .. import events, telling
from ..arguments import SECOND, positive_int, positive_seconds_to_ns, ratio, read_observer, seconds_to_ns
from ..errors import CapacityExhausted, Closed, InvalidConfig, UnknownResource
from ..gate.clock import SYSTEM, read_clock
from ..gate.closing import Closing
from ..gate.decision import Rules, load_rules, successors
from ..gate.forks import reset_in_child
from ..gate.gate import Gate
from ..gate.pickling import only_here
from ..gate.slots import ConcurrencyRule
from ..hints import AnyRate, Clock, Mapping, Observer, Rates, Seconds
from ..limits import Rate, columns_for, read_cost, read_rates
from .buckets import KeyedRates
from .reduction import Reduction
from .resource import Acquisition, Capacity, Resource, Slot, capacity_of, check_name, unknown_resource


class MemoryLimiter(Closing):
    """Rates by resource name, in this process, for threads and event loops: a name may be an API or a user.

    >>> from headgate import MemoryLimiter
    >>> limiter = MemoryLimiter()
    >>> limiter.set_capacity("openai", 60, 60)         # 60 requests a minute
    >>> with limiter.slot("openai"):                   # `async with` in a task
    ...     limiter.get_capacity("openai").in_flight
    1
    >>> limiter.get_capacity("openai").available       # the request stays counted
    59

    `rates` is a template: every resource without limits of its own gets these rates on first use, so that one
    limiter serves a million users. Such a resource takes about as much memory as a dictionary entry, and is
    forgotten when the levels of its rates are full again.

    `announce_reduced` tells observers and changes nothing, unless there is a `reduce_factor`: then it
    multiplies the rates of the resource by that factor, once per episode, and they grow back by
    `recovery_factor` every `recovery_interval` seconds. The next caller notices the growth.

    An `observer` is called with every event, and `clock` replaces the time in tests. A `with` block closes
    the limiter. Raises InvalidLimit for what is not a rate, InvalidConfig for factors that cannot work, and
    InvalidWindow if the interval is not a time.
    """

    __slots__ = (
        "__weakref__",
        "_clock",
        "_closed",
        "_columns",
        "_factor",
        "_forgettable",
        "_given",
        "_growth",
        "_interval",
        "_keyed",
        "_lock",
        "_now",
        "_observer",
        "_reduced",
        "_resources",
        "_template",
    )

    __reduce__ = only_here("make one per process, or share a limit by Dispatch(store=...)")

    def __init__(
        self,
        *,
        rates: Rates = (),
        reduce_factor: float | None = None,
        recovery_interval: Seconds = 30.0,
        recovery_factor: float = 1.1,
        observer: Observer | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        self._factor = (
            None
            if reduce_factor is None
            else ratio(reduce_factor, "reduce_factor", low=0, high=1, example=0.5)
        )
        self._interval = positive_seconds_to_ns(recovery_interval, "recovery_interval")
        self._growth = ratio(recovery_factor, "recovery_factor", low=1, high=float("inf"), example=1.1)
        self._reduced: dict[str, Reduction] = {}
        self._template = read_rates(rates)
        load_rules(self._template)
        self._columns = columns_for(self._template)
        # Keys of the template that no caller waits for are only buckets. A strict rate cannot be stored so.
        simple = self._template and not any(rate.strict for rate in self._template)
        self._keyed = KeyedRates(self._template, self._columns) if simple else None
        self._given = read_observer(observer)
        self.follow_observers()
        self._clock = read_clock(clock)
        self._now = clock.now
        self._resources: dict[str, Resource] = {}  # those that have a gate
        self._forgettable: dict[str, None] = {}  # those of them that were made from the template
        self._closed = False
        self._lock = allocate_lock()
        reset_in_child(self)

    def follow_observers(self) -> None:
        """Tell the observer that was given to this limiter, and those of all gates, from now on."""
        self._observer = telling.together(self._given, *telling.everywhere())

    # -- configuring

    def set_capacity(
        self, resource: str, capacity: int, window: Seconds, *, burst: int | None = None, strict: bool = False
    ) -> None:
        """Allow `resource` `capacity` requests every `window` seconds, all of them at once if none was used.

        A smaller `burst` paces them; `strict` means never more than `capacity` in any window of that length.
        Setting a capacity again keeps what is available, up to the new capacity. Raises InvalidCapacity if
        `capacity` or `burst` is not a whole number above 0, InvalidWindow if `window` is not a time,
        InvalidLimit for `strict` with a burst, and Closed.

        >>> limiter = MemoryLimiter()
        >>> limiter.set_capacity("openai", 60, 60, burst=5)
        >>> limiter.get_capacity("openai").available
        5
        """
        positive_int(capacity, "capacity", example=60)
        positive_seconds_to_ns(window, "window")
        if burst is None and not strict:
            burst = capacity
        rate = Rate(capacity, window, burst=burst, strict=strict)
        self.set_rates(resource, rate)

    def set_rates(self, resource: str, rates: Rates) -> None:
        """Set one rate or several, in any units, for one `resource`: a call must fit all of them.

        `rates` is a rate, as text or as a `Rate`, or a list of them. A waiting caller whose call can never
        fit gets CostTooLarge. Raises InvalidLimit for what is not a rate, InvalidConfig for none, and Closed.

        >>> limiter = MemoryLimiter()
        >>> limiter.set_rates("openai", ["60/minute burst 10", "2_000 tokens/minute burst 500"])
        >>> limiter.try_acquire("openai", cost={"requests": 1, "tokens": 400})
        True
        """
        read = read_rates(rates)
        if not read:
            raise InvalidConfig(f'rates={rates!r} is empty; write e.g. "60/minute", or remove({resource!r})')
        check_name(resource)
        load_rules(read)
        while True:
            with self._lock:
                self._raise_if_closed()
                self._forgettable.pop(resource, None)
                self._reduced.pop(resource, None)
                known = self._resources.get(resource) or self._from_bucket_locked(resource)
                if known is None or known.gate.closed:  # new, or just being forgotten
                    self._resources[resource] = self._make_locked(resource, read)
                    return
            known.gate.retune(read)
            if self._resources.get(resource) is known and not known.gate.closed:
                return  # otherwise it was forgotten in that instant

    def remove(self, resource: str) -> None:
        """Forget the limits of a `resource`. Callers that wait for it get UnknownResource.

        With `rates` of the limiter it gets these on its next use. A resource without limits is nothing to do.
        """
        check_name(resource)
        with self._lock:
            known = self._resources.pop(resource, None)
            self._forgettable.pop(resource, None)
            self._reduced.pop(resource, None)
            if self._keyed is not None:
                self._keyed.forget(resource)
        if known is not None:
            known.gate.close()

    def close(self) -> None:
        """Refuse the callers that wait and those that come later, with Closed. A second call does nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            resources = list(self._resources.values())
        for resource in resources:
            resource.gate.close()

    # -- acquiring

    def acquire(
        self, resource: str, *, cost: int | Mapping[str, int] = 1, timeout: Seconds | None = None
    ) -> None:
        """Wait, in line, until the rates of `resource` have room for a call, and take what it costs.

        `cost` is requests (1), or amounts by unit, e.g. `{"tokens": 400}`. `timeout` is how long to wait, in
        seconds or as a timedelta (None: without end).

        Raises UnknownResource, Closed, CostTooLarge, WaitTimeout (at once if it can be
        foreseen), or CapacityExhausted with `timeout=0`; InvalidCapacity, InvalidLimit or InvalidWindow for
        arguments that cannot work; and RuntimeError if it would wait in a thread that runs an event loop.

        >>> MemoryLimiter(rates="10/s").acquire("openai", timeout=2)
        """
        check_name(resource)
        if timeout is not None:
            seconds_to_ns(timeout, "timeout")  # a mistake shows at once, not only when a call has to wait
        if not self._take_from_bucket(resource, cost):
            slot = self.slot(resource, cost=cost, timeout=timeout)
            slot.keep(slot.__enter__())

    async def acquire_async(
        self,
        resource: str,
        *,
        cost: int | Mapping[str, int] = 1,
        timeout: Seconds | None = None,  # noqa: ASYNC109 - the twin of `acquire`
    ) -> None:
        """Wait as `acquire` does, without blocking the event loop.

        `resource`, `cost`, `timeout` and the exceptions are those of `acquire`.
        """
        check_name(resource)
        if timeout is not None:
            seconds_to_ns(timeout, "timeout")
        if not self._take_from_bucket(resource, cost):
            slot = self.slot(resource, cost=cost, timeout=timeout)
            slot.keep(await slot.__aenter__())

    def try_acquire(self, resource: str, *, cost: int | Mapping[str, int] = 1) -> bool:
        """Take what a call costs if `resource` has room for it now and no caller waits. Never waits.

        `cost` is requests (1), or amounts by unit. False if there is no room, no limit for that name, or the
        limiter is closed. Raises CostTooLarge if the call can never fit, and InvalidCapacity or InvalidLimit
        for what is not a cost.

        >>> users = MemoryLimiter(rates="2/minute burst 1")
        >>> users.try_acquire("ann"), users.try_acquire("ann")
        (True, False)
        """
        check_name(resource)
        while not self._take_from_bucket(resource, cost):
            if self._is_short_only(resource, cost):
                return False
            try:
                known = self._find(resource)
                permit = known.gate.try_admit(cost=cost)
            except UnknownResource:
                return False
            except Closed:
                if self._closed or (resource not in self._resources and not self._template):
                    return False
                continue  # it was forgotten or replaced between finding and entering
            if permit is None:
                return False
            known.keep(permit)
            return True
        return True

    def ask(self, resource: str, *, cost: int | Mapping[str, int] = 1) -> Acquisition:
        """As `try_acquire`, and the answer, an `Acquisition`, says why not and when to come again.

        >>> users = MemoryLimiter(rates="2/minute burst 1")
        >>> bool(users.ask("ann")), bool(users.ask("ann"))
        (True, False)
        >>> users.ask("ann").rule
        'requests/minute'

        Callers that wait for the `resource` are counted in. `cost` is requests (1), or amounts by unit.
        Raises UnknownResource, Closed or CostTooLarge, and InvalidCapacity or InvalidLimit for what is not a
        cost.
        """
        check_name(resource)
        while not self._take_from_bucket(resource, cost):
            if self._is_short_only(resource, cost):
                held = self._held_by_bucket(resource, cost)
                if held is not None:
                    return held
            else:
                known = self._find(resource)
                try:
                    permit = known.gate.admit(cost=cost, timeout=0).enter()
                except CapacityExhausted as refusal:
                    return Acquisition(acquired=False, rule=refusal.rule, retry_after=refusal.retry_after)
                except Closed:
                    continue  # it was forgotten or replaced, or `_find` says that the limiter is closed
                known.keep(permit)
                break
        return Acquisition(acquired=True, rule=None, retry_after=None)

    def slot(
        self, resource: str, *, cost: int | Mapping[str, int] = 1, timeout: Seconds | None = None
    ) -> Slot:
        """Wait for room at a `resource`, and count as in flight until the end of the block.

        The block is a `with` or an `async with`; it waits when it is entered. What the call took stays spent
        when it ends, so the rate holds. Prefer this to `acquire` and `release`. `cost`, `timeout` and the
        exceptions are those of `acquire`.
        """
        check_name(resource)
        slot = Slot()
        slot.find = self._find
        slot.resource = resource
        slot.priority = 0
        slot.cost = cost
        slot.patience = None if timeout is None else seconds_to_ns(timeout, "timeout")
        slot.tenant = slot.permit = None
        return slot

    def release(self, resource: str, *, refund: bool = True) -> None:
        """End a call of a `resource` that was acquired. Does nothing if there is none.

        Beware: it also gives one request back, and then the rate limits only how many calls run at once.
        `refund=False` keeps it spent; `slot` always does.
        """
        check_name(resource)
        known = self._resources.get(resource)
        if known is not None:
            known.release(refund=refund)
        elif self._keyed is not None:
            with self._lock:
                self._keyed.release(resource, self._now(), refund=refund)

    # -- looking and telling

    def get_capacity(self, resource: str) -> Capacity | None:
        """The state of a `resource` now, as a `Capacity`; None if it has no limits."""
        check_name(resource)
        if self._reduced:
            self._recover(resource)
        known = self._resources.get(resource)
        if known is not None:
            return known.capacity_now(resource)
        if not self._template:
            return None
        if self._keyed is None:
            return capacity_of(resource, successors((), self._template, self._columns, 0), 0, self._now())
        with self._lock:
            now = self._now()
            rules, calls = self._keyed.look(resource, now)
            return capacity_of(resource, rules, calls, now)

    def announce_reduced(self, resource: str, reason: str) -> None:
        """Say that the API allows a `resource` less than was set: tell observers, and cut its rates.

        They are cut only if the limiter has a `reduce_factor`. `reason` is for observers and logs.

        >>> limiter = MemoryLimiter(reduce_factor=0.5)
        >>> limiter.set_capacity("openai", 60, 60)
        >>> limiter.announce_reduced("openai", "received 429")
        >>> limiter.get_capacity("openai").total
        30
        """
        check_name(resource)
        if self._closed:
            return
        if self._factor is not None:
            self._cut(resource, self._factor)
        event = events.CapacityReduced(key=resource, at=self._now() / SECOND, reason=reason)
        telling.tell(self._given, event)

    def _cut(self, resource: str, factor: tuple[int, int]) -> None:
        try:
            known = self._find(resource)
        except UnknownResource:
            return
        with self._lock:
            now = self._now()
            reduction = self._reduced.get(resource)
            if reduction is None:
                self._forgettable.pop(resource, None)  # until it has recovered
                reduction = Reduction(
                    known.rates_in_force, factor=factor, growth=self._growth, interval=self._interval, now=now
                )
                self._reduced[resource] = reduction
            elif not reduction.cut_again(factor, now):
                return
        known.gate.retune(reduction.rates(now))

    def _recover(self, resource: str) -> None:
        """Let a reduced resource have the rates that have grown back by now."""
        with self._lock:
            reduction, known = self._reduced.get(resource), self._resources.get(resource)
            if reduction is None or known is None:
                return
            rates = reduction.rates(self._now())
            if rates == known.rates_in_force:
                return
            if rates == reduction.original:
                del self._reduced[resource]
                if rates == self._template:
                    self._forgettable[resource] = None
        known.gate.retune(rates)

    def __len__(self) -> int:
        """The number of resources that are remembered."""
        with self._lock:
            return len(self._resources) + (0 if self._keyed is None else len(self._keyed))

    # -- resources: keys that are only a bucket, and those that have a gate

    def _take_from_bucket(self, resource: str, cost: int | Mapping[str, int]) -> bool:
        """Take from a key that is only a bucket. False if it needs a gate: to wait, or because it has one."""
        keyed = self._keyed
        if keyed is None or resource in self._resources or self._closed:
            return False
        price = read_cost(self._columns, 0, 0, cost)
        with self._lock:
            now = self._now()
            entered = resource not in self._resources and keyed.enter(resource, price, now)
        if self._observer is not None and entered:
            admitted = events.Admitted(
                key=resource, at=now / SECOND, waited=0.0, rule=None, throttled=False, tenant=None
            )
            telling.tell(self._given, admitted)
        return entered

    def _is_short_only(self, resource: str, cost: int | Mapping[str, int]) -> bool:
        """Whether a key is only a bucket that has too little now: no gate need be made to refuse the call."""
        keyed = self._keyed
        if keyed is None or resource in self._resources or self._closed:
            return False
        return keyed.refusal(read_cost(self._columns, 0, 0, cost)) is None

    def _held_by_bucket(self, resource: str, cost: int | Mapping[str, int]) -> Acquisition | None:
        """What a key that is only a bucket has too little of; None if there is enough by now."""
        keyed = self._keyed
        price = read_cost(self._columns, 0, 0, cost)
        with self._lock:
            now = self._now()
            if keyed is None or resource in self._resources:
                return None
            rules, _ = keyed.look(resource, now)
            at, rule = max((rule.earliest(price, now), rule.name) for rule in rules)
        return None if at <= now else Acquisition(acquired=False, rule=rule, retry_after=(at - now) / SECOND)

    def _find(self, resource: str, again: bool = False) -> Resource:
        """The resource with its gate, made from the template if need be.

        `again`: the caller has waited at a gate of this resource that was closed.
        """
        if self._reduced:
            self._recover(resource)
        idle: list[tuple[str, Resource]] = []
        with self._lock:
            self._raise_if_closed()
            known = self._resources.get(resource)
            if known is None or known.gate.closed:  # a closed one is just being forgotten
                if not self._template:
                    raise unknown_resource(resource, again=again)
                known = self._from_bucket_locked(resource)
                if known is None:
                    known = self._resources[resource] = self._make_locked(resource, self._template)
                idle = [(name, self._resources[name]) for name in islice(self._forgettable, 2)]
                self._forgettable[resource] = None
        for name, other in idle:
            self._forget_if_idle(name, other)
        return known

    def _from_bucket_locked(self, resource: str) -> Resource | None:
        """Give a key that is only a bucket a gate of its own. None if it was not used yet."""
        state = None if self._keyed is None else self._keyed.extract(resource, self._now())
        if state is None:
            return None
        known = self._resources[resource] = self._make_locked(resource, self._template, *state)
        return known

    def _forget_if_idle(self, name: str, resource: Resource) -> None:
        """Forget a resource of the template that is full and idle again; otherwise look at it later."""
        retired = resource.retire()
        with self._lock:
            if self._resources.get(name) is not resource:
                return
            forgettable = self._forgettable.pop(name, self) is None
            if retired:
                del self._resources[name]
            elif forgettable:
                self._forgettable[name] = None  # behind the others

    def _make_locked(
        self,
        resource: str,
        rates: tuple[Rate, ...],
        kept: tuple[AnyRate, ...] | None = None,
        acquired: int = 0,
    ) -> Resource:
        columns = columns_for(rates, self._columns)
        places = ConcurrencyRule(None, None)  # counts the calls in slots and limits nothing
        rules = Rules(places=places, rates=kept or successors((), rates, columns, 0), final=True)
        gate = Gate(resource, rules, columns=columns, observer=self._given, clock=self._clock)
        return Resource(gate, places, acquired)

    def _raise_if_closed(self) -> None:
        if self._closed:
            raise Closed("the limiter was closed", rule="closed")

    def after_fork(self) -> None:
        self._lock = allocate_lock()

    def __repr__(self) -> str:
        return f"<MemoryLimiter of {len(self)} resources>"
