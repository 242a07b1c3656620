"""The public names follow one set of rules: keys, closing, delays, keywords, values, pickling."""

import asyncio
import copy
import dataclasses
import enum
import inspect
import pickle
import re
import subprocess
import sys
import time
import typing
from pathlib import Path

import httpx
import pytest
from prometheus_client import CollectorRegistry

import headgate
import headgate.events
import headgate.http
import headgate.http.aiohttp
import headgate.http.anthropic
import headgate.http.exchange
import headgate.http.httpx
import headgate.http.requests
import headgate.verdict
from headgate import (
    Backoff,
    BackoffWindow,
    BreakerRegistry,
    BudgetBook,
    CapacityUpdate,
    CircuitBreaker,
    Dispatch,
    DistributedLimiter,
    MemoryLimiter,
    Rate,
    RateLimiter,
    ResilienceConfig,
    ResilientClient,
    RetryBudget,
    TokenBudget,
    WindowRegistry,
    observers,
    retry,
)
from headgate.breaker.options import BreakerOptions
from headgate.budgets.options import BudgetOptions
from headgate.frozen import Frozen
from headgate.retries.options import RetryOptions
from headgate.tenacity import stop_when_open, wait_backoff, wait_for_window, wait_retry_after
from headgate.testing import FakeProvider, ManualClock, MemoryStore, Recorder

STORE = "memory:public names"
NAMES = {name: getattr(headgate, name) for name in headgate.__all__}
CLASSES = {
    name: thing
    for name, thing in NAMES.items()
    if isinstance(thing, type) and not issubclass(thing, (BaseException, enum.Enum))
}
VALUES = {
    name: kind for name, kind in CLASSES.items() if issubclass(kind, Frozen) or dataclasses.is_dataclass(kind)
}
FUNCTIONS = {
    **{name: thing for name, thing in NAMES.items() if inspect.isfunction(thing)},
    "Transport": headgate.http.httpx.Transport,
    "AsyncTransport": headgate.http.httpx.AsyncTransport,
    "client": headgate.http.httpx.client,
    "async_client": headgate.http.httpx.async_client,
    "Adapter": headgate.http.requests.Adapter,
    "aiohttp.middleware": headgate.http.aiohttp.middleware,
    "anthropic.middleware": headgate.http.anthropic.middleware,
    "anthropic.middleware_async": headgate.http.anthropic.middleware_async,
    "read_signal": headgate.http.read_signal,
}
OPTIONS = {kind.__name__: kind for kind in (
    BreakerOptions, BudgetOptions, RetryOptions, headgate.http.exchange.SendOptions
)}  # fmt: skip

# An object of each public class that is not a value.
MAKE = {
    "Admission": lambda: Dispatch("api").admit(),
    "BackoffWindow": lambda: BackoffWindow(store=STORE, key="api"),
    "BreakerRegistry": lambda: BreakerRegistry(store=STORE, key="api"),
    "BudgetBook": lambda: BudgetBook({"free": {}}, store=STORE, key="api"),
    "CircuitBreaker": lambda: CircuitBreaker(store=STORE, key="api"),
    "Dispatch": lambda: Dispatch("api", store=STORE),
    "DistributedLimiter": lambda: DistributedLimiter(bus="memory:", agent_id="a"),
    "FirstFree": lambda: headgate.FirstFree([Dispatch("api")]),
    "MemoryLimiter": MemoryLimiter,
    "Permit": lambda: Dispatch("api", rates="5/s", concurrency=None).try_admit(),
    "RateLimiter": RateLimiter,
    "Reservation": lambda: TokenBudget().reserve(1),
    "ResilientClient": lambda: ResilientClient(store=STORE + " of a client", key="api"),
    "RetryBudget": RetryBudget,
    "TokenBudget": lambda: TokenBudget(store=STORE, key="api"),
    "WindowRegistry": WindowRegistry,
    "call_options": lambda: headgate.call_options(tenant="ann"),
}
CLOSED = [name for name, kind in CLASSES.items() if hasattr(kind, "close")]


@pytest.fixture(params=MAKE)
def thing(request):
    thing = MAKE[request.param]()
    yield thing
    if hasattr(thing, "close"):
        thing.close()


def parameters(fn):
    return inspect.signature(fn).parameters


def annotated(fn):
    """(name, annotation) of each parameter, and of each option that is passed on."""
    for name, parameter in parameters(fn).items():
        if parameter.kind is not parameter.VAR_KEYWORD:
            yield name, str(parameter.annotation)
    for options in OPTIONS.values():
        if options.__name__ in str(inspect.signature(fn)):
            yield from ((name, str(kind)) for name, kind in options.__annotations__.items())


def callables():
    """Every public function, constructor and documented method, by name."""
    yield from FUNCTIONS.items()
    for name, kind in CLASSES.items():
        yield name, kind
        for method, fn in inspect.getmembers(kind, callable):
            if not method.startswith("_") and fn.__qualname__.partition(".")[0] in CLASSES:
                yield f"{name}.{method}", fn


CALLABLES = dict(callables())


def test_there_is_an_object_of_every_public_class_that_is_not_a_value():
    assert set(MAKE) == set(CLASSES) - set(VALUES)


# -- identity in a store


@pytest.mark.parametrize(
    "name", [name for name, kind in CLASSES.items() if "store" in parameters(kind)], ids=str
)
def test_what_can_be_in_a_store_takes_and_tells_its_key(name):
    assert "key" in parameters(CLASSES[name])
    thing = MAKE[name]()
    assert thing.key == "api"
    thing.close()


def test_a_name_is_one_in_a_registry_of_the_process():
    named = [name for name, fn in CALLABLES.items() if any(word == "name" for word, _ in annotated(fn))]
    assert named == [
        "BreakerRegistry.named", "Dispatch", "Dispatch.named", "WindowRegistry.named"
    ]  # fmt: skip


# -- closing


def test_all_that_holds_a_store_a_bus_or_waiting_callers_can_be_closed():
    holding = {name for name, kind in CLASSES.items() if {"store", "bus"} & parameters(kind).keys()}
    assert set(CLOSED) == holding | {"MemoryLimiter"}


@pytest.mark.parametrize("colour", ["sync", "async"])
@pytest.mark.parametrize("name", CLOSED)
def test_a_block_closes_and_closing_again_is_silent(name, colour):
    thing = MAKE[name]()

    async def use():
        async with thing as entered:
            assert entered is thing

    if colour == "async":
        asyncio.run(use())
    else:
        with thing as entered:
            assert entered is thing
    thing.close()
    thing.close()


# -- delays and retry budgets


@pytest.mark.parametrize("name", CALLABLES)
def test_delays_are_a_backoff_and_retries_are_limited_by_a_retry_budget(name):
    by_name = dict(annotated(CALLABLES[name]))
    for word, kind in by_name.items():
        if "RetryBudget" in kind:
            assert word == "retry_budget"
        if word == "budget":
            assert "TokenBudget" in kind
        if word in ("base_delay", "max_delay", "exponential_base"):
            assert "Backoff" in by_name["backoff"], "the names of the tutorial are there besides backoff="
    assert not by_name.keys() & {"initial", "multiplier", "delay", "min_delay", "exponential_factor"}


def test_only_the_functions_of_the_tutorial_take_delays_by_its_names():
    by_tutorial = [name for name, fn in CALLABLES.items() if "base_delay" in dict(annotated(fn))]
    assert sorted(by_tutorial) == [
        "ResilienceConfig",
        "retry",
        "retry_with_backoff",
        "retry_with_backoff_async",
    ]


# -- keywords

# Optional parameters that may be given by position, most of them because the tutorial gives them so.
BY_POSITION = {
    "publish": ["path"],
    "Backoff": ["base", "cap"],
    "CircuitBreaker": ["failure_threshold", "recovery_timeout", "expected_exceptions"],
    "Dispatch": ["key"],
    "Rate": ["per"],
    "RateLimiter": ["requests_per_minute"],
    "Reservation.settle": ["tokens"],
    "ResilienceConfig": [
        *("max_retries", "base_delay", "max_delay", "requests_per_minute"),
        *("circuit_failure_threshold", "circuit_recovery_timeout"),
    ],
    "ResilientClient": ["config"],
    "RetryBudget": ["ratio_of_calls"],
    "TokenBudget": ["max_tokens_per_hour", "max_tokens_per_request"],
    "BackoffWindow.wait": ["timeout"],
    "BackoffWindow.wait_async": ["timeout"],
    "CapacityUpdate.to_json": ["extra"],
    "read_signal": ["body"],
    "retry": ["max_retries", "base_delay", "exceptions"],
    "retry_with_backoff": ["max_retries", "base_delay", "max_delay", "exponential_base", "jitter"],
    "retry_with_backoff_async": ["max_retries", "base_delay", "max_delay", "exponential_base", "jitter"],
    "retrying": ["max_retries"],
    "Transport": ["gate"], "AsyncTransport": ["gate"], "Adapter": ["gate"],
    "client": ["gate"], "async_client": ["gate"],
    "aiohttp.middleware": ["gate"], "anthropic.middleware": ["gate"], "anthropic.middleware_async": ["gate"],
}  # fmt: skip
FOR_ROOMS = {"BackoffWindow.identify", "Rate.of_ns", "Permit.leave"}  # not for callers


@pytest.mark.parametrize("name", sorted(CALLABLES.keys() - FOR_ROOMS))
def test_options_are_keyword_only_except_those_that_are_listed(name):
    optional = [
        parameter.name
        for parameter in parameters(CALLABLES[name]).values()
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD and parameter.default is not parameter.empty
    ]
    assert optional == BY_POSITION.get(name, [])


@pytest.mark.parametrize("name", CALLABLES)
def test_arguments_of_any_number_are_only_those_of_the_function_that_is_called(name):
    for parameter in parameters(CALLABLES[name]).values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            assert name.endswith((".call", ".call_async"))


# -- values


VALUE = {
    "Acquisition": lambda: RateLimiter(1).ask(),
    "Backoff": Backoff,
    "Capacity": lambda: _capacity(),
    "CapacityUpdate": lambda: CapacityUpdate.from_json(
        b'{"resource":"api","timestamp":"2026-11-16T12:00:00Z"}'
    )[0],
    "DispatchSnapshot": lambda: Dispatch("api").snapshot(),
    "Prices": headgate.Prices.shipped,
    "Rate": lambda: Rate(5),
    "RateLevel": lambda: Dispatch("api", rates="5/s").snapshot().rates[0],
    "ResilienceConfig": ResilienceConfig,
    "Totals": lambda: Dispatch("api").snapshot().totals,
}


def _capacity():
    limiter = MemoryLimiter(rates="5/s")
    limiter.set_capacity("api", 5, 60)
    return limiter.get_capacity("api")


@pytest.mark.parametrize("name", VALUES)
def test_values_cannot_change_and_are_equal_to_their_copies(name):
    value = VALUE[name]()
    assert type(value) is CLASSES[name]
    field = next(word for word in dir(value) if not word.startswith("_"))
    with pytest.raises(AttributeError):
        setattr(value, field, 1)
    for again in (pickle.loads(pickle.dumps(value)), copy.copy(value), copy.deepcopy(value)):
        assert again == value
        assert hash(again) == hash(value)


def test_events_signals_requests_and_verdicts_are_values():
    events = [kind for kind in vars(headgate.events).values() if isinstance(kind, type)]
    others = [headgate.http.Signal, headgate.http.Scope, headgate.http.Request, headgate.verdict.Verdict]
    for kind in events + others:
        assert issubclass(kind, Frozen | tuple) or kind.__dataclass_params__.frozen, kind


# -- typing


@pytest.mark.parametrize("name", CALLABLES)
def test_annotations_of_public_names_resolve(name):
    fn = CALLABLES[name]
    hints = typing.get_type_hints(fn.__init__ if isinstance(fn, type) else fn)
    assert "return" in hints or not parameters(fn)


# -- pickling


def test_an_object_that_belongs_to_one_process_says_so_when_it_is_pickled_or_copied(thing):
    for act in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(
            TypeError, match=r"cannot be pickled or copied: it belongs to this process; "
        ) as caught:
            act(thing)
        if "store" in parameters(type(thing)):
            assert str(caught.value).endswith("; make one per process with store= to share it")


def test_a_retry_without_a_budget_can_be_pickled():
    assert pickle.loads(pickle.dumps(retry(5))).policy.max_retries == 5


@pytest.mark.parametrize(
    "name", ["http", "integrations", "sandbox", "tenacity", "testing", "typing", "verdict"]
)
def test_a_module_that_is_not_loaded_is_an_error_that_says_what_to_import(name):
    program = f"""
import headgate
assert not hasattr(headgate, "{name}")
try:
    headgate.{name}
except AttributeError as error:
    line = str(error).partition("write e.g. ")[2]
assert line.startswith("import headgate.{name}"), line
if "{name}" not in ("integrations", "tenacity"):  # these need other packages
    exec(line)
    headgate.{name}
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_module_that_a_message_says_to_import_exists():
    for module in headgate._IMPORTED_BY_THEMSELVES.split():
        path = Path(headgate.__file__).parent / module.replace(".", "/")
        assert path.is_dir() or path.with_suffix(".py").is_file(), module


# -- wrong arguments


async def later(*_given): ...


def swarm(**options):
    return DistributedLimiter(bus="memory:", agent_id="a", **options)


ADAPTERS = [name for name, fn in FUNCTIONS.items() if "gate" in parameters(fn) and not name.startswith("map")]

# What is called with the wrong argument, and what the error says.
WRONG = {
    "Backoff.delay(-1)": (lambda: Backoff().delay(-1), "retry=-1 is not the number of a retry"),
    "Backoff.delay(1.5)": (lambda: Backoff().delay(1.5), "retry=1.5 is not the number of a retry"),
    **{
        f"{name}([])": (act, "key=[] is not hashable")
        for name, act in {
            "BackoffWindow.for_key": lambda: BackoffWindow.for_key([]),
            "CircuitBreaker.for_key": lambda: CircuitBreaker.for_key([]),
            "WindowRegistry.for_key": lambda: WindowRegistry().for_key([]),
            "BreakerRegistry.for_key": lambda: BreakerRegistry().for_key([]),
            "BreakerRegistry.state": lambda: BreakerRegistry().state([]),
            "BreakerRegistry.reset": lambda: BreakerRegistry().reset([]),
            "BreakerRegistry.forget": lambda: BreakerRegistry().forget([]),
        }.items()
    },
    "BreakerRegistry(key=5)": (lambda: BreakerRegistry(key=5), "key=5 is not a key"),
    **{
        f"{kind.__name__}.{name}": (lambda kind=kind, act=act: act(kind), "resource ['api'] is not a name")
        for kind in (MemoryLimiter, swarm)
        for name, act in {
            "remove": lambda kind: kind().remove(["api"]),
            "release": lambda kind: kind().release(["api"]),
            "get_capacity": lambda kind: kind().get_capacity(["api"]),
            "announce_reduced": lambda kind: kind().announce_reduced(["api"], "429"),
        }.items()
    },
    "observe_all(None)": (lambda: headgate.observe_all(None), "observer=None would be told nothing"),
    "observers.together(5)": (lambda: observers.together(5), "observer=5 cannot be called"),
    "observers.together(later)": (lambda: observers.together(None, later), "later is async"),
    "observers.logs(5)": (lambda: observers.logs(5), "logger=5 is not a logger"),
    "observers.prometheus(5)": (lambda: observers.prometheus(5), "registry=5 is not a registry"),
    "observers.prometheus(tenants='no')": (
        lambda: observers.prometheus(CollectorRegistry(), tenants="no"),
        "tenants='no' is neither True nor False",
    ),
    "observers.opentelemetry(5)": (lambda: observers.opentelemetry(5), "meter=5 is not a meter"),
    "observers.opentelemetry(tracer=5)": (
        lambda: observers.opentelemetry(tracer=5),
        "tracer=5 is not a tracer",
    ),
    **{
        f"{word}=Recorder": (act, f"{word}=Recorder is a class: each call would only make an object")
        for word, act in {
            "observer": lambda: Dispatch("api", observer=Recorder),
            "on_retry": lambda: retry(on_retry=Recorder),
            "on_capacity_change": lambda: swarm(on_capacity_change=Recorder),
        }.items()
    },
    "tenacity.wait_for_window(5)": (lambda: wait_for_window(5), "5 is not a BackoffWindow"),
    "tenacity.wait_for_window(otherwise=5)": (
        lambda: wait_for_window(BackoffWindow(), 5),
        "otherwise=5 is not a wait strategy",
    ),
    "tenacity.wait_retry_after(5)": (lambda: wait_retry_after(5), "otherwise=5 is not a wait strategy"),
    "tenacity.wait_retry_after(random=5)": (lambda: wait_retry_after(random=5), "random=5 cannot be called"),
    "tenacity.wait_backoff(random=5)": (
        lambda: wait_backoff(Backoff(), random=5),
        "random=5 cannot be called",
    ),
    "tenacity.stop_when_open(5)": (lambda: stop_when_open(5), "5 is not a CircuitBreaker"),
    "map(progress='x')": (
        lambda: headgate.map(str, [1], progress="x"),
        "progress='x' is neither True nor False",
    ),
    "map(cost=later)": (
        lambda: headgate.map(str, [1], gate=Dispatch("api"), cost=later),
        "later is async",
    ),
    "map(cost=len) without a gate": (
        lambda: headgate.map(str, ["a"], cost=len),
        "cost= is charged at a gate; write gate=dispatch too",
    ),
    **{
        f"{name}(gate={given.__name__})": (lambda make=make, given=given: make(given), says)
        for name in ADAPTERS
        for make in (FUNCTIONS[name],)
        for given, says in (
            (Dispatch, "gate=Dispatch is a class, which would make a gate for each request"),
            (later, "later is async, and it would not be awaited"),
        )
    },
    "Transport(estimate=later)": (lambda: headgate.http.httpx.Transport(estimate=later), "later is async"),
    "Transport(choose=later)": (lambda: headgate.http.httpx.Transport(choose=later), "later is async"),
    "Transport(inner=AsyncHTTPTransport())": (
        lambda: headgate.http.httpx.Transport(inner=httpx.AsyncHTTPTransport()),
        "write e.g. inner=httpx.HTTPTransport()",
    ),
    "async_client(inner=HTTPTransport())": (
        lambda: headgate.http.httpx.async_client(inner=httpx.HTTPTransport()),
        "write e.g. inner=httpx.AsyncHTTPTransport()",
    ),
    "client(inner=HTTPTransport)": (
        lambda: headgate.http.httpx.client(inner=httpx.HTTPTransport),
        "write e.g. inner=httpx.HTTPTransport()",
    ),
    "Adapter(inner=5)": (lambda: headgate.http.requests.Adapter(inner=5), "inner=5 is not an adapter"),
    "per_host(later)": (lambda: headgate.http.per_host(later), "later is async"),
    "Target(base_url='eu.api.example')": (
        lambda: headgate.http.Target(base_url="eu.api.example"),
        "base_url='eu.api.example' has no scheme or no host",
    ),
    "Target(headers=5)": (lambda: headgate.http.Target(headers=5), "headers= is of type int, not a mapping"),
    "publish(5)": (lambda: headgate.publish(5), "path=5 is not a path"),
    "Prices.read(5)": (lambda: headgate.Prices.read(5), "path=5 is not a path"),
    "Prices(date=5)": (lambda: headgate.Prices({}, date=5), "date=5 is not text"),
    "Prices(currency=5)": (lambda: headgate.Prices({}, currency=5), "currency=5 is not text"),
    "retry(idempotent='no')": (lambda: retry(idempotent="no"), "idempotent='no' is neither True nor False"),
    "retry(exceptions=later)": (lambda: retry(exceptions=later), "later is async"),
    "Rate(strict='no')": (lambda: Rate(5, strict="no"), "strict='no' is neither True nor False"),
    "set_capacity(strict='no')": (
        lambda: MemoryLimiter().set_capacity("api", 5, 60, strict="no"),
        "strict='no' is neither True nor False",
    ),
    "DistributedLimiter(max_recovery='no')": (
        lambda: swarm(max_recovery="no"),
        "max_recovery='no' is neither True nor False",
    ),
    "DistributedLimiter(wall=5)": (lambda: swarm(wall=5), "wall=5 cannot be called"),
    "ManualClock(auto_advance='no')": (
        lambda: ManualClock(auto_advance="no"),
        "auto_advance='no' is neither True nor False",
    ),
    "ManualClock.at(later)": (lambda: ManualClock().at(1, later), "later is async"),
    "Recorder.of('Admitted')": (lambda: Recorder().of("Admitted"), "kind='Admitted' is not a class"),
    "FirstFree(5)": (lambda: headgate.FirstFree(5), "5 is not a list of gates"),
    "FirstFree(weights=5)": (lambda: headgate.FirstFree([Dispatch("api")], weights=5), "weights=5 is not a"),
    "ResilientClient(target=[])": (lambda: ResilientClient(target=[]), "target=[] is not hashable"),
    **{
        f"ResilientClient({word}=later)": (
            lambda word=word: ResilientClient(**{word: later}),
            "later is async",
        )
        for word in ("tokens", "target", "usage", "budget", "classify")
    },
    "Backoff.delay(random=5)": (lambda: Backoff().delay(0, random=5), "random=5 cannot be called"),
}


CLOCKED = {
    name: thing
    for name, thing in {**CALLABLES, "MemoryStore": MemoryStore, "FakeProvider": FakeProvider}.items()
    if "clock" in dict(annotated(thing))
}
GIVEN = {
    "BudgetBook": {"tiers": {"free": {}}},
    "DistributedLimiter": {"bus": "memory:", "agent_id": "a"},
    "retry_with_backoff": {"func": len},
    "retry_with_backoff_async": {"func": later},
}


@pytest.mark.parametrize("clock", [time.monotonic, ManualClock, None], ids=["function", "class", "None"])
@pytest.mark.parametrize("name", CLOCKED)
def test_a_clock_that_cannot_tell_time_is_refused_where_it_is_given(name, clock):
    def act():
        result = CLOCKED[name](**GIVEN.get(name, {}), clock=clock)
        if inspect.iscoroutine(result):
            asyncio.run(result)

    with pytest.raises(headgate.InvalidConfig, match=re.escape(f"clock={clock!r} is not a clock")):
        act()


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_argument_is_an_error_that_says_what_to_write(what):
    act, says = WRONG[what]
    with pytest.raises(headgate.InvalidLimit, match=re.escape(says)):
        act()


def test_a_name_that_cannot_be_hashed_is_the_name_of_no_dispatch():
    with pytest.raises(headgate.UnknownName, match=r"no Dispatch is named \['api'\]"):
        Dispatch.named(["api"])
