"""File systems in files, for tests of project quotas; and homes on them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from commonage.storage.project_quotas import project_of

MIB = 1024 * 1024
FORMATS = {
    "ext4": ("64M", ["mkfs.ext4", "-q", "-O", "quota,project", "-E", "quotatype=prjquota"]),
    "xfs": ("512M", ["mkfs.xfs", "-q"]),
}


def mounted(kind: str, folder: Path, options: str) -> Path:
    """A new file system in a file, mounted. Raises CalledProcessError where that cannot be done."""
    size, make = FORMATS[kind]
    image, place = folder / f"{kind}.img", folder / kind
    image.touch()
    os.truncate(image, int(size[:-1]) * MIB)
    place.mkdir()
    for command in ([*make, str(image)], ["mount", "-o", options, str(image), str(place)]):
        subprocess.run(command, check=True, capture_output=True, text=True)
    return place


def home(root: Path, name: str, mib: int = 0) -> Path:
    folder = root / name
    (folder / "deep" / "er").mkdir(parents=True)
    if mib:
        (folder / "deep" / "er" / "old").write_bytes(bytes(mib * MIB))
    return folder


def project(path: Path) -> int:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return project_of(descriptor)
    finally:
        os.close(descriptor)
