"""The look of the SVG: one palette for light pages, one for dark ones, and what the classes mean."""

from __future__ import annotations

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

_RULES = f"""
.pointsman-machine {{ font-family: {FONT}; }}
.pointsman-machine text {{ fill: var(--pm-ink); }}
.pointsman-machine .card {{ fill: var(--pm-card); stroke: var(--pm-rim); }}
.pointsman-machine .heading {{ font-size: 16px; font-weight: 650; }}
.pointsman-machine .note {{ font-size: 11.5px; fill: var(--pm-muted); }}
.pointsman-machine .edge, .pointsman-machine .hub, .pointsman-machine .start {{ color: var(--tone-line, var(--pm-line)); }}
.pointsman-machine .edge {{ --tone-line: var(--tone); }}
.pointsman-machine .edge > .line {{ opacity: 0.75; }}
.pointsman-machine .line {{ fill: none; stroke: currentColor; stroke-width: 1.5; stroke-linecap: round; }}
.pointsman-machine .head {{ fill: currentColor; }}
.pointsman-machine .start .disc {{ fill: var(--pm-ink); }}
.pointsman-machine .start {{ color: var(--pm-ink); }}
.pointsman-machine .automatic > .line {{ stroke-dasharray: 5 4; }}
.pointsman-machine .backing {{ fill: var(--pm-card); }}
.pointsman-machine .trigger {{ font-size: 11.5px; font-weight: 550; text-anchor: middle; }}
.pointsman-machine .condition {{ font-size: 10.5px; fill: var(--pm-muted); text-anchor: middle; }}
.pointsman-machine .severity-error, .pointsman-machine .severity-critical {{ fill: var(--pm-alarm); }}
.pointsman-machine .severity-critical {{ font-weight: 750; }}
.pointsman-machine .body, .pointsman-machine .rim {{ fill: var(--tint); stroke: var(--tone); stroke-width: 1.5; }}
.pointsman-machine .rim {{ fill: none; stroke-width: 1; }}
.pointsman-machine .name {{ font-size: 13px; font-weight: 650; text-anchor: middle; }}
.pointsman-machine .lock {{ fill: none; stroke: var(--tone); stroke-width: 1.4; }}
.pointsman-machine .lock .shut {{ fill: var(--tone); }}
.pointsman-machine .chip rect, .pointsman-machine .hub .backing {{ fill: var(--chip-tint); }}
.pointsman-machine .chip rect, .pointsman-machine .hub .backing {{ stroke: var(--chip-tone); stroke-width: 1; }}
.pointsman-machine .chip text {{ font-size: 10.5px; text-anchor: middle; fill: var(--chip-tone); }}
.pointsman-machine .hub {{ color: var(--chip-tone); }}
.pointsman-machine .swatch {{ fill: var(--tint); stroke: var(--tone); stroke-width: 1.5; }}
.pointsman-machine .current > .body {{ fill: var(--tone); stroke: var(--tone); }}
.pointsman-machine .current > .rim, .pointsman-machine .current > .lock {{ stroke: var(--pm-lit-ink); }}
.pointsman-machine .current > .lock .shut {{ fill: var(--pm-lit-ink); }}
.pointsman-machine .current > .name {{ fill: var(--pm-lit-ink); }}
.pointsman-machine .halo {{ fill: none; stroke: var(--tone); stroke-width: 5; opacity: 0.28; }}
.pointsman-machine .next > .line {{ stroke-width: 2.25; }}
.pointsman-machine .next {{ --tone-line: var(--tone); }}
.pointsman-machine .dimmed {{ opacity: 0.27; }}
"""


def stylesheet() -> str:
    """The whole style; every rule is confined to the class of the root."""
    tones = "".join(
        f".pointsman-machine .tone-{tone} {{ --tone: var(--pm-{tone}); --tint: var(--pm-{tone}-tint); }}\n"
        f".pointsman-machine .to-{tone} {{ --chip-tone: var(--pm-{tone}); --chip-tint: var(--pm-{tone}-tint); }}\n"
        for tone in Tone
    )
    return (
        f".pointsman-machine {{ {_palette(LIGHT)} }}\n"
        f"@media (prefers-color-scheme: dark) {{ .pointsman-machine:not([data-theme=light]) {{ {_palette(_DARK)} }} }}\n"
        f".pointsman-machine[data-theme=dark] {{ {_palette(_DARK)} }}"
        f"{_RULES}{tones}"
    )


def _palette(colours: dict[str, str]) -> str:
    return " ".join(f"--pm-{name}: {colour};" for name, colour in colours.items())
