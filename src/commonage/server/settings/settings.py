"""The table of the server's settings, made of the sections in the files of this package, and its texts.

`commonage config`, `commonage up --help` and docs/reference/settings.md are made from it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast, get_args

from pydantic import BaseModel, ConfigDict

from commonage.resources.fields import Entry
from commonage.server.settings.fields import Row, quantity_of, takes_of
from commonage.server.settings.https import HttpsSettings
from commonage.server.settings.nodes import (
    EngineSettings,
    JoinSettings,
    KubernetesSettings,
    NodePoolSettings,
    NodeSettings,
)
from commonage.server.settings.scheduling import PriceSettings, SchedulingSettings
from commonage.server.settings.server import (
    LogSettings,
    RetentionSettings,
    ServerSettings,
    TracingSettings,
    UserSettings,
)
from commonage.server.settings.workloads import (
    BundleSettings,
    ImageSettings,
    LimitSettings,
    StorageSettings,
    WorkloadSettings,
)
from commonage.wire.hub import DOCS_PATH

ENV_PREFIX = "COMMONAGE_"
DEFAULT = "default"
_LINK = re.compile(rf"{DOCS_PATH}([\w/-]+)\.html(#[\w-]+)?")
_PASSWORD = re.compile(r"(?<=://)([^:/@]*):[^@]*@")

SECTIONS: dict[str, type[BaseModel]] = {
    "Server": ServerSettings,
    "HTTPS": HttpsSettings,
    "Users and sign-in": UserSettings,
    "This node": NodeSettings,
    "Engine and containers": EngineSettings,
    "Kubernetes": KubernetesSettings,
    "Other nodes": JoinSettings,
    "Node pools": NodePoolSettings,
    "Workloads": WorkloadSettings,
    "Bundles": BundleSettings,
    "Limits": LimitSettings,
    "Scheduling": SchedulingSettings,
    "Prices": PriceSettings,
    "Storage": StorageSettings,
    "Images": ImageSettings,
    "Logs and measurements": LogSettings,
    "Traces": TracingSettings,
    "Retention": RetentionSettings,
}


class Settings(
    RetentionSettings,
    TracingSettings,
    LogSettings,
    ImageSettings,
    StorageSettings,
    PriceSettings,
    SchedulingSettings,
    LimitSettings,
    BundleSettings,
    WorkloadSettings,
    NodePoolSettings,
    JoinSettings,
    KubernetesSettings,
    EngineSettings,
    NodeSettings,
    UserSettings,
    HttpsSettings,
    ServerSettings,
):
    """All settings of one run of the server. Memory is MiB, CPUs thousandths, durations seconds.

    pydantic orders the fields by its last base class first.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


@dataclass(frozen=True, slots=True)
class Resolved:
    """The settings, and the source of each for people. `file` is the file that was read, if any."""

    settings: Settings
    origins: Mapping[str, str]
    file: Path | None


def variable_of(name: str) -> str:
    return ENV_PREFIX + name.upper()


def row_of(name: str) -> Row:
    row: Row = cast(Any, Settings.model_fields[name].json_schema_extra)["row"]  # every field is made by `setting`
    return row


def entries_of(name: str) -> type[Entry] | None:
    """The model of a setting's tables; None if it is not a list of tables."""
    found = (one for one in get_args(Settings.model_fields[name].annotation) if isinstance(one, type))
    return next((one for one in found if issubclass(one, Entry)), None)


def allowed(name: str) -> str:
    """The allowed values as text that completes "it takes …"."""
    return f"tables [[{name}]] in the file" if name in TABLES else takes_of(Settings.model_fields[name])


TABLES = frozenset(name for name in Settings.model_fields if entries_of(name) is not None)
"""Settings that only a file can hold: lists of tables."""
FLAGS: dict[str, str] = {row.flag: name for name in Settings.model_fields if (row := row_of(name)).flag is not None}


class Shown(NamedTuple):
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
    """The description of the setting; for a list of tables also its fields."""
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
