"""The text of a record: who wrote it last, and what of it can be read when it is damaged."""

import json

import pytest

from headgate.errors import StoreError
from headgate.sharing.records.client import Change
from headgate.sharing.records.record import Record, Times, attempt_made, contents, kept_until, rewrite

MINUTE = 60_000_000  # µs


class Number(Record):
    """A record of one number."""

    def read(self, written, late):
        return 0 if written is None else int(written)

    def write(self, state, late):
        return state, 0


def record(text):
    kept = Number("a number")
    kept.keep("mark", text, Times(0, 0))
    return kept


@pytest.mark.parametrize("text", ["[[], 1]", "[null, 1]", "[7, 1]", '["one", 1]'])
def test_a_text_without_the_exchanges_of_members_is_not_a_record(text):
    with pytest.raises(TypeError, match="not a record of headgate"):
        contents(text)


@pytest.mark.parametrize("text", ["oops", "[]", "{}", "7", "[[], 1]", '[{"one": 7}, 1]', '[{"one": []}, 1]'])
def test_it_is_not_known_until_when_a_store_keeps_a_text_that_is_not_a_record(text):
    assert kept_until(text) == 0


def test_a_store_keeps_a_record_for_ten_minutes_after_the_last_exchange():
    members = {"one": [1, 0, 5 * MINUTE], "two": [9, 0, 3 * MINUTE]}
    assert kept_until(json.dumps([members, 1])) == 15 * MINUTE
    assert kept_until("") == 0


def test_an_exchange_was_made_if_a_record_names_it_as_the_last_of_the_member():
    lost = record("")
    other = record('[{"one": [6, 2, 0], "two": [7, 3, 0]}, 1]')
    written = record('[{"one": [7, 1, 0]}, 1]')
    assert attempt_made([lost, other, written], "one", 7) == 1
    assert attempt_made([lost, other], "one", 7) == -1
    assert attempt_made([lost, other], "two", 7) == 3


@pytest.mark.parametrize(
    "text",
    [
        "oops",
        "[1, 2]",
        '[{"one": 7}, 1]',
        '[{"one": [7]}, 1]',
        '[{"one": [7, "x", 0]}, 1]',
        '[{"one": [7, null, 0]}, 1]',
        '[{"one": [7, 1e999, 0]}, 1]',
    ],
)
def test_a_damaged_record_does_not_show_that_an_exchange_was_made(text):
    assert attempt_made([record(text)], "one", 7) == -1
    assert attempt_made([record(text), record('[{"one": [7, 1, 0]}, 1]')], "one", 7) == 1


@pytest.mark.parametrize("text", ["oops", "[[], 1]", '[{"one": 7}, 1]', '[{}, "x"]'])
def test_a_change_of_a_damaged_record_comes_to_an_error_and_writes_nothing(text):
    damaged = record(text)
    change = Change([damaged], lambda _states, _times: pytest.fail("it was made"))
    swaps, (outcome,) = rewrite([change], [damaged], ("one", 7, 0), Times(0, 0))
    assert isinstance(outcome, StoreError)
    assert "a number cannot be read" in str(outcome)
    assert swaps == {"a number": ("mark", None, 0)}
