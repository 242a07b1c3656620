"""The prices that a run counts with: those of a file, or the shipped ones."""

from pathlib import Path

from ...budgets.prices import Prices
from ...errors import InvalidConfig
from ..options import CommandError


def read_prices(path: Path | None) -> Prices:
    """The prices in a file, or those that are shipped. Raises CommandError if it is not a list of prices."""
    try:
        return Prices.shipped() if path is None else Prices.read(path)
    except OSError as error:
        raise CommandError(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from None
    except InvalidConfig as error:
        why, _, hint = str(error).rpartition("; ")
        raise CommandError(why, hint) from None
