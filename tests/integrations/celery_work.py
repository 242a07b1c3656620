"""Two forked workers of Celery that share one gate by a file. Prints JSON: what each task saw.

Started by test_celery.py as `python celery_work.py FOLDER`; the worker imports it too.
"""

import functools
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import celery

import headgate
from headgate import Dispatch

FOLDER = os.environ.get("CELERY_FOLDER") or sys.argv[1]
TASKS = 12  # of each pattern

app = celery.Celery("celery_work", broker="filesystem://", backend=f"file://{FOLDER}/results")
app.conf.update(
    broker_transport_options={
        "data_folder_in": f"{FOLDER}/queue",
        "data_folder_out": f"{FOLDER}/queue",
        "control_folder": f"{FOLDER}/control",
    },
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
)


@functools.cache
def gate():
    return Dispatch("api", rates="10/s burst 1", store=f"sqlite:///{FOLDER}/limits.db")


@app.task
def waits():
    with gate().admit(timeout=60):
        return os.getpid(), time.time()


@app.task(bind=True, max_retries=None)
def comes_back(self):
    try:
        permit = gate().admit(timeout=0.15).enter()
    except headgate.Refused as refusal:
        raise self.retry(countdown=refusal.retry_after or 0.5) from refusal
    with permit:
        return os.getpid(), time.time()


def main():
    for name in ("queue", "results"):
        Path(FOLDER, name).mkdir()
    command = [sys.executable, "-m", "celery", "-A", "celery_work", "worker", "--pool", "prefork"]
    worker = subprocess.Popen(
        [*command, "--concurrency", "2", "--loglevel", "WARNING", "--without-gossip", "--without-mingle"],
        env=os.environ | {"CELERY_FOLDER": FOLDER, "C_FORCE_ROOT": "1"},
        cwd=Path(__file__).parent,
        stdout=sys.stderr,
    )
    try:
        results = [task.delay() for _ in range(TASKS) for task in (waits, comes_back)]
        seen = [result.get(timeout=60) for result in results]
    finally:
        worker.terminate()
        worker.wait()
    print(json.dumps({"seen": seen, "worker": worker.returncode}))


if __name__ == "__main__":
    main()
