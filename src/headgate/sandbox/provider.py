"""An API that limits its callers, as real ones do, without a network.

There is no clock and no I/O here: `now`, in nanoseconds, is an argument, and random numbers are seeded, so
that a run can be repeated. A request becomes a Scenario, whose steps a server, or a test in virtual time,
carries out.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial
from heapq import heappop, heappush
from math import ceil, log
from random import Random
from typing import TypedDict, Unpack, cast

from ..arguments import SECOND, positive_int, positive_seconds_to_ns, seconds_to_ns
from ..errors import InvalidConfig
from ..limits import Rate
from ..typing import Seconds
from .answers import Answers, Case
from .faults import REFUSING, Fault, Planned
from .meters import KINDS, Meter, meter_for, read_rate, write_rate
from .referee import Customer, Referee, Report
from .steps import Pause, Scenario, Steps
from .styles import STYLES
from .styles.reading import key_of
from .styles.style import Style
from .styles.values import Ask, Charges, Output, Refusal, Request

UNITS = ("requests", "tokens", "input_tokens", "output_tokens")
_LONGEST_REPLY = 100_000  # tokens


class Limits(TypedDict, total=False):
    """The limits of a Provider."""

    requests: Rate | str | None
    tokens: Rate | str | None
    input_tokens: Rate | str | None
    output_tokens: Rate | str | None
    concurrency: int | None


class Change(Limits, total=False):
    """Other limits, from *after* seconds on and for *duration* seconds (None: until they are changed)."""

    after: Seconds
    duration: Seconds | None


class Provider:
    """One API: its limits, its latencies, its faults, and the account of what it saw.

    `style` is "openai", "anthropic" or "plain". Limits are written as rates: `requests="600/minute"`,
    `tokens="100_000/minute"` (for Anthropic `input_tokens` and `output_tokens`), and `concurrency=8`.
    `kind` says how they are kept: "bucket" (refilled evenly; holds the whole amount, or as in
    "600/minute burst 20"), "fixed" (windows of the wall clock) or "sliding" (the exact log). They hold for
    all requests together, or for each key and each model with `per_key=True` and `per_model=True`.

    `start_empty=True`: the first request finds buckets empty and windows used up. `window_age=45`: it comes
    45 s after the start of a fixed window, whatever the wall clock says. `jitter` is the longest time that a
    request takes to arrive; each takes a part of it, at random, and limits count when it has arrived.

    `refusals_count`: does a refused request cost a request? (OpenAI: yes.) `headers=False` leaves out the
    state of the budgets, `retry_after=False` the time to try again.

    An answer starts after `first_token` seconds (the median; `spread` is the sigma of a lognormal) and
    continues with `tokens_per_second` (None: at once), in pieces of `piece_tokens` if it is streamed. It has
    the number of tokens that the request states in `metadata.sandbox_output_tokens` or
    `x-sandbox-output-tokens`, else `reply_tokens` on average. `seed` determines all random numbers.

    >>> from headgate.sandbox import Sandbox
    >>> with Sandbox(Provider("anthropic", requests="50/minute", output_tokens="8000/minute")) as api:
    ...     pass  # Anthropic(base_url=api.url, api_key="any")
    """

    def __init__(
        self,
        style: str = "openai",
        *,
        kind: str = "bucket",
        per_key: bool = False,
        per_model: bool = False,
        start_empty: bool = False,
        window_age: Seconds | None = None,
        jitter: Seconds = 0.0,
        refusals_count: bool | None = None,
        headers: bool = True,
        retry_after: bool = True,
        first_token: Seconds = 0.005,
        spread: float = 0.0,
        tokens_per_second: float | None = None,
        reply_tokens: int = 16,
        piece_tokens: int = 4,
        seed: int = 0,
        **limits: Unpack[Limits],
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
        self._start_empty = start_empty
        self._jitter = seconds_to_ns(jitter, "jitter", error=InvalidConfig)
        self._window_age: int | None = None
        if window_age is not None:
            self._window_age = seconds_to_ns(window_age, "window_age", error=InvalidConfig)
            if kind != "fixed":
                raise InvalidConfig(f"window_age={window_age!r} needs kind='fixed', and kind={kind!r}")
        self._refusals_count = self.style.refusals_count if refusals_count is None else refusals_count
        self._reply_tokens = positive_int(reply_tokens, "reply_tokens", example=16)
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise InvalidConfig(f"seed={seed!r} is not a whole number; write e.g. seed=1")
        if tokens_per_second is not None:
            tokens_per_second = _number(tokens_per_second, "tokens_per_second", 50, positive=True)
        self._seed = seed
        self._serial = 0
        self._faults: list[Planned] = []
        self._customers: dict[tuple[str, str], Customer] = {}
        self._referee = Referee()
        self._answers = Answers(
            style=self.style,
            referee=self._referee,
            kind=kind,
            headers=headers,
            retry_after=retry_after,
            first_token=seconds_to_ns(first_token, "first_token", error=InvalidConfig),
            spread=_number(spread, "spread", 0.3, positive=False),
            speed=tokens_per_second,
            piece_tokens=positive_int(piece_tokens, "piece_tokens", example=4),
        )
        self._history: dict[str, list[tuple[int, Rate | None]]] = {}
        self._changes: list[tuple[int, int, dict[str, Rate | int | None], int | None]] = []  # a heap
        self._planned = 0  # how many there have been
        self._origin = 0
        self._epoch = 1_800_000_000 * SECOND  # until a server anchors it: 15 January 2027, 8 o'clock
        self.set_limits(now=0, **limits)

    def anchor(self, now: int, wall: int) -> None:
        """At *now* it is *wall* nanoseconds since 1970, and reports count their seconds from *now*."""
        if self._serial == 0:  # once requests have come, their times stay as they are
            self._origin = now
            self._epoch = wall - now

    # -- Limits

    def set_limits(self, *, now: int, **change: Unpack[Change]) -> None:
        """Set other limits, written as for `Provider`. Those left out stay as they are; None removes a limit.

        They hold from `now` on, in nanoseconds, or from `after` seconds on; if `duration` is given, those
        that held before hold again after that many seconds. Raises InvalidConfig for what is not a limit.
        """
        start = now + seconds_to_ns(change.pop("after", 0.0), "after")
        duration = change.pop("duration", None)
        length = None if duration is None else positive_seconds_to_ns(duration, "duration")
        changed: dict[str, Rate | int | None] = {}
        for unit, value in change.items():
            if unit == "concurrency":
                if value is not None:
                    positive_int(value, "concurrency", example=8)
                changed[unit] = cast("int | None", value)
            elif unit not in UNITS:
                known = ", ".join(UNITS)
                raise TypeError(f"{unit}={value!r} is not a limit; write one of {known}, concurrency")
            elif value is None:
                changed[unit] = None
            elif unit in self.style.units:
                changed[unit] = read_rate(cast("Rate | str", value), unit, self.kind)
            else:
                counted = f"the {self.style.name} style counts {', '.join(self.style.units)}"
                raise InvalidConfig(f"{unit}={value!r}: {counted}; write one of these")
        self._plan(start, changed, length)
        self.catch_up(now)

    def _plan(self, start: int, changed: dict[str, Rate | int | None], length: int | None) -> None:
        self._planned += 1
        heappush(self._changes, (start, self._planned, changed, length))

    def catch_up(self, now: int) -> None:
        """Make the changes of limits that are due, each at its own moment."""
        while self._changes and self._changes[0][0] <= now:
            at, _, changed, length = heappop(self._changes)
            if length is not None:
                held: dict[str, Rate | int | None] = {**self._limits, "concurrency": self._concurrency}
                self._plan(at + length, {unit: held[unit] for unit in changed}, None)
            for unit, limit in changed.items():
                if unit == "concurrency":
                    self._concurrency = cast("int | None", limit)
                else:
                    self._set_limit(unit, cast("Rate | None", limit), at)

    def _set_limit(self, unit: str, rate: Rate | None, now: int) -> None:
        before = self._limits[unit]
        self._limits[unit] = rate
        if rate is not None or unit in self._history:
            earlier = [(-1 << 63, before)] if self._customers else []
            self._history.setdefault(unit, earlier).append((now, rate))
        for customer in self._customers.values():
            if rate is None:
                customer.meters.pop(unit, None)
            elif unit in customer.meters and before is not None and before.strict == rate.strict:
                customer.meters[unit].retune(rate, now)
            else:
                customer.meters[unit] = self._meter(rate, now)

    def _meter(self, rate: Rate, now: int) -> Meter:
        epoch = self._epoch if self._window_age is None else self._window_age - now
        return meter_for(rate, self.kind, now, epoch)

    def limits(self) -> dict[str, str | int | None]:
        """The limits in force, by name, as they could be written."""
        facts: dict[str, str | int | None] = {}
        for unit in self.style.units:
            rate = self._limits[unit]
            facts[unit] = None if rate is None else write_rate(rate, self.kind)
        return {**facts, "concurrency": self._concurrency}

    # -- Faults

    def fault(self, fault: Fault, now: int) -> None:
        """Misbehave by this `fault` from `now` on, in nanoseconds on the clock of the provider."""
        self._faults = [planned for planned in self._faults if not planned.is_over(now)]
        self._faults.append(Planned(fault, now))

    def faults(self, now: int) -> list[Fault]:
        """The faults that are not over at `now`, in nanoseconds on the clock of the provider."""
        return [planned.fault for planned in self._faults if not planned.is_over(now)]

    def clear_faults(self) -> None:
        """End all faults."""
        self._faults = []

    # -- What was seen

    def report(self) -> Report:
        """What happened since the start or the last reset, as a `Report`."""
        return self.account()()

    def account(self) -> Callable[[], Report]:
        """A copy of all that a report needs, and a function that computes the report from it later."""
        customers = [customer.copy() for customer in self._customers.values() if customer.admissions]
        history = {unit: tuple(limits) for unit, limits in self._history.items()}
        return partial(self._referee.copy().report, customers, history, self._origin)

    def reset_report(self) -> None:
        """Start counting again. Levels and requests in flight stay as they are."""
        self._referee.forget()
        for customer in self._customers.values():
            customer.forget()

    # -- Requests

    def open(self, request: Request, now: int) -> Scenario:
        """A request that was sent: it arrives, now or with jitter a little later, and is decided."""
        self._serial += 1
        random = Random(self._seed * 1_000_003 + self._serial)  # noqa: S311 - repeatable, not secret
        if not self._jitter:
            return self._decide(request, self._serial, random, now)
        return Scenario(self._arrive(request, self._serial, random, now))

    def _arrive(self, request: Request, serial: int, random: Random, now: int) -> Steps:
        now = yield Pause(now + round(self._jitter * random.random()))
        with closing(self._decide(request, serial, random, now)) as scenario:
            while (step := scenario.step(now)) is not None:
                now = yield step

    def _decide(self, request: Request, serial: int, random: Random, now: int) -> Scenario:
        """Decide about a request that has arrived."""
        self.catch_up(now)
        referee, answers = self._referee, self._answers
        referee.arrivals.append(now)
        name = request.headers.get("x-sandbox-id")
        if name is not None:
            referee.ids[name] += 1
        ask = self.style.read(request)
        output = Output(serial, (self._epoch + now) // SECOND)
        case = Case(request, ask, output, random, self._epoch)
        fault = case.fault = self._strike(case, now)
        if fault is not None and fault.kind in REFUSING:
            return Scenario(answers.misbehave(case, fault, now))
        if ask.answer is not None:
            return Scenario(answers.say(case, *ask.answer, [], now))
        customer = self._customer(request, ask, now)
        charges = self.style.charges(ask)
        refusal = self._judge(customer, charges, now)
        # A refusal for concurrency states no budget: none of them is used up.
        case.customer = customer if refusal is None or refusal.level is not None else None
        if refusal is not None:
            return Scenario(answers.refuse(case, refusal, now))

        customer.admit(charges[self.style.units[1]][1], now)
        for unit, meter in customer.meters.items():
            meter.take(charges[unit][1], now)
        referee.enter(stream=ask.stream)
        self._measure(case)

        def leave(finished: bool) -> None:
            customer.in_flight -= 1
            referee.leave(stream=ask.stream, finished=finished)

        return Scenario(answers.serve(case, customer, now), leave)

    def _strike(self, case: Case, now: int) -> Fault | None:
        """The fault, if any, that strikes this request."""
        request, ask = case.request, case.ask
        for planned in self._faults:
            kind = planned.fault.kind
            if kind not in REFUSING and ask.answer is not None:
                continue  # nothing to slow down or cut short
            if kind == "stream_error" and not ask.stream:
                continue
            if planned.strikes(request.path, ask.model, key_of(request), now, case.random.random):
                self._referee.faults[kind] += 1
                return planned.fault
        return None

    def _customer(self, request: Request, ask: Ask, now: int) -> Customer:
        name = (key_of(request) if self._per_key else "", ask.model if self._per_model else "")
        customer = self._customers.get(name)
        if customer is None:
            limits = ((unit, rate) for unit, rate in self._limits.items() if rate is not None)
            meters = {unit: self._meter(rate, now) for unit, rate in limits}
            if self._start_empty:
                for meter in meters.values():
                    meter.take(meter.most, now)
            customer = self._customers[name] = Customer(meters)
        return customer

    def _judge(self, customer: Customer, charges: Charges, now: int) -> Refusal | None:
        """None if the limits allow it; else a refusal with the limit that is furthest from allowing it."""
        refusal = self._objection(customer, charges, now)
        if refusal is None:
            return None
        self._referee.refused_by["too_large" if refusal.most else refusal.unit] += 1
        meters = customer.meters
        if self._refusals_count and "requests" in meters:
            meters["requests"].waste(now)
        refusal.level = customer.levels(now).get(refusal.unit)
        if refusal.level is not None and not refusal.most:
            waits = (meter.wait(charges[unit][0], now) for unit, meter in meters.items())
            refusal.wait = max(wait for wait in waits if wait is not None)
        return refusal

    def _objection(self, customer: Customer, charges: Charges, now: int) -> Refusal | None:
        if self._concurrency is not None and customer.in_flight >= self._concurrency:
            return Refusal("concurrency")
        refusal, longest = None, 0
        for unit, meter in customer.meters.items():
            need = charges[unit][0]
            wait = meter.wait(need, now)
            if wait is None:
                return Refusal(unit, requested=need, most=meter.most)
            if wait > longest:
                refusal, longest = Refusal(unit, requested=need), wait
        return refusal

    def _measure(self, case: Case) -> None:
        """Decide how long the answer will be."""
        ask, length = case.ask, case.ask.wanted_tokens
        if ask.endpoint == "embeddings":
            return
        most = min(ask.most_tokens or _LONGEST_REPLY, _LONGEST_REPLY)
        if length is None:
            length = 1
            if self._reply_tokens > 1:  # geometric: each token may be the last
                length = max(1, ceil(log(1.0 - case.random.random()) / log(1.0 - 1.0 / self._reply_tokens)))
        case.output.tokens = min(length, most)
        case.output.cut = length > most


def _number(value: float, what: str, example: float, *, positive: bool) -> float:
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < float("inf")
    if not good or (positive and not value):
        bound = "above 0" if positive else "at least 0"
        raise InvalidConfig(f"{what}={value!r} is not a number {bound}; write e.g. {what}={example:g}")
    return float(value)
