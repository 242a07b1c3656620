"""Files of jobs and of answers, for the tests of `headgate run`."""

import json


def write_jobs(path, count, **body):
    with path.open("w") as file:
        for number in range(count):
            messages = [{"role": "user", "content": f"question {number}"}]
            document = {
                "custom_id": f"job-{number}",
                "method": "POST",
                "url": "/v1/chat/completions",
                "body": {"model": "m", "max_tokens": 20, "messages": messages, **body},
            }
            print(json.dumps(document), file=file)
    return path


def job_ids(count):
    return sorted(f"job-{number}" for number in range(count))


def answers_of(path):
    raw = path.read_bytes()
    assert raw.endswith(b"\n")
    return [json.loads(line) for line in raw.splitlines()]


def answered_ids(path):
    return sorted(document["custom_id"] for document in answers_of(path))
