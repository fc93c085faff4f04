"""What tells NVIDIA's container runtime which cards a container is given. Pure.

That runtime takes a container's variables for orders, whoever set them: its user, or its image (NVIDIA's own images say
`NVIDIA_VISIBLE_DEVICES=all`). Where it is a daemon's default runtime it acts on them without being asked. So each
container has that variable from us, and none of those by which it would be given more than cards.
"""

from __future__ import annotations

from collections.abc import Mapping

from commonage.domain.sightings import Order

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
MPS_PIPE = "CUDA_MPS_PIPE_DIRECTORY"
"""Where a client of MPS finds its daemon: a folder of the machine's, and the same inside."""
_MORE = tuple(
    f"NVIDIA_{what}"
    for what in ("MIG_CONFIG_DEVICES", "MIG_MONITOR_DEVICES", "IMEX_CHANNELS", "GDS", "MOFED", "NVSWITCH", "GDRCOPY")
)
"""By these it gives the settings of MIG, or devices of the machine that are no cards: an admin's environment may."""


def visible(order: Order) -> dict[str, str]:
    """The cards of its shares by uuid; `void`, which is none, without a share or with simulated ones."""
    real = dict.fromkeys(share.device_uuid for share in order.lease.shares if not share.simulated)
    return {VISIBLE: ",".join(real) or "void"}


def of_the_environment(order: Order) -> dict[str, str]:
    """What its environment asks for beside cards."""
    return {name: value for name, value in order.environment.variables if name in _MORE}


def refused(order: Order) -> frozenset[str]:
    """The names of what nobody else may ask for."""
    return frozenset(_MORE) - of_the_environment(order).keys()


def mps_pipe(variables: Mapping[str, str]) -> str | None:
    """The folder of the MPS daemon that holds its share, to be mounted at the same place; None if there is none."""
    return variables.get(MPS_PIPE)
