"""Fixtures that run a test in every form of retrying, and with the errors of every HTTP client."""

import logging

import pytest

from retries.forms import CLIENTS, FORMS, outcome_of


@pytest.fixture(params=FORMS)
def ask(request):
    """Calls the far side in one of the forms, in virtual time."""
    return lambda far, **options: outcome_of(FORMS[request.param], far, options)


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


@pytest.fixture(params=["sync", "async"])
def kind(request):
    return request.param
