"""What members of a pool ask and are answered, as values."""

import pytest

from headgate.errors import InvalidConfig
from headgate.gate.supply import Batch
from headgate.limits import Rate
from headgate.sharing.pool.question import (
    check_units,
    granted_batches,
    rate_of_terms,
    terms_of,
    window_left,
)

OURS = [Rate(10), Rate(1000, 60, unit="tokens")]


@pytest.mark.parametrize(
    ("theirs", "said"), [(["tokens", "requests"], "of tokens, requests;"), ([], "of none;")]
)
def test_a_pool_whose_rates_count_other_units_is_an_error_that_names_them(theirs, said):
    with pytest.raises(InvalidConfig, match=f"'api' is shared by others, whose rates are {said}"):
        check_units("api", OURS, {"units": theirs})


@pytest.mark.parametrize("answer", [{}, {"units": ["requests", "tokens"]}])
def test_a_pool_whose_rates_count_the_same_units_is_none(answer):
    check_units("api", OURS, answer)


@pytest.mark.parametrize(
    "rate",
    [Rate(10), Rate(10, burst=3), Rate(1000, 86_400, strict=True), Rate(5, 0.25, unit="tokens", burst=7)],
    ids=str,
)
def test_a_rate_is_read_as_it_was_stated(rate):
    (terms,) = terms_of([rate])
    assert rate_of_terms(terms, rate.unit) == rate


def test_terms_without_a_kind_are_those_of_a_bucket_with_this_burst():
    assert rate_of_terms([10, 1_000_000, 3], "requests") == Rate(10, burst=3)


def test_batches_are_told_when_they_start_on_the_clock_of_the_member_and_are_numbered():
    answer = {"starts": [0, 250], "first_stamp": 7}
    assert granted_batches(answer, [[1], [2], [3]], 5_000) == [Batch(5_000, 7, [1]), Batch(255_000, 8, [2])]


@pytest.mark.parametrize(
    ("until", "told"), [(None, None), (-1, -1), (-2, -2), (99, None), (100, None), (101, 1), (2_101, 3)]
)
def test_a_window_is_told_by_what_is_left_of_it_rounded_up_to_microseconds(until, told):
    assert window_left(until, 100) == told
