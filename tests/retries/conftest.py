"""Fixtures that run a test in every form of retrying, and with the errors of every HTTP client."""

import logging

import pytest

from retries.forms import FORMS, outcome_of
from retries.http_errors import CLIENTS


@pytest.fixture(params=FORMS)
def ask(request):
    """Calls the far side in one of the forms, in virtual time."""
    return lambda far, **options: outcome_of(FORMS[request.param], far, options)


@pytest.fixture(params=["sync", "async"])
def kind(request):
    return request.param


@pytest.fixture
def quiet(caplog):
    caplog.set_level(logging.CRITICAL, "headgate")


@pytest.fixture(params=CLIENTS)
def http_error(request):
    return CLIENTS[request.param]


@pytest.fixture(params=[name for name in CLIENTS if name != "urllib"])
def error_with_request(request):
    """Clients whose errors carry the request."""
    return CLIENTS[request.param]


@pytest.fixture(params=[name for name in CLIENTS if name not in ("aiohttp", "urllib")])
def error_with_body(request):
    """Clients whose errors carry the body of the response."""
    return CLIENTS[request.param]
