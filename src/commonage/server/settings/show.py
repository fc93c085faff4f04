"""The settings for people: what holds and where it came from, and the reference page.

Called by `commonage config` and by `scripts/docs`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from commonage.domain.quantities import format_cpus, format_memory
from commonage.server.settings.settings import Settings, row_of
from commonage.server.settings.sources import DEFAULT, TABLES, Resolved, variable_of
from commonage.wire.docs import DOCS_PATH

_LINK = re.compile(rf"{DOCS_PATH}([\w/-]+)\.html(#[\w-]+)?")
_PASSWORD = re.compile(r"(?<=://)([^:/@]*):[^@]*@")


class Shown(NamedTuple):
    """One setting that holds."""

    name: str
    value: Any
    origin: str
    variable: str


def shown(resolved: Resolved) -> list[Shown]:
    """Every setting, in the table's order, secrets hidden; values are such as JSON can hold."""
    plain = resolved.settings.model_dump(mode="json")
    return [
        Shown(name, hide(name, _written(name, value)), resolved.origins.get(name, DEFAULT), variable_of(name))
        for name, value in plain.items()
    ]


def hide(name: str, value: Any) -> Any:
    """`value` without the password in it, if it is one of those that may hold one."""
    return _PASSWORD.sub(r"\1:***@", value) if row_of(name).secret and isinstance(value, str) else value


def reference() -> str:
    """docs/reference/settings.md, whole."""
    return "\n".join(_reference()) + "\n"


def _reference() -> Iterator[str]:
    yield "# Settings"
    yield ""
    yield (
        "A setting comes from its flag of `commonage up`, else from its `COMMONAGE_*` variable, else from\n"
        "`commonage.toml` (in the current folder, else in the data folder, or the file that `--config` names),\n"
        "else it is the default. `commonage config` shows what holds and where it came from. This page is made\n"
        "from the code by `make docs`; how to use it is in [the guide](../operate/settings.md)."
    )
    for group, names in groupby(Settings.model_fields, key=lambda name: row_of(name).group):
        yield ""
        yield f"## {group}"
        yield ""
        yield "| setting | variable | flag | default | it takes | what it does |"
        yield "|---|---|---|---|---|---|"
        for name in names:
            row = row_of(name)
            flag = f"`{row.flag}`" if row.flag else ""
            cells = [f"`{name}`", f"`{variable_of(name)}`" if name not in TABLES else "", flag, _default(name)]
            text = _LINK.sub(r"[guide](../\1.md\2)", Settings.model_fields[name].description or "")
            yield f"| {' | '.join(cells)} | {row.allowed} | {text} |"


_MEMORY = ("memory", "default_memory", "max_bundle", "bundle_space_per_user", "bundle_space_per_tenant")
_CPUS = ("cpus", "default_cpus")
_DURATIONS = (
    "warn_before",
    "half_life",
    "entry_penalty",
    "guaranteed_runtime",
    "head_of_queue_timeout",
    "keep_bundles",
)


def _written(name: str, value: Any) -> Any:
    """A quantity as one would write it; anything else as it is."""
    if value is None:
        return None
    if name in _MEMORY:
        return format_memory(value).replace(" ", "")
    if name in _CPUS:
        return format_cpus(value)
    return _duration(value) if name in _DURATIONS else value


def _duration(seconds: int) -> str:
    """`7d`, `10m`, `90s`: in the largest unit that says it whole."""
    size, unit = next(
        (size, unit) for size, unit in ((86400, "d"), (3600, "h"), (60, "m"), (1, "s")) if seconds % size == 0
    )
    return f"{seconds // size}{unit}" if seconds else "0"


def _default(name: str) -> str:
    value = _written(name, Settings.model_fields[name].default)
    if value is None or value in ((), "", {}):
        return ""
    if isinstance(value, tuple):
        return f"`{','.join(value)}`"
    return f"`{value if not isinstance(value, Path) else value.as_posix()}`"
