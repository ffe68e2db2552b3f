"""The tables of a settings file: tools, agents, notifications, prices and tenants."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any, cast

from msgspec.structs import replace

from pointsman.engine.checks import brief
from pointsman.errors import Finding, suggest
from pointsman.settings.keys import AGENT, BREAKER, TARGET, TOOL
from pointsman.settings.profiles import AGENTS, AgentProfile, NotifyTarget, ToolProfile
from pointsman.settings.readers import NOWHERE, Reader
from pointsman.settings.sources import Source


def read_tool(name: str, raw: object, source: Source) -> tuple[ToolProfile, dict[str, str], list[Finding]]:
    """A profile, the origins of its fields, and the findings."""
    top = ("tools", name)
    fields: dict[str, Any] = {}
    origins = {".".join(top): source.origin(*top)}
    findings: list[Finding] = []
    tables: list[tuple[tuple[str, ...], object, dict[str, Reader]]] = [(top, raw, TOOL)]
    if isinstance(raw, dict) and "breaker" in raw:
        tables = [
            (top, {key: value for key, value in raw.items() if key != "breaker"}, TOOL),
            ((*top, "breaker"), raw["breaker"], BREAKER),
        ]
    for path, table, readers in tables:
        if not isinstance(table, dict):
            advice = f"Write [{'.'.join(path)}] and its keys below."
            findings.append(Finding("type", source.place(path), f"{'.'.join(path)}: {brief(table)} is not a table.", advice))
            continue
        for key, value in table.items():
            keys = (*path, key)
            result = (
                readers[key](value) if key in readers else unknown_key(key, (*readers, "breaker") if path == top else readers)
            )
            if isinstance(result, Finding):
                findings.append(replace(result, place=source.place(keys), message=f"{'.'.join(keys)}: {result.message}"))
                continue
            for field_name, part in _as_fields(key, result):
                fields[field_name] = part
                origins[f"tools.{name}.{field_name}"] = source.origin(*keys)
    return ToolProfile(name, **fields), origins, findings


def _as_fields(key: str, value: object) -> Iterator[tuple[str, object]]:
    """The fields of a profile for a key of the file."""
    if key == "rate":
        count, seconds = cast("tuple[int, float]", value)
        yield from (("rate_count", count), ("rate_seconds", seconds))
    else:
        yield "cooldown_seconds" if key == "cooldown" else key, value


def read_agent(name: str, raw: object, source: Source) -> tuple[AgentProfile, list[Finding]]:
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
        result = AGENT[key](value) if key in AGENT else unknown_key(key, AGENT)
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


def read_target(index: int, raw: object, source: Source) -> tuple[NotifyTarget | None, list[Finding]]:
    """An entry of `[[notify]]`, unless something is wrong with it."""
    top = ("notify", str(index))
    if not isinstance(raw, dict):
        advice = "Write [[notify]] and its keys below."
        return None, [Finding("type", source.place(top), f"notify: {brief(raw)} is not a table.", advice)]
    fields: dict[str, Any] = {}
    findings = []
    for key, value in raw.items():
        result = TARGET[key](value) if key in TARGET else unknown_key(key, TARGET)
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


def read_tables(
    kind: str, source: Source, readers: dict[str, Reader], findings: list[Finding], *, needed: tuple[str, ...]
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
        fields = {key: readers[key](value) if key in readers else unknown_key(key, readers) for key, value in table.items()}
        for key, value in fields.items():
            if isinstance(value, Finding):
                keys = (kind, name, key)
                findings.append(replace(value, place=source.place(keys), message=f"{'.'.join(keys)}: {value.message}"))
        for key in (key for key in needed if key not in fields):
            message = f"{kind}.{name}: '{key}' is missing."
            findings.append(Finding("missing", source.place((kind, name)), message, f"Add {key} = 1.50, in USD."))
        if len(findings) == known:
            yield name, fields


def unknown_key(key: str, known: Iterable[str]) -> Finding:
    return Finding("unknown-setting", NOWHERE, "There is no such key.", suggest(key, known))
