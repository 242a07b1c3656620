"""Usage survives restarts and kill -9, and a file that is not ours is not touched (D-106)."""

import gc
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import warnings

import pytest

from headgate.errors import BudgetExceeded, Closed, InvalidConfig, StoreError
from headgate.sharing import usage_file
from headgate.sharing.usage_file import UsageFile, read_store
from headgate.testing import ManualClock
from headgate.token_budget import BudgetBook

SECOND = 1_000_000_000
HOUR = 3600.0
PATIENCE = 20.0
TIERS = {
    "free": {"max_tokens_per_hour": 10_000},
    "pro": {"windows": {3600: 100_000, 86_400: 500_000}, "money": {86_400: 1_000}},
}
ORGANIZATIONS = {"acme": {"max_tokens_per_hour": 50_000}}
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this platform")


class World:
    """A wall clock, and machines that start on it: each has a monotonic clock of its own."""

    def __init__(self, path):
        self.path = path
        self.store = f"sqlite:///{path}"
        self.wall = 1_700_000_000 * SECOND
        self.clock = None

    def book(self, tiers=TIERS, organizations=ORGANIZATIONS):
        self.clock = ManualClock(start=random.Random(self.wall).randrange(1000))
        return BudgetBook(tiers, organizations=organizations, store=self.store, clock=self.clock)

    def advance(self, seconds):
        self.clock.advance(seconds)
        self.wall += round(seconds * SECOND)

    def rows(self):
        """What another program would see, once the book is closed."""
        look = sqlite3.connect(self.path)
        try:
            return {(kind, name.decode()) for kind, name in look.execute("SELECT kind, name FROM usage")}
        finally:
            look.close()


@pytest.fixture
def world(tmp_path, monkeypatch):
    world = World(tmp_path / "usage.db")
    monkeypatch.setattr(usage_file, "time_ns", lambda: world.wall)
    return world


def left(book, user, **kwargs):
    return book.for_user(user, **kwargs).remaining_budget


def in_a_child(check):
    """Run the check in a forked child; its exit status says whether it held."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads is the point
        pid = os.fork()
    if pid == 0:
        status = 1
        try:
            check()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


# -- restarts


def test_d106_a_restart_restores_usage(world):
    """
    4 000 at 0 s and 5 000 half an hour later; restarted ten minutes after that, on another clock.
    """
    with world.book() as book:
        book.for_user("ann", organization="acme").record_usage(4_000)
        world.advance(1_800)
        book.for_user("ann", organization="acme").record_usage(5_000)
    world.wall += 600 * SECOND  # while nothing runs

    with world.book() as book:
        assert left(book, "ann", organization="acme") == 1_000
        assert left(book, "bob", tier="pro", organization="acme") == 41_000
        world.advance(1_200)
        assert left(book, "ann") == 5_000
        world.advance(1_799.999)
        assert left(book, "ann") == 5_000
        world.advance(0.001)
        assert left(book, "ann") == 10_000


def test_what_was_reserved_and_not_settled_is_still_charged_after_a_restart(world):
    """
    D-103: the call may have been billed.
    """
    with world.book() as book:
        book.for_user("ann").reserve(4_000)
        book.for_user("bob").reserve(4_000).settle(1_000)
        book.for_user("eve").reserve(4_000).refund()

    with world.book() as book:
        assert [left(book, user) for user in ("ann", "bob", "eve")] == [6_000, 9_000, 10_000]
    assert world.rows() == {("user", "ann"), ("user", "bob")}


def test_every_window_and_money_survive_and_another_tier_finds_them(world):
    with world.book() as book:
        book.for_user("ann").record_usage(7_000, money=300)

    with world.book() as book:
        ann = book.for_user("ann", tier="pro")
        assert (ann.remaining_budget, ann.remaining_money) == (93_000, 700)
        world.advance(HOUR)
        ann.record_usage(50_000)
        world.advance(HOUR)
        ann.record_usage(100_000)
        world.advance(HOUR)
        ann.record_usage(100_000)
        world.advance(HOUR)
        ann.record_usage(100_000)
        world.advance(HOUR)
        ann.record_usage(100_000)
        world.advance(HOUR)

    with world.book() as book:
        assert left(book, "ann", tier="pro") == 500_000 - 457_000
        assert left(book, "ann") == 10_000


def test_ten_thousand_charges_and_as_many_restarts_as_you_like_answer_the_same(world):
    """
    Beyond what is remembered one by one, too: the restored budget answers as the old one did.
    """
    dice = random.Random(5)
    book = world.book()
    for _ in range(6):
        for _ in range(120):
            book.for_user("ann").record_usage(dice.randrange(3))
            world.advance(dice.choice([0, 0.5, 7]))
        before = [book.for_user("ann").remaining_budget]
        book.close()
        book = world.book()
        assert [left(book, "ann")] == before
    book.close()


def test_rows_of_which_nothing_counts_are_deleted_when_the_book_is_opened(world):
    with world.book() as book:
        book.for_user("ann").record_usage(1)
        world.advance(86_400 - 10)
        book.for_user("bob", organization="acme").record_usage(1)
    assert len(world.rows()) == 3
    world.wall += 10 * SECOND

    world.book().close()

    assert world.rows() == {("user", "bob"), ("organization", "acme")}


def test_rows_of_users_who_are_forgotten_are_deleted(world):
    """
    D-105: on the next sweep, and with the next change that is written.
    """
    with world.book() as book:
        for k in range(100):
            book.for_user(f"user {k}").record_usage(1)
        world.advance(86_400)
        for k in range(500):
            book.for_user(f"passer-by {k}")
        book.for_user("ann").record_usage(1)

    assert world.rows() == {("user", "ann")}


def test_a_row_does_not_grow_with_use(world):
    """
    D-102 on disk.
    """
    dice = random.Random(1)
    with world.book({"free": {}}, None) as book:
        ann = book.for_user("ann")
        for _ in range(1_500):
            ann._allowance.charge((1, 0), world.clock.now())
            world.advance(dice.choice([1, 3, 5]))
        ann.record_usage(1)
    look = sqlite3.connect(world.path)
    ((length,),) = look.execute("SELECT length(windows) FROM usage").fetchall()
    look.close()
    assert length <= 25 * (3 * 131 + 2 * 256 + 4)


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


def test_d108_a_step_of_the_wall_clock_while_the_book_is_open_changes_nothing(world):
    with world.book() as book:
        book.for_user("ann").record_usage(4_000)
        for step in (5 * 3600, -9 * 3600, 86_400):
            world.wall += step * SECOND
            book.for_user("ann").record_usage(1)
        assert left(book, "ann") == 10_000 - 4_003
        world.advance(HOUR)
        assert left(book, "ann") == 10_000


def test_a_file_from_the_future_counts_from_now(world):
    """
    The wall clock was put back by a year between two runs: all is remembered, for one window.
    """
    with world.book() as book:
        book.for_user("ann").record_usage(4_000)
        world.advance(100)
        book.for_user("ann").record_usage(1_000)
    world.wall -= 365 * 86_400 * SECOND

    with world.book() as book:
        assert left(book, "ann") == 5_000
        world.advance(HOUR - 0.001)
        assert left(book, "ann") == 5_000
        world.advance(0.001)
        assert left(book, "ann") == 10_000


def test_the_wall_clock_is_an_argument_and_asked_once(tmp_path):
    asked = []

    def wall():
        asked.append(1)
        return 5_000

    file = UsageFile(str(tmp_path / "usage.db"), now=2_000, wall=wall)
    file.write({("user", "ann"): [(0, 7, [1, 2, 3, 4, 5])]})
    assert (file.shift, len(asked)) == (3_000, 1)
    assert file.load() == {("user", "ann"): [(0, 7, [1, 2, 3, 4, 5])]}
    file.write({("user", "ann"): []})
    assert file.load() == {}
    file.close()
    file.close()
    with pytest.raises(StoreError, match="was closed"):
        file.write({})
    assert "closed" in repr(file)


# -- one at a time


def test_a_second_process_is_told_that_the_file_is_in_use(world):
    program = (
        f"from headgate.token_budget import BudgetBook\nBudgetBook({{'free': {{}}}}, store={world.store!r})"
    )
    command = [sys.executable, "-c", program]
    with world.book() as book:
        book.for_user("ann").record_usage(4_000)
        other = subprocess.run(command, capture_output=True, text=True, check=False)
        assert other.returncode == 1
        assert "StoreError" in other.stderr
        assert "in use by another process" in other.stderr
        book.for_user("ann").record_usage(1)
    assert subprocess.run(command, capture_output=True, text=True, check=False).returncode == 0


def test_a_second_book_in_the_same_process_is_told_too_and_takes_nothing_away(world):
    """
    Also not the lock: POSIX forgets it when any file of the process is closed.
    """
    program = (
        f"from headgate.token_budget import BudgetBook\nBudgetBook({{'free': {{}}}}, store={world.store!r})"
    )
    with world.book() as book:
        for _ in range(3):
            with pytest.raises(StoreError, match="in use"):
                BudgetBook(TIERS, store=world.store)
        other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert "in use" in other.stderr
        book.for_user("ann").record_usage(1)


def test_a_book_that_was_dropped_lets_the_file_go(world):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        world.book().for_user("ann").record_usage(1)
        gc.collect()
    with world.book() as book:
        assert left(book, "ann") == 9_999


@needs_fork
def test_a_forked_child_counts_in_memory_and_never_touches_the_file(world):
    """
    It may not reserve; and closing its book closes nothing of the parent's.
    """
    book = world.book()
    ann = book.for_user("ann", organization="acme")
    reservation = ann.reserve(1_000)

    def check():
        with pytest.raises(StoreError, match="after forking"):
            ann.reserve(1)
        ann.record_usage(500)
        reservation.settle(0)
        assert book.for_user("ann", organization="acme").remaining_budget == 9_500
        assert book.for_user("eve").remaining_budget == 10_000
        book.close()

    assert in_a_child(check) == 0
    ann.record_usage(7)
    book.close()
    with world.book() as again:
        assert left(again, "ann", organization="acme") == 10_000 - 1_007


@needs_fork
def test_a_child_that_ends_like_any_python_leaves_the_journal_to_its_parent(world):
    """
    The whole interpreter is taken down in the child. The parent's last charges are still in the
    journal: taking it away would lose them.
    """
    program = f"""
import os, sys
from headgate.token_budget import BudgetBook
book = BudgetBook({{"free": {{}}}}, store={world.store!r})
book.for_user("ann").record_usage(1_000)
pid = os.fork()
if pid == 0:
    book.for_user("ann").record_usage(5)
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
assert os.path.exists({str(world.path)!r} + "-wal"), "the child took the journal away"
book.for_user("ann").record_usage(100)
os._exit(0)  # without closing, as if killed
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    look = BudgetBook({"free": {}}, store=world.store)
    assert look.for_user("ann").remaining_budget == 100_000 - 1_100
    look.close()


# -- kill -9

WORKER = """
import sys
from headgate.token_budget import BudgetBook
book = BudgetBook({"free": {"max_tokens_per_hour": 10**9}}, organizations={"acme": {}}, store=sys.argv[1])
ann = book.for_user("ann", organization="acme")
print("ready", flush=True)
while True:
    ann.record_usage(1)
    sys.stdout.write("x")
    sys.stdout.flush()
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="there is no kill -9 on this platform")
def test_kill_9_at_any_moment_loses_at_most_the_charge_under_way(tmp_path):
    """
    Ten times: charge one by one, be killed after a random number of them, look what is left.
    """
    dice = random.Random(9)
    store = f"sqlite:///{tmp_path / 'usage.db'}"
    counted = 0
    for _ in range(10):
        worker = subprocess.Popen([sys.executable, "-c", WORKER, store], stdout=subprocess.PIPE)
        assert worker.stdout.readline() == b"ready\n"
        told = len(worker.stdout.read(dice.randrange(1, 60)))
        worker.kill()
        told += len(worker.stdout.read())
        worker.wait(PATIENCE)
        worker.stdout.close()

        book = BudgetBook({"free": {"max_tokens_per_hour": 10**9}}, organizations={"acme": {}}, store=store)
        now = book._tally.clock.now()
        used = 10**9 - book.for_user("ann")._allowance.left(0, now)
        together = 100_000 - book._organizations["acme"].remaining_budget
        book.close()
        assert counted + told <= used <= counted + told + 1
        assert together == used  # charged to both, or to neither
        counted = used


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="there is no kill -9 on this platform")
def test_kill_9_while_the_file_is_being_made_leaves_one_that_can_be_opened(tmp_path):
    program = """
import sys
print("ready", flush=True)
sys.stdin.readline()
from headgate.token_budget import BudgetBook
book = BudgetBook({"free": {}}, store=sys.argv[1])
print("made", flush=True)
"""
    dice = random.Random(4)
    for k in range(10):
        store = f"sqlite:///{tmp_path / f'usage{k}.db'}"
        worker = subprocess.Popen(
            [sys.executable, "-c", program, store], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert worker.stdout.readline() == b"ready\n"
        worker.stdin.write(b"go\n")
        worker.stdin.flush()
        for _ in range(dice.randrange(200_000)):
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
        assert again._organizations["acme"].remaining_budget == 50_000 - 5 * sum(range(50))


def test_a_charge_is_on_disk_when_the_call_returns(world):
    """
    A copy of the files taken at that moment is opened elsewhere: it is all there.
    """
    book = world.book()
    book.for_user("ann").record_usage(1_234)
    copy = world.path.with_name("copy.db")
    for rest in ("", "-wal"):
        copy.with_name(copy.name + rest).write_bytes(
            world.path.with_name(world.path.name + rest).read_bytes()
        )
    book.close()

    again = BudgetBook(TIERS, store=f"sqlite:///{copy}", clock=ManualClock())
    assert left(again, "ann") == 10_000 - 1_234
    again.close()


def test_a_file_that_cannot_be_written_refuses_the_reservation_and_takes_nothing(world, monkeypatch):
    """
    What was recorded is counted all the same, and written when it can be.
    """
    book = world.book()
    ann = book.for_user("ann", organization="acme")
    ann.record_usage(1)
    write = UsageFile.write

    def full(self, changes):
        raise StoreError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(UsageFile, "write", full)
        with pytest.raises(StoreError, match="full"):
            ann.reserve(4_000)
        assert ann.remaining_budget == 9_999
        with pytest.raises(StoreError, match="full"):
            ann.record_usage(100)
        assert ann.remaining_budget == 9_899
    assert UsageFile.write is write
    book.for_user("bob").record_usage(1)  # takes along what was not written
    book.close()

    with world.book() as again:
        assert left(again, "ann", organization="acme") == 9_899
        assert again._organizations["acme"].remaining_budget == 49_899


def test_a_failure_of_sqlite_itself_is_a_store_error_and_is_made_up_for(world):
    book = world.book()
    ann = book.for_user("ann")
    connection = book._tally._file._connection
    connection.execute("PRAGMA query_only = ON")
    with pytest.raises(StoreError, match="cannot be written"):
        ann.record_usage(5)
    connection.execute("PRAGMA query_only = OFF")
    ann.record_usage(1)
    book.close()

    with world.book() as again:
        assert left(again, "ann") == 9_994


def test_a_finalizer_that_settles_while_its_thread_is_writing_is_written_too(world, monkeypatch):
    book = world.book()
    reservation = book.for_user("ann").reserve(1_000)
    write, due = UsageFile.write, [reservation.refund]

    def collecting(self, changes):
        while due:
            due.pop()()
        write(self, changes)

    with monkeypatch.context() as patch:
        patch.setattr(UsageFile, "write", collecting)
        book.for_user("bob").record_usage(1)
    assert book._tally._written == book._tally._marks
    book.close()

    with world.book() as again:
        assert left(again, "ann") == 10_000


def test_after_closing_nothing_is_reserved_and_nothing_is_lost_in_silence(world):
    book = world.book()
    ann = book.for_user("ann")
    reservation = ann.reserve(4_000)
    book.close()
    book.close()

    with pytest.raises(Closed):
        ann.reserve(1)
    with pytest.raises(Closed):
        book.for_user("ann")
    with pytest.raises(StoreError, match="closed"):
        ann.record_usage(1)
    with pytest.raises(StoreError, match="closed"):
        reservation.settle(1_000)
    assert ann.remaining_budget == 8_999


def test_a_refused_reservation_writes_nothing(world):
    book = world.book()
    ann = book.for_user("ann")
    with pytest.raises(BudgetExceeded):
        ann.reserve(10_001)
    book.close()
    assert world.rows() == set()


# -- addresses, and files that are not ours


@pytest.mark.parametrize(
    "store",
    [
        "redis://host/0",
        "sqlite://",
        "sqlite:///",
        "sqlite:usage.db",
        "sqlite://usage.db",
        "sqlite:///dir/",
        "sqlite:///:memory:",
        "sqlite:///a\0b",
        "usage.db",
        "",
        5,
        b"sqlite:///x",
    ],
)
def test_what_names_no_file_is_refused_and_says_what_does(store):
    with pytest.raises(InvalidConfig, match="sqlite:///relative"):
        BudgetBook(TIERS, store=store)


def test_three_slashes_are_relative_and_four_absolute(tmp_path, monkeypatch):
    assert read_store("sqlite:////var/lib/usage.db") == "/var/lib/usage.db"
    assert read_store("sqlite:///var/usage.db") == "var/usage.db"
    monkeypatch.chdir(tmp_path)
    BudgetBook(TIERS, store="sqlite:///usage 100%?#.db").close()
    assert [path.name for path in tmp_path.iterdir()] == ["usage 100%?#.db"]
    BudgetBook(TIERS, store="sqlite:///usage 100%?#.db").close()


def everything_in(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def a_database(path, *statements):
    other = sqlite3.connect(path)
    for statement in statements:
        other.execute(statement)
    other.commit()
    other.close()


OURS = f"PRAGMA application_id = {usage_file._APPLICATION}"


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("text", "not a database"),
        ("foreign", "another program"),
        ("foreign wal", "another program"),
        ("newer", "another version"),
        ("torn", "cannot be"),
        ("no table", "cannot be"),
    ],
)
def test_a_file_that_is_not_ours_or_damaged_is_not_touched(tmp_path, kind, said):
    path = tmp_path / "usage.db"
    if kind == "text":
        path.write_text("dear diary, " * 1000)
    elif kind == "foreign":
        a_database(path, "CREATE TABLE poems (text TEXT)")
    elif kind == "foreign wal":
        a_database(path, "PRAGMA journal_mode = WAL", "CREATE TABLE poems (text TEXT)")
    elif kind == "newer":
        a_database(path, OURS, "PRAGMA user_version = 2", "CREATE TABLE usage (x)")
    elif kind == "no table":
        a_database(path, OURS, "PRAGMA user_version = 1", "CREATE TABLE poems (text TEXT)")
    else:
        with BudgetBook(TIERS, store=f"sqlite:///{path}") as book:
            for k in range(50):
                book.for_user(f"user {k}").record_usage(1)
        whole = path.read_bytes()
        path.write_bytes(whole[:4096] + os.urandom(64) + b"\xff" * (len(whole) - 4096 - 64))
    before = everything_in(tmp_path)

    with pytest.raises(StoreError, match=said):
        BudgetBook(TIERS, store=f"sqlite:///{path}")

    assert everything_in(tmp_path) == before


@pytest.mark.parametrize(
    "windows",
    [
        "",
        "nonsense",
        "0",
        "0 3600000000000 1 2",
        "0 0 1 1 1 1 0",
        "7 3600000000000 1 1 1 1 0",
        "0 3600000000000 1 5 5 -3 0",
        "0 3600000000000 " + "9" * 5000,
        None,
        b"0 1",
        5,
    ],
)
def test_a_row_that_makes_no_sense_is_a_store_error_and_nothing_is_changed(tmp_path, windows):
    path = tmp_path / "usage.db"
    BudgetBook(TIERS, store=f"sqlite:///{path}").close()
    other = sqlite3.connect(path)
    if windows is None:
        other.execute("DROP TABLE usage")
        other.execute("CREATE TABLE usage (kind, name, windows)")
    other.execute("INSERT INTO usage VALUES ('user', ?, ?)", (b"ann", windows))
    other.execute("INSERT INTO usage VALUES ('user', ?, ?)", (b"bob", "0 3600000000000 1 1 1 1 0"))
    other.commit()
    other.close()
    before = everything_in(tmp_path)

    for _ in range(2):
        with pytest.raises(StoreError, match="damaged"):
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
