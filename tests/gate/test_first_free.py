"""FirstFree: a call waits in several lines, and goes through the first gate that has room.

The stories are compared with an exact model of gates, lines and callers, in virtual time.
"""

import asyncio
import gc
import heapq
import itertools
import random
import threading

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headgate import (
    CapacityExhausted,
    Closed,
    CostTooLarge,
    Dispatch,
    FirstFree,
    InvalidCapacity,
    InvalidConfig,
    LineFull,
    WaitTimeout,
    events,
)
from headgate.testing import ManualClock, Recorder, run
from patience import PATIENCE, eventually
from stress.interrupts import interrupt_everywhere

MS = 1_000_000


@pytest.fixture(scope="module")
def on_one_loop():
    with asyncio.Runner() as runner:
        yield runner.run


# -- an exact model


class ModelGate:
    def __init__(self, places, interval, burst):
        self.places, self.interval, self.burst = places, interval, burst
        self.full_at = 0  # when the bucket is full again
        self.inside = 0
        self.line = []

    def free_at(self, now):
        """When a call could go; None: when another one has ended."""
        if self.places is not None and self.inside >= self.places:
            return None
        if self.interval is None:
            return now
        return max(now, self.full_at - (self.burst - 1) * self.interval)

    def take(self, now):
        self.inside += 1
        if self.interval is not None:
            self.full_at = max(self.full_at, now) + self.interval


def expected(gates, callers):
    """{caller: (moment, gate)} for callers as (arrives, gate or None for all, stays, patience), in ms."""
    gates = [ModelGate(*gate) for gate in gates]
    admitted, serial = {}, itertools.count()
    agenda = [(arrives, next(serial), "comes", name) for name, (arrives, *_) in enumerate(callers)]
    heapq.heapify(agenda)

    def go_in(name, index, now):
        admitted[name] = (now, index)
        gates[index].take(now)
        for gate in gates:
            if name in gate.line:
                gate.line.remove(name)
        heapq.heappush(agenda, (now + callers[name][2], next(serial), "goes", name))

    def look(now):
        for index, gate in enumerate(gates):
            while gate.line and gate.free_at(now) == now:
                go_in(gate.line[0], index, now)

    while True:
        moments = [gate.free_at(agenda[0][0] if agenda else 0) for gate in gates if gate.line]
        refills = [
            gate.full_at - (gate.burst - 1) * gate.interval
            for gate in gates
            if gate.line and gate.interval is not None and gate.free_at(0) is not None
        ]
        if refills and (not agenda or min(refills) <= agenda[0][0]):
            look(min(refills))
            continue
        if not agenda:
            assert not moments, "a caller waits, and nothing will ever happen"
            return admitted
        now, _, what, name = heapq.heappop(agenda)
        _, wanted, _, patience = callers[name]
        lines = [gate for index, gate in enumerate(gates) if wanted in (None, index)]
        if what == "comes":
            for index, gate in enumerate(gates):
                if wanted in (None, index) and not gate.line and gate.free_at(now) == now:
                    go_in(name, index, now)
                    break
            else:
                for gate in lines:
                    gate.line.append(name)
                if patience is not None:
                    heapq.heappush(agenda, (now + patience, next(serial), "gives up", name))
        elif what == "goes":
            gates[admitted[name][1]].inside -= 1
            look(now)
        elif name not in admitted:
            for gate in lines:
                gate.line.remove(name)
            look(now)


async def observed(gates, callers):
    """The same, as it happens. Also returns the gates."""
    clock = ManualClock()
    made = []
    for number, (places, interval, burst) in enumerate(gates):
        rates = [] if interval is None else [f"1/{interval}ms burst {burst}"]
        made.append(
            Dispatch(number, concurrency=places, throttled_concurrency=None, rates=rates, clock=clock)
        )
    keys = FirstFree(made)
    admitted, tasks, serial = {}, {}, itertools.count()
    agenda = [(arrives * MS, next(serial), "comes", name) for name, (arrives, *_) in enumerate(callers)]
    heapq.heapify(agenda)

    async def call(name, wanted):
        admission = keys.admit() if wanted is None else made[wanted].admit()
        permit = await admission.enter_async()
        admitted[name] = permit
        heapq.heappush(agenda, (permit.taken_at + callers[name][2] * MS, next(serial), "goes", name))

    async def settle():
        for _ in range(4):
            await asyncio.sleep(0)

    while True:
        due = clock.next_due()
        if due is not None and (not agenda or due <= agenda[0][0]):
            clock.advance_to_ns(due)
            await settle()
            continue
        if not agenda:
            break
        now, _, what, name = heapq.heappop(agenda)
        clock.advance_to_ns(now)
        _, wanted, _, patience = callers[name]
        if what == "comes":
            tasks[name] = asyncio.ensure_future(call(name, wanted))
            if patience is not None:
                heapq.heappush(agenda, (now + patience * MS, next(serial), "gives up", name))
        elif what == "goes":
            admitted[name].settle()
        else:
            tasks[name].cancel()
        await settle()
        for gate in made:
            assert_no_room_for_the_first_in_line(gate)
    await asyncio.gather(*tasks.values(), return_exceptions=True)
    return {name: (permit.taken_at // MS, permit.gate.key) for name, permit in admitted.items()}, made


def assert_no_room_for_the_first_in_line(gate):
    def held(now):
        first = gate.callers.line.first()
        return first is None or gate.callers.held_by(gate.rules, first.cost, now)[0]

    assert gate.look(held), f"{gate} has room, and a caller waits"


A_GATE = st.tuples(st.none() | st.integers(1, 3), st.none() | st.integers(1, 40), st.integers(1, 3))
A_CALLER = st.tuples(
    st.integers(0, 100), st.none() | st.integers(0, 1), st.integers(0, 60), st.none() | st.integers(0, 80)
)


@settings(max_examples=400)
@given(st.lists(A_GATE, min_size=2, max_size=4), st.lists(A_CALLER, max_size=24))
@example([(1, None, 1), (1, None, 1)], [(0, None, 10, None)] * 3)
@example([(None, 10, 1), (None, 10, 1)], [(0, None, 5, None)] * 6)  # both have room in the same moment
@example([(None, 10, 1), (2, None, 1)], [(0, 0, 5, None)] * 3 + [(1, None, 30, 7), (1, 1, 30, None)] * 3)
def test_every_story_goes_as_the_model_says(on_one_loop, gates, callers):
    """Each call goes at the moment and through the gate of the model; nothing stays taken at the end."""
    seen, made = on_one_loop(observed(gates, callers))
    assert seen == expected(gates, callers)
    for gate in made:
        assert not gate.snapshot().in_flight
        assert not gate.waiting
        assert gate.clock.next_due() is None


@pytest.mark.parametrize("seed", range(3))
def test_calls_of_any_cost_never_exceed_a_gate_and_none_waits_where_there_is_room(seed):
    """Costs, priorities, tenants, cancellations, time-outs, windows and closing, against a plain account."""
    dice = random.Random(seed)

    async def main(clock):
        seen = [Recorder() for _ in range(3)]
        gates = [
            Dispatch(
                "a", concurrency=3, rates="40 tokens/s burst 60", pause=True, clock=clock, observer=seen[0]
            ),
            Dispatch("b", concurrency=5, rates="25/s burst 4", clock=clock, observer=seen[1]),
            Dispatch("c", rates=["90 tokens/s burst 50", "8/s strict"], clock=clock, observer=seen[2]),
        ]
        keys, most = FirstFree(gates, weights=[2, 1, 1]), {"a": 3, "b": 5}
        outcomes = []

        async def call():
            options = {
                "tokens": dice.choice([0, 1, 5, 40, 55]),
                "priority": dice.choice([0, 0, 0, 1]),
                "tenant": dice.choice([None, "ann", "bob"]),
                "timeout": dice.choice([None, None, 0, 0.2, 3]),
            }
            await asyncio.sleep(dice.random() * 20)
            at = keys if dice.random() < 0.7 else dice.choice(gates)
            try:
                async with at.admit(**options) as permit:
                    assert permit.gate in gates
                    await asyncio.sleep(dice.random() * 0.3)
                    outcomes.append("done")
                    permit.settle(tokens=dice.randrange(60))
            except (WaitTimeout, CapacityExhausted, CostTooLarge) as refusal:
                outcomes.append(type(refusal).__name__)

        tasks = [asyncio.ensure_future(call()) for _ in range(400)]
        for _ in range(60):
            await asyncio.sleep(0.33)
            dice.choice(tasks).cancel()
            if dice.random() < 0.1:
                gates[0].set_backoff(0.5)
            for gate in gates:
                state = gate.snapshot()
                assert (state.in_flight or 0) <= most.get(gate.key, 10**9)
                assert_no_room_for_the_first_in_line(gate)
        await asyncio.gather(*tasks, return_exceptions=True)
        for gate, recorder in zip(gates, seen, strict=True):
            assert not gate.snapshot().in_flight
            assert not gate.waiting
            assert len(recorder.of(events.Admitted)) == len(recorder.of(events.Settled))
        starts = [event.at for event in seen[2].of(events.Admitted)]
        assert all(late - early >= 1 for early, late in zip(starts, starts[8:], strict=False))
        assert {"done", "WaitTimeout", "CapacityExhausted"} <= set(outcomes)
        return sum(len(recorder.of(events.Admitted)) for recorder in seen)

    assert run(main) > 200


# -- which gate


def test_the_first_in_the_list_is_preferred_and_the_permit_says_which_it_was():
    a, b = Dispatch("a", concurrency=1), Dispatch("b", concurrency=2)
    keys = FirstFree([a, b])
    with keys.admit() as one, keys.admit() as two:
        assert (one.gate, two.gate) == (a, b)
        three = keys.try_admit()
        assert three.gate is b
        assert keys.try_admit() is None
        three.settle()
    assert a.snapshot().in_flight == b.snapshot().in_flight == 0


def test_weights_spread_calls_over_gates_that_have_room():
    gates = [Dispatch(name) for name in "abc"]
    keys = FirstFree(gates, weights=[3, 2, 1])
    taken = []
    for _ in range(12):
        with keys.admit() as permit:
            taken.append(permit.gate.key)
    assert "".join(taken) == "abacba" * 2


def test_a_gate_that_had_no_room_for_long_does_not_get_all_calls_afterwards():
    a, b = Dispatch("a", concurrency=1), Dispatch("b")
    keys = FirstFree([a, b], weights=[1, 1])
    with a.admit():
        for _ in range(100):
            keys.try_admit().settle()
    taken = []
    for _ in range(20):
        with keys.admit() as permit:
            taken.append(permit.gate.key)
    assert taken.count("a") <= 12


def test_a_backoff_window_sends_calls_to_the_other_gate():
    clock = ManualClock(auto_advance=True)
    a, b = (Dispatch(name, rates="1/s burst 1", pause=True, clock=clock) for name in "ab")
    keys, taken = FirstFree([a, b]), []
    a.set_backoff(3.5)
    for _ in range(6):
        with keys.admit() as permit:
            taken.append((clock.seconds(), permit.gate.key))
    assert taken == [(0, "b"), (1, "b"), (2, "b"), (3, "b"), (3.5, "a"), (4, "b")]


def test_two_keys_give_the_sum_of_their_rates():
    async def main(clock):
        a = Dispatch("a", rates="10/s burst 1", clock=clock)
        b = Dispatch("b", rates="15/s burst 1", concurrency=4, clock=clock)
        keys, done = FirstFree([a, b]), []

        async def worker():
            while clock.seconds() < 60:
                async with keys.admit() as permit:
                    await asyncio.sleep(0.2)
                    done.append(permit.gate.key)

        await asyncio.gather(*(worker() for _ in range(50)))
        return len(done)

    assert run(main) >= 0.98 * (10 + 15) * 60


# -- refusals


def test_a_gate_that_refuses_is_passed_over():
    a, b = Dispatch("a"), Dispatch("b", rates="100 tokens/s")
    a.close()
    keys = FirstFree([a, b])
    with keys.admit(tokens=5) as permit:
        assert permit.gate is b
    assert keys.try_admit().gate is b
    with pytest.raises(CostTooLarge):
        keys.admit(tokens=10**9).enter()
    b.close()
    with pytest.raises(Closed):
        keys.admit().enter()
    with pytest.raises(Closed):
        keys.try_admit()


def test_the_refusal_is_raised_that_says_to_come_back_soonest():
    clock = ManualClock()
    a, b, c = (
        Dispatch("a", rates="1/minute burst 1", clock=clock),
        Dispatch("b", rates="1/s burst 1", clock=clock),
        Dispatch("c", concurrency=1, max_waiting=0, clock=clock),
    )
    keys = FirstFree([a, b, c])
    for gate in (a, b):
        gate.try_admit().settle()
    held = c.try_admit()
    with pytest.raises(CapacityExhausted) as caught:
        keys.admit(timeout=0).enter()
    assert caught.value.retry_after == 1
    with pytest.raises(WaitTimeout) as caught:
        keys.admit(timeout=0.5).enter()
    assert caught.value.retry_after == 1
    a.close()
    b.close()
    with pytest.raises((LineFull, Closed)):
        keys.admit(timeout=0.5).enter()
    assert [gate.waiting for gate in (a, b, c)] == [0, 0, 0]
    held.settle()


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_caller_goes_on_waiting_when_one_of_its_gates_is_closed(colour):
    clock = ManualClock(auto_advance=True)
    a, b = (
        Dispatch("a", rates="1/minute burst 1", clock=clock),
        Dispatch("b", rates="1/hour burst 1", clock=clock),
    )
    keys = FirstFree([a, b])
    a.try_admit().settle()
    b.try_admit().settle()
    clock.at(10, a.close)
    clock.at(20, lambda: b.set_rates("1/40s burst 1"))

    async def wait():
        return await keys.admit().enter_async()

    permit = keys.admit().enter() if colour == "sync" else asyncio.run(wait())
    assert (permit.gate, clock.seconds()) == (b, pytest.approx(60, abs=41))
    permit.settle()


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_time_out_ends_the_wait_in_all_lines(colour):
    clock = ManualClock(auto_advance=True)
    a, b = (Dispatch(name, concurrency=1, clock=clock) for name in "ab")
    held = [a.try_admit(), b.try_admit()]
    keys = FirstFree([a, b])

    async def wait():
        await keys.admit(timeout=5).enter_async()

    with pytest.raises(WaitTimeout):
        keys.admit(timeout=5).enter() if colour == "sync" else asyncio.run(wait())
    assert clock.seconds() == 5
    assert a.waiting == b.waiting == 0
    for permit in held:
        permit.settle()
    assert keys.try_admit().gate is a


def test_closing_all_gates_ends_the_wait():
    async def main(clock):
        a, b = (Dispatch(name, concurrency=1, clock=clock) for name in "ab")
        held = [a.try_admit(), b.try_admit()]
        task = asyncio.ensure_future(FirstFree([a, b]).admit().enter_async())
        await asyncio.sleep(1)
        a.close()
        await asyncio.sleep(1)
        assert not task.done()
        b.close()
        with pytest.raises(Closed):
            await task
        for permit in held:
            permit.settle()

    run(main)


def test_a_wait_of_a_caller_with_a_time_out_is_not_called_hopeless_because_of_callers_that_may_go_elsewhere():
    async def main(clock):
        slow = Dispatch("slow", rates="1/s burst 1", clock=clock)
        fast = Dispatch("fast", rates="10/s burst 1", clock=clock)
        keys = FirstFree([slow, fast])
        for gate in (slow, fast):
            gate.try_admit().settle()
        crowd = [asyncio.ensure_future(keys.admit().enter_async()) for _ in range(20)]
        await asyncio.sleep(0)
        permit = await slow.admit(timeout=4).enter_async()  # 20 wait before it, and the other gate takes 18
        await asyncio.gather(*crowd)
        return permit.waited

    assert run(main) == pytest.approx(3, abs=1)


def test_a_sync_wait_in_an_event_loop_is_an_error():
    async def main():
        a, b = Dispatch("a", concurrency=1), Dispatch("b", concurrency=1)
        with a.admit(), b.admit():
            with pytest.raises(RuntimeError, match="would block the event loop"):
                FirstFree([a, b]).admit().enter()
            assert a.waiting == b.waiting == 0

    asyncio.run(main())


def test_an_admission_is_entered_once_at_a_time():
    keys = FirstFree([Dispatch("a")])
    admission = keys.admit()
    with admission, pytest.raises(RuntimeError, match="in use already"):
        admission.enter()
    with admission:
        pass


# -- arguments


@pytest.mark.parametrize(
    ("arguments", "error", "why"),
    [
        (([],), InvalidConfig, "has no gate"),
        ((["a"],), InvalidConfig, "'a' is not a Dispatch"),
        (([Dispatch("a")] * 2,), InvalidConfig, "one gate twice"),
        (([Dispatch("a"), Dispatch("b", clock=ManualClock())],), InvalidConfig, "different clocks"),
    ],
)
def test_gates_that_cannot_work_together_are_refused(arguments, error, why):
    with pytest.raises(error, match=why):
        FirstFree(*arguments)


@pytest.mark.parametrize(
    ("weights", "error"), [([1], InvalidConfig), ([1, 0], InvalidCapacity), ([1, 1.5], InvalidCapacity)]
)
def test_weights_that_cannot_work_are_refused(weights, error):
    with pytest.raises(error, match="weights"):
        FirstFree([Dispatch("a"), Dispatch("b")], weights=weights)


# -- in real time


def test_threads_and_tasks_at_the_same_gates_lose_and_invent_nothing():
    gates = [Dispatch("a", concurrency=2), Dispatch("b", concurrency=3)]
    keys, inside, most, lock = FirstFree(gates), {"a": 0, "b": 0}, {"a": 0, "b": 0}, threading.Lock()
    done = []

    def count(permit, change):
        with lock:
            name = permit.gate.key
            inside[name] += change
            most[name] = max(most[name], inside[name])
            done.append(name)

    def in_thread(seed):
        dice = random.Random(seed)
        for _ in range(60):
            with (keys if dice.random() < 0.8 else dice.choice(gates)).admit() as permit:
                count(permit, 1)
                if dice.random() < 0.1:
                    threading.Event().wait(0.001)
                count(permit, -1)

    async def in_task(dice):
        for _ in range(60):
            try:
                async with asyncio.timeout(dice.choice([None, 0.002])), keys.admit() as permit:
                    count(permit, 1)
                    try:
                        await asyncio.sleep(dice.choice([0, 0.001]))
                    finally:
                        count(permit, -1)
            except TimeoutError:
                pass

    async def tasks(seed):
        dice = random.Random(seed)
        await asyncio.gather(*(in_task(dice) for _ in range(8)))

    threads = [threading.Thread(target=in_thread, args=(seed,)) for seed in range(6)]
    threads += [threading.Thread(target=lambda seed=seed: asyncio.run(tasks(seed))) for seed in (7, 8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads)
    assert most == {"a": 2, "b": 3}
    for gate in gates:
        assert (gate.snapshot().in_flight, gate.waiting) == (0, 0)


def test_gates_that_are_shared_by_a_store_give_the_sum_of_their_rates():
    with (
        Dispatch("a", rates="100/s burst 1", store="memory:first free") as a,
        Dispatch("b", rates="100/s burst 1", store="memory:first free") as b,
    ):
        keys, taken = FirstFree([a, b]), []
        for _ in range(30):
            with keys.admit(timeout=PATIENCE) as permit:
                taken.append(permit.gate.key)
        assert min(taken.count("a"), taken.count("b")) >= 5
        assert not a.waiting
        assert not b.waiting


def test_a_caller_whose_loop_was_closed_holds_no_place_in_any_line():
    a, b = Dispatch("a", concurrency=1), Dispatch("b", concurrency=1)
    keys = FirstFree([a, b])
    held = [a.try_admit(), b.try_admit()]
    loop = asyncio.new_event_loop()
    task = loop.create_task(keys.admit().enter_async())
    loop.run_until_complete(asyncio.sleep(0))
    assert a.waiting == b.waiting == 1
    loop.close()
    thread = threading.Thread(target=lambda: keys.admit().enter().settle())
    thread.start()
    eventually(lambda: a.waiting == b.waiting == 2, "both callers wait")
    held[1].settle()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    held[0].settle()
    assert [gate.snapshot().in_flight for gate in (a, b)] == [0, 0]
    task._log_destroy_pending = False
    del task
    gc.collect()
    assert a.waiting == b.waiting == 0


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("what", ["a caller that waits", "a caller that lets others in"])
def test_an_interrupt_at_any_moment_loses_no_place_of_any_gate(what):
    def scenario(interrupt):
        clock = ManualClock(auto_advance=True)
        a = Dispatch("a", rates="1/s burst 1", concurrency=1, clock=clock)
        b = Dispatch("b", rates="1/s burst 1", concurrency=1, clock=clock)
        keys = FirstFree([a, b])
        for gate in (a, b):
            gate.try_admit().settle()
        if what == "a caller that waits":
            with interrupt, keys.admit():
                pass
        else:
            loop = asyncio.new_event_loop()
            clock.auto_advance = False
            tasks = [loop.create_task(keys.admit().enter_async()) for _ in range(3)]
            loop.run_until_complete(asyncio.sleep(0))
            with interrupt:
                clock.advance(1)
            for task in tasks:
                task.cancel()
            done = loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            for permit in done:
                if not isinstance(permit, BaseException):
                    permit.settle()
            loop.close()
            clock.auto_advance = True
            del permit, done, tasks, task
        if any(gate.snapshot().in_flight for gate in (a, b)):
            gc.collect()  # a permit may be in a circle with the interrupt that broke its block off
        for gate in (a, b):
            with gate.admit():  # the first caller may find something to repair
                pass
            assert (gate.snapshot().in_flight, gate.waiting) == (0, 0), gate
        with keys.admit():
            pass

    interrupt_everywhere(scenario)


def test_tasks_of_trio_wait_in_several_lines():
    trio = pytest.importorskip("trio")
    a, b = Dispatch("a", concurrency=1), Dispatch("b", concurrency=1)
    keys, order = FirstFree([a, b]), []

    async def visit(name):
        async with keys.admit() as permit:
            order.append((name, permit.gate.key))

    async def main():
        held = [a.try_admit(), b.try_admit()]
        async with trio.open_nursery() as nursery:
            for name in range(3):
                nursery.start_soon(visit, name)
                while a.waiting < name + 1:
                    await trio.sleep(0)
            with trio.move_on_after(0.01):
                await keys.admit().enter_async()
            assert a.waiting == b.waiting == 3
            held[1].settle()
        held[0].settle()

    trio.run(main)
    assert order == [(0, "b"), (1, "b"), (2, "b")]
    assert a.waiting == b.waiting == 0
