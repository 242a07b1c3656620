"""Pure. The grammar of limits of budgets: "$5/day", "$100/calendar month", "$0.20/request".

Windows slide, and a month is any 31 days, unless the text says that it is one of the calendar.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import TYPE_CHECKING, NamedTuple

from ..arguments import shown
from ..errors import InvalidConfig, InvalidLimit
from ..limits import Rate, parse_number, parse_period
from .windows import DAY, LONG_WINDOWS, LONGEST, MONEY, SHORTEST, TOKENS, UNITS, Limit, Plan

if TYPE_CHECKING:
    from .calendar import CalendarLimit

_MILLION = 1_000_000
_EXAMPLES = '"$5/day", "$100/calendar month", "$0.20/request" or "50_000 tokens/hour"'
_LARGEST = 1 << 64

_SIGNS = {"$": "USD", "€": "EUR", "£": "GBP", "¥": "JPY", "₹": "INR", "₩": "KRW"}
_SIGN_OF = {code: sign for sign, code in _SIGNS.items()}
_CURRENCY_WORDS = {"dollar": "USD", "euro": "EUR", "pound": "GBP", "yen": "JPY", "rupee": "INR"}
# Not any three letters: a misspelt unit would become a currency.
_CODES = frozenset(
    re.findall(
        r"\w+",
        "aed ars aud bdt bgn bhd brl cad chf clp cny cop crc czk dkk dop dzd egp eur gbp gel ghs gtq hkd huf "
        "idr ils inr isk jod jpy kes krw kwd kzt lkr mad mxn myr ngn nok nzd omr pen php pkr pln qar ron rsd "
        "rub sar sek sgd thb tnd try twd tzs uah ugx usd uyu uzs vnd xaf xof zar",
    )
)
_TOKENS = {"token", "tokens", "tok", "toks"}
_ONE_REQUEST = {"request", "requests", "req", "call", "calls"}
_TOKENS_PER = {"tps": "second", "tpm": "minute", "tph": "hour", "tpd": "day"}
_TIMES = ("second", "minute", "hour", "day", *LONG_WINDOWS, "request")

# The amount, and what stands before and after it.
_AMOUNT = re.compile(r"([^0-9\s.,_+-]*)\s*([0-9.,_+-]*[0-9][0-9.,_+-]*)\s*(.*)")

_Wrong = Callable[[str], InvalidLimit]


class TextLimit(NamedTuple):
    """One limit as it was written. The cap of one request has neither `per_ns` nor `calendar`.

    `calendar` is "day", "week" or "month" for one of the calendar.
    """

    text: str
    amount: int
    column: int
    per_ns: int | None
    currency: str | None
    calendar: str | None = None


def parse_limit(text: str) -> TextLimit:
    """Read one limit. Money is in whole millionths of its currency.

    >>> parse_limit("$0.20/request").amount
    200000
    >>> parse_limit("50_000 tokens per hour").per_ns
    3600000000000
    """
    if not isinstance(text, str):
        raise InvalidLimit(f"a limit of a budget is a text, not {shown(text)}; write {_EXAMPLES}")

    def wrong(why: str) -> InvalidLimit:
        short = repr(text) if len(text) < 100 else f"{text[:40]!r}..."
        return InvalidLimit(f"limit {short}: {why}; write {_EXAMPLES}")

    left, slash, period = text.lower().replace(" per ", "/").partition("/")
    found = _AMOUNT.fullmatch(left.strip())
    if found is None:
        raise wrong("it has no amount of tokens or money")
    before, digits, after = found.groups()
    if not slash and after in _TOKENS_PER:
        after, period = "tokens", _TOKENS_PER[after]
    if not period.strip():
        raise wrong("it does not say in what time; a limit is for a day, an hour or one request, for example")
    column, currency = _read_unit(before, after.strip(), wrong)
    most = _read_money(digits, wrong) if column == MONEY else parse_number(digits, "the amount", wrong)
    if most == 0:
        raise wrong("it would let nothing through")
    if most > _LARGEST:
        raise wrong("the amount is more than 2**64")
    period = " ".join(period.split())
    if period.startswith("calendar"):
        return TextLimit(text, most, column, None, currency, _read_calendar(period, wrong))
    return TextLimit(text, most, column, _read_period(period, wrong), currency)


def plan_of_texts(limits: str | Iterable[str], zone: str = "UTC") -> Plan:
    """What these limits allow together, and nothing else: what they do not name is not limited.

    Periods of the calendar are those of the time zone.
    """
    listed = _read_list(limits)
    currency = one_currency(((repr(limit.text), limit.currency) for limit in listed), "the limits")
    for limit in listed:
        for other in listed:
            if other is not limit:
                _check_that_it_limits(limit, other, zone)
    caps: list[int | None] = [None, None]
    windows: list[Limit | CalendarLimit] = []
    for limit in listed:
        if limit.calendar is not None:
            from . import calendar  # noqa: PLC0415 - the list of time zones takes long to load

            period = calendar.Calendar(limit.calendar, zone)
            windows.append(calendar.CalendarLimit(limit.amount, limit.column, period))
        elif limit.per_ns is None:
            caps[limit.column] = limit.amount
        else:
            rate = Rate.of_ns(limit.amount, limit.per_ns, None, "tokens", strict=True)
            windows.append(Limit(limit.amount, limit.column, rate))
    return Plan((caps[TOKENS], caps[MONEY]), windows, currency)


def one_currency(named: Iterable[tuple[str, str | None]], what: str) -> str | None:
    """The currency that all of these share, by the name of each; None if none of them names one."""
    first: tuple[str, str] | None = None
    for name, currency in named:
        if currency is None:
            continue
        if first is None:
            first = name, currency
        elif first[1] != currency:
            raise InvalidConfig(
                f"{what} mix currencies: {first[0]} is in {first[1]} and {name} in {currency}; "
                "write all of them in the one that you pay in"
            )
    return None if first is None else first[1]


def money_text(millionths: int, currency: str) -> str:
    """An amount of money as it would be written in a limit.

    >>> money_text(5_000_000, "USD"), money_text(1_500, "CHF")
    ('$5', '0.0015 CHF')
    """
    whole, rest = divmod(millionths, _MILLION)
    digits = f"{whole}.{rest:06}".rstrip("0").rstrip(".")
    return f"{_SIGN_OF[currency]}{digits}" if currency in _SIGN_OF else f"{digits} {currency}"


def _read_list(limits: str | Iterable[str]) -> list[TextLimit]:
    if isinstance(limits, str):
        limits = (limits,)
    if not hasattr(limits, "__iter__") or hasattr(limits, "items"):
        raise InvalidConfig(f"limits={limits!r} is neither a text nor a list of texts; write {_EXAMPLES}")
    listed = [parse_limit(text) for text in limits]
    if not listed:
        raise InvalidConfig(f"limits={limits!r} would limit nothing; write {_EXAMPLES}")
    return listed


def _check_that_it_limits(limit: TextLimit, other: TextLimit, zone: str) -> None:
    """Raise if the first limit refuses nothing that the other one lets through."""
    if limit.column != other.column:
        return
    if (limit.per_ns, limit.calendar) == (other.per_ns, other.calendar):
        raise InvalidConfig(
            f"{limit.text!r} and {other.text!r} both limit the {_place(limit)}; write one of them"
        )
    reaches = _most_periods(limit, other, zone)
    if reaches is not None and limit.amount >= reaches * other.amount:
        raise InvalidConfig(
            f"the limit {limit.text!r} would limit nothing beside {other.text!r}; write a smaller one, or "
            "leave it out"
        )


def _most_periods(limit: TextLimit, other: TextLimit, zone: str) -> int | None:
    """Into how many windows of the other limit one of this limit reaches at most. None: it is not certain."""
    if limit.per_ns is None and limit.calendar is None:
        return 1  # one request is the shortest time of all
    # Where clocks are put forward and back, periods are shorter and longer; even a date may be missing.
    uncertain = 0 if zone == "UTC" else DAY
    if limit.calendar is None:
        assert limit.per_ns is not None
        if other.calendar is None:
            return 1 if other.per_ns is not None and limit.per_ns < other.per_ns else None
        return 2 if limit.per_ns <= SHORTEST[other.calendar] - uncertain else None
    if other.calendar is None:
        within = other.per_ns is not None and LONGEST[limit.calendar] + uncertain <= other.per_ns
        return 1 if within else None
    if limit.calendar == "week" and other.calendar == "month":
        return 2
    return 1 if limit.calendar == "day" else None


def _place(limit: TextLimit) -> str:
    if limit.calendar is not None:
        return f"{UNITS[limit.column]} of a calendar {limit.calendar}"
    return UNITS[limit.column] + (" of one request" if limit.per_ns is None else " in the same time")


def _read_unit(before: str, after: str, wrong: _Wrong) -> tuple[int, str | None]:
    """The column that is limited, and the currency if it is money."""
    if before and after:
        raise wrong(f"it has two units, {before!r} and {after!r}")
    unit = before or after
    if not unit:
        raise wrong("it does not say of what: of tokens, or of a currency")
    currency = _SIGNS.get(unit) or _CURRENCY_WORDS.get(unit.removesuffix("s"))
    if currency is None and unit in _CODES:
        currency = unit.upper()
    if currency is not None:
        return MONEY, currency
    if unit in _TOKENS:
        if before:
            raise wrong("the amount comes before its unit")
        return TOKENS, None
    if unit in _ONE_REQUEST:
        raise wrong("a budget counts tokens and money; a rate of requests is for a Dispatch")
    if unit.removesuffix("s") in ("input_token", "output_token"):
        raise wrong("a budget counts the tokens of input and output together, as tokens")
    close = get_close_matches(unit, ["tokens", *_CURRENCY_WORDS, *sorted(_CODES)], 1, 0.6)
    hint = f", did you mean {close[0]!r}?" if close else ""
    raise wrong(f"{unit!r} is neither tokens nor a currency that is known{hint}")


def _read_money(digits: str, wrong: _Wrong) -> int:
    """An amount of money in whole millionths."""
    if "," in digits:
        raise wrong(f"{digits!r} has a comma: a point is before the decimals, and 1_000 is a thousand")
    whole, point, decimals = digits.partition(".")
    millionths = parse_number(whole, "the amount", wrong) * _MILLION
    if not point:
        return millionths
    if not (decimals.isascii() and decimals.isdigit()):
        raise wrong(f"{digits!r} is not an amount of money")
    decimals = decimals.rstrip("0")
    if len(decimals) > 6:
        raise wrong("money is counted in millionths: it has at most six decimals")
    return millionths + int(decimals.ljust(6, "0"))


def _read_period(period: str, wrong: _Wrong) -> int | None:
    """The time in nanoseconds; None for one request."""
    if period in _ONE_REQUEST:
        return None
    count, name = _split(period)
    if name.startswith("calendar"):
        raise wrong("a period of the calendar is one day, week or month: write it without a number")
    times = parse_number(count or "1", "the period", wrong)
    window = LONG_WINDOWS.get(name.removesuffix("s"))
    if window is not None:
        return parse_period(f"{times * window // DAY}days", wrong)
    if any(word.isspace() for word in name):
        first, _, rest = name.partition(" ")
        close = get_close_matches(first, ["calendar"], 1, 0.7)
        hint = f", did you mean 'calendar {rest}'?" if close else ""
        raise wrong(f"{name!r} is not understood{hint}")
    if name in _ONE_REQUEST:
        raise wrong("a limit is for one request at a time: write /request, without a number")
    try:
        parse_period(name, wrong)
    except InvalidLimit:
        word = name.removesuffix("s").removesuffix("ly")
        close = ["min"] if word == "m" else get_close_matches(word, _TIMES, 1, 0.6)
        hint = f", did you mean {close[0]!r}?" if close else ""
        raise wrong(f"{name!r} is not a time ({', '.join(_TIMES)}){hint}") from None
    return parse_period(f"{times}{name}", wrong)


def _read_calendar(period: str, wrong: _Wrong) -> str:
    """The unit of a period of the calendar."""
    first, _, name = period.partition(" ")
    if first == "calendar" and name in LONGEST:
        return name
    word = name.removesuffix("s").removesuffix("ly")
    close = get_close_matches(word, LONGEST, 1, 0.6)
    hint = f", did you mean 'calendar {close[0]}'?" if close else ""
    if word in ("second", "minute", "hour"):
        hint = f"; shorter times slide: /{word}"
    periods = ", ".join(f"calendar {each}" for each in LONGEST)
    raise wrong(f"{period!r} is not a period of the calendar ({periods}){hint}")


def _split(period: str) -> tuple[str, str]:
    """The number and the name: "90 seconds", "24h", "day"."""
    name = period.lstrip("0123456789_")
    return period[: len(period) - len(name)], name.strip()
