"""Which shortage refuses a cost, when the cost would fit, and what a changed plan goes on from."""

from headgate.budgets.windows import MONEY, TOKENS, Allowance, Charge, Limit, Plan, Shortage, charge_all
from headgate.limits import Rate

MINUTE, HOUR, DAY = (seconds * 1_000_000_000 for seconds in (60, 3600, 86_400))


def a_limit(amount, per_ns, column=TOKENS):
    return Limit(amount, column, Rate(amount, per_ns / 1e9, strict=True))


def a_plan(*limits):
    return Plan((None, None), [a_limit(*limit) for limit in limits])


def used(plan, *charges):
    allowance = Allowance(plan)
    for cost, at in charges:
        allowance.charge(cost, at)
    return allowance


def test_what_is_used_besides_counts_against_the_limit_of_its_own_column():
    allowance = used(a_plan((10, HOUR), (10, DAY, MONEY)), ((4, 4), 0))
    assert allowance.fits((3, 0), 1, (3, 6))
    assert not allowance.fits((3, 0), 1, (4, 0))
    assert not allowance.fits((0, 3), 1, (0, 4))
    found = allowance.shortage((3, 0), 1, (4, 0))
    assert (found.name, found.remaining) == ("tokens/hour", 2)


def test_a_cost_as_large_as_the_limit_fits_when_all_that_was_used_is_forgotten():
    allowance = used(a_plan((10, HOUR)), ((1, 0), 5))
    assert allowance.shortage((10, 0), 6).at == 5 + HOUR
    assert allowance.fits((10, 0), 5 + HOUR)
    assert allowance.shortage((11, 0), 6).at is None


def test_nothing_remains_of_a_limit_that_is_used_up_or_overdrawn():
    allowance = used(a_plan((10, HOUR)), ((10, 0), 0))
    assert allowance.shortage((1, 0), 1).remaining == 0
    allowance.charge((5, 0), 1)
    assert allowance.shortage((1, 0), 2).remaining == 0


def test_of_shortages_that_last_equally_long_the_first_is_told():
    first, second = (Shortage(name, TOKENS, 10, 0, 7) for name in ("first", "second"))
    assert not second.outlasts(first)
    assert Shortage("later", TOKENS, 10, 0, 8).outlasts(first)
    assert Shortage("never", TOKENS, 10, 0, None).outlasts(first)
    assert not first.outlasts(Shortage("never", TOKENS, 10, 0, None))


def test_a_charge_tells_which_member_of_the_store_it_is_from():
    assert charge_all([Allowance(a_plan((10, HOUR)))], (3, 0), 5, 6, "ann") == Charge((3, 0), 6, "ann")


def test_a_changed_window_goes_on_from_the_shortest_that_reaches_as_far_back():
    allowance = used(a_plan((100, MINUTE), (100, HOUR), (100, DAY)), ((7, 0), 0))
    later = 2 * MINUTE
    allowance.charge((1, 0), later)
    allowance.retune(a_plan((10, HOUR)))
    assert allowance.left(TOKENS, later) == 2  # the minute has forgotten the seven; the hour has not
    allowance.retune(a_plan((10, MINUTE)))
    assert allowance.left(TOKENS, later) == 9


def test_a_window_longer_than_all_known_ones_goes_on_from_the_one_that_reaches_furthest():
    allowance = used(a_plan((100, MINUTE), (100, HOUR)), ((7, 0), 0))
    later = 2 * MINUTE
    allowance.charge((1, 0), later)
    allowance.retune(a_plan((10, DAY)))
    assert allowance.left(TOKENS, later) == 2


def test_windows_that_were_saved_go_on_as_strict_windows_of_their_own_period():
    allowance = used(a_plan((10, MINUTE)), ((7, 0), 30))
    again = Allowance.after(allowance.saved(40), a_plan((10, HOUR)), 40)
    assert {limit.rate.per_ns for limit in again.plan.limits} == {MINUTE, HOUR}
    assert all(limit.rate.strict for limit in again.plan.limits)
    assert again.left(TOKENS, 40) == 3
    assert a_limit(10, MINUTE).name == "tokens/minute"


def test_an_allowance_without_windows_has_nothing_to_forget():
    assert Allowance(a_plan()).forgotten_at() == 0
    assert used(a_plan((10, HOUR)), ((1, 0), 5)).forgotten_at() == 5 + HOUR
