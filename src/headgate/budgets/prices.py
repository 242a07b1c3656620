"""What tokens cost: prices by model, of a day. The list that is shipped is never fetched.

A list states prices of a million tokens in a currency, so a token costs as many millionths of it: the whole
numbers that budgets count. They are computed exactly and rounded up once, at the end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from decimal import Decimal
from difflib import get_close_matches
from importlib.resources import files
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Self

from ..arguments import amount, read_path
from ..errors import InvalidCapacity, InvalidConfig, UnknownName
from ..frozen import Frozen

# In a list, every model that is not named in it.
ANY_MODEL = "*"

# A model of a list is meant by its name alone, or with the date or state of a version after it.
_VERSION = re.compile(r"(?:[-@](?:\d[\d-]*|latest|preview[\w-]*|exp[\w-]*))*")
_SHAPE = '{"date": "2026-08-23", "models": {"gpt-4o-mini": [0.15, 0.60]}}, for a million tokens in and out'


class Price(NamedTuple):
    """The price of a million tokens, in any currency.

    `cached` is that of input tokens which the provider reads from its cache; None: as any other input.

    >>> Price(0.25, 2.00).of(1_000_000, 500_000)
    1.25
    """

    input: float
    output: float
    cached: float | None = None

    def of(self, input_tokens: int, output_tokens: int, cached: int = 0) -> float:
        """What so many tokens cost, in the currency; `cached` of the input tokens came from the cache."""
        saved = 0.0 if self.cached is None else cached * (self.input - self.cached)
        return (input_tokens * self.input + output_tokens * self.output - saved) / 1e6

    def millionths(self, input_tokens: int, output_tokens: int, cached: int = 0) -> int:
        """What so many tokens cost, in whole millionths of the currency, rounded up once.

        >>> Price(0.25, 2.00).millionths(10, 3)    # 8.5 millionths
        9
        """
        fresh = input_tokens - cached
        prices = (self.input, self.input if self.cached is None else self.cached, self.output)
        up, down = 0, 1
        for tokens, price in zip((fresh, cached, output_tokens), prices, strict=True):
            # The digits as they are written are exact: 0.15 is fifteen hundredths, although a float is not.
            over, under = Decimal(str(price)).as_integer_ratio()
            up, down = up * under + tokens * over * down, down * under
        return -(-up // down)


class Prices(Frozen):
    """Prices of models, for a million tokens: input, output and, if you know it, input from the cache.

    >>> prices = Prices({"gpt-5-mini": (0.25, 2.00)}, date="2026-08-23", currency="USD")
    >>> prices.cost("gpt-5-mini-2025-08-07", input_tokens=1_200, output_tokens=300)
    900

    That is in whole millionths of the currency, as budgets count money:
    `budget.reserve(tokens, money=prices.cost(...))`. `models` has two or three figures for each name. A model
    is meant by its name, with or without the date of a version and the provider before a slash. The name "*"
    stands for every model that is not named. `date` says of when the prices are, and `currency` in what; a
    budget whose limits are in another currency refuses them. `Prices.shipped()` are the list prices that
    come with headgate. Raises InvalidConfig for what is not a price.
    """

    __slots__ = ("_found", "currency", "date", "models")
    _found: dict[str, Price | None]  # by the name that was asked for
    currency: str
    date: str
    models: Mapping[str, Price]

    def __init__(
        self,
        models: Mapping[str, Price | tuple[float, ...] | list[float]],
        *,
        date: str = "",
        currency: str = "",
    ) -> None:
        if not hasattr(models, "items"):
            raise InvalidConfig(f'models={models!r} is not a mapping; write {{"gpt-5-mini": (0.25, 2.00)}}')
        read = {_read_name(name): _read_price(name, given) for name, given in models.items()}
        for what, text, example in (("date", date, "2026-08-23"), ("currency", currency, "USD")):
            if not isinstance(text, str):
                raise InvalidConfig(f'{what}={text!r} is not text; write e.g. {what}="{example}"')
        super().__init__(models=MappingProxyType(read), date=date, currency=currency, _found={})

    @classmethod
    def shipped(cls) -> Self:
        """The list that comes with headgate: list prices in US dollars of the day that `.date` says.

        It is never fetched and knows no discounts, so check it with your provider.

        >>> "gpt-5-mini" in Prices.shipped()
        True
        """
        return cls._of_text(files(__package__).joinpath("prices.json").read_text("utf-8"), "the shipped list")

    @classmethod
    def read(cls, path: str | PathLike[str]) -> Self:
        """The list in the file `path`: `{"date": "2026-08-23", "models": {"gpt-4o-mini": [0.15, 0.60]}}`.

        It may have a "currency" too. Raises InvalidConfig if it is something else, OSError if it cannot be
        read.
        """
        return cls._of_text(Path(read_path(path, "prices.json")).read_bytes(), str(path))

    @classmethod
    def _of_text(cls, text: str | bytes, where: str) -> Self:
        try:
            document: Any = json.loads(text)
            models, date = dict(document["models"]), document["date"]
            return cls(models, date=str(date), currency=str(document.get("currency", "")))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            why = str(error) if isinstance(error, InvalidConfig) else repr(error)
            raise InvalidConfig(f"{where} is not a list of prices ({why}); write {_SHAPE}") from None

    def cost(self, model: str, *, input_tokens: int = 0, output_tokens: int = 0, cached: int = 0) -> int:
        """What a call of `model` costs, in whole millionths of the currency, rounded up.

        `input_tokens` and `output_tokens` are how many it had. `cached` is how many of the input tokens the
        provider read from its cache; they cost as much as others where the list has no price for them. Raises
        UnknownName if the list does not have the model, and InvalidCapacity for what is not a number of
        tokens.

        >>> Prices({"m": (1.00, 2.00, 0.10)}).cost("m", input_tokens=1_000, cached=400)
        640
        """
        amount(input_tokens, "input_tokens")
        amount(output_tokens, "output_tokens")
        if amount(cached, "cached") > input_tokens:
            raise InvalidCapacity(
                f"cached={cached} of input_tokens={input_tokens}: the cached ones are some of them; "
                "where a provider states them apart, write their sum"
            )
        price = self.get(model)
        if price is None:
            raise self._unknown(model)
        return price.millionths(input_tokens, output_tokens, cached)

    def get(self, model: str | None) -> Price | None:
        """The price of a `model`; None if there is none.

        It has `input`, `output` and `cached` for a million tokens.

        >>> Prices({"m": (0.25, 2.00)}).get("m").output
        2.0
        >>> Prices.shipped().get("a-model-of-my-own") is None
        True
        """
        found: Price | None = None
        if isinstance(model, str):
            if model not in self._found:
                if len(self._found) >= _MOST_FOUND:
                    self._found.clear()
                self._found[model] = self._find(model)
            found = self._found[model]
        return self.models.get(ANY_MODEL) if found is None else found

    def __contains__(self, model: object) -> bool:
        return isinstance(model, str) and self.get(model) is not None

    def _values(self) -> tuple[object, ...]:  # lists that say the same are equal
        return frozenset(self.models.items()), self.date, self.currency

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (dict(self.models), self.date, self.currency)

    def _find(self, model: str) -> Price | None:
        if model in self.models:
            return self.models[model]  # also one with a slash
        name = model.rpartition("/")[2]  # "models/gemini-2.5-pro", "openai/gpt-4o"
        for known in sorted(self.models, key=len, reverse=True):
            if name.startswith(known) and _VERSION.fullmatch(name, len(known)):
                return self.models[known]
        return None

    def _unknown(self, model: object) -> UnknownName:
        close = get_close_matches(str(model), self.models, 1, 0.7)
        hint = f", did you mean {close[0]!r}?" if close else ""
        listed = f" of {self.date}" if self.date else ""
        return UnknownName(
            f"no price is known for the model {model!r} in the list{listed}{hint}; give it one: "
            f"Prices({{**prices.models, {model!r}: (0.25, 2.00)}}), for a million tokens in and out"
        )

    def __repr__(self) -> str:
        of_day = f" of {self.date}" if self.date else ""
        in_currency = f" in {self.currency}" if self.currency else ""
        return f"<Prices of {len(self.models)} models{in_currency}{of_day}>"


def _rebuild(models: dict[str, Price], date: str, currency: str) -> Prices:
    return Prices(models, date=date, currency=currency)


# Names of models may come from requests, so there may be any number of them.
_MOST_FOUND = 1_000


def _read_name(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise InvalidConfig(f'{name!r} is not the name of a model; write e.g. "gpt-5-mini"')
    return name


def _read_price(name: object, given: object) -> Price:
    example = "write those of a million tokens, in, out and from the cache, e.g. (0.25, 2.00)"
    if not isinstance(given, (tuple, list)) or not 2 <= len(given) <= 3:
        raise InvalidConfig(f"{given!r} is not a price of {name}; {example}")
    figures = [None if figure is None else _read_figure(figure) for figure in given]
    if None in figures[:2] or -1.0 in figures:
        raise InvalidConfig(f"{given!r} is not a price of {name}; {example}")
    price = Price(*figures)  # type: ignore[arg-type]  # the first two are not None
    if price.cached is not None and price.cached > price.input:
        raise InvalidConfig(f"{given!r}: {name} costs more from the cache than without it; {example}")
    return price


def _read_figure(given: object) -> float:
    """A price as a float; -1 if it is none."""
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 <= given < 1e9:
        return -1.0
    return float(given)
