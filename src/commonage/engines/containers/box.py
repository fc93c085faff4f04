"""The box: the one folder of the control plane's that a container can write to, beside its owner's workspace.

    box/claim    who decided first: the entry in the container ("ran") or a stop ("never")
        again    the entry was run a second time, and refused
        secrets  the secret variables, for the entry, which removes them

What runs in the container may do anything in here, to its own harm only: no link is followed, no content believed that
could hurt us. Used by engines, in threads.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

INSIDE = "/run/commonage/box"
"""Where it is in the container."""
LOG_INSIDE = "/run/commonage/log"
"""Where the log file is in the container."""

_NEVER = b"never"
_MOST = 16
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


class Claim(Enum):
    """Who decided whether the command runs."""

    NOBODY = "nobody"
    RAN = "ran"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Owner:
    """Whom files for a container belong to: the user inside, and who that is outside (with user namespaces another)."""

    uid: int
    gid: int
    outside_uid: int
    outside_gid: int


@dataclass(frozen=True, slots=True)
class Box:
    """One attempt's box."""

    path: Path

    def make(self, secrets: Mapping[str, str], owner: Owner) -> None:
        """Have it there, with the secrets in it. Idempotent. Raises OSError."""
        self.path.mkdir(mode=0o700, exist_ok=True)
        give(self.path, owner)
        if secrets and self.claim() is Claim.NOBODY:
            self._write_secrets(script_of(secrets).encode(), owner)

    def _write_secrets(self, content: bytes, owner: Owner) -> None:
        place = self.path / "secrets"
        new = self.path / "secrets.new"
        new.unlink(missing_ok=True)
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        give(new, owner)
        new.rename(place)  # whole or not at all: the entry may run already

    def claim(self) -> Claim:
        """Who decided."""
        try:
            descriptor = os.open(self.path / "claim", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return Claim.NOBODY
        except OSError:  # something else is in its place, so somebody inside was at work
            return Claim.RAN
        try:
            return Claim.NEVER if os.read(descriptor, _MOST) == _NEVER else Claim.RAN
        except OSError:
            return Claim.RAN
        finally:
            os.close(descriptor)

    def claim_never(self) -> bool:
        """Have the command never run. False if it runs, or ran, already. Raises OSError."""
        self.path.mkdir(mode=0o700, exist_ok=True)
        try:
            descriptor = os.open(self.path / "claim", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
        except FileExistsError:
            return self.claim() is Claim.NEVER
        with os.fdopen(descriptor, "wb") as file:
            file.write(_NEVER)
        return True

    def was_run_again(self) -> bool:
        """True if the daemon ran the entry a second time, so that the first exit code is gone."""
        return os.path.lexists(self.path / "again")


def give(path: Path, owner: Owner) -> None:
    """Have it belong to the user inside, where that is another than we are."""
    if owner.outside_uid != os.geteuid():
        os.chown(path, owner.outside_uid, owner.outside_gid, follow_symlinks=False)


def script_of(secrets: Mapping[str, str]) -> str:
    """A shell script that exports them. Only for names that a shell takes (see `can_export`)."""
    return "".join(f"export {name}='{value.replace(chr(39), QUOTED)}'\n" for name, value in secrets.items())


QUOTED = "'\\''"
"""A single quote within single quotes, for a shell."""


def can_export(name: str) -> bool:
    """True for a variable that a shell can set."""
    return _NAME.fullmatch(name) is not None
