"""Heads of successes, read by their layout: the same as read field by field."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.http import Scope, Signal, read_signal
from headgate.responses.head import head_of

NOW = 1_800_000_000.0
VECTORS = json.loads(Path(__file__).with_name("provider-vectors.json").read_text(encoding="utf-8"))["vectors"]

OPENAI = [
    ("Content-Type", "application/json"),
    ("x-ratelimit-limit-requests", "60"),
    ("x-ratelimit-limit-tokens", "150000"),
    ("x-ratelimit-remaining-requests", "59"),
    ("x-ratelimit-remaining-tokens", "149984"),
    ("x-ratelimit-reset-requests", "1s"),
    ("x-ratelimit-reset-tokens", "8.64s"),
]

NAMES = [name for vector in VECTORS for name, _ in vector["headers"]]
VALUES = [value for vector in VECTORS for _, value in vector["headers"]]
HEADS = st.lists(
    st.tuples(st.sampled_from(sorted(set(NAMES))), st.sampled_from(sorted(set(VALUES)))), max_size=12
)


def as_bytes(headers):
    return [(name.encode(), value.encode()) for name, value in headers]


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["topic"])
def test_the_headers_of_every_provider_say_the_same_in_a_success(vector):
    headers = [tuple(pair) for pair in vector["headers"]]
    expected = read_signal(200, headers, now=NOW)
    for given_as in (headers, tuple(headers), as_bytes(headers), dict(headers)):
        for _ in range(2):  # the second time the layout is known
            if given_as == dict(headers):
                assert head_of(200, given_as, NOW)[0] == read_signal(200, given_as, now=NOW)
            else:
                assert head_of(200, given_as, NOW)[0] == expected


@given(HEADS)
def test_any_fields_say_the_same_by_their_layout(headers):
    expected = read_signal(200, headers, now=NOW)
    assert head_of(200, headers, NOW)[0] == expected
    assert head_of(200, as_bytes(headers), NOW)[0] == expected


def test_a_head_has_a_signal_a_content_type_and_a_content_encoding():
    headers = [*OPENAI, ("content-encoding", "gzip")]
    requests = Scope("requests", 60, 59, 1.0)
    tokens = Scope("tokens", 150_000, 149_984, 8.64)
    assert head_of(200, headers, NOW) == (Signal(scopes=(requests, tokens)), "application/json", "gzip")
    assert head_of(200, {"date": "x"}, NOW) == (Signal(), "", "")


def test_the_figures_of_the_next_response_are_its_own():
    for remaining in ("59", "58", "0", "7"):
        headers = dict(OPENAI) | {"x-ratelimit-remaining-requests": remaining}
        assert head_of(200, list(headers.items()), NOW)[0].scopes[0].remaining == int(remaining)


@pytest.mark.parametrize(
    "value", ["", "-1", "1e3", "nan", "1_000", "9" * 400, "5, 4", " 4 ", "\u0664", "4;w=60"]
)
def test_a_figure_that_is_not_plain_is_read_as_everywhere(value):
    for at in range(1, len(OPENAI)):
        headers = [*OPENAI[:at], (OPENAI[at][0], value), *OPENAI[at + 1 :]]
        assert head_of(200, headers, NOW)[0] == read_signal(200, headers, now=NOW)


@pytest.mark.parametrize(
    "more",
    [
        ("age", "30"),  # from a cache: the figures are those of another caller
        ("x-groq-region", "dls"),  # Groq's requests are those of a day
        ("x-should-retry", "true"),
        ("x-amzn-errortype", "ThrottlingException"),
        ("X-RateLimit-Remaining-Requests", "3"),  # twice: the smaller figure
        ("llm_provider-x-ratelimit-remaining-requests", "3"),
        ("retry-after", "30"),
    ],
)
def test_a_field_that_changes_what_others_mean_is_heeded(more):
    headers = [*OPENAI, more]
    for _ in range(2):
        assert head_of(200, headers, NOW)[0] == read_signal(200, headers, now=NOW)
        assert head_of(200, OPENAI, NOW)[0] == read_signal(200, OPENAI, now=NOW)


@pytest.mark.parametrize("odd", [("alone",), 5, None, ([], "1"), ("a", "b", "c"), "x"])
def test_entries_that_are_not_pairs_are_skipped(odd):
    headers = [odd, *OPENAI, odd]
    assert head_of(200, headers, NOW)[0] == read_signal(200, OPENAI, now=NOW)


def test_a_server_that_makes_up_names_is_read_all_the_same():
    for i in range(3_000):
        headers = [(f"x-made-up-{i}", "1"), (f"x-ratelimit-limit-made-up-{i}", "5"), OPENAI[1]]
        scopes = head_of(200, headers, NOW)[0].scopes
        assert [(scope.name, scope.limit) for scope in scopes] == [(f"made_up_{i}", 5), ("requests", 60)]
