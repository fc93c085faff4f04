"""The box: the one folder of the control plane's that a container can write to, beside its owner's workspace.

    box/claim    who decided first: the entry in the container ("ran") or a stop ("never")
        again    the entry was run a second time, and refused
        secrets  the secret variables, for the entry, which removes them; only on the control plane's machine
        wish     where containers run on other machines: what the entry is asked to do with the command ("term", "kill")
        end      likewise: how the command ended, as the entry saw it ("137 oom")

What runs in the container may do anything in here, to its own harm only: no link is followed, no content believed that
could hurt us. Where containers run on other machines, so may who is root there. Used by engines, in threads.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Literal

from commonage.files.beneath import Beneath

INSIDE = "/run/commonage/box"
"""Where it is in the container."""
LOG_INSIDE = "/run/commonage/log"
"""Where the log file is in the container."""

_NEVER = b"never"
_MOST = 16
_NO_WISH = b"none\n"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_END = re.compile(rb"(\d{1,3})( oom)?( outside)?\n")


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
class End:
    """How the command ended: its code, and when.

    `oom`: the kernel ended something of it for want of memory. `outside`: somebody else than we had sent it a signal.
    """

    code: int
    oom: bool
    outside: bool
    at: float


@dataclass(frozen=True, slots=True)
class Box:
    """One attempt's box."""

    place: Beneath

    @property
    def path(self) -> Path:
        """As it is written, for who mounts it."""
        return self.place.path

    def make(self, secrets: Mapping[str, str], owner: Owner, *, wish: bool = False) -> None:
        """Have it there, with the secrets in it, and with a `wish` if it is for one. Idempotent. Raises OSError."""
        self.place.make_folder()
        give(self.place, owner)
        if wish:
            with suppress(FileExistsError):
                # As long as any wish: to write one takes no room on the disk.
                _write(self.place / "wish", _NO_WISH, os.O_CREAT | os.O_EXCL)
        if secrets and self.claim() is Claim.NOBODY:
            self._write_secrets(script_of(secrets).encode(), owner)

    def _write_secrets(self, content: bytes, owner: Owner) -> None:
        new = self.place / "secrets.new"
        new.remove()
        _write(new, content, os.O_CREAT | os.O_EXCL)
        give(new, owner)
        new.move(self.place / "secrets")  # whole or not at all: the entry may run already

    def claim(self) -> Claim:
        """Who decided."""
        try:
            return Claim.NEVER if (self.place / "claim").read(_MOST) == _NEVER else Claim.RAN
        except FileNotFoundError:
            return Claim.NOBODY
        except OSError:  # something else is in its place, so somebody inside was at work
            return Claim.RAN

    def claim_never(self) -> bool:
        """Have the command never run. False if it runs, or ran, already, or nobody can tell. Raises OSError."""
        claim = self.place / "claim"
        try:
            self._have_folder()
            descriptor = claim.open(os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            return self.claim() is Claim.NEVER
        except NotADirectoryError:  # somebody put a link in the place of the box, and may have had it run
            return False
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(_NEVER)
        except OSError:  # half written it would say that the command ran
            claim.remove()
            raise
        return True

    def _have_folder(self) -> None:
        try:
            self.place.make_folder()
        except FileNotFoundError:  # who removed the folder above must not keep it from ever ending
            self.place.make_folder(parents=True)

    def wish(self, what: Literal["term", "kill"]) -> None:
        """Ask the entry to end the command, which it does within a second. Raises OSError.

        Written in place: a file that is opened anew is read anew, also over NFS.
        """
        _write(self.place / "wish", f"{what}\n".encode())

    def ran_at(self) -> float | None:
        """When the command was started, unix seconds; None if it was not."""
        try:
            found = (self.place / "claim").stat()
        except OSError:
            return None
        return found.st_mtime if self.claim() is Claim.RAN else None

    def end(self) -> End | None:
        """How the command ended, as the entry saw it; None while it did not, or where it could not say.

        What runs in the container may have written it, and lied about nobody but itself.
        """
        try:
            descriptor = (self.place / "end").open(os.O_RDONLY)
        except OSError:
            return None
        with os.fdopen(descriptor, "rb") as file:
            try:
                found = _END.fullmatch(file.read(2 * _MOST))
                at = os.fstat(file.fileno()).st_mtime
            except OSError:
                return None
        return None if found is None else End(int(found[1]), found[2] is not None, found[3] is not None, at)

    def has_end(self) -> bool:
        """True once the entry has begun to write down how the command ended."""
        return (self.place / "end").is_there()

    def could_not_tell(self) -> bool:
        """True if the entry was there to the end, but found no room to write it down."""
        return self.has_end() and self.end() is None

    def was_run_again(self) -> bool:
        """True if the daemon ran the entry a second time, so that the first exit code is gone."""
        return (self.place / "again").is_there()


def give(place: Beneath, owner: Owner) -> None:
    """Have it belong to the user inside, where that is another than we are."""
    if owner.outside_uid != os.geteuid():
        place.give(owner.outside_uid, owner.outside_gid)


def _write(place: Beneath, content: bytes, flags: int = 0) -> None:
    with os.fdopen(place.open(os.O_WRONLY | flags), "wb") as file:
        file.write(content)


def script_of(secrets: Mapping[str, str]) -> str:
    """A shell script that exports them. Only for names that a shell takes (see `can_export`)."""
    return "".join(f"export {name}='{value.replace(chr(39), QUOTED)}'\n" for name, value in secrets.items())


QUOTED = "'\\''"
"""A single quote within single quotes, for a shell."""


def can_export(name: str) -> bool:
    """True for a variable that a shell can set."""
    return _NAME.fullmatch(name) is not None
