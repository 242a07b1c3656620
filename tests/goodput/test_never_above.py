"""A Dispatch never goes above what was configured, whatever headers say and in whatever order."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from goodput.api import Limits
from goodput.rig import Drive
from goodput.scenarios import Scenario
from headgate import Dispatch
from headgate.http import read_signal
from headgate.limits import Rate
from headgate.sandbox.meters import Bucket, meter_for
from headgate.testing import ManualClock

SECOND = 10**9
YEAR = 366 * 86_400 * SECOND

amounts = st.one_of(
    st.integers(-2, 2_000).map(str),
    st.sampled_from(
        ["", "0", "-1", "NaN", "inf", "-inf", "1e308", "9" * 30, "0.5", "1_000", "٣", "full", "5, 7"]
    ),
)
moments = st.one_of(
    st.sampled_from(
        ["0s", "1ms", "0.975", "1s", "6m0s", "-5s", "NaN", "9" * 20, "", "2027-01-15T08:00:00Z", "soon"]
    ),
    st.integers(0, 120).map(str),
)
FAMILIES = (
    "x-ratelimit-{}-requests",
    "x-ratelimit-{}",
    "ratelimit-{}",
    "anthropic-ratelimit-requests-{}",
)


@st.composite
def answers(draw):
    """A status and headers, most of which state limits and do not agree with each other."""
    headers = []
    for name in draw(st.lists(st.sampled_from(FAMILIES), max_size=2)):
        for kind, values in (("limit", amounts), ("remaining", amounts), ("reset", moments)):
            headers += [(name.format(kind), value) for value in draw(st.lists(values, max_size=2))]
    status = draw(st.sampled_from([200, 200, 200, 429, 429, 503, 500, 529]))
    if draw(st.booleans()):
        headers.append(("retry-after", draw(moments)))
    if draw(st.booleans()):
        headers.append(("retry-after-ms", draw(amounts)))
    return status, headers


steps = st.one_of(
    st.tuples(st.just("go"), st.integers(1, 60)),
    st.tuples(
        st.just("wait"), st.sampled_from([1, SECOND // 1000, SECOND // 10, SECOND, 7 * SECOND, 60 * SECOND])
    ),
    st.tuples(
        st.just("answer"), st.integers(0, 30), st.sampled_from(["sent", "now", "early", None]), answers()
    ),
)
# Calls and answers alternate often enough that an answer can do harm.
programs = st.lists(steps, min_size=4, max_size=40)


def play(rates, referee, program, **options):
    """Do the steps, and let the referee count every call that is admitted."""
    clock = ManualClock()
    gate = Dispatch(
        rates=rates, clock=clock, random=lambda: 0.5, concurrency=None, byte_budget=None, **options
    )
    sent = []
    for step, *facts in program:
        if step == "wait":
            clock.advance_to_ns(clock.now() + facts[0])
        elif step == "go":
            for _ in range(facts[0]):
                permit = gate.try_admit()
                if permit is None:
                    break
                permit.settle()
                assert referee.wait(1, clock.now()) == 0, f"call {len(sent) + 1} at {clock.seconds()} s"
                referee.take(1, clock.now())
                sent.append(clock.seconds())
        elif sent:
            which, when, (status, headers) = facts
            moment = {"sent": sent[which % len(sent)], "now": clock.seconds(), "early": -5.0, None: None}[
                when
            ]
            gate.observe(read_signal(status, headers, now=1_800_000_000 + clock.seconds()), sent_at=moment)
    return sent


MUCH_REMAINS = (200, [("x-ratelimit-limit-requests", "3"), ("x-ratelimit-remaining-requests", "3")])
TWO_A_MINUTE = (200, [("x-ratelimit-limit-requests", "2")])

rates_with_burst = st.builds(
    lambda amount, period, burst: Rate(amount, period, burst=burst),
    st.integers(1, 600),
    st.sampled_from([1, 10, 60]),
    st.integers(1, 50),
)


@settings(max_examples=80)
@given(rates_with_burst, programs, st.booleans())
def test_no_answer_lets_more_through_than_the_configured_burst(rate, program, pause):
    play([rate], meter_for(rate, "bucket", 0, 0), program, pause=pause)


@settings(max_examples=60)
@example(1, 1, [("go", 1), ("answer", 0, "sent", TWO_A_MINUTE), ("wait", 60 * SECOND), ("go", 2)])
@given(st.integers(1, 60), st.sampled_from([1, 10, 60]), programs)
def test_no_answer_lets_more_through_than_a_strict_rate(amount, period, program):
    rate = Rate(amount, period, strict=True)
    play([rate], meter_for(rate, "bucket", 0, 0), program)


@settings(max_examples=80)
@example(3, [("go", 9), ("answer", 0, "now", MUCH_REMAINS)] * 9)
@given(st.integers(1, 30), programs)
def test_where_no_burst_is_configured_no_answer_lets_more_through_than_two_windows_hold(amount, program):
    """The most that an honest API allows: it counts fixed minutes, and one ends right now."""
    play([Rate(amount, 60)], Bucket(Rate(amount, 60, burst=2 * amount), 0), program)


@settings(max_examples=60)
@given(rates_with_burst, programs)
def test_a_year_after_the_last_answer_a_call_goes(rate, program):
    later = [("wait", YEAR), ("go", 1)]
    sent = play([rate], meter_for(rate, "bucket", 0, 0), [*program, *later])
    assert sent
    assert sent[-1] >= YEAR / SECOND


known = st.builds(
    lambda amount, burst, configured, style, jobs, service, delay, callers: Scenario(
        "random",
        Limits(f"{amount}/minute burst {max(burst, -(-amount // 60))}", style=style),
        {"429s": 0},
        rates=f"{amount}/minute" + (f" burst {max(burst, -(-amount // 60))}" if configured else ""),
        jobs=jobs,
        service=service,
        delay=(delay, delay),
        callers=callers,
    ),
    amount=st.sampled_from([30, 60, 500, 1200, 6000]),
    burst=st.sampled_from([1, 5, 20, 100, 500, 6000]),
    configured=st.booleans(),
    style=st.sampled_from([None, "openai", "anthropic", "plain"]),
    jobs=st.integers(5, 150),
    service=st.sampled_from([(0.001, 0.001), (0.01, 0.02), (0.05, 0.15), (0.5, 4.0), (0.1, 30.0)]),
    delay=st.sampled_from([0.0, 0.003, 0.05, 0.5]),
    callers=st.sampled_from([1, 3, 20, 200]),
)


@settings(max_examples=25)
@given(known, st.integers(1, 5))
def test_with_known_limits_and_even_delays_an_honest_api_refuses_nothing(scenario, seed):
    figures = Drive(scenario, seed).figures()
    assert scenario.missed(figures) == []
