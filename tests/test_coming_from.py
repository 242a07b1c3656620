"""docs/earlier-designs.md has a row for every name of the earlier designs, and its names of ours exist."""

import inspect
import re
import typing
from pathlib import Path
from typing import NamedTuple

import pytest

import headgate
import headgate.swarm
from headgate import (
    CapacityExhausted,
    CircuitBreaker,
    CircuitBreakerOpen,
    Closed,
    Dispatch,
    DistributedLimiter,
    InvalidCapacity,
    InvalidConfig,
    InvalidWindow,
    MemoryLimiter,
    RateLimiter,
    Refused,
    ResilienceConfig,
    ResilientClient,
    TokenBudget,
    UnknownResource,
    WaitTimeout,
    retry,
    retry_with_backoff,
)

PAGE = Path(__file__).parent.parent / "docs" / "earlier-designs.md"
CODE = re.compile(r"`([^`]+)`")
OURS = re.compile(r"(?P<name>[A-Za-z_][\w.]*)(\((?P<arguments>[^)]*)\))?")


class Row(NamedTuple):
    line: int
    there: str
    here: str


def read_rows():
    rows, in_table = [], False
    for number, line in enumerate(PAGE.read_text(encoding="utf-8").splitlines(), 1):
        if not line.startswith("|"):
            in_table = False
            continue
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        assert len(cells) == 2, f"line {number} has {len(cells)} cells"
        if not in_table:
            assert cells == ["there", "here"], f"line {number}"
            in_table = True
        elif not cells[0].startswith("---"):
            rows.append(Row(number, cells[0].replace("`", ""), cells[1]))
    return rows


ROWS = read_rows()
NOT_OURS = {"repr", "store", "CancelledError", "headgate"}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.there)
def test_every_name_of_ours_in_a_row_exists(row):
    for code in CODE.findall(row.here):
        if code in NOT_OURS:
            continue
        match = OURS.fullmatch(code)
        assert match, f"line {row.line}: {code} is not a name"
        thing = headgate
        for part in match["name"].split("."):
            # What only an instance has is set in `__init__`.
            made = thing is ResilientClient and not hasattr(thing, part)
            thing = getattr(thing(), part) if made else getattr(thing, part)
        for argument in re.findall(r"(\w+)=", match["arguments"] or ""):
            assert argument in arguments_of(thing), f"line {row.line}: {code}"


def arguments_of(thing):
    """The names of all arguments, those of a TypedDict of options included."""
    parameters = inspect.signature(thing).parameters
    hints = typing.get_type_hints(thing if inspect.isfunction(thing) else thing.__init__)
    options = [typing.get_args(hints[name]) for name in parameters if name == "options"]
    return {*parameters, *(name for (kind,) in options for name in kind.__annotations__)}


# Every name in the documents of the Elixir library, the Go package and the tutorial.
THEIRS = """
for_key new_registry set should_backoff? wait clear parse_retry_after
start_link with_rate_limit set_backoff snapshot backoff_active? pid :global :via
:limiter :key :name :concurrency :throttled_concurrency :byte_budget :backoff_window_ms
:byte_penalty_multiplier :acquire_backoff :sleep_fun
SubjectPrefix ErrClosed ErrResourceUnknown ErrCapacityExhausted ErrInvalidCapacity ErrInvalidWindow
ErrInvalidConfig Canceled DeadlineExceeded Resource Available Total Window InFlight
AgentID NewCapacity Reason Timestamp Bus ReduceFactor RecoveryInterval RecoveryFactor MaxRecovery
DefaultDistributedConfig Validate NewDistributedLimiter NewMemoryLimiter Acquire TryAcquire Release
SetCapacity GetCapacity AnnounceReduced Close OnCapacityChange RateLimiter WatchOption WithCapacityCallback
retry_with_backoff max_retries base_delay max_delay exponential_base jitter retry exceptions
requests_per_minute acquire rpm interval timestamps lock failure_threshold recovery_timeout
expected_exceptions CLOSED OPEN HALF_OPEN state failure_count last_failure_time call CircuitBreakerOpen
ResilientClient circuit_failure_threshold circuit_recovery_timeout config rate_limiter circuit_breaker
stop_after_attempt wait_exponential retry_if_exception_type before_sleep_log reraise RetryError
max_tokens_per_hour max_tokens_per_request usage_log check_budget record_usage remaining_budget
user_budgets get_user_budget handle_request
""".split()  # noqa: SIM905 - words, to be read as such


@pytest.mark.parametrize("name", THEIRS)
def test_every_name_of_the_earlier_designs_has_a_row(name):
    assert any(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", row.there) for row in ROWS)


@pytest.mark.parametrize(
    ("thing", "expected"),
    [
        (
            Dispatch,
            {
                "concurrency": 400,
                "throttled_concurrency": 10,
                "byte_budget": 5 * 1024 * 1024,
                "backoff_window": 10.0,
                "byte_penalty_multiplier": 20,
            },
        ),
        (
            DistributedLimiter,
            {"reduce_factor": 0.5, "recovery_interval": 30.0, "recovery_factor": 1.1, "max_recovery": True},
        ),
        (
            retry_with_backoff,
            {
                "max_retries": 3,
                "base_delay": 1.0,
                "max_delay": 60.0,
                "exponential_base": 2.0,
                "jitter": True,
            },
        ),
        (retry, {"max_retries": 3, "base_delay": 1.0, "max_delay": 60.0}),
        (RateLimiter, {"requests_per_minute": 60}),
        (
            CircuitBreaker,
            {"failure_threshold": 5, "recovery_timeout": 30.0, "expected_exceptions": (Exception,)},
        ),
        (
            ResilienceConfig,
            {
                "max_retries": 3,
                "base_delay": 1.0,
                "max_delay": 60.0,
                "requests_per_minute": 60,
                "circuit_failure_threshold": 5,
                "circuit_recovery_timeout": 30.0,
            },
        ),
        (TokenBudget, {"max_tokens_per_hour": 100_000, "max_tokens_per_request": 10_000}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_defaults_are_those_of_the_earlier_designs(thing, expected):
    parameters = inspect.signature(thing).parameters
    defaults = {name: parameters[name].default for name in expected}
    assert defaults == expected


@pytest.mark.parametrize(
    ("error", "kinds"),
    [
        (Closed, (Refused,)),
        (CapacityExhausted, (Refused,)),
        (CircuitBreakerOpen, (Refused,)),
        (WaitTimeout, (Refused, TimeoutError)),
        (UnknownResource, (KeyError,)),
        (InvalidCapacity, (ValueError,)),
        (InvalidWindow, (ValueError,)),
        (InvalidConfig, (ValueError,)),
    ],
)
def test_errors_are_also_of_the_built_in_kind_that_callers_catch(error, kinds):
    assert all(issubclass(error, kind) for kind in kinds)


def test_a_distributed_limiter_has_every_method_of_a_memory_limiter():
    assert issubclass(DistributedLimiter, MemoryLimiter)
