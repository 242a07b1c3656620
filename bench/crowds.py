"""Large crowds on one store, in virtual time: questions a second, fairness, and how fast they recover.

Processes are real gates and members on one loop whose time is virtual, and their store is the pool itself.
It answers at once, or takes as long for each question as a real one was measured to take (`ceilings.py`).
A hundred thousand keys are served by the pool's arithmetic alone. The figures are those of the rules, and
the same on every machine.
"""

import logging
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

SECOND = 1_000_000


def one_key(many, each, *, takes=0.0, seconds=10, settle=5, **options):
    """`each`: calls a second of the limit for each member, and as large a burst. Returns a row."""
    from crowds import Crowd
    from fleet import unevenness

    with Crowd(many * each, many * each, many, takes=lambda _members: takes, **options) as crowd:
        crowd.begin(settle)
        crowd.run(seconds)
        calls = crowd.parts(crowd.marked)
        questions, use, parts = crowd.per_second, crowd.use, unevenness(calls)
        for process in crowd.processes[: many // 10]:
            crowd.kill(process)
        died = crowd.used_again_after()
        for process in crowd.processes:
            process.line.away = True
        crowd.run(5)
        for process in crowd.processes:
            process.line.away = False
        back = crowd.used_again_after()
        storm = max(
            crowd.store.questions(at / 10, at / 10 + 0.1)
            for at in range(int(10 * (crowd.now - back - 1)), int(10 * crowd.now))
        )
        above = max(0.0, crowd.excess(crowd.rate, crowd.burst)) / crowd.rate
    return questions, questions * seconds / sum(calls), use, parts, died, back, storm * 10, above


def many_keys(keys, members, pause, seconds=20):
    """Each key is called once in `pause` seconds. Returns a row."""
    from crowds import ManyKeys

    model = ManyKeys(keys, members, [[10, SECOND, 10]])
    step = pause * SECOND // keys
    for n in range(seconds * keys // pause):
        model.call_at(2 * SECOND + n * step, n * 7919 % keys, n % members)
    model.run_until((2 + seconds // 2) * SECOND)
    asked, calls, time = model.asked, model.calls, seconds // 2
    model.forget()
    model.run_until((3 + seconds // 2) * SECOND)
    after, again = model.asked - asked, model.calls - calls
    return asked / time, asked / calls, after, again, calls / time


def main(*, quick=False):
    logging.getLogger("headgate").setLevel(logging.CRITICAL)
    print("| members of one key | limit | the store answers | questions/s | for each call | use ", end="")
    print(
        "| furthest from an equal part in 10 s | nine tenths used again after a tenth of them died ", end=""
    )
    print("| after 5 s without the store | questions/s then, at most ", end="")
    print("| above the limit, as time of the rate |")
    print(f"| ---: | ---: | --- {'| ---: ' * 8}|")
    rows = [
        (10, 10, 0.0),
        (100, 1, 0.0),
        (100, 10, 0.0),
        (300, 10, 0.0),
        (1_000, 1, 0.0),
        (1_000, 10, 0.0),
        (100, 10, 1 / 920),
        (300, 10, 1 / 240),
    ]
    for many, each, takes in rows[:3] if quick else rows:
        found = one_key(many, each, takes=takes, seconds=2 if quick else 10, settle=2 if quick else 8)
        asked, per_call, use, parts, died, back, storm, above = found
        speed = f"{1 / takes:,.0f} a second" if takes else "at once"
        print(
            f"| {many:,} | {many * each:,}/s | {speed} | {asked:,.0f} | {per_call:.2f} | {use:.1%} "
            f"| {parts:.0%} | {died} s | {back} s | {storm:,.0f} | {above:.2f} s |",
            flush=True,
        )
    print("\n| keys | members of each | a call of each key every | calls/s | questions/s ", end="")
    print("| for each call | questions in the second after the store has lost all | calls then |")
    print(f"{'| ---: ' * 8}|")
    sizes = [(1_000, 4, 10), (100_000, 4, 10), (100_000, 4, 60)]
    for keys, members, pause in sizes[:1] if quick else sizes:
        asked, per_call, after, again, calls = many_keys(keys, members, pause)
        print(
            f"| {keys:,} | {members} | {pause} s | {calls:,.0f} | {asked:,.0f} | {per_call:.2f} | {after:,} "
            f"| {again:,} |",
            flush=True,
        )


if __name__ == "__main__":
    main(quick="--quick" in sys.argv)
