"""Pure. How an API counts: buckets, fixed windows and the exact log.

Integers only, and `now` in nanoseconds is an argument. The sandbox judges whether headgate keeps limits, so
it counts with code of its own and not with that of headgate's gates.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from fractions import Fraction
from typing import Protocol

from ..errors import InvalidConfig, InvalidLimit
from ..limits import Rate

KINDS = ("bucket", "fixed", "sliding")


class Meter(Protocol):
    """One limit of one customer."""

    rate: Rate

    def wait(self, cost: int, now: int) -> int | None:
        """Nanoseconds until the cost would fit: 0 is now, None is never."""

    def take(self, cost: int, now: int) -> None:
        """Count a cost, whether it fits or not."""

    def waste(self, now: int) -> None:
        """Count a refusal: one unit, or the rest if less is left."""

    def remaining(self, now: int) -> int:
        """Whole units left, never below zero."""

    def reset(self, now: int) -> int:
        """Nanoseconds until the whole amount is available again."""

    def retune(self, rate: Rate, now: int) -> None:
        """Set another limit from now on. Usage so far still counts."""


def read_rate(value: Rate | str, what: str, kind: str) -> Rate:
    """A limit as it is written. Unless it states a burst, its burst is the whole amount."""
    if isinstance(value, Rate):
        return value
    try:
        rate = Rate.parse(value)
    except InvalidLimit as error:
        raise InvalidConfig(f"{what}={value!r}: {error}") from None
    if "burst" in value.split():
        if kind != "bucket":
            raise InvalidConfig(
                f"{what}={value!r}: only a bucket has a burst, and kind={kind!r}; leave out one of them"
            )
        return rate
    if rate.strict:
        return rate
    return Rate.parse(f"{rate.amount} {rate.name} burst {rate.amount}")


def written(rate: Rate, kind: str) -> str:
    """A limit as it could be written here; a burst of the whole amount is left out."""
    burst = f" burst {rate.burst}" if kind == "bucket" and rate.burst != rate.amount else ""
    return f"{rate.amount}/{rate.name.partition('/')[2]}" + (" strict" if rate.strict else burst)


def meter_for(rate: Rate, kind: str, now: int, epoch: int) -> Meter:
    """A meter for a limit. A strict rate is always kept by the exact log."""
    if rate.strict or kind == "sliding":
        return Sliding(rate)
    if kind == "fixed":
        return Fixed(rate, epoch)
    return Bucket(rate, now)


class Bucket:
    """Refilled evenly, full at the start. One unit is `per_ns` of credit; a nanosecond brings `amount`."""

    def __init__(self, rate: Rate, now: int) -> None:
        self.rate = rate
        self._credit = rate.burst * rate.per_ns
        self._at = now

    def _fill(self, now: int) -> None:
        if now > self._at:
            full = self.rate.burst * self.rate.per_ns
            self._credit = min(full, self._credit + (now - self._at) * self.rate.amount)
            self._at = now

    def wait(self, cost: int, now: int) -> int | None:
        if cost > self.rate.burst:
            return None
        self._fill(now)
        short = cost * self.rate.per_ns - self._credit
        return max(0, -(-short // self.rate.amount))

    def take(self, cost: int, now: int) -> None:
        self._fill(now)
        self._credit -= cost * self.rate.per_ns

    def waste(self, now: int) -> None:
        self._fill(now)
        if self._credit > 0:
            self._credit = max(0, self._credit - self.rate.per_ns)

    def remaining(self, now: int) -> int:
        self._fill(now)
        return max(0, self._credit // self.rate.per_ns)

    def level(self, now: int) -> Fraction:
        """Units left, exactly; negative when more was taken than was there."""
        self._fill(now)
        return Fraction(self._credit, self.rate.per_ns)

    def reset(self, now: int) -> int:
        self._fill(now)
        return -(-(self.rate.burst * self.rate.per_ns - self._credit) // self.rate.amount)

    def retune(self, rate: Rate, now: int) -> None:
        self._fill(now)
        level = self._credit * rate.per_ns // self.rate.per_ns
        self._credit = min(level, rate.burst * rate.per_ns)
        self.rate = rate


class Fixed:
    """A counter that starts again with every period of the wall clock."""

    def __init__(self, rate: Rate, epoch: int) -> None:
        self.rate = rate
        self._epoch = epoch  # the wall clock when `now` was zero
        self._window = 0
        self._used = 0

    def _roll(self, now: int) -> None:
        window = (now + self._epoch) // self.rate.per_ns
        if window > self._window:
            self._window = window
            self._used = 0

    def _left_of_window(self, now: int) -> int:
        return (self._window + 1) * self.rate.per_ns - (now + self._epoch)

    def wait(self, cost: int, now: int) -> int | None:
        if cost > self.rate.amount:
            return None
        self._roll(now)
        return 0 if self._used + cost <= self.rate.amount else self._left_of_window(now)

    def take(self, cost: int, now: int) -> None:
        self._roll(now)
        self._used += cost

    def waste(self, now: int) -> None:
        self._roll(now)
        self._used += self._used < self.rate.amount

    def remaining(self, now: int) -> int:
        self._roll(now)
        return max(0, self.rate.amount - self._used)

    def reset(self, now: int) -> int:
        self._roll(now)
        return self._left_of_window(now) if self._used else 0

    def retune(self, rate: Rate, now: int) -> None:
        self._roll(now)
        self.rate = rate
        self._window = (now + self._epoch) // rate.per_ns


class Sliding:
    """Every cost with its moment: never more than *amount* in any stretch of *per*. Exact."""

    def __init__(self, rate: Rate) -> None:
        self.rate = rate
        self._log: deque[tuple[int, int]] = deque()
        self._used = 0

    def _forget(self, now: int) -> None:
        log, gone = self._log, now - self.rate.per_ns
        while log and log[0][0] <= gone:
            self._used -= log.popleft()[1]

    def wait(self, cost: int, now: int) -> int | None:
        if cost > self.rate.amount:
            return None
        self._forget(now)
        over = self._used + cost - self.rate.amount
        if over <= 0:
            return 0
        for at, amount in self._log:
            over -= amount
            if over <= 0:
                return at + self.rate.per_ns - now
        raise AssertionError("all usage is in the log")

    def take(self, cost: int, now: int) -> None:
        self._forget(now)
        if cost:
            self._log.append((now, cost))
            self._used += cost

    def waste(self, now: int) -> None:
        self._forget(now)
        if self._used < self.rate.amount:
            self.take(1, now)

    def remaining(self, now: int) -> int:
        self._forget(now)
        return max(0, self.rate.amount - self._used)

    def reset(self, now: int) -> int:
        self._forget(now)
        return self._log[-1][0] + self.rate.per_ns - now if self._log else 0

    def retune(self, rate: Rate, now: int) -> None:
        self._forget(now)
        self.rate = rate


def opening(meter: Meter, now: int) -> Fraction:
    """The units that could be taken at once, before the first admission."""
    if isinstance(meter, Bucket):
        return max(Fraction(0), meter.level(now))
    # A sliding window frees earlier usage bit by bit within its first period.
    return Fraction(meter.rate.amount if isinstance(meter, Sliding) else meter.remaining(now))


def permitted(
    meter: Meter,
    history: Sequence[tuple[int, Rate | None]],
    opened: Fraction,
    first: int,
    last: int,
    epoch: int,
) -> float | None:
    """The most units that a limit allowed from the first admission to the last, both included.

    *history* lists each limit with the moment from which it held. None if there was no limit for a while.
    """
    total = opened
    before: Rate | None = None
    ends = [since for since, _ in history[1:]]
    for (since, rate), until in zip(history, [*ends, last + 1], strict=True):
        if until <= first or since > last:
            continue
        if rate is None:
            return None
        start, end = max(since, first), min(until, last)
        if isinstance(meter, Bucket):
            total += Fraction(rate.amount * (end - start), rate.per_ns)
        else:
            offset = epoch if isinstance(meter, Fixed) else -first
            total += rate.amount * ((end + offset) // rate.per_ns - (start + offset) // rate.per_ns)
            total += max(0, rate.amount - before.amount) if before is not None else 0
        before = rate
    return float(total)


def most_within(events: Sequence[tuple[int, int]], period: int) -> int:
    """The largest sum of costs in any stretch of that length, one end of it excluded."""
    most = total = start = 0
    for at, cost in events:
        total += cost
        while events[start][0] <= at - period:
            total -= events[start][1]
            start += 1
        most = max(most, total)
    return most
