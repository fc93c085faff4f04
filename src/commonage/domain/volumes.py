"""Volumes: data that workloads share, the access rules, and the mounts of an attempt.

A volume is declared by the admin. A workload requests it by name, as `NAME[:ro|rw][@/path]`; an engine receives a
`Mount`, which is fully resolved.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from commonage.domain.errors import Forbidden, InvalidInput
from commonage.domain.materials import Material, check_material
from commonage.domain.nodes import LOCAL_SITE
from commonage.units import quoted

_PLAIN = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}", re.ASCII)


def folder_name(user: str) -> str:
    """A stable folder name for a user or tenant: a plain name is its own, any other gets one that no plain name has."""
    if _PLAIN.fullmatch(user):
        return user
    readable = re.sub(r"[^a-z0-9._-]+", "-", user.lower()).strip("-.")[:40]
    return f"{readable}~{hashlib.sha256(user.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"


OWNERS = frozenset({"{tenant}", "{user}"})
"""Parts of a source that stand for the workload's."""

ROOT = "/volumes"  # the default place of a volume in a container: `/volumes/NAME`

MAX = 32  # the maximum number of volumes of one workload

# Folders that a container needs unchanged; and home folders, in which their owners could put a link in the way.
_TAKEN = (
    "/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/lib32", "/lib64", "/proc", "/root", "/run", "/sbin", "/sys",
    "/usr", "/var/run",
)  # fmt: skip
_SECRET = ("/proc", "/sys", "/dev", "/etc", "/run", "/var/run", "/var/lib/docker", "/var/lib/containerd")
_ASKED = re.compile(r"(?P<name>[^:@]*)(?::(?P<mode>[^:@]*))?(?:@(?P<target>.*))?")
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}", re.ASCII)
_PATH = re.compile(r"[^\x00-\x1f\x7f,:]{1,512}")


class VolumeKind(StrEnum):
    """The type of a volume.

    `folder`: a folder that every node sees under the same path (for example, an NFS mount). `docker`: a volume that the
    Docker daemon of each node keeps. `scratch`: space on the node for one attempt alone, until it ends.
    """

    FOLDER = "folder"
    DOCKER = "docker"
    SCRATCH = "scratch"


class Writers(StrEnum):
    """The users who may write to a writable volume: all who may use it, or those with `write-volumes` in a tenant."""

    EVERYBODY = "everybody"
    MANAGERS = "managers"


class Extent(StrEnum):
    """The users who share the content of a Docker volume: all with access to it, each tenant, or each user alone."""

    ALL = "all"
    TENANT = "tenant"
    USER = "user"


@dataclass(frozen=True, slots=True)
class Volume:
    """One entry of the settings.

    `source` is the path of a folder; `{user}` and `{tenant}` in it stand for the workload's. `writable`: it may be
    requested as `rw`, by `writers`. `tenants`, if not empty, are those whose members may use it. `size_mib` bounds a
    Docker volume or scratch space where that can be enforced. `memory`: scratch space in memory, which counts as the
    workload's.
    `always`: every workload with access gets it without a request, at `target` if that is not the default place.
    `sites`, if not empty, are those where it is: workloads that use it run there. `material`: its content comes from a
    git repository, and the platform keeps its folder.
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
    sites: tuple[str, ...] = ()
    writers: Writers = Writers.EVERYBODY
    material: Material | None = None

    def is_for(self, tenant: str) -> bool:
        return not self.tenants or tenant in self.tenants

    def is_at(self, site: str) -> bool:
        return not self.sites or site in self.sites

    @property
    def is_measured(self) -> bool:
        """Whether its folders belong to tenants or users who may write to them, and count as their storage."""
        return self.writable and bool(OWNERS & set(self.source.split("/")))

    @property
    def place(self) -> str:
        """Its place in a container that requested no other place."""
        return self.target or f"{ROOT}/{self.name}"


@dataclass(frozen=True, slots=True)
class VolumeRequest:
    """`writable` None: read-only, except for scratch. `target` "": the default place."""

    name: str
    writable: bool | None = None
    target: str = ""

    @property
    def text(self) -> str:
        mode = "" if self.writable is None else ":rw" if self.writable else ":ro"
        return f"{self.name}{mode}{f'@{self.target}' if self.target else ''}"


@dataclass(frozen=True, slots=True)
class Mount:
    """A volume as one attempt gets it.

    `source` is the path of a folder, the name of a Docker volume within the installation, or empty for scratch space.
    """

    name: str
    kind: VolumeKind
    source: str
    target: str
    writable: bool
    size_mib: int | None = None
    memory: bool = False
    made: bool = False  # the folder belongs to the tenant or user, and is created if it is missing


def _wrong(text: str, why: str) -> InvalidInput:
    return InvalidInput(f"the volume {quoted(text, 80)} {why}", field="volumes", code="invalid-volume")


def parse_volume(text: str) -> VolumeRequest:
    """A request from `NAME`, `NAME:ro`, `NAME:rw`, each with an optional `@/path`. Raises InvalidInput."""
    match = _ASKED.fullmatch(text.strip())
    if match is None or not _NAME.fullmatch(match["name"]):
        raise _wrong(text, "has no name; write it like datasets, results:rw or datasets@/data")
    if match["mode"] not in (None, "ro", "rw"):
        raise _wrong(text, "is neither ro nor rw; write it like results:rw, or results@/path")
    target = "" if match["target"] is None else check_target(match["target"], match["name"])
    return VolumeRequest(match["name"], None if match["mode"] is None else match["mode"] == "rw", target)


def check_target(path: str, name: str) -> str:
    """Normalise a path in a container where the volume `name` may be mounted. Raises InvalidInput."""
    if not path.startswith("/") or ".." in _parts(path) or not _PATH.fullmatch(path):
        raise _wrong(
            name, f"cannot be mounted at {path[:80]!r}, which is not an absolute path; write it like {name}@/data"
        )
    plain = _plain(path)
    taken = next((folder for folder in _TAKEN if _is_in(plain, folder)), None)
    if taken is not None or plain in ("/", "/var"):
        raise _wrong(name, f"cannot be mounted at {plain[:80]!r}: {taken or plain} is in use; choose a path like /data")
    return plain


def allowed(
    requested: Sequence[VolumeRequest], volumes: Sequence[Volume], tenant: str, *, manages: bool
) -> tuple[VolumeRequest, ...]:
    """The requests with their modes filled in. Raises InvalidInput, or Forbidden with the available choices.

    `manages`: the owner may write to volumes that only managers write to.
    """
    if len(requested) > MAX:
        raise InvalidInput(f"{len(requested)} volumes were requested; at most {MAX} are allowed", field="volumes")
    offered = {volume.name: volume for volume in volumes if volume.is_for(tenant)}
    granted = []
    for request in requested:
        name, volume = request.name, _offered(request.name, volumes, tenant, "volumes")
        if request.writable and not volume.writable:
            raise Forbidden(f"the volume {name} is read-only; ask for {name}:ro", code="volume-read-only")
        if request.writable and volume.writers is Writers.MANAGERS and not manages:
            raise Forbidden(
                f"the volume {name} is read-only for members of {tenant}, and its managers write to it; ask for "
                f"{name}:ro",
                code="volume-read-only",
            )
        # Read-only scratch space would be useless.
        writable = volume.kind is VolumeKind.SCRATCH if request.writable is None else request.writable
        granted.append(replace(request, writable=writable))
    _check_places_are_apart([(request.name, request.target or offered[request.name].place) for request in granted])
    return tuple(granted)


def _check_places_are_apart(places: Sequence[tuple[str, str]]) -> None:
    for number, (name, target) in enumerate(places):
        for other, taken in places[:number]:
            if name == other:
                raise _wrong(name, "was requested twice; request it once")
            if _is_in(target, taken) or _is_in(taken, target):
                raise _wrong(name, f"would be at {target} and {other} at {taken}; keep them apart, with {name}@/path")


def volume_near(name: str, volumes: Sequence[Volume], tenant: str) -> str:
    """The name of a volume whose data a workload of the tenant runs near. Raises InvalidInput."""
    volume = _offered(name, volumes, tenant, "near")
    if volume.kind is VolumeKind.SCRATCH:
        raise InvalidInput(
            f"the volume {name} is scratch space, without data to be near; name another volume, or leave it out",
            field="near",
            code="invalid-volume",
        )
    return name


def _offered(name: str, volumes: Sequence[Volume], tenant: str, field: str) -> Volume:
    """Raises InvalidInput. A volume of another tenant is not told apart from one that does not exist."""
    offered = {volume.name: volume for volume in volumes if volume.is_for(tenant)}
    if name in offered:
        return offered[name]
    names = ", ".join(sorted(offered)) or "none"
    message = f"there is no volume {name[:80]!r} for members of {tenant}; there are: {names}"
    raise InvalidInput(message, field=field, code="unknown-volume")


def mounts_of(
    requested: Sequence[VolumeRequest],
    volumes: Sequence[Volume],
    owner: str,
    tenant: str,
    site: str | None = None,
) -> tuple[Mount, ...]:
    """The mounts of an attempt of this owner: the requested volumes, and the `always` volumes that do not collide.

    With `site`, only `always` volumes of this site.

    Access is checked again, as volumes may have changed since the request; the roles of the owner were checked at the
    request. An `always` volume of managers is read-only for everybody who did not request it. Raises InvalidInput,
    Forbidden.
    """
    known = {volume.name: volume for volume in volumes}
    granted = list(allowed(requested, volumes, tenant, manages=True))
    for volume in volumes:
        is_here = volume.is_for(tenant) and (site is None or volume.is_at(site))
        if volume.always and is_here and all(request.name != volume.name for request in granted):
            writable = volume.writable and volume.writers is Writers.EVERYBODY
            granted.append(VolumeRequest(volume.name, writable))
    mounts: list[Mount] = []
    for request in granted:
        mount = _mount(known[request.name], request, owner, tenant)
        if not any(_is_in(mount.target, other.target) or _is_in(other.target, mount.target) for other in mounts):
            mounts.append(mount)
    return tuple(mounts)


def _mount(volume: Volume, request: VolumeRequest, owner: str, tenant: str) -> Mount:
    return Mount(
        name=volume.name,
        kind=volume.kind,
        source=source_of(volume, owner, tenant),
        target=request.target or volume.place,
        writable=bool(request.writable),
        size_mib=volume.size_mib,
        memory=volume.memory,
        made=volume.kind is VolumeKind.FOLDER and "{" in volume.source,
    )


def source_of(volume: Volume, owner: str, tenant: str) -> str:
    """The path of its folder, or the name of its Docker volume; empty for scratch."""
    if volume.kind is VolumeKind.FOLDER:
        return volume.source.replace("{user}", folder_name(owner)).replace("{tenant}", folder_name(tenant))
    if volume.kind is VolumeKind.SCRATCH:
        return ""
    whose = {Extent.ALL: (), Extent.TENANT: (tenant,), Extent.USER: (tenant, owner)}[volume.per]
    if not whose:
        return volume.name
    # By digest: a name built from the parts could collide with that of others.
    key = "\0".join((volume.name, *whose)).encode("utf-8", "surrogatepass")
    return f"{docker_volume(volume.name, whose[-1])}{hashlib.sha256(key).hexdigest()[:16]}"


def docker_volume(volume: str, whose: str) -> str:
    """The beginning of the names of the Docker volumes of one user or tenant."""
    return f"{volume}.{re.sub(r'[^a-z0-9]+', '-', whose.lower()).strip('-')[:24] or 'x'}."


def check_volume(volume: Volume) -> Volume:
    """The volume, if it is valid. Raises InvalidInput, which says what is wrong."""
    folder, scratch = volume.kind is VolumeKind.FOLDER, volume.kind is VolumeKind.SCRATCH
    if not _NAME.fullmatch(volume.name):
        raise _wrong(volume.name, "needs a name of at most 63 of a-z, 0-9, dot, hyphen and underscore")
    if volume.material is not None:
        _check_material_volume(volume)
        check_material(volume.name, volume.material)
    elif folder != bool(volume.source):
        raise _wrong(volume.name, "needs a source, a path" if folder else f"is {volume.kind}: it has no source")
    if volume.source:
        _check_source(volume)
    if folder and volume.size_mib is not None:
        raise _wrong(
            volume.name, "is a folder: its size cannot be limited here, only by the server that stores the folder"
        )
    if volume.memory and (not scratch or volume.size_mib is None):
        raise _wrong(volume.name, "can be in memory only as scratch, and with a size")
    if volume.per is not Extent.ALL and volume.kind is not VolumeKind.DOCKER:
        raise _wrong(volume.name, "has `per`, which is for Docker volumes; put {user} or {tenant} into a path instead")
    if volume.writers is Writers.MANAGERS:
        _check_writers(volume)
    if volume.target:
        check_target(volume.target, volume.name)
    return volume


def _check_writers(volume: Volume) -> None:
    if not volume.writable:
        raise _wrong(volume.name, "is read-only, so that managers cannot write to it; set mode: rw, or omit writers")
    if volume.kind is VolumeKind.SCRATCH:
        raise _wrong(volume.name, "is scratch, of one attempt alone; omit writers")


def _check_material_volume(volume: Volume) -> None:
    if volume.kind is not VolumeKind.FOLDER:
        raise _wrong(volume.name, f"is {volume.kind}, and a material is a folder; remove the type or the material")
    if volume.source:
        raise _wrong(volume.name, "is a material: the platform keeps its folder, so remove the source")
    if volume.writable:
        raise _wrong(volume.name, "is a material: only its git repository changes it, so remove the mode")
    if volume.sites != (LOCAL_SITE,):
        raise _wrong(volume.name, f"is a material, and materials are only at the site {LOCAL_SITE}; remove the sites")


def _check_source(volume: Volume) -> None:
    parts = _parts(volume.source)
    if not volume.source.startswith("/") or ".." in parts or not _PATH.fullmatch(volume.source):
        raise _wrong(volume.name, f"has the source {volume.source!r}, which is not an absolute path")
    for part in parts:
        rest = part.replace("{user}", "").replace("{tenant}", "")
        if "{" in rest or "}" in rest or (rest != part and rest):
            raise _wrong(volume.name, f"has {part!r} in its source; {{user}} or {{tenant}} stands alone between two /")
    if is_secret_place(volume.source):
        raise _wrong(volume.name, f"cannot be {volume.source}: that leads to the Docker daemon, and so to root")


def see_that_folders_are_apart(places: Sequence[tuple[str, str, bool]], own: Sequence[str]) -> None:
    """Check folders for containers (description, path, writable): none may lie in a writable one, for any user.

    Otherwise a user could write to files that others read. A user with write access could put a link in its place, and
    so choose what is mounted. Nor may a folder overlap the server's `own` folders, except within their `volumes`.
    Raises InvalidInput.
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
    """True if the first may equal the second, or lie below it, for some user and tenant."""
    parts, wanted = _parts(path), _parts(folder)
    pairs = zip(parts, wanted, strict=False)
    return len(parts) >= len(wanted) and all(part == other or "{" in part + other for part, other in pairs)


def variable_of(name: str) -> str:
    """The environment variable with the path of the volume of this name: `COMMONAGE_VOLUME_DATASETS`."""
    return "COMMONAGE_VOLUME_" + re.sub(r"[^A-Z0-9]", "_", name.upper())


def is_secret_place(path: str) -> bool:
    """True for a folder with the Docker daemon's socket or data: access to those means root on the node."""
    plain = _plain(path)
    return plain in ("/", "/var", "/var/lib") or any(_is_in(plain, folder) for folder in _SECRET)


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def _plain(path: str) -> str:
    return "/" + "/".join(_parts(path))


def _is_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")
