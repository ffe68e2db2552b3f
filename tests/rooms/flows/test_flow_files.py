"""A flow file is loaded, or everything that is wrong with it is said at once, each with its line and column."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman.errors import Finding, FlowError, FlowInvalid, FlowUnreadable
from pointsman.flows import FlowTask, build_run, load_flow
from pointsman.kernel import compose
from pointsman.lifecycles import SHIPPED

SOUND = """\
name: nightly
description: What happens at night
inputs:
  day: {type: string, description: Which day}
  limit: 10
  files: [a, b]
env: {LANG: C}
defaults:
  retries: 2
  backoff: {base: 1s, max: 10m}
tasks:
  fetch:
    command: [curl, -fsS, "https://example.org/${{ inputs.day }}"]
    outputs: stdout
    timeout: 1h30m
  load:
    needs: [fetch]
    foreach: tasks.fetch.outputs
    run: load ${{ item }} --limit "${{ inputs.limit }}"
    checks:
      - file: out/${{ index }}.csv
      - {glob: "out/*.csv", at_least: 2}
  report:
    needs: load
    when: inputs.limit > 5
    call: reports.nightly:write
    with: {parts: "${{ tasks.load.outputs }}", top: 5}
"""


def findings(text: str, file: str = "flow.yaml") -> list[Finding]:
    with pytest.raises(FlowInvalid) as caught:
        load_flow(text, file=file)
    return list(caught.value.findings)


def found(text: str) -> list[tuple[str, int, int]]:
    return [(finding.rule, finding.place.line, finding.place.column) for finding in findings(text)]


def with_task(lines: str, *, top: str = "") -> str:
    """A flow whose third task has these lines, from line 5 on."""
    body = "\n".join(f"    {line}" for line in lines.splitlines())
    return f"name: x\ntasks:\n  first: {{run: a}}\n  task:\n{body}\n{top}"


def test_a_sound_file_gives_a_flow(tmp_path: Path) -> None:
    file = tmp_path / "nightly.yaml"
    file.write_text(SOUND)
    flow = load_flow(file)
    assert flow == load_flow(str(file))
    assert flow.model_dump() == load_flow(SOUND).model_dump()
    assert flow.file == str(file)
    assert load_flow(SOUND).file is None
    assert list(flow.tasks) == ["fetch", "load", "report"]
    assert flow.inputs["limit"].type == "integer"
    assert flow.inputs["day"].required
    assert flow.task("fetch").timeout == 5400
    assert flow.task("fetch").retries == 2
    assert flow.task("report").payload()["with"] == {"parts": "${{ tasks.load.outputs }}", "top": 5}


TEN = """\
name: ten
lifecycle: standrd
inputs:
  count: {type: integer, default: many}
defaults: {retries: three}
tasks:
  fetch:
    comand: [curl, x]
    timeout: 5 minutes
  build:
    needs: [fecth]
    run: |
      set -e
      make ${{ inputs.cuont }}
  test:
    needs: build
    command: [echo, "${{ tasks.deploy.outputs }}"]
    checks: [{file: x, glob: y}]
  deploy:
    needs: [test, publish]
    run: deploy
  publish:
    needs: deploy
    approval: {by: ops, quorum: 2}
"""


def test_ten_different_errors_are_all_reported_in_their_places() -> None:
    assert found(TEN) == [
        ("lifecycle", 2, 12),
        ("input", 4, 35),
        ("structure", 5, 21),
        ("structure", 8, 5),
        ("structure", 9, 14),
        ("unknown-task", 11, 13),
        ("expression", 14, 12),
        ("expression", 17, 22),
        ("check", 18, 24),
        ("circle", 20, 19),
        ("action", 24, 5),
    ]
    said = "\n".join(f"{finding.message} {finding.advice}" for finding in findings(TEN))
    for word in (
        "standard?",
        "command?",
        "fetch?",
        "count?",
        "deploy needs publish needs deploy",
        "2 people have to approve, but `by` names only 1",
    ):
        assert word in said


@pytest.mark.parametrize(
    ("lines", "rule", "place", "words"),
    [
        ("needs: first", "action", (4, 3), "does nothing"),
        ("run: a\ncommand: [b]", "action", (6, 5), "beside `run`"),
        ("run: a\nwith: {a: 1}", "action", (6, 5), "belongs to `call`"),
        ("run: a\nmode: thread", "action", (6, 5), "belongs to `call`"),
        ("call: a.b:c\nmode: thread\nenv: {A: x}", "action", (7, 5), "no effect on a function in a thread"),
        ("call: a.b:c\nmode: thread\ncwd: x", "action", (7, 5), "no effect on a function in a thread"),
        ("call: a.b:c\nmode: thread\nbudget_usd: 1", "action", (7, 5), "no effect on a function in a thread"),
        ("command: []", "action", (5, 5), "is empty"),
        ("run: ''", "structure", (5, 11), "is empty"),
        ("run: [a]", "structure", (5, 10), "must be text"),
        ("command: ls", "structure", (5, 14), "must be a list"),
        ("call: module.function", "structure", (5, 11), "package.module:function"),
        ("run: a\nneeds: [first, first]", "needs", (6, 20), "twice"),
        ("run: a\nneeds: task", "circle", (6, 12), "needs itself"),
        ("run: a\nretries: -1", "structure", (6, 14), "at least 0"),
        ("run: a\nretries: true", "structure", (6, 14), "whole number"),
        ("run: a\ncritical: 'yes'", "structure", (6, 16), "true or false"),
        ("run: a\ntimeout: 0", "structure", (6, 14), "above zero"),
        ("run: a\ntimeout: 3 hours", "structure", (6, 14), "1h30m"),
        ("run: a\nbudget_usd: 0.0000001", "structure", (6, 17), "six decimal places"),
        ("run: a\nbudget_usd: a lot", "structure", (6, 17), "dollars"),
        ("run: a\nretry_on: [failure, oops]", "structure", (6, 25), "reason to retry"),
        ("run: a\nexpected_exit_codes: [0, 256]", "structure", (6, 30), "at most 255"),
        ("run: a\nbackoff: {base: 1s, factr: 2}", "structure", (6, 25), "factor?"),
        ("run: a\nbackoff: {factor: 0.5}", "structure", (6, 23), "at least 1"),
        ("run: a\noutputs: file", "structure", (6, 14), "outputs: stdout"),
        ("run: a\noutputs: {}", "structure", (6, 14), "outputs: stdout"),
        ("run: a\nchecks: [{}]", "check", (6, 14), "checks nothing"),
        ("run: a\nchecks: [{file: a, at_least: 2}]", "check", (6, 24), "belongs to `glob`"),
        ("run: a\nchecks: [{output: '('}]", "structure", (6, 24), "regular expression"),
        ("run: a\nchecks: [{json_schema: {file: a}}]", "structure", (6, 15), "has no `schema`"),
        ("run: a\nchecks: {file: a}", "structure", (6, 13), "must be a list"),
        ("run: a\nenv: {A=B: 1}", "env", (6, 11), "name for a variable"),
        ("run: a\nenv: {POINTSMAN_X: 1}", "env", (6, 11), "is reserved"),
        ("run: a\nforeach: 5", "structure", (6, 14), "must be a list"),
        ("run: a\nforeach: {a: 5}", "structure", (6, 14), "must be a list"),
        ("run: a\nitem: 5", "structure", (6, 5), "not a key"),
        ("run: a ${{ item }}", "expression", (5, 12), "only in a task with `foreach`"),
        ("run: a\nwhen: index == 1\nforeach: [1]", "expression", (6, 11), "does not exist yet"),
        ("run: a\nforeach: item", "expression", (6, 14), "does not exist yet"),
        ("run: a\nwhen: tasks.first.outputs", "expression", (6, 11), "Add `first` to the `needs` of task."),
        ("run: a\nwhen: tasks.task.outputs", "expression", (6, 11), "refers to itself"),
        ("run: a\nneeds: first\nwhen: tasks.first.output == 1", "expression", (7, 11), "outputs?"),
        ("run: a\nneeds: first\nwhen: len(tasks) > 1", "expression", (7, 11), "must be written out"),
        ("run: a\ncwd: ${{ run.dir }}", "expression", (6, 10), "run.id"),
        ("run: a ${{ x", "expression", (5, 12), "not closed"),
        ("run: echo `${{ run.id }}`", "expression", (5, 16), "Put it into `env`"),
        ("command: [a, '${{ inputs.x }}']", "expression", (5, 19), "no input 'x'"),
        ("call: a:b\nwith: {a: [{b: '${{ item }}'}]}", "expression", (6, 21), "foreach"),
        ("agent: {model: x}", "structure", (5, 12), "must be text"),
        ("agent: claude", "action", (5, 5), "nothing to do"),
        ("agent: claude\nprompt: a\nprompt_file: b", "action", (7, 5), "both `prompt` and `prompt_file`"),
        ("agent: aider\nprompt: a\nmax_turns: 3", "action", (7, 5), "aider has no such option"),
        ("agent: mycli\nprompt: a\nmax_turns: 3", "action", (7, 5), "mycli has no such option"),
        ("agent: claude\nprompt: a\npermissions: all", "structure", (7, 18), "plan"),
        ("agent: claude\nprompt: a\nmcp: 3", "structure", (7, 10), "servers by name"),
        ("agent: claude\nrun: a", "action", (6, 5), "run"),
        ("prompt: do it", "action", (5, 5), "agent"),
        ("approval: ok?\nrun: a", "action", (6, 5), "beside `approval`"),
        ("approval: ok?\nretries: 2", "action", (6, 5), "no effect on an approval"),
        ("approval: ok?\nwhen: inputs.x", "action", (6, 5), "no effect on an approval"),
        ("approval: {on_expire: skip}", "action", (5, 5), "without `expires`"),
        ("approval: ''", "action", (5, 5), "prompt of its approval is empty"),
        ("approval: {prompt: ' '}", "action", (5, 5), "prompt of its approval is empty"),
        ("approval: {by: []}", "action", (5, 5), "`by` names nobody"),
        ("approval: {quorum: 0}", "structure", (5, 24), "at least 1"),
        ("approval: {prompt: '${{ inputs.x }}'}", "expression", (5, 25), "no input 'x'"),
        ("approval: {who: ada}", "structure", (5, 16), "prompt, by, quorum, self_approval, expires, on_expire"),
        ("run: a\nreview: maybe", "structure", (6, 13), "true or false"),
        ("run: a\nexpects: {schema: {type: 5}}", "expects", (6, 23), "schema is invalid at $.type"),
        ("run: a\nexpects: {choices: [a], default: b}", "expects", (6, 14), "'b' is not one of the choices"),
        ("run: a\nwhen: inputs.n >", "expression", (6, 11), "Something is missing after `>`."),
        ("run: a\nwhen: tasks.import.outputs == 1", "expression", (6, 11), 'as in `tasks["import"]`'),
        ("run: a\ndepends_on: [first]", "structure", (6, 5), "needs?"),
        ("script: make", "structure", (5, 5), "run?"),
        ("run: a\nif: inputs.x", "structure", (6, 5), "when?"),
        ("run: a\nzzz: 1", "structure", (6, 5), "Known: "),
        ("command: [a]\nshell: bash", "action", (6, 5), "belongs to `run`"),
        ("run: a\nshell: fish", "structure", (6, 12), "bash"),
        # constants: what they will come to is known already
        ("run: a ${{ range(10001) }}", "expression", (5, 12), "at most 10,000 numbers"),
        ("run: a\nforeach: range(10001)", "expression", (6, 14), "at most 10,000 numbers"),
        ("run: a\nforeach: {x: 'range(101)', y: 'range(100)'}", "expression", (6, 14), "10,100 items"),
        ("run: a\nforeach: '5'", "expression", (6, 15), "needs a list"),
        ("run: a\nworktree: 3", "structure", (6, 15), "Write `worktree: true`"),
        ("run: a\nworktree: {merge: rebase}", "structure", (6, 23), "rebase"),
        ("run: a\nworktree: {branch: a..b}", "worktree", (6, 24), "not a name that git accepts"),
        ("run: a\nforeach: [1, 2]\nworktree: {branch: b}", "worktree", (7, 24), "the same branch for all of them"),
        ("call: a:b\nmode: thread\nworktree: true", "action", (7, 5), "no effect on a function in a thread"),
        ("merges: a", "structure", (5, 5), "merges"),
        ("run: a\nneeds: first\nwhen: tasks.first.skipped or 1 + 'a'", "expression", (7, 11), "does not work with 1 and 'a'"),
        ("call: os:nosuch", "action", (5, 11), "os has no 'nosuch'"),
        ("run: a\non_open_circuit: fail", "tool", (6, 5), "no effect without `tool`"),
        ("call: os:getcmd", "action", (5, 11), "Did you mean getcwd"),
        ("call: os:sep", "action", (5, 11), "os.sep is not a function"),
        ("call: os.nosuch:f", "action", (5, 11), "no module 'os.nosuch'"),
        ("run: a\nchecks: [{call: 'os:nosuch'}]", "check", (6, 22), "os has no 'nosuch'"),
        ("run: a\nchecks: [{json_schema: {file: b, schema: {type: strng}}}]", "check", (6, 46), "invalid at $.type: 'strng'"),
    ],
)
def test_each_mistake_in_a_task_has_its_place_and_advice(lines: str, rule: str, place: tuple[int, int], words: str) -> None:
    all_found = findings(with_task(lines))
    assert (rule, *place) in [(each.rule, each.place.line, each.place.column) for each in all_found]
    assert words in " ".join(f"{each.message} {each.advice}" for each in all_found)


def test_an_approval_needs_no_prompt() -> None:
    assert load_flow(with_task("approval: {}")).tasks["task"].kind == "approval"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", [("yaml", 1, 1)]),
        ("# nothing\n", [("yaml", 1, 1)]),
        ("- a\n- b\n", [("structure", 1, 1)]),
        ("just text\n", [("structure", 1, 1)]),
        ("name: x\n", [("no-tasks", 1, 1)]),
        ("name: x\ntasks:\n", [("structure", 2, 1)]),
        ("name: x\ntasks: {}\n", [("no-tasks", 2, 8)]),
        ("name: x\ntasks: [a]\n", [("structure", 2, 8)]),
        ("tasks: {a: {run: b}}\n", [("structure", 1, 1)]),
        ("name: [x]\ntasks: {a: {run: b}}\n", [("structure", 1, 7)]),
        ("name: x\nname: y\ntasks: {a: {run: b}}\n", [("structure", 2, 1)]),
        ("name: x\ntasks: {a: {run: b}, a: {run: c}}\n", [("structure", 2, 22)]),
        ("name: x\ntasks:\n\ta: {run: b}\n", [("yaml", 3, 1)]),
        ("name: x\ntasks: {a: {run: b\n", [("yaml", 3, 1)]),
        ("name: x\n---\nname: y\n", [("yaml", 2, 1)]),
        ("name: x\ntasks: {'a[0]': {run: c}}\n", [("name", 2, 10)]),
        ("name: -x\ntasks: {-a: {run: c}}\n", [("name", 1, 7), ("name", 2, 9)]),
        ("name: x\ntasks: {? 'a\\nb' : {run: c}}\n".replace("'", '"'), [("name", 2, 12)]),
        ("name: x\ntasks: {a: {run: b}}\nsteps: {}\n", [("structure", 3, 1)]),
        ("name: x\nordered: true\ntasks:\n  a: {run: b}\n  c: {run: d, needs: a}\n", [("ordered", 5, 15)]),
        ("name: x\nlifecycle: approval\ntasks: {a: {run: b, foreach: [1]}}\n", [("foreach", 3, 21)]),
        ("name: x\nworktree: true\ntasks: {a: {run: b, worktree: true}}\n", [("worktree", 3, 21)]),
        ("name: x\nnotify: [{on: run_ended}]\ntasks: {a: {run: b}}\n", [("notify", 2, 10)]),
        ("name: x\nnotify: [{on: breaker_opened, command: [a]}]\ntasks: {a: {run: b}}\n", [("structure", 2, 15)]),
        ("name: x\nnotify: [{on: [breaker_opened], command: [a]}]\ntasks: {a: {run: b}}\n", [("structure", 2, 16)]),
        ("name: x\nnotify: [{on: [], command: [a]}]\ntasks: {a: {run: b}}\n", [("notify", 2, 15)]),
        ("name: x\nnotify: [{command: [a]}]\ntasks: {a: {run: b}}\n", [("notify", 2, 10)]),
        ("name: x\nnotify: [{on: run_ended, command: []}]\ntasks: {a: {run: b}}\n", [("notify", 2, 35)]),
        ("name: x\nnotify: [{on: run_ended, webhook: 'file:///a'}]\ntasks: {a: {run: b}}\n", [("notify", 2, 36)]),
        ("name: x\nnotify: [{on: run_ended, command: [a], webhook: 'http://b'}]\ntasks: {a: {run: b}}\n", [("notify", 2, 10)]),
        (
            "name: x\nnotify: [{on: run_ended, command: [a], allow_private: true}]\ntasks: {a: {run: b}}\n",
            [("structure", 2, 40)],
        ),
        (
            "name: x\nnotify: [&n {name: a, on: run_ended, command: [a]}, *n]\ntasks: {a: {run: b}}\n",
            [("notify", 2, 20)],
        ),
        ("name: x\nworktree: {branch: -x}\ntasks: {a: {run: b, worktree: false}}\n", [("worktree", 2, 20)]),
        ("name: x\nlifecycle: ./nowhere.yaml\ntasks: {a: {run: b}}\n", [("lifecycle", 2, 12)]),
        ("name: x\ninputs: {a b: 1}\ntasks: {a: {run: b}}\n", [("name", 2, 10)]),
        ("name: x\ninputs: {v: {type: string, default: 1.10}}\ntasks: {a: {run: b}}\n", [("input", 2, 37)]),
        ("name: x\ninputs: {v: {default: c, choices: [a, 1]}}\ntasks: {a: {run: b}}\n", [("input", 2, 23), ("input", 2, 39)]),
        ("name: x\ndefaults: {needs: a}\ntasks: {a: {run: b}}\n", [("structure", 2, 12)]),
        ("name: x\ndefaults: {env: {A: '${{ tasks.a.outputs }}'}}\ntasks: {a: {run: b}}\n", [("expression", 2, 22)]),
        ("name: x\nenv: {A: '${{ inputs.b }}'}\ntasks: {a: {run: b}}\n", [("expression", 2, 11)]),
        ("name: x\ntasks: {a: {run: !!binary aGk=}}\n", [("structure", 2, 18), ("structure", 2, 18)]),
        ("name: x\ntasks: {a: {call: m:f, with: {x: .nan}}}\n", [("too-large", 2, 9)]),
        ("name: x\ntasks: {a: {run: b}, ? [c] : d}\n", [("structure", 2, 24)]),
        ('name: "a\\nb"\ntasks: {a: {run: b}}\n', [("name", 1, 8)]),
        ('name: x\ntasks: {a: {run: "a\\0b"}}\n', [("structure", 2, 19)]),
    ],
)
def test_each_mistake_in_a_file_has_its_place(text: str, expected: list[tuple[str, int, int]]) -> None:
    if "\n" not in text:
        text += "\n"
    assert sorted(found(text)) == sorted(expected)


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("name: x\ntasks:\n  a:\n  run: b\n", "indented further than `a:`"),
        ("name: x\ntasks:\n  a:\n  run: b\n", "`run` is a key of a task"),
        ("name: x\ntasks:\na:\n  run: b\n", "indented further than `tasks:`"),
        ("name: x\ntasks: {a: {run: b}}\n---\nname: y\n", "Keep one flow per file"),
    ],
)
def test_what_stands_in_the_wrong_place_is_told_where_it_belongs(text: str, advice: str) -> None:
    assert advice in " ".join(each.advice for each in findings(text))


def test_every_circle_is_named_task_by_task() -> None:
    text = "name: x\ntasks:\n" + "".join(
        f"  {a}: {{run: x, needs: [{b}]}}\n" for a, b in map(tuple, ("ab", "bc", "ca", "de", "ed"))
    )
    assert [finding.message for finding in findings(text)] == [
        "These tasks wait for each other: a needs b needs c needs a.",
        "These tasks wait for each other: d needs e needs d.",
    ]


def test_a_misspelt_key_is_taken_for_what_was_meant_so_that_nothing_else_is_said() -> None:
    assert found(with_task("rum: make\nneds: first\nwhen: tasks.first.outputs")) == [("structure", 5, 5), ("structure", 6, 5)]


def test_a_broken_task_can_still_be_needed() -> None:
    text = "name: x\ntasks:\n  a: 5\n  b: {run: x, needs: a, when: tasks.a.outputs}\n"
    assert found(text) == [("structure", 3, 6)]


def test_text_is_taken_as_it_is_written() -> None:
    flow = load_flow(
        "name: 1.10\nenv: {V: 1.10, T: yes}\ntasks:\n  a: {run: true}\n  b: {command: [pip, 3.10, true, 0x1F], needs: a}\n"
    )
    assert flow.name == "1.10"
    assert flow.env == {"V": "1.10", "T": "yes"}
    assert flow.tasks["a"].payload() == {"run": "true"}
    assert flow.tasks["b"].payload()["command"] == ["pip", "3.10", "true", "0x1F"]


def test_data_is_taken_for_what_it_is() -> None:
    data = "{run: 5, env: {a: 1.5}, command: true, b: 0x1F, c: ~, d: 2026-01-02, e: '5'}"
    assert load_flow(f"name: x\ntasks:\n  a:\n    call: m:f\n    with: {data}\n").tasks["a"].payload()["with"] == {
        "run": 5,
        "env": {"a": 1.5},
        "command": True,
        "b": 31,
        "c": None,
        "d": "2026-01-02",
        "e": "5",
    }


def test_tasks_and_inputs_may_be_called_like_keys() -> None:
    flow = load_flow("name: x\ninputs: {command: 5, env: true}\ntasks:\n  run: {run: a, retries: 3}\n  with: {command: [b]}\n")
    assert flow.inputs["command"].default == 5
    assert flow.tasks["run"].retries == 3


def test_anchors_and_merges_work_and_have_a_place_of_their_own() -> None:
    tasks = "  a: {<<: *common, run: b}\n  c: {<<: *common, run: d, retries: 1}\n"
    flow = load_flow(f"name: x\nx-common: &common {{retries: 3, timeout: 5s}}\ntasks:\n{tasks}")
    assert (flow.tasks["a"].retries, flow.tasks["a"].timeout, flow.tasks["c"].retries) == (3, 5, 1)


def test_aliases_cannot_blow_up_a_file() -> None:
    lines = ["name: x", "x-0: &a0 [l, o, l]"]
    lines += [f"x-{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    assert ("too-large") in {rule for rule, _, _ in found("\n".join([*lines, "tasks: {a: {run: b}}", ""]))}
    assert findings("name: x\ntasks: &t {a: {run: b}, c: *t}\n")
    assert findings("name: &n [*n]\n")


MANY = 1_000


@pytest.mark.parametrize(
    ("anchored", "used"),
    [
        ("{" + ", ".join(f"k{n}: {n}" for n in range(MANY)) + "}", "{<<: [" + ", ".join(["*a"] * MANY) + "]}"),
        ("{" + ", ".join(f"k{n}: {n}" for n in range(MANY)) + "}", "[" + ", ".join(["{<<: *a}"] * MANY) + "]"),
        ("{" + ", ".join(["k: 1"] * MANY) + "}", "[" + ", ".join(["*a"] * MANY) + "]"),
        ("[" + ", ".join(["1"] * MANY) + "]", "{" + ", ".join(["<<: *a"] * MANY) + "}"),
    ],
    ids=["merged into one", "merged into many", "the same key again and again", "lists that cannot be merged"],
)
def test_merges_cannot_blow_up_a_file(anchored: str, used: str) -> None:
    reported = findings(f"name: x\nx-a: &a {anchored}\nx-b: {used}\ntasks: {{a: {{run: b}}}}\n")
    assert "too-large" in {finding.rule for finding in reported}
    assert len(reported) < 2 * MANY


def test_the_tail_of_a_file_has_right_lines_whatever_ends_its_lines() -> None:
    for ending in ("\n", "\r\n", "\r"):
        text = "\ufeff" + with_task("run: a\ntimout: 5s").replace("\n", ending)
        with pytest.raises(FlowInvalid) as caught:
            load_flow(text, file="x.yaml")
        assert [str(finding.place) for finding in caught.value.findings] == ["x.yaml:6:5"]


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"name: caf\xe9\n")
    for path, words in (("none.yaml", "No such file"), ("", "Is a directory"), ("latin.yaml", "is not UTF-8")):
        with pytest.raises(FlowUnreadable, match=words):
            load_flow(tmp_path / path)
    with pytest.raises(FlowUnreadable, match="null byte"):
        load_flow("a\0b")


def test_a_lifecycle_of_ones_own_is_found_beside_the_flow(tmp_path: Path) -> None:
    from pointsman import lifecycles

    own = (
        Path(lifecycles.__file__).with_name("standard.yaml").read_text("utf-8").replace("lifecycle: standard", "lifecycle: own")
    )
    (tmp_path / "own.yaml").write_text(own)
    (tmp_path / "flow.yaml").write_text("name: x\nlifecycle: own.yaml\ntasks: {a: {run: b, foreach: [1]}}\n")
    assert load_flow(tmp_path / "flow.yaml").lifecycle == "own.yaml"
    (tmp_path / "own.yaml").write_text(own.replace("RUNNING", "RUNING", 1))
    with pytest.raises(FlowInvalid, match="is invalid"):
        load_flow(tmp_path / "flow.yaml")


# ── whatever is in the file ──


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_a_file_that_was_damaged_gives_findings_inside_it_and_never_a_traceback(data: st.DataObject) -> None:
    text = SOUND
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        cut = data.draw(st.integers(0, 12))
        text = text[:at] + data.draw(st.text(alphabet="a:-[]{}#&*!|>'\"%@`,? \n\t0.${}", max_size=6)) + text[at + cut :]
    findings: tuple[Finding, ...] = ()
    try:
        load_flow(text, file="f.yaml")
    except FlowInvalid as invalid:
        findings = invalid.findings
    lines = re.split(r"\r\n|\r|\n", text)
    for finding in findings:
        assert 1 <= finding.place.line <= len(lines) + 1
        assert finding.message.endswith((".", "?"))
        assert finding.advice


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["${{ item }}", "${{", "5s"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from(
    [
        "name",
        "lifecycle",
        "ordered",
        "inputs",
        "env",
        "defaults",
        "timeout",
        "retries",
        "budget_usd",
        "tasks",
        "description",
        "zzz",
    ]
)
TASK_KEYS = st.sampled_from([*FlowTask.model_fields, "with", "x"])
TASKS = st.dictionaries(st.sampled_from("abc"), st.dictionaries(TASK_KEYS, VALUES, max_size=5), max_size=3)


@given(st.dictionaries(KEYS, VALUES, max_size=5), TASKS)
@settings(max_examples=200, deadline=None)
def test_any_value_under_any_key_is_taken_or_reported(top: dict[str, object], tasks: dict[str, object]) -> None:
    import json

    text = json.dumps({**top, "tasks": tasks}) + "\n"
    with suppress(FlowError):
        load_flow(text, file="f.yaml")


MODULE = """
from elsewhere import borrowed
if borrowed:
    def sometimes(): ...
class Tool:
    def use(self): ...
def define():
    global late
"""


def test_functions_of_a_project_are_looked_up_without_running_its_code(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MODULE)
    (tmp_path / "open.py").write_text("from elsewhere import *\n")
    (tmp_path / "broken.py").write_text("def (\n")
    there = ("mine:borrowed", "mine:sometimes", "mine:Tool.use", "mine:late", "open:anything", "broken:f", "nowhere:f")
    for function in there:
        load_flow(f"name: x\ntasks: {{a: {{call: '{function}'}}}}\n", file=str(tmp_path / "flow.yaml"))
    (finding,) = findings("name: x\ntasks: {a: {call: 'mine:use'}}\n", file=str(tmp_path / "flow.yaml"))
    assert (finding.rule, finding.message) == ("action", "mine has no 'use'.")


def test_names_of_tasks_follow_the_rule_for_names_of_flows() -> None:
    for name in ("nightly", "Prüfung 1", "a.b-c_d", "build (linux)", "x" * 100):
        assert load_flow(f'name: "{name}"\ntasks: {{"{name}": {{run: c}}}}\n').tasks.keys() == {name}
    for name in ("x" * 101, " a", "a ", "[a]", ".a", "ü" * 100):
        assert [each.rule for each in findings(f'name: "{name}"\ntasks: {{"{name}": {{run: c}}}}\n')] == ["name", "name"]


def test_no_task_may_spend_more_than_the_whole_flow() -> None:
    head = "name: poor\nbudget_usd: 0.3\n"
    tasks = "tasks:\n  a: {run: x}\n  b: {run: x, budget_usd: 0.5}\n  c: {run: x, budget_usd: 0.3}\n"
    with pytest.raises(FlowInvalid) as own:
        load_flow(head + tasks)
    (finding,) = own.value.findings
    assert (finding.rule, finding.place.line, finding.place.column) == ("budget", 5, 27)
    assert finding.message == "Task b has a budget of 0.5 USD, more than the whole flow: it could never start."
    with pytest.raises(FlowInvalid) as inherited:
        load_flow(f"{head}defaults: {{budget_usd: 1}}\n{tasks}".replace("0.5", "0.2"))
    (finding,) = inherited.value.findings
    assert (finding.place.line, finding.place.column) == (3, 24)


def test_a_file_that_is_too_large_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    file = tmp_path / "flow.yaml"
    with file.open("wb") as opened:
        opened.truncate(1 << 40)  # a sparse file: reading it all would take minutes
    with pytest.raises(FlowUnreadable, match="larger than 1 MiB"):
        load_flow(file)
    (finding,) = findings("name: x\n" + "# comment\n" * 200_000)
    assert "more than 1,048,576 characters" in finding.message


def test_reading_many_values_ends_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compose, "MAX_VALUES", 1000)
    (finding,) = findings("name: x\nx-a: [" + "1," * 2000 + "]\n")
    assert "more than 1,000 values" in finding.message


@pytest.mark.parametrize(
    ("lifecycle", "lines", "rule", "words"),
    [
        ("pipeline", "approval: ok?", "approval", "pipeline.step has no gates"),
        ("agent", "approval: ok?", "approval", "agent.task has no gates"),
        ("approval", "approval: {quorum: 2}", "approval", "`quorum` has no effect: approval.step passes a gate"),
        ("approval", "approval: {expires: 1h, on_expire: reject}", "approval", "does not take `reject`"),
        ("approval", "run: a\nreview: true", "review", "Tasks of the lifecycle approval are done without a review."),
        ("orchestrated", "run: a\nexpects: {choices: [b]}", "expects", "cannot ask questions"),
        ("pipeline", "run: a\nforeach: [1]", "foreach", "cannot have subtasks"),
        ("agent", "run: a\nreview: false", "review", "are always reviewed"),
        ("agent", "run: a\nretries: 1", "retries", "are retried by people only"),
        ("agent", "run: a\nreclaim_after: 1h", "reclaim", "no other worker takes an attempt over"),
        ("pipeline", "run: a\nreclaim_after: 1h", "reclaim", "fail when their worker is lost"),
        ("approval", "run: a\ncritical: false", "critical", "all of them are critical"),
        ("agent", "run: a\ncritical: false", "critical", "cannot be passed over"),
    ],
)
def test_what_a_lifecycle_does_not_have_is_refused_with_the_reason(lifecycle: str, lines: str, rule: str, words: str) -> None:
    (finding,) = findings(with_task(lines, top=f"lifecycle: {lifecycle}\n"))
    assert (finding.rule, words in finding.message) == (rule, True), finding


@pytest.mark.parametrize(("keys", "key"), [("quorum: 2", "quorum"), ("expires: 1h, on_expire: reject", "on_expire")])
def test_the_advice_names_the_key_of_an_approval_that_its_lifecycle_does_not_have(keys: str, key: str) -> None:
    (finding,) = findings(with_task(f"approval: {{{keys}}}", top="lifecycle: approval\n"))
    assert finding.advice == f"Or remove `{key}`."


@pytest.mark.parametrize(
    ("keys", "rule", "lifecycles"),
    [
        ("worker_count: 2", "job", {"supervised"}),
        ("task_description: Count the words", "job", {"supervised"}),
        ("workspace: ws_docs", "job", {"supervised"}),
        ("retries: 2", "retries", {"standard", "pipeline", "agent"}),
        ("checks: [{file: a}]", "check", {"standard", "orchestrated", "agent"}),
        ("start: manual", "start", {"standard", "supervised", "orchestrated", "agent"}),
        ("defaults: {retries: 2}", "retries", {*SHIPPED} - {"agent"}),
        ("defaults: {max_attempts: 2}", "", {*SHIPPED}),
        ("defaults: {reclaim_after: 1h}", "reclaim", {*SHIPPED} - {"pipeline", "agent"}),
        ("defaults: {critical: false}", "critical", {*SHIPPED} - {"approval", "agent"}),
    ],
)
def test_a_key_of_the_flow_has_one_meaning_or_is_refused(keys: str, rule: str, lifecycles: set[str]) -> None:
    for lifecycle in SHIPPED:
        text = f"name: x\nlifecycle: {lifecycle}\n{keys}\ntasks: {{a: {{run: b}}}}\n"
        if lifecycle in lifecycles:
            load_flow(text)
        else:
            assert [each[:2] for each in found(text)] == [(rule, 3)], lifecycle


def test_what_a_job_is_to_do_may_name_its_inputs_only() -> None:
    head = "name: x\nlifecycle: supervised\ninputs: {file: a}\n"
    for text, words in (
        ("${{ run.id }}", "does not exist yet"),
        ("${{ tasks.a.outputs }}", "Refer to `inputs` and `run` only"),
    ):
        (finding,) = findings(f"{head}task_description: '{text}'\ntasks: {{a: {{run: b}}}}\n")
        assert (finding.place.line, words in f"{finding.message} {finding.advice}") == (4, True), finding
    flow = load_flow(f"{head}task_description: 'Read ${{{{ inputs.file }}}}'\ntasks: {{a: {{run: b}}}}\n")
    assert build_run(flow, {"file": "b.txt"}, directory="/").payload["task_description"] == "Read b.txt"


@pytest.mark.parametrize(("lifecycle", "is_possible"), [("agent", True), ("approval", False), ("pipeline", False)])
def test_a_person_starts_tasks_that_can_wait_for_that(lifecycle: str, *, is_possible: bool) -> None:
    flow = f"name: x\nlifecycle: {lifecycle}\nstart: manual\ntasks: {{a: {{run: b}}}}\n"
    if is_possible:
        assert load_flow(flow).start == "manual"
    else:
        assert found(flow) == [("start", 3, 1)]
