"""A process that shares a circuit breaker, run by the tests: does as told and prints what happened as JSON.

Times are of the monotonic clock, which all processes of a machine have in common.
"""

import json
import sys
import time

from headgate import CircuitBreaker, CircuitBreakerOpen, CircuitState


def main(options):
    breaker = CircuitBreaker(
        options["threshold"],
        options["recovery"],
        key=options["key"],
        store=options["store"],
        probe_timeout=options["probe_timeout"],
    )
    print("ready", flush=True)
    told = json.loads(sys.stdin.readline())  # when all are ready: calls from, down until, end
    reached, refused, opened, closed = [], [], None, None

    def ask():
        begun = time.monotonic()
        if begun < told["down_until"]:
            reached.append([begun, begun])
            raise ConnectionError("down")
        print("probing", flush=True)
        time.sleep(options["takes"])
        reached.append([begun, time.monotonic()])

    while time.monotonic() < told["end"]:
        now, state = time.monotonic(), breaker.state
        if opened is None and state is not CircuitState.CLOSED:
            opened = now
        if opened is not None and closed is None and state is CircuitState.CLOSED:
            closed = now
        if now >= told["calls_from"]:
            try:
                breaker.call(ask)
            except CircuitBreakerOpen as refusal:
                refused.append(refusal.retry_after)
            except ConnectionError:
                pass
        time.sleep(0.002)
    print(
        json.dumps({"reached": reached, "refused": refused, "opened": opened, "closed": closed}), flush=True
    )


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
