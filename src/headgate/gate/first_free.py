"""FirstFree: a call waits in the lines of several gates, and goes through the first of them that has room.

The call has a ticket in every line and sleeps at one parker. The first gate that grants its ticket wins: in
that moment the call leaves the other lines, so that no other gate grants it a place that it would have to
give back. Where two gates grant in the same moment, one of them gets its place back at once.
"""

from __future__ import annotations

from _thread import get_ident
from collections import deque
from types import TracebackType

from ..arguments import positive_int
from ..errors import Closed, InvalidConfig, Refused
from ..hints import Any, Hashable, Iterable, Mapping, Seconds, Sequence
from .admission import IN_USE, Admission, Permit
from .gate import Gate
from .line import GRANTED, WAITING, Ticket
from .pickling import only_here


class FirstFree:
    """Several `gates`, of which a call takes the first that has room: API keys, deployments, regions.

    >>> from headgate import Dispatch
    >>> keys = FirstFree([Dispatch("key 1", concurrency=1), Dispatch("key 2", concurrency=1)])
    >>> with keys.admit() as first, keys.admit() as second:
    ...     first.gate.key, second.gate.key
    ('key 1', 'key 2')

    If several have room, the first in the list is taken, or with `weights=[3, 1]` the first one three times
    as often as the second. If none has, the call waits in all lines, in each of them in its turn, and goes
    through the first gate that lets it; `permit.gate` is that gate. A gate whose backoff window is active
    holds only calls that no other gate takes.

    The gates stay what they are: others may wait at one of them alone. They need one clock. An adapter of
    `headgate.http` takes a FirstFree as its gate, with `choose=` for the credential or the base URL.

    Raises InvalidConfig if there is no gate, one that is not a Dispatch, or one twice, and InvalidCapacity
    for weights that are not whole numbers above 0.
    """

    __slots__ = ("__weakref__", "_credit", "_weights", "gates")

    __reduce__ = only_here()

    def __init__(self, gates: Iterable[Gate], *, weights: Sequence[int] | None = None) -> None:
        if not hasattr(gates, "__iter__") or isinstance(gates, type):
            raise InvalidConfig(f"{gates!r} is not a list of gates; write FirstFree([dispatch, another])")
        self.gates = tuple(gates)
        for gate in self.gates:
            if not isinstance(gate, Gate):
                raise InvalidConfig(f"{gate!r} is not a Dispatch; write FirstFree([dispatch, another])")
        if not self.gates:
            raise InvalidConfig("FirstFree([]) has no gate to wait at; give it one Dispatch or more")
        if len(set(map(id, self.gates))) < len(self.gates):
            raise InvalidConfig("FirstFree was given one gate twice; a call waits in each line once")
        if any(gate.clock is not self.gates[0].clock for gate in self.gates):
            raise InvalidConfig(
                "the gates of a FirstFree tell time by different clocks; give them one clock="
            )
        self._weights = None if weights is None else _read_weights(weights, len(self.gates))
        self._credit = [0] * len(self.gates)
        for gate in self.gates:
            gate.callers.may_go_elsewhere = True

    def admit(
        self,
        *,
        bytes: int = 0,
        tokens: int = 0,
        cost: int | Mapping[str, int] | None = None,
        timeout: Seconds | None = None,
        priority: int = 0,
        tenant: Hashable = None,
    ) -> FirstFreeAdmission:
        """Wait for a place at any gate: `with keys.admit(...) as permit`, or `async with`.

        `bytes`, `tokens`, `cost`, `timeout`, `priority` and `tenant` are those of `Dispatch.admit`, and so
        are the exceptions. A gate that refuses (closed, line full, cost too large) is passed over. If all
        refuse, the refusal is raised that is worth another try soonest.

        >>> from headgate import Dispatch
        >>> keys = FirstFree([Dispatch("key 1"), Dispatch("key 2")])
        >>> with keys.admit(tokens=1200, timeout=5) as permit:
        ...     permit.gate.key
        'key 1'
        """
        return self.among(
            [
                gate.admit(
                    bytes=bytes, tokens=tokens, cost=cost, timeout=timeout, priority=priority, tenant=tenant
                )
                for gate in self.gates
            ]
        )

    def among(self, admissions: Sequence[Admission]) -> FirstFreeAdmission:
        """Wait for one of these, one for each gate in its order, e.g. with another cost at each."""
        return FirstFreeAdmission(self, admissions)

    def try_admit(
        self,
        *,
        bytes: int = 0,
        tokens: int = 0,
        cost: int | Mapping[str, int] | None = None,
        priority: int = 0,
        tenant: Hashable = None,
    ) -> Permit | None:
        """A permit of the first gate that has a place right now, else None. Never waits.

        `bytes`, `tokens`, `cost`, `priority` and `tenant` are those of `Dispatch.admit`. A gate that refuses
        for good is passed over; if all do, the refusal of the last one is raised.

        >>> from headgate import Dispatch
        >>> keys = FirstFree([Dispatch("key 1", concurrency=1), Dispatch("key 2", concurrency=1)])
        >>> permits = [keys.try_admit() for _ in range(3)]
        >>> permits[1].gate.key, permits[2]
        ('key 2', None)
        >>> for permit in permits[:2]:
        ...     permit.settle()
        """
        refusal, tried = None, 0
        for index in self.order():
            try:
                permit = self.gates[index].try_admit(
                    bytes=bytes, tokens=tokens, cost=cost, priority=priority, tenant=tenant
                )
            except Refused as error:
                refusal = error
                continue
            if permit is not None:
                self.took(index)
                return permit
            tried += 1
        if refusal is not None and not tried:
            raise refusal
        return None

    def order(self) -> Iterable[int]:
        """In which order the gates are asked now, by their places in the list."""
        weights, credit = self._weights, self._credit
        if weights is None:
            return range(len(self.gates))
        return sorted(range(len(weights)), key=lambda index: -credit[index] - weights[index])

    def took(self, index: int) -> None:
        """A call goes through this gate: by weights, the others are nearer to their turn."""
        weights, credit = self._weights, self._credit
        if weights is None:
            return
        # Threads write without a lock: a step that is lost changes which gate is asked first, once. A gate
        # that had no room for a long time does not get all calls when it has room again.
        most = sum(weights)
        credit[index] -= most
        for each, weight in enumerate(weights):
            credit[each] = max(-most, min(most, credit[each] + weight))

    def __repr__(self) -> str:
        return f"<FirstFree of {', '.join(repr(gate.key) for gate in self.gates)}>"


def _read_weights(weights: Sequence[int], gates: int) -> tuple[int, ...]:
    if not hasattr(weights, "__iter__") or isinstance(weights, type):
        raise InvalidConfig(f"weights={weights!r} is not a list; write one for each gate, e.g. [3, 1]")
    read = tuple(positive_int(weight, "weights", example=3) for weight in weights)
    if len(read) != gates:
        raise InvalidConfig(f"weights={weights!r} are {len(read)} for {gates} gates; write one for each")
    return read


class FirstFreeAdmission:
    """What `FirstFree.admit()` returns: enter it with `with` in a thread, with `async with` in a task."""

    __slots__ = ("_admissions", "_gates", "_permit", "_wait")

    __reduce__ = only_here("admit in the process that makes the call")

    def __init__(self, gates: FirstFree, admissions: Sequence[Admission]) -> None:
        self._gates = gates
        self._admissions = admissions
        self._permit: Permit | None = None
        self._wait: _Wait | None = None

    def __enter__(self) -> Permit:
        permit = self.enter()
        self._permit = permit
        return permit

    async def __aenter__(self) -> Permit:
        permit = await self.enter_async()
        self._permit = permit
        return permit

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        permit, self._permit = self._permit, None
        if permit is not None:
            permit.__exit__(kind, error, tb)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, tb)

    def enter(self) -> Permit:
        """Wait for a place without a block: the caller settles the permit that this returns."""
        permit = self._take()
        if permit is None:
            wait = self._wait = _Wait(self._gates)
            wait.parker = self._admissions[0].gate.clock.thread_parker(_ring, wait)
            try:
                wait.join(self._admissions)
                wait.check_may_block()
                if not wait.over():
                    wait.parker.park()
                permit = wait.claim()
            except BaseException as error:
                wait.abandon(error)
                raise
            finally:
                wait.end()
        return permit

    async def enter_async(self) -> Permit:
        """Wait for a place in a task, without a block: the caller settles the permit that this returns."""
        permit = self._take()
        if permit is None:
            wait = self._wait = _Wait(self._gates)
            wait.parker = self._admissions[0].gate.clock.loop_parker(_ring, wait)
            try:
                wait.join(self._admissions)
                if not wait.over():
                    await wait.parker
                permit = wait.claim()
            except BaseException as error:
                wait.abandon(error)
                raise
            finally:
                wait.end()
        return permit

    def _take(self) -> Permit | None:
        """A permit of the first gate that has room now."""
        if self._permit is not None or (self._wait is not None and not self._wait.ended):
            raise RuntimeError(IN_USE)
        gates = self._gates
        for index in gates.order():
            admission = self._admissions[index]
            permit = admission.gate.take(admission.price, admission.tenant)
            if permit is not None:
                gates.took(index)
                return permit
        return None


class _Wait:
    """One call that stands in several lines."""

    __slots__ = ("_gates", "_refusals", "_winner", "ended", "joined", "parker", "places")

    def __init__(self, gates: FirstFree) -> None:
        self.parker: Any = None
        self.places: list[_Place] = []
        self.joined = False
        self.ended = False
        self._gates = gates
        self._refusals: list[Refused] = []
        self._winner: dict[str, Any] = {}

    def join(self, admissions: Sequence[Admission]) -> None:
        """Stand in the line of every gate that does not refuse, unless one of them grants meanwhile."""
        for index in self._gates.order():
            admission = admissions[index]
            gate = admission.gate
            ticket = gate.ticket(admission.price, admission.priority, admission.tenant)
            ticket.parker = place = _Place(self, gate, ticket, index)
            self.places.append(place)  # before it joins: an interrupt finds it
            try:
                gate.join(ticket, admission.timeout)
            except Refused as refusal:
                self.places.remove(place)
                self._refusals.append(refusal)
            if self._winner:
                break
        self.joined = True

    def over(self) -> bool:
        """Whether no line can grant anything any more: one has granted, or all have refused."""
        return bool(self._winner) or not any(place.ticket.state == WAITING for place in self.places)

    def wins(self, place: _Place) -> bool:
        """Whether this place was granted first. In one step, and the same however often it is asked."""
        return self._winner.setdefault("place", place) is place

    def check_may_block(self) -> None:
        """Raise if this thread runs an event loop, unless the wait at some gate ends by itself."""
        refused: RuntimeError | None = None
        for place in self.places:
            if place.ticket.state != WAITING:
                return
            try:
                place.gate.check_may_block()
            except RuntimeError as error:
                refused = error
            else:
                return
        if refused is not None:
            raise refused

    def claim(self) -> Permit:
        """The permit of the gate that granted first; or raise the refusal that says to come back soonest."""
        winner: _Place | None = self._winner.get("place")
        if winner is not None:
            permit = winner.gate.claim(winner.ticket)
            self._gates.took(winner.index)
            return permit
        refused: list[tuple[Any, _Place | None]] = [(refusal, None) for refusal in self._refusals]
        refused += [(place.ticket.refusal, place) for place in self.places]
        refusal, place = min(refused, key=_rank)
        self._refusals.clear()
        refused.clear()
        if place is not None:
            del refusal
            return place.gate.claim(place.ticket)  # which raises it
        try:
            raise refusal
        finally:
            del refusal  # an error refers to this frame: leave no reference cycle

    def abandon(self, error: BaseException) -> None:
        """The caller was refused or cancelled: leave every line; a gate that has not refused tells of it."""
        for place in self.places:
            if place.ticket.state in (WAITING, GRANTED):
                place.gate.abandon(place.ticket, error)

    def end(self) -> None:
        """The caller waits no more: leave every line. What was claimed stays claimed."""
        self.ended = True
        try:
            for place in self.places:
                if place.ticket.state in (WAITING, GRANTED):
                    place.gate.give_back(place.ticket)
        finally:
            self.parker.retire()
            self.places, self._winner = [], _OVER  # leave no circle for the collector


def _rank(refused: tuple[Any, object]) -> tuple[bool, float]:
    """The less, the sooner it is worth another try; a closed gate is worth none."""
    refusal = refused[0]
    return isinstance(refusal, Closed), float("inf") if refusal.retry_after is None else refusal.retry_after


# The winner of a wait that is over: no place that is granted from now on wins.
_OVER: dict[str, Any] = {"place": None}


def _ring(wait: _Wait) -> None:
    """The alarm of a caller: time to look again at every gate."""
    for place in wait.places:
        if place.ticket.state == WAITING:
            place.gate.ring(place.ticket)


class _Place:
    """Stands as the parker of one ticket; the caller sleeps at the parker of its wait."""

    __slots__ = ("_wait", "gate", "index", "ticket")
    wakeups = None  # its caller is woken by `wake`, not together with others

    def __init__(self, wait: _Wait, gate: Gate, ticket: Ticket, index: int) -> None:
        self._wait = wait
        self.gate = gate
        self.ticket = ticket
        self.index = index

    @property
    def world(self) -> Any:
        return self._wait.parker.world

    def wake(self) -> bool:
        wait = self._wait
        if self.ticket.state == GRANTED:
            if not wait.wins(self):
                _give_back([self])
                return True
            _give_back([place for place in wait.places if place is not self])
        elif not (wait.joined and wait.over()):
            return True  # this gate has refused, and the caller waits at others
        woken: bool = wait.parker.wake()
        return woken

    def alarm(self, at: int) -> bool:
        rings: bool = self._wait.parker.alarm(at)
        return rings

    def retire(self) -> None:
        """The parker is retired by the wait."""


# The places that a thread is giving back, by its identity. To give one back may grant a place at that gate,
# whose caller leaves other lines, and so on: all of them one after the other, not each inside the one before.
_leaving: dict[int, deque[_Place]] = {}


def _give_back(places: list[_Place]) -> None:
    me = get_ident()
    queue = _leaving.get(me)
    if queue is not None:
        queue.extend(places)
        return
    queue = _leaving[me] = deque(places)
    try:
        while queue:
            place = queue.popleft()
            place.gate.give_back(place.ticket)
    finally:
        del _leaving[me]  # after an interrupt, the callers themselves give back what is left
