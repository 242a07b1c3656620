"""The lines of answers and of failures, in the shapes of three providers."""

import json

import pytest

from headgate.cli.run.answers import answer_line, body_in, failed_in, failure_line, recorded_in
from headgate.cli.run.jobs import Job
from headgate.cli.run.replies import read_reply
from headgate.responses.estimate import NO_SHAPE

JOB = Job(4, 'a "b" \u00e9', "POST", "", b"", NO_SHAPE, digest=0xBEEF)
BODY = {"usage": {"total_tokens": 3}}


def line(shape="openai", body=BODY):
    return answer_line(JOB, 200, "req-4", json.dumps(body).encode(), shape)


def test_an_answer_has_the_shape_of_openais_batches_and_a_digest():
    assert json.loads(line()) == {
        "id": "job_4",
        "custom_id": JOB.custom_id,
        "digest": "0000beef",
        "response": {"status_code": 200, "request_id": "req-4", "body": BODY},
        "error": None,
    }


def test_an_answer_has_the_shape_of_anthropics_batches():
    result = {"type": "succeeded", "message": BODY}
    assert json.loads(line("anthropic")) == {
        "custom_id": JOB.custom_id, "digest": "0000beef", "result": result
    }  # fmt: skip


def test_an_answer_has_the_shape_of_geminis_batches():
    assert json.loads(line("gemini")) == {"key": JOB.custom_id, "digest": "0000beef", "response": BODY}


@pytest.mark.parametrize("shape", ["openai", "anthropic", "gemini"])
@pytest.mark.parametrize("write", [lambda line: line, lambda line: json.dumps(json.loads(line), indent=1)])
def test_an_answer_is_recognised_in_every_shape_however_it_is_written(shape, write):
    written = write(line(shape))
    assert recorded_in(written if isinstance(written, bytes) else written.encode()) == (
        JOB.custom_id, 0xBEEF, True
    )  # fmt: skip
    assert body_in(json.loads(written)) == BODY


@pytest.mark.parametrize(
    "text",
    [
        '{"custom_id": "a", "result": {"type": "errored", "error": {}}}',
        '{"custom_id": "a", "response": {"status_code": 400, "body": {}}, "error": null}',
        '{"custom_id": "a", "response": null, "error": {"code": "failed", "message": "x"}}',
        '{"key": "a", "error": {"code": 400}}',
    ],
)
def test_a_result_that_is_an_error_does_not_answer_its_job(text):
    assert recorded_in(text.encode()) == ("a", None, False)


@pytest.mark.parametrize("text", ["", "{}", "[]", "oops", '{"custom_id": "a"}', '{"response": {}}'])
def test_other_lines_are_not_answers(text):
    assert recorded_in(text.encode()) is None


def test_a_body_of_many_lines_becomes_one_and_is_otherwise_untouched():
    body = b'{\r\n  "a": 1.0,\n  "big": 12345678901234567890.123, "huge": 1e999, "text": "x\\ny"\n}\n'
    written = answer_line(JOB, 200, "", body)
    assert written.count(b"\n") == 1
    assert b'"big": 12345678901234567890.123, "huge": 1e999' in written
    assert json.loads(written)["response"]["body"] == json.loads(body)


def test_a_failure_has_the_shape_of_an_answer_and_the_body_as_it_came():
    reply = read_reply(400, {"x-request-id": "r"}, b'{"error": {"message": "no such model", "at": 1e999}}')
    written = failure_line(3, "c", "rejected", "400: no such model", reply)
    document = json.loads(written)
    assert document["error"] == {"code": "rejected", "message": "400: no such model"}
    assert document["response"]["status_code"] == 400
    assert b'"at": 1e999' in written
    assert failed_in(written) == "c"
    without = failure_line(3, "c", "failed", "no answer", None)
    assert json.loads(without)["response"] is None
    assert failed_in(without) == "c"
    assert failed_in(line()) is None


@pytest.mark.parametrize(
    "line",
    [
        '{"custom_id": "a", "result": {"type": 7, "message": {"usage": {}}}}',
        '{"custom_id": "a", "result": [1]}',
        '{"custom_id": "a", "error": {"code": 1}}',
    ],
)
def test_a_line_without_a_response_in_a_known_shape_has_no_body(line):
    assert body_in(json.loads(line)) is None


@pytest.mark.parametrize("name", ["id", "custom_id", "response", "error"])
@pytest.mark.parametrize("damage", [None, 7, [], "a", {"code": 1}])
def test_a_line_of_failures_that_is_damaged_names_no_job_unless_the_damage_is_elsewhere(name, damage):
    document = json.loads(failure_line(3, "c", "failed", "no answer", None))
    untouched = name in ("id", "response")
    expected = damage if (name, damage) == ("custom_id", "a") else "c" if untouched else None
    assert failed_in(json.dumps(document | {name: damage}).encode()) == expected
    document.pop(name)
    assert failed_in(json.dumps(document).encode()) is None


@pytest.mark.parametrize("text", ["", "oops", "[]", "[" * 100_000])
def test_what_is_not_json_of_an_object_is_not_a_line_of_failures(text):
    assert failed_in(text.encode()) is None
