"""The schema that editors complete and check lifecycle files with says what the reader says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft7Validator
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from tests.rows import each_row

from pointsman.errors import Place
from pointsman.kernel.draft import Word
from pointsman.kernel.grammar import Line, parse_binding, parse_moves
from pointsman.kernel.machine import Kind, Outcome, Phase, Severity
from pointsman.kernel.read import read_lifecycle
from pointsman.lifecycles import SCHEMA, SHIPPED, load_lifecycle, machine_names
from pointsman.lifecycles.vocabulary import VOCABULARY

TEXT = SCHEMA.read_text("utf-8")
DOCUMENT: dict[str, Any] = json.loads(TEXT)
DEFINITIONS: dict[str, Any] = DOCUMENT["definitions"]
VALIDATOR = Draft7Validator(DOCUMENT)
BROKEN = sorted(Path(__file__).with_name("broken").glob("*.yaml"))

CAUGHT_BY_YAML = {"yaml", "duplicate-state"}
"""What any YAML editor already refuses: what is not YAML, and keys that stand twice."""
CAUGHT_BY_THE_SCHEMA = {"structure", "syntax", "outcome", "unknown-need", "unknown-signal"}
"""What can be seen without looking at the rest of the file. Everything else is found when the file is loaded."""


def rule_of(path: Path) -> str:
    return path.name.partition(".")[0]


def parse(path: Path) -> Any:
    return YAML(typ="safe", pure=True).load(path.read_text("utf-8"))


def part(name: str) -> Draft7Validator:
    """One definition, with all that it refers to."""
    return Draft7Validator({"$ref": f"#/definitions/{name}", "definitions": DEFINITIONS})


def reader_accepts(document: Any) -> bool:
    """Whether a document has the shape of a lifecycle; what it means is not looked at."""
    _, findings = read_lifecycle(json.dumps(document), "mine.yaml")
    return not findings


def subschemas(schema: Any, path: str = "#") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema inside the schema."""
    if not isinstance(schema, dict):
        return
    yield path, schema
    for key in ("properties", "patternProperties", "definitions"):
        for name, each in schema.get(key, {}).items():
            yield from subschemas(each, f"{path}/{key}/{name}")
    for key in ("items", "additionalProperties", "propertyNames", "if", "then", "else", "not"):
        yield from subschemas(schema.get(key), f"{path}/{key}")
    for number, each in enumerate(schema.get("allOf", [])):
        yield from subschemas(each, f"{path}/allOf/{number}")


def machine(**changes: Any) -> dict[str, Any]:
    """A sound task machine, with something in it replaced."""
    sound: dict[str, Any] = json.loads(json.dumps(DOCUMENT["examples"][0]["machines"]["task"]))
    return sound | changes


def lifecycle(**changes: Any) -> dict[str, Any]:
    return {"lifecycle": "mine", "machines": {"task": machine()}} | changes


# ── the schema as such ──


def test_it_is_a_valid_schema() -> None:
    Draft7Validator.check_schema(DOCUMENT)
    assert DOCUMENT["$schema"] == "http://json-schema.org/draft-07/schema#"


def test_it_ships_with_the_package() -> None:
    assert resources.files("pointsman.lifecycles").joinpath("lifecycle.schema.json").read_text("utf-8") == TEXT


def test_it_is_written_as_the_formatter_would() -> None:
    assert json.dumps(DOCUMENT, indent=2, ensure_ascii=False) + "\n" == TEXT


def test_every_key_is_explained() -> None:
    unexplained = [
        f"{path}/{name}"
        for path, schema in subschemas(DOCUMENT)
        if not re.search(r"/(if|then)$", path)
        for name, each in (schema.get("properties", {}) | schema.get("patternProperties", {})).items()
        if "$ref" not in each and not (each.get("title") and each.get("description"))
    ]
    assert unexplained == []
    assert all("title" in each and "description" in each for each in DEFINITIONS.values())


def test_every_object_refuses_keys_that_it_does_not_know() -> None:
    open_objects = [
        path for path, schema in subschemas(DOCUMENT) if "properties" in schema and "additionalProperties" not in schema
    ]
    assert [path for path in open_objects if not re.search(r"/(if|then|else)$", path)] == []


def test_every_reference_leads_somewhere() -> None:
    wanted = {schema["$ref"].removeprefix("#/definitions/") for _, schema in subschemas(DOCUMENT) if "$ref" in schema}
    assert wanted == set(DEFINITIONS)


def test_every_example_passes_its_own_schema() -> None:
    examples = [(path, schema, example) for path, schema in subschemas(DOCUMENT) for example in schema.get("examples", [])]
    assert len(examples) > 10
    for path, schema, example in examples:
        assert Draft7Validator({**schema, "definitions": DEFINITIONS}).is_valid(example), f"{example} in {path}"


def test_every_enumerated_word_is_explained() -> None:
    for path, schema in subschemas(DOCUMENT):
        if "enum" in schema:
            assert len(schema["enumDescriptions"]) == len(schema["enum"]), path


def filled_in(snippet: Any) -> Any:
    """A snippet as it stands when its placeholders are left as they are."""
    return json.loads(re.sub(r"\$\{\d+(?::(\w[^}]*)|\|([^,|]+)[^}]*)\}", r"\1\2", json.dumps(snippet)))


def test_every_snippet_passes_its_own_schema() -> None:
    for path, schema in subschemas(DOCUMENT):
        for snippet in schema.get("defaultSnippets", []):
            body = filled_in(snippet["body"])
            assert "$" not in json.dumps(body)
            assert Draft7Validator({**schema, "definitions": DEFINITIONS}).is_valid(body), f"{snippet['label']} in {path}"


def test_a_lifecycle_begun_from_the_snippet_or_the_example_loads(tmp_path: Path) -> None:
    for number, document in enumerate([filled_in(DOCUMENT["defaultSnippets"][0]["body"]), DOCUMENT["examples"][0]]):
        path = tmp_path / f"{number}.yaml"
        path.write_text(json.dumps(document))
        assert load_lifecycle(path).name == "mine"


# ── the files ──


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_file_passes_and_names_the_schema(name: str) -> None:
    path = SCHEMA.with_name(f"{name}.yaml")
    assert [error.message for error in VALIDATOR.iter_errors(parse(path))] == []
    assert path.read_text("utf-8").startswith(f"# yaml-language-server: $schema={SCHEMA.name}\n")


@each_row("path", BROKEN)
def test_a_fault_that_shows_without_the_rest_of_the_file_fails_the_schema(path: Path) -> None:
    try:
        document = parse(path)
    except YAMLError:
        assert rule_of(path) in CAUGHT_BY_YAML or "duplicate" in path.stem
    else:
        assert VALIDATOR.is_valid(document) == (rule_of(path) not in CAUGHT_BY_THE_SCHEMA)


# ── the words ──


def test_kinds_phases_outcomes_and_needs_are_those_of_the_kernel() -> None:
    state = DEFINITIONS["state"]["properties"]
    assert DEFINITIONS["machine"]["properties"]["kind"]["enum"] == list(Kind)
    assert state["phase"]["enum"] == list(Phase)
    assert state["outcome"]["enum"] == list(Outcome)
    assert DEFINITIONS["need"]["enum"] == list(VOCABULARY.needs)


@pytest.mark.parametrize("kind", Kind)
def test_the_signals_of_a_kind_are_those_of_the_vocabulary_with_their_meanings(kind: Kind) -> None:
    known = {**VOCABULARY.signals[kind].required, **VOCABULARY.signals[kind].optional}
    signals, fallbacks = DEFINITIONS[f"{kind}_signals"], DEFINITIONS[f"{kind}_fallbacks"]
    assert list(signals["properties"]) == [*known, "by_name"]
    assert list(fallbacks["properties"]) == list(known)
    assert DEFINITIONS[f"{kind}_signal"]["enum"] == list(known)
    for name, meaning in known.items():
        assert signals["properties"][name]["description"].lower() == f"{meaning}.".lower()
        assert meaning in fallbacks["properties"][name]["description"]
    required, _, optional = signals["markdownDescription"].partition("Optional:")
    assert re.findall(r"- `(\w+)`: (.*)", required) == list(VOCABULARY.signals[kind].required.items())
    assert re.findall(r"- `(\w+)`: (.*)", optional) == list(VOCABULARY.signals[kind].optional.items())


@pytest.mark.parametrize("kind", Kind)
def test_a_machine_is_offered_the_signals_of_its_own_kind_only(kind: Kind) -> None:
    everywhere = {name for signals in VOCABULARY.signals.values() for name in signals}
    for signal in everywhere:
        known = signal in VOCABULARY.signals[kind]
        assert part("machine").is_valid(machine(kind=kind.value, signals={signal: "pulled"}, fallbacks={})) == known
        own = next(iter(VOCABULARY.signals[kind].required))
        assert part("machine").is_valid(machine(kind=kind.value, fallbacks={signal: own})) == known
        assert part("machine").is_valid(machine(kind=kind.value, fallbacks={own: signal})) == known


def test_the_severities_are_those_of_the_kernel() -> None:
    for word in [*Severity, "loud", "Error", "notice"]:
        assert part("transition").is_valid({"A -> B": f"fail !{word}"}) == (word in list(Severity))


def test_guards_and_effects_are_listed_but_a_user_may_bring_others() -> None:
    described = DEFINITIONS["transition"]["markdownDescription"]
    assert re.findall(r"`(\w+)`", described.partition("**Guards**")[2].partition("**Effects**")[0]) == list(VOCABULARY.guards)
    assert re.findall(r"- `(\w+)`: (.*)", described.partition("**Effects**")[2]) == list(VOCABULARY.effects.items())
    assert part("transition").is_valid({"A -> B": "fail [on_fire] / ring_bell"})


def test_the_machines_to_be_the_same_as_are_the_shipped_ones() -> None:
    assert DEFINITIONS["machine"]["properties"]["same_as"]["examples"] == list(machine_names())


def test_the_keys_of_every_level_are_those_of_the_reader() -> None:
    document = lifecycle(zzz=0)
    document["machines"]["task"] = machine(zzz=0, states=machine()["states"] | {"ODD": {"phase": "held", "zzz": 0}})
    _, findings = read_lifecycle(json.dumps(document), "mine.yaml")
    keys = [
        finding.advice.removeprefix("Known: ").rstrip(".").split(", ") for finding in findings if "`zzz`" in finding.message
    ]
    levels = [DOCUMENT, DEFINITIONS["machine"], DEFINITIONS["state"]]
    assert sorted(map(sorted, keys)) == sorted(sorted(level["properties"]) for level in levels)


# ── the shapes ──

HELD = {"phase": "held"}

TRANSITIONS = [
    ("A -> B", "go"),
    ("A->B", "go"),
    ("A, B,C -> D", "go"),
    ("  A ,B  ->  C ", "  go  "),
    ("A -> A", "automatic go"),
    ("A -> B", "automatic_go"),
    ("A -> B", "go [due]"),
    ("A -> B", "go[not due,is_gate]"),
    ("A -> B", "go [else]"),
    ("A -> B", "go [else due, not is_gate]"),
    ("A -> B", "go [else not due]"),
    ("A -> B", "go [elsewhere, nothing]"),
    ("A -> B", "go / archive"),
    ("A -> B", "go/archive,run_checks!error"),
    ("A -> B", "automatic go [else not due] / archive, run_checks !critical"),
    ("A -> B", "go\n[due]\n"),
]
NO_TRANSITIONS = [
    ("A", "go"),
    ("A -> ", "go"),
    (" -> B", "go"),
    ("A, -> B", "go"),
    ("A B -> C", "go"),
    ("A -> B, C", "go"),
    ("A -> B -> C", "go"),
    ("A => B", "go"),
    ("A-B -> C", "go"),
    ("A -> B", ""),
    ("A -> B", " "),
    ("A -> B", "automatic"),
    ("A -> B", "automatic [due]"),
    ("A -> B", "go on"),
    ("A -> B", "go []"),
    ("A -> B", "go [due"),
    ("A -> B", "go due]"),
    ("A -> B", "go [due,]"),
    ("A -> B", "go [due is_gate]"),
    ("A -> B", "go [not]"),
    ("A -> B", "go [else, due]"),
    ("A -> B", "go [due] x"),
    ("A -> B", "go /"),
    ("A -> B", "go / archive,"),
    ("A -> B", "go !"),
    ("A -> B", "go !loud"),
    ("A -> B", "go !error / archive"),
    ("A -> B", "go / archive [due]"),
    ("A -> B", "go-on"),
    ("A -> 2", "go"),
    ("Ä -> B", "go"),
    ("A -> B", "2"),
    ("A -> B", "go [2]"),
    ("A -> B", "go / é"),
]


@each_row(("states", "rule"), TRANSITIONS)
def test_a_transition_passes_both_the_schema_and_the_reader(states: str, rule: str) -> None:
    document = lifecycle(machines={"task": machine(transitions=[{states: rule}])})
    assert VALIDATOR.is_valid(document)
    assert reader_accepts(document)


@each_row(("states", "rule"), NO_TRANSITIONS)
def test_what_is_no_transition_fails_both_the_schema_and_the_reader(states: str, rule: str) -> None:
    document = lifecycle(machines={"task": machine(transitions=[{states: rule}])})
    assert not VALIDATOR.is_valid(document)
    assert not reader_accepts(document)


@pytest.mark.parametrize("name", ["A", "a", "_", "on_2", "x" * 100])
def test_a_name_passes_both(name: str) -> None:
    for document in (lifecycle(machines={name: machine()}), lifecycle(machines={"task": machine(states={name: HELD})})):
        assert VALIDATOR.is_valid(document)
        assert reader_accepts(document)


@each_row("name", ["", "2", "2nd", "my-own", "my own", "a.b", "a:b", "Ä", "x" * 101])
def test_what_is_no_name_fails_both(name: str) -> None:
    for document in (lifecycle(machines={name: machine()}), lifecycle(machines={"task": machine(states={name: HELD})})):
        assert not VALIDATOR.is_valid(document)
        assert not reader_accepts(document)


@pytest.mark.parametrize(
    ("name", "fine"), [("my-own", True), ("2", True), ("x" * 100, True), ("x" * 101, False), ("a.b", False)]
)
def test_the_name_of_a_lifecycle_may_have_hyphens_and_figures_for_both(name: str, *, fine: bool) -> None:
    assert VALIDATOR.is_valid(lifecycle(lifecycle=name)) == fine
    assert reader_accepts(lifecycle(lifecycle=name)) == fine


@pytest.mark.parametrize("stay", ["90s", "15m", "1.5h", "1h30m", "2d", "0.25d"])
def test_a_duration_passes_both(stay: str) -> None:
    document = lifecycle(machines={"task": machine(states={"A": {"phase": "held", "longest_stay": stay}})})
    assert VALIDATOR.is_valid(document)
    assert reader_accepts(document)


@each_row("stay", ["", "90", 90, "1w", "-1s", "1 h", "h", "30m1h", "1h1h", ".5h", "1e3s", ["1h"], None])
def test_what_is_no_duration_fails_both(stay: object) -> None:
    document = lifecycle(machines={"task": machine(states={"A": {"phase": "held", "longest_stay": stay}})})
    assert not VALIDATOR.is_valid(document)
    assert not reader_accepts(document)


[(STATES, RULE)] = DEFINITIONS["transition"]["patternProperties"].items()
STATE = DEFINITIONS["state"]["properties"]
WORDS = st.sampled_from(["A", "b", "_", "S_2", "elsewhere", "nothing", "automatically", "from", "x" * 60])
LIFECYCLE_NAMES = st.sampled_from(["mine", "my-own", "my_own", "2", "standard", "x" * 100])
NAMES = st.sampled_from(["mine", "My_2", "_", "null", "x" * 100])
SPACES = st.sampled_from(["", " ", "   ", "\t", "\n"])


def listed(words: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """One word or more, with commas and spaces between them."""
    return st.builds(lambda words, space: f"{space},{space}".join(words), st.lists(words, min_size=1, max_size=3), SPACES)


def perhaps(text: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.just("") | text


SOURCES_AND_TARGET = st.builds("{0}{2}->{2}{1}".format, listed(WORDS), WORDS, SPACES)
CONDITIONS = st.just("[else]") | st.builds(
    "[{}{}]".format, st.sampled_from(["", "else "]), listed(WORDS | WORDS.map("not {}".format))
)
EFFECTS = st.builds("/{}{}".format, SPACES, listed(WORDS))
SEVERITIES = st.builds("!{}{}".format, SPACES, st.sampled_from(list(Severity)))
RULES = st.builds(
    "{0}{1}{5}{2}{5}{3}{5}{4}".format,
    st.sampled_from(["", "automatic "]),
    WORDS,
    perhaps(CONDITIONS),
    perhaps(EFFECTS),
    perhaps(SEVERITIES),
    SPACES,
)
TRIGGERS = WORDS | st.builds("{} from {}".format, WORDS, listed(WORDS))
STAYS = st.builds("{}{}".format, st.integers(0, 10**6) | st.decimals(0, 999, places=2), st.sampled_from("smhd"))


def one_or_several(words: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    return words | st.lists(words, min_size=1, max_size=3, unique=True)


@st.composite
def states(draw: st.DrawFn) -> dict[str, Any]:
    phase = draw(st.sampled_from(STATE["phase"]["enum"]))
    needs = one_or_several(st.sampled_from(DEFINITIONS["need"]["enum"]))
    optional: dict[str, st.SearchStrategy[Any]] = {
        "initial": st.booleans(),
        "needs": needs,
        "longest_stay": STAYS,
    }
    if phase == "done":
        outcome = {"outcome": st.sampled_from(STATE["outcome"]["enum"])}
        return draw(
            st.fixed_dictionaries(
                {"phase": st.just(phase), **outcome}, optional={**optional, "terminal": st.booleans(), "sealed": st.booleans()}
            )
        )
    return draw(st.fixed_dictionaries({"phase": st.just(phase)}, optional=optional))


@st.composite
def machines(draw: st.DrawFn) -> dict[str, Any]:
    kind = draw(st.sampled_from(list(Kind)))
    signals = st.sampled_from(DEFINITIONS[f"{kind}_signal"]["enum"])
    bindings = st.dictionaries(signals, one_or_several(TRIGGERS), max_size=3)
    by_name = st.fixed_dictionaries({}, optional={"by_name": one_or_several(WORDS)})
    transition = st.dictionaries(SOURCES_AND_TARGET, RULES, min_size=1, max_size=1)
    return draw(
        st.fixed_dictionaries(
            {
                "kind": st.just(kind.value),
                "states": st.dictionaries(NAMES, states(), min_size=1, max_size=3),
                "transitions": st.lists(transition, min_size=1, max_size=3),
            },
            optional={
                "signals": st.builds(lambda bound, named: {**bound, **named}, bindings, by_name),
                "fallbacks": st.dictionaries(signals, signals, max_size=3),
            },
        )
    )


LIFECYCLES = st.fixed_dictionaries(
    {"lifecycle": LIFECYCLE_NAMES, "machines": st.dictionaries(NAMES, machines(), min_size=1, max_size=2)},
    optional={"version": st.integers(1, 999_999_999), "title": st.text(min_size=1)},
)


@given(LIFECYCLES)
@settings(max_examples=25, deadline=None)
def test_whatever_the_schema_describes_the_reader_can_read(document: dict[str, Any]) -> None:
    assert VALIDATOR.is_valid(document)
    _, findings = read_lifecycle(json.dumps(document), "mine.yaml")
    assert [str(finding) for finding in findings] == []


@given(st.from_regex(STATES), st.from_regex(RULE["pattern"]), st.from_regex(DEFINITIONS["trigger"]["pattern"]))
@settings(max_examples=20, deadline=None)
def test_whatever_the_patterns_match_the_grammar_can_parse(states: str, rule: str, trigger: str) -> None:
    here = Place("mine.yaml", 1, 1)
    assert parse_moves(Line(states, here), Line(rule, here))
    assert parse_binding(Word("claim", here), Line(trigger, here)).trigger.text in trigger


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=10)
    | st.sampled_from(["", "A -> B", "done", "claim", "worker", "1h"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=10), inner, max_size=2),
    max_leaves=4,
)


def spots_in(node: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in a document at which something can be replaced: a mapping or list, and the key or index in it."""
    for key in list(node) if isinstance(node, dict) else range(len(node)):
        yield node, key
        if isinstance(node[key], dict | list):
            yield from spots_in(node[key])


@given(where=st.integers(0), value=ANYTHING, rename=st.booleans())
@settings(max_examples=80, deadline=None)
def test_whatever_the_schema_lets_through_the_reader_can_read(where: int, value: Any, *, rename: bool) -> None:
    document = lifecycle(version=1, title="My own")
    spots = list(spots_in(document))
    parent, key = spots[where % len(spots)]
    if rename and isinstance(parent, dict):
        parent[str(value)] = parent.pop(key)
    else:
        parent[key] = value
    assert reader_accepts(document) or not VALIDATOR.is_valid(document)
