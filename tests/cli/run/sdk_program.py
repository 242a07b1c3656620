"""A program with the OpenAI SDK that shares its limits: URL STORE RATE COUNT FILE.

Sends COUNT requests from a few threads, and writes a line to FILE for each answer.
"""

import signal
import sys
import threading
from itertools import count
from pathlib import Path

import httpx2
import openai

from headgate import Dispatch
from headgate.http import per_host
from headgate.http.httpx import Transport


def main(url, store, rate, most, path):
    gates = per_host(lambda host: Dispatch(host, rates=rate, store=store))
    http = httpx2.Client(transport=Transport(gates), timeout=60)
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0, http_client=http)
    numbers = count()

    def work():
        while next(numbers) < int(most):
            client.chat.completions.create(
                model="m", max_tokens=20, messages=[{"role": "user", "content": "hi"}]
            )
            with Path(path).open("a") as file:
                file.write("answer\n")

    threads = [threading.Thread(target=work, daemon=True) for _ in range(8)]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has its background jobs ignore it
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
