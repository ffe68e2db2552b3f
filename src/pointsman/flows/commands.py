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
_BEFORE = frozenset(("if", "then", "else", "elif", "while", "until", "do", "!", "time", "command", "builtin", "exec", "coproc"))
"""Words after which the name of the command follows, perhaps behind options."""
_ASSIGNMENT = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?:\[[^]]*\])?\+?=")
_EVALUATED = frozenset(("PS4", "BASH_ENV", "PROMPT_COMMAND", "RANDOM", "SECONDS", "OPTIND", "HISTCMD", "LINENO"))
"""Variables whose value bash executes, or evaluates as arithmetic."""
_SHELL = re.compile(
    r"(?:.*/)?(?:(?:|a|ba|rba|da|k|mk|z|fi|c|tc|ya)sh|busybox|su|runuser|script|flock)|\$\{?\w*(?:SHELL|BASH|SH)\b.*", re.DOTALL
)
"""Names of programs that read a script behind `-c`, and variables that hold one."""
_SCRIPT_FOLLOWS = re.compile(r"-[A-Za-z]*c[A-Za-z]*|--comm?[a-z]*|--session[a-z-]*")
_SCRIPT_ATTACHED = re.compile(rf"-[A-Za-z]*c[^=]*{VALUE}|--(?:comm?[a-z]*|session[a-z-]*)=")
_TAKES_VALUE = re.compile(r"[-+][A-Za-z]*[oO]")
_TYPE = re.compile(r"[-+][A-Za-z]*[iaAn]")
_READ_OPTION = re.compile(r"-[a-z]*[dinNptu]")
_SED_ADDRESS = r"(?:\d+(?:~\d+)?|\$|/(?:\\.|[^/\\])*/[IM]*|\\([^\w\s])(?:(?!\2).)*\2[IM]*)"
_SED_RANGE = r"(?:\s*,\s*(?:[+~]?\d+|\$|/(?:\\.|[^/\\])*/[IM]*|\\([^\w\s])(?:(?!\3).)*\3[IM]*))"
_SED_EXECUTES = (
    r"s([^\w\s])(?:(?!\1).)*\1(?:(?!\1).)*\1[0-9gpiImM]*e"
    rf"|(?:^|[;\n{{}}])\s*(?:{_SED_ADDRESS}{_SED_RANGE}?)?\s*!*\s*e(?:[\s{VALUE}]|$)"
)
"""Compiled when a value is in a sed script: that takes 5 ms."""
_SED_OPTION = re.compile(r"\A(?:-[A-Za-z]*?e|--expr[a-z]*=)")


def is_executed(words: Sequence[str], *, has_types: bool) -> bool:
    """Whether the last word, which contains a value, is executed; `words` are those of its command so far.

    `has_types`: a variable was declared as an integer, an array or a reference, so that an assignment may be evaluated.
    """
    if (assignment := _ASSIGNMENT.match(words[-1])) and (has_types or assignment["name"] in _EVALUATED):
        return True
    begin = _find_name(words)
    if begin == len(words) - 1:
        return False
    rule = _BUILTINS.get(words[begin])
    return (rule is not None and rule(words[begin + 1 :])) or _is_script(words) or _is_sed(words)


def declares_types(words: Sequence[str]) -> bool:
    begin = _find_name(words)
    return words[begin : begin + 1] in (["declare"], ["typeset"], ["local"]) and any(map(_TYPE.match, words[begin + 1 :]))


def _find_name(words: Sequence[str]) -> int:
    """Where the name of the command is; the last word if none is found."""
    has_options = False
    for at, word in enumerate(words):
        if word in _BEFORE:
            has_options = True
        elif not _ASSIGNMENT.match(word) and not (has_options and word.startswith("-")):
            return at
    return len(words) - 1


def _is_script(words: Sequence[str]) -> bool:
    """`sh -c SCRIPT`, also behind sudo, env, xargs or find -exec. Words after the script are its arguments, which are safe."""
    return any(_SHELL.fullmatch(word) and _reads_script(words[at + 1 :]) for at, word in enumerate(words[:-1]))


def _reads_script(words: Sequence[str]) -> bool:
    """Whether the last of the words after a shell is its script: only options are between it and `-c`, which may be a value."""
    if _SCRIPT_ATTACHED.match(words[-1]):
        return True
    return any(
        _are_options(words[at + 1 : -1])
        for at, word in enumerate(words[:-1])
        if _SCRIPT_FOLLOWS.fullmatch(word) or (VALUE in word and _are_options(words[:at]))
    )


def _are_options(words: Sequence[str]) -> bool:
    pairs = zip(words, ["", *words], strict=False)
    return all(word[:1] in ("-", "+") or _TAKES_VALUE.fullmatch(before) for word, before in pairs)


def _is_sed(words: Sequence[str]) -> bool:
    """A script of GNU sed that executes what it has put together."""
    is_sed = any(word.rpartition("/")[2] in ("sed", "gsed") for word in words[:-1])
    return is_sed and re.search(_SED_EXECUTES, _SED_OPTION.sub("", words[-1], count=1), re.DOTALL) is not None


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


def _takes_callback(words: Sequence[str]) -> bool:
    """`mapfile -C COMMAND`"""
    return words[-2:-1] == ["-C"] or words[-1].startswith("-C")


def _stores_id(words: Sequence[str]) -> bool:
    """`wait -p NAME`"""
    return words[-2:-1] == ["-p"] or words[-1].startswith("-p")


def _always(words: Sequence[str]) -> bool:
    del words
    return True


_BUILTINS: Mapping[str, Callable[[Sequence[str]], bool]] = MappingProxyType(
    {
        **dict.fromkeys(("eval", "trap", "unset", "let", "compgen", "complete"), _always),
        **dict.fromkeys(("declare", "typeset", "local"), _declares),
        **dict.fromkeys(("test", "["), _tests_name),
        **dict.fromkeys(("mapfile", "readarray"), _takes_callback),
        "read": _reads_into,
        "printf": _prints_into,
        "wait": _stores_id,
    }
)
"""For each builtin whether the last of its words is executed."""
