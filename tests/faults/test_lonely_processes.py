"""A process whose line to the store falls silent while another one reaches the store, by every `on_loss`.

Real servers, real processes, a line that passes nothing and tells neither side, and a referee.
"""

import asyncio
from contextlib import contextmanager
from functools import partial

import pytest

from faults.at_once import places
from faults.postgres import PostgresServer
from faults.referee import worst_excess
from faults.rig import Cluster, Server
from faults.team import BURST, PLACES, RATE, Team, calmly
from faults.units import question
from faults.wire import Line
from headgate.sharing.store import open_store
from patience import News

SILENT, BACK, END = 1.0, 5.0, 9.0
MODES = ("share", "lease", "closed", "open")
KINDS = {"valkey": Server, "cluster": Cluster, "postgres": PostgresServer}


@pytest.fixture(scope="module")
def found():
    """A server of each kind, and a line to it."""

    @contextmanager
    def lined(kind):
        with kind() as server, Line(server) as line:
            yield server, line

    with places({name: partial(lined, kind) for name, kind in KINDS.items()}) as found:
        yield found


def gates_of(said):
    """What one process said of each of its gates."""
    return [gate for gate in said.values() if isinstance(gate, dict)]


@pytest.fixture(scope="module")
def run(found, tmp_path_factory):
    """Two processes, each with a gate for each kind of store and each mode, all at the same time."""
    limits = {
        f"{name} {mode}": {"store": [line.store, server.url], "on_loss": mode}
        for name, (server, line) in found.made.items()
        for mode in MODES
    }

    def run():
        with Team(tmp_path_factory.mktemp("logs"), limits, many=2) as team:
            team.begin(END)
            team.wait_until(SILENT)
            found.all(lambda place: place[1].set(dead=True))
            team.wait_until(BACK)
            found.all(lambda place: place[1].set(dead=False))
            said = team.ends()
        # On a busy machine a server needs longer than a quarter of a second more often: it was not calm.
        losses = sum(gate["lost"] - 1 for each in said for gate in gates_of(each) if gate["lost"] > 1)
        team.longest_pause = max(team.longest_pause, 0.1 * losses)
        return team, said

    return calmly(run)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", KINDS)
def test_a_process_in_a_black_hole_goes_by_what_on_loss_says_and_the_other_one_uses_the_rest(
    name, mode, found, run
):
    found.check(name)
    team, said = run
    limit = f"{name} {mode}"
    both = team.judge(limit)
    alone, other = (team.judge(limit, who=slice(n, n + 1)) for n in range(2))
    if mode in ("lease", "closed"):
        assert both.excess <= 0
        assert both.most_inside <= PLACES
    elif mode == "share":
        # Its part is a half: with all of the other one that is 1.5 times the limit, and no more.
        assert team.judge(limit, 1.5 * RATE, 1.5 * BURST).excess <= 0
        assert both.most_inside <= 1.5 * PLACES
    else:
        assert both.most_inside <= 2 * PLACES
    assert said[0][limit]["lost"] == said[0][limit]["regained"] == 1
    # In a database the other one waits until the server has ended the transaction of the lonely one.
    assert said[1][limit]["lost"] == said[1][limit]["regained"] <= (name == "postgres")
    # The other one uses what the lonely one does not, once its lease is over. For as long as it has lost the
    # store too, on_loss="open" means that it has no rates.
    if mode == "open" and said[1][limit]["lost"]:
        for times in (
            [at for at in other.admitted if at < SILENT],
            [at for at in other.admitted if at > BACK + 1],
        ):
            assert worst_excess(times, RATE, BURST) <= 0
    else:
        assert other.excess <= 0
    assert other.between(SILENT, BACK) >= 0.35 * RATE * (BACK - SILENT)
    assert alone.between(BACK, END) >= 5
    calls = alone.between(SILENT + 1.5, BACK)
    if mode in ("lease", "closed"):
        assert calls <= (BURST if mode == "lease" else 0)
    else:
        assert calls >= (0.2 if mode == "share" else 0.5) * RATE * (BACK - SILENT - 1.5)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("whom", ["client", "server"])
def test_a_connection_that_one_end_has_closed_is_given_up_for_another_one(name, whom, found):
    """Questions and listeners go on, and what was asked is decided once."""
    found.check(name)
    server, line = found.made[name]

    async def main():
        news = News()
        store, direct = line.opened(), open_store(server.url, None)
        try:
            await store.listen(whom, news.set)
            for number in range(1, 6):
                given = await store.ask(whom, question("a", number, batches=[[1]]))
                assert given["starts"] == [0]
                async with asyncio.timeout(20):
                    await news.wait()
                news.clear()
                assert await asyncio.to_thread(line.half_close, whom) >= 1
            async with asyncio.timeout(20):
                await news.wait()
            news.clear()
            await direct.ask(whom, question("b", 1, window=1_000_000))
            async with asyncio.timeout(20):
                await news.wait()
            given = await direct.ask(whom, question("auditor", 1, batches=[[1]] * 1_000))
            assert given["starts"].count(0) == 900 - 5
        finally:
            await store.close()
            await direct.close()

    asyncio.run(main())
