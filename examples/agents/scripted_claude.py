"""Stands in for Claude Code where there is no model: it speaks the same protocol, but follows a script.

    pointsman ──▶ stdin   one user message, as JSON
              ◀── stdout  init, assistant and user messages, result, as lines of JSON

What it says is written below. What it does is real: it edits files, runs commands, calls the tools of `pointsman mcp`,
adds up what it costs, and stops at the budget that it is given. Its session id begins with its role, by which it remembers
what it was doing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

TURN_USD = 0.05
"""What one message or one use of a tool costs."""
CODE = "Write show() in temperature.py: degrees Celsius, and beside them degrees Fahrenheit in brackets."


class BudgetSpent(Exception):
    """The agent may not spend more."""


class Conversation:
    """What the agent says and does, as lines of JSON; every turn costs something."""

    def __init__(self, session_id: str, budget_usd: float, servers: dict[str, Any]) -> None:
        self.session_id = session_id
        self._budget_usd = budget_usd
        self._servers = servers
        self._turns = 0
        self._text = ""
        self._write(type="system", subtype="init", session_id=session_id, model="script", tools=["Read", "Edit", "Bash"])

    def say(self, text: str) -> None:
        self._text = text
        self._turn({"type": "text", "text": text})

    def read(self, path: str) -> None:
        self._use("Read", {"file_path": path}, lambda: Path(path).read_text("utf-8"))

    def edit(self, path: str, old: str, new: str) -> None:
        def replace() -> str:
            text = Path(path).read_text("utf-8")
            if old not in text:
                raise ValueError(f"{old!r} is not in {path}")
            Path(path).write_text(text.replace(old, new), "utf-8")
            return f"{path} has been updated"

        self._use("Edit", {"file_path": path, "old_string": old, "new_string": new}, replace)

    def run(self, *command: str) -> None:
        def run() -> str:
            result = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            if result.returncode:
                raise ValueError(result.stdout)
            return result.stdout

        self._use("Bash", {"command": " ".join(command)}, run)

    def call(self, tool: str, **arguments: Any) -> None:
        """Call a tool of Pointsman, through the MCP server in the configuration."""
        self._use(f"mcp__pointsman__{tool}", arguments, lambda: call_tool(self._servers["pointsman"], tool, arguments))

    def end(self, subtype: str = "success") -> None:
        tokens = {"inputTokens": 1000 * self._turns, "outputTokens": 100 * self._turns}
        self._write(
            type="result",
            subtype=subtype,
            is_error=subtype != "success",
            result=self._text if subtype == "success" else "",
            session_id=self.session_id,
            num_turns=self._turns,
            total_cost_usd=round(TURN_USD * self._turns, 2),
            modelUsage={"script": tokens},
        )

    def _use(self, name: str, arguments: dict[str, Any], work: Callable[[], str]) -> None:
        self._turn({"type": "tool_use", "id": f"toolu_{self._turns}", "name": name, "input": arguments})
        try:
            text, is_error = work(), False
        except (OSError, ValueError) as error:
            text, is_error = str(error), True
        result = {"type": "tool_result", "tool_use_id": f"toolu_{self._turns - 1}", "content": text, "is_error": is_error}
        self._write(type="user", message={"role": "user", "content": [result]})
        if is_error:
            raise SystemExit(1)  # without a result: the attempt has failed

    def _turn(self, block: dict[str, Any]) -> None:
        if TURN_USD * self._turns >= self._budget_usd:
            raise BudgetSpent
        self._turns += 1
        self._write(type="assistant", message={"role": "assistant", "content": [block]})

    def _write(self, **line: Any) -> None:
        print(json.dumps(line), flush=True)


def call_tool(server: dict[str, Any], tool: str, arguments: dict[str, Any]) -> str:
    """The text of a result; ValueError if the server refuses."""
    command, environment = [server["command"], *server["args"]], os.environ | server.get("env", {})
    client = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "script", "version": "1"}}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdin
        assert process.stdout
        for message in (
            {"id": 1, "method": "initialize", "params": client},
            {"method": "notifications/initialized"},
            {"id": 2, "method": "tools/call", "params": {"name": tool, "arguments": arguments}},
        ):
            print(json.dumps({"jsonrpc": "2.0", **message}), file=process.stdin, flush=True)
            if "id" in message:
                reply = json.loads(process.stdout.readline() or '{"error": {"message": "the MCP server has ended"}}')
        process.stdin.close()
    if "error" in reply:
        raise ValueError(reply["error"]["message"])
    text = "".join(block.get("text", "") for block in reply["result"]["content"])
    if reply["result"].get("isError"):
        raise ValueError(text)
    return text


# The script


def plan(agent: Conversation, message: str, *, is_new: bool) -> None:
    if is_new:
        agent.read("temperature.py")
        agent.call("ask", text="Should Fahrenheit replace Celsius, or stand beside it?", choices=["beside", "replace"])
    else:
        agent.say(f"1. show() has Fahrenheit in brackets ({message}). 2. A test compares both. 3. Nothing else changes.")


def implement(agent: Conversation, message: str, *, is_new: bool) -> None:
    if is_new:
        agent.say("I read the plan and the code before I split the work.")
        agent.call("read_upstream")
        for path in ("temperature.py", "test_temperature.py", "pointsman.toml", "feature.yaml"):
            agent.read(path)
    if is_new or "continue where you left off" in message:
        agent.call("report_progress", text="splitting the work into code and test")
        code = {"name": "code", "agent": "claude", "permissions": "edit", "prompt": CODE}
        test = {"name": "test", "needs": ["code"], "run": "python3 -m unittest"}
        agent.call("add_subtasks", tasks=[code, test])
        agent.say("The work is split into code and test.")
    else:
        agent.say(f"The reviewer says: {message}")
        agent.edit("temperature.py", "celsius * 9 / 5 + 32} °F", "celsius * 9 / 5 + 32:.1f} °F")
        check = '    def test_one_decimal_is_enough(self) -> None:\n        assert show(20.17) == "20.17 °C (68.3 °F)"\n'
        agent.edit("test_temperature.py", '\n\nif __name__ == "__main__"', f'\n{check}\n\nif __name__ == "__main__"')
        agent.run("python3", "-m", "unittest")
        agent.say("Fahrenheit has one decimal, and a test for it.")


def write(agent: Conversation, message: str, *, is_new: bool) -> None:  # noqa: ARG001 - every role is called alike
    agent.edit("temperature.py", 'f"{celsius} °C"', 'f"{celsius} °C ({celsius * 9 / 5 + 32} °F)"')
    agent.say("show() has Fahrenheit beside Celsius.")


ROLES = {"plan": plan, "implement": implement, "write": write}
"""By the first word of a prompt."""


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--resume")
    parser.add_argument("--max-budget-usd", type=float, default=float("inf"))
    parser.add_argument("--mcp-config", type=Path)
    options, _ = parser.parse_known_args()
    message = json.loads(sys.stdin.readline())["message"]["content"][0]["text"]
    servers = json.loads(options.mcp_config.read_text("utf-8"))["mcpServers"] if options.mcp_config else {}
    session_id = options.resume or f"{message.split()[0].lower()}-{uuid.uuid4()}"
    agent = Conversation(session_id, options.max_budget_usd, servers)
    try:
        ROLES[session_id.partition("-")[0]](agent, message, is_new=options.resume is None)
    except BudgetSpent:
        agent.end("error_max_budget_usd")
        sys.exit(1)
    agent.end()
    sys.stdin.read()  # until Pointsman has read the result


if __name__ == "__main__":
    main()
