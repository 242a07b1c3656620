"""A proxy as it is written in ten minutes. Tests of rules run against it too, to show that they can fail."""

import aiohttp
from aiohttp import web


class NaiveProxy:
    """Sends everything on with its key, wherever a request says."""

    def __init__(self, upstream, key):
        self.upstream = upstream
        self.key = key

    async def start(self):
        self.session = aiohttp.ClientSession()
        self.runner = web.ServerRunner(web.Server(self.handle, access_log=None))
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", 0)
        await site.start()
        self.port = self.runner.addresses[0][1]

    async def close(self):
        await self.runner.cleanup()
        await self.session.close()

    async def handle(self, request):
        headers = {name: value for name, value in request.headers.items() if name.lower() != "host"}
        headers["authorization"] = f"Bearer {self.key}"
        to = request.headers.get("x-target") or self.upstream
        target = request.raw_path
        url = target if target.startswith("http") else to + target
        try:
            async with self.session.request(
                request.method, url, headers=headers, data=await request.read()
            ) as answer:
                body = await answer.read()
                kept = [
                    (name, value)
                    for name, value in answer.headers.items()
                    if name.lower() != "content-length"
                ]
                return web.Response(status=answer.status, headers=kept, body=body)
        except aiohttp.ClientError as error:
            return web.Response(status=502, text=str(error))
