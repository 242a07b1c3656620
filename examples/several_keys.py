"""Two API keys, each with limits of its own: every call goes through the first that has room.

OPENAI_KEYS=key-one,key-two python examples/several_keys.py
"""

import os
from collections import Counter

from openai import OpenAI

import headgate
from headgate import Dispatch, FirstFree
from headgate.http import Target
from headgate.http.httpx import client

keys = os.environ.get("OPENAI_KEYS", "key-one,key-two").split(",")
# The position of a key, and not the key, is the name of its gate: names are in logs.
gates = [Dispatch(number, rates="300/minute burst 5", pause=True) for number in range(len(keys))]
used: Counter[int] = Counter()


def credential(gate: Dispatch) -> Target:
    used[gate.key] += 1
    return Target(headers={"authorization": f"Bearer {keys[gate.key]}"})


openai = OpenAI(api_key="of the gate", http_client=client(FirstFree(gates), choose=credential), max_retries=0)


def ask(number: int) -> str | None:
    reply = openai.chat.completions.create(
        model="gpt-5-mini",
        messages=[{"role": "user", "content": f"Question {number}"}],
        max_completion_tokens=20,
    )
    return reply.choices[0].message.content


if __name__ == "__main__":
    answers = headgate.map(ask, range(20), workers=8, progress=False)
    answers.check()
    print(f"{len(answers)} answers, calls by key: {dict(sorted(used.items()))}")
