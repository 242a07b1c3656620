"""The file of failures: nothing is changed that a run for the same answers did not write."""

import json
import os
import resource
from pathlib import Path

import pytest

from headgate.cli.run.answers import answer_line, failure_line
from headgate.cli.run.errors import BadJournal
from headgate.cli.run.errors_file import ErrorsFile, errors_beside
from headgate.cli.run.jobs import Job
from headgate.cli.run.journal import ROOM
from headgate.cli.run.seen import ANSWERED, SeenIds
from headgate.responses.estimate import NO_SHAPE


def failure(name):
    return failure_line(1, name, "rejected", "no", None)


def answered(*names):
    seen = SeenIds()
    for name in names:
        seen.add(name, ANSWERED)
    return seen


def write(path, output, *names, known=()):
    errors = ErrorsFile(path, output)
    for name in names:
        errors.write(failure(name))
    errors.finish(answered(*known))
    errors.close()


def names_in(path):
    header, *lines = path.read_text().splitlines()
    assert "headgate" in json.loads(header)
    return [json.loads(line)["custom_id"] for line in lines]


@pytest.fixture
def output(tmp_path):
    return tmp_path / "answers.jsonl"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "answers.errors.jsonl"


def test_failures_of_all_runs_are_kept_until_their_jobs_have_an_answer(path, output):
    write(path, output, "a", "b", "c")
    assert names_in(path) == ["a", "b", "c"]
    write(path, output, "b", known=["c"])
    assert names_in(path) == ["a", "b"]
    write(path, output, known=["a", "b"])
    assert not path.exists()


def test_a_run_without_failures_leaves_no_file(path, output):
    write(path, output)
    assert not path.exists()


def test_an_empty_file_that_was_there_is_not_removed(path, output):
    path.touch()
    write(path, output)
    assert path.read_bytes() == b""
    write(path, output, "a")
    assert names_in(path) == ["a"]


def own_header(path, output):
    errors = ErrorsFile(path, output)
    errors.close()
    header = path.read_bytes()
    path.unlink()
    return header


@pytest.mark.parametrize(
    "content",
    [
        b"precious",
        b"precious\n",
        failure("a"),
        answer_line(Job(1, "a", "POST", "", b"", NO_SHAPE), 200, "", b"{}"),
        lambda header: header.replace(b"answers.jsonl", b"others.jsonl"),
        lambda header: header + b"precious\n",
        lambda header: header + failure("a") + b"precious",
        lambda header: header + failure("a") + b'{"error": "precious"}\n',
    ],
    ids=range(8),
)
def test_a_file_that_a_run_for_these_answers_did_not_write_is_refused_and_left_as_it_is(
    path, output, content
):
    content = content if isinstance(content, bytes) else content(own_header(path, output))
    path.write_bytes(content)
    with pytest.raises(BadJournal) as caught:
        ErrorsFile(path, output)
    assert "left as it is" in caught.value.hint
    assert path.read_bytes() == content


def test_the_failures_of_other_answers_are_refused_and_a_moved_folder_is_recognised(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    write(tmp_path / "failed.jsonl", tmp_path / "a" / "answers.jsonl", "x")
    with pytest.raises(BadJournal, match="does not hold the failures of these answers"):
        ErrorsFile(tmp_path / "failed.jsonl", tmp_path / "b" / "answers.jsonl")
    write(tmp_path / "a" / "failed.jsonl", tmp_path / "a" / "answers.jsonl", "x")
    (tmp_path / "a").rename(tmp_path / "c")
    write(tmp_path / "c" / "failed.jsonl", tmp_path / "c" / "answers.jsonl", "y")
    assert names_in(tmp_path / "c" / "failed.jsonl") == ["x", "y"]


@pytest.mark.parametrize(
    ("output", "errors"),
    [
        ("answers.jsonl", "answers.errors.jsonl"),
        ("part.1", "part.1.errors.jsonl"),
        ("part.2", "part.2.errors.jsonl"),
        ("part.jsonl.gz", "part.jsonl.gz.errors.jsonl"),
    ],
)
def test_each_file_of_answers_has_a_file_of_failures_of_its_own(tmp_path, output, errors):
    assert errors_beside(tmp_path / output) == tmp_path / errors


def test_two_runs_do_not_share_a_file_of_failures(path, output):
    errors = ErrorsFile(path, output)
    with pytest.raises(BadJournal, match="another run is writing"):
        ErrorsFile(path, output)
    errors.close()


def test_a_torn_file_of_failures_is_repaired_at_every_byte(path, output):
    write(path, output, "a", "b")
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        errors = ErrorsFile(path, output)
        complete = sum(cut >= len(b"".join(lines[: n + 1])) for n in (1, 2))
        assert len(errors.failed) == complete
        errors.write(failure("c"))
        errors.finish(answered())
        errors.close()
        assert names_in(path) == [*["a", "b"][:complete], "c"]


def test_a_full_disk_leaves_whole_lines_and_is_noticed_when_the_file_is_opened(path, output):
    errors = ErrorsFile(path, output)
    errors.write(failure("a"))
    size = path.stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 40, before[1]))
    try:
        with pytest.raises(OSError):
            errors.write(failure("b"))
        errors.finish(answered())
        errors.close()
        assert names_in(path) == ["a"]
        with pytest.raises(BadJournal, match="file too large"):
            ErrorsFile(path, output)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + ROOM, before[1]))
        ErrorsFile(path, output).close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert names_in(path) == ["a"]


def test_failures_may_go_to_a_device(output):
    write(Path(os.devnull), output, "a")
    assert Path(os.devnull).exists()
