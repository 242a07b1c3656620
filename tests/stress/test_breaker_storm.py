"""Crowds at a circuit breaker: exactly the configured probes get through, and nothing ever jams it."""

import asyncio
import contextlib
import contextvars
import dis
import gc
import random
import signal
import sys
import threading
from collections import Counter

import pytest

from forks import in_a_child, needs_fork
from headgate import BreakerRegistry, CircuitBreaker, CircuitBreakerOpen, CircuitState, events
from headgate.testing import ManualClock, Recorder, run
from patience import PATIENCE, eventually
from stress.interrupts import Interrupted

CLOSED, OPEN, HALF_OPEN = CircuitState.CLOSED, CircuitState.OPEN, CircuitState.HALF_OPEN


class Down(ConnectionError):
    pass


class SlowDown(Exception):
    status_code = 429


def down():
    raise Down


def well():
    return "well"


def opened(clock, **options):
    """A breaker that has just opened, for thirty seconds."""
    breaker = CircuitBreaker(1, 30, clock=clock, **options)
    with pytest.raises(Down):
        breaker.call(down)
    assert breaker.state is OPEN
    return breaker


class Crowd:
    """`threads` threads that each call `act` `times` times; the results are counted."""

    def __init__(self, act, threads=64, times=16):
        self.results = Counter()
        self._lock = threading.Lock()
        self._start = threading.Barrier(threads)
        self._threads = [
            threading.Thread(target=self._body, args=(act, times), daemon=True) for _ in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def _body(self, act, times):
        self._start.wait(PATIENCE)
        for _ in range(times):
            try:
                came = act()
            except BaseException as error:  # noqa: BLE001 - whatever befell it is the result
                came = type(error).__name__
            with self._lock:
                self.results[came] += 1

    def under_way(self):
        return sum(thread.is_alive() for thread in self._threads)

    def join(self):
        for thread in self._threads:
            thread.join(PATIENCE)
        assert not self.under_way(), "a thread was left waiting"
        return self.results


# -- a thousand callers, and the probes


@pytest.mark.parametrize("probes", [1, 2, 5])
@pytest.mark.parametrize("end", [down, well], ids=["fail", "succeed"])
def test_exactly_the_configured_probes_of_a_thousand_calls_in_threads_reach_the_target(probes, end):
    """64 threads, 16 calls each, five times over; all others are refused at once."""
    clock = ManualClock()
    breaker = opened(clock, half_open_probes=probes)
    for _ in range(5):
        clock.advance(30)
        reached, leave = [], threading.Event()

        def probe(reached=reached, leave=leave):
            reached.append(1)
            assert leave.wait(PATIENCE)
            return end()

        # A call that is let through stays until all others have been refused, each sixteen times.
        crowd = Crowd(lambda probe=probe: breaker.call(probe))
        eventually(lambda crowd=crowd: crowd.under_way() == probes, "the others are refused")
        assert len(reached) == probes
        assert breaker.state is HALF_OPEN
        if end is well:
            leave.set()
            crowd.join()
            assert breaker.state is CLOSED
            with pytest.raises(Down):
                breaker.call(down)
        else:
            leave.set()
            results = crowd.join()
            assert len(reached) == probes  # not one more, though the holders came again
            assert results == {"Down": probes, "CircuitBreakerOpen": 64 * 16 - probes}
        assert breaker.state is OPEN


@pytest.mark.parametrize("probes", [1, 2, 5])
@pytest.mark.parametrize("end", [down, well], ids=["fail", "succeed"])
def test_exactly_the_configured_probes_of_a_thousand_tasks_reach_the_target(probes, end):
    async def main(clock):
        breaker = opened(clock, half_open_probes=probes)
        await asyncio.sleep(30)
        reached = []

        async def probe():
            reached.append(1)
            await asyncio.sleep(1)
            return end()

        results = await asyncio.gather(
            *(breaker.call_async(probe) for _ in range(1000)), return_exceptions=True
        )
        assert len(reached) == probes
        came = Counter(result if result == "well" else type(result) for result in results)
        assert came == {"well" if end is well else Down: probes, CircuitBreakerOpen: 1000 - probes}
        assert breaker.state is (CLOSED if end is well else OPEN)

    run(main)


@pytest.mark.parametrize("probes", [1, 2, 5])
def test_threads_and_tasks_at_one_breaker_share_the_probes(probes):
    """Threads and tasks use the same breaker object."""
    clock = ManualClock()
    breaker = opened(clock, half_open_probes=probes)
    clock.advance(30)
    reached, leave = [], threading.Event()

    def probe():
        reached.append(1)
        assert leave.wait(PATIENCE)

    async def probe_async():
        await asyncio.to_thread(probe)

    async def tasks():
        return await asyncio.gather(
            *(breaker.call_async(probe_async) for _ in range(200)), return_exceptions=True
        )

    got = []
    loop = threading.Thread(target=lambda: got.extend(asyncio.run(tasks())), daemon=True)
    loop.start()
    crowd = Crowd(lambda: breaker.call(probe), threads=16, times=10)
    eventually(lambda: len(reached) >= probes and crowd.under_way() <= probes, "the others are refused")
    assert len(reached) == probes
    leave.set()
    crowd.join()
    loop.join(PATIENCE)
    assert len(got) == 200
    assert breaker.state is CLOSED


@pytest.mark.parametrize("probes", [1, 3])
def test_probes_that_decide_nothing_follow_each_other_and_are_never_more_at_a_time(probes):
    """Every probe is told to slow down; the limit is kept, and the next call is the next probe."""
    clock = ManualClock()
    breaker = opened(clock, half_open_probes=probes)
    clock.advance(30)
    lock, inside, most, reached = threading.Lock(), 0, 0, 0

    def probe():
        nonlocal inside, most, reached
        with lock:
            inside += 1
            reached += 1
            most = max(most, inside)
        threading.Event().wait(0.0005)  # let others come
        with lock:
            inside -= 1
        raise SlowDown

    results = Crowd(lambda: breaker.call(probe), threads=16, times=50).join()
    assert results["SlowDown"] == reached > 0
    assert results["SlowDown"] + results["CircuitBreakerOpen"] == 16 * 50
    assert most <= probes
    assert breaker.state is HALF_OPEN
    assert breaker.call(well) == "well"


def test_a_crowd_that_fails_at_once_opens_the_circuit_once():
    """One of 64 failures opens the circuit, and the others belong to an earlier generation."""
    clock, seen = ManualClock(), Recorder()
    breaker = CircuitBreaker(5, 30, observer=seen, clock=clock)
    together = threading.Barrier(64)

    def fail():
        together.wait(PATIENCE)
        raise Down

    results = Crowd(lambda: breaker.call(fail), times=1).join()
    assert results == {"Down": 64}
    assert [type(event) for event in seen.events] == [events.CircuitOpened]
    assert seen.events[0].generation == 1
    assert breaker.state is OPEN


def test_no_failure_is_lost_among_threads():
    """64 threads make 15 failures each, 960 in a row; the threshold is 961."""
    breaker = CircuitBreaker(64 * 15 + 1, 30, clock=ManualClock())
    Crowd(lambda: breaker.call(down), times=15).join()
    assert breaker.state is CLOSED
    with pytest.raises(Down):
        breaker.call(down)
    assert breaker.state is OPEN


def test_no_call_of_a_window_is_lost_among_threads():
    """1,024 calls, and the rate is judged from the 1,025th on."""
    breaker = CircuitBreaker(
        None, 30, failure_rate=0.5, minimum_calls=64 * 16 + 1, window=3600, clock=ManualClock()
    )
    dice = iter([down, well] * 512)
    results = Crowd(lambda: breaker.call(next(dice)), threads=16, times=64).join()
    assert results == {"Down": 512, "well": 512}
    assert breaker.state is CLOSED
    with pytest.raises(Down):
        breaker.call(down)
    assert breaker.state is OPEN


def test_a_breaker_is_not_jammed_after_a_storm_of_calls():
    """16 threads make calls that succeed, fail, are ignored or interrupted, with resets among them."""
    for seed in range(5):
        clock, dice = ManualClock(), random.Random(seed)
        breaker = CircuitBreaker(3, 1, half_open_probes=2, probe_timeout=5, clock=clock)
        ends = [well, well, down, down, down, down, "ignored", "interrupted"]

        def act(breaker=breaker, clock=clock, dice=dice, ends=ends):
            end = dice.choice(ends)
            if dice.random() < 0.05:
                clock.advance(0.5)
            if dice.random() < 0.01:
                breaker.reset()
            if end == "ignored":
                return breaker.call(next, iter(()))  # StopIteration
            if end == "interrupted":
                return breaker.call(signal_like_interrupt)
            return breaker.call(end)

        results = Crowd(act, threads=16, times=200).join()
        assert sum(results.values()) == 3200
        assert set(results) <= {"well", "Down", "StopIteration", "Interrupted", "CircuitBreakerOpen"}
        clock.advance(5)
        assert breaker.call(well) == "well"
        assert breaker.state is CLOSED


def signal_like_interrupt():
    raise Interrupted


# -- fork


@needs_fork
def test_a_child_forked_during_a_probe_may_probe_and_the_parents_goes_on():
    """The probe of the parent does not count in the child."""
    clock = ManualClock()
    breaker = opened(clock)
    clock.advance(30)
    inside, leave = threading.Event(), threading.Event()

    def probe():
        inside.set()
        assert leave.wait(PATIENCE)
        raise Down

    def visit():
        with pytest.raises(Down):
            breaker.call(probe)

    thread = threading.Thread(target=visit)
    thread.start()
    assert inside.wait(PATIENCE)

    def check():
        assert breaker.state is HALF_OPEN
        assert breaker.call(well) == "well"
        assert breaker.state is CLOSED

    try:
        assert in_a_child(check) == 0
        assert breaker.state is HALF_OPEN  # what the child found out is the child's
        with pytest.raises(CircuitBreakerOpen):
            breaker.call(well)
    finally:
        leave.set()
        thread.join(PATIENCE)
    assert breaker.state is OPEN


@needs_fork
def test_a_probe_that_forks_has_an_outcome_in_parent_and_child():
    """The call goes on in parent and child."""
    clock = ManualClock()
    breaker = opened(clock)
    clock.advance(30)
    status = []

    def probe():
        def check():
            def inner():
                return breaker.call(well)  # still inside of the same call

            assert inner() == "well"

        status.append(in_a_child(check))
        return "well"

    assert breaker.call(probe) == "well"
    assert status == [0]
    assert breaker.state is CLOSED


@needs_fork
@pytest.mark.parametrize("state", ["closed", "open", "half_open"])
def test_a_lock_that_another_thread_holds_at_the_fork_is_free_in_the_child(state):
    """In every state, and the child knows what the parent knew."""
    clock = ManualClock()
    registry = BreakerRegistry(failure_threshold=1, clock=clock)
    breaker = registry.for_key("target")
    if state != "closed":
        with pytest.raises(Down):
            breaker.call(down)
    if state == "half_open":
        clock.advance(30)
    locked, release = threading.Event(), threading.Event()

    def hold():
        with breaker._guard.lock, registry._keyed._guard.lock:
            locked.set()
            assert release.wait(PATIENCE)

    thread = threading.Thread(target=hold)
    thread.start()
    assert locked.wait(PATIENCE)

    def check():
        assert registry.for_key("target") is breaker
        assert registry.for_key("another").state is CLOSED
        assert breaker.state.value == state
        if state == "open":
            with pytest.raises(CircuitBreakerOpen) as caught:
                breaker.call(well)
            assert isinstance(caught.value.__cause__, Down)
            clock.advance(30)
        assert breaker.call(well) == "well"
        with pytest.raises(Down):
            breaker.call(down)
        assert breaker.state is OPEN

    try:
        assert in_a_child(check) == 0
    finally:
        release.set()
        thread.join(PATIENCE)


# -- interrupts, and the garbage collector


def test_an_interrupt_at_any_moment_leaves_no_lock_held_and_no_probe_beyond_its_lease(alarm):
    """Ctrl-C during a call, five hundred times."""
    clock, dice = ManualClock(), random.Random(7)
    breaker = CircuitBreaker(1, 1, probe_timeout=5, clock=clock)

    def call_until_interrupted():
        while not alarm.rang:
            try:
                breaker.call(down)
            except (Down, CircuitBreakerOpen):
                clock.set_ns(clock.now() + 200_000_000)  # no lock of the clock's own to be interrupted in

    for _ in range(500):
        with contextlib.suppress(Interrupted):
            alarm.set(0.00002 + dice.random() * 0.001)
            contextvars.Context().run(call_until_interrupted)
        assert alarm.rang
        assert not breaker._guard.lock.locked()
        clock.set_ns(clock.now() + 5_000_000_000)
        assert contextvars.Context().run(breaker.call, well) == "well"
        assert breaker.state is CLOSED


class InterruptAt:
    """Raises at the nth moment at which the interpreter looks for signals, inside of our own code.

    It looks after calls, at the start of functions, and before it jumps back.
    """

    LOOKS = ("CALL", "RESUME", "JUMP_BACKWARD")

    def __init__(self, n):
        self.left = n
        self._looked = set()  # frames that have just come by such a moment
        self._names = {}

    def __enter__(self):
        self._before = sys.gettrace()
        sys._getframe().f_trace_opcodes = True  # Python 3.12 traces none unless asked to before it begins
        sys.settrace(self._called)

    def __exit__(self, *_error):
        sys.settrace(self._before)

    def _called(self, frame, event, arg):
        path = frame.f_code.co_filename
        if "headgate/breaker/" not in path and not path.endswith("headgate/gate/guard.py"):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._step

    def _step(self, frame, event, arg):
        if event == "opcode":
            if frame in self._looked:
                self._looked.discard(frame)
                self.left -= 1
                if self.left == 0:
                    raise Interrupted
            if self._name(frame.f_code, frame.f_lasti).startswith(self.LOOKS):
                self._looked.add(frame)
        return self._step

    def _name(self, code, offset):
        if code not in self._names:
            self._names[code] = {step.offset: step.opname for step in dis.get_instructions(code)}
        return self._names[code].get(offset, "")


def finish(coroutine):
    """Run a coroutine that awaits nothing which would take time."""
    with contextlib.suppress(StopIteration):
        while True:
            coroutine.send(None)


async def answer_async():
    await Forever()


async def fail_async():
    await Forever()
    raise Down


INTERRUPTED_CALLS = {
    "call": lambda breaker: breaker.call(well),
    "call that fails": lambda breaker: breaker.call(down),
    "call_async": lambda breaker: finish(breaker.call_async(answer_async)),
    "call_async that fails": lambda breaker: finish(breaker.call_async(fail_async)),
}


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("options", [{}, {"failure_rate": 0.5}], ids=["count", "rate"])
@pytest.mark.parametrize("state", ["closed", "half_open"])
@pytest.mark.parametrize("act", INTERRUPTED_CALLS.values(), ids=INTERRUPTED_CALLS.keys())
def test_an_interrupt_at_every_single_moment_leaves_the_breaker_as_good_as_before(act, state, options):
    """
    No lock is held, no probe is in the way after its lease, and the interrupted caller is not taken to be
    inside of the call any longer: its next calls count, and are refused when the circuit is open.
    """
    n, interrupts = 0, 0
    while interrupts == n:
        n += 1
        clock = ManualClock()
        breaker = CircuitBreaker(2, 30, clock=clock, **options)
        if state == "half_open":
            for _ in range(2):
                with pytest.raises(Down):
                    breaker.call(down)
            clock.advance(30)

        def traced(n=n, breaker=breaker):
            with InterruptAt(n):
                act(breaker)

        context = contextvars.Context()
        try:
            context.run(traced)
        except Down:
            pass
        except Interrupted:
            interrupts += 1
        assert not breaker._guard.lock.locked(), n
        clock.advance(30)
        assert context.run(breaker.call, well) == "well", n
        assert breaker.state is CLOSED, n
        for _ in range(2):
            with pytest.raises(Down):
                context.run(breaker.call, down)
        assert breaker.state is OPEN, n
    assert interrupts > 3


class Collecting(ManualClock):
    """A clock at which the garbage collector happens to run when told to."""

    collects = False

    def now(self):
        if self.collects:
            self.collects = False
            gc.collect()
        return super().now()


class Forever:
    def __await__(self):
        yield


class Knot:
    """What a coroutine and its task are often tied into: a cycle that only the collector undoes."""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_probe_that_is_collected_while_this_thread_holds_the_lock_does_not_wait_for_it(alarm):
    """
    A finalizer may run inside the lock. The time is asked for there, as anything is allocated
    there, so the collector may run.
    """
    clock = Collecting()
    breaker = opened(clock, probe_timeout=5)
    clock.advance(30)

    async def hang(knot):
        await Forever()

    gc.disable()
    try:
        knot = Knot()
        knot.call = breaker.call_async(hang, knot)
        contextvars.Context().run(knot.call.send, None)
        del knot
        clock.advance(5)  # its lease is over
        clock.collects = True
        alarm.set(PATIENCE)  # in case this thread waits for itself
        with contextlib.suppress(Interrupted):
            assert breaker.call(well) == "well"
        signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        gc.enable()
    assert not alarm.rang, "the thread waited for a lock of its own"
    assert breaker.state is CLOSED


def test_a_probe_whose_coroutine_is_collected_makes_room():
    """The coroutine of the probe is collected outside the lock."""
    clock = ManualClock()
    breaker = opened(clock)
    clock.advance(30)

    async def hang(knot):
        await Forever()

    knot = Knot()
    knot.call = breaker.call_async(hang, knot)
    contextvars.Context().run(knot.call.send, None)
    with pytest.raises(CircuitBreakerOpen):
        breaker.call(well)
    del knot
    gc.collect()
    assert breaker.call(well) == "well"


# -- the registry


def test_a_storm_at_a_registry_that_forgets_keeps_one_circuit_for_each_target():
    """
    Three targets are down while thousands of others come by once; each opens after its third
    failure, however often the registry sweeps.
    """
    registry = BreakerRegistry(failure_threshold=3, clock=ManualClock())
    reached, lock = Counter(), threading.Lock()
    serial = iter(range(10**9))

    def act():
        target = f"down {random.randrange(3)}"

        def fail():
            with lock:
                reached[target] += 1
            raise Down

        for _ in range(20):
            registry.for_key(next(serial)).call(well)
        registry.for_key(target).call(fail)

    results = Crowd(act, threads=8, times=50).join()
    assert set(results) == {"Down", "CircuitBreakerOpen"}
    assert {key: state for key, state in registry.states().items() if state is not CLOSED} == {
        f"down {k}": OPEN for k in range(3)
    }
    # Three each, and those that were inside at that moment.
    assert all(3 <= count <= 3 + 8 for count in reached.values())
    gc.collect()
    assert len(registry) < 500
