"""What a flow is: the same objects, whether they come from YAML or from Python.

    Flow ─┬─ inputs ───▶ Input
          ├─ defaults ─▶ Defaults        options of every task that does not set them
          ├─ checks ───▶ Check           of the whole run, after its tasks
          ├─ worktree ─▶ Worktree        one for the whole run, or one for each task that has the key
          ├─ notify ───▶ Notify          whom to tell when a person is needed, or the run has ended
          └─ tasks ────▶ FlowTask ─┬─ backoff ─▶ Backoff
                         │         ├─ outputs ─▶ Outputs
                         │         └─ checks ──▶ Check
                         └─ one subclass per kind of task, declared by its runner (`pointsman.flows.kinds`)

The models declare the shape. `pointsman.flows.check` decides whether a flow makes sense as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    SerializeAsAny,
    WrapValidator,
    model_serializer,
    model_validator,
)
from pydantic.json_schema import SkipJsonSchema

from pointsman.engine.checks import MAX_COUNT
from pointsman.engine.submit import MAX_WORKERS
from pointsman.flows import kinds
from pointsman.flows.values import (
    Argv,
    Callable,
    Content,
    Count,
    Delay,
    Duration,
    ExitCodes,
    Items,
    Money,
    Pattern,
    RetryReasons,
    SchemaObject,
    SchemaSource,
    Text,
    Truth,
    Word,
    Words,
    several,
    wrong,
)
from pointsman.lifecycles import DEFAULT
from pointsman.settings import LONGEST_DELIVERY_SECONDS, MOST_TRIES

InputType = Literal["string", "integer", "number", "boolean", "list", "object"]
CallMode = Literal["process", "thread"]
Shell = Literal["sh", "bash"]
MAX_PEOPLE = 100


def type_of(value: object) -> InputType | None:
    """The input type of a value; None where no type fits."""
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
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, defer_build=True)


class Input(_Model):
    """A value that a run of the flow is given; a bare value is its default."""

    type: InputType = "string"
    """The type; inferred from the default."""
    default: Any = None
    """The value to use when none is given; an input without a default is required."""
    description: Text = ""
    """A one-line description."""
    choices: list[Any] | None = None
    """The allowed values."""

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
    """The delay before a retry; a bare duration is `base`."""

    base: Delay = 1.0
    """The delay before the first retry."""
    factor: float = Field(default=2.0, ge=1, le=1000, strict=True)
    """Each delay is this many times the previous one."""
    max: Delay = 300.0
    """The longest delay."""
    jitter: float = Field(default=0.1, ge=0, le=10, strict=True)
    """The largest share of the delay that is added at random, so that tasks that failed together do not retry together."""

    @model_validator(mode="before")
    @classmethod
    def _read_shorthand(cls, value: Any) -> Any:
        return value if isinstance(value, Mapping | Backoff) or value is None else {"base": value}


class Outputs(_Model):
    """Where a task writes its result as JSON: `stdout`, or `{file: PATH}`."""

    from_: Literal["file", "stdout"] = Field(validation_alias="from", serialization_alias="from")
    file: Annotated[Word | None, Content.TEXT] = None

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
    """A file that must be valid against a JSON Schema."""

    file: Annotated[Word, Content.TEXT]
    schema_: SchemaSource = Field(validation_alias="schema", serialization_alias="schema")


class Check(_Model):
    """A condition that must hold after the task, or the attempt fails; exactly one kind each."""

    exit_code: ExitCodes | None = None
    """The exit code is this one, or one of these."""
    file: Annotated[Word | None, Content.TEXT] = None
    """This file exists."""
    glob: Annotated[Word | None, Content.TEXT] = None
    """At least `at_least` files match this pattern."""
    at_least: Count | None = Field(default=None, ge=1, le=MAX_COUNT)
    """With `glob`: the minimum number of files (default: 1)."""
    json_schema: JsonSchemaCheck | None = None
    """A file is valid against a JSON Schema."""
    output: Annotated[Pattern | None, Content.TEXT] = None
    """This regular expression matches in the last lines of the output."""
    command: Annotated[Argv | None, Content.TEXT] = None
    """This command exits with 0."""
    run: Annotated[Word | None, Content.SHELL] = None
    """This shell script exits with 0."""
    call: Callable | None = None
    """This Python function raises nothing and does not return False."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds that are given; exactly one in a valid check."""
        return tuple(key for key in CHECK_KINDS if getattr(self, key) is not None)


FINAL_TASK = "checks"
"""The name of the task that runs the checks of the whole run."""
RUN_MERGE = "run[merge]"
"""The name of the task that merges the worktree of a run. No task of a flow has brackets in its name."""
CHECK_KINDS = ("exit_code", "file", "glob", "json_schema", "output", "command", "run", "call")


class Approval(_Model):
    """A decision of people; a bare text is `prompt`."""

    prompt: Annotated[Text, Content.TEXT] = ""
    """What to decide."""
    by: Words = ()
    """Who may decide; by default anybody."""
    quorum: Count = Field(default=1, ge=1, le=MAX_PEOPLE)
    """How many different people have to approve."""
    self_approval: Truth = True
    """Whether the person who submitted the run may approve; with `false`, it is up to others."""
    expires: Duration | None = None
    """How long to wait for a decision."""
    on_expire: Literal["approve", "reject", "cancel", "skip"] | None = None
    """What happens when nobody has decided in time; by default it is rejected, or canceled where it cannot be rejected."""

    @model_validator(mode="before")
    @classmethod
    def _read_shorthand(cls, value: Any) -> Any:
        if value is True:
            return {}
        return value if isinstance(value, Mapping | Approval) or value is None else {"prompt": value}


class Notify(_Model):
    """A command or a webhook that is told of events of the run; `command` or `webhook` is required."""

    on: Annotated[tuple[Literal["person_needed", "run_ended", "run_failed"], ...], BeforeValidator(several)] = ()
    """The events, at least one: `person_needed`, `run_ended`, or `run_failed` for runs that end with a failure."""
    name: Word | None = None
    """Its name in `pointsman notify list`; by default its number."""
    command: Argv | None = None
    """The program to run, on a worker, with the event as JSON on stdin; without expressions."""
    webhook: Word | None = None
    """The URL to post the event to; without expressions."""
    webhook_env: Word | None = None
    """Instead of `webhook`: the variable that has the URL, one of those that tasks inherit."""
    secret_env: Word | None = None
    """The variable that has the secret for signatures, one of those that tasks inherit."""
    timeout: Duration = Field(default=10.0, le=LONGEST_DELIVERY_SECONDS)
    """The longest time that one try may take."""
    tries: Count = Field(default=MOST_TRIES, ge=1, le=100)
    """How many tries there are before the notification is dead."""


class Expects(_Model):
    """What an answer has to be."""

    choices: list[Any] | None = None
    """The allowed answers."""
    default: Any = None
    """The answer that is suggested."""
    schema_: SchemaObject | None = Field(default=None, validation_alias="schema", serialization_alias="schema")
    """The JSON Schema of the answer, which is then JSON."""


MergePolicy = Literal["ff", "merge", "squash", "none"]


class Worktree(_Model):
    """A git worktree with a branch of its own; `true` is one with all defaults."""

    base: Annotated[Word | None, Content.TEXT] = None
    """The branch that it begins with and is merged into; by default, the one that is checked out in the project."""
    branch: Annotated[Word | None, Content.TEXT] = None
    """The name of its branch, which must not exist; by default `pointsman/` and a name from the run and the task."""
    merge: MergePolicy = "merge"
    """How work gets into the base: a merge commit (`merge`), one commit (`squash`), a fast-forward (`ff`); or not (`none`)."""
    wanted: SkipJsonSchema[Truth] = True

    @model_validator(mode="before")
    @classmethod
    def _read_shorthand(cls, value: Any) -> Any:
        if isinstance(value, bool):
            return {"wanted": value}
        if isinstance(value, Mapping | Worktree):
            return value
        raise wrong("must be `true`, or have the keys of a worktree", "Write `worktree: true`, or `{base, branch, merge}`.")

    @model_serializer
    def _write_shorthand(self) -> Any:
        given = {"base": self.base, "branch": self.branch, "merge": self.merge}
        return {key: value for key, value in given.items() if value is not None} if self.wanted else False

    @property
    def merges(self) -> bool:
        return self.wanted and self.merge != "none"


class TaskOptions(_Model):
    """The keys of a task that `defaults` can set, too."""

    env: Annotated[dict[str, Text], Content.TEXT] = Field(default_factory=dict)
    """Environment variables; those of the flow, of `defaults` and of the task are merged."""
    cwd: Annotated[Word | None, Content.TEXT] = None
    """The working directory, relative to the project."""
    timeout: Duration | None = None
    """The longest time that one attempt may take."""
    stall_timeout: Duration | None = None
    """The longest time that one attempt may go without output."""
    retries: Count = Field(default=0, ge=0, le=MAX_COUNT)
    """How many times to retry; by default, as `max_attempts` or the lifecycle allows."""
    max_attempts: Count | None = Field(default=None, ge=1, le=MAX_COUNT)
    """How many attempts the task gets, also after lost workers; a retry by a person begins anew, except under `agent`."""
    reclaim_after: Duration | None = None
    """How old an attempt may become before another worker takes it over; the lifecycle may have a default."""
    backoff: Backoff = Backoff.model_construct()  # to validate the default would take milliseconds of each start
    """The delay before a retry."""
    retry_on: RetryReasons | None = None
    """What to retry after: `failure`, `timeout`, `stall`, `signal`, `checks`, exit codes; by default everything."""
    expected_exit_codes: ExitCodes = (0,)
    """The exit codes that mean success; by default those of the tool, or 0."""
    tool: Word | None = None
    """The profile in pointsman.toml that defines how the program is called and how often."""
    on_open_circuit: Literal["wait", "fail"] = "wait"
    """With `tool`: whether the task waits while the circuit of its tool is open, or fails at once."""
    needs_capabilities: Words = ()
    """The capabilities that a worker needs to run the task."""
    critical: Truth = True
    """Whether the run fails when the task fails; with `false` the other tasks continue."""
    priority: Count = Field(default=0, ge=-MAX_COUNT, le=MAX_COUNT)
    """Tasks with a higher priority start first."""
    budget_usd: Money | None = None
    """How much the task may spend."""
    checks: tuple[Check, ...] = ()
    """The conditions that must hold after the task."""
    outputs: Outputs | None = None
    """Where the task writes its result for later tasks; by default the file $POINTSMAN_OUTPUT, if it writes one."""


class Defaults(TaskOptions):
    """The options of every task that does not set them itself."""

    mode: CallMode = "process"
    """With `call`: whether the function runs in its own process or in a thread of the worker."""
    shell: Shell = "sh"
    """With `run`: the shell of the script."""


class FlowTask(TaskOptions):
    """One unit of work: exactly one key that selects its kind (`run`, `command`, `call`, …), and options.

    `FlowTask(run="make")` makes a task of the kind that its keys select. A runner declares its keys in a subclass.
    """

    kind: ClassVar[str | None] = None
    """The key that selects this kind of task."""
    synonyms: ClassVar[Mapping[str, str]] = {}
    """Names that other tools give to the keys of this kind, for suggestions."""
    reports_progress: ClassVar[bool] = False
    """Whether its work says more about itself while it runs: its session, what it does."""

    description: Text = ""
    """A one-line description."""
    needs: Words = ()
    """The tasks that must succeed first."""
    when: Annotated[Word | None, Content.EXPRESSION] = None
    """An expression; the task is skipped when it is false."""
    foreach: Annotated[Items | None, Content.EXPRESSION] = None
    """One subtask for each item of a list, of an expression's list, or of every combination of several lists."""
    review: Truth = False
    """Whether a person accepts the result, or rejects it, before the tasks that need it start."""
    expects: Expects | None = None
    """What an answer to a question of the task has to be, unless the question says so itself."""
    worktree: Worktree | None = None
    """A git worktree of its own, merged when the task has succeeded; with `false`, it does not work in that of the run."""
    item: SkipJsonSchema[Any] = None
    """Of a subtask: its item."""
    index: SkipJsonSchema[int | None] = None
    """Of a subtask: the index of its item, from 0."""
    worktree_of: SkipJsonSchema[str | None] = None
    """Of a subtask: the task whose worktree it works in."""
    shows_changes: SkipJsonSchema[bool] = False
    """Of a subtask: a person reviews the task that it belongs to, and has to see what it changes."""

    def __new__(cls, **keys: Any) -> Self:
        return super().__new__((kinds.find_model(keys) or cls) if cls is FlowTask else cls)  # type: ignore[return-value]

    if TYPE_CHECKING:

        def __init__(self, **keys: Any) -> None: ...

    @property
    def tool_name(self) -> str | None:
        """The tool whose breaker and limits apply."""
        return self.tool

    def summary(self) -> str:
        """What the task does, in one line."""
        return ""

    def check(self, given: Set[str]) -> Iterator[tuple[str, str, str]]:  # noqa: ARG002 - for kinds to override
        """Problems with the keys of this kind, as (key, message, advice); `given` has the keys that the task itself sets."""
        yield from ()

    def payload(self) -> dict[str, Any]:
        """The task as JSON, for the worker; `read_task` reads it."""
        payload = self.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        # An explicit value overrides what the tool or the lifecycle says, even when it equals the default.
        if "expected_exit_codes" in self.model_fields_set:
            payload["expected_exit_codes"] = list(self.expected_exit_codes)
        if "retries" in self.model_fields_set:
            payload["retries"] = self.retries
        return payload


def read_task(value: Any) -> FlowTask:
    """A task from its keys and values, as the kind that they select."""
    if isinstance(value, FlowTask):
        return value
    model = kinds.find_model(value) if isinstance(value, Mapping) else None
    return (model or FlowTask).model_validate(value)


_AnyTask = Annotated[SerializeAsAny[FlowTask], WrapValidator(lambda value, _: read_task(value))]


class Flow(_Model):
    """A graph of tasks."""

    name: Word
    """The name of its runs."""
    description: Text = ""
    """A one-line description."""
    tags: tuple[Word, ...] = ()
    """Words by which its runs are found: `pointsman status --tag WORD`."""
    lifecycle: Word = DEFAULT
    """The lifecycle of its runs: the name of a shipped one, or the path of a file, relative to this one."""
    start: Literal["automatic", "manual"] = "automatic"
    """Whether its first tasks start by themselves, or when a person says so: `pointsman start RUN`."""
    task_description: Text = ""
    """Of a job (`supervised`): what it is to do, for people and, as `run.task_description`, for its tasks."""
    worker_count: Count = Field(default=1, ge=1, le=MAX_WORKERS)
    """Of a job (`supervised`): how many workers it gets for itself; it starts when all of them are free."""
    workspace: Word | None = None
    """Of a job (`supervised`): the workspace of its workers, which were started with `--workspace NAME`; by default any."""
    ordered: Truth = False
    """Run the tasks strictly in order: each waits for the one before it."""
    inputs: dict[str, Input] = Field(default_factory=dict)
    """The values that a run is given."""
    env: dict[str, Text] = Field(default_factory=dict)
    """Environment variables for every task."""
    defaults: Defaults = Defaults.model_construct()
    """Options of every task that does not set them itself."""
    tasks: dict[str, _AnyTask] = Field(default_factory=dict)
    """The tasks, by name."""
    checks: tuple[Check, ...] = ()
    """The conditions that must hold when all tasks have succeeded, or the run fails."""
    worktree: Worktree | None = None
    """A git worktree in which all its tasks work, merged when they have succeeded (see below)."""
    timeout: Duration | None = None
    """The longest time that the whole run may take."""
    retries: Count = Field(default=0, ge=0, le=MAX_COUNT)
    """How many times to retry the run as a whole."""
    backoff: Backoff = Backoff.model_construct()
    """The delay before the run is retried as a whole. Failed tasks can be reset or skipped meanwhile."""
    budget_usd: Money | None = None
    """How much the whole run may spend."""
    notify: tuple[Notify, ...] = ()
    """Whom to tell when a person is needed, or the run has ended."""

    _file: str | None = PrivateAttr(default=None)

    @property
    def file(self) -> str | None:
        """The file that the flow was read from."""
        return self._file

    def from_file(self, file: str | None) -> Self:
        """Set the file that the flow was read from."""
        self._file = file
        return self

    def task(self, name: str) -> FlowTask:
        """A task with the defaults that its kind has."""
        task = self.tasks[name]
        inherited = (self.defaults.model_fields_set - task.model_fields_set) & type(task).model_fields.keys()
        given = {field: getattr(self.defaults, field) for field in inherited}
        if self.defaults.env:
            given["env"] = {**self.defaults.env, **task.env}
        return task.model_copy(update=given) if given else task

    @property
    def final_task(self) -> FlowTask | None:
        """The task that runs the checks of the whole run."""
        return FlowTask(checks=self.checks) if self.checks else None

    def worktree_of(self, name: str) -> Worktree | None:
        """The worktree that a task has for itself."""
        own = self.tasks[name].worktree
        return own if own is not None and own.wanted else None

    @property
    def run_worktree(self) -> Worktree | None:
        """The worktree that the tasks share."""
        return self.worktree if self.worktree is not None and self.worktree.wanted else None

    @property
    def links(self) -> dict[str, tuple[str, ...]]:
        """By task, its direct predecessors."""
        if not self.ordered:
            return {name: task.needs for name, task in self.tasks.items()}
        names = list(self.tasks)
        return {name: (before,) if before else () for before, name in zip([None, *names], names, strict=False)}
