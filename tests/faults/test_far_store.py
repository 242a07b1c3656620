"""Real processes that share limits by a real server, near and far away: what all of them together use.

The time is real, and the machine may be busy: bounds are asserted exactly, and use and shares loosely.
"""

import time
from contextlib import ExitStack, contextmanager
from functools import partial

import pytest

from faults.at_once import places
from faults.postgres import PostgresServer
from faults.referee import worst_excess
from faults.rig import Cluster, Proxy, Server
from faults.team import Team, calmly
from faults.wire import Line
from headgate import Dispatch
from stores.processes import Processes

pytestmark = pytest.mark.alone


@pytest.fixture(scope="module")
def server():
    with Server() as server:
        yield server


@pytest.fixture
def proxy(server):
    with Proxy(server.port) as proxy:
        yield proxy


def together(options, seconds, **common):
    """Run one process for each of the options. Return what they did, and when they began."""
    common = {"key": f"key-{time.time_ns()}", "rates": [], **common}
    processes = Processes("sharer.py", [{**common, **each} for each in options])
    processes.tell_all(seconds)
    return processes.results(), processes.begin


def times_of(results):
    return sorted(at for result in results for at in result["times"])


def most_inside(results):
    changes = [(at, 1) for result in results for at in result["times"]]
    changes += [(at, -1) for result in results for at in result["ends"]]
    inside = most = 0
    for _, change in sorted(changes):
        inside += change
        most = max(most, inside)
    return most


def test_a_greedy_and_three_light_processes_never_exceed_the_places(proxy):
    """40 ms for a question and its answer."""
    proxy.delay = 0.02
    options = [{"tasks": 30, "takes": 0.05}, *[{"tasks": 2, "takes": 0.02}] * 3]
    results, _ = together(options, 2.5, store=proxy.url, concurrency=10)
    assert most_inside(results) <= 10
    assert len(times_of(results)) >= 0.5 * 4 * 2.5 / 0.05


def test_a_small_burst_is_shared_equally_for_few_questions(server):
    results, begin = together([{"tasks": 50}] * 4, 3, store=server.url, rates=["500/s burst 100"])
    times = times_of(results)
    assert worst_excess(times, 500, 100) <= 0
    parts = [len(result["times"]) for result in results]
    assert min(parts) >= 0.7 * max(parts)
    assert len([at for at in times if at >= begin + 0.5]) >= 0.8 * 500 * 2.5
    assert sum(result["asked"] for result in results) <= 0.1 * len(times)


# Stores, and how many seconds a question and its answer travel; PostgreSQL takes two such trips.
FAR = {
    f"{kind} {trip:g}": (kind, trip) for kind in ("valkey", "cluster", "postgres") for trip in (0.04, 0.3, 1)
}
KINDS = {"valkey": Server, "cluster": Cluster, "postgres": PostgresServer}
FAR_END = 9


@pytest.fixture(scope="module")
def far(tmp_path_factory):
    """What two processes did that are far away from each kind of store, all at the same time.

    A process that is a second away from PostgreSQL could not begin: there the way becomes long afterwards.
    """

    @contextmanager
    def lines_to(kind):
        with KINDS[kind]() as server, ExitStack() as stack:
            lines = {name: Line(server) for name, (each, _) in FAR.items() if each == kind}
            for line in lines.values():
                stack.enter_context(line)
            Dispatch("first", rates="9/s", store=server.url).close()  # the server has heard the scripts
            yield lines

    def run():
        for name, line in lines.items():
            line.set(delay=0 if name == "postgres 1" else FAR[name][1] / 2)
        with Team(tmp_path_factory.mktemp("logs"), limits, many=2, **options) as team:
            for name, line in lines.items():
                line.set(delay=FAR[name][1] / 2)
            team.begin(FAR_END)
            return team, team.ends()

    with places({kind: partial(lines_to, kind) for kind in KINDS}) as found:
        lines = {name: line for place in found.made.values() for name, line in place.items()}
        limits = {name: {"store": line.store} for name, line in lines.items()}
        options = {"rates": "200/s burst 200", "concurrency": None, "takes": 0, "tasks": 50}
        return found, *calmly(run)


@pytest.mark.parametrize("name", FAR)
def test_processes_far_from_the_store_stay_within_the_rate_and_do_not_lose_it(name, far):
    """Those that cannot use it from so far away lose it once, and go by their parts."""
    found, team, said = far
    kind, trip = FAR[name]
    found.check(kind)
    verdict = team.judge(name, 200, 200)
    assert verdict.excess <= 0
    assert [each[name]["lost"] for each in said] == [int(name == "postgres 1")] * 2
    # Until then both have found out how far away they are, and the pool how much they want.
    assert verdict.between(FAR_END - 4, FAR_END) >= (0.7 if trip == 1 else 0.85) * 200 * 4


def test_processes_that_were_quiet_stay_within_the_rate_when_the_store_dies():
    with Server() as server:
        common = {"store": server.url, "rates": ["100/s burst 100"], "key": "quiet", "tasks": 20}
        processes = Processes("sharer.py", [common] * 4)
        time.sleep(0.5)
        server.kill()
        processes.tell_all(3)
        times = times_of(processes.results())
    assert worst_excess(times, 100, 100) <= 0
    assert 0.6 * 100 * 3 <= len([at for at in times if at < processes.begin + 3]) <= 100 * 3 + 4
