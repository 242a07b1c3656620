"""Pure. What the API saw: an account of a run that does not depend on what clients say.

It counts and never decides. Times are nanoseconds inside and seconds in the report.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any, TypeAlias

from ..arguments import SECOND
from ..limits import Rate
from .meters import Bucket, Fixed, Meter, most_within
from .styles.values import MeterLevel

History: TypeAlias = Sequence[tuple[int, Rate | None]]  # each limit with the moment from which it held

_INSTANT = SECOND // 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What happened at a provider since the start or the last reset. Times are seconds.

    >>> from headgate.sandbox import FakeProvider
    >>> api = FakeProvider("plain", requests="1/minute")
    >>> statuses = [api.call("GET", "/").status for _ in range(3)]
    >>> api.report().admitted, api.report().refused
    (1, 2)

    Of `requests` that arrived, the limits allowed `admitted` and `refused` were answered 429, by limits or by
    faults. `by_status` counts the answers, `refused_by` what limits refused, by unit, and `faults` the
    requests that faults struck, by kind. `tokens` were charged at admission, and `output_tokens` produced.

    `in_flight` requests are admitted and not yet at their last byte, `open_streams` of them streams, and
    `peak_in_flight` is the most at once. `abandoned` is how many answers the client left before the end.
    `arrivals` are the moments of all requests, `admissions` pairs of a moment and tokens, `first_admission`
    and `last_admission` None if there was none. `busiest` and `busiest_arrivals` are the most of them in any
    100 ms.

    By unit, `peak` is the most admitted in any stretch of the limit's own period, `allowed` the most
    permitted from the first admission to the last, and `use` the part of it that was used. `amplification` is
    how many requests there were for each distinct `x-sandbox-id`, None if no request had one.
    """

    requests: int  # that arrived, including refused and broken ones
    admitted: int  # requests that the limits allowed
    refused: int  # requests answered 429, by limits or by faults
    by_status: dict[int, int]  # answers
    refused_by: dict[str, int]  # requests refused by limits, by unit (requests, tokens, concurrency, …)
    faults: dict[str, int]  # requests struck by faults, by kind
    tokens: int  # charged at admission
    output_tokens: int  # produced
    in_flight: int  # requests admitted and not yet at their last byte
    peak_in_flight: int  # the most at once
    open_streams: int  # streams in flight
    abandoned: int  # answers whose client left before the end
    busiest: int  # the most admissions in any 100 ms
    busiest_arrivals: int  # the most arrivals in any 100 ms
    peak: dict[str, int]  # the most admitted in any stretch of the limit's own period, by unit
    allowed: dict[str, float]  # the most permitted from the first admission to the last, by unit
    use: dict[str, float]  # the part of `allowed` that was used, by unit
    arrivals: tuple[float, ...]
    admissions: tuple[tuple[float, int], ...]  # moments with tokens
    first_admission: float | None  # None if there was none
    last_admission: float | None
    amplification: float | None  # requests per distinct `x-sandbox-id`, None if no request had one

    def facts(self, *, times: bool = True) -> dict[str, Any]:
        """The report as plain data; `times=False` leaves out the long lists of times.

        >>> from headgate.sandbox import FakeProvider
        >>> FakeProvider("plain").report().facts(times=False)["requests"]
        0
        """
        left_out = () if times else ("admissions", "arrivals")
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name not in left_out}


class Customer:
    """The limits of one customer and what was taken from them."""

    def __init__(self, meters: dict[str, Meter]) -> None:
        self.meters = meters
        self.in_flight = 0
        self.forget()

    def forget(self) -> None:
        self.opened: dict[str, Fraction] = {}
        self.admissions: list[tuple[int, int]] = []
        self.outputs: list[tuple[int, int]] = []

    def copy(self) -> Customer:
        """A copy of the counts; the meters are shared, because a report only looks at their kind."""
        twin = Customer(self.meters.copy())
        twin.opened, twin.admissions, twin.outputs = self.opened, self.admissions.copy(), self.outputs.copy()
        return twin

    def admit(self, tokens: int, now: int) -> None:
        """Count an admission. Called before anything is taken from the meters."""
        if not self.admissions:
            self.opened = {unit: meter.opening(now) for unit, meter in self.meters.items()}
        self.admissions.append((now, tokens))
        self.in_flight += 1

    def produce(self, tokens: int, now: int) -> None:
        """Count tokens of an answer."""
        self.outputs.append((now, tokens))
        if (meter := self.meters.get("output_tokens")) is not None:
            meter.take(tokens, now)

    def levels(self, now: int) -> dict[str, MeterLevel]:
        return {
            unit: MeterLevel(unit, meter.rate, meter.remaining(now), meter.reset(now))
            for unit, meter in self.meters.items()
        }

    def taken(self, unit: str) -> Sequence[tuple[int, int]]:
        """The moments and amounts in which a unit was taken."""
        if unit == "output_tokens":
            return self.outputs
        return [(at, 1) for at, _ in self.admissions] if unit == "requests" else self.admissions

    def permitted(self, unit: str, limits: History) -> float | None:
        """The most units that a limit allowed from the first admission to the last, both included.

        None if there was no limit for a while.
        """
        meter, total = self.meters.get(unit), self.opened.get(unit)
        if meter is None or total is None:
            return None
        first, last = self.admissions[0][0], self.admissions[-1][0]
        if unit == "output_tokens" and self.outputs:
            last = max(last, self.outputs[-1][0])
        offset = meter.epoch if isinstance(meter, Fixed) else -first
        before: Rate | None = None
        ends = [since for since, _ in limits[1:]]
        for (since, rate), until in zip(limits, [*ends, last + 1], strict=True):
            if until <= first or since > last:
                continue
            if rate is None:
                return None
            start, end = max(since, first), min(until, last)
            if isinstance(meter, Bucket):
                total += Fraction(rate.amount * (end - start), rate.per_ns)
            else:
                total += rate.amount * ((end + offset) // rate.per_ns - (start + offset) // rate.per_ns)
                total += max(0, rate.amount - before.amount) if before is not None else 0
            before = rate
        return float(total)


class Referee:
    """Counts what all customers do, and makes the report."""

    def __init__(self) -> None:
        self.in_flight = 0
        self.open_streams = 0
        self.forget()

    def forget(self) -> None:
        self.arrivals: list[int] = []
        self.by_status: Counter[int] = Counter()
        self.refused_by: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.ids: Counter[str] = Counter()
        self.abandoned = 0
        self.peak_in_flight = self.in_flight

    def copy(self) -> Referee:
        twin = Referee()
        for name, value in vars(self).items():
            setattr(twin, name, value if isinstance(value, int) else value.copy())
        return twin

    def enter(self, *, stream: bool) -> None:
        self.in_flight += 1
        self.open_streams += stream
        self.peak_in_flight = max(self.peak_in_flight, self.in_flight)

    def leave(self, *, stream: bool, finished: bool) -> None:
        self.in_flight -= 1
        self.open_streams -= stream
        self.abandoned += not finished

    def report(self, customers: Sequence[Customer], history: Mapping[str, History], origin: int) -> Report:
        """The report about customers that had admissions."""
        admissions = sorted(admission for customer in customers for admission in customer.admissions)
        allowed: dict[str, float] = {}
        use: dict[str, float] = {}
        peak: dict[str, int] = {}
        for unit, limits in history.items():
            rate = limits[-1][1]
            taken = [customer.taken(unit) for customer in customers]
            if rate is None or not admissions:
                continue
            peak[unit] = max(most_within(events, rate.per_ns) for events in taken)
            shares = [customer.permitted(unit, limits) for customer in customers]
            total = sum(share for share in shares if share is not None)
            if None not in shares and total > 0:
                allowed[unit] = total
                use[unit] = sum(cost for events in taken for _, cost in events) / total
        return Report(
            requests=len(self.arrivals),
            admitted=len(admissions),
            refused=self.by_status[429],
            by_status=dict(sorted(self.by_status.items())),
            refused_by=dict(self.refused_by),
            faults=dict(self.faults),
            tokens=sum(tokens for _, tokens in admissions),
            output_tokens=sum(tokens for customer in customers for _, tokens in customer.outputs),
            in_flight=self.in_flight,
            peak_in_flight=self.peak_in_flight,
            open_streams=self.open_streams,
            abandoned=self.abandoned,
            busiest=most_within([(at, 1) for at, _ in admissions], _INSTANT),
            busiest_arrivals=most_within([(at, 1) for at in self.arrivals], _INSTANT),
            peak=peak,
            allowed=allowed,
            use=use,
            arrivals=tuple((at - origin) / SECOND for at in self.arrivals),
            admissions=tuple(((at - origin) / SECOND, tokens) for at, tokens in admissions),
            first_admission=(admissions[0][0] - origin) / SECOND if admissions else None,
            last_admission=(admissions[-1][0] - origin) / SECOND if admissions else None,
            amplification=self.ids.total() / len(self.ids) if self.ids else None,
        )
