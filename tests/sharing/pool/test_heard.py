"""What the window in an answer means to a member. Times in nanoseconds, those of answers in microseconds."""

import pytest

from fleet import Fleet
from headgate.sharing.pool.episode import CLEARED, USUAL
from headgate.sharing.pool.heard import HeardWindow, WindowNews, read_news
from headgate.sharing.pool.question import empty_question

SECOND = 1_000_000_000
NOW = 100 * SECOND
ASKED = NOW - SECOND // 100  # ten milliseconds ago
BORN = 7
LATE = SECOND // 4


def news(heard, *, own, left, generation=2, window=None, forgot=False, asked_at=ASKED):
    answer = {"window_generation": generation, "window_left": left // 1_000, "born": BORN}
    return heard.news({"window": window}, answer, own, asked_at, NOW, forgot=forgot)


def told(heard, *, own, left, generation=2, born=BORN, now=NOW, asking=False):
    return heard.told(WindowNews(born, generation, left // 1_000, 0), own, now, late=LATE, asking=asking)


@pytest.fixture
def heard():
    """A member that has heard of the window of generation 1."""
    heard = HeardWindow()
    assert news(heard, own=None, left=SECOND, generation=1) == NOW + SECOND
    return heard


def test_a_window_of_another_member_is_news_once(heard):
    assert news(heard, own=None, left=5 * SECOND) == NOW + 5 * SECOND
    assert news(heard, own=None, left=5 * SECOND) is None


def test_a_window_that_may_be_our_own_is_not_news(heard):
    """The answer was given between asking and now, so the end is known to ten milliseconds."""
    ours = NOW + 5 * SECOND
    assert news(heard, own=ours, left=5 * SECOND, generation=2) is None
    assert news(heard, own=ours, left=5 * SECOND + SECOND // 100, generation=3) is None
    later = 5 * SECOND + SECOND // 50
    assert news(heard, own=ours, left=later, generation=4) == NOW + later


def test_a_window_that_another_member_cleared_is_cleared(heard):
    assert news(heard, own=NOW + SECOND, left=0) == CLEARED
    assert news(heard, own=NOW - SECOND, left=0, generation=3) is None  # it has ended here


def test_the_answer_to_our_own_clearing_does_not_clear_a_window_that_started_since(heard):
    assert news(heard, own=NOW + SECOND, left=0, window=CLEARED) is None


@pytest.mark.parametrize("generation", [0, 2])
def test_a_pool_that_began_anew_clears_nothing_and_is_told_of_a_longer_window(heard, generation):
    ours = NOW + 5 * SECOND
    assert news(heard, own=ours, left=0, generation=generation, forgot=True) is None
    assert heard.untold({"window_left": 0}, ours, NOW) == ours
    assert heard.untold({"window_left": 4_000_000}, ours, NOW) == ours
    assert heard.untold({"window_left": 5_000_000}, ours, NOW) is None
    assert heard.untold({"window_left": 0}, NOW - SECOND, NOW) is None
    assert heard.untold({"window_left": 0}, None, NOW) is None


def test_a_longer_window_of_a_pool_that_began_anew_is_news(heard):
    assert news(heard, own=NOW + SECOND, left=5 * SECOND, forgot=True) == NOW + 5 * SECOND


def test_a_member_recalls_its_window_only_if_the_pool_should_know_it(heard):
    assert heard.recalls(NOW + SECOND, NOW) == 1_000_000
    assert heard.recalls(NOW, NOW) == 0
    assert heard.recalls(None, NOW) == 0
    assert HeardWindow().recalls(NOW + SECOND, NOW) == 0


def test_after_a_loss_a_window_is_told_again_if_the_pool_knows_a_much_shorter_one_only(heard):
    """Members hear of one window at different moments: an end some milliseconds later is no other one."""
    answer = {"window_left": 5 * 1_000_000}
    assert heard.untold(answer, NOW + 5 * SECOND + SECOND // 10, NOW) is None
    assert heard.untold(answer, NOW + 6 * SECOND, NOW) == NOW + 6 * SECOND
    assert heard.untold(answer, None, NOW) is None


# -- what a store tells without being asked


def test_news_of_a_window_that_another_member_set_hold_calls_back_before_the_next_answer(heard):
    assert told(heard, own=None, left=5 * SECOND) == NOW + 5 * SECOND
    assert told(heard, own=NOW + 5 * SECOND, left=5 * SECOND) is None  # once
    assert news(heard, own=NOW + 5 * SECOND, left=5 * SECOND, asked_at=NOW + 1) is None


def test_news_of_an_earlier_window_or_of_another_pool_say_nothing(heard):
    assert told(heard, own=None, left=5 * SECOND, generation=1) is None
    assert told(heard, own=None, left=5 * SECOND, born=BORN + 1) is None
    assert told(HeardWindow(), own=None, left=5 * SECOND) is None  # no answer was heard yet
    assert told(heard, own=None, left=0) is None  # it was cleared, or has ended: the answer says so


def test_news_of_a_window_that_may_be_our_own_do_not_extend_it(heard):
    """Its end is heard later by the time that the news took: members would extend windows by their echo."""
    own = NOW + 5 * SECOND
    assert told(heard, own=own, left=5 * SECOND + LATE) is None
    assert told(heard, own=NOW - LATE // 2, left=LATE // 4) is None  # it has just ended here
    assert told(heard, own=own, left=6 * SECOND) == NOW + 6 * SECOND


def test_news_wait_for_the_answer_while_the_pool_is_told_of_our_window(heard):
    heard.note(NOW + SECOND, USUAL)
    assert told(heard, own=NOW + SECOND, left=5 * SECOND) is None
    question = empty_question("me", 1)
    heard.write(question, NOW + SECOND, NOW)
    assert question["window"] == 1_000_000
    assert told(heard, own=NOW + SECOND, left=5 * SECOND, asking=True) is None
    assert told(heard, own=NOW + SECOND, left=5 * SECOND) == NOW + 5 * SECOND  # that question was answered


def test_an_answer_from_before_the_news_does_not_end_the_window_that_they_told_of(heard):
    assert told(heard, own=None, left=5 * SECOND) == NOW + 5 * SECOND
    assert news(heard, own=NOW + 5 * SECOND, left=0, generation=1) is None
    assert news(heard, own=NOW + 5 * SECOND, left=5 * SECOND, asked_at=NOW + 1) is None
    assert heard.generation == 2


def test_news_that_are_not_true_hold_calls_back_until_the_next_answer_only(heard):
    assert told(heard, own=None, left=5 * SECOND, generation=1 << 52) == NOW + 5 * SECOND
    assert news(heard, own=NOW + 5 * SECOND, left=0, generation=1, asked_at=NOW + 1) == CLEARED
    assert told(heard, own=None, left=SECOND, generation=2) == NOW + SECOND


def test_a_question_of_which_no_answer_came_is_told_again_unless_there_is_something_newer(heard):
    heard.note(NOW + SECOND, USUAL)
    heard.write(empty_question("me", 1), None, NOW)
    assert heard.signal is None
    heard.tell_again()
    assert heard.signal == NOW + SECOND
    heard.write(empty_question("me", 2), None, NOW)
    heard.note(CLEARED, USUAL)
    heard.tell_again()
    assert heard.signal == CLEARED


@pytest.mark.parametrize(
    "text",
    [
        "changed",
        "",
        "1 2 3",
        "1 2 3 4 5",
        "1 2 -3 4",
        "1 2 3.5 0",
        f"1 2 {1 << 53} 0",
        "1 2 \u00b2 0",
        b"\xff 2 3 0",
    ],
)
def test_a_message_that_says_nothing_of_a_window_is_no_news(text):
    assert read_news(text) is None


@pytest.mark.parametrize("text", ["7 2 30000000 1", b"7 2 30000000 1"])
def test_a_message_tells_pool_generation_what_is_left_and_how_calls_come_back(text):
    assert read_news(text) == WindowNews(born=7, generation=2, left=30_000_000, gentle=1)


@pytest.mark.parametrize("signals", [1, 3])
def test_processes_far_away_hear_of_a_window_by_the_news_and_not_a_round_trip_later(signals):
    """The signal takes 0.2 s to the store, and the news 0.2 s to the other process."""
    with Fleet(rates=["500/s"]) as fleet:
        one, other = fleet.join(2, trip=0.4)
        fleet.run(1)
        for _ in range(signals):
            one.gate.window.set(5)
            fleet.run(0.05)
        told_at = fleet.clock.seconds()
        while not other.gate.window.should_backoff() and fleet.clock.seconds() < told_at + 1:
            fleet.run(0.01)
        assert fleet.clock.seconds() - told_at <= 0.42 - 0.05 * signals
        before = one.gate.window.remaining, other.gate.window.remaining
        fleet.run(2)  # answers confirm it, and no process extends it
        after = one.gate.window.remaining, other.gate.window.remaining
        assert after == pytest.approx([seconds - 2 for seconds in before], abs=0.21)
        assert after[0] <= 5 - 2.05 + 0.001


def test_a_window_that_is_cleared_far_away_is_cleared_for_all():
    with Fleet(rates=["500/s"]) as fleet:
        one, other = fleet.join(2, trip=0.4)
        fleet.run(1)
        one.gate.window.set(60)
        fleet.run(0.45)
        assert other.gate.window.should_backoff()
        other.gate.window.clear()
        fleet.run(1.2)  # its question about the news is answered first; then the news is asked about
        assert not one.gate.window.should_backoff()
        assert not other.gate.window.should_backoff()
