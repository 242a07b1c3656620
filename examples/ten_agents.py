"""Ten agents share one API key: asyncio tasks, one client, one gate, and no 429 for any of them.

    OPENAI_API_KEY=... python examples/ten_agents.py

To try it without a key, start `headgate sandbox --requests 600/minute --tokens 100_000/minute` and set
OPENAI_BASE_URL to the address that it prints.
"""

import asyncio
import time

from openai import AsyncOpenAI

from headgate import Dispatch, call_options
from headgate.http.httpx import async_client

# What the provider allows. Leave `rates` at "auto" to learn it from the responses.
gate = Dispatch("openai", rates=["600/minute", "100_000 tokens/minute"], concurrency=32, pause=True)
openai = AsyncOpenAI(http_client=async_client(gate), max_retries=0)


async def agent(number: int, questions: int) -> int:
    """Ask one question after the other. The tenant makes the agents share the gate fairly."""
    answered = 0
    with call_options(tenant=f"agent {number}"):
        for question in range(questions):
            reply = await openai.chat.completions.create(
                model="gpt-5-mini",
                messages=[{"role": "user", "content": f"Question {question} of agent {number}"}],
                max_completion_tokens=50,
            )
            answered += bool(reply.choices)
    return answered


async def main() -> None:
    began = time.monotonic()
    answered = await asyncio.gather(*(agent(number, questions=3) for number in range(10)))
    await openai.close()
    totals = gate.snapshot().totals
    print(f"{sum(answered)} answers in {time.monotonic() - began:.1f} s, {totals.limited} refused by the API")


if __name__ == "__main__":
    asyncio.run(main())
