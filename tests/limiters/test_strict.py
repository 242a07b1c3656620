"""Strict windows: never more than the amount in any window, however the calls arrive."""

import random
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate import CapacityExhausted, MemoryLimiter, RateLimiter
from headgate.testing import ManualClock

SECOND = 1_000_000_000


def most_in_any_window(moments, window):
    """The largest total within any half-open window; the moments are in order, each with a cost."""
    most = inside = 0
    recent = deque()
    for at, cost in moments:
        recent.append((at, cost))
        inside += cost
        while recent[0][0] <= at - window:
            inside -= recent.popleft()[1]
        most = max(most, inside)
    return most


# Gaps in 64ths of the window, give or take a nanosecond, with a liking for the edges.
adversary = st.lists(
    st.tuples(
        st.sampled_from([0, 0, 0, 1, 2, 16, 31, 32, 33, 60, 62, 63, 64, 65]),
        st.integers(-1, 1),
        st.integers(1, 4),
    ),
    min_size=1,
    max_size=120,
)


@pytest.mark.parametrize("kind", ["rate limiter", "configured", "template"])
@given(amount=st.one_of(st.integers(1, 6), st.sampled_from([60, 127, 128, 129, 500])), arrivals=adversary)
@settings(max_examples=150, deadline=None)
def test_a_strict_window_is_never_exceeded_however_the_calls_arrive(kind, amount, arrivals):
    """Wherever the window begins. Up to 128 calls no call is refused that a log of all calls would admit."""
    clock = ManualClock()
    window = 60 * SECOND
    if kind == "rate limiter":
        limiter = RateLimiter(amount, clock=clock)
    else:
        limiter = MemoryLimiter(rates=f"{amount}/minute strict" if kind == "template" else (), clock=clock)
        if kind == "configured":
            limiter.set_capacity("api", amount, 60, strict=True)
    admitted = []
    for parts, little, cost in arrivals:
        clock.advance_to_ns(clock.now() + max(0, parts * window // 64 + little))
        cost = 1 if kind == "rate limiter" else min(cost * max(1, amount // 5), amount)
        if kind == "rate limiter":
            entered = limiter.try_acquire()
        elif kind == "configured":
            entered = limiter.try_acquire("api", cost=cost)
        else:
            try:
                limiter.acquire("api", cost=cost, timeout=0)
                entered = True
            except CapacityExhausted:
                entered = False
        used = sum(spent for at, spent in admitted if at > clock.now() - window)
        if entered:
            admitted.append((clock.now(), cost))
        elif amount <= 128:
            assert used + cost > amount
    assert most_in_any_window(admitted, window) <= amount


@pytest.mark.parametrize("amount", [1, 3, 100, 1000])
def test_a_strict_window_is_never_exceeded_by_callers_that_wait(amount):
    """For five windows every call goes as soon as it may."""
    clock = ManualClock(auto_advance=True)
    limiter = MemoryLimiter(clock=clock)
    limiter.set_capacity("api", amount, 60, strict=True)
    dice = random.Random(amount)
    admitted = []
    while clock.seconds() < 300:
        if dice.random() < 0.2:
            clock.advance(dice.choice([0.1, 1, 30, 59.999999999, 60]))
        limiter.acquire("api")
        admitted.append((clock.now(), 1))
    assert most_in_any_window(admitted, 60 * SECOND) <= amount
