"""Permissions in the registry of images. Pure; the terms are those of the registries' token protocol.

A tenant's images lie under its scope (`domain.images.scope_of`): its members push and pull there. Every user may pull
from `public`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from commonage.domain.errors import InvalidInput
from commonage.domain.images import PUBLIC

PULL, PUSH, DELETE = "pull", "push", "delete"
_ACCESS = re.compile(r"(?P<kind>[a-z]+)(?:\([a-z]+\))?:(?P<name>[^\s]+):(?P<actions>[a-z,*]*)", re.ASCII)
_MAX = 64


@dataclass(frozen=True, slots=True)
class Access:
    """Actions on one object: pull, push, delete on a `repository`; all (`*`) on the `registry`'s `catalog`."""

    kind: str
    name: str
    actions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rights:
    """The permissions of a caller. `pulls` and `pushes` are scopes, the first parts of repositories' names.

    `everything`: an admin. `pulls_all`: a node of the site, which runs the work of all tenants.
    """

    pulls: frozenset[str] = frozenset()
    pushes: frozenset[str] = frozenset()
    everything: bool = False
    pulls_all: bool = False


def rights_of_member(scopes: Iterable[str], *, reads: bool = True, writes: bool = True) -> Rights:
    """The rights of a member of the tenants with these scopes, by a token that may read and write."""
    own = frozenset(scopes)
    return Rights(own | {PUBLIC} if reads else frozenset(), own - {PUBLIC} if writes else frozenset())


def parse_access(scopes: Sequence[str]) -> tuple[Access, ...]:
    """`repository:lab/torch:pull,push`, several separated by spaces. Raises InvalidInput."""
    words = [word for scope in scopes for word in scope.split()]
    if len(words) > _MAX:
        raise InvalidInput(f"{len(words)} scopes are asked for at once; at most {_MAX} are allowed", field="scope")
    return tuple(_parsed(word) for word in words)


def _parsed(word: str) -> Access:
    found = _ACCESS.fullmatch(word)
    if found is None:
        raise InvalidInput(
            f"{word[:100]!r} is not a scope of a registry; one is written repository:TENANT/NAME:pull,push",
            field="scope",
        )
    return Access(found["kind"], found["name"], tuple(dict.fromkeys(one for one in found["actions"].split(",") if one)))


def granted(asked: Iterable[Access], rights: Rights) -> tuple[Access, ...]:
    """The requested access as far as these rights allow it; objects without an allowed action are left out."""
    found = (Access(one.kind, one.name, tuple(act for act in one.actions if _may(one, act, rights))) for one in asked)
    return tuple(one for one in found if one.actions)


def _may(what: Access, action: str, rights: Rights) -> bool:
    if rights.everything:
        return True
    scope, slash, _ = what.name.partition("/")
    if what.kind != "repository" or not slash:
        return False
    if action == PULL:
        return rights.pulls_all or scope in rights.pulls
    return action == PUSH and scope in rights.pushes
