"""One request of the caller, from its first attempt to its response.

However it ends (read, closed, broken, dropped or abandoned), the place at the gate is given back once.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from time import time
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from ..arguments import SECOND
from ..dispatch.dispatch import Dispatch
from ..dispatch.options import current_options
from ..errors import InvalidConfig, UnknownName
from ..gate.admission import Admission, Permit
from ..gate.first_free import FirstFree, FirstFreeAdmission
from ..gate.gate import Gate
from ..limits import read_cost
from ..responses import read_signal
from ..responses.estimate import (
    COUNTED,
    INPUT,
    OUTPUT,
    TOKENS,
    RequestShape,
    cost_of_error,
    cost_of_usage,
    read_shape,
    reservation,
    reserved_at,
)
from ..responses.head import head_of
from ..responses.signals import Signal
from ..responses.usage import Usage, unpacked
from ..responses.wire import text_of
from ..retries.call import RetriedCall
from ..retries.classify import SAFE_METHODS, is_permanent, never_sent, verdict_of
from ..retries.state import Failure, Stop
from .gates import Choose, Request, Target, checked, checked_several, default_gate
from .response import Answer, OpenResponse

if TYPE_CHECKING:
    from ..budgets.budget import Reservation, TokenBudget
    from .exchange import GatedSender

_NOTHING: Mapping[str, int] = {}  # stated about its cost

# Seconds. A new connection and a busy client make some requests arrive later than others.
_DELAY = 0.1

# A response that asks for a longer wait is returned at once. (The OpenAI SDK draws the same line.)
_LONGEST_RETRY_AFTER = 120 * SECOND


class ErrorResponse(Exception):
    """A response that is retried: logs and observers of the retry see this exception."""


class Call:
    """One request, and the attempt to send it that is being made."""

    __slots__ = (
        "_body",
        "_costs",
        "_headers",
        "_host",
        "_method",
        "_options",
        "_pairs",
        "_path",
        "_permit",
        "_reserved",
        "_retried",
        "_sender",
        "_sent_at",
        "_settling",
        "_several",
        "_shape",
        "budget",
        "gate",
        "reservation",
    )
    _costs: list[dict[str, int]]  # at each of several gates
    _pairs: object  # the headers of the response
    reservation: Reservation | None  # of the attempt that is being made, if there is a budget
    _settling: Reservation | None  # of the attempt whose response is being read

    def __init__(
        self,
        sender: GatedSender,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | None,
    ) -> None:
        self._sender = sender
        self._method = method
        self._headers = headers
        self._body = body
        self._host, self._path = _host_and_path(url)
        self._shape: RequestShape | None = None  # until something depends on it
        gate, request = sender.gate, None
        if gate is None:
            shape = self._read_shape()
            gate = default_gate(self._host, shape.model if shape.generates else None)
        if sender.estimate is not None or not isinstance(gate, Dispatch):
            request = Request(
                method=method,
                url=url,
                host=self._host,
                headers={name.lower(): text_of(value) for name, value in headers.items()},
                body=body,
                model=self._read_shape().model,
            )
            if not isinstance(gate, (Dispatch, FirstFree)):
                gate = gate(request)
        self._several = None if gate.__class__ is Dispatch else checked_several(gate)
        self.gate: Dispatch = checked(gate if self._several is None else self._several.gates[0], sender.gate)
        self._options = options = current_options()
        self.budget: TokenBudget | None = None if options is None else options.budget
        if self._several is None:
            self._reserved = self._reserve(request)
        else:
            self._costs = [self._reserve_at(gate, request) for gate in self._several.gates]
        self._permit: Permit | None = None
        self.reservation = self._settling = None
        self._sent_at = 0.0
        self._retried: RetriedCall | None = None
        if sender.counts_from_the_start:
            self._retried = self._begin_retries()

    @property
    def name(self) -> str:
        return f"{self._method} {self._host}{self._path}"

    def _read_shape(self) -> RequestShape:
        if self._shape is None:
            self._shape = read_shape(self._method, self._host, self._path, self._body)
        return self._shape

    def _reserve(self, request: Request | None) -> dict[str, int]:
        """The estimated cost, in the units that the gate counts."""
        if not self.gate.expected_delay:
            self.gate.expect_delay(_DELAY)
        counted = self.gate.largest_cost()
        stated = _NOTHING if self._options is None else self._options.costs()
        if self._sender.estimate is not None:
            assert request is not None
            given = self._sender.estimate(request)
            reserved = dict(given.items()) if hasattr(given, "items") else {TOKENS: given}
        else:
            reserved = self._guess(counted, stated)
            if not stated:
                return reserved
        reserved.update(stated)
        return {unit: cost for unit, cost in reserved.items() if unit in counted or unit == "requests"}

    def _reserve_at(self, gate: Gate, request: Request | None) -> dict[str, int]:
        """The estimated cost at one of several gates."""
        self.gate = checked(gate, self._several)
        return self._reserve(request)

    def _guess(self, counted: Mapping[str, int], stated: Mapping[str, int]) -> dict[str, int]:
        """What the request will probably cost; its caller may have stated the cost in some units."""
        unstated = self.gate.columns.unstated
        if unstated:
            unknown = [unit for unit in unstated if unit not in stated and unit not in COUNTED]
            if unknown:
                raise InvalidConfig(
                    f"a rate counts {unknown[0]}, and a request does not say how many it costs; give the "
                    "adapter a function of one request, e.g. "
                    f'estimate=lambda request: {{"{unknown[0]}": 1}}'
                )
        if counted.keys().isdisjoint(COUNTED):
            return {}
        return reserved_at(counted, self._host, self._shape or self._read_shape(), self._sender.stats)

    # -- whether it may be sent again

    @property
    def retried_above(self) -> bool:
        """Whether a client above retries, too, and this is one of its retries: it is sent once.

        The OpenAI and Anthropic SDKs count their attempts in this header.
        """
        return bool(_digits(self._headers, "x-stainless-retry-count"))

    def _repeat(self) -> Literal["never", "always", "if refused"]:
        headers, body = self._headers, self._body
        if self.retried_above:
            return "never"
        if body is None and (_digits(headers, "content-length") or "transfer-encoding" in headers):
            return "never"  # its body can be read only once
        if self._method.upper() in SAFE_METHODS or "idempotency-key" in headers:
            return "always"
        return "always" if self._read_shape().generates else "if refused"

    def _begin_retries(self) -> RetriedCall:
        gate = self.gate
        return RetriedCall(self._sender.policy, self.name, clock=gate.clock, on_retry=gate.observer)

    # -- one attempt

    def take(self) -> Permit | None:
        """A permit if the gate admits the request at once. If it does not, wait at `next_admission()`."""
        if self._several is not None:
            return None
        gate, options = self.gate, self._options
        price = read_cost(gate.columns, *self._price())
        return gate.take(price, None if options is None else options.tenant)

    def next_admission(self) -> Admission | FirstFreeAdmission:
        """The place in line for the next attempt: at the gate, or at all of several."""
        several = self._several
        if several is None:
            return self.admission()
        admissions = []
        for gate, reserved in zip(several.gates, self._costs, strict=True):
            self.gate, self._reserved = checked(gate, several), reserved
            admissions.append(self.admission())
        return several.among(admissions)

    def _price(self) -> tuple[int, int, dict[str, int] | None]:
        """Bytes, tokens, and what it costs in other units."""
        reserved, body = self._reserved, self._body
        cost = None
        if len(reserved) > (TOKENS in reserved) or self.gate.columns.unstated:
            cost = {unit: cost for unit, cost in reserved.items() if unit != TOKENS}
        size = _digits(self._headers, "content-length") if body is None else len(body)
        return size, reserved.get(TOKENS, 0), cost

    def admission(self) -> Admission:
        size, tokens, cost = self._price()
        timeout, options = self._sender.timeout, self._options
        if options is None:
            return self.gate.admit(bytes=size, tokens=tokens, cost=cost, timeout=timeout)
        return self.gate.admit(
            bytes=size,
            tokens=tokens,
            cost=cost,
            timeout=options.waits(timeout),
            priority=options.priority,
            tenant=options.tenant,
        )

    def reserve(self, budget: TokenBudget) -> None:
        """Reserve from the budget of the call what its input and its longest answer may cost."""
        self.reservation = None  # that of the attempt before stays charged, also if this one is refused
        tokens, money = self._budgeted()
        self.reservation = budget.reserve(tokens, money=money)

    async def reserve_async(self, budget: TokenBudget) -> None:
        """Reserve from the budget of the call, in an event loop."""
        self.reservation = None
        tokens, money = self._budgeted()
        self.reservation = await budget.reserve_async(tokens, money=money)

    def _budgeted(self) -> tuple[int, int]:
        """What to reserve: tokens of the input and of the longest answer, and money."""
        assert self.budget is not None
        self.budget.check_prices()  # again: the tier of a user may have changed within the block
        shape, own, answer = self._read_shape(), 0, 0
        if shape.style != "free":
            guess = reservation(shape, *self._sender.stats.expect(self._host, shape.model, shape.max_output))
            own, answer = guess[INPUT], shape.max_output or guess[OUTPUT]
        stated = _NOTHING if self._options is None else self._options.costs()
        if TOKENS not in stated:
            return own + answer, self._money(own, answer)
        # Whether they are of the input or of the answer is not said: they may be the dearer ones.
        tokens = stated[TOKENS]
        return tokens, max(self._money(tokens, 0), self._money(0, tokens))

    def _money(self, own: int, answer: int, cached: int = 0, answering: str | None = None) -> int:
        """What these tokens cost, by the model that the request names. UnknownName if it has no price.

        If the request names none that can be read, by the model that is `answering`; without a price in the
        list, that costs as much as the dearest one there.
        """
        prices = None if self.budget is None else self.budget.prices
        if prices is None:
            return 0
        shape = self._read_shape()
        if answering is not None:
            try:
                return prices.cost(answering, input_tokens=own, output_tokens=answer, cached=cached)
            except UnknownName:  # it has been used already
                every = prices.models.values()
                return max((price.millionths(own, answer, cached) for price in every), default=0)
        if shape.style == "free" or not (shape.generates or shape.model):
            return 0
        return prices.cost(shape.model or "", input_tokens=own, output_tokens=answer, cached=cached)

    @property
    def asks_for_model(self) -> bool:
        """Whether the response has to say which model is to be paid: the request does not."""
        if self.budget is None or self.budget.prices is None or self._method.upper() in SAFE_METHODS:
            return False
        return self._read_shape().model is None

    def begin(self, permit: Permit) -> None:
        """The gate has admitted the request: it is sent now."""
        self._permit = permit
        if self._several is not None:
            self.gate = checked(permit.gate, self._several)
            self._reserved = self._costs[self._several.gates.index(self.gate)]
        self._sent_at = self.gate.clock.seconds()

    def target(self, choose: Choose) -> Target:
        """Where the request that was admitted is sent."""
        target = choose(self.gate)
        if not isinstance(target, Target):
            raise InvalidConfig(
                f"{choose!r} gave {target!r}; return headgate.http.Target(headers=..., base_url=...)"
            )
        return target

    def answered(self, answer: Answer, error_body: bytes | None) -> int | None:
        """Learn from a response. Returns nanoseconds to wait before a retry, None if the caller gets it."""
        permit = self._permit
        assert permit is not None
        status = answer.status
        self._pairs = answer.header_pairs
        if status < 400:
            signal, content_type, content_encoding = head_of(status, self._pairs, time())
            leases = self._sender.leases(self.gate.clock)
            response = OpenResponse(self, permit, leases, content_type, content_encoding)
            self._permit = None  # from here on the response answers for it, and for what was reserved
            self._settling, self.reservation = self.reservation, None
            self.gate.observe(signal, sent_at=self._sent_at, status=status)
            if self._retried is not None:
                self._retried.succeeded()
            if status == 101:
                response.end()  # from here on it is a conversation of any length
            else:
                answer.watch(response)
            return None
        text = None
        if error_body is not None:
            text = unpacked(error_body, answer.headers.get("content-encoding") or "")
        signal = read_signal(status, self._pairs, text)
        self._observe(signal, status)
        cost = cost_of_error(self.gate.largest_cost(), status, limited=signal.limited)
        permit.settle(cost=cost)
        if cost is not None and self.reservation is not None:
            self.reservation.refund()
        self._permit = self.reservation = None  # this attempt is over, whatever happens to the next one
        if not self._sender.policy.max_retries:
            return None
        repeat = self._repeat()
        retry_after = None if signal.retry_after is None else round(signal.retry_after * SECOND)
        if self._several is not None and self.gate.pauses:
            retry_after = None  # it is that of one gate; another may have room now
        is_short = retry_after is None or retry_after <= _LONGEST_RETRY_AFTER
        failure = Failure(
            ErrorResponse(f"{status}, {signal.reason}"),
            again=signal.should_retry is True and is_short and repeat != "never",
            may_have_run=not signal.limited and repeat == "if refused",
            retry_after=retry_after,
            held=signal.limited and self.gate.pauses,  # until its window ends
        )
        delay = self._delay_after(failure)
        if delay is None:
            answer.forbid_retries()
        return delay

    def failed(self, error: BaseException) -> int | None:
        """Settle an attempt without a complete response. Returns what `answered` returns."""
        permit, self._permit = self._permit, None
        sent = not never_sent(error)
        if permit is not None and sent:
            permit.settle()
        elif permit is not None:
            permit.cancel()
        if self.reservation is not None and (permit is None or not sent):
            self.reservation.refund()
        self.reservation = None
        if not isinstance(error, Exception) or not self._sender.policy.max_retries:
            return None
        repeat = self._repeat()
        again = repeat != "never" and verdict_of(error).again and not is_permanent(error)
        return self._delay_after(Failure(error, again, may_have_run=sent and repeat == "if refused"))

    def _delay_after(self, failure: Failure) -> int | None:
        """Nanoseconds to wait before the request is sent again; None if it is not."""
        retried = self._retried = self._retried or self._begin_retries()
        decision = retried.decide(failure)
        retried.announce(decision)
        return None if isinstance(decision, Stop) else decision.delay

    # -- what its response says

    def _observe(self, signal: Signal, status: int) -> None:
        self.gate.observe(signal, sent_at=self._sent_at, status=status)

    def observe_error(self, document: Mapping[str, Any]) -> None:
        """Learn from an error inside a success."""
        signal = read_signal(200, self._pairs, document)
        if signal.limited:
            self._observe(signal, 200)

    def cost_of(self, usage: Usage | None, model: str | None) -> dict[str, int] | None:
        """The cost of a response by what it says it used, None if the estimate stands."""
        if usage is None:
            return None
        if self._settling is not None and usage.final:
            money = self._money(usage.input + usage.beside, usage.output, usage.cached, model)
            self._settling.settle(usage.input + usage.output, money=money)
        counted = self.gate.largest_cost()
        if self._shape is None and counted.keys().isdisjoint(COUNTED):
            return None
        shape = self._shape or self._read_shape()
        return cost_of_usage(counted, self._host, shape, self._sender.stats, self._reserved, usage)


def _digits(headers: Mapping[str, str], name: str) -> int:
    """The whole number in a header; 0 if there is none, or if it is absurdly long."""
    text = text_of(headers.get(name))
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0


@lru_cache(maxsize=1_024)
def _host_and_path(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.netloc.rpartition("@")[2].lower(), parts.path
