"""The sandbox on a port, seen by real clients in a little real time."""

import asyncio
import gc
import json
import socket
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from urllib.request import Request as UrlRequest
from urllib.request import urlopen

import aiohttp
import anthropic
import httpx
import httpx2
import openai
import pytest
import requests

from headgate.errors import InvalidConfig
from headgate.http import read_signal
from headgate.sandbox import Fault, Provider, Sandbox, serve
from patience import eventually

MESSAGES = [{"role": "user", "content": "hi"}]
CHAT = {"model": "gpt-x", "messages": MESSAGES}


@pytest.fixture
def openai_api():
    with Sandbox("openai", requests="6000/minute", tokens="1_000_000/minute") as api:
        yield api


@pytest.fixture
def anthropic_api():
    limits = {"input_tokens": "1_000_000/minute", "output_tokens": "100_000/minute"}
    with Sandbox("anthropic", requests="6000/minute", **limits) as api:
        yield api


@pytest.fixture
def plain_api():
    with Sandbox("plain", requests="6000/minute") as api:
        yield api


@pytest.fixture
def client(openai_api):
    with openai.OpenAI(base_url=openai_api.url + "/v1", api_key="k", max_retries=0, timeout=5) as client:
        yield client


# -- The official SDKs, unchanged


def test_openai_chat(openai_api, client):
    reply = client.chat.completions.create(**CHAT, max_tokens=50, metadata={"sandbox_output_tokens": "12"})
    assert len(reply.choices[0].message.content.split()) == 12
    assert reply.usage.completion_tokens == 12
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + 12
    raw = client.chat.completions.with_raw_response.create(**CHAT)
    scopes = {scope.name: scope for scope in read_signal(raw.status_code, raw.headers).scopes}
    assert (scopes["requests"].limit, scopes["tokens"].limit) == (6000, 1_000_000)
    assert raw.headers["x-request-id"].startswith("req_")


def test_openai_chat_stream(openai_api, client):
    options = {"stream": True, "metadata": {"sandbox_output_tokens": "12"}}
    *chunks, last = client.chat.completions.create(**CHAT, **options, stream_options={"include_usage": True})
    assert last.usage.completion_tokens == 12
    assert sum(len((chunk.choices[0].delta.content or "").split()) for chunk in chunks) == 12
    with client.chat.completions.stream(**CHAT) as stream:
        assert stream.get_final_completion().choices[0].finish_reason == "stop"
    eventually(lambda: openai_api.report().in_flight == 0, "its place is free")
    assert openai_api.report().abandoned == 0


def test_openai_responses(client):
    reply = client.responses.create(model="gpt-x", input="hello", metadata={"sandbox_output_tokens": "9"})
    assert len(reply.output_text.split()) == 9
    assert reply.usage.output_tokens == 9
    events = list(client.responses.create(model="gpt-x", input="hello", stream=True, max_output_tokens=5))
    assert events[0].type == "response.created"
    assert events[-1].type in ("response.completed", "response.incomplete")
    with client.responses.stream(
        model="gpt-x", input="hello", metadata={"sandbox_output_tokens": "9"}
    ) as stream:
        assert len(stream.get_final_response().output_text.split()) == 9


def test_openai_embeddings_models_and_counting(client):
    listed = client.embeddings.create(model="e", input=["a", "b", "c"], dimensions=16)
    assert [len(item.embedding) for item in listed.data] == [16, 16, 16]
    plain = client.embeddings.create(model="e", input="a", encoding_format="float")
    assert len(plain.data[0].embedding) == 8
    assert [model.id for model in client.models.list()] == ["sandbox-1"]
    assert client.responses.input_tokens.count(model="m", input="hello").input_tokens > 0


def test_openai_async(openai_api):
    async def main():
        async with openai.AsyncOpenAI(base_url=openai_api.url, api_key="k", max_retries=0) as client:
            reply = await client.chat.completions.create(**CHAT)
            stream = await client.chat.completions.create(**CHAT, stream=True)
            chunks = [chunk async for chunk in stream]
            response = await client.responses.create(model="m", input="x")
            return reply.usage.total_tokens, chunks[-1].choices[0].finish_reason, response.status

    total, finish, status = asyncio.run(main())
    assert total > 0
    assert (finish, status) == ("stop", "completed")


def test_anthropic(anthropic_api):
    with anthropic.Anthropic(base_url=anthropic_api.url, api_key="k", max_retries=0) as client:
        ask = {"model": "m", "max_tokens": 50, "messages": MESSAGES}
        reply = client.messages.create(**ask, metadata={"sandbox_output_tokens": 7})
        assert len(reply.content[0].text.split()) == 7
        assert (reply.usage.output_tokens, reply.stop_reason) == (7, "end_turn")
        with client.messages.stream(**ask, metadata={"sandbox_output_tokens": 60}) as stream:
            assert len("".join(stream.text_stream).split()) == 50
            assert stream.get_final_message().stop_reason == "max_tokens"
        events = [event.type for event in client.messages.create(**ask, stream=True)]
        assert (events[0], events[-2:]) == ("message_start", ["message_delta", "message_stop"])
        assert client.messages.count_tokens(model="m", messages=MESSAGES).input_tokens > 0
        assert [model.id for model in client.models.list()] == ["sandbox-1"]
        raw = client.messages.with_raw_response.create(**ask)
        names = {scope.name for scope in read_signal(raw.status_code, raw.headers).scopes}
        assert names == {"requests", "input_tokens", "output_tokens", "tokens"}


def test_anthropic_async(anthropic_api):
    async def main():
        async with anthropic.AsyncAnthropic(base_url=anthropic_api.url, api_key="k") as client:
            ask = {"model": "m", "max_tokens": 50, "messages": MESSAGES}
            reply = await client.messages.create(**ask)
            async with client.messages.stream(**ask) as stream:
                final = await stream.get_final_message()
            return reply.usage.output_tokens, final.usage.output_tokens

    assert all(tokens > 0 for tokens in asyncio.run(main()))


def test_the_openai_sdk_raises_its_own_errors_with_the_message_of_the_server():
    url = {"api_key": "k", "max_retries": 0}
    with Sandbox("openai", requests="1/minute") as api, openai.OpenAI(base_url=api.url, **url) as client:
        client.chat.completions.create(**CHAT)
        with pytest.raises(openai.RateLimitError) as refused:
            client.chat.completions.create(**CHAT)
        response = refused.value.response
        signal = read_signal(response.status_code, response.headers, response.content)
        assert signal.reason == "rate_limited"
        assert 59 < signal.retry_after <= 60
        assert refused.value.code == "rate_limit_exceeded"
        with pytest.raises(openai.NotFoundError):
            client.post("/nothing", cast_to=object)
        api.fault("quota")
        with pytest.raises(openai.RateLimitError, match="exceeded your current quota"):
            client.chat.completions.create(**CHAT)


def test_the_anthropic_sdk_raises_its_own_errors_with_the_message_of_the_server():
    how = {"api_key": "k", "max_retries": 0}
    limits = {"requests": "1/minute", "input_tokens": "100/minute"}
    ask = {"model": "m", "max_tokens": 5, "messages": MESSAGES}
    with Sandbox("anthropic", **limits) as api, anthropic.Anthropic(base_url=api.url, **how) as client:
        client.messages.create(**ask)
        with pytest.raises(anthropic.RateLimitError, match="rate limit of 1 requests per minute") as refused:
            client.messages.create(**ask)
        assert 50 < int(refused.value.response.headers["retry-after"]) <= 60
        api.set_limits(input_tokens="10/minute")
        with pytest.raises(anthropic.APIStatusError) as large:
            client.messages.create(**ask)
        assert large.value.status_code == 413
        api.fault("overload")
        with pytest.raises(anthropic.APIStatusError) as overloaded:
            client.messages.create(**ask)
        assert overloaded.value.status_code == 529


def test_the_sdks_get_through_a_short_storm_with_their_own_retries():
    with Sandbox("openai") as api, openai.OpenAI(base_url=api.url, api_key="k") as client:
        api.fault("storm", count=2, retry_after=0.01)
        assert client.chat.completions.create(**CHAT).usage
        assert api.report().by_status == {200: 1, 429: 2}
    with Sandbox("anthropic") as api, anthropic.Anthropic(base_url=api.url, api_key="k") as client:
        api.fault("overload", count=1)
        assert client.messages.create(model="m", max_tokens=5, messages=MESSAGES).usage
        assert api.report().by_status == {200: 1, 529: 1}


# -- Other clients


def test_httpx_httpx2_and_requests_are_served(plain_api):
    for get in (httpx.get, httpx2.get, requests.get):
        reply = get(plain_api.url + "/things?page=2", timeout=5)
        assert reply.status_code == 200
        assert reply.json()["ok"] is True
    assert (
        requests.post(plain_api.url, data=(part for part in (b"chun", b"ked!")), timeout=5).json()["tokens"]
        == 2
    )
    assert httpx.head(plain_api.url).headers["content-length"] != "0"
    assert plain_api.report().by_status == {200: 5}


def test_aiohttp_is_served(openai_api):
    async def main():
        async with aiohttp.ClientSession() as session:
            url = openai_api.url + "/v1/chat/completions"
            async with session.post(url, json=CHAT) as reply:
                total = (await reply.json())["usage"]["total_tokens"]
            async with session.post(url, json={**CHAT, "stream": True}) as reply:
                lines = [line async for line in reply.content]
            async with session.post(url, json=CHAT, expect100=True) as reply:
                return total, lines[-2], reply.status

    total, end, status = asyncio.run(main())
    assert total > 0
    assert (end, status) == (b"data: [DONE]\n", 200)


def test_clients_of_http_1_0_get_a_stream_without_chunks(openai_api):
    body = json.dumps({**CHAT, "stream": True}).encode()
    with connection(openai_api) as sock:
        sock.sendall(
            b"POST /v1/chat/completions HTTP/1.0\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
        )
        reply = everything(sock)
    head, _, content = reply.partition(b"\r\n\r\n")
    assert b"chunked" not in head
    assert b"connection: close" in head
    assert content.startswith(b"data: ")
    assert content.endswith(b"[DONE]\n\n")


# -- HTTP


def connection(api):
    sock = socket.create_connection(("127.0.0.1", int(api.url.rpartition(":")[2])), timeout=5)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def everything(sock):
    received = b""
    with suppress(ConnectionResetError):
        while data := sock.recv(65_536):
            received += data
    return received


def test_connections_are_kept_open_and_requests_may_be_pipelined(plain_api):
    one = b"GET /one HTTP/1.1\r\nhost: x\r\n\r\n"
    chunked = b"POST /two HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n"
    chunked += b"4\r\nfour\r\n4;x=y\r\nfour\r\n0\r\nt: r\r\n\r\n"
    last = b"GET /three HTTP/1.1\r\nconnection: close\r\n\r\n"
    with connection(plain_api) as sock:
        sock.sendall(one + chunked + last)
        reply = everything(sock)
    assert reply.count(b"HTTP/1.1 200 OK") == 3
    assert b'"serial":2,"tokens":2' in reply
    assert reply.count(b"connection: close") == 1


def test_a_client_that_expects_100_continue_gets_it(plain_api):
    with connection(plain_api) as sock:
        sock.sendall(
            b"PUT / HTTP/1.1\r\nexpect: 100-continue\r\ncontent-length: 4\r\nconnection: close\r\n\r\n"
        )
        assert sock.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(b"four")
        assert b'"tokens":1' in everything(sock)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET\r\n\r\n", 400),
        (b"GET / HTTP/1.1 extra\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00", 400),
        (b"GET / HTTP/2\r\n\r\n", 505),
        (b"BREW / HTTP/1.1\r\n\r\n", 501),
        (b"GET nowhere HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nbad name: x\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\na: b\r\n folded\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\ncontent-length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\ncontent-length: 1_0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\ntransfer-encoding: gzip\r\n\r\n", 501),
        (b"POST / HTTP/1.1\r\ncontent-length: 99999999999\r\n\r\n", 413),
        (b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n", 400),
        (b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n3\r\nfour\r\n", 400),
        (b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nFFFFFFF\r\n", 413),
        (b"GET / HTTP/1.1\r\nx: " + b"y" * 70_000 + b"\r\n\r\n", 431),
    ],
    ids=range(19),
)
def test_input_that_is_not_http_gets_an_error_and_the_connection_is_closed(plain_api, sent, status):
    with connection(plain_api) as sock:
        sock.sendall(sent)
        sock.shutdown(socket.SHUT_WR)
        reply = everything(sock)
    assert reply.startswith(b"HTTP/1.1 %d " % status)
    assert b"connection: close" in reply
    assert plain_api.report().requests == 0
    assert requests.get(plain_api.url, timeout=5).status_code == 200


def test_garbage_and_half_requests_do_not_affect_the_next_client(plain_api, caplog):
    junk = [
        b"",
        b"\r\n",
        b"\r\n\r\n",
        b"GET / HT",
        b"POST / HTTP/1.1\r\ncontent-length: 50\r\n\r\nabc",
        b"\0" * 999,
        b"A" * 99_999,
    ]
    for sent in junk:
        with connection(plain_api) as sock, suppress(ConnectionError):
            sock.sendall(sent)
    assert requests.get(plain_api.url, timeout=5).status_code == 200
    assert not caplog.records


# -- Each fault, seen by a real client


@pytest.mark.parametrize(
    "fault",
    [Fault("reset"), Fault("reset", at="headers"), Fault("reset", at="body"), Fault("truncate")],
    ids=repr,
)
@pytest.mark.parametrize("stream", [False, True])
def test_clients_see_faults_that_break_connections(openai_api, fault, stream):
    openai_api.fault(fault)
    body = {**CHAT, "stream": stream, "metadata": {"sandbox_output_tokens": 40}}
    seen = []
    with httpx.Client(timeout=5) as client:
        try:
            with client.stream("POST", openai_api.url + "/v1/chat/completions", json=body) as reply:
                seen.append(reply.status_code)
                seen.extend(reply.iter_bytes())
        except (httpx.NetworkError, httpx.RemoteProtocolError):
            seen.append("broken")
    assert seen[-1] == "broken"
    assert (seen[0] == 200) == (fault != Fault("reset"))
    if fault in (Fault("truncate"), Fault("reset", at="body")):
        assert len(seen) > 2
    eventually(lambda: openai_api.report().in_flight == 0, "its place is free")
    assert openai_api.report().faults == {fault.kind: 1}


def test_the_openai_sdk_sees_a_stream_without_its_end(openai_api, client):
    openai_api.fault("truncate", clean=True)
    chunks = list(
        client.chat.completions.create(**CHAT, stream=True, metadata={"sandbox_output_tokens": "40"})
    )
    assert chunks
    assert all(chunk.choices[0].finish_reason is None for chunk in chunks)


def test_the_sdks_see_an_error_event_inside_a_stream(openai_api, client, anthropic_api):
    ask = {**CHAT, "stream": True, "metadata": {"sandbox_output_tokens": "40"}}
    openai_api.fault("stream_error")
    with pytest.raises(openai.APIError, match="overloaded"):
        list(client.chat.completions.create(**ask))
    last = list(client.responses.create(model="m", input="x", stream=True))[-1]
    assert (last.type, last.code) == ("error", "server_overloaded")
    anthropic_api.fault("stream_error")
    how = {"base_url": anthropic_api.url, "api_key": "k", "max_retries": 0}
    said = pytest.raises(anthropic.APIStatusError, match="overloaded_error")
    with anthropic.Anthropic(**how) as claude, said:
        list(claude.messages.create(model="m", max_tokens=50, messages=MESSAGES, stream=True))


@pytest.mark.parametrize(
    "fault",
    [Fault("slow_headers", seconds=3600), Fault("stall", seconds=3600), Fault("slow_body", seconds=3600)],
    ids=repr,
)
def test_clients_that_time_out_on_slow_answers_are_no_longer_in_flight(openai_api, fault):
    openai_api.fault(fault)
    with httpx.Client(timeout=httpx.Timeout(5, read=0.1)) as client, pytest.raises(httpx.ReadTimeout):
        client.post(openai_api.url + "/v1/chat/completions", json={**CHAT, "stream": True})
    eventually(lambda: openai_api.report().in_flight == 0, "its place is free")
    report = openai_api.report()
    assert (report.abandoned, report.open_streams, report.admitted) == (1, 0, 1)


@pytest.mark.parametrize(
    ("fault", "status", "reason"),
    [
        (Fault("storm", retry_after="a while"), 429, "rate_limited"),
        (Fault("quota"), 429, "quota_exhausted"),
        (Fault("too_large"), 429, "too_large"),
        (Fault("overload"), 503, "overloaded"),
        (Fault("error", status=500), 500, "server_error"),
        (Fault("html"), 502, "server_error"),
    ],
    ids=repr,
)
def test_clients_see_faults_that_refuse(openai_api, fault, status, reason):
    openai_api.fault(fault)
    reply = requests.post(openai_api.url + "/v1/chat/completions", json=CHAT, timeout=5)
    assert reply.status_code == status
    assert read_signal(reply.status_code, reply.headers, reply.content).reason == reason
    assert ("html" in reply.headers["content-type"]) == (fault.kind == "html")


# -- Many at once


def test_two_hundred_clients_at_once_are_served():
    with Sandbox("plain", requests="1_000_000/minute", first_token=0.5) as api:

        async def main():
            port = int(api.url.rpartition(":")[2])
            clients = await asyncio.gather(*(asyncio.open_connection("127.0.0.1", port) for _ in range(200)))
            for _, writer in clients:
                writer.write(b"GET / HTTP/1.1\r\nconnection: close\r\n\r\n")
            replies = await asyncio.gather(*(reader.read() for reader, _ in clients))
            for _, writer in clients:
                writer.close()
                await writer.wait_closed()
            return [reply.split(b" ", 2)[1] for reply in replies]

        assert asyncio.run(main()) == [b"200"] * 200
        report = api.report()
    assert (report.admitted, report.in_flight) == (200, 0)
    assert report.peak_in_flight > 100


def test_concurrency_is_limited_over_sockets():
    with Sandbox("openai", concurrency=3, tokens_per_second=20) as api, ThreadPoolExecutor(8) as threads:
        url, body = api.url + "/v1/chat/completions", {**CHAT, "metadata": {"sandbox_output_tokens": 6}}
        statuses = list(threads.map(lambda _: requests.post(url, json=body, timeout=5).status_code, range(8)))
        assert statuses.count(200) >= 3
        assert statuses.count(200) + statuses.count(429) == 8
        assert api.report().peak_in_flight == 3
        assert api.report().refused_by == {"concurrency": statuses.count(429)}


def test_the_report_agrees_with_what_the_clients_saw():
    with (
        Sandbox("openai", requests="50/minute", refusals_count=False) as api,
        ThreadPoolExecutor(16) as threads,
    ):
        url = api.url + "/v1/chat/completions"
        statuses = list(
            threads.map(lambda _: requests.post(url, json=CHAT, timeout=5).status_code, range(120))
        )
    report = api.report()  # after the end as well
    assert report.by_status == {200: statuses.count(200), 429: statuses.count(429)}
    assert report.requests == 120
    assert report.admitted >= 50
    assert report.use["requests"] <= 1
    assert report.peak["requests"] == report.admitted
    assert 0 <= report.first_admission <= report.last_admission < 60


# -- Control plane


def test_the_control_plane_changes_limits_and_faults_and_reports(openai_api):
    program = (
        "import json, sys; from urllib.request import Request, urlopen\n"
        "def ask(method, path, body=None):\n"
        "    data = None if body is None else json.dumps(body).encode()\n"
        "    with urlopen(Request(sys.argv[1] + '/__sandbox/' + path, data, method=method)) as reply:\n"
        "        return json.load(reply)\n"
        "print(ask('PUT', 'limits', {'requests': '5/minute', 'concurrency': 2})['requests'])\n"
        "ask('PUT', 'limits', {'tokens': '5/minute', 'after': 600, 'duration': 5})\n"
        "print(ask('POST', 'faults', {'kind': 'storm', 'count': 1, 'retry_after': 3})[0]['kind'])\n"
        "print(ask('GET', 'report')['requests'], 'arrivals' in ask('GET', 'report?times'))\n"
    )
    requests.post(openai_api.url + "/v1/chat/completions", json=CHAT, timeout=5)
    done = subprocess.run(
        [sys.executable, "-c", program, openai_api.url],
        capture_output=True,
        text=True,
        check=True,
        timeout=20,
    )
    assert done.stdout.split() == ["5/minute", "storm", "1", "True"]
    assert openai_api.limits() == {"requests": "5/minute", "tokens": "1000000/minute", "concurrency": 2}
    assert openai_api.faults() == [Fault("storm", count=1, retry_after=3)]


def test_the_control_plane_explains_mistakes_and_is_not_counted(plain_api):
    def ask(method, path, body=None):
        request = UrlRequest(f"{plain_api.url}/__sandbox/{path}", body, method=method)
        with suppress_http_errors(), urlopen(request, timeout=5) as reply:
            return reply.status, json.load(reply)
        return None

    class suppress_http_errors:  # noqa: N801
        def __enter__(self):
            pass

        def __exit__(self, kind, error, _traceback):
            if error is not None:
                failed.append((error.code, json.load(error)["error"]))
                error.close()
            return True

    failed = []
    assert ask("GET", "")[0] == 200
    for method, path, body in [
        ("PUT", "limits", b'{"requests": "x"}'),
        ("PUT", "limits", b'{"nonsense": 1}'),
        ("PUT", "limits", b'{"now": 1}'),
        ("PUT", "limits", b"[1]"),
        ("PUT", "limits", b"{"),
        ("POST", "faults", b'{"kind": "x"}'),
        ("POST", "faults", b"{}"),
        ("POST", "faults", b'{"kind": "storm", "x": 1}'),
        ("GET", "nowhere", None),
    ]:
        ask(method, path, body)
    assert [code for code, _ in failed] == [400] * 8 + [404]
    assert all(isinstance(why, str) and why for _, why in failed)
    assert ask("POST", "reset")[1] == {"ok": True}
    assert ask("DELETE", "faults")[1] == []
    assert ask("GET", "faults")[1] == []
    assert plain_api.report().requests == 0


# -- Beginning and end


def test_no_connection_and_no_port_is_left_when_the_block_ends():
    """Idle connections, a stream in flight and a stalled answer are closed without a warning."""
    before = threading.active_count()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with Sandbox("openai", tokens_per_second=1) as api:
            port = int(api.url.rpartition(":")[2])
            idle, busy = connection(api), connection(api)
            body = json.dumps({**CHAT, "stream": True}).encode()
            busy.sendall(
                b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
            )
            eventually(lambda: api.report().open_streams == 1, "it streams")
        for sock in (idle, busy):
            everything(sock)  # ends
            sock.close()
        gc.collect()
    assert threading.active_count() == before
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", port))
    assert api.report().in_flight == 0
    assert repr(api) == "<Sandbox openai, not running>"


def test_an_error_in_the_block_stops_the_sandbox():
    before = threading.active_count()
    with pytest.raises(ZeroDivisionError), Sandbox("plain"):
        1 / 0  # noqa: B018
    assert threading.active_count() == before


def test_a_sandbox_can_be_started_again_and_keeps_its_report():
    api = Sandbox("plain", requests="6000/minute")
    for _ in range(2):
        with api:
            assert requests.get(api.url, timeout=5).status_code == 200
    assert api.report().admitted == 2
    api.stop()  # nothing to stop
    first, second = api.report().arrivals
    assert 0 <= first <= second


def test_a_port_that_is_taken_or_wrong_raises_at_once():
    with Sandbox("plain") as api:
        port = int(api.url.rpartition(":")[2])
        with pytest.raises(OSError, match="in use"):
            Sandbox("plain", port=port).start()
        with pytest.raises(InvalidConfig, match="runs already"):
            api.start()
    for wrong in (-1, 70_000, "80", True):
        with pytest.raises(InvalidConfig, match="is not a port"):
            Sandbox("plain", port=wrong)
    with pytest.raises(InvalidConfig, match="no address yet"):
        Sandbox("plain").url  # noqa: B018
    with pytest.raises(InvalidConfig, match="is unknown"):
        Sandbox("smoke")


def test_serve_runs_until_cancelled():
    async def main():
        address = asyncio.get_running_loop().create_future()
        server = asyncio.create_task(
            serve(Provider("plain", requests="60/minute"), started=address.set_result)
        )
        async with aiohttp.ClientSession() as session, session.get(await address) as reply:
            status = reply.status
        server.cancel()
        with suppress(asyncio.CancelledError):
            await server
        return status, len(asyncio.all_tasks())

    assert asyncio.run(main()) == (200, 1)
