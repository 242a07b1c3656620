"""Runs two copies of a coding agent behind `headgate exec`, against an API that is busy for a while.

Started by test_agents.py in a network of its own: `python agents.py COMMAND...`. Prints JSON: what the
commands printed, and what the API got.
"""

import json
import subprocess
import sys
import threading
import time

from gateway.answers import answer_to
from gateway.rig import Loop, RecordingApi, reply

PAUSE = 3  # seconds that lie between two calls at least, or the later one is refused
REFUSED = b'{"type": "error", "error": {"type": "rate_limit_error", "message": "slow down"}}'


class PacedApi(RecordingApi):
    """Answers as the APIs of both agents do, and refuses a call that comes too soon."""

    def __init__(self):
        super().__init__(self._paced)
        self.statuses = []
        self._free_at = 0.0

    def _paced(self, request):
        status, path = 200, request.target.partition("?")[0]
        if request.method == "POST" and path.endswith(("/messages", "/responses")):
            now = time.monotonic()
            if now < self._free_at:
                status = 429
            else:
                self._free_at = now + PAUSE
        self.statuses.append(status)
        if status == 429:
            return reply(REFUSED, "429 Too Many Requests", "application/json", f"Retry-After: {PAUSE}")
        if request.headers.get("content-encoding"):
            request.body = b'{"stream": true}'
        return answer_to(request)


def main(command):
    loop, api = Loop(), PacedApi()
    loop.run(api.start())
    patience = ["--patience", "0.5"]  # the second one is kept waiting by signs of life
    start = [sys.executable, "-m", "headgate", "exec", "--to", api.url, *patience, "--", *command]
    done = []

    def run():
        done.append(
            subprocess.run(
                start, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=90, check=False
            )
        )

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    requests = [
        {"method": one.method, "target": one.target, "headers": one.headers, "status": status}
        for one, status in zip(api.requests, api.statuses, strict=True)
    ]
    runs = [{"status": one.returncode, "out": one.stdout, "err": one.stderr} for one in done]
    print(json.dumps({"runs": runs, "requests": requests}))
    loop.run(api.close())
    loop.close()


if __name__ == "__main__":
    main(sys.argv[1:])
