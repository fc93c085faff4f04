"""Reads what a tenant's environment is built from: lists of packages, and git repositories. Used by `build_job`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import yaml

from commonage.domain.builds import FILES, SourceKind

_NAME = re.compile(r"(?:[\w-]+::)?(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)\s*(?P<version>.*)", re.ASCII)
_EXACT = re.compile(r"={1,2}\s*(?P<version>[0-9][0-9A-Za-z.*+!_-]*)(?:=(?P<build>[\w.*]+))?", re.ASCII)
_RANGE = re.compile(r"[<>!~]=?[0-9A-Za-z.,<>=!~* |-]+", re.ASCII)
_RENAMED = {"pytorch": "torch", "pytorch-cpu": "torch"}
"""Python packages that have another name on PyPI than in conda."""
_NOT_PYTHON = re.compile(
    r"r-.*|_.*|cuda.*|cudnn|cudatoolkit|pytorch-cuda|gcc.*|gxx.*|clang.*|make|mamba|conda|git|ffmpeg|nodejs|openjdk"
)
_GIT_WITHIN_S, _CHECKOUT_MAX_MIB = 600, 1024


class SourceError(Exception):
    """The environment cannot be built from this; the message says why and what to do."""


def requirements_of(text: str) -> list[str]:
    """The requirements in a file of pip. Raises SourceError for options, which a build does not support."""
    lines = (re.sub(r"(^|\s)#.*", "", line).strip() for line in text.replace("\\\n", " ").splitlines())
    # A hash pins one file of a package; here versions are pinned.
    found = [re.sub(r"\s+--hash=\S+", "", line) for line in lines if line]
    option = next((line for line in found if line.startswith("-")), None)
    if option is not None:
        raise SourceError(
            f"the option `{option[:80]}` is not supported. List all packages in this file; they come from the package "
            "index of this installation."
        )
    return found


def conda_requirements(text: str, python: tuple[int, int] = sys.version_info[:2]) -> list[str]:
    """The Python packages of an environment.yml, as PyPI has them: its part for pip, and plain packages.

    Raises SourceError for what only conda has.
    """
    try:
        declared = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise SourceError(f"environment.yml is not valid YAML: {' '.join(str(error).split())}") from None
    listed = declared.get("dependencies") if isinstance(declared, dict) else None
    if not isinstance(listed, list):
        raise SourceError("environment.yml has no list `dependencies`")
    found: list[str] = []
    refused: list[str] = []
    for one in listed:
        if isinstance(one, dict) and set(one) == {"pip"} and isinstance(one["pip"], list):
            found += requirements_of("\n".join(map(str, one["pip"])))
        elif isinstance(one, str):
            _add_conda(one.strip(), python, found, refused)
        else:
            refused.append(str(one))
    if refused:
        raise SourceError(
            f"environment.yml names {', '.join(refused)[:500]}: PyPI has no such packages. Build from a Containerfile, "
            "or leave them out."
        )
    return found


def _add_conda(spec: str, python: tuple[int, int], found: list[str], refused: list[str]) -> None:
    match = _NAME.fullmatch(spec)
    name, version = (match["name"].lower(), match["version"].strip()) if match else ("", "")
    if name == "python":
        _check_python(spec, version, python)
    elif name == "pip":
        return
    elif not name or _NOT_PYTHON.fullmatch(name):
        refused.append(spec)
    elif not version:
        found.append(_RENAMED.get(name, name))
    elif exact := _EXACT.fullmatch(version):
        # One `=` of conda means a prefix: 1.26 is any 1.26.x.
        is_prefix = not version.startswith("==") and not exact["build"] and not exact["version"].endswith("*")
        found.append(f"{_RENAMED.get(name, name)}=={exact['version']}{'.*' if is_prefix else ''}")
    elif _RANGE.fullmatch(version) and "|" not in version:
        found.append(f"{_RENAMED.get(name, name)}{version}")
    else:
        refused.append(spec)


def _check_python(spec: str, version: str, python: tuple[int, int]) -> None:
    exact = _EXACT.fullmatch(version)
    own = f"{python[0]}.{python[1]}"
    if exact is not None and not (exact["version"].rstrip(".*") + ".").startswith(own + "."):
        raise SourceError(
            f"environment.yml requires `{spec}`, and Python environments of this site have Python {own}. Change the "
            "line, or build from a Containerfile."
        )


def clone(url: str, ref: str, folder: Path, protocols: str = "https") -> str:
    """Get one commit of a repository into `folder`. Returns its id. Raises SourceError."""
    variables = {
        **{name: value for name, value in os.environ.items() if re.fullmatch(r"PATH|.*_proxy|SSL_CERT_.*", name, re.I)},
        "GIT_ALLOW_PROTOCOL": protocols,
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_LFS_SKIP_SMUDGE": "1",
        "HOME": str(folder.parent),
    }
    chosen = ["--branch", ref] if ref else []
    safe = ["-c", "core.hooksPath=/dev/null", "-c", "core.symlinks=false", "-c", "http.followRedirects=initial"]
    _git(["git", *safe, "clone", "--quiet", "--depth", "1", "--no-tags", *chosen, "--", url, str(folder)], variables)
    size_mib = sum(path.lstat().st_size for path in folder.rglob("*")) >> 20
    if size_mib > _CHECKOUT_MAX_MIB:
        raise SourceError(f"the repository has {size_mib} MiB; at most {_CHECKOUT_MAX_MIB} MiB are built from")
    return _git(["git", "-C", str(folder), "rev-parse", "HEAD"], variables).strip()


def _git(command: list[str], variables: Mapping[str, str]) -> str:
    try:
        done = subprocess.run(
            command, env=variables, capture_output=True, text=True, errors="replace", check=False,
            stdin=subprocess.DEVNULL, timeout=_GIT_WITHIN_S,
        )  # fmt: skip
    except FileNotFoundError:
        raise SourceError("git is not installed on this node") from None
    except subprocess.TimeoutExpired:
        raise SourceError(f"the repository did not arrive within {_GIT_WITHIN_S // 60} minutes") from None
    if done.returncode != 0:
        raise SourceError(f"git says: {' '.join(done.stderr.split())[-500:]}")
    return done.stdout


def found_file(folder: Path) -> tuple[SourceKind, Path]:
    """The file of a repository that its environment is built from. Raises SourceError."""
    for name, kind in FILES.items():
        path = folder / name
        if path.is_file() and not path.is_symlink():
            return kind, path
    raise SourceError(f"the repository has none of these files at its top: {', '.join(FILES)}")


def read_text(path: Path, max_bytes: int) -> str:
    """Raises SourceError if it is too large, or no text."""
    if path.stat().st_size > max_bytes:
        raise SourceError(f"{path.name} has more than {max_bytes >> 10} KiB")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise SourceError(f"{path.name} is not UTF-8 text") from None
