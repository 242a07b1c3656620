"""Sending one job through the gate, and reading what comes back.

This is the exchange of `headgate.http` for responses that are read whole: tokens are reserved, what the
response says about limits is observed, and the permit is settled with what was used. Retries are decided by
the runner: whatever happens to a request is a Reply.
"""

from collections import Counter

from ...dispatch.dispatch import Dispatch
from ...gate.admission import Permit
from ...responses.estimate import (
    INPUT,
    OUTPUT,
    TOKENS,
    RequestShape,
    TokenStats,
    reservation,
    settlement,
)
from ...responses.signals import Signal
from ...retries.classify import never_sent
from .jobs import Job
from .replies import Reply, no_reply, read_reply
from .wire import Wire

_COUNTED = (TOKENS, INPUT, OUTPUT)
_NONE_USED = dict.fromkeys(_COUNTED, 0)
_NOTHING: dict[str, int] = {}
_NO_CONNECTION = Signal(should_retry=True, reason="server_error")


class Sender:
    """Sends the jobs of a run by a wire, no faster than the gate admits.

    `counted` has what went through the gate, by unit, as the limits count it. `stats` is what is known about
    the tokens of jobs so far.
    """

    def __init__(self, gate: Dispatch, wire: Wire, host: str, *, timeout: float) -> None:
        self._gate = gate
        self._wire = wire
        self._host = host
        self._timeout = timeout
        self.stats = TokenStats()
        self.counted: Counter[str] = Counter()

    def reserved(self, shape: RequestShape) -> dict[str, int]:
        """The tokens that a job is likely to use, in the units that the gate counts."""
        counted = self._gate.largest_cost()
        if shape.style == "free" or counted.keys().isdisjoint(_COUNTED):
            return _NOTHING
        output = self.stats.output(self._host, shape.model, shape.max_output)
        guess = reservation(shape, self.stats.ratio(self._host, shape.model), output)
        # A guess above the largest possible cost is cut to it: the server may decide about such a request.
        return {unit: min(guess[unit], counted[unit]) for unit in _COUNTED if unit in counted}

    async def admitted(self, job: Job, reserved: dict[str, int]) -> Permit:
        """Wait at the gate until the job may be sent. The time is not limited."""
        if not reserved:
            return await self._gate.admit(bytes=len(job.body)).enter_async()
        cost = {unit: amount for unit, amount in reserved.items() if unit != TOKENS}
        tokens = reserved.get(TOKENS, 0)
        return await self._gate.admit(bytes=len(job.body), tokens=tokens, cost=cost or None).enter_async()

    async def send(self, job: Job, permit: Permit, reserved: dict[str, int]) -> Reply:
        """Send a job that was admitted, and read the reply."""
        gate, shape = self._gate, job.shape
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
                self._count(reserved)
                permit.settle()  # it may have run, so the estimate stands
            if not isinstance(error, Exception):
                raise
            return no_reply(error, self._timeout)
        signal, usage = reply.signal, reply.usage
        assert signal is not None
        gate.observe(signal, sent_at=sent_at, status=raw.status)
        if usage is not None:
            self.stats.learn(self._host, shape.model, shape.input, usage)
            cost = self._of_the_gate(settlement(shape.style, reserved, usage)) if reserved else None
        elif raw.status < 400 or (raw.status >= 500 and not signal.limited):
            cost = None  # the estimate stands
        else:
            cost = self._of_the_gate(_NONE_USED) if reserved else None
        if reserved:
            self._count(reserved if cost is None else cost)
        permit.settle(cost=cost)
        return reply

    def _of_the_gate(self, costs: dict[str, int]) -> dict[str, int]:
        """Those of the costs that the gate counts."""
        counted = self._gate.largest_cost()
        return {unit: cost for unit, cost in costs.items() if unit in counted}

    def _count(self, costs: dict[str, int]) -> None:
        self.counted.update(costs)
