"""The settings as text: values with their sources for `commonage config`, the reference page for `scripts/docs.py`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from commonage.server.settings.fields import quantity_of
from commonage.server.settings.settings import SECTIONS, TABLES, Settings, allowed, entries_of, row_of
from commonage.server.settings.sources import DEFAULT, Resolved, variable_of
from commonage.wire.hub import DOCS_PATH

_LINK = re.compile(rf"{DOCS_PATH}([\w/-]+)\.html(#[\w-]+)?")
_PASSWORD = re.compile(r"(?<=://)([^:/@]*):[^@]*@")


class Shown(NamedTuple):
    """The value of a setting, and its source."""

    name: str
    value: Any
    origin: str
    variable: str


def shown(resolved: Resolved) -> list[Shown]:
    """Every setting in the order of the table, without passwords. The values can be written as JSON."""
    plain = resolved.settings.model_dump(mode="json")
    return [
        Shown(name, hide(name, _written(name, value)), resolved.origins.get(name, DEFAULT), variable_of(name))
        for name, value in plain.items()
    ]


def hide(name: str, value: Any) -> Any:
    """`value` without its password if the setting may hold one."""
    return _PASSWORD.sub(r"\1:***@", value) if row_of(name).secret and isinstance(value, str) else value


def reference() -> str:
    """The text of docs/reference/settings.md."""
    return "\n".join(_reference()) + "\n"


def _reference() -> Iterator[str]:
    yield "# Settings"
    yield ""
    yield (
        "A setting has the value of its flag of `commonage up`, else of its `COMMONAGE_*` variable, else of\n"
        "`commonage.toml`, else its default. The file is searched in the current folder, then in the data folder;\n"
        "`--config` names another one. `commonage config` shows all values and their sources.\n"
        "[The guide](../operate/settings.md) explains how to use them."
    )
    for title, section in SECTIONS.items():
        yield ""
        yield f"## {title}"
        yield ""
        yield "| setting | variable | flag | default | it takes | what it does |"
        yield "|---|---|---|---|---|---|"
        for name in section.model_fields:
            flag = f"`{row.flag}`" if (row := row_of(name)).flag else ""
            cells = [f"`{name}`", f"`{variable_of(name)}`" if name not in TABLES else "", flag, _default(name)]
            text = _LINK.sub(r"[guide](../\1.md\2)", describe(name))
            yield f"| {' | '.join(cells)} | {allowed(name)} | {text} |"


def describe(name: str) -> str:
    """What the setting does; for a list of tables also its fields."""
    text, tables = Settings.model_fields[name].description or "", entries_of(name)
    if tables is None:
        return text
    return f"{text} Fields of a table: {', '.join(f'`{field}`' for field in tables.model_fields)}."


def flag_help(name: str) -> str:
    """The help of the option of `commonage up` for the setting `name`, in plain text."""
    default = _default(name).strip("`")
    text = f"{describe(name)} Takes {allowed(name)}."
    return f"{text}  [default: {default}]" if default else text


def _written(name: str, value: Any) -> Any:
    """A quantity as a user writes it; other values unchanged."""
    quantity = quantity_of(Settings.model_fields[name])
    return value if quantity is None or value is None else quantity.format(value)


def _default(name: str) -> str:
    value = _written(name, Settings.model_fields[name].default)
    if value is None or value in ((), "", {}):
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return f"`{','.join(value)}`"
    return f"`{value if not isinstance(value, Path) else value.as_posix()}`"
