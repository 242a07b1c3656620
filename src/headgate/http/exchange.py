"""What every adapter does around one request: wait, send, learn, settle, and try again if it may.

Rules of this room: no client library is known here. An adapter says how to send and what the answer looks
like; whatever becomes of the answer (read, closed, dropped, forgotten) its place is given back once. The
bytes of request and answer are looked at and never changed.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import urlsplit
from weakref import ref

from ..arguments import SECOND, amount, positive_seconds_to_ns, seconds_to_ns
from ..backoff import Backoff
from ..dispatch.dispatch import Dispatch
from ..errors import InvalidConfig
from ..frozen import Frozen
from ..gate.clock import sleep, sleep_async
from ..gate.keyed import KeyedObjects
from ..responses import read_signal
from ..responses.estimate import INPUT, OUTPUT, TOKENS, TokenStats, read_shape, reservation, settlement
from ..responses.usage import UsageReader, unpacked
from ..retries.call import RetriedCall
from ..retries.classify import is_permanent, never_sent, verdict_of
from ..retries.policy import RetryPolicy
from ..retries.state import Stop
from .abandoned import Lease

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable, Mapping
    from typing import TypeAlias

    from ..gate.admission import Admission, Permit
    from ..responses.estimate import RequestShape
    from ..responses.signals import Signal
    from ..retries.budget import RetryBudget
    from ..typing import Seconds

    Estimate: TypeAlias = "Callable[[Request], int | Mapping[str, int]]"
    Gates: TypeAlias = "Dispatch | Callable[[Request], Dispatch] | None"

# Of the body of an error, so much is read to see what it says.
MOST_OF_ERROR = 65_536

# Who is told to come back later than this is better told so at once. (The OpenAI SDK draws that line too.)
_LONGEST_TOLD = 120 * SECOND

_BACKOFF = Backoff(0.5, cap=8, jitter=("factor", 0.25))
_SAFE_METHODS = {"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"}
_COUNTED = (TOKENS, INPUT, OUTPUT)


class Request(Frozen):
    """What is about to be sent, for choosing a gate or estimating it.

    `host` has the port if it is not the usual one. `headers` go by lower-case name. `body` is None if it is
    not in memory, and `model` if none is named in it.
    """

    __slots__ = ("body", "headers", "host", "method", "model", "url")
    method: str
    url: str
    host: str
    headers: Mapping[str, str]
    body: bytes | None
    model: str | None

    def __hash__(self) -> int:
        return hash((self.method, self.url, self.body))

    def __repr__(self) -> str:  # headers carry secrets
        return f"<Request {self.method} {self.url}, model {self.model!r}>"


class Answered(Exception):
    """An answer that is tried again: what observers and the log see instead of an exception."""


# -- which gate


def per_host(make: Callable[[str], Dispatch]) -> Callable[[Request], Dispatch]:
    """A gate for every host: `make("api.openai.com")` is called once and its Dispatch kept."""
    return _by_key(make, lambda request: request.host)


def per_model(make: Callable[[str], Dispatch]) -> Callable[[Request], Dispatch]:
    """A gate for every model: `make("gpt-5")`, or `make("default")` where none is named."""
    return _by_key(make, lambda request: request.model or "default")


def per_credential(make: Callable[[str], Dispatch]) -> Callable[[Request], Dispatch]:
    """A gate for every API key. `make` is given a digest: a key that is logged is no secret any longer."""
    return _by_key(make, _credential)


_CREDENTIALS = ("authorization", "x-api-key", "api-key", "x-goog-api-key")


def _credential(request: Request) -> str:
    secret = next((request.headers[name] for name in _CREDENTIALS if request.headers.get(name)), None)
    if secret is None:
        return "default"
    from hashlib import sha256  # noqa: PLC0415 - only who has several keys needs it

    return "key " + sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()[:12]


def _by_key(make: Callable[[str], Dispatch], key: Callable[[Request], str]) -> Callable[[Request], Dispatch]:
    def made(name: Hashable) -> Dispatch:
        assert isinstance(name, str)
        return _checked(make(name), make)

    keeper: KeyedObjects[Dispatch] = KeyedObjects(made, _has_nothing_to_remember)
    return lambda request: keeper.get(key(request))


def _has_nothing_to_remember(gate: Dispatch) -> bool:
    learner = gate._learner
    if learner._configured is None or learner._told:
        return False  # what it has learned
    now = gate.snapshot()
    return (
        not now.waiting
        and not now.in_flight
        and not now.bytes_in_flight
        and not now.backoff_active
        and all(rate.level >= rate.burst for rate in now.rates)
    )


def _checked(gate: object, giver: object) -> Dispatch:
    if not isinstance(gate, Dispatch):
        raise InvalidConfig(f"{giver!r} gave {gate!r}, which is no Dispatch; return one")
    return gate


# Everybody who names no gate shares these.
_of_this_process = per_host(lambda host: Dispatch(host, rates="auto", pause=True))


# -- what an adapter gives


class Answer(Protocol):
    """A response of some library, as far as it matters here."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    def read_error(self) -> bytes | None:
        """The raw body, up to MOST_OF_ERROR, and the connection given back. Its reader finds it untouched."""

    def watch(self, attempt: Attempt) -> None:
        """Let the attempt see the body go by, and when it is over."""

    def forbid_retries(self) -> None:
        """Tell whoever is above that it has been retried enough."""

    def drop(self) -> None:
        """Nobody will read it."""


class AsyncAnswer(Protocol):
    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    async def read_error(self) -> bytes | None: ...

    def watch(self, attempt: Attempt) -> None: ...

    def forbid_retries(self) -> None: ...

    async def drop(self) -> None: ...


S = TypeVar("S", bound=Answer)
A = TypeVar("A", bound=AsyncAnswer)


class Exchange:
    """How an adapter was set up, and what it has learned."""

    __slots__ = (
        "_estimate",
        "_gate",
        "_lease",
        "_policy",
        "_stats",
        "_timeout",
        "_warned",
    )

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
    ) -> None:
        if gate is not None and not isinstance(gate, Dispatch) and not callable(gate):
            raise InvalidConfig(
                f"gate={gate!r} is no Dispatch; give one, or a function of the request that returns one"
            )
        if estimate is not None and not callable(estimate):
            raise InvalidConfig(f"estimate={estimate!r} cannot be called; give a function of the request")
        self._gate = gate
        self._policy = RetryPolicy(
            amount(retries, "retries"),
            backoff=_BACKOFF if backoff is None else backoff,
            idempotent=False,  # whether a request may run twice depends on the request
            retry_budget=retry_budget,
        )
        self._estimate = estimate
        self._lease = positive_seconds_to_ns(lease, "lease")
        self._timeout = timeout
        if timeout is not None:
            seconds_to_ns(timeout, "timeout")
        self._stats = TokenStats()
        self._warned = False

    # The twins.

    def run(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, send: Callable[[], S]
    ) -> S:
        """Send when there is a place, as often as it may be sent. What is raised is what sending raised."""
        call = Call(self, method, url, headers, body)
        while True:
            attempt = Attempt(call)
            answer = None
            try:
                attempt.begin(attempt.admission.__enter__())
                answer = send()
                said = answer.read_error() if answer.status >= 400 else None
                wait = call.answered(attempt, answer, said)
                if wait is None:
                    return answer
                answer.drop()
            except BaseException as error:
                wait = call.failed(attempt, error)
                if answer is not None:
                    with suppress(Exception):  # the first error is the one that matters
                        answer.drop()
                if wait is None:
                    raise
            if wait:
                sleep(call.gate._clock, wait)

    async def run_async(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | None,
        send: Callable[[], Awaitable[A]],
    ) -> A:
        """The same for the running task."""
        call = Call(self, method, url, headers, body)
        while True:
            attempt = Attempt(call)
            answer = None
            try:
                attempt.begin(await attempt.admission.__aenter__())
                answer = await send()
                said = await answer.read_error() if answer.status >= 400 else None
                wait = call.answered(attempt, answer, said)
                if wait is None:
                    return answer
                await answer.drop()
            except BaseException as error:
                wait = call.failed(attempt, error)
                if answer is not None:
                    with suppress(Exception):
                        await answer.drop()
                if wait is None:
                    raise
            if wait:
                await sleep_async(call.gate._clock, wait)

    def __repr__(self) -> str:
        gate = "a gate for every host" if self._gate is None else repr(self._gate)
        return f"<{gate}, {self._policy.max_retries} retries>"


class Call:
    """One request of the caller, from its first sending to its last."""

    __slots__ = (
        "_exchange",
        "_host",
        "_reserved",
        "_retried",
        "_shape",
        "_size",
        "_tries_again",
        "gate",
        "name",
    )

    def __init__(
        self, exchange: Exchange, method: str, url: str, headers: Mapping[str, str], body: bytes | None
    ) -> None:
        self._exchange = exchange
        parts = urlsplit(url)
        self._host = parts.netloc.rpartition("@")[2].lower()
        self._shape = read_shape(method, self._host, parts.path, body)
        # Only when it is wanted: nearly everybody has one gate, and no opinion about tokens.
        request = None
        gate = exchange._gate
        if not isinstance(gate, Dispatch) or exchange._estimate is not None:
            request = Request(
                method=method,
                url=url,
                host=self._host,
                headers={name.lower(): value for name, value in headers.items()},
                body=body,
                model=self._shape.model,
            )
        if gate is None:
            assert request is not None
            gate = _of_this_process(request)
        elif not isinstance(gate, Dispatch):
            assert request is not None
            gate = _checked(gate(request), gate)
        self.gate: Dispatch = gate
        self.name = f"{method} {self._host}{parts.path}"
        self._size = len(body) if body is not None else _length(headers)
        self._reserved = self._reserve(request)
        # What was not kept cannot be sent again, and a key inside makes doing it twice the same as once.
        self._tries_again = "whole" if _may_run_twice(method, headers, self._shape) else "refused"
        if _has_body(headers) and body is None:
            self._tries_again = "never"
        if exchange._policy.max_retries and _is_a_retry(headers):
            self._tries_again = "never"  # of somebody above, who was told to leave it to us
            self._warn_about_two_rules()
        self._retried = RetriedCall(exchange._policy, self.name, clock=gate._clock, on_retry=gate._observer)

    # -- going in

    def _reserve(self, request: Request | None) -> dict[str, int]:
        """What it is taken to cost, in the units that the gate counts."""
        counted = _units(self.gate)
        exchange, shape = self._exchange, self._shape
        if exchange._estimate is not None:
            assert request is not None
            given = exchange._estimate(request)
            if not hasattr(given, "items"):
                return {TOKENS: given} if counted.keys() & {TOKENS} else {}
            return {unit: cost for unit, cost in given.items() if unit in counted or unit == "requests"}
        if not counted.keys() & set(_COUNTED) or shape.style == "free":
            return {}
        stats = exchange._stats
        guess = reservation(
            shape,
            stats.ratio(self._host, shape.model),
            stats.output(self._host, shape.model, shape.max_output),
        )
        # A guess refuses nobody: what would be more than there ever is, the far side may judge.
        return {unit: min(guess[unit], counted[unit]) for unit in _COUNTED if unit in counted}

    def admission(self) -> Admission:
        rest = {unit: cost for unit, cost in self._reserved.items() if unit != TOKENS}
        return self.gate.admit(
            bytes=self._size,
            tokens=self._reserved.get(TOKENS, 0),
            cost=rest or None,
            timeout=self._exchange._timeout,
        )

    # -- what became of it

    def answered(self, attempt: Attempt, answer: Answer | AsyncAnswer, said: bytes | None) -> int | None:
        """Learn from the answer. Nanoseconds to wait before the next try; None: it is for the caller."""
        status = answer.status
        headers = answer.headers
        if status < 400:
            self._observe(read_signal(status, headers), attempt)
            self._retried.succeeded()
            attempt.watch(headers)
            if status == 101:
                attempt.end()  # it is a conversation from here on, and as long as it likes
            else:
                answer.watch(attempt)
            return None
        encoding = headers.get("content-encoding") or ""
        signal = read_signal(status, headers, None if said is None else unpacked(said, encoding))
        self._observe(signal, attempt)
        attempt.refused(ran=status >= 500 and not signal.limited)
        wait = self._again_after(signal, status)
        if wait is None and self._exchange._policy.max_retries:
            answer.forbid_retries()
        return wait

    def failed(self, attempt: Attempt, error: BaseException) -> int | None:
        """No answer came, or not all of it. As `answered`."""
        connected = not never_sent(error)
        attempt.failed(connected=connected)
        if not isinstance(error, Exception) or not self._exchange._policy.max_retries:
            return None
        again = self._tries_again != "never" and verdict_of(error).again and not is_permanent(error)
        decision = self._retried.decide(
            error, again=again, may_have_run=connected and self._tries_again == "refused"
        )
        self._retried.announce(decision)
        return None if isinstance(decision, Stop) else decision.delay

    def complained(self, complaint: Mapping[str, Any], headers: Mapping[str, str], attempt: Attempt) -> None:
        """A success turned out to be a refusal inside."""
        signal = read_signal(200, headers, complaint)
        if signal.limited:
            self._observe(signal, attempt)

    def _observe(self, signal: Signal, attempt: Attempt) -> None:
        self.gate.observe(signal, sent_at=attempt.sent_at)

    def _again_after(self, signal: Signal, status: int) -> int | None:
        if not self._exchange._policy.max_retries:
            return None
        retry_after = None if signal.retry_after is None else round(signal.retry_after * SECOND)
        decision = self._retried.decide(
            Answered(f"{status}, {signal.reason}"),
            again=signal.should_retry is True
            and self._tries_again != "never"
            and (retry_after is None or retry_after <= _LONGEST_TOLD),
            may_have_run=not signal.limited and self._tries_again == "refused",
            retry_after=retry_after,
        )
        if isinstance(decision, Stop):
            return None
        if signal.limited and self.gate._rules.reentry is not None:
            decision = decision.held()  # the gate holds the request back until its window ends
        self._retried.announce(decision)
        return decision.delay

    def settle(self, permit: Permit, costs: Mapping[str, int]) -> None:
        counted = _units(self.gate)
        rest = {unit: cost for unit, cost in costs.items() if unit != TOKENS and unit in counted}
        tokens = costs.get(TOKENS) if TOKENS in counted else None
        permit.settle(tokens=tokens, cost=rest or None)

    def _warn_about_two_rules(self) -> None:
        if not self._exchange._warned:
            self._exchange._warned = True
            _log().warning(
                "%s: the client above retries too, on top of our %d; it is sent once. "
                "Set the client's max_retries=0, or retries=0 here",
                self.name,
                self._exchange._policy.max_retries,
            )


class Attempt:
    """One sending: its permit, until nobody needs it any longer. Everything may be called more than once."""

    __slots__ = (
        "__weakref__",
        "_call",
        "_headers",
        "_lease",
        "_over",
        "_permit",
        "_reader",
        "admission",
        "sent_at",
    )

    def __init__(self, call: Call) -> None:
        self._over = True  # until there is something to end
        self._call = call
        self._permit: Permit | None = None
        self._lease: Lease | None = None
        self._reader: UsageReader | None = None
        self._headers: Mapping[str, str] = {}
        self.sent_at = 0.0
        self.admission = call.admission()
        self._over = False

    def begin(self, permit: Permit) -> None:
        """There is a place: it is sent now."""
        self._permit = permit
        permit._scoped = True  # from here on this answers for it, whichever of them is collected first
        self.sent_at = self._call.gate._clock.seconds()

    def watch(self, headers: Mapping[str, str]) -> None:
        """The answer began well. From here on somebody else decides when it ends."""
        self._headers = headers
        self._reader = UsageReader(headers.get("content-type") or "", headers.get("content-encoding") or "")

    def keep(self) -> None:
        """It is on its way to somebody who may forget it."""
        if self._lease is None and not self._over:
            # By a weak reference: an answer that is garbage is over, and does not wait for its lease.
            self._lease = Lease(self._call.gate._clock, self._call._exchange._lease, ref(self))

    def chunk(self, data: bytes) -> None:
        """Some of the answer was read."""
        if self._over:
            return
        if self._lease is not None:
            self._lease.renew()
        if self._reader is not None:
            self._reader.feed(data)

    def end(self, *, whole: bool = False) -> None:
        """It was read, closed or broken off."""
        if self._over:
            return
        if whole and self._reader is not None:
            self._reader.finish()
        self._settle()
        complaint = None if self._reader is None else self._reader.error
        if complaint is not None:
            self._call.complained(complaint, self._headers, self)

    def __del__(self) -> None:
        # A finalizer may run inside anything: nothing is done here that could wait.
        if not self._over:
            self._settle()

    def _settle(self) -> None:
        self._over = True
        if self._lease is not None:
            self._lease.end()
        if self._permit is None:  # it was interrupted on the way in, and may have been let in just then
            self.admission.__exit__(None, None, None)
            return
        call = self._call
        usage = None if self._reader is None else self._reader.usage
        if usage is None:
            self._permit.settle()
            return
        shape = call._shape
        call._exchange._stats.learn(call._host, shape.model, shape.input, usage)
        call.settle(self._permit, settlement(shape.style, call._reserved, usage))

    def refused(self, *, ran: bool) -> None:
        """An error came back: the request counts, its tokens do not unless it may have run."""
        if self._over or self._permit is None:
            return
        if ran:
            self._settle()
        else:
            self._over = True
            self._call.settle(self._permit, dict.fromkeys(_COUNTED, 0))

    def failed(self, *, connected: bool) -> None:
        """No answer. What was never sent cost nothing; anything else may have run."""
        if self._over:
            return
        if connected or self._permit is None:
            self._settle()
        else:
            self._over = True
            self._permit.settle(cost=dict.fromkeys(self._call.gate._columns, 0))

    def run_out(self) -> None:
        """Nobody has touched it for the length of its lease."""
        if self._over:
            return
        self._settle()
        _log().warning(
            "%s: nobody has read or closed the answer for %g s; its place has been given back. "
            "Close responses, e.g. by `with`, or give the adapter a longer lease=",
            self._call.name,
            self._call._exchange._lease / SECOND,
        )


def _units(gate: Dispatch) -> dict[str, int]:
    """What the gate counts, and how much of each it could ever let through at once."""
    most: dict[str, int] = {}
    for rule in gate._rules.rates:
        rate = rule.rate
        most[rate.unit] = min(most.get(rate.unit, 1 << 62), max(rate.amount, rate.burst))
    return most


def _length(headers: Mapping[str, str]) -> int:
    text = headers.get("content-length") or ""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0


def _has_body(headers: Mapping[str, str]) -> bool:
    return bool(_length(headers)) or "transfer-encoding" in headers


def _may_run_twice(method: str, headers: Mapping[str, str], shape: RequestShape) -> bool:
    return method.upper() in _SAFE_METHODS or shape.generates or "idempotency-key" in headers


def _is_a_retry(headers: Mapping[str, str]) -> bool:
    """By the header with which the OpenAI and Anthropic SDKs, and others made alike, number their tries."""
    count = headers.get("x-stainless-retry-count") or ""
    return count.isascii() and count.isdigit() and int(count) > 0


def _log() -> Any:
    import logging  # noqa: PLC0415 - only trouble needs it

    return logging.getLogger("headgate")
