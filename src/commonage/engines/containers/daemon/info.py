"""Reads what a daemon reports: safe settings and GPUs (`/info`), progress of a pull, and refusals of a registry.

Used by engines, their doctors and the node agent: standard library only.

A daemon gives NVIDIA GPUs to containers in one of two ways. For CDI it must know a specification that names the GPUs
by uuid. For device requests it must have found the container toolkit's hook when it started. Daemons older than 28 do
not report this: then their folders are read, which may block.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from commonage.domain.reasons import Reason
from commonage.domain.reasons.attempts import PullingImage
from commonage.domain.reasons.devices import ContainersWithoutGpus
from commonage.domain.reasons.nodes import DaemonMapsUsers, DaemonWithoutSeccomp


@dataclass(frozen=True, slots=True)
class DaemonSummary:
    """Summary of a daemon for an admin; `advice` is empty if no action is needed. `conditions`: of nodes, by name."""

    said: str
    advice: str
    conditions: tuple[tuple[str, Reason], ...] = ()


_SAYS_SO_SINCE = 25


def swarm_faults(info: Mapping[str, Any]) -> tuple[Reason, ...]:
    """Why a Swarm node with this daemon should get no work."""
    options = " ".join(info.get("SecurityOptions") or ())
    found: list[Reason] = []
    if "name=userns" in options:
        found.append(DaemonMapsUsers())
    if "name=seccomp" not in options or "profile=unconfined" in options:
        found.append(DaemonWithoutSeccomp())
    return tuple(found)


def may_gain(info: Mapping[str, Any]) -> bool | None:
    """True if containers of this daemon may gain privileges unless they forbid it; None: it does not say.

    Current daemons say so (moby 24 and later); for older ones a running container must be inspected.
    """
    if "name=no-new-privileges" in (info.get("SecurityOptions") or ()):
        return False
    version = str(info.get("ServerVersion", "")).partition(".")[0]
    return True if version.isdecimal() and int(version) >= _SAYS_SO_SINCE else None


GpuMethod = Literal["cdi", "request"]
KIND = "nvidia.com/gpu"
HOOK = "nvidia-container-runtime-hook"
"""Program of the toolkit, which the daemon looks for on its PATH when it starts."""
BY_UUID = "CDI does not know the GPUs by their uuids: run `nvidia-ctk cdi generate --device-name-strategy=uuid`"
_MAX_BYTES = 4 * 2**20
_NAME = re.compile(r"""^[\s{,-]*"?name"?\s*:\s*["']?([\w.:/-]+)""", re.MULTILINE)
_OF_GPUS = re.compile(rf"""^[\s{{,]*"?kind"?\s*:\s*["']?{re.escape(KIND)}\b""", re.MULTILINE)


def has_runtime(info: Mapping[str, Any]) -> bool:
    """True if it knows NVIDIA's runtime, so that the toolkit is installed."""
    return "nvidia" in (info.get("Runtimes") or {})


def services_fault(info: Mapping[str, Any]) -> Reason | None:
    """Why this daemon gives no GPUs to services of a Swarm, which cannot request them."""
    default = str(info.get("DefaultRuntime") or "runc")
    program = str(((info.get("Runtimes") or {}).get(default) or {}).get("path", ""))
    if "nvidia" in default or "nvidia" in program:
        return None
    return ContainersWithoutGpus(runtime=default)


def cdi_names(info: Mapping[str, Any]) -> frozenset[str]:
    """CDI names of NVIDIA GPUs: uuids, indices, `all`, as the author of the specification chose."""
    discovered = info.get("DiscoveredDevices")
    if discovered is not None:
        ids = (str(one.get("ID", "")) for one in discovered if one.get("Source") == "cdi")
        return frozenset(one.removeprefix(f"{KIND}=") for one in ids if one.startswith(f"{KIND}="))
    return frozenset(name for text in _specifications(info) if _OF_GPUS.search(text) for name in _NAME.findall(text))


def _specifications(info: Mapping[str, Any]) -> Iterator[str]:
    for folder in info.get("CDISpecDirs") or ():
        with suppress(OSError):
            for file in sorted(Path(folder).iterdir()):
                if file.suffix in (".json", ".yaml") and file.stat().st_size <= _MAX_BYTES:
                    # One entry on each line, whatever program wrote it.
                    yield re.sub(r"([{,])", "\\1\n", file.read_text(encoding="utf-8", errors="replace"))


def gpu_method_of(info: Mapping[str, Any]) -> GpuMethod:
    """CDI if it knows GPUs by that and has no NVIDIA runtime; else device requests, which need the toolkit."""
    return "cdi" if not has_runtime(info) and cdi_names(info) else "request"


def lacks_uuids(info: Mapping[str, Any]) -> bool:
    """True if GPUs are given by CDI, and none has its uuid, which we use, as a name there."""
    return gpu_method_of(info) == "cdi" and not any(name.startswith(("GPU-", "MIG-")) for name in cdi_names(info))


# Moby's wording of registry responses. It is a single word if the response was to a HEAD request, which has no body.
_DENIED = re.compile(
    r"pull access denied|requested access to the resource is denied|(^|: )denied(:|$)|\b403 forbidden", re.IGNORECASE
)
_UNKNOWN = re.compile(r"(^|: )unauthorized(:|$)|no basic auth credentials|\b401 unauthorized", re.IGNORECASE)
_UNTRUSTED = re.compile(r"x509: |certificate (is not trusted|signed by unknown authority)", re.IGNORECASE)
_SILENT = re.compile(
    r"no such host|i/o timeout|Client\.Timeout|connection refused|TLS handshake timeout|network is unreachable"
    r"|no route to host|server misbehaving|Temporary failure in name resolution",
    re.IGNORECASE,
)
_PULLED = ("Download complete", "Pull complete", "Already exists")


def refusal_of(image: str, said: str, node: str = "") -> str:
    """Why a registry refuses an image, as text; empty if the daemon's message `said` is no refusal, and may pass.

    `node` names a node that has an account of its own at the site's registry.
    """
    registry, said = registry_of(image), " ".join(said.split())
    who = node or "this machine"
    by_hand = f"run `docker login {registry}` and `docker pull {image}` on the node, as root"
    if _DENIED.search(said):
        return (
            f"the registry {registry} does not let {who} have the image {image}, or has none of that name. "
            f"Check the name, and that the tenant in it may use it; if it needs an account there, {by_hand}"
        )
    if _UNKNOWN.search(said):
        joins = f"have it join again (`commonage node join`) if the registry is the site's own, else {by_hand}"
        return (
            f"the registry {registry} does not accept the account of {who}, and does not give it the image {image}. "
            f"What to do: {joins if node else by_hand}"
        )
    if _UNTRUSTED.search(said):
        return (
            f"Docker on {who} does not trust the certificate of the registry {registry}, and did not get the image "
            f"{image}. If the registry is the platform's own, copy the certificate of the control plane's authority to "
            f"/etc/docker/certs.d/{registry}/ca.crt there; `commonage doctor` shows the command"
        )
    return ""


def is_unreachable(said: str) -> bool:
    """Whether the daemon's message `said` means that a registry does not answer."""
    return _SILENT.search(said) is not None


def why_unreachable(image: str, node: str = "") -> str:
    """The error if an appliance, whose workloads start nowhere else, cannot reach the registry of an image."""
    registry, place = registry_of(image), node or "this machine"
    return (
        f"the registry {registry} cannot be reached from {place}, which does not have the image {image}. Let {place} "
        f"connect to {registry} (firewall, name, route), or load the image there with `docker load`; then start the "
        "workload again"
    )


def registry_of(image: str) -> str:
    """`HOST:PORT` of the registry that an image's name means."""
    first, slash, _ = image.partition("/")
    return first if slash and (first == "localhost" or "." in first or ":" in first) else "docker.io"


def progress_of(
    image: str, message: Mapping[str, Any], layers: dict[str, tuple[int, int]]
) -> tuple[PullingImage, float | None]:
    """The step that a progress message reports, and the fraction of all layers that is here.

    Updates `layers` (bytes here, bytes in total).
    """
    status, layer = str(message.get("status", "")), str(message.get("id", ""))
    detail = message.get("progressDetail") or {}
    if status == "Downloading" and detail.get("total"):
        layers[layer] = (int(detail.get("current", 0)), int(detail["total"]))
    elif status in _PULLED and layer in layers:
        layers[layer] = (layers[layer][1], layers[layer][1])
    total = sum(size for _, size in layers.values())
    if not total:
        return PullingImage(image=image, step=status.lower()), None
    here = sum(size for size, _ in layers.values())
    return PullingImage(image=image, pulled_bytes=here, total_bytes=total), here / total
