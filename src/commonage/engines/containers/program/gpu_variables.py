"""Environment variables that give a container the GPUs of its shares, by NVIDIA's container runtime. Pure.

That runtime obeys a container's variables, whoever set them: its user, or its image (NVIDIA's own images say
`NVIDIA_VISIBLE_DEVICES=all`). As a daemon's default runtime it acts on them without a request. So we set that variable
in every container, and remove those that would give it more GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping

from commonage.domain.statuses import StartRequest

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
MPS_PIPE = "CUDA_MPS_PIPE_DIRECTORY"
"""A client of MPS finds its daemon here: a folder of the node, and the same path inside."""
_MORE = tuple(
    f"NVIDIA_{what}"
    for what in ("MIG_CONFIG_DEVICES", "MIG_MONITOR_DEVICES", "IMEX_CHANNELS", "GDS", "MOFED", "NVSWITCH", "GDRCOPY")
)
"""These give access to MIG settings, or to devices of the node that are not GPUs: an admin's environment may set them.
"""


def visible(request: StartRequest) -> dict[str, str]:
    """GPU uuids of its shares; `void`, which means none, without a share or with simulated GPUs."""
    real = dict.fromkeys(share.device_uuid for share in request.allocation.shares if not share.simulated)
    return {VISIBLE: ",".join(real) or "void"}


def of_the_environment(request: StartRequest) -> dict[str, str]:
    return {name: value for name, value in request.environment.variables if name in _MORE}


def refused(request: StartRequest) -> frozenset[str]:
    return frozenset(_MORE) - of_the_environment(request).keys()


def mps_pipe(variables: Mapping[str, str]) -> str | None:
    """The folder of the MPS daemon that holds its share, mounted at the same path; None without one."""
    return variables.get(MPS_PIPE)
