"""Writer: lines are written in their order by a thread, and nothing waits for it longer than it must."""

import asyncio
import threading

import pytest

from headgate.cli.run import writer as writer_module
from headgate.cli.run.writer import Writer


class Sink:
    """Keeps what is written. While `stuck` is set, it does not take anything."""

    takes_back = False

    def __init__(self):
        self.writes = []
        self.free = threading.Event()
        self.free.set()
        self.error = None

    def write(self, lines):
        self.free.wait(10)
        if self.error is not None:
            raise self.error
        self.writes.append(lines)


def line(number):
    return b"%d\n" % number


def use(scenario):
    """Run `scenario(writer, sink, written)`; `written` are the lines that were reported, and their errors."""

    async def main():
        writer, sink, written = Writer(), Sink(), []
        try:
            await scenario(writer, sink, written)
        finally:
            sink.free.set()
            writer.close()
        return sink, written

    return asyncio.run(main())


@pytest.mark.parametrize("count", [1, 23, 24, 500])
def test_lines_are_written_in_their_order_and_many_together(count):
    async def scenario(writer, sink, written):
        for number in range(count):
            writer.put(sink, line(number), lambda content, error: written.append((content, error)))
        await writer.drained()
        assert not writer.busy
        assert writer.unwritten == 0

    sink, written = use(scenario)
    assert b"".join(sink.writes) == b"".join(map(line, range(count)))
    assert written == [(line(number), None) for number in range(count)]
    assert len(sink.writes) <= 1 + count // 20


def test_a_few_lines_are_written_within_a_moment():
    async def scenario(writer, sink, written):
        writer.put(sink, line(1), lambda *_: written.append(asyncio.get_running_loop().time()))
        began = asyncio.get_running_loop().time()
        await writer.drained()
        assert written[0] >= began

    assert use(scenario)[0].writes == [line(1)]


def test_room_is_made_when_lines_are_written_and_not_before():
    async def scenario(writer, sink, written):
        sink.free.clear()
        for number in range(60):
            writer.put(sink, line(number), lambda content, _error: written.append(content))
        waiting = asyncio.create_task(writer.room(40))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        assert writer.busy
        assert written == []
        sink.free.set()
        await asyncio.wait_for(waiting, 5)
        await writer.drained()

    assert b"".join(use(scenario)[0].writes) == b"".join(map(line, range(60)))


def test_the_error_of_a_line_that_could_not_be_written_is_reported():
    async def scenario(writer, sink, written):
        sink.error = OSError("no room")
        for number in range(30):
            writer.put(sink, line(number), lambda _content, error: written.append(error))
        await writer.drained()

    sink, written = use(scenario)
    assert sink.writes == []
    assert written == [sink.error] * 30


@pytest.mark.parametrize("takes_back", [False, True])
def test_an_error_of_any_kind_is_reported_and_later_lines_are_still_written(takes_back):
    async def scenario(writer, sink, written):
        sink.takes_back = takes_back
        sink.error = failure = MemoryError()
        for number in range(30):
            writer.put(sink, line(number), lambda _content, error: written.append(error))
        await asyncio.wait_for(writer.drained(), 5)
        assert written == [failure] * 30
        sink.error = None
        writer.put(sink, line(30), lambda _content, error: written.append(error))
        await asyncio.wait_for(writer.drained(), 5)
        assert written[30:] == [None]

    assert use(scenario)[0].writes == [line(30)]


def test_lines_that_are_written_together_are_few_in_bytes_and_keep_their_order(monkeypatch):
    monkeypatch.setattr(writer_module, "_MOST_BYTES", 100)
    lines = [
        b"%d" % number + b"x" * size + b"\n" for number, size in enumerate([40, 40, 40, 300, 5, 90, 97, 2])
    ]

    async def scenario(writer, sink, written):
        for content in lines:
            writer.put(sink, content, lambda content, _error: written.append(content))
        await asyncio.wait_for(writer.drained(), 5)

    sink, written = use(scenario)
    assert written == lines
    assert b"".join(sink.writes) == b"".join(lines)
    assert all(len(content) <= 100 or content == lines[3] for content in sink.writes)
    assert len(sink.writes) == 6


def test_a_report_that_raises_keeps_no_other_line_and_no_caller_waiting(caplog):
    async def scenario(writer, sink, written):
        def report(content, _error):
            if content == line(1):
                raise ZeroDivisionError
            written.append(content)

        for number in range(3):
            writer.put(sink, line(number), report)
        await asyncio.wait_for(writer.drained(), 10)
        assert (writer.busy, writer.unwritten) == (False, 0)

    _sink, written = use(scenario)
    assert written == [line(0), line(2)]
    assert "ZeroDivisionError" in caplog.text, "the event loop logs it"
