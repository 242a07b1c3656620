"""Eight processes on a real server: they share a total, and one agent's 429 slows all of them.

Times are real here; the bounds leave room for a busy machine.
"""

import asyncio
import hashlib
import json
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing, suppress
from pathlib import Path

import pytest

from faults.rig import Server, free_port
from headgate import DistributedLimiter, StoreError
from headgate.errors import Closed
from headgate.swarm.bus.bus import open_bus
from headgate.swarm.bus.nats import NatsBus
from headgate.swarm.bus.redis import RedisBus
from patience import eventually

pytestmark = pytest.mark.alone

AGENTS = 8
TOTAL = 800
LEASE = 4.0


class NatsServer:
    """One nats-server process, with the methods of `rig.Server`."""

    def __init__(self, *options):
        self.port = free_port()
        self.url = f"nats://127.0.0.1:{self.port}"
        self._folder = tempfile.mkdtemp(prefix="headgate-nats-")
        self._options = options
        self._process = None

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        if self._process is not None:
            self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def start(self):
        program = Path(sys.executable).parent / "nats-server"
        command = [str(program), "-a", "127.0.0.1", "-p", str(self.port), "-sd", self._folder, *self._options]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        eventually(self._is_up, "the server answers")

    def _is_up(self):
        assert self._process.poll() is None, "the server ended by itself"
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True
        return False

    def kill(self):
        process, self._process = self._process, None
        process.kill()
        process.wait()

    def stop(self):
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self):
        self._process.send_signal(signal.SIGCONT)


SERVERS = {"nats": NatsServer, "valkey": Server}


@pytest.fixture(params=SERVERS)
def server(request):
    with SERVERS[request.param]() as server:
        yield server


class Agent:
    """One process of the swarm."""

    def __init__(self, bus, name):
        program = Path(__file__).with_name("swarm_agent.py")
        self._process = subprocess.Popen(
            [sys.executable, str(program), bus, name, str(LEASE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def say(self, words):
        self._process.stdin.write(words + "\n")
        self._process.stdin.flush()

    def answer(self):
        return json.loads(self._process.stdout.readline())

    def kill(self):
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()


def ask(agents, words="show"):
    """Send the same words to all agents at once, and return their answers."""
    for agent in agents:
        agent.say(words)
    return [agent.answer() for agent in agents]


def total_and_shares(answers, resource="api"):
    totals = {answer[resource][0] for answer in answers}
    return totals, sum(answer[resource][1] for answer in answers)


def heard_after(answers, began, resource, total):
    """How many seconds after that moment the last agent knew the total."""
    change = ["CapacityChanged", resource, total]
    return max(min(at for at, *what in answer["changes"] if what == change) for answer in answers) - began


def test_eight_processes_on_one_server(server):
    """One test for many events, because eight processes take a while to start."""
    agents = [Agent(server.url, f"agent-{n}") for n in range(AGENTS)]
    try:
        equal = [TOTAL, TOTAL // AGENTS]
        eventually(
            lambda: all(answer[key] == equal for answer in ask(agents) for key in ("api", "other", "later")),
            "all have joined, and each has its share",
        )

        # One announces; all are at half within 100 ms.
        (told,) = ask(agents[3:4], "announce api")
        eventually(lambda: total_and_shares(ask(agents))[0] == {TOTAL // 2}, "all are at half")
        assert heard_after(ask(agents), told["at"], "api", TOTAL // 2) < 0.1

        # Ten simultaneous refusals cut once.
        for agent in (*agents, *agents[:2]):
            agent.say("announce other")
        for agent in (*agents, *agents[:2]):
            agent.answer()
        eventually(lambda: total_and_shares(ask(agents), "other")[0] == {TOTAL // 2}, "all are at half")
        assert total_and_shares(ask(agents), "other") == ({TOTAL // 2}, TOTAL // 2)

        # One is killed: the others use its share within its lease, all but its safe share.
        killed = next(agent for agent in agents if agent not in leaders(agents))
        agents.remove(killed)
        killed_at = time.monotonic()
        killed.kill()
        kept = TOTAL // (2 * AGENTS)
        eventually(lambda: share_of_total(agents) >= 1 - kept / TOTAL - 0.02, "the others have its share")
        assert time.monotonic() - killed_at <= LEASE

        # The server is restarted: no call fails, and within two seconds all agree on a new cut.
        server.kill()
        eventually(lambda: not any(answer["connected"] for answer in ask(agents)), "all know that it is gone")
        server.start()
        began = time.monotonic()
        ask(agents[2:3], "announce later")
        eventually(lambda: total_and_shares(ask(agents), "later")[0] == {TOTAL // 2}, "all agree")
        assert time.monotonic() - began < 2.0
        assert [answer["errors"] for answer in ask(agents)] == [[]] * len(agents)

        # The leader is killed: another leads, and the others use its share, all but its safe share.
        (leader,) = leaders(agents)
        agents.remove(leader)
        killed_at = time.monotonic()
        leader.kill()
        eventually(
            lambda: leaders(agents) and share_of_total(agents) >= 1 - 3 * kept / TOTAL - 0.02, "another leads"
        )
        assert time.monotonic() - killed_at <= 1.5 * LEASE
        assert [answer["errors"] for answer in ask(agents)] == [[]] * len(agents)
    finally:
        for agent in agents:
            agent.kill()


def share_of_total(agents):
    totals, shares = total_and_shares(ask(agents))
    return shares / max(totals)


def leaders(agents):
    return [agent for agent, answer in zip(agents, ask(agents), strict=True) if answer["leads"]["api"]]


# -- the buses


@pytest.fixture
def bus(server):
    bus, owned = open_bus(server.url)
    assert owned
    with closing(bus):
        yield bus


def test_every_subscription_of_a_subject_gets_its_messages_in_order(bus):
    """Messages published by the same bus included."""
    heard, others = [], []
    for ears in (heard, others):
        bus.subscribe("talk.here", lambda message, ears=ears: ears.append(message.data))
    bus.subscribe("talk", lambda _message: heard.append(b"of another subject"))
    said = [str(n).encode() for n in range(200)]
    for data in said:
        bus.publish("talk.here", data)
    eventually(lambda: len(heard) == len(others) == 200, "everything is heard")
    assert heard == others == said


def test_a_closed_subscription_gets_no_messages(bus):
    heard, ended = [], []
    subscription = bus.subscribe("talk", ended.append)
    bus.subscribe("talk", heard.append)
    subscription.close()
    subscription.close()
    bus.publish("talk", b"hello")
    eventually(lambda: heard, "the other hears")
    assert ended == []


def test_a_bus_tells_of_a_lost_connection_and_subscribes_again(server, bus):
    """Publishing without a connection raises nothing, and the message is not delivered later."""
    heard, told = [], []
    bus.subscribe("talk", lambda message: heard.append(message.data))
    bus.watch(told.append)
    server.kill()
    eventually(lambda: told == [False], "it knows that the connection is lost")
    bus.publish("talk", b"lost")
    server.start()
    eventually(lambda: told == [False, True], "it knows that the connection is back")
    bus.publish("talk", b"hello")
    eventually(lambda: heard, "it hears")
    assert heard == [b"hello"]


def test_a_closed_bus_raises_closed(bus):
    bus.close()
    bus.close()
    with pytest.raises(Closed):
        bus.publish("talk", b"hello")
    with pytest.raises(Closed):
        bus.subscribe("talk", lambda _message: None)


@pytest.mark.parametrize(("kind", "scheme"), [(NatsBus, "nats"), (RedisBus, "redis")])
def test_a_server_that_is_not_there_is_an_error_at_construction(kind, scheme):
    """The error says why; after construction a lost server raises nothing."""
    with pytest.raises(StoreError, match=r"cannot be reached: .*Connect call failed"):
        kind(f"{scheme}://127.0.0.1:{free_port()}", connect_timeout=0.3)


@pytest.mark.parametrize(
    ("kind", "make", "why"),
    [
        (NatsBus, lambda: NatsServer("--user", "me", "--pass", "right"), "Authorization Violation"),
        (RedisBus, lambda: Server("--requirepass", "right"), "WRONGPASS|invalid username-password"),
    ],
    ids=["nats", "valkey"],
)
def test_a_wrong_password_is_named_as_what_is_wrong_and_not_shown(kind, make, why):
    with make() as server:
        address = server.url.replace("//", "//me:wr0ng@")
        with pytest.raises(StoreError, match=f"cannot be reached: .*({why})") as caught:
            kind(address, connect_timeout=1)
    assert "wr0ng" not in str(caught.value)


def test_the_answer_of_a_nats_server_is_shown_rather_than_the_cut_connection():
    """The server cuts the connection after every refusal."""
    bus = object.__new__(NatsBus)

    async def errors_noted(*errors):
        for error in errors:
            await bus.note_error(error)
        return bus._last_error

    cut, said = ConnectionResetError("cut"), RuntimeError("Authorization Violation")
    assert asyncio.run(errors_noted(cut)) is cut
    assert asyncio.run(errors_noted(said, cut)) is said


@pytest.mark.parametrize("make", [Server, lambda: NatsServer("-js")], ids=["valkey", "nats with JetStream"])
def test_an_agent_that_comes_when_no_other_is_there_finds_the_level_on_the_server(make):
    """In a key of Valkey, or in the key-value store of a NATS server that has one."""
    with make() as server:
        first = DistributedLimiter(bus=server.url, agent_id="first", lease=1)
        first.set_capacity("api", 100, 60)
        eventually(lambda: first.get_capacity("api").share == 100, "it is alone")
        first.announce_reduced("api", "429")
        eventually(lambda: is_kept(server), "the server has it")
        first.close()
        second = DistributedLimiter(bus=server.url, agent_id="second", lease=1)
        second.set_capacity("api", 100, 60)
        second.acquire("api", timeout=20)
        assert second.get_capacity("api").total < 90
        second.close()


def is_kept(server):
    kept = threading.Event()
    bus, _ = open_bus(server.url)
    with closing(bus):
        name = "ratelimit.swarm.last." + hashlib.sha256(b"api").hexdigest()[:16]
        bus.recall(name, lambda _said: kept.set())
        return kept.wait(0.4)
