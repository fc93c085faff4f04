"""What an agent is told: one TOML file, written when its machine joins. Reads and writes it; decides nothing."""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from commonage.domain.codec import Unreadable, from_json
from commonage.domain.errors import InvalidInput

DEFAULT_FILE = "/etc/commonage/agent.toml"
MOUNTS = "/run/commonage/attempts"
"""What the filter before the Docker socket lets containers have, too."""


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """One machine's agent.

    `node` is its name, the same as in its certificate and in the Swarm. `control` are the addresses (`HOST:PORT`) at
    which the control plane listens for agents. `certificate`, `key`, `request` (what the certificate was signed for, to
    have it renewed) and `authority` are PEM files; `state` is a folder of the agent's own, `mounts` one in which it
    mounts the folders of workloads. `docker` is the daemon, `docker_config` the file with the credentials for
    registries, in Docker's own form. `shared` is the folder that all
    machines of the site see ("": none). `gpus`: `auto` (real ones, or none), `nvml`, `amd`, `none`, `simulated:…`;
    `isolation` and `slots` as the server's settings of these names. `cpus_milli` and `memory_mib`: 0 is all there is.
    `cpu_hold`: `share` has the agent weigh containers by the cores that they asked for. `fence_after_s`: so long may
    the daemon be gone before the agent ends our containers itself; `fence_silent_after_s`: so long may it be there and
    not answer. `walls`: keep containers that come through `wall_interfaces` from the machine, its site and the cloud's
    metadata address; `site_networks` are more of the site's networks than those that the machine is in.
    """

    node: str
    control: tuple[str, ...]
    certificate: str
    key: str
    request: str
    authority: str
    state: str = "/var/lib/commonage-agent"
    mounts: str = MOUNTS
    docker: str = "unix:///var/run/docker.sock"
    docker_config: str = "/root/.docker/config.json"
    shared: str = ""
    gpus: str = "auto"
    isolation: str = "auto"
    slots: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    cpus_milli: int = 0
    memory_mib: int = 0
    cpu_hold: str = "share"
    disk_low_mib: int = 256
    fence_after_s: float = 8.0
    fence_silent_after_s: float = 60.0
    walls: bool = True
    wall_interfaces: tuple[str, ...] = ("docker_gwbridge", "docker0")
    site_networks: tuple[str, ...] = ()


def read_config(path: Path) -> AgentConfig:
    """The file. Raises InvalidInput, which names it and what is wrong."""
    try:
        found: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}; joining the site writes it") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} is not TOML: {error}") from error
    if isinstance(found.get("labels"), dict):
        found["labels"] = [[name, str(value)] for name, value in found["labels"].items()]
    try:
        config = from_json(AgentConfig, found)
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
    """The file's text; what is as by default is left out."""
    lines = ["# Written when this machine joined; `commonage.agent.config` says what each line means."]
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
    """JSON's strings, numbers, booleans and lists are TOML's."""
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)


def split_address(address: str) -> tuple[str, int]:
    """`10.0.0.1:8044` or `[fd00::1]:8044` in parts. Raises InvalidInput."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise InvalidInput(f"{address!r} is not an address like 10.0.0.1:8044", field="control")
    return host.removeprefix("[").removesuffix("]"), int(port)
