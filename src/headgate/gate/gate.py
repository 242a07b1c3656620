"""The only lock: rules and line, permits and wake-ups.

Rules of this room: under the lock only arithmetic; whom to wake goes into an outbox and when
to look again into a note, and both are carried out after it. Admission is handed over: the
line marks a ticket granted before its waiter knows. Giving back never waits for the lock,
because a finalizer may run inside it: what cannot be given back now goes into a tray that
whoever holds the lock empties. Ctrl-C raises at any call; so what must not be torn apart is
written without one, and what was begun is found again in outbox, note or tray.
"""

from __future__ import annotations

import sys
import warnings
from _thread import allocate_lock
from collections import deque

from .. import events
from ..arguments import amount, positive_int, seconds_to_ns
from ..errors import CapacityExhausted, Closed, CostTooLarge, InvalidConfig, LineFull, Refused, WaitTimeout
from ..limits import COLUMNS, read_cost
from .admission import SETTLED, Admission, ForkGeneration, HoldingPermit, Permit
from .bucket import successors
from .clock import SYSTEM
from .forks import reset_in_child
from .line import CLAIMED, DONE, GRANTED, WAITING, Line, Ticket, correct
from .parking import wake_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping
    from typing import TypeVar

    from ..limits import Rate
    from ..typing import Clock, Observer, Seconds
    from ..verdict import Verdict
    from .decision import Rules

    T = TypeVar("T")


# How late, in nanoseconds, the one who keeps the time may be before its deputy looks.
_GRACE = 20_000_000

_NOT_A_KEYWORD = "{0}({1!r}) does not say of what; write {0}(tokens={1!r}) or {0}(bytes={1!r})"


def _read_weights(weights: Mapping[Hashable, int]) -> dict[Hashable, int]:
    if not hasattr(weights, "items"):
        raise InvalidConfig(f'weights={weights!r} is not a mapping; write e.g. weights={{"gold": 4}}')
    return {
        tenant: positive_int(weight, f"weights[{tenant!r}]", example=4) for tenant, weight in weights.items()
    }


def _barred(_cost: tuple[int, ...], _now: int) -> int:
    return SETTLED


class Gate:
    """Any number of threads and event loops, one line, one decision."""

    __slots__ = (
        "__weakref__",
        "_binding",
        "_busy",
        "_clock",
        "_closed",
        "_columns",
        "_deputy",
        "_enter",
        "_enter_unasked",
        "_era",
        "_holds",
        "_key",
        "_line",
        "_lock",
        "_max_waiting",
        "_now",
        "_observer",
        "_one",
        "_outbox",
        "_permit_kind",
        "_rules",
        "_torn",
        "_tray",
        "_watch",
        "_weights",
    )

    def __init__(
        self,
        key: Hashable,
        rules: Rules,
        *,
        columns: Mapping[str, int] = COLUMNS,
        max_waiting: int | None = None,
        weights: Mapping[Hashable, int] | None = None,
        observer: Observer | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        if max_waiting is not None and max_waiting != 0:
            positive_int(max_waiting, "max_waiting", example=1000)
        if observer is not None and not callable(observer):
            raise InvalidConfig(f"observer={observer!r} cannot be called; give a function of one event")
        self._key = key
        self._rules = rules
        self._columns = columns
        self._max_waiting = max_waiting
        self._weights = None if weights is None else _read_weights(weights)
        self._observer = observer
        self._clock = clock
        self._now = clock.now
        self._lock = allocate_lock()
        self._line = Line()
        self._busy = False  # somebody waits or the gate is closed
        self._closed = False
        self._torn = False  # a change of the line was broken off, and nobody has put it in order yet
        self._outbox: deque[Ticket] = deque()  # granted or refused, and not woken yet
        self._watch: tuple[Ticket, int] | None = None  # who keeps the time, and until when
        self._deputy: Ticket | None = None  # a thread that looks if the loop of that one is blocked
        self._binding: str | None = None  # the rule that held the first in line when last asked
        self._era = ForkGeneration(self)
        # Permits and tickets given back while the lock was taken. A finalizer may run this
        # while this very thread holds the lock, so giving back is never done by waiting for it.
        self._tray: deque[tuple[Permit | Ticket, tuple[int, ...] | None]] = deque()
        self._follow_rules()
        reset_in_child(self)

    def _follow_rules(self) -> None:
        rules = self._rules
        self._enter = rules.entrance() if len(self._columns) == len(COLUMNS) else self._enter_any_length
        # The way in for newcomers; barred while somebody waits or the gate is closed.
        self._enter_unasked = _barred if self._busy else self._enter
        self._one = (1,) + (0,) * (len(self._columns) - 1)
        self._holds = rules.places is not None or rules.weight is not None
        self._permit_kind: type[Permit] = HoldingPermit if self._holds else Permit

    def _enter_any_length(self, cost: tuple[int, ...], now: int) -> int:
        # The cost may have been read just before a new unit came with `set_rates`.
        return self._rules.enter(self._at_full_length(cost), now)

    def _at_full_length(self, cost: tuple[int, ...]) -> tuple[int, ...]:
        return cost + (0,) * (len(self._columns) - len(cost))

    # -- what callers do

    # The arguments are keywords: `admit(1200)` would be anybody's guess. Python's own way to
    # say so takes a tenth of the whole call, so the first argument says it.

    def admit(
        self,
        _keywords_only: None = None,
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
        if _keywords_only is not None:
            raise TypeError(_NOT_A_KEYWORD.format("admit", _keywords_only))
        admission = Admission()
        admission._gate = self
        admission._bytes = bytes
        admission._tokens = tokens
        admission._cost = cost
        admission._timeout = None if timeout is None else seconds_to_ns(timeout, "timeout")
        admission._priority = priority
        admission._tenant = tenant
        admission._permit = None
        if priority.__class__ is not int:
            raise InvalidConfig(f"priority={priority!r} is not a whole number; higher goes first, 0 is usual")
        return admission

    def try_admit(
        self,
        _keywords_only: None = None,
        bytes: int = 0,
        tokens: int = 0,
        cost: int | Mapping[str, int] | None = None,
        priority: int = 0,  # noqa: ARG002 - who does not wait needs no place in line
        tenant: Hashable = None,
    ) -> Permit | None:
        """A permit if there is a place right now and nobody waits for it, else None.

        Takes what `admit` takes. Settle the permit when the call is over, or use it as
        `with permit:`. Raises CostTooLarge or Closed where no later try could succeed.
        """
        if _keywords_only is not None:
            raise TypeError(_NOT_A_KEYWORD.format("try_admit", _keywords_only))
        if bytes or tokens or cost is not None:
            price = read_cost(self._columns, bytes, tokens, cost)
        else:
            price = self._one
        # Made beforehand, so that nothing can interrupt between taking and writing it down:
        # a signal handler runs at calls, and there are none.
        permit = self._permit_kind()
        with self._lock:
            now = self._now()
            permit._mode = mode = self._enter_unasked(price, now)
            permit._era = self._era
            permit._cost = price
            permit._taken_at = now
        if self._tray:
            self._carry_out()
        if not mode:
            if self._torn or self._outbox:
                self._look_again()
            self._raise_if_hopeless(price)
            return None
        if self._observer is not None:
            self._tell_admitted(permit, None, tenant)
        return permit

    def close(self) -> None:
        """Refuse everybody who waits and everybody who comes. Calls under way may finish."""
        with self._lock:
            self._closed = True
            self._bar(True)
            self._watch = None
            for ticket in self._line.tickets():
                ticket.refusal = Closed(f"the gate {self._key!r} was closed", rule="closed")
                ticket.state = DONE
                self._outbox.append(ticket)
            self._line = Line()
        self._carry_out()

    # -- the way in

    def _join(self, ticket: Ticket, timeout: int | None) -> None:
        """Stand in line. Afterwards the ticket is waiting, granted, or refused by an exception."""
        if not ticket.parker.on_loop and (self._deputy is None or self._deputy.state != WAITING):
            self._deputy = ticket
        refused = self._under_lock(lambda now: self._join_locked(ticket, timeout, now))
        if refused is not None:
            self._tell_refused(ticket, refused)
            try:
                raise refused
            finally:
                del refused  # as in `_claim`
        if ticket.deadline is not None and ticket.state == WAITING:
            ticket.parker.alarm(ticket.deadline)

    def _join_locked(self, ticket: Ticket, timeout: int | None, now: int) -> Refused | None:
        ticket.joined_at = now
        ticket.era = self._era
        ticket.cost = self._at_full_length(ticket.cost)
        ticket.size = self._rules.size(ticket.cost)
        refused = self._refuse_locked(ticket, now, timeout)
        if refused is not None:
            ticket.state = DONE
            return refused
        if timeout is not None:
            ticket.deadline = now + timeout
        line, watch = self._line, self._watch
        first = line.first()
        line.join(ticket)
        if line.first() is not first or (watch is not None and now >= watch[1]):
            self._advance_locked(now)  # otherwise it only stands behind those who wait anyway
        return None

    def _refuse_locked(self, ticket: Ticket, now: int, timeout: int | None) -> Refused | None:
        """Why the ticket may not even wait, or None."""
        never = self._never(ticket.cost)
        if never is not None:
            return never
        line = self._line
        if not line.waiting and self._rules.held_by(ticket.cost, now)[0] is None:
            return None  # it came free since we looked
        if timeout == 0:
            rule, after = self._explain_locked(ticket.cost, now)
            return CapacityExhausted(
                "nothing is free and the caller would not wait", rule=rule, retry_after=after
            )
        if self._max_waiting is not None and line.waiting >= self._max_waiting:
            rule, after = self._explain_locked(ticket.cost, now)
            return LineFull(f"{line.waiting} are waiting already", rule=rule, retry_after=after)
        if timeout is not None:
            hopeless = self._rules.certain_wait(ticket.cost, now)
            if hopeless is not None and hopeless[1] > now + timeout:
                return WaitTimeout(
                    f"no place can come free within {timeout / 1e9:g} s",
                    rule=hopeless[0],
                    retry_after=(hopeless[1] - now) / 1e9,
                )
        return None

    def _explain_locked(self, cost: tuple[int, ...], now: int) -> tuple[str, float | None]:
        """What stands in the way of this cost, and in how many seconds it may be gone."""
        rule, at = self._held_by_locked(cost, now)
        if rule is None:
            return self._binding or "line", None
        return rule, None if at is None else (at - now) / 1e9

    def _raise_if_hopeless(self, cost: tuple[int, ...]) -> None:
        hopeless = self._never(cost)
        if hopeless is not None:
            self._tell_refused(Ticket(cost, joined_at=self._now()), hopeless)
            raise hopeless

    def _never(self, cost: tuple[int, ...]) -> Refused | None:
        """Why no wait, however long, would help; or None."""
        if self._closed:
            return Closed(f"the gate {self._key!r} was closed", rule="closed")
        never = self._rules.refusal(self._at_full_length(cost))
        return None if never is None else CostTooLarge(never[0], rule=never[1])

    def _claim(self, ticket: Ticket) -> Permit:
        """The waiter is awake: take what it was given."""
        if ticket.state != GRANTED:
            refusal, ticket.refusal = ticket.refusal, None
            assert refusal is not None
            self._tell_refused(ticket, refusal)
            try:
                raise refusal
            finally:
                del refusal  # an error knows this frame and the caller's: leave no circle, nor a way to it
        permit: Permit = ticket.granted
        if self._observer is not None:
            self._tell_admitted(permit, ticket.rule if permit._waited else None, ticket.tenant)
        ticket.state = CLAIMED  # last, and without a call: until now the ticket answers for the permit
        ticket.granted = None  # the permit may know the ticket: leave no circle for the collector
        return permit

    # -- the turn of the line

    def _advance_locked(self, now: int) -> None:
        """Let in everybody who may go, in order. Note who keeps the time for the rest."""
        line, enter, reentry = self._line, self._enter, self._rules.reentry
        era, kind = self._era, self._permit_kind
        outbox = self._outbox
        binding = self._binding
        permit = None
        first = line.first()
        while first is not None:
            if reentry is not None and reentry.earliest(now, line.waiting) > now:
                break
            if permit is None:
                permit = kind()
            cost = first.cost
            permit._mode = mode = enter(cost, now)
            if not mode:
                break
            permit._era = era
            permit._cost = cost
            permit._taken_at = now
            permit._waited = now - first.joined_at
            if first.parker.on_loop:
                permit._scoped = True  # the ticket answers for it, until the block does
            if first.tenant is not None:
                permit._ticket = first
            first.rule = binding
            first.granted = permit
            first.state = GRANTED
            permit = None
            outbox.append(first)
            first = line.admit(first)
            if reentry is not None:
                reentry.take()
        if first is None:
            if self._busy is not self._closed:
                self._bar(self._closed)
            self._binding = self._watch = None
            return
        self._binding, at = self._held_by_locked(first.cost, now)
        if at is not None and self._clock.quantum:
            # Rather several at a time than a timer for each.
            at += min(self._clock.quantum, self._rules.patience(first.cost, now, line.waiting, self._binding))
        self._watch = None if at is None else (first, at)
        if not self._busy:
            self._bar(True)

    def _bar(self, busy: bool) -> None:
        """No short cut for newcomers while others wait."""
        self._busy = busy
        self._enter_unasked = _barred if busy else self._enter

    def _held_by_locked(self, cost: tuple[int, ...], now: int) -> tuple[str | None, int | None]:
        """What the first in line waits for, and until when; no moment: until somebody leaves."""
        reentry = self._rules.reentry
        if reentry is not None:
            at = reentry.earliest(now, self._line.waiting)
            if at > now:
                return "window", at
        return self._rules.held_by(cost, now)

    def _carry_out(self) -> None:
        """Wake, set alarms and take back what lies in the tray, until all is quiet."""
        while True:
            outbox = self._outbox
            while outbox:
                tickets = list(outbox)
                for ticket in wake_all(tickets):
                    self._tray.append((ticket, None))  # its loop is closed: the next may have the place
                for ticket in tickets:  # only now: an interrupted waking is done again
                    try:  # noqa: SIM105 - contextlib would double the time of importing headgate
                        outbox.remove(ticket)
                    except ValueError:
                        pass  # another thread was quicker
            watch = self._watch
            if watch is not None:
                self._set_alarm(*watch)
            if not self._tray or self._lock.locked():
                return
            self._empty_tray()

    def _set_alarm(self, first: Ticket, at: int) -> None:
        if first.state != WAITING:
            return
        if not first.parker.alarm(at):
            self._tray.append((first, None))
        deputy = self._deputy
        if deputy is not None and first.parker.on_loop and deputy.state == WAITING:
            # Somebody may block that loop: perhaps this very thread, by waiting here.
            deputy.parker.alarm(at + _GRACE)

    def _ring(self, ticket: Ticket) -> None:
        """The alarm of a waiter: time to look again, and perhaps its time is up."""
        self._under_lock(lambda now: self._ring_locked(ticket, now))
        if ticket.state == WAITING and ticket.deadline is not None:
            ticket.parker.alarm(ticket.deadline)

    def _ring_locked(self, ticket: Ticket, now: int) -> None:
        self._advance_locked(now)
        if ticket.state == WAITING and ticket.deadline is not None and now >= ticket.deadline:
            rule, after = self._explain_locked(ticket.cost, now)
            waited = f"waited {(now - ticket.joined_at) / 1e9:.1f} s for a place"
            ticket.refusal = WaitTimeout(waited, rule=rule, retry_after=after)
            self._dismiss_locked(ticket)
            self._advance_locked(now)

    def _dismiss_locked(self, ticket: Ticket) -> None:
        """The ticket has been refused while it waited."""
        ticket.state = DONE
        self._outbox.append(ticket)
        self._line.leave(ticket)

    def _look_again(self) -> None:
        """Something changed outside the gate that may let somebody in."""
        self._change(lambda _now: self._rules.hear_window())

    def _change(self, alter: Callable[[int], T]) -> T:
        """Alter the rules under the lock, then let the line look again."""

        def altered(now: int) -> T:
            result = alter(now)
            self._advance_locked(now)
            return result

        return self._under_lock(altered)

    def _under_lock(self, act: Callable[[int], T]) -> T:
        try:
            with self._lock:
                if self._torn:
                    self._mend_locked()
                result = act(self._now())
        except BaseException:
            self._torn = True  # whoever comes next mends it, if nothing can be called here: the stack is full
            self._mend()
            raise
        finally:
            self._carry_out()
        return result

    def _mend(self) -> None:
        """Ctrl-C broke off a change of the line half-way: put it in order for the others."""
        with self._lock:
            self._mend_locked()
            self._advance_locked(self._now())

    def _mend_locked(self) -> None:
        self._line = self._line.mended()
        self._torn = False

    def _retune(self, rates: tuple[Rate, ...]) -> None:
        """Other rates from now on, for those who wait too. What was used stays used."""
        now = self._change(lambda now: self._retune_locked(rates, now))
        if self._observer is not None:
            names = tuple(str(rate) for rate in rates)
            events.tell(self._observer, events.Retuned(key=self._key, at=now / 1e9, rates=names))

    def _retune_locked(self, rates: tuple[Rate, ...], now: int) -> int:
        columns = dict(self._columns)
        for rate in rates:
            columns.setdefault(rate.unit, len(columns))
        self._columns = columns
        self._rules.set_rates(successors(self._rules.rates, rates, columns, now))
        self._follow_rules()
        for ticket in self._line.tickets():
            ticket.cost = self._at_full_length(ticket.cost)
            never = self._rules.refusal(ticket.cost)
            if never is not None:
                ticket.refusal = CostTooLarge(never[0], rule=never[1])
                self._dismiss_locked(ticket)
        return now

    # -- the way out

    def _settle(self, permit: Permit, actual: tuple[int, ...] | None = None) -> None:
        if actual is None and not self._holds:
            permit._mode = -abs(permit._mode)  # nothing was held, nothing comes free
            if self._observer is not None:
                self._tell_settled(permit, None)
            return
        self._give_back(permit, actual)

    def _give_back(self, what: Permit | Ticket, actual: tuple[int, ...] | None = None) -> None:
        if self._lock.locked():
            # Perhaps by this very thread, if a finalizer brought us here: never wait for it.
            self._tray.append((what, actual))
            self._carry_out()
            return
        # Whoever takes the lock between the look and here holds it for arithmetic only, and
        # nobody who holds a gate's lock waits for another unless that one was free when it
        # looked; so no circle of waiting can close.
        try:
            with self._lock:
                if self._torn:
                    self._mend_locked()
                settled = self._take_back_locked(what, actual)
                if self._busy:
                    self._advance_locked(self._now())
        except BaseException:
            self._torn = True
            self._mend()
            raise
        finally:
            if self._outbox or self._watch or self._tray:
                self._carry_out()
        if settled and self._observer is not None:
            self._tell_settled(what, actual)

    def _empty_tray(self) -> None:
        tray = self._tray
        settled: list[tuple[Permit | Ticket, tuple[int, ...] | None]] = []
        try:
            with self._lock:
                if self._torn:
                    self._mend_locked()
                while tray:
                    what, actual = tray[0]
                    if self._take_back_locked(what, actual):
                        settled.append((what, actual))
                    tray.popleft()
                if self._busy:
                    self._advance_locked(self._now())
        except BaseException:
            self._torn = True
            self._mend()
            raise
        if self._observer is not None:
            for what, actual in settled:
                self._tell_settled(what, actual)

    def _take_back_locked(self, what: Permit | Ticket, actual: tuple[int, ...] | None) -> bool:
        """Undo a permit or a ticket, once. True if a call was settled by it."""
        if isinstance(what, Permit):
            if what._era is not self._era:
                what._mode = -abs(what._mode)  # given out before a fork, by the parent
            elif what._mode > SETTLED:
                self._settle_locked(what, actual)
                return True
        elif what.era is not self._era:
            what.state = DONE  # it stood in the line of the parent, before a fork
        elif what.state == WAITING:
            what.state = DONE
            self._line.leave(what)
        elif what.state == GRANTED:
            what.state = DONE
            permit = what.granted
            if permit._mode > SETTLED:
                self._settle_locked(permit, (0,) * len(permit._cost))  # it never ran: it cost nothing
        return False

    def _settle_locked(self, permit: Permit, actual: tuple[int, ...] | None) -> None:
        if actual is not None:
            self._rules.correct(permit._cost, actual, permit._taken_at, self._now())
            ticket = getattr(permit, "_ticket", None)
            if ticket is not None:
                correct(ticket, self._rules.size(actual))
        mode = permit._mode
        self._rules.leave(permit._cost, mode)
        permit._mode = -mode

    def _recover(self, permit: Permit) -> None:
        """A permit was dropped without being settled: nobody else will give it back."""
        if permit._era is not self._era:
            return  # the parent's, before a fork
        self._tray.append((permit, None))
        self._carry_out()
        if not self._lock.locked() and not sys.is_finalizing():
            warnings.warn(
                f"a permit of {self._key!r} was dropped without settle(); its place has been given back. "
                "Use `with gate.admit()`, or call permit.settle() when the call is over",
                ResourceWarning,
                stacklevel=3,
            )

    def _actual_cost(
        self,
        estimate: tuple[int, ...],
        tokens: int | None,
        bytes: int | None,
        cost: int | Mapping[str, int] | None,
    ) -> tuple[int, ...]:
        row = list(self._at_full_length(estimate))
        if cost is not None and not isinstance(cost, int):
            given = read_cost(self._columns, 0, 0, cost)
            for unit in cost:
                row[self._columns[unit]] = given[self._columns[unit]]
        elif cost is not None:
            row[0] = amount(cost, "cost")
        if tokens is not None:
            row[1] = amount(tokens, "tokens")
        if bytes is not None:
            row[2] = amount(max(0, bytes) if isinstance(bytes, int) else bytes, "bytes")
        return tuple(row)

    def _learn(self, verdict: Verdict, sent_at: int) -> None:
        """What an outcome teaches. A bare gate has nothing to learn with."""

    # -- telling observers

    def _tell_admitted(self, permit: Permit, rule: str | None, tenant: Hashable) -> None:
        events.tell(
            self._observer,
            events.Admitted(
                key=self._key,
                at=permit._taken_at / 1e9,
                waited=permit.waited,
                rule=rule,
                throttled=permit.throttled,
                tenant=tenant,
            ),
        )

    def _tell_refused(self, ticket: Ticket, error: Exception) -> None:
        if self._observer is not None:
            now = self._now()
            events.tell(
                self._observer,
                events.Refused(
                    key=self._key,
                    at=now / 1e9,
                    waited=(now - ticket.joined_at) / 1e9,
                    rule=getattr(error, "rule", ""),
                    error=type(error).__name__,
                    tenant=ticket.tenant,
                ),
            )

    def _tell_settled(self, permit: Permit | Ticket, actual: tuple[int, ...] | None) -> None:
        assert isinstance(permit, Permit)
        now = self._now()
        names = list(self._columns)
        events.tell(
            self._observer,
            events.Settled(
                key=self._key,
                at=now / 1e9,
                held=(now - permit._taken_at) / 1e9,
                cost=dict(zip(names, permit._cost, strict=False)),
                actual=dict(zip(names, actual or permit._cost, strict=False)),
            ),
        )

    # -- after a fork

    def after_fork(self) -> None:
        """In a forked child: nobody waits, nobody is inside, and the lock is free."""
        self._lock = allocate_lock()
        self._era = ForkGeneration(self)
        self._tray.clear()
        self._outbox.clear()
        self._watch = self._deputy = None
        self._line = Line()
        self._torn = False
        self._rules.empty()
        self._bar(self._closed)
        self._binding = None
