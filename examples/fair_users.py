"""A server whose users share one API key fairly: a greedy user delays the others by a single call.

OPENAI_API_KEY=... uvicorn examples.fair_users:app
"""

from typing import Annotated

from fastapi import Depends, FastAPI
from openai import AsyncOpenAI

from headgate import Dispatch, MemoryLimiter
from headgate.http.httpx import async_client
from headgate.integrations.fastapi import admit

# At the door: each user may send five requests a second. A request that would wait longer than two seconds is
# answered 429 with Retry-After.
door = admit(
    MemoryLimiter(rates="5/s burst 10"),
    user=lambda request: request.headers.get("x-user", "unknown"),
    wait=2.0,
)
# In front of the API: all users share what it allows. Each request belongs to the user that `door` admitted.
gate = Dispatch("openai", rates=["600/minute", "100_000 tokens/minute"], concurrency=32, pause=True)
openai = AsyncOpenAI(http_client=async_client(gate), max_retries=0)
app = FastAPI()


@app.get("/ask")
async def ask(question: str, user: Annotated[str, Depends(door)]) -> dict[str, str | None]:
    reply = await openai.chat.completions.create(
        model="gpt-5-mini", messages=[{"role": "user", "content": question}], max_completion_tokens=50
    )
    return {"user": user, "answer": reply.choices[0].message.content}
