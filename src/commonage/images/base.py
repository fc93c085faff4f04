"""A base image without any registry: Debian, made once by debootstrap from the mirrors that this machine uses."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

from commonage.images import buildah
from commonage.images.buildah import ImageError, Line

DEBIAN = "debian"
_INCLUDED = "python3,ca-certificates"
_DEFAULT_SUITE = "bookworm"
_LAST_LINES, _MAX_LETTERS = 6, 300
_MIN_ROOM = 64 * 1024 * 1024


def base_name(suite: str) -> str:
    return f"localhost/commonage/debian:{suite}"


def debian_suites(containerfile: str) -> list[str]:
    """The Debian releases whose base images, made on this machine, a Containerfile builds on."""
    bases = re.findall(r"^\s*FROM\s+(?:--\S+\s+)*(\S+)", containerfile, re.MULTILINE | re.IGNORECASE)
    begin = base_name("")
    return list(dict.fromkeys(one.removeprefix(begin) for one in bases if one.startswith(begin) and one != begin))


def own_suite(os_release: Path = Path("/etc/os-release")) -> str:
    """The release of Debian that this machine runs, otherwise a default."""
    try:
        text = os_release.read_text(encoding="utf-8")
    except OSError:
        return _DEFAULT_SUITE
    fields = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', text, re.MULTILINE))
    return fields.get("VERSION_CODENAME", _DEFAULT_SUITE) if fields.get("ID") == "debian" else _DEFAULT_SUITE


def own_mirror(suite: str) -> str | None:
    """The mirror from which this machine itself takes that release; None if it does not use one."""
    if shutil.which("apt-get") is None:
        return None
    wanted = ["apt-get", "indextargets", "--format", "$(SITE) $(RELEASE) $(COMPONENT)", "Created-By: Packages"]
    done = subprocess.run(wanted, capture_output=True, text=True, check=False)
    return next((words[0] for words in map(str.split, done.stdout.splitlines()) if words[1:] == [suite, "main"]), None)


def debian_base(suite: str, mirror: str | None, again: bool, line: Line) -> str:
    """The name of the base image, which is made if it does not exist, or `again`. Raises ImageError."""
    name = base_name(suite)
    if not again and buildah.exists(name):
        return name
    if shutil.which("debootstrap") is None:
        raise ImageError("A Debian base needs debootstrap, which is not installed. Run: apt-get install debootstrap")
    if os.geteuid() != 0:
        raise ImageError(
            "Only root can make a Debian base. Run this once as root, or give an image of a registry with --base."
        )
    mirror = mirror or own_mirror(suite)
    if mirror is None:
        raise ImageError(
            f"This machine has no mirror of {suite}. Check the name of the release, or give a mirror with --mirror."
        )
    container = buildah.call("from", "scratch").strip()
    try:
        root = Path(buildah.call("mount", container).strip())
        _bootstrap(suite, root, mirror, line)
        _clean(root, mirror)
        buildah.call("umount", container)
        buildah.call("config", "--cmd", "/bin/bash", "--env", "LANG=C.UTF-8", container)
        buildah.call("commit", "--quiet", container, name)
    finally:
        buildah.call("rm", container)
    return name


def _bootstrap(suite: str, root: Path, mirror: str, line: Line) -> None:
    command = ["debootstrap", "--variant=minbase", f"--include={_INCLUDED}", suite, str(root), mirror]
    failed_with = buildah.stream(command, line)
    if failed_with is not None:
        full = shutil.disk_usage(root).free < _MIN_ROOM  # it reports a full disk only as failed downloads
        shown = [f"  {text[:_MAX_LETTERS]}" for text in list(failed_with)[-_LAST_LINES:]]
        advice = [buildah.disk_space()] if full else []
        raise ImageError("\n".join([f"Cannot make Debian {suite}: debootstrap failed:", *shown, *advice]))


def _clean(root: Path, mirror: str) -> None:
    """Remove downloads, and files that debootstrap copied from this machine: its name, its resolver, passwords."""
    for folder in ("var/cache/apt/archives", "var/lib/apt/lists", "var/log"):
        for path in (root / folder).glob("**/*"):
            if path.is_file() and path.name != "lock":
                path.unlink()
    for name in ("etc/hostname", "etc/resolv.conf"):
        (root / name).unlink(missing_ok=True)
    parts = urlsplit(mirror)
    if parts.password is not None or parts.username is not None:
        sources = root / "etc/apt/sources.list"
        known = parts.netloc.rpartition("@")[0] + "@"
        sources.write_text(sources.read_text(encoding="utf-8").replace(known, ""), encoding="utf-8")
