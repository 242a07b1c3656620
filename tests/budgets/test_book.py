"""BudgetBook: a budget for every user, by tier, and for every organisation."""

import gc

import pytest

from budgets.asking import HOUR, in_threads, refusal
from headgate import (
    BudgetBook,
    BudgetExceeded,
    Closed,
    HeadgateError,
    InvalidCapacity,
    InvalidConfig,
    InvalidWindow,
    TokenBudget,
    UnknownName,
)

TIERS = {
    "free": {"max_tokens_per_hour": 50_000, "max_tokens_per_request": 4_000},
    "pro": {"max_tokens_per_hour": 500_000, "max_tokens_per_request": None},
}


@pytest.fixture
def book(clock):
    return BudgetBook(
        TIERS,
        organizations={"acme": {"max_tokens_per_hour": 60_000}, "tiny": {"max_tokens_per_hour": 100}},
        clock=clock,
    )


def test_a_user_is_made_on_first_use_with_the_free_tier_and_stays_the_same(book):
    ann = book.for_user("ann")

    assert ann is book.for_user("ann")
    assert ann.remaining_budget == 50_000
    assert ann.check_budget(4_000)
    assert not ann.check_budget(4_001)
    assert ann.key == "ann"
    assert book.for_user("bob") is not ann
    assert (len(book), repr(book)) == (2, "<BudgetBook of 2 users>")


def test_a_handler_refuses_before_it_calls_and_records_the_total(book):
    calls = []

    def model(prompt):
        calls.append(prompt)
        return f"echo {prompt}", 7

    def handle(user, prompt):
        with book.for_user(user).reserve(2 * len(prompt.split())) as reservation:
            reply, total = model(prompt)
            reservation.settle(total)
        return reply

    assert handle("ann", "hello there") == "echo hello there"
    assert book.for_user("ann").remaining_budget == 50_000 - 7
    with pytest.raises(BudgetExceeded) as caught:
        handle("ann", "word " * 2_001)
    assert caught.value.remaining == 4_000
    assert len(calls) == 1
    assert book.for_user("ann").remaining_budget == 50_000 - 7


def test_another_tier_changes_the_budget_of_a_user_and_keeps_what_was_used(book):
    ann = book.for_user("ann")
    reservation = ann.reserve(4_000)

    assert book.for_user("ann", tier="pro") is ann
    assert ann.remaining_budget == 496_000
    ann.reserve(100_000).settle(50_000)
    assert book.for_user("ann").remaining_budget == 0
    reservation.refund()
    assert book.for_user("ann", tier="pro").remaining_budget == 450_000


def test_changing_between_tiers_of_different_windows_forgets_nothing(clock):
    """100 a day; then 10 an hour for a while; then back: the day remembers everything."""
    book = BudgetBook({"day": {"windows": {86_400: 100}}, "hour": {"windows": {3600: 10}}}, clock=clock)
    book.for_user("ann", tier="day").record_usage(70)
    clock.advance(2 * HOUR)
    ann = book.for_user("ann", tier="hour")
    assert ann.remaining_budget == 10
    ann.record_usage(10)
    clock.advance(2 * HOUR)
    ann.record_usage(10)

    assert book.for_user("ann", tier="day").remaining_budget == 10
    assert book.for_user("ann", tier="hour").remaining_budget == 0


def test_users_share_what_their_organization_has(book):
    ann, bob = (book.for_user(user, tier="pro", organization="acme") for user in ("ann", "bob"))
    ann.reserve(10_000)
    ann.record_usage(45_000)

    assert bob.remaining_budget == 5_000
    assert refusal(bob, 5_001).budget == "acme"


def test_another_organization_is_charged_from_then_on(book):
    """A reservation is settled in the organisation in which it was made."""
    ann = book.for_user("ann", organization="acme")
    reservation = ann.reserve(4_000)
    assert book.for_user("ann", organization="tiny") is ann
    ann.record_usage(60)
    reservation.settle(1_000)

    assert ann.remaining_budget == 40
    assert book.for_user("bob", organization="acme").remaining_budget == 50_000
    assert book.for_user("bob", tier="pro", organization="acme").remaining_budget == 59_000
    assert book.for_user("ann").remaining_budget == 50_000 - 1_060


def test_fifty_threads_that_come_first_get_one_budget(book):
    got = in_threads(50, lambda _k: book.for_user("ann"))
    assert all(budget is got[0] for budget in got)


def test_users_who_used_nothing_that_counts_are_forgotten(clock, book):
    for k in range(20_000):
        book.for_user(f"user {k}").check_budget(1)
    gc.collect()
    assert len(book) <= 64

    for k in range(2_000):
        book.for_user(f"busy {k}").record_usage(1)
    for k in range(5_000):
        book.for_user(f"user {k}")
    assert len(book) >= 2_000
    assert book.for_user("busy 7").remaining_budget == 49_999
    clock.advance(HOUR)
    for k in range(20_000):
        book.for_user(f"user {k}")
    gc.collect()
    assert len(book) <= 64


def crowd(book, count=2_000):
    """`count` users come by once and leave nothing."""
    for k in range(count):
        book.for_user(f"passer-by {k}")


def test_a_budget_that_was_let_go_and_is_used_later_is_not_forgotten(book):
    """The book let it go because nothing counted; it is used after that, and its holder drops it."""
    ann = book.for_user("ann")
    crowd(book)
    assert "ann" not in book._keyed._kept
    ann.record_usage(30_000)
    del ann
    gc.collect()
    assert book.for_user("ann").remaining_budget == 20_000
    crowd(book)
    gc.collect()
    assert book.for_user("ann").remaining_budget == 20_000


def test_a_budget_that_was_let_go_is_kept_when_a_reservation_settles_for_more(book):
    reservation = book.for_user("ann").reserve(0)
    crowd(book)
    reservation.settle(30_000)
    del reservation
    gc.collect()

    assert book.for_user("ann").remaining_budget == 20_000


@pytest.mark.parametrize("name", ["gold", "", None, 5, ["free"]])
def test_an_unknown_tier_or_organization_lists_the_known(book, name):
    with pytest.raises(UnknownName, match="known: 'free', 'pro'"):
        book.for_user("ann", tier=name)
    if name is not None:
        with pytest.raises(UnknownName, match="known: 'acme', 'tiny'"):
            book.for_user("ann", organization=name)
    assert len(book) == 0


def test_a_book_without_organizations_refuses_every_organization():
    with pytest.raises(UnknownName, match="known: none"):
        BudgetBook(TIERS).for_user("ann", organization="acme")


@pytest.mark.parametrize("user", ["", None, 5, b"ann"])
def test_a_user_is_a_name(book, user):
    with pytest.raises(InvalidConfig, match="write a name"):
        book.for_user(user)


@pytest.mark.parametrize(
    ("tiers", "error"),
    [
        ({}, InvalidConfig),
        (["free"], InvalidConfig),
        ({"free": None}, InvalidConfig),
        ({5: {}}, InvalidConfig),
        ({"": {}}, InvalidConfig),
        ({"free": {"max_tokens_per_hour": 0}}, InvalidCapacity),
        ({"free": {"windows": {0: 5}}}, InvalidWindow),
        ({"free": {"max_tokens_per_houer": 5}}, InvalidConfig),
        ({"free": {"parent": TokenBudget()}}, InvalidConfig),
        ({"free": {"clock": None}}, InvalidConfig),
    ],
)
def test_tiers_that_cannot_work_raise_when_the_book_is_made(tiers, error):
    with pytest.raises(error):
        BudgetBook(tiers)
    if tiers:
        with pytest.raises(error):
            BudgetBook(TIERS, organizations=tiers)


def test_a_closed_book_reserves_nothing_and_still_counts(book):
    with book:
        ann = book.for_user("ann")
        reservation = ann.reserve(4_000)
    book.close()

    with pytest.raises(Closed):
        ann.reserve(1)
    with pytest.raises(Closed):
        book.for_user("ann")
    reservation.settle(1_000)
    ann.record_usage(1)
    assert ann.remaining_budget == 48_999


def test_budget_exceeded_is_a_headgate_error():
    assert issubclass(BudgetExceeded, HeadgateError)
