"""The six shipped lifecycles, and loading of any lifecycle by name or file."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from pathlib import Path

from pointsman.errors import LifecycleError, LifecycleUnreadable, UnknownName
from pointsman.kernel.machine import Kind, Lifecycle, Machine
from pointsman.kernel.vocabulary import Vocabulary
from pointsman.lifecycles.files import read_text
from pointsman.lifecycles.packed import read_pack
from pointsman.lifecycles.vocabulary import VOCABULARY

SHIPPED = ("supervised", "pipeline", "orchestrated", "approval", "agent", "standard")
DEFAULT = "standard"
SCHEMA = Path(__file__).with_name("lifecycle.schema.json")


def load_lifecycle(source: str | Path, vocabulary: Vocabulary = VOCABULARY) -> Lifecycle:
    """Load a shipped lifecycle by its name, or any other by the path of its file."""
    if _is_path(source):
        return _load_file(Path(source), vocabulary)
    if str(source) not in SHIPPED:
        raise UnknownName("lifecycle", str(source), SHIPPED)
    return _load_shipped(str(source), vocabulary)


def load_machine(source: str | Path, vocabulary: Vocabulary = VOCABULARY) -> Machine:
    """Load a machine by `lifecycle.machine` or `path/to/file.yaml:machine`."""
    if not _is_path(source):
        return _find_shipped(str(source), vocabulary)
    directory, slash, file = str(source).rpartition("/")
    file, _, name = file.partition(":")
    lifecycle = _load_file(Path(directory + slash + file), vocabulary)
    if name:
        return lifecycle.machine(name)
    if len(lifecycle.machines) > 1:
        ways = " or ".join(f"{source}:{machine.name.partition('.')[2]}" for machine in lifecycle.machines)
        raise LifecycleError(f"{source} has several machines. Name one: {ways}.")
    return lifecycle.machines[0]


def read_lifecycle(text: str) -> Lifecycle:
    """Load a lifecycle from the text of its file."""
    return _build(text, "<text>", VOCABULARY)


def restore_lifecycle(name: str, text: str) -> Lifecycle:
    """Load a lifecycle from the text in the database, which may be older than the current file."""
    return _build(text, f"{name}.yaml as it was stored", VOCABULARY, name if name in SHIPPED else None)


@cache
def machine_names() -> tuple[str, ...]:
    """The names of all shipped machines."""
    return tuple(machine.name for lifecycle in SHIPPED for machine in load_lifecycle(lifecycle).machines)


def _is_path(source: str | Path) -> bool:
    if isinstance(source, Path):
        return True
    return "/" in source or source.partition(":")[0].endswith((".yaml", ".yml"))


def _find_shipped(name: str, vocabulary: Vocabulary) -> Machine:
    lifecycle = name.partition(".")[0]
    machines = _load_shipped(lifecycle, vocabulary).machines if lifecycle in SHIPPED else ()
    for machine in machines:
        if machine.name == name:
            return machine
    raise UnknownName("machine", name, machine_names())


def _load_shipped(name: str, vocabulary: Vocabulary) -> Lifecycle:
    return _read_shipped(name) if vocabulary is VOCABULARY else read_shipped(name, vocabulary)


@cache
def _read_shipped(name: str) -> Lifecycle:
    lifecycle = _unpack_shipped().get(name)
    if lifecycle is None:
        return read_shipped(name)
    declared = {machine.kind for machine in lifecycle.machines}
    borrowed = () if name == DEFAULT else tuple(_read_shipped(DEFAULT).of_kind(kind) for kind in Kind if kind not in declared)
    return replace(lifecycle, borrowed=borrowed)


@cache
def _unpack_shipped() -> dict[str, Lifecycle]:
    return read_pack({name: _shipped_file(name).read_text("utf-8") for name in SHIPPED}, VOCABULARY)


def read_shipped(name: str, vocabulary: Vocabulary = VOCABULARY) -> Lifecycle:
    """A shipped lifecycle from its own file."""
    file = _shipped_file(name)
    return _build(file.read_text("utf-8"), str(file), vocabulary, name)


def _shipped_file(name: str) -> Path:
    return Path(__file__).with_name(f"{name}.yaml")


def _load_file(path: Path, vocabulary: Vocabulary) -> Lifecycle:
    try:
        text = read_text(path)
    except OSError as error:
        raise LifecycleUnreadable(
            f"Cannot read {path}: {error.strerror or error}. Check the path and its permissions."
        ) from None
    except UnicodeDecodeError as error:
        raise LifecycleUnreadable(f"Cannot read {path}: byte {error.start} is not UTF-8. Save it as UTF-8 text.") from None
    except ValueError as error:
        raise LifecycleUnreadable(f"Cannot read {str(path)!a}: {error}. Check the path.") from None
    return _build(text, str(path), vocabulary)


def _build(text: str, file: str, vocabulary: Vocabulary, shipped_as: str | None = None) -> Lifecycle:
    """Every lifecycle but `standard` borrows from it, and only shipped ones may have a shipped name."""
    from pointsman.kernel import load  # late: it imports the YAML parser, which most commands do not need

    borrowed = {} if shipped_as == DEFAULT else {kind: _load_shipped(DEFAULT, vocabulary).of_kind(kind) for kind in Kind}
    return load.load_lifecycle(
        text,
        file=file,
        vocabulary=vocabulary,
        find_machine=partial(_find_shipped, vocabulary=vocabulary),
        borrowed=borrowed,
        taken=() if shipped_as else SHIPPED,
    )
