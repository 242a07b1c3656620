"""Pure. Who shares a total, and who of them leads.

Rules of this room: no clock, no dice, no bus; what is to be said lies in `out`. One member leads and leases
parts of the whole. A member uses its part for `hold` after it last spoke to a leader that answered, and then
its safe part; the leader takes a part for used until `patience` after it last heard of the member. All safe
parts together are never more than half of the whole, so whoever takes over knows how much those it has not
heard may be using: half, less what the others say they have.

Where a bus cannot split, who hears itself hears everybody: a leader reigns as long as it hears its own roll
calls. Where it may, a leader needs answers by those who hold more than half of all safe parts, and there
cannot be two of those. While nobody reigns, everybody has its safe part.
"""

from __future__ import annotations

from .rounds import ROUND
from .shares import HALF, WHOLE, Book, Line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeAlias

    Term: TypeAlias = tuple[int, str]  # a number that grows with each succession, and who leads
    Letter: TypeAlias = dict[str, Any]

# Where a letter goes: to everybody, to whoever leads, to whoever answers newcomers, or to one member's key.
EVERYBODY, LEADERS, ANSWERERS = "everybody", "leaders", "answerers"

# Whatever is longer was not written by us.
_MOST_MEMBERS = 100_000
_MOST_LEFT = 1_000
_LONGEST_KEY = 256
_LARGEST = 1 << 62

# Before any leader.
_NOBODY: tuple[int, str] = (0, "")
_LONG_AGO = -(1 << 62)
_NEVER = 1 << 62

# How soon a newcomer asks again who is there, and about how many of those who know tell it to wait.
_ASK_AGAIN = 200_000_000
_TELLERS = 8
# Up to so many members everybody is let in at once; beyond it, those who come together.
_FEW = 16


class Council:
    """One member's view: what it may use, and what it has to say.

    `turn`, from 0 to a million, tells members apart where they should not all act at once.
    """

    __slots__ = (
        "_beat_at",
        "_book",
        "_deputy",
        "_echo",
        "_exactly_at",
        "_floor",
        "_forget",
        "_found_at",
        "_gone",
        "_granted",
        "_here_at",
        "_hold",
        "_leader_at",
        "_lease_from",
        "_left",
        "_on_loss",
        "_part",
        "_patience",
        "_planned_at",
        "_present_since",
        "_rivals",
        "_roll",
        "_rolls",
        "_safe",
        "_sent",
        "_seq",
        "_settle",
        "_splits",
        "_stood_at",
        "_supported_since",
        "_turn",
        "_waived",
        "_weight",
        "beat",
        "key",
        "leads",
        "out",
        "place",
        "reigns",
        "size",
        "term",
        "wants",
    )

    def __init__(
        self,
        key: str,
        *,
        lease: int,
        settle: int,
        forget: int,
        splits: bool,
        turn: int = 0,
        weight: int = 1,
        on_loss: str = "share",
    ) -> None:
        self.key = key
        self.beat = max(1, lease // 10)
        self.wants = WHOLE
        self.out: list[tuple[str, Letter]] = []
        self.term: Term = _NOBODY
        self.size = 1  # how many there are, as far as it knows
        self.leads = False  # or would, if it were supported
        self.reigns = False
        # Where in a round of all members it comes, of ROUND, as far as it was told.
        self.place: int | None = None
        # Others have the part within a lease: first we stop using it, then the leader notices, then it tells.
        self._hold = lease * 7 // 10
        self._patience = lease * 8 // 10  # clocks may run at different speeds
        self._settle = settle
        self._forget = forget
        self._splits = splits
        self._turn = turn
        self._weight = weight
        self._on_loss = on_loss
        # Of a member.
        self._part = self._safe = 0
        self._granted = 0  # the number of the offer these come from
        self._lease_from = _LONG_AGO
        self._leader_at = _LONG_AGO  # when it was last heard
        self._gone = False  # it said goodbye
        self._deputy = ""
        self._roll = 0  # the latest roll call we have heard, or held
        self._seq = 0
        self._sent: dict[int, int] = {}
        self._beat_at = _NEVER
        # Of one who has yet to find the others.
        self._found_at = _NEVER
        self._rivals: dict[str, int] = {}
        self._here_at = _LONG_AGO  # when it was told that there is a swarm
        # Of one who leads.
        self._book = Book(key, self._patience, forget)
        self._rolls: dict[int, int] = {}
        # When we said the latest that we heard ourselves, and since when without a gap.
        self._echo = self._present_since = _LONG_AGO
        self._floor = _LONG_AGO  # support that we had already, or inherited from whoever led before
        self._stood_at = _LONG_AGO
        self._supported_since: int | None = None
        self._waived = False  # too long alone to wait for the others' support
        self._planned_at = self._exactly_at = _LONG_AGO
        self._left: dict[str, None] = {}  # for good, the latest last

    # -- what it may use

    def part(self, now: int) -> int:
        """So many parts of the WHOLE."""
        if now < self.until(now) or self._on_loss == "open":
            return self._part
        return 0 if self._on_loss == "closed" else self._safe

    def until(self, now: int) -> int:
        """When what it may use becomes less by itself; in the past if it has."""
        return self._supported_until(now) if self.reigns else self._lease_from + self._hold

    @property
    def joined(self) -> bool:
        """Does it know who leads, or did it once?"""
        return self.term != _NOBODY

    def alone(self, now: int) -> bool:
        """Is it out of touch with whoever led?"""
        return self.joined and not self.reigns and now >= self.until(now)

    # -- what it does by itself

    def start(self, now: int) -> None:
        """Ask who is there."""
        self._found_at = now + self._settle
        self._send_hello(now)

    def tick(self, now: int) -> None:
        """Whatever is due by now."""
        if self.leads:
            self._lead(now)
        elif not self.joined:
            self._found_if_alone(now)
        elif now >= self._stands_at():
            self._stand(now)
        if now >= self._beat_at:
            if self.leads:
                self._call_roll(now)
            elif self.joined:
                if now - self._leader_at > self.beat * 9 // 10:
                    # Is it that nobody answers, or are we not on the bus?
                    self.out.append((self.key, {"kind": "echo", "to": self.key, "seq": self._seq + 1}))
                self._send_beat(now)
            else:
                self._send_hello(now)

    def next_at(self, now: int) -> int:
        """When `tick` is worth calling next."""
        moments = [self._beat_at, self.until(now)]
        if self.leads:
            if self._supported_since is not None and not self.reigns:
                moments.append(self._reigns_at(self._supported_since))
        else:
            moments.append(self._stands_at() if self.joined else self._found_at)
        return min((at for at in moments if at > now), default=now + self.beat)

    def hurry(self, now: int) -> None:
        """Have it speak at the next tick, e.g. because the bus is back."""
        self._beat_at = now

    def leave(self, now: int) -> None:
        """Go, and say so: others may have the part at once."""
        goodbye = {"kind": "bye", "key": self.key, "term": list(self.term)}
        self.out.append((EVERYBODY if self.leads else LEADERS, goodbye))
        heir = self._heir(now)
        if self.reigns and heir:
            lines = {key: [line.most(), line.most_safe()] for key, line in self._book.lines.items()}
            del lines[self.key]
            estate = {"kind": "estate", "term": list(self.term), "to": heir, "unknown": self._book.unknown}
            self.out.append((heir, {**estate, "lines": lines}))
        self._begin_with_nothing()

    # -- finding the others

    @property
    def answers(self) -> bool:
        """Does it care who asks? Not everybody needs to tell a newcomer that there is a swarm."""
        return self.leads or not self.joined or self._turn * self.size < _TELLERS * 1_000_000

    def hear_hello(self, letter: Letter, now: int) -> None:
        """Somebody asks who is there. ValueError, as for all letters: none of us wrote it."""
        key, seq = read_key(letter.get("key")), read_number(letter.get("seq"))
        if key == self.key:
            self._hear_itself(self._sent.get(seq), now)
        elif self.joined:
            if self.leads:
                self.hear_beat(letter, now)
            if self.answers and not self.reigns:  # somebody will let it in, if only later
                self.out.append((key, {"kind": "here", "to": key}))
        elif len(self._rivals) < _MOST_MEMBERS:
            self._rivals[key] = now

    def hear_here(self, letter: Letter, now: int) -> None:
        """There is a swarm: do not begin one."""
        if read_key(letter.get("to")) == self.key and not self.joined:
            self._here_at = now
            # If they vanish, it may be that a bus has split, or that they are only deaf and have safe parts.
            wait = self._forget if self._splits else self._patience
            self._found_at = max(self._found_at, now + wait)

    def hear_echo(self, letter: Letter, now: int) -> None:
        """Our own question, whether we are on the bus."""
        if read_key(letter.get("to")) == self.key:
            self._hear_itself(self._sent.get(read_number(letter.get("seq"))), now)

    def _found_if_alone(self, now: int) -> None:
        on_bus = now - self._echo < self._patience
        first = not any(key < self.key and now - at < self._patience for key, at in self._rivals.items())
        if now >= self._found_at and on_bus and first:
            known_of = now - self._here_at < self._forget
            if known_of and now < self._present_since + self._patience:
                return
            self._take_office((1, self.key), now)
            self._reign(now, unknown=HALF if known_of else 0)

    # -- following

    def hear_roll(self, letter: Letter, now: int) -> None:
        """Whoever leads, or would, calls."""
        term = _read_term(letter.get("term"))
        roll = read_number(letter.get("roll"))
        size = read_number(letter.get("size"), least=1, most=_MOST_MEMBERS)
        reigns, deputy = letter.get("reigns"), letter.get("deputy")
        if not isinstance(reigns, bool) or not isinstance(deputy, str):
            raise ValueError("a roll call says who calls")  # noqa: TRY004 - of a letter, not of a call
        if term[1] == self.key:
            if term == self.term and self.leads:
                self._hear_itself(self._rolls.get(roll), now)
            return
        if self.leads:
            self._hear_rival(term, reigns, now)
        if self.leads or not self._follow(term, now):
            return
        self._leader_at = now
        self._roll = max(self._roll, roll)
        self.size, self._deputy = size, deputy

    def _follow(self, term: Term, now: int) -> bool:
        """Is this our leader? It is from now on if we have none, or if it is the same in a later term."""
        if term == self.term:
            return not self._gone
        lost = self._gone or now - self._leader_at >= self._patience
        if not lost and not (term[1] == self.term[1] and term[0] > self.term[0]):
            return False
        if term[1] in self._left:
            return False  # an old call of one who went
        self.term = term
        self._granted = self._roll = 0
        self._gone = False
        self._leader_at = now
        self._send_beat(now)
        return True

    def hear_grant(self, letter: Letter, now: int) -> None:
        """The leader answers: this much is ours."""
        term = _read_term(letter.get("term"))
        number, seq = read_number(letter.get("number")), read_number(letter.get("seq"))
        part, safe = (read_number(letter.get(name), most=WHOLE) for name in ("part", "safe"))
        size = read_number(letter.get("size"), least=1, most=_MOST_MEMBERS)
        place = None if letter.get("turn") is None else read_number(letter["turn"], most=ROUND - 1)
        if read_key(letter.get("to")) != self.key or self.leads or not self._follow(term, now):
            return
        if number < self._granted:
            return  # a later one came before
        self._leader_at = now
        self.size = size
        if place is not None:
            self.place = place
        self._lease_from = max(self._lease_from, self._sent.get(seq, _LONG_AGO))
        if number > self._granted:
            less = part < self._part or safe < self._safe
            self._granted, self._part, self._safe = number, part, safe
            if less:
                self._send_beat(now)  # others wait for what is no longer ours

    def hear_bye(self, letter: Letter, now: int) -> None:
        """Somebody goes for good."""
        key, term = read_key(letter.get("key")), _read_term(letter.get("term"))
        if key == self.key:
            return
        self._rivals.pop(key, None)
        self._left[key] = None
        if len(self._left) > _MOST_LEFT:
            del self._left[next(iter(self._left))]
        if self.leads:
            self._book.strike_out(key)
            self._plan(now)
        elif term == self.term and key == term[1]:
            self._gone, self._leader_at = True, now

    def hear_yield(self, letter: Letter, now: int) -> None:
        """Our leader follows another, who may not know of what we have been given."""
        term, nothing = _read_term(letter.get("term")), letter.get("nothing")
        if term == self.term and term[1] != self.key:
            self._gone, self._leader_at = True, now
            if nothing is True:
                self._part = self._safe = 0

    def _stands_at(self) -> int:
        """When it offers to lead: as soon as whoever led is certainly lost, one after the other."""
        wait = 0 if self._deputy == self.key else self.beat + 2 * self.beat * self._turn // 1_000_000
        return self._leader_at + self._patience + wait

    # -- leading

    def _stand(self, now: int) -> None:
        """Offer to lead."""
        self._take_office((self.term[0] + 1, self.key), now)
        self._call_roll(now)

    def _take_office(self, term: Term, now: int) -> None:
        part, self.term = self.part(now), term
        self.leads, self.reigns, self._gone = True, False, False
        self._stood_at = self._leader_at = now
        self._supported_since = None
        self._waived = False
        self._floor = _LONG_AGO
        self._roll, self._rolls = 0, {}
        self._book = Book(self.key, self._patience, self._forget)
        own = self._book.lines[self.key] = Line(part, self._safe, now)
        own.weight = self._weight

    def _lead(self, now: int) -> None:
        if self._splits and now - self._stood_at >= self._forget and self._on_loss != "closed":
            self._waived = self._waived or not self.reigns  # whoever has not been heard for so long is dead
        supported = now < self._supported_until(now)
        if self.reigns:
            if supported:
                self._book.strike_out_dead(now)
                self._plan(now, demand=now - self._planned_at >= self.beat)
            else:
                self._stop_leading(now)
        elif not supported:
            self._supported_since = None
        else:
            if self._supported_since is None:
                self._supported_since = now
            begins = self._reigns_at(self._supported_since)
            if self._echo >= begins:  # heard by all who are there, and by us
                known = sum(line.claim for line in self._book.lines.values())
                self._reign(now, unknown=0 if self._waived else max(0, HALF - known))
            elif now >= begins > self._rolls.get(self._roll, _LONG_AGO):
                self._call_roll(now)

    def _reigns_at(self, supported_since: int) -> int:
        """When it may reign: all who are there have answered, and the leases of any other reign are over.

        On a bus that cannot split we would have heard of one, had we been there all the time.
        """
        listens = self._patience if self._splits else self._settle
        return max(supported_since + listens, self._present_since + self._patience)

    def _reign(self, now: int, *, unknown: int) -> None:
        self.reigns = True
        self._book.unknown, self._book.unknown_until = unknown, now + self._forget
        self._call_roll(now)
        self._plan(now)

    def _supported_until(self, now: int) -> int:
        """Until when nobody else can reign."""
        if not self.reigns and self._echo < self._stood_at:
            return _LONG_AGO  # perhaps nobody has heard that we would lead
        if not self._splits or self._waived:
            return max(self._floor, self._echo + self._hold)
        lines = self._book.lines
        answered = [(self._echo, lines[self.key].claim)] if self.key in lines else []
        answered += [
            (self._rolls[line.roll], line.claim) for line in lines.values() if line.roll in self._rolls
        ]
        support = 0
        for at, claim in sorted(answered, reverse=True):
            support += claim
            if 2 * support > HALF:
                return max(self._floor, min(at, self._echo) + self._hold)
        return self._floor if now < self._floor else _LONG_AGO

    def _hear_itself(self, said_at: int | None, now: int) -> None:
        if said_at is None:
            return
        if said_at - self._echo > 2 * self.beat:
            self._present_since = said_at
        silenced = self.reigns and not self._may_grant(now)
        self._echo = max(self._echo, said_at)
        if self.leads:
            self._lead(now)
        if silenced and self.reigns:
            for key in self._book.present(now):
                self._grant(key, now)

    def _hear_rival(self, term: Term, reigns: bool, now: int) -> None:
        """Another leads, or would. Who reigns stays; among equals the later term, or the first by name."""
        if self.reigns and not reigns:
            self._call_roll(now)  # it has missed us
        elif reigns and not self.reigns:
            self._yield(now, nothing=False)
        elif (-term[0], term[1]) < (-self.term[0], self.term[1]):
            self._yield(now, nothing=self.reigns)

    def _yield(self, now: int, *, nothing: bool) -> None:
        """Leave it to another. If both reigned, nobody kept anything for us there: then we have nothing."""
        self.out.append((EVERYBODY, {"kind": "yield", "term": list(self.term), "nothing": nothing}))
        self._stop_leading(now)
        if nothing:
            self._part = self._safe = 0
        self._gone = True

    def _stop_leading(self, now: int) -> None:
        self._lease_from = _LONG_AGO
        self.leads = self.reigns = False
        self._leader_at = now - self._patience  # there is none
        self._granted = 0

    def hear_beat(self, letter: Letter, now: int) -> None:
        """A member speaks to whoever leads."""
        key, seq = read_key(letter.get("key")), read_number(letter.get("seq"))
        wants = read_number(letter.get("wants"), most=WHOLE)
        weight = read_number(letter.get("weight"), least=1, most=1_000_000)
        part, safe = (read_number(letter.get(name), most=WHOLE) for name in ("part", "safe"))
        granted, roll = read_number(letter.get("granted")), read_number(letter.get("roll"))
        term = _read_term(letter.get("term"))
        if not self.leads or key == self.key or key in self._left or term not in (self.term, _NOBODY):
            return
        if key not in self._book.lines and len(self._book.lines) >= _MOST_MEMBERS:
            return
        line = self._book.hear(key, seq, (part, safe), now)
        if line is None:
            return
        line.wants, line.weight = wants, weight
        if term == self.term:
            line.roll = max(line.roll, roll)
            line.accept(granted)
        if not self.reigns:
            self._lead(now)
            return
        told = self._plan(now)
        if key not in told:
            self._grant(key, now)

    def _plan(self, now: int, *, demand: bool = False) -> list[str]:
        """Divide anew if need be, and tell those concerned."""
        book = self._book
        if not self.reigns:
            return []
        if len(book.lines) > _FEW and now - self._planned_at < self.beat // 4:
            return []
        # What supports us now does so although safe parts, which are what counts, change hands.
        self._floor = max(self._floor, self._supported_until(now))
        own = book.lines[self.key]
        own.wants = self.wants
        own.at = now
        if demand or len(book.lines) > _FEW:
            self._planned_at = now
        exactly = demand and now - self._exactly_at >= 10 * self.beat
        if exactly:
            self._exactly_at = now
        told = book.plan_if_due(now, demand=demand, exactly=exactly)
        if not told and not book.given(now):
            told = book.give(now)  # somebody may have heard that it has less now
        for key in told:
            self._grant(key, now)
        self._part, self._safe = own.offer
        own.claim = self._safe
        self.place = own.turn
        self.size = len(book.lines)
        return told

    def _may_grant(self, now: int) -> bool:
        """No lease may outlast our reign: whoever takes over waits only for those of before we were lost."""
        if self._splits and not self._waived:
            return now < self._supported_until(now)
        return now - self._echo <= 3 * self.beat // 2

    def _grant(self, key: str, now: int) -> None:
        if key == self.key or not self._may_grant(now):
            return
        line = self._book.lines[key]
        part, safe = line.offer
        grant = {"kind": "grant", "term": list(self.term), "to": key, "seq": max(0, line.seq)}
        grant |= {"number": line.number, "part": part, "safe": safe, "size": len(self._book.lines)}
        if line.turn is not None:
            grant["turn"] = line.turn
        self.out.append((key, grant))

    # -- inheriting

    def _heir(self, now: int) -> str:
        """Who would go on if we went: the first by name of those heard lately."""
        here = [key for key in self._book.present(now) if key != self.key] if self.leads else []
        return min(here, default="")

    def hear_estate(self, letter: Letter, now: int) -> None:
        """Our leader goes, and leaves us the book."""
        term, unknown = _read_term(letter.get("term")), read_number(letter.get("unknown"), most=WHOLE)
        lines = letter.get("lines")
        if not isinstance(lines, dict) or len(lines) > _MOST_MEMBERS:
            raise ValueError("an estate has lines")
        held = {read_key(key): _read_parts(parts) for key, parts in lines.items()}
        floor = self.until(now)
        if read_key(letter.get("to")) != self.key or self.leads or term != self.term or now >= floor:
            return  # without a lease we do not know whether it still reigned
        mine = held.pop(self.key, (0, 0))
        self._take_office((term[0] + 1, self.key), now)
        self._floor = floor
        for key, parts in held.items():
            self._book.lines[key] = Line(*parts, now)
        self._book.lines[self.key] = own = Line(*mine, now)
        own.weight = self._weight
        self._reign(now, unknown=unknown)

    def _begin_with_nothing(self) -> None:
        self.leads = self.reigns = False
        self.term = _NOBODY
        self._part = self._safe = 0
        self.place = None
        self._lease_from = self._leader_at = _LONG_AGO
        self._beat_at = self._found_at = _NEVER

    # -- saying

    def _send_hello(self, now: int) -> None:
        self._beat_at = now + min(self.beat, _ASK_AGAIN)
        self.out.append((ANSWERERS, self._beat_letter("hello", now)))

    def _send_beat(self, now: int) -> None:
        self._beat_at = now + self.beat
        self.out.append((LEADERS, self._beat_letter("beat", now)))

    def _beat_letter(self, kind: str, now: int) -> Letter:
        self._seq += 1
        self._sent = {seq: at for seq, at in self._sent.items() if now - at < self._hold}
        self._sent[self._seq] = now
        return {
            "kind": kind,
            "key": self.key,
            "term": list(self.term),
            "seq": self._seq,
            "wants": self.wants,
            "weight": self._weight,
            "granted": self._granted,
            "part": self._part if now < self.until(now) else 0,
            "safe": self._safe,
            "roll": self._roll,
        }

    def _call_roll(self, now: int) -> None:
        self._beat_at = now + self.beat
        self._roll += 1
        self._rolls = {roll: at for roll, at in self._rolls.items() if now - at < self._patience}
        self._rolls[self._roll] = now
        letter = {"kind": "roll", "term": list(self.term), "roll": self._roll, "reigns": self.reigns}
        self.out.append((EVERYBODY, {**letter, "size": self.size, "deputy": self._heir(now)}))


# -- what travels


def read_number(given: object, *, least: int = 0, most: int = _LARGEST) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or not least <= given <= most:
        raise ValueError(f"not a number from {least} to {most}")
    return given


def read_key(given: object) -> str:
    if not isinstance(given, str) or not 0 < len(given) <= _LONGEST_KEY:
        raise ValueError("not the key of a member")
    run = given.rpartition("#")[2].replace(".", "")
    if not (run.isascii() and run.isalnum()):  # it becomes part of an address
        raise ValueError("not the run of a member")
    return given


def _read_term(given: object) -> Term:
    if not isinstance(given, list) or len(given) != 2 or not isinstance(given[1], str):
        raise ValueError("not a number and a key")
    return read_number(given[0]), given[1]


def _read_parts(given: object) -> tuple[int, int]:
    if not isinstance(given, list) or len(given) != 2:
        raise ValueError("not two parts")
    return read_number(given[0], most=WHOLE), read_number(given[1], most=WHOLE)
