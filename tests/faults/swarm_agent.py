"""One agent of a swarm, as a program: `python swarm_agent.py BUS NAME LEASE`.

It makes calls all the time, in a thread. Its standard input has one command a line, and it answers each with
one line of JSON. Times are of the monotonic clock, which all processes share.
"""

import json
import sys
import threading
import time

from headgate import DistributedLimiter, events

RESOURCES = ("api", "other", "later")


def main(bus, name, lease):
    changes, errors = [], []

    def observe(event):
        if isinstance(event, (events.CapacityChanged, events.BusLost, events.BusRegained)):
            total = getattr(event, "total", None)
            changes.append([time.monotonic(), type(event).__name__, event.key, total])

    limiter = DistributedLimiter(bus=bus, agent_id=name, lease=float(lease), observer=observe)
    for resource in RESOURCES:
        limiter.set_capacity(resource, 800, 60, burst=1)

    def work():
        while True:
            try:
                limiter.acquire("api")
            except Exception as error:  # noqa: BLE001 - the test checks that there is none
                errors.append(repr(error))
                return

    threading.Thread(target=work, daemon=True).start()
    for line in sys.stdin:
        word, _, resource = line.strip().partition(" ")
        answer = {"at": time.monotonic()}
        if word == "announce":
            limiter.announce_reduced(resource, "429")
        answer["changes"], answer["errors"], answer["connected"] = changes, errors, limiter.connected
        answer["leads"] = {key: limiter._agent.resources[key].membership.is_leader for key in RESOURCES}
        for key in RESOURCES:
            standing = limiter.get_capacity(key)
            answer[key] = [standing.total, standing.share]
        print(json.dumps(answer), flush=True)
        if word == "leave":
            limiter.close()
            return


if __name__ == "__main__":
    main(*sys.argv[1:])
