"""A spider of Scrapy whose requests wait at gates, against a server that counts. Prints JSON."""

import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise

import scrapy
from scrapy.crawler import CrawlerProcess

from headgate import Dispatch, events
from headgate.testing import Recorder

PAGES = 20
hits, seen, failures = [], Recorder(), []
gate = Dispatch("site", rates="20/s burst 1", observer=seen, pause=True)


class Site(BaseHTTPRequestHandler):
    def do_GET(self):
        hits.append(time.monotonic())
        refused = len(hits) == 6
        self.send_response(429 if refused else 200)
        if refused:
            self.send_header("Retry-After", "1")
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *_args):
        pass


class Pages(scrapy.Spider):
    name = "pages"

    async def start(self):
        for number in range(PAGES):
            yield scrapy.Request(f"{url}/{number}", dont_filter=True)
        yield scrapy.Request("http://127.0.0.1:1/", dont_filter=True, errback=self.failed)

    def failed(self, failure):
        failures.append(failure.type.__name__)

    def parse(self, response):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Site)
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_port}"
process = CrawlerProcess(
    {
        "DOWNLOADER_MIDDLEWARES": {"headgate.integrations.scrapy.GateMiddleware": 999},
        "HEADGATE_GATE": lambda request: gate,
        "LOG_LEVEL": "ERROR",
        "RETRY_TIMES": 2,
        "DOWNLOAD_DELAY": 0,
        "CONCURRENT_REQUESTS_PER_DOMAIN": 16,
        "TELNETCONSOLE_ENABLED": False,
    }
)
process.crawl(Pages)
process.start()
pauses = [later - earlier for earlier, later in pairwise(hits)]
print(
    json.dumps(
        {
            "hits": len(hits),
            "took": hits[-1] - hits[0],
            "longest pause": max(pauses),
            "admitted": len(seen.of(events.Admitted)),
            "settled": len(seen.of(events.Settled)),
            "in flight": gate.snapshot().in_flight,
            "failures": failures,
        }
    )
)
sys.stdout.flush()
