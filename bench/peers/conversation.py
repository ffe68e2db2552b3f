"""A conversation in lines of JSON: one asks on stdin, one answers on stdout. Peers need nothing else of Pointsman."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TextIO

Answer = dict[str, Any]


def say(answer: Answer) -> None:
    print(json.dumps(answer), file=_answers(), flush=True)


def answer_each(handlers: Mapping[str, Callable[..., Any]], run: Callable[[Any], Answer] = lambda answer: answer) -> None:
    """Until nobody asks any more. `run` makes an answer of what a handler returns, where that is a coroutine."""
    _answers()
    for line in sys.stdin:
        request = json.loads(line)
        say(run(handlers[request.pop("do")](**request)))


def check_done(done: int, count: int) -> None:
    if done != count:
        raise SystemExit(f"{done} of {count} tasks are recorded as done.")


@cache
def _answers() -> TextIO:
    """Where stdout led; what a library prints goes to stderr from now on, because it is not for whoever asks."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers
