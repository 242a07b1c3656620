"""Four processes share one limit by a file, without a server. For several machines write store="redis://...".

OPENAI_API_KEY=... python examples/several_processes.py
"""

import multiprocessing
import sys
import tempfile
from pathlib import Path

from openai import OpenAI

from headgate import Dispatch
from headgate.http.httpx import client


def work(number: int, store: str, calls: int) -> None:
    """One process: a Dispatch of the same store and key is the same gate."""
    with Dispatch("openai", rates="600/minute burst 10", concurrency=8, pause=True, store=store) as gate:
        openai = OpenAI(http_client=client(gate), max_retries=0)
        for call in range(calls):
            openai.chat.completions.create(
                model="gpt-5-mini",
                messages=[{"role": "user", "content": f"Call {call} of process {number}"}],
                max_completion_tokens=20,
            )
        openai.close()


def main() -> int:
    with tempfile.TemporaryDirectory() as directory:
        store = f"sqlite:///{Path(directory) / 'limits.db'}"
        spawn = multiprocessing.get_context("spawn")
        workers = [spawn.Process(target=work, args=(number, store, 5)) for number in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    failed = sum(worker.exitcode != 0 for worker in workers)
    print(f"{len(workers)} processes, {failed} failed")
    return failed


if __name__ == "__main__":
    sys.exit(main())
