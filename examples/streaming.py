"""A streamed answer holds its place until its last piece has been read, and its tokens are settled then.

OPENAI_API_KEY=... python examples/streaming.py
"""

from openai import OpenAI

from headgate import Dispatch
from headgate.http.httpx import client

gate = Dispatch("openai", rates=["600/minute", "100_000 tokens/minute"], concurrency=4, pause=True)
openai = OpenAI(http_client=client(gate), max_retries=0)


def main() -> None:
    pieces = 0
    stream = openai.chat.completions.create(
        model="gpt-5-mini",
        messages=[{"role": "user", "content": "Count from one to twenty"}],
        max_completion_tokens=100,
        stream=True,
        stream_options={"include_usage": True},  # without it, the estimate stays charged
    )
    with stream:
        for chunk in stream:
            if chunk.choices:
                pieces += 1
                during = gate.snapshot().in_flight
    print(f"{pieces} pieces; {during} call in flight meanwhile, {gate.snapshot().in_flight} afterwards")


if __name__ == "__main__":
    main()
