"""A run in which everything happens that metrics count, and what its callers saw of it themselves."""

import asyncio
from collections import Counter
from dataclasses import dataclass, field

from headgate import CostTooLarge, Dispatch, Refused
from headgate.errors import StoreError
from headgate.responses import read_signal
from headgate.testing import MemoryStore, run
from patience import eventually


@dataclass
class Referee:
    """What the callers of a run have seen."""

    results: Counter = field(default_factory=Counter)  # by result
    waited: float = 0.0  # seconds, of calls that were admitted
    waits: int = 0  # how many calls waited, whatever became of them
    held: float = 0.0
    tokens: Counter = field(default_factory=Counter)  # estimated and actual
    inside: int = 0
    inside_by_scrape: list = field(default_factory=list)


def eventful_run(observer, scrape):
    """Calls at the gate `api` that wait, are refused and cancelled, and a window. Returns the referee.

    `scrape()` is called once while two calls wait and one is under way.
    """
    referee = Referee()

    async def main(clock):
        api = Dispatch(
            "api", rates=["10/s burst 1", "1000 tokens/s"], pause=True, observer=observer, clock=clock
        )

        async def call(tokens, actual, **options):
            came = clock.seconds()
            try:
                async with api.admit(tokens=tokens, **options) as permit:
                    began = clock.seconds()
                    referee.results["admitted"] += 1
                    referee.waited += began - came
                    referee.waits += began > came
                    referee.inside += 1
                    await asyncio.sleep(0.02)
                    permit.settle(tokens=actual)
                    referee.inside -= 1
                    referee.held += clock.seconds() - began
                    referee.tokens.update(estimated=tokens, actual=actual)
            except Refused:
                referee.results["refused"] += 1
                referee.waits += clock.seconds() > came
            except asyncio.CancelledError:
                referee.results["cancelled"] += 1
                referee.waits += clock.seconds() > came
                raise

        calls = [asyncio.create_task(call(50, 40)) for _ in range(3)]
        await asyncio.sleep(0.01)
        referee.inside_by_scrape.append(referee.inside)
        scrape()
        await asyncio.gather(*calls)
        await call(50, 60, timeout=0)  # refused: nothing is free
        try:
            await call(5000, 0)
        except CostTooLarge:
            raise AssertionError("a refusal is counted where it is raised") from None
        late = asyncio.create_task(call(50, 50, timeout=0.5))
        given_up = asyncio.create_task(call(50, 50, priority=-1))
        api.observe(read_signal(200, {}), status=200)
        api.observe(read_signal(429, {"retry-after": "2"}), status=429)
        assert api.window.remaining > 0
        await asyncio.sleep(1)
        given_up.cancel()
        await asyncio.wait([given_up])
        await call(10, 10)  # behind the window
        await late
        api.observe(read_signal(500, {}), status=500)
        totals = api.snapshot().totals
        assert totals.admitted == referee.results["admitted"]
        assert totals.refused == referee.results["refused"]
        assert totals.cancelled == referee.results["cancelled"]
        assert (totals.responses, totals.limited, totals.windows) == (3, 1, 1)
        return api

    return referee, run(main)


class Losable(MemoryStore):
    """A store that cannot be asked while `away` is set, and that counts the questions."""

    away = False
    asked = 0

    async def ask(self, key, question):
        self.asked += 1
        if self.away:
            raise StoreError("away")
        return await super().ask(key, question)


def losing_a_store(observer, lost, regained):
    """A shared gate `shared` whose store is lost and comes back; `lost()` and `regained()` notice it."""
    store = Losable()
    with Dispatch("shared", rates="1000/s", store=store, observer=observer) as gate:

        def visit():
            with gate.admit(timeout=5):
                pass

        visit()
        store.away = True

        def noticed():
            visit()
            return lost()

        eventually(noticed, "the loss is noticed")
        store.away = False
        eventually(regained, "the return is noticed")
        visit()
    return store
