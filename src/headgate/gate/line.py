"""Pure. The line: by priority, then tenants fairly by cost, then first come.

No ticket overtakes the next one, whatever it costs; a ticket that leaves leaves no trace; finding the
next takes time in proportion to the tickets that go, not to those that wait.
"""

from __future__ import annotations

from bisect import insort
from heapq import heapify, heappop, heappush
from itertools import islice

from ..hints import Any, Hashable, Iterator
from ..light import deque

# The four states of a ticket. Admitted is the line's word, claimed the waiter's: only a
# grant that was not claimed may be taken back from a waiter that has gone.
WAITING, GRANTED, CLAIMED, DONE = range(4)

# One of this many admissions goes to each lower priority that waits, so that all are served.
# With more than ten of them they take longer turns, so that the highest gets at least half.
_TURN = 20

# Virtual time is counted in integers fine enough for weights that do not divide a cost.
_FINE = 1 << 20


class Ticket:
    """A place in the line."""

    __slots__ = (
        "cost",
        "deadline",
        "flow",
        "generation",
        "granted_at",
        "joined_at",
        "mode",
        "parker",
        "priority",
        "refusal",
        "rule",
        "share",
        "size",
        "state",
        "tenant",
    )

    def __init__(
        self,
        cost: tuple[int, ...],
        priority: int = 0,
        tenant: Hashable = None,
        share: int = 1,
        *,
        joined_at: int = 0,
        deadline: int | None = None,
        size: int = 1,
    ) -> None:
        self.cost = cost
        self.joined_at = joined_at
        self.deadline = deadline
        self.priority = priority
        self.tenant = tenant
        self.size = size  # how much of the gate's time it takes, for fairness among tenants
        self.share = share  # the weight of its tenant
        self.state = WAITING
        self.generation: Any = None  # the ForkGeneration of the gate in which it joined
        self.flow: Flow | None = None
        self.mode = 0  # what the rules answered when it was granted ...
        self.granted_at = 0  # ... and when that was
        self.refusal: Exception | None = None  # why it was refused while it waited
        self.rule: str | None = None  # the rule that held the line when it was granted
        self.parker: Any = None  # where its waiter sleeps

    @property
    def unanswered(self) -> bool:
        """Whether its caller has neither got its permit nor an error."""
        return self.state in (WAITING, GRANTED) or self.refusal is not None


class Flow:
    """One tenant's tickets, in the order they came."""

    __slots__ = ("band", "correction", "entry", "finish", "gone", "load", "share", "start", "tickets")

    def __init__(self, band: Band) -> None:
        self.band = band
        self.load = dict.fromkeys(band.columns, 0)  # the sum of the costs of its tickets that wait
        self.tickets: deque[Ticket] = deque()
        self.gone = 0  # tickets that left and have not been swept out yet
        self.entry = 0  # the serial number of its entry in the band's order; 0: no ticket waits
        self.share = 1  # its weight, while a ticket waits
        self.start = 0  # the virtual time at which its first ticket is due
        self.finish = 0  # ... and at which what it was served will be paid off
        self.correction = 0  # what calls cost more than estimated, to be paid by the next

    def first(self) -> Ticket | None:
        tickets = self.tickets
        while tickets:
            if tickets[0].state == WAITING:
                return tickets[0]
            tickets.popleft()
            self.gone -= 1
        return None


class Band:
    """Tickets of one priority: start-time fair queueing by cost among tenants.

    A tenant's first ticket is due now, each further one when those before it are paid for at
    the tenant's share. A thousand tickets of one tenant are thus a thousand steps ahead of
    the first ticket of another. "Now" is a virtual time that passes with what is served, the
    slower the more tenants wait for it.
    """

    __slots__ = (
        "_clock",
        "_latest",
        "_order",
        "_serial",
        "_shares",
        "_waiting_flows",
        "columns",
        "flows",
        "load",
        "passed_over",
        "priority",
        "waiting",
    )

    def __init__(self, priority: int, columns: tuple[int, ...] = ()) -> None:
        self.priority = priority
        self.columns = columns  # of the costs that are summed up
        self.load = dict.fromkeys(columns, 0)
        self.waiting = 0
        self.passed_over = 0  # admissions of higher priorities since one of this was admitted
        self._clock = 0
        self._latest = 0  # the latest finish of all: the clock has no business beyond it
        self._serial = 0
        self.flows: dict[Hashable, Flow] = {}
        # Heap of flows by start. An entry whose serial number is not its flow's is void.
        self._order: list[tuple[int, int, Flow]] = []
        self._waiting_flows = 0
        self._shares = 0  # of those flows

    def join(self, ticket: Ticket) -> None:
        flow = self.flows.get(ticket.tenant)
        if flow is None:
            flow = self.flows[ticket.tenant] = Flow(self)
        if not flow.entry:
            due = self._clock
            if self.first() is not None:
                first = self._order[0][0]
                self._clock = max(self._clock, first)  # the first ticket stays first, whichever comes
                # A new tenant does not wait for more than its own part of what the others are due.
                due = min(self._clock, first + ticket.size * _FINE // ticket.share)
            flow.start = max(due, flow.finish)
            flow.share = ticket.share
            self._waiting_flows += 1
            self._shares += flow.share
            self._enlist(flow)
        flow.tickets.append(ticket)
        ticket.flow = flow
        self.waiting += 1
        if self.columns:
            self.sum_up(flow, ticket, 1)

    def first(self) -> Ticket | None:
        order = self._order
        while order:
            _, serial, flow = order[0]
            if flow.entry == serial:
                tickets = flow.tickets
                return tickets[0] if tickets[0].state == WAITING else flow.first()
            heappop(order)
        return None

    def admit(self, flow: Flow, ticket: Ticket) -> Ticket | None:
        """The first ticket has left its flow: when is its tenant due again? Returns the next ticket."""
        size = ticket.size * _FINE
        flow.finish = flow.start + max(0, size // ticket.share + flow.correction)
        flow.correction = 0
        self._latest = max(self._latest, flow.finish)
        self._clock = max(flow.start, min(self._clock + size // self._shares, self._latest))
        if flow.first() is not None:
            flow.start = flow.finish
            self._enlist(flow)
        else:
            self._delist(flow)
        return self.first()

    def leave(self, ticket: Ticket) -> None:
        flow = ticket.flow
        assert flow is not None
        self.waiting -= 1
        if self.columns:
            self.sum_up(flow, ticket, -1)
        flow.gone += 1
        if flow.first() is None:
            self._delist(flow)
            if flow.finish <= self._clock:
                self.flows.pop(ticket.tenant, None)
        elif flow.gone > 16 and 2 * flow.gone > len(flow.tickets):
            flow.tickets = deque(other for other in flow.tickets if other.state == WAITING)
            flow.gone = 0

    def tickets(self) -> Iterator[Ticket]:
        for flow in self.flows.values():
            yield from (ticket for ticket in flow.tickets if ticket.state == WAITING)

    def count(self, columns: tuple[int, ...]) -> None:
        """From now on sum up the costs in these columns of the tickets that wait."""
        self.columns = columns
        self.load = dict.fromkeys(columns, 0)
        for flow in self.flows.values():
            flow.load = dict.fromkeys(columns, 0)
            for ticket in flow.tickets:
                if ticket.state == WAITING:
                    self.sum_up(flow, ticket, 1)

    def sum_up(self, flow: Flow, ticket: Ticket, sign: int) -> None:
        """Count the cost of a ticket that joins, by 1, or that leaves, by -1."""
        for column in self.columns:
            units = ticket.cost[column] * sign
            self.load[column] += units
            flow.load[column] += units

    def flow_of(self, tenant: Hashable) -> Flow | None:
        """The flow of a tenant that has tickets waiting."""
        flow = self.flows.get(tenant)
        return flow if flow is not None and flow.entry else None

    def likely_ahead(self, ticket: Ticket) -> dict[int, int]:
        """About how many units of this band go before a new ticket like this one."""
        flow = self.flow_of(ticket.tenant)
        shares = self._shares if flow is not None else self._shares + ticket.share
        ahead = {}
        for column in self.columns:
            own = ticket.cost[column] + (0 if flow is None else flow.load[column])
            ahead[column] = min(self.load[column], own * shares // ticket.share - ticket.cost[column])
        return ahead

    def position(self, ticket: Ticket) -> int:
        """About which ticket of this band it is, by the shares of the tenants that wait."""
        flow = ticket.flow
        assert flow is not None
        own = len(flow.tickets) - flow.gone
        return min(self.waiting, -(-own * self._shares // flow.share))

    def _enlist(self, flow: Flow) -> None:
        self._serial += 1
        flow.entry = self._serial
        heappush(self._order, (flow.start, self._serial, flow))
        if len(self._order) > 2 * self._waiting_flows + 16:
            self._order = [entry for entry in self._order if entry[2].entry == entry[1]]
            heapify(self._order)

    def _delist(self, flow: Flow) -> None:
        flow.entry = 0
        self._waiting_flows -= 1
        self._shares -= flow.share
        if len(self.flows) > 2 * self._waiting_flows + 16:
            # A flow that waits for nothing and has paid for what it got is as good as new.
            self.flows = {
                tenant: flow for tenant, flow in self.flows.items() if flow.entry or flow.finish > self._clock
            }


class Line:
    """The tickets that wait at one gate."""

    __slots__ = ("_bands", "_counted", "_turn_taken", "waiting")

    def __init__(self) -> None:
        self._counted: tuple[int, ...] = ()  # the columns of costs that are summed up
        self._bands: list[Band] = []  # highest priority first
        self._turn_taken = False  # the last to go was of a lower priority: now the highest
        self.waiting = 0

    def join(self, ticket: Ticket) -> None:
        for band in self._bands:
            if band.priority == ticket.priority:
                break
        else:
            band = Band(ticket.priority, self._counted)
            insort(self._bands, band, key=lambda other: -other.priority)
        band.join(ticket)
        self.waiting += 1

    def first(self) -> Ticket | None:
        """The ticket that is next; None if none waits."""
        bands = self._bands
        if len(bands) == 1:
            return bands[0].first()
        band = self._next_band()
        return None if band is None else band.first()

    def admit(self, ticket: Ticket) -> Ticket | None:
        """The first ticket goes in. Returns the next one."""
        flow = ticket.flow
        assert flow is not None
        band, tickets = flow.band, flow.tickets
        self.waiting -= 1
        band.waiting -= 1
        tickets.popleft()
        if band.columns:
            band.sum_up(flow, ticket, -1)
        if len(band.flows) == 1 and band.waiting:
            # There is no other tenant to be fair to: its start stands for now.
            flow.correction = 0
            first: Ticket | None = tickets[0]
            if tickets[0].state != WAITING:
                first = flow.first()
        else:
            first = band.admit(flow, ticket)
        if len(self._bands) == 1 and first is not None:
            return first
        self._turn_taken = band is not self._bands[0]
        band.passed_over = 0
        for other in self._bands:
            if other.priority < band.priority:
                other.passed_over += 1
        if first is None:
            self._bands.remove(band)
        return self.first()

    def leave(self, ticket: Ticket) -> None:
        """The caller of a ticket gives up. The ticket must no longer be WAITING."""
        if ticket.flow is None:
            return  # it never got as far as standing in line
        band = ticket.flow.band
        self.waiting -= 1
        band.leave(ticket)
        if not band.waiting:
            self._bands.remove(band)

    def tickets(self) -> list[Ticket]:
        """All tickets that wait, in the order they came."""
        waiting = [ticket for band in self._bands for ticket in band.tickets()]
        waiting.sort(key=lambda ticket: ticket.joined_at)
        return waiting

    def costs(self, most: int) -> list[tuple[int, ...]]:
        """The costs of waiting tickets, at most `most` of each priority."""
        return [ticket.cost for band in self._bands for ticket in islice(band.tickets(), most)]

    def count(self, columns: tuple[int, ...]) -> None:
        """From now on sum up the costs in these columns of the tickets that wait."""
        if columns != self._counted:
            self._counted = columns
            for band in self._bands:
                band.count(columns)

    def flow_of(self, ticket: Ticket) -> Flow | None:
        """The waiting tickets behind which a new ticket like this one would stand; None if there is none."""
        for band in self._bands:
            if band.priority == ticket.priority:
                return band.flow_of(ticket.tenant)
        return None

    def likely_ahead(self, ticket: Ticket) -> dict[int, int]:
        """About how many units, by column that is summed up, go before a new ticket like this one.

        All of higher priorities, and of its own what is served until it is the turn of its tenant. A ticket
        that stands in line itself is left out.
        """
        ahead = dict.fromkeys(self._counted, 0)
        for band in self._bands:
            if band.priority >= ticket.priority:
                units = band.load if band.priority > ticket.priority else band.likely_ahead(ticket)
                for column in ahead:
                    ahead[column] += units[column]
        if ticket.flow is not None:
            for column in ahead:
                ahead[column] = max(0, ahead[column] - ticket.cost[column])
        return ahead

    def position(self, ticket: Ticket) -> int:
        """About how many tickets go before the last one that joined, and itself: 1 is next."""
        ahead = 0
        for band in self._bands:
            if band.priority == ticket.priority:
                return ahead + band.position(ticket)
            ahead += band.waiting
        return ahead + 1

    def waiting_by_priority(self) -> tuple[tuple[int, int], ...]:
        """Priorities and how many tickets of each wait, the highest first."""
        return tuple((band.priority, band.waiting) for band in self._bands)

    def mended(self) -> Line:
        """A new line with the same tickets, for when a change of this one was broken off half-way."""
        line = Line()
        for ticket in self.tickets():
            line.join(ticket)
        return line

    def _next_band(self) -> Band | None:
        if not self._bands:
            return None
        top, *lower = self._bands
        if lower and not self._turn_taken:
            # All may be due at once, and then take turns with the highest.
            turn = _TURN + 1 - 2 * len(lower) if len(lower) <= _TURN // 2 else 2 * len(lower)
            most = max(lower, key=lambda band: band.passed_over)  # of several, the highest
            if most.passed_over - top.passed_over >= turn:
                return most
        return top


def correct(ticket: Ticket, size: int) -> None:
    """The ticket's call turned out to take another size: its tenant pays the difference."""
    flow = ticket.flow
    if flow is not None:
        flow.correction += (size - ticket.size) * _FINE // ticket.share
