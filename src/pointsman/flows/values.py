"""The types of the values in flows: text, durations, money, lists that may be a single word."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from enum import Enum
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainSerializer, Strict, WithJsonSchema
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from pointsman.engine.checks import MAX_SECONDS, MAX_USD, SMALLEST_USD
from pointsman.kernel.grammar import parse_duration

CALLABLE = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*:[^\W\d]\w*(?:\.[^\W\d]\w*)*")
_PARTS = r"(?:[0-9]{1,9}(?:\.[0-9]{1,9})?"
_DURATION_PATTERN = rf"^(?=.){_PARTS}d)?{_PARTS}h)?{_PARTS}m)?{_PARTS}s)?$"

RETRY_WORDS = ("failure", "timeout", "stall", "signal", "checks")


class Content(Enum):
    """Marks a field that may hold expressions: what its texts are, and how values are put in."""

    TEXT = "text"
    """Text, whatever YAML takes it for; values become text."""
    SHELL = "shell"
    """A shell script; values are quoted for the shell."""
    DATA = "data"
    """Any JSON; a text that is a single expression becomes its value."""
    EXPRESSION = "expression"
    """An expression, with or without braces, that is evaluated once for all items of a `foreach`."""


def content_of(info: FieldInfo) -> Content | None:
    return next((each for each in info.metadata if isinstance(each, Content)), None)


def wrong(must: str, advice: str = "") -> PydanticCustomError:
    """An error that says what a value must be, as the end of a sentence, and what to write instead."""
    return PydanticCustomError("value", "{must}", {"must": must, "advice": advice})


def _text(value: object) -> str:
    """Numbers are accepted, since nobody quotes a port number. Booleans are not: their spelling would be ambiguous."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise wrong("must be text", "Write text; put it in quotes if it looks like another type.")
    text = str(value)
    if "\0" in text:
        raise wrong("contains a NUL character", "Remove it: it cannot be passed to a program.")
    if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
        raise wrong("contains half of a surrogate pair", "Fix its encoding: it is not valid Unicode.")
    return text


def _filled(text: str) -> str:
    if not text.strip():
        raise wrong("is empty", "Write a value, or remove the key.")
    return text


def _duration(value: object) -> float:
    seconds = parse_duration(value) if isinstance(value, str) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise wrong("must be a duration", "Write 90s, 15m, 1h30m or 2d, or a number of seconds.")
    if not 0 < seconds <= MAX_SECONDS:
        raise wrong("must be above zero and at most ten years", "Write 90s, 15m, 1h30m or 2d.")
    return float(seconds)


def _delay(value: object) -> float:
    """A duration that may be zero."""
    return 0.0 if value in (0, "0s") and not isinstance(value, bool) else _duration(value)


def _money(value: object) -> Decimal:
    advice = "Write dollars, like 0.50 or 12."
    if isinstance(value, bool) or not isinstance(value, str | int | float | Decimal):
        raise wrong("must be an amount of dollars", advice)
    try:
        amount = Decimal(str(value))
    except InvalidOperation:
        raise wrong("must be an amount of dollars", advice) from None
    if not amount.is_finite() or not 0 <= amount < MAX_USD:
        raise wrong("must be from 0 to 100 million dollars", advice)
    if amount % SMALLEST_USD:
        raise wrong("has more than six decimal places", "Round it to six decimal places.")
    return amount


def _callable(text: str) -> str:
    if not CALLABLE.fullmatch(text):
        raise wrong("must name a Python function", "Write `package.module:function`.")
    return text


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise wrong(f"is not a regular expression: {error}", "Fix it; put a `\\` before special characters.") from None
    return text


def _retry_reason(value: object) -> str | int:
    if isinstance(value, str) and value in RETRY_WORDS:
        return value
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 255:
        return value
    raise wrong("must be a reason to retry", f"Write {', '.join(RETRY_WORDS)}, or an exit code.")


def several(value: object) -> object:
    """A single value where a list is expected is a list of one."""
    return (value,) if isinstance(value, str | int) and not isinstance(value, bool) else value


def _foreach(value: object) -> Any:
    if isinstance(value, tuple):
        value = list(value)
    if isinstance(value, str):
        return _filled(_text(value))
    if isinstance(value, list):
        return value
    if isinstance(value, Mapping) and value and all(isinstance(axis, str | list | tuple) for axis in value.values()):
        return {str(name): list(axis) if isinstance(axis, tuple) else axis for name, axis in value.items()}
    raise wrong(
        "must be a list, an expression, or lists by name",
        "Write `[a, b]`, or `tasks.NAME.outputs`, or `{os: [linux, mac], python: [3.12, 3.13]}` for every combination.",
    )


def _schema(value: object) -> Any:
    if isinstance(value, dict) or (isinstance(value, str) and value.strip()):
        return value
    raise wrong("must be a JSON Schema or the path of one", "Write the schema here, or the path of its file.")


# Quotes are optional: text is taken as written, whatever YAML makes of `true` and `1.10`.
_TEXT_SCHEMA: dict[str, Any] = {"type": ["string", "number", "boolean"]}
_WORD_SCHEMA: dict[str, Any] = {**_TEXT_SCHEMA, "pattern": r"\S"}

Text = Annotated[str, BeforeValidator(_text), WithJsonSchema(_TEXT_SCHEMA)]
Word = Annotated[str, BeforeValidator(lambda value: _filled(_text(value))), WithJsonSchema(_WORD_SCHEMA)]
Truth = Annotated[bool, Strict()]
Count = Annotated[int, Strict()]
Words = Annotated[
    tuple[Word, ...],
    BeforeValidator(several),
    WithJsonSchema(
        {"anyOf": [{"type": "array", "items": _WORD_SCHEMA, "uniqueItems": True}, {"type": "string", "pattern": r"\S"}]}
    ),
]
ExitCode = Annotated[int, Strict(), Field(ge=0, le=255)]
_EXIT_CODE_SCHEMA = {"type": "integer", "minimum": 0, "maximum": 255}
ExitCodes = Annotated[
    tuple[ExitCode, ...],
    BeforeValidator(several),
    WithJsonSchema({"anyOf": [{"type": "array", "items": _EXIT_CODE_SCHEMA, "minItems": 1}, _EXIT_CODE_SCHEMA]}),
]
Argv = Annotated[tuple[Text, ...], WithJsonSchema({"type": "array", "items": {"type": ["string", "number", "boolean"]}})]
Duration = Annotated[
    float,
    BeforeValidator(_duration),
    WithJsonSchema({"anyOf": [{"type": "string", "pattern": _DURATION_PATTERN}, {"type": "number", "exclusiveMinimum": 0}]}),
]
Delay = Annotated[
    float,
    BeforeValidator(_delay),
    WithJsonSchema({"anyOf": [{"type": "string", "pattern": _DURATION_PATTERN}, {"type": "number", "minimum": 0}]}),
]
Money = Annotated[
    Decimal,
    BeforeValidator(_money),
    PlainSerializer(str, return_type=str, when_used="json"),
    WithJsonSchema({"anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "pattern": r"^[0-9]+(\.[0-9]{1,6})?$"}]}),
]
Callable = Annotated[
    str,
    BeforeValidator(lambda value: _callable(_filled(_text(value)))),
    WithJsonSchema({"type": "string", "pattern": r"^[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*$"}),
]
Pattern = Annotated[str, BeforeValidator(lambda value: _pattern(_filled(_text(value)))), WithJsonSchema({"type": "string"})]
RetryReasons = Annotated[
    tuple[Annotated[str | int, BeforeValidator(_retry_reason)], ...],
    BeforeValidator(several),
    WithJsonSchema(
        {
            "type": "array",
            "items": {"anyOf": [{"enum": list(RETRY_WORDS)}, _EXIT_CODE_SCHEMA]},
        }
    ),
]
Items = Annotated[
    Any,
    BeforeValidator(_foreach),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "array"},
                {"type": "string", "pattern": r"\S"},
                {"type": "object", "minProperties": 1, "additionalProperties": {"type": ["array", "string"]}},
            ]
        }
    ),
]
SchemaObject = Annotated[dict[str, Any], WithJsonSchema({"type": "object"})]
SchemaSource = Annotated[Any, BeforeValidator(_schema), WithJsonSchema({"type": ["object", "string"]})]
