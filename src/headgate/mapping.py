"""map, map_async: a function over many items at a gate, in threads or tasks, with a progress bar.

One task waits at the gate for all items, in their order, and hands each over when it is admitted. Ctrl-C ends
that wait; calls that run in threads are waited for, because a thread cannot be stopped.
"""

from __future__ import annotations

import asyncio
import sys
from _thread import allocate_lock
from collections.abc import Callable, Iterable, Mapping, Sized
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from contextvars import copy_context
from itertools import repeat, starmap
from threading import Thread
from typing import Any

from .arguments import is_async, must_be_plain, name_of, positive_int
from .dispatch.dispatch import Dispatch
from .dispatch.options import current_options
from .errors import InvalidConfig
from .gate.admission import Permit
from .gate.first_free import FirstFree
from .gate.parking import in_notebook, runs_event_loop

# How many calls run at once where the caller does not say.
_THREADS, _TASKS = 32, 256

Cost = int | Mapping[str, int]


class Results(list[Any]):
    """What each call returned, in the order of the items; the exception, where a call failed.

    `errors` are the exceptions by the places of their items. `check()` raises them together.
    """

    def __init__(self, values: Iterable[Any] = (), errors: Mapping[int, Exception] | None = None) -> None:
        super().__init__(values)
        self.errors = dict(errors or {})

    def check(self) -> Results:
        """These results, if all calls succeeded. Otherwise raises an ExceptionGroup of what they raised."""
        if self.errors:
            for place, error in self.errors.items():
                error.add_note(f"headgate.map: item {place}")
            count = f"{len(self.errors)} of {len(self)} calls failed"
            raise ExceptionGroup(count, [self.errors[place] for place in sorted(self.errors)])
        return self


def map(  # noqa: A001 - it does what the built-in function does
    fn: Callable[[Any], Any],
    items: Iterable[Any],
    *,
    gate: Dispatch | FirstFree | None = None,
    cost: Callable[[Any], Cost] | None = None,
    workers: int | None = None,
    progress: Any = None,
) -> Results:
    """Call `fn` with every item as the gate admits it, and return the results in the order of the `items`.

    >>> from headgate import Dispatch
    >>> headgate_map = map
    >>> headgate_map(str.upper, ["a", "b", "c"], gate=Dispatch("api", rates="600/minute burst 10"))
    ['A', 'B', 'C']

    A function runs in up to `workers` threads (32), a coroutine function in as many tasks (256). A call that
    raises does not end the others: its exception stands in the results, and in `results.errors`;
    `results.check()` raises them together. `cost` is a function of an item that says what it costs: tokens,
    or amounts by unit. Without a `gate`, a Dispatch or a FirstFree, calls wait for a worker only, which is
    right where `fn` sends by an adapter of `headgate.http` that has a gate of its own.
    `headgate.call_options` hold for all calls.

    `progress` is True or False, or a bar of your own, such as a `rich.progress.Progress`; without it a bar is
    shown in a terminal and in a notebook, if `rich` is installed. Ctrl-C ends the wait and raises
    KeyboardInterrupt when the calls under way have ended; a second one does not wait for them.
    In a coroutine, write `await headgate.map_async(...)`.

    Raises InvalidConfig or InvalidCapacity for arguments that cannot work, and what `cost` or the iteration
    of `items` raises.
    """
    work = _Work(fn, items, gate, cost, workers, progress)
    if not runs_event_loop():
        return asyncio.run(work.run())
    return _in_thread(work)


async def map_async(
    fn: Callable[[Any], Any],
    items: Iterable[Any],
    *,
    gate: Dispatch | FirstFree | None = None,
    cost: Callable[[Any], Cost] | None = None,
    workers: int | None = None,
    progress: Any = None,
) -> Results:
    """Call `fn` with every item as `map` does, in tasks of the running event loop or in threads.

    `items`, `gate`, `cost`, `workers` and `progress` are those of `map`, and so are the exceptions.

    >>> import asyncio, headgate
    >>> async def double(n):
    ...     return 2 * n
    >>> asyncio.run(headgate.map_async(double, [1, 2, 3], gate=headgate.Dispatch("api")))
    [2, 4, 6]
    """
    return await _Work(fn, items, gate, cost, workers, progress).run()


class _Work:
    """One run of a function over items."""

    def __init__(
        self,
        fn: Callable[[Any], Any],
        items: Iterable[Any],
        gate: Dispatch | FirstFree | None,
        cost: Callable[[Any], Cost] | None,
        workers: int | None,
        progress: Any,
    ) -> None:
        self._in_tasks = is_async(fn, "headgate.map")
        if gate is not None and not isinstance(gate, (Dispatch, FirstFree)):
            raise InvalidConfig(
                f"gate={gate!r} is not a Dispatch; write headgate.map(fn, items, gate=dispatch)"
            )
        if cost is not None:
            must_be_plain(cost, "cost", "one item")
            if gate is None:
                raise InvalidConfig("cost= is charged at a gate; write gate=dispatch too, or leave cost out")
        if not hasattr(items, "__iter__"):
            raise InvalidConfig(f"items={items!r} cannot be iterated; give a list or a generator")
        if workers is not None:
            positive_int(workers, "workers", example=32)
        self._fn = fn
        self._items = items
        self._gate = gate
        self._cost = cost
        self._workers = workers or (_TASKS if self._in_tasks else _THREADS)
        self._bar = _Bar(
            progress, name_of(fn).rpartition(".")[2], len(items) if isinstance(items, Sized) else None
        )
        self._values: dict[int, Any] = {}
        self._errors: dict[int, Exception] = {}
        self._handed: dict[int, Permit] = {}  # for calls that have not begun

    async def run(self) -> Results:
        free = asyncio.Semaphore(self._workers)
        running: set[asyncio.Task[None]] = set()
        broken = False

        def ended(task: asyncio.Task[None]) -> None:
            nonlocal broken
            if task.cancelled() or task.exception() is not None:
                broken = True  # the function raised what is no Exception; it stays, for `gather` to raise
            else:
                running.discard(task)

        pool = None if self._in_tasks else ThreadPoolExecutor(self._workers, "headgate-map")
        try:
            with self._bar:
                for place, item in enumerate(self._items):
                    await free.acquire()
                    permit = await self._admitted(item)
                    if permit is not None:
                        self._handed[place] = permit
                    if broken:
                        break
                    task = asyncio.ensure_future(self._record(place, item, pool, free))
                    running.add(task)
                    task.add_done_callback(ended)
                if running:
                    await asyncio.gather(*running)
        except BaseException:
            for task in running:
                task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.gather(*running, return_exceptions=True)
            raise
        finally:
            if pool is not None:
                pool.shutdown(wait=True, cancel_futures=True)
            for permit in self._handed.values():
                permit.cancel()
        return Results((self._values[place] for place in range(len(self._values))), self._errors)

    async def _admitted(self, item: Any) -> Permit | None:
        if self._gate is None:
            return None
        cost = {} if self._cost is None else self._cost(item)
        amounts = dict(cost.items()) if hasattr(cost, "items") else {"tokens": cost}
        given: dict[str, Any] = {}
        options = current_options()
        if options is not None:
            amounts |= options.costs()
            given = {"timeout": options.timeout, "priority": options.priority, "tenant": options.tenant}
        tokens = amounts.pop("tokens", 0)
        return await self._gate.admit(tokens=tokens, cost=amounts or None, **given).enter_async()

    async def _record(
        self, place: int, item: Any, pool: ThreadPoolExecutor | None, free: asyncio.Semaphore
    ) -> None:
        try:
            if pool is None:
                with self._handed.pop(place, None) or nullcontext():
                    self._values[place] = await self._fn(item)
            else:
                future = pool.submit(copy_context().run, self._call, place, item)
                self._values[place] = await asyncio.wrap_future(future)
        except Exception as error:  # noqa: BLE001 - the caller finds it in the results
            self._values[place] = self._errors[place] = error
        finally:
            free.release()
        self._bar.advance(failed=len(self._errors))

    def _call(self, place: int, item: Any) -> Any:
        """In a thread, which holds the permit until it is done, also if its task is cancelled."""
        with self._handed.pop(place, None) or nullcontext():
            return self._fn(item)


def _in_thread(work: _Work) -> Results:
    """Run it in an event loop of another thread: this one has a loop that is running, as in a notebook."""
    outcome: list[Any] = []
    loop = asyncio.new_event_loop()
    task = loop.create_task(work.run())

    def run() -> None:
        try:
            outcome.append(loop.run_until_complete(task))
        except BaseException as error:  # noqa: BLE001 - it is raised where it was asked for
            outcome.append(error)
        finally:
            loop.close()
            over.release()

    # A `join` that Ctrl-C broke off does not wait when it is called again, and an Event may never wait to its
    # end: see `Guard`.
    over = allocate_lock()
    over.acquire()
    waiting = starmap(over.acquire, repeat(()))
    thread = Thread(target=copy_context().run, args=(run,), name="headgate-map")
    try:
        thread.start()  # which waits until the thread runs, and that can be interrupted, too
        for _ in waiting:
            break
    except BaseException:
        with suppress(RuntimeError):  # it has just ended
            loop.call_soon_threadsafe(task.cancel)
        if thread.ident is not None:
            for _ in waiting:
                break
        raise
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    results: Results = outcome[0]
    return results


_ACTS_OF_A_BAR = ("start", "add_task", "update", "stop")


class _Bar:
    """A progress bar of rich, or nothing."""

    def __init__(self, wanted: Any, name: str, total: int | None) -> None:
        self._progress: Any = None
        self._task: Any = None
        self._name = name
        self._total = total
        if wanted is None:
            wanted = in_notebook() or sys.stderr.isatty()
            with suppress(ImportError):
                self._progress = _bar_of_rich() if wanted else None
        elif wanted is True:
            self._progress = _bar_of_rich()
        elif wanted is not False:
            if isinstance(wanted, type) or not all(hasattr(wanted, act) for act in _ACTS_OF_A_BAR):
                raise InvalidConfig(
                    f"progress={wanted!r} is neither True nor False, nor a bar such as "
                    "rich.progress.Progress(); write e.g. progress=False"
                )
            self._progress = wanted  # a bar of the caller

    def __enter__(self) -> None:
        if self._progress is not None:
            self._progress.start()
            self._task = self._progress.add_task(self._name, total=self._total, failed="")

    def advance(self, *, failed: int) -> None:
        if self._progress is not None:
            self._progress.update(self._task, advance=1, failed=f"{failed} failed" if failed else "")

    def __exit__(self, *_raised: object) -> None:
        if self._progress is not None:
            self._progress.stop()


def _bar_of_rich() -> Any:
    """In a notebook, rich shows it as a widget."""
    try:
        from rich import console, progress  # noqa: PLC0415 - only for callers who see it
    except ModuleNotFoundError:
        raise ModuleNotFoundError('a progress bar needs rich; run: pip install "headgate[cli]"') from None

    return progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TextColumn("[red]{task.fields[failed]}"),
        progress.TimeElapsedColumn(),
        progress.TimeRemainingColumn(),
        console=console.Console(stderr=True),
    )
