"""What is to be sent: three shapes, joined to one address, and errors that name the line."""

import asyncio
import gzip
import json
import os
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.cli.run.errors import BadJob, BadTarget
from headgate.cli.run.jobs import quick_id, read_job, read_jobs
from headgate.cli.run.lines import Line, Lines, Pipe
from headgate.cli.run.options import RunOptions
from headgate.cli.run.preflight import check_jobs
from headgate.cli.run.target import Target

API = Target("https://api.example.com")
CHAT = Target("https://api.example.com/v1/chat/completions")
BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def line(**document):
    return json.dumps(document).encode()


def read(raw, target=API, number=7):
    return read_job(Line("jobs.jsonl", number, raw), target)


def complaint(raw, target=API):
    with pytest.raises(BadJob) as caught:
        read(raw, target)
    assert str(caught.value).startswith("jobs.jsonl, line 7: ")
    assert caught.value.hint
    return caught.value.complaint


def test_a_line_of_an_openai_batch():
    job = read(line(custom_id="a", method="POST", url="/v1/chat/completions", body=BODY))
    assert (job.number, job.custom_id, job.method) == (7, "a", "POST")
    assert job.url == "https://api.example.com/v1/chat/completions"
    assert json.loads(job.body) == BODY


def test_a_line_of_an_anthropic_batch_goes_to_messages():
    job = read(line(custom_id="a", params=BODY))
    assert job.url == "https://api.example.com/v1/messages"
    assert json.loads(job.body) == BODY


def test_a_bare_body_goes_to_the_whole_address_and_is_named_by_its_line_and_content():
    job = read(line(**BODY), CHAT)
    assert job.url == "https://api.example.com/v1/chat/completions"
    assert job.custom_id.startswith("line-7-")
    assert read(line(**BODY), CHAT).custom_id == job.custom_id
    assert read(line(**BODY, n=2), CHAT).custom_id != job.custom_id


@pytest.mark.parametrize(
    "to", ["https://a.b", "https://a.b/v1", "https://a.b/openai/v1beta/", "https://a.b/api"]
)
def test_a_bare_body_cannot_go_to_a_base_address(to):
    with pytest.raises(BadJob, match="does not say where it goes"):
        read(line(**BODY), Target(to))


@pytest.mark.parametrize("body", [{}, {"body": None}])
@pytest.mark.parametrize("method", ["get", "DELETE"])
def test_a_get_or_a_delete_needs_no_body(method, body):
    job = read(line(custom_id="a", method=method, url="/v1/models", **body))
    assert (job.method, job.body) == (method.upper(), b"")


def test_a_line_of_a_gemini_batch_goes_to_its_model():
    model = "https://a.b/v1beta/models/gemini-x:generateContent"
    for to, request in ((model, {"contents": []}), ("https://a.b", {"model": "models/gemini-x"})):
        job = read(line(key="a", request=request), Target(to))
        assert (job.custom_id, job.url, json.loads(job.body)) == ("a", model, request)
    assert "does not name its model" in complaint(line(key="a", request={"contents": []}))


def test_a_body_is_sent_as_it_is_written():
    written = '{"n": 12345678901234567890.123,  "huge": 1e999, "t": "\\u00e9 \u00e9", "e": {"body": []}}'
    for raw in (
        f'{{"custom_id": "a", "url": "/x", "body": {written}}}',
        f' {{"body" : {written} , "x": [{{}}], "url":"/x","custom_id":"a" }}\r\n',
        f'{{"custom_id": "\u00e9", "params": {written}}}',
    ):
        assert read(raw.encode()).body == written.encode()
    assert read(f"  {written}\n".encode(), CHAT).body == written.encode()


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity"])
def test_a_constant_that_is_not_json_is_never_sent(constant):
    raw = f'{{"custom_id": "a", "url": "/x", "body": {{"n": {constant}}}}}'
    assert complaint(raw.encode()) == f"not JSON ({constant} is not a JSON value)"


def test_lines_of_several_files_follow_each_other_and_are_told_apart(tmp_path):
    one, two = tmp_path / "one.jsonl", tmp_path / "two.jsonl.gz"
    one.write_bytes(line(**BODY) + b"\n\n" + b"oops\n")
    two.write_bytes(gzip.compress(line(**BODY)))
    first, bad, second = read_jobs(Lines([one, two]), CHAT)
    assert str(bad).startswith("one.jsonl, line 3: ")
    assert first.custom_id.startswith("one.jsonl:line-1-")
    assert second.custom_id.startswith("two.jsonl.gz:line-1-")
    assert Lines([one, two]).count() == 3


@pytest.mark.parametrize(
    ("to", "path", "whole"),
    [
        ("https://a.b", "/v1/x", "https://a.b/v1/x"),
        ("https://a.b/", "/v1/x", "https://a.b/v1/x"),
        ("https://a.b/v1", "/v1/x", "https://a.b/v1/x"),
        ("https://a.b/v1/", "/v1/x", "https://a.b/v1/x"),
        ("https://a.b/v1/x", "/v1/x", "https://a.b/v1/x"),
        ("https://a.b/proxy", "/v1/x", "https://a.b/proxy/v1/x"),
        ("https://a.b/proxy/v1", "/v1/x", "https://a.b/proxy/v1/x"),
        ("https://a.b/proxy?k=1", "/v1/x", "https://a.b/proxy/v1/x?k=1"),
        ("https://a.b", "/v1/x?y=2", "https://a.b/v1/x?y=2"),
        ("http://127.0.0.1:8000/v1", "/v1/x", "http://127.0.0.1:8000/v1/x"),
    ],
)
def test_segments_that_address_and_path_share_appear_once(to, path, whole):
    assert Target(to).join(path) == whole


@pytest.mark.parametrize(
    ("to", "hint"),
    [
        ("api.example.com", "https://api.example.com"),
        ("htps://api.example.com", "http or https"),
        ("https://", "https://api.openai.com"),
        ("https://a b", "https://api.openai.com"),
        ("https://a:99999", "https://api.openai.com"),
        ("https://me:secret@a.b", "--header"),
        ("https://a.b/#x", "leave it out"),
    ],
)
def test_a_wrong_address_is_an_error_that_says_what_to_write(to, hint):
    with pytest.raises(BadTarget) as caught:
        Target(to)
    assert hint in caught.value.hint
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b'{"custom_id": "a", "body"', "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'"text"', "not an object"),
        (b"{}", "empty"),
        (b"\xff\xfe\x00", "not UTF-8"),
        (line(custom_id="a"), "neither `body` nor `params`"),
        (line(custom_id="", url="/x", body={}), "`custom_id` is"),
        (line(custom_id=5, url="/x", body={}), "`custom_id` is 5"),
        (line(url="/x", body={}), "no `custom_id`"),
        (line(custom_id="a" * 600, url="/x", body={}), "600 characters"),
        (line(custom_id="a", body={}), "no `url`"),
        (line(custom_id="a", url="x", body={}), "not a path"),
        (line(custom_id="a", url="//evil.com/x", body={}), "not a path"),
        (line(custom_id="a", url="/x y", body={}), "not a path"),
        (line(custom_id="a", url="https://evil.com/x", body={}), "evil.com"),
        (line(custom_id="a", url="/x", method="BREW", body={}), "BREW"),
        (line(custom_id="a", url="/x", body=[1]), "`body` is [1]"),
        (line(custom_id="a", params="x"), "`params` is"),
        (line(custom_id="a", url="/x", body={"stream": True}), "`stream`"),
        (line(**BODY), "does not say where it goes"),
    ],
)
def test_the_error_of_a_bad_line_names_file_and_line(raw, why):
    assert why in complaint(raw)


@given(
    st.binary(max_size=60)
    | st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["custom_id", "url", "method", "body", "params", "stream"]), inner, max_size=5
            )
        ),
    )
)
def test_any_line_is_either_a_job_or_a_bad_job(raw):
    raw = raw if isinstance(raw, bytes) else json.dumps(raw).encode()
    try:
        job = read(raw)
    except BadJob:
        return
    assert job.url.startswith("https://api.example.com/")


def test_quick_id_finds_an_id_at_the_beginning_without_parsing_the_line():
    assert quick_id(line(custom_id="é/1", url="/x", body={})) is None  # escaped
    assert quick_id('{ "custom_id" : "é/1", "body": oops'.encode()) == "é/1"
    assert quick_id(line(custom_id="a")) is None
    assert quick_id(line(body={"custom_id": "b"}, custom_id="a")) is None
    assert quick_id(b'{"custom_id": "\xff", ') is None


def test_half_a_surrogate_pair_is_sent_as_it_was_written():
    job = read(b'{"custom_id": "a", "url": "/x", "body": {"text": "\\ud83d"}}')
    assert json.loads(job.body) == {"text": "\ud83d"}


def test_blank_lines_and_a_byte_order_mark_are_skipped(tmp_path):
    path = tmp_path / "jobs.jsonl"
    path.write_bytes(b"\xef\xbb\xbf{}\r\n\n   \n[]")
    lines = Lines([path])
    assert [(line.number, line.content) for line in lines] == [(1, b"{}\r\n"), (4, b"[]")]
    assert lines.count() == 2
    lines.close()


def test_bad_lines_and_ids_used_twice_are_found(tmp_path):
    path = tmp_path / "jobs.jsonl"
    jobs = [line(custom_id=str(n), params=BODY) for n in range(50)]
    jobs[20] = b"oops"
    jobs[30] = jobs[3]
    path.write_bytes(b"\n".join(jobs))
    first = "jobs.jsonl, line 21: not JSON (Expecting value: line 1 column 1 (char 0))"
    with pytest.raises(BadJob, match=re.escape(first)):
        check_jobs(RunOptions(jobs=(path,), to="x"), API, seconds=60)
    assert check_jobs(RunOptions(jobs=(path,), to="x", skip_invalid=True), API, seconds=60) is None
    read = list(read_jobs(Lines([path]), API))
    assert len(read) == 50
    bad = [str(job) for job in read if isinstance(job, BadJob)]
    assert bad[0] == first
    assert "line 31: `custom_id` '3' has been used before" in bad[1]


def test_the_check_of_jobs_counts_them_and_stops_after_its_time(tmp_path):
    path = tmp_path / "jobs.jsonl"
    path.write_bytes(b"\n".join(line(custom_id=str(n), params=BODY) for n in range(1000)))
    options = RunOptions(jobs=(path,), to="x")
    assert check_jobs(options, API, seconds=60) == 1000
    assert check_jobs(options, API, seconds=0.0) is None


def test_every_waiting_caller_gets_a_line_of_the_pipe():
    reader, writer = os.pipe()

    async def main():
        pipe = Pipe(reader, "stdin", asyncio.get_running_loop(), ahead=2)
        waiting = [asyncio.create_task(pipe.next()) for _ in range(3)]
        await asyncio.sleep(0)
        os.write(writer, b"one\ntw")
        os.write(writer, b"o\n\nthree\nfour\nfive")
        os.close(writer)
        lines = [await task for task in waiting]
        while (item := await pipe.next()) is not None:
            lines.append(item)
        assert await pipe.next() is None
        return lines

    assert sorted((line.number, line.content) for line in asyncio.run(main())) == [
        (1, b"one\n"),
        (2, b"two\n"),
        (4, b"three\n"),
        (5, b"four\n"),
        (6, b"five"),
    ]
    os.close(reader)
