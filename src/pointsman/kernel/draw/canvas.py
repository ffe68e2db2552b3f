"""A sheet of character cells on which lines that meet join up."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise

Cell = tuple[int, int]
"""Row and column."""

_UP, _DOWN, _LEFT, _RIGHT = 1, 2, 4, 8
_SOLID = " ││││╯╮┤─╰╭├─┴┬┼"  # indexed by the directions in which a cell is connected


class Canvas:
    """Cells with a character and a style each; rows and columns count from 0."""

    def __init__(self) -> None:
        self._cells: dict[Cell, tuple[str, str]] = {}
        self._joints: dict[Cell, int] = {}

    @property
    def width(self) -> int:
        return max((column + 1 for _, column in self._cells), default=0)

    @property
    def height(self) -> int:
        return max((row + 1 for row, _ in self._cells), default=0)

    def write(self, row: int, column: int, text: str, style: str = "") -> int:
        """Put text on the sheet; returns the column behind it."""
        for offset, letter in enumerate(text):
            self._cells[row, column + offset] = (letter, style)
        return column + len(text)

    def trace(self, path: Sequence[Cell], style: str = "", *, dashed: bool = False) -> None:
        """Draw a line through adjacent cells; both of its ends run on vertically."""
        joints = [0] * len(path)
        for index, ((row, column), (next_row, next_column)) in enumerate(pairwise(path)):
            if next_row != row:
                here, there = (_DOWN, _UP) if next_row > row else (_UP, _DOWN)
            else:
                here, there = (_RIGHT, _LEFT) if next_column > column else (_LEFT, _RIGHT)
            joints[index] |= here
            joints[index + 1] |= there
        joints[0] |= _UP
        joints[-1] |= _DOWN
        for cell, joint in zip(path, joints, strict=True):
            self._joints[cell] = self._joints.get(cell, 0) | joint
            letter = _SOLID[self._joints[cell]]
            self._cells[cell] = ({"│": "╎", "─": "╌"}.get(letter, letter) if dashed else letter, style)

    def lines(self, *, color: bool) -> list[str]:
        """The sheet from top to bottom, without blanks at the ends of lines."""
        rows: dict[int, dict[int, tuple[str, str]]] = {}
        for (row, column), cell in self._cells.items():
            rows.setdefault(row, {})[column] = cell
        return [_line(rows.get(row, {}), color=color) for row in range(self.height)]


def _line(cells: dict[int, tuple[str, str]], *, color: bool) -> str:
    inked = [column for column, (letter, style) in cells.items() if letter != " " or "7" in style]
    row = [cells.get(column, (" ", "")) for column in range(max(inked, default=-1) + 1)]
    text = ""
    for style, run in groupby(row, key=lambda cell: cell[1]):
        letters = "".join(letter for letter, _ in run)
        text += f"\x1b[{style}m{letters}\x1b[0m" if color and style and letters.strip() else letters
    return text if color else text.rstrip()
