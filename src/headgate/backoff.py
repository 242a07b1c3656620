"""Delays as a value: how long to wait before each retry."""

from __future__ import annotations

from .arguments import (
    LONGEST,
    SECOND,
    positive_seconds_to_ns,
    read_random,
    seconds_to_ns,
    shown,
    within_bounds,
)
from .errors import InvalidCapacity, InvalidConfig, InvalidWindow
from .frozen import Frozen
from .hints import Callable, Jitter, Seconds

_STRATEGIES = ("exponential", "linear", "constant")
_JITTERS = '"none", "full", "decorrelated", ("factor", 0.25), ("additive", 0.1) or ("range", 0.75, 1.0)'


class Backoff(Frozen):
    """Delays before retries: they grow up to a cap, and jitter spreads the retries of many callers.

    >>> backoff = Backoff(0.5, cap=10)
    >>> [backoff.delay(retry) for retry in range(6)]
    [0.5, 1.0, 2.0, 4.0, 8.0, 10.0]
    >>> Backoff(1, cap=60, jitter="full").delay(3, random=lambda: 0.25)
    2.0

    `base` is the first delay and `cap` the longest, in seconds or as timedeltas; with `cap=None` there is no
    cap. `strategy` is "exponential" (each delay `factor` times the last), "linear" or "constant". `jitter` is
    "none"; "full", from zero to the whole delay; "decorrelated", from `base` to three times the last delay;
    ("factor", 0.25), from 75 % to 100 % of it; ("additive", 0.1), from 100 % to 110 % of it; or ("range",
    0.5, 1.5). The cap is never exceeded, and delays that have reached it stay spread out.

    Raises InvalidWindow if `base` or `cap` is not a time or the cap is less than the base, and InvalidConfig
    for another strategy, factor or jitter.
    """

    __slots__ = ("base_ns", "cap_ns", "factor", "jitter", "strategy")
    base_ns: int
    cap_ns: int
    factor: float
    jitter: Jitter
    strategy: str

    def __init__(
        self,
        base: Seconds = 1.0,
        cap: Seconds | None = 10.0,
        *,
        strategy: str = "exponential",
        factor: float = 2.0,
        jitter: Jitter = "none",
    ) -> None:
        base_ns = positive_seconds_to_ns(base, "base")
        cap_ns = LONGEST if cap is None else seconds_to_ns(cap, "cap")
        if cap_ns < base_ns:
            raise InvalidWindow(
                f"cap={cap!r} is less than base={base!r}, the first wait; raise the cap or lower the base"
            )
        if strategy not in _STRATEGIES:
            raise InvalidConfig(f"strategy={strategy!r} is unknown; write one of {', '.join(_STRATEGIES)}")
        if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not 1 <= factor < float("inf"):
            raise InvalidConfig(
                f"factor={factor!r} would not make waits grow; write at least 1, e.g. factor=2.0"
            )
        super().__init__(
            base_ns=base_ns,
            cap_ns=cap_ns,
            factor=float(factor),
            jitter=tuple(jitter) if isinstance(jitter, list) else jitter,
            strategy=strategy,
        )
        self._jitter_range()  # raises if the jitter is unknown

    def delay(
        self, retry: int, *, previous: Seconds | None = None, random: Callable[[], float] | None = None
    ) -> float:
        """Seconds to wait before the given `retry`; the first is number 0.

        `previous` is the delay before it, for decorrelated jitter. `random` draws a number from 0 to 1;
        without it, the delay is the middle one. Raises InvalidCapacity if `retry` is not a whole
        number from 0, InvalidWindow if `previous` is not a time, and InvalidConfig if `random` cannot be
        called.

        >>> Backoff(1, jitter="full").delay(0)
        0.5
        """
        if isinstance(retry, bool) or not isinstance(retry, int) or retry < 0:
            raise InvalidCapacity(f"retry={shown(retry)} is not the number of a retry; the first is retry=0")
        if random is not None:
            read_random(random)
        before = None if previous is None else seconds_to_ns(previous, "previous")
        return self.delay_ns(retry, 0.5 if random is None else random(), before) / SECOND

    def delay_ns(self, retry: int, draw: float, previous: int | None) -> int:
        """Nanoseconds to wait before a retry, for a draw from 0 to 1."""
        draw = within_bounds(draw)
        factors = self._jitter_range()
        if factors is None:
            highest = min(self.cap_ns, 3 * max(previous or 0, self.base_ns))
            return self.base_ns + int((highest - self.base_ns) * draw)
        low, high = factors
        # If jitter could exceed the cap, its whole range is moved below the cap.
        delay = min(self._without_jitter(retry), self.cap_ns, self.cap_ns / max(high, 1.0))
        return min(round(delay * (low + draw * (high - low))), self.cap_ns)

    def _without_jitter(self, retry: int) -> float:
        if self.strategy == "constant":
            return self.base_ns
        if self.strategy == "linear":
            return self.base_ns * (retry + 1)
        try:
            return self.base_ns * self.factor**retry
        except OverflowError:
            return self.cap_ns

    def _jitter_range(self) -> tuple[float, float] | None:
        """The factors between which jitter changes a delay; None if it follows from the last delay."""
        match self.jitter:
            case "none":
                return 1.0, 1.0
            case "full":
                return 0.0, 1.0
            case "decorrelated":
                return None
            case ("factor", (int() | float()) as part) if 0 <= part <= 1:
                return 1.0 - part, 1.0
            case ("additive", (int() | float()) as part) if 0 <= part < float("inf"):
                return 1.0, 1.0 + part
            case ("range", (int() | float()) as low, (int() | float()) as high) if (
                0 <= low <= high < float("inf") and high > 0
            ):
                return float(low), float(high)
        raise InvalidConfig(f"jitter={self.jitter!r} is unknown; write {_JITTERS}")

    def __repr__(self) -> str:
        cap = None if self.cap_ns == LONGEST else self.cap_ns / SECOND
        factor = "" if self.factor == 2 else f", factor={self.factor!r}"
        return (
            f"Backoff({self.base_ns / SECOND!r}, cap={cap}, strategy={self.strategy!r}{factor},"
            f" jitter={self.jitter!r})"
        )

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuilt, (self._values(),)


def _rebuilt(facts: tuple[int, int, float, Jitter, str]) -> Backoff:
    again = Backoff()
    for name, fact in zip(Backoff.__slots__, facts, strict=True):
        object.__setattr__(again, name, fact)
    return again
