"""Pure. An API that limits its callers, and the best that any client could do against it.

Times are integer nanoseconds, and chance comes from a seeded generator. It counts with the meters of the
sandbox and not with the code that is judged.
"""

from dataclasses import dataclass
from heapq import heapify, heapreplace
from random import Random

from headgate.arguments import SECOND
from headgate.sandbox.meters import meter_for, read_rate
from headgate.sandbox.styles import STYLES
from headgate.sandbox.styles.formats import http_date
from headgate.sandbox.styles.values import MeterLevel

WALL = 1_800_000_000 * SECOND  # the wall clock at the start, a whole minute
NEVER = 1 << 62


@dataclass(frozen=True)
class Limits:
    """How an API limits one customer."""

    limit: str = "1200/minute burst 20"
    kind: str = "bucket"  # or "fixed": a counter that starts again with every period, or "sliding"
    phase: float = 0.0  # how many seconds of a period have passed at the start
    style: str | None = "openai"  # how limits are stated in headers; None if they are not
    advice: bool = True  # whether a refusal says in headers when to come back
    changes: tuple[tuple[float, str], ...] = ()  # from that second on, another limit
    outages: tuple[tuple[float, float, int], ...] = ()  # from, to, and the status of every answer
    empty: bool = False  # whether other clients have used everything up at the start
    neighbour: float = 0.0  # the part of the limit that another client asks for, at random moments


class Api:
    """Judges the requests that arrive. The calls must come in the order of time."""

    def __init__(self, limits, seed=0):
        self.limits = limits
        self._fixed = limits.kind != "bucket"
        self._style = None if limits.style is None else STYLES[limits.style]()
        self._epoch = WALL + round(limits.phase * SECOND)
        rate = read_rate(limits.limit, "limit", limits.kind)
        self.meter = meter_for(rate, limits.kind, 0, self._epoch)
        if limits.empty:
            self.meter.take(self.meter.remaining(0), 0)
        self._changes = [
            (round(at * SECOND), read_rate(limit, "limit", limits.kind)) for at, limit in limits.changes
        ]
        self._outages = [
            (round(start * SECOND), round(end * SECOND), status) for start, end, status in limits.outages
        ]
        self._dice = Random(f"neighbour {seed}")
        self._neighbour = limits.neighbour * rate.amount / rate.per_ns  # calls a nanosecond
        self._neighbour_at = self._gap() if self._neighbour else NEVER
        self.neighbours = []  # when a call of another client was admitted

    def _gap(self):
        return round(self._dice.expovariate(self._neighbour)) + 1

    def _next_event(self):
        return min(self._changes[0][0] if self._changes else NEVER, self._neighbour_at)

    def _catch_up(self, now):
        while (at := self._next_event()) <= now:
            if at == self._neighbour_at:
                if self._outage(at) is None and self.meter.wait(1, at) == 0:
                    self.meter.take(1, at)
                    self.neighbours.append(at)
                self._neighbour_at = at + self._gap()
            else:
                self.meter.retune(self._changes.pop(0)[1], at)

    def _outage(self, now):
        return next((outage for outage in self._outages if outage[0] <= now < outage[1]), None)

    def judge(self, now):
        """A request arrives: the status and the headers of the answer to it."""
        self._catch_up(now)
        outage = self._outage(now)
        if outage is not None:
            return outage[2], ()
        meter = self.meter
        wait = meter.wait(1, now)
        if wait == 0:
            meter.take(1, now)
        return 429 if wait else 200, self._headers(wait, now)

    def _headers(self, wait, now):
        style = self._style
        if style is None:
            return ()
        meter, wall = self.meter, self._epoch + now
        level = MeterLevel("requests", meter.rate, meter.remaining(now), meter.reset(now))
        advice = style.advice(wait) if wait and self.limits.advice else []
        return [("date", http_date(wall // SECOND)), *style.budget([level], wall), *advice]

    def wall(self, now):
        """The wall clock in seconds."""
        return (self._epoch + now) / SECOND

    def take_at_once(self, now):
        """Take a place as soon as there is one, as a client could that knew everything; its moment."""
        while True:
            self._catch_up(now)
            outage = self._outage(now)
            wait = outage[1] - now if outage is not None else self.meter.wait(1, now)
            if wait == 0:
                self.meter.take(1, now)
                return now
            now = min(now + wait, self._next_event())


def ideal_end(limits, jobs, *, callers, services, delay=0, seed=0):
    """When the last of `jobs` answers could have come. `services` gives how long each answer takes."""
    api = Api(limits, seed)
    free = [0] * min(callers, jobs)
    heapify(free)
    arrived = end = 0
    for _ in range(jobs):
        arrived = api.take_at_once(max(arrived, free[0] + delay))
        answered = arrived + next(services)
        heapreplace(free, answered)
        end = max(end, answered)
    return end


def room(limits, start, end):
    """How many calls the limit allows between two seconds, to a client that has used all of it before."""
    api = Api(limits)
    now = api.take_at_once(0)
    count = 0
    while now < end * SECOND:
        count += now >= start * SECOND
        now = api.take_at_once(now)
    return count
