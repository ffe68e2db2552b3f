"""Checks of what people hand in: annotations promise types, but requests are written by people."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from datetime import datetime
from decimal import Decimal
from typing import Any

import msgspec

from pointsman.errors import NotFound, Problem, RequestInvalid

MAX_NAME_BYTES = 200
MAX_TEXT_BYTES = 1_048_576
MAX_WORDS_BYTES = 2_000
MAX_IDS = 10_000
MAX_JSON_DEPTH = 200
MAX_SECONDS = 10 * 366 * 86_400.0
MAX_COUNT = 1_000_000
MAX_USD = 100_000_000
MAX_TOKENS = 10**12
SMALLEST_USD = Decimal("0.000001")


def refuse(problems: Iterable[Problem]) -> None:
    """Raise if there is any problem, with all of them."""
    found = tuple(problems)
    if found:
        raise RequestInvalid(found)


def brief(value: object) -> str:
    """A value in a message: enough to recognise it, and no more."""
    shown = ascii(value) if isinstance(value, str | int | float | Decimal | bool | None) else f"a {type(value).__name__}"
    return shown if len(shown) <= 60 else f"{shown[:60]}…"


def text(path: str, value: object, limit: int = MAX_TEXT_BYTES) -> Iterator[Problem]:
    """What both databases can keep."""
    if not isinstance(value, str):
        yield Problem(path, f"Must be text, not {brief(value)}.")
        return
    if "\0" in value:
        yield Problem(path, "It contains a NUL character. Remove it.")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        yield Problem(path, "It contains half of a surrogate pair and is no Unicode text. Repair its encoding.")
        return
    if size > limit:
        yield Problem(path, _too_large(size, limit))


def name(path: str, value: object) -> Iterator[Problem]:
    if isinstance(value, str) and not value.strip():
        yield Problem(path, "It is empty. Give it a name.")
        return
    yield from text(path, value, MAX_NAME_BYTES)


def words(path: str, values: object) -> Iterator[Problem]:
    if isinstance(values, str) or not isinstance(values, list | tuple | set | frozenset):
        yield Problem(path, f"Must be a list of words, not {brief(values)}.")
        return
    problems = [problem for index, word in enumerate(values) for problem in name(f"{path}[{index}]", word)]
    yield from problems
    if not problems and sum(len(word) for word in values) > MAX_WORDS_BYTES:
        yield Problem(path, f"These words have more than {MAX_WORDS_BYTES} bytes. Use fewer or shorter ones.")


def tenants(path: str, values: object) -> Iterator[Problem]:
    return iter(()) if values == "all" else words(path, values)


def ids(path: str, values: object) -> Iterator[Problem]:
    """A list of ids; unknown ones are not an error."""
    if not isinstance(values, list | tuple | set | frozenset) or len(values) > MAX_IDS:
        yield Problem(path, f"Must be a list of at most {MAX_IDS:,} ids, not {brief(values)}.")
        return
    for index, value in enumerate(values):
        yield from name(f"{path}[{index}]", value)


def count(path: str, value: object, low: int = 1, high: int = MAX_COUNT) -> Iterator[Problem]:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        yield Problem(path, f"Must be a whole number from {low} to {high}, not {brief(value)}.")


def whole(path: str, value: object) -> Iterator[Problem]:
    if not isinstance(value, int) or isinstance(value, bool):
        yield Problem(path, f"Must be a whole number, not {brief(value)}.")


def seconds(path: str, value: object) -> Iterator[Problem]:
    """Above zero, up to ten years."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MAX_SECONDS:
        yield Problem(path, f"Must be a number of seconds above 0 and up to ten years, not {brief(value)}.")


def number(path: str, value: object, low: float, high: float) -> Iterator[Problem]:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        yield Problem(path, f"Must be a number from {low:g} to {high:g}, not {brief(value)}.")


def amount(path: str, value: object) -> Iterator[Problem]:
    """Money, to a millionth of a dollar: what is finer could not be kept exactly."""
    is_amount = isinstance(value, Decimal) and value.is_finite() and 0 <= value < MAX_USD
    if not is_amount or (isinstance(value, Decimal) and value % SMALLEST_USD):
        wanted = "an amount of dollars from 0 to 100 million, as a Decimal with up to six places"
        yield Problem(path, f"Must be {wanted}, not {brief(value)}.")


def truth(path: str, value: object) -> Iterator[Problem]:
    if not isinstance(value, bool):
        yield Problem(path, f"Must be True or False, not {brief(value)}.")


def one_of(path: str, value: object, allowed: tuple[str, ...]) -> Iterator[Problem]:
    if value not in allowed:
        yield Problem(path, f"Must be one of {', '.join(allowed)}, not {brief(value)}.")


def instant(path: str, value: object) -> Iterator[Problem]:
    if not (isinstance(value, datetime) and value.tzinfo is not None):
        yield Problem(path, f"Must be an instant with its time zone, not {brief(value)}.")


def json(path: str, value: object) -> Iterator[Problem]:
    """What can be written as JSON, read again, and found whole."""
    _, problem = write_json(value)
    if problem:
        yield Problem(path, problem)


def json_object(path: str, value: object) -> Iterator[Problem]:
    if isinstance(value, dict):
        yield from json(path, value)
    else:
        yield Problem(path, f"Must be an object, not {brief(value)}.")


def write_json(value: object) -> tuple[str, str | None]:
    """A value as JSON, or what is wrong with it."""
    if problem := _find_odd(value):
        return "", problem
    try:
        written = msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        return "", f"It cannot be written as JSON: {str(error).rstrip('.')}. Pass only what JSON knows."
    if len(written) > MAX_TEXT_BYTES:
        return "", _too_large(len(written), MAX_TEXT_BYTES)
    return written.decode(), None


def encode(value: object) -> str | None:
    """What was checked, as the database keeps it; None is nothing."""
    return None if value is None else msgspec.json.encode(value).decode()


def identity(kind: str, value: object) -> str:
    """An id that no database could hold is simply not found."""
    if not isinstance(value, str) or not value or any(True for _ in text(kind, value, 1000)):
        raise NotFound(kind, brief(value).strip("'"))
    return value


def identity_problems(kind: str, _: str, value: object) -> Iterator[Problem]:
    """As a rule of a field: there is either nothing wrong, or nothing of that id."""
    identity(kind, value)
    return iter(())


def attempts(path: str, value: object) -> Iterator[Problem]:
    """Pairs of a task id and the epoch of an attempt."""
    if not isinstance(value, list | tuple):
        yield Problem(path, f"Must be a list of pairs of a task id and an epoch, not {brief(value)}.")
        return
    for index, each in enumerate(value):
        if not isinstance(each, list | tuple) or len(each) != 2:
            yield Problem(f"{path}[{index}]", f"Must be a pair of a task id and an epoch, not {brief(each)}.")
            continue
        identity("task", each[0])
        yield from whole(f"{path}[{index}]", each[1])


def _too_large(size: int, limit: int) -> str:
    return f"It has {size} bytes, and {limit} are allowed. Keep large things in a file, and pass its path."


def _find_odd(value: object) -> str | None:
    """Why a value cannot be stored as JSON and read back. It does not recurse, because depth is one of the reasons."""
    level: list[Any] = [value]
    for _ in range(MAX_JSON_DEPTH):
        below: list[Any] = []
        for each in level:
            match each:
                case str() | None:
                    pass
                case float() if not math.isfinite(each):
                    return "It contains a number that JSON cannot hold (NaN or infinity). Replace it."
                case int() if not -(2**63) <= each < 2**64:
                    return "It contains a whole number of more than 64 bits. Write it as text."
                case dict():
                    if not all(isinstance(key, str) for key in each):
                        return "It contains a key that is no text. Use text for keys."
                    below += each.values()
                case list() | tuple() | set() | frozenset():
                    below += each
                case _:
                    pass
        if not below:
            return None
        level = below
    return f"It is nested more than {MAX_JSON_DEPTH} deep. Flatten it."
