"""Where answers are kept: whole lines whatever happens, and each job answered once."""

import json
import os
import resource
import signal

import pytest

from headgate.cli.run.errors import BadJournal
from headgate.cli.run.jobs import Job
from headgate.cli.run.journal import Failures, Journal, answer_line, answers_in, failure_line
from headgate.cli.run.replies import read_reply
from headgate.responses.estimate import NO_SHAPE


def answer(number, body=b'{"usage": {"total_tokens": 3}}'):
    return answer_line(Job(number, f"job-{number}", "POST", "", b"", NO_SHAPE), 200, f"req-{number}", body)


def documents(path):
    raw = path.read_bytes()
    assert raw == b"" or raw.endswith(b"\n")
    return [json.loads(line) for line in raw.splitlines()]


def test_an_answer_has_the_shape_of_openais_batches():
    assert json.loads(answer(4)) == {
        "id": "job_4",
        "custom_id": "job-4",
        "response": {"status_code": 200, "request_id": "req-4", "body": {"usage": {"total_tokens": 3}}},
        "error": None,
    }


def test_a_body_of_many_lines_becomes_one_and_is_otherwise_untouched():
    body = b'{\r\n  "a": 1.0,\n  "big": 12345678901234567890.123, "text": "x\\ny"\n}\n'
    line = answer(1, body)
    assert line.count(b"\n") == 1
    assert b'"big": 12345678901234567890.123' in line
    assert json.loads(line)["response"]["body"] == json.loads(body)


def test_a_failure_has_the_shape_of_an_answer():
    reply = read_reply(400, {"x-request-id": "r"}, b'{"error": {"message": "no such model"}}')
    document = json.loads(failure_line(3, "c", "rejected", "400: no such model", reply))
    assert document["error"] == {"code": "rejected", "message": "400: no such model"}
    assert document["response"]["status_code"] == 400
    assert json.loads(failure_line(3, "c", "failed", "no answer", None))["response"] is None


def test_a_journal_knows_its_answers_when_it_is_opened_again(tmp_path):
    path = tmp_path / "answers.jsonl"
    journal = Journal.open(path)
    journal.write(answer(1))
    journal.write(answer(2))
    journal.sync()
    journal.close()
    seen = []
    again = Journal.open(path, each=seen.append)
    assert "job-1" in again.known
    assert "job-3" not in again.known
    assert len(again.known) == len(seen) == len(answers_in(path)) == 2
    again.write(answer(3))
    again.close()
    assert [document["custom_id"] for document in documents(path)] == ["job-1", "job-2", "job-3"]


def test_a_journal_cut_off_at_any_byte_keeps_every_complete_answer_and_no_torn_one(tmp_path):
    """kill -9 or a power cut at every single byte of the last line."""
    path = tmp_path / "answers.jsonl"
    lines = [answer(1), answer(2)]
    whole = b"".join(lines)
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        journal = Journal.open(path)
        # A line that lacks nothing but its end is an answer, too.
        expected = [n for n in (1, 2) if cut >= sum(map(len, lines[:n])) - 1]
        assert [n for n in (1, 2) if f"job-{n}" in journal.known] == expected
        for number in {1, 2} - set(expected):
            journal.write(answer(number))
        journal.close()
        assert sorted(document["custom_id"] for document in documents(path)) == ["job-1", "job-2"]


def test_zeros_that_a_power_cut_left_at_the_end_are_removed(tmp_path):
    path = tmp_path / "answers.jsonl"
    path.write_bytes(answer(1) + b"\0" * 4096)
    journal = Journal.open(path)
    assert (len(journal.known), journal.repaired) == (1, 4096)
    journal.close()
    assert path.read_bytes() == answer(1)


@pytest.mark.parametrize(
    "content", [b"precious notes", b"precious\nnotes\n", b'{"custom_id": "a"}\n', b"[1]\n"]
)
def test_a_file_that_is_not_a_journal_is_refused_and_left_as_it_is(tmp_path, content):
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(BadJournal, match="not a"):
        Journal.open(path)
    assert path.read_bytes() == content


def test_answers_written_by_another_program_in_that_shape_count(tmp_path):
    path = tmp_path / "answers.jsonl"
    path.write_text('{"response": {"body": {}, "status_code": 200}, "custom_id": "x\\u00e9"}\n')
    journal = Journal.open(path)
    assert "xé" in journal.known
    journal.close()


def test_two_runs_do_not_write_the_same_file(tmp_path):
    path = tmp_path / "answers.jsonl"
    journal = Journal.open(path)
    with pytest.raises(BadJournal, match="another run is writing"):
        Journal.open(path)
    journal.close()
    Journal.open(path).close()


@pytest.mark.parametrize(
    ("name", "why"), [("no/such/answers.jsonl", "no such file"), (".", "is a directory")]
)
def test_a_journal_that_cannot_be_written_is_an_error_with_a_hint(tmp_path, name, why):
    with pytest.raises(BadJournal, match=why) as caught:
        Journal.open(tmp_path / name)
    assert caught.value.hint


def test_a_full_disk_leaves_no_torn_line(tmp_path):
    """The system takes half of a line and then no more: the half is taken off again."""
    path = tmp_path / "answers.jsonl"
    journal = Journal.open(path)
    journal.write(answer(1))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(answer(1)) + 40, before[1]))
    try:
        with pytest.raises(OSError):
            journal.write(answer(2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert path.read_bytes() == answer(1)
    journal.write(answer(2))  # there is room again
    journal.close()
    assert path.read_bytes() == answer(1) + answer(2)


def test_a_journal_on_a_pipe_cannot_be_resumed():
    reader, writer = os.pipe()
    journal = Journal(writer, "stdout")
    journal.write(answer(1))
    journal.sync()
    assert not journal.resumable
    journal.close()
    assert os.read(reader, 4096) == answer(1)
    os.close(reader)


def test_failures_of_an_earlier_run_are_deleted(tmp_path):
    path = tmp_path / "answers.errors.jsonl"
    line = failure_line(1, "a", "rejected", "no", None)
    failures = Failures(path)
    assert not path.exists()
    failures.write(line)
    failures.close()
    assert path.read_bytes() == line
    Failures(path).close()
    assert not path.exists()
    path.write_text("precious")
    with pytest.raises(BadJournal, match="not a file of failures"):
        Failures(path)
    with pytest.raises(BadJournal, match="no such folder"):
        Failures(tmp_path / "no" / "x")
