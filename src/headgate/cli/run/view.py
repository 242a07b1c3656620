"""How a run stands at one moment: in figures, in words, and as plain data."""

from __future__ import annotations

from typing import Any, NamedTuple

from ...dispatch.snapshot import DispatchSnapshot
from ...words import duration, soon
from .runner import Runner
from .tally import Meter


class Use(NamedTuple):
    """How much of one limit is used. `now` and `limit` are for `period`, e.g. a minute."""

    unit: str
    period: str
    now: float
    limit: int


class RunView(NamedTuple):
    """The figures of a run. `left` is the time to go in seconds, `waits` what the next job waits for."""

    seconds: float
    total: int | None
    kept: int
    answered: int
    failed: int
    sent: int
    refused: int
    retried: int
    in_flight: int
    concurrency: int
    speed: float  # answers a second
    tokens: int
    tokens_per_minute: float
    cost: float | None
    left: float | None
    uses: tuple[Use, ...]
    waits: str
    stopping: bool

    @property
    def done(self) -> int:
        return self.kept + self.answered + self.failed

    @property
    def share(self) -> float | None:
        return self.done / self.total if self.total else None

    def facts(self) -> dict[str, Any]:
        """The same as plain data, for JSON."""
        facts = {**self._asdict(), "done": self.done, "uses": [use._asdict() for use in self.uses]}
        return {name: round(fact, 3) if isinstance(fact, float) else fact for name, fact in facts.items()}

    def line(self) -> str:
        """The same in one line."""
        share = f"{self.share:4.0%}" if self.share is not None else "   ?"
        total = "?" if self.total is None else f"{self.total:,}"
        parts = [
            f"{share}  {self.done:,}/{total}",
            f"{self.speed:.1f}/s",
            f"{self.tokens_per_minute:,.0f} tokens/min",
            f"{self.in_flight} in flight",
            f"{self.refused} × 429",
            f"{self.failed} failed",
        ]
        if self.left is not None and self.done != self.total:
            parts.append(f"{duration(self.left)} left")
        if self.waits:
            parts.append(self.waits)
        return "  ".join(parts)


def view_of(runner: Runner, meter: Meter) -> RunView:
    """Look at a run. This changes nothing."""
    tally, now = runner.tally, runner.gate.snapshot()
    rates = meter.rates()
    speed, tokens = tally.speed()
    return RunView(
        seconds=tally.seconds,
        total=tally.total,
        kept=tally.kept,
        answered=tally.answered,
        failed=tally.failed,
        sent=tally.sent,
        refused=tally.refused,
        retried=tally.retried,
        in_flight=now.in_flight or 0,
        concurrency=now.concurrency or 0,
        speed=speed,
        tokens=tally.tokens,
        tokens_per_minute=tokens * 60,
        cost=runner.spending.cost,
        left=tally.left(speed),
        uses=tuple(
            Use(rate.unit, rate.name.partition("/")[2], rates.get(rate.unit, 0.0) * rate.per, rate.limit)
            for rate in now.rates
        ),
        waits=why_it_waits(now, runner.clock.seconds(), runner.trouble),
        stopping=runner.stopping,
    )


def why_it_waits(now: DispatchSnapshot, at: float, trouble: str = "") -> str:
    """What the next job waits for, in words; empty if no job waits."""
    if now.binding is None:
        return ""
    left = None if now.next_at is None else max(0.0, now.next_at - at)
    if now.binding == "window":
        because = f" ({trouble})" if trouble else ""
        return f"told to slow down{because}: all jobs wait {soon(left or 0)}"
    if now.binding.endswith("concurrency"):
        return f"all {now.in_flight} places are taken: waiting for an answer"
    if now.binding == "bytes":
        return "enough bytes are in flight: waiting for an answer"
    if left is None:  # the rate is shared, and the store has not answered yet
        return f"{now.binding}: at the limit, which is shared"
    if left < 0.2 and any(rate.name == now.binding for rate in now.rates):
        return f"{now.binding}: at the limit"
    return f"{now.binding}: next slot in {soon(left)}"
