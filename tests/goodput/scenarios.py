"""Situations in front of an API, each with the figures that headgate must reach there."""

from dataclasses import dataclass, field, replace
from math import exp, log
from random import Random

from goodput.api import Limits

AT_LEAST = frozenset({"use"})  # of every other figure, at most that much is allowed


@dataclass(frozen=True)
class Scenario:
    """What callers do in front of an API, for a number of jobs or for a time."""

    name: str
    limits: Limits
    bars: dict[str, float]
    rates: object = "auto"
    jobs: int | None = None
    until: float | None = None  # seconds
    callers: int = 400
    delay: tuple[float, float] = (0.0, 0.0)  # seconds from the gate to the API
    cold: tuple[int, float, float] = (0, 0.0, 0.0)  # how many of the first calls are delayed by how much
    service: tuple[float, float] = (0.5, 4.0)  # seconds until a successful answer
    refusal: tuple[float, float] = (0.1, 0.1)  # seconds until any other
    expected_delay: float = 0.1  # seconds; as the adapters do
    options: dict = field(default_factory=dict)  # of the Dispatch
    members: int = 1  # how many Dispatches share a store, with the callers in equal parts

    def missed(self, figures):
        """The bars that the figures do not reach, as text."""
        bars = self.bars | ({"above": 0} if "above" in figures else {})
        return [
            f"{name} is {figures[name]:.4g}, and the bar is {bar:g}"
            for name, bar in bars.items()
            if not (figures[name] >= bar if name in AT_LEAST else figures[name] <= bar)
        ]


HALF_HOUR = 1800.0


def learned(name, limits, *, callers=400, **bars):
    """Nothing is stated and nothing is known: half an hour, of which the last twenty minutes count."""
    return Scenario(f"silent {name}", limits, bars, until=HALF_HOUR, callers=callers)


def silent(limit, kind="bucket", **facts):
    return Limits(limit, kind, style=None, **facts)


def dropped(burst):
    changes = ((600.0, f"360/minute burst {max(1, burst * 3 // 10)}"), (900.0, f"1200/minute burst {burst}"))
    return silent(f"1200/minute burst {burst}", changes=changes)


LEARNED = [
    learned("fixed minute", silent("1200/minute", "fixed"), use=0.97, refused=0.008),
    learned("bucket 1 s", silent("1200/minute burst 20"), use=0.95, refused=0.002),
    learned("bucket 10 s", silent("1200/minute burst 200"), use=0.99, refused=0.002),
    learned("bucket 60 s", silent("1200/minute burst 1200"), use=0.99, refused=0.002),
    learned("fixed second", silent("20/s", "fixed"), use=0.85, refused=0.002),
    learned("bucket 10 s, drop", dropped(200), refused=0.01, regained=120.0),
    Scenario(
        "silent bucket 10 s, 50 callers, slow answers",
        silent("60/minute burst 10"),
        {"use": 0.95, "refused": 0.01},
        until=HALF_HOUR,
        callers=50,
        service=(0.5, 60.0),
    ),
    Scenario(
        "silent fixed minute, 50 callers, slow answers and refusals",
        silent("60/minute", "fixed"),
        {"use": 0.95, "refused": 0.02},
        until=HALF_HOUR,
        callers=50,
        service=(0.5, 60.0),
        refusal=(0.1, 10.0),
    ),
]

# These take too long for every run of the tests; `rig.py` shows them.
LONG = [
    learned("fixed minute, phase 37", silent("1200/minute", "fixed", phase=37.0), use=0.97, refused=0.008),
    learned("bucket 1 s, drop", dropped(20), refused=0.01, regained=120.0),
    learned(
        "bucket 10 s, neighbour", silent("1200/minute burst 200", neighbour=0.2), use=0.97, refused=0.004
    ),
    learned(
        "fixed minute, neighbour", silent("1200/minute", "fixed", neighbour=0.2), use=0.95, refused=0.008
    ),
]
# One caller, whose answers come at once.
LONG += [
    replace(
        scenario,
        name=scenario.name.replace("silent", "serial"),
        callers=1,
        service=(0.0, 0.0),
        refusal=(0.0, 0.0),
    )
    for scenario in LEARNED[:6] + LONG
]

KNOWN = "1200/minute burst 20"
HALVED = ((20.0, "600/minute burst 10"), (30.0, "1200/minute burst 20"))
QUICK = (0.05, 0.15)
FIXED = Limits("1200/minute", "fixed")
LATE_FIXED = Limits("1200/minute", "fixed", phase=37.0)
EMPTY = Limits("600/minute burst 10", empty=True)  # the first burst may be refused: 10 of 1200 jobs


def stated(name, over, refusals, *, rates=KNOWN, **facts):
    """The API states its limits in headers; 1200 jobs, which take a minute at best."""
    limits = facts.pop("limits", Limits())
    bars = {"over": over, "429s": refusals}
    return Scenario(f"stated {name}", limits, bars, rates=rates, jobs=facts.pop("jobs", 1200), **facts)


STATED = [
    stated("known", 1.02, 0),
    stated("known, anthropic", 1.02, 0, limits=Limits(style="anthropic")),
    stated("known, fixed minute", 1.05, 0.005, rates="1200/minute", limits=FIXED, jobs=2400),
    stated("known, fixed minute, phase 37", 1.1, 0.005, rates="1200/minute", limits=LATE_FIXED, jobs=2400),
    stated("known, jitter", 1.03, 0.005, delay=(0.0, 0.05)),
    stated("known, cold connections", 1.02, 0, cold=(20, 0.05, 0.15)),
    stated("known, cold connections and jitter", 1.03, 0.005, cold=(20, 0.05, 0.15), delay=(0.0, 0.05)),
    stated("unknown", 1.03, 0.005, rates="auto"),
    stated("unknown, quick answers", 1.03, 0.005, rates="auto", service=QUICK),
    stated("unknown, jitter", 1.03, 0.005, rates="auto", delay=(0.0, 0.05)),
    stated("unknown, anthropic", 1.03, 0.005, rates="auto", limits=Limits(style="anthropic")),
    stated("unknown, fixed minute", 1.05, 0.005, rates="auto", limits=FIXED, jobs=2400),
    stated("unknown, fixed minute, phase 37", 1.1, 0.005, rates="auto", limits=LATE_FIXED, jobs=2400),
    stated("known, cut to half", 1.03, 0.01, limits=Limits(changes=HALVED)),
    stated("unknown, cut to half", 1.03, 0.01, rates="auto", limits=Limits(changes=HALVED)),
    stated("known, started empty", 1.03, 0.01, rates="600/minute burst 10", limits=EMPTY),
    stated("unknown, started empty", 1.03, 0.01, rates="auto", limits=EMPTY),
    Scenario(
        "stated 600/minute, empty at the start, 50 jobs",
        Limits("600/minute", empty=True),
        {"over": 1.1, "429s": 0.2},  # the first burst is refused
        rates="600/minute",
        jobs=50,
        service=QUICK,
    ),
    Scenario(
        "stated bucket of 500, 200 jobs, 500/minute",
        Limits("500/minute"),
        {"over": 1.1, "429s": 0},
        rates="500/minute",
        jobs=200,
        callers=20,
        service=QUICK,
    ),
    Scenario(
        "stated bucket of 500, 200 jobs, auto",
        Limits("500/minute"),
        {"over": 1.1, "429s": 0},
        jobs=200,
        callers=20,
        service=QUICK,
    ),
    Scenario(
        "stated retry-after of 25 ms, reset of 1 s",
        Limits("40/s", empty=True),
        {"waited": 0.033, "over": 1.1},
        rates="40/s",
        jobs=40,
        service=(0.001, 0.001),
        refusal=(0.001, 0.001),
    ),
    stated(
        "lower than the strict rate",
        1.1,
        0.01,
        rates="2400/minute strict",
        limits=Limits("1200/minute", "sliding"),
        jobs=1800,
    ),
]


def outage(seconds, status=503, **facts):
    limits = Limits(outages=((10.0, 10.0 + seconds, status),))
    bars = {"late": seconds / 4 + 0.5, "probes": 40}
    if seconds == 6:
        bars |= {"over": 1.03, "429s": 0.01}
    return Scenario(f"outage of {seconds} s, {status}", limits, bars, rates=KNOWN, jobs=1200, **facts)


OUTAGES = [outage(seconds) for seconds in (3, 6, 20, 60, 600)]
OUTAGES += [outage(6, 529), outage(60, 500)]

SHARED = [
    stated("known, shared by two", 1.03, 0, members=2),
    stated("known, shared by two, jitter", 1.03, 0.005, members=2, delay=(0.0, 0.05)),
    stated("known, shared by two, cut to half", 1.03, 0.01, members=2, limits=Limits(changes=HALVED)),
    replace(STATED[-4], name="stated bucket of 500, 200 jobs, 500/minute, shared by two", members=2),
    replace(STATED[-4], name="stated bucket of 500, 200 jobs, 500/minute, shared by four", members=4),
    stated("unknown, shared by two", 1.05, 0.01, rates="auto", members=2),
    stated(
        "strict, shared by two",
        1.03,
        0,
        rates="1200/minute strict",
        limits=Limits("1200/minute", "sliding"),
        jobs=1800,
        members=2,
    ),
    stated(
        "strict second, shared by four",
        1.12,  # each unit counts for a tenth of a second longer
        0,
        rates="20/s strict",
        limits=Limits("20/s", "sliding"),
        members=4,
    ),
    replace(OUTAGES[1], name="outage of 6 s, 503, shared by two", members=2),
    replace(OUTAGES[1], name="outage of 6 s, 503, shared by four", members=4),
    stated("unknown, shared by four, quick answers", 1.05, 0.01, rates="auto", members=4, service=QUICK),
]

LONG += [
    replace(
        LEARNED[0],
        name="silent fixed minute, shared by two, 50 callers",
        limits=silent("120/minute", "fixed"),
        bars={"use": 0.97, "refused": 0.015},  # fewer than two calls of each minute
        callers=50,
        members=2,
    ),
]

SCENARIOS = {scenario.name: scenario for scenario in LEARNED + STATED + OUTAGES + SHARED + LONG}


def random_scenario(seed):
    """An API with headers, any limit and any mishap, and callers that know its limit or do not.

    The jobs take about a minute at best. The bars are wide: what misses them has a defect.
    """
    dice = Random(f"scenario {seed}")
    amount = dice.choice([60, 300, 600, 1200])
    burst = max(1, round(amount / 60 * dice.choice([0.2, 1, 10, 60])))
    kind = dice.choice(["bucket", "bucket", "bucket", "fixed", "sliding"])
    limit = f"{amount}/minute" + (f" burst {burst}" if kind == "bucket" else "")
    mishap = dice.choice(["", "", "cut", "outage", "empty", "neighbour"])
    half = f"{amount // 2}/minute" + (f" burst {max(1, burst // 2)}" if kind == "bucket" else "")
    limits = Limits(
        limit,
        kind,
        phase=dice.uniform(0, 60) if kind == "fixed" else 0.0,
        style=dice.choice(["openai", "anthropic", "plain"]),
        advice=dice.random() < 0.7,
        changes=((20.0, half), (dice.choice([30.0, 60.0]), limit)) if mishap == "cut" else (),
        outages=((10.0, 10.0 + dice.choice([3, 6, 20]), 503),) if mishap == "outage" else (),
        empty=mishap == "empty",
        neighbour=0.2 if mishap == "neighbour" else 0.0,
    )
    known = dice.choice(["auto", f"{amount}/minute", limit])
    jobs = amount + (burst if kind == "bucket" else dice.randrange(amount))
    first = max(burst, amount // 60 + 1) if mishap == "empty" else 0  # refused before anything is known
    return Scenario(
        f"random {seed}",
        limits,
        {"over": 1.25, "429s": 0.02 + (first + 3) / jobs},
        rates=known,
        jobs=jobs,
        delay=dice.choice([(0.0, 0.0), (0.0, 0.05), (0.05, 0.05), (0.02, 0.3)]),
        cold=dice.choice([(0, 0.0, 0.0), (burst, 0.05, 0.15)]),
        service=dice.choice([(0.01, 0.03), (0.05, 0.15), (0.5, 4.0), (0.5, 20.0)]),
        callers=dice.choice([20, 100, 400]),
    )


def random_outage(seed):
    """An outage of any length that begins at any moment, answered quickly or slowly; limits known or not."""
    dice = Random(f"outage {seed}")
    start, length = dice.uniform(5, 15), exp(dice.uniform(0, log(600)))
    return Scenario(
        f"random outage {seed}",
        Limits(outages=((start, start + length, dice.choice([500, 503, 529])),)),
        {"late": length / 4 + 0.5, "probes": 40},
        rates=dice.choice([KNOWN, "auto"]),
        jobs=600,
        service=dice.choice([(0.01, 0.03), (0.05, 0.15), (0.5, 4.0)]),
        refusal=dice.choice([(0.01, 0.05), (0.1, 0.1), (0.1, 1.0)]),
    )
