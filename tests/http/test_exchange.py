"""The loop of every adapter: retries, waiting at the gate, cancellation and interrupts."""

import asyncio
import logging

import pytest

from far_side import BODY, SECOND_BACKOFF, URL, AsyncReply, FarSide, Reply
from headgate import Backoff, Dispatch, InvalidCapacity, LineFull, RetryBudget, WaitTimeout, events
from headgate.http.exchange import GatedSender
from headgate.testing import ManualClock, run

# Retries


def test_refusals_are_retried_up_to_the_given_number(world):
    far_side = FarSide(world.clock, Reply(429))
    reply = world.ask(GatedSender(world.gate(), retries=3, backoff=SECOND_BACKOFF), far_side)
    assert reply.status == 429
    assert far_side.asked_at == [0, 1, 3, 7]
    assert reply.final, "the client above is told not to retry"


def test_without_retries_the_response_is_unchanged(world):
    far_side = FarSide(world.clock, Reply(429))
    assert not world.ask(GatedSender(world.gate()), far_side).final
    assert len(far_side.asked_at) == 1


def test_a_retry_waits_for_the_retry_after_of_the_response(world):
    far_side = FarSide(world.clock, Reply(429, retry_after=30), Reply())
    assert world.ask(GatedSender(world.gate(), retries=1, backoff=SECOND_BACKOFF), far_side).status == 200
    assert far_side.asked_at == [0, 30]


def test_a_refused_request_waits_at_a_gate_that_pauses(world, caplog):
    """All callers wait there, and are admitted again a few at a time."""
    gate = world.gate(pause=True)
    far_side = FarSide(world.clock, Reply(429, retry_after=30), Reply())
    assert world.ask(GatedSender(gate, retries=1), far_side).status == 200
    assert 30 <= far_side.asked_at[1] <= 36
    assert world.seen.of(events.Retrying)[0].delay == 0
    assert "retry 1 of 1 when the backoff window ends" in caplog.text


def test_a_retry_after_of_an_hour_is_returned_to_the_caller_at_once(world):
    far_side = FarSide(world.clock, Reply(429, retry_after=3_600))
    assert world.ask(GatedSender(world.gate(), retries=3), far_side).final
    assert far_side.asked_at == [0]


def test_an_exception_whose_attributes_raise_is_raised_as_it_is_and_gives_its_place_back(world):
    class Odd(Exception):
        @property
        def kwargs(self):
            raise RuntimeError("no attribute")

    gate = world.gate(concurrency=1)
    with pytest.raises(Odd):
        world.ask(GatedSender(gate, retries=1), FarSide(world.clock, Odd()))
    assert gate.snapshot().in_flight == 0


@pytest.mark.parametrize(
    "reply",
    [
        Reply(400),
        Reply(401),
        Reply(429, b'{"error": {"code": "insufficient_quota"}}'),
        Reply(503, x_should_retry="false"),
        Reply(501),
    ],
)
def test_responses_that_a_retry_cannot_change_are_not_retried(world, reply):
    far_side = FarSide(world.clock, reply)
    world.ask(GatedSender(world.gate(), retries=3), far_side)
    assert len(far_side.asked_at) == 1


def test_passing_failures_are_retried_and_the_last_is_raised_with_a_note(world):
    far_side = FarSide(world.clock, ConnectionResetError("first"), TimeoutError("last"))
    with pytest.raises(TimeoutError, match="last") as caught:
        world.ask(GatedSender(world.gate(), retries=2, backoff=SECOND_BACKOFF), far_side)
    assert far_side.asked_at == [0, 1, 3]
    assert caught.value.__notes__ == ["headgate: gave up after 3 calls: no retries are left"]


def test_an_error_in_the_program_is_not_retried(world):
    far_side = FarSide(world.clock, ValueError("temperature"))
    with pytest.raises(ValueError, match="temperature"):
        world.ask(GatedSender(world.gate(), retries=3), far_side)
    assert len(far_side.asked_at) == 1


@pytest.mark.parametrize(
    ("method", "headers", "tries"),
    [
        ("POST", {}, 1),
        ("PATCH", {}, 1),
        ("PUT", {}, 2),
        ("GET", {}, 2),
        ("POST", {"idempotency-key": "k"}, 2),
    ],
)
@pytest.mark.parametrize("outcome", [Reply(500), TimeoutError()], ids=["500", "timeout"])
def test_a_request_that_may_have_run_is_retried_only_where_that_does_no_harm(
    world, method, headers, tries, outcome
):
    """An order is not placed twice; a model may be asked twice."""
    far_side = FarSide(world.clock, outcome, Reply())
    asking = GatedSender(world.gate(), retries=1)
    order = ("https://shop.example/orders", b'{"item": 1}', method, headers)
    if tries == 1 and isinstance(outcome, Exception):
        with pytest.raises(TimeoutError):
            world.ask(asking, far_side, *order)
    else:
        world.ask(asking, far_side, *order)
    assert len(far_side.asked_at) == tries


@pytest.mark.parametrize("outcome", [Reply(429), Reply(503), ConnectionRefusedError()])
def test_a_request_that_was_not_carried_out_is_always_sent_again(world, outcome):
    far_side = FarSide(world.clock, outcome, Reply())
    world.ask(GatedSender(world.gate(), retries=1), far_side, "https://shop.example/orders", b'{"item": 1}')
    assert len(far_side.asked_at) == 2


def test_a_body_that_is_not_in_memory_is_sent_once(world):
    far_side = FarSide(world.clock, Reply(429))
    headers = {"transfer-encoding": "chunked"}
    world.ask(GatedSender(world.gate(), retries=3), far_side, body=None, headers=headers)
    assert len(far_side.asked_at) == 1
    world.ask(GatedSender(world.gate(), retries=3), far_side, body=None, method="GET")
    assert len(far_side.asked_at) == 5, "a request without a body can be repeated"


def test_a_retry_budget_ends_the_retries_of_all_calls(world):
    budget = RetryBudget(0.1, burst=2)
    asking = GatedSender(world.gate(), retries=5, retry_budget=budget)
    far_side = FarSide(world.clock, Reply(503))
    world.ask(asking, far_side)
    world.ask(asking, far_side)
    assert len(far_side.asked_at) == 1 + 2 + 1


def test_a_retry_that_succeeds_is_returned_to_the_retry_budget(world):
    budget = RetryBudget(0.1, burst=2)
    asking = GatedSender(world.gate(), retries=5, retry_budget=budget)
    for _ in range(5):
        world.ask(asking, FarSide(world.clock, Reply(503), Reply()))
    assert budget.available == 2


def test_retries_are_reported_to_the_observer_and_the_log(world, caplog):
    far_side = FarSide(world.clock, Reply(429), Reply())
    with caplog.at_level(logging.WARNING, logger="headgate"):
        world.ask(GatedSender(world.gate(), retries=1, backoff=SECOND_BACKOFF), far_side)
    told = world.seen.of(events.Retrying)
    assert [(event.key, event.retry, event.delay) for event in told] == [
        ("POST api.example/v1/chat/completions", 1, 1.0)
    ]
    assert "429, rate_limited" in caplog.text


def test_each_attempt_passes_the_gate_and_gives_its_place_back(world):
    gate = world.gate("50/minute burst 50", concurrency=1)
    replies = [Reply(429), Reply(503), Reply()]
    world.ask(GatedSender(gate, retries=2), FarSide(world.clock, *replies))
    assert len(world.seen.of(events.Admitted)) == 3
    assert [reply.dropped for reply in replies] == [True, True, False]
    assert gate.snapshot().in_flight == 0


def test_the_retries_of_a_client_above_are_sent_once_each(world, caplog):
    """The log says once that two layers retry."""
    asking = GatedSender(world.gate(), retries=3)
    far_side = FarSide(world.clock, TimeoutError())
    with caplog.at_level(logging.WARNING, logger="headgate"):
        for count in ("0", "1", "2"):
            with pytest.raises(TimeoutError):
                world.ask(asking, far_side, headers={"x-stainless-retry-count": count})
    assert len(far_side.asked_at) == 4 + 1 + 1
    assert caplog.text.count("retries too") == 1


# Waiting at the gate


def test_a_task_that_is_cancelled_while_sending_or_waiting_gives_everything_back():
    async def main(clock):
        gate = Dispatch("api", concurrency=1, clock=clock)
        asking = GatedSender(gate)
        sending = asyncio.Event()

        async def send():
            sending.set()
            await asyncio.sleep(100)

        first = asyncio.create_task(asking.run_async("POST", URL, {}, BODY, send))
        await sending.wait()
        second = asyncio.create_task(asking.run_async("POST", URL, {}, BODY, send))
        await asyncio.sleep(1)
        assert (gate.snapshot().in_flight, gate.snapshot().waiting) == (1, 1)
        for task in (second, first):
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert (gate.snapshot().in_flight, gate.snapshot().waiting) == (0, 0)

    run(main)


def test_a_task_that_is_cancelled_between_two_attempts_does_not_retry():
    async def main(clock):
        gate = Dispatch("api", clock=clock)
        far_side = FarSide(clock, Reply(503))

        async def send():
            return AsyncReply(far_side.send())

        asking = GatedSender(gate, retries=9, backoff=Backoff(50, cap=50))
        task = asyncio.create_task(asking.run_async("POST", URL, {}, BODY, send))
        await asyncio.sleep(10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(1_000)
        assert len(far_side.asked_at) == 1
        assert gate.snapshot().in_flight == 0

    run(main)


def test_an_interrupt_between_admission_and_sending_gives_the_place_back():
    class Interrupted(ManualClock):
        def seconds(self):
            raise KeyboardInterrupt

    gate = Dispatch("api", concurrency=1, clock=Interrupted())
    with pytest.raises(KeyboardInterrupt):
        GatedSender(gate).run("POST", URL, {}, BODY, Reply)
    assert gate.snapshot().in_flight == 0


def test_a_request_waits_no_longer_than_its_timeout(world):
    gate = world.gate("1/hour")
    world.ask(GatedSender(gate), FarSide(world.clock, Reply()))
    far_side = FarSide(world.clock, Reply())
    with pytest.raises(WaitTimeout):
        world.ask(GatedSender(gate, timeout=60, retries=5), far_side)
    assert not far_side.asked_at
    assert gate.snapshot().waiting == 0


def test_a_request_that_finds_the_line_full_is_not_retried():
    gate = Dispatch("api", rates="1/hour", clock=ManualClock(), max_waiting=0)
    GatedSender(gate).run("POST", URL, {}, BODY, Reply)
    with pytest.raises(LineFull):
        GatedSender(gate, retries=5).run("POST", URL, {}, BODY, Reply)


@pytest.mark.parametrize("retries", [-1, "3", 1.5, True, None])
def test_retries_that_are_no_number_are_an_error_that_says_what_to_write(retries):
    with pytest.raises(
        InvalidCapacity,
        match=r"^retries=.* is not a whole number of retries; write 0 or more, e.g. retries=3$",
    ):
        GatedSender(Dispatch("api"), retries=retries)
