"""SeenIds: which ids have an answer, and which a line of the job file has used."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.cli.run import seen
from headgate.cli.run.seen import ANSWERED, FAILED, NEVER_SEEN, READ, SeenIds

IDS = st.text(max_size=3) | st.sampled_from(["\ud800", "a" * 512])
STEPS = st.tuples(IDS, st.sampled_from([ANSWERED, READ, FAILED, None]), st.none() | st.integers(0, 2**32 - 1))


@given(st.lists(STEPS))
def test_seen_ids_agree_with_a_dictionary(steps):
    ids, model = SeenIds(), {}
    for name, mark, digest in steps:
        if mark is None:
            ids.remove(name)
            model.pop(name, None)
            continue
        before = model.get(name, (0, None))
        assert ids.add(name, mark, digest) == before
        model[name] = (before[0] | mark, before[1] if digest is None else digest)
    assert len(ids) == len(model)
    assert all(ids.get(name) == known for name, known in model.items())
    assert ids.get("never") == NEVER_SEEN


def test_a_hundred_thousand_ids_take_less_than_5_megabytes():
    ids = SeenIds()
    for number in range(100_000):
        ids.add(f"request-{number}", READ, number)
    assert all(ids.get(f"request-{number}") == (READ, number) for number in range(0, 100_000, 997))
    size = sum(bucket.__sizeof__() for bucket in ids._buckets if bucket is not None)
    assert size - 57 * len(ids._buckets) < 5_000_000


@pytest.fixture
def hashes(monkeypatch):
    """The hash of each id, as the test says: where its bucket is, and then its key."""

    class Hash:
        def __init__(self, data, digest_size):
            assert digest_size == 13
            self.data = data

        def digest(self):
            return b"\0\0" + known[self.data.decode()]

    known = {}
    monkeypatch.setattr(seen, "blake2b", Hash)
    return known


def test_the_end_of_one_entry_and_the_beginning_of_the_next_are_not_taken_for_an_id(hashes):
    """The key of c is the last bytes of a's entry and the first of b's."""
    hashes.update(a=b"A" * 11, b=b"B" * 11, c=b"A" * 3 + b"\1\0\0\0\0" + b"B" * 3, d=b"D" * 11)
    ids = SeenIds()
    ids.add("a", ANSWERED)
    ids.add("b", READ)
    assert ids.get("c") == NEVER_SEEN
    ids.remove("c")
    assert (len(ids), ids.get("a"), ids.get("b")) == (2, (ANSWERED, None), (READ, None))
    assert ids.add("c", FAILED, 7) == NEVER_SEEN
    assert (len(ids), ids.get("c")) == (3, (FAILED, 7))
    ids.remove("a")
    assert [ids.get(name) for name in "abcd"] == [NEVER_SEEN, (READ, None), (FAILED, 7), NEVER_SEEN]
