"""Worker processes that share one key while things fail, each with a file of all that it did."""

import json
import subprocess
import sys
import time
from itertools import chain, repeat
from pathlib import Path
from uuid import uuid4

RATE, BURST, PLACES = 200, 50, 8


class Team:
    """Worker processes of one key, and their files."""

    def __init__(self, folder, *stores, many=4, **options):
        """The first processes have one store each, all others the last one."""
        options = {"key": f"key {uuid4().hex}", "rates": [f"{RATE}/s burst {BURST}"], **options}
        options = {"concurrency": PLACES, "takes": 0.02, "tasks": 6, **options}
        self.logs = [folder / f"worker {options['key'][-8:]} {n}" for n in range(many)]
        self.deaths = {}
        command = [sys.executable, str(Path(__file__).with_name("worker.py"))]
        self.workers = [
            subprocess.Popen(
                [*command, json.dumps({**options, "store": store, "log": str(log), "signals": n == 0})],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for n, (log, store) in enumerate(zip(self.logs, chain(stores, repeat(stores[-1])), strict=False))
        ]

    def __enter__(self):
        for worker in self.workers:
            assert worker.stdout.readline() == "ready\n"
        return self

    def __exit__(self, *_):
        for worker in self.workers:
            worker.kill()
            worker.communicate()

    def begin(self, seconds, *, at=None, window_at=1e9, window=0.0):
        """Have them call for so long, and the first one start a backoff window."""
        self.begun = time.monotonic() + 0.1 if at is None else at
        for worker in self.workers:
            facts = (self.begun, self.begun + seconds, self.begun + window_at, window)
            worker.stdin.write(" ".join(map(str, facts)) + "\n")
            worker.stdin.flush()

    def wait_until(self, seconds):
        time.sleep(max(0.0, self.begun + seconds - time.monotonic()))

    def kill(self, n):
        """kill -9."""
        self.workers[n].kill()
        self.workers[n].wait()
        self.deaths[self.logs[n]] = time.monotonic()

    def ends(self):
        """Wait for all that live. Return what they said last."""
        for n, worker in enumerate(self.workers):
            said, _ = worker.communicate(timeout=60)
            if self.logs[n] not in self.deaths:
                assert worker.returncode == 0
                yield json.loads(said)
