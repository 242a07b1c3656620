"""Fleets chosen at random, with processes near and far, most with small bursts: what is above is a defect.

    .venv/bin/python tests/sharing/random_fleets.py calling 0 160       # all callers call all the time
    .venv/bin/python tests/sharing/random_fleets.py returning 0 160     # callers give up and return
    .venv/bin/python tests/sharing/random_fleets.py forgetting 0 80     # and the store loses everything
    .venv/bin/python tests/sharing/random_fleets.py losing 0 160        # all lose the store for a while

Each line is one fleet: what was above the limit, in calls; the part of the rate that was used; how far the
parts of the processes were from equal ones; questions for each call. The same number is the same fleet.
"""

import logging
import sys
from pathlib import Path
from random import Random
from typing import NamedTuple

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))

from fleet import Fleet, unevenness


class Found(NamedTuple):
    number: int
    rate: int
    burst: int
    trips: list
    ways: list  # back from the store, as parts of the trips; or what happened
    above: float
    used: float
    uneven: float
    questions: float


def _trips(random, processes, far):
    """Return the round trip of each process in seconds: those that are far come first."""
    return [
        round(random.uniform(0.03, 1.0) if random.random() < 0.5 else random.uniform(0.03, 0.3), 3)
        if n < far
        else round(random.uniform(0, 0.005), 4)
        for n in range(processes)
    ]


def calling(number, seconds=30):
    """Bursts of no more calls than there are processes, which all call all the time."""
    random = Random(number)
    processes = random.randint(2, 6)
    burst, rate = random.randint(1, processes), random.choice([10, 20, 50, 100, 200, 464, 978, 2000])
    trips = _trips(random, processes, random.randint(1, processes))
    way = random.choice([0, 0.5, 1])
    with Fleet(rates=[f"{rate}/s burst {burst}"]) as fleet:
        for trip in trips:
            fleet.join(trip=trip, back=trip * way)
        fleet.run(3)
        fleet.work(tasks=random.choice([5, 50]))
        fleet.run(3)
        steady = fleet.now
        fleet.run(seconds)
        used = len(fleet.times(steady)) / rate / seconds
        uneven = unevenness(fleet.parts(steady))
        above = fleet.excess(rate, burst)
        return Found(number, rate, burst, trips, [way], above, used, uneven, fleet.questions())


def returning(number, forgets=0.0):
    """Few or many callers of each process, some slow, that come, give up and come back."""
    random = Random(f"c{number}")
    processes = random.randint(2, 6)
    burst, rate = random.randint(1, processes + 2), random.choice([5, 10, 20, 50, 100, 200, 464, 978, 2000])
    trips = _trips(random, processes, random.randint(1, processes))
    ways = [random.choice([0, 0.5, 1, random.random()]) for _ in trips]
    with Fleet(rates=[f"{rate}/s burst {burst}"]) as fleet:
        for trip, way in zip(trips, ways, strict=True):
            fleet.join(trip=trip, back=trip * way)

        def forget():
            if forgets and random.random() < forgets:
                fleet.store._pools._kept.clear()

        fleet.run(random.uniform(0.5, 3))
        for _ in range(6):
            for process in fleet.processes:
                if random.random() < 0.6:
                    tasks = random.choice([1, 1, 3, 20, 50])
                    pause = random.choice([0, 0, 0, 0.1, 0.5])
                    fleet.work(process, tasks=tasks, pause=pause, takes=random.choice([0, 0, 0.02]))
            fleet.run(random.uniform(0.2, 3))
            forget()
            fleet.stop_work()
            fleet.run(random.choice([0, 0.02, 0.3, random.uniform(0, 1.5)]))
            forget()
        ways = [round(way, 2) for way in ways]
        return Found(number, rate, burst, trips, ways, fleet.excess(rate, burst), 0, 0, fleet.questions())


def forgetting(number):
    """The same, where the store loses everything about every third time that callers come or go."""
    return returning(number, 0.3)


def losing(number):
    """All lose the store, which refuses connections or is silent, and find it again.

    All call all the time, or some of them do, give up and return. Two of three bursts are of more calls than
    there are processes.
    """
    random = Random(f"l{number}")
    processes = random.randint(2, 8)
    rate = random.choice([5, 10, 20, 50, 100, 200, 464, 978, 2600])
    if random.random() < 0.35:
        burst = random.randint(1, processes)
    else:
        burst = random.randint(processes + 1, max(processes + 2, random.choice([20, rate])))
    trips = _trips(random, processes, random.choice([0, 1]))
    how, busy = random.choice(["away", "dead"]), random.random() < 0.6
    with Fleet(rates=[f"{rate}/s burst {burst}"]) as fleet:
        for trip in trips:
            fleet.join(trip=trip, back=trip * random.choice([0, 0.5, 1]))

        def call():
            for process in fleet.processes:
                if busy or random.random() < 0.7:
                    pause = 0 if busy else random.choice([0, 0, 0.1])
                    fleet.work(process, tasks=random.choice([1, 5, 20, 50]), pause=pause)

        def go_on(seconds):
            end = fleet.now + seconds
            while fleet.now < end:
                fleet.run(random.uniform(0.2, 2))
                if not busy:
                    fleet.stop_work()
                    fleet.run(random.choice([0, 0.05, random.uniform(0, 1)]))
                    call()

        fleet.run(random.uniform(0.5, 3))
        call()
        fleet.run(random.uniform(0, 3))
        for process in fleet.processes:
            setattr(process.line, how, True)
        go_on(random.uniform(0.3, 8))
        for process in fleet.processes:
            setattr(process.line, how, False)
        go_on(9)
        used = len(fleet.times(fleet.now - 3)) / rate / 3
        ways = [how, "all" if busy else "some"]
        return Found(number, rate, burst, trips, ways, fleet.excess(rate, burst), used, 0, fleet.questions())


KINDS = {kind.__name__: kind for kind in (calling, returning, forgetting, losing)}


def main(kind, first, last):
    logging.getLogger("headgate").setLevel(logging.CRITICAL)
    found = []
    for number in range(int(first), int(last)):
        found.append(KINDS[kind](number))
        print(found[-1], flush=True)
    above = [each.above for each in found if each.above > 0]
    print(f"{len(above)} of {len(found)} above, by {max([0, *above]):.2f} calls at most")
    if kind == "losing":
        larger = [each for each in found if each.burst > len(each.trips)]
        for who in ("all", "some"):
            excess = [max(0, each.above) for each in larger if who in each.ways]
            many = f"{sum(each > 0.01 for each in excess)} of {len(excess)}"
            print(f"larger bursts, {who} call: {many} above, by {max(excess):.2f} calls at most")
    if kind == "calling":
        print(f"{sum(each.used for each in found) / len(found):.1%} of the rate used on average")


if __name__ == "__main__":
    main(*sys.argv[1:])
