"""Calls buildah: streams its output by line, and turns its failure into an error. buildah decides where images are
stored.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Line = Callable[[str], None]
"""Takes a line of output."""

_LAST_LINES = 12
_KEPT_LINES = 40


class ImageError(Exception):
    """An image cannot be built or pushed; the message says why and what to do."""


class BuildahFailed(ImageError):
    """buildah failed; `lines` are its last lines of output."""

    def __init__(self, lines: Sequence[str], what: str) -> None:
        super().__init__(complaint(lines, what))
        self.lines = tuple(lines)


def program() -> str:
    """The path of buildah. Raises ImageError."""
    found = shutil.which("buildah")
    if found is None:
        raise ImageError("buildah is not installed. Run: apt-get install buildah")
    return found


def version() -> str:
    """`buildah 1.28.2`."""
    output = call("--version")
    found = re.search(r"\d+(\.\d+)+", output)
    return f"buildah {found[0]}" if found else "buildah"


def call(*arguments: str, stdin: str | None = None) -> str:
    """The output of buildah. Raises ImageError with its message."""
    done = subprocess.run(
        [program(), *arguments], input=stdin, capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode != 0:
        raise ImageError(complaint(done.stderr.splitlines(), f"buildah {arguments[0]}"))
    return done.stdout


def follow(arguments: Sequence[str], line: Line) -> None:
    """Run buildah and pass on each line of output. Raises BuildahFailed with the last lines; the process is always
    ended.
    """
    last: deque[str] = deque(maxlen=_KEPT_LINES)
    with subprocess.Popen(
        [program(), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        try:
            for text in process.stdout or ():
                last.append(text.rstrip())
                line(text.rstrip())
        except BaseException:
            process.terminate()
            raise
    if process.returncode != 0:
        raise BuildahFailed(last, f"buildah {arguments[0]}")


def complaint(lines: Sequence[str], what: str) -> str:
    """The error message: the last lines."""
    output = [text.strip() for text in lines if text.strip()]
    return f"{what} failed:\n" + "\n".join(f"  {text}" for text in output[-_LAST_LINES:])


def disk_space() -> str:
    """The free disk space where buildah keeps images, and how to get more."""
    try:
        place = str(json.loads(call("info"))["store"]["GraphRoot"])
        free = f": {shutil.disk_usage(place).free >> 20} MiB free in {place}"
    except (ImageError, OSError, ValueError, KeyError, TypeError):
        free = ""
    return (
        f"The disk with buildah's images is full{free}. `buildah rm --all` and `buildah rmi --prune` remove "
        "earlier builds; `graphroot` in /etc/containers/storage.conf sets another folder."
    )


def exists(image: str) -> bool:
    """True if the image is here."""
    return (
        subprocess.run([program(), "inspect", "--type", "image", image], capture_output=True, check=False).returncode
        == 0
    )


def inspect(image: str) -> dict[str, Any]:
    """buildah's description of a local image: configuration and annotations. Raises ImageError."""
    found: dict[str, Any] = json.loads(call("inspect", "--type", "image", image))
    return found


def push(image: str, target: str, options: Sequence[str], folder: Path, line: Line) -> str:
    """Push it to `target` (HOST/REPOSITORY:TAG). Returns its digest in the registry. Raises ImageError."""
    digest = folder / "digest"
    follow(["push", *options, "--digestfile", str(digest), image, f"docker://{target}"], line)
    return digest.read_text(encoding="ascii").strip()
