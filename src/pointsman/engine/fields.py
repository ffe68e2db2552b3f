"""The types that fields of operations have, and what follows from them: validation, JSON decoding and JSON Schema.

    class SetBudget(Operation[Run]):
        run_id: Annotated[RunId, "The run to give money to."]
        budget_usd: Annotated[Amount | None, "What it may spend; null for no limit."] = None

A type is a Python type with a `Rule`. A text beside it describes the field. `INLINE` marks a struct whose fields count as
fields of the struct around it. Every field has a type from this module, a struct, a sequence of structs, a `Literal` or `bool`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from functools import lru_cache, partial
from types import UnionType
from typing import Annotated, Any, Final, Literal, Protocol, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import NODEFAULT, Struct

from pointsman.engine import checks
from pointsman.errors import NotFound, Problem, suggest

Schema = dict[str, Any]
INLINE: Final = "inline"
HIDDEN: Final = "hidden"
"""A field that only Python sets: neither JSON nor JSON Schema has it."""
_MARKS = (INLINE, HIDDEN)


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """What a value must be: as a check that names every problem, and as JSON Schema."""

    check: Callable[[str, Any], Iterator[Problem]]
    schema: Mapping[str, Any]


def whole(low: int, high: int = checks.MAX_COUNT) -> Rule:
    return Rule(partial(checks.count, low=low, high=high), {"type": "integer", "minimum": low, "maximum": high})


def number(low: float, high: float) -> Rule:
    return Rule(partial(checks.number, low=low, high=high), {"type": "number", "minimum": low, "maximum": high})


def _identity(kind: str) -> Rule:
    return Rule(partial(checks.identity_problems, kind), {"type": "string", "minLength": 1})


_WORDS = {"type": "array", "items": {"type": "string", "minLength": 1, "maxLength": checks.MAX_NAME_BYTES}}
_SECONDS = {"type": "number", "exclusiveMinimum": 0, "maximum": checks.MAX_SECONDS}

Text = Annotated[str, Rule(checks.text, {"type": "string", "maxLength": checks.MAX_TEXT_BYTES})]
Name = Annotated[str, Rule(checks.name, {"type": "string", "minLength": 1, "maxLength": checks.MAX_NAME_BYTES})]
Words = Annotated[Collection[str], Rule(checks.words, _WORDS)]
Ids = Annotated[Collection[str], Rule(checks.ids, {**_WORDS, "maxItems": checks.MAX_IDS})]
Tenants = Annotated[Collection[str], Rule(checks.tenants, {"anyOf": [_WORDS, {"const": "all"}]})]
Count = Annotated[int, whole(1)]
CountFromZero = Annotated[int, whole(0)]
Tokens = Annotated[int, whole(0, checks.MAX_TOKENS)]
Epoch = Annotated[int, Rule(checks.whole, {"type": "integer"})]
ExitCode = Annotated[int, whole(-(2**31), 2**31 - 1)]
Seconds = Annotated[float, Rule(checks.seconds, _SECONDS)]
Amount = Annotated[Decimal, Rule(checks.amount, {"type": "string", "format": "decimal"})]
Instant = Annotated[datetime, Rule(checks.instant, {"type": "string", "format": "date-time"})]
Json = Annotated[Any, Rule(checks.json, {})]
JsonObject = Annotated[dict[str, Any], Rule(checks.json_object, {"type": "object"})]
RunId = Annotated[str, _identity("run")]
TaskId = Annotated[str, _identity("task")]
WorkerId = Annotated[str, _identity("worker")]
Tool = Annotated[str, _identity("tool")]
KeyId = Annotated[str, _identity("key")]
Attempts = Annotated[Collection[tuple[str, int]], Rule(checks.attempts, {"type": "array", "items": {"type": "array"}})]


class FieldType(Protocol):
    """What a field may hold."""

    def problems(self, path: str, value: Any) -> Iterator[Problem]: ...
    def read(self, path: str, raw: Any, problems: list[Problem]) -> Any:
        """The value that decoded JSON stands for; adds what is wrong with it to `problems`."""
        ...

    def write(self, value: Any) -> Any:
        """What `read` makes this value of."""
        ...

    def schema(self) -> Schema: ...


@dataclass(frozen=True, slots=True)
class _Leaf:
    type: Any
    rule: Rule

    def problems(self, path: str, value: Any) -> Iterator[Problem]:
        return self.rule.check(path, value)

    def read(self, path: str, raw: Any, problems: list[Problem]) -> Any:
        try:
            value = msgspec.convert(raw, self.type)
        except msgspec.ValidationError:
            value = raw  # the rule says what it must be
        try:
            problems += self.rule.check(path, value)
        except NotFound as error:  # of an id that cannot exist: one problem among others
            problems.append(Problem(path, str(error)))
        return value

    def write(self, value: Any) -> Any:
        return msgspec.to_builtins(value)

    def schema(self) -> Schema:
        return dict(self.rule.schema)


@dataclass(frozen=True, slots=True)
class _Optional:
    inner: FieldType

    def problems(self, path: str, value: Any) -> Iterator[Problem]:
        return iter(()) if value is None else self.inner.problems(path, value)

    def read(self, path: str, raw: Any, problems: list[Problem]) -> Any:
        return None if raw is None else self.inner.read(path, raw, problems)

    def write(self, value: Any) -> Any:
        return None if value is None else self.inner.write(value)

    def schema(self) -> Schema:
        return {"anyOf": [self.inner.schema(), {"type": "null"}]}


@dataclass(frozen=True, slots=True)
class _Many:
    inner: FieldType

    def problems(self, path: str, value: Any) -> Iterator[Problem]:
        if not isinstance(value, list | tuple):
            yield Problem(path, f"Must be a list, not {checks.brief(value)}.")
            return
        for index, each in enumerate(value):
            yield from self.inner.problems(f"{path}[{index}]", each)

    def read(self, path: str, raw: Any, problems: list[Problem]) -> Any:
        if not isinstance(raw, list):
            problems += self.problems(path, raw)
            return ()
        return tuple(self.inner.read(f"{path}[{index}]", each, problems) for index, each in enumerate(raw))

    def write(self, value: Any) -> Any:
        return [self.inner.write(each) for each in value]

    def schema(self) -> Schema:
        return {"type": "array", "items": self.inner.schema()}


class _Field(Struct, frozen=True):
    name: str
    type: FieldType
    default: Any
    description: str
    marks: tuple[str, ...]

    @property
    def is_required(self) -> bool:
        return self.default is NODEFAULT


@dataclass(frozen=True, slots=True)
class _Struct:
    type: type[Struct]
    fields: tuple[_Field, ...]

    def problems(self, path: str, value: Any) -> Iterator[Problem]:
        if not isinstance(value, self.type):
            yield Problem(path, f"Must be a {self.type.__name__}, not {checks.brief(value)}.")
            return
        prefix = f"{path}." if path else ""
        for field in self.fields:
            held = getattr(value, field.name)
            if held is not field.default:  # most fields are left as they are
                yield from field.type.problems(path if INLINE in field.marks else f"{prefix}{field.name}", held)

    def read(self, path: str, raw: Any, problems: list[Problem]) -> Any:
        if not isinstance(raw, dict):
            problems.append(Problem(path, f"Must be an object, not {checks.brief(raw)}."))
            return None
        prefix = f"{path}." if path else ""
        known = list(self.keys())
        problems += [
            Problem(f"{prefix}{key}", f"There is no such field. {suggest(key, known)}") for key in raw if key not in known
        ]
        return self.build(prefix, raw, problems)

    def build(self, prefix: str, raw: Mapping[str, Any], problems: list[Problem]) -> Any:
        values = {}
        before = len(problems)
        for field in self.fields:
            if INLINE in field.marks:
                assert isinstance(field.type, _Struct)
                values[field.name] = field.type.build(prefix, raw, problems)
            elif field.name in raw and HIDDEN not in field.marks:
                values[field.name] = field.type.read(f"{prefix}{field.name}", raw[field.name], problems)
            elif field.is_required:
                problems.append(Problem(f"{prefix}{field.name}", f"It is missing. {field.description}".strip()))
        return self.type(**values) if len(problems) == before else None

    def write(self, value: Any) -> dict[str, Any]:
        """Without the fields that are left as they are."""
        written: dict[str, Any] = {}
        for field in self.fields:
            held = getattr(value, field.name)
            if HIDDEN in field.marks or held is field.default:
                continue
            if INLINE in field.marks:
                written |= field.type.write(held)
            else:
                written[field.name] = field.type.write(held)
        return written

    def keys(self) -> Iterator[str]:
        """The names that it has in JSON."""
        for field in self.fields:
            if INLINE in field.marks:
                assert isinstance(field.type, _Struct)
                yield from field.type.keys()
            elif HIDDEN not in field.marks:
                yield field.name

    def schema(self) -> Schema:
        properties: Schema = {}
        required: list[str] = []
        for field in self.fields:
            if INLINE in field.marks:
                inner = field.type.schema()
                properties |= inner["properties"]
                required += inner["required"]
            elif HIDDEN not in field.marks:
                properties[field.name] = _describe(field)
                required += [field.name] if field.is_required else []
        return {
            "title": self.type.__name__,
            "description": (self.type.__doc__ or "").partition("\n")[0],
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": False,
        }


def _describe(field: _Field) -> Schema:
    described = field.type.schema()
    if field.description:
        described["description"] = field.description
    if not field.is_required:
        described["default"] = msgspec.to_builtins(field.default)
    return described


@lru_cache(maxsize=256)
def shape_of(struct: type[Struct]) -> _Struct:
    """The fields of a struct, compiled once."""
    hints = get_type_hints(struct, include_extras=True)
    return _Struct(struct, tuple(_compile_field(each, hints[each.name]) for each in msgspec.structs.fields(struct)))


def _compile_field(field: msgspec.structs.FieldInfo, hint: Any) -> _Field:
    inner, texts = _split(hint)
    default = field.default if field.default_factory is NODEFAULT else field.default_factory()
    description = next((text for text in texts if text not in _MARKS), "")
    return _Field(field.name, _compile(inner), default, description, tuple(text for text in texts if text in _MARKS))


def _split(hint: Any) -> tuple[Any, list[str]]:
    """A type without the texts beside it, and these texts."""
    if get_origin(hint) is not Annotated:
        return hint, []
    inner, *metadata = get_args(hint)
    rules = tuple(each for each in metadata if not isinstance(each, str))
    return Annotated[(inner, *rules)] if rules else inner, [each for each in metadata if isinstance(each, str)]


def _compile(hint: Any) -> FieldType:
    hint, _ = _split(hint)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        rule = next(each for each in hint.__metadata__ if isinstance(each, Rule))
        return _Leaf(arguments[0], rule)
    if origin in (Union, UnionType):
        (inner,) = [each for each in arguments if each is not type(None)]
        return _Optional(_compile(inner))
    if origin is Literal:
        return _Leaf(hint, Rule(partial(checks.one_of, allowed=arguments), {"enum": list(arguments)}))
    if hint is bool:
        return _Leaf(bool, Rule(checks.truth, {"type": "boolean"}))
    if isinstance(hint, type) and issubclass(hint, Struct):
        return shape_of(hint)
    if origin is not None and issubclass(origin, Collection):
        return _Many(_compile(arguments[0]))
    raise TypeError(f"{hint} says nothing about what a value must be: use a type of pointsman.engine.fields.")
