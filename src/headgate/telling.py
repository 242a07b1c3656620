"""How observers are told: one, several, and those of everything; never under a lock or from a finalizer."""

from __future__ import annotations

from .hints import Any, Callable, Hashable, Iterable, Observer, later

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .events import Event
else:
    Event = later("headgate.events", "Event")


class CallMeter:
    """Counts the calls of one gate. It is told by plain values, which is quicker than to make an event."""

    __slots__ = ()

    def admitted(self, waited: int, rule: str | None, tenant: Hashable) -> None:
        """A call was admitted after `waited` nanoseconds: in place of `Admitted`."""
        raise NotImplementedError

    def settled(
        self, held: int, units: Iterable[str], cost: tuple[int, ...], actual: tuple[int, ...]
    ) -> None:
        """A call ended after `held` nanoseconds: in place of `Settled`."""
        raise NotImplementedError


class Meter:
    """An observer that has a `CallMeter` for every gate, and is told of all else by events."""

    __slots__ = ()

    def __call__(self, event: Event) -> None:
        """Something other than an admitted or settled call."""
        raise NotImplementedError

    def of_gate(self, key: Hashable) -> CallMeter:
        """The meter of the gates that have this key."""
        raise NotImplementedError


class Observers:
    """Several observers as one."""

    __slots__ = ("each",)

    def __init__(self, each: tuple[Observer, ...]) -> None:
        self.each = each

    def __call__(self, event: Event) -> None:
        call(self, event)

    def __repr__(self) -> str:
        return f"<Observers {', '.join(map(repr, self.each))}>"


_everywhere: tuple[Observer, ...] = ()


def everywhere() -> tuple[Observer, ...]:
    """The observers of everything, as given to `headgate.observe_all`."""
    return _everywhere


def set_everywhere(observers: tuple[Observer, ...]) -> None:
    """Have these told of everything."""
    global _everywhere  # noqa: PLW0603 - one for the whole process, read without a lock
    _everywhere = observers


def each_of(*observers: Observer | None) -> tuple[Observer, ...]:
    """All of these observers, each once; those of an `Observers` one by one."""
    found: list[Observer] = []
    for observer in observers:
        for one in observer.each if isinstance(observer, Observers) else (observer,):
            if one is not None and one not in found:
                found.append(one)
    return tuple(found)


def together(*observers: Observer | None) -> Observer | None:
    """One observer that tells each of these once; None if there is none."""
    each = each_of(*observers)
    return Observers(each) if len(each) > 1 else each[0] if each else None


def tell(observer: Callable[[Any], object] | None, event: Event) -> None:
    """Tell an event to the observer, if there is one, to the observers of everything, and to the log."""
    if event.level > 10:  # more than DEBUG
        from .event_log import log_by_default  # noqa: PLC0415 - it imports the events, which are loaded by now

        log_by_default(event)
    if observer is not None or _everywhere:
        call(together(observer, *_everywhere), event)


def call(observer: Observer | None, event: Event) -> None:
    """Call the observer, if there is one, with the event. An error that it raises is logged."""
    for one in observer.each if isinstance(observer, Observers) else (observer,):
        if one is not None:
            try:
                one(event)
            except Exception:  # noqa: BLE001 - an observer changes nothing
                log_failure(one, repr(event))


def log_failure(observer: object, of: str) -> None:
    """Log the exception that is being handled: an observer raised it."""
    import logging  # noqa: PLC0415 - importing it takes as long as importing headgate

    log = logging.getLogger("headgate")
    log.exception("the observer %r raised on %s", observer, of)  # noqa: LOG004 - called by a handler
