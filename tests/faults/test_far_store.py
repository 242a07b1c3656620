"""Real processes that share limits by a real server, near and far away: what all of them together use.

The time is real, and the machine may be busy: bounds are asserted exactly, and use and shares loosely.
"""

import time

import pytest

from faults.postgres import PostgresServer
from faults.referee import worst_excess
from faults.rig import Proxy, Server
from faults.wire import Wire
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


@pytest.mark.parametrize(("delay", "seconds"), [(0.15, 3), (0.5, 6)])
def test_processes_far_from_the_store_stay_within_the_rate_and_do_not_lose_it(proxy, delay, seconds):
    """300 ms and a second for a question and its answer."""
    proxy.delay = delay
    results, begin = together([{"tasks": 50}] * 2, seconds, store=proxy.url, rates=["200/s burst 200"])
    times = times_of(results)
    assert worst_excess(times, 200, 200) <= 0
    assert [result["lost"] for result in results] == [0, 0]
    assert len([at for at in times if at >= begin + seconds - 2]) >= 0.6 * 200 * 2


def test_processes_far_from_a_database_stay_within_the_rate_and_do_not_lose_it():
    """40 ms for each of the two trips of a question to PostgreSQL."""
    with PostgresServer() as server, Wire(server.port) as wire:
        url = wire.through(server.url)
        processes = Processes(
            "sharer.py", [{"tasks": 50, "store": url, "rates": ["200/s burst 100"], "key": "far"}] * 2
        )
        wire.delay = 0.02
        processes.tell_all(3)
        results = processes.results()
    times = times_of(results)
    assert worst_excess(times, 200, 100) <= 0
    assert [result["lost"] for result in results] == [0, 0]
    assert len([at for at in times if at >= processes.begin + 1]) >= 0.6 * 200 * 2


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
