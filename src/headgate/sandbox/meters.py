"""Pure. How an API counts: buckets, fixed windows and the exact log.

Integers only, and `now` in nanoseconds is an argument. The sandbox judges whether headgate keeps limits, so
it counts with code of its own and not with that of headgate's gates.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from fractions import Fraction

from ..errors import InvalidConfig, InvalidLimit
from ..limits import Rate

KINDS = ("bucket", "fixed", "sliding")
_NO_UNIT = re.compile(r"\s*[\d_]+\s*(/|per\b)")  # the unit of a limit is its name


def read_rate(value: Rate | str, what: str, kind: str) -> Rate:
    """A limit as it is written. Unless it states a burst, its burst is the whole amount."""
    if isinstance(value, Rate):
        return value
    try:
        rate = Rate.parse(value)
    except InvalidLimit as error:
        raise InvalidConfig(f"{what}={value!r}: {error}") from None
    if rate.unit != what and not _NO_UNIT.match(value):
        example = f"{what}='{rate.amount}/minute'"
        raise InvalidConfig(f"{what}={value!r} is a rate of {rate.unit}; leave the unit out, e.g. {example}")
    if "burst" in value.split():
        if kind != "bucket":
            raise InvalidConfig(
                f"{what}={value!r}: only a bucket has a burst, and kind={kind!r}; leave out one of them"
            )
        return rate
    if rate.strict:
        return rate
    return Rate.parse(f"{rate.amount} {rate.name} burst {rate.amount}")


def write_rate(rate: Rate, kind: str) -> str:
    """A limit as it could be written here; a burst of the whole amount is left out."""
    burst = f" burst {rate.burst}" if kind == "bucket" and rate.burst != rate.amount else ""
    return f"{rate.amount}/{rate.name.partition('/')[2]}" + (" strict" if rate.strict else burst)


def meter_for(rate: Rate, kind: str, now: int, epoch: int) -> Meter:
    """A meter for a limit. A strict rate is always kept by the exact log."""
    if rate.strict or kind == "sliding":
        return Sliding(rate)
    return Fixed(rate, epoch) if kind == "fixed" else Bucket(rate, now)


class Meter:
    """One limit of one customer. Those that are not buckets count what was used of the amount."""

    def __init__(self, rate: Rate) -> None:
        self.rate = rate
        self._used = 0

    @property
    def most(self) -> int:
        """The largest cost that can ever fit."""
        return self.rate.amount

    def wait(self, cost: int, now: int) -> int | None:
        """Nanoseconds until the cost would fit: 0 is now, None is never."""
        if cost > self.most:
            return None
        self._update(now)
        return self._until(cost, now)

    def take(self, cost: int, now: int) -> None:
        """Count a cost, whether it fits or not."""
        self._update(now)
        self._used += cost

    def waste(self, now: int) -> None:
        """Count a refusal: one unit, or the rest if less is left."""
        if self.remaining(now):
            self.take(1, now)

    def remaining(self, now: int) -> int:
        """Whole units left, never below zero."""
        self._update(now)
        return max(0, self.rate.amount - self._used)

    def reset(self, now: int) -> int:
        """Nanoseconds until the whole amount is available again."""
        self._update(now)
        return self._until(self.most, now)

    def retune(self, rate: Rate, now: int) -> None:
        """Set another limit from now on. Usage so far still counts."""
        self._update(now)
        self.rate = rate

    def opening(self, now: int) -> Fraction:
        """The units that could be taken at once, before the first admission."""
        return Fraction(self.remaining(now))

    def _update(self, now: int) -> None:
        raise NotImplementedError

    def _until(self, cost: int, now: int) -> int:
        """Nanoseconds until a cost fits that can fit, when the meter is up to date."""
        raise NotImplementedError


class Bucket(Meter):
    """Refilled evenly, full at the start. One unit is `per_ns` of credit; a nanosecond brings `amount`."""

    def __init__(self, rate: Rate, now: int) -> None:
        super().__init__(rate)
        self._credit = rate.burst * rate.per_ns
        self._at = now

    @property
    def most(self) -> int:
        return self.rate.burst

    def take(self, cost: int, now: int) -> None:
        self._update(now)
        self._credit -= cost * self.rate.per_ns

    def waste(self, now: int) -> None:
        self._update(now)
        if self._credit > 0:
            self._credit = max(0, self._credit - self.rate.per_ns)

    def remaining(self, now: int) -> int:
        return int(self.opening(now))

    def retune(self, rate: Rate, now: int) -> None:
        self._update(now)
        level = self._credit * rate.per_ns // self.rate.per_ns
        self._credit = min(level, rate.burst * rate.per_ns)
        self.rate = rate

    def opening(self, now: int) -> Fraction:
        self._update(now)
        return Fraction(max(0, self._credit), self.rate.per_ns)

    def _update(self, now: int) -> None:
        if now > self._at:
            full = self.rate.burst * self.rate.per_ns
            self._credit = min(full, self._credit + (now - self._at) * self.rate.amount)
            self._at = now

    def _until(self, cost: int, now: int) -> int:  # noqa: ARG002
        short = cost * self.rate.per_ns - self._credit
        return max(0, -(-short // self.rate.amount))


class Fixed(Meter):
    """A counter that starts again with every period of the wall clock."""

    def __init__(self, rate: Rate, epoch: int) -> None:
        super().__init__(rate)
        self.epoch = epoch  # windows turn where `now + epoch` is a multiple of the period
        self._window = 0

    def retune(self, rate: Rate, now: int) -> None:
        super().retune(rate, now)
        self._window = (now + self.epoch) // rate.per_ns

    def _update(self, now: int) -> None:
        window = (now + self.epoch) // self.rate.per_ns
        if window > self._window:
            self._window = window
            self._used = 0

    def _until(self, cost: int, now: int) -> int:
        if self._used + cost <= self.rate.amount:
            return 0
        return (self._window + 1) * self.rate.per_ns - (now + self.epoch)


class Sliding(Meter):
    """Every cost with its moment: never more than *amount* in any stretch of *per*. Exact."""

    def __init__(self, rate: Rate) -> None:
        super().__init__(rate)
        self._log: deque[tuple[int, int]] = deque()

    def take(self, cost: int, now: int) -> None:
        super().take(cost, now)
        if cost:
            self._log.append((now, cost))

    def reset(self, now: int) -> int:
        self._update(now)
        return self._log[-1][0] + self.rate.per_ns - now if self._log else 0

    def opening(self, now: int) -> Fraction:  # noqa: ARG002 - usage before is freed within its first period
        return Fraction(self.rate.amount)

    def _update(self, now: int) -> None:
        log, gone = self._log, now - self.rate.per_ns
        while log and log[0][0] <= gone:
            self._used -= log.popleft()[1]

    def _until(self, cost: int, now: int) -> int:
        over = self._used + cost - self.rate.amount
        if over <= 0:
            return 0
        for at, amount in self._log:
            over -= amount
            if over <= 0:
                return at + self.rate.per_ns - now
        raise AssertionError("all usage is in the log")


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
