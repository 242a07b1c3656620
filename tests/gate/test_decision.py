"""All rules as one decision: all or nothing, for every set of rules."""

from __future__ import annotations

import random
from copy import deepcopy
from itertools import chain, combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.gate.bucket import RateRule
from headgate.gate.decision import ADMITTED, REFUSED, THROTTLED, Rules, successors
from headgate.gate.slots import ConcurrencyRule, WeightRule
from headgate.gate.strict import StrictRule
from headgate.gate.window import Reentry, Window
from headgate.limits import Rate

SECOND = 1_000_000_000
ONE = (1, 0, 0)

PARTS = ("window", "pause", "places", "weight", "bucket", "strict", "tokens")
EVERY_SUBSET = [
    parts
    for parts in chain.from_iterable(combinations(PARTS, n) for n in range(len(PARTS) + 1))
    if "pause" not in parts or "window" in parts
]


def build(parts):
    window = Window() if "window" in parts else None
    rates = []
    if "bucket" in parts:
        rates.append(RateRule(Rate(3, burst=4), 0))
    if "strict" in parts:
        rates.append(StrictRule(Rate(8, 2, strict=True), 0))
    if "tokens" in parts:
        rates.append(RateRule(Rate(100, burst=150, unit="tokens"), 1))
    return Rules(
        window=window,
        throttled_for=2 * SECOND,
        reentry=Reentry(window, SECOND) if "pause" in parts else None,
        places=ConcurrencyRule(6, 2) if "places" in parts else None,
        weight=WeightRule(100, penalty=5) if "weight" in parts else None,
        rates=rates,
    )


def slots(thing):
    return {name: deepcopy(getattr(thing, name)) for name in type(thing).__slots__ if name != "_window"}


def state(rules, now):
    """The state of every rule, without anything that no longer counts."""
    for rate in rules.rates:
        rate.level(now)  # units that have left a strict window are not state
    things = (rules.window, rules.reentry, rules.places, rules.weight, *rules.rates)
    return [slots(thing) for thing in things if thing is not None]


# -- all or nothing


@pytest.mark.parametrize("parts", EVERY_SUBSET, ids="+".join)
def test_a_call_enters_if_every_rule_has_room_and_a_refused_call_changes_no_rule(parts):
    """
    A busy minute of signals, calls, ends and corrections. The expectation is counted by hand
    from the unsettled permits; the rates, which have tests of their own, are asked alone.
    """
    dice = random.Random(" ".join(parts))
    rules = build(parts)
    now, permits = -5 * SECOND, []
    modes = []
    for _ in range(160):
        now += dice.choice([0, 0, 1, SECOND // 10, SECOND // 3])
        happens = dice.random()
        if rules.window is not None and happens < 0.04:
            rules.window.set(dice.choice([0, SECOND, 2 * SECOND]), now)
        elif permits and happens < 0.35:
            cost, mode, taken_at = permits.pop(dice.randrange(len(permits)))
            rules.leave(cost, mode)
            if dice.random() < 0.5:
                actual = (cost[0], dice.randrange(120), cost[2])
                rules.correct(cost, actual, taken_at, now)
        else:
            cost = (dice.choice([0, 1, 1, 2]), dice.choice([0, 10, 60, 150]), dice.choice([0, 7, 30, 130]))
            until = rules.window.until if rules.window is not None else None
            recent = until is not None and now < until + 2 * SECOND
            expected = THROTTLED if recent and ("places" in parts or "weight" in parts) else ADMITTED
            load = cost[2] * (5 if expected == THROTTLED else 1)
            in_flight = sum(cost[2] * (5 if mode == THROTTLED else 1) for cost, mode, _ in permits)
            throttled = sum(mode == THROTTLED for _, mode, _ in permits)
            if (
                ("pause" in parts and until is not None and now < until)
                or ("places" in parts and len(permits) >= 6)
                or ("places" in parts and expected == THROTTLED and throttled >= 2)
                or ("weight" in parts and in_flight and in_flight + load > 100)
                or not all(rate.fits(cost, now) for rate in deepcopy(rules.rates))
            ):
                expected = REFUSED
            before = state(rules, now)
            binding, at = rules.held_by(cost, now)
            assert before == state(rules, now)
            assert (binding is None) == (expected != REFUSED)
            if at is not None:
                # Time alone admits it then or later, never before: a caller that sleeps until then
                # has missed nothing.
                assert at > now
                assert deepcopy(rules).enter(cost, at - 1) == REFUSED
            mode = rules.enter(cost, now)
            assert expected == mode
            modes.append(mode)
            if mode == REFUSED:
                assert before == state(rules, now)
            else:
                permits.append((cost, mode, now))
        if rules.places is not None:
            assert rules.places.in_flight == len(permits)
            assert rules.places.throttled_in_flight == sum(mode == THROTTLED for _, mode, _ in permits)
    for cost, mode, _ in permits:
        rules.leave(cost, mode)
    if rules.weight is not None:
        assert rules.weight.in_flight == 0
    assert (THROTTLED in modes) == ("window" in parts and ("places" in parts or "weight" in parts))
    assert (REFUSED in modes) == bool(set(parts) - {"window"})


def test_a_cost_is_taken_from_all_rates_or_from_none():
    """
    Ten a second, 30 a minute and 1000 tokens a minute: whichever refuses, none is charged.
    """
    rates = [
        RateRule(Rate(10, burst=10), 0),
        StrictRule(Rate(30, 60, strict=True), 0),
        RateRule(Rate(1000, 60, burst=1000, unit="tokens"), 1),
    ]
    rules = Rules(rates=rates)

    def levels():
        return [rate.level(0) for rate in rates]

    assert rules.enter((4, 900, 0), 0) == ADMITTED
    assert levels() == [6, 26, 100]
    assert rules.enter((1, 101, 0), 0) == REFUSED
    assert rules.enter((7, 100, 0), 0) == REFUSED
    assert levels() == [6, 26, 100]
    assert rules.enter((6, 100, 0), 0) == ADMITTED
    assert levels() == [0, 20, 0]
    assert rules.held_by((1, 0, 0), 0) == ("requests/second", SECOND // 10)
    assert rules.held_by((1, 10, 0), 0) == ("tokens/minute", 600_000_000)


def test_a_gate_without_rules_admits_every_call():
    rules = Rules()

    assert rules.enter(ONE, -5) == ADMITTED
    assert rules.held_by(ONE, -5) == (None, None)
    assert rules.refusal((2**63,) * 3) is None
    assert rules.certain_wait(ONE, 0) is None
    assert rules.throttled_until is None
    assert not rules.throttled(0)


# -- the mode


def test_the_throttled_mode_is_judged_at_the_instant_of_admission():
    """
    A window of 1 s that starts at 10 s, with a throttled_for of 2 s: throttled from 10 s to 13 s exactly.
    """
    window = Window()
    rules = Rules(window=window, throttled_for=2 * SECOND, places=ConcurrencyRule(100, 100))
    assert rules.enter(ONE, 9 * SECOND) == ADMITTED
    window.set(SECOND, 10 * SECOND)

    assert rules.enter(ONE, 10 * SECOND) == THROTTLED
    assert rules.enter(ONE, 13 * SECOND - 1) == THROTTLED
    assert rules.enter(ONE, 13 * SECOND) == ADMITTED
    assert rules.throttled_until == 13 * SECOND
    assert rules.throttled(13 * SECOND - 1)
    assert not rules.throttled(13 * SECOND)
    assert (rules.places.in_flight, rules.places.throttled_in_flight) == (4, 2)


def test_while_throttled_bytes_count_more_and_are_given_back_as_they_were_charged():
    """
    Budget 100, penalty 20: a call of 4 bytes holds 80 when it enters throttled, and gives
    back 80 though the throttling is over by then.
    """
    window = Window()
    rules = Rules(window=window, throttled_for=0, weight=WeightRule(100, penalty=20))
    window.set(SECOND, 0)
    assert rules.enter((1, 0, 4), 0) == THROTTLED
    assert rules.weight.in_flight == 80
    assert rules.enter((1, 0, 2), 0) == REFUSED
    assert rules.held_by((1, 0, 2), 0) == ("bytes", SECOND)
    assert rules.enter((1, 0, 2), SECOND) == ADMITTED
    assert rules.weight.in_flight == 82

    rules.leave((1, 0, 4), THROTTLED)
    rules.leave((1, 0, 2), ADMITTED)

    assert rules.weight.in_flight == 0


def test_with_a_pause_no_call_enters_before_the_end_of_the_window():
    window = Window()
    rules = Rules(window=window, throttled_for=2 * SECOND, reentry=Reentry(window, 0))
    window.set(SECOND, 0)

    assert rules.enter(ONE, SECOND - 1) == REFUSED
    assert rules.held_by(ONE, 0) == ("window", SECOND)
    assert rules.enter(ONE, SECOND) == ADMITTED


def test_a_gate_without_throttled_limits_is_never_throttled():
    window = Window()
    rules = Rules(
        window=window, throttled_for=2 * SECOND, rates=[RateRule(Rate(10), 0), RateRule(Rate(99, 60), 0)]
    )
    window.set(SECOND, 0)

    assert rules.enter(ONE, 0) == ADMITTED


def test_the_rule_that_holds_a_call_back_is_named_with_the_moment_to_look_again():
    window = Window()
    rules = Rules(window=window, throttled_for=2 * SECOND, places=ConcurrencyRule(3, 1))
    window.set(SECOND, 0)
    assert rules.enter(ONE, 0) == THROTTLED
    assert rules.held_by(ONE, 0) == ("throttled concurrency", 3 * SECOND)
    assert rules.held_by(ONE, 3 * SECOND) == (None, None)
    for _ in range(2):
        assert rules.enter(ONE, 3 * SECOND) == ADMITTED
    assert rules.held_by(ONE, 3 * SECOND) == ("concurrency", None)


@pytest.mark.parametrize("parts", EVERY_SUBSET, ids="+".join)
def test_the_fast_path_gives_the_same_answers_as_all_rules(parts):
    """
    Before a signal, while its window is active, in its throttled_for, and after it.
    """
    for now in (-1, 0, SECOND, 5 * SECOND):
        rules = build(parts)
        if rules.window is not None and now >= 0:
            rules.window.set(SECOND, 0)
        other = deepcopy(rules)

        assert rules.enter(ONE, now) == other.entrance()(ONE, now)
        assert state(rules, now) == state(other, now)


# -- adaptive places


def an_adaptive_gate(limit, rates=()):
    """Throttled for 1 s after a signal and 9 s more; the places grow back over 10 s."""
    window = Window()
    places = ConcurrencyRule(limit, None, adaptive=True, regrow=10 * SECOND)
    return window, Rules(window=window, throttled_for=9 * SECOND, places=places, rates=rates)


def test_an_episode_cuts_the_places_and_they_grow_back():
    """
    Ten places, a signal at 0: seven until 10 s, then one more every 10/3 s.
    """
    window, rules = an_adaptive_gate(10)
    window.set(SECOND, 0)
    assert [rules.enter(ONE, 0) for _ in range(8)] == [THROTTLED] * 7 + [REFUSED]

    assert rules.held_by(ONE, 0) == ("throttled concurrency", 10 * SECOND)
    assert rules.enter(ONE, 10 * SECOND) == REFUSED
    assert rules.held_by(ONE, 10 * SECOND) == ("concurrency", 13_333_333_334)
    assert rules.enter(ONE, 13_333_333_333) == REFUSED
    assert rules.enter(ONE, 13_333_333_334) == ADMITTED
    assert rules.enter(ONE, 13_333_333_334) == REFUSED
    assert rules.enter(ONE, 20 * SECOND) == ADMITTED
    assert rules.enter(ONE, 20 * SECOND) == ADMITTED
    assert rules.held_by(ONE, 20 * SECOND) == ("concurrency", None)


def test_an_hour_after_an_episode_the_next_one_cuts_all_places_again():
    """
    A hundred places, an episode, then an hour without calls: all hundred have grown back, so
    the next episode leaves seventy, not seventy per cent of seventy.
    """
    window, rules = an_adaptive_gate(100)
    window.set(SECOND, 0)
    assert rules.enter(ONE, 0) == THROTTLED
    assert rules.throttled_places(0) == 70

    window.set(SECOND, 3600 * SECOND)
    assert rules.enter(ONE, 3600 * SECOND) == THROTTLED

    assert rules.throttled_places(3600 * SECOND) == 70


def test_a_look_while_places_grow_back_does_not_change_what_the_next_episode_leaves():
    """
    100 cut to 70 at 0; at 15 s half of what was cut is back: 85. The episode that begins then
    leaves 59, whether or not the places were looked at just before.
    """
    left = []
    for look in (True, False):
        window, rules = an_adaptive_gate(100)
        window.set(SECOND, 0)
        assert rules.enter(ONE, 0) == THROTTLED
        if look:
            rules.held_by(ONE, 15 * SECOND)
        window.set(SECOND, 15 * SECOND)
        assert rules.enter(ONE, 15 * SECOND) == THROTTLED
        left.append(rules.throttled_places(15 * SECOND))

    assert left == [59, 59]


def test_a_look_after_an_episode_grew_longer_does_not_change_what_the_next_one_leaves():
    """
    100 cut to 70 at 0 until 10 s; a late answer makes that 109 s. At 112 s nine have grown
    back when the next episode begins: 79 become 55, whether or not the places were looked at.
    """
    left = []
    for look in (True, False):
        window, rules = an_adaptive_gate(100)
        window.set(SECOND, 0, sent_at=-1)
        assert rules.enter(ONE, 0) == THROTTLED
        window.set(98 * SECOND, 2 * SECOND, sent_at=-1)
        if look:
            rules.held_by(ONE, 50 * SECOND)
        window.set(SECOND, 112 * SECOND, sent_at=5)
        assert rules.enter(ONE, 112 * SECOND) == THROTTLED
        left.append(rules.throttled_places(112 * SECOND))

    assert left == [55, 55]


def test_a_call_refused_during_an_episode_changes_nothing_for_later_calls():
    """
    Ten places and a rate that is used up. During the episode one call asks and is refused by
    the rate, or none asks: at its end there are as many places either way.
    """
    room = []
    for asks in (True, False):
        window, rules = an_adaptive_gate(10, [RateRule(Rate(100, 8, burst=100), 0)])
        assert rules.enter((100, 0, 0), 0) == ADMITTED
        window.set(SECOND, 0)
        if asks:
            assert rules.enter((1, 0, 0), 1) == REFUSED
        room.append(sum(rules.enter(ONE, 10 * SECOND) == ADMITTED for _ in range(10)))

    assert room[0] == room[1]


# -- refusals, service times and when to look again


def test_a_cost_that_can_never_fit_is_refused_by_the_rate_that_says_so():
    rules = Rules(
        rates=[RateRule(Rate(10, burst=10), 0), RateRule(Rate(100, 60, burst=20, unit="tokens"), 1)]
    )

    assert rules.refusal((10, 100, 0)) is None
    why, rule = rules.refusal((1, 101, 0))
    assert rule == "tokens/minute"
    assert "101 tokens" in why
    assert rules.refusal((11, 0, 0))[1] == "requests/second"


def test_the_service_time_of_a_call_is_that_of_the_rate_it_occupies_longest():
    """
    One of ten requests a second is 0.1 s; 500 of a thousand tokens a second are half a second.
    """
    rules = Rules(rates=[RateRule(Rate(10), 0), RateRule(Rate(1000, unit="tokens"), 1)])

    assert rules.size((1, 500, 0)) == SECOND // 2
    assert rules.size((1, 50, 0)) == SECOND // 10
    assert rules.size((0, 0, 0)) == 1
    assert Rules().size((5, 5, 5)) == 1


def test_the_line_may_look_a_little_later_when_many_wait_for_a_rate():
    """
    A hundred a second, burst 50, used up: the next unit is there in 10 ms, the bucket is full in
    500 ms. With 160 waiting, ten may go at once, so the look may be 100 ms late; with 1600
    waiting it may be late by the time in which half of the bucket fills.
    """
    rules = Rules(places=ConcurrencyRule(1000, None), rates=[RateRule(Rate(100, burst=50), 0)])
    assert rules.enter((50, 0, 0), 0) == ADMITTED

    assert rules.coalesce_by(ONE, 0, 15, "requests/second") == 0
    assert rules.coalesce_by(ONE, 0, 160, "requests/second") == 100_000_000
    assert rules.coalesce_by(ONE, 0, 1600, "requests/second") == 245_000_000
    for other in ("concurrency", "window", None):
        assert rules.coalesce_by(ONE, 0, 160, other) == 0


def test_the_line_looks_at_once_when_a_strict_window_is_among_the_rates():
    rates = [RateRule(Rate(100, burst=50), 0), StrictRule(Rate(1000, 60, strict=True), 0)]
    rules = Rules(rates=rates)
    assert rules.enter((50, 0, 0), 0) == ADMITTED

    assert rules.coalesce_by(ONE, 0, 160, "requests/second") == 0


def test_a_wait_for_a_rate_is_certain_while_no_call_is_in_flight():
    rules = Rules(
        places=ConcurrencyRule(5, None),
        rates=[RateRule(Rate(10, burst=10), 0), RateRule(Rate(60, 60, burst=10), 0)],
    )
    assert rules.certain_wait(ONE, 0) is None
    assert rules.enter((10, 0, 0), 0) == ADMITTED
    assert rules.certain_wait(ONE, 0) is None
    rules.leave((10, 0, 0), ADMITTED)

    assert rules.certain_wait(ONE, 0) == ("requests/minute", SECOND)


def test_a_wait_is_not_certain_while_a_call_in_flight_may_still_be_refunded():
    """
    Also without a limit on concurrency: ten units are taken by calls in flight. They may turn
    out to have cost nothing, and then there is no wait.
    """
    rules = Rules(rates=[RateRule(Rate(1, burst=10), 0)])
    assert rules.enter((10, 0, 0), 0) == ADMITTED
    claim = rules.certain_wait(ONE, 0)
    rules.leave((10, 0, 0), ADMITTED)
    rules.correct((10, 0, 0), (0, 0, 0), 0, 0)
    assert rules.held_by(ONE, 0) == (None, None)

    assert claim is None


def test_a_correction_reaches_every_rate_that_existed_when_the_call_entered():
    """
    A unit that was added after the call entered is not corrected.
    """
    rules = Rules(rates=[RateRule(Rate(100, 60, burst=100, unit="tokens"), 1)])
    assert rules.enter((1, 80, 0), 0) == ADMITTED
    images = RateRule(Rate(5, 60, burst=5, unit="images"), 3)
    rules.set_rates([*rules.rates, images])

    rules.correct((1, 80, 0), (1, 30, 0), 0, 0)

    assert rules.rates[0].level(0) == 70
    assert images.level(0) == 5


def test_an_emptied_gate_has_no_call_in_flight_and_has_refunded_no_rate():
    window = Window()
    rules = Rules(
        window=window,
        throttled_for=SECOND,
        places=ConcurrencyRule(2, 1),
        weight=WeightRule(10, penalty=2),
        rates=[RateRule(Rate(10, burst=10), 0)],
    )
    window.set(SECOND, 0)
    assert rules.enter((1, 0, 5), 0) == THROTTLED

    rules.empty()

    assert rules.places.in_flight == rules.places.throttled_in_flight == rules.weight.in_flight == 0
    assert rules.rates[0].level(0) == 9


# -- windows with a pause, and the level of the rates after them

gaps = st.sampled_from([0, 0, 0, SECOND // 10, SECOND // 3, 2 * SECOND])
happenings = st.one_of(
    st.tuples(st.just("come"), gaps, st.sampled_from([0, 1, 1, 1, 2, 5])),
    st.tuples(st.just("come"), st.just(0), st.just(1)),
    st.tuples(st.just("settle"), gaps, st.integers(0, 5)),
    st.tuples(st.just("close"), gaps, st.sampled_from([1, SECOND // 2, SECOND, 5 * SECOND])),
    st.tuples(st.just("clear"), gaps, st.just(0)),
    st.tuples(st.just("retune"), gaps, st.integers(1, 20)),
)


@given(story=st.lists(happenings, max_size=60), burst=st.integers(1, 12))
def test_after_any_window_calls_come_at_the_rate_and_no_sooner_than_without_one(story, burst):
    """
    Compared with the same rates without a window: a call that enters here could have entered there. After
    the end of a window no more units enter than one call, the units earned since, and the refunds of calls
    that entered since.
    """
    window, now, permits = Window(), 0, []
    paused = Rules(window=window, reentry=Reentry(window, 0), rates=[RateRule(Rate(3, burst=burst), 0)])
    plain = Rules(rates=[RateRule(Rate(3, burst=burst), 0)])
    # Since the last window: cost of the first call, all costs, units earned, moment of the first call.
    first, since, earned, ended = None, 0, 0, 0
    for what, gap, amount in story:
        if not window.active(now + gap):
            earned += (now + gap - max(now, window.until or 0)) * paused.rates[0].rate.amount
        now += gap
        if what == "close" and window.set(amount, now):
            first, since, earned = None, 0, 0
        elif what == "clear":
            window.clear(now)
        elif what == "retune":
            for rules in (paused, plain):
                rules.set_rates(successors(rules.rates, [Rate(amount, burst=burst)], {"requests": 0}, now))
            if first is None:  # no call has come since, so the new rate earns from here
                earned = max(0, now - (window.until or 0)) * amount
        elif what == "settle" and permits:
            cost, taken_at = permits.pop(0)
            for rules in (paused, plain):
                rules.correct((cost,), (amount,), taken_at, now)
            if taken_at > ended:
                earned += max(0, cost - amount) * SECOND
        elif what == "come" and paused.refusal((amount, 0, 0)) is None:
            mode = paused.enter((amount, 0, 0), now)
            if window.active(now):
                assert mode == REFUSED
                continue
            if mode != REFUSED:
                assert plain.enter((amount, 0, 0), now) != REFUSED
                permits.append((amount, now))
                if first is None:
                    first, ended = amount, now
                since += amount
                if window.until is not None:
                    assert (since - first) * SECOND <= earned


def test_correct_charges_at_most_the_debt_that_one_call_can_have_and_says_so():
    """
    Ten minutes of 100 a second is the most that one call can owe.
    """
    rules = Rules(rates=[RateRule(Rate(100, burst=50), 0), StrictRule(Rate(1000, 60, strict=True), 1)])
    assert rules.enter((1, 2, 0), 0)

    assert rules.correct((1, 2, 0), (1, 10**18, 7), 0, 0) == (1, 10_002, 7)

    assert [rate.level(0) for rate in rules.rates] == [49, 1000 - 10_002]
    actual = (60_001, 10, 0)
    assert rules.correct((1, 10_002, 0), actual, 0, 0) is actual
