"""A folder with an example in it, and a shell in which a reader types what its first lines say."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pointsman import app
from pointsman.store.contract import Wakeup
from pointsman.views.inbox import list_inbox

EXAMPLES = Path(__file__).parents[3] / "examples"
BIN = Path(sys.executable).parent
DECIDES = {"approve": "approval", "answer": "answer", "accept": "review", "reject": "review", "start": "start"}
"""What a command decides, by the kind of waiting that it ends."""
PATIENCE_SECONDS = 120
LOOK_SECONDS = 1.0
END = "the command has ended with"


def read_commands(flow: Path) -> list[str]:
    """The commands of the first block of a comment, without their remarks."""
    comment = flow.read_text("utf-8").partition("\nname:")[0]
    block = re.search(r"(?:^#     .*\n)+", comment, re.MULTILINE)
    assert block, flow
    return [re.sub(r"  +#.*", "", line.removeprefix("#     ")) for line in block[0].splitlines()]


def copy_example(name: str, folder: Path) -> Path:
    left_behind = shutil.ignore_patterns(".pointsman", ".state", "build", "__pycache__")
    return Path(shutil.copytree(EXAMPLES / name, folder / "project", ignore=left_behind))


class Terminal:
    """A shell whose commands end with 0; before a decision, it waits until there is something to decide."""

    def __init__(self, folder: Path, url: str, shell: subprocess.Popen[str]) -> None:
        self.folder, self.url = folder, url
        self._shell = shell

    def play(self, commands: list[str]) -> str:
        output = ""
        for at, command in enumerate(commands):
            if command.startswith("pointsman inbox"):
                self._await(next(filter(_decision, commands[at:])))
            elif _decision(command):
                self._await(command)
            output += self.type(command)
        return output

    def type(self, command: str) -> str:
        assert self._shell.stdin
        assert self._shell.stdout
        print(f"{command}\necho '{END}' $?", file=self._shell.stdin, flush=True)
        lines = []
        for line in self._shell.stdout:
            before, ended, code = line.partition(END)
            lines.append(before)
            if ended:
                assert int(code) == 0, f"{command}:\n{''.join(lines)}"
                return "".join(lines)
        raise AssertionError(f"the shell is gone: {''.join(lines)}")

    def _await(self, command: str) -> None:
        """Wait for what a command decides: about one task, or whatever waits for such a decision."""
        decision, _, task = command.split()[1:4]
        self.type("until [ -d .pointsman/runs ]; do sleep 0.1; done")
        asyncio.run(self._await_item(None if task.startswith("-") else task, DECIDES[decision]))

    async def _await_item(self, task: str | None, kind: str) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS), app.open(self.url, keeps=False) as engine:
            moved = asyncio.Event()
            stop = engine.listen(Wakeup.EVENTS, moved.set)
            while not any(
                item.waiting.kind == kind and task in (None, item.task) for item in await list_inbox(engine, await engine.now())
            ):
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_SECONDS):
                        await moved.wait()
                moved.clear()
            stop()

    def journal(self) -> list[dict[str, Any]]:
        lines = (self.folder / ".state" / "transitions.jsonl").read_text("utf-8").splitlines()
        return [json.loads(line) for line in lines]

    def path(self, machine: str) -> list[str]:
        """Every state of the first entity that follows a machine."""
        moves = [line for line in self.journal() if line["metadata"]["machine"] == machine]
        return [line["to_state"] for line in moves if line["entity_id"] == moves[0]["entity_id"]]


def _decision(command: str) -> str | None:
    word = command.split()[1] if command.startswith("pointsman ") else ""
    return word if word in DECIDES else None


@contextmanager
def open_terminal(folder: Path, url: str | None = None) -> Iterator[Terminal]:
    store = {} if url is None else {"POINTSMAN_STORE": url}
    environment = os.environ | {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "NO_COLOR": "1"} | store
    with subprocess.Popen(
        ["bash"],
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    ) as shell:
        assert shell.stdin
        try:
            yield Terminal(folder, url or f"sqlite:///{folder}/.pointsman/state.db", shell)
        finally:
            print("kill $(jobs -p) 2>/dev/null; wait; exit", file=shell.stdin, flush=True)
            shell.stdin.close()
