"""Pure. The same rates for a million keys, each key a bucket of its own and one number a rate."""

from __future__ import annotations

from ..gate.bucket import RateRule
from ..hints import Hashable, Mapping, Sequence
from ..limits import COLUMNS, REQUESTS, Rate

# The state of a bucket that nothing was ever taken from: full since before any clock started.
_UNUSED = -(1 << 256)

# The lowest bits of a key's first number count its calls under way.
_COUNT_BITS = 16
_MOST_COUNTED = (1 << _COUNT_BITS) - 1


class _LentRule(RateRule):
    """A bucket that is lent to many keys in turn, none of which ever settles."""

    __slots__ = ()

    def _note_low(self, now: int, backlog: int) -> None:
        pass  # a memory for refunds would be of the wrong key


class KeyedRates:
    """The same rates for any number of keys, each key a bucket of its own and one number a rate.

    A bucket that has filled up again is as good as new, so it is forgotten: whoever was not
    touched for as long as the emptiest bucket takes to fill is dropped with its generation.

    The lowest bits of a key's first number count the calls that were taken and not released.
    """

    __slots__ = ("_fill", "_old", "_rules", "_turn_at", "_young")

    def __init__(self, rates: Sequence[Rate], columns: Mapping[str, int] = COLUMNS) -> None:
        # The arithmetic of a bucket, lent to one key at a time.
        self._rules = tuple(_LentRule(rate, columns[rate.unit]) for rate in rates)
        self._fill = max(-(-(rule._most + rule._tolerance) // rule._scale) for rule in self._rules)
        self._turn_at: int | None = None
        self._young: dict[Hashable, int | tuple[int, ...]] = {}
        self._old: dict[Hashable, int | tuple[int, ...]] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def enter(self, key: Hashable, cost: tuple[int, ...], now: int) -> bool:
        """Take the cost from the key's buckets if it fits all of them, or change nothing."""
        count = self._lend(key, now)
        rules = self._rules
        if len(rules) == 1:
            entered = bool(rules[0].enter(cost, now))
        else:
            entered = all(rule.fits(cost, now) for rule in rules)
            if entered:
                for rule in rules:
                    rule.enter(cost, now)
        if entered:
            self._store(key, count + 1)
        return entered

    def release(self, key: Hashable, now: int, *, refund: bool) -> None:
        """A call that was taken is over. Does nothing if none is known to be under way."""
        count = self._lend(key, now)
        if count:
            if refund:
                for rule in self._rules:
                    if rule.column == REQUESTS:
                        rule.give_back(1, now)
            self._store(key, count - 1)

    def look(self, key: Hashable, now: int) -> tuple[tuple[RateRule, ...], int]:
        """The key's rules, to be looked at before another key is lent them; and its calls under way."""
        count = self._lend(key, now)
        return self._rules, count

    def move_out(self, key: Hashable, now: int) -> tuple[tuple[RateRule, ...], int] | None:
        """Rules of its own for a key that needs more than a number; None if it has not been used."""
        if self._find(key, now) is None:
            return None
        count = self._lend(key, now)
        del self._young[key]
        own = tuple(RateRule(rule.rate, rule.column) for rule in self._rules)
        for rule, lent in zip(own, self._rules, strict=True):
            rule._earned = lent._earned
        return own, count

    def forget(self, key: Hashable) -> None:
        self._young.pop(key, None)
        self._old.pop(key, None)

    def refusal(self, cost: tuple[int, ...]) -> tuple[str, str] | None:
        """Why this cost can never be taken, and which rate says so; or None."""
        for rule in self._rules:
            why = rule.refusal(cost)
            if why is not None:
                return why, rule.name
        return None

    def _find(self, key: Hashable, now: int) -> int | tuple[int, ...] | None:
        if self._turn_at is None or now >= self._turn_at:
            late = self._turn_at is not None and now >= self._turn_at + self._fill
            self._old = {} if late else self._young
            self._young = {}
            self._turn_at = now + self._fill
        state = self._young.get(key)
        if state is None and self._old:
            state = self._old.pop(key, None)
            if state is not None:
                self._young[key] = state
        return state

    def _lend(self, key: Hashable, now: int) -> int:
        """Put the rules where the key stands, and answer how many of its calls are under way."""
        state = self._find(key, now)
        rules = self._rules
        if state is None:
            for rule in rules:
                rule._earned = _UNUSED
            return 0
        if isinstance(state, int):
            rules[0]._earned = state >> _COUNT_BITS
            return state & _MOST_COUNTED
        rules[0]._earned = state[0] >> _COUNT_BITS
        for rule, earned in zip(rules[1:], state[1:], strict=True):
            rule._earned = earned
        return state[0] & _MOST_COUNTED

    def _store(self, key: Hashable, count: int) -> None:
        rules = self._rules
        # More calls than tokens cannot be under way: those who never release are not counted for ever.
        count = min(count, rules[0].rate.amount, _MOST_COUNTED)
        first = rules[0]._earned << _COUNT_BITS | count
        self._young[key] = first if len(rules) == 1 else (first, *(rule._earned for rule in rules[1:]))
