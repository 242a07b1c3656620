"""An API that limits its callers, as real ones do, without a network.

Rules of this room: pure. `now`, in nanoseconds, is an argument; there is no clock, no I/O, and the dice are
seeded, so that a run can be had again. A request becomes an Exchange, a list of steps that somebody else
(a server, or a test in virtual time) carries out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from math import ceil, log
from random import Random
from typing import TYPE_CHECKING, Any, TypeAlias

from ..arguments import SECOND, positive_int, seconds_to_ns
from ..errors import InvalidConfig
from .faults import REFUSING, Fault, Planned
from .meters import KINDS, meter_for, read_rate
from .referee import Pool, Referee, Report
from .styles import (
    LONGEST_REPLY,
    STYLES,
    Ask,
    Level,
    Output,
    Refusal,
    Request,
    encode,
    http_date,
    key_of,
    period_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from ..limits import Rate
    from ..typing import Seconds
    from .styles import Pairs, Style

UNITS = ("requests", "tokens", "input_tokens", "output_tokens")

# A long answer that is not streamed is produced in so many slices: its tokens are counted as they come.
_SLICES = 16

# What was sent gets there before the connection is cut.
_ARRIVE = SECOND // 50


@dataclass(slots=True)
class Pause:
    """Nothing until that moment."""

    until: int


@dataclass(slots=True)
class Head:
    """Status and headers. Without a length, the body comes in pieces."""

    status: int
    headers: Pairs
    length: int | None


@dataclass(slots=True)
class Data:
    """A piece of the body."""

    data: bytes


@dataclass(slots=True)
class Cut:
    """The connection ends here: *reset*, or merely closed."""

    reset: bool


Step: TypeAlias = Pause | Head | Data | Cut
if TYPE_CHECKING:
    Steps: TypeAlias = Generator[Step, int, None]


class _Unchanged:
    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED: Any = _Unchanged()


@dataclass(slots=True)
class _Case:
    """One request with all that was found out about it."""

    request: Request
    ask: Ask
    output: Output
    die: Random
    pool: Pool | None = None  # whose limits it counts against, once it is admitted
    struck: list[Fault] = field(default_factory=list)  # by one at most

    def struck_by(self, kind: str) -> Fault | None:
        return self.struck[0] if self.struck and self.struck[0].kind == kind else None


class Exchange:
    """A request under way. Ask for steps until there are none, then close it, whatever happened."""

    __slots__ = ("_begun", "_closed", "_on_close", "_steps", "finished")

    def __init__(self, steps: Steps, on_close: Callable[[bool, int], None]) -> None:
        self._steps = steps
        self._on_close = on_close
        self._begun = False
        self._closed = False
        self.finished = False  # nothing is left to say

    def step(self, now: int) -> Step | None:
        """What happens next; None when it is over."""
        try:
            if self._begun:
                step = self._steps.send(now)
            else:
                self._begun = True
                step = next(self._steps)
        except StopIteration:
            self.finished = True
            return None
        if step.__class__ is Cut:
            self.finished = True
        return step

    def close(self, now: int) -> None:
        """The last byte is out, or the client has gone."""
        if not self._closed:
            self._closed = True
            self._steps.close()
            self._on_close(self.finished, now)


class Provider:
    """One API: its limits, its manners, its moods, and what it saw.

    `style` is "openai", "anthropic" or "plain". Limits are written as rates: `requests="600/minute"`,
    `tokens="100_000/minute"` (for Anthropic `input_tokens` and `output_tokens`), and `concurrency=8`.
    `kind` says how they are kept: "bucket" (refilled evenly; holds the whole amount, or as in
    "600/minute burst 20"), "fixed" (windows of the wall clock) or "sliding" (the exact log). They hold for
    everybody together, or for each key and each model with `per_key=True` and `per_model=True`.

    `refusals_count`: does a refused request cost a request? (OpenAI: yes.) `headers=False` leaves out where
    the budgets stand, `retry_after=False` when to try again.

    An answer starts after `first_token` seconds (the median; `spread` is the sigma of a lognormal) and goes
    on with `tokens_per_second` (None: at once), in pieces of `piece_tokens` if it is streamed. It has as many
    tokens as the request says in `metadata.sandbox_output_tokens` or `x-sandbox-output-tokens`, else
    `reply_tokens` on average. What is drawn is drawn from `seed`.
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
        self._headers = headers
        self._retry_after = retry_after
        self._first_token = seconds_to_ns(first_token, "first_token", error=InvalidConfig)
        self._spread = _number(spread, "spread", 0.3, least=0)
        self._speed = None
        if tokens_per_second is not None:
            self._speed = _number(tokens_per_second, "tokens_per_second", 50, above=0)
        self._reply_tokens = positive_int(reply_tokens, "reply_tokens", example=16)
        self._piece_tokens = positive_int(piece_tokens, "piece_tokens", example=4)
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise InvalidConfig(f"seed={seed!r} is not a whole number; write e.g. seed=1")
        self._seed = seed
        self._serial = 0
        self._faults: list[Planned] = []
        self._pools: dict[tuple[str, str], Pool] = {}
        self._referee = Referee()
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
        """It is *wall* nanoseconds since 1970, and reports count their seconds from here."""
        if self._serial == 0:  # what has begun goes on in its own time
            self._origin = now
            self._epoch = wall - now

    # -- Limits

    def set_limits(
        self,
        *,
        requests: Rate | str | None = UNCHANGED,
        tokens: Rate | str | None = UNCHANGED,
        input_tokens: Rate | str | None = UNCHANGED,
        output_tokens: Rate | str | None = UNCHANGED,
        concurrency: int | None = UNCHANGED,
        now: int,
    ) -> None:
        """Other limits from now on. Those left out stay as they are; None takes one away."""
        given = {
            "requests": requests,
            "tokens": tokens,
            "input_tokens": input_tokens,
            "output_tokens": output_tokens,
        }
        changed: dict[str, Rate | None] = {}
        for unit, value in given.items():
            if value is UNCHANGED:
                continue
            if value is not None and unit not in self.style.units:
                raise InvalidConfig(
                    f"{unit}={value!r}: the {self.style.name} style counts {', '.join(self.style.units)}; "
                    "write one of these"
                )
            changed[unit] = None if value is None else read_rate(value, unit, self.kind)
        if concurrency is not UNCHANGED:
            if concurrency is not None:
                positive_int(concurrency, "concurrency", example=8)
            self._concurrency = concurrency
        for unit, rate in changed.items():
            self._set_limit(unit, rate, now)

    def _set_limit(self, unit: str, rate: Rate | None, now: int) -> None:
        before = self._limits[unit]
        self._limits[unit] = rate
        if rate is not None or unit in self._history:
            self._history.setdefault(unit, [(-1 << 63, before)] if self._pools else []).append((now, rate))
        for pool in self._pools.values():
            if rate is None:
                pool.meters.pop(unit, None)
            elif unit in pool.meters and before is not None and before.strict == rate.strict:
                pool.meters[unit].retune(rate, now)
            else:
                pool.meters[unit] = meter_for(rate, self.kind, now, self._epoch)

    def limits(self) -> dict[str, str | int | None]:
        """The limits in force, as they could be written."""
        facts: dict[str, str | int | None] = {
            unit: None if rate is None else _written(rate, self.kind)
            for unit, rate in self._limits.items()
            if unit in self.style.units
        }
        return {**facts, "concurrency": self._concurrency}

    # -- Faults

    def fault(self, fault: Fault, now: int) -> None:
        self._faults = [planned for planned in self._faults if not planned.is_over(now)]
        self._faults.append(Planned(fault, now))

    def faults(self, now: int) -> list[Fault]:
        """Those that are not over."""
        return [planned.fault for planned in self._faults if not planned.is_over(now)]

    def clear_faults(self) -> None:
        self._faults = []

    # -- What was seen

    def report(self) -> Report:
        return self.account()()

    def account(self) -> Callable[[], Report]:
        """All that a report needs, as it is now. To work it out may take a while, and can wait."""
        pools = [pool.copy() for pool in self._pools.values() if pool.admissions]
        history = {unit: tuple(limits) for unit, limits in self._history.items()}
        return partial(self._referee.copy().report, pools, history, self._origin, self._epoch)

    def reset_report(self) -> None:
        """Count anew. Levels and requests under way stay as they are."""
        self._referee.forget()
        for pool in self._pools.values():
            pool.forget()

    # -- Requests

    def open(self, request: Request, now: int) -> Exchange:
        """A request has arrived whole."""
        self._serial += 1
        referee = self._referee
        referee.arrivals.append(now)
        name = request.headers.get("x-sandbox-id")
        if name is not None:
            referee.ids[name] += 1
        ask = self.style.read(request)
        output = Output(self._serial, (self._epoch + now) // SECOND)
        die = Random(self._seed * 1_000_003 + self._serial)  # noqa: S311 - to be had again, not to be secret
        case = _Case(request, ask, output, die)
        self._strike(case, now)
        if case.struck and case.struck[0].kind in REFUSING:
            return Exchange(self._misbehave(case, case.struck[0], now), _nothing)
        if ask.answer is not None:
            return Exchange(self._say(case, *ask.answer, [], now), _nothing)
        pool = self._pool(request, ask, now)
        refusal = self._judge(pool, ask, now)
        if refusal is not None:
            return Exchange(self._refuse(case, pool, refusal, now), _nothing)

        charges = self.style.charges(ask)
        token_unit = self.style.units[1]
        pool.admit(charges[token_unit][1], now)
        for unit, meter in pool.meters.items():
            meter.take(charges[unit][1], now)
        referee.enter()
        case.pool = pool
        self._measure(case)
        if ask.stream:
            referee.open_streams += 1
        return Exchange(self._serve(case, pool, now), lambda finished, _now: self._leave(case, finished))

    def _leave(self, case: _Case, finished: bool) -> None:
        referee = self._referee
        referee.in_flight -= 1
        if case.pool is not None:
            case.pool.in_flight -= 1
        if case.ask.stream:
            referee.open_streams -= 1
        if not finished:
            referee.abandoned += 1

    def _strike(self, case: _Case, now: int) -> None:
        """Which fault, if any, this request meets."""
        request, ask = case.request, case.ask
        for planned in self._faults:
            fault = planned.fault
            if fault.kind not in REFUSING and ask.answer is not None:
                continue  # nothing to slow down or cut short
            if fault.kind == "stream_error" and not ask.stream:
                continue
            if planned.strikes(request.path, ask.model, key_of(request), now, case.die.random):
                self._referee.faults[fault.kind] += 1
                case.struck.append(fault)
                return

    def _pool(self, request: Request, ask: Ask, now: int) -> Pool:
        name = (key_of(request) if self._per_key else "", ask.model if self._per_model else "")
        pool = self._pools.get(name)
        if pool is None:
            limits = ((unit, rate) for unit, rate in self._limits.items() if rate is not None)
            meters = {unit: meter_for(rate, self.kind, now, self._epoch) for unit, rate in limits}
            pool = self._pools[name] = Pool(meters)
        return pool

    def _judge(self, pool: Pool, ask: Ask, now: int) -> Refusal | None:
        """May it go? A refusal names the limit that is furthest from allowing it."""
        charges = self.style.charges(ask)
        refusal: Refusal | None = None
        if self._concurrency is not None and pool.in_flight >= self._concurrency:
            refusal = Refusal("concurrency")
        else:
            longest = 0
            for unit, meter in pool.meters.items():
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
        requests = pool.meters.get("requests")
        if self._refusals_count and requests is not None:
            requests.waste(now)
        if refusal.unit in pool.meters:
            refusal.level = self._level(pool, refusal.unit, now)
            if not refusal.most:
                waits = (meter.wait(charges[unit][0], now) for unit, meter in pool.meters.items())
                refusal.wait = max(wait for wait in waits if wait is not None)
        return refusal

    def _measure(self, case: _Case) -> None:
        """How long the answer is going to be."""
        ask, output = case.ask, case.output
        if ask.endpoint == "embeddings":
            return
        most = min(ask.most_tokens or LONGEST_REPLY, LONGEST_REPLY)
        length = ask.wanted_tokens
        if length is None:
            length = 1
            if self._reply_tokens > 1:  # geometric: each token may be the last
                length = max(1, ceil(log(1.0 - case.die.random()) / log(1.0 - 1.0 / self._reply_tokens)))
        output.tokens = min(length, most)
        output.cut = length > most

    # -- Answers

    def _level(self, pool: Pool, unit: str, now: int) -> Level:
        meter = pool.meters[unit]
        return Level(unit, meter.rate, meter.remaining(now), meter.reset(now))

    def _head(
        self, case: _Case, status: int, extra: Pairs, length: int | None, now: int, pool: Pool | None
    ) -> Head:
        kind = "text/event-stream; charset=utf-8" if length is None else "application/json"
        wall = self._epoch + now
        headers = [
            ("date", http_date(wall // SECOND)),
            ("content-type", kind),
            *self.style.identity(case.output),
        ]
        if pool is not None and self._headers:
            levels = [self._level(pool, unit, now) for unit in pool.meters]
            headers += self.style.budget(levels, wall)
        headers += extra
        self._referee.by_status[status] += 1
        return Head(status, headers, length)

    def _say(
        self, case: _Case, status: int, body: Any, extra: Pairs, now: int, pool: Pool | None = None
    ) -> Steps:
        if isinstance(body, dict) and "request_id" in body:
            body["request_id"] = case.output.name("req_")
        data = encode(body)
        yield self._head(case, status, extra, len(data), now, pool)
        yield Data(data)

    def _refuse(self, case: _Case, pool: Pool, refusal: Refusal, now: int) -> Steps:
        status, body = self.style.refusal(refusal, case.ask, hint=self._retry_after)
        extra: Pairs = []
        if self._retry_after and refusal.wait is not None:
            extra = self.style.advice(refusal.wait)
        # Those who count only what is under way have no budget to show.
        return self._say(case, status, body, extra, now, pool if refusal.level is not None else None)

    def _misbehave(self, case: _Case, fault: Fault, now: int) -> Steps:
        """An answer for no reason of the request's own."""
        ask = case.ask
        advice = fault.retry_after
        wait = round(advice * SECOND) if isinstance(advice, float) else None
        extra: Pairs = []
        if wait is not None:
            extra = self.style.advice(wait)
        elif isinstance(advice, str):
            extra = [("retry-after", advice)]
        match fault.kind:
            case "storm":
                status, body = self.style.refusal(Refusal("storm", wait=wait), ask, hint=True)
            case "too_large":
                most, wants = 1000, 1000 + max(1, ask.input_tokens)
                rate = read_rate("1000/minute", "fault", self.kind)
                level = Level(self.style.units[1], rate, most, 0)
                refusal = Refusal(level.unit, level, requested=wants, most=most)
                status, body = self.style.refusal(refusal, ask, hint=False)
            case "quota":
                status, body = self.style.quota()
            case "overload":
                status, body = self.style.overload()
            case "html":
                return self._page(fault.status, now)
            case _:
                status = fault.status
                body = self.style.error(status, "The server had an error while processing your request.")
        return self._say(case, status, body, extra, now)

    def _page(self, status: int, now: int) -> Steps:
        page = f"<html><head><title>{status}</title></head><body><h1>{status}</h1></body></html>\n".encode()
        self._referee.by_status[status] += 1
        date = http_date((self._epoch + now) // SECOND)
        yield Head(status, [("date", date), ("content-type", "text/html")], len(page))
        yield Data(page)

    def _serve(self, case: _Case, pool: Pool, now: int) -> Steps:
        """An admitted request, from its first thought to its last byte."""
        if fault := case.struck_by("slow_headers"):
            now = yield Pause(now + round(fault.seconds * SECOND))
        reset = case.struck_by("reset")
        if reset and reset.at == "before":
            yield Cut(reset=True)
            return
        latency = self._first_token
        if self._spread:
            latency = round(latency * case.die.lognormvariate(0.0, self._spread))
        if latency:
            begun = now + latency
            now = yield Pause(begun)
        else:
            begun = now
        yield from (self._stream if case.ask.stream else self._answer)(case, pool, begun, now)

    def _ready_at(self, begun: int, tokens: int) -> int:
        return begun if self._speed is None else begun + round(tokens * SECOND / self._speed)

    def _produce(self, pool: Pool, tokens: int, now: int) -> None:
        pool.outputs.append((now, tokens))
        meter = pool.meters.get("output_tokens")
        if meter is not None:
            meter.take(tokens, now)

    def _answer(self, case: _Case, pool: Pool, begun: int, now: int) -> Steps:
        tokens = case.output.tokens
        width = tokens if self._speed is None else -(-tokens // _SLICES)
        for start in range(0, tokens, max(1, width)):
            stop = min(start + width, tokens)
            ready = self._ready_at(begun, stop)
            if ready > now:
                now = yield Pause(ready)
            self._produce(pool, stop - start, now)
        body = encode(self.style.reply(case.ask, case.output))
        if (fault := case.struck_by("truncate")) and fault.clean:
            body = body[: len(body) // 2]
        now = yield self._head(case, 200, [], len(body), now, pool)
        if not case.struck:
            yield Data(body)
            return
        pieces = 8 if case.struck_by("slow_body") else 2
        width = max(1, -(-len(body) // pieces))
        yield from self._disturb(case, _parts(body, width), now, middle=1)

    def _stream(self, case: _Case, pool: Pool, begun: int, now: int) -> Steps:
        now = yield self._head(case, 200, [], None, now, pool)
        steps = self._pieces(case, pool, begun, now)
        if not case.struck:
            yield from steps
            return
        pieces = -(-case.output.tokens // self._piece_tokens)
        yield from self._disturb(case, steps, now, middle=1 + pieces // 2)

    def _pieces(self, case: _Case, pool: Pool, begun: int, now: int) -> Steps:
        ask, output = case.ask, case.output
        now = yield Data(self.style.begin(ask, output))
        for start in range(0, output.tokens, self._piece_tokens):
            stop = min(start + self._piece_tokens, output.tokens)
            ready = self._ready_at(begun, stop)
            if ready > now:
                now = yield Pause(ready)
            self._produce(pool, stop - start, now)
            now = yield Data(self.style.piece(ask, output, start, stop))
        yield Data(self.style.end(ask, output))

    def _disturb(self, case: _Case, steps: Steps, now: int, *, middle: int) -> Steps:
        """A body as its fault would have it. *middle* is how many pieces come before the middle."""
        fault = case.struck[0]
        if fault.kind == "reset" and fault.at == "headers":
            yield Pause(now + _ARRIVE)
            yield Cut(reset=True)
            return
        delivered = 0
        step = next(steps, None)
        while step is not None:
            if step.__class__ is Data:
                wait = round(fault.seconds * SECOND)
                if delivered == middle:
                    if fault.kind == "stall":
                        now = yield Pause(now + wait)
                    elif fault.kind == "stream_error":
                        yield Data(self.style.stream_error(case.ask, case.output))
                        return
                    elif fault.kind == "truncate" and fault.clean and case.ask.stream:
                        return
                    elif fault.kind in ("truncate", "reset") and not fault.clean:
                        yield Pause(now + _ARRIVE)
                        yield Cut(reset=fault.kind == "reset")
                        return
                if fault.kind == "slow_body":
                    now = yield Pause(now + wait)
                delivered += 1
            now = yield step
            step = _sent(steps, now)


def _parts(body: bytes, width: int) -> Steps:
    for start in range(0, len(body), width):
        yield Data(body[start : start + width])


def _sent(steps: Steps, now: int) -> Step | None:
    try:
        return steps.send(now)
    except StopIteration:
        return None


def _nothing(finished: bool, now: int) -> None:
    """Whoever was not admitted leaves no place."""


def _number(
    value: object, what: str, example: float, *, least: float | None = None, above: float = -1
) -> float:
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and value < float("inf")
    if not good or not (value >= least if least is not None else value > above):  # type: ignore[operator]
        bound = f"at least {least:g}" if least is not None else f"above {above:g}"
        raise InvalidConfig(f"{what}={value!r} is not a number {bound}; write e.g. {what}={example:g}")
    return float(value)  # type: ignore[arg-type]  # looked at above


def _written(rate: Rate, kind: str) -> str:
    """As one would write it here, where a burst of the whole amount goes without saying."""
    burst = f" burst {rate.burst}" if kind == "bucket" and rate.burst != rate.amount else ""
    return f"{rate.amount}/{period_of(rate)}" + (" strict" if rate.strict else burst)
