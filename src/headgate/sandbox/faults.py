"""Pure. Faults on request: what goes wrong, for which requests, when and how often.

A fault is a value that is checked when it is made. `now` and the random numbers that decide whether it
strikes are arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass

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


@dataclass(frozen=True, slots=True, repr=False)
class Fault:
    """One way to misbehave: `kind` is one of the kinds that the guide to the sandbox lists.

    >>> Fault("storm", duration=5, retry_after=2)
    Fault('storm', duration=5, retry_after=2)

    It strikes requests whose path contains `path`, for that `model` and `key` (None: any), with that
    `probability`, `count` times at most, from `after` seconds on and for `duration` seconds (None: until
    cleared).

    `retry_after` is the advice in the answer: seconds, None for no advice, or a text that goes into the
    header unchanged ("soon", "-5"). `status` (500, for a page 502), `at` ("before"), `seconds` (1) and
    `clean` belong to the kinds that use them. Raises InvalidConfig for what does not belong to the kind.
    """

    kind: str
    _: KW_ONLY
    path: str = ""
    model: str | None = None
    key: str | None = None
    probability: float = 1.0
    count: int | None = None
    duration: Seconds | None = None
    after: Seconds = 0.0
    retry_after: Seconds | str | None = None
    status: int | None = None
    at: str | None = None
    seconds: Seconds | None = None
    clean: bool = False

    def __post_init__(self) -> None:
        kind, probability, retry_after, status = self.kind, self.probability, self.retry_after, self.status
        if kind not in KINDS:
            raise InvalidConfig(f"fault {kind!r} is unknown; write one of {', '.join(KINDS)}")
        for name in ("retry_after", "status", "at", "seconds", "clean"):
            value = getattr(self, name)
            if value is not None and value is not False and name not in KINDS[kind]:
                takes = f"a fault of kind {kind!r}; it takes {', '.join(KINDS[kind]) or 'no details'}"
                raise InvalidConfig(f"{name}={value!r} means nothing to {takes}")
        for name in ("path", "model", "key"):
            text = getattr(self, name) or ""
            if not isinstance(text, str):
                raise InvalidConfig(f'{name}={text!r} is not text; write e.g. {name}="chat"')
        number = isinstance(probability, (int, float)) and not isinstance(probability, bool)
        if not number or not 0 < probability <= 1:
            raise InvalidConfig(f"probability={probability!r} is not above 0 and up to 1; write e.g. 0.1")
        if self.count is not None:
            positive_int(self.count, "count", example=3)
        if self.at not in (None, *_RESETS):
            raise InvalidConfig(f"at={self.at!r} is unknown; write one of {', '.join(_RESETS)}")
        whole = isinstance(status, int) and not isinstance(status, bool)
        if status is not None and (not whole or not 400 <= status <= 599):
            raise InvalidConfig(
                f"status={status!r} is not an error; write a status from 400 to 599, e.g. 500"
            )
        if isinstance(retry_after, str) and not (retry_after.isascii() and retry_after.isprintable()):
            why = "cannot stand in a header; write printable ASCII"
            raise InvalidConfig(f"retry_after={retry_after!r} {why}")
        if self.duration is not None:
            positive_seconds_to_ns(self.duration, "duration")
        usual = {"status": 502 if kind == "html" else 500, "at": "before", "seconds": 1.0}
        for name, value in usual.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        for name in ("duration", "after", "retry_after", "seconds"):  # a timedelta becomes seconds
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                object.__setattr__(self, name, seconds_to_ns(value, name) / 1e9)

    @property
    def pause(self) -> int:
        """How long nothing comes, in nanoseconds."""
        return seconds_to_ns(self.seconds or 0.0, "seconds")

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


class Planned:
    """A fault with its start, its end, and how often it may still strike."""

    def __init__(self, fault: Fault, now: int) -> None:
        self.fault = fault
        self._left = fault.count
        self._start = now + seconds_to_ns(fault.after, "after")
        self._end: int | None = None
        if fault.duration is not None:
            self._end = self._start + seconds_to_ns(fault.duration, "duration")

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
