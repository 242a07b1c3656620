"""Options that are passed on keep their names and types. Checked by mypy, never run."""

from typing import assert_type

from headgate import (
    BreakerRegistry,
    BudgetBook,
    CircuitBreaker,
    CircuitState,
    Reservation,
    TokenBudget,
    retry_with_backoff,
)


def ready() -> int:
    return 1


def breakers() -> None:
    registry = BreakerRegistry(failure_threshold=3, recovery_timeout=30.0)
    assert_type(registry.for_key("stripe"), CircuitBreaker)
    assert_type(registry.for_key("stripe").state, CircuitState)
    BreakerRegistry(failure_treshold=3)  # type: ignore[call-arg]
    BreakerRegistry(failure_threshold="3")  # type: ignore[arg-type]


def budgets() -> None:
    budget = TokenBudget(1000)
    assert_type(budget.reserve(10), Reservation)
    with budget.reserve(10) as reservation:
        assert_type(reservation, Reservation)
    BudgetBook({"free": {"max_tokens_per_hour": 1000}})
    BudgetBook({"free": {"max_tokens_per_our": 1000}})  # type: ignore[dict-item]
    BudgetBook({"free": "$5/day", "pro": ["$50/day"], "old": {"limits": "$5/day"}})
    BudgetBook({"free": 5})  # type: ignore[dict-item]
    TokenBudget(limits=["$5/day", "50_000 tokens/hour"])
    TokenBudget(limits=[5])  # type: ignore[list-item]


def retries() -> None:
    assert_type(retry_with_backoff(ready, idempotent=False), int)
    retry_with_backoff(ready, idempotnt=False)  # type: ignore[call-arg]
