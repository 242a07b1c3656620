"""What a gate needs is loaded before its lock is taken: to read files takes long, and others would wait."""

import subprocess
import sys
import textwrap

import pytest

WATCHING = """
import builtins, sys
from headgate import Dispatch, MemoryLimiter
from headgate.errors import Refused

locks, loaded, load = [], [], builtins.__import__

def watched(*what, **how):
    locked, before = any(lock.locked() for lock in locks), set(sys.modules)
    found = load(*what, **how)
    if locked:
        loaded.extend(sorted(set(sys.modules) - before))
    return found

def watch(made):
    locks.append(made._lock)
    builtins.__import__ = watched
    return made

def gate(**settings):
    from headgate.testing import ManualClock

    return watch(Dispatch("api", clock=ManualClock(auto_advance=True), **settings))

def refused(made, **options):
    try:
        made.admit(**options).enter()
    except Refused as error:
        return error
    raise AssertionError("it was admitted")
"""

PROGRAMS = {
    "a caller that would not wait": """
        api = gate(concurrency=1)
        with api.admit():
            refused(api, timeout=0)
    """,
    "a caller that finds the line full": """
        api = gate(concurrency=1, max_waiting=0)
        with api.admit():
            refused(api)
    """,
    "a caller that waits in vain": """
        api = gate(concurrency=1)
        with api.admit():
            assert "waited 2.0 s" in str(refused(api, timeout=2))
    """,
    "a caller that cannot be in time behind others": """
        import asyncio
        async def main():
            api = gate(rates="1/s burst 1")
            api.try_admit()
            first = asyncio.ensure_future(api.admit().enter_async())
            await asyncio.sleep(0)
            try:
                await api.admit(timeout=0.5).enter_async()
            except Refused:
                await first
        asyncio.run(main())
    """,
    "a caller of whose wait observers are told": """
        told = []
        api = gate(rates="1/s burst 1", observer=told.append)
        api.try_admit()
        api.admit().enter()
        assert any(type(event).__name__ == "Waiting" for event in told)
    """,
    "rates that become strict": """
        api = watch(Dispatch("api", rates="5/s"))
        api.set_rates("5/s strict")
        assert "headgate.gate.strict" in sys.modules
    """,
    "a limiter whose rates are strict": """
        limiter = watch(MemoryLimiter())
        limiter.set_capacity("api", 5, 1, strict=True)
        assert "headgate.gate.strict" in sys.modules
    """,
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_nothing_is_loaded_under_the_lock_of_a_gate(program):
    source = f"{WATCHING}\n{textwrap.dedent(program)}\nprint(loaded)"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")
