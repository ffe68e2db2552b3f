"""Stand-ins for the command lines of coding agents: small executables that print what the real ones print.

    stand_in = StandIn(tmp_path, "claude")
    stand_in.plan([out(*stream.begin("s-1")), out(*stream.succeed("done")), leave(0)])

Each call plays the next plan (the last one repeats), and is recorded with its arguments, its stdin and its environment. Tasks
that run at the same time have plans of their own: `stand_in.plan_each(a=[...], b=[...])`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Step = tuple[str, Any]
PROGRAM = """\
#!{python} -SE
import fcntl, json, os, signal, sys, time
folder = {folder!r}
plans = json.load(open(f"{{folder}}/plans.json"))
task = os.environ.get("POINTSMAN_TASK_NAME", "")
if isinstance(plans, dict):
    plans, folder = plans[task], f"{{folder}}/{{task}}"
    os.makedirs(folder, exist_ok=True)
number = 0
while True:
    try:
        os.close(os.open(f"{{folder}}/call-{{number}}", os.O_CREAT | os.O_EXCL))
        break
    except FileExistsError:
        number += 1
lock = open(f"{{folder}}/lock", "a")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    open(f"{{folder}}/overlaps", "a").write(f"{{number}}\\n")
plan = plans[min(number, len(plans) - 1)]
stdin = b""
if any(step[0] == "hear" for step in plan):
    stdin = sys.stdin.buffer.readline()
elif not any(step[0] == "deaf" for step in plan):
    stdin = sys.stdin.buffer.read()
def record(**more):
    call = dict(argv=sys.argv[1:], stdin=stdin.decode("utf-8", "surrogateescape"), env=dict(os.environ), **more)
    call |= dict(cwd=os.getcwd(), pid=os.getpid())
    with open(f"{{folder}}/call-{{number}}.new", "w") as file:
        json.dump(call, file)
    os.rename(f"{{folder}}/call-{{number}}.new", f"{{folder}}/call-{{number}}.json")
record()
for name, value in plan:
    if name == "out":
        sys.stdout.buffer.write(value.encode("utf-8", "surrogateescape")); sys.stdout.buffer.flush()
    elif name == "err":
        sys.stderr.write(value); sys.stderr.flush()
    elif name == "huge":
        for _ in range(value): sys.stdout.buffer.write(b"x" * 65536)
        sys.stdout.buffer.flush()
    elif name == "pause":
        time.sleep(value)
    elif name == "until":
        while not os.path.exists(value): time.sleep(0.01)
    elif name == "write":
        variable, text = value
        open(os.environ.get(variable, variable), "w").write(text)
    elif name == "run":
        os.system(value)
    elif name == "last":
        def end(*_, text=value):
            os.write(1, text.encode()); os._exit(143)
        signal.signal(signal.SIGTERM, end)
    elif name == "eof":
        record(rest=sys.stdin.read())
    elif name == "die":
        os.kill(os.getpid(), value)
    elif name == "leave":
        os._exit(value)
"""


def out(*lines: str | dict[str, Any]) -> Step:
    return "out", "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)


def err(text: str) -> Step:
    return "err", text


def last(*lines: str | dict[str, Any]) -> Step:
    """What it still prints when it is asked to end."""
    return "last", out(*lines)[1]


def leave(code: int) -> Step:
    return "leave", code


@dataclass(frozen=True)
class Call:
    """One call of a stand-in."""

    argv: list[str]
    stdin: str
    env: dict[str, str]
    pid: int
    cwd: str
    rest: str | None = None
    """What came after the first line of stdin, once it was closed."""


class StandIn:
    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self.bin = folder / "bin"
        self._calls = folder / "calls" / name
        self.bin.mkdir(exist_ok=True)
        self._calls.mkdir(parents=True)
        program = self.bin / name
        program.write_text(PROGRAM.format(python=sys.executable, folder=str(self._calls)))
        program.chmod(0o755)

    def plan(self, *plans: Sequence[Step]) -> StandIn:
        (self._calls / "plans.json").write_text(json.dumps([list(plan) for plan in plans]))
        return self

    def plan_each(self, **plans: Sequence[Sequence[Step]]) -> StandIn:
        """By name of a task: its plans."""
        (self._calls / "plans.json").write_text(json.dumps(plans))
        return self

    @property
    def calls(self) -> list[Call]:
        return self.calls_of("")

    def calls_of(self, task: str) -> list[Call]:
        """The calls that have read their message, in the order in which they began; no two ran at the same time."""
        folder = self._calls / task
        assert not (folder / "overlaps").exists(), "two processes of one task ran at the same time"
        files = sorted(folder.glob("call-*.json"), key=lambda path: int(path.stem.partition("-")[2]))
        return [Call(**json.loads(file.read_text())) for file in files]


def message(call: Call) -> str:
    """What `claude` was told."""
    return str(json.loads(call.stdin)["message"]["content"][0]["text"])


class Claude:
    """What `claude` prints."""

    name = "claude"

    def begin(self, session: str) -> list[dict[str, Any]]:
        return [{"type": "system", "subtype": "init", "session_id": session, "model": "m"}]

    def say(self, text: str) -> dict[str, Any]:
        return {
            "type": "assistant",
            "message": {"id": "a", "content": [{"type": "text", "text": text}], "usage": {"output_tokens": 1}},
        }

    def use(self, key: str, tokens_in: int, tokens_out: int) -> dict[str, Any]:
        usage = {"input_tokens": tokens_in, "cache_read_input_tokens": 0, "output_tokens": tokens_out}
        return {"type": "assistant", "message": {"id": key, "model": "m", "content": [], "usage": usage}}

    def call(self, tool: str, argument: str) -> dict[str, Any]:
        block = {"type": "tool_use", "name": tool, "input": {"command": argument}}
        return {"type": "assistant", "message": {"id": "b", "content": [block]}}

    def answer(self, text: str) -> dict[str, Any]:
        return {"type": "user", "message": {"content": [{"type": "tool_result", "content": text}]}}

    def succeed(self, text: str, cost: float = 0.25, **fields: Any) -> list[dict[str, Any]]:
        usage = {"m": {"inputTokens": 100, "outputTokens": 20, "cacheReadInputTokens": 3, "cacheCreationInputTokens": 4}}
        result = {"type": "result", "subtype": "success", "is_error": False, "result": text, "total_cost_usd": cost}
        return [{**result, "modelUsage": usage, "usage": {"input_tokens": 0, "output_tokens": 1}, **fields}]

    def fail(self, message: str) -> list[dict[str, Any]]:
        return self.succeed(message, is_error=True)

    def limit(self, message: str, resets_at: int) -> list[dict[str, Any]]:
        info = {"status": "rejected", "resetsAt": resets_at, "rateLimitType": "five_hour"}
        return [
            {"type": "rate_limit_event", "rate_limit_info": info},
            self.say(message),
            *self.succeed(message, is_error=True, api_error_status=429),
        ]


class Codex:
    """What `codex` prints."""

    name = "codex"

    def begin(self, session: str) -> list[dict[str, Any]]:
        warning = {"type": "item.completed", "item": {"id": "0", "type": "error", "message": "Model metadata not found"}}
        return [{"type": "thread.started", "thread_id": session}, warning, {"type": "turn.started"}]

    def say(self, text: str) -> dict[str, Any]:
        return {"type": "item.completed", "item": {"id": "1", "type": "agent_message", "text": text}}

    def call(self, tool: str, argument: str) -> dict[str, Any]:  # noqa: ARG002 - it has one tool for everything
        return {"type": "item.started", "item": {"id": "2", "type": "command_execution", "command": argument}}

    def answer(self, text: str) -> dict[str, Any]:
        item = {"id": "2", "type": "command_execution", "aggregated_output": text, "exit_code": 0}
        return {"type": "item.completed", "item": item}

    def succeed(self, text: str, tokens: int = 100) -> list[dict[str, Any]]:
        usage = {"input_tokens": tokens, "cached_input_tokens": 7, "output_tokens": 20}
        return [self.say(text), {"type": "turn.completed", "usage": usage}]

    def fail(self, message: str) -> list[dict[str, Any]]:
        return [{"type": "error", "message": message}, {"type": "turn.failed", "error": {"message": message}}]

    def limit(self, message: str, resets_at: int) -> list[dict[str, Any]]:  # noqa: ARG002 - the time is in the message
        return self.fail(message)


class Gemini:
    """What `gemini` prints."""

    name = "gemini"

    def begin(self, session: str) -> list[dict[str, Any]]:
        return [
            {"type": "init", "session_id": session, "model": "m"},
            {"type": "message", "role": "user", "content": "(the prompt)"},
        ]

    def say(self, text: str) -> dict[str, Any]:
        return {"type": "message", "role": "assistant", "content": text, "delta": True}

    def call(self, tool: str, argument: str) -> dict[str, Any]:
        return {"type": "tool_use", "tool_name": tool, "tool_id": "t", "parameters": {"command": argument}}

    def answer(self, text: str) -> dict[str, Any]:
        return {"type": "tool_result", "tool_id": "t", "status": "success", "output": text}

    def succeed(self, text: str) -> list[dict[str, Any]]:
        half = len(text) // 2
        stats = {"total_tokens": 120, "input_tokens": 100, "output_tokens": 20, "cached": 7}
        return [self.say(text[:half]), self.say(text[half:]), {"type": "result", "status": "success", "stats": stats}]

    def fail(self, message: str) -> list[dict[str, Any]]:
        return [{"type": "result", "status": "error", "error": {"type": "Error", "message": message}, "stats": {}}]

    def limit(self, message: str, resets_at: int) -> list[dict[str, Any]]:  # noqa: ARG002 - it names no time
        return self.fail(f"[API Error: You have exhausted your daily quota on this model.] {message}")


class OpenCode:
    """What `opencode` prints."""

    name = "opencode"

    def begin(self, session: str) -> list[dict[str, Any]]:
        return [{"type": "step_start", "sessionID": session, "part": {}}]

    def say(self, text: str) -> dict[str, Any]:
        return {"type": "text", "sessionID": "s-1", "part": {"text": text}}

    def call(self, tool: str, argument: str) -> dict[str, Any]:
        state = {"status": "completed", "input": {"command": argument}, "output": "42\n43"}
        return {"type": "tool_use", "sessionID": "s-1", "part": {"tool": tool, "state": state}}

    def answer(self, text: str) -> dict[str, Any]:  # noqa: ARG002 - a call has its answer already
        return self.step("tool-calls")

    def step(self, reason: str, cost: float = 0.125) -> dict[str, Any]:
        tokens = {"input": 50, "output": 10, "reasoning": 2, "cache": {"read": 3, "write": 4}}
        return {"type": "step_finish", "sessionID": "s-1", "part": {"reason": reason, "tokens": tokens, "cost": cost}}

    def succeed(self, text: str) -> list[dict[str, Any]]:
        return [self.say(text), self.step("stop")]

    def fail(self, message: str, status: int = 400) -> list[dict[str, Any]]:
        error = {"name": "APIError", "data": {"message": message, "statusCode": status}}
        return [{"type": "error", "sessionID": "s-1", "error": error}]

    def limit(self, message: str, resets_at: int) -> list[dict[str, Any]]:  # noqa: ARG002 - the time is in the message
        return self.fail(message, 429)


Stream = Claude | Codex | Gemini | OpenCode
STREAMS: dict[str, Stream] = {stream.name: stream for stream in (Claude(), Codex(), Gemini(), OpenCode())}
"""aider has none: it prints text."""
