"""Sending one job through the gate, and reading what comes back.

This is the exchange of `headgate.http` for responses that are read whole: tokens are reserved, what the
response says about limits is observed, and the permit is settled with what was used. Retries are decided by
the runner: whatever happens to a request is a Reply.
"""

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from ...dispatch.dispatch import Dispatch
from ...errors import CostTooLarge
from ...gate.admission import Permit
from ...responses.estimate import (
    TOKENS,
    RequestShape,
    TokenStats,
    cost_of_error,
    cost_of_usage,
    reserved_at,
)
from ...responses.signals import Signal
from ...retries.classify import never_sent
from .jobs import Job
from .replies import Reply, no_reply, read_reply
from .wire import Wire

_NO_CONNECTION = Signal(should_retry=True, reason="server_error")
_ANY_TOKENS = {TOKENS: 1 << 62}


class Admitted(NamedTuple):
    """A job that may be sent now, and the tokens that were reserved for it."""

    job: Job
    permit: Permit
    reserved: dict[str, int]


class Sender:
    """Sends the jobs of a run by a wire, no faster than the gate admits.

    `learns`: limits of tokens may become known while jobs wait. `counted` has what went through the gate, by
    unit, as the limits count it. `stats` is what is known about the tokens of jobs so far.
    """

    def __init__(
        self, gate: Dispatch, wire: Wire, host: str, *, timeout: float, learns: bool = False
    ) -> None:
        self._gate = gate
        self._wire = wire
        self._host = host
        self._timeout = timeout
        self._learns = learns
        self.stats = TokenStats()
        self.counted: Counter[str] = Counter()

    def _reserved(self, shape: RequestShape) -> dict[str, int]:
        """The tokens that a job is likely to use, in the units that the gate counts or may count soon."""
        counted: Mapping[str, int] = self._gate.largest_cost()
        if self._learns:
            counted = {**_ANY_TOKENS, **counted}
        return reserved_at(counted, self._host, shape, self.stats)

    async def admitted(self, job: Job) -> Admitted:
        """Wait at the gate until the job may be sent. The time is not limited.

        Raises CostTooLarge for a job that the limits can never admit.
        """
        reserved = self._reserved(job.shape)
        while True:
            units = {unit: amount for unit, amount in reserved.items() if unit != TOKENS} or None
            tokens = reserved.get(TOKENS, 0)
            try:
                admission = self._gate.admit(bytes=len(job.body), tokens=tokens, cost=units)
                return Admitted(job, await admission.enter_async(), reserved)
            except CostTooLarge:  # the limits are lower than they were, or have just become known
                before, reserved = reserved, self._reserved(job.shape)
                if reserved == before:
                    raise

    async def send(self, admitted: Admitted) -> Reply:
        """Send a job that was admitted, and read the reply."""
        (job, permit, reserved), gate = admitted, self._gate
        shape = job.shape
        self.counted["requests"] += 1
        sent_at = gate.clock.seconds()
        try:
            raw = await self._wire.send(job.method, job.url, job.body or None)
            reply = read_reply(
                raw.status, raw.headers, raw.content, pairs=raw.pairs, generates=shape.generates
            )
        except BaseException as error:
            unsent = never_sent(error)
            # A slow answer says nothing of the others. A connection that fails does, as a 5xx would.
            if isinstance(error, Exception) and (unsent or not isinstance(error, TimeoutError)):
                gate.observe(_NO_CONNECTION, sent_at=sent_at)
            if unsent:
                permit.cancel()
            else:
                self.counted.update(reserved)
                permit.settle()  # it may have run, so the estimate stands
            if not isinstance(error, Exception):
                raise
            return no_reply(error, self._timeout)
        signal, usage = reply.signal, reply.usage
        assert signal is not None
        gate.observe(signal, sent_at=sent_at, status=raw.status)
        cost, counted = None, gate.largest_cost()
        if usage is not None:
            cost = cost_of_usage(counted, self._host, shape, self.stats, reserved, usage)
        elif raw.status >= 400:
            cost = cost_of_error(counted, raw.status, limited=signal.limited)
        self.counted.update(reserved if cost is None else cost)
        permit.settle(cost=cost or None)
        return reply
