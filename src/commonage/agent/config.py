"""The agent's configuration: one TOML file, written when its node joins; and its small state files."""

from __future__ import annotations

import json
import tomllib
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from commonage.domain.codec import Unreadable, from_json, to_json
from commonage.domain.errors import InvalidInput

T = TypeVar("T")
HOME = Path("/etc/commonage")
SETTINGS, KEY, REQUEST = HOME / "agent.toml", HOME / "agent.key", HOME / "agent.csr"
CERTIFICATE, AUTHORITY = HOME / "agent.crt", HOME / "ca.crt"
REGISTRY_LOGIN = HOME / "registry-login"
"""NAME:PASSWORD of this node at the site's registry: issued with the certificate, and valid as long."""
STATE = Path("/var/lib/commonage-agent")
MOUNTS = "/run/commonage/attempts"
"""The filter in front of the Docker socket also lets containers mount this folder."""


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """The configuration of one node's agent.

    `node` is the node's name, the same as in its certificate and in the Swarm. `control` are the addresses
    (`HOST:PORT`) at which the control plane listens for agents. `certificate`, `key`, `request` (the signing request,
    kept for renewals) and `authority` are PEM files. `state` is the agent's own folder, `mounts` the folder in which it
    mounts the folders of workloads. `docker` is the daemon, `docker_config` the file with the credentials for
    registries, in Docker's own format. `shared` is the folder that all nodes of the site see (empty: none). `gpus`:
    `auto` (real ones, or none), `nvml`, `amd`, `none`, `simulated:…`; `isolation`, `preload` and `slots` as the
    server's settings of these names. `cpus_milli` and `memory_mib`: 0 means all that the node has. `cpu_hold`: with
    `share` the agent weighs containers by the cores that they requested. `fence_after_s`: time the daemon may be gone
    before the agent ends Commonage's containers itself; `fence_silent_after_s`: the same for a daemon that accepts
    connections and does not answer. `firewall`: keep containers that come through `firewall_interfaces` away from the
    node, its site and the cloud's metadata address; `site_networks` are further networks of the site, in addition to
    those of the node.
    """

    node: str
    control: tuple[str, ...]
    certificate: str
    key: str
    request: str
    authority: str
    state: str = str(STATE)
    mounts: str = MOUNTS
    docker: str = "unix:///var/run/docker.sock"
    docker_config: str = "/root/.docker/config.json"
    shared: str = ""
    gpus: str = "auto"
    isolation: str = "auto"
    preload: str = ""
    slots: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    cpus_milli: int = 0
    memory_mib: int = 0
    cpu_hold: str = "share"
    disk_low_mib: int = 256
    fence_after_s: float = 8.0
    fence_silent_after_s: float = 60.0
    firewall: bool = True
    firewall_interfaces: tuple[str, ...] = ("docker_gwbridge", "docker0")
    site_networks: tuple[str, ...] = ()


def read_config(path: Path) -> AgentConfig:
    """Read the file. Raises InvalidInput, which names the file and the problem."""
    try:
        settings: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}; joining a site writes this file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} is not TOML: {error}") from error
    if isinstance(settings.get("labels"), dict):
        settings["labels"] = [[name, str(value)] for name, value in settings["labels"].items()]
    try:
        config = from_json(AgentConfig, settings)
    except Unreadable as error:
        raise InvalidInput(
            f"{path}: {error.message.replace('AgentConfig.', '').replace('AgentConfig', 'it')}"
        ) from error
    if not config.node or not config.control:
        raise InvalidInput(f"{path}: node and control must not be empty")
    for address in config.control:
        split_address(address)
    return config


def config_text(config: AgentConfig) -> str:
    """The file's text. Values equal to the default are left out."""
    lines = ["# Written when this node joined. `commonage.agent.config` describes each setting."]
    for field in fields(config):
        value = getattr(config, field.name)
        if field.name == "labels":
            value = dict(value)
            if value:
                pairs = ", ".join(f"{_toml(name)} = {_toml(word)}" for name, word in value.items())
                lines.append(f"labels = {{ {pairs} }}")
        elif value != field.default:
            lines.append(f"{field.name} = {_toml(value)}")
    return "\n".join(lines) + "\n"


def _toml(value: object) -> str:
    """A TOML value: JSON's strings, numbers, booleans and lists are valid TOML."""
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)


def read_state(file: Path, kind: type[T], default: T) -> T:
    """The content that `save_state` wrote; `default` if the file cannot be read."""
    try:
        return from_json(kind, json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, Unreadable):
        return default


def replace_file(path: Path, text: str) -> None:
    """Write the file atomically. Raises OSError."""
    new = path.with_suffix(".new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)


def save_state(file: Path, value: object) -> None:
    """Save what the control plane sent. A full disk is no error: it is sent again with the next link."""
    with suppress(OSError):
        file.write_text(json.dumps(to_json(value)), encoding="utf-8")


def split_address(address: str) -> tuple[str, int]:
    """Split `10.0.0.1:8044` or `[fd00::1]:8044` into host and port. Raises InvalidInput."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise InvalidInput(f"{address!r} is not an address like 10.0.0.1:8044", field="control")
    return host.removeprefix("[").removesuffix("]"), int(port)
