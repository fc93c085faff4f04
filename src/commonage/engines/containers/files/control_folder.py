"""The control folder: lets the server and the entry script in a container (entry.sh) exchange files.

    control/claim decides who acts first: the entry ("ran"), or a stop before the start ("forbidden")
        again    the entry was run a second time, and refused
        secrets  secret variables, which the entry removes; only on the control plane's node
        stop     only if containers run on other nodes: requests the end of the command ("term", "kill")
        end      only there: how the command ended ("137 oom")

Apart from the workspace and the log, it is the only path of the control plane that a container can write to. A process
in the container may do anything in it and harms only itself: no link is followed, and no content that could harm the
server is trusted. If containers run on other nodes, root on those may change it too. Used by engines, in threads.
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

from commonage.files.safe_path import SafePath

NAME = "control"
"""Its name on disk."""
INSIDE = f"/run/commonage/{NAME}"
"""Path of the control folder in the container."""
LOG_INSIDE = "/run/commonage/log"
"""Path of the log file in the container."""

_FORBIDDEN = b"forbidden"
_MAX = 16
_NO_STOP = b"none\n"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_END = re.compile(rb"(\d{1,3})( oom)?( signalled)?\n")


class StartDecision(Enum):
    """Whether the command runs: the entry started it, or a stop before that forbade it."""

    UNDECIDED = "undecided"
    STARTED = "started"
    FORBIDDEN = "forbidden"


@dataclass(frozen=True, slots=True)
class Owner:
    """Owner of files for a container: the user inside, and its id on the host (different with user namespaces)."""

    uid: int
    gid: int
    host_uid: int
    host_gid: int


@dataclass(frozen=True, slots=True)
class End:
    """How the command ended: its code, and when.

    `oom`: the kernel killed one of its processes for lack of memory. `signalled`: another party had sent it a signal.
    """

    code: int
    oom: bool
    signalled: bool
    at: float


@dataclass(frozen=True, slots=True)
class ControlFolder:
    place: SafePath

    @property
    def path(self) -> Path:
        return self.place.path

    def make(self, secrets: Mapping[str, str], owner: Owner, *, stop: bool = False) -> None:
        """Create it with the secrets in it, and with a `stop` file if requested. Idempotent. Raises OSError."""
        self.place.make_folder()
        give(self.place, owner)
        if stop:
            with suppress(FileExistsError):
                # As long as the longest request, so that writing one takes no more disk space.
                _write(self.place / "stop", _NO_STOP, os.O_CREAT | os.O_EXCL)
        if secrets and self.decision() is StartDecision.UNDECIDED:
            self._write_secrets(script_of(secrets).encode(), owner)

    def _write_secrets(self, content: bytes, owner: Owner) -> None:
        new = self.place / "secrets.new"
        new.remove()
        _write(new, content, os.O_CREAT | os.O_EXCL)
        give(new, owner)
        new.move(self.place / "secrets")  # atomic: the entry may run already

    def decision(self) -> StartDecision:
        try:
            return StartDecision.FORBIDDEN if (self.place / "claim").read(_MAX) == _FORBIDDEN else StartDecision.STARTED
        except FileNotFoundError:
            return StartDecision.UNDECIDED
        except OSError:  # replaced by something else, so a process in the container changed it
            return StartDecision.STARTED

    def forbid_start(self) -> bool:
        """Ensure that the command never runs. False if it runs, or ran, or that is unknown. Raises OSError."""
        claim = self.place / "claim"
        try:
            self._have_folder()
            descriptor = claim.open(os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            return self.decision() is StartDecision.FORBIDDEN
        except NotADirectoryError:  # a link replaced the control folder, and the command may have run
            return False
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(_FORBIDDEN)
        except OSError:  # a half-written file would say that the command ran
            claim.remove()
            raise
        return True

    def _have_folder(self) -> None:
        try:
            self.place.make_folder()
        except FileNotFoundError:  # removing the folder above must not keep it from ever ending
            self.place.make_folder(parents=True)

    def stop(self, what: Literal["term", "kill"]) -> None:
        """Ask the entry to end the command, which it does within a second. Raises OSError.

        Written in place: a reader that opens the file again reads fresh data, also over NFS.
        """
        _write(self.place / "stop", f"{what}\n".encode())

    def ran_at(self) -> float | None:
        """Start time of the command, unix seconds; None if it was not started."""
        try:
            found = (self.place / "claim").stat()
        except OSError:
            return None
        return found.st_mtime if self.decision() is StartDecision.STARTED else None

    def end(self) -> End | None:
        """Return how the command ended, as the entry saw it; None before the end, or if the entry could not tell.

        A process in the container may have forged it, which misleads only about that container itself.
        """
        try:
            descriptor = (self.place / "end").open(os.O_RDONLY)
        except OSError:
            return None
        with os.fdopen(descriptor, "rb") as file:
            try:
                found = _END.fullmatch(file.read(2 * _MAX))
                at = os.fstat(file.fileno()).st_mtime
            except OSError:
                return None
        return None if found is None else End(int(found[1]), found[2] is not None, found[3] is not None, at)

    def has_end(self) -> bool:
        """True once the entry has begun to write how the command ended."""
        return (self.place / "end").exists()

    def end_unreadable(self) -> bool:
        """True if the entry ran to the end, but had no disk space to write the result."""
        return self.has_end() and self.end() is None

    def was_restarted(self) -> bool:
        """True if the daemon ran the entry a second time, so that the first exit code is lost."""
        return (self.place / "again").exists()


def give(place: SafePath, owner: Owner) -> None:
    """Change the owner to the user inside, if that is not the server's own user."""
    if owner.host_uid != os.geteuid():
        place.chown(owner.host_uid, owner.host_gid)


def _write(place: SafePath, content: bytes, flags: int = 0) -> None:
    with os.fdopen(place.open(os.O_WRONLY | flags), "wb") as file:
        file.write(content)


def script_of(secrets: Mapping[str, str]) -> str:
    """Return a shell script that exports them. Only for names that a shell accepts (see `can_export`)."""
    return "".join(f"export {name}='{value.replace(chr(39), QUOTED)}'\n" for name, value in secrets.items())


QUOTED = "'\\''"
"""A single quote within single quotes, for a shell."""


def can_export(name: str) -> bool:
    """True for a variable that a shell can set."""
    return _NAME.fullmatch(name) is not None
