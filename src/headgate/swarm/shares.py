"""Pure. How a total is divided among members, and the book of what each of them may be using.

Rules of this room: integers, `now` as an argument. Nothing is given that is not known to be free: whoever
gets less may go on using what it had until it says that it has heard, or its lease is certainly over.
"""

from __future__ import annotations

from .rounds import ROUND

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

# The total, in parts: any number of members up to twenty divides it without a remainder, and half of it too.
WHOLE = 465_585_120
HALF = WHOLE // 2

_LONG_AGO = -(1 << 62)


def divide(
    whole: int, wants: Mapping[str, int], weights: Mapping[str, int], least: int = 0
) -> dict[str, int]:
    """Weighted max-min: everybody gets `least`, and nobody waits while another has more than it wants.

    What nobody wants goes to those who have least, so that whoever begins to need it has it. Never more
    than the whole.

    >>> divide(100, {"idle": 10, "busy": 90, "busier": 200}, {})
    {'busier': 45, 'busy': 45, 'idle': 10}
    >>> divide(100, {"idle": 0, "busy": 60, "also idle": 10}, {})
    {'also idle': 20, 'busy': 60, 'idle': 20}
    """
    order = sorted(wants)
    if not order:
        return {}
    least = min(least, whole // len(order))
    asked = {key: max(least, min(wants[key], whole)) for key in order}
    plenty = sum(asked.values()) <= whole

    def parts(worth: int) -> dict[str, int]:
        """What everybody gets if a weight of one is worth so much."""
        if plenty:
            return {key: max(asked[key], worth * weights.get(key, 1)) for key in order}
        return {key: max(least, min(asked[key], worth * weights.get(key, 1))) for key in order}

    low, high = 0, whole  # as much as possible
    while low < high:
        worth = (low + high + 1) // 2
        if sum(parts(worth).values()) <= whole:
            low = worth
        else:
            high = worth - 1
    return parts(low)


class Line:
    """What the book says of one member."""

    __slots__ = ("at", "claim", "number", "offers", "roll", "seq", "target", "turn", "wants", "weight")

    def __init__(self, part: int, safe: int, now: int) -> None:
        self.at = now  # when it was last heard
        self.seq = -1  # of what it said last
        self.wants = WHOLE
        self.weight = 1
        self.claim = safe  # the safe part it says it has
        self.roll = -1  # the last roll call it has answered
        self.number = 1  # of the last offer; what it holds when it is first heard counts as one
        # What it was offered: (part, safe part) by number. All but the last are kept only until it
        # says that it has heard of a later one: it may be using any of them.
        self.offers = {1: (part, safe)}
        self.target = (part, safe)
        self.turn: int | None = None  # where in a round of all members it comes, of ROUND

    @property
    def offer(self) -> tuple[int, int]:
        return self.offers[self.number]

    def most(self) -> int:
        """The largest part it may be using while its lease lasts."""
        return max(max(offer) for offer in self.offers.values())

    def most_safe(self) -> int:
        """The largest it may go on with afterwards."""
        return max(safe for _part, safe in self.offers.values())

    def make_offer(self, part: int, safe: int) -> None:
        self.number += 1
        self.offers[self.number] = (part, safe)

    def accept(self, number: int) -> None:
        """It has heard of that offer: it no longer uses earlier ones."""
        if number in self.offers:
            self.offers = {other: offer for other, offer in self.offers.items() if other >= number}


class Book:
    """What every member may be using, kept by whoever leads.

    A line that was silent for `patience` has no lease any more, only its safe part; after `forget` it is
    struck out. `unknown` is kept for safe parts of members that nobody has heard of yet.
    """

    __slots__ = ("_forget", "_own", "_patience", "_planned", "lines", "unknown", "unknown_until")

    def __init__(self, own: str, patience: int, forget: int) -> None:
        self.lines: dict[str, Line] = {}
        self.unknown = 0
        self.unknown_until = _LONG_AGO
        self._own = own
        self._patience = patience
        self._forget = forget
        self._planned: tuple[frozenset[str], int] | None = None

    def silent(self, key: str, line: Line, now: int) -> bool:
        return key != self._own and now - line.at >= self._patience

    def present(self, now: int) -> list[str]:
        return [key for key, line in self.lines.items() if not self.silent(key, line, now)]

    def hear(self, key: str, seq: int, held: tuple[int, int], now: int) -> Line | None:
        """Somebody speaks, and says which part and which safe part it holds. None: that is old news."""
        line = self.lines.get(key)
        if line is None:
            line = self.lines[key] = Line(*held, now)
            self.unknown = max(0, self.unknown - held[1])
        elif seq <= line.seq:
            return None
        elif self.silent(key, line, now):
            # Its lease ran out meanwhile. It must not be renewed with the part it was of.
            line.offers = {number: (safe, safe) for number, (_part, safe) in line.offers.items()}
            line.make_offer(*line.offer)
        line.seq, line.at, line.claim = seq, now, held[1]
        return line

    def strike_out(self, key: str) -> None:
        self.lines.pop(key, None)

    def strike_out_dead(self, now: int) -> None:
        """Those silent for too long, and those whose agent runs again under another key."""
        if now >= self.unknown_until:
            self.unknown = 0
        silent = [key for key, line in self.lines.items() if self.silent(key, line, now)]
        if silent:
            alive = {agent_of(key) for key in self.lines.keys() - set(silent)}
            for key in silent:
                if now - self.lines[key].at >= self._forget or agent_of(key) in alive:
                    del self.lines[key]

    # -- giving

    def plan_if_due(self, now: int, *, demand: bool, exactly: bool = False) -> list[str]:
        """Divide anew if others are present than before; or, asked to look at the demand, if it is worth it.

        That is, if somebody would get much more, or `exactly` if anything differs. Answers whose offers are
        others now.
        """
        present = self.present(now)
        kept = self._kept(now)
        same = self._planned == (frozenset(present), kept)
        if same and not demand:
            return []
        safe = max(0, HALF - kept) // len(present)
        parts = divide(
            max(0, WHOLE - kept),
            {key: self.lines[key].wants for key in present},
            {key: self.lines[key].weight for key in present},
            safe,
        )
        if same and not exactly and all(4 * parts[key] <= 5 * self.lines[key].target[0] for key in present):
            return self.give(now)
        self._planned = (frozenset(present), kept)
        for key in present:
            self.lines[key].target = (parts[key], safe)
        for place, key in enumerate(sorted(present)):
            self.lines[key].turn = place * ROUND // len(present)
        return self.give(now)

    def _kept(self, now: int) -> int:
        """What is kept for those who are not here."""
        return self.unknown + sum(
            line.most_safe() for key, line in self.lines.items() if self.silent(key, line, now)
        )

    def give(self, now: int) -> list[str]:
        """Offer everybody its target, as far as that much is free. Answers whose offers are others now."""
        kept = self._kept(now)
        here = {key: self.lines[key] for key in self.present(now)}
        free = WHOLE - kept - sum(line.most() for line in here.values())
        free_safe = HALF - kept - sum(line.most_safe() for line in here.values())
        changed = []
        for key in sorted(here, key=lambda key: (key != self._own, key)):
            line = here[key]
            most, most_safe = line.most(), line.most_safe()
            part = min(line.target[0], most + max(0, free))
            safe = min(line.target[1], most_safe + max(0, free_safe), part)
            if (part, safe) == line.offer:
                continue
            line.make_offer(part, safe)
            if key == self._own:
                line.accept(line.number)
            free -= line.most() - most
            free_safe -= line.most_safe() - most_safe
            changed.append(key)
        return changed

    def given(self, now: int) -> bool:
        """Has everybody present been offered its target?"""
        return all(self.lines[key].offer == self.lines[key].target for key in self.present(now))


def agent_of(key: str) -> str:
    """The agent whose run this is: a key is its name, `#`, and what tells its runs apart."""
    return key.rpartition("#")[0]
