"""The caller of a request, and its permissions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from commonage.domain.errors import Forbidden


class Scope(StrEnum):
    """A permission of a token; the hub grants them (see docs/operate/sign-in.md)."""

    READ = "custom:commonage:read"
    SUBMIT = "custom:commonage:submit"
    MANAGE = "custom:commonage:manage"
    ADMIN = "custom:commonage:admin"
    TOKENS = "custom:commonage:tokens"


OPERATOR = "_operator"
"""The command line on the server's own machine, as a principal. A user's name begins with a letter or a digit."""


@dataclass(frozen=True, slots=True)
class Principal:
    """The caller: a user of the hub, the hub's spawner acting for one, or the operator.

    `commonage.control.access` says what it may do.
    """

    name: str
    scopes: frozenset[Scope]
    groups: tuple[str, ...] = ()

    def holds(self, scope: Scope) -> bool:
        """True if its token has this scope. Admin stands for all but TOKENS."""
        return scope in self.scopes or (Scope.ADMIN in self.scopes and scope is not Scope.TOKENS)

    def need(self, scope: Scope) -> None:
        """Raise Forbidden unless its token has this scope."""
        if not self.holds(scope):
            raise Forbidden(
                f"the token of {self.name} lacks the scope {scope.value}; use one that has it, or ask an admin",
                code="scope-missing",
            )
