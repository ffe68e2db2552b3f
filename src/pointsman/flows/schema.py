"""The JSON Schema of flow files, for editors; written from the models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pointsman.flows.model import ACTIONS, CHECK_KINDS, Flow
from pointsman.lifecycles import SHIPPED

SCHEMA = Path(__file__).with_name("flow.schema.json")


def write_schema() -> str:
    """The text of the schema file."""
    return json.dumps(build_schema(), indent=2, ensure_ascii=False) + "\n"


def build_schema() -> dict[str, Any]:
    """What the models say, with the short forms that they read, and without what helps nobody."""
    schema = _tidy(Flow.model_json_schema(by_alias=True))
    parts = schema.pop("$defs")
    parts["Backoff"] = _or(parts["Backoff"], parts["Backoff"]["properties"]["base"])
    parts["Input"] = _or(parts["Input"], {"type": ["string", "number", "boolean", "array", "null"]})
    parts["Outputs"] = {
        "description": parts["Outputs"]["description"],
        "anyOf": [
            {"const": "stdout"},
            {
                "type": "object",
                "properties": {"file": parts["Outputs"]["properties"]["file"]},
                "required": ["file"],
                "additionalProperties": False,
            },
        ],
    }
    parts["FlowTask"]["oneOf"] = [{"required": [key]} for key in ACTIONS]
    parts["Check"]["oneOf"] = [{"required": [key]} for key in CHECK_KINDS]
    schema["properties"]["lifecycle"] = {
        "description": schema["properties"]["lifecycle"]["description"],
        "default": schema["properties"]["lifecycle"]["default"],
        "anyOf": [{"enum": list(SHIPPED)}, {"type": "string", "pattern": r"\.ya?ml$|/"}],
    }
    schema["properties"]["tasks"]["minProperties"] = 1
    schema["patternProperties"] = {"^x-": {}}
    schema["required"] = ["name", "tasks"]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Pointsman flow", **schema, "$defs": parts}


def _or(long: dict[str, Any], short: dict[str, Any]) -> dict[str, Any]:
    about = {"description": long.pop("description")}
    return {**about, "anyOf": [{key: value for key, value in short.items() if key not in ("default", "description")}, long]}


def _tidy(schema: Any) -> Any:
    """Without the titles that only repeat the keys, and without defaults that say nothing."""
    if isinstance(schema, list):
        return [_tidy(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    named = {"properties", "$defs"}
    tidy = {}
    for key, value in schema.items():
        if key == "title" or (key == "default" and value in (None, {}, [], "")):
            continue
        tidy[key] = {name: _tidy(each) for name, each in value.items()} if key in named else _tidy(value)
    return tidy
