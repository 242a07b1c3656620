"""classify: exceptions made of anything have a verdict, and reading them raises nothing."""

import warnings

import aiohttp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.retries.classify import is_permanent, never_sent, verdict_of
from headgate.verdict import REJECTED, Verdict
from retries.http_errors import aiohttp_error

KINDS = {"throttled", "overloaded", "failed", "rejected", "exhausted"}


def test_classifying_an_aiohttp_error_without_a_status_does_not_warn():
    """Its attribute `code` is deprecated and warns when it is read."""
    info = aiohttp_error(500).request_info
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        assert verdict_of(aiohttp.TooManyRedirects(info, ())) == REJECTED
    assert not warned


class Raises:
    """An object on which every operation raises."""

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
    "kwargs",
    "original_error",
    "args",
    "__notes__",
]


ERRORS = {
    "raises ValueError": ValueError,
    "raises AttributeError": AttributeError,
    "raises RecursionError": RecursionError,
    "raises KeyError": KeyError,
}


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
    """An exception with these attributes; some of them raise when they are read."""

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
def test_every_exception_has_a_verdict_whatever_its_attributes_are(attributes, base):
    error = hostile(attributes, base)
    assert never_sent(error) in (True, False)
    assert is_permanent(error) in (True, False)
    verdict = verdict_of(error)
    assert isinstance(verdict, Verdict)
    assert verdict.kind in KINDS
    assert isinstance(verdict.again, bool)
    assert isinstance(verdict.may_have_run, bool)
    assert verdict.retry_after is None or 0.0 <= verdict.retry_after < 1e9
    assert not (verdict.kind == "rejected" and verdict.again)


@pytest.mark.parametrize("name", ATTRIBUTES)
@pytest.mark.parametrize("raised", ERRORS)
@pytest.mark.parametrize("base", [Exception, ConnectionResetError])
def test_every_attribute_may_raise_or_be_an_object_that_raises(name, raised, base):
    class Thing(base):
        pass

    error = Thing()
    if name not in ("args", "__notes__"):
        setattr(error, name, Raises(ERRORS[raised]()))
    for each in (error, hostile({name: raised}, base)):
        assert verdict_of(each).kind in KINDS
        assert never_sent(each) in (True, False)
        assert is_permanent(each) in (True, False)


@given(st.integers(100, 999), absurd, absurd)
@settings(max_examples=200, deadline=None)
def test_every_status_with_absurd_headers_and_body_has_a_verdict(status, headers, body):
    class Odd(Exception):
        pass

    error = Odd()
    error.status_code, error.headers, error.body = status, armed(headers), armed(body)
    assert verdict_of(error).kind in KINDS


@pytest.mark.parametrize("thing", [None, 7, "429", object(), ValueError])
def test_an_object_that_is_not_an_exception_is_rejected(thing):
    assert verdict_of(thing) == REJECTED


def test_an_exception_whose_class_hides_its_name_has_a_verdict():
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
