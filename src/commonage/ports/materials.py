"""Materials on the site's disk: versions from git repositories, their copies in homes, and their credentials.

Implemented in `commonage.storage.materials`. Used by `control.materials`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from commonage.domain.materials import Material, MaterialCopy, Version
from commonage.domain.reasons.materials import MaterialSyncing
from commonage.ports.files import Place

EVERYTHING = frozenset({""})
"""For `deliver`: reset all files."""


@dataclass(frozen=True, slots=True)
class MaterialAccess:
    """`deploy_key` is the public key, which a repository's settings take. The token itself is never shown."""

    deploy_key: str
    has_token: bool
    webhook_secret: str


Open = Callable[[str], BinaryIO]
"""Opens the file of a version at this path. Blocks; raises OSError."""


class Damaged(Exception):
    """A file of the version is not what git has."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """A version for one home, and what opens its files. `at`, `reset`, `room_mib`: as for `MaterialStorage.deliver`."""

    version: Version
    read: Open
    at: float
    reset: Collection[str] = ()
    room_mib: int | None = None


class HomeCopies(Protocol):
    """Where homes are: on disks that this machine sees, or in claims of a cluster."""

    async def deliver(self, name: str, home: Place, delivery: Delivery) -> MaterialCopy:
        """Bring the copy of a material to this version. Raises Damaged, Conflict with a reason, Unavailable."""

    async def look(self, name: str, home: Place, version: Version | None) -> MaterialCopy | None:
        """The copy as it is; None if there is none. Raises Unavailable."""

    def close(self) -> None:
        """End what still runs."""


class MaterialStorage(Protocol):
    async def version(self, name: str) -> Version | None:
        """The version in force; None if there was none yet. Its folder is made if it is missing. Raises Unavailable."""

    async def sync(self, name: str, material: Material, now: float) -> Version:
        """Take over the newest commit; return the version in force. May take minutes.

        Raises Unavailable with a reason; then the version is the one before.
        """

    def syncing(self, name: str) -> MaterialSyncing | None:
        """The step of the running sync; None if no new commit is fetched."""

    async def old_versions(self, name: str) -> Collection[str]:
        """Names of folders on the disk that are not in force: old versions, and files of interrupted writes."""

    async def remove_version(self, name: str, tree: str) -> None:
        """Raises Unavailable."""

    async def names(self) -> Collection[str]:
        """The materials with anything on the disk."""

    async def remove(self, name: str) -> None:
        """Remove its versions and credentials. Copies in homes stay. Raises Unavailable."""

    async def deliver(
        self, name: str, home: Place, at: float, *, reset: Collection[str] = (), room_mib: int | None = None
    ) -> MaterialCopy:
        """Bring the copy in the home to the version in force, and return it.

        `reset`: files that become as in the version, an edited one being kept under another name; `EVERYTHING`: all.
        `room_mib`: how much the home may grow. What could not be done is the copy's `error`.
        """

    async def copy(self, name: str, home: Place) -> MaterialCopy | None:
        """The copy in the home, as it is now; None if there is none. Raises Unavailable."""

    async def access(self, name: str) -> MaterialAccess:
        """The credentials, made if they are missing. Raises Unavailable."""

    async def set_token(self, name: str, user: str, token: str) -> None:
        """Keep a token for HTTPS; an empty one is removed. Raises Unavailable."""

    def close(self) -> None:
        """End what still runs."""
