"""Rules for JupyterHub's users and API tokens, and the hub that applies them. Used by `hub.config`.

- When a user becomes an admin, earlier sign-ins and tokens of the name end. Another person may have signed in under it
  before: with the shared passwords any user can.
- Every token expires, and none makes another one. JupyterHub lets a token with the scope `tokens` make one that lasts
  longer and may do more. The control plane's API does not, so that API is the only way from one token to another.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import timedelta
from itertools import chain
from typing import Any

from jupyterhub import orm, roles
from jupyterhub.apihandlers.users import UserTokenListAPIHandler
from jupyterhub.app import JupyterHub
from jupyterhub.authenticators.shared import SharedPasswordAuthenticator
from jupyterhub.utils import utcnow
from sqlalchemy import event, inspect, or_
from sqlalchemy.orm import Session
from tornado import web
from tornado.log import app_log

from commonage.hub import scopes
from commonage.hub.proxy_rules import ProxyRules, ProxyRulesReady
from commonage.wire.hub import API_PATH, HUB_READY_PATH, HUB_RULES_PATH

_REFUSAL = (
    f"A token cannot create another token here. Send POST {API_PATH}/tokens, which creates tokens that expire no "
    "later and have no more scopes than yours; or sign in and use the page Token."
)


def end_earlier_sign_ins_of_new_admins() -> None:
    """Watch what JupyterHub writes to its database, because every way to give a user a role passes there."""
    if not event.contains(Session, "before_flush", _before_flush):
        event.listen(Session, "before_flush", _before_flush)


def keep_admins(db: Session, names: Collection[str]) -> None:
    """Take the admin role from all users except these."""
    for user in db.query(orm.User).filter(orm.User.admin.is_(True), orm.User.name.not_in(names)).all():
        app_log.warning(
            "%s is not an admin any more: with the shared passwords, only `admin_users` are admins.", user.name
        )
        user.admin = False
        roles.assign_default_roles(db, user)
    db.commit()


def _before_flush(session: Session, *_: object) -> None:
    """Runs in the transaction that writes the role."""
    for changed in list(session.dirty):  # a new user has no sign-ins yet
        if isinstance(changed, orm.User) and _are_for_admins(_new_roles(changed)):
            _end_earlier_sign_ins(changed)
        elif isinstance(changed, orm.Group) and _are_for_admins(_added(changed, "roles")):
            for user in changed.users:
                _end_earlier_sign_ins(user)


def _new_roles(user: orm.User) -> Iterable[orm.Role]:
    """Roles newly given to the user, and those of groups that the user joins."""
    return chain(_added(user, "roles"), *(group.roles for group in _added(user, "groups")))


def _added(changed: orm.User | orm.Group, relation: str) -> Iterable[orm.Role | orm.Group]:
    return inspect(changed).attrs[relation].load_history().added or ()


def _are_for_admins(granted: Iterable[orm.Role]) -> bool:
    return any(scopes.ADMIN in (role.scopes or ()) for role in granted)


def _end_earlier_sign_ins(user: orm.User) -> None:
    app_log.warning(
        "%s becomes an admin: all earlier sign-ins of that name and %d tokens end. "
        "Stop sessions of that name that still run: another person may have started them.",
        user.name,
        len(user.api_tokens),
    )
    # The value in a sign-in's cookie, and the tokens made from that sign-in.
    user.cookie_id = orm.new_token()
    user.api_tokens = []
    user.oauth_codes = []


def refuse_tokens_made_with_tokens() -> None:
    """From now on only a sign-in and services make tokens at the hub."""
    if not hasattr(UserTokenListAPIHandler.post, "__wrapped__"):
        UserTokenListAPIHandler.post = _guarded(UserTokenListAPIHandler.post)


def _guarded(post: Any) -> Any:
    async def guarded(self: UserTokenListAPIHandler, user_name: str) -> None:
        token = self.get_token()
        if token is not None and token.user is not None:
            raise web.HTTPError(403, _REFUSAL)
        await post(self, user_name)

    guarded.__wrapped__ = post  # type: ignore[attr-defined]  # as functools.wraps marks it
    return guarded


def limit_older_tokens(db: Session, lifetime_s: int) -> int:
    """Let longer-lived tokens of users expire in `lifetime_s` seconds; returns their number. Session tokens stay."""
    latest = utcnow(with_tz=False) + timedelta(seconds=lifetime_s)
    running = db.query(orm.Spawner).filter(orm.Spawner.server_id.is_not(None))
    # By the note that JupyterHub gives it; nothing else links the two.
    of_sessions = {(one.user_id, f"Server at {one.server.base_url}") for one in running}
    longer_lived = db.query(orm.APIToken).filter(
        orm.APIToken.user_id.is_not(None),
        orm.APIToken.client_id == "jupyterhub",  # others are sign-ins, which expire with their cookies
        or_(orm.APIToken.expires_at.is_(None), orm.APIToken.expires_at > latest),
    )
    limited = [one for one in longer_lived if (one.user_id, one.note) not in of_sessions]
    for token in limited:
        token.expires_at = latest
    db.commit()
    return len(limited)


class CommonageHub(JupyterHub):
    """JupyterHub that at its start also applies the current settings to existing users and tokens.

    It serves its routes to a proxy that shares no folder with it.
    """

    def init_handlers(self) -> None:
        super().init_handlers()
        if self.proxy.serves_rules:
            self.handlers.insert(0, (HUB_RULES_PATH, ProxyRules, {"proxy": self.proxy}))
            self.handlers.insert(0, (HUB_READY_PATH, ProxyRulesReady, {"proxy": self.proxy}))

    async def init_users(self) -> None:
        """Called once, before the first request is served."""
        await super().init_users()
        if isinstance(self.authenticator, SharedPasswordAuthenticator):
            # JupyterHub also revokes admin rights of users under other names, but only when they sign in.
            keep_admins(self.db, self.authenticator.admin_users)
        if lifetime_s := self.token_expires_in_max_seconds:
            limited = limit_older_tokens(self.db, lifetime_s)
            self.log.info("%d tokens that lasted longer now expire in %d s", limited, lifetime_s)
