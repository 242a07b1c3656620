"""Single calls that find out whether an API takes calls again."""

from headgate.gate.window import Probes


def times(probes, until):
    """When calls go that would all go at once, in a line without end."""
    now, gone = 0, []
    while len(gone) < 200:
        now = max(now, probes.next_at)
        if now > until:
            break
        probes.take(now)
        gone.append(now)
    return gone


def test_where_refusals_are_quick_the_number_of_calls_doubles_after_each_patience():
    gone = times(Probes(1000, pause=500, patience=10), until=1020)
    assert gone == [1000, 1010, 1010, 1020, 1020, 1020, 1020]


def test_where_refusals_are_slow_one_call_goes_after_each_longer_pause():
    gone = times(Probes(1000, pause=100, patience=500, growth=50, longest=200), until=1700)
    assert gone == [1000, 1100, 1250, 1450, 1650]


def test_calls_go_freely_when_none_was_refused_in_three_times_the_patience():
    gone = times(Probes(1000, pause=100, patience=500), until=10_000)
    assert len(gone) == 200
    assert gone[-1] < 3000
