"""The table of the server's settings, made of the sections in the files of this package.

`sources` finds the values, the bootstrap uses them. `commonage config` and docs/reference/settings.md are made from
this table, so a setting that is added to a section is documented.
"""

from __future__ import annotations

from typing import Any, cast, get_args

from pydantic import BaseModel, ConfigDict

from commonage.server.settings.fields import Entry, Row, takes_of
from commonage.server.settings.joining import JoinSettings, NodePoolSettings
from commonage.server.settings.node import EngineSettings, NodeSettings
from commonage.server.settings.scheduling import PriceSettings, SchedulingSettings
from commonage.server.settings.server import LogSettings, ServerSettings, UserSettings
from commonage.server.settings.storage import ImageSettings, StorageSettings
from commonage.server.settings.workloads import BundleSettings, LimitSettings, WorkloadSettings

ENV_PREFIX = "COMMONAGE_"

SECTIONS: dict[str, type[BaseModel]] = {
    "Server": ServerSettings,
    "Users and sign-in": UserSettings,
    "This node": NodeSettings,
    "Engine and containers": EngineSettings,
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
}


class Settings(
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
    EngineSettings,
    NodeSettings,
    UserSettings,
    ServerSettings,
):
    """All settings of one run of the server. Memory is MiB, CPUs thousandths, durations seconds.

    pydantic orders the fields by its last base class first.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


def row_of(name: str) -> Row:
    """What the setting `name` has besides type, default and description."""
    row: Row = cast(Any, Settings.model_fields[name].json_schema_extra)["row"]  # every field is made by `setting`
    return row


def entries_of(name: str) -> type[Entry] | None:
    """The model of a setting's tables; None if it is not a list of tables."""
    found = (one for one in get_args(Settings.model_fields[name].annotation) if isinstance(one, type))
    return next((one for one in found if issubclass(one, Entry)), None)


def allowed(name: str) -> str:
    """What the setting takes; completes "it takes …"."""
    return f"tables [[{name}]] in the file" if name in TABLES else takes_of(Settings.model_fields[name])


TABLES = frozenset(name for name in Settings.model_fields if entries_of(name) is not None)
"""Settings that only a file can hold: lists of tables."""
FLAGS: dict[str, str] = {row.flag: name for name in Settings.model_fields if (row := row_of(name)).flag is not None}
