"""What the user writes: limits and delays as values, checked at the door.

Rules of this room: a wrong value raises at once, naming what was given, why it cannot work
and what to write instead. Seconds become integer nanoseconds here and nowhere else.
"""

from __future__ import annotations

from .errors import InvalidCapacity, InvalidConfig, InvalidLimit, InvalidWindow
from .frozen import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from datetime import timedelta
    from typing import TypeAlias

    Seconds: TypeAlias = float | timedelta
    Jitter: TypeAlias = str | tuple[str, float] | tuple[str, float, float]
    Rates: TypeAlias = "Rate | str | Iterable[Rate | str]"

SECOND = 1_000_000_000

# What a call costs travels as a tuple of integers, one column a unit. These three are
# always there; rates may count further units, which get columns behind them.
REQUESTS, TOKENS, BYTES = 0, 1, 2
COLUMNS = {"requests": REQUESTS, "tokens": TOKENS, "bytes": BYTES}

_PERIODS = {
    "ns": 1,
    "us": 1_000,
    "ms": 1_000_000,
    "s": SECOND,
    "sec": SECOND,
    "second": SECOND,
    "min": 60 * SECOND,
    "minute": 60 * SECOND,
    "h": 3600 * SECOND,
    "hour": 3600 * SECOND,
    "d": 86400 * SECOND,
    "day": 86400 * SECOND,
}
_PERIOD_NAMES = {_PERIODS[name]: name for name in ("ns", "us", "ms", "second", "minute", "hour", "day")}


def seconds_to_ns(value: Seconds, what: str, *, error: type[InvalidLimit] = InvalidWindow) -> int:
    """A stretch of time, zero or more, in nanoseconds. Accepts seconds and timedelta."""
    seconds = value.total_seconds() if hasattr(value, "total_seconds") else value
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise error(f"{what}={value!r} is not a time; write seconds, e.g. {what}=1.5, or a timedelta")
    if seconds != seconds or seconds in (float("inf"), float("-inf")):  # noqa: PLR0124 - the test for NaN
        raise error(f"{what}={value!r} would never end; write a finite number of seconds, e.g. {what}=60")
    if seconds < 0:
        raise error(f"{what}={value!r} is negative; write zero or more seconds, e.g. {what}=1.5")
    return seconds * SECOND if isinstance(seconds, int) else round(seconds * SECOND)


def positive_seconds_to_ns(value: Seconds, what: str) -> int:
    """A stretch of time that must last."""
    ns = seconds_to_ns(value, what)
    if ns == 0:
        raise InvalidWindow(f"{what}={value!r} lasts no time; write more than zero seconds, e.g. {what}=60")
    return ns


def positive_int(value: object, what: str, *, example: int) -> int:
    """A whole number of at least one: how many places, bytes or units there are."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidCapacity(f"{what}={value!r} is not a whole number; write e.g. {what}={example}")
    if value < 1:
        raise InvalidCapacity(
            f"{what}={value!r} would let nothing through; write at least 1, e.g. {what}={example}, "
            "or close() to stop everything"
        )
    return value


def amount(value: object, what: str) -> int:
    """What one call costs in one unit: a whole number, zero or more."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidCapacity(f"{what}={value!r} is not a whole number; write e.g. {what}=1200")
    if value < 0:
        raise InvalidCapacity(f"{what}={value!r} is negative; a call costs zero or more")
    return value


class Rate(Value):
    """So many units every *per* seconds, at most *burst* of them at once.

    >>> Rate(500, 60)
    Rate.parse('500 requests/minute burst 8')
    >>> Rate.parse("200_000 tokens/minute").burst
    3333

    The default burst is one second's worth, at least one unit: a burst of a whole minute
    would let twice the limit through in the first minute.

    `strict=True` means never more than *amount* in any stretch of *per* seconds whatever,
    which a bucket with a burst does not promise.
    """

    __slots__ = ("amount", "burst", "per_ns", "strict", "unit")
    amount: int
    burst: int
    per_ns: int
    strict: bool
    unit: str

    def __init__(
        self,
        amount: int,
        per: Seconds = 1.0,
        *,
        burst: int | None = None,
        unit: str = "requests",
        strict: bool = False,
    ) -> None:
        amount = positive_int(amount, "amount", example=500)
        per_ns = positive_seconds_to_ns(per, "per")
        if strict:
            if burst is not None:
                raise InvalidLimit(
                    f"burst={burst!r} and strict=True: a strict rate has no burst; leave out one"
                )
            burst = amount  # all of it may come at once, but nothing more in the same window
        elif burst is None:
            burst = max(1, amount * SECOND // per_ns)
        if not isinstance(unit, str) or not unit.replace("_", "").isalpha() or unit in _PERIODS:
            raise InvalidLimit(f'unit={unit!r} is not a unit; write one word, e.g. unit="tokens"')
        super().__init__(
            amount=amount,
            per_ns=per_ns,
            burst=positive_int(burst, "burst", example=20),
            unit=unit if unit.endswith("s") else unit + "s",
            strict=bool(strict),
        )

    @classmethod
    def parse(cls, text: str) -> Rate:
        """Read a rate the way people write it.

        >>> Rate.parse("100/s burst 20")
        Rate.parse('100 requests/second burst 20')
        >>> Rate.parse("5 per hour").per
        3600.0
        """
        return _parse_rate(text)

    @property
    def per(self) -> float:
        """The period in seconds."""
        return self.per_ns / SECOND

    @property
    def name(self) -> str:
        """Unit and period, e.g. `tokens/minute`: how snapshots and errors call this limit."""
        name = _PERIOD_NAMES.get(self.per_ns)
        if name is None:
            unit = next(unit for unit in ("s", "ms", "us", "ns") if self.per_ns % _PERIODS[unit] == 0)
            name = f"{self.per_ns // _PERIODS[unit]}{unit}"
        return f"{self.unit}/{name}"

    def __str__(self) -> str:
        return f"{self.amount} {self.name} " + ("strict" if self.strict else f"burst {self.burst}")

    def __repr__(self) -> str:
        return f"Rate.parse({str(self)!r})"

    def __reduce__(self) -> tuple[object, ...]:
        burst = None if self.strict else self.burst
        return _rate_again, (self.amount, self.per_ns, burst, self.unit, self.strict)


def _rate_again(amount: int, per_ns: int, burst: int | None, unit: str, strict: bool) -> Rate:
    rate = Rate(amount, 1, burst=burst, unit=unit, strict=strict)
    object.__setattr__(rate, "per_ns", per_ns)  # seconds as a float might not be exact
    return rate


_STRATEGIES = ("exponential", "linear", "constant")
_JITTERS = '"none", "full", "decorrelated", ("factor", 0.25), ("additive", 0.1) or ("range", 0.75, 1.0)'

# No wait is longer, whatever the arithmetic says: some 146 years.
_LONGEST_DELAY = 1 << 62


class Backoff(Value):
    """How long to wait before each retry: longer and longer, up to a cap, and not all at once.

    >>> backoff = Backoff(0.5, cap=10)
    >>> [backoff.delay(retry) for retry in range(6)]
    [0.5, 1.0, 2.0, 4.0, 8.0, 10.0]
    >>> Backoff(1, cap=60, jitter="full").delay(3, random=lambda: 0.25)
    2.0

    `strategy` is "exponential" (each wait `factor` times the last), "linear" or "constant".
    `jitter` is "none"; "full": anything from nothing to the whole wait; "decorrelated": anything from
    `base` to three times the last wait; ("factor", 0.25): from 75 % to all of it; ("additive", 0.1):
    from all of it to 110 %; or ("range", 0.5, 1.5). The cap is never exceeded, and waits that have
    reached it stay spread out. `cap=None` lets them grow.
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
        cap_ns = _LONGEST_DELAY if cap is None else min(seconds_to_ns(cap, "cap"), _LONGEST_DELAY)
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
            jitter=jitter if isinstance(jitter, str) or not _is_sequence(jitter) else tuple(jitter),
            strategy=strategy,
        )
        self._spread()  # is it possible?

    def delay(
        self, retry: int, *, previous: Seconds | None = None, random: Callable[[], float] | None = None
    ) -> float:
        """Seconds to wait before a retry, the first being number 0.

        `previous` is the wait before it, for decorrelated jitter; `random` draws from 0 to 1.
        Without it, the wait is the middle one.
        """
        amount(retry, "retry")
        before = None if previous is None else seconds_to_ns(previous, "previous")
        return self.delay_ns(retry, 0.5 if random is None else random(), before) / SECOND

    def delay_ns(self, retry: int, draw: float, previous: int | None) -> int:
        """The same in nanoseconds, for a draw from 0 to 1."""
        draw = within_bounds(draw)
        spread = self._spread()
        if spread is None:
            highest = min(self.cap_ns, 3 * max(previous or 0, self.base_ns))
            return self.base_ns + int((highest - self.base_ns) * draw)
        low, high = spread
        # Where jitter could lead beyond the cap, the whole of it is moved below.
        wait = min(self._unspread(retry), self.cap_ns, self.cap_ns / max(high, 1.0))
        return min(round(wait * (low + draw * (high - low))), self.cap_ns)

    def _unspread(self, retry: int) -> float:
        if self.strategy == "constant":
            return self.base_ns
        if self.strategy == "linear":
            return self.base_ns * (retry + 1)
        try:
            return self.base_ns * self.factor**retry
        except OverflowError:
            return self.cap_ns

    def _spread(self) -> tuple[float, float] | None:
        """The least and most of a wait that jitter makes of it; None: it depends on the last one."""
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
        cap = None if self.cap_ns == _LONGEST_DELAY else self.cap_ns / SECOND
        factor = "" if self.factor == 2 else f", factor={self.factor!r}"
        return (
            f"Backoff({self.base_ns / SECOND!r}, cap={cap}, strategy={self.strategy!r}{factor},"
            f" jitter={self.jitter!r})"
        )

    def __reduce__(self) -> tuple[object, ...]:
        return _backoff_again, (self._facts(),)


def within_bounds(draw: float) -> float:
    """What was drawn, from 0 to 1 whoever drew it."""
    if 0.0 <= draw <= 1.0:
        return draw
    return 1.0 if draw > 1.0 else 0.0


def _backoff_again(facts: tuple[int, int, float, Jitter, str]) -> Backoff:
    again = Backoff()
    for name, fact in zip(Backoff.__slots__, facts, strict=True):
        object.__setattr__(again, name, fact)
    return again


def _is_sequence(value: object) -> bool:
    return isinstance(value, (list, tuple))


def rate_of(rate: Rate, amount: int) -> Rate:
    """The same rate for another amount, with a burst that is the same part of it."""
    burst = None if rate.strict else max(1, rate.burst * amount // rate.amount)
    return _rate_again(amount, rate.per_ns, burst, rate.unit, rate.strict)


def share_of(rate: Rate, parts: int) -> Rate:
    """One of so many equal parts of a rate: as much, in so many times the time."""
    return _rate_again(rate.amount, rate.per_ns * parts, max(1, rate.burst // parts), rate.unit, strict=False)


def ratio(value: float, what: str, *, low: float, high: float, example: float) -> tuple[int, int]:
    """A factor strictly between two bounds, exactly, as a ratio of integers."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low < value < high:
        bounds = f"above {low:g}" if high == float("inf") else f"between {low:g} and {high:g}"
        raise InvalidConfig(f"{what}={value!r} is not a factor {bounds}; write e.g. {what}={example}")
    # As it was written, not as it is stored: 1.1 is eleven tenths.
    digits, _, decimals = f"{value:.9f}".rstrip("0").partition(".")
    return int(digits + decimals), 10 ** len(decimals)


def _parse_rate(text: str) -> Rate:
    if not isinstance(text, str):
        raise InvalidLimit(f'a rate is a Rate or a string, not {text!r}; write e.g. "500/minute"')

    def wrong(why: str) -> InvalidLimit:
        return InvalidLimit(
            f'rate {text!r}: {why}; write e.g. "500/minute", "100/s burst 20" or "200_000 tokens/minute"'
        )

    left, slash, right = text.replace(" per ", "/").partition("/")
    if not slash:
        raise wrong("it has no period")
    amount_text, _, unit = left.strip().partition(" ")
    words = right.split()
    if not words:
        raise wrong("it has no period")
    period = words.pop(0)
    if period.isascii() and period.isdigit() and words:  # "10 per 90 seconds"
        period += words.pop(0)
    burst = None
    strict = False
    while words:
        word = words.pop(0)
        if word == "strict" and not strict:
            strict = True
        elif word == "burst" and words and burst is None:
            burst = _parse_number(words.pop(0), "the burst", wrong)
        else:
            raise wrong(f"{word!r} is not understood")
    if strict and burst is not None:
        raise wrong("a strict rate has no burst")
    rate_amount = _parse_number(amount_text, "the amount", wrong)
    per_ns = _parse_period(period, wrong)
    try:
        rate = Rate(rate_amount, burst=1 if burst is None else burst, unit=unit.strip() or "requests")
    except InvalidLimit as error:
        raise wrong(str(error).partition(";")[0]) from None
    if burst is None and not strict:
        burst = max(1, rate_amount * SECOND // per_ns)
    return _rate_again(rate_amount, per_ns, burst, rate.unit, strict)


def _parse_number(text: str, what: str, wrong: _Complaint) -> int:
    digits = text.replace("_", "")
    if not (digits.isascii() and digits.isdigit()) or text.startswith("_") or text.endswith("_"):
        raise wrong(f"{what} {text!r} is not a whole number")
    return int(digits)


def _parse_period(text: str, wrong: _Complaint) -> int:
    name = text.lstrip("0123456789")
    count = int(text[: len(text) - len(name)] or 1)
    ns = _PERIODS.get(name) or _PERIODS.get(name.removesuffix("s"))
    if ns is None:
        from difflib import get_close_matches  # noqa: PLC0415 - only ever needed by a typo

        close = get_close_matches(name, [*_PERIODS, *(f"{word}s" for word in _PERIODS)], 1)
        hint = f", did you mean {close[0]!r}?" if close else ""
        raise wrong(f"{name!r} is not a period (ms, s, minute, hour, day){hint}")
    if count == 0:
        raise wrong("a period of zero lasts no time")
    return ns * count


if TYPE_CHECKING:
    _Complaint: TypeAlias = Callable[[str], InvalidLimit]


def read_rates(rates: Rates) -> tuple[Rate, ...]:
    """One rate or several, as values or strings."""
    if isinstance(rates, (str, Rate)):
        rates = (rates,)
    try:
        listed = tuple(rates)
    except TypeError:
        raise InvalidConfig(
            f'rates={rates!r} is neither a rate nor a list of rates; write e.g. rates=["500/minute"]'
        ) from None
    return tuple(rate if isinstance(rate, Rate) else Rate.parse(rate) for rate in listed)


def read_cost(
    columns: Mapping[str, int], bytes: int, tokens: int, cost: int | Mapping[str, int] | None
) -> tuple[int, ...]:
    """What a call costs, as one integer a column. A negative estimate of bytes counts as none."""
    if bytes.__class__ is not int:
        amount(bytes, "bytes")
    if tokens.__class__ is not int or tokens < 0:
        amount(tokens, "tokens")
    if cost is None:
        cost = 1
    elif not isinstance(cost, int) or isinstance(cost, bool):
        return _read_many(columns, bytes, tokens, cost)
    elif cost < 0:
        amount(cost, "cost")
    if bytes < 0:  # noqa: PLR1730 - calling max() would take longer than all of this
        bytes = 0  # noqa: A001
    if len(columns) == 3:
        return (cost, tokens, bytes)
    return (cost, tokens, bytes, *(0,) * (len(columns) - 3))


def _read_many(columns: Mapping[str, int], bytes: int, tokens: int, cost: object) -> tuple[int, ...]:
    if not hasattr(cost, "items"):
        raise InvalidCapacity(
            f'cost={cost!r} is neither a whole number nor units; write cost=2 or cost={{"images": 2}}'
        )
    row = [1, tokens, max(bytes, 0), *(0,) * (len(columns) - 3)]
    for unit, value in cost.items():
        if unit not in columns:
            raise InvalidLimit(
                f"cost={cost!r}: nothing here counts {unit!r}; the units are {', '.join(sorted(columns))}"
            )
        row[columns[unit]] = amount(value, f"cost[{unit!r}]")
    return tuple(row)
