"""Writes lines in a thread, because a slow disk, or a reader that stops, must not stop the event loop.

Lines are gathered for a moment and written together. When enough of them have come, they do not wait for the
end of that moment, nor for the lines before them to be written.
"""

import asyncio
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, Protocol, TypeAlias

# Seconds in which lines are gathered, and how many are enough: to wake the thread costs more than a line.
_GATHER = 0.005
_ENOUGH = 24
# Bytes that are packed and written together, unless a single line is longer.
_MOST_BYTES = 4 << 20

Written: TypeAlias = Callable[[bytes, BaseException | None], object]


class Sink(Protocol):
    """A file that takes whole lines: all of them, or it raises an exception.

    `takes_back`: after an error it ends where it ended before, and lines may be tried again.
    """

    @property
    def takes_back(self) -> bool: ...

    def write(self, lines: bytes, /) -> None: ...


class _Line(NamedTuple):
    sink: Sink
    content: bytes
    written: Written


class Writer:
    """Writes the lines of a run. `written` of each is called on the event loop, with it and an error or None.

    `unwritten`: how many lines were put and are not written yet.
    """

    def __init__(self) -> None:
        self.unwritten = 0
        self._room = asyncio.Event()
        self._waiting: list[_Line] = []
        self._size = 0  # bytes that are waiting
        self._batches: queue.SimpleQueue[list[_Line] | None] = queue.SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        # A daemon thread does not keep the process from ending while the reader of a pipe has stopped.
        threading.Thread(target=self._work, name="headgate-writer", daemon=True).start()

    @property
    def busy(self) -> bool:
        return not self._idle.is_set()

    def put(self, sink: Sink, content: bytes, written: Written) -> None:
        """Have a line written as soon as the lines before it are."""
        self.unwritten += 1
        self._idle.clear()
        if self._waiting and self._size + len(content) > _MOST_BYTES:
            self._hand_over()
        self._waiting.append(_Line(sink, content, written))
        self._size += len(content)
        if len(self._waiting) >= _ENOUGH or self._size >= _MOST_BYTES:
            self._hand_over()
        elif self._timer is None:
            self._timer = self._loop.call_later(_GATHER, self._hand_over)

    async def room(self, most: int) -> None:
        """Wait until fewer than `most` lines are unwritten."""
        while self.unwritten >= most:
            self._room.clear()
            await self._room.wait()

    async def drained(self) -> None:
        """Wait until every line was written or has failed."""
        await self._idle.wait()

    def close(self) -> None:
        self._batches.put(None)

    def _hand_over(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._batches.put(self._waiting)
        self._waiting, self._size = [], 0

    def _done(self, batch: list[_Line], errors: list[BaseException | None]) -> None:
        self.unwritten -= len(batch)
        self._room.set()
        failure: Exception | None = None
        for line, error in zip(batch, errors, strict=True):
            try:
                line.written(line.content, error)
            except Exception as raised:  # noqa: BLE001 - the other lines are reported all the same
                failure = failure or raised
        if not self.unwritten:
            self._idle.set()
        if failure is not None:
            raise failure  # to the event loop, which logs it

    def _work(self) -> None:
        while (batch := self._batches.get()) is not None:
            errors = _write_batch(batch)
            with suppress(RuntimeError):  # the event loop has ended
                self._loop.call_soon_threadsafe(self._done, batch, errors)


def _write_batch(batch: list[_Line]) -> list[BaseException | None]:
    """Write lines, those for the same sink together. The error of each that could not be written.

    Every error is given to its line: one that ended the thread would leave the run waiting without end.
    """
    errors: list[BaseException | None] = [None] * len(batch)
    for sink in {id(line.sink): line.sink for line in batch}.values():
        numbers = [number for number, line in enumerate(batch) if line.sink is sink]
        try:
            sink.write(b"".join(batch[number].content for number in numbers))
        except BaseException as failure:  # noqa: BLE001 - the run is told of it, and ends
            # A full disk may still have room for some of them, and memory for one after the other.
            for number in numbers:
                errors[number] = _write_again(sink, batch[number].content) if sink.takes_back else failure
    return errors


def _write_again(sink: Sink, content: bytes) -> BaseException | None:
    try:
        sink.write(content)
    except BaseException as error:  # noqa: BLE001 - the run is told of it, and ends
        return error
    return None
