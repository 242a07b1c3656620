"""The figures of a run: how fast it goes, and how it stands, in words and as plain data."""

import io
import json
import re

import pytest
from rich.console import Console

from headgate import DispatchSnapshot, RateLevel, Totals
from headgate.cli.picture import run_picture
from headgate.cli.run.progress import RunView, Speed, Tally, Use, why_it_waits
from headgate.testing import ManualClock
from headgate.words import duration, soon

SNAPSHOT = {
    "backoff_active": False, "in_flight": 7, "throttled_in_flight": 0, "bytes_in_flight": None,
    "waiting": 3, "concurrency": 7, "throttled_concurrency": None, "byte_budget": None,
    "rates": (RateLevel(name="tokens/minute", unit="tokens", limit=100, per=60.0, burst=1, level=0),),
    "waiting_by_priority": ((0, 3),), "window_remaining": 0.0,
    "totals": Totals(
        admitted=0, waited=0, seconds_waited=0.0, refused=0, cancelled=0, responses=0, limited=0, windows=0
    ),
}  # fmt: skip


def test_speed_is_measured_over_the_last_seconds_only():
    clock, count = ManualClock(), 0
    speed = Speed(clock, over=10)
    assert speed.of({"jobs": count}) == {}
    for _ in range(60):
        clock.advance(1)
        count += 5
        speed.of({"jobs": count})
    assert speed.of({"jobs": count})["jobs"] == pytest.approx(5)
    for _ in range(20):
        clock.advance(1)
        speed.of({"jobs": count})
    assert speed.of({"jobs": count})["jobs"] == 0


def test_the_time_left_follows_from_the_speed():
    clock = ManualClock()
    tally = Tally(clock)
    tally.speed()
    clock.advance(10)
    tally.answered, tally.output_tokens, tally.kept = 20, 300, 5
    speed, tokens = tally.speed()
    assert (speed, tokens) == (2.0, 30.0)
    assert tally.left(speed) is None
    tally.total = 125
    assert tally.left(speed) == 50.0


def test_the_time_in_which_all_jobs_wait_does_not_change_the_speed():
    clock = ManualClock()
    speed = Speed(clock, over=30)
    for second in range(11):
        speed.of({"jobs": 5 * second})
        clock.advance(1)
    before = speed.of({"jobs": 55})
    for _ in range(100):
        clock.advance(1)
        assert speed.of({"jobs": 55}, paused=True) == before
    clock.advance(1)
    assert speed.of({"jobs": 60})["jobs"] == pytest.approx(5, rel=0.1)


def test_a_file_that_grows_while_it_is_read_is_never_more_than_done():
    tally = Tally(ManualClock())
    tally.total, tally.read, tally.answered = 100, 117, 117
    assert tally.total == 117


@pytest.mark.parametrize(
    ("binding", "next_at", "words"),
    [
        (None, None, ""),
        ("tokens/minute", 11.8, "tokens/minute: next slot in 1.8 s"),
        ("tokens/minute", 10.05, "tokens/minute: at the limit"),
        ("tokens/minute", 110, "tokens/minute: next slot in 1:40"),
        ("window", 14.0, "all jobs wait 4.0 s: told to slow down (429: easy)"),
        ("concurrency", None, "all 7 places are taken: waiting for an answer"),
    ],
)
def test_why_it_waits_names_the_limit_and_the_time(binding, next_at, words):
    snapshot = DispatchSnapshot(binding=binding, next_at=next_at, **SNAPSHOT)
    assert why_it_waits(snapshot, 10.0, "told to slow down (429: easy)") == words


def test_the_end_of_a_long_wait_is_told():
    words = why_it_waits(DispatchSnapshot(binding="window", next_at=100.0, **SNAPSHOT), 10.0)
    assert re.fullmatch(r"all jobs wait 1:30, until [\d-]* ?\d\d:\d\d:\d\d: told to slow down", words)


@pytest.mark.parametrize("width", [60, 80, 140])
def test_figures_of_a_picture_are_not_torn_apart_and_do_not_contradict_each_other(width):
    clock = ManualClock()
    tally = Tally(clock)
    tally.total, tally.kept, tally.answered = 100_000, 1_200, 50_000
    clock.advance(600)
    uses = (Use("requests", "minute", 3_000, 3_000), Use("tokens", "minute", 59_764, 60_000))
    view = RunView(
        tally=tally, in_flight=100, concurrency=100, speed=50.0, tokens_per_minute=41_000.0, cost=123.4567,
        left=1_000.0, uses=uses, waits="tokens/minute: at the limit", stopping=False,
    )  # fmt: skip
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(run_picture(view, "requests.jsonl → api.example.com", width))
    shown = console.export_text()
    assert all(len(line) <= width for line in shown.splitlines())
    for figure in ("in flight 100", "answers/s 50.0", "429s 0", "kept 1,200", "cost 123.4567"):
        assert figure in shown
    assert "tokens/min " not in shown  # the limit shows them as it counts them
    assert re.search(r"51,200 of 100,000   51%", shown)


def test_a_run_view_as_a_line_and_as_json():
    clock = ManualClock()
    tally = Tally(clock)
    clock.advance(60)
    tally.total, tally.kept, tally.answered, tally.failures["failed"] = 200, 10, 88, 2
    tally.sent, tally.refused, tally.retried, tally.input_tokens = 95, 3, 4, 900
    view = RunView(
        tally=tally, in_flight=5, concurrency=8, speed=1.5, tokens_per_minute=1234.5, cost=None, left=66.7,
        uses=(Use("requests", "minute", 58.2, 60),), waits="requests/minute: next slot in 1.0 s",
        stopping=False,
    )  # fmt: skip
    assert view.line() == (
        " 50%  100/200  1.5/s  1,234 tokens/min  5 in flight  3 × 429  2 failed  1:07 left"
        "  requests/minute: next slot in 1.0 s"
    )
    facts = json.loads(json.dumps(view.facts()))
    assert facts == {
        "seconds": 60.0, "total": 200, "done": 100, "kept": 10, "answered": 88, "failed": 2, "sent": 95,
        "refused": 3, "retried": 4, "in_flight": 5, "concurrency": 8, "speed": 1.5, "tokens": 900,
        "tokens_per_minute": 1234.5, "cost": None, "left": 66.7,
        "uses": [{"unit": "requests", "period": "minute", "now": 58.2, "limit": 60}], "stopping": False,
        "waits": "requests/minute: next slot in 1.0 s",
    }  # fmt: skip
    assert duration(3599.7) == "1:00:00"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0.1 s"), (0.31, "0.4 s"), (9.9, "9.9 s"), (9.95, "10 s"), (59.2, "1:00"), (3_600, "1:00:00")],
)
def test_soon_rounds_up(seconds, words):
    assert soon(seconds) == words
