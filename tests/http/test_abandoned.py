"""A response that is dropped, or held open and not read, gives its place back."""

import gc
import logging

from far_side import BODY, MESSAGES, URL, Reply, levels
from forks import in_a_child, needs_fork
from headgate import Dispatch
from headgate.http.exchange import GatedSender
from headgate.testing import ManualClock
from patience import eventually


def streaming(gate, **options):
    reply = Reply(stream=True)
    GatedSender(gate, **options).run("POST", URL, {}, BODY, lambda: reply)
    return reply


def test_a_response_that_is_not_read_keeps_its_place_for_its_lease(caplog):
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


def test_reading_a_piece_of_the_response_renews_the_lease():
    clock = ManualClock()
    gate = Dispatch("api", clock=clock)
    reply = streaming(gate, lease=60)
    for _ in range(10):
        clock.advance(50)
        reply.reading.chunk(b"piece")
    assert gate.snapshot().in_flight == 1
    clock.advance(60)
    assert gate.snapshot().in_flight == 0


def test_a_response_that_is_garbage_gives_its_place_back_before_its_lease_ends():
    gate = Dispatch("api", clock=ManualClock())
    reply = streaming(gate)
    assert gate.snapshot().in_flight == 1
    del reply
    gc.collect()
    assert gate.snapshot().in_flight == 0


def test_a_response_that_is_garbage_is_settled_by_its_usage_without_a_warning(recwarn):
    """The collector may come to the permit of a circle before it comes to the response."""
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


def test_a_response_may_be_collected_while_the_lock_of_its_gate_is_held():
    """A finalizer may run at any moment, and must not wait for the lock."""
    gate = Dispatch("api", rates="1000 tokens/minute burst 1000", clock=ManualClock())
    reply = streaming(gate)
    with gate._lock:
        del reply
        gc.collect()
    gate.try_admit().settle()  # the next call takes back what the finalizer left
    assert gate.snapshot().in_flight == 0


def test_a_clock_that_advances_by_itself_is_not_advanced_by_a_lease():
    clock = ManualClock(auto_advance=True)
    gate = Dispatch("api", clock=clock)
    reply = streaming(gate, lease=60)
    assert clock.seconds() == 0
    assert reply.reading is not None
    assert gate.snapshot().in_flight == 1


def test_short_leases_end_on_the_system_clock_while_long_ones_last():
    gate = Dispatch("api")
    kept = [streaming(gate, lease=0.2) for _ in range(50)]
    kept += [streaming(gate, lease=30) for _ in range(3)]
    eventually(lambda: gate.snapshot().in_flight == 3, "the short leases end")
    kept[0].reading.chunk(b"late")
    del kept
    gc.collect()
    assert gate.snapshot().in_flight == 0


def test_a_shorter_lease_ends_before_an_earlier_longer_one():
    gate = Dispatch("api")
    long = streaming(gate, lease=30)
    short = streaming(gate, lease=0.1)
    eventually(lambda: gate.snapshot().in_flight == 1, "the short lease ends")
    assert long.reading is not short.reading
    long.reading.end()


def test_one_timer_serves_all_open_responses_of_a_sender(monkeypatch):
    clock = ManualClock()
    gate = Dispatch("api", clock=clock)
    timers = []
    call_at = clock.call_at
    monkeypatch.setattr(clock, "call_at", lambda at, act: timers.append(at) or call_at(at, act))
    sender = GatedSender(gate, lease=64)
    replies = []
    for _ in range(20):
        replies.append(Reply(stream=True))
        sender.run("POST", URL, {}, BODY, lambda: replies[-1])
        clock.advance(0.1)
    assert len(timers) == 1
    for reply in replies[::2]:
        reply.reading.end()
    clock.advance(63)
    assert gate.snapshot().in_flight == 5, "ten have ended, and five were not read in time"
    clock.advance(3)
    assert gate.snapshot().in_flight == 0
    assert len(timers) < 5, "responses that end one soon after the other are looked at together"
    clock.advance(1_000)
    assert len(timers) < 5, "no timer is set while no response is open"


@needs_fork
def test_leases_of_the_parent_are_not_kept_in_a_forked_child():
    gate = Dispatch("api")
    kept = streaming(gate, lease=30)

    def check():
        fresh = Dispatch("child")
        mine = streaming(fresh, lease=0.1)
        eventually(lambda: fresh.snapshot().in_flight == 0, "the lease of the child ends")
        assert mine.reading is not None
        assert gate.snapshot().in_flight == 0

    assert in_a_child(check) == 0
    assert gate.snapshot().in_flight == 1
    kept.reading.end()
