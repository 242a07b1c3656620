"""A client of boto3 waits before each attempt, and its responses and streams settle what they used."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from integrations.test_page import FRAMEWORKS, PATHS

pytestmark = pytest.mark.skipif(
    not FRAMEWORKS.exists(), reason="the frameworks are not installed: make install"
)


@pytest.fixture(scope="module")
def said():
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", str(Path(__file__).with_name("bedrock.py"))],
        env=os.environ | {"PYTHONPATH": PATHS},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def test_a_response_settles_the_tokens_that_it_states(said):
    assert said["converse"] == {"admitted": 1, "tokens": [42]}


def test_a_body_holds_its_place_until_it_is_read_or_closed(said):
    assert said["in flight while a body is open"] == 1
    assert said["invoke_model"] == {"admitted": 1, "tokens": [42]}
    assert said["in flight after a body was closed"] == 0


def test_each_retry_of_botocore_passes_the_gate_and_a_refusal_starts_a_backoff_window(said):
    assert said["refused twice"] == {"admitted": 3, "tokens": [0, 0, 42]}
    assert said["error"] == "ThrottlingException"
    assert said["window"]


def test_call_options_reach_a_client_of_boto3(said):
    assert said["tenant"] == "ann"
    assert said["charged"] == 42


def test_a_budget_of_money_is_charged_the_price_of_the_model(said):
    assert said["spent"] == 30 * 2 + 12 * 10
    assert "no price is known for the model 'other'" in said["no price"]


def test_a_refusal_of_the_gate_is_raised(said):
    assert said["refusal"] == "LineFull"


def test_a_call_that_was_never_sent_costs_nothing_and_holds_no_place(said):
    assert said["not connected"] == "EndpointConnectionError"
    assert said["after it"] == {"admitted": 2, "tokens": [0, 0], "in_flight": 0}


def test_a_call_that_a_proxy_may_have_passed_on_counts_and_one_to_a_proxy_that_is_down_does_not(said):
    assert set(said["proxy down"]["tokens"]) == {0}
    assert min(said["proxy silent"]["tokens"]) > 0


def test_other_objects_and_adaptive_retries_are_refused(said):
    assert "is not a client of boto3" in said["wrong"][0]
    assert "adaptive" in said["wrong"][1]
    assert "block its event loop" in said["wrong"][2]


def test_an_event_stream_settles_by_its_metadata(said):
    assert said["events"] == {"events": 2, "admitted": 1, "tokens": [42]}
