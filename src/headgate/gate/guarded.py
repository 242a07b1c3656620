"""GuardedRules: the rules of a gate, its line and its one lock, and everything that is done under that lock.

Under the lock there is only arithmetic; which callers to wake and when to look again are noted there and
carried out after it. Admission is handed over: the line marks a ticket granted before its waiter knows.
Ctrl-C may raise at any call; so what must not be torn apart is written without one, and what was begun is
found again in a ticket, in the list of callers to wake, or among what the guard takes back.
"""

from __future__ import annotations

from itertools import repeat, starmap
from sys import maxsize

from ..hints import Any, AnyRate, Callable, Clock, Iterator, Mapping, Observer, Sequence, T, later
from ..light import length_hint
from ..limits import COLUMNS, UNSTATED, Columns
from .admission import SETTLED, ForkGeneration, HoldingPermit, Permit
from .audience import Audience
from .clock import read_clock
from .decision import Rules
from .forks import reset_in_child
from .guard import Guard
from .line import DONE, GRANTED, WAITING, Ticket, correct
from .waiting import WaitingCallers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .seam import Seam
    from .supply import Demand, Grant, Supply
    from .window import WindowSignal
else:
    Demand = later("headgate.gate.supply", "Demand")
    Grant = later("headgate.gate.supply", "Grant")
    Supply = later("headgate.gate.supply", "Supply")

Cost = tuple[int, ...]

# Left for the guard with the ticket of a caller that has gone without a word: what its call has cost.
GONE: Cost = ()
# Left for the guard when a permit was consumed and the caller was interrupted before it asked for a place.
NOT_GIVEN = (None, GONE)


# How many permits a gate can make: as often as `repeat` can, also where that is 32 bits long.
_BLANKS = maxsize


def _refuse(_cost: Cost, _now: int) -> int:
    """The fast path while callers wait, while the gate is closed, or while something is to be told."""
    return SETTLED


def _enter_any_length(rules: Rules, length: int) -> Callable[[Cost, int], int]:
    # The cost may have been read just before a new unit came with `set_rates`. Not a method: a gate that
    # kept its own method would not go before the collector comes.
    return lambda cost, now: rules.enter(cost + (0,) * (length - len(cost)), now) if cost else SETTLED


class GuardedRules:
    """What a gate is inside: rules, callers that wait, and one lock for both.

    It raises no refusal and tells no observer; `Gate` does that, after the lock.
    """

    __slots__ = (
        "__weakref__",
        "_blanks",
        "_busy",
        "_callers",
        "_cancelled",
        "_enter",
        "_fast_path",
        "_generation",
        "_guard",
        "_holds",
        "_lock",
        "_locking",
        "_not_given",
        "_now",
        "_pending",
        "_permit_kind",
        "_permits",
        "_refused",
        "_seam",
        "_unlock",
        "_watched",
        "audience",
        "clock",
        "closed",
        "columns",
        "observer",
        "rules",
        "supply",
        "unit_cost",
    )

    def __init__(self, rules: Rules, columns: Mapping[str, int], audience: Audience, clock: Clock) -> None:
        self.rules = rules
        self.columns = columns if isinstance(columns, Columns) else Columns(columns)
        self.audience = audience
        self.observer: Observer | None = None  # that of the audience, found in one step less
        self.clock = read_clock(clock)
        self.closed = False
        self.supply: Supply | None = None  # what the gate is shared through ...
        self._seam: Seam | None = None  # ... and what the two tell each other
        self._count_anew()
        self._now = clock.now
        self._busy = False  # a caller waits, or the gate is closed
        self._callers = WaitingCallers(clock.quantum)
        self._generation = ForkGeneration(self)
        self._guard = Guard(
            self._now,
            self._take_back,
            taken_back=self._advance_if_busy,
            repair=self._repair,
            effects=self._wake,
        )
        self._pending = self._guard.pending
        self._find_lock()
        self.follow_rules()
        reset_in_child(self)
        audience.gather()  # after that, since observers of everything that come now find this gate
        self.observer = audience.observer
        self._choose_fast_path()

    def _find_lock(self) -> None:
        # As `Guard` says, it is taken by `for _ in self._locking: break`.
        guard = self._guard
        self._lock, self._locking, self._unlock = guard.lock, guard.locking, guard.unlock

    def _count_anew(self) -> None:
        # Calls since the start; those that waited are counted with the line. Each permit that a caller takes
        # from `_permits` consumes one of the blanks: so calls are counted in no time.
        self._blanks = repeat((), _BLANKS)
        self._not_given = self._refused = self._cancelled = 0

    # -- the way in

    def follow_rules(self) -> None:
        """Under the lock: the rules are others now. Choose the shortest way in that obeys them."""
        rules, length = self.rules, len(self.columns)
        self._enter: Any  # Callable[[Cost, int], int]
        if self._seam is not None:
            self._seam.length = length
            self._enter = self._seam.enter
        elif length == len(COLUMNS):
            self._enter = rules.entrance()
        else:
            self._enter = _enter_any_length(rules, length)
        # A call that states nothing is refused where calls have to state their cost, off the fast path.
        self.unit_cost = UNSTATED if self.columns.unstated else (1,) + (0,) * (length - 1)
        self._holds = rules.places is not None or rules.weight is not None
        self._permit_kind: type[Permit] = HoldingPermit if self._holds else Permit
        self._permits: Iterator[Permit] = starmap(self._permit_kind, self._blanks)
        self._choose_fast_path()

    def follow_observers(self) -> None:
        """Other observers hear of all gates from now on."""
        self.audience.gather()

        def follow(_now: int) -> None:
            self.observer = self.audience.observer
            self._choose_fast_path()

        self._guard.run(follow)

    def _choose_fast_path(self) -> None:
        # The way in for callers that find no line; and whether a call that ends is reported.
        left = self.audience.left
        self._fast_path = _refuse if self._busy or left else self._enter
        self._watched = self.observer is not None or self.supply is not None or bool(left)

    def at_full_length(self, cost: Cost) -> Cost:
        """The cost with a column for every unit that the gate knows by now."""
        return cost + (0,) * (len(self.columns) - len(cost))

    # -- looking and changing

    @property
    def waiting(self) -> int:
        """How many callers wait in line at this gate."""
        return self._callers.line.waiting

    @property
    def callers(self) -> WaitingCallers:
        """Under the lock: the callers that wait."""
        return self._callers

    def totals(self) -> tuple[int, int, int]:
        """Under the lock: how many calls were admitted, refused, and cancelled while they waited."""
        at_once = _BLANKS - length_hint(self._blanks) - self._not_given
        return at_once + self._callers.granted, self._refused, self._cancelled

    def note_interrupt(self, permit: Permit) -> None:
        """Ctrl-C broke off the way in. A permit without a mode was consumed, and nothing was taken for it."""
        if not hasattr(permit, "mode"):
            self._pending.append(NOT_GIVEN)

    def look(self, act: Callable[[int], T]) -> T:
        """Call `act(now)` under the lock. It may read and change the rules, with arithmetic only."""
        result = self._guard.run(act)
        if self.audience.left:
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

    def set_rate_rules(self, rules: Sequence[AnyRate], columns: Columns) -> None:
        """Under the lock: go by these rate rules, which count these columns."""
        self.columns = columns
        self.rules.set_rates(rules)
        self.follow_rules()
        for ticket in self._callers.line.tickets():
            ticket.cost = self.at_full_length(ticket.cost)

    def close_if(self, idle: Callable[[int], bool]) -> bool:
        """Close for good if no caller waits and `idle(now)`. Later callers are refused without an event."""

        def close_if_idle(now: int) -> bool:
            if self._callers.line.waiting or not idle(now):
                return False
            self.closed = True
            self.audience.dismiss()
            self.observer = None
            self._set_busy(True)
            return True

        return self._guard.run(close_if_idle)

    def tell_left(self) -> None:
        """Tell what finalizers left to be told. Not under a lock, and not from a finalizer."""
        try:
            self.audience.tell_left()
        finally:
            self._guard.run(lambda _now: self._choose_fast_path())

    # -- the turn of the line

    def _advance_locked(self, now: int) -> None:
        busy = self._callers.advance(self.rules, self._enter, now) or self.closed
        if busy is not self._busy:
            self._set_busy(busy)

    def _advance_if_busy(self, now: int) -> None:
        if self._busy:
            self._advance_locked(now)

    def _set_busy(self, busy: bool) -> None:
        self._busy = busy
        if self._seam is not None:
            self._seam.wait_for(callers=busy)
        self._choose_fast_path()

    def _finish(self) -> None:
        self._guard.finish()
        if self.audience.left:
            self.tell_left()

    def _wake(self) -> None:
        self._callers.wake(self._lose)
        seam = self._seam
        if seam is not None and (seam.low or seam.returned is not None):
            seam.tell()

    def _lose(self, ticket: Ticket) -> None:
        # Its loop is closed: the next caller may have the place.
        self._pending.append((ticket, GONE))

    def _repair(self, now: int) -> None:
        """Under the lock, after an interrupt broke off a change of the line: put it in order."""
        self._callers.repair()
        self._advance_locked(now)
        self._set_busy(self._busy)  # perhaps that was broken off

    # -- the seam to what the gate is shared through

    def share(self, supply: Supply) -> None:
        """From now on go by what this supply grants."""
        from .seam import Seam  # noqa: PLC0415 - only a gate that is shared loads it

        def follow(_now: int) -> None:
            self.supply = supply
            self._seam = Seam(supply, self.rules, self._pending)
            self.follow_rules()

        self.look(follow)

    def demand(self, *, leaving: bool = False, keeps: Sequence[int] | None = None) -> Demand:
        """What the gate holds, and what its callers want.

        `leaving`: all unused units go back. `keeps`: so do places and bytes beyond these, unless in use.
        """
        seam, callers = self._seam, self._callers
        assert seam is not None  # the supply asks
        return self.look(lambda now: seam.demand(callers.line, now, leaving=leaving, keeps=keeps))

    def grant(self, grant: Grant) -> list[int]:
        """Go by a grant, and let the line look again. Answers what the rates that it replaces owe."""
        seam = self._seam
        assert seam is not None  # the supply grants

        def apply(now: int) -> list[int]:
            owed = []
            if grant.rates is not None:
                owed = seam.replace(grant, now)
                self.set_rate_rules(grant.rates, grant.columns or self.columns)
                seam.wait_for(callers=self._busy)
            seam.apply(grant, now, idle=not self._callers.line.waiting)
            return owed

        return self.change(apply)

    def hear_window(self) -> None:
        """The backoff window has changed: let the line look again, and pass the news on."""
        signal = self.change(self._hear_locked)
        if signal is not None and self.supply is not None:
            self.supply.signalled(signal)

    def _hear_locked(self, now: int) -> WindowSignal | None:
        self.rules.hear_window()
        return None if self._seam is None else self._seam.hear_window(now)

    # -- what comes back

    def _take_back(self, left: Any, _now: int) -> None:
        """Under the lock: undo what was left for the guard."""
        seam, audience = self._seam, self.audience
        what, actual = left
        if what is None:
            if actual is GONE:  # NOT_GIVEN
                self._not_given += 1
            elif seam is not None:  # LOW
                seam.low = True
            return
        if actual is GONE and what.unanswered:
            self._cancelled += 1
            what.rule = what.rule or self._callers.binding
            what.refusal = None
            if self.observer is not None:
                audience.left.append(lambda: audience.cancelled(what, self._now()))
        if seam is not None:
            seam.returned = actual is not None or bool(seam.returned)
        if self._undo_locked(what, actual) and self.observer is not None:
            audience.left.append(lambda: audience.settled(what, actual, self.columns, self._now()))
        if audience.left:
            self._choose_fast_path()

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
            self.audience.leave_debt(self.columns, actual, charged)
            self._choose_fast_path()
        ticket = getattr(permit, "ticket", None)
        if ticket is not None:
            correct(ticket, self.rules.size(charged))

    def detach(self, permit: Permit, count: Callable[[], object]) -> None:
        """Let a call go on without its permit: its place is free, and `count()` counts it, under the lock."""
        for _ in self._locking:
            break
        try:
            self.rules.leave(permit.cost, permit.mode)
            permit.mode = -permit.mode
            count()
        finally:
            self._unlock()
        if self._pending:
            self._finish()

    # -- after a fork

    def after_fork(self) -> None:
        """In a forked child: no caller waits, no call is under way, and the lock is free."""
        self._guard.after_fork()
        self._find_lock()
        self._generation = ForkGeneration(self)
        self.audience.left.clear()
        self._count_anew()
        self._callers.forget()
        self.rules.empty()
        self.follow_rules()
        self._set_busy(self.closed)
        if self.supply is not None:
            self.supply.after_fork()
