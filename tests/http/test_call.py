"""What a request reserves and is charged in the end, and what its response teaches the gate."""

import json

import pytest

from far_side import BODY, MESSAGES, USAGE, FarSide, Reply, levels
from headgate import Closed, CostTooLarge, Dispatch, InvalidLimit, events
from headgate.http.exchange import GatedSender

# Reserving and settling


def test_tokens_are_reserved_before_a_request_and_settled_after_it(world):
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


def test_tokens_are_charged_for_the_call_whose_response_first_states_a_limit_for_them(world):
    gate = world.gate("50/minute burst 50")
    reply = Reply(body=USAGE, stream=True)
    sender = GatedSender(gate)
    world.ask(sender, FarSide(world.clock, reply), MESSAGES)
    gate.set_rates(["1000 tokens/minute burst 1000"])
    reply.reading.chunk(USAGE)
    reply.reading.end(whole=True)
    assert levels(gate) == {"tokens": 1000 - 42}
    assert sender.stats.output("api.example", "m", None) == 12, "and its usage improves the next estimate"


def test_a_reservation_at_openai_is_kept_after_a_short_answer(world):
    gate = world.gate("1000 tokens/minute burst 1000")
    short = json.dumps({"usage": {"prompt_tokens": 5, "completion_tokens": 1}}).encode()
    world.ask(GatedSender(gate), FarSide(world.clock, Reply(body=short)))
    assert levels(gate) == {"tokens": 900}


def test_estimates_improve_with_the_usage_of_earlier_responses(world):
    gate = world.gate("1_000_000 tokens/minute burst 1_000_000")
    used = json.dumps({"usage": {"input_tokens": 80, "output_tokens": 7}}).encode()
    asking = GatedSender(gate)
    for _ in range(40):
        world.ask(asking, FarSide(world.clock, Reply(body=used)), MESSAGES)
    first, *_, last = (event.cost["tokens"] for event in world.seen.of(events.Settled))
    assert first > 100, "at first an answer is assumed to be as long as allowed"
    assert abs(last - 87) <= 2


def test_a_refusal_costs_a_request_and_no_tokens(world):
    gate = world.gate("1000 tokens/minute burst 1000", "50/minute burst 50")
    world.ask(GatedSender(gate), FarSide(world.clock, Reply(429, retry_after=7)))
    assert levels(gate) == {"tokens": 1000, "requests": 49}
    assert gate.snapshot().in_flight == 0


def test_a_server_error_may_have_run_and_keeps_the_estimate(world):
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
def test_a_request_that_was_never_sent_costs_nothing(world, error, left):
    gate = world.gate("1000 tokens/minute burst 1000", "50/minute burst 50")
    with pytest.raises(type(error)):
        world.ask(GatedSender(gate), FarSide(world.clock, error))
    assert levels(gate) == left
    snapshot = gate.snapshot()
    assert (snapshot.in_flight, snapshot.bytes_in_flight) == (0, 0)


def test_a_failed_connection_is_recognised_inside_a_wrapping_exception(world):
    gate = world.gate("50/minute burst 50")
    wrapper = ConnectionError("wrapped by an SDK")
    wrapper.__cause__ = ConnectionRefusedError()
    with pytest.raises(ConnectionError):
        world.ask(GatedSender(gate), FarSide(world.clock, wrapper))
    assert levels(gate) == {"requests": 50}


def test_a_guess_is_cut_to_the_limit_but_an_estimate_of_the_caller_is_refused(world):
    """The server may decide about a request that is guessed to be larger than the limit."""
    gate = world.gate("60 tokens/minute burst 60")
    assert world.ask(GatedSender(gate), FarSide(world.clock, Reply(body=USAGE))).status == 200
    with pytest.raises(CostTooLarge):
        world.ask(GatedSender(gate, estimate=lambda request: 61), FarSide(world.clock, Reply()))


def test_an_estimate_of_the_caller_replaces_the_guess(world):
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
def test_an_invalid_estimate_is_refused_and_leaves_nothing_behind(world, estimate):
    gate = world.gate("1000 tokens/minute burst 1000")
    with pytest.raises(InvalidLimit, match="tokens"):
        world.ask(GatedSender(gate, estimate=lambda request: estimate), FarSide(world.clock, Reply()))
    assert gate.snapshot().in_flight == 0


def test_refusals_of_the_gate_are_raised_unchanged(world):
    gate = world.gate()
    gate.close()
    far_side = FarSide(world.clock, Reply())
    with pytest.raises(Closed):
        world.ask(GatedSender(gate, retries=3), far_side)
    assert not far_side.asked_at


# Observing


def test_every_response_is_observed_with_the_time_its_request_was_sent(world):
    observed = []

    class Observing(Dispatch):
        __slots__ = ()

        def observe(self, signal, *, sent_at=None, status=None):
            observed.append((signal.reason, sent_at))
            super().observe(signal, sent_at=sent_at, status=status)

    gate = Observing("api", clock=world.clock)
    world.clock.advance(5)
    asking = GatedSender(gate)
    for status in (200, 429, 500):
        world.ask(asking, FarSide(world.clock, Reply(status)))
    # After a refusal that does not say for how long, the next call goes after a tenth of a second.
    assert observed == [("ok", 5.0), ("rate_limited", 5.0), ("server_error", 5.1)]


def test_limits_that_a_response_states_are_learned(world):
    gate = Dispatch("api", rates="auto", clock=world.clock)
    stated = {"x_ratelimit_limit_requests": 600, "x_ratelimit_remaining_requests": 599}
    world.ask(GatedSender(gate), FarSide(world.clock, Reply(**stated)))
    assert [(rate.unit, rate.limit) for rate in gate.snapshot().rates] == [("requests", 600)]


def test_a_refusal_inside_a_success_starts_a_backoff_window(world):
    gate = world.gate()
    refused = b'event: error\ndata: {"type":"error","error":{"type":"rate_limit_error"}}\n\n'
    reply = Reply(stream=True, content_type="text/event-stream")
    world.ask(GatedSender(gate), FarSide(world.clock, reply), MESSAGES)
    assert not gate.snapshot().backoff_active
    reply.reading.chunk(refused)
    reply.reading.end()
    assert gate.snapshot().backoff_active


def test_a_unit_that_no_request_states_is_an_error_unless_an_estimate_states_it(world):
    gate = world.gate("100 images/minute burst 100")
    with pytest.raises(InvalidLimit, match=r'a rate counts images.*estimate=lambda request: \{"images": 1\}'):
        world.ask(GatedSender(gate), FarSide(world.clock, Reply()))
    sender = GatedSender(gate, estimate=lambda request: {"images": 1})
    assert world.ask(sender, FarSide(world.clock, Reply())).status == 200
    assert levels(gate) == {"images": 99}


def test_requests_that_cost_no_tokens_pass_a_gate_that_counts_input_tokens(world):
    gate = world.gate("1000 input_tokens/minute burst 1000")
    models = {"url": "https://api.example/v1/models", "body": b"", "method": "GET"}
    asked = world.ask(GatedSender(gate), FarSide(world.clock, Reply()), **models)
    assert asked.status == 200
    assert levels(gate) == {"input_tokens": 1000}
