"""The APIs that the stand-in speaks: Messages, Responses, chat completions and Gemini's. Only what the agents read is there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import count
from typing import Any

from tests.agents.model_api import Answer, Body, Event, Fail, Request, Text

_ids = count(1)


def _id(prefix: str) -> str:
    return f"{prefix}_{next(_ids):08d}"


def _halves(text: str) -> list[str]:
    return [text[: len(text) // 2], text[len(text) // 2 :]]


class Messages:
    """Anthropic's Messages, for claude."""

    def is_turn(self, request: Request) -> bool:
        return request.path.startswith("/v1/messages") and "count_tokens" not in request.path and bool(self.list_tools(request))

    def aside(self, request: Request) -> Body:
        if "count_tokens" in request.path:
            return {"input_tokens": 100}
        return self.whole(Text("aside", 1, 1), request) if "messages" in request.path else {}

    def list_tools(self, request: Request) -> list[str]:
        return [tool["name"] for tool in request.body.get("tools", ())]

    def wants_stream(self, request: Request) -> bool:
        return bool(request.body.get("stream"))

    def stream(self, answer: Answer, request: Request) -> list[Event]:
        return [(str(event["type"]), event) for event in self._events(answer, request)]

    def _events(self, answer: Answer, request: Request) -> Iterator[Body]:
        whole = self.whole(answer, request)
        block, usage = whole["content"][0], whole["usage"]
        yield {"type": "message_start", "message": {**whole, "content": [], "stop_reason": None}}
        if isinstance(answer, Text):
            yield {"type": "content_block_start", "index": 0, "content_block": {**block, "text": ""}}
            pieces = [{"type": "text_delta", "text": piece} for piece in _halves(answer.text)]
        else:
            yield {"type": "content_block_start", "index": 0, "content_block": {**block, "input": {}}}
            pieces = [{"type": "input_json_delta", "partial_json": piece} for piece in _halves(json.dumps(answer.arguments))]
        for piece in pieces:
            yield {"type": "content_block_delta", "index": 0, "delta": piece}
        yield {"type": "content_block_stop", "index": 0}
        stop = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
        yield {"type": "message_delta", "delta": stop, "usage": {"output_tokens": usage["output_tokens"]}}
        yield {"type": "message_stop"}

    def whole(self, answer: Answer, request: Request) -> Body:
        if isinstance(answer, Text):
            block: Body = {"type": "text", "text": answer.text}
        else:
            block = {"type": "tool_use", "id": _id("toolu"), "name": answer.tool, "input": answer.arguments}
        return {
            "id": _id("msg"),
            "type": "message",
            "role": "assistant",
            "model": request.body.get("model", "m"),
            "content": [block],
            "stop_reason": "end_turn" if isinstance(answer, Text) else "tool_use",
            "stop_sequence": None,
            "usage": {"input_tokens": answer.tokens_in, "output_tokens": answer.tokens_out},
        }

    def refuse(self, fail: Fail) -> Body:
        kinds = {429: "rate_limit_error", 529: "overloaded_error", 400: "invalid_request_error"}
        return {"type": "error", "error": {"type": kinds.get(fail.status, "api_error"), "message": fail.message}}


class Responses:
    """OpenAI's Responses, for codex."""

    def is_turn(self, request: Request) -> bool:
        return request.path.endswith("/responses")

    def aside(self, request: Request) -> Body:  # noqa: ARG002
        return {"models": [], "data": [], "object": "list"}

    def list_tools(self, request: Request) -> list[str]:
        return [name for tool in request.body.get("tools", ()) for name in self._name(tool)]

    def _name(self, tool: Body) -> Iterator[str]:
        yield tool.get("name") or tool["type"]
        for inner in tool.get("tools", ()):
            yield f"{tool['name']}/{inner['name']}"

    def wants_stream(self, request: Request) -> bool:
        return bool(request.body.get("stream"))

    def stream(self, answer: Answer, request: Request) -> list[Event]:
        return [(str(event["type"]), event) for event in self._events(answer, request)]

    def _events(self, answer: Answer, request: Request) -> Iterator[Body]:
        item = self._item(answer)
        response = {"id": _id("resp"), "object": "response", "model": request.body.get("model", "m"), "output": []}
        yield {"type": "response.created", "response": {**response, "status": "in_progress"}}
        yield {"type": "response.output_item.added", "output_index": 0, "item": {**item, "status": "in_progress"}}
        if isinstance(answer, Text):
            for piece in _halves(answer.text):
                place = {"item_id": item["id"], "output_index": 0, "content_index": 0}
                yield {"type": "response.output_text.delta", **place, "delta": piece}
        yield {"type": "response.output_item.done", "output_index": 0, "item": item}
        yield {
            "type": "response.completed",
            "response": {**self.whole(answer, request), "id": response["id"], "output": [item]},
        }

    def _item(self, answer: Answer) -> Body:
        if isinstance(answer, Text):
            content = [{"type": "output_text", "text": answer.text, "annotations": []}]
            return {"type": "message", "id": _id("msg"), "role": "assistant", "status": "completed", "content": content}
        call = {"id": _id("fc"), "call_id": _id("call"), "status": "completed"}
        if set(answer.arguments) == {"input"}:  # a tool that takes plain text
            return {"type": "custom_tool_call", **call, "name": answer.tool, "input": answer.arguments["input"]}
        space, slash, name = answer.tool.rpartition("/")
        named = {"namespace": space, "name": name} if slash else {"name": answer.tool}
        return {"type": "function_call", **call, **named, "arguments": json.dumps(answer.arguments)}

    def whole(self, answer: Answer, request: Request) -> Body:
        usage = {
            "input_tokens": answer.tokens_in,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": answer.tokens_out,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": answer.tokens_in + answer.tokens_out,
        }
        status = {"status": "completed", "usage": usage, "output": [self._item(answer)]}
        return {"id": _id("resp"), "object": "response", "model": request.body.get("model", "m"), **status}

    def refuse(self, fail: Fail) -> Body:
        return {"error": {"type": "server_error", "code": None, "message": fail.message}}


class ChatCompletions:
    """OpenAI's chat completions, for opencode and aider."""

    def __init__(self, aside: str | None = None) -> None:
        self._aside = re.compile(aside) if aside else None
        """What the first message of a request says that is no turn of the conversation."""

    def is_turn(self, request: Request) -> bool:
        if not request.path.endswith("/chat/completions"):
            return False
        return not (self._aside and self._aside.search(json.dumps(request.body["messages"][0])))

    def aside(self, request: Request) -> Body:
        if request.path.endswith("/chat/completions"):
            return self.whole(Text("aside", 0, 0), request)
        return {"object": "list", "data": []}

    def list_tools(self, request: Request) -> list[str]:
        return [tool["function"]["name"] for tool in request.body.get("tools", ())]

    def wants_stream(self, request: Request) -> bool:
        return bool(request.body.get("stream"))

    def stream(self, answer: Answer, request: Request) -> list[Event]:
        return [*((None, chunk) for chunk in self._chunks(answer, request)), (None, "[DONE]")]

    def _chunks(self, answer: Answer, request: Request) -> Iterator[Body]:
        whole = self.whole(answer, request)
        base = {"id": whole["id"], "object": "chat.completion.chunk", "created": 1, "model": whole["model"]}
        message = whole["choices"][0]["message"]

        def chunk(delta: Body, reason: str | None = None) -> Body:
            return {**base, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}

        yield chunk({"role": "assistant", "content": ""})
        if isinstance(answer, Text):
            for piece in _halves(answer.text):
                yield chunk({"content": piece})
        else:
            yield chunk({"tool_calls": [{"index": 0, **message["tool_calls"][0]}]})
        yield chunk({}, whole["choices"][0]["finish_reason"])
        yield {**base, "choices": [], "usage": whole["usage"]}

    def whole(self, answer: Answer, request: Request) -> Body:
        message: Body = {"role": "assistant", "content": answer.text if isinstance(answer, Text) else None}
        if not isinstance(answer, Text):
            function = {"name": answer.tool, "arguments": json.dumps(answer.arguments)}
            message["tool_calls"] = [{"id": _id("call"), "type": "function", "function": function}]
        reason = "stop" if isinstance(answer, Text) else "tool_calls"
        usage = {"prompt_tokens": answer.tokens_in, "completion_tokens": answer.tokens_out}
        return {
            "id": _id("chatcmpl"),
            "object": "chat.completion",
            "created": 1,
            "model": request.body.get("model", "m"),
            "choices": [{"index": 0, "message": message, "finish_reason": reason}],
            "usage": {**usage, "total_tokens": answer.tokens_in + answer.tokens_out},
        }

    def refuse(self, fail: Fail) -> Body:
        return {"error": {"message": fail.message, "type": "error", "code": str(fail.status)}}


class GenerateContent:
    """Gemini's generateContent. Requests that stream are the conversation; others choose a model, or shorten something."""

    def is_turn(self, request: Request) -> bool:
        return ":streamGenerateContent" in request.path

    def aside(self, request: Request) -> Body:
        if ":countTokens" in request.path:
            return {"totalTokens": 100}
        schema = request.body.get("generationConfig", {}).get("responseJsonSchema", {}).get("properties", {})
        text = json.dumps({name: _example(each) for name, each in schema.items()}) if schema else "aside"
        return self.whole(Text(text, 1, 1), request)

    def list_tools(self, request: Request) -> list[str]:
        return [each["name"] for tool in request.body.get("tools", ()) for each in tool.get("functionDeclarations", ())]

    def wants_stream(self, request: Request) -> bool:
        return ":streamGenerateContent" in request.path

    def stream(self, answer: Answer, request: Request) -> list[Event]:
        whole = self.whole(answer, request)
        if not isinstance(answer, Text):
            return [(None, whole)]
        first, second = _halves(answer.text)
        begun = {"candidates": [{"content": {"role": "model", "parts": [{"text": first}]}, "index": 0}]}
        whole["candidates"][0]["content"]["parts"] = [{"text": second}]
        return [
            (None, begun),
            (None, begun | {"candidates": [{"content": {"role": "model", "parts": [{"text": ""}]}}]}),
            (None, whole),
        ]

    def whole(self, answer: Answer, request: Request) -> Body:
        if isinstance(answer, Text):
            part: Body = {"text": answer.text}
        else:
            part = {"functionCall": {"id": _id("call"), "name": answer.tool, "args": answer.arguments}}
        total = answer.tokens_in + answer.tokens_out
        usage = {"promptTokenCount": answer.tokens_in, "candidatesTokenCount": answer.tokens_out, "totalTokenCount": total}
        candidate = {"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}
        return {
            "candidates": [candidate],
            "usageMetadata": usage,
            "modelVersion": request.path.partition("/models/")[2].partition(":")[0],
        }

    def refuse(self, fail: Fail) -> Body:
        names = {429: "RESOURCE_EXHAUSTED", 500: "INTERNAL", 503: "UNAVAILABLE"}
        return {"error": {"code": fail.status, "message": fail.message, "status": names.get(fail.status, "UNKNOWN")}}


def _example(schema: Body) -> Any:
    if "enum" in schema:
        return schema["enum"][0]
    return {"string": "stand-in", "number": 1, "integer": 1, "boolean": False, "array": [], "object": {}}[
        schema.get("type", "string").lower()
    ]
