"""Coding agents on the command line: one that the settings describe, what people read of an agent, and what it cannot do."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from tests.rooms.cli.scene import Scene
from tests.rooms.cli.terminal import OnTerminal
from tests.rooms.worker.stand_in import Claude, Codex, StandIn, out
from tests.system.faults.project import Project, until

from pointsman.cli import main
from pointsman.worker.log import log_parts

SAYS = Claude()
SETTINGS = """
[agents.scribe]
command = ["./scribe", "--file={prompt_file}", "--folder={folder}"]
prompt = "file"
model = ["--model={model}"]
resume = ["--session={session}"]
plan = ["--read-only"]
edit = ["--write"]
session = "hello: session.id"
text = "say: words.0"
tool = "call: name"
tokens_in = "use: tokens.in"
tokens_out = "use: tokens.out"
result = "bye: answer"
error = "bye: error"

[prices."scribe-1"]
input = 10
output = 100
"""
SCRIBE = """\
#!{python} -SE
import json, os, sys
options = dict(word.lstrip("-").partition("=")[::2] for word in sys.argv[1:])
message = open(options["file"]).read()
with open("calls.jsonl", "a") as file:
    print(json.dumps([options, message]), file=file)
def tell(**event):
    print(json.dumps(event), flush=True)
tell(type="hello", session={"id": "sc-1"})
print("a line of its own")
tell(type="unknown", words=["never shown"])
tell(type="say", words=["I have read it."])
tell(type="call", name="pencil")
tell(type="use", tokens={"in": 1000, "out": 100})
tell(type="use", tokens={"in": -1, "out": "many"})
if "bad" in message:
    tell(type="bye", error="no ink")
elif "session" not in options:
    open(os.environ["POINTSMAN_QUESTION"], "w").write("Which colour?")
    tell(type="bye", answer="")
else:
    tell(type="bye", answer=f"written in {message}")
"""
FLOW = """
name: f
tasks:
  letter: {agent: scribe, model: scribe-1, permissions: plan, prompt: "A letter"}
  free: {agent: codex, prompt: x, model: new, budget_usd: 1}
"""
BAD = "{name: bad, tasks: {bad: {agent: scribe, prompt: 'a bad letter'}, none: {agent: claude, prompt: x}}}"
HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202eevil\x1b[35m!"
MARKS = ("\x1b]0;", "\x07", "\x1b[2J", "\x9b", "\u202e", "\x1b[35m!")
"""What must never reach a terminal."""


def test_an_agent_that_the_settings_describe_does_everything_that_others_do(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    codex, says = StandIn(tmp_path, "codex"), Codex()
    codex.plan([out(*says.begin("s-1"), *says.succeed("done"))])
    monkeypatch.setenv("PATH", f"{codex.bin}:/usr/bin:/bin")
    for name, text in (("pointsman.toml", SETTINGS), ("flow.yaml", FLOW), ("bad.yaml", BAD), ("scribe", SCRIBE)):
        (tmp_path / name).write_text(text.replace("{python}", sys.executable))
    (tmp_path / "scribe").chmod(0o755)
    with scene.start(f"run {tmp_path / 'flow.yaml'}") as run:
        while not (tmp_path / ".pointsman/state.db").exists() or not scene.call("inbox --json").json:
            assert run.poll() is None
        answered = scene.call_anywhere("answer -C", str(tmp_path), "latest", "letter", "--", "--red\n'ink'")
        _, said = run.communicate()
    assert (answered.code, run.returncode) == (0, 0), said
    assert 'free: the budget cannot hold for codex: it reports tokens but no cost. Add [prices."new"] to pointsman.toml' in said
    first, second = [json.loads(line) for line in (tmp_path / "calls.jsonl").read_text().splitlines()]
    assert first[1].startswith("A letter\n\nNobody watches this run.")
    assert (first[0]["model"], "read-only" in first[0], "session" in first[0]) == ("scribe-1", True, False)
    assert (second[1], second[0]["session"]) == ("--red\n'ink'", "sc-1")
    shown = "a line of its own\nI have read it.\n→ pencil\nwritten in --red\n'ink'\n✓ done\n"
    assert scene.call("logs latest letter").out == shown
    assert '{"type": "unknown", "words": ["never shown"]}\n' in scene.call("logs latest letter --raw").out
    task = next(each for each in scene.call("status latest --json").json["tasks"] if each["name"] == "letter")
    assert (task["cost_usd"], task["cost_is_estimated"], task["tokens_in"], task["tokens_out"]) == ("0.04", True, 2000, 200)
    assert "estimated, 2,100 tokens in, 220 out" in scene.call("status latest").out
    assert [each["tokens_in"] for each in scene.call("history latest letter --json").json["attempts"]] == [1000, 1000]
    assert "0.02 USD, estimated, 1,000 tokens in, 100 out" in scene.call("history latest letter").out
    budget = scene.call("budget").out
    assert "0.04 USD spent (estimated, 2,100 tokens in, 220 out)" in budget
    assert "letter          0.04 (estimated)" in budget
    failed = scene.call(f"run {tmp_path / 'bad.yaml'}")
    assert "reported an error: no ink (exit code 0)" in failed.err
    assert "no ink" in scene.call("logs latest bad").out
    assert (
        "'claude' is not in the PATH of this worker; install it with `npm install -g @anthropic-ai/claude-code`" in failed.err
    )


def test_text_of_an_agent_never_commands_the_terminal_of_those_who_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claude = StandIn(tmp_path, "claude")
    monkeypatch.setenv("PATH", f"{claude.bin}:/usr/bin:/bin")
    go = tmp_path / "go"
    claude.plan(
        [
            ("hear", 0),
            out(*SAYS.begin("s-1"), SAYS.say(f"text {HOSTILE}"), SAYS.call("Bash", f"ls -l {HOSTILE}"), SAYS.answer(HOSTILE)),
            ("out", f"no JSON {HOSTILE}\n"),
            ("err", f"stderr {HOSTILE}\n"),
            ("until", str(go)),
            ("write", ("POINTSMAN_QUESTION", f"Which? {HOSTILE}")),
            out(*SAYS.succeed("asked")),
        ],
        [("hear", 0), out(*SAYS.begin("s-1"), *SAYS.fail(f"boom {HOSTILE}"))],
    )
    project = Project(tmp_path)
    project.write_flow("name: f\ntasks: {a: {agent: claude, prompt: Do it}}")
    received = []
    with closing(OnTerminal("run", "flow.yaml", cwd=tmp_path, lines=20, columns=150)) as run:
        run.until(lambda shown: "→ Bash: ls -l \\u001b" in shown)
        go.touch()
        run.until(lambda shown: "Which?" in shown)
        for words in (("status", "latest"), ("inbox", "--list"), ("logs", "latest"), ("logs", "latest", "a", "--raw")):
            with closing(OnTerminal(*words, cwd=tmp_path, lines=50, columns=300)) as command:
                command.wait()
                received.append(command.received)
        assert main(["answer", "-C", str(tmp_path), "latest", "a", "red"]) == 0
        assert run.wait() == 1
        received.append(run.received)
    piped, *received = [project_output(tmp_path, "status", "latest"), *received]
    status, inbox, logs, raw, live = received
    assert "boom \\u001b]0;owned" in piped, "what is piped often ends at a terminal, too"
    assert [mark for mark in MARKS if mark in piped] == []
    assert "Which? \\u001b]0;owned" in status
    assert "Which? \\u001b]0;owned" in inbox
    assert "text \\u001b]0;owned" in logs
    assert "no JSON \\u001b]0;owned" in logs
    assert "stderr \\u001b]0;owned" in logs
    assert '"type": "assistant"' in raw
    assert "boom \\u001b]0;owned" in live
    assert [mark for mark in MARKS for text in received if mark in text] == []


def project_output(folder: Path, *words: str) -> str:
    """What a command prints into a pipe."""
    command = [sys.executable, "-m", "pointsman", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=60).stdout


async def test_a_line_of_100_mb_takes_no_memory_and_the_agent_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claude = StandIn(tmp_path, "claude")
    monkeypatch.setenv("PATH", f"{claude.bin}:/usr/bin:/bin")
    first, second = tmp_path / "first", tmp_path / "second"
    claude.plan(
        [
            ("hear", 0),
            out(*SAYS.begin("s-1")),
            ("until", str(first)),
            ("huge", 1600),
            out("", SAYS.say("still here")),
            ("until", str(second)),
            out(*SAYS.succeed("done")),
        ]
    )
    project = Project(tmp_path)
    project.write_flow("name: f\ntasks: {a: {agent: claude, prompt: Do it}}")
    async with project.start("run", "flow.yaml", log_bytes="8 MB") as run:
        await run.until(lambda: bool(claude.calls))
        before = _peak(run.pid)
        first.touch()
        (log,) = await until(lambda: list((tmp_path / ".pointsman/logs").glob("*/a/1.log")))
        await run.until(lambda: b"still here" in log_parts(log)[-1].read_bytes())
        grown = _peak(run.pid) - before
        second.touch()
        assert await run.wait() == 0, run.said
    assert grown < 40_000_000
    logs = await project.show("logs", "latest", "a")
    skipped = "! (a line of more than 1,048,576 bytes: see --raw)\n"
    assert logs.endswith(f"{skipped}still here\ndone\n✓ done\n")
    assert "xx" not in logs


def _peak(pid: int) -> int:
    """The most memory that a process has had, in bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))) * 1024
