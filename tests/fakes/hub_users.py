"""The part of the identity port that manages users and groups of the hub, in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from commonage.domain.errors import Conflict, Unavailable
from commonage.ports.identity import Account


@dataclass
class HubUsers:
    """`users` are the hub's, `members` those of its groups. With `away` it does not answer. All sessions except those
    in `not_open` are open.
    """

    users: dict[str, Account] = field(default_factory=dict)
    members: dict[str, set[str]] = field(default_factory=dict)
    away: bool = False
    not_open: set[tuple[str, str]] = field(default_factory=set)
    token_ends: list[str] = field(default_factory=list)

    async def is_open(self, user: str, name: str) -> bool:
        self._answer()
        return (user, name) not in self.not_open

    def _answer(self) -> None:
        if self.away:
            raise Unavailable("the hub does not answer now")

    async def account(self, user: str) -> Account | None:
        self._answer()
        found = self.users.get(user)
        return None if found is None else replace(found, groups=self._groups(user))

    def _groups(self, user: str) -> tuple[str, ...]:
        return tuple(sorted(name for name, users in self.members.items() if user in users))

    async def accounts(self) -> Sequence[Account]:
        self._answer()
        return [replace(self.users[name], groups=self._groups(name)) for name in sorted(self.users)]

    async def revoke_tokens(self, user: str) -> None:
        self._answer()
        self.token_ends.append(user)
        if user in self.users:
            self.users[user] = replace(self.users[user], tokens=0)

    async def rename_user(self, user: str, to: str) -> None:
        self._answer()
        if user not in self.users:
            return
        if to in self.users:
            raise Conflict(f"there is a user {to} already")
        self.users[to] = replace(self.users.pop(user), name=to)
        for users in self.members.values():
            if user in users:
                users.symmetric_difference_update({user, to})

    async def remove_user(self, user: str) -> None:
        self._answer()
        self.users.pop(user, None)
        for users in self.members.values():
            users.discard(user)

    async def group(self, name: str) -> Sequence[str] | None:
        self._answer()
        return sorted(self.members[name]) if name in self.members else None

    async def rename_group(self, name: str, to: str) -> None:
        self._answer()
        if name in self.members:
            self.members.setdefault(to, set()).update(self.members.pop(name))

    async def remove_group(self, name: str) -> None:
        self._answer()
        self.members.pop(name, None)
