"""Folders that the admin has every container get: how they are written, and whose they are for one order."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from commonage.domain.errors import EngineFailure, InvalidInput
from commonage.domain.folders import folder_name
from commonage.domain.sightings import Order

# The daemon's socket, or where it lies: whoever has it is root on this machine.
_SECRET_PLACES = (
    "/",
    "/run",
    "/var",
    "/var/run",
    "/run/docker.sock",
    "/var/run/docker.sock",
    "/var/lib/docker",
    "/proc",
)


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder of this machine that every container gets. `{user}` and `{tenant}` in `source` are who runs it."""

    source: str
    target: str
    writable: bool = False


def parse_mount(text: str) -> Mount:
    """`/host/folder:/folder` or `…:rw`; read-only unless said. Raises InvalidInput."""
    source, _, rest = text.partition(":")
    target, _, mode = rest.partition(":")
    if not (source.startswith("/") and target.startswith("/")) or mode not in ("", "ro", "rw"):
        raise InvalidInput(
            f"{text!r} is not a mount; it is written /folder/here:/folder/inside or …:rw", field="mounts"
        )
    if ".." in PurePosixPath(source).parts or str(PurePosixPath(source)) in _SECRET_PLACES:
        raise InvalidInput(f"{source} cannot be given to containers: it leads to the Docker daemon, and so to root")
    if str(PurePosixPath(target)) in ("/", "/home") or PurePosixPath(target).is_relative_to("/run/commonage"):
        raise InvalidInput(f"nothing can be mounted at {target}: that place is taken")
    return Mount(source, target, mode == "rw")


def source_of(mount: Mount, order: Order) -> str:
    """The folder that is mounted for this order."""
    return mount.source.replace("{user}", folder_name(order.owner)).replace("{tenant}", folder_name(order.tenant))


def see_that_nothing_leads_elsewhere(order: Order, mounts: Sequence[Mount]) -> None:
    """A folder that is mounted may lie where users can write: a link of theirs must not choose what is mounted."""
    for mount in mounts:
        source = source_of(mount, order)
        if os.path.realpath(source) != os.path.normpath(source):
            raise EngineFailure(f"{source}, which is to be mounted at {mount.target}, leads elsewhere by a link")
