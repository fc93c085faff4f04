"""The site's image registry: address, accounts, tokens, removal of old images. Used by API, server and engines."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from commonage.domain.images import Access

NODE = "node"
"""The control plane's own account name."""


@dataclass(frozen=True, slots=True)
class RegistryAbout:
    """`address` is `HOST:PORT`, the first part of its image names. `certificate` (PEM) is that of its authority."""

    address: str
    certificate: str


@dataclass(frozen=True, slots=True)
class RegistryAccount:
    """The account with which nodes pull the images whose names begin with `address` (`HOST:PORT`)."""

    address: str
    user: str
    password: str

    def __repr__(self) -> str:
        return f"RegistryAccount({self.address}, {self.user})"  # a log line or a traceback must not show the password

    def is_for(self, image: str) -> bool:
        return image.startswith(f"{self.address}/")

    @property
    def login(self) -> Mapping[str, str]:
        """The account as the Docker daemon takes it with a pull."""
        return {"username": self.user, "password": self.password, "serveraddress": self.address}


@dataclass(frozen=True, slots=True)
class PullToken:
    """Allows its bearer to pull one image from the registry at `address` (`HOST:PORT`), for `lasts_s` seconds."""

    address: str
    text: str
    lasts_s: int

    def __repr__(self) -> str:
        return f"PullToken({self.address})"  # as for an account

    @property
    def login(self) -> Mapping[str, str]:
        """The token as the Docker daemon takes it with a pull."""
        return {"registrytoken": self.text, "serveraddress": self.address}


GetPullToken = Callable[[str], Awaitable[PullToken | None]]
"""Gets a token for the image of this name; None if it is in another registry. Raises EngineFailure."""


def machine_user(node: str) -> str:
    return f"{NODE}@{node}"


@dataclass(frozen=True, slots=True)
class RegistryToken:
    """A token that allows its bearer the granted actions. `issued_at` in unix seconds, `lasts_s` from then on."""

    text: str
    issued_at: float
    lasts_s: int


@dataclass(frozen=True, slots=True)
class Collected:
    """Result of a collection: the removed images (`REPOSITORY@sha256:…`), and the number of bytes freed."""

    images: tuple[str, ...]
    freed_bytes: int


class Registry(Protocol):
    @property
    def about(self) -> RegistryAbout: ...

    def is_node(self, user: str, password: str) -> bool:
        """True for an account with which a node of the site pulls images. Blocks briefly."""

    def token(self, subject: str, access: Sequence[Access]) -> RegistryToken: ...

    def push_token(self, subject: str, repository: str) -> RegistryToken:
        """A token with which a build pushes to this repository alone. It lasts as long as a build may wait and run."""

    async def collect(self, keep: Collection[str]) -> Collected:
        """Remove old images that are not among `keep` (image names, by digest or tag), and unused layers.

        Pushes are impossible meanwhile. Raises Conflict while another collection runs, EngineFailure.
        """
