"""What a window tells others of itself: a signal to pass on, whether it was gentle, how many there were."""

import pytest

from headgate.gate.window import Probes, Reentry, Window, WindowSignal


def test_a_signal_has_the_end_of_a_window_that_is_active_and_none_otherwise():
    window = Window()
    assert window.signal(0) == WindowSignal(until=None, origin=None, gentle=False, probes=None)
    window.set(10, 5, gentle=True)
    probes = Probes(15, 1, 1)
    assert window.signal(14, probes) == WindowSignal(until=15, origin=None, gentle=True, probes=probes)
    assert window.signal(15).until is None


def test_only_changes_of_this_process_are_remembered_as_signalled():
    window = Window()
    assert window.signalled == window.state == (0, None)
    window.set(10, 0)
    assert window.signalled == window.state == (1, 10)
    window.set(20, 0, origin="another process")
    assert window.state == (2, 20)
    assert window.signalled == (1, 10)
    window.clear(5, origin="another process")
    assert window.state == (2, 5)
    assert window.signalled == (1, 10)
    window.set(20, 6)
    assert window.signalled == (3, 26)
    window.clear(7)
    assert window.signalled == window.state == (3, 7)


@pytest.mark.parametrize(
    ("manners", "gentle"),
    [
        ([True], True),
        ([False], False),
        ([True, True], True),
        ([True, False], False),
        ([False, True], False),
        ([True, False, True], False),
    ],
)
@pytest.mark.parametrize("growing", [True, False], ids=["each later", "each within the first"])
def test_a_window_is_gentle_as_long_as_every_signal_to_it_was(manners, gentle, growing):
    window = Window()
    for i, manner in enumerate(manners):
        window.set(100 + (i if growing else -i), 0, gentle=manner)
    assert window.gentle is gentle


def test_a_window_that_starts_after_another_one_is_gentle_by_its_own_signal():
    window = Window()
    window.set(10, 0)
    window.set(10, 10, gentle=True)
    assert window.gentle is True
    window.set(10, 20)
    assert window.gentle is False
    assert Window().gentle is False


def test_windows_that_start_are_counted_and_extensions_are_not():
    window = Window()
    assert window.started == 0
    assert (window.set(10, 0), window.started) == ("set", 1)
    assert (window.set(20, 0), window.started) == ("extended", 1)
    assert (window.set(5, 1), window.started) == (None, 1)
    assert (window.set(5, 20), window.started) == ("set", 2)


def test_the_end_of_a_window_is_told_once_and_that_of_a_cleared_one_never():
    window = Window()
    assert window.ended(0) is False
    window.set(10, 0)
    assert [window.ended(now) for now in (9, 10, 11)] == [False, True, False]
    window.set(10, 20)
    window.clear(21)
    assert [window.ended(now) for now in (21, 30, 40)] == [False, False, False]


def test_probes_go_freely_only_after_more_than_three_times_their_patience():
    def after(last):
        probes = Probes(0, 100, 100)
        probes.take(0)
        probes.take(last)
        return probes

    assert not after(300).over
    assert after(301).over


def test_where_refusals_take_as_long_as_a_pause_one_call_goes_after_each():
    probes = Probes(0, 10, 10)
    probes.take(0)
    assert (probes.left, probes.next_at) == (1, 10)
    quick = Probes(0, 10, 9)
    quick.take(0)
    assert (quick.left, quick.next_at) == (2, 9)


def test_the_pauses_between_probes_grow_in_whole_units_up_to_the_longest():
    probes, pauses = Probes(0, 101, 1000, growth=50, longest=400), []
    now = 0
    for _ in range(5):
        probes.take(now)
        pauses.append(probes.next_at - now)
        now = probes.next_at
    assert pauses == [101, 151, 226, 339, 400]
    assert all(type(pause) is int for pause in pauses)
    steady = Probes(0, 7, 1000)
    steady.take(0)
    steady.take(7)
    assert steady.next_at == 14


def test_a_single_caller_that_waited_goes_at_the_end_of_the_window():
    window = Window()
    window.set(100, 0)
    reentry = Reentry(window, 50)
    assert reentry.earliest(0, 1) == 100
    assert reentry.earliest(100, 1) == 100
