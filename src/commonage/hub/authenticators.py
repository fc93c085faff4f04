"""Additions to every authenticator except the shared passwords. Used by `hub.config`.

- A user who is refused, or whose provider does not answer, reads why, and what to do.
- LDAP checks the certificate of the directory, and does not hold up the hub.
- With `Authenticator.manage_groups`, groups also come from LDAP and from Unix accounts (PAM).
"""

from __future__ import annotations

import asyncio
import grp
import os
import pwd
import re
import ssl
from collections.abc import Collection, Mapping
from importlib.metadata import entry_points
from typing import Any

from jupyterhub.auth import Authenticator, LocalAuthenticator
from jupyterhub.utils import maybe_future
from ldap3.core.exceptions import LDAPCommunicationError, LDAPStartTLSError
from tornado import web
from tornado.httpclient import HTTPClientError
from traitlets import TraitError, Unicode
from traitlets.utils.importstring import import_item

_ENTRY_POINTS = "jupyterhub.authenticators"
_FIRST_VALUE = re.compile(r"[^=]+=\s*((?:\\.|[^,\\])+)")  # of a distinguished name
_PART = re.compile(r"(?:\\.|[^,\\])+")
_ADMINISTRATOR = "the administrator of this server"
_PROVIDER_WITHIN_S = 30
_NO_ANSWER = (OSError, HTTPClientError, LDAPCommunicationError, LDAPStartTLSError)
_GITHUB = (
    "If you are a member, GitHub may not have told us: open GitHub, Settings, Applications, Authorized OAuth Apps, and "
    "grant this application access to the organization."
)


def authenticator_of(name: str, contact: str | None) -> type[Authenticator]:
    """The authenticator with this entry point or class name, extended. Raises ImportError if it does not exist."""
    found = {one.name.lower(): one for one in entry_points(group=_ENTRY_POINTS)}
    base = found[name.lower()].load() if name.lower() in found else import_item(name)
    # Its options are those of the base, because traitlets reads the sections of all base classes.
    return type(f"Commonage{base.__name__}", (_Extended, base), {"contact": contact})


class _Extended(Authenticator):
    contact: str | None = None
    group_parent_dn = Unicode(
        help="LDAP: with manage_groups, only groups directly below this name are groups of JupyterHub."
    ).tag(config=True)

    def __init__(self, **named: Any) -> None:
        super().__init__(**named)
        if self.manage_groups and self.has_trait("bind_dn_template") and not self.group_parent_dn:
            raise TraitError(
                "LDAPAuthenticator.group_parent_dn is not set, and manage_groups needs it: two groups of a directory "
                "may begin with the same name, and only one of them is yours. Set it to the name directly above your "
                'groups, for example "ou=groups,dc=example,dc=org".'
            )

        tls: Mapping[str, Any] | None = getattr(self, "tls_kwargs", None)
        if tls is not None:  # LDAP; ldap3 accepts any certificate if it is not told otherwise
            self.set_trait("tls_kwargs", {"validate": ssl.CERT_REQUIRED, **tls})

    async def authenticate(self, handler: Any, data: Any = None) -> Any:
        try:
            async with asyncio.timeout(_PROVIDER_WITHIN_S):
                if self.has_trait("bind_dn_template"):  # LDAP; its coroutine blocks
                    return await asyncio.to_thread(asyncio.run, super().authenticate(handler, data))
                return await maybe_future(super().authenticate(handler, data))
        except _NO_ANSWER as error:
            self.log.error("The sign-in provider does not answer: %s: %s", type(error).__name__, error)
            raise web.HTTPError(503, no_answer(self.login_service, self.contact)) from error

    async def check_allowed(self, username: str, authentication: Mapping[str, Any] | None = None) -> bool:
        if not await maybe_future(super().check_allowed(username, authentication)):
            raise web.HTTPError(403, refusal(self, username, self.contact))
        return True

    async def run_post_auth_hook(self, handler: Any, auth_model: dict[str, Any]) -> dict[str, Any]:
        if self.manage_groups and "groups" not in auth_model:
            auth_model = {**auth_model, "groups": self._groups(auth_model)}
        model: dict[str, Any] = await super().run_post_auth_hook(handler, auth_model)
        return model

    def _groups(self, auth_model: Mapping[str, Any]) -> list[str]:
        if isinstance(self, LocalAuthenticator):
            account = pwd.getpwnam(auth_model["name"])
            return [grp.getgrgid(number).gr_name for number in os.getgrouplist(account.pw_name, account.pw_gid)]
        names = (auth_model.get("auth_state") or {}).get("ldap_groups", ())
        parent = _parts(self.group_parent_dn)
        return [name_in(one) for one in names if _parts(one)[1:] == parent]


def _parts(distinguished_name: str) -> list[str]:
    return [re.sub(r"\s*=\s*", "=", one.strip(), count=1).lower() for one in _PART.findall(distinguished_name)]


def name_in(distinguished_name: str) -> str:
    """`gpu-users` for `cn=GPU-Users,ou=groups,dc=example,dc=org`. LDAP does not distinguish upper and lower case."""
    found = _FIRST_VALUE.match(distinguished_name)
    return (re.sub(r"\\(.)", r"\1", found[1]) if found else distinguished_name).strip().lower()


def no_answer(service: str | None, contact: str | None) -> str:
    return (
        f"{service or 'The directory of users'} does not answer this server as it should, so your sign-in cannot be "
        f"checked. Wait a minute, then sign in again. If that fails, ask {contact or _ADMINISTRATOR}."
    )


def refusal(authenticator: Authenticator, username: str, contact: str | None) -> str:
    """Why this authenticator does not admit the user, and what to do."""
    who = contact or _ADMINISTRATOR
    organizations = _listed(authenticator, "allowed_organizations")
    groups = [name_in(one) for one in _listed(authenticator, "allowed_groups")]
    if organizations:
        names = _either([_organization(one) for one in organizations])
        return (
            f"You signed in to GitHub as {username}, who is not a member of {names}. Ask {who} to add you there, then "
            f"sign in again. {_GITHUB}"
        )
    if groups:
        names = _either([f"the group {one}" for one in groups])
        return (
            f"You signed in as {username}, who is not a member of {names}. Ask {who} to add you there, then sign in "
            "again."
        )
    return f"You signed in as {username}, but this server does not admit that user. Ask {who} to admit {username}."


def _listed(authenticator: Authenticator, name: str) -> list[str]:
    found: Collection[str] = getattr(authenticator, name, ())
    return sorted(found)


def _organization(name: str) -> str:
    organization, _, team = name.partition(":")
    return f"the team {team} of the GitHub organization {organization}" if team else f"the GitHub organization {name}"


def _either(names: list[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last
