"""What the window in an answer means to a member. Times in nanoseconds, those of answers in microseconds."""

import pytest

from headgate.sharing.pool.episode import CLEARED
from headgate.sharing.pool.heard import HeardWindow

SECOND = 1_000_000_000
NOW = 100 * SECOND
ASKED = NOW - SECOND // 100  # ten milliseconds ago


def news(heard, *, own, left, generation=2, window=None, forgot=False):
    answer = {"window_generation": generation, "window_left": left // 1_000}
    return heard.news({"window": window}, answer, own, ASKED, NOW, forgot=forgot)


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
