"""What several tests of budgets ask: the whole state, many threads at once, the refusal."""

import threading

import pytest

from headgate import BudgetExceeded
from patience import PATIENCE

HOUR = 3600.0


def state(*budgets):
    """Everything these remember, as values."""
    return [
        [tuple(entry) for entry in value] if name in ("_groups", "_moments") else value
        for budget in budgets
        for rule in budget.account.level._rules
        for name in type(rule).__slots__
        for value in [getattr(rule, name)]
    ]


def in_threads(count, act):
    """That many threads at once; their results, in any order."""
    start, results = threading.Barrier(count), []

    def body(k):
        start.wait(PATIENCE)
        results.append(act(k))

    threads = [threading.Thread(target=body, args=(k,)) for k in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert len(results) == count
    return results


def refusal(budget, *args, **kwargs):
    with pytest.raises(BudgetExceeded) as caught:
        budget.reserve(*args, **kwargs)
    return caught.value
