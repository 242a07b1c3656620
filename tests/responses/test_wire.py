"""Numbers, durations and dates in headers, as `parse_retry_after` reads them."""

import math
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import responses
from headgate.http import parse_retry_after, read_signal

NOW = 1_800_000_000.0  # Fri, 15 Jan 2027 08:00:00 GMT
MONTH = 31 * 86_400.0


def retry_after(value, *, now=NOW, date=None, default=None):
    headers = [("Retry-After", value), *([("Date", date)] if date else [])]
    return parse_retry_after(headers, default=default, now=now)


# Numbers


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("0", 0.0),
        ("120", 120.0),
        (" \t7\t ", 7.0),
        ("2.0", 2.0),
        ("2.5", 2.5),
        ("0.001", 0.001),
        ("2678400", MONTH),
        ("2678401", MONTH),
        ("315360000", MONTH),
        ("9" * 18, MONTH),
        ("9" * 5_000, MONTH),
        ("9" * 50_000, MONTH),
        ("315360000.5", MONTH),
        ("1800000030", 30.0),
        ("1800000030.25", 30.25),
        ("1800000000123", 0.123),
        ("1800000012000", 12.0),
        ("1800000000000250", 0.00025),
        ("1799999999", 0.0),
        ("99999999999", MONTH),  # the year 5138
        ("100000000000", 0.0),  # 1973, in milliseconds
        ("99999999999999", MONTH),
        ("100000000000000", 0.0),  # 1973, in microseconds
        ("99999999999999999", MONTH),
        ("100000000000000000", MONTH),  # not a plausible time
        ("0" * 18, 0.0),
        ("0" * 19, MONTH),  # too many digits for a number of seconds
    ],
)
def test_a_number_is_a_delay_or_a_moment_by_its_size(value, seconds):
    """A number below 1e9 is a delay in seconds, above it a time since 1970 in s, ms or µs."""
    assert retry_after(value) == seconds


@pytest.mark.parametrize(
    "value",
    [
        "-5", "+5", "-0", "nan", "NaN", "inf", "-inf", "Infinity", "1e3", "1e400", "1_000", "0x10", "10abc",
        "2.", ".5", "5\n", "\n5", "5\x00", "\u0663\u0660", "\uff15", "5\u00a0", "\u00b2", "", " ", "soon",
        "1 2", "5;q=1", "None", "5 seconds", "1.2.3", "1" * 65 + ".5",
    ],
)  # fmt: skip
def test_a_value_that_is_not_a_number_in_full_is_ignored(value):
    """A number at the start of the value is not enough, and a negative wait is malformed."""
    assert retry_after(value) is None
    assert parse_retry_after({"Retry-After": value}, now=NOW) == 1.0
    assert parse_retry_after({"Retry-After": value}, now=NOW, default=2.5) == 2.5


def test_zero_is_an_answer_and_not_the_default():
    assert parse_retry_after({"retry-after": "0"}, default=9.0, now=NOW) == 0.0
    assert parse_retry_after({"retry-after-ms": "0", "retry-after": "3"}, default=9.0, now=NOW) == 0.0


def test_milliseconds_come_first_when_they_can_be_read():
    assert parse_retry_after({"retry-after-ms": "644", "retry-after": "1"}, now=NOW) == 0.644
    assert parse_retry_after({"retry-after-ms": "abc", "retry-after": "3"}, now=NOW) == 3.0
    assert parse_retry_after({"retry-after-ms": "-1", "retry-after": "3"}, now=NOW) == 3.0
    assert parse_retry_after({"retry-after-ms": "0.5"}, now=NOW) == 0.0005
    assert parse_retry_after({"retry-after-ms": "999999999999999"}, now=NOW) == MONTH


@pytest.mark.parametrize("name", ["retry-after-ms", "x-ms-retry-after-ms", "x-amz-retry-after"])
def test_every_spelling_of_milliseconds_is_known(name):
    assert parse_retry_after({name: "1500", "retry-after": "9"}, now=NOW) == 1.5


@pytest.mark.parametrize("name", ["x-retry-after", "x-ratelimit-retry-after"])
def test_other_header_names_count_only_without_a_readable_retry_after(name):
    assert parse_retry_after({name: "8"}, now=NOW) == 8.0
    assert parse_retry_after({name: "8", "retry-after": "2"}, now=NOW) == 2.0
    assert parse_retry_after({name: "8", "retry-after": "soon"}, now=NOW) == 8.0


# The shapes in which headers come


@pytest.mark.parametrize(
    "headers",
    [
        {"Retry-After": "7"},
        {"RETRY-AFTER": "7"},
        {b"retry-after": b"7"},
        {"retry-after": 7},
        {"retry-after": 7.0},
        {"retry-after": ["7"]},
        {"llm_provider-retry-after": "7"},
        [("Retry-After", "7")],
        [["Retry-After", "7"]],
        [None, "x", ("lonely",), ("a", "b", "c"), 5, ("retry-after", "7")],
        (pair for pair in [("Retry-After", "7")]),
    ],
)
def test_names_match_in_any_case_and_malformed_entries_are_skipped(headers):
    assert parse_retry_after(headers, now=NOW) == 7.0


@pytest.mark.parametrize(
    "name", ["retry-after ", " retry-after", "retry-after\t", "retry_after", "retry-after:"]
)
def test_a_header_whose_name_is_only_similar_does_not_count(name):
    """Values are trimmed, names are not: a similar field must not overrule Retry-After."""
    assert parse_retry_after({name: "7"}, now=NOW) == 1.0


@pytest.mark.parametrize(
    "headers", [None, 5, "retry-after: 7", b"retry-after", object(), dict, [], {}, count()]
)
def test_objects_that_are_not_headers_give_the_default(headers):
    """An endless iterable is followed only up to a bound."""
    assert parse_retry_after(headers, now=NOW) == 1.0
    assert parse_retry_after(headers, now=NOW, default=4.0) == 4.0


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": ["1", "2"]}, 2.0),
        ([("Retry-After", "5"), ("Retry-After", "120"), ("Retry-After", "7")], 120.0),
        ([("Retry-After", "soon"), ("retry-after", "7")], 7.0),
        ({"retry-after": "5, 120"}, 120.0),
        ({"retry-after": "5,\t1m"}, 60.0),
        ({"retry-after": "5, soon"}, 1.0),
        ({"retry-after": "5,"}, 1.0),
        ({"retry-after": ["5, soon", "3"]}, 3.0),
        ({"retry-after-ms": "100, 250"}, 0.25),
    ],
)
def test_the_longest_wait_of_several_values_wins(headers, seconds):
    """The values 1 and 2 give 2, not 12. A comma-joined value counts only if every part can be read."""
    assert parse_retry_after(headers, now=NOW) == seconds


# Dates and durations


@pytest.mark.parametrize(
    "value",
    [
        "Fri, 15 Jan 2027 08:00:30 GMT",
        "fri, 15 jan 2027 08:00:30 gmt",
        "Friday, 15-Jan-27 08:00:30 GMT",
        "FRIDAY, 15-JAN-27 08:00:30 GMT",
        "Fri Jan 15 08:00:30 2027",
        "2027-01-15T08:00:30Z",
        "2027-01-15 08:00:30",
        "2027-01-15t08:00:30z",
        "2027-01-15T08:00:30.000+00:00",
        "2027-01-15T09:30:30+01:30",
        "2027-01-15T00:00:30-08:00",
        "30s",
        "0.5m",
        "29s1000ms",
        "30000ms",
        "30000000us",
        "30000000\u00b5s",
        "30000000\u03bcs",
        "30000000\u00c2\u00b5s",
        "30000000000ns",
    ],
)
def test_thirty_seconds_may_be_written_in_many_ways(value):
    assert retry_after(value) == 30.0


@pytest.mark.parametrize("month", range(1, 13))
def test_every_month_has_its_name(month):
    moment = datetime(2027, month, 15, 8, tzinfo=UTC)

    for written in ("%a, %d %b %Y %H:%M:%S GMT", "%A, %d-%b-%y %H:%M:%S GMT", "%a %b %d %H:%M:%S %Y"):
        assert retry_after(moment.strftime(written), now=moment.timestamp() - 30) == 30.0


def test_a_value_that_is_too_long_is_ignored():
    """A time may have 64 characters, a value 8 KiB."""
    assert retry_after("0" * 63 + "5s") is None
    assert retry_after("0" * 62 + "5s") == 5.0
    assert retry_after(", ".join(["5"] * 2_730)) == 5.0
    assert retry_after(", ".join(["5"] * 2_732)) is None


def test_asctime_pads_a_day_of_one_digit():
    now = datetime(2026, 3, 5, 12, tzinfo=UTC).timestamp()

    assert retry_after("Thu Mar  5 12:01:00 2026", now=now) == 60.0


@pytest.mark.parametrize(
    "value",
    [
        "Fri, 30 Feb 2027 08:00:00 GMT",
        "Mon, 29 Feb 2027 08:00:00 GMT",
        "Fri, 15 Jan 2027 24:00:00 GMT",
        "Fri, 15 Jan 2027 08:60:00 GMT",
        "Fri, 15 Jan 2027 08:00:60 GMT",
        "Thu, 15 Jan 2027 08:00:30 GMT",
        "Monday, 15-Jan-27 08:00:30 GMT",
        "Fri, 15 Jan 2027 08:00:30 UTC",
        "Fri, 15 Jan 2027 08:00:30 +0000",
        "Fri, 15 Jan 2027 08:00:30",
        "Fri, 5 Jan 2027 08:00:30 GMT",
        "Fri, 15 Foo 2027 08:00:30 GMT",
        "Fri, 15 Jan 0000 08:00:30 GMT",
        "15 Jan 2027 08:00:30 GMT",
        "\u017fat, 16 Jan 2027 08:00:30 GMT",
        "2027-02-30T00:00:00Z",
        "2027-13-01T00:00:00Z",
        "2027-01-15T25:00:00Z",
        "2027-01-15T08:00:30+24:00",
        "2027-01-15T08:00:30+01:60",
        "2027-01-15T08:00Z",
        "0000-01-15T08:00:00Z",
        "2027-01-15",
        "20m20ms20m",
        "1s1m",
        "1M",
        "1 m",
        "m",
        "-1s",
        "1m-30s",
    ],
)
def test_a_malformed_date_or_duration_is_ignored(value):
    """Impossible dates, a weekday that does not match, other zones and other formats are malformed."""
    assert retry_after(value) is None


def test_a_date_in_the_past_means_now():
    """A negative number is malformed, but a date in the past is only stale."""
    assert retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0
    assert retry_after("2015-10-21T07:28:00Z") == 0.0
    assert retry_after("0001-01-01T00:00:00+23:59") == 0.0


def test_a_date_far_ahead_is_cut_to_a_month():
    assert retry_after("9999-12-31T23:59:59-23:59") == MONTH
    assert retry_after("Fri, 31 Dec 9999 23:59:59 GMT") == MONTH
    assert retry_after("999999d") == MONTH


def test_the_wait_for_a_date_is_in_whole_seconds_and_never_early():
    """At 0.4 s past a second, a date 30 s after that second is still 30 s away."""
    assert retry_after("Fri, 15 Jan 2027 08:00:30 GMT", now=NOW + 0.4) == 30.0
    assert retry_after("Fri, 15 Jan 2027 08:00:00 GMT", now=NOW + 0.4) == 0.0


@pytest.mark.parametrize("skew", [-86_400, -300, 0, 300, 86_400])
def test_a_wrong_local_clock_does_not_change_the_wait(skew):
    """Dates are measured from the Date header of the response."""
    date = "Fri, 15 Jan 2027 08:00:00 GMT"

    assert retry_after("Fri, 15 Jan 2027 08:01:00 GMT", date=date, now=NOW + skew) == 60.0
    assert retry_after("2027-01-15T08:01:00Z", date=date, now=NOW + skew) == 60.0
    assert retry_after("1800000060", date=date, now=NOW + skew) == 60.0
    assert retry_after("60", date=date, now=NOW + skew) == 60.0


def test_the_earlier_of_two_date_headers_is_used():
    dates = [("date", "Fri, 15 Jan 2027 08:00:10 GMT"), ("date", "Fri, 15 Jan 2027 08:00:00 GMT")]

    assert parse_retry_after([*dates, ("retry-after", "2027-01-15T08:01:00Z")], now=NOW) == 60.0


@pytest.mark.parametrize(
    "date",
    ["Thu, 01 Jan 1970 00:00:00 GMT", "Sat, 16 Jan 2027 08:00:01 GMT", "2027-01-15T07:00:00Z", "0", "x"],
)
def test_the_local_clock_replaces_an_implausible_date_header(date):
    assert retry_after("Fri, 15 Jan 2027 08:01:00 GMT", date=date) == 60.0


@pytest.mark.parametrize(
    ("now", "value", "seconds"),
    [
        ("2099-12-31T23:59:00", "Saturday, 01-Jan-00 00:00:00 GMT", None),  # Friday in 2100, so not a date
        ("2099-12-31T23:59:00", "Friday, 01-Jan-00 00:00:00 GMT", 60.0),
        ("2099-06-01T00:00:00", "Saturday, 01-Jan-01 00:00:00 GMT", MONTH),  # 2101
        ("2027-01-15T08:00:00", "Friday, 15-Jan-27 08:00:20 GMT", 20.0),
        ("2027-01-15T08:00:00", "Thursday, 15-Jan-26 08:00:20 GMT", 0.0),
        ("2027-01-15T08:00:00", "Friday, 15-Jan-77 08:00:00 GMT", MONTH),  # 2077, fifty years ahead
        (
            "2027-01-15T08:00:00",
            "Saturday, 15-Jan-77 08:00:01 GMT",
            0.0,
        ),  # 1977, fifty years and a second ahead
        ("2027-01-15T08:00:00", "Friday, 15-Jan-77 08:00:01 GMT", None),  # Saturday in 1977, so not a date
        ("2026-11-16T00:00:00", "Friday, 31-Dec-76 23:59:59 GMT", 0.0),  # 1976
        ("2028-02-29T12:00:00", "Monday, 28-Feb-78 12:00:00 GMT", MONTH),  # 2078, without a 29 February
        ("2027-01-15T08:00:00", "Sunday, 15-Jan-78 08:00:00 GMT", 0.0),  # 1978
        ("2001-01-01T00:00:00", "Friday, 31-Dec-99 23:59:59 GMT", 0.0),  # 1999
    ],
)
def test_a_year_of_two_digits_is_at_most_fifty_years_ahead(now, value, seconds):
    """This holds across the end of a century too."""
    local = datetime.fromisoformat(now).replace(tzinfo=UTC).timestamp()

    assert retry_after(value, now=local) == seconds


def test_the_clock_is_read_only_when_now_is_left_out(monkeypatch):
    monkeypatch.setattr(responses.time, "time", lambda: NOW)
    assert parse_retry_after({"retry-after": "Fri, 15 Jan 2027 08:00:20 GMT"}) == 20.0
    assert read_signal(429, {"retry-after": "Fri, 15 Jan 2027 08:00:20 GMT"}).retry_after == 20.0

    monkeypatch.setattr(responses.time, "time", None)
    assert retry_after("Fri, 15 Jan 2027 08:00:20 GMT") == 20.0
    assert read_signal(429, {"retry-after": "Fri, 15 Jan 2027 08:00:20 GMT"}, now=NOW).retry_after == 20.0


@pytest.mark.parametrize("now", [math.nan, math.inf, -math.inf, "soon", object(), -1e300])
def test_a_now_that_is_not_a_time_errs_towards_waiting(now):
    assert retry_after("Fri, 15 Jan 2027 08:00:20 GMT", now=now) == MONTH
    assert retry_after("7", now=now) == 7.0


# Properties


@given(st.decimals(0, 2_678_400, allow_nan=False, places=3), st.sampled_from(["{}", "{}s", "0h{}s"]))
def test_a_delay_is_never_shorter_than_asked(asked, written):
    assert retry_after(written.format(asked)) == float(asked)


@given(st.integers(0, 10**12))
def test_milliseconds_are_never_shorter_than_asked(asked):
    assert parse_retry_after({"retry-after-ms": str(asked)}, now=NOW) == min(asked / 1000, MONTH)


@given(
    st.tuples(*(st.integers(0, 400) for _ in range(7))).filter(any),
    st.sampled_from([0, 1, 0b0011100, 0b1111111, 0b0010100, 0b0001000]),
)
def test_a_duration_is_the_sum_of_its_parts(amounts, chosen):
    units = {"d": 86_400, "h": 3_600, "m": 60, "s": 1, "ms": Fraction(1, 10**3), "us": Fraction(1, 10**6)}
    units["ns"] = Fraction(1, 10**9)
    parts = [
        (amount, unit) for i, (amount, unit) in enumerate(zip(amounts, units, strict=True)) if chosen >> i & 1
    ]

    wait = retry_after("".join(f"{amount}{unit}" for amount, unit in parts))

    asked = sum(amount * units[unit] for amount, unit in parts)
    assert wait == (float(min(asked, MONTH)) if parts else None)


moments = st.datetimes(datetime(2027, 1, 15, 8), datetime(2027, 2, 15, 7, 59))  # noqa: DTZ001
clocks = st.floats(NOW - 1_000_000, NOW)


@given(
    moments,
    clocks,
    st.sampled_from(["%a, %d %b %Y %H:%M:%S GMT", "%A, %d-%b-%y %H:%M:%S GMT", "%a %b %d %H:%M:%S %Y"]),
)
def test_the_wait_for_a_date_is_never_too_short(moment, now, written):
    """The wait covers the rest of the second, wherever the local clock stands within it."""
    moment = moment.replace(microsecond=0, tzinfo=UTC)

    wait = retry_after(moment.strftime(written), now=now)

    exact = Fraction(moment.timestamp()) - Fraction(now)
    assert min(exact, MONTH) <= wait < exact + 1


@given(moments, clocks, st.integers(-1439, 1439))
def test_the_wait_for_a_timestamp_is_never_too_short(moment, now, offset):
    """The wait is exact to the nanosecond in every zone and unit."""
    instant = moment.replace(tzinfo=UTC)
    micros = (instant - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    local = (instant + timedelta(minutes=offset)).replace(tzinfo=None)
    zone = f"{'-' if offset < 0 else '+'}{abs(offset) // 60:02}:{abs(offset) % 60:02}"
    exact = min(Fraction(micros, 10**6) - Fraction(now), Fraction(MONTH))

    for written in (f"{local.isoformat()}{zone}", str(micros), f"{micros / 10**6:.6f}"):
        assert exact <= Fraction(retry_after(written, now=now)) + Fraction(1, 10**9)
