"""A process that shares a budget, run by the tests: reserves as fast as it can and prints every reservation.

One line for each: the user, and between which moments of the monotonic clock, which all processes of a
machine have in common. What is printed has been granted; if the process is killed, more may have been.
"""

import json
import sys
import time
from threading import Thread

from headgate import BudgetBook, BudgetExceeded, StoreError


def main(options):
    book = BudgetBook(
        {"free": {"windows": options["user"], "max_tokens_per_request": None}},
        organizations={"acme": {"windows": options["organization"], "max_tokens_per_request": None}},
        store=options["store"],
        key=options["key"],
    )
    print("ready", flush=True)
    begin, end = map(float, sys.stdin.readline().split())  # told when all are ready
    time.sleep(max(0.0, begin - time.monotonic()))

    def work(number):
        budget = book.for_user(f"user {number}", organization="acme")
        while time.monotonic() < end:
            before = time.monotonic()
            try:
                reservation = budget.reserve(options["tokens"])
            except BudgetExceeded as refusal:
                time.sleep(min(refusal.retry_after, 0.05))
                continue
            except StoreError:
                continue
            after = time.monotonic()
            if options.get("settles") is not None:
                reservation.settle(options["settles"])
            sys.stdout.write(json.dumps([number, before, after]) + "\n")
            sys.stdout.flush()

    threads = [Thread(target=work, args=(number,)) for number in range(options["threads"])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    book.close()
    print("done", flush=True)


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    for level in ("user", "organization"):
        given[level] = {float(period): most for period, most in given[level].items()}
    main(given)
