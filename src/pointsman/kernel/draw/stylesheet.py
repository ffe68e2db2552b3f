"""The look of the SVG: one palette for light pages, one for dark ones, and what the classes mean."""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter

from pointsman.kernel.draw.tone import Tone

LIGHT = {
    "card": "#ffffff",
    "rim": "#d9dfe8",
    "ink": "#18212f",
    "muted": "#5a6676",
    "line": "#8290a3",
    "alarm": "#b42318",
    "held": "#a15c07",
    "held-tint": "#fef5e2",
    "queued": "#1b63c6",
    "queued-tint": "#e9f2fe",
    "active": "#6d34d6",
    "active-tint": "#f2ecfe",
    "success": "#137a48",
    "success-tint": "#e5f7ed",
    "failure": "#bf2618",
    "failure-tint": "#fdecea",
    "canceled": "#566172",
    "canceled-tint": "#eef1f5",
    "lit-ink": "#ffffff",
}
_DARK = {
    "card": "#11161f",
    "rim": "#2b3442",
    "ink": "#e8edf4",
    "muted": "#9ba8b9",
    "line": "#66748a",
    "alarm": "#ff9d92",
    "held": "#f0b357",
    "held-tint": "#2e2413",
    "queued": "#7db4ff",
    "queued-tint": "#15263f",
    "active": "#b99bff",
    "active-tint": "#271d42",
    "success": "#5fd49a",
    "success-tint": "#12301f",
    "failure": "#ff8a7d",
    "failure-tint": "#3a1a18",
    "canceled": "#a4b0c0",
    "canceled-tint": "#232b37",
    "lit-ink": "#0c1017",
}
FONT = "-apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, 'Liberation Sans', sans-serif"

_SHAPES = f"""
.pointsman-machine {{ font-family: {FONT}; }}
.pointsman-machine .heading {{ font-size: 16px; font-weight: 650; }}
.pointsman-machine .note {{ font-size: 11.5px; font-weight: 400; }}
.pointsman-machine .edge > .line {{ opacity: 0.75; }}
.pointsman-machine .line {{ fill: none; stroke: currentColor; stroke-width: 1.5; stroke-linecap: round; }}
.pointsman-machine .head {{ fill: currentColor; }}
.pointsman-machine .automatic > .line {{ stroke-dasharray: 5 4; }}
.pointsman-machine .trigger {{ font-size: 11.5px; font-weight: 550; text-anchor: middle; }}
.pointsman-machine .condition {{ font-size: 10.5px; text-anchor: middle; }}
.pointsman-machine .severity-critical {{ font-weight: 750; }}
.pointsman-machine .body, .pointsman-machine .swatch {{ stroke-width: 1.5; }}
.pointsman-machine .rim {{ fill: none; stroke-width: 1; }}
.pointsman-machine .name {{ font-size: 13px; font-weight: 650; text-anchor: middle; }}
.pointsman-machine .lock {{ fill: none; stroke-width: 1.4; }}
.pointsman-machine .pill, .pointsman-machine .hub .backing {{ stroke-width: 1; }}
.pointsman-machine .chip text {{ font-size: 10.5px; text-anchor: middle; }}
.pointsman-machine .halo {{ fill: none; stroke-width: 5; opacity: 0.28; }}
.pointsman-machine .next > .line {{ stroke-width: 2.25; }}
.pointsman-machine .dimmed {{ opacity: 0.27; }}
"""

# What has which colour of a palette. The order counts: of two rules that are equally specific, the later one holds.
_COLOURS = (
    ("text", "fill: ink"),
    (".card", "fill: card; stroke: rim"),
    (".note", "fill: muted"),
    (".condition", "fill: muted"),
    (".edge", "color: line"),
    (".start", "color: ink"),
    (".disc", "fill: ink"),
    (".backing", "fill: card"),
    (".severity-error", "fill: alarm"),
    (".severity-critical", "fill: alarm"),
    (".task > .body", "fill: card; stroke: line"),
    (".task > .behind", "fill: card; stroke: line"),
    (".task > .detail", "fill: muted"),
    (".task > .tag", "fill: muted"),
    (".task > .bar", "fill: line"),
)
_COLOURS_OF_TONE = (
    (".edge.tone-TONE", "color: TONE"),
    (".hub.to-TONE", "color: TONE"),
    (".tone-TONE > .body", "fill: TONE-tint; stroke: TONE"),
    (".tone-TONE > .behind", "fill: TONE-tint; stroke: TONE"),
    (".swatch.tone-TONE", "fill: TONE-tint; stroke: TONE"),
    (".to-TONE > .backing", "fill: TONE-tint; stroke: TONE"),
    (".to-TONE > .pill", "fill: TONE-tint; stroke: TONE"),
    (".tone-TONE > .rim", "stroke: TONE"),
    (".tone-TONE > .halo", "stroke: TONE"),
    (".tone-TONE > .lock", "stroke: TONE"),
    (".tone-TONE > .lock .shut", "fill: TONE"),
    (".tone-TONE > .tag", "fill: TONE"),
    (".tone-TONE > .bar", "fill: TONE"),
    (".current.tone-TONE > .body", "fill: TONE"),
    (".chip.to-TONE > text", "fill: TONE"),
)
_COLOURS_OF_CURRENT = (
    (".current > .rim", "stroke: lit-ink"),
    (".current > .lock", "stroke: lit-ink"),
    (".current > .lock .shut", "fill: lit-ink"),
    (".current > .name", "fill: lit-ink"),
)


def stylesheet() -> str:
    """The whole style; every rule is confined to the class of the root.

    The light look uses plain colours and plain selectors: librsvg, which draws for file managers and wikis, knows no variables
    and no media queries, and ignores what it does not know.
    """
    dark = ".pointsman-machine:not([data-theme=light])"
    return (
        f"{_SHAPES}{_paint('.pointsman-machine', LIGHT)}"
        f"@media (prefers-color-scheme: dark) {{\n{_paint(dark, _DARK)}}}\n"
        f"{_paint('.pointsman-machine[data-theme=dark]', _DARK)}"
    )


def _paint(root: str, palette: dict[str, str]) -> str:
    """The rules with the colours of a palette; selectors with the same colours share a rule, if they follow each other."""
    tones = [tuple(text.replace("TONE", tone) for text in rule) for tone in Tone for rule in _COLOURS_OF_TONE]
    grouped = groupby((*_COLOURS, *tones, *_COLOURS_OF_CURRENT), key=itemgetter(1))
    return "".join(
        f"{', '.join(f'{root} {selector}' for selector, _ in rules)} {{ {_resolve(colours, palette)} }}\n"
        for colours, rules in grouped
    )


def _resolve(colours: str, palette: dict[str, str]) -> str:
    """`fill: ink; stroke: rim` with the colours of a palette."""
    parts = (part.split(": ") for part in colours.split("; "))
    return " ".join(f"{property_}: {palette[name]};" for property_, name in parts)
