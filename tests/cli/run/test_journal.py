"""Where answers are kept: whole lines whatever happens, and each job answered once."""

import gzip
import json
import os
import random
import resource
import signal
import sys
from importlib.util import find_spec

import pytest

from headgate.cli.run import journal as journal_module
from headgate.cli.run.answers import answer_line, failure_line
from headgate.cli.run.errors import BadJournal
from headgate.cli.run.jobs import Job
from headgate.cli.run.journal import ROOM, Journal, answers_in
from headgate.cli.run.packing import packing_of
from headgate.cli.run.seen import ANSWERED
from headgate.responses.estimate import NO_SHAPE

has_zstd = find_spec("backports.zstd" if sys.version_info < (3, 14) else "compression.zstd") is not None
no_zstd = pytest.mark.skipif(not has_zstd, reason="backports.zstd is not installed")
PACKED = ["", ".gz", pytest.param(".zst", marks=no_zstd)]


def answer(number, body=b'{"usage": {"total_tokens": 3}}'):
    job = Job(number, f"job-{number}", "POST", "", b"", NO_SHAPE, digest=number)
    return answer_line(job, 200, f"req-{number}", body)


def is_known(journal, number):
    return journal.known.get(f"job-{number}") == (ANSWERED, number)


def documents(path):
    raw = path.read_bytes()
    if path.suffix != ".jsonl":
        with packing_of(path).open(path) as file:
            raw = file.read()
    assert raw == b"" or raw.endswith(b"\n")
    return [json.loads(line) for line in raw.splitlines()]


def test_a_journal_knows_its_answers_when_it_is_opened_again(tmp_path):
    path = tmp_path / "answers.jsonl"
    journal = Journal.open(path)
    journal.write(answer(1))
    journal.write(answer(2))
    journal.sync()
    journal.close()
    seen = []
    again = Journal.open(path, each=seen.append)
    assert is_known(again, 1)
    assert not again.known.get("job-3").marks
    assert len(again.known) == len(seen) == len(answers_in(path)) == 2
    again.write(answer(3))
    again.close()
    assert [document["custom_id"] for document in documents(path)] == ["job-1", "job-2", "job-3"]


@pytest.mark.parametrize("suffix", PACKED)
def test_a_journal_cut_off_at_any_of_its_last_200_bytes_keeps_every_complete_answer(tmp_path, suffix):
    """kill -9 or a power cut at every single byte: nothing is lost but what was being written."""
    path = tmp_path / f"answers.jsonl{suffix}"
    journal = Journal.open(path)
    ends = []
    for number in (1, 2, 3):
        journal.write(answer(number))
        ends.append(path.stat().st_size)
    journal.close()
    whole = path.read_bytes()
    for cut in range(max(0, len(whole) - 200), len(whole) + 1):
        path.write_bytes(whole[:cut])
        journal = Journal.open(path)
        # A line that lacks nothing but its end is an answer, too; a packed member is not.
        expected = [n for n in (1, 2, 3) if cut >= ends[n - 1] - (not suffix)]
        assert [n for n in (1, 2, 3) if is_known(journal, n)] == expected
        for number in sorted({1, 2, 3} - set(expected)):
            journal.write(answer(number))
        journal.close()
        assert len(answers_in(path)) == 3
        assert [document["custom_id"] for document in documents(path)] == ["job-1", "job-2", "job-3"]


def test_a_packed_journal_is_read_by_the_usual_programs_and_goes_on_with_their_files(tmp_path):
    path = tmp_path / "answers.jsonl.gz"
    path.write_bytes(gzip.compress(answer(1) + answer(2)))  # as `gzip answers.jsonl` leaves it
    journal = Journal.open(path)
    assert [is_known(journal, n) for n in (1, 2, 3)] == [True, True, False]
    journal.write(answer(3))
    journal.close()
    assert gzip.decompress(path.read_bytes()) == answer(1) + answer(2) + answer(3)


@pytest.mark.parametrize("suffix", PACKED[1:])
def test_a_torn_member_of_any_length_with_one_answer_is_removed_and_one_with_several_is_not(
    tmp_path, monkeypatch, suffix
):
    monkeypatch.setattr(journal_module, "_LONGEST_TORN_MEMBER", 1_000)
    path = tmp_path / f"answers.jsonl{suffix}"
    journal = Journal.open(path)
    journal.write(answer(1))
    whole = path.read_bytes()
    chance = random.Random(7)
    # Random digits stay longer than what an unpacker keeps back.
    large = [answer(number, json.dumps(chance.randbytes(200_000).hex()).encode()) for number in (2, 3)]
    journal.write(large[0])
    journal.close()
    for kept in (len(path.read_bytes()) - 1, len(whole) + 150_000):
        os.truncate(path, kept)
        journal = Journal.open(path)
        assert (journal.repaired, len(journal.known)) == (kept - len(whole), 1)
        journal.close()
        assert path.read_bytes() == whole
        journal = Journal.open(path)
        journal.write(large[0])
        journal.close()
    os.truncate(path, len(whole))
    journal = Journal.open(path)
    journal.write(large[0] + large[1])
    journal.close()
    content = path.read_bytes()[:-1]
    path.write_bytes(content)
    with pytest.raises(BadJournal, match="not a packed file of answers"):
        Journal.open(path)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    "content",
    [b"precious", gzip.compress(b"precious"), gzip.compress(b"precious")[:-3]],
    ids=["plain", "packed", "packed and torn"],
)
def test_a_packed_file_that_is_not_a_journal_is_refused_and_left_as_it_is(tmp_path, content):
    path = tmp_path / "notes.gz"
    path.write_bytes(content)
    with pytest.raises(BadJournal):
        Journal.open(path)
    assert path.read_bytes() == content


def test_zeros_that_a_power_cut_left_at_the_end_are_removed(tmp_path):
    path = tmp_path / "answers.jsonl"
    path.write_bytes(answer(1) + b"\0" * 4096)
    journal = Journal.open(path)
    assert (len(journal.known), journal.repaired) == (1, 4096)
    journal.close()
    assert path.read_bytes() == answer(1)


@pytest.mark.parametrize(
    "content",
    [
        b"precious notes",
        b"precious\nnotes\n",
        b'{"custom_id": "a"}\n',
        b"[1]\n",
        answer(1) + b"precious notes",  # and no line break
        answer(1) + b"precious notes\n" + answer(2),
        failure_line(1, "a", "failed", "no", None) + b"x",
    ],
)
def test_a_file_that_is_not_a_journal_is_refused_and_left_as_it_is(tmp_path, content):
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(BadJournal, match=r"not an? "):
        Journal.open(path)
    assert path.read_bytes() == content


def test_answers_written_by_another_program_in_that_shape_count(tmp_path):
    path = tmp_path / "answers.jsonl"
    path.write_text('{"response": {"body": {}, "status_code": 200}, "custom_id": "x\\u00e9"}\n')
    journal = Journal.open(path)
    assert journal.known.get("xé") == (ANSWERED, None)
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


def test_a_full_disk_is_noticed_when_the_journal_is_opened(tmp_path):
    path = tmp_path / "answers.jsonl"
    path.write_bytes(answer(1))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(answer(1)) + ROOM // 2, before[1]))
    try:
        with pytest.raises(BadJournal, match="file too large") as caught:
            Journal.open(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "make room" in caught.value.hint
    assert path.read_bytes() == answer(1)
