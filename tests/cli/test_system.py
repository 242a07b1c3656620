"""What commands ask of the operating system, and Windows in particular."""

import subprocess
import sys

WITHOUT = """
import asyncio, sys
import aiohttp, click, httpx2, rich.console, rich.live, rich.progress_bar, rich.table, sqlite3
sys.modules["fcntl"] = sys.modules["resource"] = None
sys.platform = "win32"
import headgate.cli.app, headgate.cli.run.execute, headgate.cli.run.forecast, headgate.cli.demo.race
from headgate.cli.system import allow_connections, lock_file, on_stop_signals
allow_connections(100_000)
assert lock_file(0)
async def main():
    loop = asyncio.get_running_loop()
    def missing(*_):
        raise NotImplementedError
    loop.add_signal_handler = missing
    heard = loop.create_future()
    on_stop_signals(heard.set_result)
    import signal
    signal.raise_signal(signal.SIGTERM)
    print(await heard == signal.SIGTERM)
asyncio.run(main())
"""


def test_commands_work_without_fcntl_resource_and_signal_handlers_of_the_loop():
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "True"), done.stderr
