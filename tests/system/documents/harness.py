"""Scenarios of the five documents: a flow file, and the command line that takes it through the rows of a document.

A scenario claims rows of transition tables and rows of recovery tables, and then plays them with real processes:

    SCENARIOS = Scenarios("pipeline", recovery=("2: a failed step does not retry", …))

    @SCENARIOS.add(
        "step: S_PENDING -> S_RUNNING : dependencies_met",
        "step: S_RUNNING -> S_FAILED : failure",
        recovery=("2: a failed step does not retry",),
    )
    def a_failed_step_is_reset(project: Project) -> None:
        project.write_flow("…")
        said = project.call("run", "flow.yaml", code=1)
        project.follow(said, "reset")
        …

`play` ends every scenario in the same way: no process is left, the journal has the claimed rows and every transition of the
database, `pointsman validate` accepts it, `doctor` finds only what the scenario expects, and `doctor --audit` nothing.
`check_coverage` fails if any row of a document has neither a scenario nor a reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.databases import postgres_database, registered_sqlite_url
from tests.system.faults.project import find_work
from tests.system.faults.prompt import prompt
from tests.system.server.harness import start

from pointsman import app
from pointsman.cli import main
from pointsman.engine.submit import NewRun
from pointsman.lifecycles import load_lifecycle
from pointsman.worker.process_table import Process

PLACES = ("sqlite", "postgres", "server")
"""Where the runs are: in a database, or on a server."""
PATIENCE_SECONDS = 90
"""Machines are shared: nothing here has to be quick, only to happen."""
WORKING = ("run", "resume", "worker", "logs")
"""Commands that run tasks, or write bytes: these need a process of their own."""
HINT = re.compile(r"(?:^|: ) *(pointsman [^#\n]*?)(?: *#.*)?$", re.MULTILINE)
ROW = re.compile(r"([\w.]+): (.+) -> (\S+) : (\w+)")

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True, order=True)
class Row:
    """One row of a transition table."""

    machine: str
    from_state: str
    to_state: str
    trigger: str

    @property
    def as_stored(self) -> Row:
        """A tool has one breaker, whatever the lifecycle of the tasks that use it."""
        return replace(self, machine="standard.breaker") if self.machine.endswith(".breaker") else self

    def __str__(self) -> str:
        return f"{self.machine}: {self.from_state} -> {self.to_state} : {self.trigger}"


def read_rows(lifecycle: str, text: str) -> list[Row]:
    """Read `machine: FROM, FROM -> TO : trigger`; `machine` may belong to another lifecycle: `standard.worker: …`."""
    matched = ROW.fullmatch(text)
    assert matched, text
    machine, from_states, to_state, trigger = matched.groups()
    name = machine if "." in machine else f"{lifecycle}.{machine}"
    return [Row(name, from_state, to_state, trigger).as_stored for from_state in from_states.split(", ")]


@dataclass(frozen=True, slots=True)
class Said:
    """What a command has answered."""

    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        return self.out + self.err

    def hint(self, command: str) -> list[list[str]]:
        """The words of the first suggestion that begins with a command: several commands if they are joined by `&&`."""
        hints = [hint for hint in HINT.findall(self.text) if hint.startswith(f"pointsman {command}")]
        assert hints, (command, self.text)
        return [shlex.split(part)[1:] for part in hints[0].split(" && ")]


Play = Callable[["Project"], None]


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    rows: frozenset[Row]
    recovery: frozenset[str]
    findings: tuple[str, ...]
    play: Play
    breaks_database: bool = False
    """It damages the database so that its user fails, which is the server, and no worker, where there is one."""


@dataclass(slots=True)
class Scenarios:
    """The scenarios of one document, and the rows that nobody can reach from the command line, with the reason."""

    lifecycle: str
    recovery: tuple[str, ...]
    unreachable: Mapping[str, str] = field(default_factory=dict)
    machines: tuple[str, ...] = ()
    """Those that this is about, where it is not about all machines of the file."""
    scenarios: list[Scenario] = field(default_factory=list)

    def add(
        self, *rows: str, recovery: tuple[str, ...] = (), findings: tuple[str, ...] = (), breaks_database: bool = False
    ) -> Callable[[Play], Play]:
        """Claim rows; `findings` are patterns for what the doctor finds in the end, one for each finding."""

        def declare(play: Play) -> Play:
            claimed = frozenset(row for text in rows for row in read_rows(self.lifecycle, text))
            scenario = Scenario(play.__name__, claimed, frozenset(recovery), findings, play, breaks_database)
            self.scenarios.append(scenario)
            return play

        return declare

    def each_place(self) -> list[Any]:
        """Every scenario at every place, as parameters of a test."""
        return [
            pytest.param(scenario, place, id=f"{scenario.name}-{place}")
            for scenario in self.scenarios
            for place in PLACES
            if not (scenario.breaks_database and place == "server")
        ]

    def check_coverage(self) -> None:
        """Every row of every machine in the file of the lifecycle, and of the recovery table, has a scenario or a reason."""
        declared = {
            Row(machine.name, move.from_state, move.to_state, move.trigger).as_stored
            for machine in load_lifecycle(self.lifecycle).machines
            if not self.machines or machine.name.rpartition(".")[2] in self.machines
            for move in machine.transitions
        }
        machines = {row.machine for row in declared}
        claimed = {row for scenario in self.scenarios for row in scenario.rows if row.machine in machines}
        excused = {row for text in self.unreachable.keys() - set(self.recovery) for row in read_rows(self.lifecycle, text)}
        assert not claimed & excused
        assert claimed | excused == declared, sorted(map(str, (claimed | excused) ^ declared))
        recovered = {row for scenario in self.scenarios for row in scenario.recovery}
        assert recovered == set(self.recovery) - self.unreachable.keys(), recovered ^ set(self.recovery)


class Project:
    """A project in its own folder, with processes of the command line."""

    def __init__(self, folder: Path, url: str, server: Server | None = None) -> None:
        self.folder = folder
        self.url = url
        self.server = server
        """What has the runs, and is all that the command line knows."""
        self._started: list[subprocess.Popen[bytes]] = []

    # Commands

    def write_flow(self, text: str, name: str = "flow.yaml") -> None:
        self.write(name, text)

    def write(self, name: str, text: str = "") -> None:
        (self.folder / name).write_text(text)

    def call(self, *arguments: str, code: int = 0, stdin: str = "") -> Said:
        """Run a command to its end, and check its exit code."""
        if arguments[0] not in WORKING and not stdin:
            return self.read(*arguments, code=code)
        done = subprocess.run(
            [sys.executable, "-m", "pointsman", *arguments],
            cwd=self.folder,
            env=self._environment(),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        return self._check(arguments, Said(done.returncode, done.stdout, done.stderr), code)

    def read(self, *arguments: str, code: int = 0, options: tuple[str, ...] | None = None) -> Said:
        """The same for a command that runs no task: in this process, which saves the start of another one."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            answered = main([*arguments, *(self._options if options is None else options)])
        return self._check(arguments, Said(answered, out.getvalue(), err.getvalue()), code)

    def _check(self, arguments: Sequence[str], said: Said, code: int) -> Said:
        assert said.code == code, (arguments, said)
        assert "Traceback" not in said.text, (arguments, said)
        return said

    def submit(self, flow: str = "flow.yaml", *arguments: str) -> str:
        """Leave a run to workers; returns its id."""
        return self.call("run", flow, "--detach", *arguments).out.strip()

    def announce(self, lifecycle: str) -> str:
        """Submit a run whose tasks are still to come, as only a Python program can; returns its id."""

        async def submit() -> str:
            async with app.open(self.url, keeps=False) as engine:
                return (await engine.submit_run(NewRun(name="announced", lifecycle=lifecycle, task_count=1))).id

        return asyncio.run(submit())

    def start(self, *arguments: str, **settings: object) -> Command:
        """Start a command, with settings from its environment. `play` kills it in the end if it still runs."""
        said = self.folder / f"said-{len(self._started)}.txt"
        with said.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "pointsman", *arguments],
                cwd=self.folder,
                env=self._environment(**settings),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )
        self._started.append(process)
        return Command(process, said)

    def follow(self, said: Said, command: str, *arguments: str, code: int = 0) -> Said:
        """Execute the hint that begins with a command, as it was printed, and check its exit code."""
        *before, last = said.hint(command)
        for words in before:
            self.call(*words)
        return self.call(*last, *arguments, code=code)

    def start_hint(self, said: Said, command: str) -> Command:
        """The same for a hint that goes on until it is stopped."""
        (words,) = said.hint(command)
        return self.start(*words)

    # What a person sees

    def expect(self, run_state: str, run: str = "latest", **tasks: str) -> Said:
        """`status` shows these states of the run and of its tasks."""
        said = self.read("status", run)
        assert re.search(rf"^\S+ +{re.escape(run_state)}( |$)", said.out.splitlines()[0]), said.out
        for name, state in tasks.items():
            assert re.search(rf"^ *{re.escape(name)} +{re.escape(state)}( |$)", said.out, re.MULTILINE), said.out
        return said

    def wait_for(self, run_state: str, run: str | None = None, **tasks: str) -> None:
        """Until the database has these states of a run (the latest, unless it is named) and of its tasks."""
        expected = {"": run_state, **tasks}
        until(lambda: expected.items() <= self.states(run).items(), lambda: f"{expected} {self.states(run)} {self.said}")

    def wait_for_attempt(self, task: str, number: int) -> None:
        """Until that attempt of a task of the latest run has begun."""
        sql = "SELECT epoch FROM task WHERE run_id = :run AND name = :task"
        until(lambda: self.ask(sql, run=self.latest_run(), task=task) >= [(number,)], lambda: self.said)

    def end_work(self) -> None:
        """Kill what workers that were killed have left."""
        for process in self.find_work():
            os.kill(process.pid, signal.SIGKILL)
        until(lambda: not self.find_work())

    def find_work(self) -> list[Process]:
        """Every process that tasks have started."""
        return [process for (run_id,) in self.ask("SELECT id FROM run") for process in find_work(run_id)]

    def states(self, run: str | None = None) -> dict[str, str]:
        """The state of a run, as that of '', and those of its tasks by name."""
        asked = run or self.latest_run()
        found = self.ask("SELECT '', state FROM run WHERE id = :run", run=asked)
        return dict(found + self.ask("SELECT name, state FROM task WHERE run_id = :run", run=asked))

    def latest_run(self) -> str:
        """Its id; '' as long as there is none."""
        found = self.ask("SELECT id FROM run ORDER BY created_at DESC LIMIT 1")
        return str(found[0][0]) if found else ""

    def workers(self) -> dict[str, str]:
        """The state of each worker by name."""
        return dict(self.ask("SELECT name, state FROM worker"))

    def ask(self, sql: str, **values: Any) -> list[tuple[Any, ...]]:
        """Type SQL, with `:name` for each value."""
        with prompt(self.url) as session:
            return session.ask(sql, **values)

    def ask_without_law(self, table: str, sql: str, **values: Any) -> None:
        """The same with the triggers of a table switched off, as only the owner of the database can."""
        with prompt(self.url) as session, session.lawless(table):
            session.ask(sql, **values)

    @property
    def said(self) -> str:
        """What the started commands have said."""
        return "\n".join(file.read_text("utf-8", "replace") for file in sorted(self.folder.glob("said-*.txt")))

    # The end

    def check(self, scenario: Scenario) -> None:
        for process in self._started:
            assert process.poll() is not None, f"{process.args!r} still runs"
        assert not self.find_work()
        journal = (self.server.folder if self.server else self.folder) / ".state" / "transitions.jsonl"
        if self.server:  # it writes the journal a moment later
            until(lambda: len(read_lines(journal)) >= self.count_transitions())
        events = read_lines(journal)
        assert len(events) == self.count_transitions(), "the journal has every transition"
        seen = {
            Row(event["metadata"]["machine"], event["from_state"], event["to_state"], event["trigger"])
            for event in events
            if event["from_state"] is not None
        }
        assert scenario.rows <= seen, sorted(map(str, scenario.rows - seen))
        self.read("validate", str(journal), options=())
        found = re.findall(r"^\w+ \w+: (.*)$", self.read("doctor", code=1 if scenario.findings else 0).out, re.MULTILINE)
        assert len(found) == len(scenario.findings), found
        for finding, pattern in zip(found, scenario.findings, strict=True):
            assert re.search(pattern, finding)
        self.read("doctor", "--audit")

    def count_transitions(self) -> int:
        return int(self.ask("SELECT count(*) FROM transition")[0][0])

    def stop(self, command: Command) -> None:
        """Stop a process between its transactions: one that stops with a lock stops everybody."""
        with prompt(self.url) as session:
            session.ask("BEGIN IMMEDIATE" if session.dialect == "sqlite" else "BEGIN")
            if session.dialect == "postgres":
                session.ask("LOCK TABLE worker, task IN SHARE ROW EXCLUSIVE MODE")
            command.send(signal.SIGSTOP)
            until(lambda: command.has_stopped)
            session.ask("ROLLBACK")

    def end_processes(self) -> None:
        for process in self._started:
            process.kill()
            process.wait()

    @property
    def _options(self) -> tuple[str, ...]:
        where = ("--server", self.server.url) if self.server else ("--store", self.url)
        return (*where, "-C", str(self.folder))

    def _environment(self, **settings: object) -> dict[str, str]:
        env = {name: value for name, value in os.environ.items() if not name.startswith("POINTSMAN_")}
        env |= {"POINTSMAN_SERVER": self.server.url} if self.server else {"POINTSMAN_STORE": self.url}
        env |= {"POINTSMAN_SLOTS": "2", "POINTSMAN_LEASE_SECONDS": "20"}
        return env | {f"POINTSMAN_{name.upper()}": str(value) for name, value in settings.items()}


class Command:
    """A command in a process of its own."""

    def __init__(self, process: subprocess.Popen[bytes], said: Path) -> None:
        self._process = process
        self._said = said

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    @property
    def has_stopped(self) -> bool:
        states = [file.read_text().rpartition(")")[2].split()[0] for file in Path(f"/proc/{self.pid}/task").glob("*/stat")]
        return set(states) == {"T"}

    @property
    def said(self) -> Said:
        return Said(self._process.poll() or 0, self._said.read_text("utf-8", "replace"), "")

    def wait(self, code: int = 0) -> Said:
        """Until it ends; checks its exit code."""
        answered = self._process.wait(PATIENCE_SECONDS)
        assert answered == code, (self._process.args, self.said)
        return self.said

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def end(self, number: signal.Signals = signal.SIGTERM, code: int = 0) -> Said:
        self.send(number)
        return self.wait(code)

    def kill(self) -> None:
        self.end(signal.SIGKILL, -signal.SIGKILL)


def until(is_so: Callable[[], Answer], describe: Callable[[], object] = lambda: "it does not happen") -> Answer:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (answer := is_so()):
        assert time.monotonic() < deadline, describe()
        time.sleep(0.05)
    return answer


def read_lines(journal: Path) -> list[Any]:
    return [json.loads(line) for line in journal.read_text().splitlines()] if journal.exists() else []


@dataclass(frozen=True, slots=True)
class Server:
    """`pointsman serve` with a project of its own."""

    url: str
    folder: Path


@contextmanager
def serve(folder: Path, database_url: str) -> Iterator[Server]:
    folder.mkdir()
    with start("serve", folder, database_url) as (client, _):
        yield Server(client.url, folder)


def play(scenario: Scenario, folder: Path, place: str) -> None:
    """Play a scenario on a database or a server of its own, and check what it leaves."""
    with ExitStack() as stack:
        postgres = place == "postgres"
        url = stack.enter_context(postgres_database(registered=True)) if postgres else registered_sqlite_url(folder)
        (folder / ".pointsman").mkdir()
        server = stack.enter_context(serve(folder / "server", url)) if place == "server" else None
        project = Project(folder, url, server)
        stack.callback(project.end_processes)
        scenario.play(project)
        project.check(scenario)
