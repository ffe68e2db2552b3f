"""How single values are read: each reader converts a value, or returns a finding that has no place yet."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from decimal import Decimal
from urllib.parse import urlsplit

from pointsman.engine.checks import MAX_COUNT, MAX_SECONDS, brief
from pointsman.errors import Finding, Place, suggest
from pointsman.kernel.grammar import parse_duration
from pointsman.settings.profiles import EVENTS, LONGEST_DELIVERY_SECONDS
from pointsman.store.urls import hide_password

NO_LIMIT = "none"
MAX_USD = 10_000_000
_KINDS_OF_STORE = ("sqlite:///", "postgresql://", "postgres://")
_SIZE = re.compile(r"(?P<count>\d{1,9}(?:\.\d{1,3})?)\s*(?P<unit>[kKMG]?)(?P<binary>i?)B?")
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3}
_RATE = re.compile(r"(?P<count>\d{1,6})\s*(?:/|per)\s*(?P<time>\S+)")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
Reader = Callable[[object], object]
"""Converts a value, or returns a finding that has no place yet."""
NOWHERE = Place("", 0, 0)


def invalid(message: str, advice: str) -> Finding:
    return Finding("setting", NOWHERE, message, advice)


def read_store(value: object) -> object:
    if isinstance(value, str) and value.startswith(_KINDS_OF_STORE) and value not in _KINDS_OF_STORE:
        return value
    return invalid(
        f"{brief(hide_password(value) if isinstance(value, str) else value)} is not the URL of a database.",
        "Write sqlite:///path/to/file.db or postgresql://user@host/database.",
    )


def read_server(value: object) -> object:
    """Its API key is a variable of the environment, so that it is in no list of processes and in no file of a project."""
    try:
        parts = urlsplit(value) if isinstance(value, str) else None
        is_url = parts is not None and parts.scheme in ("http", "https") and bool(parts.hostname) and "@" not in parts.netloc
    except ValueError:
        is_url = False
    if is_url:
        return str(value).rstrip("/")
    return invalid(f"{brief(value)} is not the URL of a server.", "Write for example http://127.0.0.1:8642.")


def read_count(low: int, high: int = MAX_COUNT) -> Reader:
    def read(value: object) -> object:
        number = int(value) if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value.strip()) else value
        if isinstance(number, int) and not isinstance(number, bool) and low <= number <= high:
            return number
        return invalid(f"{brief(value)} is not a whole number from {low:,} to {high:,}.", "Write a number, like 4.")

    return read


def read_seconds(value: object) -> object:
    seconds: object = value
    if isinstance(value, str):
        text = value.strip()
        seconds = float(text) if re.fullmatch(r"\d{1,12}(\.\d{1,9})?", text) else parse_duration(text)
    if isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 < seconds <= MAX_SECONDS:
        return float(seconds)
    return invalid(f"{brief(value)} is not a duration above 0.", 'Write seconds, like 30, or text with a unit: "90s", "5m".')


def read_size(value: object) -> object:
    size: object = value
    if isinstance(value, str) and (match := _SIZE.fullmatch(value.strip())):
        base = 1024 if match["binary"] else 1000
        size = round(float(match["count"]) * base ** _POWERS[match["unit"].lower()])
    if isinstance(size, int) and not isinstance(size, bool) and 4096 <= size <= 2**50:
        return size
    return invalid(
        f"{brief(value)} is not a size from 4 KiB to 1 PiB.", 'Write bytes, like 1000000, or text: "100 MB", "64 KiB".'
    )


def read_words(value: object) -> object:
    words = value.split(",") if isinstance(value, str) else value
    if isinstance(words, list | tuple) and all(isinstance(word, str) and word.strip() for word in words):
        return tuple(dict.fromkeys(word.strip() for word in words))
    return invalid(f"{brief(value)} is not a list of words.", 'Write a list of texts, like ["gpu", "linux"].')


def read_word(value: object) -> object:
    if isinstance(value, str) and value.strip():
        return value.strip()
    return invalid(f"{brief(value)} is not a name.", 'Write a text, like "ws_docs".')


def read_variables(value: object) -> object:
    names = read_words(value)
    if isinstance(names, tuple) and (odd := [name for name in names if not _VARIABLE.fullmatch(name)]):
        return invalid(f"{brief(odd[0])} is not a valid name for a variable.", 'Write names only, like ["HTTPS_PROXY"].')
    return names


def read_choice(*choices: str) -> Reader:
    def read(value: object) -> object:
        if value in choices:
            return value
        return invalid(f"{brief(value)} is none of {', '.join(choices)}.", suggest(str(value), choices))

    return read


def read_truth(value: object) -> object:
    return value if isinstance(value, bool) else invalid(f"{brief(value)} is neither true nor false.", "Write true or false.")


def read_command(value: object) -> object:
    if isinstance(value, list) and value and all(isinstance(word, str) and word for word in value):
        return tuple(value)
    if isinstance(value, str) and value.strip():
        try:
            words = ", ".join(f'"{word}"' for word in shlex.split(value))
        except ValueError:
            words = '"…"'
        return invalid("It is one text, but must be a list of words.", f"Write [{words}].")
    return invalid(
        f"{brief(value)} is not a list of words.", 'Write the program and its first arguments, like ["curl", "-fsS"].'
    )


def read_exit_codes(value: object) -> object:
    codes = [value] if isinstance(value, int) else value
    if isinstance(codes, list) and codes and all(type(code) is int and 0 <= code <= 255 for code in codes):
        return tuple(codes)
    return invalid(f"{brief(value)} is not a list of exit codes from 0 to 255.", "Write a list of numbers, like [0, 22].")


def read_rate(value: object) -> object:
    """(count, seconds)"""
    if isinstance(value, str) and (match := _RATE.fullmatch(value.strip())):
        time = match["time"]
        seconds = parse_duration(f"1{time}") if time.isalpha() else parse_duration(time)
        if seconds and int(match["count"]):
            return int(match["count"]), seconds
    return invalid(f"{brief(value)} is not a rate.", 'Write a number per duration, like "10/1m".')


def read_env(value: object) -> object:
    if isinstance(value, dict) and all(isinstance(each, str) for each in value.values()):
        if all(_VARIABLE.fullmatch(name) for name in value):
            return value
        return invalid("One of its keys is not a valid name for a variable.", "Use letters, digits and underscores.")
    return invalid(f"{brief(value)} is not a table of texts.", 'Write a table, like {LANG = "C"}.')


def read_usd(value: object) -> object:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MAX_USD:
        return Decimal(str(value))
    return invalid(f"{brief(value)} is not an amount from 0 to {MAX_USD:,} USD.", "Write a number, like 20 or 2.50.")


def read_target_name(value: object) -> object:
    if isinstance(value, str) and _NAME.fullmatch(value):
        return value
    return invalid(f"{brief(value)} is not a name.", "Use letters, digits, dots, dashes and underscores.")


def read_events(value: object) -> object:
    events = read_words(value)
    if isinstance(events, tuple) and (odd := [event for event in events if event not in EVENTS]):
        return invalid(f"There is no event '{odd[0]}'.", suggest(odd[0], EVENTS))
    return events or invalid("It is empty.", f"Name events: {', '.join(EVENTS)}.")


def read_webhook(value: object) -> object:
    """The value is not repeated: it may be a secret."""
    problem = explain_url(value) if isinstance(value, str) else "is not text"
    return value if problem is None else invalid(f"It {problem}.", 'Write a URL, like "https://example.org/hook".')


def read_variable(value: object) -> object:
    if isinstance(value, str) and _VARIABLE.fullmatch(value):
        return value
    return invalid("It is not a valid name for a variable.", "Write the name of the variable, not its value.")


def read_delivery_seconds(value: object) -> object:
    seconds = read_seconds(value)
    if isinstance(seconds, float) and seconds > LONGEST_DELIVERY_SECONDS:
        return invalid(f"{brief(value)} is more than {LONGEST_DELIVERY_SECONDS:g} seconds.", "Let the receiver answer at once.")
    return seconds


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
