"""How durations and dates are written in the answers of the sandbox."""

import email.utils

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.http import read_signal
from headgate.responses.wire import duration
from headgate.sandbox.styles.formats import go_duration, http_date, rfc3339

MS = 1_000_000
SECOND = 1_000_000_000
MINUTE = 60 * SECOND


@given(st.integers(0, 10**15))
def test_durations_are_written_in_whole_milliseconds_rounded_up(ns):
    assert duration(go_duration(ns)) == pytest.approx(-(-ns // MS) / 1000)


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0s"),
        (1, "1ms"),
        (20 * MS, "20ms"),
        (SECOND, "1s"),
        (6 * MINUTE, "6m0s"),
        (977_764 * MS, "16m17.764s"),
    ],
)
def test_durations_look_as_go_prints_them(ns, text):
    assert go_duration(ns) == text


@given(st.integers(0, 4_000_000_000))
def test_dates_are_what_email_and_rfc_3339_say(seconds):
    assert http_date(seconds) == email.utils.formatdate(seconds, usegmt=True)
    assert (
        read_signal(
            200, [("anthropic-ratelimit-requests-reset", rfc3339(seconds * SECOND))], now=seconds
        ).reason
        == "ok"
    )
