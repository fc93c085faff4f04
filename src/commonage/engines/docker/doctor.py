"""Features and problems of a Docker daemon, as text for an admin. Called by `commonage doctor`; changes nothing."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping
from typing import Any

from commonage.engines.containers.daemon.checks import DaemonSummary
from commonage.engines.containers.daemon.gpus import BY_UUID, HOOK, gpu_method_of, has_runtime, lacks_uuids
from commonage.engines.docker.client import Client
from commonage.engines.docker.daemon import remapped_root


async def examine_daemon(url: str) -> DaemonSummary:
    """Examine the daemon at `url`. Raises EngineFailure if it does not answer."""
    client = Client(url)
    try:
        info = await client.info()
    finally:
        await client.close()
    return await asyncio.to_thread(lambda: examined(info, has_hook=shutil.which(HOOK) is not None))


def examined(info: Mapping[str, Any], *, has_hook: bool = False) -> DaemonSummary:
    """Examine a daemon's own description; `has_hook`: the container toolkit's hook is on this computer's PATH."""
    options = " ".join(info.get("SecurityOptions") or ())
    gpus = "CDI" if gpu_method_of(info) == "cdi" else "nvidia" if has_runtime(info) or has_hook else "none"
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
        # `systemctl daemon-reload` rewrites the device rules of control groups, without those that the runtime added.
        advice.append("running containers lose their GPU at `systemctl daemon-reload`: use CDI or the cgroupfs driver")
    if lacks_uuids(info):
        advice.append(BY_UUID)
    if not info.get("LiveRestoreEnabled"):
        advice.append('set "live-restore": true in /etc/docker/daemon.json, so that a restart of Docker ends nothing')
    return DaemonSummary(said, "; ".join(advice))
