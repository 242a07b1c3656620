"""Processes whose clocks are wrong: the store counts by its own clock, so that nothing depends on theirs."""

from contextlib import contextmanager

import pytest

from faults.at_once import places
from faults.postgres import PostgresServer
from faults.rig import Cluster, Server
from faults.team import PLACES, RATE, Team, calmly

SERVERS = {"valkey": Server, "cluster": Cluster, "postgres": PostgresServer}
WINDOW, END = (2.5, 0.7), 3.8


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """One clock is five seconds behind, one right, and one five seconds ahead. They share by every store."""

    @contextmanager
    def a_file():
        yield f"sqlite:///{tmp_path_factory.mktemp('file')}/limits.db"

    def url_of(kind):
        @contextmanager
        def make():
            with kind() as server:
                yield server.url

        return make

    def run():
        with Team(tmp_path_factory.mktemp("logs"), limits, many=3, off=[-5, 0, 5]) as team:
            team.begin(END, windows=[WINDOW])
            return team, team.ends()

    with places({"file": a_file, **{name: url_of(kind) for name, kind in SERVERS.items()}}) as found:
        limits = {name: {"store": url} for name, url in found.made.items()}
        team, _said = calmly(run)
    return found, team


@pytest.mark.parametrize("name", ["file", *SERVERS])
def test_processes_whose_clocks_are_five_seconds_apart_share_a_rate_and_a_window(name, run):
    found, team = run
    found.check(name)
    verdict = team.judge(name)
    parts = [len(team.judge(name, who=slice(n, n + 1)).admitted) for n in range(3)]
    assert verdict.excess <= 0
    assert verdict.most_inside <= PLACES
    begin, length = WINDOW
    assert verdict.between(begin + 0.3, begin + length) == 0
    assert verdict.between(1, begin) >= 0.8 * RATE * (begin - 1)
    assert verdict.between(begin + length, END) > 0
    assert min(parts) >= 0.5 * max(parts)
