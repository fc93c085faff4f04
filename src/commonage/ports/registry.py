"""The site's own registry of images: what it is, who it lets in, and what is thrown out of it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from commonage.domain.registry import Access

MACHINE = "machine"
"""The name of the control plane's own account."""


@dataclass(frozen=True, slots=True)
class RegistryAbout:
    """`address` is `HOST:PORT`, the first part of the names of its images. `certificate` (PEM) is its authority's."""

    address: str
    certificate: str


@dataclass(frozen=True, slots=True)
class RegistryAccount:
    """With what name and password machines fetch the images whose names begin with `address` (`HOST:PORT`)."""

    address: str
    user: str
    password: str

    def __repr__(self) -> str:
        return f"RegistryAccount({self.address}, {self.user})"  # a log line or a traceback must not show the password

    def is_for(self, image: str) -> bool:
        """True for an image of that registry."""
        return image.startswith(f"{self.address}/")


def machine_user(node: str) -> str:
    """The name of the account of this machine."""
    return f"{MACHINE}@{node}"


@dataclass(frozen=True, slots=True)
class RegistryToken:
    """What lets its bearer do what was granted. `issued_at` in unix seconds, `lasts_s` from then on."""

    text: str
    issued_at: float
    lasts_s: int


@dataclass(frozen=True, slots=True)
class Collected:
    """What a collection threw out: images (`REPOSITORY@sha256:…`), and how many bytes that made free."""

    images: tuple[str, ...]
    freed_bytes: int


class Registry(Protocol):
    """The registry that the platform runs."""

    @property
    def about(self) -> RegistryAbout:
        """Where it is, and how it is recognised."""
        ...

    def is_machine(self, user: str, password: str) -> bool:
        """True for an account with which a machine of the site fetches images. Blocks a moment."""
        ...

    def token(self, subject: str, access: Sequence[Access]) -> RegistryToken:
        """A token for what was granted."""
        ...

    async def collect(self, keep: Collection[str]) -> Collected:
        """Throw out what is old and not among `keep` (names of images, by digest or tag), and layers nobody needs.

        Meanwhile nothing can be pushed. Raises Conflict while another collection runs, EngineFailure.
        """
        ...
