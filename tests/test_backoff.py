"""Backoff: delays as a value."""

import copy
import pickle
from datetime import timedelta
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headgate import Backoff, InvalidCapacity, InvalidConfig, InvalidWindow

STRATEGIES = ["exponential", "linear", "constant"]
JITTERS = [
    "none",
    "full",
    "decorrelated",
    ("factor", 0.25),
    ("factor", 1),
    ("additive", 0.1),
    ("additive", 3),
    ("range", 0.5, 1.5),
    ("range", 0.75, 1.0),
    ("range", 0, 2),
]
MILLION = 1_000_000

jitters = st.one_of(
    st.sampled_from(["none", "full", "decorrelated"]),
    st.tuples(st.just("factor"), st.floats(0, 1)),
    st.tuples(st.just("additive"), st.floats(0, 10)),
    st.tuples(st.floats(0, 3), st.floats(0.001, 3)).map(lambda pair: ("range", *sorted(pair))),
)
draws = st.floats(0, 1, exclude_max=True)


@st.composite
def backoffs(draw, jitter=jitters):
    base = draw(st.floats(0.001, 100))
    cap = draw(st.one_of(st.none(), st.floats(base, 10_000)))
    return Backoff(
        base,
        cap,
        strategy=draw(st.sampled_from(STRATEGIES)),
        factor=draw(st.floats(1, 10)),
        jitter=draw(jitter),
    )


def at(draw):
    """A function that always draws this number."""
    return lambda: draw


# -- delays


@pytest.mark.parametrize(
    ("backoff", "retry", "draw", "seconds"),
    [
        (Backoff(0.1, 1), 0, 0, 0.1),
        (Backoff(0.1, 1), 1, 0, 0.2),
        (Backoff(0.1, 1), 2, 0, 0.4),
        (Backoff(0.1, 1), 3, 0, 0.8),
        (Backoff(0.1, 1), 4, 0, 1.0),
        (Backoff(0.1, 0.5, strategy="linear"), 0, 0, 0.1),
        (Backoff(0.1, 0.5, strategy="linear"), 1, 0, 0.2),
        (Backoff(0.1, 0.5, strategy="linear"), 4, 0, 0.5),
        (Backoff(0.1, 0.5, strategy="linear"), 5, 0, 0.5),
        (Backoff(0.25, strategy="constant"), 0, 0, 0.25),
        (Backoff(0.25, strategy="constant"), 7, 0.9, 0.25),
        (Backoff(0.25, strategy="constant"), MILLION, 0.9, 0.25),
        (Backoff(1, strategy="constant", jitter=("factor", 0.25)), 0, 0, 0.75),
        (Backoff(1, strategy="constant", jitter=("factor", 0.25)), 0, 1, 1.0),
        (Backoff(1, strategy="constant", jitter=("additive", 0.1)), 0, 0, 1.0),
        (Backoff(1, strategy="constant", jitter=("additive", 0.1)), 0, 1, 1.1),
        (Backoff(1, strategy="constant", jitter=("range", 0.75, 1.0)), 0, 0, 0.75),
        (Backoff(1, strategy="constant", jitter=("range", 0.75, 1.0)), 0, 1, 1.0),
        (Backoff(0.1, 0.5, strategy="linear", jitter=("factor", 0.25)), 1, 0, 0.15),
    ],
)
def test_delays_in_seconds(backoff, retry, draw, seconds):
    assert backoff.delay(retry, random=at(draw)) == seconds


def test_the_defaults_are_exponential_from_one_second_to_ten_without_jitter():
    assert Backoff() == Backoff(1.0, 10.0, strategy="exponential", factor=2.0, jitter="none")
    assert [Backoff().delay(retry) for retry in range(6)] == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


def test_exponential_delays_grow_by_the_factor():
    assert [Backoff(1, 100, factor=3).delay(retry) for retry in range(6)] == [
        1.0,
        3.0,
        9.0,
        27.0,
        81.0,
        100.0,
    ]
    assert [Backoff(1, 100, factor=1).delay(retry) for retry in range(3)] == [1.0, 1.0, 1.0]


def test_base_cap_and_previous_may_be_timedeltas():
    assert Backoff(timedelta(seconds=1), timedelta(minutes=1)) == Backoff(1, 60)
    backoff = Backoff(1, 60, jitter="decorrelated")
    assert backoff.delay(1, previous=timedelta(seconds=5), random=at(1)) == 15.0


@pytest.mark.parametrize(
    ("retry", "low", "high"),
    [(0, 0.375, 0.5), (1, 0.75, 1.0), (4, 6.0, 8.0), (5, 7.5, 10.0), (99, 7.5, 10.0)],
)
def test_factor_jitter_of_a_quarter_is_three_quarters_to_the_whole_delay(retry, low, high):
    backoff = Backoff(0.5, 10, jitter=("range", 0.75, 1.0))
    assert backoff.delay(retry, random=at(0)) == low
    assert backoff.delay(retry, random=at(1)) == high


def test_delays_below_one_second():
    assert (Backoff(0.1, 1).delay(3), Backoff(0.1, 1).delay(4)) == (0.8, 1.0)


def test_without_random_the_delay_is_the_middle_one():
    assert Backoff(2, 10, jitter="full").delay(0) == 1.0
    assert Backoff(2, 10, jitter=("range", 0.5, 1.5)).delay(0) == 2.0


# -- jitter


def test_full_jitter_is_zero_to_the_whole_delay():
    backoff = Backoff(1, 60, jitter="full")
    assert [backoff.delay(3, random=at(draw)) for draw in (0, 0.25, 0.5, 1)] == [0.0, 2.0, 4.0, 8.0]


def test_decorrelated_jitter_is_the_base_to_three_times_the_last_delay():
    backoff = Backoff(1, 60, jitter="decorrelated")
    assert [backoff.delay(0, random=at(draw)) for draw in (0, 0.5, 1)] == [1.0, 2.0, 3.0]
    assert [backoff.delay(1, previous=10, random=at(draw)) for draw in (0, 0.5, 1)] == [1.0, 15.5, 30.0]
    assert backoff.delay(2, previous=50, random=at(1)) == 60.0


@pytest.mark.parametrize("jitter", [("factor", 0), ("additive", 0), ("range", 1, 1)])
def test_jitter_of_width_zero_changes_nothing(jitter):
    backoff = Backoff(1, 10, jitter=jitter)
    assert {backoff.delay(2, random=at(draw)) for draw in (0, 0.3, 1)} == {4.0}


def test_a_jitter_may_be_written_as_a_list():
    assert Backoff(jitter=["factor", 0.25]) == Backoff(jitter=("factor", 0.25))


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("jitter", [jitter for jitter in JITTERS if jitter != "none"])
def test_delays_that_reached_the_cap_stay_spread(strategy, jitter):
    """A thousand clients at the cap do not return together, and none waits longer than the cap."""
    base = 1 if jitter == "decorrelated" else 10  # it spreads from the base upwards
    backoff = Backoff(base, 10, strategy=strategy, jitter=jitter)
    waits = [backoff.delay(50, previous=9, random=at(step / 1000)) for step in range(1001)]
    assert max(waits) <= 10.0
    assert len(set(waits)) > 900
    assert max(waits) - min(waits) > 0.5


@pytest.mark.parametrize(
    ("jitter", "low", "high"),
    [
        (("factor", 0.25), 7.5, 10.0),
        (("additive", 0.25), 8.0, 10.0),
        (("range", 0.5, 1.5), 10 / 3, 10.0),
        (("range", 0.5, 0.75), 5.0, 7.5),
        ("full", 0.0, 10.0),
    ],
)
def test_at_the_cap_the_range_of_jitter_is_moved_below_it(jitter, low, high):
    backoff = Backoff(1, 10, jitter=jitter)
    assert backoff.delay(20, random=at(0)) == pytest.approx(low, abs=1e-8)
    assert backoff.delay(20, random=at(1)) == pytest.approx(high, abs=1e-8)


# -- overflow


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("jitter", JITTERS)
@pytest.mark.parametrize("cap", [10.0, None])
def test_the_delay_of_retry_one_million_does_not_overflow(strategy, jitter, cap):
    backoff = Backoff(1, cap, strategy=strategy, jitter=jitter)
    longest = 10.0 if cap else 1 << 62
    for retry in (0, 62, 63, 64, 1023, 1024, 1025, 5000, MILLION):
        previous = None
        for draw in (0.0, 0.5, 1.0):
            previous = backoff.delay(retry, previous=previous, random=at(draw))
            assert 0.0 <= previous <= longest


@pytest.mark.parametrize("factor", [1.0001, 2, 10, 1e300])
def test_the_delay_of_retry_one_million_is_the_cap(factor):
    assert Backoff(1, 10, factor=factor).delay(MILLION) == 10.0
    assert Backoff(1, 10, strategy="linear").delay(MILLION) == 10.0


def test_without_a_cap_delays_grow_beyond_a_century():
    backoff = Backoff(1, None)
    assert backoff.delay(20) == 2.0**20
    assert backoff.delay(MILLION) > 100 * 365 * 86_400


# -- laws


@given(backoffs(), st.integers(0, 10**7), draws, st.none() | st.floats(0, 1e5))
def test_the_cap_is_never_exceeded_and_no_delay_is_negative(backoff, retry, draw, previous):
    delay = backoff.delay(retry, previous=previous, random=at(draw))
    assert 0.0 <= delay <= backoff.cap_ns / 1e9


@given(backoffs(), st.integers(0, 200), draws, draws)
def test_a_higher_draw_is_never_a_shorter_delay(backoff, retry, one, two):
    low, high = sorted((one, two))
    assert backoff.delay(retry, random=at(low)) <= backoff.delay(retry, random=at(high))


@given(backoffs(jitter=st.just("none")))
def test_without_jitter_delays_never_shrink_and_start_with_the_base(backoff):
    waits = [backoff.delay(retry) for retry in range(70)]
    assert all(one <= two for one, two in pairwise(waits))
    assert waits[0] == backoff.base_ns / 1e9


@given(st.floats(0.001, 10), st.floats(0, 1), st.integers(0, 30), draws)
@example(1.0, 0.25, 3, 0.0)
def test_factor_jitter_stays_within_its_bounds(base, part, retry, draw):
    whole = Backoff(base, 1000).delay(retry)
    delay = Backoff(base, 1000, jitter=("factor", part)).delay(retry, random=at(draw))
    assert (1 - part) * whole - 2e-9 <= delay <= whole + 2e-9


@given(backoffs())
def test_a_backoff_can_be_copied_pickled_and_compared(backoff):
    again = pickle.loads(pickle.dumps(backoff))
    assert again == backoff == copy.deepcopy(backoff) == copy.copy(backoff)
    assert hash(again) == hash(backoff)
    assert repr(again) == repr(backoff)
    assert [again.delay(retry) for retry in range(5)] == [backoff.delay(retry) for retry in range(5)]


# -- a value


def test_a_backoff_is_a_value_that_cannot_change():
    backoff = Backoff(0.5, cap=10)
    assert backoff == Backoff(0.5, 10.0)
    assert len({backoff, Backoff(0.5, 10), Backoff(0.5, 11)}) == 2
    assert backoff != Backoff(0.5, 10, jitter="full")
    assert backoff != "Backoff(0.5, 10)"
    with pytest.raises(AttributeError, match="cannot change"):
        backoff.factor = 3.0
    with pytest.raises(AttributeError, match="cannot change"):
        del backoff.jitter


@pytest.mark.parametrize(
    "backoff",
    [
        Backoff(),
        Backoff(0.5, cap=10),
        Backoff(0.25, None),
        Backoff(1, 60, factor=3, jitter=("range", 0.5, 1.5)),
        Backoff(2, 60, strategy="linear", jitter="full"),
        Backoff(2, 60, strategy="constant", jitter=("factor", 0.25)),
        Backoff(1.5, 60, jitter="decorrelated"),
    ],
)
def test_the_repr_of_a_backoff_evaluates_to_it(backoff):
    assert eval(repr(backoff)) == backoff


@pytest.mark.parametrize(
    "backoff", [Backoff(1.2345678), Backoff(1, factor=1.2345678), Backoff(1, strategy="linear", factor=3)]
)
def test_the_repr_of_a_backoff_keeps_every_digit(backoff):
    """Two values that differ have different reprs, as those of Rate."""
    assert eval(repr(backoff)) == backoff


# -- bad arguments


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"base": 0}, InvalidWindow, "base=0 "),
        ({"base": -1}, InvalidWindow, "base=-1 "),
        ({"base": "1"}, InvalidWindow, "base='1' "),
        ({"base": None}, InvalidWindow, "base=None "),
        ({"base": True}, InvalidWindow, "base=True "),
        ({"base": float("nan")}, InvalidWindow, "base=nan "),
        ({"base": float("inf")}, InvalidWindow, "base=inf "),
        ({"base": 1e-10}, InvalidWindow, "base=1e-10 "),
        ({"base": timedelta(0)}, InvalidWindow, "lasts no time"),
        ({"base": 20}, InvalidWindow, "cap=10.0 is less than base=20"),  # with the default cap
        ({"base": 2, "cap": 1}, InvalidWindow, "cap=1 is less than base=2"),
        ({"cap": 0}, InvalidWindow, "cap=0 "),
        ({"cap": -1}, InvalidWindow, "cap=-1 "),
        ({"cap": float("inf")}, InvalidWindow, "cap=inf "),
        ({"cap": "10"}, InvalidWindow, "cap='10' "),
        ({"strategy": "quadratic"}, InvalidConfig, "strategy='quadratic'"),
        ({"strategy": None}, InvalidConfig, "strategy=None"),
        ({"strategy": ["linear"]}, InvalidConfig, "strategy=['linear']"),
        ({"factor": 0.5}, InvalidConfig, "factor=0.5"),
        ({"factor": float("nan")}, InvalidConfig, "factor=nan"),
        ({"factor": float("inf")}, InvalidConfig, "factor=inf"),
        ({"factor": "2"}, InvalidConfig, "factor='2'"),
        ({"factor": True}, InvalidConfig, "factor=True"),
        ({"jitter": "some"}, InvalidConfig, "jitter='some'"),
        ({"jitter": None}, InvalidConfig, "jitter=None"),
        ({"jitter": True}, InvalidConfig, "jitter=True"),
        ({"jitter": 0.25}, InvalidConfig, "jitter=0.25"),
        ({"jitter": "factor"}, InvalidConfig, "jitter='factor'"),
        ({"jitter": ("factor", -0.1)}, InvalidConfig, "-0.1"),
        ({"jitter": ("factor", 1.5)}, InvalidConfig, "1.5"),
        ({"jitter": ("factor", "0.25")}, InvalidConfig, "0.25"),
        ({"jitter": ("factor", 0.1, 0.2)}, InvalidConfig, "0.2"),
        ({"jitter": ("additive", -1)}, InvalidConfig, "-1"),
        ({"jitter": ("additive", float("inf"))}, InvalidConfig, "inf"),
        ({"jitter": ("range", 1.5, 0.5)}, InvalidConfig, "1.5, 0.5"),
        ({"jitter": ("range", -0.5, 0.5)}, InvalidConfig, "-0.5"),
        ({"jitter": ("range", 0.5)}, InvalidConfig, "0.5"),
        ({"jitter": ("range", 0, 0)}, InvalidConfig, "0, 0"),
        ({"jitter": ("range", 0, float("nan"))}, InvalidConfig, "nan"),
        ({"jitter": ("range", 0, float("inf"))}, InvalidConfig, "inf"),
        ({"jitter": ("jitter", 0.5)}, InvalidConfig, "'jitter', 0.5"),
    ],
)
def test_bad_arguments_of_a_backoff_raise_and_are_named(arguments, error, says):
    with pytest.raises(error) as caught:
        Backoff(**arguments)
    assert says in str(caught.value)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("retry", [-1, 1.5, "0", None, True])
def test_retry_must_be_a_whole_number_from_zero(retry):
    with pytest.raises(InvalidCapacity) as caught:
        Backoff().delay(retry)
    assert f"retry={retry!r}" in str(caught.value)


@pytest.mark.parametrize("previous", [-1, float("nan"), "1"])
def test_previous_must_be_a_time(previous):
    with pytest.raises(InvalidWindow, match="previous="):
        Backoff(jitter="decorrelated").delay(1, previous=previous)
