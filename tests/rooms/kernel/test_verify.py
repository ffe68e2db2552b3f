"""Each rule catches what breaks it, in the right place, and nothing else.

Every file in `broken/` breaks one rule, once: `<rule>.yaml`, or `<rule>.<variant>.yaml` where a rule can be broken in
several ways. The file itself says what is expected of its only finding, and how to mend it:

    - WORKING -> BADD : overspend  # <- column 20: BADD       the place, and what the message must name
    # mended: - WORKING -> BAD : overspend                    takes the place of the line above; empty removes it
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rows import each_row

import pointsman.kernel
from pointsman.errors import Finding, LifecycleInvalid
from pointsman.kernel.machine import Kind
from pointsman.kernel.read import read_lifecycle
from pointsman.kernel.verify import verify
from pointsman.lifecycles import load_lifecycle
from pointsman.lifecycles.vocabulary import VOCABULARY

BROKEN = sorted(Path(__file__).with_name("broken").glob("*.yaml"))
KERNEL = Path(pointsman.kernel.__file__).parent
MARK = re.compile(r" # <- (?:column (?P<column>\d+)|any column): (?P<culprit>.+)$")
MENDED = re.compile(r"(?P<indent> *)# mended: ?(?P<line>.*)")

SOUND = """\
lifecycle: mine
machines:
  task:
    kind: task
    states:
      WAITING: {phase: queued, initial: true}
      WORKING: {phase: active}
      GOOD: {phase: done, outcome: success}
      BAD: {phase: done, outcome: failure}
    transitions:
      - WAITING -> WORKING : claim
      - WORKING -> GOOD : complete
      - WORKING -> BAD : fail
      - WAITING, WORKING -> BAD : cancel
    fallbacks:
      expire: fail
      lease_lost: fail
"""


def findings_in(path: Path) -> tuple[Finding, ...]:
    with pytest.raises(LifecycleInvalid) as caught:
        load_lifecycle(path)
    return caught.value.findings


findings_in_broken = cache(findings_in)
"""The broken files are asked about more than once, and never change."""


def findings_of(text: str, tmp_path: Path) -> tuple[Finding, ...]:
    path = tmp_path / "mine.yaml"
    path.write_text(text, "utf-8")
    return findings_in(path)


def altered(*changes: tuple[str, str]) -> str:
    """The sound lifecycle with something in it replaced."""
    text = SOUND
    for old, new in changes:
        assert text.count(old) == 1, f"'{old}' must stand once in the sound lifecycle"
        text = text.replace(old, new)
    return text


def mend(text: str) -> str:
    """Do what the `# mended:` comments of a broken file say."""
    lines: list[str] = []
    mending = False
    for line in text.splitlines():
        match = MENDED.fullmatch(line)
        if not match:
            lines.append(line)
        else:
            if not mending:
                lines.pop()
            if match["line"]:
                lines.append(match["indent"] + match["line"])
        mending = bool(match)
    return "\n".join(lines) + "\n"


def place_of(text: str, word: str) -> tuple[int, int]:
    """Line and column of the only occurrence of a word."""
    before, found, after = text.partition(word)
    assert found
    assert word not in after
    return before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1


# ── one rule, one file ──


@each_row("path", BROKEN)
def test_a_broken_rule_yields_one_finding_in_its_place(path: Path) -> None:
    marks = [(number, MARK.search(line)) for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1)]
    [(line, mark)] = [(number, mark) for number, mark in marks if mark]
    findings = findings_in_broken(path)
    assert [finding.rule for finding in findings] == [path.name.partition(".")[0]]
    place = findings[0].place
    assert (place.file, place.line) == (str(path), line)
    assert mark["column"] is None or place.column == int(mark["column"])


@each_row("path", BROKEN)
def test_a_finding_names_the_culprit_and_says_what_to_do(path: Path) -> None:
    [mark] = [mark for line in path.read_text("utf-8").splitlines() if (mark := MARK.search(line))]
    for finding in findings_in_broken(path)[:1]:
        assert mark["culprit"] in finding.message
        assert re.search(r"\w.*[.?]$", finding.message), "a message is a sentence"
        assert re.search(r"\w.*[.?]$", finding.advice), "advice is a sentence"
        assert finding.advice != finding.message


@each_row("path", BROKEN)
def test_mending_the_fault_makes_the_file_load(path: Path, tmp_path: Path) -> None:
    text = path.read_text("utf-8")
    mended = tmp_path / path.name
    mended.write_text(mend(text), "utf-8")
    assert mended.read_text("utf-8") != text
    load_lifecycle(mended)


def test_every_rule_has_a_lifecycle_that_breaks_it() -> None:
    assert {path.name.partition(".")[0] for path in BROKEN} == rules_in_the_source()


def test_every_rule_that_was_asked_for_exists() -> None:
    asked_for = {
        "unknown-state",
        "duplicate-state",
        "no-initial-state",
        "several-initial-states",
        "unreachable-state",
        "dead-end",
        "ambiguous-transition",
        "automatic-cycle",
        "unknown-guard",
        "unknown-effect",
        "uncovered-signal",
        "unlosable-lease",
        "sealed-exit",
        "vain-binding",
        "vain-overstay",
        "restless-end",
        "contradictory-guards",
        "shadowed-transition",
        "taken-name",
    }
    assert asked_for <= rules_in_the_source()


@cache
def rules_in_the_source() -> frozenset[str]:
    return frozenset(find_rules())


def find_rules() -> Iterator[str]:
    """The name of every rule: what `Finding(…)` and `report(…)` get first, anywhere in the kernel."""
    trees = [ast.parse(file.read_text("utf-8")) for file in sorted(KERNEL.rglob("*.py"))]
    functions = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    for function in functions:
        parameters = [argument.arg for argument in function.args.args]
        for call in calls_in(function, "Finding", "report"):
            match call.args[0]:
                case ast.Constant(value=str(rule)):
                    yield rule
                case ast.JoinedStr(values=[ast.Constant(value=str(prefix)), ast.FormattedValue(value=ast.Name(id=parameter))]):
                    for caller in functions:
                        for outer in calls_in(caller, function.name):
                            yield prefix + ast.literal_eval(outer.args[parameters.index(parameter)])
                case ast.Name(id=parameter) if function.name == "report" and parameter in parameters:
                    pass  # it hands on what its callers say
                case other:
                    pytest.fail(f"{function.name} names its rule in a way that this test cannot read: {ast.unparse(other)}")


def calls_in(function: ast.FunctionDef, *names: str) -> Iterator[ast.Call]:
    for node in ast.walk(function):
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)
            if called in names:
                yield node


# ── all at once ──

MANY_FAULTS = """\
lifecycle: mine
versoin: 2 # <- structure
machines:
  task:
    kind: task
    states:
      WAITING: {phase: queued, initial: true}
      WORKING: {phase: active, needs: [wroker]} # <- unknown-need
      PAUSED: {phase: held, initial: true} # <- several-initial-states never-ready
      LOST: {phase: held} # <- unreachable-state dead-end
      GOOD: {phase: done, sealed: true} # <- outcome
      BAD: {phase: done, outcome: failure}
      BAD: {phase: done, outcome: failure} # <- duplicate-state
    transitions:
      - WAITING -> WORKING : claim
      - WORKING -> GOOD : complete
      - WORKING -> BAD : complete # <- ambiguous-transition
      - WORKING -> BAD : fail
      - WORKING -> BAD : ask [retris_left] # <- unknown-guard
      - WORKING -> BADD : overspend # <- unknown-state
      - PAUSED -> WAITING : wake_up # <- unbound-trigger
      - GOOD -> WAITING : reset # <- sealed-exit
      - BAD -> WAITING : automatic again [due, not due] # <- restless-end contradictory-guards
      - WAITING, WORKING -> BAD : cancel / record_errors # <- unknown-effect
    signals:
      by_name: [wake] # <- unknown-trigger
    fallbacks:
      anser: fail # <- unknown-signal
      expire: fail
      lease_lost: fail
      retry: resume # <- fallback-cycle
      resume: retry
      accept: approve # <- vain-binding
  run: # <- no-initial-state uncovered-signal uncovered-signal uncovered-signal
    kind: run
    states:
      HERE: {phase: held}
      GONE: {phase: done, outcome: canceled}
    transitions:
      - HERE -> GONE : cancel
      - HERE -> HERE : automatic again [due] # <- automatic-cycle
  second_run: # <- duplicate-kind
    kind: run
    states:
      HERE: {phase: held, initial: true}
      GONE: {phase: done, outcome: canceled, longest_stay: soon} # <- structure
    transitions:
      - HERE => GONE : cancel # <- syntax
  breaker:
    same_as: standard.braker # <- unknown-machine
"""


def test_a_misspelt_state_does_not_look_unreachable_as_well(tmp_path: Path) -> None:
    """Its nearest name counts for the graph, so that one slip is one finding."""
    text = (KERNEL.parent / "lifecycles" / "supervised.yaml").read_text("utf-8")
    text = text.replace("lifecycle: supervised", "lifecycle: mine").replace(
        "-> RUNNING   : allocate", "-> RUNING    : allocate"
    )
    assert [finding.rule for finding in findings_of(text, tmp_path)] == ["unknown-state"]


def test_a_claim_that_asks_for_more_than_a_lost_lease_does_not_replace_losing_it(tmp_path: Path) -> None:
    text = (KERNEL.parent / "lifecycles" / "approval.yaml").read_text("utf-8").replace("lifecycle: approval", "lifecycle: mine")
    text = text.replace("reclaim [lease_expired]", "reclaim [lease_expired, attempts_left]")
    assert [finding.rule for finding in findings_of(text, tmp_path)] == ["unlosable-lease"]


def test_all_findings_are_reported_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    expected = [
        (number, rule)
        for number, line in enumerate(MANY_FAULTS.splitlines(), start=1)
        for rule in line.partition(" # <- ")[2].split()
    ]
    findings = findings_of(MANY_FAULTS, tmp_path)
    assert sorted((finding.place.line, finding.rule) for finding in findings) == sorted(expected)
    places = [(finding.place.line, finding.place.column) for finding in findings]
    assert places == sorted(places)


def test_the_error_shows_every_finding_with_its_place_and_advice(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(altered((": complete", ": complete [is_gat]"), ("active}", "active, needs: [wroker]}")))
    with pytest.raises(LifecycleInvalid) as caught:
        load_lifecycle(path)
    assert str(caught.value) == (
        f"{path}:7:40: There is no need named wroker. [unknown-need]\n    Did you mean worker?\n"
        f"{path}:12:37: There is no guard named is_gat. [unknown-guard]\n    Did you mean is_gate?"
    )


def test_the_words_of_a_machine_are_checked_even_if_its_kind_is_misspelt(tmp_path: Path) -> None:
    text = altered(("kind: task", "kind: taks"), (": complete", ": complete [retris_left]"))
    assert [finding.rule for finding in findings_of(text, tmp_path)] == ["structure", "unknown-guard"]


def test_a_line_with_several_sources_names_its_fault_once(tmp_path: Path) -> None:
    text = altered(("BAD : cancel", "BADD : cancel [retris_left] / record_errors"))
    rules = [finding.rule for finding in findings_of(text, tmp_path)]
    assert [rule for rule in rules if rule.startswith("unknown")] == ["unknown-state", "unknown-guard", "unknown-effect"]


@each_row(
    ("right", "wrong"),
    [
        ("lifecycle: mine", "lifecycle:"),
        ("lifecycle: mine", "lifecycle: mine\nversion:"),
        ("lifecycle: mine", "lifecycle: mine\ntitle:"),
        ("  task:\n", "  run:\n  task:\n"),
        ("kind: task", "kind:"),
        ("WORKING: {phase: active}", "WORKING:"),
        ("phase: active", "phase: "),
        ("phase: active", "phase: active, needs: "),
        ("phase: active", "phase: active, longest_stay: "),
        ("phase: active", "phase: active, sealed: "),
        ("outcome: success", "outcome: "),
        (" : complete", " :"),
        ("    fallbacks:", "    signals:\n    fallbacks:"),
        ("    fallbacks:", "    signals:\n      claim:\n    fallbacks:"),
        ("    fallbacks:", "    signals:\n      by_name:\n    fallbacks:"),
        ("expire: fail", "expire:"),
    ],
)
def test_an_empty_value_is_one_finding(right: str, wrong: str, tmp_path: Path) -> None:
    assert len(findings_of(altered((right, wrong)), tmp_path)) == 1


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("lifecycle: mine", "lifecycel: mine"),
        ("machines:", "machine:"),
        ("    kind:", "    knid:"),
        ("    states:", "    sates:"),
        ("    transitions:", "    transtions:"),
        ("{phase: active}", "{phaze: active}"),
    ],
)
def test_a_misspelt_key_is_not_also_a_missing_one(right: str, wrong: str, tmp_path: Path) -> None:
    [finding] = findings_of(altered((right, wrong)), tmp_path)
    assert re.search(r"^`\w+` is not a key of", finding.message)


@pytest.mark.parametrize("transitions", ["", "    transitions: none\n"])
def test_bindings_are_not_blamed_for_transitions_that_cannot_be_read(transitions: str, tmp_path: Path) -> None:
    before, _, rest = SOUND.partition("    transitions:\n")
    text = f"{before}{transitions}    signals:\n      claim: claim\n    fallbacks:{rest.partition('    fallbacks:')[2]}"
    assert [finding.rule for finding in findings_of(text, tmp_path)] == ["structure"]


def test_a_signal_that_every_machine_must_take_is_missed_once(tmp_path: Path) -> None:
    [finding] = findings_of(altered(("      - WORKING -> BAD : fail\n", "")), tmp_path)
    assert finding.rule == "uncovered-signal", "not also for `expire` and `lease_lost`, which fall back to it"


# ── what may have been meant ──


@each_row(
    ("right", "wrong", "meant"),
    [
        ("- WORKING -> BAD : fail", "- WORKING -> BAD : fail [retris_left]", "retries_left"),
        ("- WORKING -> BAD : fail", "- WORKING -> BAD : fail / recrod_error", "record_error"),
        ("- WORKING -> BAD : fail", "- WROKING -> BAD : fail", "WORKING"),
        ("- WAITING -> WORKING : claim", "- WAITING -> WORKING : clam", "claim"),
        ("expire: fail", "expir: fail", "expire"),
        ("expire: fail", "expire: fial", "fail"),
        ("phase: active", "phase: active, needs: [wroker]", "worker"),
        ("phase: active", "phase: active, sealled: true", "sealed"),
        ("    kind: task", "    knid: task", "kind"),
        ("lifecycle: mine", "lifecycle: mine\ntitel: My own", "title"),
        ("    fallbacks:", "    signals: {by_name: [cancle]}\n    fallbacks:", "cancel"),
    ],
)
def test_a_misspelt_name_is_answered_with_the_nearest_one(right: str, wrong: str, meant: str, tmp_path: Path) -> None:
    findings = findings_of(altered((right, wrong)), tmp_path)
    assert any(re.search(rf"did you mean `?{meant}\b", finding.advice, re.IGNORECASE) for finding in findings)


def test_a_name_like_no_other_is_answered_with_all_of_them_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = altered(("    fallbacks:", "    signals: {by_name: [xyzzy]}\n    fallbacks:"))
    [finding] = findings_of(text, tmp_path)
    assert finding.advice == "Known: claim, complete, fail, cancel."


# ── where it stands ──


@pytest.mark.parametrize(
    "transition",
    [
        '- "WORKING -> GHOST" : ask',
        "- 'WORKING -> GHOST' : ask",
        "- {WORKING -> GHOST : ask}",
        "- ? WORKING -> GHOST\n        : ask",
        "- WORKING   ->   GHOST : ask",
        "- WORKING, GHOST -> BAD : ask",
    ],
)
def test_a_state_is_found_however_its_transition_is_written(transition: str, tmp_path: Path) -> None:
    text = altered(("    fallbacks:", f"      {transition}\n    fallbacks:"))
    [finding] = findings_of(text, tmp_path)
    assert finding.rule == "unknown-state"
    assert (finding.place.line, finding.place.column) == place_of(text, "GHOST")


@pytest.mark.parametrize(
    "rule",
    ["ask [ghost]", '"ask [ghost]"', "'ask [ghost]'", "  ask   [ not   ghost ]", "ask [due, ghost] / record_error !error"],
)
def test_a_guard_is_found_however_its_transition_is_written(rule: str, tmp_path: Path) -> None:
    text = altered(("    fallbacks:", f"      - WORKING -> BAD : {rule}\n    fallbacks:"))
    [finding] = findings_of(text, tmp_path)
    assert finding.rule == "unknown-guard"
    assert (finding.place.line, finding.place.column) == place_of(text, "ghost")


@pytest.mark.parametrize("rule", ["ask\n          [ghost]", "|\n          ask [ghost]", ">-\n          ask\n          [ghost]"])
def test_a_fault_in_a_folded_line_is_placed_where_the_line_begins(rule: str, tmp_path: Path) -> None:
    text = altered(("    fallbacks:", f"      - WORKING -> BAD : {rule}\n    fallbacks:"))
    [finding] = findings_of(text, tmp_path)
    assert finding.rule == "unknown-guard"
    assert (finding.place.line, finding.place.column) == (15, 26)


def test_a_fault_in_a_folded_binding_is_placed_where_the_binding_begins(tmp_path: Path) -> None:
    text = altered(("    fallbacks:", "    signals:\n      claim: claim\n        from GHOST\n    fallbacks:"))
    [finding] = [finding for finding in findings_of(text, tmp_path) if finding.rule == "unknown-state"]
    assert (finding.place.line, finding.place.column) == (16, 14)


# ── what the rules mean ──


def test_the_sound_lifecycle_is_sound(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(SOUND)
    assert load_lifecycle(path).machine("task").initial.name == "WAITING"


@pytest.mark.parametrize("kind", Kind)
def test_every_required_signal_of_a_kind_must_be_covered(kind: Kind, tmp_path: Path) -> None:
    text = f"""\
lifecycle: mine
machines:
  some:
    kind: {kind}
    states:
      HERE: {{phase: queued, initial: true}}
      GONE: {{phase: done, outcome: success}}
    transitions:
      - HERE -> GONE : leave
      - GONE -> HERE : enter
    signals:
      by_name: [leave, enter]
"""
    uncovered = [finding for finding in findings_of(text, tmp_path) if finding.rule == "uncovered-signal"]
    assert [re.findall(r"the signal (\w+)", finding.message)[0] for finding in uncovered] == list(
        VOCABULARY.signals[kind].required
    )


def test_a_circle_of_automatic_transitions_is_told_in_the_order_of_travel(tmp_path: Path) -> None:
    states = "      HERE: {phase: held}\n      THERE: {phase: held}\n      ELSEWHERE: {phase: held}\n    transitions:\n"
    moves = (
        "- WORKING -> HERE : ask\n      - HERE -> ELSEWHERE : automatic one [due]\n      - ELSEWHERE -> THERE : automatic two\n"
    )
    back = "      - THERE -> HERE : automatic three\n      - HERE -> BAD : reject\n    fallbacks:"
    text = altered(("    transitions:\n", states), ("    fallbacks:", f"      {moves}{back}"))
    [finding] = findings_of(text, tmp_path)
    assert finding.rule == "automatic-cycle"
    assert "HERE -> ELSEWHERE -> THERE -> HERE" in finding.message


def test_two_circles_of_automatic_transitions_are_two_findings(tmp_path: Path) -> None:
    states = (
        "      A: {phase: held}\n      B: {phase: held}\n      C: {phase: held}\n      D: {phase: held}\n    transitions:\n"
    )
    moves = (
        "- WORKING -> A : ask\n      - A -> B : automatic one [due]\n      - B -> A : automatic two\n      - A -> C : answer\n"
    )
    more = "      - C -> D : automatic three [due]\n      - D -> C : automatic four\n      - C -> BAD : reject\n    fallbacks:"
    text = altered(("    transitions:\n", states), ("    fallbacks:", f"      {moves}{more}"))
    assert [(finding.rule, finding.place.line) for finding in findings_of(text, tmp_path)] == [
        ("automatic-cycle", 20),
        ("automatic-cycle", 23),
    ]


def test_a_sealed_state_is_terminal(tmp_path: Path) -> None:
    text = altered(("active}", "active, sealed: true}"))
    findings = findings_of(text, tmp_path)
    assert "State WORKING is sealed but not terminal." in [finding.message for finding in findings]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("complete [has_checks]", "complete [not has_checks]"),
        ("complete [due, has_checks]", "complete [not has_checks, retryable]"),
        ("complete [has_checks]", "complete [else]"),
        ("complete [has_checks]", "complete [else due]"),
        ("complete [has_checks]", "complete [else not has_checks]"),
    ],
)
def test_guards_that_exclude_each_other_or_an_order_make_a_choice_clear(first: str, second: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(altered((": complete\n", f": {first}\n      - WORKING -> BAD : {second}\n")))
    load_lifecycle(path)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("complete", "complete"),
        ("complete", "complete [due]"),
        ("complete [due]", "complete"),
        ("complete [due]", "complete [has_checks]"),
        ("complete [due, has_checks]", "complete [due]"),
        ("complete [not due]", "complete [not has_checks]"),
    ],
)
def test_guards_that_may_both_hold_are_ambiguous(first: str, second: str, tmp_path: Path) -> None:
    text = altered((": complete\n", f": {first}\n      - WORKING -> BAD : {second}\n"))
    assert [finding.rule for finding in findings_of(text, tmp_path)] == ["ambiguous-transition"]


@pytest.mark.parametrize(
    "way",
    [
        ("lease_lost: fail", "lease_lost: expire"),
        ("      lease_lost: fail\n", "      lease_lost: claim\n"),
    ],
)
def test_an_active_task_may_lose_its_lease_by_a_chain_of_fallbacks(way: tuple[str, str], tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(altered(way, ("WORKING : claim", "WORKING : claim\n      - WORKING -> WORKING : claim [lease_expired]")))
    load_lifecycle(path)


def test_a_lease_may_be_lost_in_one_way_or_the_other(tmp_path: Path) -> None:
    ways = "      - WORKING -> WAITING : lease_lost [due]\n      - WORKING -> BAD : lease_lost [not due]\n    fallbacks:"
    path = tmp_path / "mine.yaml"
    path.write_text(altered(("    fallbacks:", ways), ("      lease_lost: fail\n", "")))
    load_lifecycle(path)


def test_a_guarded_claim_may_take_an_active_task_over(tmp_path: Path) -> None:
    reclaim = "      - WORKING -> WORKING : claim [lease_expired]\n    fallbacks:"
    path = tmp_path / "mine.yaml"
    path.write_text(altered(("    fallbacks:", reclaim), ("      lease_lost: fail\n", "")))
    load_lifecycle(path)


def test_the_initial_state_can_be_left_by_a_signal_even_if_it_is_also_left_by_itself(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(altered(("    fallbacks:", "      - WAITING -> BAD : automatic pass_by\n    fallbacks:")))
    load_lifecycle(path)


SIGNALS = st.sampled_from(["complete", "expire", "lease_lost", "ask", "retry", "resume"])


@given(st.dictionaries(SIGNALS, SIGNALS | st.just("fail"), max_size=5))
@settings(max_examples=50, deadline=None)
def test_fallbacks_are_sound_when_all_of_them_lead_to_a_signal_that_is_taken(fallbacks: dict[str, str]) -> None:
    text = SOUND.partition("    fallbacks:")[0] + f"    fallbacks: {json.dumps(fallbacks)}\n"
    draft, _ = read_lifecycle(text, "mine.yaml")
    assert draft
    sound = {"expire", "lease_lost"} <= fallbacks.keys() and all(
        end_of(fallbacks, signal) in ("complete", "fail") for signal in fallbacks
    )
    assert (verify(draft.machines[0], VOCABULARY) == []) == sound


def end_of(fallbacks: dict[str, str], signal: str) -> str | None:
    """What a signal comes to in the end; None where it runs in a circle."""
    for _ in range(len(fallbacks) + 1):
        if signal not in fallbacks:
            return signal
        signal = fallbacks[signal]
    return None


def test_only_tasks_have_leases(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(altered(("kind: task", "kind: run"), (": claim", ": start"), ("      lease_lost: fail\n", "")))
    load_lifecycle(path)
