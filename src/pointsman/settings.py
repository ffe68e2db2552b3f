"""Settings: from flags, the environment and files, each with where it came from.

    flags > POINTSMAN_* > pointsman.toml > [tool.pointsman] of pyproject.toml > defaults

The first that says something about a setting wins; a tool belongs as a whole to the first file that names it. Whatever is
wrong anywhere is reported at once.
"""

from __future__ import annotations

import os
import re
import shlex
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from pointsman.engine.checks import MAX_COUNT, MAX_SECONDS, brief
from pointsman.errors import Finding, Place, SettingsInvalid, nearest, suggest
from pointsman.kernel.grammar import parse_duration

FILE = "pointsman.toml"
PYPROJECT = "pyproject.toml"
FOLDER = ".pointsman"
"""What Pointsman writes for a project: the database, logs, records of workers."""
PREFIX = "POINTSMAN_"
GIVEN_TO_TASKS = ("RUN_ID", "TASK_ID", "TASK_NAME", "ATTEMPT", "EPOCH", "OUTPUT", "COST", "LOG_DIR", "WORKER_ID", "CALL")
"""Variables of the same prefix that tell a task what it is; settings they are not."""

_KINDS_OF_STORE = ("sqlite:///", "postgresql://", "postgres://")
_PASSWORD = re.compile(r"(?<=://)(?P<user>[^:]*):.*(?=@)", re.DOTALL)
"""From the first colon to the last `@`: a password may hold any letter, also those that have a meaning in a URL."""
_PASSWORD_WORD = re.compile(r"(?<=password=)[^&]+", re.IGNORECASE)
_SIZE = re.compile(r"(?P<count>\d{1,9}(?:\.\d{1,3})?)\s*(?P<unit>[kKMG]?)(?P<binary>i?)B?")
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3}
_RATE = re.compile(r"(?P<count>\d{1,6})\s*(?:/|per)\s*(?P<time>\S+)")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PIECE = re.compile(
    r'"""(?:\\.|[^\\])*?"""|\'\'\'.*?\'\'\'|"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\'|#[^\n]*|[A-Za-z0-9_-]+|\n|[^\s]', re.DOTALL
)
_AT = re.compile(r" \(at (?:line (?P<line>\d+), column (?P<column>\d+)|end of document)\)$")

OnPause = Literal["finish", "suspend"]


@dataclass(frozen=True, slots=True)
class ToolProfile:
    """A program that tasks use, and how carefully it is to be used."""

    name: str
    command: tuple[str, ...] = ()
    """What comes before the arguments of the task."""
    expected_exit_codes: tuple[int, ...] = (0,)
    retry_on_failure: bool = True
    failure_threshold: int = 5
    success_threshold: int = 1
    cooldown_seconds: float = 60.0
    max_concurrent: int | None = None
    rate_count: int | None = None
    rate_seconds: float | None = None
    """At most `rate_count` begin in so many seconds."""
    env: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What is set, and where each came from (`origins`, by the name of the setting)."""

    directory: Path
    """The project."""
    store: str
    slots: int
    """How many tasks a worker does at once."""
    capabilities: tuple[str, ...] = ()
    lease_seconds: float = 30.0
    """A worker that is silent for so long has lost its tasks."""
    grace_seconds: float = 10.0
    """Between asking a process to end and killing it."""
    log_bytes: int = 100_000_000
    """The largest log that an attempt may have."""
    pass_env: tuple[str, ...] = ()
    """Variables that tasks inherit besides those that every task has."""
    on_pause: OnPause = "finish"
    tools: dict[str, ToolProfile] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Wrong:
    """Why a value cannot be had."""

    message: str
    advice: str


Reader = Callable[[object], object]
"""The value as the program uses it, or what is `Wrong` with it."""


def load_settings(directory: Path, flags: Mapping[str, Any], environ: Mapping[str, str]) -> Settings:
    """Everything that is set for the project around `directory`; a flag that is None or empty was not given."""
    project = find_project(directory)
    files = list(_read_files(project))
    sources = [_Given(flags), _Environment(environ), *files]
    findings = [finding for source in sources for finding in source.findings()]
    values: dict[str, Any] = {}
    origins = {"directory": "default"}
    for name, setting in SETTINGS.items():
        origins[name] = "default"
        for source in reversed(sources):
            if (raw := source.find(name)) is None:
                continue
            value = setting.read(raw)
            if isinstance(value, Wrong):
                findings.append(Finding("setting", source.place(name), f"{name}: {value.message}", value.advice))
            else:
                values[name] = source.settle(name, value)
                origins[name] = source.origin(name)
    tools: dict[str, ToolProfile] = {}
    for file in files:
        for name, raw in file.tools():
            tool, where, wrong = _read_tool(name, raw, file)
            findings += wrong
            if name not in tools:
                tools[name] = tool
                origins |= where
    if findings:
        raise SettingsInvalid(findings)
    values.setdefault("store", f"sqlite:///{project / FOLDER / 'state.db'}")
    values.setdefault("slots", _count_processors())
    return Settings(directory=project, tools=tools, origins=origins, **values)


def find_project(directory: Path) -> Path:
    """The nearest folder above that has settings or a state of its own, or else the directory itself."""
    start = directory.absolute()
    for folder in (start, *start.parents):
        if (folder / FILE).is_file() or (folder / FOLDER).is_dir() or _names_us(folder / PYPROJECT):
            return folder
    return start


def _names_us(path: Path) -> bool:
    try:
        return re.search(r"^\s*\[+\s*tool\s*\.\s*pointsman\b", path.read_text("utf-8"), re.MULTILINE) is not None
    except (OSError, UnicodeDecodeError):
        return False


def hide_password(url: str) -> str:
    """The URL of a database as it may be shown."""
    if url.startswith("sqlite:"):
        return url
    return _PASSWORD.sub(r"\g<user>:***", _PASSWORD_WORD.sub("***", url), count=1)


def _count_processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# what may be set


def _read_store(value: object) -> object:
    if isinstance(value, str) and value.startswith(_KINDS_OF_STORE) and value not in _KINDS_OF_STORE:
        return value
    return Wrong(
        f"{brief(hide_password(value) if isinstance(value, str) else value)} is not the URL of a database.",
        "Write sqlite:///path/to/file.db or postgresql://user@host/database.",
    )


def _read_count(low: int, high: int = MAX_COUNT) -> Reader:
    def read(value: object) -> object:
        number = int(value) if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value.strip()) else value
        if isinstance(number, int) and not isinstance(number, bool) and low <= number <= high:
            return number
        return Wrong(f"{brief(value)} is not a whole number from {low:,} to {high:,}.", "Write a number, like 4.")

    return read


def _read_seconds(value: object) -> object:
    seconds: object = value
    if isinstance(value, str):
        text = value.strip()
        seconds = float(text) if re.fullmatch(r"\d{1,12}(\.\d{1,9})?", text) else parse_duration(text)
    if isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 < seconds <= MAX_SECONDS:
        return float(seconds)
    return Wrong(
        f"{brief(value)} is not a length of time above 0.", 'Write seconds, like 30, or text with a unit: "90s", "5m".'
    )


def _read_size(value: object) -> object:
    size: object = value
    if isinstance(value, str) and (match := _SIZE.fullmatch(value.strip())):
        base = 1024 if match["binary"] else 1000
        size = round(float(match["count"]) * base ** _POWERS[match["unit"].lower()])
    if isinstance(size, int) and not isinstance(size, bool) and 4096 <= size <= 2**50:
        return size
    return Wrong(
        f"{brief(value)} is not a size from 4 KiB to 1 PiB.", 'Write bytes, like 1000000, or text: "100 MB", "64 KiB".'
    )


def _read_words(value: object) -> object:
    words = value.split(",") if isinstance(value, str) else value
    if isinstance(words, list | tuple) and all(isinstance(word, str) and word.strip() for word in words):
        return tuple(dict.fromkeys(word.strip() for word in words))
    return Wrong(f"{brief(value)} is not a list of words.", 'Write a list of texts, like ["gpu", "linux"].')


def _read_variables(value: object) -> object:
    names = _read_words(value)
    if isinstance(names, tuple) and (odd := [name for name in names if not _VARIABLE.fullmatch(name)]):
        return Wrong(f"{brief(odd[0])} is not the name of a variable.", 'Write names only, like ["HTTPS_PROXY"].')
    return names


def _read_choice(*choices: str) -> Reader:
    def read(value: object) -> object:
        if value in choices:
            return value
        return Wrong(f"{brief(value)} is none of {', '.join(choices)}.", suggest(str(value), choices))

    return read


def _read_truth(value: object) -> object:
    return value if isinstance(value, bool) else Wrong(f"{brief(value)} is neither true nor false.", "Write true or false.")


def _read_command(value: object) -> object:
    if isinstance(value, list) and value and all(isinstance(word, str) and word for word in value):
        return tuple(value)
    if isinstance(value, str) and value.strip():
        try:
            words = ", ".join(f'"{word}"' for word in shlex.split(value))
        except ValueError:
            words = '"…"'
        return Wrong("It is one text, and must be a list of words.", f"Write [{words}].")
    return Wrong(f"{brief(value)} is not a list of words.", 'Write the program and its first arguments, like ["curl", "-fsS"].')


def _read_exit_codes(value: object) -> object:
    codes = [value] if isinstance(value, int) else value
    if isinstance(codes, list) and codes and all(type(code) is int and 0 <= code <= 255 for code in codes):
        return tuple(codes)
    return Wrong(f"{brief(value)} is not a list of exit codes from 0 to 255.", "Write a list of numbers, like [0, 22].")


def _read_rate(value: object) -> object:
    """(how many, in how many seconds)"""
    if isinstance(value, str) and (match := _RATE.fullmatch(value.strip())):
        time = match["time"]
        seconds = parse_duration(f"1{time}") if time.isalpha() else parse_duration(time)
        if seconds and int(match["count"]):
            return int(match["count"]), seconds
    return Wrong(f"{brief(value)} is not a rate.", 'Write how many in how long, like "10/1m".')


def _read_env(value: object) -> object:
    if isinstance(value, dict) and all(isinstance(each, str) for each in value.values()):
        if all(_VARIABLE.fullmatch(name) for name in value):
            return value
        return Wrong("One of its keys is not the name of a variable.", "Use letters, digits and underscores.")
    return Wrong(f"{brief(value)} is not a table of texts.", 'Write a table, like {LANG = "C"}.')


@dataclass(frozen=True, slots=True)
class Setting:
    """How one is read, and how its flag is called."""

    read: Reader
    flag: str


SETTINGS: dict[str, Setting] = {
    "store": Setting(_read_store, "--store"),
    "slots": Setting(_read_count(1, 10_000), "--slots"),
    "capabilities": Setting(_read_words, "--capability"),
    "lease_seconds": Setting(_read_seconds, "--lease"),
    "grace_seconds": Setting(_read_seconds, "--grace"),
    "log_bytes": Setting(_read_size, "--log-bytes"),
    "pass_env": Setting(_read_variables, "--pass-env"),
    "on_pause": Setting(_read_choice("finish", "suspend"), "--on-pause"),
}

_TOOL: dict[str, Reader] = {
    "command": _read_command,
    "expected_exit_codes": _read_exit_codes,
    "retry_on_failure": _read_truth,
    "max_concurrent": _read_count(1),
    "rate": _read_rate,
    "env": _read_env,
}
_BREAKER: dict[str, Reader] = {
    "failure_threshold": _read_count(1),
    "success_threshold": _read_count(1),
    "cooldown": _read_seconds,
}


# where it may be set


class _Given:
    """Flags of a command; those that were not given are None or empty."""

    def __init__(self, flags: Mapping[str, Any]) -> None:
        self._flags = flags

    def findings(self) -> Iterator[Finding]:
        for name in self._flags:
            if name not in SETTINGS:
                place = Place(f"--{name.replace('_', '-')}", 0, 0)
                yield Finding("unknown-setting", place, f"There is no setting '{name}'.", suggest(name, SETTINGS))

    def find(self, name: str) -> object:
        value = self._flags.get(name)
        return None if value in ((), [], "") else value

    def settle(self, name: str, value: object) -> object:
        """Paths are meant from where the command was given."""
        return _settle_store(str(value), Path.cwd()) if name == "store" else value

    def place(self, name: str) -> Place:
        return Place(SETTINGS[name].flag, 0, 0)

    def origin(self, name: str) -> str:
        return f"flag {SETTINGS[name].flag}"


class _Environment(_Given):
    """Variables; lists are written with commas, and an empty one is not set."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        super().__init__({name: environ.get(PREFIX + name.upper(), "").strip() for name in SETTINGS})
        self._names = [name.removeprefix(PREFIX) for name in environ if name.startswith(PREFIX)]

    def findings(self) -> Iterator[Finding]:
        """Others may have variables of this prefix, but one that is nearly a setting is a slip."""
        for name in self._names:
            if name.lower() not in SETTINGS and name not in GIVEN_TO_TASKS and (close := nearest(name.lower(), SETTINGS)):
                meant = " or ".join(PREFIX + each.upper() for each in close)
                place = Place(PREFIX + name, 0, 0)
                yield Finding("unknown-setting", place, f"There is no setting '{name.lower()}'.", f"Did you mean {meant}?")

    def place(self, name: str) -> Place:
        return Place(PREFIX + name.upper(), 0, 0)

    def origin(self, name: str) -> str:
        return PREFIX + name.upper()


class _File(_Given):
    """A table of a TOML file, with the places of its keys."""

    def __init__(self, path: Path, text: str, table: tuple[str, ...], findings: Iterable[Finding] = ()) -> None:
        self._path = path
        self._table = table
        self._places = find_keys(text)
        self._found = list(findings)
        value: object = {} if self._found else tomllib.loads(text)
        for key in table:
            value = value.get(key, {}) if isinstance(value, dict) else {}
        if not isinstance(value, dict):
            advice = f"Write [{'.'.join(table)}] and the settings below it."
            self._found.append(Finding("type", self.place_of(()), f"{brief(value)} is not a table.", advice))
            value = {}
        super().__init__(value)

    def findings(self) -> Iterator[Finding]:
        yield from self._found
        known = (*SETTINGS, "tools")
        for name in self._flags:
            if name not in known:
                yield Finding("unknown-setting", self.place(name), f"There is no setting '{name}'.", suggest(name, known))
        tools = self._flags.get("tools", {})
        if not isinstance(tools, dict):
            advice = "Write a table for each tool: [tools.curl]."
            yield Finding("type", self.place("tools"), f"tools: {brief(tools)} is not a table.", advice)

    def find(self, name: str) -> object:
        return self._flags.get(name)

    def settle(self, name: str, value: object) -> object:
        return _settle_store(str(value), self._path.parent) if name == "store" else value

    def place(self, name: str) -> Place:
        return self.place_of((name,))

    def place_of(self, keys: tuple[str, ...]) -> Place:
        """Where a key is written, or the nearest one around it."""
        whole = (*self._table, *keys)
        while whole and whole not in self._places:
            whole = whole[:-1]
        return Place(self._path.name, *self._places.get(whole, (1, 1)))

    def origin(self, name: str) -> str:
        return self.origin_of((name,))

    def origin_of(self, keys: tuple[str, ...]) -> str:
        place = self.place_of(keys)
        return f"{place.file}:{place.line}"

    def tools(self) -> Iterable[tuple[str, object]]:
        tools = self._flags.get("tools", {})
        return tools.items() if isinstance(tools, dict) else ()


def _read_files(project: Path) -> Iterator[_File]:
    for name, table in ((FILE, ()), (PYPROJECT, ("tool", "pointsman"))):
        path = project / name
        if path.is_file() and (name == FILE or _names_us(path)):
            yield _read_file(path, table)


def _read_file(path: Path, table: tuple[str, ...]) -> _File:
    try:
        text = path.read_text("utf-8")
        tomllib.loads(text)
    except OSError as error:
        advice = "Check the path and its permissions."
        return _File(path, "", table, [_unreadable(path, f"It cannot be read: {error.strerror or error}.", advice)])
    except UnicodeDecodeError:
        return _File(path, "", table, [_unreadable(path, "It is not text in UTF-8.", "Save it as UTF-8.")])
    except tomllib.TOMLDecodeError as error:
        message = str(error)
        at = _AT.search(message)
        lines = text.split("\n")
        line, column = (int(at["line"]), int(at["column"])) if at and at["line"] else (len(lines), len(lines[-1]) + 1)
        advice = "Correct this line; texts stand in quotes, and lists in [brackets]."
        finding = Finding("toml", Place(path.name, line, column), f"This is not TOML: {_AT.sub('', message)}.", advice)
        return _File(path, "", table, [finding])
    return _File(path, text, table)


def _unreadable(path: Path, message: str, advice: str) -> Finding:
    return Finding("unreadable", Place(path.name, 0, 0), message, advice)


def _settle_store(url: str, directory: Path) -> str:
    """A file of SQLite by its whole path, so that it stays the same wherever the command is given."""
    path = url.removeprefix("sqlite:///")
    return f"sqlite:///{directory / path}" if path not in (url, ":memory:") else url


def find_keys(text: str) -> dict[tuple[str, ...], tuple[int, int]]:
    """Line and column of every key and table of a TOML text; keys inside of inline tables stand where their table stands."""
    places: dict[tuple[str, ...], tuple[int, int]] = {}
    table: tuple[str, ...] = ()
    keys: list[str] = []
    start = depth = 0
    is_value = is_header = False
    for match in _PIECE.finditer(text):
        piece = match[0]
        if is_value:
            depth += (piece in ("[", "{")) - (piece in ("]", "}"))
            is_value = piece != "\n" or depth > 0
            continue
        if piece == "\n":
            keys, is_header = [], False
        elif piece == "[":
            is_header = True
        elif piece in ("=", "]") and keys:
            path = (*(() if is_header else table), *keys)
            for length in range(1, len(path) + 1):  # [tools.curl] is where `tools` begins, too
                places.setdefault(path[:length], _locate(text, start))
            table = path if is_header else table
            is_value, keys = not is_header, []
        elif piece[0] not in "#.[]=":
            start = start if keys else match.start()
            keys.append(piece[1:-1] if piece[0] in "\"'" else piece)
    return places


def _locate(text: str, offset: int) -> tuple[int, int]:
    return text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)


def _read_tool(name: str, raw: object, file: _File) -> tuple[ToolProfile, dict[str, str], list[Finding]]:
    """One profile, where each of its fields came from, and what is wrong with it."""
    top = ("tools", name)
    fields: dict[str, Any] = {}
    origins = {".".join(top): file.origin_of(top)}
    findings: list[Finding] = []
    parts: list[tuple[tuple[str, ...], object, dict[str, Reader]]] = [(top, raw, _TOOL)]
    if isinstance(raw, dict) and "breaker" in raw:
        parts = [
            (top, {key: value for key, value in raw.items() if key != "breaker"}, _TOOL),
            ((*top, "breaker"), raw["breaker"], _BREAKER),
        ]
    for path, table, readers in parts:
        if not isinstance(table, dict):
            advice = f"Write [{'.'.join(path)}] and its keys below."
            findings.append(Finding("type", file.place_of(path), f"{'.'.join(path)}: {brief(table)} is not a table.", advice))
            continue
        for key, value in table.items():
            keys = (*path, key)
            result = (
                readers[key](value) if key in readers else _unknown_key(key, (*readers, "breaker") if path == top else readers)
            )
            if isinstance(result, Wrong):
                message = f"{'.'.join(keys)}: {result.message}"
                rule = "setting" if key in readers else "unknown-setting"
                findings.append(Finding(rule, file.place_of(keys), message, result.advice))
                continue
            for field_name, part in _as_fields(key, result):
                fields[field_name] = part
                origins[f"tools.{name}.{field_name}"] = file.origin_of(keys)
    return ToolProfile(name, **fields), origins, findings


def _unknown_key(key: str, known: Iterable[str]) -> Wrong:
    return Wrong("There is no such key.", suggest(key, known))


def _as_fields(key: str, value: object) -> Iterator[tuple[str, object]]:
    """How a profile calls what the file calls `key`."""
    if key == "rate":
        count, seconds = cast("tuple[int, float]", value)
        yield from (("rate_count", count), ("rate_seconds", seconds))
    else:
        yield "cooldown_seconds" if key == "cooldown" else key, value
