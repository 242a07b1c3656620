"""Pure. One circuit for many processes: what all of them know, and what each of them does about it.

    closed → open     by any process, at once for itself, for the others as soon as they hear of it
    open   → probing  its time is up, and the record lends a probe to whoever comes first
    open   → closed   a probe succeeded, and the record says so
    open   → open     a probe failed

Rules of this room: the record decides. Its generation grows with every change and is even while closed, odd
while open, so that whoever is behind is told apart from whoever is right. What one process has to say to the
record is a letter; it is delivered by others, once, perhaps late.
"""

from __future__ import annotations

from ...breaker.circuit import CLOSED, HALF_OPEN, OPEN, Circuit, Probe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeAlias

    Letter: TypeAlias = tuple[str, int, Any]  # what, the generation it is about, and what else is to be known

_SECOND = 1_000_000_000
# While a probe is being asked for, others need not wait for longer than this.
_SOON = _SECOND // 20
# A probe that was lent and not used for so long goes back.
UNUSED = _SECOND
# For so long after its time is up a circuit that nobody calls stays in mind.
_LONG_AGO = 600 * _SECOND


class CircuitRecord:
    """What the store knows of a circuit. Times are nanoseconds on the store's clock."""

    __slots__ = ("generation", "probes", "reason", "reopened", "until")

    def __init__(
        self,
        generation: int = 0,
        until: int = 0,
        reopened: int = 0,
        reason: str = "",
        probes: dict[str, int] | None = None,
    ) -> None:
        self.generation = generation
        self.until = until
        self.reopened = reopened  # how often a probe has failed since it was last closed
        self.reason = reason
        self.probes = {} if probes is None else probes  # lent, and until when

    @property
    def is_open(self) -> bool:
        return self.generation % 2 == 1

    def written(self) -> list[Any]:
        """All of it as plain values."""
        return [self.generation, self.until, self.reopened, self.reason, self.probes]

    @classmethod
    def read(cls, written: list[Any]) -> CircuitRecord:
        """What was written, by whomever. ValueError: not by us."""
        generation, until, reopened, reason, probes = written
        numbers = [generation, until, reopened, *probes.values()]
        if not isinstance(reason, str) or any(type(number) is not int or number < 0 for number in numbers):
            raise ValueError("it is not what is known of a circuit")
        return cls(*written)

    def trip(self, seen: int, lasting: int, reopened: int, reason: str, now: int) -> bool:
        """Too much failed, or a probe did, in the generation that was seen. True: that changed something."""
        if self.generation > seen:
            return False
        self.generation = seen + (1 if seen % 2 == 0 else 2)
        self.until = now + lasting
        self.reopened = reopened
        self.reason = reason
        self.probes = {}
        return True

    def close(self, seen: int) -> bool:
        """A probe of that generation succeeded."""
        if self.generation > seen:
            return False
        self.generation = seen + 1
        self.until = self.reopened = 0
        self.reason = ""
        self.probes = {}
        return True

    def reset(self) -> bool:
        """Closed by hand, whatever was."""
        return self.is_open and self.close(self.generation)

    def lend(self, seen: int, who: str, most: int, lease: int, now: int) -> int | None:
        """A probe, until when; None: not now. A record that was lost goes on from what the asker has seen."""
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
        """A probe that says nothing about the far side."""
        return self.generation == seen and self.probes.pop(who, None) is not None

    def free_at(self, most: int, now: int) -> int:
        """When a probe could be had at the latest."""
        ends = sorted(due for due in self.probes.values() if due > now)
        return max(self.until, now if len(ends) < most else ends[len(ends) - most])

    def worth_keeping(self, now: int) -> int:
        """For how long the store should remember it."""
        return max(0, self.until - now) + _LONG_AGO if self.is_open else 0


class LentProbe(Probe):
    """A probe that the record knows of by that name."""

    __slots__ = ("who",)

    def __init__(self, generation: int, who: str) -> None:
        super().__init__(generation)
        self.who = who


class SharedCircuit(Circuit):
    """What one process makes of the circuit that all share. While `alone` it is a circuit like any other."""

    __slots__ = ("_again", "_asking", "_lent", "alone", "letters")

    def __init__(self, like: Circuit) -> None:
        for name in Circuit.__slots__:
            setattr(self, name, getattr(like, name))
        self.alone = False  # the store cannot be asked
        self.letters: list[Letter] = []  # for the record
        self._lent: dict[str, int] = {}  # probes in hand, not used yet, and until when
        self._asking = False  # for a probe
        self._again = 0  # when it is worth asking for one again

    # -- may it go?

    def enter(self, now: int) -> int | Probe | None:
        if self.state == CLOSED or self.alone:
            return super().enter(now)
        if not self.would_admit(now):
            self.want(now)
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

    def want(self, now: int) -> None:
        """A call came that could be the probe, if the record lends one."""
        if self.alone or self._asking or self.state == CLOSED:
            return
        if now >= self._again and self._is_due(now):
            self._asking = True
            self.letters.append(("lend", self.generation, (self._max_probes, self._lease)))

    def lent(self, seen: int, who: str, due: int | None) -> None:
        """The record has answered: a probe, until when on our clock; None: there is none to be had."""
        self._asking = False
        if due is None:
            return
        if seen != self.generation or self.state == CLOSED:
            self.letters.append(("take back", seen, who))
        else:
            self._lent[who] = due

    def hand_back(self, who: str) -> None:
        """If nobody has come for this probe yet, others may have it."""
        if self._lent.pop(who, None) is not None:
            self.letters.append(("take back", self.generation, who))

    def release_probes(self) -> None:
        super().release_probes()
        self.letters = []
        self._lent = {}
        self._asking = False

    # -- what became of it

    def succeeded(self, entry: int | Probe, slow: bool, now: int, draw: float) -> bool:
        too_slow = slow and self.slow_rate is not None
        if self.alone or too_slow or not isinstance(entry, Probe):
            return super().succeeded(entry, slow, now, draw)
        if self._gave_back(entry):
            self.letters.append(("close", self.generation, None))  # and closed it is when the record says so
        return False

    def ignored(self, entry: int | Probe) -> None:
        super().ignored(entry)
        if isinstance(entry, LentProbe):
            self.letters.append(("take back", entry.generation, entry.who))

    def _open(self, reason: str, now: int, draw: float) -> None:
        seen = self.generation
        if self.state != CLOSED:
            self.generation += 1  # open it was and open it is: odd
        super()._open(reason, now, draw)
        self._lent = {}
        self.letters.append(("open", seen, (self._until - now, self._reopened, reason)))

    def close(self) -> None:
        if self.state == CLOSED:
            self.generation -= 1  # closed it was and closed it is: for the others nothing has changed
        else:
            self.letters.append(("close", self.generation, None))
        super().close()
        self._lent = {}

    # -- what the record says

    def follow(self, record: CircuitRecord, ahead: int, now: int) -> bool:
        """Go by the record, whose clock is so far ahead of ours. True: that changed the state."""
        if record.generation < self.generation:
            return False  # it is behind, and a letter is on its way
        newer, was = record.generation > self.generation, self.state
        if newer:
            self._forget()
            self.generation = record.generation
            self.state = OPEN if record.is_open else CLOSED
            self.reason = record.reason
            self._touched = now
            self._lent = {}
        if record.is_open:
            self._reopened = record.reopened
            if self.state == OPEN:
                self._until = record.until - ahead
            self._again = record.free_at(self._max_probes, now + ahead) - ahead
        return newer and (self.state != was or self.state == OPEN)
