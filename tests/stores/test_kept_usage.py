"""Usage in a file survives restarts of the machine, and a file that is not ours is not touched."""

import gc
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing, suppress
from pathlib import Path

import pytest

from forks import needs_fork
from headgate.budgets.budget import BudgetBook
from headgate.errors import BudgetExceeded, Closed, InvalidConfig, StoreError
from headgate.sharing import sqlite as sqlite_room
from headgate.testing import ManualClock
from patience import PATIENCE, eventually

SECOND = 1_000_000_000
HOUR = 3600.0
TIERS = {
    "free": {"max_tokens_per_hour": 10_000},
    "pro": {"windows": {3600: 100_000, 86_400: 500_000}, "money": {86_400: 1_000}},
}
ORGANIZATIONS = {"acme": {"max_tokens_per_hour": 50_000}}
needs_kill = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="there is no kill -9 on this platform")


class World:
    """A machine that may be started anew, with a monotonic clock and a wall clock."""

    def __init__(self, path):
        self.path = path
        self.store = f"sqlite:///{path}"
        self.wall = 1_700_000_000 * SECOND
        self.boot = 1
        self.clock = ManualClock(start=1_000)

    # what the store asks
    def monotonic_ns(self):
        return self.clock.now()

    def time_ns(self):
        return self.wall

    def book(self, tiers=TIERS, organizations=ORGANIZATIONS):
        return BudgetBook(tiers, organizations=organizations, store=self.store, clock=self.clock)

    def advance(self, seconds):
        self.clock.advance(seconds)
        self.wall += round(seconds * SECOND)

    def restart(self):
        """The machine, that is: its monotonic clock begins anew."""
        self.clock = ManualClock(start=random.Random(self.wall).randrange(1_000))
        self.boot += 1

    def records(self):
        """What another program would see."""
        with closing(sqlite3.connect(self.path)) as look:
            return {name.decode() for (name,) in look.execute("SELECT name FROM records")}


@pytest.fixture
def world(tmp_path, monkeypatch):
    world = World(tmp_path / "usage.db")
    monkeypatch.setattr(sqlite_room, "time", world)
    monkeypatch.setattr(sqlite_room, "_boot", lambda: f"start {world.boot}")
    return world


def left(book, user, **kwargs):
    return book.for_user(user, **kwargs).remaining_budget


def left_of_acme(book):
    return book._usage.left([book._organizations["acme"].level], 0)


def told(book):
    eventually(lambda: not book._usage.client.untold(), "all is told")


# -- restarts


@pytest.mark.parametrize("what", ["process", "machine"])
def test_a_restart_restores_usage(world, what):
    """4 000 at 0 s and 5 000 half an hour later; restarted ten minutes after that."""
    with world.book() as book:
        book.for_user("ann", organization="acme").record_usage(4_000)
        told(book)
        world.advance(1_800)
        book.for_user("ann", organization="acme").record_usage(5_000)
    world.advance(600)  # while nothing runs
    if what == "machine":
        world.restart()

    with world.book() as book:
        assert left(book, "ann", organization="acme") == 1_000
        assert left(book, "bob", tier="pro", organization="acme") == 41_000
    world.advance(1_200)
    with world.book() as book:
        assert left(book, "ann") == 5_000
    world.advance(1_799.9)
    with world.book() as book:
        assert left(book, "ann") == 5_000
    world.advance(0.2)
    with world.book() as book:
        assert left(book, "ann") == 10_000


def test_a_reservation_that_was_not_settled_is_still_charged_after_a_restart(world):
    """The call of an open reservation may have been billed."""
    with world.book() as book:
        book.for_user("ann").reserve(4_000)
        book.for_user("bob").reserve(4_000).settle(1_000)
        book.for_user("eve").reserve(4_000).refund()

    with world.book() as book:
        assert [left(book, user) for user in ("ann", "bob", "eve")] == [6_000, 9_000, 10_000]


def test_limits_as_texts_hold_over_a_restart_of_the_machine_until_their_month_is_over(world):
    tiers = {"free": ["$100/month", "$0.50/request", "900 tokens/week"]}
    with world.book(tiers, None) as book:
        book.for_user("ann").record_usage(300, money=70_000_000)
    world.advance(30 * 86_400)
    world.restart()
    with world.book(tiers, None) as book:
        ann = book.for_user("ann")
        assert (ann.remaining_budget, ann.remaining_money) == (900, 30_000_000)
        with pytest.raises(BudgetExceeded, match=r"one request may take \$0\.5"):
            ann.reserve(1, money=500_001)
    world.advance(86_400 + 1)
    with world.book(tiers, None) as book:
        assert book.for_user("ann").remaining_money == 100_000_000


def test_every_window_and_money_survive_and_another_tier_finds_them(world):
    with world.book() as book:
        book.for_user("ann").record_usage(7_000, money=300)

    with world.book() as book:
        ann = book.for_user("ann", tier="pro")
        assert (ann.remaining_budget, ann.remaining_money) == (93_000, 700)
        for used in (50_000, 100_000, 100_000, 100_000, 100_000):
            world.advance(HOUR)
            ann.record_usage(used)
            told(book)
        world.advance(HOUR)

    with world.book() as book:
        assert left(book, "ann", tier="pro") == 500_000 - 457_000
        assert left(book, "ann") == 10_000


def test_hundreds_of_charges_and_as_many_restarts_as_you_like_answer_the_same(world):
    """More charges than are remembered one by one: the restored budget answers as the old one did."""
    dice = random.Random(5)
    book = world.book()
    for _ in range(5):
        for _ in range(70):
            book.for_user("ann").reserve(dice.randrange(3))
            world.advance(dice.choice([0, 0.5, 7]))
        before = left(book, "ann")
        book.close()
        book = world.book()
        assert left(book, "ann") == before
    book.close()


def test_records_without_usage_that_counts_are_deleted(world):
    """Users without usage that counts leave nothing in the file."""
    with world.book() as book:
        book.for_user("ann").record_usage(1)
        told(book)
        world.advance(86_400 - 10)
        book.for_user("bob", organization="acme").record_usage(1)
    assert len(world.records()) == 3
    world.advance(11)

    world.book().close()

    assert world.records() == {'["user", "bob"]', '["organization", "acme"]'}


def test_a_record_does_not_grow_with_use(world):
    """The text of a record is bounded."""
    dice = random.Random(1)
    with world.book({"free": {}}, None) as book:
        page = book.for_user("ann").account.level
        for _ in range(600):
            book.for_user("ann").reserve(1)
            world.advance(dice.choice([1, 3, 5]))
        assert len(page.text) <= 25 * (3 * 131 + 2 * 256 + 8)


def test_an_organization_that_is_not_configured_today_is_known_tomorrow(world):
    with world.book() as book:
        book.for_user("ann", organization="acme").record_usage(4_000)
    with world.book(organizations=None) as book:
        assert left(book, "ann") == 6_000
    with world.book() as book:
        assert left(book, "ann", organization="acme") == 6_000
        assert left(book, "bob", tier="pro", organization="acme") == 46_000


def test_any_name_is_a_user(world):
    users = ["ann", "Ünï ☃", "a\nb", "a b 'c' \"d\"", "\ud800", "x" * 10_000, "nul\0inside"]
    with world.book() as book:
        for k, user in enumerate(users):
            book.for_user(user).record_usage(k + 1)
    with world.book() as book:
        assert [left(book, user) for user in users] == [10_000 - k - 1 for k in range(len(users))]


# -- clocks


def test_a_step_of_the_wall_clock_while_the_machine_runs_changes_nothing(world):
    with world.book() as book:
        book.for_user("ann").reserve(4_000)
        for step in (5 * 3600, -9 * 3600, 86_400):
            world.wall += step * SECOND
            book.for_user("ann").reserve(1)
        assert left(book, "ann") == 10_000 - 4_003
    world.wall -= 86_400 * 365 * SECOND
    with world.book() as book:
        assert left(book, "ann") == 10_000 - 4_003
        world.advance(HOUR + 0.01)
        told(book)
    with world.book() as book:
        assert left(book, "ann") == 10_000


def test_a_wall_clock_put_back_while_the_machine_was_off_forgets_nothing(world):
    """The clock is put back by a year: no time has passed then, and all is remembered for one window."""
    with world.book() as book:
        book.for_user("ann").record_usage(4_000)
        told(book)
        world.advance(100)
        book.for_user("ann").record_usage(1_000)
    world.restart()
    world.wall -= 365 * 86_400 * SECOND

    with world.book() as book:
        assert left(book, "ann") == 5_000
    world.advance(HOUR - 101)
    with world.book() as book:
        assert left(book, "ann") == 5_000
    world.advance(102)
    with world.book() as book:
        assert left(book, "ann") == 10_000


# -- who else has the file


def test_a_second_process_and_a_second_book_share_it(tmp_path):
    store = f"sqlite:///{tmp_path / 'usage.db'}"
    program = (
        "import sys; from headgate import BudgetBook\n"
        "with BudgetBook({'free': {'max_tokens_per_hour': 10_000}}, store=sys.argv[1]) as book:\n"
        "    book.for_user('ann').reserve(3_000)\n"
    )
    tiers = {"free": {"max_tokens_per_hour": 10_000}}
    with BudgetBook(tiers, store=store) as book, BudgetBook(tiers, store=store) as other:
        book.for_user("ann").record_usage(4_000)
        told(book)
        subprocess.run([sys.executable, "-c", program, store], check=True, timeout=PATIENCE)
        with pytest.raises(BudgetExceeded) as caught:
            other.for_user("ann").reserve(3_001)
        assert caught.value.remaining == 3_000


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="it is /proc that shows what is open")
def test_a_book_that_was_dropped_lets_the_file_go(tmp_path):
    path = tmp_path / "usage.db"

    def is_open():
        for link in Path("/proc/self/fd").iterdir():
            with suppress(OSError):  # of the look itself
                if str(link.readlink()).startswith(str(path)):
                    return True
        return False

    book = BudgetBook(TIERS, store=f"sqlite:///{path}")
    book.for_user("ann").reserve(1)
    assert is_open()
    del book
    eventually(lambda: gc.collect() is not None and not is_open(), "it is closed")


@needs_fork
def test_a_child_that_ends_like_any_python_leaves_the_journal_to_its_parent(tmp_path):
    """
    The whole interpreter is taken down in the child. The parent's last charges are still in the
    journal: taking it away would lose them.
    """
    path = tmp_path / "usage.db"
    program = f"""
import os, sys, warnings
warnings.simplefilter("ignore")
from headgate.budgets.budget import BudgetBook
book = BudgetBook({{"free": {{}}}}, store="sqlite:///{path}")
book.for_user("ann").reserve(1_000)
pid = os.fork()
if pid == 0:
    book.for_user("ann").reserve(5)
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
assert os.path.exists({str(path)!r} + "-wal"), "the child took the journal away"
book.for_user("ann").reserve(100)
os._exit(0)  # without closing, as if killed
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with BudgetBook({"free": {}}, store=f"sqlite:///{path}") as look:
        assert look.for_user("ann").remaining_budget == 100_000 - 1_105


@needs_kill
def test_kill_9_while_the_file_is_being_made_leaves_one_that_can_be_opened(tmp_path):
    program = """
import sys
from headgate.budgets.budget import BudgetBook
print("ready", flush=True)
sys.stdin.readline()
book = BudgetBook({"free": {}}, store=sys.argv[1])
print("made", flush=True)
"""
    dice = random.Random(4)
    for k in range(5):
        store = f"sqlite:///{tmp_path / f'usage{k}.db'}"
        worker = subprocess.Popen(
            [sys.executable, "-c", program, store], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert worker.stdout.readline() == b"ready\n"
        worker.stdin.write(b"go\n")
        worker.stdin.flush()
        for _ in range(dice.randrange(50_000)):
            if worker.poll() is not None:
                break
        worker.kill()
        worker.wait(PATIENCE)
        worker.stdin.close()
        worker.stdout.close()
        with BudgetBook({"free": {}}, store=store) as book:
            book.for_user("ann").record_usage(1)


# -- threads, failures


def test_fifty_threads_write_and_nothing_is_lost(world):
    book = world.book({"free": {"max_tokens_per_hour": 10**9}})
    start = threading.Barrier(50)

    def record(k):
        start.wait(PATIENCE)
        for _ in range(5):
            book.for_user(f"user {k % 5}", organization="acme").record_usage(k)

    threads = [threading.Thread(target=record, args=(k,)) for k in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    book.close()

    with world.book({"free": {"max_tokens_per_hour": 10**9}}) as again:
        used = [10**9 - again.for_user(f"user {k}").remaining_budget for k in range(5)]
        assert used == [5 * sum(range(k, 50, 5)) for k in range(5)]
        assert left_of_acme(again) == 50_000 - 5 * sum(range(50))


def test_a_file_that_cannot_be_written_refuses_the_reservation_and_hears_the_rest_later(world):
    """Recorded usage is counted at once, and written when the file can be written."""
    book = world.book()
    ann = book.for_user("ann", organization="acme")
    ann.reserve(1)
    connection = book._usage.client._held.store._connection
    connection.execute("PRAGMA query_only = ON")
    with pytest.raises(StoreError, match="readonly"):
        ann.reserve(4_000)
    ann.record_usage(100)
    assert ann.remaining_budget == 9_899
    connection.execute("PRAGMA query_only = OFF")
    book.close()

    with world.book() as again:
        assert left(again, "ann", organization="acme") == 9_899
        assert left_of_acme(again) == 49_899


def test_after_closing_nothing_is_reserved_and_nothing_is_lost(world):
    book = world.book()
    ann = book.for_user("ann")
    reservation = ann.reserve(4_000)
    book.close()
    book.close()

    with pytest.raises(Closed):
        ann.reserve(1)
    with pytest.raises(Closed):
        book.for_user("ann")
    ann.record_usage(1)
    reservation.settle(1_000)
    told(book)
    with world.book() as again:
        assert left(again, "ann") == 8_999


def test_a_refused_reservation_writes_nothing(world):
    book = world.book()
    ann = book.for_user("ann")
    with pytest.raises(BudgetExceeded):
        ann.reserve(10_001)
    book.close()
    assert world.records() == set()


# -- addresses, and files that are not ours


@pytest.mark.parametrize(
    "store",
    [
        "sqlite:///",
        "sqlite://",
        "sqlite:usage.db",
        "sqlite://usage.db",
        "sqlite:///:memory:",
        "sqlite:///a\0b",
    ],
)
def test_a_url_without_a_file_is_refused_and_the_error_says_what_to_write(store):
    with pytest.raises(InvalidConfig, match=r"sqlite:///limits\.db"):
        BudgetBook(TIERS, store=store)


@pytest.mark.parametrize("store", ["usage.db", "", 5, b"sqlite:///x"])
def test_a_value_that_is_not_a_store_is_refused_and_the_error_says_what_to_write(store):
    with pytest.raises(InvalidConfig, match="sqlite:///"):
        BudgetBook(TIERS, store=store)


def test_a_url_with_three_slashes_is_a_relative_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        with BudgetBook(TIERS, store="sqlite:///usage 100%?#.db") as book:
            book.for_user("ann").record_usage(1)
    assert "usage 100%?#.db" in [path.name for path in tmp_path.iterdir()]


def everything_in(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def a_database(path, *statements):
    with closing(sqlite3.connect(path)) as other:
        for statement in statements:
            other.execute(statement)
        other.commit()


@pytest.mark.parametrize(
    ("kind", "said"),
    [("text", "not a database"), ("foreign", "another program"), ("torn", "cannot be opened")],
)
def test_a_file_that_is_not_ours_or_damaged_is_not_touched(tmp_path, kind, said):
    path = tmp_path / "usage.db"
    if kind == "text":
        path.write_text("dear diary, " * 1000)
    elif kind == "foreign":
        a_database(path, "CREATE TABLE poems (text TEXT)")
    else:
        a_database(path, "CREATE TABLE records (text TEXT)")
        path.write_bytes(path.read_bytes()[:100] + os.urandom(3_000))
    before = everything_in(tmp_path)

    with pytest.raises(StoreError, match=said):
        BudgetBook(TIERS, store=f"sqlite:///{path}")

    assert everything_in(tmp_path) == before


def test_a_directory_that_is_not_there_or_is_one_is_a_store_error(tmp_path):
    for path in (tmp_path / "nowhere" / "usage.db", tmp_path):
        with pytest.raises(StoreError, match="cannot be opened"):
            BudgetBook(TIERS, store=f"sqlite:///{path}")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_empty_is_as_good_as_none(world):
    world.path.touch()
    with world.book() as book:
        book.for_user("ann").record_usage(5)
    with world.book() as book:
        assert left(book, "ann") == 9_995


# -- periods of the calendar

MONTH = {"free": "$100/calendar month"}


def money_left(book):
    return book.for_user("ann").remaining_money


def test_a_calendar_month_holds_over_a_restart_of_the_machine_and_ends_by_the_wall_clock(world):
    """On the 14th of November 2023, a little after 22:13."""
    with world.book(MONTH, None) as book:
        book.for_user("ann").record_usage(0, money=70_000_000)
    world.advance(10 * 86_400)
    world.restart()
    with world.book(MONTH, None) as book:
        assert money_left(book) == 30_000_000
        with pytest.raises(BudgetExceeded, match=r"\$30 of \$100 left for 2023-11"):
            book.for_user("ann").reserve(0, money=30_000_001)
        told(book)
    world.wall = 1_701_388_799 * SECOND  # 23:59:59 on the 30th
    with world.book(MONTH, None) as book:
        assert money_left(book) == 30_000_000
    world.wall += SECOND
    world.restart()
    with world.book(MONTH, None) as book:
        assert money_left(book) == 100_000_000


@pytest.mark.parametrize("restart", [False, True])
def test_a_wall_clock_that_is_put_back_begins_no_calendar_month_again(world, restart):
    with world.book(MONTH, None) as book:
        book.for_user("ann").record_usage(0, money=100_000_000)
        told(book)
        world.wall += 20 * 86_400 * SECOND  # December
        world.advance(1.5)  # then the store is asked what time it is
        book.for_user("ann").reserve(0, money=40_000_000)
    for back in (10 * 86_400, 365 * 86_400):
        world.wall -= back * SECOND
        if restart:
            world.restart()
        with world.book(MONTH, None) as book:
            assert money_left(book) == 60_000_000
            book.for_user("ann").reserve(0, money=1).refund()


def test_a_month_that_is_over_stays_known_for_a_day_in_which_the_wall_clock_may_be_put_back(world):
    """Half an hour into December the clock is put back by an hour: November is still used up."""
    with world.book(MONTH, None) as book:
        book.for_user("ann").record_usage(0, money=100_000_000)
    world.advance((1_701_388_800 + 1_800) - world.wall // SECOND)
    with world.book(MONTH, None) as book:
        assert money_left(book) == 100_000_000
        book.for_user("bob").reserve(0, money=1)
        told(book)
    world.wall -= 3_600 * SECOND
    with world.book(MONTH, None) as book:
        assert money_left(book) == 0
    world.advance(2 * 86_400)
    world.book(MONTH, None).close()
    assert world.records() == {'["user", "bob"]'}


def test_processes_with_and_without_a_calendar_read_each_other(world):
    with world.book({"free": "10 tokens/hour"}, None) as book:
        book.for_user("ann").record_usage(4)
    with world.book({"free": ["10 tokens/calendar day", "9 tokens/hour"]}, None) as book:
        assert left(book, "ann") == 5
        book.for_user("ann").record_usage(1)
    with world.book({"free": "10 tokens/hour"}, None) as book:
        assert left(book, "ann") == 5
        book.for_user("ann").record_usage(2)
    world.advance(3_601)
    with world.book({"free": "10 tokens/calendar day"}, None) as book:
        assert left(book, "ann") == 3
