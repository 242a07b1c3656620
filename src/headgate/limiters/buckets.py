"""Pure. The same rates for a million keys: each key has its own buckets, stored as one integer per rate."""

from __future__ import annotations

from ..gate.bucket import RateRule
from ..hints import Hashable, Mapping, Sequence
from ..limits import COLUMNS, REQUESTS, Rate

# The state of a bucket that nothing was ever taken from: full since before any clock started.
_UNUSED = -(1 << 256)

# The lowest bits of a key's first integer count its calls that were not released.
_COUNT_BITS = 16
_MOST_COUNTED = (1 << _COUNT_BITS) - 1


class _LoadedBucket(RateRule):
    """The bucket of the key that was loaded last. Its calls are never settled."""

    __slots__ = ()

    def _note_low(self, now: int, backlog: int) -> None:
        pass  # only refunds of settled calls need the low marks

    def enter(self, cost: tuple[int, ...], now: int) -> int:
        """Take the cost if it fits now and answer 1, or change nothing and answer 0."""
        # As that of any bucket, without low marks.
        ticks = now if self.ticks_per_ns == 1 else now * self.ticks_per_ns
        need = cost[self.column] * self.unit_ticks
        earned = self.earned_at
        if need > self.most_ticks:
            return 0
        if earned <= ticks:
            self.earned_at = ticks + need
            return 1
        after = earned + need
        if after > ticks + self.burst_ticks:
            return 0 if need else 1  # what costs nothing is never in the way
        self.earned_at = after
        return 1


class KeyedRates:
    """Buckets for any number of keys, all with the same rates.

    A full bucket is as good as a new one, so it is forgotten: a key that was not used for the time that
    the emptiest bucket takes to fill is dropped together with all keys of its generation.
    """

    __slots__ = ("_ends_at", "_fill", "_old", "_rules", "_young")

    def __init__(self, rates: Sequence[Rate], columns: Mapping[str, int] = COLUMNS) -> None:
        self._rules = tuple(_LoadedBucket(rate, columns[rate.unit]) for rate in rates)
        # No bucket takes longer to fill: at most its largest cost is missing, or its burst.
        self._fill = max(
            -(-(max(rate.amount, rate.burst) + rate.burst) * rate.per_ns // rate.amount) for rate in rates
        )
        self._ends_at: int | None = None  # the end of the young generation
        self._young: dict[Hashable, int | tuple[int, ...]] = {}
        self._old: dict[Hashable, int | tuple[int, ...]] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def enter(self, key: Hashable, cost: tuple[int, ...], now: int) -> bool:
        """Take the cost from the key's buckets if it fits all of them; otherwise change nothing."""
        count = self._load(key, now)
        rules = self._rules
        if len(rules) == 1:
            entered = bool(rules[0].enter(cost, now))
        else:
            entered = all(rule.fits(cost, now) for rule in rules)
            if entered:
                for rule in rules:
                    rule.enter(cost, now)
        if entered:
            self._save(key, count + 1)
        return entered

    def release(self, key: Hashable, now: int, *, refund: bool) -> None:
        """Count one call of the key less, if there is one, and give its request back if `refund` says so."""
        count = self._load(key, now)
        if count:
            if refund:
                for rule in self._rules:
                    if rule.column == REQUESTS:
                        rule.give_back(1, now)
            self._save(key, count - 1)

    def look(self, key: Hashable, now: int) -> tuple[tuple[RateRule, ...], int]:
        """The key's rules, valid until another key is loaded, and the number of its calls."""
        count = self._load(key, now)
        return self._rules, count

    def extract(self, key: Hashable, now: int) -> tuple[tuple[RateRule, ...], int] | None:
        """Remove a key and return rules of its own and the number of its calls; None if it was unused."""
        if self._find(key, now) is None:
            return None
        count = self._load(key, now)
        del self._young[key]
        own = tuple(RateRule(rule.rate, rule.column) for rule in self._rules)
        for rule, loaded in zip(own, self._rules, strict=True):
            rule.earned_at = loaded.earned_at
        return own, count

    def forget(self, key: Hashable) -> None:
        self._young.pop(key, None)
        self._old.pop(key, None)

    def refusal(self, cost: tuple[int, ...]) -> tuple[str, str] | None:
        """Why this cost can never be taken, and the name of the rate that says so; or None."""
        for rule in self._rules:
            why = rule.refusal(cost)
            if why is not None:
                return why, rule.name
        return None

    def _find(self, key: Hashable, now: int) -> int | tuple[int, ...] | None:
        """The state of a key, moved to the young generation; begins a new generation when it is time."""
        if self._ends_at is None or now >= self._ends_at:
            late = self._ends_at is not None and now >= self._ends_at + self._fill
            self._old = {} if late else self._young
            self._young = {}
            self._ends_at = now + self._fill
        state = self._young.get(key)
        if state is None and self._old:
            state = self._old.pop(key, None)
            if state is not None:
                self._young[key] = state
        return state

    def _load(self, key: Hashable, now: int) -> int:
        """Put the state of the key into the rules, and return the number of its calls."""
        state = self._find(key, now)
        rules = self._rules
        if state is None:
            for rule in rules:
                rule.earned_at = _UNUSED
            return 0
        if isinstance(state, int):
            rules[0].earned_at = state >> _COUNT_BITS
            return state & _MOST_COUNTED
        rules[0].earned_at = state[0] >> _COUNT_BITS
        for rule, earned_at in zip(rules[1:], state[1:], strict=True):
            rule.earned_at = earned_at
        return state[0] & _MOST_COUNTED

    def _save(self, key: Hashable, count: int) -> None:
        rules = self._rules
        # There cannot be more calls than the rate has units: calls that are never released stop counting.
        count = min(count, rules[0].rate.amount, _MOST_COUNTED)
        first = rules[0].earned_at << _COUNT_BITS | count
        self._young[key] = first if len(rules) == 1 else (first, *(rule.earned_at for rule in rules[1:]))
