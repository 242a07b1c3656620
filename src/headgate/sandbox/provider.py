"""An API that limits its callers, as real ones do, without a network.

There is no clock and no I/O here: `now`, in nanoseconds, is an argument, and random numbers are seeded, so
that a run can be repeated. A request becomes a Scenario, whose steps a server, or a test in virtual time,
carries out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import ceil, log
from random import Random
from typing import TypedDict, Unpack, cast

from ..arguments import SECOND, positive_int, seconds_to_ns
from ..errors import InvalidConfig
from ..limits import Rate
from ..typing import Seconds
from .answers import Answers, Case
from .faults import REFUSING, Fault, Planned
from .meters import KINDS, meter_for, read_rate, written
from .referee import Customer, Referee, Report
from .steps import Scenario
from .styles import STYLES
from .styles.reading import key_of
from .styles.style import Style
from .styles.values import Ask, Output, Refusal, Request

UNITS = ("requests", "tokens", "input_tokens", "output_tokens")
_LONGEST_REPLY = 100_000  # tokens


class Limits(TypedDict, total=False):
    """The limits of a Provider."""

    requests: Rate | str | None
    tokens: Rate | str | None
    input_tokens: Rate | str | None
    output_tokens: Rate | str | None
    concurrency: int | None


class Provider:
    """One API: its limits, its latencies, its faults, and the account of what it saw.

    `style` is "openai", "anthropic" or "plain". Limits are written as rates: `requests="600/minute"`,
    `tokens="100_000/minute"` (for Anthropic `input_tokens` and `output_tokens`), and `concurrency=8`.
    `kind` says how they are kept: "bucket" (refilled evenly; holds the whole amount, or as in
    "600/minute burst 20"), "fixed" (windows of the wall clock) or "sliding" (the exact log). They hold for
    all requests together, or for each key and each model with `per_key=True` and `per_model=True`.

    `refusals_count`: does a refused request cost a request? (OpenAI: yes.) `headers=False` leaves out the
    state of the budgets, `retry_after=False` the time to try again.

    An answer starts after `first_token` seconds (the median; `spread` is the sigma of a lognormal) and
    continues with `tokens_per_second` (None: at once), in pieces of `piece_tokens` if it is streamed. It has
    the number of tokens that the request states in `metadata.sandbox_output_tokens` or
    `x-sandbox-output-tokens`, else `reply_tokens` on average. `seed` determines all random numbers.
    """

    def __init__(
        self,
        style: str = "openai",
        *,
        requests: Rate | str | None = None,
        tokens: Rate | str | None = None,
        input_tokens: Rate | str | None = None,
        output_tokens: Rate | str | None = None,
        concurrency: int | None = None,
        kind: str = "bucket",
        per_key: bool = False,
        per_model: bool = False,
        refusals_count: bool | None = None,
        headers: bool = True,
        retry_after: bool = True,
        first_token: Seconds = 0.005,
        spread: float = 0.0,
        tokens_per_second: float | None = None,
        reply_tokens: int = 16,
        piece_tokens: int = 4,
        seed: int = 0,
    ) -> None:
        if style not in STYLES:
            raise InvalidConfig(f"style={style!r} is unknown; write one of {', '.join(STYLES)}")
        if kind not in KINDS:
            raise InvalidConfig(f"kind={kind!r} is unknown; write one of {', '.join(KINDS)}")
        self.style: Style = STYLES[style]()
        self.kind = kind
        self._limits: dict[str, Rate | None] = dict.fromkeys(UNITS)
        self._concurrency: int | None = None
        self._per_key = per_key
        self._per_model = per_model
        self._refusals_count = self.style.refusals_count if refusals_count is None else refusals_count
        self._reply_tokens = positive_int(reply_tokens, "reply_tokens", example=16)
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise InvalidConfig(f"seed={seed!r} is not a whole number; write e.g. seed=1")
        self._seed = seed
        self._serial = 0
        self._faults: list[Planned] = []
        self._customers: dict[tuple[str, str], Customer] = {}
        self._referee = Referee()
        self._answers = Answers(
            self.style,
            self._referee,
            kind=kind,
            headers=headers,
            retry_after=retry_after,
            first_token=seconds_to_ns(first_token, "first_token", error=InvalidConfig),
            spread=_number(spread, "spread", 0.3, least=0),
            speed=None
            if tokens_per_second is None
            else _number(tokens_per_second, "tokens_per_second", 50, above=0),
            piece_tokens=positive_int(piece_tokens, "piece_tokens", example=4),
        )
        self._history: dict[str, list[tuple[int, Rate | None]]] = {}
        self._origin = 0
        self._epoch = 1_800_000_000 * SECOND  # until a server anchors it: 15 January 2027, 8 o'clock
        self.set_limits(
            requests=requests,
            tokens=tokens,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            concurrency=concurrency,
            now=0,
        )

    def anchor(self, now: int, wall: int) -> None:
        """At *now* it is *wall* nanoseconds since 1970, and reports count their seconds from *now*."""
        if self._serial == 0:  # once requests have come, their times stay as they are
            self._origin = now
            self._epoch = wall - now

    # -- Limits

    def set_limits(self, *, now: int, **limits: Unpack[Limits]) -> None:
        """Set other limits from now on. Those left out stay as they are; None removes a limit."""
        changed: dict[str, Rate | None] = {}
        for unit, value in limits.items():
            if unit == "concurrency":
                if value is not None:
                    positive_int(value, "concurrency", example=8)
            elif unit not in UNITS:
                raise TypeError(
                    f"{unit}={value!r} is not a limit; write one of {', '.join(UNITS)}, concurrency"
                )
            elif value is not None and unit not in self.style.units:
                raise InvalidConfig(
                    f"{unit}={value!r}: the {self.style.name} style counts {', '.join(self.style.units)}; "
                    "write one of these"
                )
            else:
                changed[unit] = (
                    None if value is None else read_rate(cast("Rate | str", value), unit, self.kind)
                )
        self._concurrency = limits.get("concurrency", self._concurrency)
        for unit, rate in changed.items():
            self._set_limit(unit, rate, now)

    def _set_limit(self, unit: str, rate: Rate | None, now: int) -> None:
        before = self._limits[unit]
        self._limits[unit] = rate
        if rate is not None or unit in self._history:
            self._history.setdefault(unit, [(-1 << 63, before)] if self._customers else []).append(
                (now, rate)
            )
        for customer in self._customers.values():
            if rate is None:
                customer.meters.pop(unit, None)
            elif unit in customer.meters and before is not None and before.strict == rate.strict:
                customer.meters[unit].retune(rate, now)
            else:
                customer.meters[unit] = meter_for(rate, self.kind, now, self._epoch)

    def limits(self) -> dict[str, str | int | None]:
        """The limits in force, as they could be written."""
        facts: dict[str, str | int | None] = {
            unit: None if rate is None else written(rate, self.kind)
            for unit, rate in self._limits.items()
            if unit in self.style.units
        }
        return {**facts, "concurrency": self._concurrency}

    # -- Faults

    def fault(self, fault: Fault, now: int) -> None:
        self._faults = [planned for planned in self._faults if not planned.is_over(now)]
        self._faults.append(Planned(fault, now))

    def faults(self, now: int) -> list[Fault]:
        """The faults that are not over."""
        return [planned.fault for planned in self._faults if not planned.is_over(now)]

    def clear_faults(self) -> None:
        self._faults = []

    # -- What was seen

    def report(self) -> Report:
        return self.account()()

    def account(self) -> Callable[[], Report]:
        """A copy of all that a report needs, and a function that computes the report from it later."""
        customers = [customer.copy() for customer in self._customers.values() if customer.admissions]
        history = {unit: tuple(limits) for unit, limits in self._history.items()}
        return partial(self._referee.copy().report, customers, history, self._origin, self._epoch)

    def reset_report(self) -> None:
        """Start counting again. Levels and requests in flight stay as they are."""
        self._referee.forget()
        for customer in self._customers.values():
            customer.forget()

    # -- Requests

    def open(self, request: Request, now: int) -> Scenario:
        """Decide about a request that has arrived."""
        self._serial += 1
        referee, answers = self._referee, self._answers
        referee.arrivals.append(now)
        name = request.headers.get("x-sandbox-id")
        if name is not None:
            referee.ids[name] += 1
        ask = self.style.read(request)
        output = Output(self._serial, (self._epoch + now) // SECOND)
        random = Random(self._seed * 1_000_003 + self._serial)  # noqa: S311 - repeatable, not secret
        case = Case(request, ask, output, random, self._epoch)
        self._strike(case, now)
        if case.struck and case.struck[0].kind in REFUSING:
            return Scenario(answers.misbehave(case, case.struck[0], now))
        if ask.answer is not None:
            return Scenario(answers.say(case, *ask.answer, [], now))
        customer = self._customer(request, ask, now)
        refusal = self._judge(customer, ask, now)
        if refusal is not None:
            return Scenario(answers.refuse(case, customer, refusal, now))

        charges = self.style.charges(ask)
        token_unit = self.style.units[1]
        customer.admit(charges[token_unit][1], now)
        for unit, meter in customer.meters.items():
            meter.take(charges[unit][1], now)
        referee.enter()
        case.customer = customer
        self._measure(case)
        if ask.stream:
            referee.open_streams += 1
        return Scenario(answers.serve(case, customer, now), partial(self._leave, case))

    def _leave(self, case: Case, finished: bool) -> None:
        referee = self._referee
        referee.in_flight -= 1
        if case.customer is not None:
            case.customer.in_flight -= 1
        if case.ask.stream:
            referee.open_streams -= 1
        if not finished:
            referee.abandoned += 1

    def _strike(self, case: Case, now: int) -> None:
        """Find the fault, if any, that strikes this request."""
        request, ask = case.request, case.ask
        for planned in self._faults:
            fault = planned.fault
            if fault.kind not in REFUSING and ask.answer is not None:
                continue  # nothing to slow down or cut short
            if fault.kind == "stream_error" and not ask.stream:
                continue
            if planned.strikes(request.path, ask.model, key_of(request), now, case.random.random):
                self._referee.faults[fault.kind] += 1
                case.struck.append(fault)
                return

    def _customer(self, request: Request, ask: Ask, now: int) -> Customer:
        name = (key_of(request) if self._per_key else "", ask.model if self._per_model else "")
        customer = self._customers.get(name)
        if customer is None:
            limits = ((unit, rate) for unit, rate in self._limits.items() if rate is not None)
            meters = {unit: meter_for(rate, self.kind, now, self._epoch) for unit, rate in limits}
            customer = self._customers[name] = Customer(meters)
        return customer

    def _judge(self, customer: Customer, ask: Ask, now: int) -> Refusal | None:
        """None if the limits allow it; else a refusal with the limit that is furthest from allowing it."""
        charges = self.style.charges(ask)
        refusal: Refusal | None = None
        if self._concurrency is not None and customer.in_flight >= self._concurrency:
            refusal = Refusal("concurrency")
        else:
            longest = 0
            for unit, meter in customer.meters.items():
                need = charges[unit][0]
                wait = meter.wait(need, now)
                if wait is None:
                    rate = meter.rate
                    most = rate.burst if self.kind == "bucket" and not rate.strict else rate.amount
                    refusal = Refusal(unit, requested=need, most=most)
                    break
                if wait > longest:
                    longest = wait
                    refusal = Refusal(unit, requested=need)
        if refusal is None:
            return None
        self._referee.refused_by["too_large" if refusal.most else refusal.unit] += 1
        requests = customer.meters.get("requests")
        if self._refusals_count and requests is not None:
            requests.waste(now)
        if refusal.unit in customer.meters:
            refusal.level = customer.level(refusal.unit, now)
            if not refusal.most:
                waits = (meter.wait(charges[unit][0], now) for unit, meter in customer.meters.items())
                refusal.wait = max(wait for wait in waits if wait is not None)
        return refusal

    def _measure(self, case: Case) -> None:
        """Decide how long the answer will be."""
        ask, output = case.ask, case.output
        if ask.endpoint == "embeddings":
            return
        most = min(ask.most_tokens or _LONGEST_REPLY, _LONGEST_REPLY)
        length = ask.wanted_tokens
        if length is None:
            length = 1
            if self._reply_tokens > 1:  # geometric: each token may be the last
                length = max(1, ceil(log(1.0 - case.random.random()) / log(1.0 - 1.0 / self._reply_tokens)))
        output.tokens = min(length, most)
        output.cut = length > most


def _number(
    value: object, what: str, example: float, *, least: float | None = None, above: float = -1
) -> float:
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and value < float("inf")
    if not good or not (value >= least if least is not None else value > above):  # type: ignore[operator]
        bound = f"at least {least:g}" if least is not None else f"above {above:g}"
        raise InvalidConfig(f"{what}={value!r} is not a number {bound}; write e.g. {what}={example:g}")
    return float(value)  # type: ignore[arg-type]  # checked above
