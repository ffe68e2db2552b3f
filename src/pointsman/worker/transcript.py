"""What people read of an agent's stream: its text, one line for each tool call, and results, without control characters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pointsman.worker.agent import AgentEvent, AgentReader, Finished, Noted, Said, ToolCalled, ToolReturned, decode
from pointsman.worker.lines import LONGEST_LINE, Line, LineSplitter

LONGEST_CALL = 200
LONGEST_RESULT = 300
KEPT = frozenset("\n\t\u200c\u200d")
"""Joiners are part of emoji and of some scripts."""


def printable(text: str) -> str:
    """Text without characters that command a terminal or reorder text: those are shown as `\\u001b`."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in KEPT else _escape(each) for each in text.replace("\r\n", "\n"))


def _escape(character: str) -> str:
    return (
        " " if character.isspace() and character not in "\x1c\x1d\x1e\x1f\x85\u2028\u2029\r\v\f" else f"\\u{ord(character):04x}"
    )


def in_one_line(text: str, longest: int = LONGEST_CALL) -> str:
    line = " ".join(text[: 20 * longest].split())
    return printable(line if len(line) <= longest and len(text) <= 20 * longest else f"{line[:longest]}…")


class Transcript:
    """Turns events into lines."""

    def __init__(self) -> None:
        self._in_text = False
        """The last line may go on."""
        self._last_text = ""

    def write(self, events: Iterable[AgentEvent], line: bytes = b"") -> str:
        """The text of events; if there are none, of the line itself, unless that is an object for programs."""
        found = list(events)
        if not found and line.strip() and decode(line) is None:
            return f"{self._break()}{printable(line.decode('utf-8', 'replace').rstrip())}\n"
        return "".join(piece for event in found for piece in self._write(event))

    def skip(self) -> str:
        """A line that is too long to be read."""
        return f"{self._break()}! (a line of more than {LONGEST_LINE:,} bytes: see --raw)\n"

    def end(self) -> str:
        """The line break that is missing at the end."""
        return self._break()

    def _write(self, event: AgentEvent) -> Iterator[str]:
        match event:
            case Said(text, continues=True):
                self._in_text = True
                yield printable(text)
            case Said(text):
                self._last_text = text.strip()
                yield self._break()
                yield f"{printable(text.strip())}\n" if text.strip() else ""
            case Finished():
                yield self._break()
                yield self._write_end(event)
            case _:
                if line := show_line(event):
                    yield self._break()
                    yield f"{line}\n"

    def _break(self) -> str:
        was_in_text, self._in_text = self._in_text, False
        return "\n" if was_in_text else ""

    def _write_end(self, event: Finished) -> str:
        """The last text is usually the result, and not repeated."""
        if event.error is not None:
            return f"✗ {in_one_line(event.error, LONGEST_RESULT)}\n"
        text = event.text.strip()
        return "✓ done\n" if not text or text == self._last_text else f"{printable(text)}\n✓ done\n"


def show_line(event: AgentEvent) -> str:
    """An event that is one line; empty for those that are none."""
    match event:
        case ToolCalled(name, argument):
            return f"→ {in_one_line(f'{name}: {argument}' if argument else name)}"
        case ToolReturned(text, is_error):
            first = next((line for line in text[:10_000].splitlines() if line.strip()), "")
            more = text.count("\n", 0, 1_000_000)
            suffix = f" (+{more} lines)" if more > 0 and first else ""
            return f"  {'✗' if is_error else '←'} {in_one_line(first) or '(nothing)'}{suffix}"
        case Noted(text):
            return f"! {in_one_line(text)}"
        case _:
            return ""


class TranscriptReader:
    """Turns the log of an agent into the lines of its transcript, as it grows."""

    def __init__(self, reader: AgentReader) -> None:
        self._reader = reader
        self._transcript = Transcript()
        self._splitter = LineSplitter()
        self._rest = ""

    def read(self, blocks: Iterable[bytes], *, to_the_end: bool) -> Iterator[bytes]:
        """Complete lines; at the end also an unfinished one."""
        for block in blocks:
            yield from self._take(self._splitter.feed(block))
        if to_the_end:
            yield from self._take(self._splitter.end())
            if self._rest:
                yield self._rest.encode("utf-8", "replace")
                self._rest = ""

    def _take(self, lines: Iterable[Line]) -> Iterator[bytes]:
        for line in lines:
            shown = self._transcript.skip() if line.ends else ""
            if line.is_whole:
                shown = self._transcript.write(self._reader.read(line.data), line.data)
            *whole, self._rest = (self._rest + shown).split("\n")
            yield from (each.encode("utf-8", "replace") for each in whole)
