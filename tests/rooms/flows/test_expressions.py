"""Expressions say what they come to, or why they come to nothing; they never do anything."""

from __future__ import annotations

import builtins
import json
import re
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman.errors import ExpressionFailed
from pointsman.flows.expressions import Expression, evaluate, render
from pointsman.flows.functions import FUNCTIONS, MAX_NODES, MAX_TEXT
from pointsman.flows.items import list_items
from pointsman.flows.syntax import MAX_SOURCE
from pointsman.flows.templates import render_value

SCOPE: dict[str, Any] = {
    "inputs": {"name": "a b", "count": 3, "files": ["x", "y"], "deep": {"key": [1, {"k": "v"}]}, "none": None, "yes": True},
    "tasks": {"fetch": {"outputs": {"size": 10}, "skipped": False}, "my-task": {"outputs": [1, 2], "skipped": True}},
    "run": {"id": "run_1", "name": "nightly"},
    "item": {"os": "linux"},
    "index": 0,
}


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("inputs.name", "a b"),
        ('inputs["name"]', "a b"),
        ("inputs.count + 1", 4),
        ("-inputs.count * 2 - 1", -7),
        ("7 / 2", 3.5),
        ("7 % 4", 3),
        ("tasks.fetch.outputs.size > 5 and not tasks.fetch.skipped", True),
        ('tasks["my-task"].outputs[-1]', 2),
        ('"y" in inputs.files', True),
        ('"name" in inputs', True),
        ('"q" not in inputs.name', True),
        ("1 < inputs.count <= 3", True),
        ('"many" if inputs.count > 2 else "few"', "many"),
        ("inputs.none or 5", 5),
        ("0 and inputs.nothing", 0),
        ("inputs.deep.key[1].k", "v"),
        ('"a" + "b"', "ab"),
        ("[1, 2] + [inputs.count]", [1, 2, 3]),
        ("(1, 2)", [1, 2]),
        ("true and True", True),
        ("null == None", True),
        ("false", False),
        ("len(inputs.files) + len(inputs.name) + len(inputs.deep)", 6),
        ("str(5) + str(true) + str(null)", "5true"),
        ('int("42") + int(1.9)', 43),
        ('float("1.5")', 1.5),
        ("json(inputs.deep)", '{"key": [1, {"k": "v"}]}'),
        ('join(inputs.files, ", ")', "x, y"),
        ("join([1, null, true])", "1  true"),
        ("range(3)", [0, 1, 2]),
        ("range(4, 0, -2)", [4, 2]),
        ("keys(item) + values(item)", ["os", "linux"]),
        ("sorted([3, 1, 2])", [1, 2, 3]),
        ("run.id + run.name", "run_1nightly"),
        ("1 +\n  2", 3),
    ],
)
def test_an_expression_comes_to_its_value(source: str, value: object) -> None:
    assert Expression(source).evaluate(SCOPE) == value
    assert evaluate(source, SCOPE) == value
    assert render(f"${{{{ {source} }}}}", SCOPE) == value


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("", "empty"),
        ("inputs.nme", "Did you mean name?"),
        ("input.name", "Did you mean inputs"),
        ("tasks.my-task.outputs", "`task` is not defined"),
        ("inputs.count && 1", "Instead of `&&`, write `and`."),
        ("!inputs.yes", "Instead of `!`, write `not`."),
        ("tasks.import.outputs", 'tasks["import"]'),
        ("1 +", "Something is missing after `+`."),
        ("1 2", "Python says"),
        ("2 ** 9", "operator is not allowed"),
        ("1 // 2", "operator is not allowed"),
        ("1 if 2", "not an expression"),
        ("1 is 1", "compare with"),
        ("'a' * 1000000", "does not work"),
        ("'%d' % 5", "does not work"),
        ("'a' + 1", "Use str()"),
        ("1 < 'a'", "cannot be compared"),
        ("1 / 0", "divides by zero"),
        ("inputs.count.bit_length", "has no"),
        ("inputs.name.upper()", "no function"),
        ("__import__('os').system('id')", "no function"),
        ("eval('1')", "no function"),
        ("len", "is a function"),
        ("len(1, 2)", "takes 1 argument"),
        ("len(*inputs.files)", "plain arguments"),
        ("join(sep=1)", "plain arguments"),
        ("[x for x in inputs.files]", "ListComp"),
        ("{1: 2}", "Dict"),
        ("lambda: 1", "Lambda"),
        ("f'{inputs}'", "JoinedStr"),
        ("(x := 1)", "NamedExpr"),
        ("inputs.files[0:1]", "Slice"),
        ("inputs.files[9]", "no index 9"),
        ("inputs.files.x", "has no"),
        ("inputs[1]", "has no"),
        ("b'x'", "not allowed"),
        ("...", "not allowed"),
        ("1j", "not allowed"),
        ("1e999", "too large"),
        ("9223372036854775807 + 1", "too large"),
        ("range(1000000)", "at most"),
        ("range(1, 2, 0)", "does not work"),
        ("int('x')", "does not work"),
        ("float('nan')", "not a number"),
        ("sorted([1, 'a'])", "does not work"),
        ("not " * 100 + "1", "nested"),
        ("-" * 1900 + "1", "nested"),
        ("(" * 900 + "1" + ")" * 900, "not an expression"),
        ("1" * (MAX_SOURCE + 1), "characters"),
        ("inputs\0", "not an expression"),
    ],
)
def test_what_is_wrong_is_said(source: str, why: str) -> None:
    with pytest.raises(ExpressionFailed, match=re.escape(why)):
        Expression(source).evaluate(SCOPE)


def test_item_is_known_only_where_there_is_one() -> None:
    with pytest.raises(ExpressionFailed, match="foreach"):
        Expression("item").evaluate({"inputs": {}})


def test_a_text_has_its_values_put_in() -> None:
    assert render("plain", SCOPE) == "plain"
    assert render("n=${{ inputs.count }}, ${{inputs.files}}!", SCOPE) == 'n=3, ["x", "y"]!'
    assert render("${{ inputs.yes }}${{ inputs.none }}", SCOPE) == "true"
    assert render("${{ '}}' }} and ${{ \"'\" }}", SCOPE) == "}} and '"
    assert render("$${{ inputs.name }}", SCOPE) == "${{ inputs.name }}"
    assert render("$HOME ${HOME} {{ x }}", SCOPE) == "$HOME ${HOME} {{ x }}"
    assert render_value({"a": ["${{ index }}", 1]}, SCOPE) == {"a": [0, 1]}
    with pytest.raises(ExpressionFailed, match="not closed"):
        render("${{ inputs.name }", SCOPE)


def test_an_expression_says_what_it_refers_to() -> None:
    expression = Expression('tasks["a-b"].outputs + tasks.c.skipped if item else json(inputs) + inputs.x[index]')
    assert expression.names() == {
        ("tasks", "a-b"),
        ("tasks", "c"),
        ("item", ""),
        ("inputs", ""),
        ("inputs", "x"),
        ("index", ""),
    }
    assert expression.task_fields() == {("a-b", "outputs"), ("c", "skipped")}
    assert Expression("tasks[inputs.which]").names() == {("tasks", ""), ("inputs", "which")}


def test_items_come_from_a_list_an_expression_or_a_product() -> None:
    assert list_items(["a", "${{ inputs.count }}"], SCOPE) == ["a", 3]
    assert list_items("inputs.files", SCOPE) == ["x", "y"]
    assert list_items("${{ inputs.files }}", SCOPE) == ["x", "y"]
    assert list_items({"os": ["linux", "mac"], "file": "inputs.files"}, SCOPE) == [
        {"os": "linux", "file": "x"},
        {"os": "linux", "file": "y"},
        {"os": "mac", "file": "x"},
        {"os": "mac", "file": "y"},
    ]
    with pytest.raises(ExpressionFailed, match="needs a list"):
        list_items("inputs.count", SCOPE)
    with pytest.raises(ExpressionFailed, match="1,000,000 items"):
        list_items({"a": "range(1000)", "b": "range(1000)"}, SCOPE)


# ── whatever it is given ──

SIGNS = [
    "and",
    "or",
    "not",
    "in",
    "if",
    "else",
    "(",
    ")",
    "[",
    "]",
    ".",
    ",",
    "+",
    "-",
    "*",
    "/",
    "%",
    "<",
    "==",
    "**",
    "lambda",
    ":",
    "\\",
    "'",
    "name",
    "files",
    "1",
    "0",
    "1e300",
    "'a'",
    "true",
    "null",
    "__class__",
    "f''",
]
WORDS = st.sampled_from([*SCOPE, *FUNCTIONS, *SIGNS, "9" * 30])
SOURCES = st.one_of(st.text(max_size=80), st.lists(WORDS, max_size=25).map(" ".join), st.lists(WORDS, max_size=25).map("".join))


@given(SOURCES)
@settings(max_examples=400, deadline=None)
def test_no_text_raises_anything_but_its_own_error_or_gives_more_than_json(source: str) -> None:
    with suppress(ExpressionFailed):
        value = Expression(source).evaluate(SCOPE)
        assert len(json.dumps(value, allow_nan=False)) < 50 * MAX_NODES + MAX_TEXT
    with suppress(ExpressionFailed):
        render(source, SCOPE)
    with suppress(ExpressionFailed):
        render(f"${{{{ {source} }}}}", SCOPE)


@given(
    st.recursive(
        st.sampled_from(["inputs.files", "'ab'", "range(10000)", "1"]),
        lambda inner: st.builds("[{0}, {1}]".format, inner, inner),
    )
)
@settings(max_examples=50, deadline=None)
def test_what_grows_is_stopped(source: str) -> None:
    with suppress(ExpressionFailed):
        value = Expression(f"json({source} + {source})").evaluate(SCOPE)
        assert len(value) < 10 * MAX_NODES


@pytest.mark.parametrize("name", ["eval", "exec", "open", "compile", "__import__", "getattr", "globals", "vars", "print"])
def test_nothing_of_python_can_be_called(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    called = []
    if name in ("eval", "exec", "open", "print"):
        monkeypatch.setattr(builtins, name, lambda *given, **more: called.append((given, more)))
    for source in (f"{name}('1')", f"{name}", f"inputs.{name}('1')", f"len({name}('1'))", f"[{name}][0]('1')"):
        with pytest.raises(ExpressionFailed):
            Expression(source).evaluate(SCOPE)
    assert not called


def test_underscored_names_are_keys_like_any_other() -> None:
    assert Expression("inputs.__class__").evaluate({"inputs": {"__class__": 5}}) == 5
    with pytest.raises(ExpressionFailed, match="has no"):
        Expression("inputs.__class__").evaluate({"inputs": {}})
