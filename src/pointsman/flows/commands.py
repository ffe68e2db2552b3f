"""Which words of a shell command are executed once more, so that no quoting protects a value in them.

A second shell reads the script of `sh -c`, `eval` and `trap`. Bash evaluates some names of variables: `read 'a[$(rm …)]'`
executes the command. This knows what shells do themselves, and the usual ways to start another one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

VALUE = "\0"
"""Stands for an expression in a word."""
_BEFORE = frozenset(("if", "then", "else", "elif", "while", "until", "do", "!", "time", "command", "builtin", "exec"))
"""Words after which the name of the command follows."""
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=")
_SHELLS = frozenset(("sh", "ash", "bash", "dash", "ksh", "mksh", "zsh", "fish", "busybox", "su", "runuser", "script", "flock"))
_SCRIPT_FOLLOWS = re.compile(r"-[A-Za-z]*c[A-Za-z]*|--command")
_TYPE = re.compile(r"[-+][A-Za-z]*[iaAn]")
_READ_OPTION = re.compile(r"-[a-z]*[dinNptu]")
_SED_EXECUTES = re.compile(
    r"s([^\w\s])(?:(?!\1).)*\1(?:(?!\1).)*\1[0-9gpiImM]*e|(?:^|[;\n{])\s*(?:\d+|\$|/[^/]*/)?\s*e(?:\s|$)", re.DOTALL
)


def is_executed(words: Sequence[str], *, has_types: bool) -> bool:
    """Whether the last word, which contains a value, is executed; `words` are those of its command so far.

    `has_types`: a variable was declared as an integer, an array or a reference, so that an assignment may be evaluated.
    """
    begin = _find_name(words)
    if begin == len(words) - 1:
        return has_types and _ASSIGNMENT.match(words[-1]) is not None
    rule = _BUILTINS.get(words[begin])
    return (rule is not None and rule(words[begin + 1 :])) or _is_script(words) or _is_sed(words)


def declares_types(words: Sequence[str]) -> bool:
    begin = _find_name(words)
    return words[begin : begin + 1] in (["declare"], ["typeset"], ["local"]) and any(map(_TYPE.match, words[begin + 1 :]))


def _find_name(words: Sequence[str]) -> int:
    """Where the name of the command is; the last word if none is found."""
    names = (at for at, word in enumerate(words) if word not in _BEFORE and not _ASSIGNMENT.match(word))
    return next(names, len(words) - 1)


def _is_script(words: Sequence[str]) -> bool:
    """`sh -c SCRIPT`, also behind sudo, env, xargs or find -exec. Words after the script are its arguments, which are safe."""
    for at, word in enumerate(words[:-1]):
        if word.rpartition("/")[2] in _SHELLS:
            rest = words[at + 1 :]
            options = [place for place, each in enumerate(rest[:-1]) if _SCRIPT_FOLLOWS.fullmatch(each)]
            if rest[-1].startswith("--command=") or (options and all(each[:1] == "-" for each in rest[options[0] : -1])):
                return True
    return False


def _is_sed(words: Sequence[str]) -> bool:
    """A script of GNU sed that executes what it has put together."""
    is_sed = any(word.rpartition("/")[2] in ("sed", "gsed") for word in words[:-1])
    return is_sed and _SED_EXECUTES.search(words[-1]) is not None


def _reads_into(words: Sequence[str]) -> bool:
    """`read NAME`; the value of an option is no name."""
    return not (len(words) > 1 and _READ_OPTION.fullmatch(words[-2])) and not words[-1].startswith("-")


def _prints_into(words: Sequence[str]) -> bool:
    """`printf -v NAME`; a value as the whole format may be `-vNAME`."""
    return words in (["-v", words[-1]], [VALUE]) or words[-1].startswith("-v")


def _tests_name(words: Sequence[str]) -> bool:
    """`[ -v NAME ]`; of two values in a row, the first may be `-v`."""
    return words[-2:-1] in (["-v"], ["-R"], [VALUE])


def _declares(words: Sequence[str]) -> bool:
    """`declare NAME`, or `declare -i n=…`; `declare n=…` is an ordinary assignment."""
    return not _ASSIGNMENT.match(words[-1]) or any(map(_TYPE.match, words))


def _always(words: Sequence[str]) -> bool:
    del words
    return True


_BUILTINS: Mapping[str, Callable[[Sequence[str]], bool]] = MappingProxyType(
    {
        **dict.fromkeys(("eval", "trap", "unset"), _always),
        **dict.fromkeys(("declare", "typeset", "local"), _declares),
        **dict.fromkeys(("test", "["), _tests_name),
        "read": _reads_into,
        "printf": _prints_into,
    }
)
"""For each builtin whether the last of its words is executed."""
