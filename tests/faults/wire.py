"""A line to any server on loopback that can fall silent, end in one direction, and be slow.

with Wire(server.port) as wire:     # in a thread of its own, so that any loop or process may use it
    wire.through(server.url)        # to be opened instead of server.url
    wire.delay = 0.05               # seconds, each way
    wire.dead = True                # nothing passes, and neither side is told; what was sent passes later
    wire.half_close("client")       # all connections: that end hears that the other one sends no more
    wire.to = other.port            # where new connections lead

with Line(server) as line:          # the same to a Server, a PostgresServer or all servers of a Cluster
    line.set(delay=0.15, dead=False)
    line.store                      # for the gate of a worker process
    line.opened()                   # a store on this loop
"""

import asyncio
import threading
from contextlib import ExitStack, suppress

from faults.cluster_client import client_through
from faults.rig import Cluster
from headgate.sharing.store import open_store
from patience import PATIENCE


class Wire:
    def __init__(self, to):
        self.delay = 0.0
        self.dead = False
        self.to = to
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
        assert f":{self.to}" in url
        return url.replace(f":{self.to}", f":{self.port}")

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
        with suppress(asyncio.CancelledError):  # the test is over
            await self._connect(reader, writer)
        self._tasks.discard(task)

    async def _connect(self, reader, writer):
        far, ends = None, {"client": writer}
        try:
            far_reader, far = await asyncio.open_connection("127.0.0.1", self.to)
            ends["server"] = far
            self._ends.append(ends)
            async with asyncio.TaskGroup() as both:  # it ends the other one, too
                both.create_task(self._carry(reader, far))
                both.create_task(self._carry(far_reader, writer))
        except* OSError:
            pass  # one end is gone
        finally:
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


class Line:
    """Wires to a server, or to each server of a cluster."""

    def __init__(self, server, *, delay=0.0):
        self._url = server.url
        self._clustered = isinstance(server, Cluster)
        self._wires = [Wire(each.port) for each in (server.servers if self._clustered else [server])]
        self._stack = ExitStack()
        self.set(delay=delay)

    def __enter__(self):
        with ExitStack() as stack:
            for wire in self._wires:
                stack.enter_context(wire)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error):
        return self._stack.__exit__(*error)

    @property
    def store(self):
        if self._clustered:
            return {wire.to: wire.port for wire in self._wires}
        return self._wires[0].through(self._url)

    def opened(self):
        return open_store(client_through(self.store) if self._clustered else self.store, None)

    def set(self, *, delay=None, dead=None):
        for wire in self._wires:
            wire.delay = wire.delay if delay is None else delay
            wire.dead = wire.dead if dead is None else dead

    def half_close(self, whom):
        return sum(wire.half_close(whom) for wire in self._wires)
