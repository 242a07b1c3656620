"""What `obey` does with a client of boto3, against a server that speaks as Bedrock does. Prints JSON."""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import boto3
from botocore.config import Config
from botocore.eventstream import EventStream
from botocore.exceptions import ClientError, EndpointConnectionError, ProxyConnectionError

import headgate
from headgate import Dispatch, InvalidConfig, Prices, TokenBudget, UnknownName, events
from headgate.http.boto3 import obey
from headgate.testing import Recorder

USAGE = {"inputTokens": 30, "outputTokens": 12, "totalTokens": 42}
ANSWER = {
    "output": {"message": {"role": "assistant", "content": [{"text": "hi"}]}},
    "stopReason": "end_turn",
    "usage": USAGE,
    "metrics": {"latencyMs": 1},
}
signed_after, seen = [], Recorder()
dispatch = Dispatch("bedrock", rates="1_000_000 tokens/minute burst 1_000_000", observer=seen)


class Bedrock(BaseHTTPRequestHandler):
    refusals = 0
    silent = False

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        if Bedrock.silent:
            self.close_connection = True
            return
        status, answer, kind = 200, ANSWER, None
        if Bedrock.refusals:
            Bedrock.refusals -= 1
            status, answer, kind = 429, {"message": "Too many requests"}, "ThrottlingException"
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        if kind:
            self.send_header("x-amzn-errortype", kind)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_args):
        pass


def make(url, proxy=None, **retries):
    return boto3.client(
        "bedrock-runtime",
        region_name="us-east-1",
        endpoint_url=url,
        aws_access_key_id="k",
        aws_secret_access_key="s",
        config=Config(
            retries={"mode": "standard", "max_attempts": 2, **retries}, proxies=proxy and {"http": proxy}
        ),
    )


def converse(client):
    return client.converse(modelId="m", messages=[{"role": "user", "content": [{"text": "hello"}]}])


def counts():
    admitted, settled = seen.of(events.Admitted), seen.of(events.Settled)
    seen.events.clear()
    return {"admitted": len(admitted), "tokens": [event.actual["tokens"] for event in settled]}


def main():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Bedrock)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    said = {}

    client = make(url)
    assert obey(client, dispatch) is client
    converse(client)
    said["converse"] = counts()

    body = client.invoke_model(modelId="m", body=b"{}")["body"]
    said["in flight while a body is open"] = dispatch.snapshot().in_flight
    body.read()
    said["invoke_model"] = counts()
    client.invoke_model(modelId="m", body=b"{}")["body"].close()
    said["in flight after a body was closed"] = dispatch.snapshot().in_flight
    counts()

    Bedrock.refusals = 2
    converse(client)
    said["refused twice"] = counts()

    Bedrock.refusals = 9
    try:
        converse(client)
    except ClientError as error:
        said["error"] = error.response["Error"]["Code"]
    Bedrock.refusals = 0
    said["window"] = dispatch.snapshot().backoff_active
    counts()

    budget = TokenBudget(100_000)
    with headgate.call_options(tenant="ann", budget=budget):
        converse(client)
    said["tenant"] = seen.of(events.Admitted)[0].tenant
    said["charged"] = 100_000 - budget.remaining_budget
    counts()

    prices = Prices({"m": (2.0, 10.0, 0.5)})
    budget = TokenBudget(limits="$5/calendar day", prices=prices)
    with headgate.call_options(budget=budget):
        converse(client)
        try:
            client.converse(modelId="other", messages=[{"role": "user", "content": [{"text": "hello"}]}])
        except UnknownName as error:
            said["no price"] = str(error)
    said["spent"] = 5_000_000 - budget.remaining_money
    counts()

    full = Dispatch("full", concurrency=1, max_waiting=0)
    with full.admit():
        try:
            converse(obey(make(url), full))
        except headgate.LineFull as refusal:
            said["refusal"] = type(refusal).__name__

    gone = obey(make("http://127.0.0.1:1", max_attempts=1), dispatch)
    try:
        converse(gone)
    except EndpointConnectionError as error:
        said["not connected"] = type(error).__name__
    said["after it"] = {**counts(), "in_flight": dispatch.snapshot().in_flight}

    Bedrock.silent = True
    for name, proxy in (("proxy down", "http://127.0.0.1:1"), ("proxy silent", url)):
        try:
            converse(obey(make("http://api.invalid", proxy, max_attempts=1), dispatch))
        except ProxyConnectionError:
            said[name] = counts()
    Bedrock.silent = False

    awaited = type("Client", (), {"__module__": "aiobotocore.client", "meta": client.meta})()
    for wrong in (object(), make(url, mode="adaptive"), awaited):
        try:
            obey(wrong, dispatch)
        except InvalidConfig as error:
            said.setdefault("wrong", []).append(str(error))

    said["events"] = streamed()
    print(json.dumps(said))
    sys.stdout.flush()


def streamed():
    """An event stream as botocore parses it, without its binary form."""
    from headgate.http.boto3 import _Answer
    from headgate.http.call import Call
    from headgate.http.exchange import GatedSender

    class Stream(EventStream):
        def __init__(self):
            pass

        def __iter__(self):
            yield {"contentBlockDelta": {"delta": {"text": "hi"}}}
            yield {"metadata": {"usage": USAGE}}

    call = Call(GatedSender(dispatch), "POST", "https://bedrock.example/model/m/converse-stream", {}, b"{}")
    call.begin(call.take())
    parsed = {"stream": Stream()}
    kind = "application/vnd.amazon.eventstream"
    call.answered(_Answer({"status_code": 200, "headers": {"Content-Type": kind}, "body": b""}, parsed), None)
    return {"events": len(list(parsed["stream"])), **counts()}


main()
