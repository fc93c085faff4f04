"""Rules for JupyterHub's users and tokens, on its own database in memory: new admins, and tokens that never expired."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
from jupyterhub import orm, roles
from jupyterhub.utils import utcnow
from sqlalchemy.orm import Session

from commonage.hub.accounts import end_earlier_sign_ins_of_new_admins, keep_admins, limit_older_tokens

DAY_S = 24 * 3600


@pytest.fixture
def db() -> Iterator[Session]:
    session = orm.new_session_factory("sqlite:///:memory:")()
    session.add(orm.OAuthClient(identifier="jupyterhub"))
    session.add(orm.Role(name="user", scopes=["self"]))
    session.add(orm.Role(name="admin", scopes=["admin-ui", "custom:commonage:admin"]))
    session.add(orm.User(name="ops"))
    session.commit()
    yield session
    session.close()


@pytest.fixture
def ops(db: Session) -> orm.User:
    end_earlier_sign_ins_of_new_admins()
    end_earlier_sign_ins_of_new_admins()  # a configuration may be read twice
    user = orm.User.find(db, "ops")
    db.add(orm.APIToken(user=user, client_id="jupyterhub", token="t" * 32))
    db.add(orm.OAuthCode(user=user, client_id="jupyterhub", code="c"))
    db.commit()
    return user


def left(db: Session) -> tuple[int, int]:
    db.expire_all()
    return db.query(orm.APIToken).count(), db.query(orm.OAuthCode).count()


def give_role(db: Session, user: orm.User) -> None:
    user.admin = True
    roles.assign_default_roles(db, user)


def set_members_of_role(db: Session, user: orm.User) -> None:
    db.commit()  # which forgets the cached user
    orm.Role.find(db, "admin").users = [user]  # as JupyterHub applies `load_roles`


def join_admin_group(db: Session, user: orm.User) -> None:
    group = orm.Group(name="admins", roles=[orm.Role.find(db, "admin")])
    db.add(group)
    db.commit()
    group.users.append(user)


def give_role_to_group(db: Session, user: orm.User) -> None:
    group = orm.Group(name="operators", users=[user])
    db.add(group)
    db.commit()
    assert left(db) == (1, 1)
    orm.Role.find(db, "admin").groups = [group]


@pytest.mark.parametrize("make_admin", [give_role, set_members_of_role, join_admin_group, give_role_to_group])
def test_new_admin_loses_earlier_sign_ins_and_tokens(
    db: Session, ops: orm.User, make_admin: Callable[[Session, orm.User], None]
) -> None:
    cookie = ops.cookie_id
    make_admin(db, ops)
    db.commit()
    assert left(db) == (0, 0)
    assert ops.cookie_id != cookie


def test_sign_ins_of_existing_admins_stay(db: Session, ops: orm.User) -> None:
    give_role(db, ops)
    db.add(orm.APIToken(user=ops, client_id="jupyterhub", token="u" * 32))
    db.commit()
    cookie = ops.cookie_id
    roles.assign_default_roles(db, ops)  # at each sign-in
    orm.Role.find(db, "admin").users = [ops]  # at each start
    db.commit()
    assert left(db) == (1, 0)
    assert ops.cookie_id == cookie


def test_only_named_users_stay_admins(db: Session, ops: orm.User) -> None:
    for user in (ops, orm.User(name="ann")):
        db.add(user)
        give_role(db, user)
    keep_admins(db, {"ann", "not-here"})
    db.expire_all()
    assert {user.name: (user.admin, sorted(role.name for role in user.roles)) for user in db.query(orm.User)} == {
        "ops": (False, ["user"]),
        "ann": (True, ["admin", "user"]),
    }


def test_other_roles_end_no_sign_in(db: Session, ops: orm.User) -> None:
    cookie = ops.cookie_id
    roles.grant_role(db, ops, "user")
    assert left(db) == (1, 1)
    assert ops.cookie_id == cookie


def test_longer_lived_tokens_expire(db: Session) -> None:
    ops, now = orm.User.find(db, "ops"), utcnow(with_tz=False)
    server = orm.Server(base_url="/user/ops/")
    service = orm.Service(name="commonage")
    db.add_all([orm.Spawner(user=ops, name="", server=server), orm.Spawner(user=ops, name="ended"), service])
    for note, days, owner in (
        ("for ever", None, {"user": ops}),
        ("a year", 365, {"user": ops}),
        ("a week", 7, {"user": ops}),
        ("Server at /user/ops/", None, {"user": ops}),
        ("Server at /user/ops/ended/", None, {"user": ops}),
        ("a service's", None, {"service": service}),
    ):
        expires_at = None if days is None else now + timedelta(days=days)
        db.add(orm.APIToken(**owner, client_id="jupyterhub", note=note, expires_at=expires_at, token=note.ljust(16)))
    db.commit()

    assert limit_older_tokens(db, 90 * DAY_S) == 3

    lasts = {
        one.note: one.expires_at and round((one.expires_at - now) / timedelta(days=1)) for one in db.query(orm.APIToken)
    }
    assert lasts == {
        "for ever": 90,
        "a year": 90,
        "a week": 7,
        "Server at /user/ops/": None,
        "Server at /user/ops/ended/": 90,
        "a service's": None,
    }
    assert limit_older_tokens(db, 91 * DAY_S) == 0
