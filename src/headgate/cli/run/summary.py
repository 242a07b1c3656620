"""How a run ended: a table for people, and the same figures as plain data."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from ...words import duration
from .errors import Stop
from .progress import RunView


class Ending(NamedTuple):
    """A run that has ended. `before`: the answers that were in `output` when it began, None for stdout."""

    view: RunView
    stop: Stop | None
    output: str
    before: int | None
    errors: str | None

    def facts(self) -> dict[str, Any]:
        """The figures, for JSON."""
        tally, stop = self.view.tally, self.stop
        return {
            **self.view.facts(),
            "input_tokens": tally.input_tokens,
            "output_tokens": tally.output_tokens,
            "failures": dict(tally.failures),
            "output": self.output,
            "before": self.before,
            "errors": self.errors if tally.failed else None,
            "stopped": stop and stop.reason,
            "why": stop and stop.why,
        }

    def lines(self, *, quiet: bool = False) -> Iterator[str]:
        """What people are told: the reason of an early stop, the figures, and how to go on."""
        stop = self.stop
        if stop is not None:
            yield stop.why if stop.reason == "interrupted" else f"error: {stop.why}"
        if not quiet or stop is not None:
            rows = list(self._rows())
            width = max(len(name) for name, _ in rows)
            yield from (f"{name:<{width}}  {words}" for name, words in rows)
        if stop is not None:
            hint = f"{stop.hint}. " if stop.hint else ""
            if self.before is not None:
                larger = " with a larger budget" if stop.reason == "budget" else ""
                hint += f"Run the same command again{larger} to go on: what has an answer is not sent again"
            if hint:
                yield f"hint: {hint.removesuffix('. ')}"

    def _rows(self) -> Iterator[tuple[str, str]]:
        tally, cost = self.view.tally, self.view.cost
        speed = f", {tally.answered / tally.seconds:,.1f} a second" if tally.seconds >= 1 else ""
        yield "answered", f"{tally.answered:,} in {duration(tally.seconds)}{speed}"
        if self.before:
            yield "before", f"{self.before:,} answers were in {self.output} before"
        if tally.failed:
            where = "" if self.errors is None else f", see {self.errors}"
            codes = ", ".join(f"{count:,} {code}" for code, count in tally.failures.most_common())
            yield "failed", f"{tally.failed:,} ({codes}){where}"
        more = [f"{tally.refused:,} refused by a limit"] if tally.refused else []
        more += [f"{tally.retried:,} sent again"] if tally.retried else []
        yield "requests", ", ".join([f"{tally.sent:,}", *more])
        if tally.tokens:
            yield "tokens", f"{tally.input_tokens:,} in, {tally.output_tokens:,} out"
        if cost is not None:
            before = ", earlier runs included" if self.before else ""
            yield "cost", f"{cost:,.4f}{before}"
        if self.before is not None and tally.answered:
            yield "answers", f"{self.before + tally.answered:,} in {self.output}"
