"""SeenIds: which ids have an answer, and which a line of the job file has used."""

from hypothesis import given
from hypothesis import strategies as st

from headgate.cli.run.journal import SeenIds


@given(st.lists(st.tuples(st.text(max_size=3), st.booleans())))
def test_seen_ids_agree_with_two_sets(steps):
    ids, added, read = SeenIds(), set(), set()
    for name, is_read in steps:
        if is_read:
            assert ids.read(name) == (name not in read)
            read.add(name)
        else:
            assert ids.add(name) == (name not in added | read)
            added.add(name)
    assert len(ids) == len(added | read)
    assert all(name in ids for name in added | read)
    assert all(ids.was_read(name) == (name in read) for name in added | read)


class SameHash(str):
    __slots__ = ()

    def __hash__(self):
        return 7


def test_two_ids_with_the_same_hash_are_two_jobs():
    ids = SeenIds()
    assert ids.add(SameHash("answered"))
    assert SameHash("to send") not in ids
    assert ids.read(SameHash("to send"))
    assert not ids.was_read(SameHash("answered"))
    assert len(ids) == 2
