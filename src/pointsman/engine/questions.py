"""Questions of tasks: a text, and what an answer to it has to be.

The task row has a question as it was asked: a plain text, or a JSON object with `text`, `choices`, `default` and `schema`.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from pointsman.engine.json_schema import explain_misfit

MAX_ANSWER = 20_000
"""Characters: the next attempt gets an answer in its environment, whose size is limited."""


class Question(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    text: str
    choices: tuple[Any, ...] | None = None
    """The allowed answers."""
    default: Any = None
    """The answer that is suggested."""
    schema: dict[str, Any] | None = None
    """The JSON Schema of the answer, which is then JSON."""

    @property
    def options(self) -> tuple[str, ...]:
        """The choices as answers."""
        return tuple(as_answer(choice) for choice in self.choices or ())

    @property
    def suggestion(self) -> str | None:
        return None if self.default is None else as_answer(self.default)

    def explain_misfit(self, answer: str) -> str | None:
        """Why this is no answer to the question."""
        if self.choices is not None and answer not in self.options:
            return f"'{answer}' is not one of the choices: {', '.join(self.options)}."
        misfit = explain_misfit(self.schema, as_value(answer)) if self.schema is not None else None
        return f"The answer does not fit: {misfit}." if misfit else None


def read_question(stored: str) -> Question:
    try:
        return msgspec.json.decode(stored, type=Question)
    except msgspec.MsgspecError:
        return Question(stored)


def write_question(question: Question) -> str:
    is_plain = question == Question(question.text)
    return question.text if is_plain else msgspec.json.encode(question).decode()


def as_answer(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def as_value(answer: str) -> Any:
    """JSON, or else a text: nobody should have to write quotes around a word."""
    try:
        return msgspec.json.decode(answer)
    except msgspec.DecodeError:
        return answer
