"""Worker processes that share limits while things fail, each with a file of all that it did for each limit.

with Team(folder, {"valkey": {"store": server.url}, "file": {"store": url}}) as team:
    team.begin(5, windows=[(1, 2)])     # seconds; a backoff window begins after one of them, for two
    team.wait_until(3)
    team.kill(2)                        # kill -9 of the third process, and so of all its gates
    said = team.ends()                  # what each process heard of its stores, by name
    team.judge("valkey").excess         # what the referee counted
"""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from uuid import uuid4

from faults.referee import judge

RATE, BURST, PLACES = 100, 50, 8


class Team:
    """The processes. Each of them has a gate for each of the limits, which are options of a gate by name.

    An option that is a list has a value for each process. A `store` that is a dictionary of ports is a
    cluster: see `cluster_client.py`.
    """

    def __init__(self, folder, limits, many=4, **common):
        common = {
            "rates": f"{RATE}/s burst {BURST}",
            "concurrency": PLACES,
            "takes": 0.02,
            "tasks": 6,
            "on_loss": "share",
            "off": 0,
            **common,
        }
        keys = {name: f"{name} {uuid4().hex}" for name in limits}
        self.logs = {name: [folder / f"{key} {n}" for n in range(many)] for name, key in keys.items()}
        self.deaths = {}
        self._stopped = set()
        self.longest_pause = 0.0  # in which the machine did not let a process run
        program = str(Path(__file__).with_name("worker.py"))
        self.workers = []
        for n in range(many):
            gates = {
                name: {
                    **{
                        option: value[n] if isinstance(value, list) else value
                        for option, value in {**common, **options}.items()
                    },
                    "key": keys[name],
                    "log": str(self.logs[name][n]),
                    "signals": n == 0,
                }
                for name, options in limits.items()
            }
            command = [sys.executable, program, json.dumps(gates)]
            self.workers.append(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )

    def __enter__(self):
        try:
            for worker in self.workers:
                assert worker.stdout.readline() == "ready\n"
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for worker in self.workers:
            worker.kill()
            worker.communicate()

    def begin(self, seconds, *, windows=()):
        """Have them call for so long, and the first one start backoff windows: when, and for how long."""
        self.begun = time.monotonic() + 0.1
        facts = [self.begun, self.begun + seconds]
        for at, length in windows:
            facts += [self.begun + at, length]
        for worker in self.workers:
            worker.stdin.write(" ".join(map(str, facts)) + "\n")
            worker.stdin.flush()

    def wait_until(self, seconds):
        time.sleep(max(0.0, self.begun + seconds - time.monotonic()))

    def stop(self, n):
        """SIGSTOP."""
        self._stopped.add(n)
        self.workers[n].send_signal(signal.SIGSTOP)

    def go_on(self, n):
        """SIGCONT."""
        self.workers[n].send_signal(signal.SIGCONT)

    def kill(self, n):
        """kill -9."""
        self.workers[n].kill()
        self.workers[n].wait()
        self.deaths |= {logs[n]: time.monotonic() for logs in self.logs.values()}

    def ends(self):
        """Wait for all that live. Return what each of them said last."""
        said = []
        for n, worker in enumerate(self.workers):
            last, _ = worker.communicate(timeout=60)
            if not any(logs[n] in self.deaths for logs in self.logs.values()):
                assert worker.returncode == 0
                said.append(json.loads(last))
                if n not in self._stopped:
                    self.longest_pause = max(self.longest_pause, said[-1]["longest pause"])
        return said

    def judge(self, name, rate=RATE, burst=BURST, who=slice(None)):
        """Return what these processes did at that gate. Times begin with the work of the team."""
        return judge(self.logs[name][who], rate, burst, self.deaths, self.begun)


def calmly(run):
    """Return what a run returns: a team that has ended, and what it said.

    A process that was not let run uses what it was granted later than it should, and what it told late was
    told to others late. So if the machine stood still for a tenth of a second, it runs again, up to three
    times, and the run in which the machine stood still for the shortest time is the one that counts.
    """
    runs = []
    for _ in range(3):
        team, said = run()
        runs.append((team.longest_pause, len(runs), team, said))
        if team.longest_pause < 0.1:
            break
    _, _, team, said = min(runs)
    return team, said
