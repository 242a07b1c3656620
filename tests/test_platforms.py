"""headgate where there is no fork, no Unix socket, no `fcntl` and no `resource`, as on Windows.

No test runs on Windows itself: these take away from this system what Windows does not have.
"""

import json
import subprocess
import sys
import textwrap

# Other libraries look at the platform too, so they are loaded before.
LIBRARIES = [
    "aiohttp",
    "anthropic",
    "click",
    "fastapi",
    "httpx",
    "httpx2",
    "nats",
    "openai",
    "opentelemetry.sdk.trace",
    "prometheus_client",
    "psycopg",
    "redis.asyncio",
    "requests",
    "rich.live",
    "rich.progress",
    "rich.prompt",
    "tenacity",
    "trio",
    "valkey.asyncio",
]
STANDARD = [
    "asyncio",
    "ctypes",
    "logging.handlers",
    "multiprocessing.context",
    "sqlite3",
    "ssl",
    "subprocess",
    "tempfile",
    "uuid",
]
WITHOUT = """
import importlib, os, pkgutil, signal, socket, sys
for name in libraries:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        pass
import asyncio
pair, unix = socket.socketpair, socket.AF_UNIX
socket.socketpair = lambda *family: pair(unix)  # there it is made of TCP sockets
for name in ("fcntl", "resource", "termios", "pwd", "grp", "pty"):
    sys.modules[name] = None  # an import raises ImportError
for module, names in (
    (os, "fork register_at_fork getuid geteuid getpgid killpg"),
    (socket, "AF_UNIX"),
    (signal, "SIGHUP SIGUSR1 SIGUSR2 SIGCHLD SIGTSTP SIGCONT SIGWINCH SIGQUIT"),
    (asyncio, "open_unix_connection start_unix_server"),
):
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
sys.platform = "win32"

def no_handlers(*args):
    raise NotImplementedError

asyncio.BaseEventLoop.add_signal_handler = asyncio.SelectorEventLoop.add_signal_handler = no_handlers
"""


def run(program, *libraries):
    source = f"libraries = {[*STANDARD, *libraries]}\n{WITHOUT}{textwrap.dedent(program)}"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", source],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_module_can_be_imported():
    shown = run(
        """
        import headgate
        frameworks = {"langchain", "llama_index", "boto3"}
        count = 0
        for module in pkgutil.walk_packages(headgate.__path__, "headgate."):
            if module.name.rpartition(".")[2] not in frameworks | {"__main__"}:
                importlib.import_module(module.name)
                count += 1
        print(count)
    """,
        *LIBRARIES,
    )
    assert int(shown) > 200


def test_threads_and_tasks_wait_in_one_line():
    shown = run("""
        import threading
        from headgate import Dispatch, WaitTimeout
        gate = Dispatch("api", rates="50/s burst 1", concurrency=2)

        def call():
            with gate.admit(timeout=10):
                pass

        async def task():
            async with gate.admit(timeout=10):
                pass

        async def tasks():
            await asyncio.gather(*(task() for _ in range(5)))

        threads = [threading.Thread(target=call) for _ in range(5)]
        for thread in threads:
            thread.start()
        asyncio.run(tasks())
        for thread in threads:
            thread.join()
        totals = gate.snapshot().totals
        print(totals.admitted, totals.waited > 0)
    """)
    assert shown == "10 True\n"


def test_processes_share_a_file(tmp_path):
    shown = run(f"""
        from headgate import Dispatch
        with Dispatch("api", rates="600/minute", store={f"sqlite:///{tmp_path}/limits.db"!r}) as gate:
            with gate.admit(timeout=10):
                print("admitted")
    """)
    assert shown == "admitted\n"


def test_publish_says_what_is_missing():
    shown = run("""
        import headgate
        try:
            headgate.publish()
        except headgate.InvalidConfig as error:
            print(error)
    """)
    assert shown == "publish() needs Unix sockets, which this system does not have\n"


def test_a_file_of_requests_is_sent(tmp_path):
    job = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions"}
    job["body"] = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
    (tmp_path / "jobs.jsonl").write_text(json.dumps(job) + "\n")
    shown = run(
        f"""
        from headgate.sandbox import Sandbox
        from headgate.cli import main
        with Sandbox("openai", requests="600/minute") as api:
            sys.argv = ["headgate", "run", {str(tmp_path / "jobs.jsonl")!r}, "--to", api.url, "-o",
                        {str(tmp_path / "answers.jsonl")!r}]
            try:
                main()
            except SystemExit as ended:
                print("status", ended.code or 0)
            print("requests", api.report().admitted)
    """,
        "aiohttp",
        "click",
        "rich.live",
        "rich.progress",
    )
    assert "requests 1" in shown, shown
    assert '"custom_id":"a"' in (tmp_path / "answers.jsonl").read_text().replace(" ", "")
