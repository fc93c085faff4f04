"""Folders that the admin mounts into every container: their syntax, and their source for one request.

Used by engines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from commonage.domain.errors import InvalidInput
from commonage.domain.folders import folder_name
from commonage.domain.statuses import StartRequest
from commonage.engines.containers.files.path_checks import check_path_is_trusted

# Sockets and data of the daemon and of container runtimes, or folders above those: access to them means root.
_SECRET_PLACES = ("/", "/var", "/var/lib")
_SECRET_FOLDERS = ("/run", "/var/run", "/var/lib/docker", "/var/lib/containerd", "/proc")


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder of this node that every container gets. `{user}` and `{tenant}` in `source` name the attempt's owner."""

    source: str
    target: str
    writable: bool = False


def parse_mount(text: str) -> Mount:
    """Parse `/host/folder:/folder` or `…:rw`; read-only by default. Raises InvalidInput."""
    source, _, rest = text.partition(":")
    target, _, mode = rest.partition(":")
    if not (source.startswith("/") and target.startswith("/")) or mode not in ("", "ro", "rw"):
        raise InvalidInput(
            f"{text!r} is not a mount; it is written /folder/here:/folder/inside or …:rw", field="mounts"
        )
    plain = PurePosixPath("/" + source.lstrip("/"))  # pathlib would keep two leading slashes
    secret = str(plain) in _SECRET_PLACES or any(plain.is_relative_to(one) for one in _SECRET_FOLDERS)
    if ".." in plain.parts or secret:
        raise InvalidInput(f"{source} cannot be given to containers: it leads to the Docker daemon, and so to root")
    if str(PurePosixPath(target)) in ("/", "/home") or PurePosixPath(target).is_relative_to("/run/commonage"):
        raise InvalidInput(f"nothing can be mounted at {target}: that place is taken")
    return Mount(source, target, mode == "rw")


def source_of(mount: Mount, request: StartRequest) -> str:
    return mount.source.replace("{user}", folder_name(request.owner)).replace("{tenant}", folder_name(request.tenant))


def check_mount_sources(request: StartRequest, mounts: Sequence[Mount]) -> None:
    """Raise EngineFailure if anyone but root and the server could redirect the mount. In threads."""
    for mount in mounts:
        source = source_of(mount, request)
        check_path_is_trusted(source, f"{source}, which is to be mounted at {mount.target},")
