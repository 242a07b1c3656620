"""The sandbox in virtual time: thousands of calls, hours of limits, no sockets and no waiting."""

import asyncio
import json
import threading

import pytest

from headgate import Dispatch, parse_retry_after
from headgate.errors import InvalidConfig
from headgate.sandbox import FakeProvider, Fault, Provider
from headgate.testing import ManualClock, run
from patience import eventually

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hi"}]


def chat(tokens=None, **more):
    document = {"model": "gpt-x", "messages": MESSAGES, **more}
    return {**document, "metadata": {"sandbox_output_tokens": tokens}} if tokens is not None else document


def test_a_call_waits_its_latency_on_the_clock():
    clock = ManualClock(auto_advance=True)
    api = FakeProvider("openai", first_token=2, tokens_per_second=10, clock=clock)
    reply = api.call("POST", CHAT, json=chat(30))
    assert reply.status == 200
    assert clock.seconds() == 5
    assert json.loads(reply.body)["usage"]["completion_tokens"] == 30
    assert ("content-type", "application/json") in reply.headers


def test_a_stream_is_read_piece_by_piece_as_time_passes():
    clock = ManualClock(auto_advance=True)
    api = FakeProvider("openai", first_token=1, tokens_per_second=4, piece_tokens=4, clock=clock)
    reply = api.call("POST", CHAT, json=chat(12, stream=True))
    assert (reply.streamed, clock.seconds(), api.report().open_streams) == (True, 1, 1)
    moments = [(clock.seconds(), chunk[:5]) for chunk in reply]
    assert moments == [(1, b"data:"), (2, b"data:"), (3, b"data:"), (4, b"data:"), (4, b"data:")]
    assert reply.body.endswith(b"[DONE]\n\n")
    assert (api.report().open_streams, api.report().in_flight, api.report().abandoned) == (0, 0, 0)


def test_a_stream_that_is_closed_early_is_no_longer_in_flight():
    clock = ManualClock(auto_advance=True)
    api = FakeProvider("openai", concurrency=1, clock=clock)
    with api.call("POST", CHAT, json=chat(12, stream=True)) as reply:
        next(iter(reply))
        assert api.call("POST", CHAT, json=chat()).status == 429
    reply.close()
    assert list(reply) == []
    assert api.call("POST", CHAT, json=chat()).status == 200
    assert api.report().abandoned == 1


def test_tasks_call_and_read_streams_in_virtual_time():
    async def main(clock):
        api = FakeProvider("anthropic", first_token=1, tokens_per_second=4, concurrency=2, clock=clock)
        body = {
            "model": "m",
            "max_tokens": 50,
            "messages": MESSAGES,
            "metadata": {"sandbox_output_tokens": 8},
        }
        async with await api.call_async("POST", "/v1/messages", json={**body, "stream": True}) as reply:
            chunks = [chunk async for chunk in reply]
        whole = await api.call_async("POST", "/v1/messages", json=body)
        streamed = await api.call_async("POST", "/v1/messages", json={**body, "stream": True})
        return len(chunks), whole.status, (await streamed.read_async())[-30:], clock.seconds(), api.report()

    count, status, end, seconds, report = run(main)
    assert (count, status, seconds) == (4, 200, 9)
    assert b"message_stop" in end
    assert (report.admitted, report.output_tokens, report.in_flight) == (3, 24, 0)


def test_a_cancelled_call_is_no_longer_in_flight():
    async def main(clock):
        api = FakeProvider("plain", first_token=10, concurrency=1, clock=clock)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3):
                await api.call_async("GET", "/")
        return api.report(), (await api.call_async("GET", "/")).status, clock.seconds()

    report, status, seconds = run(main)
    assert (report.in_flight, report.abandoned) == (0, 1)
    assert (status, seconds) == (200, 13)


def test_a_thousand_tasks_behind_a_gate_of_the_same_limits_are_never_refused():
    """
    600 a minute and 100,000 tokens a minute, 8 at once. The gate knows the limits: no 429, and the
    tokens, which are scarcer than the requests, are used to the last.
    """

    async def main(clock):
        api = FakeProvider(
            "openai",
            requests="600/minute burst 10",
            tokens="100_000/minute burst 1000",
            concurrency=8,
            first_token=0.2,
            spread=0.4,
            clock=clock,
        )
        gate = Dispatch(
            "openai",
            rates=["600/minute burst 10", "100_000 tokens/minute burst 1000"],
            concurrency=8,
            clock=clock,
        )

        async def one(i):
            async with gate.admit(tokens=200):
                return (
                    await api.call_async("POST", CHAT, headers={"x-sandbox-tokens": "200"}, json=chat(5))
                ).status

        statuses = await asyncio.gather(*(one(i) for i in range(1000)))
        return statuses, api.report(), clock.seconds()

    statuses, report, seconds = run(main)
    assert statuses == [200] * 1000
    assert (report.admitted, report.refused) == (1000, 0)
    assert report.peak_in_flight <= 8
    assert report.use["tokens"] > 0.99
    assert seconds == pytest.approx(199_000 / 100_000 * 60, rel=0.01)


def test_tasks_that_only_obey_retry_after_are_all_answered_in_the_end():
    async def main(clock):
        api = FakeProvider("openai", requests="60/minute", refusals_count=False, clock=clock)

        async def one(i):
            while True:
                reply = await api.call_async("POST", CHAT, headers={"x-sandbox-id": str(i)}, json=chat(5))
                if reply.status == 200:
                    return
                await asyncio.sleep(parse_retry_after(reply.headers))

        await asyncio.gather(*(one(i) for i in range(100)))
        return api.report()

    report = run(main)
    assert report.admitted == 100
    assert report.refused > 700  # all of them come back for each one that is admitted
    assert report.amplification == report.requests / 100
    assert report.by_status == {200: 100, 429: report.refused}


def test_threads_on_one_clock_share_the_concurrency_of_the_provider():
    """Time passes only when the test says so."""
    clock = ManualClock()
    api = FakeProvider("plain", concurrency=2, first_token=5, clock=clock)
    statuses = []
    threads = [
        threading.Thread(target=lambda: statuses.append(api.call("GET", "/").status)) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    eventually(lambda: api.report().in_flight == 2 and len(statuses) == 1, "two are in, one was refused")
    clock.advance(5)
    for thread in threads:
        thread.join()
    assert sorted(statuses) == [200, 200, 429]
    assert api.report().peak_in_flight == 2


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Fault("reset"), ConnectionResetError),
        (Fault("reset", at="headers"), ConnectionResetError),
        (Fault("reset", at="body"), ConnectionResetError),
        (Fault("truncate"), ConnectionError),
    ],
)
def test_a_connection_that_is_cut_raises_a_connection_error(fault, error):
    clock = ManualClock(auto_advance=True)
    api = FakeProvider("openai", clock=clock)
    api.fault(fault)
    with pytest.raises(error):
        api.call("POST", CHAT, json=chat(20))
    if fault.at != "before" or fault.kind == "truncate":
        reply = api.call("POST", CHAT, json=chat(20, stream=True))
        with pytest.raises(error):
            reply.read()
    assert api.report().in_flight == 0

    async def main(_clock):
        again = FakeProvider("openai", clock=_clock)
        again.fault(fault)
        with pytest.raises(error):
            await again.call_async("POST", CHAT, json=chat(20))
        return again.report().in_flight

    assert run(main) == 0


def test_a_fault_of_thirty_seconds_ends_after_thirty_seconds():
    clock = ManualClock(auto_advance=True)
    api = FakeProvider("openai", first_token=0, clock=clock)
    api.fault("overload", after=10, duration=30, retry_after=1)
    seen = []
    for _ in range(60):
        seen.append(api.call("POST", CHAT, json=chat(1)).status)
        clock.advance(1)
    assert seen == [200] * 10 + [503] * 30 + [200] * 20
    assert api.report().faults == {"overload": 30}
    assert api.faults() == []


def test_limits_can_be_changed_and_reports_reset_while_calls_run():
    clock = ManualClock(auto_advance=True)
    api = FakeProvider("plain", requests="2/minute", first_token=0, clock=clock)
    assert [api.call("GET", "/").status for _ in range(3)] == [200, 200, 429]
    api.set_limits(requests=None)
    assert api.call("GET", "/").status == 200
    assert api.limits() == {"requests": None, "tokens": None, "concurrency": None}
    api.reset_report()
    assert api.report().requests == 0
    api.fault("error", count=1)
    api.clear_faults()
    assert api.call("GET", "/").status == 200


def test_the_control_plane_answers_without_sockets():
    api = FakeProvider("plain", requests="60/minute", clock=ManualClock(auto_advance=True))
    api.call("GET", "/")
    assert json.loads(api.call("GET", "/__sandbox/report").body)["admitted"] == 1
    assert (
        json.loads(api.call("PUT", "/__sandbox/limits", json={"requests": "5/s"}).body)["requests"]
        == "5/second"
    )

    async def main(clock):
        return (await FakeProvider("plain", clock=clock).call_async("GET", "/__sandbox/limits")).status

    assert run(main) == 200


def test_a_provider_that_was_made_before_can_be_given():
    provider = Provider("plain", requests="1/minute", first_token=0)
    api = FakeProvider(provider, clock=ManualClock())
    assert api.call("GET", "/").status == 200
    assert provider.report().admitted == 1
    with pytest.raises(InvalidConfig, match="give options to the Provider"):
        FakeProvider(provider, requests="1/s")


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda api: api.call("GET", "no-slash"), "not a path"),
        (lambda api: api.call("POST", "/", body=b"x", json={}), "one body"),
        (lambda api: api.fault(Fault("storm"), count=3), "give details to the Fault"),
        (lambda api: api.fault("nonsense"), "is unknown"),
    ],
)
def test_calls_with_wrong_arguments_raise_errors_that_say_what_to_write(call, says):
    with pytest.raises(InvalidConfig, match=says):
        call(FakeProvider("plain", clock=ManualClock()))


def test_bodies_and_headers_may_be_given_in_several_forms():
    api = FakeProvider("plain", tokens="100/minute", first_token=0, clock=ManualClock())
    assert json.loads(api.call("POST", "/", body="four").body)["tokens"] == 1
    assert json.loads(api.call("POST", "/", body=b"fourfour").body)["tokens"] == 2
    assert json.loads(api.call("get", "/", headers=[("X-Sandbox-Tokens", "9")]).body)["tokens"] == 9
    assert repr(api) == "<FakeProvider plain, <ManualClock at 0 s>>"
    assert repr(api.call("GET", "/")) == "<Reply 200, 33 bytes>"
