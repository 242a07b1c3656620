"""The API that judges and the ideal that is compared with: both computed by hand for simple cases."""

from itertools import repeat

import pytest

from goodput.api import Api, Limits, ideal_end, room
from goodput.rig import Drive
from goodput.scenarios import Scenario
from headgate.arguments import SECOND
from headgate.http import read_signal


def ideal(limits, jobs, *, callers=10**6, service=0.0, delay=0.0):
    services = repeat(round(service * SECOND))
    return ideal_end(limits, jobs, callers=callers, services=services, delay=round(delay * SECOND)) / SECOND


@pytest.mark.parametrize(
    ("limits", "jobs", "seconds"),
    [
        (Limits("1200/minute burst 20"), 20, 0),
        (Limits("1200/minute burst 20"), 1220, 60),
        (Limits("1200/minute burst 20", empty=True), 1200, 60),
        (Limits("1200/minute", "fixed"), 2401, 120),
        (Limits("1200/minute", "fixed", phase=37.0), 1201, 23),
        (Limits("20/s burst 20", outages=((10.0, 16.0, 503),)), 239, 16),  # 20 + 199, and 20
        (Limits("20/s burst 20", changes=((10.0, "10/s burst 10"), (20.0, "20/s burst 20"))), 340, 21),
    ],
    ids=str,
)
def test_the_ideal_is_what_the_limit_allows(limits, jobs, seconds):
    assert ideal(limits, jobs) == pytest.approx(seconds, abs=1e-6)


def test_the_ideal_knows_how_many_callers_there_are_and_how_long_a_call_takes():
    assert ideal(Limits("500/minute"), 200, callers=20, service=0.1) == pytest.approx(1.0)
    assert ideal(Limits("500/minute"), 1, service=2.0, delay=0.5) == 2.5


@pytest.mark.parametrize("kind", ["bucket", "fixed", "sliding"])
def test_the_room_of_a_limit_is_the_limit(kind):
    assert room(Limits("1200/minute", kind), 60.0, 180.0) == 2400


def test_a_neighbour_takes_its_part():
    api = Api(Limits("1200/minute burst 1200", neighbour=0.2), seed=1)
    api.judge(600 * SECOND)
    assert len(api.neighbours) == pytest.approx(0.2 * 12_000, rel=0.05)


def test_answers_state_what_the_meter_says():
    api = Api(Limits("40/s", empty=True))
    status, headers = api.judge(0)
    signal = read_signal(status, headers, now=api.wall(0))
    assert (signal.limited, signal.retry_after) == (True, 0.025)
    assert (signal.scopes[0].limit, signal.scopes[0].remaining, signal.scopes[0].reset_after) == (40, 0, 1.0)


@pytest.mark.parametrize("style", ["openai", "anthropic", "plain", None])
def test_in_an_outage_answers_have_no_headers(style):
    api = Api(Limits(style=style, outages=((1.0, 2.0, 529),)))
    assert [api.judge(at * SECOND)[0] for at in (0, 1, 2)] == [200, 529, 200]
    assert api.judge(round(1.5 * SECOND)) == (529, ())


@pytest.mark.parametrize("limit", ["1200/minute burst 20", "20/s burst 1", "500/minute burst 500"])
def test_a_dispatch_that_hears_nothing_and_has_the_limits_of_the_api_is_as_fast_as_the_ideal(limit):
    bars = {"over": 1.000001, "429s": 0}
    limits = Limits(limit, style=None)
    scenario = Scenario("", limits, bars, rates=limit, jobs=600, expected_delay=0.0)
    assert scenario.missed(Drive(scenario, 1).figures()) == []


def test_the_same_seed_gives_the_same_calls():
    scenario = Scenario("", Limits(), {}, jobs=200, delay=(0.0, 0.05), cold=(20, 0.05, 0.15))
    first, second, other = (Drive(scenario, seed).calls for seed in (1, 1, 2))
    assert first == second
    assert first != other
