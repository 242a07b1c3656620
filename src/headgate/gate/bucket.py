"""Pure. A rate that refills evenly: a bucket.

Integers only. Time inside a bucket is counted in ticks, as many to the nanosecond as make one unit cost
a whole number of ticks, so there is never a remainder to carry, a million polls change nothing, and an
edge is exact.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from math import gcd

from ..hints import AnyRate
from ..limits import Rate

# Before any clock started: a bucket that nothing was ever taken from.
LONG_AGO = -(1 << 256)

# How many low-water marks a bucket remembers for refunds. Beyond it, neighbours merge and
# a refund may come out smaller than it could have been, never larger.
_MOST_LOWS = 64

# How many moments a bucket remembers for `spent_since`. Between them the answer is less exact.
_MOST_MARKS = 512


class RateRule:
    """Admits no faster than its Rate: a bucket that refills evenly (GCRA).

    The state is one number, the moment at which everything taken so far will have been
    earned back. A bucket is full when that moment is past. A cost above the burst waits
    for a full bucket and leaves debt, so that it is slow but never impossible.
    """

    __slots__ = (
        "burst",
        "burst_ticks",
        "column",
        "distance",
        "earned_at",
        "fact",
        "full_at",
        "held_until",
        "low_ticks",
        "low_times",
        "made_at",
        "mark_times",
        "marks",
        "most_ticks",
        "moved",
        "name",
        "rate",
        "ticks_per_ns",
        "unit_ticks",
    )

    def __init__(self, rate: Rate, column: int) -> None:
        self.rate = rate
        self.column = column
        self.name = rate.name
        divisor = gcd(rate.per_ns, rate.amount)
        self.unit_ticks = rate.per_ns // divisor  # ticks to earn one unit
        self.ticks_per_ns = rate.amount // divisor  # ticks in a nanosecond
        self.burst = rate.burst  # how many units the far side allows at once ...
        self.distance = 0  # ... from which calls keep what comes back in this time
        self.burst_ticks = rate.burst * self.unit_ticks
        self.most_ticks = max(rate.amount, rate.burst) * self.unit_ticks  # what one call may take
        self.earned_at = LONG_AGO  # in ticks
        self.held_until = LONG_AGO  # until then nothing is left, whatever the rate
        self.made_at = LONG_AGO  # before that it admitted nothing
        # For refunds: how low the backlog has been since a permit was given out. When the
        # bucket was last found full, and each take that found the backlog lower than every
        # later one did; times ascend and so do the ticks. What is older than the full bucket
        # concerns no permit that may still be refunded.
        self.full_at = LONG_AGO
        self.low_times: list[int] = []
        self.low_ticks: list[int] = []
        # For `spent_since`: by how many ticks `earned_at` was moved by anything but calls, and both figures
        # at moments of the past.
        self.moved = 0
        self.fact = 0  # what calls alone had taken, at the last of these moments
        self.mark_times: list[int] = []
        self.marks: list[tuple[int, int]] = []

    # -- admission

    def enter(self, cost: tuple[int, ...], now: int) -> int:
        """Take the cost if it fits now and answer 1, or change nothing and answer 0."""
        # Comparing with one is quicker than multiplying by it, and it nearly always is one.
        ticks = now if self.ticks_per_ns == 1 else now * self.ticks_per_ns
        amount = cost[self.column]
        if amount == 1:
            need = self.unit_ticks
        else:
            need = amount * self.unit_ticks
            if need > self.most_ticks:
                return 0
        earned = self.earned_at
        if earned <= ticks:
            self.earned_at = ticks + need
            self.full_at = now
            return 1
        after = earned + need
        if after > ticks + self.burst_ticks:
            return 0 if after > earned else 1  # what costs nothing is never in the way
        times = self.low_times
        last = times[-1] if times else LONG_AGO
        if last != now:  # within an instant the backlog only rises
            backlog, lows = earned - ticks, self.low_ticks
            if last < now and len(lows) < _MOST_LOWS and (not lows or lows[-1] < backlog):
                times.append(now)  # as `_note_low`, without the call
                lows.append(backlog)
            else:
                self._note_low(now, backlog)
        self.earned_at = after
        return 1

    def fits(self, cost: tuple[int, ...], now: int) -> bool:
        """Would `enter` take it?"""
        need = cost[self.column] * self.unit_ticks
        if need > self.most_ticks:
            return False
        ticks = now * self.ticks_per_ns
        earned = self.earned_at
        return earned <= ticks or earned + need <= ticks + self.burst_ticks or not need

    def earliest(self, cost: tuple[int, ...], now: int) -> int:
        """When the cost could be taken, if no other call came. At or before now: at once."""
        need = cost[self.column] * self.unit_ticks
        if not need:
            return now
        # Above the burst only a full bucket will do.
        ready = self.earned_at + min(need, self.burst_ticks) - self.burst_ticks
        return max(now, -(-ready // self.ticks_per_ns))

    def slack(self, cost: tuple[int, ...], now: int) -> int:
        """How long after `earliest` the bucket goes on filling: being that late costs nothing."""
        return max(0, self.earned_at // self.ticks_per_ns - self.earliest(cost, now))

    def refusal(self, cost: tuple[int, ...]) -> str | None:
        """Why the cost can never be taken, or None."""
        most = self.most_ticks // self.unit_ticks
        if cost[self.column] <= most:
            return None
        return f"a call of {cost[self.column]} {self.rate.unit} can never fit a limit of {most}"

    # -- after the call

    def settle(self, estimate: int, actual: int, taken_at: int, now: int) -> None:
        """Replace what was estimated at `taken_at` by what it was.

        Too little was taken: the rest becomes debt. Too much: it is given back, but only as
        far as it would still be missing, so that the bucket never holds more than one that
        had been charged the truth from the start.
        """
        if actual == estimate:
            return
        ticks = now * self.ticks_per_ns
        backlog = self.earned_at - ticks
        if actual > estimate:
            if backlog > 0:
                self._note_low(now, backlog)
            else:
                self.full_at = now
            self.earned_at = max(self.earned_at, ticks) + (actual - estimate) * self.unit_ticks
            return
        if backlog <= 0 or self.full_at > taken_at:
            return  # what was taken has been earned back already
        since = bisect_right(self.low_times, taken_at)
        lowest = min(self.low_ticks[since], backlog) if since < len(self.low_ticks) else backlog
        credit = min((estimate - actual) * self.unit_ticks, lowest)
        self.earned_at -= credit
        self.moved -= credit
        for i in range(since, len(self.low_ticks)):
            self.low_ticks[i] -= credit
        if since < len(self.low_ticks):  # older marks that are no longer the lower ones
            keep = since
            while keep and self.low_ticks[keep - 1] >= self.low_ticks[since]:
                keep -= 1
            del self.low_times[keep:since]
            del self.low_ticks[keep:since]

    def _note_low(self, now: int, backlog: int) -> None:
        times, lows = self.low_times, self.low_ticks
        while lows and lows[-1] >= backlog:
            lows.pop()
            times.pop()
        if times and now <= times[-1]:
            return  # another take of the same instant found it lower already
        times.append(now)
        lows.append(backlog)
        if len(lows) > _MOST_LOWS:  # keep the lower of each pair, for the longer time
            times[:] = times[1::2] + times[len(times) // 2 * 2 :]
            lows[:] = lows[::2]

    def give_back(self, amount: int, now: int) -> None:
        """Put units back that were taken, whenever that was; never above full."""
        ticks = now * self.ticks_per_ns
        if self.earned_at > ticks:
            self._move(max(ticks, self.earned_at - amount * self.unit_ticks), ticks)
            self._note_low(now, self.earned_at - ticks)

    # -- what the far side says is left

    def lower(self, level: int, now: int) -> None:
        """Leave at most `level` units. Never raises what there is."""
        ticks = now * self.ticks_per_ns
        lowered = ticks + self.burst_ticks - level * self.unit_ticks
        if lowered > max(ticks, self.earned_at):
            self._move(lowered, ticks)

    def raise_to(self, level: int, now: int, most: int = 0) -> None:
        """Leave at least `level` units, but not more than the burst. Never lowers what there is.

        Nor does it let more calls go than a bucket of `most` units would (of the burst, if that is more): a
        far side that always says that everything is left does not switch the limit off. What was taken so
        far gives nothing back any more: the level is another one now.
        """
        ticks = now * self.ticks_per_ns
        room = max(self.burst_ticks, most * self.unit_ticks) - self.facts(now)
        raised = ticks + max(0, self.burst_ticks - min(level * self.unit_ticks, room))
        if raised < self.earned_at:
            self._move(raised, ticks)
            self.full_at = now + 1

    def set_burst(self, units: int, now: int, distance: int | None = None) -> None:
        """Allow another number of units at once. What could be taken a moment ago still can, up to that.

        A `distance` from the burst makes room for calls that arrive later than calls sent after them: a full
        bucket of the far side goes on refilling only when the first call has arrived.
        """
        if distance is not None:
            self.distance = distance
        ticks = now * self.ticks_per_ns
        more, self.burst, self.burst_ticks = units - self.burst, units, self._ticks_of_burst(units)
        if more:
            self._move(max(ticks, max(ticks, self.earned_at) + more * self.unit_ticks), ticks)

    def _ticks_of_burst(self, units: int) -> int:
        burst = units * self.unit_ticks
        return burst - min(self.distance * self.ticks_per_ns, burst // 4)

    def hold_until(self, at: int, now: int, units: int = 1) -> None:
        """Leave nothing before that moment, and `units` then.

        What was taken so far gives nothing back beyond that, nor does what is taken in this instant.
        """
        held = at * self.ticks_per_ns + self.burst_ticks - units * self.unit_ticks
        if held < self.earned_at:
            self._note_low(now + 1, self.earned_at - held)
            return
        self.full_at = now + 1
        self._move(held, now * self.ticks_per_ns)
        self.held_until = at

    def _move(self, earned_at: int, ticks: int) -> None:
        now = ticks // self.ticks_per_ns
        if not self.marks:
            self.mark(now)
        if self.earned_at <= ticks:  # it was full: what was taken before has been earned back
            self.full_at = max(self.full_at, now)
        self.moved += earned_at - max(ticks, self.earned_at)
        self.earned_at = earned_at
        self.mark(now)

    def mark(self, now: int) -> None:
        """Remember how much was taken up to now, for `spent_since` and `raise_to`."""
        times, marks = self.mark_times, self.marks
        mark = (self.earned_at, self.moved)
        if times and times[-1] >= now:
            if times[-1] == now and marks[-1] == mark:
                return
            self.fact = self.facts(now)
            times.pop()
            marks.pop()
        else:
            self.fact = self.facts(now)
        times.append(now)
        marks.append(mark)
        if len(times) > _MOST_MARKS:
            del times[1 : _MOST_MARKS // 2 : 2]
            del marks[1 : _MOST_MARKS // 2 : 2]

    def facts(self, now: int) -> int:
        """At most how many ticks the calls alone have taken that are not earned back, whatever was said."""
        ticks = now * self.ticks_per_ns
        if not self.marks:
            return max(0, self.earned_at - ticks)
        (earned, moved), at = self.marks[-1], self.mark_times[-1] * self.ticks_per_ns
        without_moves = self.earned_at - self.moved + moved
        # A bucket that starts with more missing never has less missing than another by the same calls.
        missing = without_moves - ticks if without_moves > ticks else 0  # `max` would take longer
        most = self.fact - ticks + at if self.fact > ticks - at else 0
        if earned > at:
            missing += self.fact - earned + at if self.fact > earned - at else 0
            most += without_moves - earned if without_moves > earned else 0
        else:
            missing += self.fact
            most += without_moves - at if without_moves > at else 0
        return missing if missing < most else most  # noqa: FURB136 - as above

    def spent_since(self, at: int) -> tuple[int, int]:
        """At least and at most how many units were taken between `at` and now.

        What lies between two marks is counted in the larger figure only.
        """
        scale, times, marks = self.ticks_per_ns, self.mark_times, self.marks
        taken = self.earned_at - self.moved
        after = bisect_left(times, at)
        least = 0
        if after < len(times):
            earned, moved = marks[after]
            if self.full_at >= times[after]:  # only what was taken since then is certain
                earned, moved = marks[bisect_right(times, self.full_at) - 1]
                earned = max(earned, self.full_at * scale)
            least = max(0, taken - earned + moved)
        before = after if after < len(times) and times[after] == at else after - 1
        # Up to `at` the bucket has earned back at least what it had earned at each of these moments. If it
        # was full before, it had earned less at that moment.
        known, moved = at * scale, 0  # nothing was moved before the first mark
        if before >= 0:
            earned, moved = marks[before]
            if earned > known:  # noqa: PLR1730 - as above
                known = earned
        most = taken - known + moved
        if most < least:  # noqa: PLR1730 - as above
            most = least
        return least // self.unit_ticks, -(-most // self.unit_ticks)

    # -- changing the limit, and looking at it

    def full(self, now: int) -> bool:
        """Is nothing missing?"""
        return self.earned_at <= now * self.ticks_per_ns

    def level(self, now: int) -> int:
        """Units that could be taken at once; negative while in debt."""
        backlog = max(0, self.earned_at - now * self.ticks_per_ns)
        return (self.burst * self.unit_ticks - backlog) // self.unit_ticks

    def last_use(self, now: int) -> tuple[int, int | None]:
        """When something was last taken, and what was missing after it; None if it was never used."""
        if self.earned_at == LONG_AGO:
            return LONG_AGO, None
        last = min(now, max([self.full_at, *self.low_times[-1:]]))
        if self.held_until > last:
            return last, 0  # it is held back, and what is missing says nothing about what was used
        return last, max(0, -(-(self.earned_at - last * self.ticks_per_ns) // self.unit_ticks))

    def follow(self, old: AnyRate, now: int) -> None:
        """Continue where the rule this one replaces stands: a change of limits creates nothing.

        What could be taken a moment ago still can, up to the new burst; nothing more.
        """
        # A mark of this instant must count for permits given out before the change. That it
        # counts for those of the same instant after it makes their refunds smaller, never larger.
        mark = now + 1
        if not isinstance(old, RateRule):
            missing = max(0, self.rate.burst - old.level(now))
            self.earned_at = now * self.ticks_per_ns + missing * self.unit_ticks
            self.low_times.append(mark)
            self.low_ticks.append(0)  # nothing of the old window can be refunded here
            if old.full(now):
                self.made_at = now
            held_until = getattr(old, "held_until", LONG_AGO)
            if held_until > now:
                self.hold_until(held_until, now)
            return
        self.made_at = old.made_at
        learned = 0 if self.rate.burst_given else min(old.burst, self.rate.amount)
        self.distance = old.distance
        self.burst = max(self.burst, learned)
        self.burst_ticks = self._ticks_of_burst(self.burst)
        # What a bucket that is held will have at the end, it has then at any rate.
        self.held_until = old.held_until
        since = max(now, old.held_until)
        backlog = max(0, old.earned_at - since * old.ticks_per_ns)
        # In ticks of this bucket, rounded so that nothing is gained.
        level = min((old.burst_ticks - backlog) * self.unit_ticks // old.unit_ticks, self.burst_ticks)
        self.earned_at = since * self.ticks_per_ns + self.burst_ticks - level
        # Refunds that are still due go on, up to where the smaller burst was full.
        self.full_at = old.full_at
        due = min(old.burst_ticks * self.unit_ticks // old.unit_ticks, self.burst_ticks) - level
        for at, low in zip(old.low_times, old.low_ticks, strict=True):
            converted = low * self.unit_ticks // old.unit_ticks
            if converted < due:
                self.low_times.append(at)
                self.low_ticks.append(converted)
        self.low_times.append(mark)
        self.low_ticks.append(due)
        fact = -(-old.facts(now) * self.unit_ticks // old.unit_ticks)
        taken = old.earned_at - old.moved
        for at, (earned, moved) in zip(old.mark_times, old.marks, strict=True):
            spent = -(-(taken - earned + moved) * self.unit_ticks // old.unit_ticks)
            self.mark_times.append(at)
            self.marks.append((self.earned_at - spent, 0))
        if self.marks or fact > self.earned_at - now * self.ticks_per_ns:
            self.mark(now)
            self.fact = fact
