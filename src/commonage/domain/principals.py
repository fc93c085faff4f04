"""The caller of a request, and its permissions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from commonage.domain.errors import Forbidden


class Scope(StrEnum):
    """A permission of a token; the hub grants them (see docs/operate/sign-in.md)."""

    READ = "custom:commonage:read"
    SUBMIT = "custom:commonage:submit"
    ADMIN = "custom:commonage:admin"
    TOKENS = "custom:commonage:tokens"


OPERATOR = "_operator"
"""The command line on the server's own machine, as a principal. A user's name begins with a letter or a digit."""


@dataclass(frozen=True, slots=True)
class Principal:
    """The caller: a user of the hub, the hub's spawner acting for one, or the operator."""

    name: str
    scopes: frozenset[Scope]
    groups: tuple[str, ...] = ()

    @property
    def is_admin(self) -> bool:
        return Scope.ADMIN in self.scopes

    def need(self, scope: Scope) -> None:
        """Raise Forbidden unless this scope is held. Admin stands for all but TOKENS."""
        if scope not in self.scopes and not (self.is_admin and scope is not Scope.TOKENS):
            only = "this is for admins; " if scope is Scope.ADMIN else ""
            raise Forbidden(
                f"{only}the token of {self.name} lacks the scope {scope.value}; ask an admin for one that has it",
                code="scope-missing",
            )

    def may_see(self, owner: str) -> bool:
        return self.is_admin or owner == self.name
