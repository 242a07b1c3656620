"""Pure. What refusals of a budget say: which limit refused, what is left, when there is more; or its end."""

from __future__ import annotations

from ..arguments import SECOND
from ..errors import BudgetExceeded, Closed
from .windows import MONEY, Cost, Shortage


def exceeded(key: str, currency: str | None, short: Shortage, cost: Cost, now: int) -> BudgetExceeded:
    """The error for a cost that the budget of that key does not cover."""
    needed, unit = cost[short.column], ""  # the rule in brackets says of what and by which time
    remaining, limit = str(short.remaining), str(short.limit)
    if short.column == MONEY and currency is not None:
        from .texts import money_text  # noqa: PLC0415 - loaded already: the limits are texts

        what, does = money_text(needed, currency), "does not"
        remaining, limit = money_text(short.remaining, currency), money_text(short.limit, currency)
    elif short.column == MONEY:
        what, does = f"money={needed}", "does not"
    else:
        what, does = ("1 token", "does not") if needed == 1 else (f"{needed} tokens", "do not")
        unit = " tokens"
    budget = named(key)
    if short.name.endswith("/request"):
        why = f"{what} can never fit {budget}: one request may take {limit}"
    elif short.at is None:
        why = f"{what} can never fit {budget}: it has {limit}{unit} in all"
    else:
        period = f" for {short.period}" if short.period else ""
        why = f"{what} {does} fit {budget}: {remaining} of {limit}{unit} left{period}"
    return BudgetExceeded(
        why,
        rule=short.name,
        budget=key,
        remaining=short.remaining,
        retry_after=None if short.at is None else (short.at - now) / SECOND,
    )


def closed(key: str, *, with_book: bool = False) -> Closed:
    """The error for a reservation after closing: of the budget itself, or of the book that it belongs to."""
    if with_book:
        why = f"the book with {named(key)} was closed; make a new book"
    else:
        why = f"{named(key)} was closed; make a new one"
    return Closed(why, rule="closed")


def named(key: str) -> str:
    """A budget in a sentence. One that is not shared needs no key."""
    return f"the budget of {key!r}" if key else "the budget"
