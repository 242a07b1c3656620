"""Options of a circuit breaker that cannot work."""

import pytest

from breaker.callers import CLOSED, well
from headgate import (
    BreakerRegistry,
    CircuitBreaker,
    InvalidCapacity,
    InvalidConfig,
    InvalidLimit,
    InvalidWindow,
)


@pytest.mark.parametrize(
    ("options", "kind", "says"),
    [
        ({"failure_threshold": 0}, InvalidCapacity, "failure_threshold=0"),
        ({"failure_threshold": -1}, InvalidCapacity, "failure_threshold=-1"),
        ({"failure_threshold": 2.5}, InvalidCapacity, "failure_threshold=2.5"),
        ({"failure_threshold": True}, InvalidCapacity, "failure_threshold=True"),
        ({"failure_threshold": "5"}, InvalidCapacity, "failure_threshold='5'"),
        ({"failure_threshold": None}, InvalidConfig, "nothing would ever open"),
        ({"recovery_timeout": 0}, InvalidWindow, "recovery_timeout=0"),
        ({"recovery_timeout": -1}, InvalidWindow, "recovery_timeout=-1"),
        ({"recovery_timeout": float("inf")}, InvalidWindow, "recovery_timeout=inf"),
        ({"recovery_timeout": float("nan")}, InvalidWindow, "recovery_timeout=nan"),
        ({"recovery_timeout": "30"}, InvalidWindow, "recovery_timeout='30'"),
        ({"recovery_timeout": None}, InvalidWindow, "recovery_timeout=None"),
        ({"max_recovery_timeout": 29}, InvalidConfig, "max_recovery_timeout=29 is less"),
        ({"max_recovery_timeout": 0}, InvalidWindow, "max_recovery_timeout=0"),
        ({"half_open_probes": 0}, InvalidCapacity, "half_open_probes=0"),
        ({"half_open_probes": 1.5}, InvalidCapacity, "half_open_probes=1.5"),
        ({"probe_timeout": 0}, InvalidWindow, "probe_timeout=0"),
        ({"failure_rate": 0}, InvalidConfig, "failure_rate=0"),
        ({"failure_rate": 1.01}, InvalidConfig, "failure_rate=1.01"),
        ({"failure_rate": 50}, InvalidConfig, "failure_rate=50"),
        ({"failure_rate": True}, InvalidConfig, "failure_rate=True"),
        ({"failure_rate": "0.5"}, InvalidConfig, "failure_rate='0.5'"),
        ({"slow_after": 0}, InvalidWindow, "slow_after=0"),
        ({"slow_after": 1, "slow_rate": 0}, InvalidConfig, "slow_rate=0"),
        ({"slow_rate": 2}, InvalidConfig, "slow_rate=2"),
        ({"failure_rate": 0.5, "window": 0}, InvalidWindow, "window=0"),
        ({"failure_rate": 0.5, "minimum_calls": 0}, InvalidCapacity, "minimum_calls=0"),
        ({"recovery_jitter": -0.1}, InvalidConfig, "recovery_jitter=-0.1"),
        ({"recovery_jitter": float("nan")}, InvalidConfig, "recovery_jitter=nan"),
        ({"recovery_jitter": float("inf")}, InvalidConfig, "recovery_jitter=inf"),
        ({"recovery_jitter": "0.2"}, InvalidConfig, "recovery_jitter='0.2'"),
        pytest.param(
            {"recovery_jitter": None},
            InvalidConfig,
            "recovery_jitter=None",
        ),
        ({"expected_exceptions": "ValueError"}, InvalidConfig, "expected_exceptions='ValueError'"),
        ({"expected_exceptions": [ValueError]}, InvalidConfig, "expected_exceptions="),
        ({"expected_exceptions": (ValueError, int)}, InvalidConfig, "is not a kind of exception"),
        ({"expected_exceptions": ValueError()}, InvalidConfig, "is not a kind of exception"),
        ({"ignore": (None,)}, InvalidConfig, "ignore=(None,)"),
        ({"observer": "log"}, InvalidConfig, "observer='log'"),
    ],
    ids=str,
)
def test_options_that_cannot_work_say_so(options, kind, says):
    with pytest.raises(kind) as caught:
        CircuitBreaker(**options)
    assert says in str(caught.value)
    assert isinstance(caught.value, (InvalidLimit, ValueError))
    with pytest.raises(kind):
        BreakerRegistry(**options)


def test_calls_that_succeed_do_not_open_a_circuit_of_the_smallest_failure_rate():
    breaker = CircuitBreaker(None, failure_rate=1e-10, minimum_calls=2)
    breaker.call(well)
    breaker.call(well)
    assert breaker.state is CLOSED


def test_a_registry_refuses_an_option_that_does_not_exist():
    with pytest.raises(TypeError, match="threshold"):
        BreakerRegistry(threshold=3)
