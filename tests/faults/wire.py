"""A line to any server on loopback that can fall silent, end in one direction, and be slow.

with Wire(server.port) as wire:     # in a thread of its own, so that any loop or process may use it
    wire.through(server.url)        # to be opened instead of server.url
    wire.delay = 0.05               # seconds, each way
    wire.dead = True                # nothing passes, and neither side is told; what was sent passes later
    wire.half_close("client")       # all connections: that end hears that the other one sends no more
"""

import asyncio
import threading
from contextlib import suppress

from patience import PATIENCE


class Wire:
    def __init__(self, to):
        self.delay = 0.0
        self.dead = False
        self._to = to
        self._ends = []  # of each connection: by whom it is heard
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="wire", daemon=True)
        self._tasks = set()

    def __enter__(self):
        self._thread.start()
        self._listener = self._do(asyncio.start_server(self._accept, "127.0.0.1", 0))
        self.port = self._listener.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_):
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def through(self, url):
        """The URL of the server, by this line."""
        assert f":{self._to}" in url
        return url.replace(f":{self._to}", f":{self.port}")

    def half_close(self, whom):
        async def close():
            for ends in self._ends:
                with suppress(OSError, RuntimeError):
                    ends[whom].write_eof()
            return len(self._ends)

        return self._do(close())

    def _do(self, work):
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)

    async def _end(self):
        self._listener.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._listener.wait_closed()

    async def _accept(self, reader, writer):
        task = asyncio.current_task()
        self._tasks.add(task)
        far, ends = None, {"client": writer}
        try:
            far_reader, far = await asyncio.open_connection("127.0.0.1", self._to)
            ends["server"] = far
            self._ends.append(ends)
            async with asyncio.TaskGroup() as both:  # it ends the other one, too
                both.create_task(self._carry(reader, far))
                both.create_task(self._carry(far_reader, writer))
        except* OSError:
            pass  # one end is gone
        finally:
            self._tasks.discard(task)
            if ends in self._ends:
                self._ends.remove(ends)
            for end in (writer, far):
                if end is not None:
                    end.close()

    async def _carry(self, reader, writer):
        """Pass what comes, later, until one end has sent its last."""
        way = asyncio.Queue()

        async def receive():
            while data := await reader.read(1 << 16):
                way.put_nowait((self._loop.time() + self.delay, data))
            way.put_nowait((self._loop.time() + self.delay, b""))

        receiving = asyncio.create_task(receive())
        try:
            while True:
                due, data = await way.get()
                await asyncio.sleep(due - self._loop.time())
                while self.dead:  # noqa: ASYNC110 - set from any thread
                    await asyncio.sleep(0.005)
                if not data:
                    raise ConnectionResetError("one end has sent its last")
                writer.write(data)
        finally:
            receiving.cancel()
            await asyncio.gather(receiving, return_exceptions=True)
