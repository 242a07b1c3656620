"""Pure. How a total is divided among members, and what each of them may be using.

Rules of this room: integers, `now` as an argument. Only what is known to be free is offered: a member that is
offered less may go on using what it had, until it says that it has heard or its lease is certainly over.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from .rules import NEVER, ROUND

# The total, in parts: up to twenty members divide it, and half of it, without a remainder.
WHOLE = 465_585_120
HALF = WHOLE // 2

# The share and the safe share of members, by key.
Held: TypeAlias = Mapping[str, tuple[int, int]]


def divide(
    whole: int, wants: Mapping[str, int], weights: Mapping[str, int], least: int = 0
) -> dict[str, int]:
    """Weighted max-min: every member gets `least`, and none lacks while another has more than it wants.

    What no member wants goes to those with the least, so that a member has it when it begins to need it. The
    sum is never more than the whole.

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

    def shares(worth: int) -> dict[str, int]:
        """The share of each member if a weight of one is worth that much."""
        if plenty:
            return {key: max(asked[key], worth * weights.get(key, 1)) for key in order}
        return {key: max(least, min(asked[key], worth * weights.get(key, 1))) for key in order}

    low, high = 0, whole  # the largest worth whose shares fit into the whole lies between them
    while low < high:
        worth = (low + high + 1) // 2
        if sum(shares(worth).values()) <= whole:
            low = worth
        else:
            high = worth - 1
    return shares(low)


class MemberShare:
    """What the leader knows of one member, and what it offered to it.

    A member uses its share while it has a lease, and its safe share without one.
    """

    def __init__(self, share: int, safe: int, now: int) -> None:
        self.heard_at = now
        self.seq = -1  # number of its last report
        self.wants = WHOLE
        self.weight = 1
        self.claim = safe  # the safe share that it says it has
        self.answered = -1  # number of the last heartbeat it has answered
        self.number = 1  # number of the last offer; what it holds when it is first heard counts as an offer
        # Offers as (share, safe share) by number. Earlier ones than the last are kept until the member says
        # that it has heard of a later one: it may be using any of them.
        self.offers = {1: (share, safe)}
        self.target = (share, safe)
        self.place: int | None = None  # where in a round of all members it comes, from 0 to ROUND

    @property
    def offer(self) -> tuple[int, int]:
        return self.offers[self.number]

    def largest(self) -> int:
        """The largest share it may be using while its lease lasts."""
        return max(max(offer) for offer in self.offers.values())

    def largest_safe(self) -> int:
        """The largest safe share it may be using after its lease."""
        return max(safe for _share, safe in self.offers.values())

    def make_offer(self, share: int, safe: int) -> None:
        self.number += 1
        self.offers[self.number] = (share, safe)

    def accept(self, number: int) -> None:
        """The member has heard of that offer: it no longer uses earlier ones."""
        if number in self.offers:
            self.offers = {other: offer for other, offer in self.offers.items() if other >= number}


class Shares:
    """What every member may be using, kept by the leader.

    A member that was silent for `patience` has no lease any more, only its safe share; after `forget` it is
    removed. `unknown` is reserved for safe shares of members that this leader has not heard yet.
    """

    def __init__(self, own: str, patience: int, forget: int) -> None:
        self.members: dict[str, MemberShare] = {}
        self.unknown = 0
        self.unknown_until = NEVER
        self._own = own
        self._patience = patience
        self._forget = forget
        self._planned: tuple[frozenset[str], int] | None = None

    def silent(self, key: str, now: int) -> bool:
        return key != self._own and now - self.members[key].heard_at >= self._patience

    def present(self, now: int) -> list[str]:
        return [key for key in self.members if not self.silent(key, now)]

    def hear(self, key: str, seq: int, held: tuple[int, int], now: int) -> MemberShare | None:
        """A member reports the share and the safe share it holds. None: a later report came before."""
        member = self.members.get(key)
        if member is None:
            member = self.members[key] = MemberShare(*held, now)
            self.unknown = max(0, self.unknown - held[1])
        elif seq <= member.seq:
            return None
        elif self.silent(key, now):
            # Its lease ran out meanwhile. It must not be renewed with the share it was for.
            member.offers = {number: (safe, safe) for number, (_share, safe) in member.offers.items()}
            member.make_offer(*member.offer)
        member.seq, member.heard_at, member.claim = seq, now, held[1]
        return member

    def remove_dead(self, now: int) -> None:
        """Remove members silent for too long, and silent ones whose agent runs again under another key."""
        if now >= self.unknown_until:
            self.unknown = 0
        silent = [key for key in self.members if self.silent(key, now)]
        if silent:
            alive = {agent_of(key) for key in self.members.keys() - set(silent)}
            for key in silent:
                if now - self.members[key].heard_at >= self._forget or agent_of(key) in alive:
                    del self.members[key]

    # -- offering

    def plan_if_due(self, now: int, *, demand: bool, exactly: bool = False) -> list[str]:
        """Divide again if other members are present than before, or for `demand` if it is worth it.

        It is worth it if a member would get much more, or with `exactly` if any share differs. Returns the
        keys of the members with a new offer.
        """
        present = self.present(now)
        reserved = self._reserved(now)
        same = self._planned == (frozenset(present), reserved)
        if demand or not same:
            safe = max(0, HALF - reserved) // len(present)
            shares = divide(
                max(0, WHOLE - reserved),
                {key: self.members[key].wants for key in present},
                {key: self.members[key].weight for key in present},
                safe,
            )
            much_more = any(4 * shares[key] > 5 * self.members[key].target[0] for key in present)
            if exactly or much_more or not same:
                self._planned = (frozenset(present), reserved)
                for place, key in enumerate(sorted(present)):
                    self.members[key].target = (shares[key], safe)
                    self.members[key].place = place * ROUND // len(present)
        return self._offer_targets(now)

    def _reserved(self, now: int) -> int:
        """What is reserved for members that are silent or unknown."""
        silent = (member for key, member in self.members.items() if self.silent(key, now))
        return self.unknown + sum(member.largest_safe() for member in silent)

    def _offer_targets(self, now: int) -> list[str]:
        """Offer each member its target as far as that much is free. Returns the keys with a new offer."""
        reserved = self._reserved(now)
        present = {key: self.members[key] for key in self.present(now)}
        free = WHOLE - reserved - sum(member.largest() for member in present.values())
        free_safe = HALF - reserved - sum(member.largest_safe() for member in present.values())
        changed = []
        for key in sorted(present, key=lambda key: (key != self._own, key)):
            member = present[key]
            largest, largest_safe = member.largest(), member.largest_safe()
            share = min(member.target[0], largest + max(0, free))
            safe = min(member.target[1], largest_safe + max(0, free_safe), share)
            if (share, safe) == member.offer:
                continue
            member.make_offer(share, safe)
            if key == self._own:
                member.accept(member.number)
            free -= member.largest() - largest
            free_safe -= member.largest_safe() - largest_safe
            changed.append(key)
        return changed


def agent_of(key: str) -> str:
    """The agent of a member's key, which is the agent's id, `#`, and what tells its runs apart."""
    return key.rpartition("#")[0]
