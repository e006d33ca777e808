"""What the routes answer, as JSON schemas for the OpenAPI document. A route that is missing here answers an object.

Written by hand: answers are folded from chunks, not built from models, and a test compares them with what is served.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

Schema = dict[str, Any]

_STRING: Schema = {"type": "string"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_BOOLEAN: Schema = {"type": "boolean"}
_OBJECT: Schema = {"type": "object"}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _object(required: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None) -> Schema:
    return {"type": "object", "properties": {**required, **(optional or {})}, "required": list(required)}


def _const(value: str) -> Schema:
    return {"type": "string", "const": value}


ERROR = _object(
    {
        "error": _object(
            {"message": _STRING, "type": _STRING, "param": _or_null(_STRING), "code": _or_null(_STRING)},
        )
    }
)

EVENT = _object({"data": _STRING}, {"event": _STRING})
EVENT["description"] = "One server-sent event; data is a JSON chunk, or [DONE] in the last"

_USAGE = _object(
    {
        "prompt_tokens": _COUNT,
        "completion_tokens": _COUNT,
        "total_tokens": _COUNT,
        "prompt_tokens_details": _object({"cached_tokens": _COUNT}),
    }
)
_FINISH = {"type": "string", "enum": ["stop", "length", "tool_calls"]}
_STOP_REASON = {"anyOf": [{"type": "integer"}, _STRING, {"type": "null"}]}
_OWN = {"stop_reason": _STOP_REASON, "speculation": _OBJECT, "token_ids": _list(_COUNT)}


def _completion(kind: str, choice: Schema) -> Schema:
    return _object(
        {
            "id": _STRING,
            "object": _const(kind),
            "created": _COUNT,
            "model": _STRING,
            "system_fingerprint": _STRING,
            "choices": _list(choice),
            "usage": _USAGE,
            "seed": _COUNT,
        }
    )


_CALL = _object(
    {"id": _STRING, "type": _const("function"), "function": _object({"name": _STRING, "arguments": _STRING})}
)
_MESSAGE = _object(
    {"role": _const("assistant"), "content": _or_null(_STRING), "refusal": {"type": "null"}},
    {"tool_calls": _list(_CALL), "reasoning_content": _STRING},
)
_CHAT = _completion(
    "chat.completion",
    _object({"index": _COUNT, "message": _MESSAGE, "logprobs": _or_null(_OBJECT), "finish_reason": _FINISH}, _OWN),
)
_COMPLETION = _completion(
    "text_completion",
    _object(
        {"index": _COUNT, "text": _STRING, "logprobs": _or_null(_OBJECT), "finish_reason": _FINISH},
        {**_OWN, "prompt_token_ids": _list(_COUNT)},
    ),
)
_MODEL = _object(
    {
        "id": _STRING,
        "object": _const("model"),
        "created": _COUNT,
        "owned_by": _STRING,
        "root": _STRING,
        "max_model_len": _COUNT,
    }
)
_HEALTH = _object({"status": {"type": "string", "enum": ["ok", "stuck", "draining"]}}, {"reason": _or_null(_STRING)})
_SERVER = _object(
    {
        "model": _STRING,
        "fingerprint": _STRING,
        "draining": _BOOLEAN,
        "requests": _COUNT,
        "max_requests": _COUNT,
    }
)

ANSWERS: Mapping[str, Schema] = MappingProxyType(
    {
        "POST /v1/chat/completions": _CHAT,
        "POST /v1/completions": _COMPLETION,
        "GET /v1/models": _object({"object": _const("list"), "data": _list(_MODEL)}),
        "GET /v1/models/{name}": _MODEL,
        "POST /tokenize": _object(
            {
                "count": _COUNT,
                "max_model_len": _COUNT,
                "tokens": _list(_COUNT),
                "token_strs": _or_null(_list(_STRING)),
            }
        ),
        "POST /detokenize": _object({"prompt": _STRING}),
        "GET /health": _HEALTH,
        "GET /livez": _HEALTH,
        "GET /readyz": _HEALTH,
        "GET /admin/state": _object({"server": _SERVER, "engine": _OBJECT}),
        "POST /admin/drain": _SERVER,
        "POST /admin/cache/reset": _object({"freed_blocks": _COUNT, "kept_blocks": _COUNT, "cached_blocks": _COUNT}),
    }
)
