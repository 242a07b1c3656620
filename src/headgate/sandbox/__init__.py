"""A local API that limits as real providers do: for tests, demos and measurements.

    with Sandbox("openai", requests="600/minute", tokens="100_000/minute") as api:
        client = openai.OpenAI(base_url=api.url, api_key="any")
        ...
        print(api.report().use)

It enforces its limits exactly, records every request, and fails on request.
"""

from .fake import FakeProvider, Reply
from .faults import Fault
from .provider import Provider
from .referee import Report
from .server import Sandbox, serve

__all__ = ["FakeProvider", "Fault", "Provider", "Reply", "Report", "Sandbox", "serve"]
