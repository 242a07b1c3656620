"""The OpenAI and Anthropic SDKs wait at a gate, and do not retry on top of its retries."""

import asyncio
import gc
import ssl

import anthropic
import httpx
import httpx2
import openai
import pytest

from headgate import Backoff, Closed, Dispatch, WaitTimeout
from headgate.http.anthropic import middleware, middleware_async
from headgate.http.httpx import AsyncTransport, Transport
from headgate.sandbox import Sandbox
from headgate.testing import ManualClock
from patience import PATIENCE

CHAT = {"model": "m", "max_tokens": 40, "messages": [{"role": "user", "content": "hello"}]}
QUICK = Backoff(0.01, cap=0.02)
TLS = ssl.create_default_context()  # making one takes longer than most of these tests


def client_of(library, gate, **options):
    return library.Client(transport=Transport(gate, inner=library.HTTPTransport(verify=TLS), **options))


def async_client_of(library, gate, **options):
    inner = library.AsyncHTTPTransport(verify=TLS)
    return library.AsyncClient(transport=AsyncTransport(gate, inner=inner, **options))


@pytest.fixture(scope="module")
def openai_api():
    with Sandbox("openai", requests="600_000/minute", tokens="100_000_000/minute") as api:
        yield api


@pytest.fixture(scope="module")
def anthropic_api():
    with Sandbox("anthropic", requests="600_000/minute", reply_tokens=5) as api:
        yield api


@pytest.fixture(autouse=True)
def _fresh(openai_api, anthropic_api):
    for api in (openai_api, anthropic_api):
        api.clear_faults()
        api.reset_report()


def gated(*rates, clock=None, **options):
    return Dispatch("api", rates=rates, clock=clock or ManualClock(), **options)


def levels(gate):
    return {rate.unit: rate.limit - rate.level for rate in gate.snapshot().rates}


class OpenAI:
    """The sync or async OpenAI SDK on one HTTP library."""

    def __init__(self, colour, library):
        self.colour = colour
        self.library = library

    def ask(self, api, gate, act, *, max_retries=2, **options):
        """The result of `act(client)`; a stream is read to its end."""
        if self.colour == "sync":
            with openai.OpenAI(
                base_url=api.url + "/v1",
                api_key="k",
                max_retries=max_retries,
                http_client=client_of(self.library, gate, **options),
            ) as client:
                result = act(client)
                return list(result) if isinstance(result, openai.Stream) else result

        async def main():
            async with openai.AsyncOpenAI(
                base_url=api.url + "/v1",
                api_key="k",
                max_retries=max_retries,
                http_client=async_client_of(self.library, gate, **options),
            ) as client:
                result = await act(client)
                return [item async for item in result] if isinstance(result, openai.AsyncStream) else result

        return asyncio.run(main())


class Anthropic:
    """The sync or async Anthropic SDK, with the middleware or a transport."""

    def __init__(self, colour, way):
        self.colour = colour
        self.way = way

    def ask(self, api, gate, act, *, max_retries=2, **options):
        means = {"base_url": api.url, "api_key": "k", "max_retries": max_retries}
        if self.colour == "sync":
            if self.way == "middleware":
                means["middleware"] = [middleware(gate, **options)]
                means["http_client"] = httpx2.Client(verify=TLS)
            else:
                means["http_client"] = client_of(httpx2, gate, **options)
            with anthropic.Anthropic(**means) as client:
                result = act(client)
                return list(result) if isinstance(result, anthropic.Stream) else result
        if self.way == "middleware":
            means["middleware"] = [middleware_async(gate, **options)]
            means["http_client"] = httpx2.AsyncClient(verify=TLS)
        else:
            means["http_client"] = async_client_of(httpx2, gate, **options)

        async def main():
            async with anthropic.AsyncAnthropic(**means) as client:
                result = await act(client)
                if isinstance(result, anthropic.AsyncStream):
                    return [item async for item in result]
                return result

        return asyncio.run(main())


@pytest.fixture(
    params=[("sync", httpx), ("sync", httpx2), ("async", httpx), ("async", httpx2)],
    ids=["sync-httpx", "sync-httpx2", "async-httpx", "async-httpx2"],
)
def open_sdk(request):
    return OpenAI(*request.param)


@pytest.fixture(
    params=[(colour, way) for colour in ("sync", "async") for way in ("middleware", "transport")],
    ids="-".join,
)
def anthropic_sdk(request):
    return Anthropic(*request.param)


def chat(client):
    return client.chat.completions.create(**CHAT)


def message(client):
    return client.messages.create(**CHAT)


# Settling


def test_openai_responses_settle_tokens(open_sdk, openai_api):
    gate = gated("1_000_000 tokens/minute burst 1_000_000", "1000/minute burst 1000")
    usage = open_sdk.ask(openai_api, gate, chat).usage
    assert levels(gate) == {"tokens": max(40, usage.total_tokens), "requests": 1}
    assert gate.snapshot().in_flight == 0


def test_openai_streams_settle_tokens(open_sdk, openai_api):
    gate = gated("1_000_000 tokens/minute burst 1_000_000")
    chunks = open_sdk.ask(
        openai_api,
        gate,
        lambda client: client.chat.completions.create(
            **CHAT | {"max_tokens": 5_000}, stream=True, stream_options={"include_usage": True}
        ),
    )
    assert chunks[-1].usage.total_tokens > 0
    assert levels(gate) == {"tokens": 5_000}, "what was reserved there is never given back"
    assert gate.snapshot().in_flight == 0


def test_the_openai_responses_api_settles_tokens(open_sdk, openai_api):
    gate = gated("1_000_000 tokens/minute burst 1_000_000")
    reply = open_sdk.ask(openai_api, gate, lambda client: client.responses.create(model="m", input="hi"))
    assert levels(gate)["tokens"] >= reply.usage.total_tokens > 0
    stream = open_sdk.ask(
        openai_api, gate, lambda client: client.responses.create(model="m", input="hi", stream=True)
    )
    assert stream[-1].type == "response.completed"
    assert levels(gate)["tokens"] >= reply.usage.total_tokens + stream[-1].response.usage.total_tokens


def test_anthropic_responses_settle_input_and_output_apart(anthropic_sdk, anthropic_api):
    gate = gated(
        "1_000_000 input_tokens/minute burst 1_000_000", "1_000_000 output_tokens/minute burst 1_000_000"
    )
    usage = anthropic_sdk.ask(anthropic_api, gate, message).usage
    assert levels(gate) == {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens}
    assert gate.snapshot().in_flight == 0


def test_anthropic_streams_settle_tokens(anthropic_sdk, anthropic_api):
    gate = gated("1_000_000 tokens/minute burst 1_000_000")
    events = anthropic_sdk.ask(
        anthropic_api, gate, lambda client: client.messages.create(**CHAT, stream=True)
    )
    started = next(event for event in events if event.type == "message_start").message.usage
    ended = next(event for event in events if event.type == "message_delta").usage
    assert levels(gate) == {"tokens": started.input_tokens + ended.output_tokens}
    assert gate.snapshot().in_flight == 0


# Retries


@pytest.mark.parametrize("ours", [1, 3])
def test_only_the_adapter_retries_when_openai_refuses(open_sdk, openai_api, ours):
    """The two retries of the SDK are on; the header x-should-retry stops them."""
    openai_api.fault("storm", retry_after=0.01)
    gate = gated(clock=ManualClock(auto_advance=True))
    with pytest.raises(openai.RateLimitError):
        open_sdk.ask(openai_api, gate, chat, retries=ours, backoff=QUICK)
    assert openai_api.report().requests == ours + 1


@pytest.mark.parametrize("ours", [1, 3])
def test_only_the_adapter_retries_when_anthropic_is_overloaded(anthropic_sdk, anthropic_api, ours):
    anthropic_api.fault("overload")
    gate = gated(clock=ManualClock(auto_advance=True))
    with pytest.raises(anthropic.APIStatusError):
        anthropic_sdk.ask(anthropic_api, gate, message, retries=ours, backoff=QUICK)
    assert anthropic_api.report().requests == ours + 1


def test_streams_are_retried_before_their_first_byte(open_sdk, openai_api):
    openai_api.fault("storm", count=2, retry_after=0.01)
    gate = gated(clock=ManualClock(auto_advance=True))
    chunks = open_sdk.ask(
        openai_api, gate, lambda client: client.chat.completions.create(**CHAT, stream=True), retries=2
    )
    assert chunks
    assert openai_api.report().requests == 3


def test_each_retry_of_the_openai_sdk_passes_the_gate(open_sdk, openai_api):
    openai_api.fault("storm", retry_after=0.01)
    gate = gated("1000/minute burst 1000")
    with pytest.raises(openai.RateLimitError):
        open_sdk.ask(openai_api, gate, chat)
    assert openai_api.report().requests == 3
    assert levels(gate) == {"requests": 3}


def test_each_retry_of_the_anthropic_sdk_passes_the_gate(anthropic_sdk, anthropic_api):
    anthropic_api.fault("storm", retry_after="0.01")
    gate = gated("1000/minute burst 1000")
    with pytest.raises(anthropic.RateLimitError):
        anthropic_sdk.ask(anthropic_api, gate, message, max_retries=1)
    assert anthropic_api.report().requests == 2
    assert levels(gate) == {"requests": 2}


def test_retries_of_the_sdk_after_a_broken_connection_are_sent_once_each(open_sdk, openai_api):
    """Without a response the SDK cannot be told to stop: its retries come on top, each sent once."""
    openai_api.fault("reset", at="before")
    gate = gated(clock=ManualClock(auto_advance=True))
    with pytest.raises(openai.APIConnectionError):
        open_sdk.ask(openai_api, gate, chat, retries=3, backoff=QUICK, max_retries=1)
    assert openai_api.report().requests == (1 + 3) + 1
    openai_api.reset_report()
    with pytest.raises(openai.APIConnectionError):
        open_sdk.ask(openai_api, gate, chat, retries=3, backoff=QUICK, max_retries=0)
    assert openai_api.report().requests == 1 + 3
    assert gate.snapshot().in_flight == 0


def test_the_middleware_sees_the_retry_count_of_the_anthropic_sdk(anthropic_sdk, anthropic_api):
    anthropic_api.fault("reset", at="before")
    gate = gated(clock=ManualClock(auto_advance=True))
    with pytest.raises(anthropic.APIConnectionError):
        anthropic_sdk.ask(anthropic_api, gate, message, retries=2, backoff=QUICK, max_retries=1)
    assert anthropic_api.report().requests == (1 + 2) + 1
    assert gate.snapshot().in_flight == 0


# Refusals of the gate


def test_openai_passes_refusals_of_the_gate_on_if_they_are_to_be_raised(open_sdk, openai_api):
    gate = gated()
    gate.close()
    with pytest.raises(Closed):
        open_sdk.ask(openai_api, gate, chat, refusals="raise")
    assert openai_api.report().requests == 0


def test_anthropic_passes_refusals_on_from_a_middleware_and_raises_its_own_error_from_a_transport(
    anthropic_sdk, anthropic_api
):
    gate = gated()
    gate.close()
    if anthropic_sdk.way == "middleware":
        with pytest.raises(Closed):
            anthropic_sdk.ask(anthropic_api, gate, message)
    else:
        with pytest.raises(anthropic.RateLimitError, match="was closed"):
            anthropic_sdk.ask(anthropic_api, gate, message)
        with pytest.raises(anthropic.APIConnectionError) as caught:
            anthropic_sdk.ask(anthropic_api, gate, message, max_retries=0, refusals="raise")
        assert isinstance(caught.value.__cause__, Closed)
    assert anthropic_api.report().requests == 0


def test_a_caller_may_give_up_waiting(openai_api):
    """A timeout around the call ends the wait, and its ticket leaves the line."""

    async def main():
        gate = Dispatch("api", concurrency=1)
        async with (
            gate.admit(),
            openai.AsyncOpenAI(
                base_url=openai_api.url + "/v1",
                api_key="k",
                http_client=httpx2.AsyncClient(transport=AsyncTransport(gate)),
            ) as client,
        ):
            with pytest.raises(TimeoutError) as caught:
                await asyncio.wait_for(chat(client), 0.05)
            assert not isinstance(caught.value, WaitTimeout)
            assert gate.snapshot().waiting == 0

    asyncio.run(main())
    assert openai_api.report().requests == 0


# Streams that are broken off


@pytest.mark.filterwarnings(
    "ignore:unclosed:ResourceWarning"
)  # a stream that is dropped leaves its socket open
def test_broken_off_streams_of_the_sdks_leave_nothing_behind(openai_api, anthropic_api):
    gate = gated(concurrency=1_000)
    http = httpx2.Client(transport=Transport(gate))
    with (
        openai.OpenAI(base_url=openai_api.url + "/v1", api_key="k", http_client=http) as open_client,
        anthropic.Anthropic(
            base_url=anthropic_api.url, api_key="k", middleware=[middleware(gate)]
        ) as anthropic_client,
    ):
        for i in range(15):
            for stream in (
                open_client.chat.completions.create(**CHAT, stream=True),
                anthropic_client.messages.create(**CHAT, stream=True),
            ):
                if i % 3 == 0:
                    next(iter(stream))
                    stream.close()
                elif i % 3 == 1:
                    for _ in stream:
                        break
                else:
                    list(stream)
            with anthropic_client.messages.stream(**CHAT) as helper:
                next(helper.text_stream)
        del stream, helper
        gc.collect()
        assert gate.snapshot().in_flight == 0


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_broken_off_async_streams_of_the_sdks_leave_nothing_behind(openai_api, anthropic_api):
    gate = gated(concurrency=1_000)

    async def read_slowly(stream):
        async with stream:
            async for _ in stream:
                await asyncio.sleep(3_600)

    async def leave(stream, i):
        if i % 4 == 0:
            async for _ in stream:
                break
            await stream.close()
        elif i % 4 == 1:
            async for _ in stream:
                break
        elif i % 4 == 2:
            task = asyncio.create_task(read_slowly(stream))
            await asyncio.sleep(0.005)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        else:
            [item async for item in stream]

    async def main():
        async with (
            openai.AsyncOpenAI(
                base_url=openai_api.url + "/v1",
                api_key="k",
                http_client=httpx2.AsyncClient(transport=AsyncTransport(gate)),
            ) as open_client,
            anthropic.AsyncAnthropic(
                base_url=anthropic_api.url, api_key="k", middleware=[middleware_async(gate)]
            ) as anthropic_client,
        ):
            for i in range(24):
                await leave(await open_client.chat.completions.create(**CHAT, stream=True), i)
                await leave(await anthropic_client.messages.create(**CHAT, stream=True), i)
            async with asyncio.timeout(PATIENCE):
                while gate.snapshot().in_flight:
                    gc.collect()
                    await asyncio.sleep(0.01)

    asyncio.run(main())


def test_raw_and_streaming_responses_of_the_sdks_work_as_before(openai_api, anthropic_api):
    gate = gated()
    client = anthropic.Anthropic(base_url=anthropic_api.url, api_key="k", middleware=[middleware(gate)])
    raw = client.messages.with_raw_response.create(**CHAT)
    assert raw.parse().usage.output_tokens > 0
    with client.messages.with_streaming_response.create(**CHAT) as reply:
        assert gate.snapshot().in_flight == 1
        assert b"usage" in reply.read()
        assert reply.elapsed is not None
    assert gate.snapshot().in_flight == 0
    client.close()


def test_the_default_client_of_anthropic_takes_the_transport(anthropic_api):
    gate = gated()
    with anthropic.Anthropic(
        base_url=anthropic_api.url,
        api_key="k",
        http_client=anthropic.DefaultHttpxClient(transport=Transport(gate)),
    ) as client:
        assert message(client).usage.output_tokens > 0
    assert gate.snapshot().in_flight == 0
