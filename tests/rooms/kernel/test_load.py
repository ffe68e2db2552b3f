"""Lifecycles are loaded by name or by path, whatever is in the file; what comes back can be trusted and not be changed."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rows import each_row

import pointsman
from pointsman.errors import LifecycleError, LifecycleInvalid, LifecycleUnreadable, PointsmanError, UnknownName
from pointsman.kernel import load
from pointsman.kernel.machine import Kind, Lifecycle, Machine
from pointsman.kernel.vocabulary import Vocabulary
from pointsman.lifecycles import DEFAULT, SHIPPED, load_lifecycle, load_machine, machine_names
from pointsman.lifecycles.guards import Facts
from pointsman.lifecycles.vocabulary import VOCABULARY

MINE = """\
lifecycle: mine
version: 3
title: My own
machines:
  task:
    kind: task
    states:
      WAITING: {phase: queued, initial: true}
      WORKING: {phase: active, needs: [worker], longest_stay: 90s}
      GOOD: {phase: done, outcome: success}
      BAD: {phase: done, outcome: failure}
    transitions:
      - WAITING -> WORKING : claim
      - WORKING -> GOOD : complete
      - WORKING -> BAD : fail / record_error !error
      - WAITING, WORKING -> BAD : cancel
    fallbacks:
      expire: fail
      lease_lost: fail
"""


def write(directory: Path, text: str | bytes = MINE, name: str = "mine.yaml") -> Path:
    path = directory / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def load_text(text: str, vocabulary: Vocabulary = VOCABULARY) -> Lifecycle:
    """A user's file without the file."""
    borrowed = {kind: load_lifecycle(DEFAULT).of_kind(kind) for kind in Kind}
    return load.load_lifecycle(text, file="mine.yaml", vocabulary=vocabulary, find_machine=load_machine, borrowed=borrowed)


# ── by name and by path ──


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_lifecycle_loads_by_its_name(name: str) -> None:
    lifecycle = load_lifecycle(name)
    assert lifecycle.name == name
    assert all(machine.lifecycle == name and machine.name.startswith(f"{name}.") for machine in lifecycle.machines)


def test_a_shipped_machine_loads_by_its_name() -> None:
    for name in machine_names():
        assert load_machine(name).name == name


def test_the_package_itself_offers_both_doors() -> None:
    assert pointsman.load_lifecycle is load_lifecycle
    assert pointsman.load_machine is load_machine


@pytest.mark.parametrize("name", SHIPPED)
def test_a_file_of_ones_own_cannot_take_the_name_of_a_shipped_lifecycle(name: str, tmp_path: Path) -> None:
    with pytest.raises(LifecycleInvalid, match=f"A lifecycle named {name} exists already"):
        load_lifecycle(write(tmp_path, MINE.replace("lifecycle: mine", f"lifecycle: {name}"), name=f"{name}.yaml"))


def test_a_shipped_lifecycle_is_built_once() -> None:
    assert load_lifecycle("standard") is load_lifecycle("standard")


@pytest.mark.parametrize("form", [str, Path])
def test_a_file_loads_by_its_path(form: Callable[[Path], str | Path], tmp_path: Path) -> None:
    lifecycle = load_lifecycle(form(write(tmp_path)))
    assert (lifecycle.name, lifecycle.version, lifecycle.title) == ("mine", 3, "My own")
    assert [machine.name for machine in lifecycle.machines] == ["mine.task"]


@pytest.mark.parametrize("name", ["mine.yaml", "mine.yml", "./mine.yaml", "deeper/mine.yaml", "deeper/mine"])
def test_a_path_may_be_relative(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deeper").mkdir()
    write(tmp_path, name=name)
    assert load_lifecycle(name).name == "mine"


@pytest.mark.parametrize("suffix", [":task", "", ":"])
def test_the_only_machine_of_a_file_need_not_be_named(suffix: str, tmp_path: Path) -> None:
    assert load_machine(f"{write(tmp_path)}{suffix}").name == "mine.task"


def test_one_of_several_machines_is_picked_behind_a_colon(tmp_path: Path) -> None:
    path = write(tmp_path, MINE + "  breaker:\n    same_as: standard.breaker\n")
    assert load_machine(f"{path}:breaker").name == "mine.breaker"
    assert load_machine(f"{path}:mine.breaker").name == "mine.breaker"
    with pytest.raises(LifecycleError) as caught:
        load_machine(path)
    assert str(caught.value) == f"{path} has several machines. Name one: {path}:task or {path}:breaker."
    assert [load_machine(f"{path}:{name}").name for name in ("task", "breaker")] == ["mine.task", "mine.breaker"]


def test_a_directory_with_a_colon_in_its_name_is_no_machine(tmp_path: Path) -> None:
    (tmp_path / "a:b").mkdir()
    path = write(tmp_path / "a:b")
    assert load_machine(str(path)).name == "mine.task"
    assert load_machine(path).name == "mine.task"
    assert load_machine(f"{path}:task").name == "mine.task"


@pytest.mark.parametrize(
    ("find", "asked", "meant"),
    [
        (load_lifecycle, "standrad", "standard"),
        (load_lifecycle, "Agent", "agent"),
        (load_lifecycle, "standard.task", "standard"),
        (load_machine, "standard.tsk", "standard.task"),
        (load_machine, "pipline.step", "pipeline.step"),
        (load_machine, "workstream", "pipeline.workstream"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest_one(find: Callable[[str], object], asked: str, meant: str) -> None:
    with pytest.raises(UnknownName) as caught:
        find(asked)
    assert meant in caught.value.nearest
    assert f"'{asked}'" in str(caught.value)
    assert meant in str(caught.value)


def test_a_misspelt_machine_of_a_file_is_answered_with_those_it_has(tmp_path: Path) -> None:
    path = write(tmp_path)
    with pytest.raises(UnknownName, match=r"lifecycle mine called 'tsk'\. .*\bmine\.task\b"):
        load_machine(f"{path}:tsk")


@each_row("asked", ["", ".", "..", ":", ":x", "standard.", ".task", "standard.task.x", "x" * 5000, "zzz", "task\n"])
@each_row("find", [load_lifecycle, load_machine])
def test_a_name_like_no_other_is_answered_with_all_of_them(find: Callable[[str], object], asked: str) -> None:
    with pytest.raises(UnknownName, match=r"Did you mean|Known: .*supervised"):
        find(asked)


@each_row("find", [load_lifecycle, load_machine])
@each_row("name", ["absent.yaml", "absent/", "x" * 300 + ".yaml", "nul\0byte.yaml", "lone\udc80.yaml", "high\ud800.yaml", "."])
def test_a_file_that_cannot_be_opened_is_unreadable(find: Callable[[Path], object], name: str, tmp_path: Path) -> None:
    with pytest.raises(LifecycleUnreadable, match="Cannot read"):
        find(tmp_path / name)


# ── whatever is in the file ──


@pytest.mark.parametrize(
    "content", [b"\xff\xfe\x00", b"lifecycle: \xe9t\xe9\n", MINE.encode("utf-16"), b"\x89PNG\r\n\x1a\n\x00\xff"]
)
def test_a_file_that_is_not_text_is_unreadable(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(LifecycleUnreadable, match=r"byte \d+ is not UTF-8"):
        load_lifecycle(write(tmp_path, content))


def test_line_ends_of_windows_and_a_byte_order_mark_change_nothing(tmp_path: Path) -> None:
    plain = load_lifecycle(write(tmp_path))
    assert load_lifecycle(write(tmp_path, MINE.replace("\n", "\r\n"))) == plain
    assert load_lifecycle(write(tmp_path, "\ufeff" + MINE)) == plain


@pytest.mark.parametrize("disguise", [lambda text: text.replace("\n", "\r\n"), lambda text: "\ufeff" + text])
def test_line_ends_and_a_byte_order_mark_do_not_move_a_finding(disguise: Callable[[str], str], tmp_path: Path) -> None:
    broken = (
        MINE.replace("version: 3", "versoin: 3")
        .replace("record_error", "recrod_error")
        .replace("lifecycle: mine", "lifecycle: m:n")
    )
    places = []
    for text in (broken, disguise(broken)):
        with pytest.raises(LifecycleInvalid) as caught:
            load_lifecycle(write(tmp_path, text))
        places.append([finding.place for finding in caught.value.findings])
    assert places[0] == places[1]
    assert [place.line for place in places[0]] == [1, 2, 15]


def aliased(text: str) -> str:
    return text.replace("GOOD: {phase: done, outcome: success}", "GOOD: &end {phase: done, outcome: success}").replace(
        "BAD: {phase: done, outcome: failure}", "BAD: *end"
    )


def test_an_alias_stands_for_what_it_points_to(tmp_path: Path) -> None:
    machine = load_machine(write(tmp_path, aliased(MINE)))
    assert machine.state("BAD").outcome == machine.state("GOOD").outcome == "success"


def nested(opening: str) -> str:
    return "lifecycle: mine\nmachines: " + opening * 400


FAULTY = {
    "empty": "",
    "blank": "  \n\n",
    "a comment": "# nothing here\n",
    "null": "null\n",
    "a word": "standard\n",
    "a number": "12\n",
    "a list": "- lifecycle\n- mine\n",
    "deep lists": nested("["),
    "deep mappings": nested("{a: "),
    "deep blocks": "\n".join(" " * depth + "a:" for depth in range(400)),
    "a tab": MINE.replace("    kind", "\tkind"),
    "a NUL": MINE.replace("claim", "cl\0aim"),
    "a control character": MINE.replace("claim", "cl\x07aim"),
    "two documents": MINE + "---\n" + MINE,
    "an undefined alias": MINE.replace("kind: task", "kind: *task"),
    "itself": "&mine\nlifecycle: mine\nmachines: *mine\n",
    "itself, deeper": MINE.replace("states:", "states: &states").replace("phase: active", "phase: *states"),
    "an unknown tag handle": MINE.replace("kind: task", "kind: !e!task task"),
    "a later YAML": "%YAML 2.0\n---\n" + MINE,
    "a YAML that does not exist": "%YAML 1.3\n---\n" + MINE,
    "an unclosed quote": MINE.replace("My own", '"My own'),
    "duplicate keys": MINE + "      expire: cancel\n",
    "duplicate keys at the top": MINE + "version: 2\n",
    "a list as a key": MINE.replace("GOOD:", "? [GOOD, BETTER]\n      :"),
    "a mapping as a key": MINE.replace("GOOD:", "? {GOOD: 1}\n      :"),
    "an empty key": MINE.replace("GOOD:", "? \n      :"),
    "a number as a key": MINE.replace("GOOD:", "12:"),
    "a merge key": MINE.replace("{phase: done, outcome: success}", "{<<: {phase: done}, outcome: success}"),
    "a very long name": MINE.replace("GOOD:", "G" * 900 + ":"),
    "a very long explicit name": MINE.replace("GOOD:", f"? {'G' * 50_000}\n      :"),
    "a very long transition": MINE.replace("-> GOOD", "-> " + "G" * 900),
    "a unicode state": MINE.replace("GOOD:", "GÖÖD:"),
    "a state of several words": MINE.replace("GOOD:", "VERY GOOD:"),
    "no machines": "lifecycle: mine\nmachines: {}\n",
    "empty machines": "lifecycle: mine\nmachines:\n",
    "an empty machine": "lifecycle: mine\nmachines:\n  task:\n",
    "no states": "lifecycle: mine\nmachines:\n  task: {kind: task, states: {}, transitions: []}\n",
}


@each_row("fault", FAULTY)
def test_a_faulty_file_is_refused_with_findings_inside_it(fault: str, tmp_path: Path) -> None:
    path = write(tmp_path, FAULTY[fault])
    with pytest.raises(LifecycleInvalid) as caught:
        load_lifecycle(path)
    assert_placed_inside(FAULTY[fault], caught.value)


@pytest.mark.parametrize("name", ["a NUL", "a control character"])
def test_a_character_that_has_no_place_in_yaml_is_found_where_it_stands(name: str, tmp_path: Path) -> None:
    with pytest.raises(LifecycleInvalid) as caught:
        load_lifecycle(write(tmp_path, FAULTY[name]))
    [finding] = caught.value.findings
    assert (finding.place.line, finding.place.column) == (13, 32)


def test_an_anchor_may_be_used_twice(tmp_path: Path) -> None:
    text = MINE.replace("GOOD: {", "GOOD: &end {").replace("BAD: {", "BAD: &end {")
    assert load_lifecycle(write(tmp_path, text)).name == "mine"


def test_names_that_yaml_takes_for_other_things_are_names(tmp_path: Path) -> None:
    text = MINE.replace("GOOD", "NO").replace("BAD", "null").replace("WAITING", "on")
    machine = load_machine(write(tmp_path, text))
    assert [state.name for state in machine.states] == ["on", "WORKING", "NO", "null"]


def assert_placed_inside(text: str, error: LifecycleInvalid) -> None:
    assert error.findings
    lines = re.split(r"\r\n|\r|\n", text.removeprefix("\ufeff"))
    for finding in error.findings:
        assert finding.message
        assert finding.advice
        assert 1 <= finding.place.line <= len(lines), f"{finding} is on no line of the file"
        if not re.search("[\x85\u2028\u2029]", text):  # whether these end a line is a matter of opinion
            assert 1 <= finding.place.column <= len(lines[finding.place.line - 1]) + 1, f"{finding} is beyond its line"
    places = [(finding.place.line, finding.place.column) for finding in error.findings]
    assert places == sorted(places)


PIECES = st.one_of(
    st.characters(codec="utf-8"),
    st.sampled_from(
        [*":#-[]{}&*!|>%@`\"'?,\n\t \\~<=.0/", "- ", "? ", ": ", "&a ", "*a ", "!!str ", "---\n", "|\n", " -> ", "\r\n"]
    ),
)
EDITS = st.lists(
    st.tuples(
        st.sampled_from(["delete", "replace", "insert", "repeat line", "delete line", "swap lines"]), st.integers(0), PIECES
    ),
    min_size=1,
    max_size=4,
)


def edited(text: str, edits: list[tuple[str, int, str]]) -> str:
    for what, where, piece in edits:
        lines = text.splitlines(keepends=True) or [""]
        line, at = where % len(lines), where % (len(text) + 1)
        match what:
            case "delete":
                text = text[:at] + text[at + 1 + where % 7 :]
            case "replace":
                text = text[:at] + piece + text[at + 1 :]
            case "insert":
                text = text[:at] + piece + text[at:]
            case "repeat line":
                text = "".join([*lines[: line + 1], *lines[line:]])
            case "delete line":
                text = "".join([*lines[:line], *lines[line + 1 :]])
            case "swap lines":
                text = "".join([*lines[:line], *lines[line + 1 : line + 2], lines[line], *lines[line + 2 :]])
    return text


@given(
    text=st.sampled_from([MINE, MINE, Path(pointsman.lifecycles.__file__).with_name("agent.yaml").read_text("utf-8")]),
    edits=EDITS,
)
@settings(max_examples=100, deadline=None)
def test_a_file_with_slips_loads_or_is_refused_with_findings_inside_it(text: str, edits: list[tuple[str, int, str]]) -> None:
    slipped = edited(text, edits)
    try:
        load_text(slipped)
    except LifecycleInvalid as error:
        assert_placed_inside(slipped, error)


@given(st.one_of(st.text(), st.lists(PIECES, max_size=40).map("".join)))
@settings(max_examples=100, deadline=None)
def test_text_that_is_no_lifecycle_is_refused_with_findings_inside_it(text: str) -> None:
    with pytest.raises(LifecycleInvalid) as caught:
        load_text(text)
    assert_placed_inside(text, caught.value)


@given(
    st.one_of(
        st.text(max_size=30), st.lists(st.sampled_from([*SHIPPED, ".", ":", "/", "task", ".yaml"]), max_size=4).map("".join)
    )
)
@settings(max_examples=100, deadline=None)
def test_whatever_is_asked_for_is_found_or_refused(name: str) -> None:
    for find in (load_lifecycle, load_machine):
        with suppress(PointsmanError):
            find(name)


# ── a user's own words ──


def test_a_user_may_bring_guards_of_their_own(tmp_path: Path) -> None:
    path = write(tmp_path, MINE.replace("GOOD : complete", "GOOD : complete [not on_fire]"))
    with pytest.raises(LifecycleInvalid, match="no guard named on_fire"):
        load_lifecycle(path)

    def on_fire(facts: dict[str, bool]) -> bool:
        return facts["on_fire"]

    own = dataclasses.replace(VOCABULARY, guards={**VOCABULARY.guards, "on_fire": on_fire})
    [guard] = next(move for move in load_machine(path, own).transitions if move.to_state == "GOOD").guards
    assert str(guard) == "not on_fire"
    assert guard.holds({"on_fire": False})
    assert not guard.holds({"on_fire": True})


def test_a_user_may_bring_effects_and_needs_of_their_own(tmp_path: Path) -> None:
    path = write(tmp_path, MINE.replace("GOOD : complete", "GOOD : complete / ring_bell").replace("[worker]", "[worker, bell]"))
    own = dataclasses.replace(
        VOCABULARY,
        effects={**VOCABULARY.effects, "ring_bell": "let everybody know"},
        needs={**VOCABULARY.needs, "bell": "a bell stands by"},
    )
    machine = load_machine(path, own)
    assert machine.state("WORKING").needs == ("worker", "bell")
    assert "ring_bell" in next(move for move in machine.transitions if move.to_state == "GOOD").effects


def test_a_shipped_lifecycle_takes_the_words_it_is_given() -> None:
    never = dataclasses.replace(VOCABULARY, guards={**VOCABULARY.guards, "process_ended": lambda _: False})
    machine = load_lifecycle("agent", never).machine("task")
    [guard] = next(move for move in machine.between("RUNNING", "CANCELLED")).guards
    assert not guard.holds(Facts(process_ended=True))


def test_a_negated_guard_holds_when_its_predicate_does_not() -> None:
    fails = [move for move in load_machine("orchestrated.task").transitions if move.trigger == "execution_failed"]
    held = [guard.holds(Facts(retries_left=False)) for move in fails for guard in move.guards]
    assert held == [False, True]


# ── machines of other lifecycles ──


def test_kinds_that_a_file_does_not_declare_are_borrowed_from_the_standard(tmp_path: Path) -> None:
    lifecycle = load_lifecycle(write(tmp_path))
    assert lifecycle.of_kind(Kind.TASK).name == "mine.task"
    assert [machine.name for machine in lifecycle.borrowed] == ["standard.run", "standard.worker", "standard.breaker"]
    assert lifecycle.of_kind(Kind.RUN) is load_machine("standard.run")


@pytest.mark.parametrize("name", SHIPPED)
def test_every_lifecycle_has_a_machine_of_every_kind(name: str) -> None:
    lifecycle = load_lifecycle(name)
    assert {lifecycle.of_kind(kind).kind for kind in Kind} == set(Kind)


def test_same_as_takes_a_machine_over_under_a_name_of_its_own(tmp_path: Path) -> None:
    lifecycle = load_lifecycle(write(tmp_path, MINE + "  fuse:\n    same_as: standard.breaker\n"))
    fuse, breaker = lifecycle.machine("fuse"), load_machine("standard.breaker")
    assert (fuse.name, fuse.lifecycle, fuse.version, fuse.kind) == ("mine.fuse", "mine", 3, Kind.BREAKER)
    assert (fuse.states, fuse.transitions, fuse.fallbacks) == (breaker.states, breaker.transitions, breaker.fallbacks)
    assert lifecycle.of_kind(Kind.BREAKER) is fuse
    assert load_machine("pipeline.breaker").transitions == breaker.transitions


@pytest.mark.parametrize(
    "other", ["mine.task", "standard", "standard.braker", "nothing.at_all", "./absent.yaml", "mine.yaml:task"]
)
def test_same_as_names_a_shipped_machine_or_is_a_finding(other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LifecycleInvalid) as caught:
        load_lifecycle(write(tmp_path, f"lifecycle: mine\nmachines:\n  task:\n    same_as: {other}\n"))
    [finding] = caught.value.findings
    assert finding.rule == "unknown-machine"
    assert (finding.place.line, finding.place.column) == (4, 14)
    assert other in finding.message


# ── what comes back ──


@pytest.mark.parametrize(
    ("written", "version"), [("version: 3", 3), ("version: '4'", 4), ("version: 999999999", 999_999_999), ("", 1)]
)
def test_a_version_is_a_whole_number_and_the_first_where_none_is_given(written: str, version: int, tmp_path: Path) -> None:
    lifecycle = load_lifecycle(write(tmp_path, MINE.replace("version: 3", written)))
    assert (lifecycle.version, lifecycle.machines[0].version) == (version, version)


@each_row("version", ["0", "-1", "1.5", "one", "0x10", "1_000", "²", "٣", "9" * 5000, "[1]", "true"])
def test_anything_else_is_no_version(version: str, tmp_path: Path) -> None:
    with pytest.raises(LifecycleInvalid) as caught:
        load_lifecycle(write(tmp_path, MINE.replace("version: 3", f"version: {version}")))
    assert [(finding.rule, finding.place.line, finding.place.column) for finding in caught.value.findings] == [
        ("structure", 2, 10)
    ]


@pytest.mark.parametrize(("stay", "seconds"), [("90s", 90), ("15m", 900), ("1.5h", 5400), ("1h30m", 5400), ("2d", 172_800)])
def test_a_longest_stay_is_kept_in_seconds(stay: str, seconds: float, tmp_path: Path) -> None:
    assert load_machine(write(tmp_path, MINE.replace("90s", stay))).state("WORKING").longest_stay_seconds == seconds


@each_row("stay", ["90", "1w", "-1s", "1 h", "h", "30m1h", ".5h", "1e3s", "∞s", "9" * 400 + "d"])
def test_anything_else_is_no_longest_stay(stay: str, tmp_path: Path) -> None:
    with pytest.raises(LifecycleInvalid, match="is not a duration"):
        load_lifecycle(write(tmp_path, MINE.replace("90s", stay)))


def test_a_terminal_state_without_an_exit_is_sealed_even_if_the_file_does_not_say_so(tmp_path: Path) -> None:
    machine = load_machine(write(tmp_path))
    assert [state.name for state in machine.states if state.sealed] == ["GOOD", "BAD"]


def test_the_same_file_gives_the_same_value(tmp_path: Path) -> None:
    path = write(tmp_path, MINE.replace(": complete", ": complete [not has_checks]"))
    assert load_lifecycle(path) == load_lifecycle(path)


def values_of(machine: Machine) -> list[object]:
    guards = [guard for move in machine.transitions for guard in move.guards]
    return [machine, *machine.states, *machine.transitions, *guards]


@pytest.mark.parametrize("name", SHIPPED)
def test_nothing_that_was_loaded_can_be_changed(name: str) -> None:
    lifecycle = load_lifecycle(name)
    values: list[object] = [lifecycle, VOCABULARY, *(value for machine in lifecycle.machines for value in values_of(machine))]
    for value in values:
        assert dataclasses.is_dataclass(value)
        for each in dataclasses.fields(value):
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(value, each.name, None)


@pytest.mark.parametrize("name", ["standard.task", "orchestrated.task"])
def test_the_fallbacks_of_a_machine_cannot_be_changed(name: str) -> None:
    fallbacks = load_machine(name).fallbacks
    assert fallbacks
    assert not hasattr(fallbacks, "__setitem__")
