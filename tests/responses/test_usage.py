"""Usage in bodies and streams of every provider, in pieces of any size."""

import gzip
import itertools
import json
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.responses.usage import Usage, UsageReader, unpacked, usage_of


def read(body, content_type="application/json", encoding="", size=None, *, finish=True):
    reader = UsageReader(content_type, encoding)
    for start in range(0, len(body), size or max(1, len(body))):
        reader.feed(body[start : start + (size or len(body))])
    if finish:
        reader.finish()
    return reader


def events(*documents, name=None, done=False):
    lines = []
    for document in documents:
        lines += [f"event: {document.get('type', name)}"] if name or "type" in document else []
        lines += [f"data: {json.dumps(document)}", ""]
    return "\n".join([*lines, *(["data: [DONE]", ""] if done else []), ""]).encode()


OPENAI = {"usage": {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}}
CHUNK = {"object": "chat.completion.chunk", "choices": [{"delta": {"content": "x"}, "finish_reason": None}]}
LAST = {"object": "chat.completion.chunk", "choices": [], **OPENAI}

ANTHROPIC = (
    {
        "type": "message_start",
        "message": {
            "usage": {
                "input_tokens": 20,
                "cache_creation_input_tokens": 5,
                "cache_read_input_tokens": 900,
                "output_tokens": 1,
            }
        },
    },
    {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "hello"}},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 42}},
    {"type": "message_stop"},
)


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (OPENAI, (9, 3)),
        ({"usage": {"input_tokens": 8, "output_tokens": 2, "total_tokens": 10}}, (8, 2)),
        ({"usage": {"input_tokens": 8, "cache_creation_input_tokens": 4, "output_tokens": 2}}, (12, 2)),
        ({"usage": {"input_tokens": 8, "cache_read_input_tokens": 99, "output_tokens": 2}}, (8, 2)),
        ({"usageMetadata": {"promptTokenCount": 5, "candidatesTokenCount": 6}}, (5, 6)),
        (
            {"usageMetadata": {"promptTokenCount": 5, "candidatesTokenCount": 6, "thoughtsTokenCount": 7}},
            (5, 13),
        ),
        ({"usage": {"inputTokens": 5, "outputTokens": 6, "cacheWriteInputTokens": 2}}, (7, 6)),
        ({"usage": {"billed_units": {}, "tokens": {"input_tokens": 3, "output_tokens": 4}}}, (3, 4)),
        ({"usage": {"total_tokens": 11}}, (11, 0)),  # embeddings of some providers
        ({"usage": {"prompt_tokens": 11, "total_tokens": 11}}, (11, 0)),
        ([{"usageMetadata": {"promptTokenCount": 1}}, {"usageMetadata": {"promptTokenCount": 2}}], (2, 0)),
    ],
)
def test_a_body_says_what_was_used(document, expected):
    usage = read(json.dumps(document).encode()).usage
    assert (usage.input, usage.output, usage.final) == (*expected, True)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"usage"',
        b'{"usage": null}',
        b'{"usage": 7}',
        b'{"usage": {"prompt_tokens": "nine"}}',
        b'{"usage": {"prompt_tokens": -1}}',
        b'{"usage": {"prompt_tokens": true}}',
        b'{"usage": {"prompt_tokens": 1e300}}',
        b"\xff\xfe" * 100,
        b'{"usage": ' * 10_000,
    ],
)
def test_a_body_without_figures_has_no_usage(body):
    assert read(body).usage is None


@pytest.mark.parametrize(
    ("figures", "input", "cached", "beside"),
    [
        # OpenAI, in both of its APIs: the cached ones are some of the input.
        ({"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}}, 9, 4, 0),
        ({"input_tokens": 9, "input_tokens_details": {"cached_tokens": 4}, "output_tokens": 1}, 9, 4, 0),
        # Anthropic and Bedrock: they stand beside it.
        ({"input_tokens": 9, "cache_read_input_tokens": 40, "output_tokens": 1}, 9, 40, 40),
        ({"input_tokens": 9, "cache_creation_input_tokens": 2, "cache_read_input_tokens": 40}, 11, 40, 40),
        ({"inputTokens": 9, "cacheReadInputTokens": 40, "outputTokens": 1}, 9, 40, 40),
        # A proxy that speaks as OpenAI does and repeats what Anthropic said.
        ({"prompt_tokens": 49, "cache_read_input_tokens": 40}, 49, 40, 0),
        # Gemini, DeepSeek.
        ({"promptTokenCount": 9, "cachedContentTokenCount": 4}, 9, 4, 0),
        ({"prompt_tokens": 9, "prompt_cache_hit_tokens": 4}, 9, 4, 0),
        # Figures that cannot be right.
        ({"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 99}}, 9, 9, 0),
        ({"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": -1}}, 9, 0, 0),
        ({"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": "4"}}, 9, 0, 0),
        ({"prompt_tokens": 9, "prompt_tokens_details": [4]}, 9, 0, 0),
        ({"prompt_tokens": 9, "prompt_tokens_details": None}, 9, 0, 0),
        ({"prompt_tokens": 9, "cache_read_input_tokens": None}, 9, 0, 0),
    ],
)
def test_usage_tells_what_was_read_from_the_cache_of_the_provider(figures, input, cached, beside):
    usage = usage_of(figures)
    assert (usage.input, usage.cached, usage.beside) == (input, cached, beside)


def test_an_image_or_a_page_is_not_kept():
    reader = read(b'{"usage": {"prompt_tokens": 9}}', "image/png", finish=False)
    assert not reader._buffer
    reader.finish()
    assert reader.usage is None


def test_only_the_end_of_a_long_body_is_kept():
    reader = UsageReader("application/json")
    reader.feed(b'{"data": [')
    for _ in range(400):
        reader.feed(b"0.123456789, " * 1_000)
        assert len(reader._buffer) < 1 << 20
    reader.feed(b'0], "model": "m", "usage": {"prompt_tokens": 9, "total_tokens": 9}}')
    reader.finish()
    assert reader.usage == Usage(input=9, output=0, final=True)


NAMED = {"model": "m-1", "usage": {"prompt_tokens": 9, "completion_tokens": 3}}
LONG = b'"choices": ["' + b"x" * 400_000 + b'"], '
FIGURES = b'"usage": {"prompt_tokens": 9, "completion_tokens": 3}}'


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (json.dumps(NAMED).encode(), "application/json"),
        (json.dumps({**NAMED, "tool": {"input": {"model": "inner"}}}).encode(), "application/json"),
        (b'{"model": "m-1", ' + LONG + FIGURES, "application/json"),
        (b"{" + LONG + b'"model": "m-1", ' + FIGURES, "application/json"),
        (
            b'{"modelVersion": "m-1", "usageMetadata": {"promptTokenCount": 9, "candidatesTokenCount": 3}}',
            "application/json",
        ),
        (events({"model": "m-1", "choices": []}, NAMED, done=True), "text/event-stream"),
        (events({"type": "response.completed", "response": NAMED}), "text/event-stream"),
        (
            events(
                {"message": {"model": "m-1", "usage": {"input_tokens": 9, "output_tokens": 1}}},
                {"type": "message_delta", "usage": {"output_tokens": 3}},
            ),
            "text/event-stream",
        ),
    ],
    ids=["body", "tool", "long, first", "long, last", "gemini", "chunks", "response", "message"],
)
def test_a_response_that_states_its_usage_says_which_model_it_is_from(body, content_type):
    for size in (len(body), 1_000):
        reader = UsageReader(content_type, names_model=True)
        for at in range(0, len(body), size):
            reader.feed(body[at : at + size])
        reader.finish()
        assert (reader.model, reader.usage) == ("m-1", Usage(input=9, output=3, final=True))


@pytest.mark.parametrize("model", [None, "", 5, ["m"], {}])
def test_what_is_not_the_name_of_a_model_is_left_out(model):
    reader = UsageReader("application/json", names_model=True)
    reader.feed(json.dumps({**NAMED, "model": model, "message": "m", "response": {"model": model}}).encode())
    reader.finish()
    assert (reader.model, reader.usage) == (None, Usage(input=9, output=3, final=True))


FOREIGN = {"prompt_tokens": 7_000, "completion_tokens": 7_000}


@pytest.mark.parametrize(
    "document",
    [
        {"content": [{"type": "tool_use", "input": {"usage": FOREIGN}}], **OPENAI},
        {**OPENAI, "content": [{"type": "tool_use", "input": {"usage": FOREIGN}}]},
        {"choices": [{"message": {"content": json.dumps({"usage": FOREIGN})}}], **OPENAI},
        {**OPENAI, "service_tier": "default", "text": 'a "usage": {"prompt_tokens": 1} in it'},
        {"error": None, **OPENAI},
        {"text": 'an "error"', **OPENAI},
        {"errors": [], **OPENAI},
        {"data": [{"embedding": [0.25] * 50}], "text": "\u00e4\u6f22", **OPENAI},
    ],
)
@pytest.mark.parametrize("style", [{}, {"indent": 2}, {"separators": (",", ":")}, {"ensure_ascii": False}])
def test_the_usage_of_a_body_is_that_of_its_outermost_level(document, style):
    reader = read(json.dumps(document, **style).encode())
    assert reader.usage == Usage(input=9, output=3, final=True)
    assert reader.error is None


@pytest.mark.parametrize(
    "document",
    [
        {"choices": [{"message": {"tool": {"usage": FOREIGN}}}]},
        {"choices": [{"usage": FOREIGN}], "id": "x"},
        {"choices": {"usage": FOREIGN}},
        [[{"usage": FOREIGN}]],
    ],
)
def test_figures_further_inside_a_body_are_not_its_usage(document):
    assert read(json.dumps(document).encode()).usage is None


def test_a_body_that_states_its_usage_and_an_error_gives_both():
    document = {"error": {"code": 429}, **OPENAI}
    reader = read(json.dumps(document).encode())
    assert reader.usage == Usage(input=9, output=3, final=True)
    assert reader.error == document


# Streams


def test_openai_states_usage_in_the_last_chunk_if_asked_to():
    body = events(*[CHUNK] * 20, LAST, done=True)
    assert read(body, "text/event-stream; charset=utf-8").usage == Usage(input=9, output=3, final=True)
    assert read(events(*[CHUNK] * 20, done=True), "text/event-stream").usage is None


def test_the_figures_of_an_unfinished_chunk_are_not_final():
    so_far = {**CHUNK, "usage": {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10}}
    assert read(events(so_far), "text/event-stream").usage == Usage(input=9, output=1, final=False)
    whole = read(events(so_far, so_far, LAST), "text/event-stream")
    assert whole.usage == Usage(input=9, output=3, final=True)


def test_the_responses_api_states_usage_in_the_terminal_event():
    body = events(
        {"type": "response.created", "response": {"usage": None}},
        {"type": "response.output_text.delta", "delta": "usage"},
        {"type": "response.completed", "response": {"usage": {"input_tokens": 7, "output_tokens": 8}}},
    )
    assert read(body, "text/event-stream").usage == Usage(input=7, output=8, final=True)


def test_anthropic_counts_output_up_and_does_not_repeat_the_input():
    assert read(events(*ANTHROPIC), "text/event-stream").usage == Usage(
        input=25, output=42, final=True, cached=900, beside=900
    )


def test_the_figures_of_a_stream_that_broke_off_are_not_final():
    broken = read(events(*ANTHROPIC[:2]), "text/event-stream", finish=False)
    assert broken.usage == Usage(input=25, output=1, final=False, cached=900, beside=900)


def test_gemini_counts_on_every_chunk():
    body = events(
        {"usageMetadata": {"promptTokenCount": 5, "candidatesTokenCount": 1}, "candidates": [{}]},
        {
            "usageMetadata": {"promptTokenCount": 5, "candidatesTokenCount": 9},
            "candidates": [{"finishReason": "STOP"}],
        },
    )
    assert read(body, "text/event-stream").usage == Usage(input=5, output=9, final=True)


def test_groq_states_usage_in_a_field_of_its_own():
    body = events(CHUNK, {**CHUNK, "x_groq": {"usage": {"prompt_tokens": 4, "completion_tokens": 5}}})
    assert read(body, "text/event-stream").usage == Usage(input=4, output=5, final=True)


def test_bedrock_states_usage_in_a_binary_frame_at_the_end():
    frame = (
        b'\x00\x00\x01\x9d\x0bmetadata{"usage":{"inputTokens":30,"outputTokens":12,"totalTokens":42}}\xe3\x01'
    )
    body = b'\x00\x00{"delta":{"text":"hi"}}\x88' * 9_000 + frame
    reader = read(body, "application/vnd.amazon.eventstream", size=4_096)
    assert reader.usage == Usage(input=30, output=12, final=True)


def test_an_event_with_the_whole_answer_in_it_may_be_longer_than_what_is_kept():
    text = "word " * 300_000
    body = events(
        {
            "type": "response.completed",
            "response": {"output": text, "usage": {"input_tokens": 7, "output_tokens": 8}},
        }
    )
    for size in (None, 65_536):
        reader = read(body, "text/event-stream", size=size)
        assert reader.usage == Usage(input=7, output=8, final=True)


@given(
    body=st.sampled_from(
        [
            (events(*[CHUNK] * 3, LAST, done=True), Usage(input=9, output=3, final=True)),
            (events(*ANTHROPIC), Usage(input=25, output=42, final=True, cached=900, beside=900)),
            (
                events(*ANTHROPIC).replace(b"\n", b"\r\n"),
                Usage(input=25, output=42, final=True, cached=900, beside=900),
            ),
        ]
    ),
    cuts=st.lists(st.integers(0, 2_000), max_size=40),
    encoding=st.sampled_from(["", "gzip", "deflate"]),
)
def test_it_does_not_matter_where_the_pieces_are_cut(body, cuts, encoding):
    plain, expected = body
    packed = {"": lambda b: b, "gzip": gzip.compress, "deflate": zlib.compress}[encoding](plain)
    reader = UsageReader("text/event-stream", encoding)
    edges = [0, *sorted(cut % len(packed) for cut in cuts), len(packed)]
    for start, end in itertools.pairwise(edges):
        reader.feed(packed[start:end])
    reader.finish()
    assert reader.usage == expected


@given(st.lists(st.binary(max_size=200), max_size=20), st.sampled_from(["gzip", "br", "deflate", "", "?"]))
def test_no_bytes_make_the_reader_raise(chunks, encoding):
    for kind in ("application/json", "text/event-stream", "application/vnd.amazon.eventstream", ""):
        reader = UsageReader(kind, encoding)
        for chunk in chunks:
            reader.feed(chunk)
        reader.finish()
        reader.finish()
        assert reader.usage is None


# Errors inside a success


@pytest.mark.parametrize(
    "document",
    [
        {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
        {"error": {"code": 429, "message": "slow down"}, "choices": [{"finish_reason": "error"}]},
    ],
)
def test_an_error_inside_a_stream_is_noticed(document):
    assert read(events(CHUNK, document), "text/event-stream").error == document
    assert read(json.dumps(document).encode()).error == document


def test_text_that_mentions_errors_is_not_an_error():
    assert read(json.dumps({"content": 'say "error"', "error": None}).encode()).error is None


# Compression


def test_bytes_that_were_unpacked_before_are_read_as_they_are():
    body = json.dumps(OPENAI).encode()
    assert read(body, encoding="gzip").usage is not None
    assert read(body, encoding="br").usage is not None
    assert read(gzip.compress(body), encoding="gzip").usage is not None
    assert read(zlib.compress(body)[2:-4], encoding="deflate").usage is not None, "bare, as some send it"


def test_encodings_that_zlib_cannot_unpack_are_ignored():
    assert read(b"\x1b\x03\x00\xf8", encoding="br").usage is None
    assert unpacked(b"\x1b\x03\x00\xf8", "br") is None
    assert unpacked(b"plain", "") == b"plain"
    assert unpacked(gzip.compress(b"packed"), "gzip") == b"packed"
    assert unpacked(b"not that", "gzip") is None


def test_a_bomb_is_not_unpacked_to_its_end():
    bomb = gzip.compress(b"\x00" * (80 << 20))
    assert unpacked(bomb, "gzip") is None
    assert read(bomb, encoding="gzip").usage is None


def test_usage_of_reads_the_figures_that_an_sdk_has_parsed():
    assert usage_of({"prompt_tokens": 1, "completion_tokens": 2}) == Usage(input=1, output=2, final=True)
    assert usage_of(None) is None
    assert usage_of({}) is None
