"""The store for Valkey and Redis against a real server: it decides exactly as `rules.pool` does."""

import asyncio
import gc
import json
import re
import subprocess
import sys
import textwrap
from contextlib import closing
from random import Random
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pool_questions
from faults.rig import Server, free_port
from headgate.errors import InvalidConfig, StoreError
from headgate.gate.clock import SYSTEM
from headgate.sharing.pool.answer import answer
from headgate.sharing.pool.state import Pool
from headgate.sharing.redis import CONSTANTS, SCRIPT, RedisStore
from headgate.sharing.store import open_store, plain_name
from patience import happens

SECOND = 1_000_000
DAY = 86_400 * SECOND
START = 1_800_000_000 * SECOND  # as large as a server's clock will be for decades

CLOCK = "local now = microseconds(redis.call('TIME'))\n"
AT = SCRIPT.replace(CLOCK, "local now = tonumber(ARGV[3])\n")


def question(member="a", number=1, *, rates=((100, SECOND, 50),), lease=10 * SECOND, **facts):
    """The first of a member, unless told."""
    return pool_questions.question(member, number, rates=rates, lease=lease, **facts)


def on(server, scenario, **options):
    """Run an async scenario with a store of that server, and close it whatever happens."""

    async def main():
        store = RedisStore(server.url, **options)
        try:
            return await scenario(store)
        finally:
            await store.close()

    return asyncio.run(main())


def text(given):
    return json.dumps(given, separators=(",", ":")).encode()


# -- the script and the rule


class Twins:
    """The same questions to the script on the server and to the rule here, at the same moments."""

    def __init__(self, client):
        self.client = client
        self.key = f"headgate:{{{uuid4().hex}}}"
        self.script = client.register_script(AT)
        self.pool = Pool()

    def ask(self, asked, now):
        theirs = self.script(keys=[self.key], args=[json.dumps(asked), CONSTANTS, now])
        ours = text(answer(self.pool, asked, now))
        assert theirs == ours
        return json.loads(theirs)


@pytest.fixture(scope="module")
def client(server):
    with closing(server.client()) as client:
        yield client


@pytest.fixture
def twins(client):
    return Twins(client)


def test_the_clock_is_the_server_s_and_one_line_of_the_script():
    """B2: no argument of a question is a time of day; the tests put their clock in place of this line."""
    assert SCRIPT.count(CLOCK) == 1
    assert SCRIPT.count("'TIME'") == 1
    assert "ARGV[3]" not in SCRIPT


class Dice:
    """Where choices come from: a seed here, and Hypothesis below, which finds the smallest that fail."""

    def __init__(self, seed):
        self.number, self.among = (random := Random(seed)).randint, random.choice


class Drawn:
    def __init__(self, data):
        self.number = lambda low, high: data.draw(st.integers(low, high))
        self.among = lambda choices: data.draw(st.sampled_from(choices))


AMOUNTS = [1, 3, 7, 60, 1_000, 999_983, 1_000_000, 150_000_000, 1_000_000_000, 300_000_000_007]
PERIODS = [SECOND, 999_983, 10 * SECOND, 60 * SECOND, 3_600 * SECOND, DAY, 30 * DAY]
AGES = [0, 1, 2, 5, 1_000, 50_000, SECOND, 10 * SECOND, 100 * SECOND]
LEASES = [10 * SECOND, 3 * SECOND, SECOND, 50_000, 1, 3_600 * SECOND]
STEPS = [
    (0, 3_000),
    (0, 300_000),
    (0, 20 * SECOND),
    (-5 * SECOND, 0),
    (-3_600 * SECOND, 3_600 * SECOND),
    (0, 40 * DAY),
]


def some_limits(pick):
    rates = []
    for _ in range(pick.number(0, 3)):
        amount = pick.among(AMOUNTS)
        rates.append([amount, pick.among(PERIODS), pick.among([amount, pick.number(1, 2 * amount)])])
    limits = [pick.among([0, 1, 3, 10, 400]), pick.among([0, 1, 2, 10]), pick.among([0, 100, 5 << 20])]
    return rates, [*limits, pick.among([0, 10 * SECOND])]


def some_question(pick, pool, asked):
    """One that makes sense to the pool as it is now, or one of those asked before."""
    who = pick.among("abcd")
    last, fitted = asked.get(who, (None, None))
    in_force = [rate.terms for rate in pool.rates]
    if last is not None and fitted == in_force and not pick.number(0, 7):
        return last  # its reply was lost
    wanted, limits = some_limits(pick)
    retune = not pick.number(0, 9)
    rates = wanted if retune or not pool.version else in_force
    few = [max(1, rate[2] // 8) for rate in rates]
    many = [min(10**9, 3 * rate[0]) for rate in rates]
    most = pick.among([few, few, many])
    asked["number"] = asked.get("number", 0) + 1
    new = question(
        who,
        asked["number"],
        rates=wanted,
        limits=limits,
        set=[wanted, limits] if retune else None,
        version=pick.among([0, pool.version]),
        lease=pick.among(LEASES),
        window=None if pick.number(0, 3) else pick.among([-1, 0, 1, SECOND, 60 * SECOND]),
        returned=[
            [[pick.number(0, top), pool.stamp - pick.among(AGES)] for _ in range(pick.number(0, 2))]
            for top in many
        ],
        owed=[pick.number(0, top) if not pick.number(0, 3) else 0 for top in many],
        batches=[[pick.number(0, top) for top in most] for _ in range(pick.number(0, 6))],
        waits_for_window=bool(pick.number(0, 1)),
        uses=[pick.number(0, 5), pick.among([0, 60, 10**6])],
        wants=[pick.number(0, 12), pick.among([0, 1, 99, 10**7])],
        spare=[pick.number(0, 6), pick.among([0, 0, 50, 1 << 20])],
        next_bytes=pick.among([0, 1, 70, 10**7]),
        leaves=not pick.number(0, 9),
    )
    asked[who] = new, rates
    return new


def compare(client, pick, length):
    twins = Twins(client)
    asked, now = {}, START
    for _ in range(length):
        now += pick.number(*pick.among(STEPS))
        twins.ask(some_question(pick, twins.pool, asked), now)
    client.delete(twins.key)


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_the_script_and_the_rule_give_the_same_answers(client, data):
    """B17, B20: any questions, replays and steps of the clock: the same bytes."""
    pick = Drawn(data)
    compare(client, pick, pick.number(1, 12))


@pytest.mark.parametrize("seed", range(4))
def test_the_script_and_the_rule_agree_for_long(client, seed):
    """The same, longer: marks are merged, members come and go, limits change many times."""
    for each in range(25):
        compare(client, Dice(f"{seed} {each}"), 40)


@pytest.mark.parametrize("seed", range(4))
def test_refunds_of_a_busy_pool_agree(client, seed):
    """More low-water marks than a rate remembers, and returns to all of them."""
    twins, pick, now = Twins(client), Dice(seed), START
    facts = {
        "rates": [[1_000, 60 * SECOND, 500], [77_777, 60 * SECOND, 70_000]],
        "limits": [40, 5, 0, SECOND],
    }
    for number in range(150):
        now += pick.number(0, 100_000)
        back = [
            [[pick.number(0, 9), twins.pool.stamp - pick.number(0, 4 * SECOND)]] if pick.number(0, 1) else []
            for _ in range(2)
        ]
        batches = [[pick.number(0, 4), pick.number(0, 300)] for _ in range(pick.number(0, 3))]
        wants = [pick.number(0, 30), 0]
        twins.ask(
            question(pick.among("abc"), number, returned=back, batches=batches, wants=wants, **facts), now
        )


@pytest.mark.parametrize(
    ("amount", "period", "units"),
    [
        (150_000_000, 60 * SECOND, 149_999_999),
        (150_000_000, 60 * SECOND, 10**9),
        (149_999_993, 60 * SECOND, 10**9),
        (10**9, DAY, 10**9),
        (999_999_937, 30 * DAY, 999_999_929),
        (2, 60 * SECOND, 10**9 // 60),
        (2**41 - 21, 365 * DAY, 2**41 - 23),
        (2**50 - 27, SECOND, 2**50 - 35),
    ],
)
def test_products_beyond_what_a_double_holds_are_exact(twins, amount, period, units):
    """B17, B18: units × period is above 2^53 here, and not one microsecond is lost."""
    facts = {"rates": [[amount, period, amount]]}
    twins.ask(question(number=1, batches=[[1], [units]], **facts), START)
    twins.ask(question(number=2, owed=[units], **facts), START + 1)
    stamp = twins.pool.stamp
    back = [[[units, stamp - 1], [units - 1, stamp]]]
    twins.ask(question(number=3, returned=back, batches=[[7]], **facts), START + 1)
    retuned = [[[amount - 1, period, amount]], [0, 0, 0, 0]]
    twins.ask(question(number=4, set=retuned, batches=[[1]], **facts), START + 2)


@pytest.mark.parametrize(
    "facts",
    [
        {"rates": [[1, 30 * DAY, 1]], "batches": [[10**9]]},
        {"rates": [[2**52 - 1, 365 * DAY, 5]], "batches": [[2**52 - 3]]},
        {"rates": [[10, SECOND, 5]], "batches": [[2**60]]},
        {"rates": [[0, SECOND, 5]], "batches": [[1]]},
        {"window": 2**53},
        {"lease": 2**53},
        {"wants": [2**53, 0]},
    ],
)
def test_what_a_double_cannot_hold_is_refused_and_changes_nothing(server, client, facts):
    """B18: a StoreError, never a wrong number."""
    key = uuid4().hex

    async def scenario(store):
        with pytest.raises(StoreError, match=r"cannot answer.*headgate: a "):
            await store.ask(key, question(**facts))

    on(server, scenario)
    assert not client.exists(f"headgate:{{{key}}}")


def test_more_than_eight_thousand_batches_and_members(twins):
    """B15: nothing is unpacked onto the stack."""
    rates = [[10**9, SECOND, 10**9]]
    given = twins.ask(question(rates=rates, batches=[[1]] * 9_000), START)
    assert len(given["starts"]) == 9_000
    for n in range(300):
        twins.ask(
            question(f"member {n}", rates=rates, batches=[[1]], wants=[1, 1], limits=[9, 0, 9, 0]), START + n
        )


def test_a_question_asked_again_changes_nothing(twins, client):
    """B14, B20: the same bytes stay on the server, and their time to live is not renewed."""
    asked = question(batches=[[10]] * 3, window=SECOND)
    first = twins.ask(asked, START)
    before = client.get(twins.key)
    assert twins.ask(asked, START + 60 * SECOND) == first
    assert client.get(twins.key) == before


def test_the_largest_ids_and_members_of_any_name(twins):
    for number in (1, 2**31, 2**53 - 1):
        asked = question("ü 🦆", number, batches=[[1]])
        assert twins.ask(asked, START) == twins.ask(asked, START)


# -- the store


def test_it_answers_and_keeps_what_it_was_told(server):
    async def scenario(store):
        first = await store.ask("kept", question(batches=[[10]] * 8, wants=[4, 0], limits=[10, 0, 0, 0]))
        assert first["starts"][:4] == [0, 0, 0, 0]
        assert 0 < first["starts"][4] <= 50_000
        assert (first["places"], first["members"]) == (4, 1)
        second = await store.ask("kept", question("b", 2, wants=[9, 0], version=first["version"]))
        assert (second["places"], second["members"]) == (6, 2)
        assert "rates" not in second

    on(server, scenario)


def test_keys_do_not_share(server):
    """Whatever is in them: braces, colons, spaces, other alphabets."""
    keys = ["plain", "a}b", "{", "}", "a b:c", "ключ", "\ud800", ""]

    async def scenario(store):
        for key in keys:
            assert (await store.ask(key, question()))["members"] == 1

    on(server, scenario)


def test_questions_that_wait_travel_together_and_each_gets_its_own_answer(server):
    async def scenario(store):
        asks = [store.ask(f"together {n % 7}", question(f"m{n}", n, wants=[n, 0])) for n in range(300)]
        answers = await asyncio.gather(*asks)
        assert [given["places"] for given in answers] == list(range(300))

    on(server, scenario)


def test_one_bad_question_does_not_spoil_the_others(server):
    async def scenario(store):
        asks = [store.ask("mixed", question(f"m{n}", batches=[[2**60 if n == 3 else 1]])) for n in range(6)]
        answers = await asyncio.gather(*asks, return_exceptions=True)
        assert [isinstance(given, StoreError) for given in answers] == [n == 3 for n in range(6)]

    on(server, scenario)


def test_one_who_gives_up_does_not_disturb_the_others(server):
    """B4: cancelled while its question is on its way."""

    async def scenario(store):
        tasks = [asyncio.ensure_future(store.ask("cancelled", question(f"m{n}"))) for n in range(9)]
        await asyncio.sleep(0)
        tasks[4].cancel()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(answers.pop(4), asyncio.CancelledError)
        assert len({given["version"] for given in answers}) == 1

    on(server, scenario)


def test_two_stores_decide_as_one(server):
    """500 units of a slow rate asked for by two processes' worth of connections: counted once each."""

    async def scenario(store):
        other = RedisStore(server.url)
        slow = {"rates": [[1_000, DAY, 1_000]]}
        try:
            for n in range(25):
                await asyncio.gather(
                    *(
                        one.ask("two", question(name, n, batches=[[10]], **slow))
                        for one, name in ((store, "a"), (other, "b"))
                    )
                )
            assert await used(store, "two", **slow) == 500
        finally:
            await other.close()

    on(server, scenario)


async def used(store, key, rates):
    """How many units are gone from a slow rate of 1 000, of which 900 fit at once. Takes the rest."""
    given = await store.ask(key, question("auditor", batches=[[1]] * 1_000, rates=rates))
    return 900 - given["starts"].count(0)


def test_only_the_declared_key_and_its_channel_are_touched(server):
    """B13: a user who may touch nothing else can ask and listen."""
    with closing(server.client()) as admin:
        admin.execute_command(
            *("ACL", "SETUSER", "gate", "reset", "on", ">secret", "~headgate:{acl}", "&headgate:{acl}:news"),
            *(
                "+@scripting",
                "+@connection",
                "+get",
                "+set",
                "+time",
                "+publish",
                "+subscribe",
                "+unsubscribe",
                "+ping",
            ),
        )

    async def main():
        store = RedisStore(f"valkey://gate:secret@127.0.0.1:{server.port}/0")
        news = asyncio.Event()
        try:
            await store.listen("acl", news.set)
            await happens(news)
            await store.ask("acl", question(window=SECOND))
            await happens(news)
            with pytest.raises(StoreError):
                await store.ask("another", question())
        finally:
            await store.close()

    asyncio.run(main())
    calls = re.findall(r"redis\.p?call\('(\w+)'(?:, ([^)]*?))?[,)]", SCRIPT)
    assert sorted(command for command, _ in calls) == ["GET", "PUBLISH", "SET", "TIME"]


def test_one_who_may_not_publish_is_still_answered(server):
    with closing(server.client()) as admin:
        admin.execute_command(
            "ACL", "SETUSER", "quiet", "reset", "on", ">secret", "~*", "resetchannels", "+@all", "-publish"
        )

    async def main():
        store = RedisStore(f"redis://quiet:secret@127.0.0.1:{server.port}/0")
        try:
            assert (await store.ask("quiet", question(window=SECOND)))["window_left"] == SECOND
        finally:
            await store.close()

    asyncio.run(main())


def test_a_pool_lives_until_it_is_idle_and_a_minute_more(server, client):
    """M17: nothing has to be swept; what was worth remembering is what `idle_for` says."""
    for number, facts in enumerate(
        [
            {"lease": 5 * SECOND},
            {"rates": [[1, 3_600 * SECOND, 1]], "batches": [[1]]},
            {"window": 600 * SECOND, "limits": [0, 0, 0, 10 * SECOND]},
            {"rates": [[1, 3_600 * SECOND, 1]], "batches": [[1]], "leaves": True},
        ]
    ):
        pool = Pool()
        answer(pool, question(**facts), START)
        expected = pool.idle_for(START) // 1_000 + 60_000

        async def scenario(store, key=f"ttl {number}", facts=facts):
            await store.ask(key, question(**facts))

        on(server, scenario)
        left = client.pttl(f"headgate:{{ttl {number}}}")
        assert expected - 20_000 < left <= expected


def test_an_idle_pool_is_small(client, capsys):
    """M17: one member that has come and gone, four rates; and what each member adds."""
    twins = Twins(client)
    four = [
        [500, 60 * SECOND, 500],
        [200_000, 60 * SECOND, 33_000],
        [10_000, 60 * SECOND, 5_000],
        [99, DAY, 99],
    ]
    twins.ask(
        question(rates=four, batches=[[1, 100, 10, 1]], limits=[64, 10, 5 << 20, 10 * SECOND], leaves=True),
        START,
    )
    idle = client.memory_usage(twins.key)
    assert idle <= 900  # its last answer is kept until its lease ends
    twins.ask(question(uuid4().hex, rates=four, batches=[[1, 100, 10, 1]] * 20), START)
    assert (
        client.memory_usage(twins.key) <= idle + 1_800
    )  # a mark for each batch, while they are not earned back


# -- news


def test_news_of_a_window_and_of_new_limits_reach_every_listener(server):
    async def scenario(store):
        other = RedisStore(server.url)
        ours, theirs = asyncio.Event(), asyncio.Event()
        try:
            await store.listen("news", ours.set)
            await other.listen("news", theirs.set)
            await happens(ours)  # the line is up
            await happens(theirs)
            for number, change in enumerate(
                [{}, {"window": SECOND}, {"set": [[[5, SECOND, 5]], [1, 1, 1, 1]]}, {"window": -1}]
            ):
                await store.ask("news", question(number=number, **change))
                await happens(theirs)
                await happens(ours)
        finally:
            await other.close()

    on(server, scenario)


def test_what_changes_nothing_is_no_news(server):
    async def scenario(store):
        heard = []
        up = asyncio.Event()
        await store.ask("silence", question(number=1))
        await store.listen("silence", lambda: (heard.append(1), up.set()))
        await happens(up)
        for number in range(2, 20):
            await store.ask("silence", question(number=number, batches=[[1]]))
        await store.ask("silence", question(number=20, window=SECOND))
        await happens(up)
        assert len(heard) == 2

    on(server, scenario)


def test_listeners_of_many_keys_share_one_line(server, client):
    async def scenario(store):
        events = {f"shared {n}": asyncio.Event() for n in range(20)}
        before = client.info("clients")["connected_clients"]
        for key, event in events.items():
            await store.listen(key, event.set)
            await asyncio.sleep(0)
        for event in events.values():
            await happens(event)
        late = asyncio.Event()
        await store.listen("shared late", late.set)
        await happens(late)
        for key, event in events.items():
            await store.ask(key, question(window=SECOND))
            await happens(event)
        assert client.info("clients")["connected_clients"] <= before + 2

    on(server, scenario)


def test_a_listener_that_fails_does_not_silence_the_others(server):
    async def scenario(store):
        told = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))
        news = asyncio.Event()
        await store.listen("failing", lambda: 1 / 0)
        await store.listen("failing", news.set)
        await happens(news)
        await store.ask("failing", question(window=SECOND))
        await happens(news)
        assert {type(error) for error in told} == {ZeroDivisionError}

    on(server, scenario)


# -- what is wrong is said


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://limits.internal/0", "redis://limits.internal/0"),
        ("redis://:s3cret@host:6380/1", "redis://host:6380/1"),
        ("rediss://me:s3cret@host/1?password=s3cret", "rediss://host/1"),
        ("redis://host/0?password=s3cret", "redis://host/0"),
        ("redis://:s3/cret@host/0", "redis://…"),
        ("redis://:s3#cret@host/0", "redis://…"),
        ("redis://:s3?cret@host/0", "redis://…"),
        ("redis://:s3@cret@host/0", "redis://host/0"),
        ("unix://me:s3cret@/run/valkey.sock?db=1", "unix:///run/valkey.sock"),
        ("redis://s3cret@host/0", "redis://host/0"),
        ("s3cret", "…"),
        ("sqlite:////var/tmp/a@b.db", "sqlite:////var/tmp/a@b.db"),
        ("memory:x", "memory:x"),
    ],
)
def test_the_password_is_never_shown(url, shown):
    assert plain_name(url) == shown


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("redis://:s3cret@host:port/0", "host or port"),
        ("redis://:s3#cret@host/0", "host or port"),
        ("redis://[::1/0", "host or port"),
        ("redis://:s3cret@host:99999/0", "host or port"),
        ("redis:///0", "names no server"),
        ("redis://host/limits", "not the number of a database"),
        ("redis://host/0?socket_timeout=s3cret", "options"),
        ("redis://host/0?pasword=s3cret", "options"),
        ("redis://host/0?protocol=9", "options"),
        ("redis:host", "not the URL"),
        ("http://s3cret@host", "not the URL"),
    ],
)
def test_a_url_that_cannot_work_is_refused_at_once(url, why):
    """DESIGN rule 12: what was given, why it cannot work, what to write instead."""
    with pytest.raises(InvalidConfig, match=why) as caught:
        RedisStore(url)
    assert "cret" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert "redis://user:password@host:6379/0" in str(caught.value)


def why_not(url, **options):
    async def main():
        store = RedisStore(url, **options)
        try:
            with pytest.raises(StoreError) as caught:
                await store.ask("k", question())
        finally:
            await store.close()
        return str(caught.value)

    return asyncio.run(main())


def test_a_wrong_password_host_port_or_database_is_said_without_the_password():
    with Server("--requirepass", "right") as guarded:
        where = f"127.0.0.1:{guarded.port}"
        for credentials in (":wr0ng@", "nobody:wr0ng@", ""):
            why = why_not(f"redis://{credentials}{where}/0")
            assert f"{where}/0 does not let us in" in why
            assert "wr0ng" not in why
        why = why_not(f"redis://:right@{where}/999")
        assert f"redis://{where}/999 cannot answer: DB index is out of range" in why
    nobody = free_port()
    assert f"redis://127.0.0.1:{nobody} cannot be reached" in why_not(f"redis://:wr0ng@127.0.0.1:{nobody}")


def test_a_key_of_somebody_else_is_left_alone(server, client):
    """DESIGN rule 12: hostile data never loosens a limit, and is not overwritten."""
    client.rpush("headgate:{list}", "theirs")
    client.set("headgate:{text}", "theirs")
    client.set("headgate:{layout}", b"\x91\x63")  # an array that says it is of layout 99

    async def scenario(store):
        for key in ("list", "text", "layout"):
            with pytest.raises(StoreError, match="cannot answer"):
                await store.ask(key, question())

    on(server, scenario)
    assert client.get("headgate:{text}") == b"theirs"


def test_every_spelling_of_the_scheme_opens_it(server):
    for scheme in ("redis", "valkey"):
        store = open_store(f"{scheme}://127.0.0.1:{server.port}/0", SYSTEM)
        assert isinstance(store, RedisStore)

        async def scenario(store=store):
            assert await store.ask("schemes", question())
            await store.close()

        asyncio.run(scenario())
    for scheme in ("rediss", "valkeys"):  # with TLS, which this server does not speak
        assert f"{scheme}://127.0.0.1" in why_not(
            f"{scheme}://127.0.0.1:{server.port}/0", timeout=0.1, connect_timeout=0.1
        )


def test_a_unix_socket_works_too(tmp_path):
    path = tmp_path / "valkey.sock"
    with Server("--unixsocket", str(path)):
        store = RedisStore(f"unix://{path}?db=0")

        async def scenario():
            assert await store.ask("socket", question())
            await store.close()

        asyncio.run(scenario())


def test_without_the_client_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "redis.asyncio", None)
    with pytest.raises(InvalidConfig, match=r'pip install "headgate\[redis\]"'):
        RedisStore("redis://host/0")


def test_loading_the_room_loads_no_client():
    program = "import sys, headgate.sharing.redis; print('redis' in sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


# -- its life


def test_after_close_it_says_so_and_nobody_is_left_waiting(server):
    async def main():
        store = RedisStore(server.url)
        asks = [asyncio.ensure_future(store.ask("closing", question(f"m{n}"))) for n in range(200)]
        await asyncio.sleep(0)
        await store.close()
        for reply in await asyncio.gather(*asks, return_exceptions=True):
            assert isinstance(reply, StoreError)
        with pytest.raises(StoreError, match="was closed"):
            await store.ask("closing", question())
        with pytest.raises(StoreError, match="was closed"):
            await store.listen("closing", print)
        await store.close()
        assert repr(store) == f"<RedisStore {server.url}, closed>"

    asyncio.run(main())


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_on_another_loop_it_begins_anew_and_still_listens(server):
    """The courier's loop ends with `retire` and may begin again; nobody closed the store in between."""
    store = RedisStore(server.url)

    async def first():
        up = asyncio.Event()
        heard.append(up.set)
        await store.listen("loops", lambda: [act() for act in heard])
        await happens(up)
        assert await store.ask("loops", question(number=1))

    async def second():
        up = asyncio.Event()
        heard[:] = [up.set]
        assert await store.ask("loops", question(number=2))
        await happens(up)
        await store.close()

    heard = []
    asyncio.run(first())
    asyncio.run(second())
    gc.collect()


def test_a_forked_child_asks_by_itself_and_leaves_the_parent_s_lines_alone(server):
    """B29: the child starts fresh, even when it drops the store, collects it and ends as usual."""
    program = f"""
        import gc, json, os, sys, threading
        from headgate.sharing.courier import COURIER
        from headgate.sharing.redis import RedisStore

        def ask(member, number, **facts):
            asked = {{**json.loads({json.dumps(question())!r}), "member": member, "id": number, **facts}}
            return COURIER.wait_for(lambda: store.ask("fork", asked), 10)

        store, heard = RedisStore({server.url!r}), threading.Event()
        COURIER.wait_for(lambda: store.listen("fork", heard.set), 10)
        assert heard.wait(10)
        assert ask("parent", 1)["members"] == 1
        for _ in range(2):
            child = os.fork()
            if not child:
                assert ask("child", os.getpid())["members"] >= 2
                COURIER.wait_for(store.close, 10)
                del store
                gc.collect()
                sys.exit(0)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        lazy = os.fork()
        if not lazy:  # one that never asks
            del store
            gc.collect()
            sys.exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(lazy, 0)[1]) == 0
        heard.clear()
        assert ask("parent", 2, window=1000000)["members"] == 2
        assert heard.wait(10)
        COURIER.wait_for(store.close, 10)
        print("done")
    """
    done = subprocess.run(
        [sys.executable, "-I", "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
