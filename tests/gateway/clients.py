"""Real clients, each asking one question by a gateway: a function of its address, time-out and headers.

Each returns what the answer says. It raises what the client raises.
"""

import asyncio
import json
import shutil
import subprocess
import sys
from pathlib import Path

MESSAGES = [{"role": "user", "content": "hi"}]
CHAT = {"model": "m", "messages": MESSAGES}
KEY = "k"  # one gate for all of them
BEARER = {"authorization": f"Bearer {KEY}"}


def openai(url, timeout, headers):
    from openai import OpenAI

    with OpenAI(
        base_url=f"{url}/v1", api_key=KEY, timeout=timeout, max_retries=0, default_headers=headers
    ) as sdk:
        return sdk.chat.completions.create(**CHAT).choices[0].message.content


def openai_stream(url, timeout, headers):
    from openai import OpenAI

    with OpenAI(
        base_url=f"{url}/v1", api_key=KEY, timeout=timeout, max_retries=0, default_headers=headers
    ) as sdk:
        return "".join(
            piece.choices[0].delta.content for piece in sdk.chat.completions.create(**CHAT, stream=True)
        )


def openai_responses_stream(url, timeout, headers):
    from openai import OpenAI

    with OpenAI(
        base_url=f"{url}/v1", api_key=KEY, timeout=timeout, max_retries=0, default_headers=headers
    ) as sdk:
        events = sdk.responses.create(model="m", input="hi", stream=True)
        return "".join(event.delta for event in events if event.type == "response.output_text.delta")


def openai_async(url, timeout, headers):
    from openai import AsyncOpenAI

    async def ask():
        async with AsyncOpenAI(
            base_url=f"{url}/v1", api_key=KEY, timeout=timeout, max_retries=0, default_headers=headers
        ) as sdk:
            return (await sdk.chat.completions.create(**CHAT)).choices[0].message.content

    return asyncio.run(ask())


def anthropic(url, timeout, headers):
    from anthropic import Anthropic

    with Anthropic(base_url=url, api_key=KEY, timeout=timeout, max_retries=0, default_headers=headers) as sdk:
        return sdk.messages.create(**CHAT, max_tokens=9).content[0].text


def anthropic_stream(url, timeout, headers):
    from anthropic import Anthropic

    with (
        Anthropic(base_url=url, api_key=KEY, timeout=timeout, max_retries=0, default_headers=headers) as sdk,
        sdk.messages.stream(**CHAT, max_tokens=9) as stream,
    ):
        return "".join(stream.text_stream)


def groq(url, timeout, headers):
    from groq import Groq

    with Groq(base_url=url, api_key=KEY, timeout=timeout, max_retries=0, default_headers=headers) as sdk:
        return sdk.chat.completions.create(**CHAT).choices[0].message.content


def groq_stream(url, timeout, headers):
    from groq import Groq

    with Groq(base_url=url, api_key=KEY, timeout=timeout, max_retries=0, default_headers=headers) as sdk:
        return "".join(
            piece.choices[0].delta.content for piece in sdk.chat.completions.create(**CHAT, stream=True)
        )


def _genai(url, timeout, headers):
    from google import genai

    options = {"base_url": url, "timeout": round(timeout * 1000), "headers": headers}
    return genai.Client(api_key=KEY, http_options=options)


def genai(url, timeout, headers):
    with _genai(url, timeout, headers) as sdk:
        return sdk.models.generate_content(model="m", contents="hi").text


def genai_stream(url, timeout, headers):
    with _genai(url, timeout, headers) as sdk:
        return "".join(piece.text for piece in sdk.models.generate_content_stream(model="m", contents="hi"))


def _content(status, body):
    if status != 200:
        raise RuntimeError(f"{status}: {body['error']['message']}")
    return body["choices"][0]["message"]["content"]


def httpx(url, timeout, headers):
    import httpx

    answer = httpx.post(
        f"{url}/v1/chat/completions", json=CHAT, timeout=timeout, headers={**BEARER, **headers}
    )
    return _content(answer.status_code, answer.json())


def httpx2(url, timeout, headers):
    import httpx2

    answer = httpx2.post(
        f"{url}/v1/chat/completions", json=CHAT, timeout=timeout, headers={**BEARER, **headers}
    )
    return _content(answer.status_code, answer.json())


def aiohttp(url, timeout, headers):
    from aiohttp import ClientSession, ClientTimeout

    async def ask():
        limits = ClientTimeout(sock_read=timeout)
        async with (
            ClientSession(timeout=limits) as session,
            session.post(f"{url}/v1/chat/completions", json=CHAT, headers={**BEARER, **headers}) as answer,
        ):
            return _content(answer.status, await answer.json())

    return asyncio.run(ask())


def requests(url, timeout, headers):
    import requests

    # Nothing keeps it alive that it would not take for the answer, so its time-out must be longer.
    answer = requests.post(
        f"{url}/v1/chat/completions", json=CHAT, timeout=20 * timeout, headers={**BEARER, **headers}
    )
    return _content(answer.status_code, answer.json())


_OPENAI_2 = """
import sys, json
from openai import OpenAI, VERSION
print("ready", flush=True)
chat = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
for line in sys.stdin:
    url, timeout, headers = json.loads(line)
    sdk = OpenAI(base_url=url + "/v1", api_key="k", timeout=timeout, max_retries=0, default_headers=headers)
    said = error = None
    try:
        if STREAM:
            stream = sdk.chat.completions.create(**chat, stream=True)
            said = "".join(piece.choices[0].delta.content for piece in stream)
        else:
            said = sdk.chat.completions.create(**chat).choices[0].message.content
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"
    print(json.dumps([VERSION, said, error]), flush=True)
"""
_NODE = """
console.log('ready');
const fields = {authorization: 'Bearer k', 'content-type': 'application/json'};
const body = JSON.stringify({model: 'm', messages: [{role: 'user', content: 'hi'}]});
process.stdin.on('data', async (line) => {
  const [url, timeout, headers] = JSON.parse(line);
  const sent = {method: 'POST', body, headers: {...headers, ...fields}};
  const answer = await fetch(url + '/v1/chat/completions', sent);
  const said = await answer.json();
  const error = answer.status === 200 ? null : `${answer.status}: ${said.error.message}`;
  console.log(JSON.stringify([process.version, error ? null : said.choices[0].message.content, error]));
});
"""


class Elsewhere:
    """A client in a process of its own, which is started before it is asked."""

    def __init__(self, command):
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ready(self):
        assert self._process.stdout.readline() == "ready\n"

    def __call__(self, url, timeout, headers):
        self._process.stdin.write(json.dumps([url, timeout, headers]) + "\n")
        self._process.stdin.flush()
        version, said, error = json.loads(self._process.stdout.readline())
        if error is not None:
            raise RuntimeError(error)
        return f"{said} {version.lstrip('v').partition('.')[0]}"

    def close(self):
        self._process.kill()
        self._process.communicate()


def openai_2(*, stream):
    place = Path(sys.prefix) / "openai2"
    assert place.is_dir(), "openai 2 is not installed; run `make install`"
    code = f"import sys; sys.path.insert(0, {str(place)!r}); STREAM = {stream}\n{_OPENAI_2}"
    return Elsewhere([sys.executable, "-c", code])


def node():
    """Node's fetch; None if there is no node on this machine."""
    program = shutil.which("node")
    return None if program is None else Elsewhere([program, "-e", _NODE])


HERE = {
    function.__name__: function
    for function in (
        *(openai, openai_stream, openai_responses_stream, openai_async, anthropic, anthropic_stream),
        *(groq, groq_stream, genai, genai_stream, httpx, httpx2, aiohttp, requests),
    )
}
