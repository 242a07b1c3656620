"""Answers that the SDKs accept, by path: each says "hello"."""

import json

from gateway.rig import reply


def answer_to(request):
    """What the API of that path answers, whole or as a stream of events."""
    path = request.target.partition("?")[0]
    streams = b'"stream":true' in request.body.replace(b" ", b"") or "stream" in path
    if path.endswith("/chat/completions"):
        return events(*CHAT_CHUNKS, "[DONE]") if streams else reply(json.dumps(CHAT).encode())
    if path.endswith("/responses"):
        return events(*RESPONSE_EVENTS) if streams else reply(json.dumps(RESPONSE).encode())
    if path.endswith("/messages"):
        return events(*MESSAGE_EVENTS) if streams else reply(json.dumps(MESSAGE).encode())
    if "Content" in path:
        return events(CONTENT) if streams else reply(json.dumps(CONTENT).encode())
    return reply()


def events(*documents):
    """A stream of server-sent events, with the names that their type gives them."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    pieces = []
    for document in documents:
        name = document.get("type") if isinstance(document, dict) else None
        data = document if isinstance(document, str) else json.dumps(document)
        event = (f"event: {name}\n" if name else "") + f"data: {data}\n\n"
        pieces.append(b"%x\r\n%b\r\n" % (len(event), event.encode()))
    return head + b"".join(pieces) + b"0\r\n\r\n"


CHAT = {
    "id": "c",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hello"}}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
}


def chat_chunk(text):
    choice = {"index": 0, "finish_reason": None, "delta": {"content": text}}
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


CHAT_CHUNKS = [chat_chunk("hel"), chat_chunk("lo")]
MESSAGE = {
    "id": "m",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [{"type": "text", "text": "hello"}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {"input_tokens": 3, "output_tokens": 2},
}
MESSAGE_EVENTS = [
    {"type": "message_start", "message": {**MESSAGE, "content": [], "stop_reason": None}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "hello"}},
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
    {"type": "message_stop"},
]
RESPONSE = {
    "id": "r",
    "object": "response",
    "created_at": 1,
    "model": "m",
    "status": "completed",
    "output": [
        {
            "id": "o",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "hello", "annotations": []}],
        }
    ],
    "parallel_tool_calls": False,
    "tool_choice": "auto",
    "tools": [],
    "usage": {
        "input_tokens": 3,
        "output_tokens": 2,
        "total_tokens": 5,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    },
}
ITEM = RESPONSE["output"][0]
RESPONSE_EVENTS = [
    {"type": "response.created", "response": {**RESPONSE, "status": "in_progress", "output": []}},
    {"type": "response.output_item.added", "output_index": 0, "item": {**ITEM, "content": []}},
    {
        "type": "response.output_text.delta",
        "delta": "hello",
        "item_id": "o",
        "output_index": 0,
        "content_index": 0,
        "logprobs": [],
    },
    {"type": "response.output_item.done", "output_index": 0, "item": ITEM},
    {"type": "response.completed", "response": RESPONSE},
]
RESPONSE_EVENTS = [{**event, "sequence_number": number} for number, event in enumerate(RESPONSE_EVENTS, 1)]
CONTENT = {
    "candidates": [
        {"content": {"role": "model", "parts": [{"text": "hello"}]}, "finishReason": "STOP", "index": 0}
    ],
    "usageMetadata": {"promptTokenCount": 3, "candidatesTokenCount": 2, "totalTokenCount": 5},
}
