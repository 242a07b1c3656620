"""What the API saw: the only account of a run that no client can embellish.

Rules of this room: it counts and never decides. Times are nanoseconds inside and seconds in the report.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from ..arguments import SECOND
from ..frozen import Frozen
from .meters import most_within, opening, permitted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from fractions import Fraction

    from ..limits import Rate
    from .meters import Meter

    History = Mapping[str, Sequence[tuple[int, Rate | None]]]

_INSTANT = SECOND // 10


class Report(Frozen):
    """What has happened since the start or the last reset.

    | field | what it is |
    | --- | --- |
    | `requests` | all that arrived, refused and broken ones included |
    | `admitted`, `refused` | let through by the limits; answered 429, by limits or by faults |
    | `by_status` | how many answers of each status |
    | `refused_by` | how many the limits refused, by unit (`requests`, `tokens`, `concurrency`, …) |
    | `faults` | how many were struck, by kind of fault |
    | `tokens`, `output_tokens` | charged at admission; produced |
    | `in_flight`, `peak_in_flight` | admitted and not yet at their last byte; most at once |
    | `open_streams`, `abandoned` | streams under way; answers whose client left before the end |
    | `busiest`, `busiest_arrivals` | most admissions, and most arrivals, in any 100 ms |
    | `peak` | most admitted in any stretch of the limit's own period, by unit |
    | `allowed` | the very most the limit permitted from the first admission to the last, by unit |
    | `use` | the part of it that was used, by unit |
    | `arrivals`, `admissions` | seconds; (seconds, tokens) |
    | `first_admission`, `last_admission` | seconds, None if there was none |
    | `amplification` | requests per distinct `x-sandbox-id`, None if no request had one |
    """

    __slots__ = (
        "abandoned",
        "admissions",
        "admitted",
        "allowed",
        "amplification",
        "arrivals",
        "busiest",
        "busiest_arrivals",
        "by_status",
        "faults",
        "first_admission",
        "in_flight",
        "last_admission",
        "open_streams",
        "output_tokens",
        "peak",
        "peak_in_flight",
        "refused",
        "refused_by",
        "requests",
        "tokens",
        "use",
    )
    abandoned: int
    admissions: tuple[tuple[float, int], ...]
    admitted: int
    allowed: dict[str, float]
    amplification: float | None
    arrivals: tuple[float, ...]
    busiest: int
    busiest_arrivals: int
    by_status: dict[int, int]
    faults: dict[str, int]
    first_admission: float | None
    in_flight: int
    last_admission: float | None
    open_streams: int
    output_tokens: int
    peak: dict[str, int]
    peak_in_flight: int
    refused: int
    refused_by: dict[str, int]
    requests: int
    tokens: int
    use: dict[str, float]

    def facts(self, *, times: bool = True) -> dict[str, Any]:
        """The same as plain data, with or without the long lists of times."""
        left_out = () if times else ("admissions", "arrivals")
        return {name: getattr(self, name) for name in self._fields() if name not in left_out}


class Pool:
    """The limits of one customer and what was taken from them."""

    def __init__(self, meters: dict[str, Meter]) -> None:
        self.meters = meters
        self.in_flight = 0
        self.forget()

    def forget(self) -> None:
        self.opened: dict[str, Fraction] = {}
        self.admissions: list[tuple[int, int]] = []
        self.outputs: list[tuple[int, int]] = []

    def copy(self) -> Pool:
        """As it is now; it has the meters in common, which are only asked what they are."""
        twin = Pool(self.meters.copy())
        twin.opened, twin.admissions, twin.outputs = self.opened, self.admissions.copy(), self.outputs.copy()
        return twin

    def admit(self, tokens: int, now: int) -> None:
        """To be called before anything is taken."""
        if not self.admissions:
            self.opened = {unit: opening(meter, now) for unit, meter in self.meters.items()}
        self.admissions.append((now, tokens))
        self.in_flight += 1

    def taken(self, unit: str) -> Sequence[tuple[int, int]]:
        """When how much of a unit was taken."""
        if unit == "output_tokens":
            return self.outputs
        return [(at, 1) for at, _ in self.admissions] if unit == "requests" else self.admissions


class Referee:
    """Keeps the score."""

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

    def enter(self) -> None:
        self.in_flight += 1
        self.peak_in_flight = max(self.peak_in_flight, self.in_flight)

    def report(self, pools: Sequence[Pool], history: History, origin: int, epoch: int) -> Report:
        """The account of those pools that admitted anything."""
        admissions = sorted(admission for pool in pools for admission in pool.admissions)
        allowed: dict[str, float] = {}
        use: dict[str, float] = {}
        peak: dict[str, int] = {}
        for unit, limits in history.items():
            rate = limits[-1][1]
            taken = [pool.taken(unit) for pool in pools]
            if rate is None or not admissions:
                continue
            peak[unit] = max(most_within(events, rate.per_ns) for events in taken)
            shares = [_permitted(pool, unit, limits, epoch) for pool in pools]
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
            output_tokens=sum(tokens for pool in pools for _, tokens in pool.outputs),
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


def _permitted(pool: Pool, unit: str, limits: Sequence[tuple[int, Rate | None]], epoch: int) -> float | None:
    meter, opened = pool.meters.get(unit), pool.opened.get(unit)
    if meter is None or opened is None:
        return None
    first, last = pool.admissions[0][0], pool.admissions[-1][0]
    if unit == "output_tokens" and pool.outputs:
        last = max(last, pool.outputs[-1][0])
    return permitted(meter, limits, opened, first, last, epoch)
