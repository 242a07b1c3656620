"""Circuits for tests, and all that one remembers."""

from headgate.breaker.circuit import OPEN, Circuit, CircuitSettings, Recent

SECOND = 1_000_000_000


def circuit(**changes):
    """Three in a row open it for thirty seconds; one probe at a time, which has thirty seconds."""
    options = {
        "threshold": 3,
        "recovery": 30 * SECOND,
        "max_recovery": 30 * SECOND,
        "jitter": 0.0,
        "probes": 1,
        "lease": 30 * SECOND,
        "failure_rate": None,
        "slow_rate": None,
        "window": 60 * SECOND,
        "minimum": 10,
    }
    if "recovery" in changes:
        options["max_recovery"] = changes["recovery"]
    return Circuit(CircuitSettings(**(options | changes)))


def fail(circuit, now, *, times=1, slow=False, draw=0.0):
    """`times` calls come and fail, all at that moment."""
    return [circuit.failed(circuit.enter(now), slow, now, draw) for _ in range(times)]


def succeed(circuit, now, *, times=1, slow=False, draw=0.0):
    return [circuit.succeeded(circuit.enter(now), slow, now, draw) for _ in range(times)]


def opened_at(now, **changes):
    circuit_ = circuit(**changes)
    fail(circuit_, now, times=3)
    assert circuit_.state == OPEN
    return circuit_


def everything(thing):
    """All that a circuit remembers, to see whether anything changed."""
    if isinstance(thing, (Circuit, Recent)):
        return {name: everything(value) for name, value in vars(thing).items()}
    return dict(thing) if isinstance(thing, dict) else list(thing) if isinstance(thing, list) else thing
