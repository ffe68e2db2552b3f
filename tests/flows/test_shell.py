"""A value in a script stays a value: the shell itself is asked what it makes of it."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman.errors import ExpressionFailed
from pointsman.flows.expressions import render_shell

NASTY = "$(echo run) `echo run` ' \" \\ ; & | > < * ? $HOME # \n\tend"
SCRIPTS = [
    "printf %s ${{ inputs.x }}",
    'printf %s "${{ inputs.x }}"',
    "printf %s '${{ inputs.x }}'",
    'printf %s "$(printf %s ${{ inputs.x }}; printf .)"',
    'printf %s "$(printf %s "${{ inputs.x }}"; printf .)"',
    "# don't mind the quote\nprintf %s ${{ inputs.x }}",
    "cat > /dev/null <<EOF\nit's here: \"\nEOF\nprintf %s ${{ inputs.x }}",
    "case a in a) printf %s ${{ inputs.x }};; esac",
    "true it\\'s; printf %s ${{ inputs.x }}",
    "(printf %s ${{ inputs.x }})",
    'a=${#HOME}; printf %s "${{ inputs.x }}"',
    "a=b#c; printf %s ${{ inputs.x }}",
    'true "${HOME:-x}"; printf %s ${{ inputs.x }}',
    'true "a\\"b"; printf %s ${{ inputs.x }}',
    "printf %s $((1 + 1)) > /dev/null; printf %s ${{ inputs.x }}",
]


def run(script: str) -> str:
    result = subprocess.run(["/bin/sh", "-c", script], capture_output=True, check=True, text=True, timeout=10)
    return result.stdout


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_shell_sees_the_value_and_nothing_else(script: str) -> None:
    assert run(render_shell(script, {"inputs": {"x": NASTY}})).removesuffix(".") == NASTY


@given(st.sampled_from(SCRIPTS[:5]), st.text(alphabet="ab $()`'\"\\;|&<>*?#!~{}[]=\n", max_size=30))
@settings(max_examples=40, deadline=None)
def test_any_value_stays_a_value(script: str, value: str) -> None:
    assert run(f"{render_shell(script, {'inputs': {'x': value}})}; printf .").rstrip(".") == value.rstrip(".")


@pytest.mark.parametrize(
    "script",
    [
        "cat <<EOF\n${{ inputs.x }}\nEOF",
        "cat <<-'END'\n\t${{ inputs.x }}\nEND",
        "echo `echo ${{ inputs.x }}`",
        "echo ${HOME:-${{ inputs.x }}}",
        "echo \\${{ inputs.x }}",
        "echo $'a' ${{ inputs.x }}",
        "cat << ${{ inputs.x }}",
        'echo "$(case a in a) echo ${{ inputs.x }};; esac)"',
        'echo "${HOME:-it\'s}" ${{ inputs.x }}',
    ],
)
def test_where_a_value_cannot_be_quoted_for_certain_it_is_refused(script: str) -> None:
    with pytest.raises(ExpressionFailed, match="Put it into `env`"):
        render_shell(script, {"inputs": {"x": "value"}})


def test_values_are_written_as_in_any_text() -> None:
    scope = {"inputs": {"n": 5, "t": True, "l": ["a b"], "none": None}}
    assert (
        render_shell("x ${{ inputs.n }} ${{ inputs.t }} ${{ inputs.l }} ${{ inputs.none }}", scope) == "x 5 true '[\"a b\"]' ''"
    )
    with pytest.raises(ExpressionFailed, match="NUL"):
        render_shell("x ${{ inputs.n }}", {"inputs": {"n": "a\0b"}})
