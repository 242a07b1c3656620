"""What exceptions of real clients say about the far side: SPEC 8.2 (HR), TR-06a, D-41, D-78, D-80."""

import asyncio
import concurrent.futures
import email.message
import http.client
import io
import json
import socket
import ssl
import time
import urllib.error
import warnings
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
from hypothesis import given, settings
from hypothesis import strategies as st
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
from headgate.retries.classify import verdict_of
from headgate.verdict import EXHAUSTED, REJECTED, SUCCEEDED, Verdict, failed, overloaded, throttled

ADDRESS = "https://api.example.com/v1/things"
KINDS = {"throttled", "overloaded", "failed", "rejected", "exhausted"}


# -- the errors of real clients, made as the clients make them


def of_httpx(status, headers=(), body=b"", method="POST", sent=(), library=httpx):
    request = library.Request(method, ADDRESS, headers=dict(sent))
    response = library.Response(status, headers=dict(headers), content=body, request=request)
    return library.HTTPStatusError(f"{status}", request=request, response=response)


def of_httpx2(status, headers=(), body=b"", method="POST", sent=()):
    return of_httpx(status, headers, body, method, sent, library=httpx2)


def of_requests(status, headers=(), body=b"", method="POST", sent=()):
    response = requests.Response()
    response.status_code = status
    response.headers.update(dict(headers))
    response._content = body
    response.request = requests.Request(method, ADDRESS, headers=dict(sent)).prepare()
    return requests.HTTPError(f"{status}", response=response)


def of_aiohttp(status, headers=(), body=b"", method="POST", sent=()):
    info = aiohttp.RequestInfo(URL(ADDRESS), method, CIMultiDictProxy(CIMultiDict(sent)), URL(ADDRESS))
    return aiohttp.ClientResponseError(
        info, (), status=status, message="no", headers=CIMultiDictProxy(CIMultiDict(headers))
    )


def of_urllib(status, headers=(), body=b"", method="POST", sent=()):
    message = email.message.Message()
    for name, value in dict(headers).items():
        message[name] = value
    return urllib.error.HTTPError(ADDRESS, status, "no", message, io.BytesIO(body))


def sdk(name):
    """The errors of an SDK, shaped as openai and anthropic shape theirs (they are not installed here)."""

    class APIError(Exception):
        __module__ = name

        def __init__(self, message, request, *, body):
            super().__init__(message)
            self.message, self.request, self.body = message, request, body

    class APIConnectionError(APIError):
        __module__ = name

        def __init__(self, *, message="Connection error.", request):
            super().__init__(message, request, body=None)

    class APITimeoutError(APIConnectionError):
        __module__ = name

    class APIStatusError(APIError):
        __module__ = name

        def __init__(self, message, *, response, body):
            super().__init__(message, response.request, body=body)
            self.response, self.status_code = response, response.status_code
            self.request_id = response.headers.get("x-request-id")

    def of(status, headers=(), body=b"", method="POST", sent=()):
        response = of_httpx2(status, headers, body, method, sent).response
        document = json.loads(body) if body else None
        if name == "openai" and document is not None:
            document = document.get("error", document)  # as its client does
        return APIStatusError(f"Error code: {status}", response=response, body=document)

    of.connection, of.timeout = APIConnectionError, APITimeoutError
    return of


of_openai, of_anthropic = sdk("openai"), sdk("anthropic")

CLIENTS = {
    "httpx": of_httpx,
    "httpx2": of_httpx2,
    "requests": of_requests,
    "aiohttp": of_aiohttp,
    "urllib": of_urllib,
    "openai": of_openai,
    "anthropic": of_anthropic,
}


@pytest.fixture(params=CLIENTS)
def of(request):
    return CLIENTS[request.param]


@pytest.fixture(params=[name for name in CLIENTS if name not in ("aiohttp", "urllib")])
def of_reading(request):
    """Clients whose errors carry the body."""
    return CLIENTS[request.param]


@pytest.fixture(params=[name for name in CLIENTS if name != "urllib"])
def of_knowing(request):
    """Clients whose errors know the request."""
    return CLIENTS[request.param]


# -- HR-01: by status


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
        (501, "failed", False),  # providers.md: not implemented today, not implemented in a second
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
def test_a_status_decides(of, status, kind, again):
    """HR-01, HR-03, D-78."""
    verdict = verdict_of(of(status))
    assert (verdict.kind, verdict.again, verdict.retry_after) == (kind, again, None)


@pytest.mark.parametrize("status", [200, 400, 404, 409, 429, 500, 501, 503])
@pytest.mark.parametrize(("said", "again"), [("true", True), (" TRUE ", True), ("false", False)])
def test_the_far_side_may_say_whether_to_try_again(of, status, said, again):
    """HR-02: both ways, whatever the status."""
    verdict = verdict_of(of(status, {"x-should-retry": said.strip() if of is of_aiohttp else said}))
    assert verdict.again is again


@pytest.mark.parametrize("said", ["", "yes", "1", "maybe"])
def test_any_other_word_leaves_it_to_the_status(of, said):
    """HR-02."""
    assert verdict_of(of(503, {"x-should-retry": said})).again
    assert not verdict_of(of(400, {"x-should-retry": said})).again


@pytest.mark.parametrize("status", [HTTPStatus.TOO_MANY_REQUESTS, 429])
@pytest.mark.parametrize("name", ["status_code", "status", "code"])
def test_an_exception_that_carries_a_bare_status(status, name):
    """HR-03: in whatever attribute."""

    class Wrong(Exception):
        pass

    error = Wrong("no")
    setattr(error, name, status)
    assert verdict_of(error) == throttled()


@pytest.mark.parametrize("status", [True, "429", 429.0, None, 99, 1000, -429, 10**30])
def test_what_is_no_status_is_none(status):
    class Wrong(Exception):
        pass

    error = Wrong("no")
    error.status_code = status
    assert verdict_of(error) == REJECTED


# -- how long to wait


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
def test_what_the_headers_say_is_in_the_verdict(of, status, headers, seconds):
    """R-7, D-80: one grammar for every client."""
    assert verdict_of(of(status, headers)).retry_after == seconds


def test_a_date_is_measured_from_the_date_of_the_response(of):
    """R-7, D-80."""
    now = int(time.time())
    headers = {"Date": formatdate(now, usegmt=True), "Retry-After": formatdate(now + 45, usegmt=True)}
    assert verdict_of(of(503, headers)).retry_after == 45.0


def test_headers_that_ask_to_wait_are_enough():
    """A status is not needed."""

    class Wait(Exception):
        headers = (("Retry-After", "7"),)

    assert verdict_of(Wait()) == throttled(7.0)


@pytest.mark.parametrize(("value", "told"), [(5, 5.0), (2.5, 2.5), (0, 0.0)])
def test_an_exception_may_say_itself_how_long(value, told):
    class Wait(Exception):
        retry_after = value

    assert verdict_of(Wait()) == throttled(told)


@pytest.mark.parametrize("value", [-1, float("nan"), float("-inf"), True, "soon", None, [5], object()])
def test_what_is_no_stretch_of_time_is_not_one(value):
    class Wait(Exception):
        retry_after = value

    assert verdict_of(Wait()) == REJECTED


def test_an_exception_that_knows_its_status_and_its_wait():
    class Wait(Exception):
        status_code = 503
        retry_after = 12

    assert verdict_of(Wait()) == overloaded(12.0)


def test_what_an_exception_says_does_not_replace_what_the_headers_say():
    class Wait(Exception):
        status_code = 429
        retry_after = 1

        class response:  # noqa: N801 - an attribute
            status_code = 429
            headers = {"Retry-After": "60"}  # noqa: RUF012

    assert verdict_of(Wait()).retry_after == 60.0


# -- what only the body says


def test_a_429_for_money_is_not_worth_another_try(of_reading):
    """D-78: a quota that is used up does not come back in a minute."""
    body = json.dumps(
        {
            "error": {
                "message": "You exceeded your current quota",
                "type": "insufficient_quota",
                "code": "insufficient_quota",
            }
        }
    ).encode()
    verdict = verdict_of(of_reading(429, {"Retry-After": "1"}, body))
    assert verdict == EXHAUSTED


def test_an_overloaded_provider_is_known_by_its_words(of_reading):
    body = json.dumps(
        {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    ).encode()
    assert verdict_of(of_reading(429, {}, body)).kind == "overloaded"


def test_a_streamed_response_that_nobody_read_is_no_obstacle():
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
    """As botocore makes them."""

    __module__ = "botocore.exceptions"

    def __init__(self, response):
        super().__init__("An error occurred")
        self.response = response


def test_the_errors_of_aws_are_dictionaries():
    slow = {"Error": {"Code": "SlowDown"}, "ResponseMetadata": {"HTTPStatusCode": 503, "HTTPHeaders": {}}}
    told = {"ResponseMetadata": {"HTTPStatusCode": 429, "HTTPHeaders": {"retry-after": "4"}}}
    assert verdict_of(ClientError(slow)).kind == "throttled"
    assert verdict_of(ClientError(told)) == throttled(4.0)
    assert verdict_of(ClientError({"ResponseMetadata": {"HTTPStatusCode": 404}})) == REJECTED
    for broken in ({}, {"ResponseMetadata": None}, {"ResponseMetadata": {"HTTPStatusCode": None}}):
        assert verdict_of(ClientError(broken)) == REJECTED


@pytest.mark.parametrize("code", ["ThrottlingException", "ProvisionedThroughputExceededException"])
def test_aws_throttles_with_a_400(code):
    """TR-06a: DynamoDB and others say so by the code alone."""
    error = ClientError(
        {
            "Error": {"Code": code, "Message": "Rate exceeded"},
            "ResponseMetadata": {"HTTPStatusCode": 400, "HTTPHeaders": {}},
        }
    )
    assert verdict_of(error).kind == "throttled"


# -- on the way


def connection_key():
    from aiohttp.client_reqrep import ConnectionKey

    fields = dict.fromkeys(ConnectionKey._fields)
    return ConnectionKey(**{**fields, "host": "api.example.com", "port": 443, "is_ssl": True, "ssl": True})


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
    of_openai.connection(request=REQUEST2),
    of_openai.timeout(request=REQUEST2),
    of_anthropic.connection(request=REQUEST2),
    of_anthropic.timeout(request=REQUEST2),
    redis.exceptions.ConnectionError("gone"),
    redis.exceptions.TimeoutError("slow"),
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
]
FOR_GOOD = [
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
]


def named(error):
    kind = type(error)
    reason = getattr(error, "reason", None)
    inner = f"({type(reason).__name__})" if isinstance(reason, BaseException) else ""
    return f"{kind.__module__.partition('.')[0]}.{kind.__name__}{inner}"


@pytest.mark.parametrize("error", MAY_HAVE_RUN, ids=named)
def test_what_broke_on_the_way_may_pass_and_may_have_been_carried_out(error):
    """TR-06a, D-41."""
    assert verdict_of(error) == failed(may_have_run=True)


@pytest.mark.parametrize("error", NOT_SENT, ids=named)
def test_what_was_never_sent_may_pass_and_cannot_have_been_carried_out(error):
    """TR-06a, D-41."""
    assert verdict_of(error) == failed(may_have_run=False)


@pytest.mark.parametrize(
    ("inside", "again"),
    [
        ([TimeoutError()], True),
        ([TimeoutError(), ConnectionResetError()], True),
        ([TimeoutError(), ValueError()], False),
    ],
)
def test_a_group_may_pass_if_all_of_it_may(inside, again):
    assert verdict_of(ExceptionGroup("several", inside)).again is again


def test_a_group_waits_as_long_as_the_longest_of_it_was_told():
    class Wait(Exception):
        def __init__(self, seconds):
            self.retry_after = seconds

    assert verdict_of(ExceptionGroup("several", [Wait(3), Wait(7)])).retry_after == 7.0


@pytest.mark.parametrize("error", FOR_GOOD, ids=named)
def test_what_no_retry_mends(error):
    """D-78."""
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
def test_transient_network_errors_of_the_operating_system(error):
    """TR-06a. The same failures are retried when httpx or aiohttp wrap them: a ConnectError."""
    assert verdict_of(error).again


def test_a_certificate_is_the_same_the_next_time_for_requests_too():
    """As ssl.SSLCertVerificationError and aiohttp.ClientConnectorCertificateError are."""
    reason = urllib3.exceptions.SSLError(ssl.SSLCertVerificationError(1, "self-signed"))
    error = requests.exceptions.SSLError(urllib3.exceptions.MaxRetryError(None, ADDRESS, reason))
    assert not verdict_of(error).again


def test_subclasses_and_namesakes():
    """A class of a client by inheritance counts, and one that only has its name does not."""

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
def test_what_we_refused_ourselves_says_nothing_about_the_far_side(error):
    """RS-03: even a WaitTimeout, which is a TimeoutError."""
    assert verdict_of(error) == REJECTED
    assert issubclass(BudgetExceeded, Refused)


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), SystemExit(1), asyncio.CancelledError(), GeneratorExit()], ids=named
)
def test_being_told_to_stop_says_nothing_either(error):
    """TR-05."""
    assert verdict_of(error) == REJECTED


# -- wrappers


def test_what_tenacity_gave_up_on_is_what_counts():
    """TN-05: its RetryError is chained to the last one, and means the same."""

    @tenacity.retry(stop=tenacity.stop_after_attempt(2), wait=tenacity.wait_none())
    def ask():
        raise of_httpx(429, {"Retry-After": "9"})

    with pytest.raises(tenacity.RetryError) as caught:
        ask()
    assert verdict_of(caught.value) == throttled(9.0)


def test_a_wrapper_around_itself_ends():
    error = urllib.error.URLError("loop")
    error.reason = error
    assert verdict_of(error) == REJECTED


# -- D-41: could it have been carried out?


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
def test_a_method_that_may_be_repeated_and_one_that_may_not(of_knowing, status, method, may_have_run):
    assert verdict_of(of_knowing(status, method=method)).may_have_run is may_have_run


@pytest.mark.parametrize("name", ["Idempotency-Key", "idempotency-key", "IDEMPOTENCY-KEY"])
def test_a_request_with_a_key_may_be_repeated(of_knowing, name):
    assert not verdict_of(of_knowing(500, method="POST", sent={name: "8e03"})).may_have_run
    assert verdict_of(of_knowing(500, method="POST", sent={"X-Key": "8e03"})).may_have_run


@pytest.mark.parametrize("status", [429, 503, 529])
def test_what_was_turned_away_was_not_carried_out(of, status):
    assert not verdict_of(of(status, method="POST")).may_have_run


@pytest.mark.parametrize("library", [httpx, httpx2])
def test_a_lost_connection_with_a_method_that_may_be_repeated(library):
    def error(method, **headers):
        return library.ReadTimeout("slow", request=library.Request(method, ADDRESS, headers=headers))

    assert not verdict_of(error("GET")).may_have_run
    assert verdict_of(error("POST")).may_have_run
    assert not verdict_of(error("POST", **{"Idempotency-Key": "8e03"})).may_have_run


def test_the_same_for_requests():
    def error(method, **headers):
        request = requests.Request(method, ADDRESS, headers=headers).prepare()
        return requests.ReadTimeout("slow", request=request)

    assert not verdict_of(error("GET")).may_have_run
    assert verdict_of(error("POST")).may_have_run
    assert not verdict_of(error("POST", **{"Idempotency-Key": "8e03"})).may_have_run


# -- total


def test_the_errors_of_aiohttp_without_a_status_warn_nobody():
    """Their `code` is deprecated, and warns whoever looks at it."""
    info = of_aiohttp(500).request_info
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        assert verdict_of(aiohttp.TooManyRedirects(info, ())) == REJECTED
    assert not warned


class Raises:
    """Whatever is done to it raises."""

    def __init__(self, error):
        object.__setattr__(self, "_error", error)

    def __getattribute__(self, name):
        raise object.__getattribute__(self, "_error")

    def _raise(self, *_args, **_kwargs):
        raise object.__getattribute__(self, "_error")

    __iter__ = __len__ = __bool__ = __eq__ = __lt__ = __le__ = __gt__ = __ge__ = __contains__ = _raise
    __getitem__ = __call__ = __str__ = __repr__ = __int__ = __float__ = __index__ = __hash__ = _raise


ATTRIBUTES = [
    "status_code",
    "status",
    "code",
    "headers",
    "response",
    "request",
    "request_info",
    "body",
    "content",
    "retry_after",
    "reason",
    "last_attempt",
    "method",
    "exception",
    "args",
    "__notes__",
]
ERRORS = {
    "raises ValueError": ValueError,
    "raises AttributeError": AttributeError,
    "raises RecursionError": RecursionError,
    "raises KeyError": KeyError,
}
# Plain data, so that it can be shrunk and printed; `armed` makes the things of it that cannot.
absurd = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(10**40), 10**40),
        st.sampled_from([200, 400, 409, 429, 500, 503]),
        st.floats(),
        st.text(max_size=8),
        st.binary(max_size=8),
        st.sampled_from(["x-should-retry", "true", "1e999", "\u0663", "\x00", "30"]),
        st.sampled_from([*ERRORS, "an object", "a function"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["Retry-After", "error", "code", "ResponseMetadata"]), inner, max_size=3
        ),
        st.dictionaries(st.sampled_from(ATTRIBUTES), inner, max_size=4).map(
            lambda fields: ("a thing", fields)
        ),
    ),
    max_leaves=8,
)


def armed(value):
    if isinstance(value, str) and value in ERRORS:
        return Raises(ERRORS[value]())
    if value == "an object":
        return object()
    if value == "a function":
        return lambda: 1 // 0
    if isinstance(value, tuple):
        return type("Thing", (), {name: armed(inner) for name, inner in value[1].items()})()
    if isinstance(value, list):
        return [armed(inner) for inner in value]
    if isinstance(value, dict):
        return {name: armed(inner) for name, inner in value.items()}
    return value


def hostile(attributes, base):
    """An exception whose attributes are these; those that are to raise do so when touched."""

    class Hostile(base):
        def __getattribute__(self, name):
            if name not in attributes:
                return super().__getattribute__(name)
            value = attributes[name]
            if isinstance(value, str) and value in ERRORS:
                raise ERRORS[value]
            return armed(value)

    return Hostile()


@given(
    st.dictionaries(st.sampled_from(ATTRIBUTES), absurd, max_size=5),
    st.sampled_from([Exception, ConnectionResetError, TimeoutError, ValueError, OSError]),
)
@settings(max_examples=300, deadline=None)
def test_whatever_an_exception_is_made_of_there_is_a_verdict(attributes, base):
    """The room is total: nothing is raised, and the verdict is one that others can use."""
    verdict = verdict_of(hostile(attributes, base))
    assert isinstance(verdict, Verdict)
    assert verdict.kind in KINDS
    assert isinstance(verdict.again, bool)
    assert isinstance(verdict.may_have_run, bool)
    assert verdict.retry_after is None or 0.0 <= verdict.retry_after < 1e9
    assert not (verdict.kind == "rejected" and verdict.again)


@pytest.mark.parametrize("name", ATTRIBUTES)
@pytest.mark.parametrize("raised", ERRORS)
@pytest.mark.parametrize("base", [Exception, ConnectionResetError])
def test_each_attribute_may_raise_or_be_something_that_does(name, raised, base):
    class Thing(base):
        pass

    error = Thing()
    if name not in ("args", "__notes__"):
        setattr(error, name, Raises(ERRORS[raised]()))
    assert verdict_of(error).kind in KINDS
    assert verdict_of(hostile({name: raised}, base)).kind in KINDS


@given(st.integers(100, 999), absurd, absurd)
@settings(max_examples=200, deadline=None)
def test_the_same_for_statuses_headers_and_bodies(status, headers, body):
    class Odd(Exception):
        pass

    error = Odd()
    error.status_code, error.headers, error.body = status, armed(headers), armed(body)
    assert verdict_of(error).kind in KINDS


@pytest.mark.parametrize("thing", [None, 7, "429", object(), ValueError])
def test_what_is_no_exception_has_a_verdict_too(thing):
    assert verdict_of(thing) == REJECTED


def test_a_metaclass_that_hides_its_name_is_no_obstacle():
    class Meta(type):
        @property
        def __name__(cls):
            raise RuntimeError("no name")

        @property
        def __module__(cls):
            raise RuntimeError("no module")

    class Nameless(ConnectionResetError, metaclass=Meta):
        pass

    assert verdict_of(Nameless()).kind in KINDS


# -- verdicts are values


def test_verdicts_are_values_that_say_what_they_are():
    assert SUCCEEDED.kind == "succeeded"
    assert not SUCCEEDED.again
    assert throttled(3) == throttled(3) != throttled(4)
    assert throttled().again
    assert not throttled(again=False).again
    assert len({failed(), failed(may_have_run=False), overloaded(), REJECTED}) == 4
    with pytest.raises(AttributeError, match="cannot change"):
        REJECTED.again = True


@pytest.mark.parametrize("retry_after", [-1, float("nan"), float("inf"), "3"])
@pytest.mark.parametrize("make", [throttled, overloaded, failed])
def test_a_wait_that_is_no_time_is_refused(make, retry_after):
    with pytest.raises(ValueError, match="retry_after="):
        make(retry_after)
