"""Ends a user's earlier sign-ins and tokens when the user becomes an admin. Used by `hub.config` and `hub.app`.

Another person may have signed in under the name before it was an admin's: with the shared passwords anybody can.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import chain

from jupyterhub import orm, roles
from sqlalchemy import event, inspect
from sqlalchemy.orm import Session
from tornado.log import app_log

from commonage.hub import scopes


def end_earlier_sign_ins_of_new_admins() -> None:
    """Watch what JupyterHub writes to its database, because every way to give a user a role passes there."""
    if not event.contains(Session, "before_flush", _before_flush):
        event.listen(Session, "before_flush", _before_flush)


def keep_admins(db: Session, names: Collection[str]) -> None:
    """Take the admin role from all users except these."""
    for user in db.query(orm.User).filter(orm.User.admin.is_(True), orm.User.name.not_in(names)).all():
        app_log.warning(
            "%s is no admin any more: only those of `admin_users` are, with the shared passwords.", user.name
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
        "Stop sessions of that name that still run: somebody else may have started them.",
        user.name,
        len(user.api_tokens),
    )
    # The value in a sign-in's cookie, and the tokens made from that sign-in.
    user.cookie_id = orm.new_token()
    user.api_tokens = []
    user.oauth_codes = []
