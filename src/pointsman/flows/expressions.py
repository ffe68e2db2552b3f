"""Expressions: small and safe; they cannot run anything.

`${{ … }}` is an expression inside a text. It is parsed with Python's grammar, and only what `syntax` lists is evaluated, by the
functions below: nothing is compiled, and only `FUNCTIONS` are called. Every error is an ExpressionFailed.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from pointsman.errors import ExpressionFailed, suggest
from pointsman.flows.functions import FUNCTIONS, as_text, check_size, describe, plain
from pointsman.flows.syntax import ARITHMETIC, COMPARISONS, CONSTANTS, ROOTS, parse_source, shorten

OPENING, CLOSING, ESCAPED = "${{", "}}", "$${{"

Scope = Mapping[str, Any]
Reference = tuple[str, str]
"""A root and the first name after it, as `("tasks", "fetch")`; the name is empty if there is none or it is computed."""


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed expression; its value depends on the scope."""

    source: str
    _tree: ast.expr = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_tree", parse_source(self.source.strip()))

    def names(self) -> set[Reference]:
        """All its references."""
        return {reference for node in ast.walk(self._tree) if (reference := _reference(node))} | {
            (node.id, "") for node in _bare_names(self._tree)
        }

    def task_fields(self) -> set[tuple[str, str]]:
        """The fields of tasks that it uses, as `("fetch", "outputs")`."""
        found = set()
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Attribute) and (reference := _reference(node.value)) and reference[0] == "tasks":
                found.add((reference[1], node.attr))
        return found

    def check_constants(self) -> None:
        """Raise ExpressionFailed if a part that refers to nothing has no value: it never has one, whatever the scope."""
        for part in _constant_parts(self._tree):
            check_size(_evaluate(part, {}))

    def evaluate(self, scope: Scope) -> Any:
        """Its value: JSON of a bounded size."""
        value = _evaluate(self._tree, scope)
        check_size(value)
        return value


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a text: an expression, or the text between two expressions."""

    text: str
    start: int
    """The offset in the text, braces included."""
    end: int
    is_expression: bool = False


@lru_cache(maxsize=4096)
def split_text(text: str) -> tuple[Part, ...]:
    """The pieces of a text; ExpressionFailed if an expression is not closed."""
    parts: list[Part] = []
    at = 0
    while (start := text.find(OPENING, at)) >= 0:
        if text[start - 1 : start] == "$" and start > at:
            parts.append(Part(text[at : start - 1] + OPENING, at, start + len(OPENING)))
            at = start + len(OPENING)
            continue
        end = _find_closing(text, start + len(OPENING))
        if start > at:
            parts.append(Part(text[at:start], at, start))
        parts.append(Part(text[start + len(OPENING) : end], start, end + len(CLOSING), is_expression=True))
        at = end + len(CLOSING)
    if at < len(text):
        parts.append(Part(text[at:], at, len(text)))
    return tuple(parts)


def render(text: str, scope: Scope) -> Any:
    """The text with the values put in; a text that is a single expression becomes its value."""
    parts = split_text(text)
    if len(parts) == 1 and parts[0].is_expression:
        return _read(parts[0].text).evaluate(scope)
    return "".join(as_text(_read(part.text).evaluate(scope)) if part.is_expression else part.text for part in parts)


def evaluate(text: str, scope: Scope) -> Any:
    """The value of `when` and `foreach`, where the braces are optional."""
    return render(text, scope) if OPENING in text else _read(text).evaluate(scope)


def render_shell(text: str, scope: Scope) -> str:
    """A script with the values put in, each quoted so that the shell treats it as one piece of text."""
    if OPENING not in text:
        return text
    from pointsman.flows.shell import quote_for, track_contexts  # late: most scripts have no values

    contexts = track_contexts(text)
    return "".join(
        quote_for(contexts[part.start], as_text(_read(part.text).evaluate(scope))) if part.is_expression else part.text
        for part in split_text(text)
    )


@lru_cache(maxsize=4096)
def _read(source: str) -> Expression:
    return Expression(source)


def _find_closing(text: str, start: int) -> int:
    """The offset of the closing braces, ignoring quoted text."""
    quote = ""
    at = start
    while at < len(text):
        letter = text[at]
        if quote:
            if letter == "\\":
                at += 1
            elif letter == quote:
                quote = ""
        elif letter in "'\"":
            quote = letter
        elif text.startswith(CLOSING, at):
            return at
        at += 1
    raise ExpressionFailed("An expression is not closed. Write `}}` after it, or `$${{` for a literal `${{`.")


def _reference(node: ast.AST) -> Reference | None:
    match node:
        case ast.Attribute(value=ast.Name(id=root), attr=first) if root in ROOTS:
            return root, first
        case ast.Subscript(value=ast.Name(id=root), slice=ast.Constant(value=str(first))) if root in ROOTS:
            return root, first
        case _:
            return None


def _bare_names(tree: ast.expr) -> Iterator[ast.Name]:
    """The roots that are used without a name after them."""
    named = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute | ast.Subscript) and _reference(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in ROOTS and id(node) not in named:
            yield node


def _constant_parts(node: ast.AST) -> Iterator[ast.expr]:
    """The largest parts that refer to nothing."""
    if isinstance(node, ast.expr) and not any(isinstance(each, ast.Name) and each.id in ROOTS for each in ast.walk(node)):
        yield node
        return
    for child in node.args if isinstance(node, ast.Call) else ast.iter_child_nodes(node):
        yield from _constant_parts(child)


def _evaluate(node: ast.expr, scope: Scope) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return CONSTANTS[name] if name in CONSTANTS else _find_root(name, scope)
        case ast.Attribute(value=owner, attr=key):
            return _look_up(owner, key, scope)
        case ast.Subscript(value=owner, slice=key):
            return _look_up(owner, _evaluate(key, scope), scope)
        case ast.BoolOp(op=sign, values=operands):
            return _combine(sign, operands, scope)
        case ast.UnaryOp(op=sign, operand=operand):
            value = _evaluate(operand, scope)
            return not value if isinstance(sign, ast.Not) else _calculate("-", operator.sub, 0, value)
        case ast.BinOp(left=left, op=sign, right=right):
            return _calculate(*ARITHMETIC[type(sign)], _evaluate(left, scope), _evaluate(right, scope))
        case ast.Compare():
            return _compare(node, scope)
        case ast.IfExp(test=test, body=body, orelse=otherwise):
            return _evaluate(body if _evaluate(test, scope) else otherwise, scope)
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return [_evaluate(element, scope) for element in elements]
        case ast.Call(func=ast.Name(id=name), args=arguments):
            return FUNCTIONS[name](*(_evaluate(argument, scope) for argument in arguments))
        case _:
            raise ExpressionFailed(f"`{shorten(ast.unparse(node))}` is not allowed in an expression.")


def _find_root(name: str, scope: Scope) -> Any:
    if name in scope:
        return scope[name]
    where = " It exists only in a task with `foreach`." if name in ("item", "index") else ""
    raise ExpressionFailed(f"`{name}` does not exist here.{where}")


def _look_up(owner: ast.expr, key: object, scope: Scope) -> Any:
    container = _evaluate(owner, scope)
    shown = shorten(ast.unparse(owner))
    if isinstance(container, Mapping):
        if isinstance(key, str) and key in container:
            return container[key]
        raise ExpressionFailed(f"`{shown}` has no {describe(key)}. {suggest(str(key), map(str, container))}")
    if isinstance(container, list | tuple | str) and isinstance(key, int) and not isinstance(key, bool):
        if -len(container) <= key < len(container):
            return container[key]
        raise ExpressionFailed(f"`{shown}` has {len(container)} entries, and no index {key}.")
    raise ExpressionFailed(f"`{shown}` is {describe(container)}, which has no {describe(key)}.")


def _combine(sign: ast.boolop, operands: list[ast.expr], scope: Scope) -> Any:
    value = None
    for operand in operands:
        value = _evaluate(operand, scope)
        if bool(value) == isinstance(sign, ast.Or):
            break
    return value


def _compare(node: ast.Compare, scope: Scope) -> bool:
    left = _evaluate(node.left, scope)
    for sign, operand in zip(node.ops, node.comparators, strict=True):
        right = _evaluate(operand, scope)
        try:
            holds = COMPARISONS[type(sign)](left, right)
        except (TypeError, RecursionError):
            message = f"{describe(left)} cannot be compared with {describe(right)}"
            raise ExpressionFailed(f"`{shorten(ast.unparse(node))}`: {message}. Convert one of them first.") from None
        if not holds:
            return False
        left = right
    return True


def _calculate(sign: str, calculate: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (left, right))
    alike = (isinstance(left, str) and isinstance(right, str)) or (isinstance(left, list) and isinstance(right, list))
    if not numbers and not (sign == "+" and alike):
        hint = " Use str() to put a number into a text." if isinstance(left, str) or isinstance(right, str) else ""
        raise ExpressionFailed(f"`{sign}` does not work with {describe(left)} and {describe(right)}.{hint}")
    try:
        result = calculate(left, right)
    except ZeroDivisionError:
        raise ExpressionFailed(f"`{left} {sign} {right}` divides by zero.") from None
    except (OverflowError, ValueError, MemoryError):
        raise ExpressionFailed("The result is too large.") from None
    if not numbers:
        check_size(result)
    return plain(result)
