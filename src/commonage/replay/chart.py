"""A self-contained HTML page that compares replays: a table, GPUs in use, and the queue over time.

Called by `commonage replay --chart FILE`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from commonage.domain.requests import format_duration
from commonage.replay.figures import Capacity, Figures, Sample

WIDTH, HEIGHT, LEFT, BOTTOM = 900, 240, 56, 24
BUCKETS = 450
COLOURS = ("#2f6fde", "#d9730d", "#2e8b57", "#8a4fd0", "#c23b4b", "#5f6b7a", "#b08900", "#008b8b", "#555555")
DAY_S = 86_400.0

STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --soft: #6b7686; --line: #d7dce3; --paper: #ffffff }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ee; --soft: #98a2b0; --line: #39424f; --paper: #161b22 } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 2rem auto;
  max-width: 60rem; padding: 0 1rem }
table { border-collapse: collapse; margin: 1rem 0 } div { overflow-x: auto }
th, td { padding: .3rem .8rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line) }
th:first-child, td:first-child { text-align: left }
svg { width: 100%; height: auto } text { fill: var(--soft); font-size: 12px } .axis { stroke: var(--line) }
i { display: inline-block; width: .8rem; height: .8rem; border-radius: 2px; margin-right: .4rem }
p { color: var(--soft) }
"""


@dataclass(frozen=True, slots=True)
class ReplayRun:
    name: str
    figures: Figures
    samples: Sequence[Sample]
    capacity: Capacity


def page(title: str, notes: Sequence[str], runs: Sequence[ReplayRun]) -> str:
    """The page. `runs` has 1 to len(COLOURS) entries."""
    start = min(run.samples[0].at for run in runs)
    end = max(run.samples[-1].at for run in runs)
    devices = max(run.capacity.gpu_milli for run in runs) / 1000
    longest = max(max(sample.waiting for sample in run.samples) for run in runs)
    return "".join(
        [
            '<!doctype html><html lang="en"><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title><style>{STYLE}</style><h1>{escape(title)}</h1>",
            *(f"<p>{escape(note)}</p>" for note in notes),
            _table(runs),
            "<h2>GPUs in use</h2>",
            _plot(runs, (start, end), devices, lambda sample: sample.gpu_milli / 1000),
            "<h2>Queued workloads</h2>",
            _plot(runs, (start, end), float(longest), lambda sample: float(sample.waiting)),
            "</html>\n",
        ]
    )


def _table(runs: Sequence[ReplayRun]) -> str:
    heads = ("setting", "wait p50", "wait p95", "GPUs used", "cores used", "preempted", "fairness", "makespan")
    rows = []
    for run, colour in zip(runs, COLOURS, strict=False):
        figures = run.figures
        cells = (
            format_duration(figures.wait_p50_s),
            format_duration(figures.wait_p95_s),
            f"{figures.gpu_utilisation:.1%}",
            f"{figures.cpu_utilisation:.1%}",
            str(figures.preemptions),
            f"{figures.fairness:.3f}",
            format_duration(figures.makespan_s),
        )
        name = f'<i style="background:{colour}"></i>{escape(run.name)}'
        rows.append(f"<tr><td>{name}</td>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>")
    head = "".join(f"<th>{name}</th>" for name in heads)
    return f"<div><table><tr>{head}</tr>{''.join(rows)}</table></div>"


def _plot(runs: Sequence[ReplayRun], span: tuple[float, float], most: float, value: Callable[[Sample], float]) -> str:
    """A line for each run: means over BUCKETS equal parts of the time span."""
    start, end = span
    most = most or 1.0
    lines = []
    for run, colour in zip(runs, COLOURS, strict=False):
        means = bucket_means([(sample.at, value(sample)) for sample in run.samples], start, end)
        points = " ".join(
            f"{LEFT + (WIDTH - LEFT) * (number + 0.5) / len(means):.1f},{_y(mean / most):.1f}"
            for number, mean in enumerate(means)
        )
        lines.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
    ticks = "".join(
        f'<line class="axis" x1="{LEFT}" x2="{WIDTH}" y1="{_y(part)}" y2="{_y(part)}"/>'
        f'<text x="{LEFT - 6}" y="{_y(part) + 4}" text-anchor="end">{most * part:g}</text>'
        for part in (0.0, 0.5, 1.0)
    )
    days = (end - start) / DAY_S
    foot = f'<text x="{LEFT}" y="{HEIGHT - 6}">day 0</text>'
    foot += f'<text x="{WIDTH}" y="{HEIGHT - 6}" text-anchor="end">day {days:.1f}</text>'
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{ticks}{"".join(lines)}{foot}</svg>'


def _y(part: float) -> float:
    return round(8 + (HEIGHT - BOTTOM - 8) * (1 - part), 1)


def bucket_means(steps: Sequence[tuple[float, float]], start: float, end: float) -> list[float]:
    """Means of a step function over BUCKETS equal parts of [start, end]; it is 0 before its first step."""
    edges = np.linspace(start, max(end, start + 1.0), BUCKETS + 1)
    at = np.array([step[0] for step in steps])
    values = np.array([0.0, *(step[1] for step in steps)])
    # The integral of the steps up to any instant is linear between them.
    corners = np.concatenate([[min(start, at[0])], at])
    areas = np.concatenate([[0.0], np.cumsum(np.diff(corners) * values[:-1])])
    last = len(values) - 1
    place = np.searchsorted(at, edges, side="right")
    integral = areas[place] + values[np.minimum(place, last)] * (edges - corners[place])
    return [float(mean) for mean in np.diff(integral) / np.diff(edges)]
