"""A process whose line to the store falls silent while another one reaches the store, by every `on_loss`.

Real servers, real processes, a line that passes nothing and tells neither side, and a referee.
"""

import asyncio
import time
from contextlib import ExitStack

import pytest

from faults.postgres import PostgresServer
from faults.referee import judge
from faults.rig import Server
from faults.team import BURST, PLACES, RATE, Team
from faults.units import question
from faults.wire import Wire
from headgate.sharing.store import open_store

SILENT, BACK, END = 1.0, 5.0, 6.5
MODES = ("share", "lease", "closed", "open")


@pytest.mark.parametrize("kind", [Server, PostgresServer], ids=["valkey", "postgres"])
def test_a_process_in_a_black_hole_goes_by_what_on_loss_says_and_the_other_one_uses_the_rest(kind, tmp_path):
    """Two processes for each mode, all modes at the same time, each with a key of its own."""
    with kind() as server, Wire(server.port) as wire, ExitStack() as stack:
        lonely = wire.through(server.url)
        teams = {
            mode: stack.enter_context(Team(tmp_path, lonely, server.url, many=2, on_loss=mode))
            for mode in MODES
        }
        at = time.monotonic() + 0.2
        for team in teams.values():
            team.begin(END, at=at)
        team.wait_until(SILENT)
        wire.dead = True
        team.wait_until(BACK)
        wire.dead = False
        said = {mode: list(team.ends()) for mode, team in teams.items()}
        both = {mode: judge(team.logs, RATE, BURST, {}) for mode, team in teams.items()}
        alone = {mode: judge(team.logs[:1], RATE, BURST, {}) for mode, team in teams.items()}
        others = {mode: judge(team.logs[1:], RATE, BURST, {}) for mode, team in teams.items()}
    for mode in ("lease", "closed"):
        assert both[mode].excess <= 0
        assert both[mode].most_inside <= PLACES
    # Its part is a half: with all of the other one that is 1.5 times the limit, and no more.
    assert judge(teams["share"].logs, 1.5 * RATE, 1.5 * BURST, {}).excess <= 0
    assert both["share"].most_inside <= 1.5 * PLACES
    assert both["open"].most_inside <= 2 * PLACES
    for mode in MODES:
        assert said[mode][0]["lost"] == said[mode][0]["regained"] == 1
        # In a database the other one waits until the server has ended the transaction of the lonely one.
        assert said[mode][1]["lost"] == said[mode][1]["regained"] <= (kind is PostgresServer)
        # The other one uses what the lonely one does not, once its lease is over.
        assert others[mode].excess <= 0
        assert others[mode].between(at + SILENT, at + BACK) >= 0.35 * RATE * (BACK - SILENT)
        assert alone[mode].between(at + BACK, at + 60) >= 5
        calls = alone[mode].between(at + SILENT + 1.5, at + BACK)
        if mode in ("lease", "closed"):
            assert calls <= (BURST if mode == "lease" else 0)
        else:
            assert calls >= (0.2 if mode == "share" else 0.5) * RATE * (BACK - SILENT - 1.5)


@pytest.mark.parametrize("kind", [Server, PostgresServer], ids=["valkey", "postgres"])
@pytest.mark.parametrize("whom", ["client", "server"])
def test_a_connection_that_one_end_has_closed_is_given_up_for_another_one(kind, whom):
    """Questions and listeners go on, and what was asked is decided once."""

    async def main(url):
        news = asyncio.Event()
        store, direct = open_store(url, None), open_store(server.url, None)
        try:
            await store.listen("k", news.set)
            for number in range(1, 6):
                given = await store.ask("k", question("a", number, batches=[[1]]))
                assert given["starts"] == [0]
                async with asyncio.timeout(20):
                    await news.wait()
                news.clear()
                assert await asyncio.to_thread(wire.half_close, whom) >= 1
            async with asyncio.timeout(20):
                await news.wait()
            news.clear()
            await direct.ask("k", question("b", 1, window=1_000_000))
            async with asyncio.timeout(20):
                await news.wait()
            given = await direct.ask("k", question("auditor", 1, batches=[[1]] * 1_000))
            assert given["starts"].count(0) == 900 - 5
        finally:
            await store.close()
            await direct.close()

    with kind() as server, Wire(server.port) as wire:
        asyncio.run(main(wire.through(server.url)))
