"""Pure. One circuit for many processes: what the record says, and what each process does about it.

    closed → open     by any process: at once for itself, for the others as soon as they hear of it
    open   → probing  its time is up, and the record lends a probe to the first process that asks
    open   → closed   a probe succeeded, and the record says so
    open   → open     a probe failed

The record decides. Its generation grows with every change, and is even while closed and odd while open, so
that a process that has not heard of the last change can be told apart. A store may lose the record, or keep
it no longer: the next one is born with another number, and its generations say nothing about those before.

A process tells the record of its changes by commands, which may be carried out late, but once.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...arguments import SECOND
from ...breaker.circuit import CLOSED, FORGET_AFTER, HALF_OPEN, OPEN, Circuit, CircuitSettings, Probe

# The retry_after of a call that is refused while a probe is asked for.
_SOON = SECOND // 20
# A probe that was lent and not used for this long goes back.
UNUSED_FOR = SECOND


class Command(NamedTuple):
    """What a process tells the record: to "open", "close", "reset", "lend" a probe or "take back" one.

    `seen` is the generation that the process has seen, of the record `born` then (0: of none), and `more` are
    the arguments.
    """

    what: str
    seen: int
    more: Any = ()
    born: int = 0

    def to(self, borrower: str) -> Command:
        """The same, with one more argument: the name that a probe is lent to."""
        return self._replace(more=(*self.more, borrower))


@dataclass(slots=True)
class CircuitRecord:
    """What the store knows of a circuit. Times are nanoseconds on the store's clock."""

    born: int = 0  # when it was written first; 0: it is not in the store
    generation: int = 0
    until: int = 0
    reopened: int = 0  # how many probes have failed since it was last closed
    reason: str = ""
    probes: dict[str, int] = field(default_factory=dict)  # by name, and when the lease of each ends

    @property
    def is_open(self) -> bool:
        return self.generation % 2 == 1

    def written(self) -> list[Any]:
        """All of it as plain values."""
        return [self.born, self.generation, self.until, self.reopened, self.reason, self.probes]

    @classmethod
    def read(cls, written: list[Any]) -> CircuitRecord:
        """The record that was written. ValueError: this is not one."""
        born, generation, until, reopened, reason, probes = written
        numbers = [born, generation, until, reopened, *probes.values()]
        if not isinstance(reason, str) or any(type(number) is not int or number < 0 for number in numbers):
            raise ValueError("it is not the record of a circuit")
        return cls(*written)

    def carry_out(self, command: Command, early: int, late: int) -> tuple[int | None, bool]:
        """Do as told. The answer is when the lease of a lent probe ends, and whether anything changed."""
        what, seen, more, born = command
        # Else the process has heard of another record, and not of this one.
        knows = born == self.born or 0 in (born, self.born)
        if what == "open":
            return None, self.trip(seen if knows else 0, late, *more)
        if what == "reset":
            return None, self.is_open and self.close(self.generation)
        if not knows:
            return None, False
        if what == "close":
            return None, self.close(seen)
        if what == "take back":
            return None, self.take_back(seen, *more)
        due = self.lend(seen, early, *more)
        return due, due is not None

    def trip(self, seen: int, now: int, lasting: int, reopened: int, reason: str) -> bool:
        """Too many calls failed, or a probe did, in the generation that was seen. True: it is another now."""
        if self.generation > seen:
            if self.generation > seen + 1 or not seen % 2:
                return False
            # It was closed before it heard of the probe that failed. The process of that probe has gone on by
            # two generations: it goes by the record again when the record is ahead of it.
            self.generation += 2
            return True
        self.generation = seen + (1 if seen % 2 == 0 else 2)
        self.until = now + lasting
        self.reopened = reopened
        self.reason = reason
        self.probes = {}
        return True

    def close(self, seen: int) -> bool:
        """A probe of the generation that was seen succeeded. True: that closed the circuit."""
        if self.generation > seen:
            return False
        self.generation, self.until, self.reopened, self.reason, self.probes = seen + 1, 0, 0, "", {}
        return True

    def lend(self, seen: int, now: int, most: int, lease: int, who: str) -> int | None:
        """Lend a probe of that name: when its lease ends. None: there is none now.

        A record that was lost goes on from what the process that asks has seen.
        """
        if self.generation < seen:
            self.generation, self.until, self.probes = seen, now, {}
        if self.generation > seen or now < self.until:
            return None
        self.probes = {each: due for each, due in self.probes.items() if due > now}
        if len(self.probes) >= most:
            return None
        self.probes[who] = now + lease
        return now + lease

    def take_back(self, seen: int, who: str) -> bool:
        """Take back a probe that says nothing about the far side. True: it was lent."""
        return self.generation == seen and self.probes.pop(who, None) is not None

    def free_at(self, most: int, now: int) -> int:
        """When a probe can be had at the latest."""
        ends = sorted(due for due in self.probes.values() if due > now)
        return max(self.until, now if len(ends) < most else ends[len(ends) - most])

    def worth_keeping(self, now: int) -> int:
        """For how long the store should keep the record."""
        return max(0, self.until - now) + FORGET_AFTER if self.is_open else 0


class LentProbe(Probe):
    """A probe that the record has lent to this process, under a name."""

    def __init__(self, generation: int, who: str) -> None:
        super().__init__(generation)
        self.who = who


class SharedCircuit(Circuit):
    """One process's view of the shared circuit. While `alone`, without the store, it is a circuit of its own.

    What it has to tell the record is in `commands`.
    """

    def __init__(self, settings: CircuitSettings) -> None:
        super().__init__(settings)
        self.alone = False
        self.commands: deque[Command] = deque()
        self._born = 0  # of the record that was heard last
        self._lent: dict[str, int] = {}  # probes that no call has used yet, and when the lease of each ends
        self._asking = False  # whether the record is being asked for a probe
        self._again = 0  # when it is worth asking again

    # -- may it go?

    def enter(self, now: int) -> int | Probe | None:
        if self.state == CLOSED or self.alone:
            return super().enter(now)
        if not self.would_admit(now):
            self.want_probe(now)
            return None
        who = next(who for who, due in self._lent.items() if due > now)
        probe = LentProbe(self.generation, who)
        self._probes[probe] = self._lent.pop(who)
        self.state = HALF_OPEN
        return probe

    def would_admit(self, now: int) -> bool:
        if self.state == CLOSED or self.alone:
            return super().would_admit(now)
        return self._is_due(now) and any(due > now for due in self._lent.values())

    def opens_in(self, now: int) -> int:
        if self.state == CLOSED or self.alone or not self._is_due(now):
            return super().opens_in(now)
        return 0 if self.would_admit(now) else max(_SOON, self._again - now)

    def _is_due(self, now: int) -> bool:
        return self.state == HALF_OPEN or now >= self._until

    # -- probes

    def want_probe(self, now: int) -> None:
        """A call came that could be the probe: ask the record to lend one."""
        if self.alone or self._asking or self.state == CLOSED:
            return
        if now >= self._again and self._is_due(now):
            self._asking = True
            self._tell("lend", self.generation, self.settings.probes, self.settings.lease)

    def lent(self, seen: int, who: str, due: int | None) -> None:
        """The record has answered: a probe, and when its lease ends on our clock. None: there is none."""
        self._asking = False
        if due is None:
            return
        if seen != self.generation or self.state == CLOSED:
            self._tell("take back", seen, who)
        else:
            self._lent[who] = due

    def hand_back(self, who: str) -> None:
        """Let other processes have this probe, if no call has used it yet."""
        if self._lent.pop(who, None) is not None:
            self._tell("take back", self.generation, who)

    def go_alone(self) -> None:
        """Leave the others for good: they may have the probes that no call has used."""
        for who in list(self._lent):
            self.hand_back(who)
        self.alone = True

    def release_probes(self) -> None:
        super().release_probes()
        self.alone = False
        self.commands.clear()
        self._lent = {}
        self._asking = False

    def _tell(self, what: str, seen: int, *more: object) -> None:
        self.commands.append(Command(what, seen, more, self._born))

    # -- outcomes

    def succeeded(self, entry: int | Probe, slow: bool, now: int, draw: float) -> bool:
        too_slow = slow and self.settings.slow_rate is not None
        if self.alone or too_slow or not isinstance(entry, Probe):
            return super().succeeded(entry, slow, now, draw)
        if self._gave_back(entry):
            self._tell("close", self.generation)  # it is closed when the record says so
        return False

    def ignored(self, entry: int | Probe) -> None:
        super().ignored(entry)
        if isinstance(entry, LentProbe):
            self._tell("take back", entry.generation, entry.who)

    def _open(self, reason: str, now: int, draw: float) -> None:
        seen = self.generation
        if self.state != CLOSED:
            self.generation += 1  # with the one that follows, an open circuit keeps an odd generation
        super()._open(reason, now, draw)
        self._lent = {}
        self._tell("open", seen, self._until - now, self._reopened, reason)

    def close(self) -> None:
        if self.state == CLOSED:
            self.generation -= 1  # it stays closed, and keeps its generation: nothing changed for the others
        else:
            self._tell("close", self.generation)
        super().close()
        self._lent = {}

    def reset(self) -> None:
        self._tell("reset", 0)
        super().reset()

    # -- what the record says

    def follow(self, record: CircuitRecord, ahead: int, now: int) -> bool:
        """Go by the record, whose clock is `ahead` of ours. True: that changed the state."""
        another = self._born not in (0, record.born)
        self._born = record.born
        if record.generation < self.generation and not another:
            return False  # the record has yet to hear of our change
        newer, was = record.generation != self.generation, self.state
        if newer:
            self._forget()
            self.generation = record.generation
            self.state = OPEN if record.is_open else CLOSED
            self.reason = record.reason
            self._touched = now
        if newer or another:
            self._lent = {who: due for who, due in self._lent.items() if not newer and who in record.probes}
        if record.is_open:
            self._reopened = record.reopened
            if self.state == OPEN:
                self._until = record.until - ahead
            self._again = record.free_at(self.settings.probes, now + ahead) - ahead
        return newer and (self.state != was or self.state == OPEN)
