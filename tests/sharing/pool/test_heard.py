"""What the window in an answer means to a member. Times in nanoseconds, those of answers in microseconds."""

import pytest

from fleet import Fleet
from headgate import BackoffWindow
from headgate.sharing.pool.episode import CLEARED, ENDED, GENTLE, USUAL
from headgate.sharing.pool.heard import HeardWindow, WindowNews, read_news
from headgate.sharing.pool.question import empty_question

SECOND = 1_000_000_000
NOW = 100 * SECOND
ASKED = NOW - SECOND // 100  # ten milliseconds ago
BORN = 7
LATE = SECOND // 4


def news(heard, *, own, left, generation=2, forgot=False, asked_at=ASKED):
    answer = {"window_generation": generation, "window_left": left // 1_000, "born": BORN}
    return heard.news(answer, own, asked_at, NOW, forgot=forgot)


class AsHere:
    """A store whose clock shows the same, a moment away: `late` is how long its news take."""

    patience = LATE

    def moment(self, stated, now):
        return min(now, stated)


class Unknown(AsHere):
    def moment(self, stated, now):
        return None


def told(heard, *, own, left, generation=2, born=BORN, asking=False, late=0, trips=AsHere):
    said = WindowNews(born, generation, left // 1_000, 0, (NOW - late) // 1_000)
    return heard.told(said, own, trips(), NOW, asking=asking)


def written(heard, own=None):
    """Return what the next question tells, of its window and of one that the pool should know."""
    question = empty_question("me", 1)
    heard.write(question, own, NOW)
    return question["window"], question["recalls"]


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


@pytest.mark.parametrize("generation", [0, 2])
def test_a_pool_that_began_anew_clears_nothing_and_is_told_of_a_longer_window(heard, generation):
    ours = NOW + 5 * SECOND
    assert news(heard, own=ours, left=0, generation=generation, forgot=True) is None
    for own, left in [(ours, 5_000_000), (NOW - SECOND, 0), (None, 0)]:
        heard.tell_anew({"window_left": left}, own, NOW)
        assert heard.signal is None
    heard.tell_anew({"window_left": 4_000_000}, ours, NOW)
    assert heard.signal == ours


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
    heard.tell_anew(answer, NOW + 5 * SECOND + SECOND // 10, NOW)
    assert heard.signal is None
    heard.tell_anew(answer, NOW + 6 * SECOND, NOW)
    assert heard.signal == NOW + 6 * SECOND


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


def test_news_that_are_late_count_from_the_moment_that_they_are_of(heard):
    """A process that was stopped for six seconds hears then of a window of four."""
    assert told(heard, own=None, left=4 * SECOND, late=6 * SECOND) is None
    assert told(heard, own=None, left=4 * SECOND, late=SECOND) == NOW + 3 * SECOND


def test_news_wait_for_the_answer_if_it_is_not_known_of_which_moment_they_are(heard):
    assert told(heard, own=None, left=4 * SECOND, trips=Unknown) is None


def test_news_wait_for_the_answer_while_the_pool_is_told_of_our_window(heard):
    heard.leave(NOW + SECOND, USUAL)
    assert told(heard, own=NOW + SECOND, left=5 * SECOND) is None
    assert written(heard, NOW + SECOND) == (1_000_000, 1_000_000)
    assert told(heard, own=NOW + SECOND, left=5 * SECOND, asking=True) is None
    assert told(heard, own=NOW + SECOND, left=5 * SECOND) == NOW + 5 * SECOND  # that question was answered


def test_an_answer_from_before_the_news_does_not_end_the_window_that_they_told_of(heard):
    assert told(heard, own=None, left=5 * SECOND) == NOW + 5 * SECOND
    assert news(heard, own=NOW + 5 * SECOND, left=0, generation=1) is None
    written(heard)
    assert news(heard, own=NOW + 5 * SECOND, left=5 * SECOND) is None
    assert heard.generation == 2


def test_an_answer_that_is_newer_than_the_news_counts_although_it_was_asked_for_before(heard):
    assert told(heard, own=None, left=5 * SECOND) == NOW + 5 * SECOND
    assert news(heard, own=NOW + 5 * SECOND, left=0, generation=3) == CLEARED


def test_news_that_are_not_true_hold_calls_back_until_the_next_answer_only(heard):
    """No pool is told of such a window: the others would go by it, too."""
    assert told(heard, own=None, left=5 * SECOND, generation=1 << 52) == NOW + 5 * SECOND
    assert written(heard, NOW + 5 * SECOND) == (None, 0)
    assert news(heard, own=NOW + 5 * SECOND, left=0, generation=1) == CLEARED
    assert told(heard, own=None, left=SECOND, generation=2) == NOW + SECOND


def test_an_answer_ends_a_window_that_news_told_of_and_that_is_over(heard):
    """As where this process and its clock were stopped while they came."""
    assert told(heard, own=None, left=5 * SECOND) == NOW + 5 * SECOND
    written(heard)
    assert news(heard, own=NOW + 5 * SECOND, left=0, generation=2) == CLEARED


# -- what the pool has not heard


def test_a_question_of_which_no_answer_came_is_told_again_unless_there_is_something_newer(heard):
    heard.leave(NOW + SECOND, USUAL)
    assert written(heard)[0] == 1_000_000
    assert heard.signal is None
    heard.tell_again()
    assert heard.signal == NOW + SECOND
    assert written(heard)[0] == 1_000_000
    heard.leave(CLEARED, USUAL)
    heard.tell_again()
    assert heard.signal == CLEARED


def test_an_answer_counts_for_nothing_while_the_pool_has_not_heard_of_our_last_change(heard):
    """The answer to a window that we have cleared since would start it again."""
    heard.leave(NOW + SECOND, USUAL)
    written(heard)
    heard.leave(CLEARED, USUAL)
    assert news(heard, own=None, left=SECOND) is None
    assert written(heard)[0] == CLEARED
    assert news(heard, own=None, left=0, generation=3) is None
    assert heard.generation == 3


def test_a_window_that_was_set_after_one_was_cleared_is_told_after_that(heard):
    """A pool that hears of a shorter window alone keeps the longer one."""
    heard.leave(CLEARED, USUAL)
    heard.leave(NOW + SECOND, GENTLE)
    assert written(heard)[0] == CLEARED
    assert heard.tells_more()
    assert written(heard)[0] == 1_000_000
    assert not heard.tells_more()


def test_a_clearing_of_which_no_answer_came_is_told_again_before_the_window_that_was_set_since(heard):
    heard.leave(CLEARED, USUAL)
    written(heard)
    heard.leave(NOW + SECOND, USUAL)
    heard.tell_again()
    assert written(heard)[0] == CLEARED
    assert heard.tells_more()
    assert heard.signal == NOW + SECOND


def test_the_end_of_probes_is_told_if_there_is_nothing_else_to_tell(heard):
    heard.leave(CLEARED, USUAL)
    heard.leave(ENDED, USUAL)
    assert heard.signal == CLEARED
    written(heard)
    heard.leave(ENDED, USUAL)
    assert heard.signal == ENDED
    heard.tell_again()
    assert heard.signal == CLEARED


@pytest.mark.parametrize(
    "text",
    [
        "changed",
        "",
        "1 2 3",
        "1 2 3 4",
        "1 2 3 4 5 6",
        "1 2 -3 4 5",
        "1 2 3.5 0 5",
        f"1 2 {1 << 53} 0 5",
        "1 2 \u00b2 0 5",
        b"\xff 2 3 0 5",
    ],
)
def test_a_message_that_says_nothing_of_a_window_is_no_news(text):
    assert read_news(text) is None


@pytest.mark.parametrize("text", ["7 2 30000000 1 99", b"7 2 30000000 1 99"])
def test_a_message_tells_pool_generation_what_is_left_how_calls_come_back_and_since_when(text):
    assert read_news(text) == WindowNews(born=7, generation=2, left=30_000_000, gentle=1, at=99)


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


@pytest.mark.parametrize("pause", [0.0, 0.01, 0.15])
def test_a_window_that_is_set_and_cleared_at_once_is_active_for_no_process(pause):
    with Fleet(rates=["500/s"]) as fleet:
        one, other = fleet.join(2, trip=0.1)
        fleet.run(1)
        one.gate.window.set(60)
        fleet.run(pause)
        one.gate.window.clear()
        fleet.run(1)
        assert not one.gate.window.should_backoff()
        assert not other.gate.window.should_backoff()


def test_a_shorter_window_replaces_one_that_was_cleared_in_all_processes():
    with Fleet(rates=["500/s"]) as fleet:
        one, other = fleet.join(2, trip=0.1)
        fleet.run(1)
        other.gate.window.set(60)
        fleet.run(1)
        one.gate.window.clear()
        one.gate.window.set(5)
        fleet.run(1)
        assert one.gate.window.remaining == pytest.approx(4, abs=0.1)
        assert other.gate.window.remaining == pytest.approx(4, abs=0.15)


def test_a_window_that_is_set_and_cleared_in_one_tick_of_the_clock_is_cleared_for_all():
    with Fleet(rates=["500/s"]) as fleet:
        one, other = fleet.join(2)
        fleet.run(1)
        one.gate.window.set(60)
        one.gate.window.clear()
        one.gate.window.set(30)
        one.gate.window.clear()
        fleet.run(1)
        assert not other.gate.window.should_backoff()


def test_news_change_nothing_about_a_gate_that_was_closed():
    """Its window may be that of another gate, and no later answer would be heard."""
    with Fleet(rates=["500/s"], concurrency=5) as fleet:
        window = BackoffWindow(clock=fleet.clock)
        (other,) = fleet.join(trip=0.02)
        (closed,) = fleet.join(trip=0.02, window=window)
        fleet.work(closed, tasks=1, takes=20)
        fleet.run(1)
        closed.gate.close()
        fleet.run(1)
        other.gate.window.set(60)
        fleet.run(1)
        assert other.gate.window.should_backoff()
        assert not window.should_backoff()
