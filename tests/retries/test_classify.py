"""classify: what exceptions of real client libraries say about the far side."""

import asyncio
import concurrent.futures
import http.client
import json
import socket
import ssl
import time
import urllib.error
from email.utils import formatdate
from http import HTTPStatus

import aiohttp
import httpx
import httpx2
import pytest
import redis
import requests
import tenacity
import urllib3
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from headgate import (
    BudgetExceeded,
    CircuitBreakerOpen,
    Closed,
    HeadgateError,
    InvalidConfig,
    Refused,
    WaitTimeout,
)
from headgate.retries.classify import is_permanent, never_sent, retry_after_of, verdict_of
from headgate.verdict import EXHAUSTED, REJECTED, failed, overloaded, throttled
from retries.http_errors import (
    ADDRESS,
    aiohttp_error,
    anthropic_error,
    httpx_error,
    openai_error,
)

# -- the status


@pytest.mark.parametrize(
    ("status", "kind", "again"),
    [
        (400, "rejected", False),
        (401, "rejected", False),
        (403, "rejected", False),
        (404, "rejected", False),
        (405, "rejected", False),
        (408, "failed", True),
        (409, "failed", True),
        (410, "rejected", False),
        (418, "rejected", False),
        (422, "rejected", False),
        (425, "failed", True),
        (429, "throttled", True),
        (451, "rejected", False),
        (500, "failed", True),
        (501, "failed", False),
        (502, "failed", True),
        (503, "overloaded", True),
        (504, "failed", True),
        (505, "failed", False),
        (524, "failed", True),
        (529, "overloaded", True),
        (599, "failed", True),
        (304, "rejected", False),
        (600, "failed", False),
    ],
)
def test_the_status_decides_the_verdict(http_error, status, kind, again):
    verdict = verdict_of(http_error(status))
    assert (verdict.kind, verdict.again, verdict.retry_after) == (kind, again, None)


@pytest.mark.parametrize("status", [200, 400, 404, 409, 429, 500, 501, 503])
@pytest.mark.parametrize(("said", "again"), [("true", True), (" TRUE ", True), ("false", False)])
def test_x_should_retry_overrides_every_status(http_error, status, said, again):
    verdict = verdict_of(
        http_error(status, {"x-should-retry": said.strip() if http_error is aiohttp_error else said})
    )
    assert verdict.again is again


@pytest.mark.parametrize("said", ["", "yes", "1", "maybe"])
def test_an_unknown_x_should_retry_leaves_the_decision_to_the_status(http_error, said):
    assert verdict_of(http_error(503, {"x-should-retry": said})).again
    assert not verdict_of(http_error(400, {"x-should-retry": said})).again


@pytest.mark.parametrize("status", [HTTPStatus.TOO_MANY_REQUESTS, 429])
@pytest.mark.parametrize("name", ["status_code", "status", "code"])
def test_the_status_may_be_in_any_usual_attribute(status, name):

    class Wrong(Exception):
        pass

    error = Wrong("no")
    setattr(error, name, status)
    assert verdict_of(error) == throttled()


@pytest.mark.parametrize("status", [True, "429", 429.0, None, 99, 1000, -429, 10**30])
def test_an_attribute_that_is_not_a_status_is_ignored(status):
    class Wrong(Exception):
        pass

    error = Wrong("no")
    error.status_code = status
    assert verdict_of(error) == REJECTED


# -- Retry-After


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "30"}, 30.0),
        ({"retry-after": "2.5"}, 2.5),
        ({"RETRY-AFTER": "0"}, 0.0),
        ({"Retry-After-Ms": "1500"}, 1.5),
        ({"Retry-After-Ms": "1500", "Retry-After": "9"}, 1.5),
        ({"Retry-After": "-5"}, None),
        ({"Retry-After": "soon"}, None),
        ({}, None),
    ],
)
@pytest.mark.parametrize("status", [429, 503, 500])
def test_retry_after_headers_are_read_the_same_for_every_client(http_error, status, headers, seconds):
    assert verdict_of(http_error(status, headers)).retry_after == seconds


def test_a_retry_after_date_is_measured_from_the_date_of_the_response(http_error):
    now = int(time.time())
    headers = {"Date": formatdate(now, usegmt=True), "Retry-After": formatdate(now + 45, usegmt=True)}
    assert verdict_of(http_error(503, headers)).retry_after == 45.0


def test_a_retry_after_header_without_a_status_is_throttling():

    class Wait(Exception):
        headers = (("Retry-After", "7"),)

    assert verdict_of(Wait()) == throttled(7.0)


@pytest.mark.parametrize(("value", "seconds"), [(5, 5.0), (2.5, 2.5), (0, 0.0)])
def test_the_retry_after_attribute_of_an_exception_is_throttling(value, seconds):
    class Wait(Exception):
        retry_after = value

    assert verdict_of(Wait()) == throttled(seconds)


@pytest.mark.parametrize("value", [-1, float("nan"), float("-inf"), True, "soon", None, [5], object()])
def test_a_retry_after_attribute_that_is_not_a_time_is_ignored(value):
    class Wait(Exception):
        retry_after = value

    assert verdict_of(Wait()) == REJECTED


def test_a_status_and_a_retry_after_attribute_are_combined():
    class Wait(Exception):
        status_code = 503
        retry_after = 12

    assert verdict_of(Wait()) == overloaded(12.0)


def test_a_retry_after_header_wins_over_the_attribute():
    class Wait(Exception):
        status_code = 429
        retry_after = 1

        class response:  # noqa: N801 - an attribute
            status_code = 429
            headers = {"Retry-After": "60"}  # noqa: RUF012

    assert verdict_of(Wait()).retry_after == 60.0


# -- the body


def test_a_429_for_an_exhausted_quota_is_not_worth_a_retry(error_with_body):
    body = json.dumps(
        {
            "error": {
                "message": "You exceeded your current quota",
                "type": "insufficient_quota",
                "code": "insufficient_quota",
            }
        }
    ).encode()
    verdict = verdict_of(error_with_body(429, {"Retry-After": "1"}, body))
    assert verdict == EXHAUSTED


def test_an_overloaded_provider_is_recognised_by_the_error_type_in_the_body(error_with_body):
    body = json.dumps(
        {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    ).encode()
    assert verdict_of(error_with_body(429, {}, body)).kind == "overloaded"


def test_an_unread_streamed_response_can_be_classified():
    """Its content raises when touched."""
    for library in (httpx, httpx2):
        request = library.Request("GET", ADDRESS)
        response = library.Response(
            429, headers={"Retry-After": "3"}, stream=library.ByteStream(b"x"), request=request
        )
        with pytest.raises(library.ResponseNotRead):
            _ = response.content
        error = library.HTTPStatusError("429", request=request, response=response)
        assert verdict_of(error) == throttled(3.0)


class ClientError(Exception):
    """An error shaped as those of botocore."""

    __module__ = "botocore.exceptions"

    def __init__(self, response):
        super().__init__("An error occurred")
        self.response = response


def test_the_response_of_an_aws_error_is_a_dictionary():
    slow = {"Error": {"Code": "SlowDown"}, "ResponseMetadata": {"HTTPStatusCode": 503, "HTTPHeaders": {}}}
    later = {"ResponseMetadata": {"HTTPStatusCode": 429, "HTTPHeaders": {"retry-after": "4"}}}
    assert verdict_of(ClientError(slow)).kind == "throttled"
    assert verdict_of(ClientError(later)) == throttled(4.0)
    assert verdict_of(ClientError({"ResponseMetadata": {"HTTPStatusCode": 404}})) == REJECTED
    for broken in ({}, {"ResponseMetadata": None}, {"ResponseMetadata": {"HTTPStatusCode": None}}):
        assert verdict_of(ClientError(broken)) == REJECTED


@pytest.mark.parametrize("code", ["ThrottlingException", "ProvisionedThroughputExceededException"])
def test_an_aws_400_with_a_throttling_code_is_throttling(code):
    error = ClientError(
        {
            "Error": {"Code": code, "Message": "Rate exceeded"},
            "ResponseMetadata": {"HTTPStatusCode": 400, "HTTPHeaders": {}},
        }
    )
    assert verdict_of(error).kind == "throttled"


# -- connections and other exceptions


def connection_key():
    from aiohttp.client_reqrep import ConnectionKey

    fields = dict.fromkeys(ConnectionKey._fields)
    return ConnectionKey(**{**fields, "host": "api.example.com", "port": 443, "is_ssl": True, "ssl": True})


def caused(error, cause):
    error.__cause__ = cause
    return error


def proxy_error_of_aiohttp(status):
    info = aiohttp.RequestInfo(URL(ADDRESS), "CONNECT", CIMultiDictProxy(CIMultiDict()), URL(ADDRESS))
    return aiohttp.ClientHttpProxyError(info, (), status=status, message="no")


def proxy_error_of_requests(said):
    """As requests and urllib3 wrap what http.client raises."""
    cause = OSError(f"Tunnel connection failed: {said}")
    reason = caused(urllib3.exceptions.ProxyError("Unable to connect to proxy", cause), cause)
    return requests.exceptions.ProxyError(urllib3.exceptions.MaxRetryError(None, ADDRESS, reason))


class ProxyConnectionError(requests.exceptions.ProxyError):
    """As botocore raises it: what urllib3 raised is only among its keywords."""

    def __init__(self, error):
        super().__init__('Failed to connect to proxy URL: "http://proxy"')
        self.kwargs = {"proxy_url": "http://proxy", "error": error}


ProxyConnectionError.__module__ = "botocore.exceptions"


def with_proxy(cause):
    """As libraries upon urllib3 raise it if the line to or through a proxy breaks like this."""
    of_urllib3 = caused(urllib3.exceptions.ProxyError("Unable to connect to proxy", cause), cause)
    older = urllib3.exceptions.ProxyError("Cannot connect to proxy.", cause)  # without a cause, before 2.0
    return [
        of_urllib3,
        older,
        *[
            requests.exceptions.ProxyError(urllib3.exceptions.MaxRetryError(None, ADDRESS, reason))
            for reason in (of_urllib3, older)
        ],
        requests.exceptions.ProxyError(of_urllib3),
        ProxyConnectionError(older),
    ]


def refused_by_proxy(status, phrase):
    """The refusal of a CONNECT request, as each library raises it."""
    said = f"{status} {phrase}"
    return [
        httpx.ProxyError(said),
        httpx2.ProxyError(said, request=REQUEST2),
        caused(openai_error.connection(request=REQUEST2), httpx2.ProxyError(said)),
        caused(anthropic_error.connection(request=REQUEST2), httpx.ProxyError(said)),
        proxy_error_of_aiohttp(status),
        proxy_error_of_requests(said),
        *with_proxy(OSError(f"Tunnel connection failed: {said}")),
        urllib.error.URLError(OSError(f"Tunnel connection failed: {said}")),
    ]


REQUEST = httpx.Request("POST", ADDRESS)


REQUEST2 = httpx2.Request("POST", ADDRESS)


MAY_HAVE_RUN = [
    ConnectionResetError(),
    ConnectionAbortedError(),
    BrokenPipeError(),
    TimeoutError(),
    asyncio.TimeoutError(),  # noqa: UP041 - an alias, as long as it is one
    concurrent.futures.TimeoutError(),
    socket.timeout(),  # noqa: UP041
    http.client.RemoteDisconnected(),
    http.client.IncompleteRead(b""),
    http.client.BadStatusLine("?"),
    urllib.error.URLError(TimeoutError()),
    httpx.ReadTimeout("slow"),
    httpx.WriteTimeout("slow", request=REQUEST),
    httpx.ReadError("reset", request=REQUEST),
    httpx.WriteError("reset"),
    httpx.RemoteProtocolError("closed", request=REQUEST),
    httpx2.ReadTimeout("slow"),
    httpx2.ReadError("reset", request=REQUEST2),
    httpx2.RemoteProtocolError("closed"),
    requests.ConnectionError("reset"),
    requests.ReadTimeout("slow"),
    requests.Timeout("slow"),
    requests.exceptions.ChunkedEncodingError("cut"),
    urllib3.exceptions.ProtocolError("cut"),
    urllib3.exceptions.ReadTimeoutError(None, ADDRESS, "slow"),
    aiohttp.ServerDisconnectedError(),
    aiohttp.ServerTimeoutError(),
    aiohttp.SocketTimeoutError(),
    aiohttp.ClientOSError(104, "reset"),
    aiohttp.ClientPayloadError("cut"),
    openai_error.connection(request=REQUEST2),
    openai_error.timeout(request=REQUEST2),
    anthropic_error.connection(request=REQUEST2),
    anthropic_error.timeout(request=REQUEST2),
    redis.exceptions.ConnectionError("gone"),
    redis.exceptions.TimeoutError("slow"),
    *with_proxy(ConnectionResetError(104, "Connection reset by peer")),
    *with_proxy(http.client.RemoteDisconnected("Remote end closed connection without response")),
    *with_proxy(urllib3.exceptions.ReadTimeoutError(None, ADDRESS, "slow")),
    *with_proxy(urllib3.exceptions.SSLError("EOF occurred in violation of protocol")),
    requests.exceptions.ProxyError("Unable to connect to proxy, port 443"),
    type("ProxyError", (ConnectionError,), {})("of a library that is not known"),
]


NOT_SENT = [
    ConnectionRefusedError(),
    urllib.error.URLError(ConnectionRefusedError()),
    httpx.ConnectError("refused", request=REQUEST),
    httpx.ConnectTimeout("slow"),
    httpx.PoolTimeout("full", request=REQUEST),
    httpx2.ConnectError("refused"),
    httpx2.ConnectTimeout("slow", request=REQUEST2),
    httpx2.PoolTimeout("full"),
    requests.ConnectTimeout("slow"),
    urllib3.exceptions.ConnectTimeoutError("slow"),
    aiohttp.ClientConnectorError(connection_key(), OSError(111, "refused")),
    aiohttp.ClientConnectorDNSError(connection_key(), OSError(-2, "unknown")),
    aiohttp.ConnectionTimeoutError(),
    caused(openai_error.connection(request=REQUEST2), httpx2.ConnectError("refused")),
    caused(openai_error.timeout(request=REQUEST2), httpx2.ConnectTimeout("slow")),
    httpx.ProxyError("Proxy Server could not connect: Connection refused."),
    *refused_by_proxy(502, "Bad Gateway"),
    *refused_by_proxy(503, "Service Unavailable"),
    *refused_by_proxy(429, "Too Many Requests"),
    *with_proxy(ConnectionRefusedError(111, "Connection refused")),
    *with_proxy(urllib3.exceptions.NewConnectionError(None, "no route")),
    *with_proxy(urllib3.exceptions.ConnectTimeoutError(None, "slow")),
    *with_proxy(socket.gaierror(socket.EAI_NONAME, "Name or service not known")),
    httpx.ProxyError("the proxy at port 443 said nothing"),
    httpx.ProxyError("10.0.0.1 said no 404 times"),
]


PERMANENT = [
    ValueError("temperature"),
    KeyError("choices"),
    TypeError(),
    AttributeError(),
    ZeroDivisionError(),
    RuntimeError(),
    NotImplementedError(),
    FileNotFoundError(),
    PermissionError(),
    AssertionError(),
    MemoryError(),
    StopIteration(),
    Exception("something"),
    UnicodeDecodeError("utf-8", b"", 0, 1, "bad"),
    json.JSONDecodeError("bad", "", 0),
    ssl.SSLCertVerificationError(1, "self-signed"),
    urllib.error.URLError(ssl.SSLCertVerificationError(1, "self-signed")),
    urllib.error.URLError("unknown url type: htp"),
    httpx.UnsupportedProtocol("htp"),
    httpx.LocalProtocolError("bad header"),
    httpx.InvalidURL("no"),
    httpx.TooManyRedirects("round and round"),
    httpx.DecodingError("bad gzip"),
    httpx2.UnsupportedProtocol("htp"),
    httpx2.TooManyRedirects("round and round"),
    requests.exceptions.InvalidURL("no"),
    requests.exceptions.MissingSchema("no"),
    requests.TooManyRedirects("round and round"),
    requests.exceptions.JSONDecodeError("bad", "", 0),
    aiohttp.InvalidURL("no"),
    aiohttp.ClientConnectorCertificateError(connection_key(), ssl.SSLCertVerificationError(1, "self-signed")),
    redis.exceptions.ResponseError("WRONGTYPE"),
    redis.exceptions.DataError("bad"),
    *refused_by_proxy(403, "Forbidden"),
    *refused_by_proxy(407, "Proxy Authentication Required"),
    *with_proxy(urllib3.exceptions.SSLError(ssl.SSLCertVerificationError(1, "self-signed"))),
    caused(ValueError("of the program"), httpx.ProxyError("502 Bad Gateway")),
]


def named(error):
    kind = type(error)
    reason = getattr(error, "reason", None)
    inner = f"({type(reason).__name__})" if isinstance(reason, BaseException) else ""
    return f"{kind.__module__.partition('.')[0]}.{kind.__name__}{inner}"


@pytest.mark.parametrize("error", MAY_HAVE_RUN, ids=named)
def test_a_connection_lost_after_sending_may_have_run(error):
    assert verdict_of(error) == failed(may_have_run=True)


@pytest.mark.parametrize("error", NOT_SENT, ids=named)
def test_a_connection_that_failed_before_sending_cannot_have_run(error):
    assert verdict_of(error) == failed(may_have_run=False)


@pytest.mark.parametrize(
    ("inside", "again"),
    [
        ([TimeoutError()], True),
        ([TimeoutError(), ConnectionResetError()], True),
        ([TimeoutError(), ValueError()], False),
    ],
)
def test_an_exception_group_is_retried_if_every_member_is(inside, again):
    assert verdict_of(ExceptionGroup("several", inside)).again is again


def test_the_retry_after_of_an_exception_group_is_the_longest():
    class Wait(Exception):
        def __init__(self, seconds):
            self.retry_after = seconds

    assert verdict_of(ExceptionGroup("several", [Wait(3), Wait(7)])).retry_after == 7.0


@pytest.mark.parametrize("error", PERMANENT, ids=named)
def test_errors_that_no_retry_helps_are_rejected(error):
    assert verdict_of(error) == REJECTED


@pytest.mark.parametrize(
    "error",
    [
        socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"),
        urllib.error.URLError(socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")),
        OSError(101, "Network is unreachable"),
        OSError(113, "No route to host"),
    ],
    ids=["name", "urllib: name", "network", "host"],
)
def test_transient_network_errors_of_the_operating_system_are_retried(error):
    """httpx and aiohttp wrap the same failures as a ConnectError, which is retried too."""
    assert verdict_of(error).again


def test_a_certificate_error_wrapped_by_requests_is_not_retried():
    reason = urllib3.exceptions.SSLError(ssl.SSLCertVerificationError(1, "self-signed"))
    error = requests.exceptions.SSLError(urllib3.exceptions.MaxRetryError(None, ADDRESS, reason))
    assert not verdict_of(error).again


def test_subclasses_of_client_errors_count_and_classes_of_the_same_name_do_not():

    class Mine(httpx.ReadTimeout):
        pass

    class ReadTimeout(Exception):
        pass

    class TimeoutException(Exception):
        pass

    assert verdict_of(Mine("slow")).again
    assert not verdict_of(ReadTimeout()).again
    assert not verdict_of(TimeoutException()).again


@pytest.mark.parametrize(
    "error",
    [
        Refused("no", rule="line", retry_after=5.0),
        WaitTimeout("no place", rule="concurrency", retry_after=1.0),
        Closed("closed", rule="closed"),
        CircuitBreakerOpen("open", rule="circuit", retry_after=30.0),
        InvalidConfig("no"),
        HeadgateError("no"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_refusal_by_headgate_says_nothing_about_the_far_side(error):
    """Not even a WaitTimeout, which is a TimeoutError."""
    assert verdict_of(error) == REJECTED
    assert issubclass(BudgetExceeded, Refused)


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), SystemExit(1), asyncio.CancelledError(), GeneratorExit()], ids=named
)
def test_interrupts_and_cancellation_say_nothing_about_the_far_side(error):
    assert verdict_of(error) == REJECTED


# -- wrapped exceptions


def test_a_retry_error_of_tenacity_is_classified_by_its_last_attempt():

    @tenacity.retry(stop=tenacity.stop_after_attempt(2), wait=tenacity.wait_none())
    def ask():
        raise httpx_error(429, {"Retry-After": "9"})

    with pytest.raises(tenacity.RetryError) as caught:
        ask()
    assert verdict_of(caught.value) == throttled(9.0)


def test_an_exception_that_wraps_itself_is_rejected():
    error = urllib.error.URLError("loop")
    error.reason = error
    assert verdict_of(error) == REJECTED


# -- may_have_run


@pytest.mark.parametrize("status", [408, 409, 500, 502, 504])
@pytest.mark.parametrize(
    ("method", "may_have_run"),
    [
        ("GET", False),
        ("HEAD", False),
        ("OPTIONS", False),
        ("PUT", False),
        ("DELETE", False),
        ("POST", True),
        ("PATCH", True),
    ],
)
def test_the_method_decides_whether_an_attempt_may_have_run(error_with_request, status, method, may_have_run):
    assert verdict_of(error_with_request(status, method=method)).may_have_run is may_have_run


@pytest.mark.parametrize("name", ["Idempotency-Key", "idempotency-key", "IDEMPOTENCY-KEY"])
def test_a_request_with_an_idempotency_key_counts_as_not_run(error_with_request, name):
    assert not verdict_of(error_with_request(500, method="POST", sent={name: "8e03"})).may_have_run
    assert verdict_of(error_with_request(500, method="POST", sent={"X-Key": "8e03"})).may_have_run


@pytest.mark.parametrize("status", [429, 503, 529])
def test_a_request_that_was_turned_away_cannot_have_run(http_error, status):
    assert not verdict_of(http_error(status, method="POST")).may_have_run


@pytest.mark.parametrize("library", [httpx, httpx2])
def test_a_timeout_of_httpx_with_an_idempotent_request_counts_as_not_run(library):
    def error(method, **headers):
        return library.ReadTimeout("slow", request=library.Request(method, ADDRESS, headers=headers))

    assert not verdict_of(error("GET")).may_have_run
    assert verdict_of(error("POST")).may_have_run
    assert not verdict_of(error("POST", **{"Idempotency-Key": "8e03"})).may_have_run


def test_a_timeout_of_requests_with_an_idempotent_request_counts_as_not_run():
    def error(method, **headers):
        request = requests.Request(method, ADDRESS, headers=headers).prepare()
        return requests.ReadTimeout("slow", request=request)

    assert not verdict_of(error("GET")).may_have_run
    assert verdict_of(error("POST")).may_have_run
    assert not verdict_of(error("POST", **{"Idempotency-Key": "8e03"})).may_have_run


# -- what adapters ask besides the verdict


def wrapped(error):
    """The error as the cause of an error of an SDK, which says nothing about it itself."""
    outer = RuntimeError("Connection error.")
    outer.__cause__ = error
    return outer


@pytest.mark.parametrize(
    "error",
    [
        ConnectionRefusedError(),
        httpx.ConnectTimeout("slow"),
        wrapped(httpx2.ConnectError("refused")),
        requests.ConnectionError(urllib3.exceptions.MaxRetryError(None, ADDRESS, ConnectionRefusedError())),
        *refused_by_proxy(403, "Forbidden"),
        *map(wrapped, refused_by_proxy(502, "Bad Gateway")),
        *map(wrapped, with_proxy(ConnectionRefusedError())),
    ],
    ids=named,
)
def test_never_sent_also_finds_wrapped_exceptions(error):
    assert never_sent(error)
    assert not is_permanent(error)


@pytest.mark.parametrize(
    "error",
    [
        ssl.SSLCertVerificationError(1, "self-signed"),
        wrapped(ssl.SSLCertVerificationError(1, "self-signed")),
        httpx.InvalidURL("no"),
    ],
    ids=named,
)
def test_is_permanent_also_finds_wrapped_exceptions(error):
    assert is_permanent(error)
    assert not never_sent(error)


@pytest.mark.parametrize(
    "error",
    [
        httpx.ReadTimeout("slow"),
        ValueError("no"),
        wrapped(TimeoutError()),
        *with_proxy(ConnectionResetError()),
        *map(wrapped, with_proxy(http.client.RemoteDisconnected())),
    ],
    ids=named,
)
def test_other_exceptions_are_neither_permanent_nor_known_as_never_sent(error):
    assert not never_sent(error)
    assert not is_permanent(error)


def test_retry_after_of_prefers_the_verdict_to_the_exception():
    refusal = Refused("no", rule="line", retry_after=5.0)
    assert retry_after_of(refusal, REJECTED) == 5_000_000_000
    assert retry_after_of(refusal, throttled(2.5)) == 2_500_000_000
    assert retry_after_of(ValueError(), REJECTED) is None
