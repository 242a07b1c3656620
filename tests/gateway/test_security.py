"""Rules of security. Each is also tried on a naive proxy, which breaks it: the test can fail."""

import json

import aiohttp.http_parser
import pytest

from gateway.naive import NaiveProxy
from gateway.rig import Rig, reply
from headgate.errors import InvalidConfig
from headgate.gateway import app, guards
from headgate.gateway.keys import Keys, Token, read_tokens
from headgate.gateway.settings import Settings
from headgate.gateway.upstreams import Upstream, upstream
from patience import eventually

TOKEN = "token-of-the-tests"
KEY = "sk-the-real-key"
JSON = "Content-Type: application/json"


@pytest.fixture(scope="module")
def api():
    with Rig() as rig:
        yield rig


@pytest.fixture(scope="module")
def elsewhere():
    with Rig() as rig:
        yield rig.api


@pytest.fixture(scope="module", params=["gateway", "naive"])
def proxy(request):
    """A proxy that has a key: the gateway, or the naive one."""
    if request.param == "gateway":
        placeholder = Rig()
        behind = Upstream(name="", url=placeholder.api.url, key_env="K", secret=KEY)
        rig = Rig(upstreams=(behind,), tokens=(Token(TOKEN, "ann"),), inject=True)
        yield Asking(rig, placeholder.api, rig.port, naive=False)
        rig.close()
        placeholder.close()
    else:
        rig = Rig()
        naive = NaiveProxy(rig.api.url, KEY)
        rig.loop.run(naive.start())
        yield Asking(rig, rig.api, naive.port, naive=True)
        rig.loop.run(naive.close())
        rig.close()


class Asking:
    def __init__(self, rig, api, port, *, naive):
        self.rig, self.api, self.naive = rig, api, naive
        rig.port = port

    def __call__(
        self, method="POST", target="/v1/chat/completions", headers=(), body=b"{}", host=None, token=True
    ):
        """The response, and the requests that the API got for it."""
        before = len(self.api.requests)
        fields = [*headers, f"Authorization: Bearer {TOKEN}"] if token else list(headers)
        response = self.rig.ask(method, target, fields, body, host=host)
        return response, self.api.requests[before:]

    def raw(self, data):
        before = len(self.api.requests)
        response = self.rig.raw(data.replace(b"PORT", str(self.rig.port).encode()))
        return response, self.api.requests[before:]

    def judge(self, held):
        """The gateway keeps the rule, and the naive proxy does not."""
        assert held is not self.naive


def test_a_request_without_the_token_never_gets_the_key(proxy):
    response, seen = proxy(token=False)
    proxy.judge(response.status == 401 and not seen)


def test_a_request_with_a_wrong_token_never_gets_the_key(proxy):
    response, seen = proxy(headers=["Authorization: Bearer token-of-another"], token=False)
    proxy.judge(response.status == 401 and not seen)


def test_a_page_of_another_origin_cannot_spend_the_key(proxy):
    response, seen = proxy(headers=["Origin: https://evil.example", "Content-Type: text/plain"])
    proxy.judge(response.status == 403 and not seen)


def test_a_cross_site_request_of_a_browser_is_refused(proxy):
    response, seen = proxy(headers=["Sec-Fetch-Site: cross-site"])
    proxy.judge(response.status == 403 and not seen)


def test_a_name_that_was_rebound_to_this_machine_is_refused(proxy):
    response, seen = proxy(host="evil.example:8429")
    proxy.judge(response.status == 421 and not seen)


@pytest.mark.parametrize("target", ["/.headgate/health", "/.headgate/state", "/.headgate/", "/unknown"])
@pytest.mark.parametrize("fields", [{"host": "evil.example"}, {"headers": ["Origin: http://evil.example"]}])
def test_host_and_origin_are_checked_on_every_path(proxy, target, fields):
    response, seen = proxy("GET", target, body=b"", **fields)
    proxy.judge(response.status in (403, 421) and not seen)


def test_a_request_cannot_name_the_host_it_goes_to(proxy, elsewhere):
    before = len(elsewhere.requests)
    response, seen = proxy(target=f"{elsewhere.url}/steal")
    proxy.judge(response.status == 400 and not seen and len(elsewhere.requests) == before)


def test_a_header_cannot_name_the_host_it_goes_to(proxy, elsewhere):
    before = len(elsewhere.requests)
    proxy(headers=[f"x-target: {elsewhere.url}", f"x-headgate-to: {elsewhere.url}"])
    proxy.judge(len(elsewhere.requests) == before)


def test_a_redirect_is_passed_on_and_not_followed_with_the_key(proxy, elsewhere):
    before = len(elsewhere.requests)
    proxy.api.answer = lambda request: reply(
        b"", "307 Temporary Redirect", "", f"Location: {elsewhere.url}/steal"
    )
    try:
        response, _seen = proxy()
    finally:
        proxy.api.answer = lambda request: reply()
    proxy.judge(response.status == 307 and len(elsewhere.requests) == before)


def test_fields_that_connection_names_end_at_the_gateway(proxy):
    _response, seen = proxy(headers=["Connection: close, X-Private", "X-Private: 1", "Keep-Alive: 5"])
    proxy.judge(not {"x-private", "keep-alive"} & set(seen[-1].headers))


def test_fields_that_say_where_a_client_is_end_at_the_gateway(proxy):
    private = [
        "Cookie: session=1",
        "X-Forwarded-For: 10.0.0.1",
        "Forwarded: for=10.0.0.1",
        "Proxy-Authorization: x",
    ]
    _response, seen = proxy(headers=[*private, "X-Headgate-Tenant: ann"])
    names = {field.partition(":")[0].lower() for field in private} | {"x-headgate-tenant"}
    proxy.judge(not names & set(seen[-1].headers))


def test_cookies_and_marks_of_the_api_do_not_reach_the_client(proxy):
    fields = ("Set-Cookie: __cf_bm=1", "X-Headgate: waited; rule=x; eta=1", "Keep-Alive: timeout=5")
    proxy.api.answer = lambda request: reply(b"{}", "200 OK", "application/json", *fields)
    try:
        response, _seen = proxy()
    finally:
        proxy.api.answer = lambda request: reply()
    proxy.judge(not {"set-cookie", "x-headgate", "keep-alive"} & set(response.headers))


def test_the_key_takes_the_place_of_the_token_and_the_token_goes_no_further(proxy):
    _response, seen = proxy(headers=[f"x-api-key: {TOKEN}"], token=False)
    sent = json.dumps(seen[-1].pairs)
    proxy.judge(KEY in sent and TOKEN not in sent)


# -- rules for which a naive proxy has nothing to compare


def test_both_lengths_are_refused(api):
    before = len(api.api.requests)
    fields = b"Host: localhost\r\nContent-Length: 4\r\nTransfer-Encoding: chunked"
    data = b"POST / HTTP/1.1\r\n" + fields + b"\r\n\r\n0\r\n\r\n"
    assert api.raw(data).status == 400
    assert len(api.api.requests) == before
    both = {"host": "localhost", "content-length": "4", "transfer-encoding": "chunked"}
    assert guards.refusal_of("POST", "/", both, ()).status == 400


def test_two_different_lengths_are_refused(api):
    data = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nabcd"
    assert api.raw(data).status == 400


def test_connect_is_refused(api):
    assert api.raw(b"CONNECT api.openai.com:443 HTTP/1.1\r\nHost: localhost\r\n\r\n").status == 400


def test_an_upgrade_to_a_websocket_is_refused_with_a_sentence(api):
    fields = [
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Key: x",
        "Sec-WebSocket-Version: 13",
    ]
    response = api.ask("GET", "/v1/responses", fields)
    assert response.status == 426
    assert "HTTP only" in response.json()["error"]["message"]


def test_local_names_and_given_names_are_accepted(api):
    for host in ("localhost", "LOCALHOST:1", "127.0.0.1", "[::1]:80"):
        assert api.ask("GET", "/.headgate/health", host=host).status == 200
    assert guards.refusal_of("GET", "/", {"host": "gate.internal:8429"}, {"gate.internal"}) is None
    for host in ("", "localhost.evil.example", "127.0.0.1.evil.example", "evil.example:127.0.0.1"):
        assert guards.refusal_of("GET", "/", {"host": host}, ()).status == 421


def test_a_page_of_the_gateway_itself_may_send_requests(api):
    own = [f"Origin: http://127.0.0.1:{api.port}", "Sec-Fetch-Site: same-origin"]
    assert api.ask("GET", "/.headgate/state", own).status == 200


def test_keys_are_bound_to_scheme_host_and_port():
    token = Token("a-long-token", secret=KEY, origin=("https", "api.openai.com", 443))
    keys = Keys([token])
    fields = [("authorization", "Bearer a-long-token")]
    own = keys.passage(upstream("", "https://api.openai.com/v1"), "/x", dict(fields), fields)
    assert own.headers == [("authorization", f"Bearer {KEY}")]
    for other in (
        "http://api.openai.com",
        "https://api.openai.com:444",
        "https://api.openai.com.evil.example",
        "https://evil.example/api.openai.com",
    ):
        refusal = keys.passage(upstream("", other), "/x", dict(fields), fields)
        assert refusal.status == 401


def test_a_token_in_the_query_is_exchanged_as_gemini_clients_send_it():
    token = Token("a-long-token", secret=KEY, origin=("https", "generativelanguage.googleapis.com", 443))
    passage = Keys([token]).passage(upstream("gemini"), "/v1beta/models/m:x?key=a-long-token", {}, [])
    assert passage.target == f"/v1beta/models/m:x?key={KEY}"


def test_listening_beyond_this_machine_needs_a_token():
    behind = (upstream("openai"),)
    with pytest.raises(InvalidConfig, match="clients need a token"):
        app.Gateway(Settings(upstreams=behind, listen="0.0.0.0:8429"))
    app.Gateway(Settings(upstreams=behind, listen="0.0.0.0:8429", tokens=tuple(read_tokens("ann:12345678"))))


def test_injecting_keys_needs_a_token():
    behind = (Upstream(name="openai", url="https://api.openai.com", secret=KEY),)
    with pytest.raises(InvalidConfig, match="clients need a token"):
        app.Gateway(Settings(upstreams=behind, inject=True))


def test_listening_beyond_this_machine_needs_the_c_parser(monkeypatch):
    monkeypatch.setattr(aiohttp.http_parser, "HttpRequestParser", aiohttp.http_parser.HttpRequestParserPy)
    tokens = tuple(read_tokens("ann:12345678"))
    with pytest.raises(InvalidConfig, match="C parser"):
        app.Gateway(Settings(upstreams=(upstream("openai"),), listen="0.0.0.0:0", tokens=tokens))
    app.Gateway(Settings(upstreams=(upstream("openai"),), tokens=tokens))


def test_pages_of_the_gateway_ask_for_the_token_too(proxy):
    response, seen = proxy("GET", "/.headgate/state", body=b"", token=False)
    proxy.judge(response.status == 401 and not seen)
    assert proxy("GET", "/.headgate/state", body=b"")[0].status == 200


def test_the_health_of_a_gateway_can_be_asked_without_a_token(proxy):
    assert proxy("GET", "/.headgate/health", body=b"", token=False)[0].status == 200


def test_logs_have_neither_keys_nor_queries_nor_bodies(api, caplog):
    caplog.set_level("INFO", "headgate.gateway")
    api.ask(
        "POST", "/v1beta/models/m:x?key=secret-1", ["x-goog-api-key: secret-2", JSON], b'{"a": "secret-3"}'
    )
    eventually(lambda: "POST /v1beta/models/m:x 200" in caplog.text, "the call is logged")
    api.raw(b"GET /caf\xe9?key=secret-4 HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert "secret" not in caplog.text
