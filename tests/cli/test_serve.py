"""`headgate serve`: how it starts, what it prints, and how it ends."""

import http.client
import json
import signal
import socket
import subprocess
import sys
import time

import pytest

from cli.commands import KEYLESS, headgate, told
from headgate.sandbox import Sandbox
from patience import eventually


class Serving:
    """A gateway in a process of its own."""

    def __init__(self, *args, env=None):
        command = [sys.executable, "-m", "headgate", "serve", *map(str, args)]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**KEYLESS, **(env or {})}
        )
        self.line = self.process.stdout.readline()
        self.port = int(self.line.rpartition(":")[2]) if "http" in self.line else None

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        self.process.kill()
        self.process.communicate()

    def ask(self, method, path, headers=None, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def listens(self):
        try:
            socket.create_connection(("127.0.0.1", self.port)).close()
        except ConnectionRefusedError:
            return False
        return True

    def stop(self, number):
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=20)
        return self.process.returncode, out, err


CHAT = json.dumps({"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]})
STREAM = json.dumps({**json.loads(CHAT), "stream": True, "max_tokens": 60})


def test_one_line_on_stdout_says_where_it_listens_and_sigterm_ends_it():
    with Sandbox("openai") as api, Serving("--to", api.url, "--listen", "127.0.0.1:0") as serving:
        assert serving.line == f"listening on http://127.0.0.1:{serving.port}\n"
        assert serving.ask("GET", "/.headgate/health") == (200, b'{"status": "ok"}')
        assert serving.ask("POST", "/v1/chat/completions", {}, CHAT)[0] == 200
        page = f"live page: http://127.0.0.1:{serving.port}/.headgate/ui; Ctrl-C to stop\n"
        assert serving.stop(signal.SIGTERM) == (0, "", page)


def test_stderr_says_what_programs_are_given_to_find_each_api():
    with Serving("openai", "local=http://127.0.0.1:1", "--listen", "127.0.0.1:0") as serving:
        address = f"http://127.0.0.1:{serving.port}"
        *given, page = serving.stop(signal.SIGTERM)[2].splitlines()
        assert given == [f"  OPENAI_BASE_URL={address}/openai/v1", f"  {address}/local"]
        assert page.startswith(f"live page: {address}/.headgate/ui")


def test_ctrl_c_ends_it_with_130():
    with Serving("openai", "--listen", "127.0.0.1:0") as serving:
        assert serving.stop(signal.SIGINT)[0] == 130


def test_sigterm_lets_a_running_stream_end_and_refuses_those_that_wait():
    options = {"tokens_per_second": 8, "reply_tokens": 16}
    with (
        Sandbox("openai", **options) as api,
        Serving("--to", api.url, "--listen", "127.0.0.1:0", "--concurrency", 1) as serving,
    ):
        running = http.client.HTTPConnection("127.0.0.1", serving.port, timeout=20)
        running.request(
            "POST", "/v1/chat/completions", json.dumps({**json.loads(CHAT), "stream": True, "max_tokens": 20})
        )
        response = running.getresponse()
        waiting = http.client.HTTPConnection("127.0.0.1", serving.port, timeout=20)
        waiting.request("POST", "/v1/chat/completions", CHAT)
        eventually(lambda: b'"waiting": 1' in serving.ask("GET", "/.headgate/state")[1], "it waits")
        serving.process.send_signal(signal.SIGTERM)
        refused = waiting.getresponse()
        assert refused.status == 503
        refused.read()
        assert response.read().endswith(b"data: [DONE]\n\n")
        running.close()
        waiting.close()
        assert serving.process.wait(20) == 0
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", serving.port))
        serving.process.communicate()


def test_a_second_signal_stops_it_at_once():
    with (
        Sandbox("openai", tokens_per_second=1, reply_tokens=60) as api,
        Serving("--to", api.url, "--listen", "127.0.0.1:0") as serving,
    ):
        running = http.client.HTTPConnection("127.0.0.1", serving.port, timeout=20)
        running.request("POST", "/v1/chat/completions", STREAM)
        running.getresponse()
        serving.process.send_signal(signal.SIGTERM)
        eventually(lambda: not serving.listens(), "it takes no new calls")
        assert serving.process.poll() is None, "it lets the stream go on"
        assert serving.stop(signal.SIGTERM)[0] == 0
        running.close()


def test_apis_by_name_have_a_path_each():
    with (
        Sandbox("openai") as one,
        Sandbox("anthropic") as other,
        Serving(f"local={one.url}", f"claude={other.url}", "--listen", "127.0.0.1:0", "-v") as serving,
    ):
        assert serving.ask("POST", "/local/v1/chat/completions", {}, CHAT)[0] == 200
        headers = {"x-api-key": "k", "anthropic-version": "2023-06-01"}
        assert serving.ask("POST", "/claude/v1/messages", headers, CHAT)[0] == 200
        status, body = serving.ask("GET", "/v1/models")
        assert status == 404
        assert "/local, /claude" in json.loads(body)["error"]["message"]
        status, _out, err = serving.stop(signal.SIGTERM)
        assert status == 0
        assert "POST /v1/messages 200, waited 0." in err


def test_a_file_of_settings(tmp_path):
    (tmp_path / "tokens").write_text("ann:token-of-ann\n")
    with Sandbox("openai", requests="1000/minute") as api:
        (tmp_path / "headgate.toml").write_text(
            f"""
            listen = "127.0.0.1:1"
            rate = "auto"
            patience = 5
            max_wait = 60
            token_file = "tokens"
            inject = true
            [upstreams.local]
            to = "{api.url}"
            key_env = "LOCAL_KEY"
            rate = ["900/minute", "1_000_000 tokens/minute"]
            concurrency = 7
            """
        )
        options = ("--config", tmp_path / "headgate.toml", "--listen", "127.0.0.1:0")
        with Serving(*options, env={"LOCAL_KEY": "sk-local"}) as serving:
            path, token = "/local/v1/chat/completions", {"authorization": "Bearer token-of-ann"}
            assert serving.ask("POST", path, {}, CHAT)[0] == 401
            assert serving.ask("POST", path, token, CHAT)[0] == 200
            state = json.loads(serving.ask("GET", "/.headgate/state", token)[1])
    gate = state["gates"][0]
    assert gate["concurrency"] == 7
    assert [(rate["limit"], rate["unit"]) for rate in gate["rates"]] == [
        (900, "requests"),
        (1_000_000, "tokens"),
    ]


def test_a_socket_of_a_file_is_for_this_user_only(tmp_path):
    path = tmp_path / "gate.sock"
    with Sandbox("openai") as api, Serving("--to", api.url, "--listen", f"unix:{path}") as serving:
        assert serving.line == f"listening on unix:{path}\n"
        assert path.stat().st_mode & 0o777 == 0o600
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(path))
            connection.sendall(b"GET /.headgate/health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert connection.recv(1000).startswith(b"HTTP/1.1 200 OK")


def test_a_gateway_that_was_killed_costs_the_store_one_lease(tmp_path):
    """Its place at the pool is free for others within a few seconds."""
    store, rate = f"sqlite:///{tmp_path}/limits.db", "100/second burst 100"
    options = ("--listen", "127.0.0.1:0", "--store", store, "--rate", rate, "--concurrency", 1)
    with Sandbox("openai", tokens_per_second=1, reply_tokens=60) as slow, Sandbox("openai") as api:
        with Serving("--to", slow.url, *options, "--store-key", "k") as first:
            held = http.client.HTTPConnection("127.0.0.1", first.port)
            held.request(
                "POST",
                "/v1/chat/completions",
                STREAM,
            )
            held.getresponse()
            first.process.kill()
            first.process.wait()
            held.close()
        with Serving("--to", api.url, *options, "--store-key", "k") as second:
            started = time.monotonic()
            assert second.ask("POST", "/v1/chat/completions", {}, CHAT)[0] == 200
            assert time.monotonic() - started < 10


@pytest.mark.parametrize(
    ("args", "error"),
    [
        ([], "needs an API"),
        (["nonsense"], "is not a known API"),
        (["openai", "openai"], "same path"),
        (["--to", "ftp://x"], "is not the URL of an API"),
        (["http://x:8000"], "write --to http://x:8000 for one API, or NAME=http://x:8000"),
        (["--to", "https://x/?a=b"], "neither password, query nor fragment"),
        (["--to", "https://a", "openai"], "--to is for one API"),
        (["openai", "--listen", "nowhere"], "is not an address"),
        (["openai", "--listen", "0.0.0.0:0"], "clients need a token"),
        (["openai", "--inject"], "holds no key to inject"),
        (["openai", "--rate", "auto", "--rate", "5/s"], "auto stands alone"),
        (["openai", "--store", "memory:", "--rate", "5/s"], "inside one process"),
        (["openai", "--config", "/nonexistent.toml"], "cannot read"),
        (["openai", "--token-file", "/nonexistent"], "cannot read"),
    ],
)
def test_what_cannot_work_is_said_in_one_line(args, error):
    done = headgate("serve", *args)
    assert done.returncode == 2
    assert error in told(done)[0]


def test_a_port_that_is_taken_is_said_in_one_line():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = headgate("serve", "openai", "--listen", f"127.0.0.1:{taken.getsockname()[1]}")
    assert done.returncode == 2
    error, hint = told(done)
    assert error.startswith("error: cannot listen on 127.0.0.1:")
    assert error.endswith(": another program listens there")
    assert "port 0" in hint


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("patiense = 5", "'patiense' is not known"),
        ("patience = 'long'", "patience = 'long' is not a number"),
        ("listen = 8429", "listen = 8429 is not a text"),
        ("retries = true", "retries = True is not a whole number"),
        ("inject = 'yes'", "inject = 'yes' is not true or false"),
        ("hosts = 'gateway.internal'", "hosts = 'gateway.internal' is not a list"),
        ("upstreams = 'openai'", "write [upstreams.openai]"),
        ("rate = 5", "headgate.toml: "),
        ("rate = '500 per fortnight'", "headgate.toml: rate '500 per fortnight'"),
        ("[upstreams.openai]\nrate = '5'", "upstreams.openai: rate '5'"),
        ("[upstreams.openai]\nconcurrency = 'x'", "upstreams.openai: concurrency='x'"),
        ("[upstreams.openai]\nto = 5", "upstreams.openai: to = 5 is not a text"),
        ("[upstreams.x]\nurl = 'https://a'", "'url' is not known"),
        ("[upstreams]\nx = 'https://a'", "is not a table"),
        ("= 5", "is not TOML"),
    ],
)
def test_a_file_that_is_wrong_is_said_in_one_line(tmp_path, text, error):
    path = tmp_path / "headgate.toml"
    path.write_text(text)
    done = headgate("serve", "--config", path)
    assert done.returncode == 2
    assert error in told(done)[0]
