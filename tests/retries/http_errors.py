"""HTTP errors of real client libraries, made as the libraries make them."""

import email.message
import io
import json
import urllib.error

import aiohttp
import httpx
import httpx2
import requests
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

ADDRESS = "https://api.example.com/v1/things"


def httpx_error(status, headers=(), body=b"", method="POST", sent=(), library=httpx):
    request = library.Request(method, ADDRESS, headers=dict(sent))
    response = library.Response(status, headers=dict(headers), content=body, request=request)
    return library.HTTPStatusError(f"{status}", request=request, response=response)


def httpx2_error(status, headers=(), body=b"", method="POST", sent=()):
    return httpx_error(status, headers, body, method, sent, library=httpx2)


def requests_error(status, headers=(), body=b"", method="POST", sent=()):
    response = requests.Response()
    response.status_code = status
    response.headers.update(dict(headers))
    response._content = body
    response.request = requests.Request(method, ADDRESS, headers=dict(sent)).prepare()
    return requests.HTTPError(f"{status}", response=response)


def aiohttp_error(status, headers=(), body=b"", method="POST", sent=()):
    info = aiohttp.RequestInfo(URL(ADDRESS), method, CIMultiDictProxy(CIMultiDict(sent)), URL(ADDRESS))
    return aiohttp.ClientResponseError(
        info, (), status=status, message="no", headers=CIMultiDictProxy(CIMultiDict(headers))
    )


def urllib_error(status, headers=(), body=b"", method="POST", sent=()):
    message = email.message.Message()
    for name, value in dict(headers).items():
        message[name] = value
    error = urllib.error.HTTPError(ADDRESS, status, "no", message, io.BytesIO(body))
    error.close()  # Python 3.14 warns of one that is dropped while it is open
    return error


def sdk_errors(name):
    """Errors shaped as openai and anthropic do; the SDKs are not installed here."""

    class APIError(Exception):
        __module__ = name

        def __init__(self, message, request, *, body):
            super().__init__(message)
            self.message, self.request, self.body = message, request, body

    class APIConnectionError(APIError):
        __module__ = name

        def __init__(self, *, message="Connection error.", request):
            super().__init__(message, request, body=None)

    class APITimeoutError(APIConnectionError):
        __module__ = name

    class APIStatusError(APIError):
        __module__ = name

        def __init__(self, message, *, response, body):
            super().__init__(message, response.request, body=body)
            self.response, self.status_code = response, response.status_code
            self.request_id = response.headers.get("x-request-id")

    def http_error(status, headers=(), body=b"", method="POST", sent=()):
        response = httpx2_error(status, headers, body, method, sent).response
        document = json.loads(body) if body else None
        if name == "openai" and document is not None:
            document = document.get("error", document)  # as its client does
        return APIStatusError(f"Error code: {status}", response=response, body=document)

    http_error.connection, http_error.timeout = APIConnectionError, APITimeoutError
    return http_error


openai_error, anthropic_error = sdk_errors("openai"), sdk_errors("anthropic")


CLIENTS = {
    "httpx": httpx_error,
    "httpx2": httpx2_error,
    "requests": requests_error,
    "aiohttp": aiohttp_error,
    "urllib": urllib_error,
    "openai": openai_error,
    "anthropic": anthropic_error,
}
