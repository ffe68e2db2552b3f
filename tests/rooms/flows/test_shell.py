"""A value in a script stays a value: the shell itself is asked what it makes of it."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rows import each_row

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
    "printf %s \\\n${{ inputs.x }}",
    "true \\\n# it's\nprintf %s ${{ inputs.x }}",
    "cat > /dev/null <<EOF\n\tEOF\nit's\nEOF\nprintf %s ${{ inputs.x }}",
    "cat > /dev/null <<-EOF\n\tit's\n\tEOF\nprintf %s ${{ inputs.x }}",
    "cat > /dev/null <<A; cat > /dev/null <<'B'\n'\nA\n$(\nB\nprintf %s ${{ inputs.x }}",
    "true ${HOME##*/} ${HOME:-$(date)}; printf %s ${{ inputs.x }}",
    "ls [a-z]*[0-9] 2> /dev/null; [ ${{ inputs.x }} = a ] || printf %s ${{ inputs.x }}",
    'printf "$$(" > /dev/null; printf %s "${{ inputs.x }}"',
    "true; # it's\nprintf %s ${{ inputs.x }}",
    "true `date`; printf %s ${{ inputs.x }}",
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
        "echo $(( ${{ inputs.x }} + 1 ))",
        'echo "$((1 + (2 * ${{ inputs.x }})))"',
        "(( ${{ inputs.x }} ))",
        "(( a << b )); echo ${{ inputs.x }}",
        "$((echo a); echo ${{ inputs.x }})",
        "echo $[ ${{ inputs.x }} ]",
        "let ${{ inputs.x }}",
        "a[${{ inputs.x }}]=1",
        "a=(${{ inputs.x }})",
        "[[ 1 -eq ${{ inputs.x }} ]]",
        "echo >&${{ inputs.x }}",
        "echo $(true)#' ${{ inputs.x }} '",
        "cat <<EOF\na \\\nEOF\necho ${{ inputs.x }}",
        "cat <<EOF\n$(\nEOF\necho ${{ inputs.x }}",
        'echo "$(cat <<EOF\nit\'s\nEOF)\n)" ${{ inputs.x }}',
        "cat <<E'O'F\n${{ inputs.x }}",
        "cat <<EOF${{ inputs.x }}",
        "echo $\\\n(echo ${{ inputs.x }})",
        "alias e='echo \"'\ne ${{ inputs.x }}\"",
        "echo ${ echo ${{ inputs.x }}; }",
    ],
)
def test_where_a_value_cannot_be_quoted_for_certain_it_is_refused(script: str) -> None:
    with pytest.raises(ExpressionFailed, match="Put it into `env`"):
        render_shell(script, {"inputs": {"x": "value"}})


EXECUTED = [
    "eval ${{ inputs.x }}",
    "eval 'echo ${{ inputs.x }}'",
    'if ! command eval "echo ${{ inputs.x }}"; then true; fi',
    "f() { eval ${{ inputs.x }}; }; f",
    'echo "$(eval ${{ inputs.x }})"',
    "true && \\eval ${{ inputs.x }}",
    "'ev'al ${{ inputs.x }}",
    "A=1 eval ${{ inputs.x }}",
    "sh -c 'echo ${{ inputs.x }}'",
    'bash -ec "echo ${{ inputs.x }}"',
    "/bin/sh -c -e ${{ inputs.x }} _",
    "sudo -u me env A=1 sh -c 'echo ${{ inputs.x }}'",
    "su - me -c 'echo ${{ inputs.x }}'",
    "su me --command='echo ${{ inputs.x }}'",
    "trap 'rm -rf ${{ inputs.x }}' EXIT",
    "ls | xargs -I{} sh -c 'echo {} ${{ inputs.x }}'",
    "find . -name a -exec sh -c 'echo {} ${{ inputs.x }}' \\;",
    "echo | sed 's/.*/${{ inputs.x }}/e'",
    "echo | sed '1e ${{ inputs.x }}'",
    "[ -v ${{ inputs.x }} ]",
    "test -v ${{ inputs.x }}",
    "[ ${{ inputs.x }} ${{ inputs.x }} ]",
    "echo a | read ${{ inputs.x }}",
    "while read -r a ${{ inputs.x }}; do true; done",
    "printf -v ${{ inputs.x }} a",
    "printf ${{ inputs.x }}",
    "declare ${{ inputs.x }}=1",
    "declare -i n=${{ inputs.x }}",
    "declare -a n=${{ inputs.x }}",
    "f() { local ${{ inputs.x }}; }; f",
    "f() { local -i n=${{ inputs.x }}; }; f",
    "typeset -i n=${{ inputs.x }}",
    "typeset -i n\nn=${{ inputs.x }}",
    "unset ${{ inputs.x }}",
    "2>/dev/null eval ${{ inputs.x }}",
    "<in >|out {fd}>&1 eval ${{ inputs.x }}",
    "sh -c >out ${{ inputs.x }}",
    "command -p eval ${{ inputs.x }}",
    "time -p -- eval ${{ inputs.x }}",
    "a[0]=1 eval ${{ inputs.x }}",
    "coproc eval ${{ inputs.x }}",
    "sh -c -o errexit ${{ inputs.x }}",
    "bash -c +x ${{ inputs.x }}",
    "bash ${{ inputs.x }} ${{ inputs.x }}",
    '"$SHELL" -c ${{ inputs.x }}',
    "${SHELL:-sh} -c ${{ inputs.x }}",
    "rbash -c ${{ inputs.x }}",
    "su -c true me -c ${{ inputs.x }}",
    "su --session-command=${{ inputs.x }} me",
    "script -qc${{ inputs.x }} log",
    "sed '1,2e ${{ inputs.x }}' file",
    "sed '/a/I e ${{ inputs.x }}' file",
    'sed "/a\\/b/!e ${{ inputs.x }}" file',
    "sed '\\,a,e ${{ inputs.x }}' file",
    "sed -e'1~2e${{ inputs.x }}' file",
    "sed --expression='e ${{ inputs.x }}' file",
    "mapfile -C ${{ inputs.x }} -c 1 lines",
    "wait -n -p ${{ inputs.x }}",
    'compgen -W "${{ inputs.x }}"',
    "l'et' n=${{ inputs.x }}",
    "declare -i n; export n=${{ inputs.x }}",
    "PS4=${{ inputs.x }}; set -x",
    "env BASH_ENV=${{ inputs.x }} bash build.sh",
]


@each_row("script", EXECUTED)
def test_a_value_that_is_executed_once_more_is_refused(script: str) -> None:
    with pytest.raises(ExpressionFailed, match=r"executed once more .*Put it into `env`, and use"):
        render_shell(script, {"inputs": {"x": "value"}})


@each_row(
    "script",
    [
        "sh -c 'echo \"$1\"' _ ${{ inputs.x }}",
        "sh ${{ inputs.x }} -c 1",
        "bash ./build.sh --config ${{ inputs.x }}",
        "python -c 'print(1)' ${{ inputs.x }}",
        "grep -c ${{ inputs.x }} file",
        "echo eval ${{ inputs.x }}",
        "trap 'rm -f lock' EXIT; echo ${{ inputs.x }}",
        "eval set -- a\necho ${{ inputs.x }}",
        'eval "$(tool --for ${{ inputs.x }})"',
        "find ${{ inputs.x }} -name '*.py' -exec sh -c 'echo \"$1\"' _ {} \\;",
        "xargs -n1 echo ${{ inputs.x }}",
        "sed 's/VERSION/${{ inputs.x }}/' file",
        "sed -e 's/a/${{ inputs.x }}/g' -i file",
        "sed -n '/release/p' ${{ inputs.x }}",
        "[ ${{ inputs.x }} = a ] && [ -n ${{ inputs.x }} ] && test 1 -eq ${{ inputs.x }}",
        "read -p 'Enter ${{ inputs.x }}: ' name",
        "printf '%s\\n' ${{ inputs.x }}",
        "printf 'hello ${{ inputs.x }}\\n'",
        "export NAME=${{ inputs.x }} && NAME=${{ inputs.x }} make",
        "f() { local name=${{ inputs.x }}; }",
        "declare -r name=${{ inputs.x }}",
        "NAME=${{ inputs.x }} sh -c 'echo \"$NAME\"'",
        "docker run --rm image sh -c 'ls' && echo ${{ inputs.x }}",
        'for file in ${{ inputs.x }}; do echo "$file"; done',
        "make >build.log 2>&1 && echo ${{ inputs.x }} >out",
        "cat <in >${{ inputs.x }}; sh build.sh ${{ inputs.x }} ${{ inputs.x }}",
        "sed 's/one e two/${{ inputs.x }}/;1,2p' file",
        "ENV=${{ inputs.x }} command -p env",
        "case ${{ inputs.x }} in a) echo ${{ inputs.x }};; esac",
    ],
)
def test_an_ordinary_script_is_not_refused(script: str) -> None:
    assert "'value'" in render_shell(script, {"inputs": {"x": "value"}})


@pytest.mark.parametrize("script", ["echo $(( ${{ inputs.x }} ))", "(( ${{ inputs.x }} ))"])
def test_arithmetic_has_an_advice_of_its_own(script: str) -> None:
    with pytest.raises(ExpressionFailed, match=r'inside \(\(…\)\) .*make sure that it is a number, and use "\$NAME" here'):
        render_shell(script, {"inputs": {"x": "$(touch PWN)"}})


@pytest.mark.parametrize("value", ["if", "2", "PATH=/tmp", "done", "-n"])
def test_a_value_is_no_keyword_no_descriptor_and_no_setting(value: str) -> None:
    script = 'show() { printf %s "$1"; }\nshow ${{ inputs.x }}>/dev/stdout\n${{ inputs.x }} 2> /dev/null || true'
    assert run(render_shell(script, {"inputs": {"x": value}})) == value


def test_values_are_written_as_in_any_text() -> None:
    scope = {"inputs": {"n": 5, "t": True, "l": ["a b"], "none": None}}
    script = "x ${{ inputs.n }} ${{ inputs.t }} ${{ inputs.l }} ${{ inputs.none }}"
    assert render_shell(script, scope) == "x '5' 'true' '[\"a b\"]' ''"
    with pytest.raises(ExpressionFailed, match="NUL"):
        render_shell("x ${{ inputs.n }}", {"inputs": {"n": "a\0b"}})


PIECES = [
    *("${{ inputs.x }}", "${{ inputs.x }}", '"${{ inputs.x }}"', "'${{ inputs.x }}'", "echo ${{ inputs.x }}\n"),
    *("\n", "\n", " ", " ", "'", '"', "'", '"', "`", "\\", "\\\n", " \\\n", "\t", "\r", "a", "echo a ", "é", "\x01", "\x7f"),
    *("#", " # it's", "# ", "it's", "; # '\n", "&# '\n", "|# '\n", "(# '\n)", ")# '\n", "x# '", "$", "$$", "$#", "!", "!!"),
    *("$((", "((", "))", "$(", "(", ")", ")", "1 + 1", "$[", "]", "[[ ", " ]]", "a[", "[ ", " ]", "a=(", "<(", ">("),
    *("${", "${x", "${x#", "${x:-", "${#x}", "${x##*/}", "}", "{", "{ ", "; }", "${x#'}'}", '"${x:-\'}"', "${ "),
    *("$'", '$"', "$'\\''", " -eq ", "=~ ", ";", "&", "|", "&&", "||", ">&", "&>", ">", "<", "; ", "=", "x=", "~", "*"),
    *("case x in a) ", "case a in a) ", "case a in (a) ", ";; esac\n", "esac\n", "in ", "if true; then ", "fi\n"),
    *("do ", "done\n", "for i in ", "while ", "let ", "f() ", "alias e='echo \"'\n", "e "),
    *("<<EOF", "<<EOF\n", "<<-EOF\n", "<<'EOF'\n", '<<"EOF"\n', "<<\\EOF\n", "<<E'O'F\n", "<< EOF", "<<-'EOF' "),
    *("<<A <<EOF\n", "<<<", "<< ", "EOF\n", "\nEOF\n", "\n\tEOF\n", "\nEOF)\n", "\nEOF)", "\nA\n", "EOF", "\\\nEOF\n"),
]
PAYLOADS = [
    "$(touch PWN)'\";touch PWN",
    "`touch PWN`",
    "a[$(touch PWN)]",
    "x\ntouch PWN\n",
    "x\nEOF\ntouch PWN\n",
    "\nEOF\n)\n;touch PWN\n'\ntouch PWN\n\"\ntouch PWN\n",
    ");touch PWN #",
    "}\";touch PWN;'$(touch PWN)",
    "\\';touch PWN;\\\";touch PWN\n",
    "\x01$(touch PWN)\x7f`touch PWN`",
]
SHELLS = [shell for name in ("dash", "bash", "sh") if (shell := shutil.which(name))]


def runs_what_it_is_given(script: str) -> bool:
    """Whether any shell takes a part of a value for a command."""
    for shell in SHELLS:
        with tempfile.TemporaryDirectory() as folder:
            command = [shell, "-c", script]
            subprocess.run(command, cwd=folder, capture_output=True, stdin=subprocess.DEVNULL, check=False, timeout=10)
            if (Path(folder) / "PWN").exists():
                return True
    return False


@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=14), st.sampled_from(PAYLOADS))
@settings(max_examples=150, deadline=None)
def test_no_script_that_is_accepted_runs_a_value(pieces: list[str], value: str) -> None:
    try:
        script = render_shell("".join(pieces), {"inputs": {"x": value}})
    except ExpressionFailed:
        return
    if "PWN" in script:
        assert not runs_what_it_is_given(script), script
