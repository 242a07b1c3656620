"""headgate.map: a function over many items at a gate, in order, with its errors collected."""

import asyncio
import io
import os
import signal
import subprocess
import sys
import textwrap
import threading

import pytest
from rich.console import Console
from rich.progress import Progress, TextColumn

import headgate
from headgate import Dispatch, FirstFree, InvalidCapacity, InvalidConfig
from headgate.dispatch.options import current_options
from headgate.events import Admitted
from headgate.testing import ManualClock, Recorder, run
from patience import PATIENCE


def double(n):
    return 2 * n


async def double_async(n):
    await asyncio.sleep(0)
    return 2 * n


@pytest.mark.parametrize("fn", [double, double_async])
def test_results_come_in_the_order_of_the_items(fn):
    gate = Dispatch("api", concurrency=3)
    assert headgate.map(fn, range(50), gate=gate) == [2 * n for n in range(50)]
    assert headgate.map(fn, (n for n in range(5)), gate=FirstFree([gate])) == [0, 2, 4, 6, 8]
    assert headgate.map(fn, [], gate=gate) == []
    assert headgate.map(fn, [1]) == [2]
    assert gate.snapshot().in_flight == 0


def test_calls_go_as_the_gate_admits_them():
    async def main(clock):
        gate = Dispatch("api", rates="10/s burst 1", clock=clock)
        times = await headgate.map_async(lambda_time(clock), range(20), gate=gate)
        return [round(at, 3) for at in times]

    def lambda_time(clock):
        async def now(_item):
            await asyncio.sleep(5)
            return clock.seconds() - 5

        return now

    assert run(main) == [round(n / 10, 3) for n in range(20)]


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("colour", ["sync", "async"])
def test_no_more_calls_run_at_once_than_there_are_workers(workers, colour):
    inside, most, lock = [], [], threading.Lock()
    all_threads, all_tasks = threading.Barrier(workers), asyncio.Barrier(workers)

    def enter(n):
        with lock:
            inside.append(n)
            most.append(len(inside))

    def leave(n):
        with lock:
            inside.remove(n)

    def sync(n):
        enter(n)
        all_threads.wait(PATIENCE)
        leave(n)

    async def tasks(n):
        enter(n)
        await all_tasks.wait()
        leave(n)

    headgate.map(sync if colour == "sync" else tasks, range(20), workers=workers)
    assert max(most) == workers


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_errors_are_collected_and_others_go_on(colour):
    def sync(n):
        if n % 3 == 1:
            raise ValueError(n)
        return n

    async def tasks(n):
        return sync(n)

    gate = Dispatch("api", concurrency=2)
    results = headgate.map(sync if colour == "sync" else tasks, range(8), gate=gate)
    assert [value if isinstance(value, int) else "failed" for value in results] == [
        *(0, "failed", 2, 3, "failed", 5, 6, "failed")
    ]
    assert sorted(results.errors) == [1, 4, 7]
    with pytest.raises(ExceptionGroup, match="3 of 8 calls failed") as caught:
        results.check()
    assert [error.args for error in caught.value.exceptions] == [(1,), (4,), (7,)]
    assert caught.value.exceptions[0].__notes__ == ["headgate.map: item 1"]
    assert gate.snapshot().in_flight == 0
    done = headgate.map(double, range(3))
    assert done.check() is done


def test_the_cost_of_an_item_and_call_options_reach_the_gate():
    seen = Recorder()
    gate = Dispatch(
        "api", rates=["100 tokens/s burst 100", "9 images/s burst 9"], observer=seen, clock=ManualClock()
    )

    def see(_item):
        return current_options().tenant

    with headgate.call_options(tenant="ann"):
        assert (
            headgate.map(see, [1, 2], gate=gate, cost=lambda n: {"tokens": 10 * n, "images": n})
            == ["ann"] * 2
        )
    assert {event.tenant for event in seen.of(Admitted)} == {"ann"}
    assert [rate.level for rate in gate.snapshot().rates] == [70, 6]
    other = Dispatch("api", rates="100 tokens/s burst 100", clock=ManualClock())
    headgate.map(double, [1, 2], gate=other, cost=lambda n: 10 * n)
    assert other.snapshot().rates[0].level == 70


def test_an_error_of_the_gate_or_of_the_items_ends_the_run():
    gate = Dispatch("api", rates="10 tokens/s")
    with pytest.raises(headgate.CostTooLarge):
        headgate.map(double, [1, 2], gate=gate, cost=lambda n: 10**9)

    def items():
        yield 1
        raise KeyError("broken")

    with pytest.raises(KeyError):
        headgate.map(double, items(), gate=gate)
    assert gate.snapshot().in_flight == 0


class Stop(BaseException):
    """What ends more than one call, as KeyboardInterrupt does."""


@pytest.mark.parametrize("error", [asyncio.CancelledError, Stop])
@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_call_that_raises_what_is_no_exception_ends_the_run_while_others_wait(error, colour):
    """Its place among the results stays empty, so there are none."""
    gate, called = Dispatch("api", rates="100/s burst 1"), []

    def call(item):
        called.append(item)
        if item == 0:
            raise error
        return item

    async def call_async(item):
        return call(item)

    with pytest.raises(error):
        headgate.map(call if colour == "sync" else call_async, range(1000), gate=gate)
    assert len(called) < 100
    assert gate.snapshot().in_flight == 0


def test_map_may_be_called_where_an_event_loop_runs_as_in_a_notebook():
    async def cell():
        assert headgate.map(double, range(3), gate=Dispatch("api")) == [0, 2, 4]
        closed = Dispatch("api")
        closed.close()
        with pytest.raises(headgate.Closed):
            headgate.map(double, range(3), gate=closed)
        with headgate.call_options(tenant="ann"):
            return headgate.map(lambda _n: current_options().tenant, [1])

    assert asyncio.run(cell()) == ["ann"]


def test_cancelling_map_async_gives_everything_back():
    async def main(clock):
        gate = Dispatch("api", concurrency=2, clock=clock)

        async def slow(_n):
            await asyncio.sleep(100)

        task = asyncio.ensure_future(headgate.map_async(slow, range(10), gate=gate))
        await asyncio.sleep(1)
        assert (gate.snapshot().in_flight, gate.waiting) == (2, 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (gate.snapshot().in_flight, gate.waiting) == (0, 0)

    run(main)


@pytest.mark.parametrize("where", ["plain", "notebook"])
def test_ctrl_c_ends_the_wait_after_the_calls_under_way(where, tmp_path):
    program = """
        import asyncio, os, sys, time
        import headgate
        gate = headgate.Dispatch("api", concurrency=2)

        def call(n):
            os.write(1, b"began\\n")
            time.sleep(0.3)
            os.write(1, b"ended\\n")  # in one piece, beside the other thread

        def cell():
            try:
                headgate.map(call, range(100), gate=gate)
            except KeyboardInterrupt:
                print("interrupted", gate.snapshot().in_flight, gate.waiting, flush=True)

        async def notebook():
            cell()

        asyncio.run(notebook()) if sys.argv[1] == "notebook" else cell()
    """
    if where == "notebook":  # without asyncio's own handler of Ctrl-C, as in a kernel
        program = program.replace(
            "asyncio.run(notebook())", "asyncio.new_event_loop().run_until_complete(notebook())"
        )
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(program), where],
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout.readline() == "began\n"
        assert child.stdout.readline() == "began\n"
        os.kill(child.pid, signal.SIGINT)
        said = child.stdout.read().split("\n")
    assert said == ["ended", "ended", "interrupted 0 0", ""]


def test_a_bar_shows_how_many_are_done_and_how_many_failed():
    shown = io.StringIO()
    bar = Progress(
        TextColumn("{task.description} {task.completed}/{task.total} {task.fields[failed]}"),
        console=Console(file=shown, force_terminal=True, width=200),
    )
    headgate.map(lambda n: 1 / n, range(5), progress=bar)
    assert "5/5 1 failed" in shown.getvalue()


def test_a_bar_is_shown_only_in_a_terminal_or_a_notebook(capsys, monkeypatch):
    headgate.map(double, range(3))
    assert capsys.readouterr().err == ""
    headgate.map(double, range(3), progress=True)
    assert "3/3" in capsys.readouterr().err
    headgate.map(double, range(3), progress=False)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("headgate.mapping.in_notebook", lambda: True)
    headgate.map(double, range(3))
    assert "3/3" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "rich", None)
    headgate.map(double, range(3))
    assert capsys.readouterr().err == ""
    with pytest.raises(ModuleNotFoundError, match=r'pip install "headgate\[cli\]"'):
        headgate.map(double, range(3), progress=True)


@pytest.mark.parametrize(
    ("arguments", "error", "why"),
    [
        ({"fn": 3}, InvalidConfig, "takes a function"),
        ({"items": 3}, InvalidConfig, "cannot be iterated"),
        ({"gate": "api"}, InvalidConfig, "is not a Dispatch"),
        ({"cost": 5}, InvalidConfig, "cost=5 cannot be called"),
        ({"workers": 0}, InvalidCapacity, "workers=0"),
    ],
)
def test_what_cannot_work_is_refused_at_once(arguments, error, why):
    given = {"fn": double, "items": [1], **arguments}
    with pytest.raises(error, match=why):
        headgate.map(given.pop("fn"), given.pop("items"), **given)
