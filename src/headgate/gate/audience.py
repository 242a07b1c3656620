"""Audience: the observers of one gate, what they are told, and what finalizers left for later.

Observers are called at the end of a public call, never under a lock and never from a finalizer. What happens
under a lock or in a finalizer is left here, and the end of the next public call tells it.
"""

from __future__ import annotations

from .. import telling
from ..hints import Any, Callable, Hashable, Iterable, Observer, later
from ..light import LazyModule, deque
from . import reports
from .admission import Permit
from .line import Ticket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .. import events
    from ..limits import Rate
else:
    events = LazyModule("headgate.events")
    Rate = later("headgate.limits", "Rate")


class Audience:
    """The observers of one gate: the one that was given to it, and those of everything."""

    __slots__ = ("_given", "_key", "_meters", "_warned", "left", "listeners", "observer", "silent")

    def __init__(self, key: Hashable, given: Observer | None, *, silent: bool = False) -> None:
        """`silent`: nothing is told, for the gate is inside an object that tells observers by itself."""
        self._key = key
        self._given = given
        self._meters: tuple[telling.CallMeter, ...] = ()
        self._warned = False  # of a settled cost that is too large to be true
        self.silent = silent
        self.observer: Observer | None = None  # all of them as one
        self.listeners: Observer | None = None  # those that are told of each call by an event
        self.left: deque[Callable[[], object]] = deque()  # what is to be told by the next public call

    def gather(self) -> None:
        """Find the observers again. Not under a lock: it calls them, and may load modules."""
        heard: object = None
        while heard is not telling.everywhere():  # until those of everything stay the same meanwhile
            heard = telling.everywhere()
            given = () if self.silent else telling.each_of(self._given, *telling.everywhere())
            # Of every call, meters are told by plain values, which takes less time than to make an event.
            self._meters = tuple(one.of_gate(self._key) for one in given if isinstance(one, telling.Meter))
            listeners = telling.together(*(one for one in given if not isinstance(one, telling.Meter)))
            if listeners is not None:
                reports.load_events()  # now, because some are made under the lock
            self.listeners = listeners
            self.observer = telling.together(*given)

    def dismiss(self) -> None:
        """Tell nothing from now on."""
        self.silent = True
        self._given = self.observer = self.listeners = None
        self._meters = ()

    # -- what happened

    def admitted(self, permit: Permit, rule: str | None, tenant: Hashable) -> None:
        """A call may go."""
        for meter in self._meters:
            try:
                meter.admitted(0 if rule is None else permit.wait_ns, rule, tenant)
            except Exception:  # noqa: BLE001 - as `telling.call`
                telling.log_failure(meter, "an admitted call")
        if self.listeners is not None:
            telling.call(self.listeners, reports.admitted(self._key, permit, rule, tenant))

    def waits(self, event: events.Waiting) -> None:
        """A caller stands in line. The event was made under the lock, where the line stood still."""
        telling.call(self.listeners, event)

    def refused(self, ticket: Ticket, error: Exception, now: int) -> None:
        """A caller gets an error."""
        telling.tell(self.observer, reports.refused(self._key, ticket, error, now))

    def cancelled(self, ticket: Ticket, now: int) -> None:
        """A caller has gone while it waited."""
        telling.tell(self.observer, reports.cancelled(self._key, ticket, now))

    def settled(self, permit: Permit, actual: tuple[int, ...] | None, units: Iterable[str], now: int) -> None:
        """A call is over."""
        cost = permit.cost
        for meter in self._meters:
            try:
                meter.settled(now - permit.taken_at, units, cost, actual or cost)
            except Exception:  # noqa: BLE001 - as `telling.call`
                telling.log_failure(meter, "a settled call")
        if self.listeners is not None:
            telling.call(self.listeners, reports.settled(self._key, units, permit, actual, now))

    def retuned(self, rates: tuple[Rate, ...], now: int) -> None:
        """The rates in force are others now."""
        if not self.silent:
            names = tuple(str(rate) for rate in rates)
            telling.tell(self.observer, events.Retuned(key=self._key, at=now / 1e9, rates=names))

    # -- what is left for the next public call

    def leave_dropped(self) -> None:
        """A finalizer found a permit that was never settled."""
        self.left.append(lambda: reports.warn_of_dropped_permit(self._key))

    def leave_debt(self, units: Iterable[str], actual: tuple[int, ...], charged: tuple[int, ...]) -> None:
        """A call was settled with a cost that is too large to be true. Left once for each gate."""
        if not self._warned:
            self._warned = True
            self.left.append(lambda: reports.warn_of_debt(self._key, units, actual, charged))

    def tell_left(self) -> None:
        """Tell what was left. Not under a lock, and not from a finalizer."""
        while self.left:
            try:
                tell: Callable[[], Any] = self.left.popleft()
            except IndexError:
                break  # another thread was quicker
            tell()
