"""Volumes: data that workloads share, who may have which, and what of it one attempt gets as its mounts.

A volume is declared by the admin. A workload asks for it by name, as `NAME[:ro|rw][@/path]`; what an engine is told
is a `Mount`, in which nothing is left to be looked up.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from commonage.domain.errors import Forbidden, InvalidInput
from commonage.domain.folders import folder_name

ROOT = "/volumes"
"""Where a volume is in a container unless it was asked for elsewhere: `/volumes/NAME`."""

MOST = 32
"""So many volumes one workload may have."""

# What a container needs where it is; and home folders, in which their owners could put a link in the way.
_TAKEN = (
    "/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/lib32", "/lib64", "/proc", "/root", "/run", "/sbin", "/sys",
    "/usr", "/var/run",
)  # fmt: skip
_SECRET = ("/proc", "/sys", "/dev", "/etc", "/run", "/var/run", "/var/lib/docker", "/var/lib/containerd")
_ASKED = re.compile(r"(?P<name>[^:@]*)(?::(?P<mode>[^:@]*))?(?:@(?P<target>.*))?")
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}", re.ASCII)
_PATH = re.compile(r"[^\x00-\x1f\x7f,:]{1,512}")


class VolumeKind(StrEnum):
    """What a volume is.

    `folder`: a folder that every machine sees under the same path (an NFS mount, say). `docker`: a volume that the
    Docker daemon of each machine keeps. `scratch`: room on the machine that one attempt has to itself, until it ends.
    """

    FOLDER = "folder"
    DOCKER = "docker"
    SCRATCH = "scratch"


class Extent(StrEnum):
    """Who shares the content of a Docker volume: all that may have it, each tenant, or each user alone."""

    ALL = "all"
    TENANT = "tenant"
    USER = "user"


@dataclass(frozen=True, slots=True)
class Volume:
    """One entry of the settings.

    `source` is the path of a folder; `{user}` and `{tenant}` in it are whose workload it is. `writable`: it may be
    asked for `rw`. `tenants`, where not empty, are those whose members may have it. `size_mib` bounds a Docker volume
    or scratch where that can be held. `memory`: scratch in memory, which counts as the workload's. `always`: every
    workload that may have it gets it unasked, at `target` if that is not the usual place.
    """

    name: str
    title: str = ""
    description: str = ""
    kind: VolumeKind = VolumeKind.FOLDER
    source: str = ""
    writable: bool = False
    tenants: tuple[str, ...] = ()
    per: Extent = Extent.ALL
    size_mib: int | None = None
    memory: bool = False
    always: bool = False
    target: str = ""

    def is_for(self, tenant: str) -> bool:
        """True if work on this tenant's account may have it."""
        return not self.tenants or tenant in self.tenants

    @property
    def place(self) -> str:
        """Where it is in a container that did not ask for another place."""
        return self.target or f"{ROOT}/{self.name}"


@dataclass(frozen=True, slots=True)
class VolumeRequest:
    """What a workload asks of a volume. `writable` None: read-only, but scratch. `target` "": the usual place."""

    name: str
    writable: bool | None = None
    target: str = ""

    @property
    def text(self) -> str:
        """The text that parses back to this request."""
        mode = "" if self.writable is None else ":rw" if self.writable else ":ro"
        return f"{self.name}{mode}{f'@{self.target}' if self.target else ''}"


@dataclass(frozen=True, slots=True)
class Mount:
    """A volume as one attempt gets it.

    `source` is the path of a folder, the name of a Docker volume within the installation, or nothing for scratch.
    """

    name: str
    kind: VolumeKind
    source: str
    target: str
    writable: bool
    size_mib: int | None = None
    memory: bool = False
    made: bool = False  # the folder is the tenant's or user's own, and made where it is missing


def _wrong(text: str, why: str) -> InvalidInput:
    shown = text if len(text) <= 80 else text[:77] + "..."
    return InvalidInput(f"the volume {shown!r} {why}", field="volumes", code="invalid-volume")


def parse_volume(text: str) -> VolumeRequest:
    """A request from `NAME`, `NAME:ro`, `NAME:rw`, each with `@/path` behind. Raises InvalidInput."""
    found = _ASKED.fullmatch(text.strip())
    if found is None or not _NAME.fullmatch(found["name"]):
        raise _wrong(text, "has no name; write it like datasets, results:rw or datasets@/data")
    if found["mode"] not in (None, "ro", "rw"):
        raise _wrong(text, "is neither ro nor rw; write it like results:rw, or results@/path")
    target = "" if found["target"] is None else check_target(found["target"], found["name"])
    return VolumeRequest(found["name"], None if found["mode"] is None else found["mode"] == "rw", target)


def check_target(path: str, name: str) -> str:
    """A path in a container where the volume `name` may be mounted, in its plain form. Raises InvalidInput."""
    if not path.startswith("/") or ".." in _parts(path) or not _PATH.fullmatch(path):
        raise _wrong(name, f"should go to {path[:80]!r}, which is no whole path; write it like {name}@/data")
    plain = _plain(path)
    taken = next((one for one in _TAKEN if _is_in(plain, one)), None)
    if taken is not None or plain in ("/", "/var"):
        raise _wrong(name, f"cannot go to {plain[:80]!r}: {taken or plain} is taken; choose a place like /data")
    return plain


def allowed(asked: Sequence[VolumeRequest], volumes: Sequence[Volume], tenant: str) -> tuple[VolumeRequest, ...]:
    """The requests with their modes filled in. Raises InvalidInput, Forbidden with what there is to choose from."""
    if len(asked) > MOST:
        raise InvalidInput(f"{len(asked)} volumes were asked for; at most {MOST} are allowed", field="volumes")
    offered = {one.name: one for one in volumes if one.is_for(tenant)}
    found = []
    for one in asked:
        volume = offered.get(one.name)
        if volume is None:
            raise _not_there(one, volumes, offered, tenant)
        if one.writable and not volume.writable:
            raise Forbidden(f"the volume {one.name} is read-only; ask for {one.name}:ro", code="volume-read-only")
        # Scratch that cannot be written to is of no use to anybody.
        writable = volume.kind is VolumeKind.SCRATCH if one.writable is None else one.writable
        found.append(VolumeRequest(one.name, writable, one.target))
    _apart([(one.name, one.target or offered[one.name].place) for one in found])
    return tuple(found)


def _not_there(
    one: VolumeRequest, volumes: Sequence[Volume], offered: Iterable[str], tenant: str
) -> InvalidInput | Forbidden:
    there = ", ".join(sorted(offered)) or "none"
    if any(one.name == each.name for each in volumes):
        return Forbidden(f"members of {tenant} cannot have the volume {one.name!r}; they have: {there}")
    return InvalidInput(
        f"there is no volume {one.name!r}; there are: {there}", field="volumes", code="unknown-volume"
    )  # fmt: skip


def _apart(places: Sequence[tuple[str, str]]) -> None:
    """No two at one place, and none within another: what is mounted there first would be hidden."""
    for number, (name, target) in enumerate(places):
        for other, taken in places[:number]:
            if name == other:
                raise _wrong(name, "was asked for twice; once is enough")
            if _is_in(target, taken) or _is_in(taken, target):
                raise _wrong(name, f"would be at {target} and {other} at {taken}; keep them apart, with {name}@/path")


def mounts_of(
    asked: Sequence[VolumeRequest], volumes: Sequence[Volume], owner: str, tenant: str
) -> tuple[Mount, ...]:  # fmt: skip
    """What an attempt of this owner gets: what was asked for, and what everybody gets unless it is in the way.

    Judged anew, as volumes may have changed since it was asked for. Raises InvalidInput, Forbidden.
    """
    known = {one.name: one for one in volumes}
    granted = list(allowed(asked, volumes, tenant))
    for volume in volumes:
        if volume.always and volume.is_for(tenant) and all(one.name != volume.name for one in granted):
            granted.append(VolumeRequest(volume.name, volume.writable))
    mounts: list[Mount] = []
    for request in granted:
        mount = _mount(known[request.name], request, owner, tenant)
        if not any(_is_in(mount.target, one.target) or _is_in(one.target, mount.target) for one in mounts):
            mounts.append(mount)
    return tuple(mounts)


def _mount(volume: Volume, asked: VolumeRequest, owner: str, tenant: str) -> Mount:
    return Mount(
        name=volume.name,
        kind=volume.kind,
        source=_source(volume, owner, tenant),
        target=asked.target or volume.place,
        writable=bool(asked.writable),
        size_mib=volume.size_mib,
        memory=volume.memory,
        made=volume.kind is VolumeKind.FOLDER and "{" in volume.source,
    )


def _source(volume: Volume, owner: str, tenant: str) -> str:
    if volume.kind is VolumeKind.FOLDER:
        return volume.source.replace("{user}", folder_name(owner)).replace("{tenant}", folder_name(tenant))
    if volume.kind is VolumeKind.SCRATCH:
        return ""
    whose = {Extent.ALL: (), Extent.TENANT: (tenant,), Extent.USER: (tenant, owner)}[volume.per]
    if not whose:
        return volume.name
    # By digest: what names would give, others could give, too.
    key = "\0".join((volume.name, *whose)).encode("utf-8", "surrogatepass")
    readable = re.sub(r"[^a-z0-9]+", "-", whose[-1].lower()).strip("-")[:24] or "x"
    return f"{volume.name}.{readable}.{hashlib.sha256(key).hexdigest()[:16]}"


def check_volume(volume: Volume) -> Volume:
    """The volume, if it can be offered. Raises InvalidInput that says what of it cannot be."""
    folder, scratch = volume.kind is VolumeKind.FOLDER, volume.kind is VolumeKind.SCRATCH
    if not _NAME.fullmatch(volume.name):
        raise _wrong(volume.name, "needs a name of at most 63 of a-z, 0-9, dot, hyphen and underscore")
    if folder != bool(volume.source):
        raise _wrong(volume.name, "needs a source, a path" if folder else f"is {volume.kind}: it has no source")
    if folder:
        _check_source(volume)
    if folder and volume.size_mib is not None:
        raise _wrong(volume.name, "is a folder: its size cannot be bounded here, only by who keeps the folder")
    if volume.memory and (not scratch or volume.size_mib is None):
        raise _wrong(volume.name, "can be in memory only as scratch, and with a size")
    if volume.per is not Extent.ALL and volume.kind is not VolumeKind.DOCKER:
        raise _wrong(volume.name, "has `per`, which is for Docker volumes; put {user} or {tenant} into a path instead")
    if volume.target:
        check_target(volume.target, volume.name)
    return volume


def _check_source(volume: Volume) -> None:
    parts = _parts(volume.source)
    if not volume.source.startswith("/") or ".." in parts or not _PATH.fullmatch(volume.source):
        raise _wrong(volume.name, f"has the source {volume.source!r}, which is no whole path")
    for one in parts:
        rest = one.replace("{user}", "").replace("{tenant}", "")
        if "{" in rest or "}" in rest or (rest != one and rest):
            raise _wrong(volume.name, f"has {one!r} in its source; {{user}} or {{tenant}} stands alone between two /")
    if is_secret_place(volume.source):
        raise _wrong(volume.name, f"cannot be {volume.source}: that leads to the Docker daemon, and so to root")


def see_that_folders_are_apart(places: Sequence[tuple[str, str, bool]], own: Sequence[str]) -> None:
    """Of folders that containers get (what it is, its path, whether it is written to) none may lie in one written to.

    Nor be it for some user or tenant, who would write to what others read. Who writes there could put a link in its
    place, and so choose what is mounted. Nor may one have a part in the server's `own` folders, but for what is in
    their `volumes`. Raises InvalidInput.
    """
    for what, path, _ in places:
        for holder, other, written in places:
            if written and _may_be_in(path, other) and _parts(path) != _parts(other):
                where = "may be" if len(_parts(path)) == len(_parts(other)) else "is in"
                why = f"{where} {other} ({holder}), which workloads write to, and could be replaced by a link there"
                raise _in_the_way(what, path, why)
        for root in own:
            below = _parts(path)[len(_parts(root)) :]
            if (_may_be_in(path, root) and below[:1] != ["volumes"]) or _may_be_in(root, path):
                raise _in_the_way(what, path, f"has a part in {root}, where the server keeps its secrets")


def _in_the_way(what: str, path: str, why: str) -> InvalidInput:
    return InvalidInput(f"{what}: {path} {why}; name folders side by side", field="volumes", code="invalid-volume")


def _may_be_in(path: str, folder: str) -> bool:
    """True if the first is the second, or below it, for some user and tenant."""
    parts, wanted = _parts(path), _parts(folder)
    pairs = zip(parts, wanted, strict=False)
    return len(parts) >= len(wanted) and all(one == other or "{" in one + other for one, other in pairs)


def variable_of(name: str) -> str:
    """The variable that tells a program where the volume of this name is: `COMMONAGE_VOLUME_DATASETS`."""
    return "COMMONAGE_VOLUME_" + re.sub(r"[^A-Z0-9]", "_", name.upper())


def is_secret_place(path: str) -> bool:
    """True for a folder that holds the Docker daemon's socket or data: whoever has those is root on the machine."""
    plain = _plain(path)
    return plain in ("/", "/var", "/var/lib") or any(_is_in(plain, one) for one in _SECRET)


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def _plain(path: str) -> str:
    return "/" + "/".join(_parts(path))


def _is_in(path: str, folder: str) -> bool:
    """True for two plain paths of which the first is the second, or below it."""
    return path == folder or path.startswith(f"{folder}/")
