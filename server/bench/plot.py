"""Bars with spreads as a standalone SVG: one group per figure, one bar per side, each group on its own scale."""

from __future__ import annotations

from html import escape
from pathlib import Path

from .statistics import Spread

COLOURS = ("#2f6f8f", "#c08a3e", "#7a8f3c", "#8f4a6b")
ROW, BAR, LEFT, WIDTH = 64, 18, 190, 460


def write_bars(path: Path, figures: dict[str, dict[str, Spread]]) -> None:
    """Writes the plot; every group is scaled to its own largest value, whiskers run from minimum to maximum."""
    parts: list[str] = []
    for row, (name, sides) in enumerate(figures.items()):
        top = 20 + row * ROW
        scale = WIDTH / (max(s.high for s in sides.values()) or 1.0)
        parts.append(f'<text x="{LEFT - 10}" y="{top + BAR}" text-anchor="end">{escape(name)}</text>')
        for i, (side, spread) in enumerate(sides.items()):
            y = top + i * (BAR + 4)
            middle = y + BAR / 2
            parts.append(
                f'<rect x="{LEFT}" y="{y}" width="{spread.median * scale:.1f}" height="{BAR}" fill="{COLOURS[i % 4]}"/>'
                f'<line x1="{LEFT + spread.low * scale:.1f}" x2="{LEFT + spread.high * scale:.1f}" '
                f'y1="{middle}" y2="{middle}" stroke="#333"/>'
                f'<text x="{LEFT + WIDTH + 10}" y="{y + BAR - 4}">{escape(side)}: {spread.text()}</text>'
            )
    height = 40 + len(figures) * ROW
    style = "text{font:13px sans-serif;fill:#333}"
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 260}" height="{height}">'
        f'<style>{style}</style><rect width="100%" height="100%" fill="#fff"/>{"".join(parts)}</svg>'
    )
