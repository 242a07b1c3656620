"""Events as log lines. Those of `level` INFO and above go to the logger `headgate` without any set-up.

A line names the gate and says what happened; the same as fields is in `extra`. There are no bodies and no
API keys in them: a gate for each API key is named by a digest.
"""

from __future__ import annotations

import sys

from . import events
from .hints import Any, Callable, Hashable

# How far a rate must have moved since the last line about it, in percent, to be worth another one.
_WORTH_A_LINE = 10
_MOST_KEYS = 1_000
_told_rates: dict[Hashable, tuple[tuple[str, float], ...]] = {}


def log_by_default(event: events.Event) -> None:
    """Write the line of an event, if it matters to a person who runs a program."""
    # If `logging` is not loaded, no code has asked for such lines; warnings are shown anyway.
    if event.level < 30 and "logging" not in sys.modules:
        return
    import logging  # noqa: PLC0415 - importing it takes as long as importing headgate

    # Without `getLogger` and `isEnabledFor`: both take the lock of `logging`, which Ctrl-C in a bad moment
    # leaves locked. A line that no handler wants must not be able to stop a program.
    root = logging.root
    known = root.manager.loggerDict.get("headgate")
    wanted = (known if isinstance(known, logging.Logger) else root).getEffectiveLevel()
    if event.level < max(wanted, root.manager.disable + 1):
        return
    if not (isinstance(event, events.Retuned) and _is_small(event)):
        write(logging.getLogger("headgate"), event)


def write(logger: Any, event: events.Event) -> None:
    """Write the line of an event, with its fields."""
    if logger.isEnabledFor(event.level):
        logger.log(event.level, "%s", Line(event), extra=fields_of(event))


class Line:
    """The text of an event, made when a handler wants it."""

    __slots__ = ("_event",)

    def __init__(self, event: events.Event) -> None:
        self._event = event

    def __str__(self) -> str:
        say = _LINES.get(type(self._event))
        return repr(self._event) if say is None else f"{self._event.key!r}: {say(self._event)}"


def fields_of(event: events.Event) -> dict[str, Any]:
    """The fields of an event for `extra`, each name beginning with `headgate_`."""
    names = (name for kind in type(event).__mro__ for name in kind.__dict__.get("__slots__", ()))
    fields = {f"headgate_{name}": _plain(getattr(event, name)) for name in names}
    return {"headgate_event": type(event).__name__, **fields}


def _plain(value: object) -> object:
    if isinstance(value, BaseException):
        return type(value).__name__  # what it says may be from a body
    return value if isinstance(value, (str, int, float, dict, tuple, type(None))) else str(value)


def _is_small(event: events.Retuned) -> bool:
    """Whether rates that grow step by step have moved too little since the last line about them."""
    rates = tuple(map(_amount, event.rates))
    known = _told_rates.get(event.key)
    if known is not None and [unit for unit, _ in known] == [unit for unit, _ in rates]:
        moved = [
            abs(now - before) * 100 > before * _WORTH_A_LINE
            for (_, before), (_, now) in zip(known, rates, strict=True)
        ]
        if not any(moved):
            return True
    if known is None and len(_told_rates) >= _MOST_KEYS:
        _told_rates.clear()
    _told_rates[event.key] = rates
    return False


def _amount(rate: str) -> tuple[str, float]:
    amount, _, unit = rate.partition(" ")
    return unit.partition(" ")[0], float(amount.replace("_", "")) if amount.replace(
        "_", ""
    ).isdigit() else 0.0


def _seconds(seconds: float | None) -> str:
    return "until other calls end" if seconds is None else f"for about {seconds:.2f} s more"


def _whose(event: Any) -> str:
    if event.reason == "shared":
        return "told by another process that shares it"
    return f"because of {event.reason or 'a signal of this program'}, told by this process"


def _waiting(event: events.Waiting) -> str:
    wait = "" if event.estimate is None else f", about {event.estimate:.2f} s"
    return f"a caller waits for {event.rule}, number {event.position} in line{wait}"


_LINES: dict[type[events.Event], Callable[[Any], str]] = {
    events.Waiting: _waiting,
    events.LongWait: lambda e: (
        f"{e.waiting} wait; the one that came first has waited {e.waited:.1f} s and waits for {e.rule}, "
        f"as number {e.position} in line, {_seconds(e.estimate)}"
    ),
    events.Admitted: lambda e: "admitted" + (f" after {e.waited:.2f} s for {e.rule}" if e.rule else ""),
    events.Refused: lambda e: f"refused by {e.rule} after {e.waited:.2f} s: {e.error}",
    events.Cancelled: lambda e: f"cancelled after {e.waited:.2f} s in line for {e.rule}",
    events.Settled: lambda e: f"ended after {e.held:.2f} s, {e.actual}",
    events.ResponseObserved: lambda e: f"response {e.status}: {e.reason}",
    events.Retuned: lambda e: f"the rates are now {', '.join(e.rates) or 'none'}",
    events.CapacityReduced: lambda e: f"the API allows less: {e.reason}",
    events.CapacityChanged: lambda e: (
        f"the total of the swarm is now {e.total}, the share of this agent {e.share}"
    ),
    events.DuplicateAgent: lambda e: f"two agents of the swarm are called {e.agent_id!r}",
    events.BusLost: lambda _: "the bus of the swarm is lost",
    events.BusRegained: lambda _: "the bus of the swarm is back",
    events.WindowSet: lambda e: f"a backoff window started: {e.duration:.1f} s, {_whose(e)}",
    events.WindowExtended: lambda e: (
        f"the backoff window was extended: it ends in {e.duration:.1f} s, {_whose(e)}"
    ),
    events.WindowCleared: lambda e: f"the backoff window was cleared, {e.remaining:.1f} s before its end",
    events.WindowEnded: lambda _: "the backoff window ended",
    events.StoreAsked: lambda e: f"the {e.store} store was asked, {e.duration * 1e3:.1f} ms",
    events.StoreLost: lambda e: (
        f"the {e.store} store is lost ({e.reason}); this process goes on alone, as on_loss says"
    ),
    events.StoreRegained: lambda e: f"the {e.store} store is back",
    events.StoreForgot: lambda e: f"the {e.store} store has lost what it knew of earlier use",
    events.CircuitOpened: lambda e: f"the circuit opened for {e.duration:.1f} s: {e.reason}",
    events.CircuitProbing: lambda _: "a probe goes through the open circuit",
    events.CircuitClosed: lambda _: "the circuit closed",
}
