"""Inspects an image for its kernels, its server for sessions, and its search path, by running a script in it.

So an image of any origin can be used: one from a Containerfile, or one that another person built.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from commonage.domain.images import USUAL_PATH, Kernel
from commonage.images import buildah
from commonage.images.buildah import ImageError
from commonage.images.recipe import SERVER, SPECS

# A line break in a name would be read as the end of it; Jupyter accepts no such name.
_SCRIPT = f"""
for folder in {SPECS} /usr/share/jupyter/kernels /opt/*/share/jupyter/kernels; do
  for file in "$folder"/*/kernel.json; do
    [ -f "$file" ] && printf '\\036%s\\037' "$file" && cat "$file"
  done
done
PATH="$PATH:{SERVER}/bin:/opt/conda/bin"
printf '\\036server\\037'
command -v jupyterhub-singleuser || true
"""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,30}", re.ASCII)


@dataclass(frozen=True, slots=True)
class ImageContents:
    """The contents of an image. `server_prefix` is None if no session can run in it; empty: the server is on its own
    path.
    """

    kernels: tuple[Kernel, ...]
    server_prefix: str | None
    path: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]


def inspect_image(image: str, isolation: str) -> ImageContents:
    """Inspect an image on this machine. Raises ImageError."""
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
    kernels, server = parse(output)
    return ImageContents(kernels, server, path, config.get("Labels") or {}, described.get("ImageAnnotations") or {})


def parse(output: str) -> tuple[tuple[Kernel, ...], str | None]:
    """The kernels, and the folder of the server's environment, from the script's output."""
    kernels: dict[str, Kernel] = {}
    server: str | None = None
    for part in output.split("\x1e")[1:]:
        name, _, content = part.partition("\x1f")
        if name == "server":
            server = _prefix(content.strip()) if content.strip() else None
            continue
        kernel = _kernel(posixpath.basename(posixpath.dirname(name)), content)
        if kernel is not None:
            kernels.setdefault(kernel.name, kernel)
    return tuple(kernels.values()), server


def _kernel(name: str, content: str) -> Kernel | None:
    try:
        spec: dict[str, Any] = json.loads(content)
        program, title = str(spec["argv"][0]), str(spec.get("display_name") or name)
    except (ValueError, KeyError, IndexError, TypeError):
        return None
    if not _NAME.fullmatch(name):
        return None
    return Kernel(name, title[:128], _prefix(program))


def _prefix(program: str) -> str:
    """The environment of a program; empty if the image's own path already leads to it or to an equivalent one."""
    folder = posixpath.dirname(program)
    if posixpath.basename(folder) != "bin" or folder in USUAL_PATH.split(":"):
        return ""
    return posixpath.dirname(folder)
