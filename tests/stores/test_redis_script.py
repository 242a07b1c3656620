"""The script for Valkey and Redis, on a real server: it decides as pool/answer.py does, to the unit."""

import json
from random import Random
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headgate.errors import StoreError
from headgate.sharing.pool.answer import answer
from headgate.sharing.pool.rate import GROWING, STRICT
from headgate.sharing.pool.reunion import BY_POOL, LATE, WAITS
from headgate.sharing.pool.state import Pool
from headgate.sharing.redis import CONSTANTS, SCRIPT, read_answer
from stores.on_redis import DAY, SECOND, START, on, question

CLOCK = "local now = microseconds(redis.call('TIME'))\n"

AT = SCRIPT.replace(CLOCK, "local now = tonumber(ARGV[3])\n")


class Twins:
    """The same questions to the script on the server and to `answer` here, at the same moments."""

    def __init__(self, client):
        self.client = client
        self.key = f"headgate:{{{uuid4().hex}}}"
        self.script = client.register_script(AT)
        self.pool = Pool()

    def ask(self, asked, now):
        theirs = read_answer(self.script(keys=[self.key], args=[json.dumps(asked), CONSTANTS, now]))
        assert theirs == answer(self.pool, asked, now)
        return theirs


@pytest.fixture
def twins(client):
    return Twins(client)


def test_the_script_reads_the_clock_of_the_server_in_one_line():
    """No argument of a question is a time of day. The tests put their clock in place of this line."""
    assert SCRIPT.count(CLOCK) == 1
    assert SCRIPT.count("'TIME'") == 1
    assert "ARGV[3]" not in SCRIPT


class Dice:
    """Choices by a seeded Random, for long sequences. Those of `Drawn` are by Hypothesis."""

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
        amount, kind = pick.among(AMOUNTS), pick.among([[], [GROWING], [STRICT]])
        burst = amount if kind == [STRICT] else pick.among([amount, pick.number(1, 2 * amount)])
        rates.append([amount, pick.among(PERIODS), burst, *kind])
    limits = [pick.among([0, 1, 3, 10, 400]), pick.among([0, 1, 2, 10]), pick.among([0, 100, 5 << 20])]
    return rates, [*limits, pick.among([0, 10 * SECOND])]


def some_statement(pick, terms):
    """What an answer says to remain of a rate: nothing, or any amount at any time, to be believed or not."""
    amount = terms[0]
    if pick.number(0, 1):
        return []
    remaining = pick.among([0, pick.number(0, 3 * amount), amount])
    return [remaining, pick.among([-1, 0, amount, pick.number(1, amount)]), pick.among(AGES)]


def some_units(pick, rates):
    return [pick.among(["requests", "tokens"]) for _ in rates]


def some_question(pick, pool, asked):
    """Return a question that makes sense to the pool as it is now, or one that was asked before."""
    who = pick.among("abcd")
    last, fitted = asked.get(who, (None, None))
    in_force = [rate.terms for rate in pool.rates]
    if last is not None and fitted == in_force and not pick.number(0, 7):
        return last  # as if its reply had been lost
    wanted, limits = some_limits(pick)
    retune = not pick.number(0, 9)
    rates = wanted if retune or not pool.version else in_force
    # The change may be refused, and then others are in force.
    possible = [list(each) for each in zip(rates, in_force or rates, pool.configured or rates, strict=False)]
    few = [max(1, min(rate[2] for rate in each) // 8) for each in possible]
    many = [min(10**9, 3 * min(rate[0] for rate in each)) for each in possible]
    few, many = ([*some, *[1] * (len(rates) - len(some))] for some in (few, many))
    most = pick.among([few, few, many])
    lesson, units = None, pool.units if pool.version else some_units(pick, wanted)
    change = [pick.among([wanted, None, pool.configured]), limits]
    if not pick.number(0, 2):
        version = pick.among([-1, pool.lesson.version, pool.lesson.version, 7])
        lesson = [version, pick.among([pool.lesson.episode, 7]), pick.among([False, True]), '{"ü": 1}']
        change = [wanted, limits, some_units(pick, wanted), pick.among([wanted, in_force])]
    asked["number"] = asked.get("number", 0) + 1
    new = question(
        who,
        asked["number"],
        rates=wanted,
        limits=limits,
        units=units,
        set=change if retune else None,
        lesson=lesson,
        lesson_version=pick.among([0, pool.lesson.version]),
        successes=pick.among([0, 1, 99]),
        manner=pick.number(0, 2),
        waiting=pick.number(0, 2),
        version=pick.among([0, pool.version]),
        lease=pick.among(LEASES),
        reach=pick.among([0, 0, 999, 40_001, SECOND]),
        back=pick.among([0, 0, 999, 40_001]),
        doubt=pick.among([0, 0, 999, 40_001, 300_000, SECOND]),
        window=None if pick.number(0, 3) else pick.among([-1, 0, 1, SECOND, 60 * SECOND]),
        recalls=pick.among([0, 0, 1, 60 * SECOND]),
        born=pick.among([0, pool.born, pool.born, 1]),
        returned=[
            [[pick.number(0, top), pool.stamp - pick.among(AGES)] for _ in range(pick.number(0, 2))]
            for top in many
        ],
        stated=[some_statement(pick, rate) for rate in rates],
        owed=[pick.number(0, top) if not pick.number(0, 3) else 0 for top in many],
        batches=[[pick.number(0, top) for top in most] for _ in range(pick.number(0, 6))],
        waits_for_window=bool(pick.number(0, 1)),
        uses=[pick.number(0, 5), pick.among([0, 60, 10**6])],
        may_use=[pick.number(0, 9), pick.among([0, 70, 10**6])],
        wants=[pick.number(0, 12), pick.among([0, 1, 99, 10**7])],
        spare=[pick.number(0, 6), pick.among([0, 0, 50, 1 << 20])],
        part=[pick.among([0, 90_090, 720_720]), pick.number(0, 5)],
        granted_for=pick.among([0, 0, 300_000, 3 * SECOND]),
        lost_for=pick.among([0, 1, 300_000, 5 * SECOND]),
        apart=pick.among([0, 0, 0, -1, -2, -3, 350_000, 3 * SECOND, START]),
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
def test_the_script_and_answer_py_give_the_same_answers(client, data):
    """Any questions, repeated questions and steps of the clock."""
    pick = Drawn(data)
    compare(client, pick, pick.number(1, 12))


@pytest.mark.parametrize("seed", range(4))
def test_the_script_and_answer_py_agree_over_many_questions(client, seed):
    """Marks are merged, members come and go, limits change many times."""
    for each in range(25):
        compare(client, Dice(f"{seed} {each}"), 40)


@pytest.mark.parametrize("seed", range(4))
def test_the_script_and_answer_py_agree_on_returns_to_a_busy_pool(client, seed):
    """More marks than a rate remembers, and returns to all of them."""
    twins, pick, now = Twins(client), Dice(seed), START
    kinds = [[], [GROWING], [STRICT], [GROWING]][seed]
    facts = {
        "rates": [[1_000, 60 * SECOND, 500, *kinds], [77_777, 60 * SECOND, 70_000]],
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
        told = [[pick.number(0, 1_000), 1_000, pick.number(0, 3 * SECOND)], []]
        asked = {"returned": back, "batches": batches, "wants": wants, "stated": told}
        twins.ask(question(pick.among("abc"), number, **asked, **facts), now)


@pytest.mark.parametrize("kinds", [[], [GROWING], [STRICT]])
@pytest.mark.parametrize("seed", range(3))
def test_the_script_and_answer_py_agree_on_members_near_and_far(client, seed, kinds):
    """Parts of the rates are kept for those that are far, made smaller and larger, and passed by."""
    twins, pick, now = Twins(client), Dice(seed), START
    facts = {"rates": [[500, SECOND, 100, *kinds], [70_000, SECOND, 20_000]], "limits": [0, 0, 0, 0]}
    doubts = {"a": [0, 1_000], "b": [30_000], "c": [300_000], "d": [SECOND, 400_000], "e": [2 * SECOND]}
    flows, kept_in_turn = set(), 0
    for number in range(250):
        now += pick.number(0, 120_000)
        who = pick.among("abcde"[: 2 + seed + number // 100])
        doubt = pick.among(doubts[who])
        told = [] if pick.number(0, 9) else [pick.number(0, 1_000), 1_000, pick.number(0, SECOND)]
        asked = {
            "batches": [[pick.number(0, 3), pick.number(0, 300)] for _ in range(pick.number(0, 30))],
            "returned": [[[1, twins.pool.stamp - pick.number(0, SECOND)]], []],
            "stated": [told, []],
            "leaves": not pick.number(0, 60),
            "reach": doubt,
            "back": pick.among([0, 0, doubt // 2]),
        }
        twins.ask(question(who, number, doubt=doubt, **asked, **facts), now)
        flows |= {len(member.flows) for member in twins.pool.members.values()}
        kept_in_turn = max(kept_in_turn, len(twins.pool.beside))
    assert flows == ({0} if kinds == [STRICT] else {0, 1, 2})
    assert kept_in_turn == 0 if kinds == [STRICT] else kept_in_turn > 1


@pytest.mark.parametrize("burst", [1, 2, 4])
@pytest.mark.parametrize("others", [[], [[70_000, SECOND, 20_000]], [[100_000, SECOND, 900]]])
def test_the_script_and_answer_py_agree_on_members_that_use_a_small_burst_one_after_the_other(
    client, burst, others
):
    """Those that are far have shifts of their own, others come at the end of them, and limits change."""
    twins, pick, now = Twins(client), Dice(f"{burst} {others}"), START
    doubts = {"a": [0, 1_000], "b": [0], "c": [30_000], "d": [300_000, 310_000], "e": [SECOND]}
    facts = {"rates": [[200, SECOND, burst], *others], "limits": [0, 0, 0, 0]}
    turns, gaps, prepaid = set(), 0, 0
    for number in range(300):
        now += pick.number(0, pick.among([2_000, 30_000, 120_000, 120_000, 2 * SECOND]))
        who, waiting = pick.among("abcde"), pick.among([0, 3, 11, 50])
        doubt = pick.among(doubts[who])
        if not pick.number(0, 60):
            facts["rates"] = [[pick.among([100, 200, 500]), SECOND, burst], *others]
            facts["set"] = [facts["rates"], facts["limits"]]
        asked = {
            "batches": [[1, *(300 for _ in others)] for _ in range(pick.number(0, 30))],
            "apart": WAITS,  # or members that are silent for long would be waited for
            "returned": [[[1, twins.pool.stamp - pick.number(0, SECOND)]], *([] for _ in others)],
            "owed": [pick.among([0, 0, 0, 1]), *(pick.among([0, 0, 99]) for _ in others)],
            "leaves": not pick.number(0, 60),
            "reach": doubt,
            "back": pick.among([0, 0, doubt // 2]),
        }
        twins.ask(question(who, number, doubt=doubt, waiting=waiting, **asked, **facts), now)
        facts.pop("set", None)
        turns.add(twins.pool.apart)
        gaps += any(rate.gap for rate in twins.pool.rates)
        prepaid += twins.pool.prepaid > 0
    assert turns >= {"", "d", "e"}
    assert gaps > 30
    assert prepaid > 5


@pytest.mark.parametrize("others", [[], [[400, SECOND, 40]], [[70_000, 60 * SECOND, 70_000, STRICT]]])
@pytest.mark.parametrize("seed", range(3))
def test_the_script_and_answer_py_agree_on_a_strict_rate_that_many_members_divide(client, seed, others):
    """Some leave units to others, and have what these have not come for."""
    twins, pick, now = Twins(client), Dice(seed), START
    facts = {"rates": [[500, SECOND, 500, STRICT], *others], "limits": [0, 0, 0, 0]}
    left_to_others = 0
    for number in range(300):
        now += pick.number(0, pick.among([0, 2_000, 2_000, 30_000, 300_000]))
        who, waiting = pick.among("abcde"), pick.among([0, 3, 11, 50])
        batches = [[pick.number(1, 9) for _ in facts["rates"]] for _ in range(pick.number(0, 40))]
        reach = pick.among([0, 0, 2_000, 100_000])
        asked = question(who, number, batches=batches, waiting=waiting, reach=reach, apart=WAITS, **facts)
        twins.ask(asked, now)
        member = twins.pool.members[who]
        left_to_others += member.put_off > 0
    assert left_to_others > 20


@pytest.mark.parametrize("kind", [[], [GROWING], [STRICT]])
@pytest.mark.parametrize("seed", range(3))
def test_the_script_and_answer_py_agree_on_members_that_meet_again_after_a_loss(client, seed, kind):
    """They tell for how long they could not ask, or are silent although their callers wait."""
    twins, pick, now = Twins(client), Dice(f"{seed} {kind}"), START
    facts = {"rates": [[50, SECOND, 50, *kind]], "limits": [10, 0, 0, 0]}
    begun, apart = set(), 0
    for number in range(300):
        now += pick.number(0, pick.among([2_000, 30_000, 150_000, 300_000, 4 * SECOND]))
        asked = {
            "batches": [[pick.number(1, 9)] for _ in range(pick.number(0, 20))],
            "waiting": pick.among([0, 0, 3, 50]),
            "apart": pick.among([BY_POOL, BY_POOL, BY_POOL, BY_POOL, WAITS, LATE, 350_000, 3 * SECOND]),
            "lost_for": pick.among([0, 200_000, SECOND]),
            "reach": pick.among([0, 2_000, 100_000]),
            "owed": [pick.among([0, 0, 7])],
            "lease": pick.among([100_000, 3 * SECOND]),
        }
        asked = question(pick.among("abcde"), number, **asked, **facts)
        before = twins.pool.reunion_until
        twins.ask(asked, now)
        if twins.pool.reunion_until and before <= twins.pool.now:
            begun.add(asked["apart"])
        apart += twins.pool.members[asked["member"]].answer["apart"] > 0
    assert begun == {BY_POOL, 350_000, 3 * SECOND}
    assert apart > 50


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
    """Units × period is above 2^53 here, and not one microsecond is lost."""
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
def test_a_number_that_a_double_cannot_hold_is_refused_and_changes_nothing(server, client, facts):
    """A StoreError, never a wrong number."""
    key = uuid4().hex

    async def scenario(store):
        with pytest.raises(StoreError, match=r"cannot answer.*headgate: a "):
            await store.ask(key, question(**facts))

    on(server, scenario)
    assert not client.exists(f"headgate:{{{key}}}")


def test_more_than_eight_thousand_batches_and_members(twins):
    """Lua's `unpack` onto the stack ends at about 8,000."""
    rates = [[10**9, SECOND, 10**9]]
    given = twins.ask(question(rates=rates, batches=[[1]] * 9_000), START)
    assert len(given["starts"]) == 9_000
    for n in range(300):
        twins.ask(
            question(f"member {n}", rates=rates, batches=[[1]], wants=[1, 1], limits=[9, 0, 9, 0]), START + n
        )


def test_a_question_asked_again_changes_nothing(twins, client):
    """The same bytes stay on the server, and their time to live is not renewed."""
    asked = question(batches=[[10]] * 3, window=SECOND)
    first = twins.ask(asked, START)
    before = client.get(twins.key)
    assert twins.ask(asked, START + 60 * SECOND) == first
    assert client.get(twins.key) == before


def test_the_largest_ids_and_members_of_any_name(twins):
    for number in (1, 2**31, 2**53 - 1):
        asked = question("ü 🦆", number, batches=[[1]])
        assert twins.ask(asked, START) == twins.ask(asked, START)


def test_an_idle_pool_is_small(client, capsys):
    """Four rates, and one member that has left; and what another member adds."""
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
