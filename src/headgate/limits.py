"""Rate: a limit as a value, the grammar it is written in, and the cost of a call by unit."""

from __future__ import annotations

from .arguments import LONGEST, SECOND, amount, positive_int, positive_seconds_to_ns, yes_or_no
from .errors import InvalidCapacity, InvalidConfig, InvalidLimit
from .frozen import Frozen
from .hints import Callable, Iterable, Mapping, Rates, Seconds, Sequence

# The cost of a call is a tuple of integers, one column for each unit. These three columns are always there;
# rates that count further units add columns behind them.
REQUESTS, TOKENS, BYTES = 0, 1, 2


class Columns(dict[str, int]):
    """The column of each unit, and `unstated`: the units of configured rates that no call has stated yet.

    The cost in a unit of the user's own is stated in `cost` and nowhere else. Until a call has done that, the
    unit may be a misspelling and its rate limit nothing, so a call without a `cost` by unit is an error.
    """

    __slots__ = ("stated", "unstated")
    stated: set[str]
    unstated: tuple[str, ...]

    def __init__(self, columns: Mapping[str, int]) -> None:
        super().__init__(columns)
        self.stated = getattr(columns, "stated", set())  # shared with the columns that these are made from
        self.unstated = getattr(columns, "unstated", ())

    def require(self, units: Iterable[str]) -> None:
        """These units are counted now: calls have to state those that none has stated yet."""
        self.unstated = tuple({unit: None for unit in units if unit not in self.stated})


COLUMNS: Mapping[str, int] = {"requests": REQUESTS, "tokens": TOKENS, "bytes": BYTES}
UNSTATED: tuple[int, ...] = ()  # the cost of a call that states nothing where it has to

# What people write for these units, besides the singular.
_SYNONYMS = {"req": "requests", "reqs": "requests", "call": "requests", "calls": "requests"}
_SYNONYMS |= {"tok": "tokens", "toks": "tokens"}
# The units that calls and HTTP adapters spend by themselves: one that is nearly the same is a misspelling.
_USUAL = (*COLUMNS, "input_tokens", "output_tokens")

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
_LONGEST_DEBT = 600 * SECOND
_accepted: set[str] = set()  # units of the user's own that are not misspellings

# Words that are unit and period in one: rps, rpm, rph, rpd, tps, tpm, tph, tpd.
_UNIT_AND_PERIOD = {
    f"{unit[0]}p{period[0]}": (unit, period)
    for unit in ("requests", "tokens")
    for period in ("second", "minute", "hour", "day")
}
_PERIOD_NAMES = {_PERIODS[name]: name for name in ("ns", "us", "ms", "second", "minute", "hour", "day")}


class Rate(Frozen):
    """At most `amount` units every `per` seconds, and at most `burst` of them at once.

    >>> Rate(500, 60)
    Rate.parse('500 requests/minute burst 8')
    >>> Rate.parse("200_000 tokens/minute").burst
    3333

    `unit` is what is counted: "requests", "tokens", "bytes" or one word of your own. The default burst is
    what the rate allows in one second, at least one unit: a burst of a whole minute would let twice the limit
    through in the first minute.

    `strict=True` means never more than `amount` in any window of `per` seconds, wherever it begins. A
    bucket with a burst does not promise that.

    `burst_given` says whether the burst was written. Where it was not, a gate may learn from responses that
    the API allows more at once.

    Raises InvalidCapacity if `amount` or `burst` is not a whole number above 0, InvalidWindow if `per` is not
    a time, and InvalidLimit for another unit or for a strict rate with a burst.
    """

    __slots__ = ("amount", "burst", "burst_given", "per_ns", "strict", "unit")
    amount: int
    burst: int
    burst_given: bool
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
        if yes_or_no(strict, "strict"):
            if burst is not None:
                raise InvalidLimit(
                    f"burst={burst!r} and strict=True: a strict rate has no burst; leave out one"
                )
            burst = amount  # all units may be taken at once, but no more in the same window
        given = burst is not None
        if burst is None:
            burst = max(1, amount * SECOND // per_ns)
        unit = _read_unit(unit, per_ns)
        super().__init__(
            amount=amount,
            per_ns=per_ns,
            burst=positive_int(burst, "burst", example=20),
            burst_given=given,
            unit=unit,
            strict=strict,
        )

    @classmethod
    def parse(cls, text: str) -> Rate:
        """Read a rate from `text`, e.g. "500/minute", "200_000 tokens/minute burst 3000" or "10/s strict".

        Raises InvalidLimit, with an example, if it cannot be read.

        >>> Rate.parse("100/s burst 20")
        Rate.parse('100 requests/second burst 20')
        >>> Rate.parse("5 per hour").per
        3600.0
        """
        return _parse_rate(text)

    @classmethod
    def of_ns(
        cls, amount: int, per_ns: int, burst: int | None, unit: str = "requests", strict: bool = False
    ) -> Rate:
        """A rate whose period is given in nanoseconds: seconds as a float might not be exact."""
        usual = None if burst is not None or strict else max(1, amount * SECOND // per_ns)
        rate = cls(amount, 1, burst=burst if usual is None else usual, unit=unit, strict=strict)
        object.__setattr__(rate, "per_ns", per_ns)
        object.__setattr__(rate, "burst_given", usual is None)
        return rate

    @property
    def per(self) -> float:
        """The period of the rate in seconds."""
        return self.per_ns / SECOND

    @property
    def most_debt(self) -> int:
        """How many units more than its estimate one call is charged at most, whatever it says that it used.

        What the rate allows in one period, at once, or in ten minutes, whichever is most: one absurd figure
        does not close a gate for longer, and a large call is still paid in full.
        """
        return max(self.amount, self.burst, self.amount * _LONGEST_DEBT // self.per_ns)

    @property
    def name(self) -> str:
        """Unit and period, e.g. `tokens/minute`: the name of this limit in snapshots and errors."""
        name = _PERIOD_NAMES.get(self.per_ns)
        if name is None:
            unit = next(unit for unit in ("s", "ms", "us", "ns") if self.per_ns % _PERIODS[unit] == 0)
            name = f"{self.per_ns // _PERIODS[unit]}{unit}"
        return f"{self.unit}/{name}"

    def __str__(self) -> str:
        return f"{self.amount} {self.name} " + ("strict" if self.strict else f"burst {self.burst}")

    def __repr__(self) -> str:
        return f"Rate.parse({str(self)!r})"

    def _values(self) -> tuple[object, ...]:  # rates that allow the same are equal
        return self.amount, self.burst, self.per_ns, self.strict, self.unit

    def __reduce__(self) -> tuple[object, ...]:
        burst = None if self.strict or not self.burst_given else self.burst
        return Rate.of_ns, (self.amount, self.per_ns, burst, self.unit, self.strict)


def rate_of(rate: Rate, amount: int) -> Rate:
    """The rate with another amount, and a burst that is changed in the same proportion."""
    burst = max(1, rate.burst * amount // rate.amount) if rate.burst_given and not rate.strict else None
    return Rate.of_ns(amount, rate.per_ns, burst, rate.unit, rate.strict)


def _read_unit(unit: str, per_ns: int) -> str:
    """The unit as it is called everywhere: in lower case, in the plural, by its usual name."""
    if not isinstance(unit, str) or not unit.replace("_", "").isalpha() or unit in _PERIODS:
        raise InvalidLimit(f'unit={unit!r} is not a unit; write one word, e.g. unit="tokens"')
    word = unit.lower()
    if word in _UNIT_AND_PERIOD:
        name, period = _UNIT_AND_PERIOD[word]
        if _PERIODS[period] != per_ns:
            raise InvalidLimit(f"unit={unit!r} is {name} per {period}, and the period is another one")
        return name
    name = _SYNONYMS.get(word) or (word if word.endswith("s") else word + "s")
    if name not in _USUAL and name not in _accepted:
        from difflib import get_close_matches  # noqa: PLC0415 - only a unit of the user's own needs it

        close = get_close_matches(name, _USUAL, 1, 0.85)
        if close:
            raise InvalidLimit(f"unit={unit!r} is not a unit that calls spend, did you mean {close[0]!r}?")
        _accepted.add(name)
    return name


def _parse_rate(text: str) -> Rate:
    if not isinstance(text, str):
        raise InvalidLimit(f'a rate is a Rate or a string, not {text!r}; write e.g. "500/minute"')

    def wrong(why: str) -> InvalidLimit:
        shown = repr(text) if len(text) < 100 else f"{text[:40]!r}..."
        return InvalidLimit(
            f'rate {shown}: {why}; write e.g. "500/minute", "100/s burst 20" or "200_000 tokens/minute"'
        )

    left, slash, right = text.lower().replace(" per ", "/").partition("/")
    amount_text, _, unit = left.strip().partition(" ")
    letters = amount_text.lstrip("0123456789_")
    if letters.isalpha() and letters != amount_text:  # "500rpm", "10req/s"
        amount_text, unit = amount_text.removesuffix(letters), f"{letters} {unit}"
    words = right.split()
    word, *options = unit.split() or [""]
    if not slash and word in _UNIT_AND_PERIOD:  # "500 rpm burst 20"
        unit, period = _UNIT_AND_PERIOD[word]
        words = [period, *options]
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
            burst = parse_number(words.pop(0), "the burst", wrong)
        else:
            raise wrong(f"{word!r} is not understood")
    if strict and burst is not None:
        raise wrong("a strict rate has no burst")
    rate_amount = parse_number(amount_text, "the amount", wrong)
    per_ns = parse_period(period, wrong)
    try:
        unit = _read_unit(unit.strip() or "requests", per_ns)
        return Rate.of_ns(rate_amount, per_ns, burst, unit, strict)
    except InvalidLimit as error:
        raise wrong(str(error).partition(";")[0]) from None


def parse_number(text: str, what: str, wrong: Callable[[str], InvalidLimit]) -> int:
    """A whole number as it is written in a limit. `wrong` makes the error of its reason."""
    digits = text.replace("_", "")
    if len(digits) > 40:  # Python refuses to read integers of more than 4,300 digits
        raise wrong(f"{what} has {len(digits)} digits")
    if not (digits.isascii() and digits.isdigit()) or text.startswith("_") or text.endswith("_"):
        why = "is not a whole number"
        if text.replace(",", "").isdigit() and len(text.rpartition(",")[2]) == 3:
            why = f"has a comma; {text.replace(',', '_')} is a whole number"
        elif what == "the amount" and text.replace(".", "", 1).isdigit() and "." in text:
            why += ', so take a longer period, as in "1 per 2 s"'
        raise wrong(f"{what} {text!r} {why}")
    return int(digits)


def parse_period(text: str, wrong: Callable[[str], InvalidLimit]) -> int:
    """A period as it is written in a limit, e.g. "hour" or "90s", in nanoseconds."""
    name = text.lstrip("0123456789")
    count = parse_number(text[: len(text) - len(name)] or "1", "the period", wrong)
    ns = _PERIODS.get(name) or _PERIODS.get(name.removesuffix("s"))
    if ns is None:
        from difflib import get_close_matches  # noqa: PLC0415 - only a misspelt period needs it

        words = [*_PERIODS, *(f"{word}s" for word in _PERIODS)]
        close = ["min"] if name == "m" else get_close_matches(name, words, 1)
        hint = f", did you mean {close[0]!r}?" if close else ""
        raise wrong(f"{name!r} is not a period (ms, s, minute, hour, day){hint}")
    if count == 0:
        raise wrong("a period of zero lasts no time")
    if ns * count > LONGEST:
        raise wrong("the period is longer than 146 years")
    return ns * count


def read_rates(rates: Rates) -> tuple[Rate, ...]:
    """Rates from one rate or several, as values or strings."""
    if isinstance(rates, (str, Rate)):
        rates = (rates,)
    try:
        listed = tuple(rates)
    except TypeError:
        listed = None
    if listed is None or hasattr(rates, "keys"):
        raise InvalidConfig(
            f'rates={rates!r} is neither a rate nor a list of rates; write e.g. rates=["500/minute"]'
        )
    if "auto" in listed:
        raise InvalidConfig(
            f'rates={rates!r}: "auto" stands alone; write rates="auto" at a Dispatch, or the rates without it'
        )
    return tuple(rate if isinstance(rate, Rate) else Rate.parse(rate) for rate in listed)


def columns_for(
    rates: Sequence[Rate], columns: Mapping[str, int] = COLUMNS, *, learned: bool = False
) -> Columns:
    """The columns, and further ones for the units of these rates.

    `learned`: the rates are not the user's, so calls need not state what they cost in further units.
    """
    extended = Columns(columns)
    for rate in rates:
        extended.setdefault(rate.unit, len(extended))
    if not learned:
        extended.require(rate.unit for rate in rates if rate.unit not in COLUMNS)
    return extended


def read_cost(
    columns: Mapping[str, int], bytes: int, tokens: int, cost: int | Mapping[str, int] | None
) -> tuple[int, ...]:
    """The cost of a call as one integer for each column. A negative estimate of bytes counts as zero."""
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
    if bytes < 0:  # noqa: PLR1730 - calling max() would take longer than the rest of this function
        bytes = 0  # noqa: A001
    if len(columns) == 3:
        return (cost, tokens, bytes)
    missing = getattr(columns, "unstated", ())
    if missing:
        raise unstated(missing)
    return (cost, tokens, bytes, *(0,) * (len(columns) - 3))


def unstated(units: Sequence[str]) -> InvalidLimit:
    """The error for a call without a `cost` by unit, where no call has ever stated some units."""
    example = ", ".join(f'"{unit}": 1' for unit in units)
    return InvalidLimit(
        f"a rate counts {' and '.join(units)}, and no call has said how many it costs; "
        f"write cost={{{example}}}, or cost={{}} if it costs none"
    )


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
    if isinstance(columns, Columns) and columns.unstated:
        columns.stated.update(unit for unit, _ in cost.items())
        columns.require(columns.unstated)
    return tuple(row)


def read_actual_cost(
    columns: Mapping[str, int],
    estimate: tuple[int, ...],
    tokens: int | None,
    bytes: int | None,
    cost: int | Mapping[str, int] | None,
) -> tuple[int, ...]:
    """What a call cost: the facts that are given, and the estimate for the rest."""
    if tokens.__class__ is int and bytes is None and cost is None and len(columns) == 3 == len(estimate):
        return (estimate[REQUESTS], amount(tokens, "tokens"), estimate[BYTES])  # nearly always
    row = [*estimate, *(0,) * (len(columns) - len(estimate))]
    if cost is not None and not isinstance(cost, int):
        given = read_cost(columns, 0, 0, cost)
        for unit in cost:
            row[columns[unit]] = given[columns[unit]]
    elif cost is not None:
        row[REQUESTS] = amount(cost, "cost")
    if tokens is not None:
        row[TOKENS] = amount(tokens, "tokens")
    if bytes is not None:
        row[BYTES] = amount(max(0, bytes) if isinstance(bytes, int) else bytes, "bytes")
    return tuple(row)
