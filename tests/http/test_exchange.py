"""What every adapter does around one request, with no client library in sight (providers.md, 3.7 and 4)."""

import asyncio
import gc
import json
import logging
import threading
from weakref import WeakSet

import pytest

from forks import in_a_child, needs_fork
from headgate import (
    Backoff,
    Closed,
    CostTooLarge,
    Dispatch,
    InvalidConfig,
    InvalidLimit,
    LineFull,
    RetryBudget,
    WaitTimeout,
    events,
)
from headgate.http import Request, per_credential, per_host, per_model
from headgate.http import gates as gates_room
from headgate.http.exchange import GatedSender
from headgate.testing import ManualClock, Recorder, run
from patience import eventually

URL = "https://api.example/v1/chat/completions"
BODY = json.dumps(
    {"model": "m", "max_tokens": 100, "messages": [{"role": "user", "content": "hello"}]}
).encode()
MESSAGES = "https://api.example/v1/messages"
USAGE = json.dumps({"usage": {"input_tokens": 30, "output_tokens": 12}}).encode()
SECOND_BACKOFF = Backoff(1, cap=60)


class Reply:
    """An answer of no library: its body is there, or comes when it is told to."""

    def __init__(self, status=200, body=b"{}", *, stream=False, **headers):
        self.status = status
        self.body = body
        self.stream = stream
        self.headers = {"content-type": "application/json"}
        self.headers |= {name.replace("_", "-"): str(value) for name, value in headers.items()}
        self.reading = None
        self.dropped = False
        self.final = False

    def read_error(self):
        return self.body

    def watch(self, reading):
        self.reading = reading
        if self.stream:
            reading.keep()
        else:
            reading.chunk(self.body)
            reading.end(whole=True)

    def forbid_retries(self):
        self.final = True

    def drop(self):
        self.dropped = True


class AsyncReply:
    """The same for tasks."""

    def __init__(self, reply):
        self.reply = reply
        self.status, self.headers = reply.status, reply.headers
        self.watch, self.forbid_retries = reply.watch, reply.forbid_retries

    async def read_error(self):
        return self.reply.read_error()

    async def drop(self):
        self.reply.drop()


class FarSide:
    """Answers or raises one after the other, and remembers when it was asked."""

    def __init__(self, clock, *outcomes):
        self.clock = clock
        self.outcomes = list(outcomes)
        self.asked_at = []

    def send(self):
        self.asked_at.append(self.clock.seconds())
        outcome = self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


class World:
    def __init__(self, colour):
        self.colour = colour
        self.clock = ManualClock(auto_advance=True)
        self.seen = Recorder()

    def gate(self, *rates, **options):
        return Dispatch("api", rates=rates, clock=self.clock, observer=self.seen, **options)

    def ask(self, exchange, far_side, url=URL, body=BODY, method="POST", headers=None):
        headers = {} if headers is None else headers
        if self.colour == "sync":
            return exchange.run(method, url, headers, body, far_side.send)

        async def send():
            return AsyncReply(far_side.send())

        async def main():
            return (await exchange.run_async(method, url, headers, body, send)).reply

        return asyncio.run(main())


@pytest.fixture(params=["sync", "async"])
def world(request):
    return World(request.param)


def levels(gate):
    return {rate.unit: rate.level for rate in gate.snapshot().rates}


# What is taken and what is given back


def test_tokens_are_taken_before_and_settled_after(world):
    gate = world.gate("100 tokens/minute burst 100", "50/minute burst 50")
    reply = Reply(body=USAGE, stream=True)
    world.ask(GatedSender(gate), FarSide(world.clock, reply), MESSAGES)
    assert gate.snapshot().in_flight == 1
    assert levels(gate)["tokens"] <= 0, "the estimate of input and of an answer as long as allowed"

    reply.reading.chunk(USAGE)
    reply.reading.end(whole=True)

    assert gate.snapshot().in_flight == 0
    assert levels(gate) == {"tokens": 58, "requests": 49}


def test_a_gate_that_counts_input_and_output_apart_is_charged_for_both(world):
    gate = world.gate("1000 input_tokens/minute burst 1000", "1000 output_tokens/minute burst 1000")
    world.ask(GatedSender(gate), FarSide(world.clock, Reply(body=USAGE)), MESSAGES)
    assert levels(gate) == {"input_tokens": 970, "output_tokens": 988}


def test_a_gate_that_does_not_count_tokens_is_not_charged_for_them(world):
    gate = world.gate("50/minute burst 50")
    world.ask(GatedSender(gate), FarSide(world.clock, Reply(body=USAGE)))
    settled = world.seen.of(events.Settled)[0]
    assert settled.cost == settled.actual == {"requests": 1, "tokens": 0, "bytes": len(BODY)}


def test_openai_keeps_what_was_reserved_however_short_the_answer(world):
    gate = world.gate("1000 tokens/minute burst 1000")
    short = json.dumps({"usage": {"prompt_tokens": 5, "completion_tokens": 1}}).encode()
    world.ask(GatedSender(gate), FarSide(world.clock, Reply(body=short)))
    assert levels(gate) == {"tokens": 900}


def test_estimates_improve_with_what_answers_say(world):
    gate = world.gate("1_000_000 tokens/minute burst 1_000_000")
    lesson = json.dumps({"usage": {"input_tokens": 80, "output_tokens": 7}}).encode()
    asking = GatedSender(gate)
    for _ in range(40):
        world.ask(asking, FarSide(world.clock, Reply(body=lesson)), MESSAGES)
    first, *_, last = (event.cost["tokens"] for event in world.seen.of(events.Settled))
    assert first > 100, "at first an answer may be as long as it was allowed to be"
    assert abs(last - 87) <= 2


def test_a_refusal_keeps_the_request_and_gives_the_tokens_back(world):
    gate = world.gate("1000 tokens/minute burst 1000", "50/minute burst 50")
    world.ask(GatedSender(gate), FarSide(world.clock, Reply(429, retry_after=7)))
    assert levels(gate) == {"tokens": 1000, "requests": 49}
    assert gate.snapshot().in_flight == 0


def test_an_error_of_theirs_may_have_run_and_keeps_the_estimate(world):
    gate = world.gate("1000 tokens/minute burst 1000", "50/minute burst 50")
    world.ask(GatedSender(gate), FarSide(world.clock, Reply(500)))
    assert levels(gate) == {"tokens": 900, "requests": 49}


@pytest.mark.parametrize(
    ("error", "left"),
    [
        (ConnectionRefusedError(), {"tokens": 1000, "requests": 50}),
        (ConnectionResetError(), {"tokens": 900, "requests": 49}),
        (TimeoutError(), {"tokens": 900, "requests": 49}),
        (KeyboardInterrupt(), {"tokens": 900, "requests": 49}),
    ],
)
def test_what_was_never_sent_costs_nothing(world, error, left):
    gate = world.gate("1000 tokens/minute burst 1000", "50/minute burst 50")
    with pytest.raises(type(error)):
        world.ask(GatedSender(gate), FarSide(world.clock, error))
    assert levels(gate) == left
    snapshot = gate.snapshot()
    assert (snapshot.in_flight, snapshot.bytes_in_flight) == (0, 0)


def test_a_connection_that_failed_is_known_through_what_was_wrapped_around_it(world):
    gate = world.gate("50/minute burst 50")
    wrapper = ConnectionError("an SDK says it in its own words")
    wrapper.__cause__ = ConnectionRefusedError()
    with pytest.raises(ConnectionError):
        world.ask(GatedSender(gate), FarSide(world.clock, wrapper))
    assert levels(gate) == {"requests": 50}


def test_a_guess_refuses_nobody_but_an_estimate_of_yours_does(world):
    """A guess above the limit takes all there is: the far side may judge. What you say is believed."""
    gate = world.gate("60 tokens/minute burst 60")
    assert world.ask(GatedSender(gate), FarSide(world.clock, Reply(body=USAGE))).status == 200
    with pytest.raises(CostTooLarge):
        world.ask(GatedSender(gate, estimate=lambda request: 61), FarSide(world.clock, Reply()))


def test_an_estimate_of_your_own_replaces_ours(world):
    gate = world.gate("1000 tokens/minute burst 1000", "100 images/minute burst 100", "50/minute burst 50")
    asked = []

    def estimate(request):
        asked.append(request)
        return {"tokens": 70, "images": 2, "requests": 3, "unicorns": 9}

    world.ask(GatedSender(gate, estimate=estimate), FarSide(world.clock, Reply()), headers={"X-Team": "blue"})
    assert levels(gate) == {"tokens": 930, "images": 98, "requests": 47}
    assert asked[0].headers == {"x-team": "blue"}
    assert (asked[0].host, asked[0].model, asked[0].method, asked[0].body) == (
        "api.example",
        "m",
        "POST",
        BODY,
    )


@pytest.mark.parametrize("estimate", [-5, 1.5, "many", {"tokens": -1}])
def test_an_estimate_that_is_none_is_said_to_be_so_and_leaves_nothing_behind(world, estimate):
    gate = world.gate("1000 tokens/minute burst 1000")
    with pytest.raises(InvalidLimit, match="tokens"):
        world.ask(GatedSender(gate, estimate=lambda request: estimate), FarSide(world.clock, Reply()))
    assert gate.snapshot().in_flight == 0


def test_refusals_of_the_gate_are_raised_as_they_are(world):
    gate = world.gate()
    gate.close()
    far_side = FarSide(world.clock, Reply())
    with pytest.raises(Closed):
        world.ask(GatedSender(gate, retries=3), far_side)
    assert not far_side.asked_at


# What answers teach


def test_every_answer_is_observed_with_the_moment_its_request_was_sent(world):
    heard = []

    class Listening(Dispatch):
        __slots__ = ()

        def observe(self, signal, *, sent_at=None):
            heard.append((signal.reason, sent_at))
            super().observe(signal, sent_at=sent_at)

    gate = Listening("api", clock=world.clock)
    world.clock.advance(5)
    asking = GatedSender(gate)
    for status in (200, 429, 500):
        world.ask(asking, FarSide(world.clock, Reply(status)))
    assert heard == [("ok", 5.0), ("rate_limited", 5.0), ("server_error", 5.0)]


def test_limits_that_an_answer_states_are_learned(world):
    gate = Dispatch("api", rates="auto", clock=world.clock)
    stated = {"x_ratelimit_limit_requests": 600, "x_ratelimit_remaining_requests": 599}
    world.ask(GatedSender(gate), FarSide(world.clock, Reply(**stated)))
    assert [(rate.unit, rate.limit) for rate in gate.snapshot().rates] == [("requests", 600)]


def test_a_refusal_inside_a_success_is_heard(world):
    gate = world.gate()
    overloaded = b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error"}}\n\n'
    reply = Reply(stream=True, content_type="text/event-stream")
    world.ask(GatedSender(gate), FarSide(world.clock, reply), MESSAGES)
    assert not gate.snapshot().backoff_active
    reply.reading.chunk(overloaded)
    reply.reading.end()
    assert gate.snapshot().backoff_active


# Trying again


def test_refusals_are_tried_again_up_to_so_many_times(world):
    far_side = FarSide(world.clock, Reply(429))
    reply = world.ask(GatedSender(world.gate(), retries=3, backoff=SECOND_BACKOFF), far_side)
    assert reply.status == 429
    assert far_side.asked_at == [0, 1, 3, 7]
    assert reply.final, "whoever is above is told that it was tried often enough"


def test_without_retries_the_answer_is_left_as_it_is(world):
    far_side = FarSide(world.clock, Reply(429))
    assert not world.ask(GatedSender(world.gate()), far_side).final
    assert len(far_side.asked_at) == 1


def test_the_far_side_is_never_asked_earlier_than_it_said(world):
    far_side = FarSide(world.clock, Reply(429, retry_after=30), Reply())
    assert world.ask(GatedSender(world.gate(), retries=1, backoff=SECOND_BACKOFF), far_side).status == 200
    assert far_side.asked_at == [0, 30]


def test_a_gate_that_pauses_does_the_waiting(world):
    """Everybody waits there, and is let in again gently."""
    gate = world.gate(pause=True)
    far_side = FarSide(world.clock, Reply(429, retry_after=30), Reply())
    assert world.ask(GatedSender(gate, retries=1), far_side).status == 200
    assert 30 <= far_side.asked_at[1] <= 36
    assert world.seen.of(events.Retrying)[0].delay == 0


def test_who_is_told_to_come_back_in_an_hour_is_told_so_at_once(world):
    far_side = FarSide(world.clock, Reply(429, retry_after=3_600))
    assert world.ask(GatedSender(world.gate(), retries=3), far_side).final
    assert far_side.asked_at == [0]


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
def test_what_no_retry_mends_is_not_retried(world, reply):
    far_side = FarSide(world.clock, reply)
    world.ask(GatedSender(world.gate(), retries=3), far_side)
    assert len(far_side.asked_at) == 1


def test_passing_failures_are_tried_again_and_the_last_is_raised_with_a_note(world):
    far_side = FarSide(world.clock, ConnectionResetError("first"), TimeoutError("last"))
    with pytest.raises(TimeoutError, match="last") as caught:
        world.ask(GatedSender(world.gate(), retries=2, backoff=SECOND_BACKOFF), far_side)
    assert far_side.asked_at == [0, 1, 3]
    assert caught.value.__notes__ == ["headgate: gave up after 3 calls: no retries are left"]


def test_a_mistake_of_ours_is_not_tried_again(world):
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
def test_what_may_have_run_is_run_again_only_where_that_does_no_harm(world, method, headers, tries, outcome):
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
def test_what_was_not_carried_out_is_sent_again_whatever_it_is(world, outcome):
    far_side = FarSide(world.clock, outcome, Reply())
    world.ask(GatedSender(world.gate(), retries=1), far_side, "https://shop.example/orders", b'{"item": 1}')
    assert len(far_side.asked_at) == 2


def test_a_body_that_was_not_kept_is_sent_once(world):
    far_side = FarSide(world.clock, Reply(429))
    headers = {"transfer-encoding": "chunked"}
    world.ask(GatedSender(world.gate(), retries=3), far_side, body=None, headers=headers)
    assert len(far_side.asked_at) == 1
    world.ask(GatedSender(world.gate(), retries=3), far_side, body=None, method="GET")
    assert len(far_side.asked_at) == 5, "one without a body can be"


def test_a_retry_budget_ends_them_for_everybody(world):
    budget = RetryBudget(0.1, burst=2)
    asking = GatedSender(world.gate(), retries=5, retry_budget=budget)
    far_side = FarSide(world.clock, Reply(503))
    world.ask(asking, far_side)
    world.ask(asking, far_side)
    assert len(far_side.asked_at) == 1 + 2 + 1


def test_a_retry_that_helped_is_free(world):
    budget = RetryBudget(0.1, burst=2)
    asking = GatedSender(world.gate(), retries=5, retry_budget=budget)
    for _ in range(5):
        world.ask(asking, FarSide(world.clock, Reply(503), Reply()))
    assert budget.available == 2


def test_retries_are_told_to_the_observer_and_the_log(world, caplog):
    far_side = FarSide(world.clock, Reply(429), Reply())
    with caplog.at_level(logging.WARNING, logger="headgate"):
        world.ask(GatedSender(world.gate(), retries=1, backoff=SECOND_BACKOFF), far_side)
    told = world.seen.of(events.Retrying)
    assert [(event.key, event.retry, event.delay) for event in told] == [
        ("POST api.example/v1/chat/completions", 1, 1.0)
    ]
    assert "429, rate_limited" in caplog.text


def test_each_try_passes_the_gate_and_gives_its_place_back(world):
    gate = world.gate("50/minute burst 50", concurrency=1)
    replies = [Reply(429), Reply(503), Reply()]
    world.ask(GatedSender(gate, retries=2), FarSide(world.clock, *replies))
    assert len(world.seen.of(events.Admitted)) == 3
    assert [reply.dropped for reply in replies] == [True, True, False]
    assert gate.snapshot().in_flight == 0


def test_a_client_above_that_retries_too_is_not_multiplied(world, caplog):
    """Its second try is sent once, and somebody should know: once."""
    asking = GatedSender(world.gate(), retries=3)
    far_side = FarSide(world.clock, TimeoutError())
    with caplog.at_level(logging.WARNING, logger="headgate"):
        for count in ("0", "1", "2"):
            with pytest.raises(TimeoutError):
                world.ask(asking, far_side, headers={"x-stainless-retry-count": count})
    assert len(far_side.asked_at) == 4 + 1 + 1
    assert caplog.text.count("retries too") == 1


# Waiting, and not waiting any longer


def test_a_task_that_is_cancelled_gives_everything_back_wherever_it_was():
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


def test_a_task_that_is_cancelled_between_two_tries_does_not_try_again():
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


def test_an_interrupt_on_the_way_in_gives_the_place_back():
    """Ctrl-C strikes after the gate has let somebody in and before anything is sent."""

    class Struck(ManualClock):
        def seconds(self):
            raise KeyboardInterrupt

    gate = Dispatch("api", concurrency=1, clock=Struck())
    with pytest.raises(KeyboardInterrupt):
        GatedSender(gate).run("POST", URL, {}, BODY, Reply)
    assert gate.snapshot().in_flight == 0


def test_a_request_waits_no_longer_than_it_may(world):
    gate = world.gate("1/hour")
    world.ask(GatedSender(gate), FarSide(world.clock, Reply()))
    far_side = FarSide(world.clock, Reply())
    with pytest.raises(WaitTimeout):
        world.ask(GatedSender(gate, timeout=60, retries=5), far_side)
    assert not far_side.asked_at
    assert gate.snapshot().waiting == 0


def test_who_finds_the_line_full_is_refused_as_the_gate_refuses():
    gate = Dispatch("api", rates="1/hour", clock=ManualClock(), max_waiting=0)
    GatedSender(gate).run("POST", URL, {}, BODY, Reply)
    with pytest.raises(LineFull):
        GatedSender(gate, retries=5).run("POST", URL, {}, BODY, Reply)


# Answers that nobody ends


def streaming(gate, **options):
    reply = Reply(stream=True)
    GatedSender(gate, **options).run("POST", URL, {}, BODY, lambda: reply)
    return reply


def test_an_answer_that_nobody_reads_keeps_its_place_for_the_length_of_its_lease(caplog):
    clock = ManualClock()
    gate = Dispatch("api", clock=clock)
    reply = streaming(gate, lease=60)
    clock.advance(59)
    assert gate.snapshot().in_flight == 1
    with caplog.at_level(logging.WARNING, logger="headgate"):
        clock.advance(1)
    assert gate.snapshot().in_flight == 0
    assert "neither read nor closed for 60 s" in caplog.text
    reply.reading.chunk(b"late")
    reply.reading.end(whole=True)
    assert gate.snapshot().in_flight == 0


def test_every_piece_that_is_read_renews_the_lease():
    clock = ManualClock()
    gate = Dispatch("api", clock=clock)
    reply = streaming(gate, lease=60)
    for _ in range(10):
        clock.advance(50)
        reply.reading.chunk(b"piece")
    assert gate.snapshot().in_flight == 1
    clock.advance(60)
    assert gate.snapshot().in_flight == 0


def test_an_answer_that_is_forgotten_gives_its_place_back_before_its_lease_ends():
    gate = Dispatch("api", clock=ManualClock())
    reply = streaming(gate)
    assert gate.snapshot().in_flight == 1
    del reply
    gc.collect()
    assert gate.snapshot().in_flight == 0


def test_a_forgotten_answer_is_settled_by_what_it_said_and_blames_nobody(recwarn):
    """In a circle of garbage the permit may be finalized before whoever answers for it."""
    gate = Dispatch("api", rates="1000 tokens/minute burst 1000", clock=ManualClock())
    for _ in range(5):
        reply = Reply(stream=True, content_type="text/event-stream")
        GatedSender(gate).run("POST", MESSAGES, {}, BODY, lambda reply=reply: reply)
        reply.reading.chunk(b'data: {"type":"message_delta","usage":{"input_tokens":2,"output_tokens":1}}\n')
        reply.circle = [reply, reply.reading._permit, reply.reading]
        gc.collect(0)
        del reply
        gc.collect()
    assert gate.snapshot().in_flight == 0
    assert levels(gate) == {"tokens": 1000 - 5 * 3}
    assert not recwarn.list


def test_an_answer_may_be_collected_in_the_middle_of_a_decision():
    """A finalizer runs inside anything, the gate's own lock included, and waits for nothing."""
    gate = Dispatch("api", rates="1000 tokens/minute burst 1000", clock=ManualClock())
    reply = streaming(gate)
    with gate._lock:
        del reply
        gc.collect()
    gate.try_admit().settle()  # whoever comes next finds it in the tray
    assert gate.snapshot().in_flight == 0


def test_a_clock_that_moves_by_itself_is_not_moved_by_a_lease():
    clock = ManualClock(auto_advance=True)
    gate = Dispatch("api", clock=clock)
    reply = streaming(gate, lease=60)
    assert clock.seconds() == 0
    assert reply.reading is not None
    assert gate.snapshot().in_flight == 1


def test_short_leases_end_by_the_machines_clock_while_long_ones_last():
    gate = Dispatch("api")
    kept = [streaming(gate, lease=0.2) for _ in range(50)]
    kept += [streaming(gate, lease=30) for _ in range(3)]
    eventually(lambda: gate.snapshot().in_flight == 3, "the short leases end")
    kept[0].reading.chunk(b"late")
    del kept
    gc.collect()
    assert gate.snapshot().in_flight == 0


def test_a_shorter_lease_is_not_slept_over():
    gate = Dispatch("api")
    long = streaming(gate, lease=30)
    short = streaming(gate, lease=0.1)
    eventually(lambda: gate.snapshot().in_flight == 1, "the short lease ends")
    assert long.reading is not short.reading
    long.reading.end()


@needs_fork
def test_a_forked_child_starts_without_leases_and_keeps_its_own():
    gate = Dispatch("api")
    kept = streaming(gate, lease=30)

    def check():
        fresh = Dispatch("child")
        mine = streaming(fresh, lease=0.1)
        eventually(lambda: fresh.snapshot().in_flight == 0, "the child's lease ends")
        assert mine.reading is not None
        assert gate.snapshot().in_flight == 0

    assert in_a_child(check) == 0
    assert gate.snapshot().in_flight == 1
    kept.reading.end()


# Which gate


def request(host="api.example", model=None, **headers):
    return Request(method="POST", url=f"https://{host}/", host=host, headers=headers, body=None, model=model)


def test_gates_by_host_model_and_credential_are_made_once_for_each():
    made = []

    def make(key):
        made.append(key)
        return Dispatch(key)

    hosts, models, credentials = per_host(make), per_model(make), per_credential(make)
    assert hosts(request("a")) is hosts(request("a"))
    assert hosts(request("a")) is not hosts(request("b:8080"))
    assert models(request(model="m")) is models(request("other", model="m"))
    assert models(request()) is models(request("other"))
    blue = credentials(request(authorization="Bearer blue-secret"))
    assert blue is credentials(request(authorization="Bearer blue-secret"))
    assert blue is not credentials(request(**{"x-api-key": "red-secret"}))
    assert made[:4] == ["a", "b:8080", "m", "default"]
    assert not any("secret" in key for key in made)
    assert "secret" not in repr(request(authorization="Bearer blue-secret"))


def test_many_threads_that_come_first_get_the_same_gate():
    gates = per_host(Dispatch)
    barrier = threading.Barrier(16)
    found = []

    def come():
        barrier.wait()
        found.append(gates(request("a")))

    threads = [threading.Thread(target=come) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, found))) == 1


def test_gates_that_have_nothing_to_remember_are_let_go(world):
    made = WeakSet()

    def make(key):
        gate = world.gate("5/minute burst 5")
        made.add(gate)
        return gate

    gates = per_credential(make)
    busy = gates(request(authorization="busy"))
    held = busy.try_admit()
    address = id(busy)
    del busy
    for i in range(1_000):
        gates(request(authorization=f"key {i}"))
    gc.collect()
    assert len(made) < 500
    assert id(gates(request(authorization="busy"))) == address
    held.settle()


def test_a_function_may_choose_the_gate(world):
    small, large = world.gate("5/minute burst 5"), world.gate("7/minute burst 7")
    asking = GatedSender(lambda request: large if request.model == "m" else small)
    world.ask(asking, FarSide(world.clock, Reply()))
    assert (levels(small), levels(large)) == ({"requests": 5}, {"requests": 6})


def test_without_a_gate_there_is_one_for_every_host_shared_by_all_adapters(world):
    for _ in range(2):
        world.ask(GatedSender(), FarSide(world.clock, Reply()), "https://shared.example/v1/chat/completions")
    gate = gates_room.DEFAULT(request("shared.example"))
    assert gate is gates_room.DEFAULT(request("shared.example"))
    assert gate.snapshot().rates[0].level < gate.snapshot().rates[0].burst
    assert gate is not gates_room.DEFAULT(request("other.example"))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"gate": "api"}, "is not a Dispatch"),
        ({"retries": -1}, "retries=-1"),
        ({"retries": 1.5}, "whole number"),
        ({"backoff": 3}, "is not a Backoff"),
        ({"retry_budget": 3}, "is not a RetryBudget"),
        ({"estimate": 3}, "cannot be called"),
        ({"lease": 0}, "lease=0"),
        ({"lease": "long"}, "lease='long'"),
        ({"timeout": -1}, "timeout=-1"),
    ],
)
def test_what_cannot_work_is_said_at_once(options, why):
    with pytest.raises(InvalidLimit, match=why):
        GatedSender(**options)


def test_a_function_that_gives_no_gate_is_told_so(world):
    with pytest.raises(InvalidConfig, match="not a Dispatch"):
        world.ask(GatedSender(lambda request: None), FarSide(world.clock, Reply()))
