"""SeenIds: which ids have an answer, and which a line of the job file has used."""

from hypothesis import given
from hypothesis import strategies as st

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
