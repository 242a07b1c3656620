"""The callers that wait at one gate: their line, which of them keep the time, which are to be woken.

All but `wake` is arithmetic and runs under the gate's lock; `wake` runs after it, from any thread and
from finalizers.
"""

from __future__ import annotations

from ..errors import Refused
from ..hints import Any, Callable
from ..light import LazyModule, OrderedDict, deque
from .decision import Rules
from .line import DONE, GRANTED, WAITING, Line, Ticket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from . import parking
else:
    parking = LazyModule("headgate.gate.parking")

# How late, in nanoseconds, the timekeeper of one world may be before that of another looks.
_GRACE = 20_000_000


class WaitingCallers:
    """Tickets in line, and how they are let in.

    A world is one event loop, or all threads together. In each world with waiting callers one of them
    keeps the time: the first in line for its own world, and in every other world its oldest ticket, a
    little later. A loop that is busy, stopped or closed thus delays only its own callers.
    """

    __slots__ = (
        "_alarms",
        "_quantum",
        "_to_wake",
        "_world",
        "_worlds",
        "binding",
        "granted",
        "line",
        "may_go_elsewhere",
        "waited",
    )

    def __init__(self, quantum: int) -> None:
        self._quantum = quantum
        self.line = Line()
        self.may_go_elsewhere = (
            False  # whether callers wait at other gates too, and may leave this line early
        )
        self.granted = 0  # tickets, since the start ...
        self.waited = 0  # ... and how many nanoseconds they waited together
        self.binding: str | None = None  # the rule that held the first in line when last asked
        self._to_wake: deque[Ticket] = deque()  # granted or refused, and not woken yet
        self._alarms: tuple[tuple[Ticket, int], ...] = ()  # each timekeeper, and when it looks
        self._world: Any = None  # that all waiting tickets belong to ...
        self._worlds: dict[Any, OrderedDict[Ticket, None]] | None = None  # ... or the tickets of each

    @property
    def next_look(self) -> int | None:
        """When the first in line is asked about again; None: when a call ends."""
        return self._alarms[0][1] if self._alarms else None

    @property
    def ends_without_tasks(self) -> bool:
        """Whether the line moves at a known moment and only threads wait in it."""
        return bool(self._alarms) and self._worlds is None and self._world is None

    @property
    def unwoken(self) -> bool:
        """Whether a caller was granted or refused and may not have been woken, after an interrupt."""
        return bool(self._to_wake)

    def join(self, ticket: Ticket, now: int) -> bool:
        """Stand in line. True: the line has to look again, otherwise a timekeeper does it for the ticket."""
        line, alarms = self.line, self._alarms
        first = line.first()
        line.join(ticket)
        if first is None or self._worlds is not None or ticket.parker.world is not self._world:
            first_of_world = self._enlist(ticket)
        else:
            first_of_world = False
        return first_of_world or line.first() is not first or bool(alarms and now >= alarms[0][1])

    def _enlist(self, ticket: Ticket) -> bool:
        """Note the world of a ticket that has joined. True if it is the first one there."""
        world, worlds = ticket.parker.world, self._worlds
        if worlds is None:
            if self.line.waiting == 1:
                self._world = world
            else:
                self._sort_by_world()
            return True
        tickets = worlds.setdefault(world, OrderedDict())
        tickets[ticket] = None
        return len(tickets) == 1

    def _sort_by_world(self) -> None:
        worlds = self._worlds = {}
        for ticket in self.line.tickets():
            worlds.setdefault(_world_of(ticket), OrderedDict())[ticket] = None

    def _delist(self, ticket: Ticket) -> None:
        if self._worlds is not None:
            world = _world_of(ticket)
            tickets = self._worlds.get(world)
            if tickets is not None:
                tickets.pop(ticket, None)
                if not tickets:
                    del self._worlds[world]  # it keeps an event loop alive

    def leave(self, ticket: Ticket) -> None:
        """The caller of a ticket that waited has gone."""
        ticket.state = DONE
        self.line.leave(ticket)
        self._delist(ticket)

    def advance(self, rules: Rules, enter: Callable[[tuple[int, ...], int], int], now: int) -> bool:
        """Let in all callers that may go, in order. True: some have to wait on."""
        line, reentry, binding = self.line, rules.reentry, self.binding
        to_wake, worlds = self._to_wake, self._worlds
        granted = joined = 0
        first = line.first()
        try:
            while first is not None:
                if reentry is not None and reentry.earliest(now, line.waiting) > now:
                    break
                first.granted_at = now
                first.rule = binding
                first.mode = mode = enter(first.cost, now)
                if not mode:
                    break
                first.state = GRANTED
                granted += 1
                joined += first.joined_at
                to_wake.append(first)
                if worlds is not None:
                    self._delist(first)
                first = line.admit(first)
                if reentry is not None:
                    reentry.take()
        finally:  # also after an interrupt
            self.granted += granted
            self.waited += granted * now - joined
        if first is None:
            self._have_none()
            return False
        self.binding, at = self.held_by(rules, first.cost, now)
        if at is not None and self._quantum:
            # One timer for several admissions is cheaper than a timer for each.
            at += min(self._quantum, rules.coalesce_by(first.cost, now, line.waiting, self.binding))
        self._alarms = () if at is None else self._timekeepers(first, at)
        return True

    def _timekeepers(self, first: Ticket, at: int) -> tuple[tuple[Ticket, int], ...]:
        if self._worlds is None:
            return ((first, at),)
        own = _world_of(first)
        later = [
            (next(iter(tickets)), at + _GRACE)
            for world, tickets in self._worlds.items()
            if tickets and world is not own
        ]
        return ((first, at), *later)

    def _have_none(self) -> None:
        self.binding, self._alarms = None, ()
        self._world = self._worlds = None

    def held_by(self, rules: Rules, cost: tuple[int, ...], now: int) -> tuple[str | None, int | None]:
        """What the first in line waits for, and until when; no moment: until a call ends."""
        if rules.reentry is not None:
            at = rules.reentry.earliest(now, self.line.waiting)
            if at > now:
                return "window", at
        return rules.held_by(cost, now)

    def withdraw(self, ticket: Ticket) -> None:
        """The caller of a ticket that was granted has gone: it does not count."""
        self.granted -= 1
        self.waited -= ticket.granted_at - ticket.joined_at

    def dismiss(self, ticket: Ticket, refusal: Refused) -> None:
        """Refuse a ticket that waits."""
        ticket.refusal = refusal
        self._to_wake.append(ticket)
        self.leave(ticket)

    def dismiss_all(self, refusal: Callable[[], Refused]) -> None:
        """Refuse every ticket that waits."""
        for ticket in self.line.tickets():
            ticket.refusal = refusal()
            ticket.state = DONE
            self._to_wake.append(ticket)
        self.line = Line()
        self._have_none()

    def repair(self) -> None:
        """An interrupt broke off a change of the line: put it in order."""
        self.line = self.line.mended()
        self._sort_by_world()

    def forget(self) -> None:
        """In a forked child: the callers that waited belong to the parent."""
        self.line = Line()
        self.granted = self.waited = 0
        self._have_none()
        self._to_wake.clear()

    def wake(self, unreachable: Callable[[Ticket], object]) -> None:
        """Wake callers that were granted or refused, and set the alarms of the timekeepers.

        `unreachable(ticket)` is called for a ticket whose event loop is closed.
        """
        to_wake = self._to_wake
        while to_wake:
            tickets = list(to_wake)
            for ticket in parking.wake_all(tickets):
                unreachable(ticket)
            for ticket in tickets:  # only now: an interrupted waking is done again
                try:  # noqa: SIM105 - contextlib would double the time of importing headgate
                    to_wake.remove(ticket)
                except ValueError:
                    pass  # another thread was quicker
        for ticket, at in self._alarms:
            if ticket.state == WAITING and not ticket.parker.alarm(at):
                unreachable(ticket)


def _world_of(ticket: Ticket) -> Any:
    return ticket.parker.world
