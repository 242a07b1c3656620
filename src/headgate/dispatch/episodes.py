"""Pure. Which refusals belong together, and when to try again where a refusal does not say.

An episode begins with a refusal and ends with the first success of a call that was sent after it. Until
then only single calls go, as probes. A limit that is counted in fixed windows gives itself away: its
episodes end at the same second of each minute, or of each hour.
"""

from __future__ import annotations

from ..arguments import SECOND
from ..gate.window import Probes
from ..hints import Any

_FIRST_PAUSE = SECOND // 10
_LONGEST_PAUSE = 8 * SECOND
# Most outages last seconds. In a longer one the probes are a fraction of the time apart that it has lasted.
_OUTAGE_PAUSE = SECOND // 2
_SHORT_OUTAGE = 6 * SECOND
_OUTAGE_GROWTH = 25  # percent
_LONGEST_OUTAGE_PAUSE = 30 * SECOND
# One failure of the far side among successes is not an outage.
_FAILURES = 3
_SHORTEST_PATIENCE = SECOND // 50
_MOST_ENDS = 5


class Episodes:
    """The episode of refusals that is under way, if any."""

    __slots__ = (
        "_ended_by",
        "_failing_since",
        "_failures",
        "_outage",
        "_paused_at",
        "_refused_sent",
        "_took",
        "edges",
        "pause",
        "started_at",
    )

    def __init__(self) -> None:
        self.started_at: int | None = None  # None: no episode is under way
        self.pause = 0  # the last one
        self.edges = Edges()
        self._outage = False  # the far side fails, instead of refusing
        self._paused_at: int | None = None  # refusals of calls sent before are echoes ...
        self._ended_by: int | None = None  # ... as those of calls sent before the success that ended the last
        self._refused_sent = 0  # when the last call was sent that was refused
        self._took = 0  # the longest time that a refusal of this episode took
        self._failures = 0  # in a row ...
        self._failing_since = 0  # ... and when the first of these calls was sent

    @property
    def quiet(self) -> bool:
        """Whether no episode is under way and the last call did not fail."""
        return self.started_at is None and not self._failures

    def is_echo(self, sent: int) -> bool:
        """Whether a refusal of a call sent then is old: the last refusal or a later success is news to it."""
        if self._paused_at is None:
            return False
        return sent <= self._paused_at or (self._ended_by is not None and sent <= self._ended_by)

    def hear_echo(self, sent: int) -> None:
        """A call sent then was refused, too, and that is not news: it tells until when calls were refused."""
        if self.started_at is None:
            self.edges.narrow(sent, refused=True)
        else:
            self._refused_sent = max(self._refused_sent, sent)

    def refused(self, sent: int, now: int, *, gap: int, stated: int | None) -> bool:
        """A call was told to slow down, for `stated` if it was told for how long. True: a new episode.

        `gap` is the time between two calls at the present rate.
        """
        began = self.started_at is None or self._outage
        if stated is not None and (began or stated >= _FIRST_PAUSE):
            pause = stated
        elif began:
            pause = max(_FIRST_PAUSE, 2 * gap)
        else:
            pause = max(stated or 0, min(_LONGEST_PAUSE, max(_FIRST_PAUSE, 2 * self.pause)))
            if stated is None:  # the first probe has shown that the end of the window is worth waiting for
                pause = self.edges.pause(now, sent) or pause
        self._pause_for(pause, sent, now, outage=False)
        return began

    def failed(self, sent: int, now: int) -> bool:
        """The far side failed to answer a call, and did not say for how long. True: this is an outage."""
        if not self._failures:
            self._failing_since = sent
        self._failures += 1
        if self._failures < _FAILURES and not self._outage:
            return False
        pause, lasted = _OUTAGE_PAUSE, sent - self.started_at if self._outage and self.started_at else 0
        if lasted >= _SHORT_OUTAGE:
            # So much later than this probe, whose answer has taken a part of the time.
            apart = min(_LONGEST_OUTAGE_PAUSE, lasted * _OUTAGE_GROWTH // 100 + _OUTAGE_PAUSE)
            pause = max(_OUTAGE_PAUSE, apart - max(0, now - sent))
        self._pause_for(pause, sent, now, outage=True)
        return True

    def _pause_for(self, pause: int, sent: int, now: int, *, outage: bool) -> None:
        if self.started_at is None:
            self.started_at = now
            self._took = 0
        self._took = max(self._took, now - sent)
        self._paused_at = now
        self._refused_sent = max(self._refused_sent, sent)
        self._ended_by = None
        self._outage = outage
        self.pause = pause

    def probes(self, now: int, next_at: int | None = None) -> Probes:
        """How single calls go after the pause that begins now, or from another moment on."""
        patience = max(_SHORTEST_PATIENCE, 2 * self._took)
        growth, pause = _OUTAGE_GROWTH if self._outage else 0, max(_FIRST_PAUSE, self.pause)
        first = now + self.pause if next_at is None else next_at
        return Probes(first, pause, patience, growth=growth, longest=_LONGEST_OUTAGE_PAUSE)

    def saved(self, now: int) -> list[Any]:
        """What other processes need to know of it, with ages in place of times."""
        paused = None if self._paused_at is None else now - self._paused_at
        started = None if self.started_at is None else now - self.started_at
        refused, failing = now - self._refused_sent, now - self._failing_since
        ended = None if self._ended_by is None else now - self._ended_by
        facts = (self.pause, int(self._outage), self._took, self._failures, ended)
        return [started, paused, refused, failing, *facts, self.edges.saved(now)]

    def restore(self, saved: list[Any], now: int) -> None:
        """Go on from what another process saved."""
        started, paused, refused, failing, self.pause, outage, took, failures, ended, edges = saved
        self._took, self._failures = took, failures
        self._ended_by = None if ended is None else now - ended
        self.started_at = None if started is None else now - started
        self._paused_at = None if paused is None else now - paused
        self._refused_sent, self._failing_since = now - refused, now - failing
        self._outage = bool(outage)
        self.edges.restore(edges, now)

    def succeeded(self, sent: int) -> bool:
        """A call sent then went well. True: that ended an episode."""
        if sent > self._failing_since:
            self._failures = 0
        if self.started_at is None:
            self.edges.narrow(sent, refused=False)
            return False
        if sent <= self.started_at:
            return False
        if not self._outage:
            self.edges.ended(self._refused_sent, sent)
            self._ended_by = sent
        self.started_at = None
        self._outage = False
        return True


class Edges:
    """Finds out whether episodes end when a fixed window of the far side does."""

    __slots__ = ("_ends", "_high", "_low", "period")

    def __init__(self) -> None:
        self.period: int | None = None  # of the window, once it is known
        self._ends: list[tuple[int, int]] = []  # of the last episodes: the end lies between these moments
        self._low = self._high = 0  # the edge lies between these, and a whole number of periods later

    def saved(self, now: int) -> list[Any]:
        """What was found out, with ages in place of times."""
        ends = [[now - low, now - high] for low, high in self._ends]
        return [self.period, now - self._low, now - self._high, ends]

    def restore(self, saved: list[Any], now: int) -> None:
        """Go on from what another process saved."""
        self.period, low, high, ends = saved
        self._low, self._high = now - low, now - high
        self._ends = [(now - low, now - high) for low, high in ends]

    def ended(self, refused_sent: int, success_sent: int) -> None:
        """An episode ended between these moments."""
        self._ends = [*self._ends[-_MOST_ENDS:], (refused_sent, success_sent)]
        if self.period is not None:
            self._refine(refused_sent, success_sent, self.period)
            return
        for period in (60 * SECOND, 3600 * SECOND):
            edge = _common(self._ends, period)
            if edge is not None:
                self.period = period
                self._low, self._high = edge
                return

    def narrow(self, sent: int, *, refused: bool) -> None:
        """A call sent then was refused or went well; it is told late, when the last episode is over."""
        if not self._ends or not self._ends[-1][0] < sent < self._ends[-1][1]:
            return
        low, high = self._ends.pop()
        self.ended(sent if refused else low, high if refused else sent)

    def _refine(self, low: int, high: int, period: int) -> None:
        turns = round(((low + high) - (self._low + self._high)) / 2 / period)
        low, high = max(low - turns * period, self._low), min(high - turns * period, self._high)
        if low < high:
            self._low, self._high = low, high
        else:  # the limit is not counted in such windows, or no longer
            self.period = None
            self._ends = []

    def pause(self, now: int, sent: int) -> int | None:
        """How long until the window ends in which a call sent then was refused; None if that is not known.

        It may be over by now: some refusals take long.
        """
        if self.period is None:
            return None
        low, high = self._low, self._high
        end = sent + (high - sent) % self.period
        middle = end - (high - low) // 2
        # The middle is tried unless it has been, and was refused.
        at = middle if sent < middle and high - low > SECOND // 4 else end
        return max(_FIRST_PAUSE, at - now)


def _common(ends: list[tuple[int, int]], period: int) -> tuple[int, int] | None:
    """The edge that lies in the last three short ones of these spans, apart from whole periods; or None."""
    short = [(start, end) for start, end in ends if end - start <= period // 6][-3:]
    if len(short) < 3:
        return None
    low, high = short[-1]
    turns = set()
    for start, end in short:
        turn = round(((start + end) - (short[-1][0] + short[-1][1])) / 2 / period)
        turns.add(turn)
        low, high = max(low, start - turn * period), min(high, end - turn * period)
    return (low, high) if low < high and len(turns) == len(short) else None
