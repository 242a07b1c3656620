"""Several processes of one program that share something, from a common beginning to a common end.

Each is given its options as JSON, prints "ready", and reads a line that says when to begin and to end. Times
are of the monotonic clock, which all processes of a machine have in common.
"""

import json
import subprocess
import sys
import time
from pathlib import Path


class Processes:
    def __init__(self, program, options):
        """Start one process for each of the options. They begin when they are told, a moment from now."""
        command = [sys.executable, str(Path(__file__).with_name(program))]
        self.running = [
            subprocess.Popen(
                [*command, json.dumps(each)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            for each in options
        ]
        for process in self.running:
            assert process.stdout.readline() == "ready\n"
        self.begin = time.monotonic() + 0.1

    def tell(self, process, words):
        process.stdin.write(words + "\n")
        process.stdin.flush()

    def tell_all(self, seconds):
        """Tell all of them when to begin and when to end."""
        for process in self.running:
            self.tell(process, f"{self.begin} {self.begin + seconds}")

    def wait_until(self, seconds):
        time.sleep(max(0.0, self.begin + seconds - time.monotonic()))

    def kill(self, process):
        """kill -9. Return what it had printed and was not read yet."""
        self.running.remove(process)
        process.kill()
        return process.communicate()[0]

    def said(self):
        """Return all that each of them printed, when they have ended well."""
        for process in self.running:
            said, _ = process.communicate(timeout=60)
            assert process.returncode == 0
            yield said

    def results(self):
        """Return the last line of each."""
        return [json.loads(said.splitlines()[-1]) for said in self.said()]
