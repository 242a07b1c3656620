"""The estimated cost of a request before it is sent, and what its usage teaches later."""

import base64
import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.responses.estimate import TokenStats, estimate_tokens, read_shape, reservation, settlement
from headgate.responses.usage import Usage

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


def shape(document, path="/v1/chat/completions", host="api.example", method="POST"):
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return read_shape(method, host, path, body)


# The bytes


def test_four_ascii_bytes_are_a_token_and_three_of_any_others():
    assert estimate_tokens(b"a" * 4_000) == 1_000
    assert estimate_tokens("水".encode() * 1_000) == 1_000
    assert estimate_tokens(b"a" * 400 + "水".encode() * 100) == 200


def test_a_letter_counts_the_same_whether_it_is_escaped_or_not():
    plain = json.dumps({"content": "水" * 500}, ensure_ascii=False).encode()
    escaped = json.dumps({"content": "水" * 500}).encode()
    assert estimate_tokens(plain) == estimate_tokens(escaped)


def test_every_message_has_a_frame():
    assert estimate_tokens(b"aaaa", messages=3) == 1 + 3 * 4


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,%s"}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "%s"}},
        {"inlineData": {"mimeType": "image/png", "data": "%s"}},
    ],
)
def test_an_image_counts_the_same_whatever_its_size(part):
    def cost(size):
        data = base64.b64encode(os.urandom(size)).decode()
        return estimate_tokens(json.dumps(part).replace("%s", data).encode())

    assert cost(3_000) == cost(300_000)
    assert 500 < cost(3_000) < 3_000


def test_long_text_without_a_space_is_not_an_image():
    assert estimate_tokens(json.dumps({"content": "a" * 8_000}).encode()) > 2_000


@given(st.binary(max_size=2_000), st.text(max_size=20), st.text(max_size=40))
def test_every_body_can_be_estimated(body, host, path):
    assert estimate_tokens(body) >= 0
    assert read_shape("POST", host, path, b"{" + body).input >= 0


# The style of a request


@pytest.mark.parametrize(
    ("path", "host", "document", "style"),
    [
        ("/v1/chat/completions", "api.openai.com", CHAT, "openai"),
        ("/v1/responses", "api.openai.com", {"model": "m", "input": "hi"}, "openai"),
        ("/v1/embeddings", "127.0.0.1:8000", {"model": "m", "input": ["hi"]}, "openai"),
        ("/openai/deployments/d/chat/completions", "x.openai.azure.com", CHAT, "sum"),
        ("/openai/v1/chat/completions", "api.groq.com", CHAT, "sum"),
        ("/v1/messages", "api.anthropic.com", CHAT, "anthropic"),
        ("/v1/messages/count_tokens", "api.anthropic.com", CHAT, "free"),
        ("/v1beta/models/g:generateContent", "generativelanguage.googleapis.com", {"contents": []}, "gemini"),
        ("/model/claude/converse", "bedrock.aws", {"messages": []}, "sum"),
    ],
)
def test_the_style_follows_from_path_host_and_document(path, host, document, style):
    found = shape(document, path, host)
    assert found.style == style
    assert found.generates


def test_a_message_to_a_person_is_not_a_call_of_a_model():
    """Sending such a message twice is not the same as sending it once."""
    assert not shape({"content": "hello"}, "/api/channels/1/messages").generates


@pytest.mark.parametrize(
    ("method", "body"), [("GET", b'{"a": 1}'), ("POST", b""), ("POST", b"--boundary"), ("POST", b"\x89PNG")]
)
def test_a_request_without_a_document_costs_no_tokens(method, body):
    assert read_shape(method, "api.example", "/v1/files", body).input == 0


def test_the_model_is_named_in_the_body_or_in_the_path():
    assert shape(CHAT).model == "m"
    assert shape({"contents": []}, "/v1beta/models/gemini-9:generateContent").model == "gemini-9"
    assert shape({"messages": []}, "/openai/deployments/mine/chat/completions").model == "mine"


@pytest.mark.parametrize(
    ("document", "most"),
    [
        ({"max_tokens": 70}, 70),
        ({"max_completion_tokens": 80}, 80),
        ({"max_output_tokens": 90}, 90),
        ({"generationConfig": {"maxOutputTokens": 60}}, 60),
        ({"inferenceConfig": {"maxTokens": 50}}, 50),
        ({"max_tokens": True}, None),
        ({"max_tokens": -1}, None),
        ({"max_tokens": "many"}, None),
        ({}, None),
    ],
)
def test_the_allowed_output_is_read_from_the_field_of_each_provider(document, most):
    assert shape({**CHAT, **document}).max_output == most


def test_a_body_too_large_to_parse_is_looked_at_from_both_ends():
    document = {"model": "m", "messages": [{"role": "user", "content": "a" * (3 << 20)}], "max_tokens": 77}
    found = shape(document)
    assert (found.model, found.max_output, found.style) == ("m", 77, "openai")
    quoting = {"messages": [{"role": "user", "content": '{"model": "fake"} ' * 90_000}], "model": "m"}
    assert shape(quoting).model == "m"


def test_what_a_body_too_large_to_parse_does_not_say_is_not_known():
    long = "a" * (3 << 20)
    found = shape({"text": long}, path="/v1/other")
    assert (found.model, found.max_output, found.generates) == (None, None, False)
    named = shape({"model": "m", "text": long}, path="/v1/other")
    assert (named.model, named.max_output, named.generates) == ("m", None, False)
    assert shape({"messages": [{"role": "user"}], "text": long}).model is None


# Reserving and settling


def test_openai_counts_the_larger_of_estimate_and_maximum_and_gives_nothing_back():
    asked = shape({**CHAT, "max_tokens": 1_000})
    reserved = reservation(asked, ratio=1.0, output=300)
    assert reserved["tokens"] == 1_000
    assert settlement("openai", reserved, Usage(input=20, output=30, final=True))["tokens"] == 1_000
    assert settlement("openai", reserved, Usage(input=900, output=300, final=True))["tokens"] == 1_200
    small = shape({**CHAT, "max_tokens": 1})
    assert reservation(small, ratio=0.5, output=300)["tokens"] == small.input, "never below its own estimate"


def test_anthropic_counts_input_and_output_apart_and_by_what_they_were():
    asked = shape({**CHAT, "max_tokens": 64_000}, "/v1/messages")
    reserved = reservation(asked, ratio=1.0, output=300)
    assert reserved == {"tokens": asked.input + 300, "input_tokens": asked.input, "output_tokens": 300}
    settled = settlement("anthropic", reserved, Usage(input=9, output=5, final=True))
    assert settled == {"tokens": 14, "input_tokens": 9, "output_tokens": 5}


def test_gemini_counts_input_alone():
    asked = shape({"contents": [], "generationConfig": {"maxOutputTokens": 500}}, "/models/g:generateContent")
    reserved = reservation(asked, ratio=1.0, output=300)
    assert reserved["tokens"] == asked.input
    assert settlement("gemini", reserved, Usage(input=7, output=90, final=True))["tokens"] == 7


def test_others_count_both_and_settle_to_what_was_used():
    asked = shape({**CHAT, "max_tokens": 200, "best_of": 2}, host="x.azure.com")
    reserved = reservation(asked, ratio=1.0, output=300)
    assert reserved["tokens"] == asked.input + 400
    assert settlement("sum", reserved, Usage(input=10, output=20, final=True))["tokens"] == 30


def test_an_answer_that_broke_off_keeps_at_least_its_reservation():
    reserved = {"tokens": 400, "input_tokens": 100, "output_tokens": 300}
    broken = settlement("anthropic", reserved, Usage(input=90, output=1, final=False))
    assert broken["input_tokens"] == 90
    assert broken["output_tokens"] == 300


# Learning


def test_the_ratio_follows_the_counted_tokens_and_stays_within_bounds():
    stats = TokenStats()
    assert stats.ratio("h", "m") == 1.0
    stats.learn("h", "m", 100, Usage(input=150, output=10, final=True))
    assert stats.ratio("h", "m") == 1.5
    stats.learn("h", "m", 100, Usage(input=250, output=10, final=True))
    assert 1.5 < stats.ratio("h", "m") < 2.5
    assert stats.ratio("h", "other") == 1.0
    for _ in range(50):
        stats.learn("h", "m", 100, Usage(input=100_000, output=10, final=True))
        stats.learn("h", "cached", 100, Usage(input=1, output=10, final=True))
    assert stats.ratio("h", "m") == 4.0
    assert stats.ratio("h", "cached") == 0.5


def test_the_length_of_answers_is_predicted_from_earlier_ones():
    stats = TokenStats()
    assert stats.output("h", "m", None) == 1_024
    assert stats.output("h", "m", 100) == 100
    for length in [100, 200, 300, 400] * 20:
        stats.learn("h", "m", 10, Usage(input=10, output=length, final=True))
    assert 250 <= stats.output("h", "m", None) <= 400, "longer than most"
    assert stats.output("h", "m", 50) == 50
    stats.learn("h", "m", 10, Usage(input=10, output=0, final=False))
    assert stats.output("h", "m", None) > 200, "an answer that broke off says nothing about length"


def test_a_call_whose_tokens_were_not_counted_teaches_no_ratio():
    stats = TokenStats()
    stats.learn("h", "m", 0, Usage(input=150, output=70, final=True))
    assert (stats.ratio("h", "m"), stats.output("h", "m", None)) == (1.0, 70)
    stats.learn("h", "m", 100, Usage(input=200, output=70, final=True))
    before = stats.ratio("h", "m")
    assert before > 1.0
    stats.learn("h", "m", 100, Usage(input=0, output=70, final=True))
    assert stats.ratio("h", "m") == before


def test_the_number_of_remembered_models_is_bounded():
    stats = TokenStats()
    for i in range(5_000):
        stats.learn("h", f"m{i}", 10, Usage(input=20, output=1, final=True))
    assert len(stats._known) <= 1_024
    assert stats.ratio("h", "m4999") == 2.0


def test_a_body_that_begins_with_a_byte_order_mark_is_read():
    body = b'{"model": "m", "max_tokens": 50, "messages": []}'
    shape = read_shape("POST", "api.openai.com", "/v1/chat/completions", b"\xef\xbb\xbf" + body)
    assert shape == read_shape("POST", "api.openai.com", "/v1/chat/completions", body)
    assert shape.model == "m"
