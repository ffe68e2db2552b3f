"""The JSON Schema of flow files, for editors; built from the models, those of installed runners included."""

from __future__ import annotations

import ast
import inspect
from functools import cache
from itertools import pairwise
from textwrap import dedent
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from pointsman.flows.kinds import keys_of, list_models
from pointsman.flows.model import CHECK_KINDS, Flow
from pointsman.lifecycles import SHIPPED


def build_schema() -> dict[str, Any]:
    """The schemas of the models, with the short forms that they accept."""
    schema = _tidy(Flow.model_json_schema(by_alias=True, schema_generator=_Described))
    parts = schema.pop("$defs")
    for model in list_models().values():
        of_kind = _tidy(model.model_json_schema(by_alias=True, schema_generator=_Described))
        parts = {**of_kind.pop("$defs", {}), **parts}
        parts["FlowTask"]["properties"] |= of_kind["properties"]
    parts["Backoff"] = _or(parts["Backoff"], parts["Backoff"]["properties"]["base"])
    parts["Approval"] = _or(parts["Approval"], {"type": ["string", "number", "boolean"]})
    parts["Input"] = _or(parts["Input"], {"type": ["string", "number", "boolean", "array", "null"]})
    parts["Worktree"] = _or(parts["Worktree"], {"type": "boolean"})
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
    parts["FlowTask"]["oneOf"] = [{"required": [key]} for key in list_models()]
    parts["Notify"]["required"] = ["on"]
    parts["Notify"]["oneOf"] = [{"required": [key]} for key in ("command", "webhook", "webhook_env")]
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


@cache
def describe_fields(model: type[BaseModel]) -> dict[str, str]:
    """The string below each field of a model, by the name of the field.

    Pydantic could read them as well, but would parse the source of every model whenever it is imported.
    """
    models = [each for each in reversed(model.__mro__) if issubclass(each, BaseModel) and each is not BaseModel]
    return {name: text for each in models for name, text in _read_strings(each)}


def _read_strings(model: type[BaseModel]) -> list[tuple[str, str]]:
    try:
        (declared,) = ast.parse(dedent(inspect.getsource(model))).body
    except OSError:  # installed without its source
        return []
    assert isinstance(declared, ast.ClassDef)
    return [
        (field.target.id, inspect.cleandoc(text))
        for field, below in pairwise(declared.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(text := below.value.value, str)
    ]


class _Described(GenerateJsonSchema):
    """Adds the descriptions of fields."""

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        described = super().model_schema(schema)
        model: type[BaseModel] = schema["cls"]
        texts = describe_fields(model)
        for key, field in keys_of(model).items():
            if field in texts and key in described.get("properties", {}):
                described["properties"][key]["description"] = texts[field]
        return described


def _or(long: dict[str, Any], short: dict[str, Any]) -> dict[str, Any]:
    about = {"description": long.pop("description")}
    return {**about, "anyOf": [{key: value for key, value in short.items() if key not in ("default", "description")}, long]}


def _tidy(schema: Any) -> Any:
    """Drop the titles, which only repeat the keys, and empty defaults."""
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
