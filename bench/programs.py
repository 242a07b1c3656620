"""Four programs in three languages share one key behind one gateway: the time they take, over the ideal.

The API is the sandbox with 1,200 requests a minute and a burst of 20. Two programs in Python (threads, and
the OpenAI SDK in tasks), one in Node and one in a shell with curl send their calls as fast as they can. The
ideal is what the bucket of the API admits. The gateway knows no rate: it learns what answers state.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys

from headgate.sandbox import Sandbox
from measure import table

RATE, BURST = 20.0, 20
_THREADS = """
import json, os, sys, urllib.error, urllib.request
from concurrent.futures import ThreadPoolExecutor
body = json.dumps({"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}).encode()
headers = {"authorization": "Bearer k", "content-type": "application/json"}
def ask(_):
    try:
        url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
        return urllib.request.urlopen(urllib.request.Request(url, body, headers)).status
    except urllib.error.HTTPError as error:
        return error.code
with ThreadPoolExecutor(int(sys.argv[1])) as pool:
    print(json.dumps(list(pool.map(ask, range(int(sys.argv[1]))))))
"""
_TASKS = """
import asyncio, json, sys
from openai import AsyncOpenAI, APIStatusError
async def main():
    async with AsyncOpenAI(api_key="k", max_retries=0) as sdk:
        async def ask():
            try:
                messages = [{"role": "user", "content": "hi"}]
                await sdk.chat.completions.create(model="m", max_tokens=5, messages=messages)
            except APIStatusError as error:
                return error.status_code
            return 200
        print(json.dumps(await asyncio.gather(*(ask() for _ in range(int(sys.argv[1]))))))
asyncio.run(main())
"""
_NODE = """
const body = JSON.stringify({model: 'm', max_tokens: 5, messages: [{role: 'user', content: 'hi'}]});
const headers = {authorization: 'Bearer k', 'content-type': 'application/json'};
const ask = async () => {
  const url = process.env.OPENAI_BASE_URL + '/chat/completions';
  const answer = await fetch(url, {method: 'POST', body, headers});
  await answer.text();
  return answer.status;
};
const calls = Array.from({length: Number(process.argv[1])}, ask);
Promise.all(calls).then((all) => console.log(JSON.stringify(all)));
"""
_SHELL = """
for n in $(seq "$1"); do
  curl -s -o /dev/null -w '%{http_code}\\n' "$OPENAI_BASE_URL/chat/completions" \\
    -H 'authorization: Bearer k' -H 'content-type: application/json' \\
    -d '{"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}' &
done
wait
"""


def _commands(calls: int) -> dict[str, list[str]]:
    found = {
        "Python, threads": [sys.executable, "-c", _THREADS, str(calls)],
        "Python, OpenAI SDK": [sys.executable, "-c", _TASKS, str(calls)],
        "sh and curl": ["sh", "-c", _SHELL, "sh", str(calls)],
    }
    if shutil.which("node"):
        found["Node, fetch"] = ["node", "-e", _NODE, str(calls)]
    return found


def _run(address: str, calls: int) -> dict[str, list[int]]:
    """The statuses that each program saw."""
    environment = {**os.environ, "OPENAI_BASE_URL": f"{address}/v1"}
    running = {
        name: subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        for name, command in _commands(calls).items()
    }
    seen = {}
    for name, process in running.items():
        out = process.communicate()[0]
        seen[name] = json.loads(out) if out.startswith("[") else list(map(int, out.split()))
    return seen


def race(calls: int, *, gateway: bool) -> tuple[dict[str, list[int]], float]:
    """What the programs saw, and the seconds between the first and the last call that the API admitted."""
    with Sandbox("openai", requests=f"{RATE * 60:.0f}/minute burst {BURST}", refusals_count=False) as api:
        if not gateway:
            seen = _run(api.url, calls)
        else:
            command = [sys.executable, "-m", "headgate", "serve", "--to", api.url, "--listen", "127.0.0.1:0"]
            serving = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            assert serving.stdout is not None
            try:
                seen = _run(serving.stdout.readline().split()[-1], calls)
            finally:
                serving.terminate()
                serving.communicate()
        report = api.report()
    return seen, report.last_admission - report.first_admission


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--calls", type=int, default=120, help="of each program")
    parser.add_argument("--quick", action="store_true", help="few calls: to see that it runs")
    options = parser.parse_args()
    if options.quick:
        options.calls = 20
    rows = []
    for name, gateway in (("without a gateway", False), ("one gateway", True)):
        seen, took = race(options.calls, gateway=gateway)
        total = sum(map(len, seen.values()))
        refused = sum(status == 429 for statuses in seen.values() for status in statuses)
        ideal = (total - BURST) / RATE
        over = f"{took / ideal:.3f}" if not refused else "–"
        rows.append((name, len(seen), total, refused, over))
    table(("", "programs", "calls", "429s that programs saw", "time over ideal"), rows)


if __name__ == "__main__":
    main()
