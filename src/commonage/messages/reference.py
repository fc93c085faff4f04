"""The page of the reference about reasons, from the code. Called by `scripts/docs.py`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields

from commonage.domain.reasons import (
    REASONS,
    Reason,
    attempts,
    classes,
    cron_jobs,
    devices,
    engines,
    materials,
    nodes,
    notes,
    offboarding,
    refusals,
    resources,
    waiting,
)

_FAMILIES = (
    waiting, attempts, refusals, nodes, devices, engines, notes, resources, offboarding, cron_jobs, materials, classes,
)  # fmt: skip


def reference() -> str:
    """Every code by family: its parameters and what it means, in Markdown."""
    parts = [
        "# Reasons",
        "",
        "A reason says why something waits, was refused, started or ended, or what is wrong with a node or",
        "a GPU. The API gives `{code, params, message}`. `code` and `params` are stable and made for programs;",
        "`message` is made for people and may change at any time. Names of parameters end in their unit:",
        "`_mib`, `_milli` (thousandths), `_s` (seconds), `_at` (unix seconds). A parameter of the type",
        "`Reason` is another reason, as `{code, params}`.",
        "",
    ]
    for family in _FAMILIES:
        title = family.__name__.rpartition(".")[2].replace("_", " ").capitalize()
        about = (family.__doc__ or "").strip()
        parts += [f"## {title}", "", about, "", "| code | parameters | meaning |", "|---|---|---|"]
        parts += [_row(kind) for kind in _codes_of(family.__name__)] + [""]
    return "\n".join(parts)


def _codes_of(module: str) -> Iterator[type[Reason]]:
    return (kind for name, kind in sorted(REASONS.items()) if kind.__module__ == module)


def _row(kind: type[Reason]) -> str:
    parameters = ", ".join(f"`{one.name}`: {_type(str(one.type))}" for one in fields(kind))
    return f"| `{kind.__name__}` | {parameters} | {_cell(kind.__doc__ or '')} |"


def _type(annotation: str) -> str:
    return re.sub(r"tuple\[(.+), \.\.\.\]", r"list of \1", annotation).replace(" | None", " or null")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
