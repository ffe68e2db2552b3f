"""Settings: from flags, the environment and files, each with its origin.

    flags > POINTSMAN_* > pointsman.toml > [tool.pointsman] of pyproject.toml > defaults

The first source that has a setting wins; a tool is taken as a whole from the first file that defines it. All findings are
reported at once.
"""

from __future__ import annotations

import os
import re
import shlex
import tomllib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, cast, get_args
from urllib.parse import urlsplit

from pointsman.engine.checks import MAX_COUNT, MAX_SECONDS, brief
from pointsman.errors import Finding, Place, SettingsInvalid, nearest, suggest
from pointsman.kernel.grammar import parse_duration
from pointsman.prices import Price
from pointsman.store.urls import hide_password

FILE = "pointsman.toml"
PYPROJECT = "pyproject.toml"
FOLDER = ".pointsman"
"""Where Pointsman keeps the database, logs and worker records of a project."""
PREFIX = "POINTSMAN_"
TABLES = {"tools": "curl", "agents": "mycli"}
"""Settings that are tables by name, with an example."""
NO_LIMIT = "none"
MAX_USD = 10_000_000
LOG = "LOG"
"""The level of the log, which the command line reads by itself."""
GIVEN_TO_TASKS = ("RUN_ID", "TASK_ID", "TASK_NAME", "ATTEMPT", "EPOCH", "OUTPUT", "COST", "LOG_DIR", "WORKER_ID", "CALL")
"""Variables with the same prefix that identify a task; they are not settings."""
GIVEN_TO_NOTIFICATIONS = (
    "EVENT",
    "EVENT_ID",
    "EVENT_SUBJECT",
    "EVENT_RUN_ID",
    "EVENT_RUN",
    "EVENT_TASK",
    "EVENT_OUTCOME",
    "EVENT_TOOL",
)
"""Likewise, for the commands of notifications."""

_KINDS_OF_STORE = ("sqlite:///", "postgresql://", "postgres://")
_SIZE = re.compile(r"(?P<count>\d{1,9}(?:\.\d{1,3})?)\s*(?P<unit>[kKMG]?)(?P<binary>i?)B?")
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3}
_RATE = re.compile(r"(?P<count>\d{1,6})\s*(?:/|per)\s*(?P<time>\S+)")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PIECE = re.compile(
    r'"""(?:\\.|[^\\])*?"""|\'\'\'.*?\'\'\'|"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\'|#[^\n]*|[A-Za-z0-9_-]+|\n|[^\s]', re.DOTALL
)
_AT = re.compile(r" \(at (?:line (?P<line>\d+), column (?P<column>\d+)|end of document)\)$")

OnPause = Literal["finish", "suspend"]
Event = Literal["person_needed", "run_ended", "run_failed", "breaker_opened"]
EVENTS: tuple[str, ...] = get_args(Event)
MOST_TRIES = 12
LONGEST_DELIVERY_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class ToolProfile:
    """A program that tasks use, with its limits and its breaker."""

    name: str
    command: tuple[str, ...] = ()
    """The program and its first arguments; those of the task follow."""
    expected_exit_codes: tuple[int, ...] = (0,)
    retry_on_failure: bool = True
    failure_threshold: int = 5
    success_threshold: int = 1
    cooldown_seconds: float = 60.0
    max_concurrent: int | None = None
    rate_count: int | None = None
    rate_seconds: float | None = None
    """At most `rate_count` attempts start within this time."""
    env: dict[str, str] = field(default_factory=dict)
    pass_env: tuple[str, ...] = ()
    """Variables of the worker that its tasks inherit, beside those that all tasks do."""


@dataclass(frozen=True, slots=True)
class AgentProfile:
    """The command line of a coding agent that Pointsman does not know by itself.

    Where something is found in a line: `TYPE: path.to.value` in JSON objects of that `type`, `path.to.value` in any object.
    """

    name: str
    command: tuple[str, ...] = ()
    """The program and its arguments; `{prompt_file}` and `{folder}` stand for paths."""
    prompt: Literal["stdin", "file"] = "stdin"
    model: tuple[str, ...] = ()
    """The arguments that select `{model}`."""
    resume: tuple[str, ...] = ()
    """The arguments that continue `{session}`."""
    plan: tuple[str, ...] = ()
    """The arguments for `permissions: plan`; likewise `edit` and `full`."""
    edit: tuple[str, ...] = ()
    full: tuple[str, ...] = ()
    install: str = ""
    session: str = ""
    text: str = ""
    tool: str = ""
    cost_usd: str = ""
    tokens_in: str = ""
    tokens_out: str = ""
    result: str = ""
    """The text of the last event. Without this, the exit code alone decides."""
    error: str = ""
    """What is there when it has failed: a text, or true."""


AGENTS = ("claude", "codex", "gemini", "opencode", "aider")
"""The agents that Pointsman knows by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyTarget:
    """Where a notification goes when something happens: to a command, or to a webhook."""

    name: str
    on: tuple[str, ...]
    command: tuple[str, ...] = ()
    webhook: str | None = None
    webhook_env: str | None = None
    """The variable that has the URL, where the URL itself is a secret."""
    secret_env: str | None = None
    """The variable that has the secret for signatures."""
    timeout_seconds: float = 10.0
    """The longest time that one try may take."""
    tries: int = MOST_TRIES
    """How many tries there are before the notification is dead."""
    allow_private: bool = False
    """Whether the webhook may be at an address of this machine or of a private network."""
    pass_env: tuple[str, ...] = ()
    """Additional variables that the command inherits."""

    @property
    def method(self) -> str:
        return "command" if self.command else "webhook"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a project, and the origin of each (`origins`, by name)."""

    directory: Path
    """The folder of the project."""
    store: str
    slots: int
    """How many tasks a worker runs at once."""
    capabilities: tuple[str, ...] = ()
    workspace: str | None = None
    """The workspace that the worker belongs to."""
    lease_seconds: float = 30.0
    """A worker that sends no heartbeat for this long loses its tasks."""
    grace_seconds: float = 10.0
    """The delay between SIGTERM and SIGKILL."""
    log_bytes: int = 100_000_000
    """The largest log of an attempt."""
    pass_env: tuple[str, ...] = ()
    """Additional variables that tasks inherit."""
    on_pause: OnPause = "finish"
    max_memory_bytes: int | None = None
    """A worker that uses more, with all that it runs, gives its tasks back."""
    min_free_disk_bytes: int | None = None
    """A worker gives its tasks back while the disk of the project has less space left."""
    tools: dict[str, ToolProfile] = field(default_factory=dict)
    agents: dict[str, AgentProfile] = field(default_factory=dict)
    """The agents that the settings add."""
    notify: dict[str, NotifyTarget] = field(default_factory=dict)
    """By name: where notifications go."""
    prices: dict[str, Price] = field(default_factory=dict)
    """By model: what its tokens cost."""
    tenant_budgets: dict[str, Decimal | None] = field(default_factory=dict)
    """By tenant: what all its runs together may spend; None for no limit."""
    origins: dict[str, str] = field(default_factory=dict)

    @property
    def all_tools(self) -> dict[str, ToolProfile]:
        """The declared tools, and those of all agents: an agent is a tool of the same name."""
        return {name: ToolProfile(name) for name in (*AGENTS, *self.agents)} | self.tools


Reader = Callable[[object], object]
"""Converts a value, or returns a finding that has no place yet."""
_NOWHERE = Place("", 0, 0)


def load_settings(directory: Path, flags: Mapping[str, Any], environ: Mapping[str, str]) -> Settings:
    """Load the settings of the project around `directory`; a flag that is None or empty was not given."""
    project, pyproject = _find_project(directory)
    sources = [_read_flags(flags), _read_environment(environ), *_read_files(project, pyproject)]
    findings = [finding for source in sources for finding in source.findings]
    values: dict[str, Any] = {}
    origins = {"directory": "default", **dict.fromkeys(SETTINGS, "default")}
    tools: dict[str, ToolProfile] = {}
    agents: dict[str, AgentProfile] = {}
    notify: dict[str, NotifyTarget] = {}
    prices: dict[str, Price] = {}
    budgets: dict[str, Decimal | None] = {}
    for source in reversed(sources):  # the first one wins
        for name, setting in SETTINGS.items():
            if name not in source.values:
                continue
            value = setting.read(source.values[name])
            if isinstance(value, Finding):
                findings.append(replace(value, place=source.place((name,)), message=f"{name}: {value.message}"))
            else:
                values[name] = _resolve_store(value, source.base) if name == "store" else value
                origins[name] = source.origin(name)
        for name, raw in source.values.get("tools", {}).items():
            tools[name], tool_origins, invalid = _read_tool(name, raw, source)
            findings += invalid
            origins = {
                key: value for key, value in origins.items() if not f"{key}.".startswith(f"tools.{name}.")
            } | tool_origins
        for name, raw in source.values.get("agents", {}).items():
            agents[name], invalid = _read_agent(name, raw, source)
            findings += invalid
            origins[f"agents.{name}"] = source.origin("agents", name)
        for index, raw in enumerate(source.values.get("notify", ())):
            target, invalid = _read_target(index, raw, source)
            findings += invalid
            if target is not None:
                notify[target.name] = target
                origins[f"notify.{target.name}"] = source.origin("notify", str(index))
        for model, fields in _read_tables("prices", source, _PRICE, findings, needed=("input", "output")):
            prices[model] = Price(**fields)
            origins[f"prices.{model}"] = source.origin("prices", model)
        for tenant, fields in _read_tables("tenants", source, _TENANT, findings, needed=("budget_usd",)):
            budgets[tenant] = None if fields["budget_usd"] == NO_LIMIT else fields["budget_usd"]
            origins[f"tenants.{tenant}"] = source.origin("tenants", tenant)
    if findings:
        raise SettingsInvalid(findings)
    values.setdefault("store", f"sqlite:///{project / FOLDER / 'state.db'}")
    values.setdefault("slots", _count_processors())
    return Settings(
        directory=project,
        tools=tools,
        agents=agents,
        notify=notify,
        prices=prices,
        tenant_budgets=budgets,
        origins=origins,
        **values,
    )


def _find_project(directory: Path) -> tuple[Path, str | None]:
    """The nearest folder with settings or state, or else the directory itself; and its pyproject.toml if that has settings."""
    start = directory.absolute()
    for folder in (start, *start.parents):
        pyproject = _read_pyproject(folder / PYPROJECT)
        if pyproject is not None or (folder / FILE).is_file() or (folder / FOLDER).is_dir():
            return folder, pyproject
    return start, None


def _read_pyproject(path: Path) -> str | None:
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    return text if re.search(r"^\s*\[+\s*tool\s*\.\s*pointsman\b", text, re.MULTILINE) else None


def _count_processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# Which settings there are


def _invalid(message: str, advice: str) -> Finding:
    return Finding("setting", _NOWHERE, message, advice)


def _read_store(value: object) -> object:
    if isinstance(value, str) and value.startswith(_KINDS_OF_STORE) and value not in _KINDS_OF_STORE:
        return value
    return _invalid(
        f"{brief(hide_password(value) if isinstance(value, str) else value)} is not the URL of a database.",
        "Write sqlite:///path/to/file.db or postgresql://user@host/database.",
    )


def _read_count(low: int, high: int = MAX_COUNT) -> Reader:
    def read(value: object) -> object:
        number = int(value) if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value.strip()) else value
        if isinstance(number, int) and not isinstance(number, bool) and low <= number <= high:
            return number
        return _invalid(f"{brief(value)} is not a whole number from {low:,} to {high:,}.", "Write a number, like 4.")

    return read


def _read_seconds(value: object) -> object:
    seconds: object = value
    if isinstance(value, str):
        text = value.strip()
        seconds = float(text) if re.fullmatch(r"\d{1,12}(\.\d{1,9})?", text) else parse_duration(text)
    if isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 < seconds <= MAX_SECONDS:
        return float(seconds)
    return _invalid(f"{brief(value)} is not a duration above 0.", 'Write seconds, like 30, or text with a unit: "90s", "5m".')


def _read_size(value: object) -> object:
    size: object = value
    if isinstance(value, str) and (match := _SIZE.fullmatch(value.strip())):
        base = 1024 if match["binary"] else 1000
        size = round(float(match["count"]) * base ** _POWERS[match["unit"].lower()])
    if isinstance(size, int) and not isinstance(size, bool) and 4096 <= size <= 2**50:
        return size
    return _invalid(
        f"{brief(value)} is not a size from 4 KiB to 1 PiB.", 'Write bytes, like 1000000, or text: "100 MB", "64 KiB".'
    )


def _read_words(value: object) -> object:
    words = value.split(",") if isinstance(value, str) else value
    if isinstance(words, list | tuple) and all(isinstance(word, str) and word.strip() for word in words):
        return tuple(dict.fromkeys(word.strip() for word in words))
    return _invalid(f"{brief(value)} is not a list of words.", 'Write a list of texts, like ["gpu", "linux"].')


def _read_word(value: object) -> object:
    if isinstance(value, str) and value.strip():
        return value.strip()
    return _invalid(f"{brief(value)} is not a name.", 'Write a text, like "ws_docs".')


def _read_variables(value: object) -> object:
    names = _read_words(value)
    if isinstance(names, tuple) and (odd := [name for name in names if not _VARIABLE.fullmatch(name)]):
        return _invalid(f"{brief(odd[0])} is not a valid name for a variable.", 'Write names only, like ["HTTPS_PROXY"].')
    return names


def _read_choice(*choices: str) -> Reader:
    def read(value: object) -> object:
        if value in choices:
            return value
        return _invalid(f"{brief(value)} is none of {', '.join(choices)}.", suggest(str(value), choices))

    return read


def _read_truth(value: object) -> object:
    return value if isinstance(value, bool) else _invalid(f"{brief(value)} is neither true nor false.", "Write true or false.")


def _read_command(value: object) -> object:
    if isinstance(value, list) and value and all(isinstance(word, str) and word for word in value):
        return tuple(value)
    if isinstance(value, str) and value.strip():
        try:
            words = ", ".join(f'"{word}"' for word in shlex.split(value))
        except ValueError:
            words = '"…"'
        return _invalid("It is one text, but must be a list of words.", f"Write [{words}].")
    return _invalid(
        f"{brief(value)} is not a list of words.", 'Write the program and its first arguments, like ["curl", "-fsS"].'
    )


def _read_exit_codes(value: object) -> object:
    codes = [value] if isinstance(value, int) else value
    if isinstance(codes, list) and codes and all(type(code) is int and 0 <= code <= 255 for code in codes):
        return tuple(codes)
    return _invalid(f"{brief(value)} is not a list of exit codes from 0 to 255.", "Write a list of numbers, like [0, 22].")


def _read_rate(value: object) -> object:
    """(count, seconds)"""
    if isinstance(value, str) and (match := _RATE.fullmatch(value.strip())):
        time = match["time"]
        seconds = parse_duration(f"1{time}") if time.isalpha() else parse_duration(time)
        if seconds and int(match["count"]):
            return int(match["count"]), seconds
    return _invalid(f"{brief(value)} is not a rate.", 'Write a number per duration, like "10/1m".')


def _read_env(value: object) -> object:
    if isinstance(value, dict) and all(isinstance(each, str) for each in value.values()):
        if all(_VARIABLE.fullmatch(name) for name in value):
            return value
        return _invalid("One of its keys is not a valid name for a variable.", "Use letters, digits and underscores.")
    return _invalid(f"{brief(value)} is not a table of texts.", 'Write a table, like {LANG = "C"}.')


def _read_usd(value: object) -> object:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MAX_USD:
        return Decimal(str(value))
    return _invalid(f"{brief(value)} is not an amount from 0 to {MAX_USD:,} USD.", "Write a number, like 20 or 2.50.")


@dataclass(frozen=True, slots=True)
class Setting:
    """How a setting is read, and the name of its flag."""

    read: Reader
    flag: str


SETTINGS: dict[str, Setting] = {
    "store": Setting(_read_store, "--store"),
    "slots": Setting(_read_count(1, 10_000), "--slots"),
    "capabilities": Setting(_read_words, "--capability"),
    "workspace": Setting(_read_word, "--workspace"),
    "lease_seconds": Setting(_read_seconds, "--lease"),
    "grace_seconds": Setting(_read_seconds, "--grace"),
    "log_bytes": Setting(_read_size, "--log-bytes"),
    "pass_env": Setting(_read_variables, "--pass-env"),
    "on_pause": Setting(_read_choice("finish", "suspend"), "--on-pause"),
    "max_memory_bytes": Setting(_read_size, "--max-memory"),
    "min_free_disk_bytes": Setting(_read_size, "--min-free-disk"),
}

_TOOL: dict[str, Reader] = {
    "command": _read_command,
    "expected_exit_codes": _read_exit_codes,
    "retry_on_failure": _read_truth,
    "max_concurrent": _read_count(1),
    "rate": _read_rate,
    "env": _read_env,
    "pass_env": _read_variables,
}
_AGENT: dict[str, Reader] = {
    "command": _read_command,
    "prompt": _read_choice("stdin", "file"),
    **dict.fromkeys(("model", "resume", "plan", "edit", "full"), _read_command),
    **dict.fromkeys(
        ("install", "session", "text", "tool", "cost_usd", "tokens_in", "tokens_out", "result", "error"), _read_word
    ),
}
_PRICE: dict[str, Reader] = dict.fromkeys(("input", "output", "cached_input"), _read_usd)
_TENANT: dict[str, Reader] = {"budget_usd": lambda value: value if value == NO_LIMIT else _read_usd(value)}
_BREAKER: dict[str, Reader] = {
    "failure_threshold": _read_count(1),
    "success_threshold": _read_count(1),
    "cooldown": _read_seconds,
}


# Where they are set


@dataclass(slots=True)
class _Source:
    """Values by name, with their positions; `place` takes the keys that lead to a value."""

    values: Mapping[str, Any]
    base: Path
    """Paths are relative to this folder."""
    place: Callable[[tuple[str, ...]], Place]
    prefix: str = ""
    findings: list[Finding] = field(default_factory=list)

    def origin(self, *keys: str) -> str:
        place = self.place(keys)
        return f"{self.prefix}{place.file}" + (f":{place.line}" if place.line else "")

    def refuse_unknown(self, known: Iterable[str]) -> None:
        for name in self.values:
            if name not in known:
                message = f"There is no setting '{name}'."
                self.findings.append(Finding("unknown-setting", self.place((name,)), message, suggest(name, known)))


def _read_flags(flags: Mapping[str, Any]) -> _Source:
    def place(keys: tuple[str, ...]) -> Place:
        return Place(SETTINGS[keys[0]].flag if keys[0] in SETTINGS else f"--{keys[0].replace('_', '-')}", 0, 0)

    given = {name: value for name, value in flags.items() if name not in SETTINGS or value not in (None, (), [], "")}
    source = _Source(given, Path.cwd(), place, "flag ")
    source.refuse_unknown(SETTINGS)
    return source


def _read_environment(environ: Mapping[str, str]) -> _Source:
    """Lists are separated by commas, and an empty variable is not set."""
    given = {name: value for name in SETTINGS if (value := environ.get(PREFIX + name.upper(), "").strip())}
    source = _Source(given, Path.cwd(), lambda keys: Place(PREFIX + keys[0].upper(), 0, 0))
    for name in (each.removeprefix(PREFIX) for each in environ if each.startswith(PREFIX)):
        # Other programs may use the prefix, but a variable that is similar to a setting is a typo.
        given_by_us = (*GIVEN_TO_TASKS, *GIVEN_TO_NOTIFICATIONS, LOG)
        if name.lower() not in SETTINGS and name not in given_by_us and (close := nearest(name.lower(), SETTINGS)):
            message, meant = f"There is no setting '{name.lower()}'.", " or ".join(PREFIX + each.upper() for each in close)
            source.findings.append(Finding("unknown-setting", source.place((name,)), message, f"Did you mean {meant}?"))
    return source


def _read_files(project: Path, pyproject: str | None) -> Iterator[_Source]:
    path = project / FILE
    if path.is_file():
        try:
            yield _parse_file(path, path.read_text("utf-8"), ())
        except OSError as error:
            message = f"It cannot be read: {error.strerror or error}."
            yield _refuse_file(path, Finding("unreadable", Place(FILE, 0, 0), message, "Check the path and its permissions."))
        except UnicodeDecodeError:
            yield _refuse_file(path, Finding("unreadable", Place(FILE, 0, 0), "It is not UTF-8 text.", "Save it as UTF-8."))
    if pyproject is not None:
        yield _parse_file(project / PYPROJECT, pyproject, ("tool", "pointsman"))


def _refuse_file(path: Path, finding: Finding) -> _Source:
    return _Source({}, path.parent, lambda _: finding.place, findings=[finding])


def _parse_file(path: Path, text: str, table: tuple[str, ...]) -> _Source:
    try:
        value: object = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        message = str(error)
        at = _AT.search(message)
        lines = text.split("\n")
        line, column = (int(at["line"]), int(at["column"])) if at and at["line"] else (len(lines), len(lines[-1]) + 1)
        advice = "Correct this line; put texts in quotes, and lists in [brackets]."
        message = f"This is not TOML: {_AT.sub('', message)}."
        return _refuse_file(path, Finding("toml", Place(path.name, line, column), message, advice))
    places = find_keys(text)

    def place(keys: tuple[str, ...]) -> Place:
        """The position of a key, or of the nearest table around it."""
        whole = (*table, *keys)
        while whole and whole not in places:
            whole = whole[:-1]
        return Place(path.name, *places.get(whole, (1, 1)))

    for key in table:
        value = value.get(key, {}) if isinstance(value, dict) else {}
    if not isinstance(value, dict):
        advice = f"Write [{'.'.join(table)}] and the settings below it."
        return _refuse_file(path, Finding("type", place(()), f"{brief(value)} is not a table.", advice))
    source = _Source(value, path.parent, place)
    source.refuse_unknown((*SETTINGS, *TABLES, "notify", "prices", "tenants"))
    for key, example in TABLES.items():
        if not isinstance(given := value.get(key, {}), dict):
            advice = f"Write a table for each of them: [{key}.{example}]."
            source.findings.append(Finding("type", place((key,)), f"{key}: {brief(given)} is not a table.", advice))
            source.values = {**source.values, key: {}}
    if not isinstance(targets := value.get("notify", []), list):
        advice = "Write a table for each target: [[notify]]."
        source.findings.append(
            Finding("type", place(("notify",)), f"notify: {brief(targets)} is not a list of tables.", advice)
        )
        source.values = {**source.values, "notify": []}
    return source


def _resolve_store(url: Any, directory: Path) -> str:
    """Make the path of a SQLite file absolute, so that it does not depend on the working directory."""
    path = url.removeprefix("sqlite:///")
    return f"sqlite:///{directory / path}" if path not in (url, ":memory:") else url


def find_keys(text: str) -> dict[tuple[str, ...], tuple[int, int]]:
    """Line and column of every key and table of a TOML text; keys inside inline tables have the position of their table.

    The entries of an array of tables are numbered: ("notify", "0", "on").
    """
    places: dict[tuple[str, ...], tuple[int, int]] = {}
    table: tuple[str, ...] = ()
    keys: list[str] = []
    numbers: Counter[tuple[str, ...]] = Counter()
    start = depth = brackets = 0
    is_value = is_header = False
    for match in _PIECE.finditer(text):
        piece = match[0]
        if is_value:
            depth += (piece in ("[", "{")) - (piece in ("]", "}"))
            is_value = piece != "\n" or depth > 0
            continue
        if piece == "\n":
            keys, is_header, brackets = [], False, 0
        elif piece == "[":
            is_header = True
            brackets += 1
        elif piece in ("=", "]") and keys:
            path = (*(() if is_header else table), *keys)
            if brackets > 1:
                numbers[path] += 1
                path = (*path, str(numbers[path] - 1))
            for length in range(1, len(path) + 1):  # [tools.curl] is also the position of `tools`
                places.setdefault(path[:length], _locate(text, start))
            table = path if is_header else table
            is_value, keys = not is_header, []
        elif piece[0] not in "#.[]=":
            start = start if keys else match.start()
            keys.append(piece[1:-1] if piece[0] in "\"'" else piece)
    return places


def _locate(text: str, offset: int) -> tuple[int, int]:
    return text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)


def _read_agent(name: str, raw: object, source: _Source) -> tuple[AgentProfile, list[Finding]]:
    """An agent, and the findings."""
    top = ("agents", name)

    def find(keys: tuple[str, ...], message: str, advice: str) -> Finding:
        return Finding("setting", source.place(keys), f"{'.'.join(keys)}: {message}", advice)

    if name in AGENTS:
        return AgentProfile(name), [
            find(
                top,
                "Pointsman knows this agent by itself.",
                f"Use another name, or set [tools.{name}] to change how it is called.",
            )
        ]
    if not isinstance(raw, dict):
        return AgentProfile(name), [find(top, f"{brief(raw)} is not a table.", f"Write [agents.{name}] and its keys below.")]
    fields: dict[str, Any] = {}
    findings: list[Finding] = []
    for key, value in raw.items():
        result = _AGENT[key](value) if key in _AGENT else _unknown_key(key, _AGENT)
        if isinstance(result, Finding):
            keys = (*top, key)
            findings.append(replace(result, place=source.place(keys), message=f"{'.'.join(keys)}: {result.message}"))
        else:
            fields[key] = result
    if "command" not in raw:
        findings.append(find(top, "It has no `command`.", 'Name the program and its arguments: command = ["mycli", "--json"].'))
    elif fields.get("prompt") == "file" and not any("{prompt_file}" in word for word in fields.get("command", ())):
        findings.append(find((*top, "command"), "It does not say where the prompt is.", "Put {prompt_file} into the command."))
    if ("session" in raw) != ("resume" in raw):
        has, lacks = ("session", "resume") if "session" in raw else ("resume", "session")
        advice = "A session can be continued if `session` says where its id is, and `resume` how it is passed. Add it."
        findings.append(find((*top, has), f"It has no `{lacks}`.", advice))
    elif "resume" in fields and not any("{session}" in word for word in fields["resume"]):
        findings.append(find((*top, "resume"), "It does not say which session to continue.", "Put {session} into it."))
    return AgentProfile(name, **fields), findings


def _read_tool(name: str, raw: object, source: _Source) -> tuple[ToolProfile, dict[str, str], list[Finding]]:
    """A profile, the origins of its fields, and the findings."""
    top = ("tools", name)
    fields: dict[str, Any] = {}
    origins = {".".join(top): source.origin(*top)}
    findings: list[Finding] = []
    tables: list[tuple[tuple[str, ...], object, dict[str, Reader]]] = [(top, raw, _TOOL)]
    if isinstance(raw, dict) and "breaker" in raw:
        tables = [
            (top, {key: value for key, value in raw.items() if key != "breaker"}, _TOOL),
            ((*top, "breaker"), raw["breaker"], _BREAKER),
        ]
    for path, table, readers in tables:
        if not isinstance(table, dict):
            advice = f"Write [{'.'.join(path)}] and its keys below."
            findings.append(Finding("type", source.place(path), f"{'.'.join(path)}: {brief(table)} is not a table.", advice))
            continue
        for key, value in table.items():
            keys = (*path, key)
            result = (
                readers[key](value) if key in readers else _unknown_key(key, (*readers, "breaker") if path == top else readers)
            )
            if isinstance(result, Finding):
                findings.append(replace(result, place=source.place(keys), message=f"{'.'.join(keys)}: {result.message}"))
                continue
            for field_name, part in _as_fields(key, result):
                fields[field_name] = part
                origins[f"tools.{name}.{field_name}"] = source.origin(*keys)
    return ToolProfile(name, **fields), origins, findings


def _read_tables(
    kind: str, source: _Source, readers: dict[str, Reader], findings: list[Finding], *, needed: tuple[str, ...]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """(name, fields) of each valid table [kind.NAME]; adds what is wrong with the others to `findings`."""
    tables = source.values.get(kind, {})
    if not isinstance(tables, dict):
        advice = f'Write a table for each: [{kind}."NAME"].'
        findings.append(Finding("type", source.place((kind,)), f"{kind}: {brief(tables)} is not a table.", advice))
        return
    for name, table in tables.items():
        known = len(findings)
        if not isinstance(table, dict):
            advice = f'Write [{kind}."{name}"] and its keys below. A name with dots needs quotes.'
            findings.append(
                Finding("type", source.place((kind, name)), f"{kind}.{name}: {brief(table)} is not a table.", advice)
            )
            continue
        fields = {key: readers[key](value) if key in readers else _unknown_key(key, readers) for key, value in table.items()}
        for key, value in fields.items():
            if isinstance(value, Finding):
                keys = (kind, name, key)
                findings.append(replace(value, place=source.place(keys), message=f"{'.'.join(keys)}: {value.message}"))
        for key in (key for key in needed if key not in fields):
            message = f"{kind}.{name}: '{key}' is missing."
            findings.append(Finding("missing", source.place((kind, name)), message, f"Add {key} = 1.50, in USD."))
        if len(findings) == known:
            yield name, fields


def _unknown_key(key: str, known: Iterable[str]) -> Finding:
    return Finding("unknown-setting", _NOWHERE, "There is no such key.", suggest(key, known))


def _as_fields(key: str, value: object) -> Iterator[tuple[str, object]]:
    """The fields of a profile for a key of the file."""
    if key == "rate":
        count, seconds = cast("tuple[int, float]", value)
        yield from (("rate_count", count), ("rate_seconds", seconds))
    else:
        yield "cooldown_seconds" if key == "cooldown" else key, value


# Where notifications go

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


def explain_url(url: str) -> str | None:
    """Why a URL is none that a notification can be posted to; None if it is."""
    try:
        parts = urlsplit(url)
        has_place = bool(parts.hostname) and parts.port != 0
    except ValueError:
        return "is not a URL"
    if not url.isascii() or not url.isprintable() or " " in url:
        return "has characters that must be encoded"
    if parts.scheme not in ("http", "https") or not has_place:
        return "is not an http or https URL"
    return "has a user or a password" if parts.username is not None or parts.password is not None else None


def show_host(url: str) -> str:
    """A URL for people, without its path, which may be a secret."""
    parts = urlsplit(url)
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{parts.hostname}{port}/…"


def _read_target_name(value: object) -> object:
    if isinstance(value, str) and _NAME.fullmatch(value):
        return value
    return _invalid(f"{brief(value)} is not a name.", "Use letters, digits, dots, dashes and underscores.")


def _read_events(value: object) -> object:
    events = _read_words(value)
    if isinstance(events, tuple) and (odd := [event for event in events if event not in EVENTS]):
        return _invalid(f"There is no event '{odd[0]}'.", suggest(odd[0], EVENTS))
    return events or _invalid("It is empty.", f"Name events: {', '.join(EVENTS)}.")


def _read_webhook(value: object) -> object:
    """The value is not repeated: it may be a secret."""
    problem = explain_url(value) if isinstance(value, str) else "is not text"
    return value if problem is None else _invalid(f"It {problem}.", 'Write a URL, like "https://example.org/hook".')


def _read_variable(value: object) -> object:
    if isinstance(value, str) and _VARIABLE.fullmatch(value):
        return value
    return _invalid("It is not a valid name for a variable.", "Write the name of the variable, not its value.")


def _read_delivery_seconds(value: object) -> object:
    seconds = _read_seconds(value)
    if isinstance(seconds, float) and seconds > LONGEST_DELIVERY_SECONDS:
        return _invalid(
            f"{brief(value)} is more than {LONGEST_DELIVERY_SECONDS:g} seconds.", "Let the receiver answer at once."
        )
    return seconds


_TARGET: dict[str, Reader] = {
    "name": _read_target_name,
    "on": _read_events,
    "command": _read_command,
    "webhook": _read_webhook,
    "webhook_env": _read_variable,
    "secret_env": _read_variable,
    "timeout": _read_delivery_seconds,
    "tries": _read_count(1, 100),
    "allow_private": _read_truth,
    "pass_env": _read_variables,
}


def _read_target(index: int, raw: object, source: _Source) -> tuple[NotifyTarget | None, list[Finding]]:
    """An entry of `[[notify]]`, unless something is wrong with it."""
    top = ("notify", str(index))
    if not isinstance(raw, dict):
        advice = "Write [[notify]] and its keys below."
        return None, [Finding("type", source.place(top), f"notify: {brief(raw)} is not a table.", advice)]
    fields: dict[str, Any] = {}
    findings = []
    for key, value in raw.items():
        result = _TARGET[key](value) if key in _TARGET else _unknown_key(key, _TARGET)
        if isinstance(result, Finding):
            findings.append(replace(result, place=source.place((*top, key)), message=f"notify.{key}: {result.message}"))
        else:
            fields["timeout_seconds" if key == "timeout" else key] = result
    for message, advice in explain_target(raw.keys()):
        findings.append(Finding("setting", source.place(top), f"notify: {message}", advice))
    findings += [
        Finding("setting", source.place(top), f"notify: It has no `{key}`.", f"Add {key} to it.")
        for key in ("name", "on")
        if key not in raw
    ]
    name = fields.get("name")
    if any(isinstance(each, dict) and each.get("name") == name for each in source.values["notify"][:index]):
        findings.append(
            Finding("setting", source.place((*top, "name")), f"notify: Another one is called '{name}'.", "Rename it.")
        )
    return (None if findings else NotifyTarget(**fields)), findings


def explain_target(given: Collection[str]) -> Iterator[tuple[str, str]]:
    """What is wrong with the keys of a target together: message and advice."""
    methods = [key for key in ("command", "webhook", "webhook_env") if key in given]
    if not methods:
        yield "It says neither what to run nor where to post.", "Add `command` or `webhook`."
    elif len(methods) > 1:
        yield f"It has `{methods[0]}` and `{methods[1]}`.", "Make them two entries."
    elif methods == ["command"]:
        if useless := [key for key in ("secret_env", "allow_private") if key in given]:
            yield f"`{useless[0]}` belongs to `webhook`.", "Remove it."
    elif "pass_env" in given:
        yield "`pass_env` belongs to `command`.", "Remove it."
