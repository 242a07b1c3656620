"""What `headgate doctor` finds out: packages, whether a client passes the gate, what a store says."""

import asyncio
import inspect
import platform
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module, metadata
from time import perf_counter
from typing import Any

from ..dispatch.options import call_options
from ..errors import InvalidLimit, Refused, StoreError
from ..events import Admitted, Event
from ..events import Refused as RefusedEvent
from ..gate.clock import SYSTEM
from ..observers.everything import observe_all
from ..retries.classify import refusal_of
from ..sandbox import Sandbox
from ..sharing.store import open_store, plain_name

# How often each package tries again by itself, if it is not told otherwise, and the line that brings its
# calls to the gate.
PACKAGES: dict[str, tuple[str, str]] = {
    "openai": ("2", "OpenAI(http_client=headgate.http.httpx.client())"),
    "anthropic": ("2", "Anthropic(middleware=[headgate.http.anthropic.middleware()])"),
    "google-genai": ("0", "HttpOptions(httpx_client=client(), httpx_async_client=async_client())"),
    "mistralai": ("0", "Mistral(client=client())"),
    "groq": ("2", "Groq(http_client=client(library=httpx))"),
    "cohere": ("2", "ClientV2(httpx_client=client(library=httpx), timeout=300)"),
    "litellm": ("2, of openai", "litellm.client_session = client(library=httpx); client= for others"),
    "langchain-openai": (
        "2, of openai",
        "ChatOpenAI(http_client=client(), http_async_client=async_client())",
    ),
    "langchain-anthropic": (
        "2",
        "ChatAnthropic(rate_limiter=headgate.integrations.langchain.RateLimiter(gate)): requests only",
    ),
    "llama-index-llms-openai": ("3", "OpenAI(http_client=client(), async_http_client=async_client())"),
    "instructor": ("3 questions", "wrap a client that passes the gate"),
    "pydantic-ai-slim": ("2, of openai", "OpenAIProvider(http_client=async_client())"),
    "openai-agents": ("2, of openai", "set_default_openai_client(AsyncOpenAI(http_client=async_client()))"),
    "boto3": ("4", "headgate.http.boto3.obey(client)"),
    "httpx2": ("0", "headgate.http.httpx.client()"),
    "httpx": ("0", "headgate.http.httpx.client(library=httpx)"),
    "aiohttp": (
        "1, after a lost connection",
        "ClientSession(middlewares=(headgate.http.aiohttp.middleware(),))",
    ),
    "requests": ("0", 'session.mount("https://", headgate.http.requests.Adapter())'),
    "celery": ("3, where a task says so", "store= in each worker"),
}

QUESTION: Any = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hello"}]}

# Seconds that the call of the check may wait at the gate.
_PATIENCE = 5.0


def installed() -> list[dict[str, Any]]:
    """The known packages that are installed."""
    found = []
    for name, (retries, line) in PACKAGES.items():
        with suppress(metadata.PackageNotFoundError):
            found.append({"name": name, "version": metadata.version(name), "retries": retries, "line": line})
    return found


def machine() -> dict[str, Any]:
    """Python, the event loop, and what parses the responses of aiohttp."""
    loop = asyncio.new_event_loop()
    loop.close()
    parser = None
    with suppress(ImportError):
        parser = import_module("aiohttp.http_parser").HttpResponseParser.__module__.rpartition(".")[2]
    return {
        "headgate": metadata.version("headgate"),
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "system": f"{platform.system()} {platform.machine()}",
        "event_loop": type(loop).__module__.partition(".")[0],
        "aiohttp_parser": None if parser is None else "C" if parser == "_http_parser" else "Python",
    }


async def ask_store(url: str) -> dict[str, Any]:
    """What a store says: how long it takes to answer, and which keys it has."""
    about: dict[str, Any] = {"store": plain_name(url), "error": None, "keys": [], "milliseconds": None}
    try:
        store = open_store(url, SYSTEM)
        try:
            await store.keys()  # the first question connects
            began = perf_counter()
            about["keys"] = sorted(await store.keys())
            about["milliseconds"] = round((perf_counter() - began) * 1000, 2)
        finally:
            await store.close()
    except (InvalidLimit, StoreError, OSError) as error:
        about["error"] = str(error)
    return about


# -- does a client pass the gate?


def load(name: str) -> Any:
    """The object that `module:name` names. Raises LookupError."""
    module, colon, attribute = name.partition(":")
    if not colon or not attribute:
        raise LookupError(f"{name!r} names no object; write module:name, e.g. myapp.llm:client")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found: Any = import_module(module)
    except ImportError as error:
        raise LookupError(f"{module} cannot be imported: {error}") from error
    except (Exception, SystemExit) as error:
        raise LookupError(f"{module} cannot be imported: {type(error).__name__}: {error}") from error
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise LookupError(f"the module {module} has no object {attribute!r}") from None
    return found


async def check(client: Any) -> list[dict[str, Any]]:
    """Send one call by the client to a local API, and say whether a gate admitted it.

    Some objects have two clients in them, for sync and async calls: there is a result for each.
    """
    if inspect.isfunction(client) and not _parameters(client):
        maker = client
        try:
            client = maker()
            if inspect.isawaitable(client):
                client = await client
        except Exception as error:  # noqa: BLE001 - it is shown
            return [_result(maker, error=f"it raised {type(error).__name__}: {error}")]
    return [await _check_one(part) for part in _parts_of(client)]


def _parameters(fn: Callable[..., Any]) -> list[str]:
    empty = inspect.Parameter.empty
    return [name for name, it in inspect.signature(fn).parameters.items() if it.default is empty]


def _parts_of(client: Any) -> list[Any]:
    """The clients in a chat model of LangChain; otherwise the client itself."""
    parts = [getattr(client, name, None) for name in ("root_client", "root_async_client")]
    return [part for part in parts if part is not None] or [client]


def _result(client: Any, error: str | None = None) -> dict[str, Any]:
    """What is known before a call is sent."""
    kind = f"{type(client).__module__.partition('.')[0]}.{type(client).__name__}"
    return {
        "client": getattr(client, "__qualname__", kind) if inspect.isfunction(client) else kind,
        "passes": None,
        "gates": [],
        "sent": 0,
        "retries": _retries_of(client),
        "error": error,
    }


async def _check_one(client: Any) -> dict[str, Any]:
    result = _result(client)
    send = _sender_of(client)
    if send is None:
        result["error"] = "it is not known how to send a call by it; give a function of a base URL that does"
        return result
    gates: list[str] = []

    def note(event: Event) -> None:
        if isinstance(event, (Admitted, RefusedEvent)):
            gates.append(str(event.key))

    stop = observe_all(note)
    with Sandbox("openai", requests="60_000/minute") as api:
        try:
            with call_options(timeout=_PATIENCE):
                reply = await asyncio.to_thread(send, api.url)  # a sync call may wait at the gate
                if inspect.isawaitable(reply):
                    await reply
        except Exception as error:  # noqa: BLE001 - it is shown
            refused = isinstance(error, Refused) or refusal_of(error) is not None
            result["error"] = f"{type(error).__name__}: {error}"
            result["refused"] = refused
        finally:
            stop()
        result["sent"] = api.report().requests
    result["gates"] = gates
    if gates:
        result["passes"] = True
    elif result["sent"]:
        result["passes"] = False
    return result


def _retries_of(client: Any) -> int | None:
    retries = getattr(client, "max_retries", None)
    return retries if isinstance(retries, int) else None


def _sender_of(client: Any) -> Callable[[str], Any] | None:
    """A function that sends one call by this client to a base URL; None if it is not known how."""
    if inspect.isfunction(client) and len(_parameters(client)) == 1:
        return client
    library = type(client).__module__.partition(".")[0]
    path = "/v1/chat/completions"
    if hasattr(client, "with_options") and hasattr(client, "post"):  # OpenAI, Anthropic, Groq and their like
        return lambda url: client.with_options(base_url=url, max_retries=0).post(
            path, body=QUESTION, cast_to=object
        )
    if library in ("httpx", "httpx2"):
        return lambda url: client.post(url + path, json=QUESTION)
    if library == "aiohttp":

        async def by_session(url: str) -> None:
            async with client.post(url + path, json=QUESTION) as reply:
                await reply.read()
            await client.close()

        return by_session
    if library == "requests":
        from requests import Session  # noqa: PLC0415 - it is loaded

        # The sandbox speaks http, and what counts is the adapter of https.
        session = Session()
        session.mount("http://", client.get_adapter("https://api.example/"))
        return lambda url: session.post(url + path, json=QUESTION)
    return None
