"""The growth of passes and explanations with the size of the cluster, as an SVG chart. For `schedule --chart`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

from benchmarks.planner.passes import Durations, Row

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 420, 70, 190, 30, 60
SERIES = ("arrival", "departure", "explain", "dry_run")
STYLE = """
text{font-family:system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;font-size:14px;fill:#1f2733}
.axis{stroke:#d5dae1}.linear{stroke:#8a94a3;stroke-dasharray:5 4}
polyline{fill:none;stroke-width:2}
.s0{stroke:#3b6fb5}.s1{stroke:#2f8f83}.s2{stroke:#8a5fb0}.s3{stroke:#b06a2c}
text.s0,text.s1,text.s2,text.s3{stroke:none}
text.s0{fill:#3b6fb5}text.s1{fill:#2f8f83}text.s2{fill:#8a5fb0}text.s3{fill:#b06a2c}
@media (prefers-color-scheme:dark){text{fill:#e6e9ee}.axis{stroke:#39424f}}
"""


def growth(rows: Sequence[Row]) -> str:
    """Median milliseconds of CPU time by the number of queued workloads. Both axes are logarithmic."""
    series = {name: [_of(row, name).cpu_ms for row in rows] for name in SERIES}
    scale = _Scale([row.queued for row in rows], [value for values in series.values() for value in values])
    body = "".join((*_axes(scale), *_lines(scale, [row.queued for row in rows], series)))
    summary = "; ".join(
        f"{row.queued:,} queued: " + ", ".join(f"{name} {_of(row, name).cpu_ms:.1f} ms" for name in SERIES)
        for row in rows
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'role="img"><title>Growth of passes and explanations</title><desc>{escape(summary)}</desc>'
        f"<style>{STYLE}</style>{body}</svg>\n"
    )


def _of(row: Row, name: str) -> Durations:
    found: Durations = getattr(row, name)
    return found


class _Scale:
    """Places values on logarithmic axes that begin and end at powers of ten."""

    def __init__(self, counts: Sequence[int], values: Sequence[float]) -> None:
        self.x, self.y = _decades(counts), _decades(values)

    def at(self, count: float, value: float) -> tuple[float, float]:
        along = (math.log10(count) - self.x[0]) / (self.x[1] - self.x[0])
        up = (math.log10(value) - self.y[0]) / (self.y[1] - self.y[0])
        return LEFT + along * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)


def _decades(values: Sequence[float]) -> tuple[int, int]:
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return low, max(high, low + 1)


def _axes(scale: _Scale) -> Iterator[str]:
    (left, right), (low, high) = scale.x, scale.y
    for power in range(left, right + 1):
        x, y = scale.at(10.0**power, 10.0**low)
        yield f'<line class="axis" x1="{x:.0f}" x2="{x:.0f}" y1="{TOP}" y2="{y:.0f}"/>'
        yield f'<text x="{x:.0f}" y="{y + 22:.0f}" text-anchor="middle">{10**power:,}</text>'
    for power in range(low, high + 1):
        x, y = scale.at(10.0**left, 10.0**power)
        yield f'<line class="axis" x1="{x:.0f}" x2="{WIDTH - RIGHT}" y1="{y:.0f}" y2="{y:.0f}"/>'
        yield f'<text x="{x - 8:.0f}" y="{y + 5:.0f}" text-anchor="end">{10.0**power:g} ms</text>'
    yield f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{HEIGHT - 12}" text-anchor="middle">queued workloads</text>'


def _lines(scale: _Scale, counts: Sequence[int], series: dict[str, list[float]]) -> Iterator[str]:
    ends = sorted((scale.at(counts[-1], values[-1])[1], name) for name, values in series.items())
    label_y = 0.0
    for y, name in ends:
        number, label_y = SERIES.index(name), max(y + 5.0, label_y + 18)
        points = (scale.at(count, value) for count, value in zip(counts, series[name], strict=True))
        yield f'<polyline class="s{number}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}"/>'
        text = f"{name.replace('_', ' ')}, {series[name][-1]:.1f} ms"
        yield f'<text class="s{number}" x="{WIDTH - RIGHT + 10}" y="{label_y:.0f}">{text}</text>'
    first = max(values[0] for values in series.values())
    (x1, y1), (x2, y2) = scale.at(counts[0], first), scale.at(counts[-1], first * counts[-1] / counts[0])
    if y2 >= TOP:
        yield f'<line class="linear" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'
        yield f'<text x="{x2 + 10:.0f}" y="{max(y2 - 6, TOP):.0f}">linear growth</text>'
