"""The server's settings: one table of all of them, with type, default and meaning. Its parts may have their own files.

Where a value comes from is `settings_sources`' work, what is done with it the bootstrap's. `commonage config` and
docs/reference/settings.md are made from this table, so a setting that is added here is documented.
"""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from commonage.domain.environments import Environment
from commonage.domain.errors import InvalidInput
from commonage.domain.usage import Prices
from commonage.domain.workloads import Kind
from commonage.gpu.detect import check_wanted
from commonage.gpu.slots import parse_slots
from commonage.scheduler.policies import registry
from commonage.scheduler.queue.sites import SitePolicy
from commonage.server.settings.agents import AgentSettings
from commonage.server.settings.bundles import BundleSettings
from commonage.server.settings.components import ComponentSettings
from commonage.server.settings.images import ImageSettings
from commonage.server.settings.limits import LimitSettings
from commonage.server.settings.node_pools import NodePoolSettings
from commonage.server.settings.nodes import NodeSettings
from commonage.server.settings.origins import OriginSettings
from commonage.server.settings.rules import Labels, PolicyName, PriorityClasses, Tenants
from commonage.server.settings.storage import StorageSettings
from commonage.server.settings.swarm import SwarmSettings
from commonage.server.settings.table import A_PORT as _A_PORT
from commonage.server.settings.table import Row
from commonage.server.settings.table import setting as _setting
from commonage.server.settings.tokens import TokenSettings
from commonage.server.settings.types import (
    Mib,
    Milli,
    Mounts,
    Names,
    OptionalPath,
    OptionalText,
    Port,
    PrivateRange,
    Seconds,
    SecondsOrNone,
    no_empty,
)
from commonage.wire.docs import docs_page

ENV_PREFIX = "COMMONAGE_"


def _address(value: str) -> str:
    if value == "localhost":
        return "127.0.0.1"
    try:
        return str(ipaddress.ip_address(value.strip("[]")))
    except ValueError:
        raise ValueError("not an IP address") from None


def _gpus(value: str) -> str:
    try:
        return check_wanted(value)
    except InvalidInput as error:
        raise ValueError(error.message) from error


def _slots(value: str) -> str:
    try:
        parse_slots(value)
    except InvalidInput as error:
        raise ValueError(error.message) from error
    return value


def _database(value: str | None) -> str | None:
    """Refuse early what the store would refuse; which driver it takes is the store's business."""
    known = ("postgresql", "postgres", "postgresql+asyncpg", "sqlite", "sqlite+aiosqlite")
    if value is not None and value.partition("://")[0] not in known:
        raise ValueError("not a database we can use")
    return value


class EnvironmentEntry(BaseModel):
    """One `[[environments]]` table: an addition to the catalogue, or another definition of one of its entries."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
    title: str = ""
    description: str = ""
    requirements: tuple[str, ...] = ()
    python: str | None = None
    image: str | None = None
    kinds: tuple[Kind, ...] = (Kind.JOB, Kind.SERVICE)
    variables: dict[str, str] = Field(default_factory=dict)

    def entry(self) -> Environment:
        """The same as the domain has it."""
        return Environment(
            name=self.name,
            title=self.title or self.name,
            description=self.description,
            requirements=self.requirements,
            python=self.python,
            image=self.image,
            kinds=self.kinds,
            variables=tuple(self.variables.items()),
        )


_A_PRICE = "a number that is not negative"


class _Settings(BaseModel):
    """Those that have no file of their own. Memory is MiB, cpus thousandths, durations seconds."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    data_dir: Path = _setting(
        Path(".commonage"),
        "Folder for everything that must last: database, secrets, logs, workspaces. Made if it is not there.",
        Row("a folder", "Where", flag="--data-dir"),
    )
    bind: Annotated[str, AfterValidator(_address)] = _setting(
        "127.0.0.1",
        "Address of this machine that people reach; `0.0.0.0` is all of them, over plain HTTP.",
        Row("an IP address of this machine", "Where", flag="--bind"),
    )
    port: Port = _setting(8000, "Port that people reach.", Row(_A_PORT, "Where", flag="--port"))
    control_port: Port = _setting(
        0,
        "Port of the control plane on the loopback; 0 takes a free one at the first start and keeps it.",
        Row(_A_PORT, "Where"),
    )
    hub_port: Port = _setting(0, "Port of JupyterHub on the loopback; likewise.", Row(_A_PORT, "Where"))
    proxy_api_port: Port = _setting(0, "Port of the proxy's own API on the loopback; likewise.", Row(_A_PORT, "Where"))
    database_url: Annotated[str | None, BeforeValidator(no_empty), AfterValidator(_database)] = _setting(
        None,
        "Database of the control plane. A SQLite file in the data folder if left out.",
        Row("postgresql://USER:PASSWORD@HOST/NAME, or sqlite:///FILE", "Where", secret=True),
    )
    hub_database_url: OptionalText = _setting(
        None,
        "JupyterHub's own database, as its `db_url` takes it. A SQLite file in the data folder if left out.",
        Row("a database address of SQLAlchemy", "Where", secret=True),
    )

    name: Annotated[str, Field(min_length=1, max_length=60)] = _setting(
        "Commonage", "Name of this installation, shown in the portal.", Row("1 to 60 characters", "People")
    )
    password_file: OptionalPath = _setting(
        None,
        "File (0600) with the lines `admin=…` and `users=…`; what it says replaces the kept passwords.",
        Row("a file", "People", flag="--password-file"),
    )
    authenticator_class: Annotated[str, Field(min_length=1)] = _setting(
        "shared-password",
        "JupyterHub's authenticator, by its entry point or class; its own settings go into `hub_config`.",
        Row("the name of an authenticator, like shared-password or github", "People"),
    )
    admin_users: Names = _setting(
        ("admin",), "Who is an admin from the start.", Row("user names, with commas between", "People")
    )
    hub_config: OptionalPath = _setting(
        None, "A JupyterHub configuration file, loaded last; what it sets wins.", Row("a file", "People")
    )

    gpus: Annotated[str, AfterValidator(_gpus)] = _setting(
        "auto",
        "GPUs on offer: `auto` takes the real ones, and simulates one where there are none.",
        Row("auto, nvml, amd, none, or simulated:2x24GiB", "This machine", flag="--gpus"),
    )
    gpu_isolation: Literal["auto", "driver-limit", "mig", "mps", "cooperative"] = _setting(
        "auto",
        "How shares of a GPU are held: `auto` takes the strongest level that holds; a GPU on which the level named "
        f"here does not hold takes no work ({docs_page('concepts/gpu-sharing')}).",
        Row("auto, driver-limit, mig, mps or cooperative", "This machine"),
    )
    gpu_slots: Annotated[str, BeforeValidator(str), AfterValidator(_slots)] = _setting(
        "",
        "Equal slots that a GPU is shared in: one number for all, or by model; empty shares in any parts.",
        Row("a number like 3, or A100=4,T4=2", "This machine"),
    )
    node_name: OptionalText = _setting(
        None, "Name of this machine; its host name if left out.", Row("a name", "This machine")
    )
    cpus: Milli | None = _setting(
        None, "Cores on offer; all of the node if left out.", Row("a number of cores, like 8 or 0.5", "This machine")
    )
    memory: Mib | None = _setting(
        None, "Memory on offer; all of the node if left out.", Row("an amount of memory, like 64GiB", "This machine")
    )
    node_labels: Labels = _setting(
        {},
        "What else is to be known of this machine, for `--on`: `zone=basement`.",
        Row("a table of names with values in the file, or zone=basement,rack=7", "This machine"),
    )
    cpu_hold: Literal["share", "quota"] = _setting(
        "share",
        "How cores are held: `share` is what was asked for when cores are crowded, and idle ones for whoever has work; "
        "`quota` never lets anybody have more than was asked for.",
        Row("share or quota", "This machine"),
    )
    warm_sessions: bool = _setting(
        True,
        "Sessions start from a waiting process that has loaded the libraries, about 130 MiB for each environment.",
        Row("true or false", "This machine"),
    )
    keep_logs_days: Annotated[int, Field(ge=0, le=36_500)] = _setting(
        90,
        "How many days the logs of ended workloads are kept; the oldest beyond 20 GiB go earlier.",
        Row("a number of days", "This machine"),
    )

    engine: Literal["process", "docker", "swarm"] = _setting(
        "process",
        "What runs workloads: processes of this machine, containers of its Docker daemon, or services of its Swarm.",
        Row("process, docker or swarm", "Containers", flag="--engine"),
    )
    docker_url: str = _setting(
        "unix:///var/run/docker.sock",
        "Where the Docker daemon of this machine answers.",
        Row("unix:///…", "Containers"),
    )
    docker_image: OptionalText = _setting(
        None,
        "Image of the environments that come with us: with a shell, and for sessions with `jupyterhub-singleuser`.",
        Row("the name of an image", "Containers"),
    )
    docker_pull: Literal["missing", "never"] = _setting(
        "missing", "Whether an image that is not here is fetched.", Row("missing or never", "Containers")
    )
    docker_mounts: Mounts = _setting(
        (),
        "Folders of this machine that every container gets, read-only unless `:rw`; `{user}` and `{tenant}` are whose.",
        Row("/folder/here:/folder/inside, with commas between", "Containers"),
    )
    docker_networks: PrivateRange = _setting(
        "10.213.0.0/16",
        "Range of addresses for the networks of the tenants.",
        Row("a private range like 10.213.0.0/16", "Containers"),
    )

    job_environment: str = _setting(
        "base", "Environment of a job that names none.", Row("the name of an environment", "Work")
    )
    session_environment: str = _setting(
        "notebook", "Environment of a session that names none.", Row("the name of an environment", "Work")
    )
    environments: tuple[EnvironmentEntry, ...] = _setting(
        (),
        "Additions to the catalogue. Only in the file, as `[[environments]]` tables with `name`, `title`, "
        "`description`, `requirements`, `python`, `image`, `kinds`, `variables`.",
        Row("tables [[environments]] in the file", "Work"),
    )
    default_cpus: Milli = _setting(1000, "Cores of a workload that asks for none.", Row("a number of cores", "Work"))
    default_memory: Mib = _setting(
        1024, "Memory of a workload that asks for none.", Row("an amount of memory, like 1GiB", "Work")
    )
    gpu_over_share: Literal["warn", "stop", "contended"] = _setting(
        "contended",
        "What becomes of a workload that holds more VRAM than its share. It is always told; beyond that `warn` does "
        "nothing, `stop` ends it after `gpu_over_share_after`, `contended` ends it as soon as somebody else needs the "
        "memory.",
        Row("warn, stop or contended", "Work"),
    )
    gpu_over_share_after: Seconds = _setting(
        60, "How long `gpu_over_share = stop` lets it go on.", Row("a duration, like 1m", "Work")
    )
    gpu_over_share_tolerance: Mib = _setting(
        512,
        "So much more than its share is no fault: a CUDA context, which each further process needs for itself. Where "
        "contexts were measured and are larger, so much.",
        Row("an amount of memory, like 512MiB", "Work"),
    )
    warn_before: Seconds = _setting(
        300, "How long before its time limit a workload is warned.", Row("a duration, like 5m", "Work")
    )
    tenants: Tenants = _setting(
        (),
        f"Who shares the nodes, each with a weight and a quota ({docs_page('operate/tenants')}). Only in the file, "
        "as `[[tenants]]` tables with `name`, `title`, `weight`, `nominal`, `borrowing`, `lending`, `per_user`, "
        "`sites`, `environments`, `max_workloads`.",
        Row("tables [[tenants]] in the file", "Whose turn it is"),
    )
    priority_classes: PriorityClasses = _setting(
        (),
        "Names for priorities, beside `scavenger`, `low`, `normal`, `high` and `urgent` or instead of one of them. "
        "Only in the file, as `[[priority_classes]]` tables with `name`, `priority`, `preemptible`, `for_admins`.",
        Row("tables [[priority_classes]] in the file", "Whose turn it is"),
    )
    policy: PolicyName = _setting(
        registry.DEFAULT,
        "Where something goes that fits in several places.",
        Row(", ".join(registry.POLICIES), "Whose turn it is"),
    )
    site_policy: SitePolicy = _setting(
        SitePolicy.FIRST_FREE,
        "Which of several sites that could start something does.",
        Row("first-free, least-used or cheapest", "Whose turn it is"),
    )
    half_life: Seconds = _setting(
        7 * 86400, "After so long past usage counts half.", Row("a duration, like 7d", "Whose turn it is")
    )
    entry_penalty: SecondsOrNone = _setting(
        600,
        "Whoever starts something is charged for so long at once: many short ones are no way around the others.",
        Row("a duration, like 10m, or 0", "Whose turn it is"),
    )
    age_credit: Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)] = _setting(
        0.01,
        "How much of the whole cluster, held for an hour, an hour of waiting is worth.",
        Row("a number that is not negative", "Whose turn it is"),
    )
    guaranteed_runtime: SecondsOrNone = _setting(
        600,
        "Nothing is preempted before it ran so long.",
        Row("a duration, like 10m, or 0", "Whose turn it is"),
    )
    head_of_queue_timeout: SecondsOrNone = _setting(
        600,
        "After so long the first that waits, and of which nobody can say when it starts, has a node kept for it.",
        Row("a duration, like 10m, or 0", "Whose turn it is"),
    )
    price_gpu_gib_hour: Annotated[float, Field(ge=0, allow_inf_nan=False)] = _setting(
        0.0, "Price of a GiB of VRAM held for an hour.", Row(_A_PRICE, "Prices")
    )
    price_cpu_hour: Annotated[float, Field(ge=0, allow_inf_nan=False)] = _setting(
        0.0, "Price of a core held for an hour.", Row(_A_PRICE, "Prices")
    )
    price_memory_gib_hour: Annotated[float, Field(ge=0, allow_inf_nan=False)] = _setting(
        0.0, "Price of a GiB of memory held for an hour.", Row(_A_PRICE, "Prices")
    )
    currency: Annotated[str, Field(max_length=12)] = _setting(
        "", "What the prices are in, as it is shown.", Row("at most 12 characters, like EUR", "Prices")
    )

    sample_every_s: Annotated[float, Field(ge=0.5, le=3600)] = _setting(
        5.0, "Seconds between two measurements.", Row("a number of seconds from 0.5 to 3600", "Looking on")
    )
    log_level: Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(lambda v: str(v).lower())] = (
        _setting(
            "info",
            "What goes into logs/server.log.",
            Row("debug, info, warning or error", "Looking on", flag="--log-level"),
        )
    )
    log_format: Literal["text", "json"] = _setting(
        "text", "How the log's lines are written.", Row("text or json", "Looking on", flag="--log-format")
    )

    @property
    def prices(self) -> Prices:
        """The prices as the domain has them."""
        return Prices(
            gpu_gib_h=self.price_gpu_gib_hour,
            cpu_h=self.price_cpu_hour,
            memory_gib_h=self.price_memory_gib_hour,
            currency=self.currency,
        )


class Settings(
    BundleSettings,
    StorageSettings,
    ImageSettings,
    NodeSettings,
    AgentSettings,
    ComponentSettings,
    NodePoolSettings,
    SwarmSettings,
    OriginSettings,
    LimitSettings,
    TokenSettings,
    _Settings,
):
    """All of them, as they hold for one run of the server; pydantic takes the last of the bases first."""


def row_of(name: str) -> Row:
    """What the table says of the setting `name`."""
    row: Row = cast(Any, Settings.model_fields[name].json_schema_extra)["row"]  # every field is made by _setting
    return row


FLAGS: dict[str, str] = {row.flag: name for name in Settings.model_fields if (row := row_of(name)).flag is not None}
