"""What a flow is: the same objects, whether they come from YAML or from Python.

    Flow ─┬─ inputs ───▶ Input
          ├─ defaults ─▶ Defaults        what every task gets unless it says otherwise
          └─ tasks ────▶ FlowTask ─┬─ backoff ─▶ Backoff
                                   ├─ outputs ─▶ Outputs
                                   └─ checks ──▶ Check

The models say what shape things have. Whether they make sense together is for `pointsman.flows.check`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    WithJsonSchema,
    model_serializer,
    model_validator,
)
from pydantic.json_schema import SkipJsonSchema

from pointsman.engine.checks import MAX_COUNT
from pointsman.flows.values import (
    Argv,
    Callable,
    Count,
    Delay,
    Duration,
    ExitCodes,
    Items,
    Money,
    Pattern,
    RetryReasons,
    SchemaSource,
    Text,
    Truth,
    Word,
    Words,
    wrong,
)
from pointsman.lifecycles import DEFAULT

InputType = Literal["string", "integer", "number", "boolean", "list", "object"]
ACTIONS = ("run", "command", "call")
LATER = {
    "approval": "Approvals come with a later version of Pointsman",
    "review": "Reviews come with a later version of Pointsman",
    "agent": "Agents come with a later version of Pointsman",
    "prompt": "Prompts for agents come with a later version of Pointsman",
}


def type_of(value: object) -> InputType | None:
    """What an input of this value is; None for what is none of them."""
    match value:
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list() | tuple():
            return "list"
        case dict():
            return "object"
        case _:
            return None


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, use_attribute_docstrings=True)


class Input(_Model):
    """Something that a flow is given when it is run; a bare value stands for its default."""

    type: InputType = "string"
    """What it is; taken from the default where that is given."""
    default: Any = None
    """What it is when nobody says; without one it must be given."""
    description: Text = ""
    """One line for people."""
    choices: list[Any] | None = None
    """The values that it may have."""

    @model_validator(mode="before")
    @classmethod
    def _read_shorthand(cls, value: Any) -> Any:
        if isinstance(value, Input):
            return value
        if not isinstance(value, Mapping):
            value = {"default": value} if value is not None else {}
        if "type" not in value and (kind := type_of(value.get("default"))):
            value = {**value, "type": kind}
        return value

    @property
    def required(self) -> bool:
        return "default" not in self.model_fields_set


class Backoff(_Model):
    """How long to wait before the next try; a bare duration stands for `base`."""

    base: Delay = 1.0
    """The wait before the first retry."""
    factor: float = Field(default=2.0, ge=1, le=1000, strict=True)
    """How many times longer each wait is than the one before."""
    max: Delay = 300.0
    """No wait is longer than this."""
    jitter: float = Field(default=0.1, ge=0, le=10, strict=True)
    """A share of the wait that is added by chance, so that those who failed together do not return together."""

    @model_validator(mode="before")
    @classmethod
    def _read_shorthand(cls, value: Any) -> Any:
        return value if isinstance(value, Mapping | Backoff) or value is None else {"base": value}


class Outputs(_Model):
    """Where a task leaves its result as JSON: `stdout`, or `{file: PATH}`."""

    from_: Literal["file", "stdout"] = Field(validation_alias="from", serialization_alias="from")
    file: Word | None = None

    @model_validator(mode="before")
    @classmethod
    def _read_shorthand(cls, value: Any) -> Any:
        if isinstance(value, Mapping) and "from" not in value and "from_" not in value and value.get("file") is not None:
            return {**value, "from": "file"}
        if isinstance(value, Outputs) or (isinstance(value, Mapping) and ("from" in value or "from_" in value)):
            return value
        if value == "stdout":
            return {"from": "stdout"}
        raise wrong("must be `stdout` or a file", "Write `outputs: stdout` or `outputs: {file: result.json}`.")

    @model_serializer
    def _write_shorthand(self) -> Any:
        return "stdout" if self.from_ == "stdout" else {"file": self.file}


class JsonSchemaCheck(_Model):
    """A file that must be JSON and follow a JSON Schema."""

    file: Word
    schema_: SchemaSource = Field(validation_alias="schema", serialization_alias="schema")


class Check(_Model):
    """Something that must hold after a task, or the attempt counts as failed; exactly one kind each."""

    exit_code: ExitCodes | None = None
    """The exit code is this one, or one of these."""
    file: Word | None = None
    """This file is there."""
    glob: Word | None = None
    """At least `at_least` files match this pattern."""
    at_least: Count | None = Field(default=None, ge=1, le=MAX_COUNT)
    """With `glob`: how many files at least; 1 where nothing is said."""
    json_schema: JsonSchemaCheck | None = None
    """A file follows a JSON Schema."""
    output: Pattern | None = None
    """This regular expression is found in the last lines of the output."""
    command: Argv | None = None
    """This command ends with 0."""
    run: Word | None = None
    """This shell script ends with 0."""
    call: Callable | None = None
    """This Python function returns anything but False, and raises nothing."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """What it checks; one, where it is sound."""
        return tuple(key for key in CHECK_KINDS if getattr(self, key) is not None)


CHECK_KINDS = ("exit_code", "file", "glob", "json_schema", "output", "command", "run", "call")


class Defaults(_Model):
    """What a task can leave to its flow."""

    env: dict[str, Text] = Field(default_factory=dict)
    """Environment variables; those of the flow, of `defaults` and of the task are put together."""
    cwd: Word | None = None
    """The directory to run in, seen from the project's."""
    timeout: Duration | None = None
    """How long one attempt may take."""
    stall_timeout: Duration | None = None
    """How long one attempt may go without writing anything."""
    retries: Count = Field(default=0, ge=0, le=MAX_COUNT)
    """How often to try again."""
    backoff: Backoff = Backoff()
    """How long to wait before trying again."""
    retry_on: RetryReasons | None = None
    """What is worth another try: `failure`, `timeout`, `stall`, `signal`, `checks`, exit codes; by default everything."""
    expected_exit_codes: ExitCodes = (0,)
    """The exit codes that mean that all went well; by default those of the tool, or 0."""
    tool: Word | None = None
    """The profile of pointsman.toml that says how the program is called and how often it may be."""
    needs_capabilities: Words = ()
    """What a worker must be able to do to run it."""
    critical: Truth = True
    """Whether the run fails when it fails; `false` passes over it, and the others go on."""
    priority: Count = Field(default=0, ge=-MAX_COUNT, le=MAX_COUNT)
    """Those with more go first."""
    budget_usd: Money | None = None
    """How much it may spend."""
    checks: tuple[Check, ...] = ()
    """What must hold after it."""
    outputs: Outputs | None = None
    """Where it leaves its result for later tasks; without this, the file $POINTSMAN_OUTPUT if it writes it."""
    mode: Literal["process", "thread"] = "process"
    """With `call`: whether the function gets a process of its own or a thread of the worker."""


def _refuse(key: str) -> BeforeValidator:
    def refuse(value: object) -> None:
        if value is not None:
            raise wrong(LATER[key], "Take it out of the flow until then.")

    return BeforeValidator(refuse)


def _later(key: str) -> Any:
    return Annotated[None, _refuse(key), WithJsonSchema({"not": {}, "description": f"{LATER[key]}."})]


class FlowTask(Defaults):
    """One piece of work: exactly one of `run`, `command` and `call`, and how to go about it."""

    description: Text = ""
    """One line for people."""
    needs: Words = ()
    """The tasks that must have succeeded before."""
    run: Word | None = None
    """A script for /bin/sh; values of expressions are quoted for it."""
    command: Argv | None = None
    """A program and its arguments, without a shell."""
    call: Callable | None = None
    """A Python function, as `package.module:function`."""
    with_: dict[str, Any] = Field(default_factory=dict, validation_alias="with", serialization_alias="with")
    """With `call`: the arguments, by name."""
    when: Word | None = None
    """An expression; the task is skipped where it is false."""
    foreach: Items | None = None
    """One subtask for each item of a list, of an expression's list, or of every combination of several lists."""
    approval: _later("approval") = None  # type: ignore[valid-type]
    review: _later("review") = None  # type: ignore[valid-type]
    agent: _later("agent") = None  # type: ignore[valid-type]
    prompt: _later("prompt") = None  # type: ignore[valid-type]
    item: SkipJsonSchema[Any] = None
    """Of a subtask: the item that it is for."""
    index: SkipJsonSchema[int | None] = None
    """Of a subtask: the number of its item, from 0."""

    @property
    def action(self) -> str | None:
        """Which of `run`, `command` and `call` it has."""
        return next((key for key in ACTIONS if getattr(self, key) is not None), None)

    def payload(self) -> dict[str, Any]:
        """What a worker gets to see, as JSON; `FlowTask.model_validate` reads it."""
        payload = self.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        if "expected_exit_codes" in self.model_fields_set:
            # Said explicitly, also where it says what is usual: a tool's own codes do not count then.
            payload["expected_exit_codes"] = list(self.expected_exit_codes)
        return payload


class Flow(_Model):
    """Tasks that belong together, and how they depend on each other."""

    name: Word
    """What runs of it are called."""
    description: Text = ""
    """One line for people."""
    lifecycle: Word = DEFAULT
    """The states and transitions that its runs follow: a shipped lifecycle, or the path of a file, seen from this one."""
    ordered: Truth = False
    """A strict sequence: each task waits for the one before it."""
    inputs: dict[str, Input] = Field(default_factory=dict)
    """What it is given when it is run."""
    env: dict[str, Text] = Field(default_factory=dict)
    """Environment variables of every task."""
    defaults: Defaults = Defaults()
    """What every task gets unless it says otherwise."""
    tasks: dict[str, FlowTask] = Field(default_factory=dict)
    """The tasks, by name."""
    timeout: Duration | None = None
    """How long the whole run may take."""
    retries: Count = Field(default=0, ge=0, le=MAX_COUNT)
    """How often the run as a whole is tried again."""
    budget_usd: Money | None = None
    """How much the whole run may spend."""

    _file: str | None = PrivateAttr(default=None)

    @property
    def file(self) -> str | None:
        """The file that it was read from."""
        return self._file

    def from_file(self, file: str | None) -> Self:
        """The same, with the file that it was read from."""
        self._file = file
        return self

    def task(self, name: str) -> FlowTask:
        """A task with the defaults merged in."""
        task = self.tasks[name]
        inherited = self.defaults.model_fields_set - task.model_fields_set
        if task.call is None:
            inherited -= {"mode"}
        given = {field: getattr(self.defaults, field) for field in inherited}
        if self.defaults.env:
            given["env"] = {**self.defaults.env, **task.env}
        return task.model_copy(update=given) if given else task

    @property
    def links(self) -> dict[str, tuple[str, ...]]:
        """By task, the tasks that must come directly before."""
        if not self.ordered:
            return {name: task.needs for name, task in self.tasks.items()}
        names = list(self.tasks)
        return {name: (before,) if before else () for before, name in zip([None, *names], names, strict=False)}
