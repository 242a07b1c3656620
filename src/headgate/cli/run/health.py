"""Pure. Whether a failure is the job's own, an outage in which all jobs wait, or a reason to end the run."""

from __future__ import annotations

from typing import NamedTuple

from ...backoff import Backoff
from .outcome import Stop
from .replies import Trouble

_OUTAGE = Backoff(1, cap=60, jitter=("factor", 0.25))
# If this number of jobs fail one after the other, with no success between them, either the API is down or
# something is wrong with all of them.
_ALIKE = 10
_KEY_HINT = "name the variable that holds it: --key-env NAME"
_JOBS_HINT = "nothing has succeeded yet, so it is not this one job: check --to, and the file"


class Judgement(NamedTuple):
    """What follows from a failure.

    `own`: it is a failure of this job alone. Otherwise the job is tried again, after `hold` seconds in which
    all jobs wait if that is given. `stop`: the run ends.
    """

    own: bool = False
    hold: float | None = None
    stop: Stop | None = None


class ApiHealth:
    """What the failures since the last success say about the API. `proven`: a job has succeeded already."""

    def __init__(self, host: str, patience: float, *, proven: bool) -> None:
        self._host = host
        self._patience = patience
        self._proven = proven
        self._left_alone_until = 0.0  # by a long Retry-After
        self._outages = 0
        self._outage_until = 0.0
        # Since the last success:
        self._since: float | None = None  # the first failure
        self._rejected: set[int] = set()  # jobs that failed for good
        self._failed: set[int] = set()  # jobs that may succeed the next time

    def succeeded(self) -> None:
        """A job was answered."""
        self._proven = True
        self._since = None
        self._rejected.clear()
        self._failed.clear()
        self._outages = 0

    def judge(self, job: int, trouble: Trouble, now: float, random: float) -> Judgement:
        """Note that a job has failed, and say what follows. `random` is between 0 and 1."""
        if self._since is None:
            self._since = now
        stop = self._hopeless(trouble)
        if stop is not None:
            return Judgement(stop=stop)
        hold = None
        if trouble.kind == "refused":
            if trouble.retry_after is not None and trouble.retry_after > self._patience:
                self._left_alone_until = max(self._left_alone_until, now + trouble.retry_after)
        elif trouble.kind in ("unreachable", "certificate"):
            hold = self._hold(now, random)
        else:
            (self._failed if trouble.kind == "failed" else self._rejected).add(job)
            if not self._proven and len(self._failed | self._rejected) >= _ALIKE:
                why = f"the first {_ALIKE} jobs failed, the last with {trouble.message}"
                return Judgement(stop=Stop("refused", why, _JOBS_HINT))
            if trouble.kind != "failed" or len(self._failed) < _ALIKE:
                return Judgement(own=True)
            hold = self._hold(now, random)
        if now > max(self._since, self._left_alone_until) + self._patience:
            why = f"no answer for {now - self._since:.0f} s; the last was {trouble.message}"
            return Judgement(stop=Stop("unreachable", why))
        return Judgement(hold=hold)

    def _hopeless(self, trouble: Trouble) -> Stop | None:
        """The reason to end the run at once, if this is one."""
        kind, host = trouble.kind, self._host
        if kind == "quota":
            return Stop("quota", f"the account has nothing left: {trouble.message}", "add to it, or wait")
        if kind == "key" and not self._proven:
            return Stop("refused", f"{host} does not accept the key: {trouble.message}", _KEY_HINT)
        if kind == "certificate" and not self._proven:
            return Stop("unreachable", f"{host} cannot be trusted: {trouble.message}", "check --to")
        return None

    def _hold(self, now: float, random: float) -> float | None:
        """How long all jobs wait; None if they wait already."""
        if now < self._outage_until:
            return None
        wait = _OUTAGE.delay_ns(self._outages, random, None) / 1e9
        self._outages += 1
        self._outage_until = now + wait
        return wait
