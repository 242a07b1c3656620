"""Reads what callers write about budgets: limits of tokens and money, by window and by request."""

from __future__ import annotations

from sys import maxsize

from ..arguments import amount, positive_int, positive_seconds_to_ns, shown
from ..errors import InvalidCapacity, InvalidConfig, InvalidWindow
from ..hints import Any, Iterable, Mapping, Seconds, Sequence, later
from ..limits import Rate
from .windows import MONEY, TOKENS, Cost, Limit, Plan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .options import BudgetOptions
    from .prices import Prices
else:
    BudgetOptions = later("headgate.budgets.options", "BudgetOptions")
    Prices = later("headgate.budgets.prices", "Prices")

_HOUR = 3600
_MOST_DOLLARS = 10**9


class _Default(int):
    """A limit that the caller did not write."""


TOKENS_PER_HOUR = _Default(100_000)
TOKENS_PER_REQUEST = _Default(10_000)
NO_MONEY = _Default(0)


def read_cost(tokens: int, money: int, what: str) -> Cost:
    """What one request costs."""
    if type(tokens) is int and tokens >= 0 and type(money) is int and money >= 0:
        return tokens, money  # as below, without the calls
    return amount(tokens, what), amount(_in_millionths(money, "money"), "money")


def read_estimate(levels: Sequence[Any], tokens: int, money: int) -> Cost:
    """What one request is thought to cost. Raises if only money is limited, and the money was not given."""
    if money is not NO_MONEY:
        return read_cost(tokens, money, "estimated_tokens")
    cost = read_cost(tokens, 0, "estimated_tokens")
    if tokens:
        limited = [any(each.plan.limits_column(column) for each in levels) for column in (TOKENS, MONEY)]
        if limited == [False, True]:
            raise InvalidConfig(
                f"estimated_tokens={tokens!r} alone would always fit, because this budget limits money and "
                "no tokens; write in millionths what the request may cost: money=50_000 for 0.05, or money=0"
            )
    return cost


def what_is_left(tokens: int, money: int | None) -> str:
    """What a budget still allows, in words; `sys.maxsize` and None where nothing limits it."""
    parts = [] if tokens == maxsize else [f"{tokens} tokens"]
    parts += [] if money is None else [f"{money} millionths of money"]
    return f"{' and '.join(parts)} remaining" if parts else "no limit"


def _in_millionths(money: int, what: str) -> int:
    """Raise if it is a fraction, which is an amount in dollars; everything else is for others to judge."""
    if isinstance(money, float) and abs(money) < _MOST_DOLLARS:
        raise InvalidCapacity(
            f"{what}={money!r} is not a whole number: money is in millionths of the currency; write "
            f"{what}={round(money * 1_000_000)} for {money!r}"
        )
    return money


def read_plan(
    max_tokens_per_hour: int | None = TOKENS_PER_HOUR,
    max_tokens_per_request: int | None = TOKENS_PER_REQUEST,
    windows: Mapping[Seconds, int] | None = None,
    money: Mapping[Seconds, int] | None = None,
    max_money_per_request: int | None = None,
    limits: str | Sequence[str] | None = None,
    timezone: str | None = None,
    *,
    zone: str = "UTC",
) -> Plan:
    """What a budget allows, from the options of TokenBudget. `zone` is the time zone if they name none."""
    if timezone is not None:
        check_timezone(timezone)
    if limits is not None:
        from .texts import plan_of_texts  # noqa: PLC0415 - only limits that are texts need it

        for name, given in [
            ("max_tokens_per_hour", max_tokens_per_hour),
            ("max_tokens_per_request", max_tokens_per_request),
            ("windows", windows),
            ("money", money),
            ("max_money_per_request", max_money_per_request),
        ]:
            if given is not None and not isinstance(given, _Default):
                raise InvalidConfig(
                    f"limits={limits!r} and {name}={given!r}: limits say everything that a budget allows; "
                    f"write {name} as one of them, or leave limits out"
                )
        plan = plan_of_texts(limits, timezone or zone)
        check_timezone_counts(timezone, [plan])
        return plan
    check_timezone_counts(timezone, [])
    for name, given in [("windows", windows), ("money", money), ("max_tokens_per_hour", max_tokens_per_hour)]:
        if isinstance(given, str):
            raise InvalidConfig(f"{name}={given!r} is a text; write it as limits={given!r}")
    listed: list[Limit]
    if windows is None:
        listed = []
        if max_tokens_per_hour is not None:
            most = positive_int(max_tokens_per_hour, "max_tokens_per_hour", example=TOKENS_PER_HOUR)
            listed = [Limit(most, TOKENS, Rate(most, _HOUR, unit="tokens", strict=True))]
    else:
        listed = _read_windows(windows, "windows", TOKENS)
        # The windows replace the hour of the default. An hour that the caller wrote must not vanish.
        if max_tokens_per_hour not in (None, TOKENS_PER_HOUR):
            raise InvalidConfig(
                f"max_tokens_per_hour={max_tokens_per_hour!r} and windows={windows!r}: the windows replace "
                f"the hour; write it as one of them, windows={{3600: {max_tokens_per_hour!r}, ...}}"
            )
    if money is not None:
        listed += _read_windows(money, "money", MONEY)
    if max_tokens_per_request is not None:
        positive_int(max_tokens_per_request, "max_tokens_per_request", example=TOKENS_PER_REQUEST)
    if max_money_per_request is not None:
        name = "max_money_per_request"
        positive_int(_in_millionths(max_money_per_request, name), name, example=50_000)
    return Plan((max_tokens_per_request, max_money_per_request), listed)


def check_timezone(name: object) -> None:
    """Raise if no time zone has that name."""
    from .calendar import zone_of  # noqa: PLC0415 - the list of time zones takes long to load

    example = 'write the name of a time zone, e.g. timezone="Europe/Berlin" or "UTC"'
    if not isinstance(name, str):
        raise InvalidConfig(f"timezone={name!r} is not a text; {example}")
    try:
        zone_of(name)
    except ValueError:
        from difflib import get_close_matches  # noqa: PLC0415 - only a misspelt zone needs them
        from zoneinfo import available_timezones  # noqa: PLC0415

        known = available_timezones()
        if not known:
            example = "this machine has no list of time zones: install tzdata"
        close = get_close_matches(name, known, 1, 0.6)
        hint = f", did you mean {close[0]!r}?" if close else ""
        raise InvalidConfig(f"timezone={name!r} is not known{hint}; {example}") from None


def check_timezone_counts(timezone: str | None, plans: Iterable[Plan]) -> None:
    """Raise if a time zone was given to plans that do not ask for the date."""
    if timezone is not None and not any(plan.by_calendar for plan in plans):
        raise InvalidConfig(
            f"timezone={timezone!r} changes nothing: no limit is one of the calendar; write e.g. "
            'limits="$100/calendar month", or leave it out'
        )


def check_prices(prices: Prices, plans: Sequence[Plan]) -> None:
    """Raise if money cannot be charged to these plans by these prices."""
    if not hasattr(prices, "cost"):
        raise InvalidConfig(f"prices={prices!r} are not Prices; write e.g. prices=Prices.shipped()")
    if not any(plan.limits_column(MONEY) for plan in plans):
        raise InvalidConfig(
            f'prices={prices!r} change nothing: no limit is one of money; write e.g. limits="$5/day", or '
            "leave them out"
        )
    for plan in plans:
        if prices.currency and plan.currency and prices.currency != plan.currency:
            raise InvalidConfig(
                f"prices={prices!r} are in {prices.currency}, and a limit is in {plan.currency}; write both "
                "in the one that you pay in"
            )


def _read_windows(windows: Mapping[Seconds, int], what: str, column: int) -> list[Limit]:
    example = f"write seconds and amounts, e.g. {what}={{3600: 100_000}}"
    if not hasattr(windows, "items") or not windows:
        raise InvalidConfig(f"{what}={windows!r} names no window; {example}, or None for no limit")
    limits: dict[tuple[int, int], Limit] = {}
    for period, given in windows.items():
        try:
            positive_seconds_to_ns(period, what)
        except InvalidWindow:
            raise InvalidWindow(f"{what}: {shown(period)} is not a stretch of time; {example}") from None
        name = f"{what}[{period!r}]"
        most = positive_int(_in_millionths(given, name) if column == MONEY else given, name, example=100_000)
        limit = Limit(most, column, Rate(most, period, unit="tokens", strict=True))
        if limits.setdefault(limit.key, limit) is not limit:
            raise InvalidConfig(f"{what}={windows!r} has the window of {period!r} twice; write it once")
    return list(limits.values())


_OPTIONS = read_plan.__code__.co_varnames[: read_plan.__code__.co_argcount]


def check_one_currency(plans: Sequence[tuple[str, Plan]], what: str) -> None:
    """Raise if the plans of one tree or book count money in several currencies."""
    if any(plan.currency is not None for _name, plan in plans):
        from .texts import one_currency  # noqa: PLC0415 - only limits that are texts name a currency

        one_currency([(name, plan.currency) for name, plan in plans], what)


def read_plans(
    named: Mapping[str, BudgetOptions | str | Sequence[str]],
    what: str,
    example: str,
    zone: str = "UTC",
) -> dict[str, Plan]:
    """The plans of tiers or organisations, by name; `zone` is the time zone of those that name none."""
    right = f'write e.g. {what}={{"{example}": "50_000 tokens/hour"}}'
    if not hasattr(named, "items"):
        raise InvalidConfig(f"{what}={named!r} is not a mapping of names to options; {right}")
    plans = {}
    for name, options in named.items():
        if not isinstance(name, str) or not name:
            raise InvalidConfig(f"{what}: {name!r} is not a name; {right}")
        if isinstance(options, (str, list, tuple)):
            plans[name] = read_plan(limits=options, zone=zone)
            continue
        if not hasattr(options, "items"):
            raise InvalidConfig(f"{what}[{name!r}]={options!r} is neither limits nor options; {right}")
        unknown = [option for option in options if option not in _OPTIONS]
        if unknown:
            raise InvalidConfig(
                f"{what}[{name!r}] has no option {unknown[0]!r}; the options are {', '.join(_OPTIONS)}"
            )
        plans[name] = read_plan(**options, zone=zone)  # type: ignore[arg-type]  # it is a mapping
    return plans
