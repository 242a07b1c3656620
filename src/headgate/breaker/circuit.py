"""Pure. The circuit as a transition table.

    closed     → open        too many calls failed in a row, or too many of a window failed or were slow
    open       → half-open   its time is up, and somebody comes
    half-open  → closed      a probe succeeded
    half-open  → open        a probe failed

Rules of this room: every call carries the generation it was let in by, and only calls of the present
one decide anything. Probes are leases: one that is never heard of again stops being in the way.
"""

from __future__ import annotations

CLOSED, OPEN, HALF_OPEN = 0, 1, 2

# A window of time is counted in so many slots; the oldest leaves as a whole.
_SLOTS = 10

_LONG_AGO = 600 * 1_000_000_000


class Probe:
    """The right to find out how things are."""

    __slots__ = ("generation",)

    def __init__(self, generation: int) -> None:
        self.generation = generation


class Recent:
    """How many calls of the last while there were, and how many failed or were slow."""

    __slots__ = ("_slot_ns", "_slots", "_turn", "calls", "failed", "slow")

    def __init__(self, window: int) -> None:
        self._slot_ns = -(-window // _SLOTS)
        self._slots = [(0, 0, 0)] * _SLOTS
        self._turn: int | None = None  # the number of the slot now being filled
        self.calls = self.failed = self.slow = 0

    def add(self, failed: bool, slow: bool, now: int) -> None:
        if now // self._slot_ns != self._turn:
            self.move_to(now)
        assert self._turn is not None
        i = self._turn % _SLOTS
        calls, failures, slows = self._slots[i]
        self._slots[i] = (calls + 1, failures + failed, slows + slow)
        self.calls += 1
        self.failed += failed
        self.slow += slow

    def move_to(self, now: int) -> None:
        """Forget what has left the window. Time that runs backwards forgets nothing."""
        turn = now // self._slot_ns
        if self._turn is None:
            self._turn = turn
        for passed in range(self._turn + 1, min(turn, self._turn + _SLOTS) + 1):
            i = passed % _SLOTS
            calls, failures, slows = self._slots[i]
            self._slots[i] = (0, 0, 0)
            self.calls -= calls
            self.failed -= failures
            self.slow -= slows
        self._turn = max(self._turn, turn)


class Circuit:
    """One circuit: may a call go, and what does its outcome change?

    `threshold` failures in a row open it, or `failure_rate` of at least `minimum` calls within `window`
    failing, or `slow_rate` of them being slow. Rates are ratios of integers. It stays open for
    `recovery`, twice as long each time a probe fails, up to `max_recovery`, and longer by up to
    `jitter` of that.
    """

    __slots__ = (
        "_jitter",
        "_lease",
        "_max_probes",
        "_max_recovery",
        "_minimum",
        "_probes",
        "_recent",
        "_recovery",
        "_reopened",
        "_threshold",
        "_touched",
        "_until",
        "_window",
        "failure_rate",
        "failures",
        "generation",
        "reason",
        "slow_rate",
        "state",
    )

    def __init__(
        self,
        *,
        threshold: int | None,
        recovery: int,
        max_recovery: int,
        jitter: float,
        probes: int,
        lease: int,
        failure_rate: tuple[int, int] | None,
        slow_rate: tuple[int, int] | None,
        window: int,
        minimum: int,
    ) -> None:
        self._threshold = threshold
        self._recovery = recovery
        self._max_recovery = max_recovery
        self._jitter = jitter
        self._max_probes = probes
        self._lease = lease
        self.failure_rate = failure_rate
        self.slow_rate = slow_rate
        self._window = window
        self._minimum = minimum
        self._recent = None if failure_rate is None and slow_rate is None else Recent(window)
        self.state = CLOSED
        self.generation = 0
        self.failures = 0  # in a row
        self.reason = ""  # why it is open
        self._until = 0  # while open
        self._touched = 0  # when something last went wrong
        self._reopened = 0  # how often a probe has failed since it was last closed
        self._probes: dict[Probe, int] = {}  # under way, and when each has had long enough

    # -- may it go?

    def enter(self, now: int) -> int | Probe | None:
        """What a call is let in by, to be given back with its outcome; None: it may not go."""
        if self.state == CLOSED:
            return self.generation
        if not self.would_admit(now):
            return None
        self.state = HALF_OPEN
        self._probes = {probe: due for probe, due in self._probes.items() if due > now}
        probe = Probe(self.generation)
        self._probes[probe] = now + self._lease
        return probe

    def would_admit(self, now: int) -> bool:
        """Could a call go? Changes nothing."""
        if self.state == OPEN:
            return now >= self._until
        return self.state == CLOSED or self._outstanding(now) < self._max_probes

    def opens_in(self, now: int) -> int:
        """How long until a call could go, if nothing is decided before."""
        if self.state == OPEN:
            return max(0, self._until - now)
        if self.state == CLOSED or self._outstanding(now) < self._max_probes:
            return 0
        return min(due for due in self._probes.values() if due > now) - now

    def state_at(self, now: int) -> int:
        """An open circuit whose time is up is half-open, whether or not somebody has come yet."""
        return HALF_OPEN if self.state == OPEN and now >= self._until else self.state

    def _outstanding(self, now: int) -> int:
        return sum(due > now for due in self._probes.values())

    # -- what became of it

    def succeeded(self, entry: int | Probe, slow: bool, now: int, draw: float) -> bool:
        """It went well. True: that changed the state."""
        if isinstance(entry, Probe):
            if not self._gave_back(entry):
                return False
            if slow and self.slow_rate is not None:
                self._open("a probe succeeded, but too slowly", now, draw)
            else:
                self.close()
            return True
        if self.state != CLOSED or entry != self.generation:
            return False
        self.failures = 0
        return self._count(False, slow, now, draw)

    def failed(self, entry: int | Probe, slow: bool, now: int, draw: float) -> bool:
        """It failed in a way that counts. True: that changed the state."""
        if isinstance(entry, Probe):
            if not self._gave_back(entry):
                return False
            self._open("a probe failed", now, draw)
            return True
        if self.state != CLOSED or entry != self.generation:
            return False
        self.failures += 1
        self._touched = now
        if self._threshold is not None and self.failures >= self._threshold:
            many = "call" if self.failures == 1 else "calls in a row"
            self._open(f"{self.failures} {many} failed", now, draw)
            return True
        return self._count(True, slow, now, draw)

    def ignored(self, entry: int | Probe) -> None:
        """It says nothing about the far side, or was cancelled: as if it had not been made."""
        if isinstance(entry, Probe):
            self._gave_back(entry)

    def _gave_back(self, probe: Probe) -> bool:
        """Does this probe decide anything?"""
        self._probes.pop(probe, None)
        return self.state == HALF_OPEN and probe.generation == self.generation

    def _count(self, failed: bool, slow: bool, now: int, draw: float) -> bool:
        recent = self._recent
        if recent is None:
            return False
        recent.add(failed, slow, now)
        if not (failed or slow) or recent.calls < self._minimum:
            return False  # what goes well makes no rate any higher
        for part, rate, what in (
            (recent.failed, self.failure_rate, "failed"),
            (recent.slow, self.slow_rate, "were slow"),
        ):
            if rate is not None and part * rate[1] >= rate[0] * recent.calls:
                span = f"{self._window / 1e9:g} s"
                self._open(f"{part} of {recent.calls} calls within {span} {what}", now, draw)
                return True
        return False

    # -- the states

    def _open(self, reason: str, now: int, draw: float) -> None:
        self._reopened = self._reopened + 1 if self.state == HALF_OPEN else 0
        lasting = min(self._recovery << min(self._reopened, 62), self._max_recovery)
        self._forget()
        self.state = OPEN
        self._touched = now
        self.reason = reason
        self._until = now + lasting + int(lasting * self._jitter * draw)

    def close(self) -> None:
        """All is well: nothing of what was counted matters any longer."""
        self._forget()
        self.state = CLOSED
        self.reason = ""

    def release_probes(self) -> None:
        """Those who held them are gone."""
        self._probes = {}

    def pristine(self, now: int) -> bool:
        """Is it as good as new? What went wrong long ago, and was not tried since, no longer matters."""
        if self._recent is not None:
            self._recent.move_to(now)
            if self._recent.calls:
                return False
        if self.state == CLOSED and self.failures == 0:
            return True
        return now - self._touched > max(_LONG_AGO, 10 * self._max_recovery)

    def _forget(self) -> None:
        self.generation += 1
        self.failures = 0
        self._probes = {}
        if self._recent is not None:
            self._recent = Recent(self._window)
