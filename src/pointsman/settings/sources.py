"""Where settings come from: flags, the environment and files, each value with its place."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pointsman.engine.checks import brief
from pointsman.errors import Finding, Place, nearest, suggest
from pointsman.settings.keys import SETTINGS, TABLES
from pointsman.settings.profiles import FOLDER

FILE = "pointsman.toml"
PYPROJECT = "pyproject.toml"
PREFIX = "POINTSMAN_"
LOG = "LOG"
"""The level of the log, which the command line reads by itself."""
API_KEY = "API_KEY"
"""The API key for a server; in no file, and never shown."""
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
_PIECE = re.compile(
    r'"""(?:\\.|[^\\])*?"""|\'\'\'.*?\'\'\'|"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\'|#[^\n]*|[A-Za-z0-9_-]+|\n|[^\s]', re.DOTALL
)
_AT = re.compile(r" \(at (?:line (?P<line>\d+), column (?P<column>\d+)|end of document)\)$")


@dataclass(slots=True)
class Source:
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


def read_flags(flags: Mapping[str, Any]) -> Source:
    def place(keys: tuple[str, ...]) -> Place:
        return Place(SETTINGS[keys[0]].flag if keys[0] in SETTINGS else f"--{keys[0].replace('_', '-')}", 0, 0)

    given = {name: value for name, value in flags.items() if name not in SETTINGS or value not in (None, (), [], "")}
    source = Source(given, Path.cwd(), place, "flag ")
    source.refuse_unknown(SETTINGS)
    return source


def read_environment(environ: Mapping[str, str]) -> Source:
    """Lists are separated by commas, and an empty variable is not set."""
    given = {name: value for name in SETTINGS if (value := environ.get(PREFIX + name.upper(), "").strip())}
    source = Source(given, Path.cwd(), lambda keys: Place(PREFIX + keys[0].upper(), 0, 0))
    for name in (each.removeprefix(PREFIX) for each in environ if each.startswith(PREFIX)):
        # Other programs may use the prefix, but a variable that is similar to a setting is a typo.
        given_by_us = (*GIVEN_TO_TASKS, *GIVEN_TO_NOTIFICATIONS, LOG, API_KEY)
        if name.lower() not in SETTINGS and name not in given_by_us and (close := nearest(name.lower(), SETTINGS)):
            message, meant = f"There is no setting '{name.lower()}'.", " or ".join(PREFIX + each.upper() for each in close)
            source.findings.append(Finding("unknown-setting", source.place((name,)), message, f"Did you mean {meant}?"))
    return source


def find_project(directory: Path) -> tuple[Path, str | None]:
    """The nearest folder with settings or state, or else the directory itself; and its pyproject.toml if that has settings."""
    start = directory.absolute()
    for folder in (start, *start.parents):
        pyproject = read_pyproject(folder / PYPROJECT)
        if pyproject is not None or (folder / FILE).is_file() or (folder / FOLDER).is_dir():
            return folder, pyproject
    return start, None


def read_pyproject(path: Path) -> str | None:
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    return text if re.search(r"^\s*\[+\s*tool\s*\.\s*pointsman\b", text, re.MULTILINE) else None


def read_files(project: Path, pyproject: str | None) -> Iterator[Source]:
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


def _refuse_file(path: Path, finding: Finding) -> Source:
    return Source({}, path.parent, lambda _: finding.place, findings=[finding])


def _parse_file(path: Path, text: str, table: tuple[str, ...]) -> Source:
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
    source = Source(value, path.parent, place)
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
