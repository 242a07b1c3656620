"""What tokens cost: one price for all, or a list by model. The list that is shipped is never fetched."""

import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from ..options import CommandError

# A model of a list is meant by its name alone, or with the date or state of a version after it.
_VERSION = re.compile(r"(?:[-@](?:\d[\d-]*|latest|preview[\w-]*|exp[\w-]*))*")
_SHAPE = '{"date": "2026-08-23", "models": {"gpt-4o-mini": [0.15, 0.60]}}, for a million tokens in and out'


class Price(NamedTuple):
    """The price of a million tokens."""

    input: float
    output: float

    def of(self, input_tokens: int, output_tokens: int) -> float:
        return (input_tokens * self.input + output_tokens * self.output) / 1e6


class Prices:
    """Prices by model, of a day; or `same`, one price for all models."""

    def __init__(self, models: dict[str, Price], date: str = "", *, same: Price | None = None) -> None:
        self._models = models
        self._same = same
        self.date = date
        self._found: dict[str | None, Price | None] = {}

    def of(self, model: str | None) -> Price | None:
        """The price of a model; None if it is not known."""
        if self._same is not None:
            return self._same
        if model not in self._found:
            self._found[model] = self._find(model or "")
        return self._found[model]

    def _find(self, model: str) -> Price | None:
        name = model.rpartition("/")[2]  # "models/gemini-2.5-pro", "openai/gpt-4o"
        for known in sorted(self._models, key=len, reverse=True):
            if name.startswith(known) and _VERSION.fullmatch(name, len(known)):
                return self._models[known]
        return None


def read_prices(path: Path | None) -> Prices:
    """The prices in a file, or those that are shipped. Raises CommandError if it is not a list of prices."""
    try:
        text = files(__package__).joinpath("prices.json").read_text() if path is None else path.read_text()
        document: Any = json.loads(text)
        models = {str(name): Price(*map(_amount, pair)) for name, pair in document["models"].items()}
        date = str(document["date"])
    except OSError as error:
        raise CommandError(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CommandError(f"{path} is not a list of prices ({error!r})", f"write {_SHAPE}") from None
    return Prices(models, date)


def _amount(given: object) -> float:
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 <= given < 1e9:
        raise ValueError(f"{given!r} is not a price")
    return float(given)
