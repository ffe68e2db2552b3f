"""The real agents: where they are installed, how they are led to the stand-in, what their tools are called."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.agents.dialects import ChatCompletions, GenerateContent, Messages, Responses
from tests.agents.model_api import Call, Dialect, Fail, Text

INSTALLED = Path(__file__).parents[2] / ".agents"
PROGRAMS = (INSTALLED / "node_modules" / ".bin", INSTALLED / "aider" / "bin")
SECRET = "key-of-the-stand-in"


@dataclass(frozen=True, kw_only=True)
class Cli:
    name: str
    dialect: Callable[[], Dialect]
    set_up: Callable[[Path, Path, str], dict[str, str]]
    """Takes its home, the project and the address of the API; writes its files and returns its variables."""
    pass_env: tuple[str, ...] = ()
    """What pointsman.toml has to name so that the agent gets its variables."""
    has_sessions: bool = True
    seconds: int = 15
    """Until it has started and asked its model, on a slow machine."""
    subscription: tuple[str, ...] = ()
    """The variable with the key of a person's account, if that is another one."""
    model: str | None = None
    arguments: tuple[str, ...] = ()
    edit: Callable[[str, str], Call | Text]
    """Writes a new file."""
    shell: Callable[[str], Call] | None = None
    limit: Callable[[int], Fail]
    """How its API says that the account has reached a limit, until an instant in seconds since 1970."""
    limit_seconds: int = 30
    """How long the limit lasts: some agents wait themselves if it is short."""
    limit_precision: int = 10
    """By how many seconds the reset time may differ: some agents print how long to wait, or only minutes."""
    overloaded: int = 529
    priced: str | None = None
    """The model that needs a price, because the agent reports no costs."""
    ask: Callable[[str], tuple[Call, ...]] = lambda text: (Call("ask", {"text": text}),)
    """Asks a person through the tool of Pointsman."""

    @property
    def program(self) -> Path:
        return next((path for folder in PROGRAMS if (path := folder / self.name).exists()), Path(self.name))

    @property
    def version(self) -> str:
        said = subprocess.run([self.program, "--version"], capture_output=True, text=True, check=True, timeout=60).stdout
        return next(word for word in said.split() if word[0].isdigit())


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _set_up_claude(home: Path, folder: Path, url: str) -> dict[str, str]:  # noqa: ARG001
    own = {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": SECRET, "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
    return own | {"IS_SANDBOX": "1"}  # else it refuses to run without asking for permissions as root


def _set_up_codex(home: Path, folder: Path, url: str) -> dict[str, str]:  # noqa: ARG001
    _write(
        home / ".codex" / "config.toml",
        f"""
model = "gpt-5.1-codex"
model_provider = "stand-in"
check_for_update_on_startup = false
[model_providers.stand-in]
name = "stand-in"
base_url = "{url}/v1"
wire_api = "responses"
env_key = "STAND_IN_API_KEY"
request_max_retries = 2
stream_max_retries = 2
[analytics]
enabled = false
""",
    )
    return {"STAND_IN_API_KEY": SECRET}


def _set_up_gemini(home: Path, folder: Path, url: str) -> dict[str, str]:  # noqa: ARG001
    server = {"command": sys.executable, "args": ["-m", "pointsman", "mcp"], "trust": True}
    settings: dict[str, Any] = {
        "security": {"auth": {"selectedType": "gemini-api-key"}},
        "privacy": {"usageStatisticsEnabled": False},
        "mcpServers": {"pointsman": {**server, "env": {name: f"${name}" for name in ("POINTSMAN_SOCKET", "POINTSMAN_TOKEN")}}},
        "general": {"enableAutoUpdate": False, "enableAutoUpdateNotification": False},
    }
    _write(home / ".gemini" / "settings.json", json.dumps(settings))
    return {"GOOGLE_GEMINI_BASE_URL": url, "GEMINI_API_KEY": SECRET}


def _set_up_opencode(home: Path, folder: Path, url: str) -> dict[str, str]:  # noqa: ARG001
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "stand-in",
        "options": {"baseURL": f"{url}/v1", "apiKey": "{env:STAND_IN_API_KEY}"},
        "models": {"m": {"name": "m", "tool_call": True, "cost": {"input": 1000, "output": 1000}}},
    }
    config = {"provider": {"stand-in": provider}, "model": "stand-in/m", "autoupdate": False, "share": "disabled"}
    _write(home / ".config" / "opencode" / "opencode.json", json.dumps(config))
    return {"STAND_IN_API_KEY": SECRET}


def _set_up_aider(home: Path, folder: Path, url: str) -> dict[str, str]:  # noqa: ARG001
    prices = {"input_cost_per_token": 0.001, "output_cost_per_token": 0.001, "max_input_tokens": 100_000}
    _write(
        home / ".aider.model.metadata.json", json.dumps({"openai/m": {**prices, "litellm_provider": "openai", "mode": "chat"}})
    )
    return {"OPENAI_API_BASE": f"{url}/v1", "OPENAI_API_KEY": SECRET}


def _exhaust(at: int) -> Fail:
    wait = f"{at - int(time.time())}s"
    retry = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": wait}
    message = "You exceeded your current quota."
    return Fail(429, body={"error": {"code": 429, "message": message, "status": "RESOURCE_EXHAUSTED", "details": [retry]}})


CLIS = {
    cli.name: cli
    for cli in (
        Cli(
            name="claude",
            dialect=Messages,
            set_up=_set_up_claude,
            pass_env=(
                "ANTHROPIC_BASE_URL",
                "ANTHROPIC_API_KEY",
                "CLAUDE_CODE_OAUTH_TOKEN",
                "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC",
                "IS_SANDBOX",
            ),
            subscription=("CLAUDE_CODE_OAUTH_TOKEN",),
            edit=lambda path, text: Call("Write", {"file_path": path, "content": text}),
            shell=lambda command: Call("Bash", {"command": command, "description": "run it"}),
            limit=lambda at: Fail(
                429,
                "This request would exceed your account's rate limit.",
                {
                    "anthropic-ratelimit-unified-status": "rejected",
                    "anthropic-ratelimit-unified-reset": str(at),
                    "anthropic-ratelimit-unified-representative-claim": "five_hour",
                    "retry-after": str(at - int(time.time())),
                    "x-should-retry": "false",
                },
            ),
            ask=lambda text: (
                Call("ToolSearch", {"query": "select:mcp__pointsman__ask"}),  # it tells the model of MCP tools on demand only
                Call("mcp__pointsman__ask", {"text": text}),
            ),
        ),
        Cli(
            name="codex",
            dialect=Responses,
            set_up=_set_up_codex,
            pass_env=("STAND_IN_API_KEY",),
            edit=lambda path, text: Call("exec_command", {"cmd": f"printf %s {shlex.quote(text)} > {shlex.quote(path)}"}),
            shell=lambda command: Call("exec_command", {"cmd": command}),
            limit=lambda at: Fail(
                429, body={"error": {"type": "usage_limit_reached", "message": "limit", "plan_type": "plus", "resets_at": at}}
            ),
            limit_seconds=90,
            limit_precision=60,
            priced="gpt-5.1-codex",
        ),
        Cli(
            name="gemini",
            dialect=GenerateContent,
            set_up=_set_up_gemini,
            pass_env=("GEMINI_API_KEY", "GOOGLE_GEMINI_BASE_URL"),
            edit=lambda path, text: Call("write_file", {"file_path": path, "content": text}),
            shell=lambda command: Call("run_shell_command", {"command": command}),
            limit=_exhaust,
            limit_seconds=400,
            overloaded=503,
            priced="gemini-2.5-pro",
        ),
        Cli(
            name="opencode",
            seconds=45,
            dialect=lambda: ChatCompletions(aside="title generator"),
            set_up=_set_up_opencode,
            pass_env=("STAND_IN_API_KEY",),
            edit=lambda path, text: Call("write", {"filePath": path, "content": text}),
            shell=lambda command: Call("bash", {"command": command, "description": "run it"}),
            limit=lambda at: Fail(429, "Rate limit reached.", {"retry-after": str(at - int(time.time()))}),
        ),
        Cli(
            name="aider",
            has_sessions=False,
            seconds=45,
            dialect=ChatCompletions,
            set_up=_set_up_aider,
            pass_env=("OPENAI_API_BASE", "OPENAI_API_KEY"),
            model="openai/m",
            arguments=("--edit-format=whole",),
            limit_seconds=300,
            limit=lambda at: Fail(429, f"Rate limit reached. Please try again in {at - int(time.time())}s."),
            edit=lambda path, text: Text(f"{path}\n```\n{text}\n```\n"),
        ),
    )
}
