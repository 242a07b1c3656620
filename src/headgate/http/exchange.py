"""The loop of every adapter: wait at the gate, send, learn from the response, perhaps send again.

No client library is known here: an adapter says how to send, and shows its responses as `Answer`. Requests
and responses are never changed.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import TypeAlias, TypedDict, TypeVar

from ..arguments import must_be_plain, positive_seconds_to_ns, seconds_to_ns
from ..backoff import Backoff
from ..dispatch.dispatch import Dispatch
from ..errors import InvalidConfig
from ..gate.clock import sleep, sleep_async
from ..gate.first_free import FirstFree
from ..responses.estimate import TokenStats
from ..retries.budget import RetryBudget
from ..retries.policy import RetryPolicy, number_of_retries
from ..typing import Clock, Seconds
from .call import Call
from .gates import Choose, Gates, Request, checked_several
from .response import Answer, Leases

A = TypeVar("A", bound=Answer)
Estimate: TypeAlias = Callable[[Request], int | Mapping[str, int]]

_BACKOFF = Backoff(0.5, cap=8, jitter=("factor", 0.25))


class SendOptions(TypedDict, total=False):
    """What every adapter takes besides a gate.

    `retries` is how often a refusal or a passing failure is tried again (0), after the delays of `backoff`
    and as far as `retry_budget` allows. `estimate` is a function of a `Request` that returns its tokens, or
    amounts by unit. A response that is neither read nor closed for `lease` seconds (600) gives its place
    back. `timeout` is how long a request may wait at the gate before WaitTimeout is raised. `choose` is a
    function of the Dispatch that admitted a request, and returns the `Target` that it is sent to: with a
    FirstFree of several API keys or deployments, the right headers or base URL.
    """

    retries: int
    backoff: Backoff | None
    retry_budget: RetryBudget | None
    estimate: Estimate | None
    lease: Seconds
    timeout: Seconds | None
    choose: Choose | None


_EXAMPLE = 'Dispatch("openai", rates="500/minute", pause=True)'


def _no_option(name: str) -> str:
    """The error of an option that no adapter has; it may be one of the gate."""
    if name in inspect.signature(Dispatch).parameters:
        return f"{name}= is an option of a gate, not of its adapter; give the adapter one: {_EXAMPLE}"
    return f"{name}= is not an option of an adapter; write one of {', '.join(SendOptions.__annotations__)}"


def check_transport(inner: object, kind: str) -> None:
    """Raise unless `inner` is None or acts like a transport of httpx of that kind: async or not."""
    sends = "handle_async_request" if kind.startswith("Async") else "handle_request"
    if inner is not None and (isinstance(inner, type) or not hasattr(inner, sends)):
        raise InvalidConfig(f"inner={inner!r} cannot send here; write e.g. inner=httpx.{kind}()")


class GatedSender:
    """Sends requests as the gate of each admits them, with the options of one adapter.

    `stats` is what is known about the tokens of the requests so far.
    """

    def __init__(
        self,
        gate: Gates = None,
        *,
        retries: int = 0,
        backoff: Backoff | None = None,
        retry_budget: RetryBudget | None = None,
        estimate: Estimate | None = None,
        lease: Seconds = 600.0,
        timeout: Seconds | None = None,
        choose: Choose | None = None,
        **unknown: object,
    ) -> None:
        for name in unknown:
            raise TypeError(_no_option(name))
        several = checked_several(gate) is not None
        if gate is not None and not several and not isinstance(gate, Dispatch) and not callable(gate):
            raise InvalidConfig(
                f"gate={gate!r} is not a Dispatch; give one, such as {_EXAMPLE}, "
                "or a function of the request that returns one"
            )
        if isinstance(gate, type):
            raise InvalidConfig(
                f"gate={gate.__name__} is a class, which would make a gate for each request and limit nothing"
                f"; give a gate, such as {_EXAMPLE}, or per_host({gate.__name__})"
            )
        if gate is not None and not isinstance(gate, (Dispatch, FirstFree)):
            must_be_plain(gate, "gate", "the request")
        if estimate is not None:
            must_be_plain(estimate, "estimate", "the request")
        if choose is not None:
            must_be_plain(choose, "choose", "a Dispatch")
        if timeout is not None:
            seconds_to_ns(timeout, "timeout")
        self.choose = choose
        self.gate = gate
        self.policy = RetryPolicy(
            number_of_retries(retries, "retries"),
            backoff=_BACKOFF if backoff is None else backoff,
            idempotent=False,  # whether a request may run twice depends on the request
            retry_budget=retry_budget,
        )
        self.counts_from_the_start = self.policy.counts_from_the_start
        self.estimate = estimate
        self.lease = positive_seconds_to_ns(lease, "lease")
        self.timeout = timeout
        self.stats = TokenStats()
        self._warned = False
        self._leases: dict[Clock, Leases] = {}

    def run(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, send: Callable[..., A]
    ) -> A:
        """Call `send` when the gate admits it, and again for each retry; raises what it raised last.

        With `choose`, `send` is given the Target of the request.
        """
        call = self._begin(method, url, headers, body)
        while True:
            answer = None
            try:
                if call.budget is not None:
                    call.reserve(call.budget)
                call.begin(call.take() or call.next_admission().enter())
                answer = send() if self.choose is None else send(call.target(self.choose))
                error_body = answer.read_error() if answer.status >= 400 else None
                delay = call.answered(answer, error_body)
                if delay is None:
                    return answer
                answer.drop()
            except BaseException as error:
                delay = call.failed(error)
                if answer is not None:
                    with suppress(Exception):  # the first error is the one that matters
                        answer.drop()
                if delay is None:
                    raise
            if delay:
                sleep(call.gate.clock, delay)

    async def run_async(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | None,
        send: Callable[..., Awaitable[A]],
    ) -> A:
        """Await `send` when the gate admits it, and again for each retry; raises what it raised last."""
        call = self._begin(method, url, headers, body)
        while True:
            answer = None
            try:
                if call.budget is not None:
                    await call.reserve_async(call.budget)
                call.begin(call.take() or await call.next_admission().enter_async())
                answer = await (send() if self.choose is None else send(call.target(self.choose)))
                error_body = await answer.read_error() if answer.status >= 400 else None
                delay = call.answered(answer, error_body)
                if delay is None:
                    return answer
                await answer.drop()
            except BaseException as error:
                delay = call.failed(error)
                if answer is not None:
                    with suppress(Exception):
                        await answer.drop()
                if delay is None:
                    raise
            if delay:
                await sleep_async(call.gate.clock, delay)

    def _begin(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> Call:
        """A call for this request. The first one that shows that two layers retry is reported."""
        call = Call(self, method, url, headers, body)
        if self.policy.max_retries and not self._warned and call.retried_above:
            self._warned = True
            logging.getLogger("headgate").warning(
                "%s: the client above retries too, on top of our %d; it is sent once. "
                "Set the client's max_retries=0, or retries=0 here",
                call.name,
                self.policy.max_retries,
            )
        return call

    def leases(self, clock: Clock) -> Leases:
        """The open responses of gates that tell time by that clock."""
        known = self._leases.get(clock)
        return self._leases.setdefault(clock, Leases(clock, self.lease)) if known is None else known

    def __repr__(self) -> str:
        described = "a gate for every host and model" if self.gate is None else repr(self.gate)
        return f"<{described}, {self.policy.max_retries} retries>"
