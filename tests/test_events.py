"""Events: what observers are told, and that an observer that raises changes nothing."""

import asyncio
import logging
import pickle
import threading

import pytest

from headgate import BackoffWindow, CapacityExhausted, CostTooLarge, Dispatch, FirstFree, LineFull, events
from headgate.errors import Refused, UnknownName, WaitTimeout
from headgate.observers import together
from headgate.responses import read_signal
from headgate.testing import ManualClock, Recorder, run
from headgate.verdict import Verdict, throttled
from patience import PATIENCE


def test_totals_are_exact_whichever_way_calls_go():
    """At once, after a wait, not at all; while the rules change."""
    clock = ManualClock()
    api = Dispatch("api", concurrency=4, rates="1_000_000/s", clock=clock)
    admitted = [0] * 4
    start = threading.Barrier(5)

    def visit(number):
        start.wait(PATIENCE)
        for turn in range(300):
            permit = api.try_admit()
            if permit is None:
                with api.admit():
                    admitted[number] += 1
            else:
                admitted[number] += 1
                if turn % 3:
                    permit.settle()
                else:
                    permit.cancel()

    threads = [threading.Thread(target=visit, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    start.wait(PATIENCE)
    for rates in ("2_000_000/s", ["1_000_000/s", "1_000_000 tokens/s"], ()):
        api.set_rates(rates)
    for thread in threads:
        thread.join(PATIENCE)
    held = [api.try_admit() for _ in range(4)]
    assert api.try_admit() is None
    with pytest.raises(CapacityExhausted), api.admit(timeout=0):
        pass
    for permit in held:
        permit.settle()
    totals = api.snapshot().totals
    assert (totals.admitted, totals.refused) == (sum(admitted) + 4, 1)


def test_a_call_that_goes_at_once_is_admitted_and_settled():
    clock, seen = ManualClock(), Recorder()
    dispatch = Dispatch("api", rates="100 tokens/s burst 100", observer=seen, clock=clock)
    with dispatch.admit(tokens=10, bytes=3, tenant="acme") as permit:
        clock.advance(2)
        permit.settle(tokens=25)
    assert seen.events == [
        events.Admitted(key="api", at=0.0, waited=0.0, rule=None, throttled=False, tenant="acme"),
        events.Settled(
            key="api",
            at=2.0,
            held=2.0,
            cost={"requests": 1, "tokens": 10, "bytes": 3},
            actual={"requests": 1, "tokens": 25, "bytes": 3},
        ),
    ]


def test_a_refusal_is_told_with_the_rule_and_the_error():
    clock, seen = ManualClock(), Recorder()
    dispatch = Dispatch("api", rates="10 tokens/s", concurrency=1, max_waiting=0, observer=seen, clock=clock)
    with pytest.raises(CostTooLarge):
        dispatch.try_admit(tokens=11)
    with dispatch.admit(), pytest.raises(LineFull), dispatch.admit():
        pass
    refused = seen.of(events.Refused)
    assert [(event.error, event.rule) for event in refused] == [
        ("CostTooLarge", "tokens/second"),
        ("LineFull", "concurrency"),
    ]


def test_a_caller_that_has_to_wait_is_told_with_its_rule_position_and_estimate():
    seen = Recorder()

    async def main(clock):
        api = Dispatch("api", rates="10/s burst 1", observer=seen, clock=clock)

        async def call(after, **options):
            await asyncio.sleep(after)
            async with api.admit(**options):
                pass

        await asyncio.gather(
            call(0), call(0.01), call(0.02, tenant="acme"), call(0.03, priority=2, timeout=1)
        )

    run(main)
    facts = [
        (event.rule, event.position, round(event.estimate, 6), event.priority, event.tenant)
        for event in seen.of(events.Waiting)
    ]
    assert facts == [
        ("requests/second", 1, 0.09, 0, None),
        ("requests/second", 2, 0.18, 0, "acme"),
        ("requests/second", 1, 0.07, 2, None),
    ]
    assert [event.tenant for event in seen.of(events.Admitted)] == [None, None, None, "acme"]


def test_a_wait_that_depends_on_other_calls_has_no_estimate():
    seen = Recorder()

    async def main(clock):
        api = Dispatch("api", concurrency=1, observer=seen, clock=clock)
        async with api.admit():
            waiting = asyncio.create_task(api.admit().enter_async())
            await asyncio.sleep(1)
        (await waiting).settle()

    run(main)
    (waiting,) = seen.of(events.Waiting)
    assert (waiting.rule, waiting.position, waiting.estimate) == ("concurrency", 1, None)


def test_a_caller_that_is_cancelled_while_it_waits_is_told():
    seen = Recorder()

    async def main(clock):
        api = Dispatch("api", concurrency=1, observer=seen, clock=clock)
        async with api.admit():
            waiting = asyncio.create_task(api.admit(tenant="acme").enter_async())
            await asyncio.sleep(2)
            waiting.cancel()
            await asyncio.wait([waiting])
        return api.snapshot().totals

    totals = run(main)
    expected = events.Cancelled(key="api", at=2.0, waited=2.0, rule="concurrency", tenant="acme")
    assert seen.of(events.Cancelled) == [expected]
    assert (totals.admitted, totals.refused, totals.cancelled) == (1, 0, 1)


def test_a_caller_that_is_cancelled_when_it_has_just_been_granted_a_place_is_told():
    seen = Recorder()

    async def main(clock):
        api = Dispatch("api", concurrency=1, observer=seen, clock=clock)
        async with api.admit():
            waiting = asyncio.create_task(api.admit().enter_async())
            await asyncio.sleep(2)
        waiting.cancel()  # the place is its own, and it does not know yet
        await asyncio.wait([waiting])
        return api.snapshot()

    state = run(main)
    assert [event.waited for event in seen.of(events.Cancelled)] == [2.0]
    assert (state.totals.admitted, state.totals.waited, state.totals.cancelled) == (1, 0, 1)
    assert state.totals.seconds_waited == 0
    assert state.in_flight == 0


def test_a_coroutine_that_is_closed_while_it_waits_leaves_telling_to_the_next_caller():
    """Perhaps a finalizer closes it, and observers are never told from there."""
    seen, inside_close = Recorder(), []

    async def main(clock):
        api = Dispatch("api", concurrency=1, observer=seen, clock=clock)
        permit = api.try_admit()
        waiting = api.admit().enter_async()
        waiting.send(None)
        waiting.close()
        inside_close.extend(seen.of(events.Cancelled))
        permit.settle()

    run(main)
    assert inside_close == []
    assert len(seen.of(events.Cancelled)) == 1


def test_a_thread_that_is_interrupted_while_it_waits_is_told():
    clock, seen = ManualClock(auto_advance=True), Recorder()

    def interrupt(event):
        if isinstance(event, events.Waiting):
            raise KeyboardInterrupt

    api = Dispatch("api", rates="1/s burst 1", observer=together(seen, interrupt), clock=clock)
    with api.admit(), pytest.raises(KeyboardInterrupt), api.admit():
        pass
    assert len(seen.of(events.Cancelled)) == 1
    assert api.snapshot().waiting == 0


def test_a_call_that_goes_through_another_gate_was_not_cancelled_at_this_one():
    seen = Recorder()

    async def main(clock):
        gates = [Dispatch(key, concurrency=1, observer=seen, clock=clock) for key in ("a", "b")]
        keys = FirstFree(gates)
        first, second = gates[0].try_admit(), gates[1].try_admit()
        waiting = [asyncio.create_task(keys.admit().enter_async()) for _ in range(2)]
        await asyncio.sleep(1)
        second.settle()
        third = await waiting[0]
        waiting[1].cancel()
        await asyncio.wait(waiting)
        third.settle()
        first.settle()
        return [gate.snapshot().totals for gate in gates]

    totals = run(main)
    assert [(each.admitted, each.cancelled) for each in totals] == [(1, 1), (2, 1)]
    assert [event.key for event in seen.of(events.Cancelled)] == ["a", "b"]  # of the second caller


def test_a_response_is_told_with_its_status_and_what_it_says_about_limits():
    clock, seen = ManualClock(), Recorder()
    api = Dispatch("api", observer=seen, clock=clock)
    api.observe(read_signal(200, {}), status=200)
    api.observe(read_signal(429, {"retry-after": "7"}), status=429)
    api.observe(read_signal(503, {}))
    facts = [(event.status, event.reason, event.retry_after) for event in seen.of(events.ResponseObserved)]
    assert facts == [(200, "ok", None), (429, "rate_limited", 7.0), (None, "overloaded", None)]
    assert api.snapshot().totals.responses == 3


def test_totals_count_from_the_start_without_an_observer():
    clock = ManualClock(auto_advance=True)
    api = Dispatch("api", rates="10/s burst 1", clock=clock)
    for _ in range(3):
        with api.admit():
            pass
    assert api.try_admit() is None  # a question, and not a refusal
    with pytest.raises(CapacityExhausted), api.admit(timeout=0):
        pass
    with pytest.raises(CostTooLarge):
        api.try_admit(cost=11)
    api.set_backoff(5)
    api.set_backoff(9)
    totals = api.snapshot().totals
    assert (totals.admitted, totals.waited, totals.refused, totals.windows) == (3, 2, 2, 1)
    assert totals.seconds_waited == pytest.approx(0.2)


def test_a_snapshot_says_how_many_wait_by_priority_and_how_long_the_window_lasts():
    async def main(clock):
        api = Dispatch("api", concurrency=1, clock=clock)
        api.set_backoff(4)
        async with api.admit():
            waiting = [
                asyncio.create_task(api.admit(priority=priority).enter_async()) for priority in (0, 5, 0)
            ]
            await asyncio.sleep(1)
            state = api.snapshot()
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        return state

    state = run(main)
    assert state.waiting_by_priority == ((5, 1), (0, 2))
    assert state.window_remaining == 3.0


def test_every_dispatch_that_uses_a_window_is_told_once_what_happens_to_it():
    clock, seen, other = ManualClock(), Recorder(), Recorder()
    window = BackoffWindow(observer=seen, clock=clock)
    first = Dispatch("a", window=window, observer=seen, clock=clock)
    second = Dispatch("b", window=window, observer=other, clock=clock)
    first.set_backoff(5, reason="429")
    second.window.clear()
    for recorder in (seen, other):
        assert [type(event).__name__ for event in recorder.events] == ["WindowSet", "WindowCleared"]


def test_an_observer_that_raises_is_reported_and_changes_nothing(caplog):
    """The observer calls back into the gate as well: no lock is held."""
    clock = ManualClock()

    def observer(event):
        dispatch.snapshot()
        raise RuntimeError("the observer is broken")

    dispatch = Dispatch("api", observer=observer, clock=clock)
    with caplog.at_level(logging.ERROR, logger="headgate"), dispatch.admit():
        assert dispatch.snapshot().in_flight == 1
    assert dispatch.snapshot().in_flight == 0
    assert len(caplog.records) == 2
    assert "the observer is broken" in caplog.text
    assert "Admitted" in caplog.text


def test_events_and_errors_can_be_compared_and_pickled():
    event = events.WindowSet(key="k", at=1.0, generation=2, duration=3.0, reason="429")
    assert pickle.loads(pickle.dumps(event)) == event
    with pytest.raises(AttributeError):
        event.at = 2.0
    with pytest.raises(TypeError, match="takes exactly"):
        events.WindowEnded(key="k")
    assert event != events.WindowEnded(key="k", at=1.0, generation=2)
    error = WaitTimeout("waited 2.0 s for a place", rule="concurrency", retry_after=0.4)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.rule, again.retry_after) == (str(error), "concurrency", 0.4)
    assert str(error) == "waited 2.0 s for a place (concurrency); worth another try in 0.4 s"
    assert isinstance(error, (Refused, TimeoutError))
    assert str(UnknownName("no Dispatch is named 'x'")) == "no Dispatch is named 'x'"


def test_verdicts_are_values():
    assert throttled(3) == Verdict(kind="throttled", retry_after=3, again=True, may_have_run=False)
    with pytest.raises(ValueError, match="retry_after=-1"):
        throttled(-1)
