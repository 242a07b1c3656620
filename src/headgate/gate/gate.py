"""Gate: callers from any number of threads and event loops, one line, one decision.

Under the guard's lock there is only arithmetic; which callers to wake and when to look again are
noted there and carried out after it. Admission is handed over: the line marks a ticket granted before
its waiter knows. Giving back never waits for the lock, because a finalizer may run inside it. Ctrl-C
may raise at any call; so what must not be torn apart is written without one, and what was begun is
found again in a ticket, in the list of callers to wake, or among what the guard takes back.
"""

from __future__ import annotations

from collections import deque

from .. import telling
from ..arguments import check_tenant, positive_int, read_priority, seconds_to_ns
from ..errors import InvalidConfig, Refused
from ..hints import (
    Any,
    AnyRate,
    Callable,
    Clock,
    Hashable,
    Mapping,
    Observer,
    Seconds,
    Sequence,
    T,
    Verdict,
    later,
)
from ..light import LazyModule
from ..limits import COLUMNS, UNSTATED, Columns, Rate, columns_for, read_cost, unstated
from . import reports
from .admission import SETTLED, Admission, ForkGeneration, HoldingPermit, Permit
from .clock import SYSTEM
from .decision import Rules, successors
from .forks import reset_in_child
from .guard import Guard
from .line import CLAIMED, DONE, GRANTED, WAITING, Ticket, correct
from .parking import in_notebook, runs_event_loop
from .pickling import only_here
from .waiting import WaitingCallers
from .window import WindowSignal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .. import events
    from .supply import Demand, Grant, Supply
else:
    events = LazyModule("headgate.events")
    Demand = later("headgate.gate.supply", "Demand")
    Grant = later("headgate.gate.supply", "Grant")
    Supply = later("headgate.gate.supply", "Supply")

Cost = tuple[int, ...]


def _read_weights(weights: Mapping[Hashable, int]) -> dict[Hashable, int]:
    if not hasattr(weights, "items"):
        raise InvalidConfig(f'weights={weights!r} is not a mapping; write e.g. weights={{"gold": 4}}')
    return {
        tenant: positive_int(weight, f"weights[{tenant!r}]", example=4) for tenant, weight in weights.items()
    }


# Left for the guard when a caller took one of the last units that were granted.
_LOW = object()

# Left for the guard with the ticket of a caller that has gone without a word: what its call has cost.
_GONE: Cost = ()


def _has_waited(ticket: Ticket) -> bool:
    """Whether its caller has neither got its permit nor an error."""
    return ticket.state in (WAITING, GRANTED) or ticket.refusal is not None


def _refuse(_cost: Cost, _now: int) -> int:
    """The fast path while callers wait, while the gate is closed, or while something is to be told."""
    return SETTLED


def _enter_any_length(rules: Rules, length: int) -> Callable[[Cost, int], int]:
    # The cost may have been read just before a new unit came with `set_rates`. Not a method: a gate that
    # kept its own method would not go before the collector comes.
    return lambda cost, now: rules.enter(cost + (0,) * (length - len(cost)), now) if cost else SETTLED


class Gate:
    """What callers wait at. Its verbs for callers are `admit`, `try_admit` and `close`.

    The other public methods are for the rooms that build on a gate: permits, limiters, windows, and
    what a gate is shared through (`supply`).
    """

    __slots__ = (
        "__weakref__",
        "_admitted",
        "_busy",
        "_callers",
        "_cancelled",
        "_enter",
        "_fast_path",
        "_generation",
        "_given",
        "_guard",
        "_heard",
        "_holds",
        "_largest",
        "_learn",
        "_listeners",
        "_lock",
        "_low",
        "_max_waiting",
        "_meters",
        "_now",
        "_pending",
        "_permit_kind",
        "_refused",
        "_returned",
        "_seam",
        "_to_tell",
        "_told",
        "_warned",
        "_watched",
        "_weights",
        "clock",
        "closed",
        "columns",
        "key",
        "observer",
        "rules",
        "supply",
        "unit_cost",
    )

    __reduce__ = only_here()

    def __init__(
        self,
        key: Hashable,
        rules: Rules,
        *,
        columns: Mapping[str, int] = COLUMNS,
        max_waiting: int | None = None,
        weights: Mapping[Hashable, int] | None = None,
        observer: Observer | None = None,
        observed: bool = True,
        clock: Clock = SYSTEM,
        learn: Callable[[Verdict, int], object] | None = None,
    ) -> None:
        """`observed` is False of a gate inside another object, which tells observers by itself."""
        if max_waiting is not None and max_waiting != 0:
            positive_int(max_waiting, "max_waiting", example=1000)
        self.key = key
        self.rules = rules
        self._largest: tuple[object, dict[str, int]] = (None, {})  # by which rates
        self.columns = columns if isinstance(columns, Columns) else Columns(columns)
        self._given = (observer,) if observed else None  # None: this gate tells nothing
        self.clock = clock
        self.closed = False
        self.supply: Supply | None = None  # what the gate is shared through
        self._to_tell: deque[Callable[[], object]] = deque()  # left by finalizers, which tell nothing
        # Calls since the start; those that waited are counted with the line. Python adds floats quicker.
        self._admitted, self._refused, self._cancelled = 0.0, 0, 0
        self._warned = False  # of a settled cost that is too large to be true
        self._max_waiting = max_waiting
        self._weights = None if weights is None else _read_weights(weights)
        self._learn = learn
        self._now = clock.now
        self._busy = False  # a caller waits, or the gate is closed
        self._enter: Any = None  # until the rules are followed
        self._callers = WaitingCallers(clock.quantum)
        self._seam: Any = None  # the functions between a gate and its supply
        self._low = False  # the supply is to hear that units run out ...
        self._returned: bool | None = None  # ... or that a call is over, and whether its cost was corrected
        self._heard: tuple[int, int | None] | None = None  # the state of the window that was heard last ...
        self._told: tuple[int, int | None] | None = None  # ... and that the supply was told last
        self._generation = ForkGeneration(self)
        self._guard = Guard(
            self._now,
            self._take_back,
            taken_back=self._advance_if_busy,
            repair=self._repair,
            effects=self._wake,
        )
        self._lock, self._pending = self._guard.lock, self._guard.pending
        self._choose_observers()
        self.follow_rules()
        reset_in_child(self)

    def follow_rules(self) -> None:
        """Under the lock: the rules are others now. Choose the shortest way in that obeys them."""
        rules = self.rules
        if self.supply is not None:
            enter: Callable[[Cost, int], int] = self._enter_granted
        elif len(self.columns) == len(COLUMNS):
            enter = rules.entrance()
        else:
            enter = _enter_any_length(rules, len(self.columns))
        self._enter = enter
        # A call that states nothing is refused where calls have to state their cost, off the fast path.
        self.unit_cost = UNSTATED if self.columns.unstated else (1,) + (0,) * (len(self.columns) - 1)
        self._holds = rules.places is not None or rules.weight is not None
        self._permit_kind: type[Permit] = HoldingPermit if self._holds else Permit
        self._choose_fast_path()

    def follow_observers(self) -> None:
        """Other observers hear of all gates from now on."""
        self._guard.run(lambda _now: self._choose_observers())

    def _choose_observers(self) -> None:
        given = () if self._given is None else telling.each_of(*self._given, *telling.everywhere())
        # Of every call, meters are told by plain values, which takes less time than to make an event.
        self._meters = tuple(one.of_gate(self.key) for one in given if isinstance(one, telling.Meter))
        self._listeners = telling.together(*(one for one in given if not isinstance(one, telling.Meter)))
        self.observer: Observer | None = telling.together(*given)
        if self._listeners is not None:
            reports.load_events()  # now, because some are made under the lock
        if self._enter is not None:
            self._choose_fast_path()

    def _choose_fast_path(self) -> None:
        # The way in for callers that find no line; and whether a call that ends is reported.
        self._fast_path = _refuse if self._busy or self._to_tell else self._enter
        self._watched = self.observer is not None or self.supply is not None or bool(self._to_tell)

    def _enter_granted(self, cost: Cost, now: int) -> int:
        rules = self.rules
        if not cost:
            return SETTLED
        if now >= rules.valid_until:  # this process was stopped, or what it is shared through is slow
            self._seam.expire(rules)
        cost = self.at_full_length(cost)
        low, pending = self._seam.is_low(rules, cost), self._pending
        mode = rules.enter(cost, now)
        # Without a call from here on: what was taken is not written down yet.
        if mode and low:
            pending += (_LOW,)
        return mode

    def at_full_length(self, cost: Cost) -> Cost:
        """The cost with a column for every unit that the gate knows by now."""
        return cost + (0,) * (len(self.columns) - len(cost))

    # -- what callers do

    def admit(
        self,
        *,
        bytes: int = 0,
        tokens: int = 0,
        cost: int | Mapping[str, int] | None = None,
        timeout: Seconds | None = None,
        priority: int = 0,
        tenant: Hashable = None,
    ) -> Admission:
        """Wait for a place, in line: `with gate.admit(...)` or `async with gate.admit(...)`.

        `tokens` and `bytes` are estimates, to be settled later; `cost` is how many requests
        the call counts for (one), or amounts by unit, e.g. `{"images": 2}`. A higher
        `priority` goes first. Calls of different `tenant`s share fairly by cost.

        Raises WaitTimeout after `timeout` seconds, CapacityExhausted with `timeout=0`,
        LineFull, CostTooLarge or Closed.
        """
        admission = Admission()
        admission.gate = self
        if bytes or tokens or cost is not None:
            admission.price = read_cost(self.columns, bytes, tokens, cost)
        else:
            admission.price = self.unit_cost
        admission.timeout = None if timeout is None else seconds_to_ns(timeout, "timeout")
        admission.priority = priority
        admission.tenant = tenant
        admission.permit = None
        if type(priority) is not int:
            admission.priority = read_priority(priority)
        if tenant is not None:
            check_tenant(tenant)
        return admission

    def try_admit(
        self,
        *,
        bytes: int = 0,
        tokens: int = 0,
        cost: int | Mapping[str, int] | None = None,
        priority: int = 0,  # noqa: ARG002 - a caller that does not wait needs no place in line
        tenant: Hashable = None,
    ) -> Permit | None:
        """A permit if there is a place right now and no caller waits for it, else None.

        Takes what `admit` takes. Settle the permit when the call is over, or use it as
        `with permit:`. Raises CostTooLarge or Closed where no later try could succeed.
        """
        if bytes or tokens or cost is not None:
            price = read_cost(self.columns, bytes, tokens, cost)
        else:
            price = self.unit_cost
        # As `take`, without the call.
        kind, read_clock = self._permit_kind, self._now
        permit = kind()
        with self._lock:
            now = read_clock()
            enter = self._fast_path
            permit.mode = mode = enter(price, now)
            if mode:
                self._admitted += 1.0
            permit.generation = self._generation
            permit.cost = price
            permit.taken_at = now
        if self._pending:
            self._finish()
        if not mode:
            return self._not_taken(price, tenant, waits=False)
        if self.observer is not None:
            self.tell_admitted(permit, None, tenant)
        return permit

    def close(self) -> None:
        """Refuse the callers that wait and every later one. Calls under way may finish."""

        def close(_now: int) -> None:
            self.closed = True
            self._callers.dismiss_all(lambda: reports.closed(self.key))
            self._set_busy(True)

        self._guard.run(close)
        if self.supply is not None:
            self.supply.close()
        self.tell_left()

    @property
    def told(self) -> bool:
        """Whether observers hear of this gate; not of one that is a part of another object."""
        return self._given is not None

    @property
    def waiting(self) -> int:
        """How many callers wait in line."""
        return self._callers.line.waiting

    @property
    def callers(self) -> WaitingCallers:
        """Under the lock: the callers that wait."""
        return self._callers

    def totals(self) -> tuple[int, int, int]:
        """Under the lock: how many calls were admitted, refused, and cancelled while they waited."""
        return int(self._admitted) + self._callers.granted, self._refused, self._cancelled

    # -- the way in

    def take(self, price: Cost, tenant: Hashable) -> Permit | None:
        """A permit for a caller that will wait if there is none."""
        # The permit is made beforehand, so that nothing can interrupt between taking and writing
        # it down: a signal handler runs at calls, and there are none. What a slot holds is called by a
        # local name: Python finds it quicker than as `self._now()`.
        kind, read_clock = self._permit_kind, self._now
        permit = kind()
        with self._lock:
            now = read_clock()
            enter = self._fast_path
            permit.mode = mode = enter(price, now)
            if mode:
                self._admitted += 1.0
            permit.generation = self._generation
            permit.cost = price
            permit.taken_at = now
        if self._pending:
            self._finish()
        if not mode:
            return self._not_taken(price, tenant, waits=True)
        if self.observer is not None:
            self.tell_admitted(permit, None, tenant)
        return permit

    def _not_taken(self, price: Cost, tenant: Hashable, *, waits: bool) -> Permit | None:
        """The fast path refused; perhaps only because a finalizer left something to be told."""
        permit = None
        if not price:
            missing = self.columns.unstated
            if missing:
                raise unstated(missing)
            # Since the cost was read a call has stated those units, or the rates have become others.
            price = self.unit_cost = (1,) + (0,) * (len(self.columns) - 1)
            permit = self.take(price, tenant)
        elif self._to_tell:
            self.tell_left()
            permit = self.take(price, tenant)
        elif self._guard.interrupted or self._callers.unwoken:
            self.look_again()
        if permit is None and not waits:  # `join` says so to a caller that waits
            price = self.at_full_length(price)
            hopeless = self._never(price)
            if hopeless is not None:
                self._tell_refused(Ticket(price, joined_at=self._now(), tenant=tenant), hopeless)
                raise hopeless
            if self.supply is not None:
                self.supply.wanted(price)
        return permit

    def ticket(self, price: Cost, priority: int, tenant: Hashable) -> Ticket:
        """A place in line for a caller that has to wait."""
        share = 1 if self._weights is None else self._weights.get(tenant, 1)
        return Ticket(price or self.unit_cost, priority, tenant, share)

    def join(self, ticket: Ticket, timeout: int | None) -> None:
        """Stand in line. Afterwards the ticket is waiting, granted, or refused by an exception."""
        outcome = self.look(lambda now: self._join_locked(ticket, timeout, now))
        if isinstance(outcome, Refused):
            if self.supply is not None and self._never(ticket.cost) is None:
                self.supply.wanted(ticket.cost)  # so that a later try may find something
            self._tell_refused(ticket, outcome)
            try:
                raise outcome
            finally:
                del outcome  # as in `claim`
        if outcome is not None:
            telling.call(self._listeners, outcome)
        if ticket.deadline is not None and ticket.state == WAITING:
            ticket.parker.alarm(ticket.deadline)
        if self.supply is not None:
            self.supply.wanted(None)

    def _join_locked(self, ticket: Ticket, timeout: int | None, now: int) -> Refused | events.Waiting | None:
        ticket.joined_at = now
        ticket.generation = self._generation
        ticket.cost = self.at_full_length(ticket.cost)
        ticket.size = self.rules.size(ticket.cost)
        refused = self._never(ticket.cost) or reports.instead_of_waiting(
            ticket, self.rules, self._callers, now, timeout=timeout, max_waiting=self._max_waiting
        )
        if refused is not None:
            ticket.state = DONE
            return refused
        if timeout is not None:
            ticket.deadline = now + timeout
        if self._callers.join(ticket, now):
            self._advance_locked(now)
        if self._listeners is None or ticket.state != WAITING:
            return None
        return reports.waiting(self.key, ticket, self.rules, self._callers, now)

    def _never(self, cost: Cost) -> Refused | None:
        """Why no wait, however long, would help; or None."""
        if self.closed:
            return reports.closed(self.key)
        return reports.too_large(self.rules, cost)

    def check_may_block(self) -> None:
        """Raise if this thread is about to wait and runs an event loop, whose tasks would all stand still.

        Nothing that a task holds would come back then, so the wait might never end. In a notebook, where the
        thread of the kernel runs every cell, a wait is accepted that ends by itself.
        """
        if runs_event_loop() and not (in_notebook() and self._callers.ends_without_tasks):
            raise RuntimeError(reports.blocks_the_loop(self._callers.binding))

    def claim(self, ticket: Ticket) -> Permit:
        """The waiter is awake: give it what its ticket was granted, or raise why it was refused."""
        if ticket.state != GRANTED:
            refusal, ticket.refusal = ticket.refusal, None
            assert refusal is not None
            self._tell_refused(ticket, refusal)
            try:
                raise refusal
            finally:
                del refusal  # an error refers to this frame and its caller's: leave no reference cycle
        kind = self._permit_kind
        permit = kind()  # without a mode: until the last two lines the ticket answers for what was granted
        permit.generation = ticket.generation
        permit.cost = ticket.cost
        permit.taken_at = ticket.granted_at
        permit.wait_ns = waited = ticket.granted_at - ticket.joined_at
        if ticket.tenant is not None:
            permit.ticket = ticket
        if self.observer is not None:
            permit.mode = -ticket.mode  # the observer may read how it was admitted
            self.tell_admitted(permit, ticket.rule if waited else None, ticket.tenant)
        permit.mode = ticket.mode
        ticket.state = CLAIMED  # last, and without a call before it
        return permit

    # -- the turn of the line

    def _advance_locked(self, now: int) -> None:
        busy = self._callers.advance(self.rules, self._enter, now) or self.closed
        if busy is not self._busy:
            self._set_busy(busy)

    def _set_busy(self, busy: bool) -> None:
        self._busy = busy
        self._choose_fast_path()

    def _finish(self) -> None:
        self._guard.finish()
        if self._to_tell:
            self.tell_left()

    def _wake(self) -> None:
        self._callers.wake(self._lose)
        if self._low and self.supply is not None:
            self._low = False
            self.supply.wanted(None)
        if self._returned is not None and self.supply is not None:
            corrected, self._returned = self._returned, None
            self.supply.returned(corrected=corrected)

    def _lose(self, ticket: Ticket) -> None:
        # Its loop is closed: the next caller may have the place.
        self._pending.append((ticket, _GONE))

    def ring(self, ticket: Ticket) -> None:
        """The alarm of a waiter: time to look again, and perhaps its time is up."""
        self.look(lambda now: self._ring_locked(ticket, now))
        if ticket.state == WAITING and ticket.deadline is not None:
            ticket.parker.alarm(ticket.deadline)

    def _ring_locked(self, ticket: Ticket, now: int) -> None:
        self._advance_locked(now)
        if ticket.state == WAITING and ticket.deadline is not None and now >= ticket.deadline:
            self._callers.dismiss(ticket, reports.timed_out(ticket, self.rules, self._callers, now))
            self._advance_locked(now)

    def _repair(self, now: int) -> None:
        """Under the lock, after an interrupt broke off a change of the line: put it in order."""
        self._callers.repair()
        self._advance_locked(now)
        self._choose_fast_path()  # perhaps that was broken off

    # -- changes from the rooms that build on a gate

    def look(self, act: Callable[[int], T]) -> T:
        """Call `act(now)` under the lock. It may read and change the rules, with arithmetic only."""
        result = self._guard.run(act)
        if self._to_tell:
            self.tell_left()  # of calls that ended meanwhile, in other threads
        return result

    def change(self, alter: Callable[[int], T]) -> T:
        """Alter the rules under the lock, then let the line look again."""

        def altered(now: int) -> T:
            result = alter(now)
            self._advance_locked(now)
            return result

        return self.look(altered)

    def look_again(self) -> None:
        """Something changed outside the gate that may let a caller in."""
        self.change(lambda _now: None)

    # -- the seam to what the gate is shared through

    def share(self, supply: Supply) -> None:
        """From now on go by what this supply grants."""
        from . import supply as seam  # noqa: PLC0415 - only a gate that is shared loads it

        self._seam = seam
        self.supply = supply
        window = self.rules.window
        if window is not None:
            self._heard, self._told = window.state, window.signalled
        self.look(lambda _now: self.follow_rules())

    def demand(self, *, leaving: bool = False, keeps: Sequence[int] | None = None) -> Demand:
        """What the gate holds, and what its callers want.

        `leaving`: all unused units go back. `keeps`: so do places and bytes beyond these, unless in use.
        """
        read: Callable[..., Demand] = self._seam.read_demand
        line = self._callers.line
        return self.look(lambda now: read(self.rules, line, now, leaving=leaving, keeps=keeps))

    def grant(self, grant: Grant) -> list[int]:
        """Go by a grant, and let the line look again. Answers what the rates that it replaces owe."""

        def apply(now: int) -> list[int]:
            rules, owed = self.rules, []
            if grant.rates is not None:
                owed = [rate.owed for rate in self._seam.leased(rules)]
                if grant.keeps_units:
                    self._seam.take_over(rules, grant.rates, now)
                self.set_rate_rules(grant.rates, grant.columns or self.columns)
            self._seam.apply_grant(rules, grant, now, idle=not self._callers.line.waiting)
            return owed

        return self.change(apply)

    def hear_window(self) -> None:
        """The backoff window has changed: let the line look again, and pass the news on.

        Only a change that was made in this process: if two gates of one window told each other's news, each
        of them would find the end a little later, and the window would never end.
        """
        signal = self.change(self._hear_locked)
        if signal is not None and self.supply is not None:
            self.supply.signalled(signal)

    def _hear_locked(self, now: int) -> WindowSignal | None:
        rules, window = self.rules, self.rules.window
        rules.hear_window()
        if self.supply is None or window is None:
            return None
        if self._heard != window.state:
            self._heard = window.state
            self._seam.drop_batches(rules, now)
        if self._told == window.signalled:
            return None
        self._told = window.signalled
        return window.signal(now, rules.probes)

    def set_rate_rules(self, rules: Sequence[AnyRate], columns: Columns) -> None:
        """Under the lock: go by these rate rules, which count these columns."""
        self.columns = columns
        self.rules.set_rates(rules)
        self.follow_rules()
        for ticket in self._callers.line.tickets():
            ticket.cost = self.at_full_length(ticket.cost)

    def retune(self, rates: tuple[Rate, ...], *, learned: bool = False) -> None:
        """Other rates from now on, for waiting callers too. What was used stays used.

        `learned`: they are not from the user, so calls need not state what they cost in further units.
        """
        now = self.change(lambda now: self._retune_locked(rates, learned, now))
        self.tell_retuned(rates, now)

    def _retune_locked(self, rates: tuple[Rate, ...], learned: bool, now: int) -> int:
        columns = columns_for(rates, self.columns, learned=learned)
        self.set_rate_rules(successors(self.rules.rates, rates, columns, now), columns)
        for ticket in self._callers.line.tickets():
            never = reports.too_large(self.rules, ticket.cost)
            if never is not None:
                self._callers.dismiss(ticket, never)
        return now

    def close_if(self, idle: Callable[[int], bool]) -> bool:
        """Close for good if no caller waits and `idle(now)`. Later callers are refused without an event."""

        def close_if_idle(now: int) -> bool:
            if self._callers.line.waiting or not idle(now):
                return False
            self.closed = True
            self._given = self.observer = self._listeners = None
            self._meters = ()
            self._set_busy(True)
            return True

        return self._guard.run(close_if_idle)

    def largest_cost(self) -> Mapping[str, int]:
        """By unit that a rate counts: the largest amount that one call may take."""
        known, largest = self._largest
        rates = self.rules.rates
        if known is not rates:
            largest = {}
            for rule in rates:
                most = max(rule.rate.amount, rule.rate.burst)
                largest[rule.rate.unit] = min(largest.get(rule.rate.unit, most), most)
            self._largest = (rates, largest)
        return largest

    # -- the way out

    def settle(self, permit: Permit, actual: Cost | None = None) -> None:
        """A call is over: give back what its permit holds, and tell the observer."""
        if actual is None and not self._holds:
            mode = permit.mode
            if mode > SETTLED:
                permit.mode = -mode  # nothing was held, nothing comes free
            if self.observer is not None:
                self._tell_settled(permit, None)
            return
        self.give_back(permit, actual)

    def give_back(self, what: Permit | Ticket, actual: Cost | None = None) -> None:
        """Undo a permit or a ticket, once. Never waits for the lock."""
        guard = self._guard
        if self._lock.locked():
            # Perhaps by this very thread, if a finalizer brought us here: never wait for it.
            guard.leave((what, actual))
            if self._to_tell and not self._lock.locked():
                self.tell_left()
            return
        # As the guard takes back what was left, without its calls.
        busy = True
        try:
            with self._lock:
                if guard.interrupted:
                    guard.repair_locked()
                settled = self._undo_locked(what, actual)
                busy = self._busy
                if busy:
                    self._advance_locked(self._now())
        except BaseException:
            guard.broken_off()
            raise
        finally:
            if busy or self._pending:
                guard.finish()
        if self._watched:
            if settled and self.observer is not None:
                self._tell_settled(what, actual)
            if self._to_tell:
                self.tell_left()
            if self.supply is not None:
                self.supply.returned(corrected=actual is not None)

    def abandon(self, ticket: Ticket, error: BaseException) -> None:
        """A caller leaves the line by an error: undo its ticket, and tell if it was cancelled."""
        if isinstance(error, GeneratorExit):  # perhaps by a finalizer: the next caller tells
            self._guard.leave((ticket, _GONE))
            return
        cancelled = _has_waited(ticket)
        ticket.rule = ticket.rule or self._callers.binding
        self.give_back(ticket)
        if cancelled:
            with self._lock:
                self._cancelled += 1
            self._tell_cancelled(ticket)

    def leave(self, permit: Permit, actual: Cost | None) -> None:
        """Settle from a finalizer: never waits, and leaves telling the observer to the next caller."""
        self._guard.leave((permit, actual))

    def _take_back(self, left: Any, _now: int) -> None:
        """Under the lock: undo what was left."""
        if left is _LOW:
            self._low = True
            return
        what, actual = left
        if actual is _GONE and _has_waited(what):
            self._cancelled += 1
            what.rule = what.rule or self._callers.binding
            what.refusal = None
            if self.observer is not None:
                self._to_tell.append(lambda: self._tell_cancelled(what))
        if self.supply is not None:
            self._returned = actual is not None or bool(self._returned)
        if self._undo_locked(what, actual) and self.observer is not None:
            self._to_tell.append(lambda: self._tell_settled(what, actual))
        if self._to_tell:
            self._choose_fast_path()

    def _advance_if_busy(self, now: int) -> None:
        if self._busy:
            self._advance_locked(now)

    def _undo_locked(self, what: Permit | Ticket, actual: Cost | None) -> bool:
        """Undo a permit or a ticket, once. True if a call was settled by it."""
        if isinstance(what, Permit):
            mode = what.mode
            if what.generation is not self._generation:
                what.mode = -abs(mode)  # given out before a fork, by the parent
            elif mode > SETTLED:
                if actual is not None:
                    self._correct_locked(what, actual)
                self.rules.leave(what.cost, mode)
                what.mode = -mode
                return True
        elif what.generation is not self._generation:
            what.state = DONE  # it stood in the line of the parent, before a fork
        elif what.state == WAITING:
            self._callers.leave(what)
        elif what.state == GRANTED:
            self._callers.withdraw(what)
            self.rules.leave(what.cost, what.mode)
            what.state = DONE  # without a call in between: an interrupted return is done again
            # The call never ran, so it cost nothing.
            self.rules.correct(what.cost, (0,) * len(what.cost), what.granted_at, self._now())
            if what.tenant is not None:
                correct(what, self.rules.size((0,) * len(what.cost)))
        return False

    def _correct_locked(self, permit: Permit, actual: Cost) -> None:
        charged = self.rules.correct(permit.cost, actual, permit.taken_at, self._now())
        if charged is not actual:
            self._leave_warning(actual, charged)
        ticket = getattr(permit, "ticket", None)
        if ticket is not None:
            correct(ticket, self.rules.size(charged))

    def _leave_warning(self, actual: Cost, charged: Cost) -> None:
        """Under the lock: have the end of this public call, or of the next one, warn of a reduced debt."""
        if not self._warned:
            self._warned = True
            self._to_tell.append(lambda: reports.warn_of_debt(self.key, self.columns, actual, charged))
            self._choose_fast_path()

    def detach(self, permit: Permit, count: Callable[[], object]) -> None:
        """Let a call go on without its permit: its place is free, and `count()` counts it, under the lock."""
        with self._lock:
            self.rules.leave(permit.cost, permit.mode)
            permit.mode = -permit.mode
            count()
        if self._pending:
            self._guard.finish()

    def recover(self, permit: Permit) -> None:
        """A finalizer found a permit that was dropped without being settled."""
        if permit.generation is not self._generation:
            return  # the parent's, before a fork
        if any(left[0] is permit for left in list(self._pending) if left is not _LOW):
            return  # its block has ended, while another call held the lock
        self._to_tell.append(lambda: reports.warn_of_dropped_permit(self.key))
        self._guard.leave((permit, None))

    def learn(self, verdict: Verdict, sent_at: int) -> None:
        """An outcome may teach something about the limits."""
        if self._learn is not None:
            self._learn(verdict, sent_at)

    # -- telling observers, at the end of a public call

    def tell_left(self) -> None:
        """Tell what finalizers left to be told. Not under a lock, and not from a finalizer."""
        try:
            while self._to_tell:
                try:
                    tell = self._to_tell.popleft()
                except IndexError:
                    break  # another thread was quicker
                tell()
        finally:
            self._guard.run(lambda _now: self._choose_fast_path())

    def tell_admitted(self, permit: Permit, rule: str | None, tenant: Hashable) -> None:
        """A call may go."""
        for meter in self._meters:
            try:
                meter.admitted(0 if rule is None else permit.wait_ns, rule, tenant)
            except Exception:  # noqa: BLE001 - as `telling.call`
                telling.log_failure(meter, "an admitted call")
        if self._listeners is not None:
            telling.call(self._listeners, reports.admitted(self.key, permit, rule, tenant))

    def _tell_refused(self, ticket: Ticket, error: Exception) -> None:
        with self._lock:
            self._refused += 1
        if self.observer is not None:
            telling.tell(self.observer, reports.refused(self.key, ticket, error, self._now()))

    def _tell_cancelled(self, ticket: Ticket) -> None:
        if self.observer is not None:
            telling.tell(self.observer, reports.cancelled(self.key, ticket, self._now()))

    def _tell_settled(self, permit: Any, actual: Cost | None) -> None:
        read_clock, cost = self._now, permit.cost
        for meter in self._meters:
            try:
                meter.settled(read_clock() - permit.taken_at, self.columns, cost, actual or cost)
            except Exception:  # noqa: BLE001 - as `telling.call`
                telling.log_failure(meter, "a settled call")
        if self._listeners is not None:
            event = reports.settled(self.key, self.columns, permit, actual, read_clock())
            telling.call(self._listeners, event)

    def tell_retuned(self, rates: tuple[Rate, ...], now: int) -> None:
        """The rates in force are others now."""
        if self._given is not None:
            names = tuple(str(rate) for rate in rates)
            telling.tell(self.observer, events.Retuned(key=self.key, at=now / 1e9, rates=names))

    # -- after a fork

    def after_fork(self) -> None:
        """In a forked child: no caller waits, no call is under way, and the lock is free."""
        self._guard.after_fork()
        self._lock = self._guard.lock
        self._generation = ForkGeneration(self)
        self._to_tell.clear()
        self._admitted, self._refused, self._cancelled = 0.0, 0, 0
        self._callers.forget()
        self.rules.empty()
        self._set_busy(self.closed)
        if self.supply is not None:
            self.supply.after_fork()
