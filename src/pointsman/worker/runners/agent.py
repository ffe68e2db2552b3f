"""`agent`: a coding agent, called through its command line.

    prompt ─ compose ─▶ AgentCall ─ invoke ─▶ the process ─ AgentStream ─▶ log, transcript, session, costs ─ conclude ─▶ Ending

The message goes through stdin or a file, never as an argument. `pointsman.worker.agent` has the contract of agents.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Set
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, ClassVar

from msgspec.structs import replace
from pydantic import BeforeValidator, Field, WithJsonSchema

from pointsman.engine.budgets import NO_USAGE
from pointsman.engine.checks import MAX_COUNT
from pointsman.engine.sessions import is_invented
from pointsman.errors import LeaseUncertain
from pointsman.flows.model import FlowTask
from pointsman.flows.values import Argv, Content, Count, Text, Word, wrong
from pointsman.worker.agent import (
    Agent,
    AgentCall,
    AgentEvent,
    AgentReader,
    Finished,
    Invocation,
    Permissions,
    Said,
    SessionSeen,
    ToolCalled,
    Used,
)
from pointsman.worker.agent_log import find_agent, find_built_in
from pointsman.worker.agents.custom import Custom
from pointsman.worker.ending import Ending
from pointsman.worker.lines import Line, LineSplitter
from pointsman.worker.log import AGENT_SUFFIX, AttemptLog
from pointsman.worker.meter import UsageMeter
from pointsman.worker.runner import Job, Running, wait_for
from pointsman.worker.runners.command import SHELLS, NotStarted, RunningCommand, start_command
from pointsman.worker.transcript import Transcript, printable, show_line
from pointsman.worker.usage_limit import UNKNOWN_WAIT
from pointsman.world import World

TIMED_OUT = "Your previous execution timed out. Please continue where you left off."
INTERRUPTED = "Your previous execution was interrupted. Please continue where you left off."
REPEATED = "If you have not read this yet:"
"""Before what the agent was told by an attempt that broke off so early that it may have missed it."""
DROPPED_SUBTASKS = "The subtasks that you had added did not start. Add them again if they are still needed: "
REJECTED = "A reviewer has rejected the result without a comment. Please check it and improve it."
MAX_PROMPT = 10_000_000
"""Bytes of a prompt file."""
LONGEST_RESULT = 100_000
"""Characters of the last message that are kept as the output of the task."""
DROPPED = ("CLAUDECODE", "CLAUDE_CODE_ENTRYPOINT")
"""Variables by which an agent believes that it runs inside another one."""
SESSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@+-]{0,199}")
LOST_SESSION = re.compile(
    rb"error resuming session|no (?:previous )?(?:conversation|session|thread|rollout)s? (?:was |were )?found"
    rb"|(?:session|conversation|thread)(?: \S+)? (?:was )?not found",
    re.IGNORECASE,
)
"""What programs say when they are to continue a session that they do not have."""
HEAD_SECONDS = 10.0


def _servers(value: object) -> object:
    if isinstance(value, bool):
        return value
    if isinstance(value, Mapping) and all(isinstance(each, Mapping) for each in value.values()):
        return {str(name): dict(each) for name, each in value.items()}
    raise wrong("must be true, false, or servers by name", "Write `mcp: {docs: {command: docs-server, args: [--stdio]}}`.")


Servers = Annotated[
    Any,
    BeforeValidator(_servers),
    WithJsonSchema({"anyOf": [{"type": "boolean"}, {"type": "object", "additionalProperties": {"type": "object"}}]}),
]


class AgentTask(FlowTask):
    """Work of a coding agent."""

    kind = "agent"
    synonyms: ClassVar[Mapping[str, str]] = {
        "instructions": "prompt",
        "system_prompt": "append_system_prompt",
        "args": "arguments",
    }
    reports_progress: ClassVar[bool] = True

    agent: Word
    """A coding agent: claude, codex, gemini, opencode, aider, or one that pointsman.toml defines."""
    prompt: Annotated[Text | None, Content.TEXT] = None
    """With `agent`: what it is to do. Exactly one of `prompt` and `prompt_file`."""
    prompt_file: Annotated[Word | None, Content.TEXT] = None
    """With `agent`: the file with the prompt, relative to the working directory."""
    model: Annotated[Word | None, Content.TEXT] = None
    """With `agent`: the model; by default the choice of the agent."""
    max_turns: Count | None = Field(default=None, ge=1, le=MAX_COUNT)
    """With `agent`: how many turns it may take."""
    permissions: Permissions = "edit"
    """With `agent`: `plan` (only read), `edit` (also change files), or `full` (also run commands without asking)."""
    append_system_prompt: Annotated[Text | None, Content.TEXT] = None
    """With `agent`: text that is added to its system prompt."""
    mcp: Annotated[Servers, Content.DATA] = True
    """With `agent`: MCP servers by name, beside that of Pointsman; with `false`, none at all."""
    arguments: Annotated[Argv, Content.TEXT] = ()
    """With `agent`: further arguments for its program."""

    @property
    def tool_name(self) -> str | None:
        return self.tool or self.agent

    def summary(self) -> str:
        words = self.prompt if self.prompt is not None else f"as {self.prompt_file} says"
        return f"{self.agent}: {next((line.strip() for line in words.splitlines() if line.strip()), '')}"

    def check(self, given: Set[str]) -> Iterator[tuple[str, str, str]]:
        if self.prompt is not None and self.prompt_file is not None:
            yield "prompt_file", "it has both `prompt` and `prompt_file`.", "Keep one of them."
        elif self.prompt_file is None and not (self.prompt or "").strip():
            yield "agent", "its agent has nothing to do.", "Add a `prompt`, or a `prompt_file`."
        lacks = (find_built_in(self.agent) or Custom).lacks  # an agent that nobody knows is refused elsewhere
        for key in sorted((lacks - {"append_system_prompt"}) & given):  # that is put into the prompt instead
            yield key, f"`{key}` has no effect: {self.agent} has no such option.", "Remove it, or use another agent."


class AgentRunner:
    task_model: ClassVar[type[FlowTask]] = AgentTask

    def __init__(self, world: World, directory: Path) -> None:  # noqa: ARG002 - every runner is made alike
        self._world = world

    async def start(self, job: Job) -> Running:
        task = job.task
        assert isinstance(task, AgentTask)
        agent = find_agent(task.agent, job.agent)
        if agent is None:
            advice = f"Add [agents.{task.agent}] to its pointsman.toml, or use another agent."
            return self._refuse(f"this worker does not know the agent '{task.agent}'. {advice}")
        running = await self._call(job, task, agent, is_new=False)
        return Continuing(running, lambda: self._call(job, task, agent, is_new=True))

    def close(self) -> None: ...

    async def _call(self, job: Job, task: AgentTask, agent: Agent, *, is_new: bool) -> Running:
        """Call the agent, in a new session or in the one that it has."""
        try:
            call = build_call(job, task, agent, is_new=is_new)
        except (OSError, ValueError) as error:
            return self._refuse(f"its prompt {task.prompt_file} cannot be read: {_reason(error)}")
        invocation = agent.invoke(call)
        try:
            _write_files(job, agent.name, invocation)
        except OSError as error:
            return self._refuse(f"the files for its agent cannot be written: {_reason(error)}", retryable=True)
        job = replace(job, env=_environment(job.env, invocation.env))
        before = await self._find_head(job) if invocation.commits else None
        return self._start(job, agent, invocation, before, continues=call.session_id is not None)

    def _start(self, job: Job, agent: Agent, invocation: Invocation, before: str | None, *, continues: bool) -> Running:
        program = (job.tool.command if job.tool else ()) or agent.program
        stream = AgentStream(job, agent.reader(self._world.clock.now), self._world, continues=continues)
        if before is not None:
            stream.expect_commit = lambda: self._has_moved(job, before)
        argv = (*program, *invocation.arguments)
        running = start_command(
            job, argv, self._world, listener=stream, stdin=invocation.stdin, keeps_stdin=invocation.keeps_stdin
        )
        if isinstance(running, RunningCommand):
            stream.on_finish = running.close_stdin
        elif agent.install and running.ending.message.startswith(f"no such program '{program[0]}'"):
            return self._refuse(f"'{program[0]}' is not in the PATH of this worker; install it with {agent.install}")
        return running

    def _refuse(self, message: str, *, retryable: bool = False) -> NotStarted:
        return NotStarted(Ending("not_started", message=message, retryable=retryable), self._world.clock.monotonic())

    async def _has_moved(self, job: Job, before: str) -> bool:
        return await self._find_head(job) != before

    async def _find_head(self, job: Job) -> str:
        """The commit that is checked out; empty if there is none."""
        script = "git rev-parse HEAD 2>/dev/null || true"
        aside = replace(job, log=AttemptLog(f"{job.stem}.head.log", 4096), stdout_wanted=True)
        running = start_command(aside, (*SHELLS["sh"], script), self._world)
        ending = await wait_for(running, aside, HEAD_SECONDS, lambda _: True)
        return (ending.stdout or b"").decode("ascii", "replace").strip()


class Continuing:
    """An agent that continues its session; if its program no longer has that, it starts over in a new one."""

    def __init__(self, running: Running, start_over: Callable[[], Awaitable[Running]]) -> None:
        self._running, self._start_over = running, start_over
        self._is_stopped = False

    @property
    def pid(self) -> int | None:
        return self._running.pid

    @property
    def started_ticks(self) -> int:
        return self._running.started_ticks

    @property
    def last_output_at(self) -> float:
        return self._running.last_output_at

    async def wait(self) -> Ending:
        ending = await self._running.wait()
        if not ending.has_lost_session or self._is_stopped:
            return ending
        try:
            self._running = await self._start_over()
        except LeaseUncertain:
            return ending  # the next attempt starts over
        if self._is_stopped:
            self._running.kill()
        return await self._running.wait()

    async def stop(self, grace_seconds: float) -> None:
        self._is_stopped = True
        await self._running.stop(grace_seconds)

    def kill(self) -> None:
        self._is_stopped = True
        self._running.kill()

    def suspend(self) -> None:
        self._running.suspend()

    def resume(self) -> None:
        self._running.resume()


# The call


def build_call(job: Job, task: AgentTask, agent: Agent, *, is_new: bool = False) -> AgentCall:
    """What an attempt asks of its agent; OSError or ValueError if its prompt cannot be read."""
    session_id = None if is_new else job.claim.session_id
    if session_id is not None and (is_invented(session_id, job.claim.task_id) or not SESSION.fullmatch(session_id)):
        session_id = None
    servers = list_servers(job, task) if "mcp" not in agent.lacks else {}
    instruction = explain_asking(job.env.get("POINTSMAN_QUESTION", ""), has_tool="pointsman" in servers)
    added = [text for text in (task.append_system_prompt, instruction) if text]
    if session_id is not None:
        message = compose_next(job, task)
    else:
        message = compose_first(job, read_prompt(job, task))
        if "append_system_prompt" in agent.lacks:
            message = "\n\n".join([message, *added])
    return AgentCall(
        message=message,
        stem=job.stem,
        cwd=job.cwd,
        session_id=session_id,
        model=task.model,
        max_turns=task.max_turns,
        permissions=task.permissions,
        append_system_prompt="\n\n".join(added),
        budget_usd=job.claim.budget_usd,
        arguments=task.arguments,
        folder=str(Path(job.output_path).parent),
        servers=servers,
    )


def read_prompt(job: Job, task: AgentTask) -> str:
    if task.prompt_file is None:
        return task.prompt or ""
    path = Path(job.cwd, task.prompt_file)
    if not path.is_file():
        raise ValueError("there is no such file")
    if path.stat().st_size > MAX_PROMPT:
        raise ValueError(f"it is larger than {MAX_PROMPT:,} bytes")
    return path.read_text("utf-8")


def compose_first(job: Job, prompt: str) -> str:
    """The prompt, with everything that people have said since: the session that knew it is not known."""
    parts = [prompt]
    if job.claim.answer is not None:
        answers = job.answers or {job.claim.question or "": job.claim.answer}
        parts += [f"You have asked: {question}\nThe answer: {answer}" for question, answer in answers.items()]
    if job.claim.comment is not None:
        parts.append(f"A reviewer has rejected the former result: {job.claim.comment}")
    return "\n\n".join(parts)


def compose_next(job: Job, task: AgentTask) -> str:
    """What the agent hears when its session continues."""
    match job.occasion.unheard:
        case "prompt" if job.occasion.broken_off != "timeout":  # it has worked on that until its timeout
            text: str | None = read_prompt(job, task)
        case "answer":
            text = job.claim.answer
        case "comment":
            text = job.claim.comment or REJECTED
        case _:
            text = None
    if job.occasion.broken_off is None:
        return text or INTERRUPTED
    parts = [TIMED_OUT if job.occasion.broken_off == "timeout" else INTERRUPTED]
    if job.dropped_subtasks:
        parts.append(DROPPED_SUBTASKS + ", ".join(job.dropped_subtasks))
    return "\n\n".join([*parts, REPEATED, text] if text else parts)


def explain_asking(path: str, *, has_tool: bool) -> str:
    """How to ask a person, for the agent."""
    how = f'write it to the file {path}, as text or as JSON like {{"text": "Where?", "choices": ["east", "west"]}}'
    if has_tool:
        how = f"call the tool `ask` of the MCP server `pointsman`, or {how}"
    return f"Nobody watches this run. If you need a decision of a person, {how}; then end your turn. You will get the answer."


def list_servers(job: Job, task: AgentTask) -> dict[str, dict[str, Any]]:
    """The MCP servers of an attempt. The one of Pointsman reaches this attempt only, through its worker."""
    if task.mcp is False:
        return {}
    named: dict[str, dict[str, Any]] = dict(task.mcp) if isinstance(task.mcp, dict) else {}
    passed = {name: job.env[name] for name in ("POINTSMAN_SOCKET", "POINTSMAN_TOKEN") if name in job.env}
    if len(passed) == 2 and find_spec("mcp"):  # the extra `mcp` is installed
        named["pointsman"] = {"command": sys.executable, "args": ["-m", "pointsman", "mcp"], "env": passed}
    return named


def _environment(env: Mapping[str, str], added: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in {**env, **added}.items() if name not in DROPPED}


def _write_files(job: Job, agent: str, invocation: Invocation) -> None:
    job.log.make_folder()
    for path, text in {f"{job.stem}{AGENT_SUFFIX}": agent, **invocation.files}.items():
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(path, flags, 0o600), "w", encoding="utf-8") as file:
            file.write(text)


def _reason(error: OSError | ValueError) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


# The stream


class AgentStream:
    """Takes the output of an agent: lines go to the log, events to the transcript, the session and the costs."""

    def __init__(self, job: Job, reader: AgentReader, world: World, *, continues: bool) -> None:
        self._job, self._reader, self._world = job, reader, world
        self._may_lack_session = continues
        """It continues a session, and has not said anything yet."""
        self._lacks_session = False
        self._stdout, self._stderr = LineSplitter(), LineSplitter()
        self._transcript = Transcript()
        self._finished: Finished | None = None
        before = job.session_usage if continues else NO_USAGE
        self._meter = UsageMeter(job.prices, getattr(job.task, "model", None), before)
        self.on_finish: Callable[[], None] = lambda: None
        """Called after the terminal event."""
        self.expect_commit: Callable[[], Awaitable[bool]] | None = None
        """Whether there is a new commit; None where success needs none."""

    def take(self, data: bytes, *, is_stdout: bool) -> None:
        for line in (self._stdout if is_stdout else self._stderr).feed(data):
            self._take_line(line, is_stdout=is_stdout)

    async def conclude(self, ending: Ending) -> Ending:
        for splitter in (self._stdout, self._stderr):
            for line in splitter.end():
                self._take_line(line, is_stdout=splitter is self._stdout)
        exit_code = ending.exit_code if ending.kind == "exited" else None
        shown = self._transcript.write(self._note(self._reader.end(exit_code))) + self._transcript.end()
        self._job.log.write(b"", shown.encode())
        concluded = conclude(self._finished, ending)
        if self._lacks_session and not concluded.as_expected and concluded.kind == "exited" and not concluded.limit:
            concluded = replace(concluded, has_lost_session=True)
        if concluded.limit and concluded.limit.until is None:
            until = self._world.clock.now() + UNKNOWN_WAIT
            concluded = replace(concluded, limit=replace(concluded.limit, until=until))
        if concluded.as_expected and self.expect_commit and not await self.expect_commit():
            return replace(concluded, message="exited as if it had succeeded, but made no commit")
        return concluded

    def _take_line(self, line: Line, *, is_stdout: bool) -> None:
        raw = line.data + b"\n" if line.ends else line.data
        if not is_stdout:
            self._lacks_session |= self._may_lack_session and LOST_SESSION.search(line.data[:10_000]) is not None
            self._job.log.write(raw, printable(raw.decode("utf-8", "replace")).encode())
            return
        if line.is_whole:
            shown = self._transcript.write(self._note(self._reader.read(line.data)), line.data)
        else:
            shown = self._transcript.skip() if line.ends else ""
        self._job.log.write(raw, shown.encode("utf-8", "replace"))

    def _note(self, events: Iterable[AgentEvent]) -> Iterator[AgentEvent]:
        """Pass events on, and keep what they say about the attempt."""
        for event in events:
            match event:
                case SessionSeen(session_id, model):
                    self._see_session(session_id)
                    if model:
                        self._meter.see_model(model)
                case Used():
                    self._count(event)
                case Said():
                    self._may_lack_session = False
                case ToolCalled():
                    self._may_lack_session = False
                    self._job.log.headline = show_line(event)
                case Finished():
                    error = (event.error or "")[:10_000].encode("utf-8", "replace")
                    self._lacks_session |= self._may_lack_session and LOST_SESSION.search(error) is not None
                    self._finished = event
                    self.on_finish()
            yield event

    def _see_session(self, session_id: str) -> None:
        if self._job.progress and SESSION.fullmatch(session_id):
            self._job.progress.see_session(session_id)

    def _count(self, used: Used) -> None:
        """Costs are reported at once, tokens with the next look."""
        added = self._meter.take(used)
        self._job.cost_file.add(added)
        if self._job.progress and added.cost_usd:
            self._job.progress.news.set()
        if self._job.progress and self._job.has_budget and self._meter.problem:
            name = f"{self._job.claim.name}: the budget cannot hold for {getattr(self._job.task, 'agent', 'it')}"
            self._job.progress.problem = f"{name}: {self._meter.problem}"


def conclude(finished: Finished | None, ending: Ending) -> Ending:
    """How an agent ended, from its own words and its exit code together: it has succeeded only if both say so."""
    if ending.kind not in ("exited", "signaled"):
        return ending
    if finished is None:
        why = "exited as if it had succeeded, but its output has no result: it was cut off, or is in an unknown form"
        return replace(ending, message=why) if ending.as_expected else ending
    if finished.error is not None:
        code = "" if ending.exit_code is None else f" (exit code {ending.exit_code})"
        limit = finished.limit and replace(finished.limit, message=printable(finished.limit.message))
        return replace(
            ending,
            message=f"reported an error: {printable(finished.error)}{code}",
            retryable=finished.retryable,
            limit=limit,
            is_overspent=finished.is_overspent,
        )
    if not ending.as_expected:
        return replace(ending, message=f"reported success, but {ending.message}")
    text = finished.text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")
    has_output = ending.output is not None or ending.output_problem
    return replace(ending, output=ending.output if has_output else text[:LONGEST_RESULT] or None, stdout=text.encode())
