"""What the documentation says is true: its commands run, its files load, its generated parts are fresh."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from tests.rows import each_row
from tests.system.examples.terminal import EXAMPLES, copy_example, open_terminal, read_commands

from pointsman import kernel, load_lifecycle

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BIN = Path(sys.executable).parent
STOPS = r"Finishing running tasks|No task is running"
"""A worker that was sent SIGTERM, with or without tasks."""


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def run(command: str, directory: Path) -> subprocess.CompletedProcess[bytes]:
    program, *arguments = shlex.split(command, comments=True)
    assert program == "pointsman", command
    return subprocess.run([BIN / program, *arguments], cwd=directory, capture_output=True, check=False, timeout=60)


class Session:
    """A folder in which a reader types what a page says."""

    def __init__(self, folder: Path, **replacements: str) -> None:
        self.folder = folder
        self._replacements = replacements

    def type(self, block: str) -> str:
        """One shell for each block. Every command ends with 0, or as the comment behind it says."""
        lines = []
        for line in block.splitlines():
            assert line.startswith("$ "), line
            command = line[2:]
            for old, new in self._replacements.items():
                command = command.replace(old, new)
            expected = re.search(r"# exit code (\d)", line)
            code = expected[1] if expected else "0"
            lines += [command, f"code=$?; [ $code = {code} ] || {{ echo {shlex.quote(line)} ended with $code; exit 99; }}"]
        # Nobody is left running, whatever goes wrong.
        script = "\n".join(["trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT", *lines])
        result = subprocess.run(
            ["bash", "-c", script],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=240,
            env=os.environ | {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "NO_COLOR": "1"},
        )
        assert result.returncode == 0, result.stdout
        return result.stdout

    def ask(self, command: str) -> Any:
        return json.loads(run(f"{command} --json", self.folder).stdout)


def on_free_port() -> dict[str, str]:
    """What to replace in commands, so that several servers can run on this machine."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    return {"pointsman up &": f"pointsman up --port {port} &", ":8642": f":{port}"}


def find_lines(expected: str, output: str) -> None:
    """Every line of what a page shows is there, in this order; `…` stands for anything."""
    rest = output
    for line in expected.splitlines():
        pattern = r"[^\n]*".join(re.escape(part) for part in line.split("…"))
        found = re.search(rf"^{pattern}[^\S\n]*$", rest, re.MULTILINE)
        assert found, f"{line!r} is not in:\n{rest}"
        rest = rest[found.end() :]


# The flow is known to run when its worker has written down two processes, however slow the machine is.
BOTH_RUN = "until [ $(cat .pointsman/workers/*.jsonl 2>/dev/null | wc -l) -ge 3 ]; do sleep 0.1; done; "
URL = "postgresql://user@db.example.org/pointsman"


def test_the_readme_goes_as_it_says(tmp_path: Path, postgres_url: str) -> None:
    flow, with_agent = blocks(ROOT / "README.md", "yaml")
    (tmp_path / "agent.yaml").write_text(with_agent)
    assert run("pointsman flow check agent.yaml", tmp_path).returncode == 0
    (tmp_path / "flow.yaml").write_text(flow)
    (lifecycle,) = blocks(ROOT / "docs" / "how-to" / "write-a-lifecycle.md", "yaml")
    (tmp_path / "my-lifecycle.yaml").write_text(lifecycle)
    reader = Session(tmp_path, **{"sleep 4; ": BOTH_RUN, URL: shlex.quote(postgres_url), **on_free_port()})
    first, why, kill, _, fleet, http, machines = blocks(ROOT / "README.md", "console")
    assert "cannot open south.txt" in reader.type(first)
    assert "words: [4,5]" in reader.type(why).replace(", ", ",")
    reader.type(kill)
    attempts = {task["name"]: task["attempts"] for task in reader.ask("pointsman status latest")["tasks"]}
    assert attempts == {"count": 1, "count[0]": 2, "count[1]": 2, "report": 1}
    watched, _, served = reader.type(f"{fleet}$ echo next section\n{http}").partition("next section\n")  # in one shell
    assert "words is SUCCEEDED" in watched
    assert len(re.findall(STOPS, watched)) == 2
    assert '"status":"ready"' in served
    assert "words is SUCCEEDED" in served
    assert (tmp_path / "hello.txt").read_text() == "hello\n"
    reader.type(machines)


def test_the_systems_in_the_readme_go_as_it_says(tmp_path: Path) -> None:
    *_, documents, _, _, _ = blocks(ROOT / "README.md", "console")
    go, *commands = [line.removeprefix("$ ").partition("  #")[0].strip() for line in documents.splitlines()]
    assert go == "cd examples/documents"
    with open_terminal(copy_example("documents", tmp_path)) as terminal:
        said = terminal.play(commands)
    assert "S_SUCCESS  feature: 3 of 3 tasks done" in said
    assert "SUCCEEDED  newsletter: 3 of 3 tasks done" in said


def test_the_page_about_the_five_systems_has_the_commands_of_the_examples() -> None:
    """The tests of the examples type them."""
    typed = blocks(ROOT / "docs" / "how-to" / "run-the-five-systems.md", "console")
    flows = ("supervised", "pipeline", "orchestrated", "approval", "agent")
    for flow, block in zip(flows, typed, strict=True):
        commands = [re.sub(r"  +#.*", "", line.removeprefix("$ ")) for line in block.splitlines()]
        assert commands == read_commands(EXAMPLES / "documents" / f"{flow}.yaml")


def test_the_tutorial_of_flows_goes_as_it_says(tmp_path: Path) -> None:
    reader = Session(tmp_path)
    page = (ROOT / "docs" / "tutorial" / "your-first-flow.md").read_text("utf-8")
    output = ""
    steps = re.findall(r"^```(\w+)\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(steps) > 10
    for language, text in steps:
        match language:
            case "yaml":
                (tmp_path / "flow.yaml").write_text(text)
            case "console":
                output = reader.type(text)
            case "text":
                find_lines(text, output)
            case other:
                raise AssertionError(other)


def test_the_page_about_many_machines_goes_as_it_says(tmp_path: Path, postgres_url: str) -> None:
    page = ROOT / "docs" / "how-to" / "run-on-many-machines.md"
    (flow,) = blocks(page, "yaml")
    for name in ("flow.yaml", "train.yaml"):
        (tmp_path / name).write_text(
            flow if name == "train.yaml" else "name: hello\ntasks: {greet: {command: [echo, hello]}}\n"
        )
    (tools,) = blocks(page, "toml")
    (tmp_path / "pointsman.toml").write_text(tools)
    reader = Session(tmp_path, **{URL: shlex.quote(postgres_url), "kill %2 ": "kill %2; wait %2 "})
    output = reader.type("".join(blocks(page, "console")))
    assert output.count("train is SUCCEEDED") == 1
    assert re.search(r"(RUNNING|PENDING) → PAUSED", output)
    assert "SUCCEEDED  train: 2 of 2 tasks done" in output
    assert re.search(r"pool-[12]  ✓ greet", output)
    assert len(re.findall(STOPS, output)) == 3


def test_the_page_about_the_server_goes_as_it_says(tmp_path: Path) -> None:
    page = ROOT / "docs" / "how-to" / "run-the-server.md"
    (template,) = blocks(page, "json")
    (tmp_path / "newsletter.json").write_text(template)
    output = Session(tmp_path, **on_free_port()).type("".join(blocks(page, "console")))
    assert output.count("idempotent-replayed: true") == 1
    assert '"text":"Send it?"' in output
    assert "/problems/transition-refused" in output
    assert "\ndrafted\n" in output or "}drafted\n" in output
    assert (tmp_path / "sent.txt").read_text() == "drafted\n"


CLIENT = ROOT / "docs" / "how-to" / "use-the-python-client.md"


def test_the_page_about_the_client_goes_as_it_says(tmp_path: Path) -> None:
    replaced = on_free_port()
    for name, code in zip(("release.py", "greetings.py"), blocks(CLIENT, "python"), strict=True):
        (tmp_path / name).write_text(code.replace(":8642", replaced[":8642"]))
    (played,) = blocks(CLIENT, "console")
    async_too = "$ python release.py\n$ python greetings.py\n"
    said = Session(tmp_path, **replaced).type(played.replace("$ python release.py\n", async_too, 1))
    assert said.count("the build is fine\n") >= 1
    assert len(re.findall(r"^success$", said, re.MULTILINE)) == 2
    assert "hello ada\nhello grace\n" in said
    assert (tmp_path / "published.txt").read_text() == "built\n"


def test_the_page_about_worktrees_goes_as_it_says(tmp_path: Path) -> None:
    session = Session(tmp_path)
    merged, kept = (session.type(block) for block in blocks(ROOT / "docs" / "how-to" / "work-in-worktrees.md", "console"))
    assert "Merge greet" in merged
    assert merged.endswith("hello\nworld\n")
    assert re.search(r"half: a +dirty", kept)
    assert "half is merged into main (1 file)" in kept
    assert (tmp_path / "greeting.txt").read_text() == "hello\nworld\nhalf\n"


AGENTS = ROOT / "docs" / "how-to" / "run-coding-agents.md"


def list_commands(block: str) -> list[str]:
    return [re.sub(r"  +#.*", "", line.removeprefix("$ ")) for line in block.splitlines()]


def test_the_page_about_agents_goes_as_it_says(tmp_path: Path) -> None:
    played, _, _ = blocks(AGENTS, "console")
    (tmp_path / "examples").symlink_to(EXAMPLES)
    with open_terminal(tmp_path, f"sqlite:///{tmp_path}/feature/.pointsman/state.db") as terminal:
        said = terminal.play(list_commands(played))
    assert "Should Fahrenheit replace Celsius, or stand beside it?" in said
    assert re.search(r"implement +BUDGET_EXCEEDED", said)
    assert re.search(r"reject +\S+ +One decimal is enough", said)
    assert "Merge feature" in said


def test_a_real_agent_is_called_as_the_page_about_agents_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program called `claude` in the PATH stands for the real one."""
    project = copy_example("agents", tmp_path)
    real, _ = blocks(AGENTS, "toml")
    (project / "pointsman.toml").write_text(real)
    (tmp_path / "bin").mkdir()
    claude = tmp_path / "bin" / "claude"
    called = f'echo "${{ANTHROPIC_API_KEY}} $@" >> {tmp_path}/called; exec python3 {project}/scripted_claude.py "$@"'
    claude.write_text(f"#!/bin/sh\n{called}\n")
    claude.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "key-of-a-test")
    (project / "one.yaml").write_text("name: one\ntasks: {a: {agent: claude, prompt: Write show() in temperature.py}}\n")
    Session(project).type("$ pointsman run one.yaml")
    assert (tmp_path / "called").read_text().startswith("key-of-a-test -p --output-format=stream-json")
    assert "°F" in (project / "temperature.py").read_text("utf-8")


def test_another_agent_is_added_as_the_page_about_agents_says(tmp_path: Path) -> None:
    (program,), (flow,) = blocks(AGENTS, "sh"), blocks(AGENTS, "yaml")
    _, settings = blocks(AGENTS, "toml")
    for name, text in (("smith", program), ("paint.yaml", flow), ("pointsman.toml", settings)):
        (tmp_path / name).write_text(text)
    _, painted, _ = blocks(AGENTS, "console")
    with open_terminal(tmp_path) as terminal:
        said = terminal.play(list_commands(painted))
    assert "green\npaint: fence needs an answer" in said
    assert re.search(r"desk +person_needed +delivered", said)


async def test_an_agent_of_a_person_gets_the_tools_that_the_page_about_agents_names(tmp_path: Path) -> None:
    """`claude mcp add` is typed where `claude` only notes the server; a public client then starts that server."""
    *_, registered = blocks(AGENTS, "console")
    for command, changes in zip(list_commands(registered), (True, False), strict=True):
        add, _, server = command.partition(" -- ")
        assert add.startswith("claude mcp add pointsman")
        program, *arguments = server.split()
        environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
        parameters = StdioServerParameters(command=program, args=arguments, cwd=tmp_path, env=environment)
        async with stdio_client(parameters) as (received, sent), ClientSession(received, sent) as session:
            await session.initialize()
            names = {tool.name for tool in (await session.list_tools()).tools}
        assert names == {"list", "inspect", "logs", "inbox"} | ({"submit", "decide"} if changes else set())


def test_the_page_about_notifications_goes_as_it_says(tmp_path: Path) -> None:
    page = ROOT / "docs" / "how-to" / "get-notified.md"
    Session(tmp_path).type("".join(blocks(page, "console")))
    assert (tmp_path / "events.txt").read_text().splitlines() == ["release: gate needs approval", "release: SUCCEEDED"]
    (settings,), (flow,) = blocks(page, "toml"), blocks(page, "yaml")
    (tmp_path / "pointsman.toml").write_text(settings)
    (tmp_path / "nightly.yaml").write_text(flow)
    shown = json.loads(run("pointsman config show --json", tmp_path).stdout)["notify"]
    assert {name: target["webhook_env"] for name, target in shown.items()} == {"chat": "CHAT_URL", "desk": None}
    assert run("pointsman flow check nightly.yaml", tmp_path).returncode == 0


def test_the_page_about_lifecycles_goes_as_it_says(tmp_path: Path) -> None:
    page = ROOT / "docs" / "how-to" / "write-a-lifecycle.md"
    (lifecycle,) = blocks(page, "yaml")
    (tmp_path / "release.yaml").write_text(lifecycle)
    Session(tmp_path).type("".join(blocks(page, "console")))
    assert (tmp_path / "release.svg").read_text().startswith("<svg")
    assert load_lifecycle(tmp_path / "release.yaml").name == "release"


def test_the_tutorial_goes_as_it_says(tmp_path: Path) -> None:
    page = ROOT / "docs" / "tutorial" / "your-first-lifecycle.md"
    broken, answer = blocks(page, "yaml")
    (log,) = blocks(page, "json")
    (tmp_path / "door.yaml").write_text(broken)
    check = run("pointsman machine check door.yaml", tmp_path)
    assert check.returncode == 1
    assert sorted(re.findall(r"\[([a-z-]+)\]$", check.stdout.decode(), re.MULTILINE)) == ["uncovered-signal", "unknown-guard"]
    (tmp_path / "door.yaml").write_text(broken.replace("reachd", "reached") + answer)
    (tmp_path / "door.jsonl").write_text(log)
    commands = [line[2:] for block in blocks(page, "console") for line in block.splitlines()]
    *before, validate = commands
    for command in before:
        result = run(command, tmp_path)
        assert result.returncode == 0, f"{command}: {result.stdout.decode()}{result.stderr.decode()}"
    result = run(validate, tmp_path)
    assert result.returncode == 1
    assert re.findall(r"^door.jsonl:(\d+):1: .*\[([a-z-]+)\]$", result.stdout.decode(), re.MULTILINE) == [("2", "continuity")]


@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks(page, "python") and page != CLIENT], ids=lambda page: str(page.relative_to(ROOT))
)
def test_python_in_the_documentation_runs(page: Path, tmp_path: Path) -> None:
    code = "\n".join(blocks(page, "python"))
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, text=True, timeout=60, cwd=tmp_path)
    assert result.returncode == 0, result.stderr


def test_the_answers_that_the_readme_gives_are_the_machines() -> None:
    (code,) = blocks(ROOT / "README.md", "python")
    names: dict[str, object] = {}
    exec(code, names)
    answers = re.findall(r"^(machine\.\S+\(.*\))  # (\(.*\)|True|False)$", code, re.MULTILINE)
    assert len(answers) == 3
    for question, answer in answers:
        assert repr(eval(question, names)) == answer


@each_row("page", PAGES)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text("utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_what_is_generated_is_fresh() -> None:
    result = subprocess.run(
        [sys.executable, ROOT / "docs" / "generate.py", "--check"], capture_output=True, check=False, text=True
    )
    assert result.returncode == 0, f"{result.stdout}{result.stderr}\nRun `make docs`."


def test_every_verification_rule_is_documented() -> None:
    page = (ROOT / "docs" / "reference" / "lifecycle-files.md").read_text("utf-8")
    sources = "".join(file.read_text("utf-8") for file in Path(kernel.__file__).parent.rglob("*.py"))
    rules = set(re.findall(r'(?:Finding|report)\(\s*"([a-z-]+)"', sources)) | {
        f"unknown-{what}" for what in re.findall(r'_unknown\("([a-z]+)"', sources)
    }
    assert len(rules) > 25
    assert not {rule for rule in rules if f"`{rule}`" not in page}


def test_the_benchmarks_have_figures_and_say_how_to_get_them_again() -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text("utf-8")
    figures = page.partition("<!-- bench/kernel.py -->")[2].partition("<!-- end of bench/kernel.py -->")[0]
    for title in ("One move with a guard", "One line of a log", "Memory of the validator", "The start of the program"):
        assert f"### {title}" in figures
    assert "make bench" in page
