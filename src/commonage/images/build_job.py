"""Builds a tenant's environment: the program of a build, which runs as a job of the tenant, and in nothing else.

It reads its build order from a variable, logs its steps, and ends with a result that the control plane checks. Python
packages become a list of versions that exist as wheels: each site then installs them without running any code of
theirs. Other sources become an image in the registry.
"""

from __future__ import annotations

import os
import ssl
import subprocess
import sys
import tempfile
from pathlib import Path

from uv import find_uv_bin

from commonage.domain.builds import (
    CERTIFICATE,
    ORDER,
    TEXT_MAX,
    TOKEN,
    BuildOrder,
    BuildResult,
    BuiltImage,
    SourceKind,
    check_source,
    is_pinned,
    read_order,
    result_lines,
)
from commonage.domain.errors import CommonageError
from commonage.domain.images import USUAL_PATH, left_out, parse_image_name
from commonage.engines.process.uv import read_pip_settings, uv_environment
from commonage.files.kernels import KERNEL_PACKAGES
from commonage.images import buildah
from commonage.images.base import debian_base, debian_suites
from commonage.images.buildah import ImageError
from commonage.images.builder import BuildTools, build_file
from commonage.images.contents import inspect_image
from commonage.images.package_sources import package_sources
from commonage.images.push import PushTarget, push_layout
from commonage.images.sources import (
    SourceError,
    clone,
    conda_requirements,
    found_file,
    read_text,
    requirements_of,
)

_ISOLATION = "chroot"


def main() -> int:
    """The exit code. Reasons for a failure are in the log."""
    try:
        order = read_order(os.environ.get(ORDER, ""))
        check_source(order.source)
        with tempfile.TemporaryDirectory(prefix="commonage-build-") as made:
            result = _build(order, Path(made))
    except (SourceError, ImageError) as error:
        print(f"The build failed: {error}")
        return 1
    except CommonageError as error:
        print(f"The build cannot begin: {error.message}")
        return 1
    print(f"Built {order.name}.")
    for line in result_lines(result):
        print(line)
    return 0


def _build(order: BuildOrder, folder: Path) -> BuildResult:
    source = order.source
    if source.kind is SourceKind.IMAGE:
        return _image(order, _pulled(source.url), folder)
    kind: SourceKind = source.kind
    text, context = source.text, folder / "context"
    if kind is SourceKind.GIT:
        print(f"Cloning {source.url} …")
        print(f"Commit {clone(source.url, source.ref, context)}.")
        kind, path = found_file(context)
        print(f"Building from {path.name}.")
        text = read_text(path, TEXT_MAX)
    elif order.has_files:
        context = Path.cwd()
    else:
        context.mkdir()
    if kind is SourceKind.CONTAINERFILE:
        return _image(order, _from_containerfile(order, text, folder / "Containerfile", context), folder)
    if kind is SourceKind.PYPROJECT:
        listed = context / "pyproject.toml"
        listed.write_text(text, encoding="utf-8")
    else:
        lines = requirements_of(text) if kind is SourceKind.REQUIREMENTS else conda_requirements(text)
        listed = folder / "requirements.txt"
        listed.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return BuildResult(requirements=_locked(listed, folder))


def _locked(listed: Path, folder: Path) -> tuple[str, ...]:
    """Versions of all packages, which were installed once to see that they fit together."""
    override, kernel, lock = folder / "left-out.txt", folder / "kernel.txt", folder / "lock.txt"
    override.write_text(left_out(()), encoding="utf-8")
    kernel.write_text("\n".join(KERNEL_PACKAGES) + "\n", encoding="utf-8")
    fixed = ("--only-binary", ":all:", "--override", str(override))
    print("Looking up packages …")
    resolve = ("pip", "compile", "--quiet", "--no-header", "--no-annotate", "--python", sys.executable)
    _uv(folder, *resolve, "--output-file", str(lock), *fixed, str(listed), str(kernel))
    lines = [line.strip() for line in lock.read_text(encoding="utf-8").splitlines()]
    found = tuple(line.partition(" ;")[0] for line in lines if line and not line.startswith("#"))
    other = next((one for one in found if not is_pinned(one)), None)
    if other is not None:
        raise SourceError(f"`{other[:100]}` does not come from the package index. Build from a Containerfile.")
    print(f"Installing {len(found)} packages …")
    lock.write_text("\n".join(found) + "\n", encoding="utf-8")
    trial = folder / "trial"
    _uv(folder, "venv", "--quiet", "--python", sys.executable, str(trial))
    python = ("--python", str(trial / "bin" / "python"))
    _uv(folder, "pip", "install", *python, "--no-deps", "--only-binary", ":all:", "--requirements", str(lock))
    return found


def _uv(folder: Path, *arguments: str) -> None:
    variables = uv_environment(os.environ, read_pip_settings(os.environ)) | {"UV_CACHE_DIR": str(folder / "cache")}
    sys.stdout.flush()
    done = subprocess.run([find_uv_bin(), *arguments], env=variables, stdin=subprocess.DEVNULL, check=False)
    if done.returncode != 0:
        raise SourceError(
            "the packages cannot be installed; the lines above say why. Only packages with a wheel for this Python "
            f"({sys.version_info[0]}.{sys.version_info[1]}) can be part of a Python environment."
        )


def _from_containerfile(order: BuildOrder, text: str, file: Path, context: Path) -> str:
    _need_registry(order)
    file.write_text(text, encoding="utf-8")
    for suite in debian_suites(text):
        debian_base(suite, None, again=False, line=print)
    tools = BuildTools(_ISOLATION, package_sources(os.environ, ()))
    return build_file(parse_image_name(order.name), file, context, tools, _say)


def _pulled(name: str) -> str:
    print(f"Pulling {name} …")
    buildah.follow(["pull", "--quiet", f"docker://{name}"], _say)
    return name


def _say(line: str) -> None:
    print(line, flush=True)


def _need_registry(order: BuildOrder) -> None:
    if not order.registry:
        raise SourceError("this installation has no registry, so it has no place for images; ask an admin")


def _image(order: BuildOrder, image: str, folder: Path) -> BuildResult:
    _need_registry(order)
    found = inspect_image(image, _ISOLATION)
    layout = folder / "layout"
    buildah.call("push", "--quiet", image, f"oci:{layout}:built")
    trust = ssl.create_default_context(cadata=os.environ.get(CERTIFICATE) or None)
    name = parse_image_name(order.name)
    print(f"Pushing {name} to {order.registry} …", flush=True)
    target = PushTarget(order.registry, name.repository, os.environ.get(TOKEN, ""), trust)
    digest, size = push_layout(layout, target, name.tag)
    made = BuiltImage(digest, size, found.kernels, found.server_prefix, found.path or USUAL_PATH, found.apps)
    return BuildResult(image=made)


if __name__ == "__main__":
    sys.exit(main())
