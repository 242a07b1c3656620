"""`divide`: weighted max-min, against an exact model in fractions."""

from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.swarm.shares import WHOLE, divide


def max_min(whole, wants, weights, least):
    """In fractions: a weight is worth as much as possible. No member gets less than `least`, or more than it
    wants while another lacks. What no member wants goes to those with the least for their weight.
    """
    asked = {key: max(least, min(want, whole)) for key, want in wants.items()}
    plenty = sum(asked.values()) <= whole

    def parts(worth):
        if plenty:
            return {key: max(Fraction(asked[key]), worth * weights[key]) for key in wants}
        return {key: max(Fraction(least), min(Fraction(asked[key]), worth * weights[key])) for key in wants}

    # The sum is piecewise linear in what a weight is worth: find the piece, and solve it.
    corners = {Fraction(0), Fraction(whole)}
    for key, weight in weights.items():
        corners |= {Fraction(asked[key], weight), Fraction(least, weight)}
    below = max(corner for corner in corners if sum(parts(corner).values()) <= whole)
    above = min((corner for corner in corners if corner > below), default=below)
    low, high = (sum(parts(corner).values()) for corner in (below, above))
    worth = below if high == low else below + (above - below) * (whole - low) / (high - low)
    return parts(worth)


@st.composite
def members(draw):
    keys = [f"agent-{n}" for n in range(draw(st.integers(1, 12)))]
    wanted = st.integers(0, WHOLE) | st.sampled_from([0, 1, WHOLE // 20, WHOLE])
    return {key: draw(wanted) for key in keys}, {key: draw(st.integers(1, 5)) for key in keys}


wholes = st.integers(0, WHOLE) | st.just(WHOLE)


@given(who=members(), whole=wholes, least=st.just(0) | st.integers(0, WHOLE))
@settings(max_examples=150)
def test_the_division_is_weighted_max_min_to_the_unit(who, whole, least):
    wants, weights = who
    parts = divide(whole, wants, weights, least)
    least = min(least, whole // len(wants))
    model = max_min(whole, wants, weights, least)
    assert parts.keys() == wants.keys()
    assert sum(parts.values()) <= whole
    for key, part in parts.items():
        assert part >= least
        assert abs(part - model[key]) <= weights[key]  # a weight is worth a whole number


@given(who=members(), whole=wholes, least=st.integers(0, WHOLE))
@settings(max_examples=100)
def test_no_member_has_more_than_it_wants_while_another_lacks(who, whole, least):
    wants, weights = who
    parts = divide(whole, wants, weights, least)
    least = min(least, whole // len(wants))
    if any(parts[key] < min(wants[key], whole) for key in wants):
        assert all(parts[key] <= max(wants[key], least) for key in wants)


@given(many=st.integers(1, 1000))
@settings(max_examples=30)
def test_members_with_equal_demand_get_equal_shares(many):
    keys = [f"agent-{n}" for n in range(many)]
    parts = divide(WHOLE, dict.fromkeys(keys, WHOLE), dict.fromkeys(keys, 1))
    assert max(parts.values()) - min(parts.values()) <= 1
    assert WHOLE - many <= sum(parts.values()) <= WHOLE


def test_up_to_twenty_members_divide_the_whole_without_a_remainder():
    """An equal share and half of one are whole numbers."""
    assert all(WHOLE % (2 * many) == 0 for many in range(1, 21))


def test_dividing_among_no_members_gives_no_shares():
    assert divide(WHOLE, {}, {}) == {}
