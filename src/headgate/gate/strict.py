"""Pure. A rate that never admits more than its amount in any stretch of its period.

What was used is a fact, and only calls make facts. A level that the far side states, a pause, and what is
unknown about the rate before this one are caps: until a certain time, less may count than the rate allows.
"""

from __future__ import annotations

from collections import deque

from ..hints import AnyRate, Sequence
from ..limits import Rate
from .bucket import LONG_AGO, RateRule

# How many groups a strict window remembers. Calls close together share one; those that are only
# known by it leave the window with the last of them: under-use of at most one part in this many.
_MOST_GROUPS = 128

# How many moments it remembers besides, each by itself. Up to here, it is exact.
_MOST_MOMENTS = 256

# How many caps it remembers by themselves. Beyond, those that end close together end as one, a little later.
_MOST_CAPS = 64

# In how many steps a cap is lifted that stands for what a bucket may have admitted.
_STEPS = 32


class StrictRule:
    """Never more than *amount* in any stretch of *per*, however the calls arrive.

    Remembers what was taken and when, twice. By groups of calls close together, of which there
    are few whatever happens; and one by one, for the latest moments. While those are all there
    are, every answer is exact. Of older ones it is only known that they belong to their group,
    and such a group counts until the last of its calls has left the window.

    A cap is [until, most, since]: before `until` no more than `most` may count. It was set at `since`, as a
    number of units beyond what counted then; so a refund of an older call makes it smaller.
    """

    __slots__ = (
        "_caps",
        "_groups",
        "_latest",
        "_merged",
        "_moments",
        "_quantum",
        "_used",
        "column",
        "name",
        "rate",
    )

    def __init__(self, rate: Rate, column: int) -> None:
        self.rate = rate
        self.column = column
        self.name = rate.name
        self._quantum = -(-rate.per_ns // _MOST_GROUPS)
        self._groups: deque[list[int]] = deque()  # [first, last, amount], oldest first
        self._moments: deque[list[int]] = deque()  # [moment, amount], the latest of what is in the groups
        self._merged = LONG_AGO  # up to here, calls are known by their group only
        self._caps: list[list[int]] = []  # [until, most, since], in no order
        self._used = 0  # by all groups
        self._latest = LONG_AGO  # a clock that goes back grants nothing again

    def enter(self, cost: tuple[int, ...], now: int) -> int:
        """Take the cost if it fits now and answer 1, or change nothing and answer 0."""
        if not self.fits(cost, now):
            return 0
        self.charge(cost[self.column], now)
        return 1

    def fits(self, cost: tuple[int, ...], now: int) -> bool:
        """Would `enter` take it?"""
        need = cost[self.column]
        return not need or need <= self.level(now)

    def earliest(self, cost: tuple[int, ...], now: int) -> int:
        """When the cost could be taken, if no other call came. At or before now: at once."""
        need = cost[self.column]
        if not need:
            return now
        at = now
        if self._caps:
            for until, most in self._limits(now):
                fits_at = max(at, self.down_to(most - need, now)) if need <= most else until
                if fits_at < until:
                    return fits_at
                at = until
        return max(at, self.down_to(self.rate.amount - need, now))

    def down_to(self, most: int, now: int) -> int:
        """When no more than `most` will count, if no other call came. At or before now: at once."""
        excess = self._used - most
        if excess <= 0:
            return now
        per = self.rate.per_ns
        moments = iter(self._moments)
        moment = next(moments, None)
        for _first, last, taken in self._groups:
            left = taken
            while moment is not None and moment[0] <= last:
                left -= moment[1]
                excess -= moment[1]
                if excess <= 0:
                    return max(now, moment[0] + per)
                moment = next(moments, None)
            excess -= left  # what is known by its group only
            if excess <= 0:
                return max(now, last + per)
        return now + per

    def slack(self, cost: tuple[int, ...], now: int) -> int:  # noqa: ARG002 - the question of every rate
        """How much lateness costs nothing: none, for what falls out of the window is gone."""
        return 0

    def refusal(self, cost: tuple[int, ...]) -> str | None:
        """Why the cost can never be taken, or None."""
        if cost[self.column] <= self.rate.amount:
            return None
        return f"a call of {cost[self.column]} {self.rate.unit} can never fit a limit of {self.rate.amount}"

    def settle(self, estimate: int, actual: int, taken_at: int, now: int) -> None:
        """Replace what was estimated at `taken_at` by what it was."""
        if actual >= estimate:
            self.charge(actual - estimate, now)
            return
        back = estimate - actual
        if self._caps:
            self._correct_caps(back, taken_at)
        if taken_at > self._merged:
            moment = next((known for known in reversed(self._moments) if known[0] <= taken_at), None)
            if moment is None or moment[0] < taken_at:
                return  # it has left the window
            back = min(back, moment[1])
            moment[1] -= back
            if not moment[1]:
                self._moments.remove(moment)
        for group in self._groups:
            if group[0] <= taken_at <= group[1]:
                back = min(back, group[2])
                group[2] -= back
                self._used -= back
                if not group[2]:
                    self._groups.remove(group)
                return

    def give_back(self, amount: int, now: int) -> None:
        """Put units back that were taken, the latest first; never above full."""
        gone = max(now, self._latest) - self.rate.per_ns
        while amount and self._groups and self._groups[-1][1] > gone:
            group = self._groups[-1]
            back, taken_at = min(amount, group[2]), group[1]
            if self._moments:  # they are the latest of all there is
                moment = self._moments[-1]
                taken_at = moment[0]
                if taken_at <= gone:
                    return
                back = min(back, moment[1])
                moment[1] -= back
                if not moment[1]:
                    self._moments.pop()
            group[2] -= back
            self._used -= back
            amount -= back
            self._correct_caps(back, taken_at)
            if not group[2]:
                self._groups.pop()

    def full(self, now: int) -> bool:
        """Is nothing missing?"""
        return self.level(now) >= self.rate.amount

    def level(self, now: int) -> int:
        """Units that could be taken at once; negative when more was used than estimated."""
        level = self.rate.amount - self.used(now)
        if self._caps and level > 0:
            most = min((most for until, most, _since in self._caps if now < until), default=self.rate.amount)
            return max(0, level + min(0, most - self.rate.amount))
        return level

    def lower(self, level: int, now: int) -> None:
        """For one period leave at most `level` units more than count now. Never raises what there is."""
        self._cap(now + self.rate.per_ns, max(0, level) + self.used(now), now)

    def hold_until(self, at: int, now: int, units: int = 1) -> None:  # noqa: ARG002 - of every rate
        """Leave nothing before that moment; what there is then was not changed by the pause."""
        self._cap(at, 0, now)

    def keep_to(self, amount: int, now: int) -> None:
        """For one period let no more than this count: more was not allowed before, and others may have it."""
        self._cap(now + self.rate.per_ns, amount, now)

    @property
    def held_until(self) -> int:
        """Nothing is left before that moment; LONG_AGO if there was no pause."""
        return max((until for until, most, _since in self._caps if not most), default=LONG_AGO)

    def _cap(self, until: int, most: int, since: int) -> None:
        """Until then, no more than `most` may count."""
        caps = [cap for cap in self._caps if since < cap[0] and (cap[0] > until or cap[1] < most)]
        if most < self.rate.amount and until > since:
            caps.append([until, most, since])
        if len(caps) > _MOST_CAPS:
            by_end: dict[int, list[int]] = {}
            for cap in caps:
                end = cap[0] + -cap[0] % self._quantum
                other = by_end.setdefault(end, cap)
                by_end[end] = [end, min(cap[1], other[1]), max(cap[2], other[2])]
            caps = list(by_end.values())
        self._caps = caps

    def _limits(self, now: int) -> list[tuple[int, int]]:
        """Until when how much may count, from now on; after the last of them, the amount."""
        limits: list[tuple[int, int]] = []
        most = self.rate.amount
        for until, bound, _since in sorted(self._caps, reverse=True):
            most = min(most, bound)
            if until > now:
                limits.append((until, most))
        return limits[::-1]

    def _correct_caps(self, units: int, taken_at: int) -> None:
        """A call of that moment used less: caps that were set while it counted were set too high."""
        for cap in self._caps:
            if taken_at <= cap[2] < taken_at + self.rate.per_ns:
                cap[1] = max(0, cap[1] - units)

    def used(self, now: int) -> int:
        """Units that still count."""
        latest = self._latest
        gone = max(now, latest) - self.rate.per_ns
        if gone >= latest:
            return 0
        used = self._used
        for first, last, taken in self._groups:
            if last > gone:
                if first <= gone:  # some of this group have left, if they are known one by one
                    for at, known in self._moments:
                        if at > gone:
                            break
                        if at >= first:
                            used -= known
                break
            used -= taken
        return used

    def charge(self, taken: int, now: int) -> None:
        """Count this from now on, whether or not it fits."""
        if not taken:
            return
        groups, moments = self._groups, self._moments
        now = self._latest = max(now, self._latest)
        gone = now - self.rate.per_ns
        if groups and groups[0][0] <= gone:
            self._drop(gone)
        if self._caps:
            self._caps = [cap for cap in self._caps if cap[0] > now]
        self._used += taken
        if groups and (now <= groups[-1][1] or now < groups[-1][0] + self._quantum):
            groups[-1][1] = now
            groups[-1][2] += taken
        else:
            groups.append([now, now, taken])
        if moments and moments[-1][0] == now:
            moments[-1][1] += taken
        elif now > self._merged:
            moments.append([now, taken])
            if len(moments) > _MOST_MOMENTS:
                self._merged = moments.popleft()[0]

    def _drop(self, gone: int) -> None:
        """Forget what has left the window."""
        groups, moments = self._groups, self._moments
        while moments and moments[0][0] <= gone:
            at, taken = moments.popleft()
            while groups[0][1] < at:
                self._used -= groups.popleft()[2]
            groups[0][0] = at + 1  # so that no call is refunded from a group that no longer has it
            groups[0][2] -= taken
            self._used -= taken
            if not groups[0][2]:
                groups.popleft()
        while groups and groups[0][1] <= gone:
            self._used -= groups.popleft()[2]

    @property
    def latest(self) -> int:
        """When something was last charged."""
        return self._latest

    # -- changing the limit, and coming back after a restart

    def follow(self, old: AnyRate, now: int) -> None:
        """Count what the rate that this one replaces is known to have used, and go by its caps.

        A bucket does not remember calls that it has earned back. What it may have admitted in the window is a
        cap; but what it would admit now, this rate admits too.
        """
        if isinstance(old, StrictRule):
            self.carry_on(old)
        elif isinstance(old, RateRule):
            self._follow_bucket(old, now)
        else:
            self.lower(old.level(now), now)

    def _follow_bucket(self, old: RateRule, now: int) -> None:
        last, used = old.last_use(now)
        if used is None:
            return  # it was never used
        self.charge(used, last)
        if old.held_until > now:
            self.hold_until(old.held_until, now)
        amount, per = self.rate.amount, self.rate.per_ns
        at_least = self.used(now) + max(0, old.level(now))
        end = last + per  # by then, all that the bucket admitted has left the window
        begin = max(now, old.made_at + per)
        ends = [begin, *(begin + (end - begin) * step // _STEPS for step in range(1, _STEPS + 1))]
        for start, until in zip([now, *ends], ends, strict=False):
            earned = -(-max(0, last - max(start - per, old.made_at)) * old.rate.amount // old.rate.per_ns)
            self._cap(until, max(at_least, amount - earned), now)

    def carry_on(self, old: StrictRule) -> None:
        """Count what the other counts, and nothing else: what was used stays used."""
        self._groups = deque(list(group) for group in old._groups)
        self._moments = deque(list(moment) for moment in old._moments)
        self._merged = old._merged
        self._used = old._used
        self._latest = old._latest
        self._caps = [list(cap) for cap in old._caps]

    def mend(self) -> None:
        """After a change that was broken off half way: whatever a group holds, counts."""
        self._groups = deque(group for group in self._groups if group[2] > 0)
        self._moments.clear()
        self._merged = self._latest
        self._used = sum(group[2] for group in self._groups)

    def saved(self) -> list[int]:
        """Everything it remembers as plain integers."""
        if not self._groups:
            return []
        state = [len(self._groups)]
        for group in self._groups:
            state += group
        # Whatever is older than the first group might as well have been the moment before it.
        state.append(max(self._merged, self._groups[0][0] - 1))
        for moment in self._moments:
            state += moment
        return state

    def restore(self, state: Sequence[int], now: int) -> None:
        """Go on from what was saved. What lies in the future counts from now.

        ValueError: that was never saved.
        """
        if not state:
            return
        count = state[0]
        if not 1 <= count <= 4 * _MOST_GROUPS or not 2 + 3 * count <= len(state):
            raise ValueError(f"no state has {count} groups in {len(state)} numbers")
        flat, known = state[1 : 1 + 3 * count], state[2 + 3 * count :]
        groups = list(zip(flat[::3], flat[1::3], flat[2::3], strict=True))
        if len(known) % 2 or len(known) > 2 * _MOST_MOMENTS:
            raise ValueError(f"no state has {len(known)} numbers for its moments")
        moments = list(zip(known[::2], known[1::2], strict=True))
        _check(groups, moments, merged=state[1 + 3 * count])
        # A clock that was put back would have everything count for as long as it was put back by.
        self._merged = min(state[1 + 3 * count], now)
        for first, last, taken in groups:
            begin, end = min(first, now), min(last, now)
            if self._groups and begin <= self._groups[-1][1]:
                self._groups[-1][1] = end
                self._groups[-1][2] += taken
            else:
                self._groups.append([begin, end, taken])
            self._used += taken
        for at, taken in moments:
            moment = min(at, now)
            if self._moments and moment <= self._moments[-1][0]:
                self._moments[-1][1] += taken
            elif moment > self._merged:
                self._moments.append([moment, taken])
        self._latest = self._groups[-1][1]


def _check(groups: list[tuple[int, int, int]], moments: list[tuple[int, int]], *, merged: int) -> None:
    """Is this what a strict window may remember? It might have been written by anybody."""
    before = None
    each = iter([*moments, (None, 0)])
    at, known = next(each)
    for first, last, taken in groups:
        if first > last or taken < 1 or (before is not None and first <= before):
            raise ValueError("its groups are not in order")
        before = last
        while at is not None and at <= last:
            taken -= known  # noqa: PLW2901 - what is left of the group
            if at < first or at <= merged or known < 1 or taken < 0:
                raise ValueError("its moments are not those of its groups")
            merged = at
            at, known = next(each)
    if at is not None:
        raise ValueError("its moments are later than its groups")
