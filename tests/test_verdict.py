"""Verdict: what the outcome of a call means, as a value."""

import pytest

from headgate.verdict import REJECTED, SUCCEEDED, failed, overloaded, throttled


def test_verdicts_are_frozen_values():
    assert SUCCEEDED.kind == "succeeded"
    assert not SUCCEEDED.again
    assert throttled(3) == throttled(3) != throttled(4)
    assert throttled().again
    assert not throttled(again=False).again
    assert len({failed(), failed(may_have_run=False), overloaded(), REJECTED}) == 4
    with pytest.raises(AttributeError, match="cannot change"):
        REJECTED.again = True


@pytest.mark.parametrize("retry_after", [-1, float("nan"), float("inf"), "3"])
@pytest.mark.parametrize("make", [throttled, overloaded, failed])
def test_a_retry_after_that_is_not_a_time_is_refused(make, retry_after):
    with pytest.raises(ValueError, match="retry_after="):
        make(retry_after)
