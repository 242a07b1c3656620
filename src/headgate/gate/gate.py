"""Gate: what callers wait at, from any number of threads and event loops.

What happens under its lock is in `GuardedRules`. Here is what comes before and after it: callers that wait,
errors that they get, what observers are told. Giving back never waits for the lock, because a finalizer may
run inside it.
"""

from __future__ import annotations

from ..arguments import check_hashable, positive_int, read_priority, read_weights, seconds_to_ns
from ..errors import Refused
from ..hints import Callable, Clock, Hashable, Mapping, Observer, Seconds, Verdict
from ..light import LazyModule
from ..limits import COLUMNS, Rate, columns_for, read_cost, unstated
from . import reports
from .admission import SETTLED, Admission, Permit
from .audience import Audience
from .clock import SYSTEM
from .decision import Rules, load_rules, successors
from .guarded import GONE, Cost, GuardedRules
from .line import CLAIMED, DONE, GRANTED, WAITING, Ticket
from .pickling import only_here

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .. import events
    from . import parking
else:
    parking = LazyModule("headgate.gate.parking")


class Gate(GuardedRules):
    """What callers wait at. Its verbs for callers are `admit`, `try_admit` and `close`.

    The other public methods are for the rooms that build on a gate: permits, limiters, windows, and
    what a gate is shared through (`supply`).

    `observed` is False of a gate inside another object, which tells observers by itself. `audience` is given
    in place of `observer` where more is to be done than to tell.
    """

    __slots__ = ("_learn", "_max_waiting", "_weights", "key")

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
        audience: Audience | None = None,
    ) -> None:
        if max_waiting is not None and max_waiting != 0:
            positive_int(max_waiting, "max_waiting", example=1000)
        check_hashable(key, "key")
        self.key = key
        self._max_waiting = max_waiting
        self._weights = None if weights is None else read_weights(weights)
        self._learn = learn
        super().__init__(rules, columns, audience or Audience(key, observer, silent=not observed), clock)

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
        `priority` goes first; it is a whole number, 0 unless given. Calls of different `tenant`s share fairly
        by cost; a tenant is any hashable value. `timeout` is how long to wait, in seconds or as a timedelta
        (None: without end). It waits when the block is entered, not before.

        >>> from headgate import Dispatch
        >>> api = Dispatch("api", rates="200_000 tokens/minute", concurrency=8)
        >>> with api.admit(tokens=1200, timeout=5, priority=1, tenant="ann") as permit:
        ...     permit.settle(tokens=900)

        Raises at once InvalidCapacity or InvalidLimit for what is not a cost, InvalidWindow for what is not a
        time, and InvalidConfig for another priority or tenant. Entering it raises WaitTimeout after `timeout`
        seconds or at once if it can be foreseen, CapacityExhausted with `timeout=0`, LineFull, CostTooLarge
        or Closed; and RuntimeError if a `with` block would have to wait in a thread that runs an event loop.
        """
        admission = Admission()
        admission.gate = self
        if bytes != 0 or tokens != 0 or cost is not None:
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
            check_hashable(tenant, "tenant")
        return admission

    def try_admit(
        self,
        *,
        bytes: int = 0,
        tokens: int = 0,
        cost: int | Mapping[str, int] | None = None,
        priority: int = 0,
        tenant: Hashable = None,
    ) -> Permit | None:
        """A permit if there is a place right now and no caller waits for it, else None. Never waits.

        `bytes`, `tokens` and `cost` are what the call takes, as for `admit`, and so are `priority` and
        `tenant`, by which observers know the call. Settle the permit when the call is over, or use it as
        `with permit:`. Raises CostTooLarge or Closed where no later try could succeed, and InvalidCapacity,
        InvalidLimit or InvalidConfig for arguments that cannot work.

        >>> from headgate import Dispatch
        >>> api = Dispatch("api", concurrency=1)
        >>> permit = api.try_admit()
        >>> api.try_admit() is None
        True
        >>> permit.settle()
        """
        if bytes != 0 or tokens != 0 or cost is not None:
            price = read_cost(self.columns, bytes, tokens, cost)
        else:
            price = self.unit_cost
        if type(priority) is not int:
            read_priority(priority)
        if tenant is not None:
            check_hashable(tenant, "tenant")
        # As `take`, without the call.
        read_clock = self._now
        for permit in self._permits:  # noqa: B007 - used below: the first one, without a call
            break
        try:
            for _ in self._locking:  # takes the lock, as `Guard` says
                break
            try:
                now = read_clock()
                enter = self._fast_path
                permit.mode = mode = enter(price, now)
                if not mode:
                    self._not_given += 1
                permit.generation = self._generation
                permit.cost = price
                permit.taken_at = now
            finally:
                self._unlock()
        except BaseException:
            self.note_interrupt(permit)
            raise
        if self._pending:
            self._finish()
        if not mode:
            return self._not_taken(price, tenant, waits=False)
        if self.observer is not None:
            self.audience.admitted(permit, None, tenant)
        return permit

    def close(self) -> None:
        """Refuse the callers that wait and every later one, with Closed. Calls under way may finish."""

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
        return not self.audience.silent

    # -- the way in

    def take(self, price: Cost, tenant: Hashable) -> Permit | None:
        """A permit for a caller that will wait if there is none."""
        # The permit is made beforehand, so that nothing can interrupt between taking and writing
        # it down: a signal handler runs at calls, and there are none. To take it from an iterator counts it
        # without a further step. What a slot holds is called by a local name: Python finds it quicker than
        # as `self._now()`.
        read_clock = self._now
        for permit in self._permits:  # noqa: B007 - used below: the first one, without a call
            break
        try:
            for _ in self._locking:  # takes the lock, as `Guard` says
                break
            try:
                now = read_clock()
                enter = self._fast_path
                permit.mode = mode = enter(price, now)
                if not mode:
                    self._not_given += 1
                permit.generation = self._generation
                permit.cost = price
                permit.taken_at = now
            finally:
                self._unlock()
        except BaseException:
            self.note_interrupt(permit)
            raise
        if self._pending:
            self._finish()
        if not mode:
            return self._not_taken(price, tenant, waits=True)
        if self.observer is not None:
            self.audience.admitted(permit, None, tenant)
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
        elif self.audience.left:
            self.tell_left()
            permit = self.take(price, tenant)
        elif self._guard.interrupted or self._callers.unwoken:
            self.look_again()
        if permit is None and not waits:  # `join` says so to a caller that waits
            price = self.at_full_length(price)
            hopeless = self._never(price)
            if hopeless is not None:
                self._refuse(Ticket(price, joined_at=self._now(), tenant=tenant), hopeless)
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
        if timeout is not None or self._max_waiting is not None:
            reports.load_forecast()
        outcome = self._guard.run(lambda now: self._join_locked(ticket, timeout, now))
        if self.audience.left:
            self.tell_left()
        if outcome is not None and isinstance(outcome, Refused):
            if self.supply is not None and self._never(ticket.cost) is None:
                self.supply.wanted(ticket.cost)  # so that a later try may find something
            self._refuse(ticket, outcome)
            try:
                raise outcome
            finally:
                del outcome  # as in `claim`
        if outcome is not None:
            self.audience.waits(outcome)
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
        if self.audience.listeners is None or ticket.state != WAITING:
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
        if parking.runs_event_loop() and not (parking.in_notebook() and self._callers.ends_without_tasks):
            raise RuntimeError(reports.blocks_the_loop(self._callers.binding))

    def claim(self, ticket: Ticket) -> Permit:
        """The waiter is awake: give it what its ticket was granted, or raise why it was refused."""
        if ticket.state != GRANTED:
            refusal, ticket.refusal = ticket.refusal, None
            assert refusal is not None
            self._refuse(ticket, refusal)
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
            self.audience.admitted(permit, ticket.rule if waited else None, ticket.tenant)
        permit.mode = ticket.mode
        ticket.state = CLAIMED  # last, and without a call before it
        return permit

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

    # -- other rates

    def retune(self, rates: tuple[Rate, ...], *, learned: bool = False) -> None:
        """Set other `rates` from now on, for waiting callers too. What was used stays used.

        `learned`: they are not from the user, so calls need not state what they cost in further units.
        """
        load_rules(rates)
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

    def largest_cost(self) -> Mapping[str, int]:
        """By unit that a rate counts: the largest amount that one call may take."""
        return self.rules.largest_cost()

    # -- the way out

    def settle(self, permit: Permit, actual: Cost | None = None) -> None:
        """A call is over: give back what its permit holds, and tell the observer."""
        if actual is None and not self._holds:
            mode = permit.mode
            if mode > SETTLED:
                permit.mode = -mode  # nothing was held, nothing comes free
            if self.observer is not None:
                self.audience.settled(permit, None, self.columns, self._now())
            return
        self.give_back(permit, actual)

    def give_back(self, what: Permit | Ticket, actual: Cost | None = None) -> None:
        """Undo a permit or a ticket, once. Never waits for the lock."""
        guard = self._guard
        if self._lock.locked():
            # Perhaps by this very thread, if a finalizer brought us here: never wait for it.
            guard.leave((what, actual))
            if self.audience.left and not self._lock.locked():
                self.tell_left()
            return
        # As the guard takes back what was left, without its calls.
        busy = True
        try:
            for _ in self._locking:
                break
            try:
                if guard.interrupted:
                    guard.repair_locked()
                settled = self._undo_locked(what, actual)
                busy = self._busy
                if busy:
                    self._advance_locked(self._now())
            finally:
                self._unlock()
        except BaseException:
            guard.broken_off()
            raise
        finally:
            if busy or self._pending:
                guard.finish()
        if self._watched:
            if settled and self.observer is not None:
                self.audience.settled(what, actual, self.columns, self._now())  # type: ignore[arg-type]  # a Permit
            if self.audience.left:
                self.tell_left()
            if self.supply is not None:
                self.supply.returned(corrected=actual is not None)

    def abandon(self, ticket: Ticket, error: BaseException) -> None:
        """A caller leaves the line by an error: undo its ticket, and tell if it was cancelled."""
        if isinstance(error, GeneratorExit):  # perhaps by a finalizer: the next caller tells
            self._guard.leave((ticket, GONE))
            return
        cancelled = ticket.unanswered
        ticket.rule = ticket.rule or self._callers.binding
        self.give_back(ticket)
        if cancelled:
            for _ in self._locking:
                break
            try:
                self._cancelled += 1
            finally:
                self._unlock()
            if self._pending:
                self._finish()
            if self.observer is not None:
                self.audience.cancelled(ticket, self._now())

    def leave(self, permit: Permit, actual: Cost | None) -> None:
        """Settle from a finalizer: never waits, and leaves telling the observer to the next caller."""
        self._guard.leave((permit, actual))

    def recover(self, permit: Permit) -> None:
        """A finalizer found a permit that was dropped without being settled."""
        if permit.generation is not self._generation:
            return  # the parent's, before a fork
        if any(left[0] is permit for left in list(self._pending)):
            return  # its block has ended, while another call held the lock
        self.audience.leave_dropped()
        self._guard.leave((permit, None))

    def learn(self, verdict: Verdict, sent_at: int) -> None:
        """An outcome may teach something about the limits."""
        if self._learn is not None:
            self._learn(verdict, sent_at)

    def _refuse(self, ticket: Ticket, error: Exception) -> None:
        for _ in self._locking:
            break
        try:
            self._refused += 1
        finally:
            self._unlock()
        if self._pending:
            self._finish()
        if self.observer is not None:
            self.audience.refused(ticket, error, self._now())

    def tell_retuned(self, rates: tuple[Rate, ...], now: int) -> None:
        """The rates in force are others now."""
        self.audience.retuned(rates, now)
