"""PackedLines: the lines of a packed file, piece by piece."""

import gzip
from io import BytesIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.cli.run import packing
from headgate.cli.run.packing import PackedLines, packing_of

KINDS = [packing_of(Path(f"answers.jsonl{suffix}")) for suffix in (".gz", ".zst")]
texts = st.lists(st.sampled_from([b"a", b"\n", b"bc", b"\r", b"d" * 40]), max_size=12).map(b"".join)


def lines_of(packed, kind):
    members = PackedLines(BytesIO(packed), kind)
    found = [line for lines, _end in members for line in lines]
    return found, members.rest, members.torn


@pytest.mark.parametrize("kind", KINDS, ids=["gzip", "zstd"])
@given(members=st.lists(texts, min_size=1, max_size=4), chunk=st.integers(1, 30))
def test_the_lines_are_those_of_the_text_wherever_its_pieces_end(kind, members, chunk):
    packed, text = b"".join(map(kind.pack, members)), b"".join(members)
    before, packing._CHUNK = packing._CHUNK, chunk
    try:
        lines, rest, torn = lines_of(packed, kind)
    finally:
        packing._CHUNK = before
    assert lines == [line for line in BytesIO(text).readlines() if line.endswith(b"\n")]
    assert b"".join(lines) + rest == text
    assert not torn


@pytest.mark.parametrize("kind", KINDS, ids=["gzip", "zstd"])
def test_a_member_that_is_cut_off_is_torn_and_its_whole_lines_are_there(kind):
    whole, cut = kind.pack(b"one\ntwo\n"), kind.pack(b"three\nfour\n")
    lines, _rest, torn = lines_of(whole + cut[:-3], kind)
    assert lines[:2] == [b"one\n", b"two\n"]
    assert torn


class Piece(bytes):
    """Counts the bytes that are copied to put it behind others."""

    copied = 0

    def __radd__(self, before):
        Piece.copied += len(before)
        return Piece(before + bytes(self))


def test_a_line_of_many_pieces_is_put_together_once(monkeypatch):
    """Not with each of its pieces: the time would grow by the square of its length."""
    monkeypatch.setattr(packing, "_CHUNK", 64)

    class Unpacker:
        eof, unused_data = False, b""

        def decompress(self, chunk):
            return Piece(chunk)

    kind = packing_of(Path("answers.jsonl.gz"))._replace(unpacker=Unpacker)
    text = b"x" * 64_000 + b"\nshort\n"
    Piece.copied = 0
    lines, rest, _torn = lines_of(text, kind)
    assert (b"".join(lines), len(lines), rest) == (text, 2, b"")
    assert Piece.copied < 2 * len(text)


def test_packed_lines_are_read_from_a_real_file(tmp_path):
    path = tmp_path / "jobs.jsonl.gz"
    path.write_bytes(gzip.compress(b"1\n") + gzip.compress(b"2\n"))
    with path.open("rb") as file:
        assert [lines for lines, _end in PackedLines(file, packing_of(path)) if lines] == [[b"1\n"], [b"2\n"]]
