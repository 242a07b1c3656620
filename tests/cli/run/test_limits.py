"""`headgate run --store`: one pool with everything else that runs, and one clear error if that cannot be."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from faults.rig import Server
from headgate import Dispatch
from headgate.cli.app import main
from headgate.sandbox import Sandbox
from patience import eventually

pytestmark = pytest.mark.alone

KEYLESS = {name: text for name, text in os.environ.items() if not name.endswith("_API_KEY")}
BODY = {"model": "m", "max_tokens": 20, "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture(scope="module")
def server():
    with Server() as server:
        yield server


@pytest.fixture(scope="module")
def api():
    with Sandbox("openai", requests="60_000/minute", headers=False) as sandbox:
        yield sandbox


@pytest.fixture
def jobs(tmp_path):
    return write_jobs(tmp_path, 20)


def write_jobs(folder, count):
    path = folder / "jobs.jsonl"
    lines = (
        json.dumps({"custom_id": f"{number}", "url": "/v1/chat/completions", "body": BODY})
        for number in range(count)
    )
    path.write_text("\n".join(lines))
    return path


def lines_in(path):
    return len(path.read_bytes().splitlines()) if path.exists() else 0


# -- together


@pytest.fixture(params=["sqlite", "valkey"])
def store(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'limits.db'}"
    return request.getfixturevalue("server").url


# Who counts them allows a longer burst: on a busy machine requests are held up on their way, and then come
# all together.
RATE, COUNTED, EACH_SECOND = "2400/minute burst 20", "2400/minute burst 60", 40


def test_two_runs_and_an_sdk_together_stay_within_the_limit_and_none_starves(store, tmp_path):
    """There is no 429, all three together use the whole limit, and each gets a fair part."""
    jobs = write_jobs(tmp_path, 5_000)
    files = [tmp_path / name for name in ("one.jsonl", "two.jsonl", "sdk.txt")]
    with Sandbox("openai", requests=COUNTED) as api:
        program = str(Path(__file__).with_name("sdk_program.py"))
        commands = [
            *(
                ["-m", "headgate", "run", jobs, "--to", api.url, "-o", path, "--rate", RATE, "--store", store]
                for path in files[:2]
            ),
            [program, api.url, store, RATE, "5000", files[2]],
        ]
        processes = [
            subprocess.Popen(
                [sys.executable, *map(str, command)], stderr=subprocess.PIPE, text=True, env=KEYLESS
            )
            for command in commands
        ]
        try:
            eventually(lambda: all(map(lines_in, files)), "all three have answers")
            time.sleep(2)  # the last to come has its part by now
            before, began = [lines_in(path) for path in files], time.monotonic()
            time.sleep(
                4
            )  # several turns of each: in two seconds one may have had a turn less than the others
            parts = [lines_in(path) - count for path, count in zip(files, before, strict=True)]
            elapsed = time.monotonic() - began
            look = CliRunner().invoke(main, ["watch", store, "--once", "--json"])
        finally:
            for process in processes:
                process.send_signal(signal.SIGINT)
            words = [process.communicate(timeout=30)[1] for process in processes]
        report = api.report()
    assert report.refused == 0
    assert report.use["requests"] <= 1
    assert sum(parts) >= 0.8 * EACH_SECOND * elapsed, parts
    assert min(parts) >= 0.4 * sum(parts) / 3, parts
    (pool,) = json.loads(look.stdout)["pools"].values()
    # Threads of the SDK that came first have each made a gate, of which one is used: the others cost a lease.
    assert len({member["name"].rpartition("-")[0] for member in pool["members"]}) == 3
    assert [process.returncode for process in processes[:2]] == [3, 3]
    assert all("Run the same command again" in text for text in words[:2])


# -- whose limits


def run(jobs, api, *options, answers=None):
    out = answers or jobs.with_name("answers.jsonl")
    out.unlink(missing_ok=True)
    command = ["run", str(jobs), "--to", api.url, "-o", str(out), *map(str, options)]
    done = CliRunner().invoke(main, command, env=dict.fromkeys(set(os.environ) - set(KEYLESS)))
    assert done.exception is None or isinstance(done.exception, SystemExit)
    return done


def pool_of(store, key):
    done = CliRunner().invoke(main, ["watch", store, key, "--once", "--json"])
    return json.loads(done.stdout)["pools"][key]


def test_limits_that_the_command_does_not_give_come_from_the_pool(api, jobs, store):
    gate = Dispatch(
        "ours",
        rates=["6000/minute burst 50", "600_000 tokens/minute"],
        concurrency=64,
        byte_budget=1 << 20,
        store=store,
    )
    done = run(jobs, api, "--store", store, "--store-key", "ours")
    assert done.exit_code == 0, done.stderr
    pool = pool_of(store, "ours")
    assert [(rate["limit"], rate["burst"], rate["unit"]) for rate in pool["rates"]] == [
        (6000, 50, "requests"),
        (600_000, 10_000, "tokens"),
    ]
    assert (pool["places"]["limit"], pool["bytes"]["limit"]) == (64, 1 << 20)
    gate.close()


def test_limits_that_the_command_gives_are_set_in_the_pool(api, jobs, store):
    options = ("--store", store, "--store-key", "set", "--rate", "6000/minute")
    assert run(jobs, api, *options).exit_code == 0
    assert pool_of(store, "set")["places"]["limit"] == 200
    assert run(jobs, api, *options, "--concurrency", 30).exit_code == 0
    assert pool_of(store, "set")["places"]["limit"] == 30
    assert run(jobs, api, *options).exit_code == 0
    assert pool_of(store, "set")["places"]["limit"] == 30


def test_the_default_store_key_is_the_host_with_its_port(api, jobs, store):
    assert run(jobs, api, "--store", store, "--rate", "6000/minute").exit_code == 0
    assert pool_of(store, api.url.partition("//")[2])["rates"][0]["limit"] == 6000


def test_two_runs_that_learn_find_the_limits_once_and_share_them(store, tmp_path):
    """The second is not told to learn: it does as the pool does."""
    jobs = write_jobs(tmp_path, 5_000)
    files = [tmp_path / name for name in ("one.jsonl", "two.jsonl")]
    with Sandbox("openai", requests=COUNTED) as api:
        key = api.url.partition("//")[2]
        runs = []
        for path, rate in zip(files, (["--rate", "auto"], []), strict=True):
            command = ["-m", "headgate", "run", jobs, "--to", api.url, "-o", path, "--store", store, *rate]
            runs.append(
                subprocess.Popen(
                    [sys.executable, *map(str, command)], stderr=subprocess.PIPE, text=True, env=KEYLESS
                )
            )
            eventually(lambda path=path: lines_in(path) > 0, "it has an answer")
        limits = {rate["unit"]: rate["limit"] for rate in pool_of(store, key)["rates"]}
        members = {member["name"] for member in pool_of(store, key)["members"]}
        eventually(lambda: sum(map(lines_in, files)) > 150, "both go on")
        for process in runs:
            process.send_signal(signal.SIGINT)
        words = [process.communicate(timeout=30)[1] for process in runs]
        report = api.report()
    assert [process.returncode for process in runs] == [3, 3], words
    assert limits == {"requests": 2_400}  # as the API says
    assert len(members) == 2
    assert report.refused <= 0.02 * report.requests


def test_a_run_returns_its_places_when_it_ends(api, jobs, store):
    """What it held goes back when it ends, not when its lease does."""
    assert run(jobs, api, "--store", store, "--rate", "6000/minute", "--store-key", "left").exit_code == 0
    eventually(lambda: pool_of(store, "left")["places"]["held"] == 0, "its places are free")


def test_a_run_goes_on_and_says_so_if_the_store_is_lost(jobs, tmp_path):
    write_jobs(tmp_path, 40)
    answers = tmp_path / "answers.jsonl"
    with Server() as server, Sandbox("openai", requests="1200/minute") as api:
        options = ("--store", server.url, "--rate", "1200/minute burst 4", "-o", answers)
        command = [sys.executable, "-m", "headgate", "run", jobs, "--to", api.url, *options]
        process = subprocess.Popen([*map(str, command)], stderr=subprocess.PIPE, text=True, env=KEYLESS)
        eventually(lambda: lines_in(answers) > 5, "it runs")
        server.stop()
        words = process.communicate(timeout=30)[1]
        server.go_on()
    assert process.returncode == 0
    assert words.count("the store is lost: no answer within") == 1
    assert lines_in(answers) == 40
    assert "Traceback" not in words


# -- what cannot be


def told(done):
    """The one error of a command that failed, and its hint."""
    assert done.exit_code == 2, done.output
    assert done.stderr.count("error: ") == 1
    error, _, hint = done.stderr.partition("hint: ")
    return error, hint


@pytest.mark.parametrize(
    ("url", "error", "hint"),
    [
        ("memory:", "inside one process", "sqlite:///limits.db"),
        ("limits.db", "'limits.db' is not the URL of a store; for a file write sqlite:///limits.db", ""),
        ("sqlite:limits.db", "has no path; write sqlite:///limits.db", ""),
        ("sqlite:////no/such/folder/limits.db", "there is no folder /no/such/folder", "folder that exists"),
        ("redis://127.0.0.1:1/0", "redis://127.0.0.1:1/0 cannot be reached", "check --store, or start it"),
        ("redis://user:sesame@127.0.0.1:1/0", "127.0.0.1:1/0 cannot be reached", "check --store"),
        ("redis://no-such.invalid/0", "redis://no-such.invalid/0 cannot be reached", "check --store"),
        ("redis://:sesame@127.0.0.1:port/0", "cannot be read", ""),
        ("ftp://sesame@host/0", "'ftp' is not a kind of store", ""),
    ],
)
def test_a_store_that_cannot_be_used_is_an_error_before_anything_is_sent(api, jobs, url, error, hint):
    before = api.report().requests
    done = run(jobs, api, "--store", url, "--rate", "6000/minute")
    said, advice = told(done)
    assert error in said
    assert hint in advice
    assert "sesame" not in done.output
    assert "store=" not in said
    assert api.report().requests == before
    assert not jobs.with_name("answers.jsonl").exists()


def test_a_wrong_password_of_a_store_is_an_error_that_does_not_show_it(api, jobs):
    with Server("--requirepass", "right") as server:
        done = run(
            jobs, api, "--store", f"redis://:sesame@127.0.0.1:{server.port}/0", "--rate", "6000/minute"
        )
    assert "does not let us in" in told(done)[0]
    assert "sesame" not in done.output


def test_a_pool_that_no_process_has_made_is_an_error_without_rates(api, jobs, store):
    Dispatch("known", rates="6000/minute", store=store).close()  # there is a file
    error, hint = told(run(jobs, api, "--store", store, "--store-key", "unknown"))
    assert "knows no limits for 'unknown'" in error
    assert "--rate 500/minute" in hint
    assert "--rate auto" in hint


def test_rate_auto_is_an_error_where_limits_are_configured(api, jobs, store):
    gate = Dispatch("known", rates="6000/minute", store=store)
    error, hint = told(run(jobs, api, "--store", store, "--store-key", "known", "--rate", "auto"))
    assert "limits are configured for 'known' in the store: 6000 requests/minute" in error
    assert "leave out --rate" in hint
    assert "--store-key" in hint
    gate.close()


def test_rates_that_count_other_units_than_the_pool_are_an_error(api, jobs, store):
    gate = Dispatch("two", rates=["6000/minute", "600_000 tokens/minute"], store=store)
    with gate.admit(timeout=5):
        for rates in (["100/minute"], ["100/minute", "9/hour"], ["9 tokens/s", "9 bytes/s"]):
            given = [word for rate in rates for word in ("--rate", rate)]
            done = run(jobs, api, "--store", store, "--store-key", "two", *given)
            error, hint = told(done)
            assert "'two' is shared by others that count requests and tokens" in error
            assert "6000 requests/minute burst 100, 600000 tokens/minute burst 10000" in hint
    gate.close()


def test_rates_may_be_given_in_another_order_than_in_the_pool(api, jobs, store):
    gate = Dispatch("order", rates=["6000/minute", "600_000 tokens/minute"], store=store)
    with gate.admit(timeout=5):
        options = ("--store-key", "order", "--rate", "500_000 tokens/minute", "--rate", "5000/minute")
        assert run(jobs, api, "--store", store, *options).exit_code == 0
        assert [rate["limit"] for rate in pool_of(store, "order")["rates"]] == [5_000, 500_000]
    gate.close()


def test_a_new_store_needs_rates(api, jobs, tmp_path):
    done = run(jobs, api, "--store", f"sqlite:///{tmp_path / 'new.db'}")
    assert "does not exist" in told(done)[0]
    assert "--rate 500/minute" in told(done)[1]


def test_store_key_needs_a_store(api, jobs):
    assert "--store-key needs a store" in told(run(jobs, api, "--store-key", "ours"))[0]


def test_a_stopped_run_keeps_its_places_until_its_last_answer(tmp_path, store):
    """Other processes get a place only when a request of the stopped run has ended."""
    jobs = write_jobs(tmp_path, 20)
    with Sandbox("openai", first_token=1.5) as api:
        answers = tmp_path / "answers.jsonl"
        options = (
            "-o",
            answers,
            "--store",
            store,
            "--store-key",
            "held",
            "--rate",
            "6000/minute",
            "--concurrency",
            3,
        )
        command = [sys.executable, "-m", "headgate", "run", jobs, "--to", api.url, *options]
        process = subprocess.Popen([*map(str, command)], stderr=subprocess.PIPE, text=True, env=KEYLESS)
        eventually(lambda: api.report().in_flight == 3, "three are in flight")
        gate = Dispatch(
            "held",
            rates="6000/minute",
            concurrency=3,
            throttled_concurrency=None,
            byte_budget=None,
            store=store,
        )
        process.send_signal(signal.SIGINT)
        with gate.admit(timeout=20):
            assert api.report().in_flight < 3
        gate.close()
        process.communicate(timeout=30)
    assert process.returncode == 3
    assert lines_in(answers) == 3
