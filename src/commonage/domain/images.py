"""Images in the catalogue: the pushed image, its tenant, its sources, and the environments that it offers.

An image's name is `TENANT/NAME[:TAG]`, the same as its repository in the registry; `public/…` is open to all tenants.
Engines never run the name but the `reference`, which a digest pins.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from commonage.domain.errors import InvalidInput
from commonage.domain.idle import NO_RULE, IdleRule
from commonage.domain.reasons import Reason
from commonage.domain.workloads import Kind
from commonage.units import quoted

_SLOW = re.compile(r"rfc3987[-_.]syntax\b", re.IGNORECASE)
_LEFT_OUT = 'rfc3987-syntax ; python_version < "3"\n'


@dataclass(frozen=True, slots=True)
class PythonKernel:
    """A Jupyter kernel with packages of its own, in pip's syntax. `wheels_only`: nothing is built to install it."""

    name: str
    requirements: tuple[str, ...] = ()
    wheels_only: bool = False


@dataclass(frozen=True, slots=True)
class Environment:
    """One entry of the catalogue.

    On a process site it is a Python environment: made by uv from `requirements` (a list in pip's syntax), or an
    existing one (`python`, the path of its interpreter). With `kernels`, `requirements` are those of the server of
    sessions, and jobs run with the first kernel's Python. Elsewhere it is an `image`. `variables` are set for every
    workload in it. `kinds` are the kinds of workloads that may use it. `tenant`: only its members may use it (None:
    everyone). `needs_gpu`: it requires a GPU; `min_vram_mib`: the least VRAM it requires. `idle` is about its sessions.
    `built_by` is the id of the workload that built it.
    """

    name: str
    title: str
    description: str = ""
    requirements: tuple[str, ...] = ()
    python: str | None = None
    image: str | None = None
    kinds: tuple[Kind, ...] = (Kind.JOB, Kind.SERVICE)
    variables: tuple[tuple[str, str], ...] = ()
    tenant: str | None = None
    needs_gpu: bool = False
    min_vram_mib: int = 0
    idle: IdleRule = NO_RULE
    kernels: tuple[PythonKernel, ...] = ()
    built_by: str = ""


@dataclass(frozen=True, slots=True)
class Package:
    name: str
    version: str


@dataclass(frozen=True, slots=True)
class Kernel:
    """A Jupyter kernel that was found. `prefix` is the folder of its virtual environment, `packages` what is in it.

    If the prefix is empty, the kernel belongs to the Python on an image's own path.
    """

    name: str
    title: str
    prefix: str = ""
    packages: tuple[Package, ...] = ()


@dataclass(frozen=True, slots=True)
class Contents:
    """The contents of an environment. `apps` are names of `domain.apps.App`; `built_at` in unix seconds, or None."""

    kernels: tuple[Kernel, ...] = ()
    apps: tuple[str, ...] = ()
    size_bytes: int | None = None
    built_at: float | None = None


class EnvironmentState(StrEnum):
    ABSENT = "absent"
    BUILDING = "building"
    READY = "ready"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class EnvironmentStatus:
    """On one site. `progress` is 0..1, or None if unknown; `reason` the current step, or the failure.

    `contents` are those of a ready Python environment.
    """

    name: str
    site: str
    state: EnvironmentState
    reason: Reason | None = None
    progress: float | None = None
    contents: Contents | None = None


def left_out(requirements: Sequence[str]) -> str:
    """The override for uv (`--override`) that leaves out a package other packages require: a requirement nothing meets.

    Jupyter's packages pull in a package that builds a grammar of addresses at import, which takes half of a session's
    start time. A list that names the package itself gets it. requirements/left-out.txt does the same for Commonage's
    own dependencies.
    """
    return "" if any(_SLOW.match(requirement.strip()) for requirement in requirements) else _LEFT_OUT


PUBLIC = "public"
LATEST = "latest"
LONGEST_NAME = 96  # with a kernel's name appended it still fits an environment's name: 128 characters
MAX_PACKAGES = 5000  # of all kernels of an image: the catalogue is kept in memory
USUAL_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# As registries require: lower case, with single dots, one or two underscores, or hyphens between.
_COMPONENT = r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*"
_NAME = re.compile(
    rf"(?P<scope>{_COMPONENT})/(?P<name>{_COMPONENT})(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]*))?", re.ASCII
)
_KERNEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,30}", re.ASCII)
_PLAIN = re.compile(r"[^\x00-\x1f\x7f]*")
_MAX_KERNELS, _MAX_APPS, _MAX_TITLE, _MAX_PACKAGES, _MAX_PATH = 32, 32, 128, 2000, 4096
_MAX_PACKAGE, _MAX_VERSION = 128, 64
_MAX_BYTES = 2**50
_FOLDER = re.compile(r"/[A-Za-z0-9._+/-]{0,254}", re.ASCII)
_PINNED = re.compile(
    r"(?:(?P<repository>[a-z0-9][a-z0-9.-]{0,252}(?::\d{1,5})?(?:/[a-z0-9._-]{1,128}){1,8})@)?"
    r"(?P<digest>sha256:[0-9a-f]{64})",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class ImageName:
    """`SCOPE/NAME:TAG`. `scope` is a tenant's (see `scope_of`) or `public`. As text the tag `latest` is left out."""

    scope: str
    name: str
    tag: str = LATEST

    def __str__(self) -> str:
        return self.repository if self.tag == LATEST else f"{self.repository}:{self.tag}"

    @property
    def repository(self) -> str:
        return f"{self.scope}/{self.name}"

    @property
    def tagged(self) -> str:
        return f"{self.repository}:{self.tag}"


@dataclass(frozen=True, slots=True)
class SourceFile:
    path: str
    digest: str


@dataclass(frozen=True, slots=True)
class Provenance:
    """The sources of an image, its build tool, time (unix seconds; None if unknown) and author.

    `base` is the base image, `base_digest` its digest. `commit` is the git commit of the files if they are in a
    repository; `dirty`: they differ from it.
    """

    by: str = ""
    at: float | None = None
    builder: str = ""
    base: str = ""
    base_digest: str = ""
    files: tuple[SourceFile, ...] = ()
    commit: str = ""
    dirty: bool = False


@dataclass(frozen=True, slots=True)
class Removal:
    by: str
    at: float


@dataclass(frozen=True, slots=True)
class Image:
    """A catalogue entry, registered `by` a user `at` an instant (unix seconds). `tenant` None: open to all.

    `reference` is what engines fetch: `HOST/REPOSITORY@sha256:…`, or for an image that was loaded by hand its id.
    `server_prefix` is the folder of the virtual environment that has `jupyterhub-singleuser`; `path` the image's own
    search path. `needs_gpu`: it requires a GPU; `min_vram_mib`: the least VRAM it requires. `apps` are names of
    `domain.apps.App`.
    """

    name: str
    tenant: str | None
    reference: str
    by: str
    at: float
    title: str = ""
    description: str = ""
    size_bytes: int | None = None
    kinds: tuple[Kind, ...] = (Kind.JOB, Kind.SERVICE)
    kernels: tuple[Kernel, ...] = ()
    server_prefix: str = ""
    path: str = USUAL_PATH
    variables: tuple[tuple[str, str], ...] = ()
    needs_gpu: bool = False
    min_vram_mib: int = 0
    provenance: Provenance = Provenance()
    removed: Removal | None = None
    apps: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        return self.reference.rpartition("@")[2]


def parse_image_name(text: str) -> ImageName:
    """Parse the name of an image. Raises InvalidInput(code="invalid-image"), which explains the syntax."""
    match = _NAME.fullmatch(text)
    if match is None or len(text) > LONGEST_NAME:
        raise InvalidInput(
            f"{quoted(text, 100)} is not the name of an image; write TENANT/NAME or TENANT/NAME:TAG in lower case, "
            f"like lab/torch:2.4, with at most {LONGEST_NAME} characters",
            field="name",
            code="invalid-image",
        )
    return ImageName(match["scope"], match["name"], match["tag"] or LATEST)


def scope_of(tenant: str | None) -> str:
    """The first part of the names of a tenant's images (None: public images), different for each tenant.

    It is the tenant's own name, unless a registry would not accept that.
    """
    if tenant is None:
        return PUBLIC
    if re.fullmatch(_COMPONENT, tenant, re.ASCII) and tenant != PUBLIC and len(tenant) <= LONGEST_NAME // 2:
        return tenant
    plain = re.sub(r"[^a-z0-9]+", "-", tenant.lower()).strip("-")[:32].strip("-") or "tenant"
    return f"{plain}-{hashlib.sha256(tenant.encode()).hexdigest()[:8]}"


def repository_of(reference: str) -> str | None:
    """`HOST/REPOSITORY` of a pinned reference; None for the id of an image that exists only on a node.

    Raises InvalidInput(code="invalid-image") if no digest pins it.
    """
    match = _PINNED.fullmatch(reference)
    if match is None:
        raise InvalidInput(
            f"{reference[:100]!r} has no digest, so it can change; write HOST/REPOSITORY@sha256:…, as "
            "`commonage image push` and `skopeo inspect` show it",
            field="reference",
            code="invalid-image",
        )
    repository: str | None = match["repository"]
    return repository


def check(image: Image, apps: Collection[str]) -> None:
    """Raise InvalidInput(code="invalid-image") for an image that contradicts itself or could not be run.

    `apps` are the names of all apps that an environment may have.
    """
    _check_size(image)
    names = [kernel.name for kernel in image.kernels]
    for field, folder in [
        ("server_prefix", image.server_prefix),
        *(("kernels", kernel.prefix) for kernel in image.kernels),
    ]:
        if folder and (not _FOLDER.fullmatch(folder) or ".." in folder.split("/")):
            raise _wrong(field, f"{folder[:100]!r} is not a folder in an image; write it like /opt/kernels/torch")
    for name in names:
        if not _KERNEL.fullmatch(name):
            raise _wrong("kernels", f"{name[:40]!r} is not the name of a kernel: letters, digits, . _ -, at most 31")
    if len(set(names)) < len(names):
        raise _wrong("kernels", f"two kernels have the same name: {', '.join(sorted(names))}")
    packages = sum(len(kernel.packages) for kernel in image.kernels)
    if packages > MAX_PACKAGES:
        raise _wrong(
            "kernels", f"its kernels have {packages} packages together, of at most {MAX_PACKAGES}; name fewer of them"
        )
    other = next((app for app in image.apps if app not in apps), None)
    if other is not None:
        raise _wrong("apps", f"{other[:40]!r} is not the name of an app; apps: {', '.join(apps)}")
    if not image.kinds:
        raise _wrong("kinds", "it is for no kind of workload; name at least one of session, job, service")


def _check_size(image: Image) -> None:
    """The limits of a request to register an image, also for one that a build found."""
    if len(image.kernels) > _MAX_KERNELS:
        raise _wrong("kernels", f"it has {len(image.kernels)} kernels; at most {_MAX_KERNELS} are allowed")
    if len(image.apps) > _MAX_APPS:
        raise _wrong("apps", f"it has {len(image.apps)} apps; at most {_MAX_APPS} are allowed")
    if not 0 <= (image.size_bytes or 0) <= _MAX_BYTES:
        raise _wrong("size_bytes", "its size must be from 0 to 1 PiB")
    texts = [("path", "the search path", image.path, _MAX_PATH)]
    for kernel in image.kernels:
        if len(kernel.packages) > _MAX_PACKAGES:
            raise _wrong(
                "kernels", f"a kernel has {len(kernel.packages)} packages; at most {_MAX_PACKAGES} are allowed"
            )
        texts.append(("kernels", "the title of a kernel", kernel.title, _MAX_TITLE))
        texts += (("kernels", "the name of a package", one.name, _MAX_PACKAGE) for one in kernel.packages)
        texts += (("kernels", "the version of a package", one.version, _MAX_VERSION) for one in kernel.packages)
    for field, what, text, limit in texts:
        if len(text) > limit:
            raise _wrong(field, f"{what} has {len(text)} characters; at most {limit} are allowed")
        if not _PLAIN.fullmatch(text):
            raise _wrong(field, f"{what} has control characters: {quoted(text)}")


def remains_of(image: Image) -> Image:
    """The part of a removed image that is kept: what became of its environments, and the layers that work may need."""
    return Image(image.name, image.tenant, image.reference, image.by, image.at, removed=image.removed)


def contents_of(image: Image) -> Contents:
    return Contents(image.kernels, image.apps, image.size_bytes, image.provenance.at)


def _wrong(field: str, why: str) -> InvalidInput:
    return InvalidInput(why, field=field, code="invalid-image")


def environments_of(image: Image) -> tuple[Environment, ...]:
    """The environments of an image: the image itself, and each of its kernels if it has several.

    With at most one kernel there is one environment for all kinds. With several, `IMAGE` is for sessions, which have
    all of them, and `IMAGE/KERNEL` for jobs and services, whose `python` is that kernel's.
    """
    title = image.title or image.name
    if len(image.kernels) < 2:
        first = [kernel.prefix for kernel in image.kernels]
        return (_environment(image, image.name, title, image.kinds, first),)
    environments = []
    if Kind.SESSION in image.kinds:
        environments.append(_environment(image, image.name, title, (Kind.SESSION,), []))
    others = tuple(kind for kind in image.kinds if kind is not Kind.SESSION)
    for kernel in image.kernels if others else ():
        name = f"{image.name}/{kernel.name}"
        environments.append(
            _environment(image, name, f"{title}: {kernel.title or kernel.name}", others, [kernel.prefix])
        )
    return tuple(environments)


def _environment(image: Image, name: str, title: str, kinds: tuple[Kind, ...], prefixes: list[str]) -> Environment:
    # The kernel's programs come before those of the server, which may have a Python of its own.
    server = [image.server_prefix] if Kind.SESSION in kinds else []
    folders = [f"{prefix.rstrip('/')}/bin" for prefix in (*prefixes, *server) if prefix]
    variables = {"PATH": ":".join([*folders, image.path])} if folders else {}
    if prefixes and prefixes[0]:
        variables["VIRTUAL_ENV"] = prefixes[0]
    return Environment(
        name=name,
        title=title,
        description=image.description,
        image=image.reference,
        kinds=kinds,
        variables=tuple((variables | dict(image.variables)).items()),
        tenant=image.tenant,
        needs_gpu=image.needs_gpu,
        min_vram_mib=image.min_vram_mib,
    )


PULL, PUSH, DELETE = "pull", "push", "delete"
_ACCESS = re.compile(r"(?P<kind>[a-z]+)(?:\([a-z]+\))?:(?P<name>[^\s]+):(?P<actions>[a-z,*]*)", re.ASCII)
_MAX = 64


@dataclass(frozen=True, slots=True)
class Access:
    """Actions on one object: pull, push, delete on a `repository`; all (`*`) on the `registry`'s `catalog`."""

    kind: str
    name: str
    actions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rights:
    """The permissions of a caller. `pulls` and `pushes` are scopes, the first parts of repositories' names.

    `everything`: an admin. `pulls_all`: a node of the site, which runs the work of all tenants.
    """

    pulls: frozenset[str] = frozenset()
    pushes: frozenset[str] = frozenset()
    everything: bool = False
    pulls_all: bool = False


def rights_in(pulls: Iterable[str] | None, pushes: Iterable[str]) -> Rights:
    """The rights of a user who may pull and push in these scopes; with `pulls` None, not even public images."""
    readable = frozenset() if pulls is None else frozenset(pulls) | {PUBLIC}
    return Rights(readable, frozenset(pushes) - {PUBLIC})


def parse_access(scopes: Sequence[str]) -> tuple[Access, ...]:
    """`repository:lab/torch:pull,push`, several separated by spaces. Raises InvalidInput."""
    words = [word for scope in scopes for word in scope.split()]
    if len(words) > _MAX:
        raise InvalidInput(f"{len(words)} scopes are requested at once; at most {_MAX} are allowed", field="scope")
    return tuple(_parsed(word) for word in words)


def _parsed(word: str) -> Access:
    match = _ACCESS.fullmatch(word)
    if match is None:
        raise InvalidInput(
            f"{word[:100]!r} is not a scope of a registry; one is written repository:TENANT/NAME:pull,push",
            field="scope",
        )
    actions = dict.fromkeys(action for action in match["actions"].split(",") if action)
    return Access(match["kind"], match["name"], tuple(actions))


def granted(requested: Iterable[Access], rights: Rights) -> tuple[Access, ...]:
    allowed = (
        replace(access, actions=tuple(action for action in access.actions if _may(access, action, rights)))
        for access in requested
    )
    return tuple(access for access in allowed if access.actions)


def _may(access: Access, action: str, rights: Rights) -> bool:
    if rights.everything:
        return True
    scope, slash, _ = access.name.partition("/")
    if access.kind != "repository" or not slash:
        return False
    if action == PULL:
        return rights.pulls_all or scope in rights.pulls
    return action == PUSH and scope in rights.pushes
