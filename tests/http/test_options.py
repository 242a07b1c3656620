"""The options of all adapters."""

import typing

import pytest

from headgate import InvalidLimit
from headgate.http import aiohttp, anthropic, httpx, requests
from headgate.http.exchange import GatedSender, SendOptions
from headgate.http.gates import Gates

ADAPTERS = [
    httpx.Transport,
    httpx.AsyncTransport,
    aiohttp.middleware,
    requests.Adapter,
    anthropic.middleware,
    anthropic.middleware_async,
]
every_adapter = pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda it: f"{it.__module__}.{it.__name__}")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"gate": "500/minute"}, r'is not a Dispatch; give one, such as Dispatch\("openai", rates='),
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
def test_an_option_that_cannot_work_is_refused_at_once(options, why):
    with pytest.raises(InvalidLimit, match=why):
        GatedSender(**options)


@every_adapter
def test_an_unknown_option_is_refused_by_every_adapter(adapter):
    with pytest.raises(TypeError, match="retrys"):
        adapter(retrys=3)


@every_adapter
def test_limits_given_to_an_adapter_lead_to_its_gate(adapter):
    with pytest.raises(TypeError, match=r"^rates= is an option of a gate, not of its adapter; .* Dispatch\("):
        adapter(rates="500/minute")


@every_adapter
def test_the_annotations_of_every_adapter_resolve(adapter):
    called = adapter.__init__ if isinstance(adapter, type) else adapter
    hints = typing.get_type_hints(called)
    assert hints["gate"] == Gates
    assert hints["options"] == typing.Unpack[SendOptions]
    assert typing.get_type_hints(SendOptions).keys() == SendOptions.__annotations__.keys()
