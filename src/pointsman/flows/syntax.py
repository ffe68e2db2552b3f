"""The syntax of expressions: parsed with Python's grammar, and refused unless it is listed here."""

from __future__ import annotations

import ast
import operator
import re
import warnings
from collections.abc import Callable, Iterator
from keyword import iskeyword
from typing import Any

from pointsman.errors import ExpressionFailed, suggest
from pointsman.flows.functions import FUNCTIONS, plain

MAX_SOURCE = 2_000
MAX_DEPTH = 60
ROOTS = ("inputs", "tasks", "item", "index", "run")

CONSTANTS = {"true": True, "false": False, "null": None}
COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda item, container: item in container,
    ast.NotIn: lambda item, container: item not in container,
}
ARITHMETIC: dict[type[ast.operator], tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Add: ("+", operator.add),
    ast.Sub: ("-", operator.sub),
    ast.Mult: ("*", operator.mul),
    ast.Div: ("/", operator.truediv),
    ast.Mod: ("%", operator.mod),
}
_NODES = (
    *(ast.Constant, ast.Name, ast.Attribute, ast.Subscript, ast.Compare, ast.BoolOp, ast.UnaryOp, ast.BinOp, ast.IfExp),
    *(ast.List, ast.Tuple, ast.Call),
)
_SIGNS = (*COMPARISONS, *ARITHMETIC, ast.And, ast.Or, ast.Not, ast.USub, ast.Load)
_OTHER_LANGUAGES = {"&&": "and", "||": "or", "!": "not", "===": "==", "?": "A if CONDITION else B"}
_DOTTED = re.compile(r"\b([A-Za-z_]\w*)\s*\.\s*([A-Za-z_]\w*)")
_OPEN_END = re.compile(r"(?:[-+*/%<>=!.,]+|\b(?:and|or|not|in|if|else))\s*$")


def parse_source(source: str) -> ast.expr:
    """Parse an expression and check that everything in it is allowed."""
    if not source:
        raise ExpressionFailed("The expression is empty. Write one between `${{` and `}}`.")
    if len(source) > MAX_SOURCE:
        raise ExpressionFailed(f"The expression has {len(source)} characters; the limit is {MAX_SOURCE}. Do this in a task.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # Brackets allow line breaks, as YAML texts have them.
            tree = ast.parse(f"({source}\n)", mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ExpressionFailed(f"This is not an expression: `{shorten(source)}`. {_advise(source, error)}") from None
    _check_nodes(tree)
    return tree


def _advise(source: str, error: Exception) -> str:
    for other, instead in _OTHER_LANGUAGES.items():
        if other in source.replace("!=", ""):
            return f"Instead of `{other}`, write `{instead}`."
    for root, word in _DOTTED.findall(source):
        if iskeyword(word):
            return f'`{word}` is a keyword of Python: write it in brackets, as in `{root}["{word}"]`.'
    reason = error.msg if isinstance(error, SyntaxError) else "it is nested too deeply"
    if not reason.startswith("unterminated") and (last := _OPEN_END.search(source)):
        return f"Something is missing after `{last[0].strip()}`."
    return f"Python says: {reason}."


def _check_nodes(tree: ast.expr) -> None:
    """Refuse every node that is not listed."""
    level: list[ast.AST] = [tree]
    for _ in range(MAX_DEPTH):
        for node in level:
            _check_node(node)
        level = [child for node in level for child in _operands(node)]
        if not level:
            return
    raise ExpressionFailed(f"The expression is nested more than {MAX_DEPTH} levels deep. Do this in a task.")


def _operands(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if not (isinstance(node, ast.Call) and child is node.func):
            yield child


def _check_node(node: ast.AST) -> None:
    match node:
        case ast.Constant(value=value):
            if not (value is None or isinstance(value, bool | int | float | str)):
                raise ExpressionFailed(
                    f"`{shorten(ast.unparse(node))}` is not allowed. Use texts, numbers, true, false and null."
                )
            plain(value)
        case ast.Name(id=name):
            if name in FUNCTIONS:
                raise ExpressionFailed(f"`{name}` is a function. Call it: `{name}(…)`.")
            if name not in ROOTS and name not in CONSTANTS:
                raise ExpressionFailed(f"`{name}` is not defined. {suggest(name, (*ROOTS, *FUNCTIONS))}")
        case ast.Call(func=function, args=arguments, keywords=keywords):
            if not isinstance(function, ast.Name) or function.id not in FUNCTIONS:
                name = shorten(ast.unparse(function))
                raise ExpressionFailed(f"There is no function `{name}`. {suggest(name, FUNCTIONS)}")
            if keywords or any(isinstance(argument, ast.Starred) for argument in arguments):
                raise ExpressionFailed(f"`{function.id}` takes plain arguments only.")
            FUNCTIONS[function.id].check_count(len(arguments))
        case ast.BinOp(op=sign) | ast.UnaryOp(op=sign) | ast.BoolOp(op=sign) if not isinstance(sign, _SIGNS):
            raise ExpressionFailed(f"`{shorten(ast.unparse(node))}`: this operator is not allowed. Use + - * / % and or not.")
        case ast.Compare(ops=signs) if not all(isinstance(sign, _SIGNS) for sign in signs):
            raise ExpressionFailed(f"`{shorten(ast.unparse(node))}`: compare with == != < <= > >= in, not in.")
        case ast.expr() if not isinstance(node, _NODES):
            kind = type(node).__name__
            raise ExpressionFailed(
                f"`{shorten(ast.unparse(node))}` is not allowed in an expression ({kind}). Do this in a task."
            )
        case _:
            pass


def shorten(source: str) -> str:
    """Source as shown in messages: one short line."""
    source = " ".join(source.split())
    return source if len(source) <= 60 else f"{source[:59]}…"
