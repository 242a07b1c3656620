"""What was asked for on the command line of `headgate run`."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Self

from ...budgets.prices import ANY_MODEL, Price, Prices
from ...limits import Rate
from .answers import Format
from .intake import Changed
from .prices import read_prices


class Settings(NamedTuple):
    """How a runner goes about its jobs. Times are in seconds."""

    concurrency: int = 200
    retries: int = 5
    timeout: float = 600.0
    patience: float = 600.0  # the longest time without a single success

    def with_concurrency(self, concurrency: int) -> Self:
        """The same, with another number of jobs at once."""
        return self._replace(concurrency=concurrency)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunOptions:
    """Every option of the command, after reading."""

    jobs: tuple[Path, ...]
    to: str
    output: Path | None = None
    errors: Path | None = None
    headers: tuple[tuple[str, str], ...] = ()
    key_env: str | None = None
    rates: tuple[Rate | str, ...] = ()
    concurrency: int | None = None
    store: str | None = None
    store_key: str | None = None
    settings: Settings = field(default_factory=Settings)
    max_tokens: int | None = None
    max_cost: float | None = None
    price: Price | None = None
    prices: Path | None = None
    skip_invalid: bool = False
    changed: Changed | None = None
    retry_failed: bool = False
    format: Format = "openai"
    as_json: bool = False
    metrics: int | None = None
    quiet: bool = False

    @property
    def from_stdin(self) -> bool:
        return [str(path) for path in self.jobs] == ["-"]

    def price_list(self, *, always: bool = False) -> Prices | None:
        """The prices to count with; None if no money is counted."""
        if self.price is not None:
            return Prices({ANY_MODEL: self.price})
        if self.prices is not None or self.max_cost is not None or always:
            return read_prices(self.prices)
        return None

    @property
    def answers(self) -> Path | None:
        """The file of answers; None for stdout."""
        return None if str(self.output) == "-" else self.output

    @property
    def name(self) -> str:
        """What the jobs are called in messages."""
        if self.from_stdin:
            return "stdin"
        more = f" and {len(self.jobs) - 1} more" if len(self.jobs) > 1 else ""
        return self.jobs[0].name + more
