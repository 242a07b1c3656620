"""Pools in memory: questions to them, and what can be read from the answers. Times in microseconds."""

from fractions import Fraction
from functools import partial

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

import pool_questions
from headgate.sharing.pool.answer import answer
from headgate.sharing.pool.rate import STRICT
from headgate.sharing.pool.state import Pool
from pool_questions import copied

SECOND = 1_000_000
MILLI = 1_000
START = 10_000_000 * SECOND
LEASE = 3 * SECOND
NO_LIMITS = [0, 0, 0, 0]
RATE = [[1_000, SECOND, 100]]

question = partial(pool_questions.question, lease=LEASE)


THOROUGH = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)


rate_values = st.tuples(
    st.integers(1, 40) | st.just(1_000),
    st.sampled_from([SECOND // 10, SECOND, 7 * SECOND, 999_983]),
    st.integers(1, 40) | st.integers(41, 300),
).map(list)


def unstamped(given):
    """Return an answer without its stamps, which depend on the time, and the time itself."""
    numbers = ("first_stamp", "version", "window_generation", "born", "at")
    return {what: value for what, value in given.items() if what not in numbers}


def window_of(given):
    """Return what an answer says of the window: how long it still lasts, and its generation."""
    return given["window_left"], given["window_generation"]


def start_of(pool, batch, now, rates, member="another"):
    """Return when a batch would start, in microseconds from now. Changes nothing."""
    given = answer(copied(pool), question(member, rates=rates, batches=[batch]), now)
    assert given["starts"] or given["ask_again_in"]
    return given["starts"][0] if given["starts"] else None


def at_once(pool, now, rates, column=0):
    """Return how many units of one rate a new member would be granted at once, beside a tenth of the burst.

    What is kept back beyond that because other members may have units unused does not count.
    """
    pool = copied(pool)
    for other in pool.members.values():
        other.last_start = 0
    low, high = 0, grantable(rates[column])
    while low < high:
        middle = (low + high + 1) // 2
        batch = [middle if i == column else 0 for i in range(len(rates))]
        if start_of(pool, batch, now, rates) == 0:
            low = middle
        else:
            high = middle - 1
    return low


def grantable(rate):
    """Return all but a tenth of the burst, which is kept back for unused grants, or all of a strict rate."""
    return rate[2] if rate[3:] == [STRICT] else rate[2] - rate[2] // 10


def pool_level(pool, now):
    """Return the level of the first rate as a fraction: its burst less what is still to be earned."""
    rate = pool.rates[0]
    return rate.burst - Fraction(max(0, rate.full_at - now) * rate.amount, rate.period)


def pool_asked(*questions):
    """Return a pool after these questions: (milliseconds since the start, facts)."""
    pool, stamps = Pool(), {}
    for at, facts in questions:
        now = START + at * MILLI
        asked = question(**{"rates": RATE, **facts, "returned": returned(facts, stamps, now)})
        given = answer(pool, asked, now)
        if given["starts"]:
            stamps[asked["member"], now] = given["first_stamp"]
    return pool


def returned(facts, stamps, now):
    """Return the `returned` of a question: units by stamp, for units by how long ago they were granted."""
    who, backs = facts.get("member", "a"), facts.get("returned", [[] for _ in facts.get("rates", RATE)])
    return [[[units, stamps[who, now - ago]] for units, ago in back] for back in backs]
