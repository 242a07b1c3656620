"""Pure. Faults on request: what goes wrong, for which requests, when and how often.

A fault is a value that is checked when it is made. `now` and the random numbers that decide whether it
strikes are arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..arguments import positive_int, positive_seconds_to_ns, seconds_to_ns
from ..errors import InvalidConfig
from ..typing import Seconds

# Each kind of fault with the details that it takes.
KINDS = {
    "storm": ("retry_after",),  # 429, though the limits allow the request
    "quota": (),  # 429 insufficient_quota: waiting does not help
    "too_large": (),  # the request can never fit
    "overload": ("retry_after",),  # 503 slow_down, 529 overloaded_error
    "error": ("status", "retry_after"),  # any status from 400 up, 500 by default
    "html": ("status",),  # a proxy's error page
    "reset": ("at",),  # the connection, "before" the headers, after the "headers" or in the "body"
    "slow_headers": ("seconds",),
    "slow_body": ("seconds",),  # before each piece
    "stall": ("seconds",),  # once, half-way
    "truncate": ("clean",),  # the body ends half-way; clean: as if that were all
    "stream_error": (),  # an error event in a 200 stream, half-way
}
REFUSING = frozenset({"storm", "quota", "too_large", "overload", "error", "html"})
_RESETS = ("before", "headers", "body")


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Fault:
    """One way to misbehave.

    >>> Fault("storm", duration=5, retry_after=2)
    Fault('storm', duration=5, retry_after=2)

    It strikes requests whose path contains *path*, for that *model* and *key* (None: any), with that
    *probability*, *count* times at most, from *after* seconds on and for *duration* seconds (None: until
    cleared).

    *retry_after* is the advice in the answer: seconds, None for no advice, or a text that goes into the
    header unchanged ("soon", "-5"). *status*, *at*, *seconds* and *clean* belong to the kinds that use them.
    """

    after: float
    at: str
    clean: bool
    count: int | None
    duration: float | None
    key: str | None
    kind: str
    model: str | None
    path: str
    probability: float
    retry_after: float | str | None
    seconds: float
    status: int

    def __init__(
        self,
        kind: str,
        *,
        path: str = "",
        model: str | None = None,
        key: str | None = None,
        probability: float = 1.0,
        count: int | None = None,
        duration: Seconds | None = None,
        after: Seconds = 0.0,
        retry_after: Seconds | str | None = None,
        status: int | None = None,
        at: str | None = None,
        seconds: Seconds | None = None,
        clean: bool = False,
    ) -> None:
        if kind not in KINDS:
            raise InvalidConfig(f"fault {kind!r} is unknown; write one of {', '.join(KINDS)}")
        details = {"retry_after": retry_after, "status": status, "at": at, "seconds": seconds}
        for name, value in {**details, "clean": clean or None}.items():
            if value is not None and name not in KINDS[kind]:
                takes = f"a fault of kind {kind!r}; it takes {', '.join(KINDS[kind]) or 'no details'}"
                raise InvalidConfig(f"{name}={value!r} means nothing to {takes}")
        for name, text in (("path", path), ("model", model or ""), ("key", key or "")):
            if not isinstance(text, str):
                raise InvalidConfig(f'{name}={text!r} is not text; write e.g. {name}="chat"')
        number = isinstance(probability, (int, float)) and not isinstance(probability, bool)
        if not number or not 0 < probability <= 1:
            raise InvalidConfig(f"probability={probability!r} is not above 0 and up to 1; write e.g. 0.1")
        if count is not None:
            positive_int(count, "count", example=3)
        if at is not None and at not in _RESETS:
            raise InvalidConfig(f"at={at!r} is unknown; write one of {', '.join(_RESETS)}")
        facts = {
            "kind": kind,
            "path": path,
            "model": model,
            "key": key,
            "probability": float(probability),
            "count": count,
            "duration": None if duration is None else positive_seconds_to_ns(duration, "duration") / 1e9,
            "after": seconds_to_ns(after, "after") / 1e9,
            "retry_after": _advice(retry_after),
            "status": (502 if kind == "html" else 500) if status is None else _status(status),
            "at": at or "before",
            "seconds": seconds_to_ns(1.0 if seconds is None else seconds, "seconds") / 1e9,
            "clean": bool(clean),
        }
        for name, value in facts.items():
            object.__setattr__(self, name, value)

    def written(self) -> dict[str, object]:
        """The arguments that differ from the defaults."""
        plain = {"path": "", "probability": 1.0, "after": 0.0, "clean": False}
        names = ("path", "model", "key", "probability", "count", "duration", "after", *KINDS[self.kind])
        facts = {name: getattr(self, name) for name in names}
        return {name: fact for name, fact in facts.items() if fact != plain.get(name)}

    def __repr__(self) -> str:
        facts = (
            f"{name}={fact:g}" if isinstance(fact, float) else f"{name}={fact!r}"
            for name, fact in self.written().items()
        )
        return f"Fault({', '.join([repr(self.kind), *facts])})"


def _advice(retry_after: Seconds | str | None) -> float | str | None:
    if isinstance(retry_after, str):
        if not (retry_after.isascii() and retry_after.isprintable()):
            why = "cannot stand in a header; write printable ASCII"
            raise InvalidConfig(f"retry_after={retry_after!r} {why}")
        return retry_after
    return None if retry_after is None else seconds_to_ns(retry_after, "retry_after") / 1e9


def _status(status: int) -> int:
    if isinstance(status, bool) or not isinstance(status, int) or not 400 <= status <= 599:
        raise InvalidConfig(f"status={status!r} is not an error; write a status from 400 to 599, e.g. 500")
    return status


class Planned:
    """A fault with its start, its end, and how often it may still strike."""

    def __init__(self, fault: Fault, now: int) -> None:
        self.fault = fault
        self._left = fault.count
        self._start = now + round(fault.after * 1e9)
        self._end = None if fault.duration is None else self._start + round(fault.duration * 1e9)

    def is_over(self, now: int) -> bool:
        return self._left == 0 or (self._end is not None and now >= self._end)

    def strikes(self, path: str, model: str, key: str, now: int, random: Callable[[], float]) -> bool:
        """Does the fault strike this request? If so, that is counted."""
        fault = self.fault
        if (
            self.is_over(now)
            or now < self._start
            or fault.path not in path
            or fault.model not in (None, model)
            or fault.key not in (None, key)
            or (fault.probability < 1 and random() >= fault.probability)
        ):
            return False
        if self._left is not None:
            self._left -= 1
        return True
