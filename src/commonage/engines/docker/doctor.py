"""What a Docker daemon can do for us, in words for an admin. Called by `commonage doctor`; changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from commonage.engines.docker.client import Client
from commonage.engines.docker.daemon import remapped_root


@dataclass(frozen=True, slots=True)
class Examined:
    """What was found; `advice` is empty where nothing is to be done."""

    said: str
    advice: str


async def examine_daemon(url: str) -> Examined:
    """Ask the daemon at `url`. Raises EngineFailure when it does not answer."""
    client = Client(url)
    try:
        return examined(await client.info())
    finally:
        await client.close()


def examined(info: Mapping[str, Any]) -> Examined:
    """The same of what it says of itself."""
    options = " ".join(info.get("SecurityOptions") or ())
    runtimes = info.get("Runtimes") or {}
    gpus = "nvidia" if "nvidia" in runtimes else "CDI" if info.get("CDISpecDirs") else "none"
    said = (
        f"Docker {info.get('ServerVersion')}, storage {info.get('Driver')}, cgroups {info.get('CgroupDriver')} version "
        f"{info.get('CgroupVersion', '1')}, users {'mapped' if remapped_root(info) else 'not mapped'}, "
        f"seccomp {'on' if 'name=seccomp' in options else 'off'}, "
        f"live-restore {'on' if info.get('LiveRestoreEnabled') else 'off'}, GPUs: {gpus}"
    )
    advice = []
    if not info.get("MemoryLimit", True):
        advice.append("the kernel does not limit memory: boot with cgroup_enable=memory")
    if info.get("CgroupDriver") == "systemd" and gpus == "nvidia":
        # `systemctl daemon-reload` writes the device rules of control groups anew, without what the runtime added.
        advice.append("running containers lose their GPU at `systemctl daemon-reload`: use CDI or the cgroupfs driver")
    if not info.get("LiveRestoreEnabled"):
        advice.append('set "live-restore": true in /etc/docker/daemon.json, so that a restart of Docker ends nothing')
    return Examined(said, "; ".join(advice))
