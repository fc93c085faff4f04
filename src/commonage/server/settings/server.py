"""The settings of the server itself: its addresses and files, users and sign-in, logs."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field

from commonage.resources.fields import (
    Seconds,
    Takes,
)
from commonage.server.settings.fields import (
    IpAddress,
    Names,
    Networks,
    OptionalPath,
    OptionalText,
    PortOrFree,
    RetentionSeconds,
    no_empty,
    setting,
)
from commonage.wire.hub import docs_page

AUTO, NONE = "auto", "none"
_LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_WILDCARD = re.compile(rf"\*(\.{_LABEL})+", re.ASCII)
_MAX_WILDCARD = 253 - 63  # of a DNS name, less the label of a user
_DATABASES = ("postgresql", "postgres", "postgresql+asyncpg", "sqlite", "sqlite+aiosqlite")
_MIN_LIFETIME_S = 60


def _session_host(value: str) -> str:
    value = value.strip().lower().rstrip(".") or AUTO  # a compose file passes an empty text
    if value in (AUTO, NONE):
        return value
    if not _WILDCARD.fullmatch(value) or len(value) > _MAX_WILDCARD or _is_address(value.removeprefix("*.")):
        raise ValueError("not a wildcard name")
    return value


def _is_address(value: str) -> bool:
    try:
        ipaddress.ip_address(value)
    except ValueError:
        return False
    return True


def _url(value: str | None) -> str | None:
    if value is None:
        return None
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/") or parts.query:
        raise ValueError("not an address without a path")
    return value.rstrip("/")


Url = Annotated[str | None, BeforeValidator(no_empty), AfterValidator(_url)]


def _database(value: str | None) -> str | None:
    """Refuse early what the store would refuse."""
    if value is not None and value.partition("://")[0] not in _DATABASES:
        raise ValueError("neither PostgreSQL nor SQLite")
    return value


class ServerSettings(BaseModel):
    data_dir: Path = setting(
        Path(".commonage"),
        "Data folder of the server: database, secrets, logs and workspaces. Created if it does not exist. "
        "Put it on a disk that is backed up.",
        "a folder",
        flag="--data-dir",
    )
    bind: IpAddress = setting(
        "127.0.0.1",
        "Address at which browsers and clients reach the server. `0.0.0.0` listens on all addresses, by plain HTTP: "
        "put a proxy with HTTPS in front.",
        flag="--bind",
    )
    port: PortOrFree = setting(8000, "Port at which browsers and clients reach the server.", flag="--port")
    public_url: OptionalText = setting(
        None,
        "Address that users type. Set it if a proxy with HTTPS is in front of the server.",
        "an address like https://hub.example.org",
    )
    session_host: Annotated[str, AfterValidator(_session_host)] = setting(
        AUTO,
        "Wildcard name that gives each user's sessions an origin of their own, so that scripts of one user cannot act "
        f"as another ({docs_page('operate/origins')}). `auto` is `*.localhost` if the server is reached on the "
        "loopback, else `none`. With `none`, sessions share the origin of hub and portal.",
        "auto, none, or a wildcard name like *.hub.example.org",
    )
    control_port: PortOrFree = setting(
        0, "Port of the control plane on the loopback. 0 chooses a free port at the first start and keeps it."
    )
    hub_port: PortOrFree = setting(
        0, "Port of JupyterHub on the loopback. 0 chooses a free port at the first start and keeps it."
    )
    proxy_api_port: PortOrFree = setting(
        0, "Port of the proxy's own API on the loopback. 0 chooses a free port at the first start and keeps it."
    )
    children: Literal["own", "external", "remote"] = setting(
        "own",
        "How JupyterHub and the proxy run. `own`: as child processes of the control plane. `external`: by `commonage "
        f"component`, each in a container of this machine ({docs_page('operate/deploy')}). `remote`: by `commonage "
        "component`, each in a pod of its own; they share settings and secrets, and no folder "
        f"({docs_page('operate/kubernetes-deploy')}).",
    )
    control_url: Url = setting(
        None,
        "Where hub and proxy reach the control plane. Only with `children = remote`.",
        "an address like http://commonage-control:8081",
    )
    hub_url: Url = setting(
        None,
        "Where control plane and proxy reach JupyterHub. Only with `children = remote`.",
        "an address like http://commonage-hub:8082",
    )
    proxy_api_url: Url = setting(
        None,
        "Where the hub reaches the proxy's own API. Only with `children = remote`.",
        "an address like http://commonage-proxy-api:8083",
    )
    trusted_proxies: Networks = setting(
        (),
        "Addresses of proxies whose forwarding headers are trusted, in addition to the addresses of this machine. "
        "The headers name the client to which limits apply. On Kubernetes: the network of the ingress controller's "
        "pods.",
    )
    gateway_port: PortOrFree = setting(
        0,
        "Port at which workloads in other pods reach the APIs of hub and control plane. Only with `children = remote`; "
        "0 opens none.",
    )
    gateway_url: Url = setting(
        None,
        "Where workloads in other pods reach the port `gateway_port`. Default: they reach neither hub nor API.",
        "an address like http://commonage-gateway",
    )
    secrets_dir: OptionalPath = setting(
        None,
        "Folder with the server's secrets, one file each, if others made them: a mounted Secret. It is only read. "
        "Default: `secrets` in the data folder, where the first start makes them.",
        "a folder",
    )
    database_url: Annotated[str | None, BeforeValidator(no_empty), AfterValidator(_database)] = setting(
        None,
        "Database of the control plane. Default: a SQLite file in the data folder. Use PostgreSQL in production.",
        "postgresql://USER:PASSWORD@HOST/NAME, or sqlite:///FILE",
        secret=True,
    )
    hub_database_url: OptionalText = setting(
        None,
        "Database of JupyterHub (its `db_url`). Default: a SQLite file in the data folder.",
        "a database URL of SQLAlchemy",
        secret=True,
    )


class UserSettings(BaseModel):
    name: Annotated[str, Field(min_length=1, max_length=60)] = setting(
        "Commonage", "Name of this installation. The portal shows it.", "1 to 60 characters"
    )
    authenticator_class: Annotated[str, Field(min_length=1)] = setting(
        "shared-password",
        "Authenticator of JupyterHub, by entry point or class. Set its own options in the file `hub_config`.",
        "the name of an authenticator, like shared-password or github",
    )
    password_file: OptionalPath = setting(
        None,
        "File (mode 0600) with the lines `admin=…` and `users=…`. These passwords replace the stored ones.",
        "a file",
        flag="--password-file",
    )
    admin_users: Names = setting(("admin",), "Users who are admins from the start.", "user names, separated by commas")
    contact: OptionalText = setting(
        None,
        "Contact for users who need help. A refused sign-in names it.",
        "a name or an e-mail address, like gpu-help@example.org",
    )
    hub_config: OptionalPath = setting(
        None, "JupyterHub configuration file. It is loaded last and overrides other configuration.", "a file"
    )
    token_lifetime: Annotated[Seconds, Field(ge=_MIN_LIFETIME_S)] = setting(
        30 * 24 * 3600,
        "Longest lifetime of a user's token, and the lifetime if none is requested. The token of a session is valid "
        "as long as the session.",
        "a duration of at least a minute, like 30d",
    )


def _lower(value: object) -> str:
    return str(value).lower()


class LogSettings(BaseModel):
    log_level: Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(_lower)] = setting(
        "info", "Least severe level that is written to logs/server.log.", flag="--log-level"
    )
    log_format: Literal["text", "json"] = setting(
        "text", "Format of the log. Use `json` if a log collector reads it.", flag="--log-format"
    )
    sample_every_s: Annotated[float, Field(ge=0.5, le=3600), Takes("a number of seconds from 0.5 to 3600")] = setting(
        5.0, "Seconds between two measurements of nodes, GPUs and workloads."
    )


class TracingSettings(BaseModel):
    tracing_endpoint: Url = setting(
        None,
        f"Where traces go, by OTLP over HTTP ({docs_page('operate/monitor')}#traces). Needs the extra `tracing`. "
        "Default: no traces.",
        "an address like http://collector:4318",
    )
    tracing_share: Annotated[float, Field(ge=0, le=1), Takes("a number from 0 to 1")] = setting(
        1.0, "Of the traces that begin here, the fraction that is kept."
    )


_DAY_S = 86_400


class RetentionSettings(BaseModel):
    """How long the platform keeps ended workloads, events, samples and logs. Older data is deleted in small batches."""

    keep_workloads: RetentionSeconds = setting(
        90 * _DAY_S,
        "How long ended workloads are kept, with their attempts, usage reports and samples. Their usage stays, as "
        "daily totals. A workload that a live one depends on, and an array with a live member, stay. The minimum is "
        "five times `half_life`.",
    )
    keep_events: RetentionSeconds = setting(30 * _DAY_S, "How long events are kept.")
    keep_samples: RetentionSeconds = setting(_DAY_S, "How long measurements are kept in full resolution.")
    keep_samples_by_minute: RetentionSeconds = setting(
        30 * _DAY_S, "How long measurements are kept, aggregated by minute."
    )
    keep_samples_by_hour: RetentionSeconds = setting(
        730 * _DAY_S,
        "How long measurements are kept, aggregated by hour. Those of workloads are deleted after `keep_workloads`.",
    )
    keep_logs: RetentionSeconds = setting(
        90 * _DAY_S,
        "How long the logs of ended workloads are kept. Above 20 GiB in total, the oldest are deleted earlier.",
    )
    keep_job_files: RetentionSeconds = setting(
        365 * _DAY_S,
        "How long the folder of a job that came with files (`jobs/ID` in its owner's home) is kept after its last "
        "attempt and the last change in it.",
    )
