"""How wide text is in a sans-serif face, near enough to lay it out without a font."""

from __future__ import annotations

# Advance widths of Arial/Helvetica in thousandths of the size. DejaVu Sans, which stands in for them on many
# Linux systems, is up to 16 % wider: the factors below leave room for it.
_WIDTHS = {
    **dict.fromkeys("ijl|'", 222),
    **dict.fromkeys("I !,./:;ft[]\\", 278),
    **dict.fromkeys("r()-`", 333),
    **dict.fromkeys("Jckvxsyz", 500),
    **dict.fromkeys("ABEKPSVXY&", 667),
    **dict.fromkeys("CDHNRUw", 722),
    **dict.fromkeys("FTZ", 611),
    **dict.fromkeys("GOQ", 778),
    **dict.fromkeys("mM", 833),
    "W": 944,
    "_": 556,
    "→": 1000,
    "·": 278,
}
_OTHER = 556
_WIDE = 1000
_BOLD = 1.13
_SLACK = 1.1


def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """The width of `text` in pixels at a font size."""
    thousandths = sum(_WIDTHS.get(letter, _OTHER if ord(letter) < 0x1100 else _WIDE) for letter in text)
    return thousandths / 1000 * size * (_BOLD if bold else 1.0) * _SLACK
