"""What work can ask of its worker while it runs: the tools of one attempt.

    ask, add_subtasks, report_progress, report_cost, read_upstream, finish

Each is declared once, as a struct with the types of `engine/fields.py`: its schema and its validation follow. The tools write
the files that `pointsman.inside` writes, so that everything after them is the same. What is wrong is refused at once, in the
words that the worker would use when the attempt has ended.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Annotated, Any, Final

import msgspec
from msgspec import Struct

from pointsman.engine.fields import Json, Name, Rule, Text, shape_of
from pointsman.engine.questions import Question
from pointsman.errors import Problem, RequestInvalid, suggest
from pointsman.flows.lifecycle import explain_no_questions, explain_no_subtasks
from pointsman.kernel.machine import Machine
from pointsman.settings import Settings
from pointsman.worker.cost_file import is_amount
from pointsman.worker.left_files import (
    MAX_SUBTASKS,
    as_sentence,
    check_question,
    explain_place,
    explain_subtask,
    explain_tool,
    list_added,
)
from pointsman.worker.runner import OUTPUT_BYTES, QUESTION_SUFFIX, SUBTASKS_SUFFIX, Job, read_file

MAX_PROGRESS: Final = 500
"""Characters of a report of progress: it is one line."""
MAX_UPSTREAM_BYTES: Final = 8 << 20
WRITE = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""Neither a named pipe in the place of the file may block the worker, nor a link lead it to another file."""


def _check_cost(path: str, value: object) -> Iterator[Problem]:
    if not isinstance(value, Decimal) or not is_amount(value):
        yield Problem(path, f"{str(value)[:80]!r} is not an amount in dollars, such as 0.25.")


Cost = Annotated[Decimal, Rule(_check_cost, {"type": "number", "minimum": 0})]
Keys = Annotated[Any, Rule(lambda *_: iter(()), {"type": "object", "properties": {"name": {"type": "string"}}})]
"""The keys of a task, which are checked like those of a flow."""


class Ask(Struct, frozen=True):
    """Ask a person a question, if only a person can decide.

    After this, end your work at once: save what you have, call no other tool, and exit. The task is blocked until a person
    answers, and starts again with the answer. If the person has already answered this question, the result has the answer.
    """

    text: Annotated[Text, "The question, with everything that the person needs to know. Each question needs its own text."]
    choices: Annotated[Sequence[Json] | None, "The allowed answers."] = None
    default: Annotated[Json, "The answer that is suggested."] = None
    schema: Annotated[Json, "The JSON Schema of the answer, which is then JSON."] = None


class AddSubtasks(Struct, frozen=True):
    """Split the work: add subtasks, which start when this task has succeeded. All are added, or none."""

    tasks: Annotated[
        Sequence[Keys],
        "Each is an object with a `name` and the keys of a task in a flow, such as "
        '{"name": "part-1", "run": "make part-1"}; `needs` names other subtasks of this task.',
    ]


class ReportProgress(Struct, frozen=True):
    """Say in one line what you are doing, for the people who watch."""

    text: Annotated[Text, f"One line of at most {MAX_PROGRESS} characters; the rest is cut."]


class ReportCost(Struct, frozen=True):
    """Report what the work has cost since the last report. It counts towards the budgets."""

    usd: Annotated[Cost, "US dollars, such as 0.25."]


class ReadUpstream(Struct, frozen=True):
    """Read the outputs of the tasks that this task needs."""

    task: Annotated[Name | None, "Only this one."] = None


class Finish(Struct, frozen=True):
    """Say that the work is done, and hand over its output. End your work after this."""

    output: Annotated[Json, "The result for the tasks that need this one; any JSON up to a megabyte."] = None


TOOLS: Mapping[str, type[Struct]] = {
    "ask": Ask,
    "add_subtasks": AddSubtasks,
    "report_progress": ReportProgress,
    "report_cost": ReportCost,
    "read_upstream": ReadUpstream,
    "finish": Finish,
}

Upstream = Callable[[], Awaitable[Mapping[str, Mapping[str, Any]]]]
"""Reads the results of the tasks that an attempt needs."""
FindMachine = Callable[[], Awaitable[Machine]]


class InsideTools:
    """The tools of one attempt."""

    def __init__(
        self, job: Job, settings: Settings, upstream: Upstream, machine: FindMachine, refusal: Callable[[], str | None]
    ) -> None:
        """`refusal` says why the attempt may ask for nothing any more; None while it holds its task."""
        self._job = job
        self._settings = settings
        self._upstream = upstream
        self._machine = machine
        self._refusal = refusal
        self._question: str | None = None
        self._has_finished = False

    async def call(self, tool: str, arguments: object) -> dict[str, Any]:
        """The result of a tool, or RequestInvalid."""
        if tool not in TOOLS:
            raise _refused(f"There is no tool '{tool}'. {suggest(tool, TOOLS)}")
        problems: list[Problem] = []
        request = shape_of(TOOLS[tool]).read("", {} if arguments is None else arguments, problems)
        if problems:
            raise RequestInvalid(problems)
        self._check_held()
        match request:
            case Ask():
                return await self._ask(request)
            case AddSubtasks():
                return await self._add_subtasks(request.tasks)
            case ReportProgress():
                return self._report_progress(request.text)
            case ReportCost():
                self._append(self._job.cost_file.path, f"{request.usd:f}\n")
                return {"reported_usd": f"{request.usd:f}"}
            case ReadUpstream():
                return await self._read_upstream(request.task)
            case Finish():
                return self._finish(request.output)
        raise AssertionError(tool)

    def _check_held(self) -> None:
        """Again after each wait: the attempt may have been stopped meanwhile."""
        if why := self._refusal():
            raise _refused(why)

    async def _ask(self, asked: Ask) -> dict[str, Any]:
        if asked.text in self._job.answers:
            return {"answer": self._job.answers[asked.text]}
        self._check_unfinished()
        given = {name: getattr(asked, name) for name in Ask.__struct_fields__}
        try:
            question, problem = check_question(msgspec.convert(given, Question), self._job.task.expects)
        except msgspec.ValidationError as error:
            raise _refused(f"The question is invalid: {error}.") from None
        if question is None:
            raise _refused(as_sentence(problem or ""))
        if question.suggestion is not None and (misfit := question.explain_misfit(question.suggestion)):
            raise _refused(misfit)
        if problem := explain_no_questions(await self._machine()):
            raise _refused(problem)
        self._check_held()
        if self._question not in (None, asked.text):
            raise _refused(f"This attempt has asked already: {self._question!r}. End the work, and ask this after the answer.")
        self._write(self._job.stem + QUESTION_SUFFIX, msgspec.json.encode(question))
        self._question = asked.text
        dropped = list_added(self._job.stem + SUBTASKS_SUFFIX)
        again = " The subtasks that you have added do not start: add them again after the answer." if dropped else ""
        return {"asked": True, "next": f"End your work now. The task starts again when a person has answered.{again}"}

    async def _add_subtasks(self, tasks: Sequence[Any]) -> dict[str, Any]:
        self._check_unfinished()
        path = self._job.stem + SUBTASKS_SUFFIX
        if problem := explain_no_subtasks(await self._machine()):
            raise _refused(problem)
        self._check_held()
        found, lines = list_added(path), []
        problems = []
        for index, keys in enumerate(tasks):
            wrong = explain_subtask(keys) or explain_place(keys, found) or explain_tool(keys, self._settings.all_tools)
            if wrong:
                problems.append(Problem(f"tasks[{index}]", as_sentence(wrong)))
            if isinstance(keys, dict) and isinstance(name := keys.get("name"), str):
                found.add(name)
            lines.append(msgspec.json.encode(keys) + b"\n")
        if not problems and len(found) > MAX_SUBTASKS:
            problems.append(Problem("tasks", f"A task has at most {MAX_SUBTASKS:,} subtasks. Let subtasks add subtasks."))
        if problems:
            raise RequestInvalid(problems)
        self._append(path, b"".join(lines).decode())
        return {"added": [keys["name"] for keys in tasks], "next": "They start when this task has succeeded."}

    def _report_progress(self, text: str) -> dict[str, Any]:
        line = make_line(text)
        if not line:
            raise _refused("The report of progress has no text.")
        self._job.log.add_line(f"progress: {line}")
        return {"progress": line}

    async def _read_upstream(self, name: str | None) -> dict[str, Any]:
        results = await self._upstream()
        self._check_held()
        if name is not None and name not in results:
            needed = f"It needs: {', '.join(results)}." if results else "It needs no other task."
            raise _refused(f"This task does not need '{name}', so it cannot read its output. {needed}")
        wanted = {each: result for each, result in results.items() if name in (None, each)}
        if len(msgspec.json.encode(wanted)) > MAX_UPSTREAM_BYTES:
            names = ", ".join(list(wanted)[:20])
            raise _refused(f"The outputs together are larger than {MAX_UPSTREAM_BYTES >> 20} MiB. Name one task: {names}.")
        return {"tasks": wanted}

    def _finish(self, output: Any) -> dict[str, Any]:
        if self._question is not None:
            raise _refused(f"A question waits for an answer: {self._question!r}. End the work without `finish`.")
        declared = self._job.task.outputs
        if output is not None and declared is not None:
            place = "stdout" if declared.from_ == "stdout" else f"the file {declared.file}"
            raise _refused(f"This task has its outputs from {place}. Write them there, and finish without `output`.")
        written = msgspec.json.encode(output)
        if len(written) > OUTPUT_BYTES:
            message = f"The output is larger than {OUTPUT_BYTES:,} bytes. Write large results to a file and output its path."
            raise _refused(message)
        if output is not None:
            self._write(self._job.output_path, written)
        self._has_finished = True
        return {"finished": True, "next": "End your work now."}

    def _check_unfinished(self) -> None:
        if self._has_finished:
            raise _refused("The work is finished: `finish` was called before. Ask and split before that.")

    def _write(self, path: str, content: bytes) -> None:
        self._put(path, content, os.O_TRUNC)

    def _append(self, path: str, text: str) -> None:
        """Whole lines, after whatever the work itself has written there."""
        content, _ = read_file(path)
        if len(content or b"") + len(text) > OUTPUT_BYTES:
            raise _refused(f"{path} would be larger than {OUTPUT_BYTES:,} bytes. Write less, or larger parts.")
        separator = "\n" if content and not content.endswith(b"\n") else ""
        self._put(path, (separator + text).encode(), os.O_APPEND)

    def _put(self, path: str, content: bytes, mode: int) -> None:
        self._job.log.make_folder()
        try:
            file = os.open(path, WRITE | mode, 0o600)
            try:
                if not stat.S_ISREG(os.fstat(file).st_mode):
                    raise _refused(f"{path} is not a file. Remove it.")
                while content:
                    content = content[os.write(file, content) :]
            finally:
                os.close(file)
        except OSError as error:
            raise _refused(f"The worker cannot write {path}: {error.strerror}.") from None


def make_line(text: str) -> str:
    """A text as one line without control characters, and not too long."""
    line = " ".join(text.split())
    line = "".join(each if each.isprintable() else "�" for each in line[: MAX_PROGRESS + 1])
    return line if len(line) <= MAX_PROGRESS else f"{line[: MAX_PROGRESS - 1]}…"


def _refused(message: str) -> RequestInvalid:
    return RequestInvalid([Problem("", message)])
