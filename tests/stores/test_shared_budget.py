"""One budget for all processes: reserved and settled exactly, whatever happens to any of them.

What can be seen in virtual time is, with the store in this process; the rest by real processes and servers.
"""

import asyncio
import contextlib
import gc
import json
import random
import subprocess
import sys
import threading
import time
from contextlib import closing, contextmanager, suppress
from uuid import uuid4

import pytest

from faults.rig import Proxy, Server, free_port
from forks import in_a_child
from headgate import (
    BudgetBook,
    BudgetExceeded,
    Closed,
    InvalidConfig,
    ResilienceConfig,
    ResilientClient,
    StoreError,
    TokenBudget,
)
from headgate.sharing import redis as redis_room
from headgate.sharing.memory import MemoryStore
from headgate.testing import ManualClock, run
from patience import PATIENCE, eventually
from stores.processes import Processes
from stress.interrupts import Interrupted, interrupt_everywhere

pytestmark = pytest.mark.alone

HOUR = 3600.0


@pytest.fixture
def key():
    return f"budget {uuid4().hex}"


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def memory(clock):
    return MemoryStore(clock)


def settled_down(budget, expected):
    eventually(lambda: budget.remaining_budget == expected, f"{expected} remain")


def remaining(budget):
    """What the store itself says, now."""
    reservation = budget.reserve(0)
    reservation.settle()
    return budget.remaining_budget


# -- virtual time


def test_budgets_of_equal_keys_share_and_others_do_not(memory, clock):
    one, other = (TokenBudget(10_000, key="ann", store=memory, clock=clock) for _ in range(2))
    stranger = TokenBudget(10_000, key="bob", store=memory, clock=clock)
    reservation = one.reserve(4_000)
    assert (other.remaining_budget, stranger.remaining_budget) == (6_000, 10_000)
    with pytest.raises(BudgetExceeded) as caught:
        other.reserve(6_001)
    assert (caught.value.budget, caught.value.remaining, caught.value.rule) == ("ann", 6_000, "tokens/hour")
    assert caught.value.retry_after == pytest.approx(HOUR)
    reservation.settle(1_500)
    assert other.remaining_budget == 8_500
    other.record_usage(500)
    assert one.remaining_budget == 8_000
    reservation.settle(0)  # once
    assert one.remaining_budget == 8_000


def test_a_shared_window_slides_like_a_local_one(memory, clock):
    one, other = (
        TokenBudget(windows={60: 1_000, 3600: 1_500}, key="ann", store=memory, clock=clock) for _ in range(2)
    )
    one.record_usage(600)
    clock.advance(59.999)
    assert other.remaining_budget == 400
    clock.advance(0.001)
    assert other.remaining_budget == 900
    other.reserve(900)
    assert one.remaining_budget == 0
    clock.advance(60)
    assert not one.check_budget(1)
    clock.advance(3480)
    assert one.check_budget(600)
    assert not one.check_budget(601)


def test_every_level_is_charged_or_none_across_the_fleet(memory, clock):
    def tree():
        acme = TokenBudget(5_000, key="acme", store=memory, clock=clock)
        return acme, *(TokenBudget(4_000, key=user, parent=acme, clock=clock) for user in ("ann", "bob"))

    acme, ann, bob = tree()
    acme_2, ann_2, bob_2 = tree()
    ann.reserve(3_000)
    with pytest.raises(BudgetExceeded) as caught:
        bob_2.reserve(2_500)
    assert caught.value.budget == "acme"
    assert [acme_2.remaining_budget, ann_2.remaining_budget, bob.remaining_budget] == [2_000, 1_000, 2_000]
    bob_2.reserve(2_000)
    assert [acme.remaining_budget, ann.remaining_budget, bob.remaining_budget] == [0, 0, 0]


def test_exactly_two_of_ten_tasks_with_two_budgets_of_one_key_get_it():
    async def main(clock):
        memory = MemoryStore(clock)
        budgets = [TokenBudget(10_000, key="ann", store=memory, clock=clock) for _ in range(2)]
        wishes = [budget.reserve_async(4_000) for budget in budgets for _ in range(5)]
        replies = await asyncio.gather(*wishes, return_exceptions=True)
        return sum(not isinstance(reply, Exception) for reply in replies), budgets[0].remaining_budget

    assert run(main) == (2, 2_000)


def test_reserve_async_of_a_local_budget_answers_at_once(clock):
    budget = TokenBudget(10_000, clock=clock)

    async def main(_clock):
        await with_both(budget)
        with await budget.reserve_async(4_000) as reservation:
            reservation.settle(1_000)
        return budget.remaining_budget

    async def with_both(budget):
        with pytest.raises(BudgetExceeded):
            await budget.reserve_async(10_001)

    assert run(main) == 9_000


def test_another_plan_finds_what_was_used_under_every_other(memory, clock):
    """A budget that knows only the minute does not make the day forget."""
    day = TokenBudget(windows={86_400: 1_000}, key="ann", store=memory, clock=clock)
    minute = TokenBudget(windows={60: 100}, key="ann", store=memory, clock=clock)
    day.record_usage(400)
    for _ in range(5):
        clock.advance(60)
        minute.record_usage(100)
    assert day.remaining_budget == 100
    assert minute.remaining_budget == 0


def test_a_user_without_usage_that_counts_leaves_nothing_in_the_store(memory, clock):
    """Records expire when nothing counts any more."""
    book = BudgetBook({"free": {"max_tokens_per_hour": 100}}, store=memory, clock=clock)
    for k in range(500):
        book.for_user(f"user {k}").record_usage(1)
    clock.advance(2 * HOUR)
    for k in range(500):
        book.for_user(f"passer-by {k}")
    book.for_user("ann").record_usage(1)
    gc.collect()
    assert len(book) <= 64
    live = memory._records.keys(clock.now() // 1000)
    assert [name for _, name in live] == ['["user", "ann"]']
    book.for_user("bob").reserve(100).refund()
    assert book.for_user("bob").remaining_budget == 100
    book.close()


def test_books_of_one_key_share_users_and_organizations_and_others_do_not(memory, clock):
    tiers, organizations = {"free": {"max_tokens_per_hour": 1_000}}, {"acme": {"max_tokens_per_hour": 1_500}}
    one, other, stranger = (
        BudgetBook(tiers, organizations=organizations, key=key, store=memory, clock=clock)
        for key in ("chat", "chat", "images")
    )
    one.for_user("ann", organization="acme").reserve(900)
    assert other.for_user("ann", organization="acme").remaining_budget == 100
    assert other.for_user("bob", organization="acme").remaining_budget == 600
    assert stranger.for_user("ann", organization="acme").remaining_budget == 1_000


def test_a_shared_budget_is_a_context_manager_and_may_be_closed_twice(memory, clock):
    with TokenBudget(10_000, key="ann", store=memory, clock=clock) as budget:
        below = TokenBudget(5_000, key="bob", parent=budget, clock=clock)
        with below:
            pass
        below.reserve(100).settle(10)
    budget.close()
    with pytest.raises(Closed):
        below.reserve(1)

    async def main(_clock):
        async with TokenBudget(10_000, key="ann", store=memory, clock=clock) as again:
            pass
        async with BudgetBook({"free": {}}, store=memory, clock=clock) as book:
            book.for_user("eve").record_usage(1)
        with pytest.raises(Closed):
            book.for_user("eve")
        return again.remaining_budget

    assert run(main) == 9_990


def test_a_finalizer_may_settle_while_its_thread_is_inside_the_store():
    """Garbage may be collected under the lock of a store in memory: the settlement is made after it."""

    class Collecting(ManualClock):
        act = None

        def now(self):
            if self.act is not None and memory._lock.locked():
                act, self.act = self.act, None
                act()
            return super().now()

    clock = Collecting()
    memory = MemoryStore(clock)
    ann, bob = (TokenBudget(10_000, key=key, store=memory, clock=clock) for key in ("ann", "bob"))
    reservation = ann.reserve(4_000)
    clock.act = lambda: reservation.settle(1_000)
    bob.record_usage(1)
    assert clock.act is None
    assert TokenBudget(10_000, key="ann", store=memory, clock=clock).remaining_budget == 9_000


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"store": "memory:x"}, "needs a key"),
        ({"store": "http://host", "key": "ann"}, "not a kind of store"),
        ({"store": 5, "key": "ann"}, "is not a store"),
        ({"store": "memory:x", "key": "ann", "parent": TokenBudget(key="acme")}, "topmost"),
    ],
)
def test_a_store_that_cannot_work_says_so(options, said):
    with pytest.raises(InvalidConfig, match=said):
        TokenBudget(**options)


def test_a_server_that_is_not_there_is_a_store_error_without_its_password():
    url = f"redis://:secret@127.0.0.1:{free_port()}/0"
    for make in (lambda: TokenBudget(key="a", store=url), lambda: BudgetBook({"free": {}}, store=url)):
        with pytest.raises(StoreError, match="cannot be reached") as caught:
            make()
        assert "secret" not in str(caught.value)


def test_a_client_reserves_in_a_loop_without_blocking_it(server, key):
    budget = TokenBudget(10_000, key=key, store=server.url)
    client = ResilientClient(
        ResilienceConfig(requests_per_minute=None), tokens=1_000, usage=lambda used: used, budget=budget
    )

    async def main():
        async def ask():
            await asyncio.sleep(0)
            return 100

        return await asyncio.gather(*(client.call_async(ask) for _ in range(10)))

    assert asyncio.run(main()) == [100] * 10
    settled_down(budget, 9_000)


# -- real stores: many processes


class Reserving(Processes):
    """Several that reserve from one book."""

    def __init__(self, many, seconds, *, store, key, **options):
        options = {"store": store, "key": key, "tokens": 10, "threads": 3, **options}
        super().__init__("budget_sharer.py", [options] * many)
        self.tell_all(seconds)
        self.killed = []

    def kill_one(self):
        said = self.kill(self.running[-1])
        self.killed += [json.loads(line) for line in said.splitlines() if line.endswith("]")]

    def granted(self):
        """[user, before, after] of every reservation, those of killed processes included."""
        granted = list(self.killed)
        for said in self.said():
            *lines, last = said.splitlines()
            assert last == "done"
            granted += map(json.loads, lines)
        return granted


def most_in_any(granted, window):
    """The most reservations that must have been made within one window, whenever exactly each was made."""
    spans = sorted((after, before) for _, before, after in granted)
    most = 0
    for _, begin in spans:
        # Those that began at or after this one began, and had ended before the window was over.
        most = max(most, sum(begin <= before and after < begin + window for after, before in spans))
    return most


@pytest.mark.parametrize("store", ["sqlite", "valkey"], indirect=True)
def test_four_processes_never_reserve_more_than_any_window_holds_and_nothing_is_lost(store, key):
    """A second of 300, a user of a hundred in it; three threads each, all at once."""
    user, organization = {1: 100, HOUR: 10**7}, {1: 300, HOUR: 10**8}
    granted = Reserving(4, 1.2, store=store, key=key, user=user, organization=organization).granted()
    assert most_in_any(granted, 1) <= 30
    for number in range(3):
        assert most_in_any([each for each in granted if each[0] == number], 1) <= 10
    assert len(granted) >= 30  # and what there is, is used
    with book_of(store, key) as book:
        for number in range(3):
            used = 10**7 - book.for_user(f"user {number}").remaining_budget
            assert used == 10 * sum(each[0] == number for each in granted)
        assert 10**8 - left_of_acme(book) == 10 * len(granted)


@contextmanager
def book_of(store, key, user=10**7, organization=10**8):
    with BudgetBook(
        {"free": {"max_tokens_per_hour": user}},
        organizations={"acme": {"max_tokens_per_hour": organization}},
        store=store,
        key=key,
    ) as book:
        yield book


def left_of_acme(book):
    """What the organisation has left: a user of no tier of its own would be told the same."""
    return book._usage.left([book._organizations["acme"].level], 0)


def test_kill_9_costs_at_most_what_was_not_told_and_user_and_organization_agree(store, key):
    """Everything that was printed is charged, and at most one more reservation of each thread."""
    dice = random.Random(8)
    processes = Reserving(3, 0.6, store=store, key=key, user={HOUR: 10**7}, organization={HOUR: 10**8})
    for _ in range(2):
        processes.wait_until(0.15 + dice.random() / 3)
        processes.kill_one()
    granted = processes.granted()
    with book_of(store, key) as book:
        used = sum(10**7 - book.for_user(f"user {number}").remaining_budget for number in range(3))
        assert 10 * len(granted) <= used <= 10 * len(granted) + 2 * 3 * 10
        assert 10**8 - left_of_acme(book) == used


def test_usage_survives_all_processes(store, key):
    with book_of(store, key, user=1_000) as book:
        book.for_user("ann", organization="acme").record_usage(300)
        book.for_user("ann").reserve(200)
    with book_of(store, key, user=1_000) as book:
        assert book.for_user("ann").remaining_budget == 500
        assert book.for_user("bob").remaining_budget == 1_000


# -- real stores: what goes wrong


@pytest.mark.parametrize("fault", ["lose", "twice"])
def test_replies_lost_after_the_commit_charge_nothing_twice(server, key, fault):
    """Reserving, settling and recording, while half of all replies are lost."""
    dice = random.Random(3)
    with Proxy(server.port) as line:
        budget = TokenBudget(10**9, None, key=key, store=line.url)
        used = 0
        for _ in range(25):
            if dice.random() < 0.5:
                line.faults.extend([fault, fault] if dice.random() < 0.5 else [fault])
            try:
                reservation = budget.reserve(10)
            except StoreError:
                continue  # then nothing is charged in the end
            reservation.settle(7)
            budget.record_usage(1)
            used += 8
        line.faults.clear()
        eventually(lambda: not budget.account.usage.client.untold(), "all is told")
        audit = TokenBudget(10**9, None, key=key, store=server.url)
        assert 10**9 - audit.remaining_budget == used
        assert used > 0


def test_a_lost_store_refuses_in_time_and_hears_later_what_was_used(key):
    """The server is stopped by SIGSTOP. No reservation is guessed, and no usage is forgotten."""
    with Server() as server:
        budget = TokenBudget(10_000, key=key, store=server.url)
        reservation = budget.reserve(4_000)
        server.stop()
        begun = time.monotonic()
        with pytest.raises(StoreError):
            budget.reserve(1)
        assert time.monotonic() - begun < 4
        reservation.settle(1_000)
        budget.record_usage(50)
        assert budget.remaining_budget == 8_950  # as far as we know
        server.go_on()
        eventually(lambda: not budget.account.usage.client.untold(), "all is told")
        assert TokenBudget(10_000, key=key, store=server.url).remaining_budget == 8_950
        budget.reserve(8_950)


def test_a_task_that_is_cancelled_while_it_asks_leaves_nothing_charged(server, key):
    """A reservation that the store grants to a cancelled task goes back."""
    with Proxy(server.port) as line:
        budget = TokenBudget(10_000, key=key, store=line.url)

        async def main():
            line.delay = 0.05
            for wait in (0, 0.01, 0.06, 0.12):
                asking = asyncio.ensure_future(budget.reserve_async(1_000))
                await asyncio.sleep(wait)
                if not asking.done():
                    asking.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await asking
                else:
                    asking.result().refund()
            line.delay = 0

        asyncio.run(main())
        eventually(lambda: not budget.account.usage.client.untold(), "all is told")
        assert TokenBudget(10_000, key=key, store=server.url).remaining_budget == 10_000


def test_a_forked_child_counts_with_its_parent_and_settles_none_of_its_reservations(store, key):
    budget = TokenBudget(10_000, key=key, store=store)
    reservation = budget.reserve(4_000)

    def child():
        budget.reserve(1_000).settle(600)
        budget.record_usage(50)
        reservation.refund()  # it is the parent's
        eventually(lambda: not budget.account.usage.client.untold(), "all is told")

    assert in_a_child(child) == 0
    assert remaining(budget) == 10_000 - 4_650
    reservation.settle(100)
    settled_down(budget, 10_000 - 750)


def test_a_process_far_from_the_store_is_not_always_too_late(server, key):
    """Two processes are near and never pause, one is 40 ms away. Each takes its turn."""
    near = [TokenBudget(10**9, key=key, store=server.url) for _ in range(2)]
    over = threading.Event()

    def hurry(budget):
        while not over.is_set():
            budget.reserve(1)

    with Proxy(server.port) as line:
        far = TokenBudget(10**9, key=key, store=line.url)
        line.delay = 0.02
        threads = [threading.Thread(target=hurry, args=(budget,)) for budget in near]
        for thread in threads:
            thread.start()
        try:
            for _ in range(3):
                far.reserve(1)
        finally:
            over.set()
            for thread in threads:
                thread.join(PATIENCE)
        line.delay = 0
        assert 10**9 - remaining(far) > 3


def test_usage_that_cannot_be_told_does_not_pile_up(key):
    """While the store is away, the usage of one user is one number."""
    with Server() as server:
        budget = TokenBudget(10**9, key=key, store=server.url)
        server.kill()
        for _ in range(2_000):
            budget.record_usage(1)
        client = budget.account.usage.client
        eventually(lambda: client.lost and len(client.untold()) <= 64 + 2, "it is added up")
        assert 10**9 - budget.remaining_budget == 2_000
        server.start()
        eventually(lambda: not client.untold(), "all is told")
        assert 10**9 - budget.remaining_budget == 2_000


def test_fifty_threads_of_one_process_ask_together(server, key):
    """One exchange takes along all that wait: far fewer than there are reservations."""
    budget = TokenBudget(10_000, key=key, store=server.url)
    start, got = threading.Barrier(50), []

    def work():
        start.wait(PATIENCE)
        for _ in range(5):
            with suppress(BudgetExceeded):
                got.append(budget.reserve(100))

    threads = [threading.Thread(target=work) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert len(got) == 100
    assert remaining(budget) == 0
    assert budget.account.usage.client.exchanges < 125


def test_a_process_that_just_ends_has_told_what_was_used(store, key):
    """The program closes nothing: the courier does not end before the store is told."""
    program = (
        "import sys; from headgate import TokenBudget\n"
        "budget = TokenBudget(10_000, key=sys.argv[2], store=sys.argv[1])\n"
        "budget.reserve(1_000).settle(10)\n"
        "budget.record_usage(5)\n"
    )
    subprocess.run([sys.executable, "-c", program, store, key], check=True, timeout=PATIENCE)
    assert TokenBudget(10_000, key=key, store=store).remaining_budget == 9_985


@pytest.mark.parametrize("text", ["m", "m {", "m 7", "m [{}, 5]", "m [{}, [[0, 5, [1, 2]]]]", "m [[], null]"])
def test_a_record_that_makes_no_sense_is_a_store_error_and_others_go_on(server, key, text):
    """Hostile data never loosens a limit."""
    with closing(server.client()) as client:
        client.set(redis_room._record(f"book {key}", '["user", "ann"]'), text)
    with book_of(server.url, key) as book:
        with pytest.raises(StoreError, match="cannot be read"):
            book.for_user("ann").reserve(1)
        with pytest.raises(StoreError, match="cannot be read"):
            book.for_user("ann").check_budget(1)
        book.for_user("bob").reserve(1)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::RuntimeWarning")
def test_a_budget_in_memory_can_be_used_after_an_interrupt_at_any_moment():
    """Nothing stays locked, and what was told before it is kept."""

    def scenario(interrupt):
        budget = TokenBudget(10_000, key="k", store=MemoryStore())
        budget.record_usage(100)
        with contextlib.suppress(Interrupted), interrupt:
            budget.record_usage(7)
        budget.reserve(1_000).settle(10)
        assert 10_000 - budget.remaining_budget >= 110

    interrupt_everywhere(scenario)
