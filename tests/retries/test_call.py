"""RetriedCall: what is raised in the end, and what the log and `on_retry` hear."""

from dataclasses import dataclass

from headgate import (
    events,
    retry,
)
from headgate.testing import ManualClock, Recorder
from retries.forms import FarSide, decorator, notes, outcome_of

# -- the last exception


def test_the_last_exception_is_raised_itself_with_a_note(ask):
    """It is not wrapped, and not chained to an exception of headgate."""
    errors = [ConnectionResetError(number) for number in range(4)]
    outcome = ask(FarSide(*errors))
    assert outcome.error is errors[3]
    assert outcome.error.__cause__ is None
    assert notes(outcome.error) == ["headgate: gave up after 4 calls: no retries are left"]
    assert all(notes(error) == [] for error in errors[:3])


def test_the_note_says_that_retries_are_off(ask):
    outcome = ask(FarSide(TimeoutError()), max_retries=0)
    assert notes(outcome.error) == ["headgate: gave up after 1 call: retries are off"]


def test_an_exception_object_that_is_raised_repeatedly_gets_one_note(ask):
    error = TimeoutError()
    for _ in range(3):
        assert ask(FarSide(error)).error is error
    assert len(notes(error)) == 1


def test_an_exception_that_refuses_notes_is_raised_without_one(ask):
    """A frozen dataclass, for example."""

    @dataclass(frozen=True)
    class Frozen(Exception):
        status_code: int = 503

    error = Frozen()
    assert ask(FarSide(error)).error is error


def test_an_exception_whose_notes_are_not_a_list_is_raised_without_one(ask):
    error = TimeoutError()
    error.__notes__ = None
    assert ask(FarSide(error)).error is error


def test_an_exception_whose_attributes_raise_is_retried_and_raised_as_it_is(ask):

    class Hostile(Exception):
        @property
        def retry_after(self):
            raise RuntimeError("do not touch")

    error = Hostile()
    far = FarSide(error)
    assert ask(far, exceptions=Hostile).error is error
    assert far.calls == 4


# -- on_retry and the log


def test_on_retry_is_given_an_event_for_each_retry(ask):
    seen = Recorder()
    errors = [TimeoutError(number) for number in range(4)]
    ask(FarSide(*errors), on_retry=seen)
    retries = seen.of(events.Retrying)
    assert len(retries) == len(seen.events) == 3
    assert [event.retry for event in retries] == [1, 2, 3]
    assert [event.max_retries for event in retries] == [3, 3, 3]
    assert [event.delay for event in retries] == [1.0, 2.0, 4.0]
    assert [event.error for event in retries] == errors[:3]
    assert [event.at for event in retries] == [0.0, 1.0, 3.0]


def test_on_retry_and_the_log_stay_silent_without_a_retry(ask, caplog):
    seen = Recorder()
    ask(FarSide("hello"), on_retry=seen)
    ask(FarSide(ValueError()), on_retry=seen)
    ask(FarSide(TimeoutError()), on_retry=seen, max_retries=0)
    ask(FarSide(TimeoutError()), on_retry=seen, deadline=0)
    assert seen.events == []
    assert caplog.records == []


def test_the_event_has_max_retries_none_without_a_limit():
    seen = Recorder()
    outcome_of(decorator, FarSide(TimeoutError(), "hello"), {"max_retries": None, "on_retry": seen})
    assert seen.events[0].max_retries is None


def test_the_key_of_the_event_is_the_name_of_the_function():
    seen = Recorder()
    clock = ManualClock(auto_advance=True)
    answers = iter([TimeoutError(), "hello"])

    @retry(on_retry=seen, clock=clock)
    def fetch_the_page():
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer

    fetch_the_page()
    assert seen.events[0].key.endswith("fetch_the_page")


def test_each_retry_is_logged(ask, caplog):
    """As a warning, with the error and the delay to two decimals."""
    ask(FarSide(TimeoutError("slow"), TimeoutError("slow"), "hello"))
    assert [(record.name, record.levelname) for record in caplog.records] == [("headgate", "WARNING")] * 2
    first, second = caplog.messages
    assert "TimeoutError('slow')" in first
    assert "retry 1 of 3 in 1.00 s" in first
    assert "retry 2 of 3 in 2.00 s" in second


def test_the_log_record_names_no_limit_without_max_retries(caplog):
    outcome_of(decorator, FarSide(TimeoutError(), "hello"), {"max_retries": None})
    assert "retry 1 in 1.00 s" in caplog.text


def test_retries_print_nothing(ask, capsys):
    ask(FarSide(TimeoutError))
    assert capsys.readouterr() == ("", "")


def test_an_on_retry_that_raises_is_logged_and_changes_nothing(ask, caplog):

    def broken(event):
        raise ZeroDivisionError("a bug in the hook")

    far = FarSide(TimeoutError(), TimeoutError(), "hello")
    assert ask(far, on_retry=broken).result == "hello"
    assert far.waits == [1.0, 2.0]
    assert caplog.text.count("a bug in the hook") >= 2


def test_an_on_retry_that_raises_keyboard_interrupt_ends_the_call(ask):

    def stop(event):
        raise KeyboardInterrupt

    far = FarSide(TimeoutError())
    assert isinstance(ask(far, on_retry=stop).error, KeyboardInterrupt)
    assert far.calls == 1
