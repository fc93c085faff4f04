"""Reads and writes the contents and origin of an image.

The builder, time and sources are labels of the image, so that they are kept wherever it is copied. The names are OCI's
where OCI defines them; a Containerfile's base is in annotations that buildah makes itself. Kernels, the server for
sessions and the search path are found by a script that runs in the image, so an image of any origin can be used.
"""

from __future__ import annotations

import datetime as dt
import getpass
import hashlib
import json
import posixpath
import re
import socket
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from commonage.domain.images import USUAL_PATH, Kernel, Package, Provenance, SourceFile
from commonage.files.apps import apps_in, apps_of_environments, modules
from commonage.images import buildah
from commonage.images.buildah import ImageError
from commonage.images.recipe import KERNELS, SERVER, SPECS

_OCI, _OURS = "org.opencontainers.image", "org.commonage.image"
_MAX_FILES = 100
_MAX_PACKAGES = 2000
# A line break in a name would be read as the end of it; Jupyter accepts no such name.
_LOOKS = "\n".join(
    f'if PATH="{":".join(("$path", *app.folders))}" command -v {name} >/dev/null; then echo {name}; fi'
    for app in apps_of_environments()
    for name in app.programs
)
# Prints the names of the modules that the Python of the server has.
_MODULES = "import importlib.util as u, sys; [print(one) for one in sys.argv[1:] if u.find_spec(one)]"
# `path` is the search path of a session: an image with one kernel has that kernel's programs first.
_SCRIPT = f"""
for folder in {SPECS} /usr/share/jupyter/kernels /opt/*/share/jupyter/kernels; do
  for file in "$folder"/*/kernel.json; do
    [ -f "$file" ] && printf '\\036%s\\037' "$file" && cat "$file"
  done
done
for prefix in {KERNELS}/* /opt/conda /usr /usr/local; do
  printf '\\036packages %s\\037' "$prefix"
  for folder in "$prefix"/lib/python3*/site-packages/*.dist-info "$prefix"/lib/python3*/dist-packages/*.dist-info; do
    [ -d "$folder" ] && printf '%s\\n' "${{folder##*/}}"
  done
done
printf '\\036R\\037'
for file in /usr/lib/R/library/*/DESCRIPTION /usr/lib/R/site-library/*/DESCRIPTION \\
  /usr/local/lib/R/site-library/*/DESCRIPTION; do
  [ -f "$file" ] && name=${{file%/*}} && printf '%s-%s\\n' "${{name##*/}}" "$(sed -n 's/^Version: *//p' "$file")"
done
path=$PATH
PATH="$PATH:{SERVER}/bin:/opt/conda/bin"
printf '\\036server\\037'
server=$(command -v jupyterhub-singleuser) || exit 0
printf '%s\\n' "$server"
server=${{server%/*}}
path="$server:$path"
set -- {KERNELS}/*/bin
if [ $# -eq 1 ]; then path="$1:$path"; fi
printf '\\036apps\\037'
{_LOOKS}
python=$server/python3
[ -x "$python" ] || python=python3
"$python" -c '{_MODULES}' {" ".join(modules())} || true
"""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,30}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Commit:
    """The git commit of a folder; `dirty`: its files differ from it."""

    id: str
    dirty: bool


def labels(builder: str, at: float, files: Sequence[SourceFile], commit: Commit | None) -> dict[str, str]:
    """The labels of an image that is built now. `at` in unix seconds."""
    found = {
        f"{_OCI}.created": dt.datetime.fromtimestamp(int(at), tz=dt.UTC).isoformat(),
        f"{_OCI}.authors": f"{getpass.getuser()}@{socket.gethostname()}",
        f"{_OURS}.builder": builder,
        f"{_OURS}.files": json.dumps({one.path: one.digest for one in files}, sort_keys=True),
    }
    if commit is not None:
        found |= {f"{_OCI}.revision": commit.id, f"{_OURS}.dirty": "true" if commit.dirty else "false"}
    return found


def provenance(known: Mapping[str, str], annotations: Mapping[str, str]) -> Provenance:
    """The provenance in an image's labels and annotations; empty if it was built by other tools."""
    try:
        files = {str(path): str(digest) for path, digest in json.loads(known.get(f"{_OURS}.files", "{}")).items()}
    except (ValueError, AttributeError):
        files = {}
    return Provenance(
        by=known.get(f"{_OCI}.authors", ""),
        at=_instant(known.get(f"{_OCI}.created", "")),
        builder=known.get(f"{_OURS}.builder", ""),
        base=annotations.get(f"{_OCI}.base.name", ""),
        base_digest=annotations.get(f"{_OCI}.base.digest", ""),
        files=tuple(SourceFile(path, digest) for path, digest in sorted(files.items())),
        commit=known.get(f"{_OCI}.revision", ""),
        dirty=known.get(f"{_OURS}.dirty") == "true",
    )


def _instant(text: str) -> float | None:
    try:
        return dt.datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None


def source_file(path: Path, name: str | None = None) -> SourceFile:
    """A file with the digest of its content, of any size. Raises OSError."""
    with path.open("rb") as opened:
        return SourceFile(name or path.name, f"sha256:{hashlib.file_digest(opened, 'sha256').hexdigest()}")


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def context_files(folder: Path) -> list[SourceFile]:
    """The files of a build's folder; if they are many, one digest of all of them. Raises OSError."""
    found = sorted(_files(folder))
    if len(found) <= _MAX_FILES:
        return [source_file(path, path.relative_to(folder).as_posix()) for path in found]
    digest = hashlib.sha256()
    for path in found:
        digest.update(f"{path.relative_to(folder).as_posix()}\0{source_file(path).digest}\n".encode())
    return [SourceFile(f"{len(found)} files of the folder {folder.name}", f"sha256:{digest.hexdigest()}")]


def _files(folder: Path) -> Iterable[Path]:
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink() and ".git" not in path.relative_to(folder).parts:
            yield path


def commit_of(folder: Path) -> Commit | None:
    """The git commit of a folder; None if it is in no repository, or git is not installed."""
    head = _git(folder, "rev-parse", "--verify", "HEAD")
    if head is None:
        return None
    return Commit(head.strip(), bool(_git(folder, "status", "--porcelain", "--", ".")))


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None


@dataclass(frozen=True, slots=True)
class ImageContents:
    """`server_prefix` is None if no session can run in the image; empty: the server is on the image's own path.

    `apps` are names of `domain.apps.App`; empty without a server.
    """

    kernels: tuple[Kernel, ...]
    server_prefix: str | None
    path: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    apps: tuple[str, ...] = ()


def inspect_image(image: str, isolation: str) -> ImageContents:
    described = buildah.inspect(image)
    config = described.get("OCIv1", {}).get("config", {})
    path = next((one.partition("=")[2] for one in config.get("Env", ()) if one.startswith("PATH=")), USUAL_PATH)
    container = buildah.call("from", "--pull-never", image).strip()
    try:
        output = buildah.call("run", "--isolation", isolation, container, "--", "/bin/sh", "-c", _SCRIPT)
    except ImageError as error:
        raise ImageError(f"Cannot inspect {image}: workloads need /bin/sh in the image. {error}") from error
    finally:
        buildah.call("rm", container)
    kernels, server, apps = parse(output)
    known = config.get("Labels") or {}
    return ImageContents(kernels, server, path, known, described.get("ImageAnnotations") or {}, apps)


def parse(output: str) -> tuple[tuple[Kernel, ...], str | None, tuple[str, ...]]:
    """The kernels, the folder of the server's environment, and the apps, from the script's output."""
    kernels: dict[str, tuple[Kernel, bool]] = {}
    server: str | None = None
    there: list[str] = []
    packages: dict[str, list[Package]] = {}
    for part in output.split("\x1e")[1:]:
        name, _, content = part.partition("\x1f")
        kind, _, prefix = name.partition(" ")
        if name == "server":
            server = _prefix(content.strip()) if content.strip() else None
        elif name == "apps":
            there = content.split()
        elif kind in ("packages", "R"):
            packages[prefix or kind] = _packages(content)
        else:
            found = _kernel(posixpath.basename(posixpath.dirname(name)), content)
            if found is not None:
                kernels.setdefault(found[0].name, found)
    return tuple(_with_packages(*one, packages) for one in kernels.values()), server, apps_in(there)


def _packages(content: str) -> list[Package]:
    found = (line.removesuffix(".dist-info").partition("-") for line in content.splitlines())
    return [Package(name.replace("_", "-")[:128], version[:64]) for name, _, version in found if name][:_MAX_PACKAGES]


def _with_packages(kernel: Kernel, is_r: bool, packages: Mapping[str, Sequence[Package]]) -> Kernel:
    """With the packages of its prefix; one without a prefix has those of the image's own Python, or of R."""
    if kernel.prefix or is_r:
        own = packages.get("R" if is_r else kernel.prefix, ())
    else:
        own = [*packages.get("/usr/local", ()), *packages.get("/usr", ())]
    return replace(kernel, packages=tuple(sorted(own, key=lambda one: one.name.lower())[:_MAX_PACKAGES]))


def _kernel(name: str, content: str) -> tuple[Kernel, bool] | None:
    """A kernel from its description, and whether it is R's; None if it is damaged."""
    try:
        spec: dict[str, Any] = json.loads(content)
        program, title = str(spec["argv"][0]), str(spec.get("display_name") or name)
    except (ValueError, KeyError, IndexError, TypeError):
        return None
    if not _NAME.fullmatch(name):
        return None
    return Kernel(name, title[:128], _prefix(program)), str(spec.get("language", "")).upper() == "R"


def _prefix(program: str) -> str:
    """The environment of a program; empty if the image's own path already leads to it or to an equivalent one."""
    folder = posixpath.dirname(program)
    if posixpath.basename(folder) != "bin" or folder in USUAL_PATH.split(":"):
        return ""
    return posixpath.dirname(folder)
