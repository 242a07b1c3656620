"""How a task of trio sleeps and is woken. Loaded by the first such task that has to wait."""

from __future__ import annotations

from collections.abc import Callable, Generator
from sys import modules
from typing import Any

from ..typing import Clock, Timer


class TrioParker:
    """A task of trio sleeps until it is rescheduled. The clock keeps its alarm, not the run of trio.

    So a run that is busy or over delays no other caller, and such tasks are counted among the threads.
    """

    world = None
    wakeups = None

    __slots__ = ("_alarm", "_asleep", "_clock", "_ring", "_task", "_ticket", "_token", "_trio", "_woken")

    def __init__(self, clock: Clock, ring: Callable[[Any], object], ticket: object) -> None:
        trio: Any = modules["trio"]  # a task of it runs; this file can be imported without it
        self._clock = clock
        self._ring = ring
        self._ticket = ticket
        self._trio = trio
        self._task = trio.lowlevel.current_task()
        self._token = trio.lowlevel.current_trio_token()
        self._alarm: tuple[int, Timer] | None = None
        self._asleep = False
        self._woken = False

    def __await__(self) -> Generator[object, None, None]:
        return self._sleep().__await__()

    async def _sleep(self) -> None:
        if not self._woken:
            self._asleep = True
            await self._trio.lowlevel.wait_task_rescheduled(self._abort)

    def _abort(self, _raise_cancel: object) -> Any:
        self._asleep = False
        return self._trio.lowlevel.Abort.SUCCEEDED

    def wake(self) -> bool:
        self._woken = True
        try:
            self._token.run_sync_soon(self._go_on)
        except self._trio.RunFinishedError:
            return False
        return True

    def _go_on(self) -> None:
        if self._asleep:  # it may have been told twice, or cancelled meanwhile
            self._asleep = False
            self._trio.lowlevel.reschedule(self._task)

    def alarm(self, at: int) -> bool:
        if self._alarm is None or at < self._alarm[0]:
            if self._alarm is not None:
                self._alarm[1].cancel()
            self._alarm = at, self._clock.call_at(at, self._fire)
        return True

    @property
    def alarm_at(self) -> int | None:
        alarm = self._alarm  # once: it may ring meanwhile, in the thread of the clock
        return None if alarm is None else alarm[0]

    def _fire(self) -> None:
        self._alarm = None
        if not self._woken:
            self._ring(self._ticket)

    def retire(self) -> None:
        self._woken = True
        if self._alarm is not None:
            self._alarm[1].cancel()
            self._alarm = None
