"""A user who becomes an admin: nothing that was opened in that name before is good any more."""

import pytest
from jupyterhub import orm, roles
from sqlalchemy.orm import Session

from commonage.hub.admins import end_earlier_sign_ins_of_new_admins, keep_admins


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


def test_new_admin_loses_earlier_sign_ins_and_tokens(db: Session, ops: orm.User) -> None:
    cookie = ops.cookie_id
    ops.admin = True
    roles.assign_default_roles(db, ops)
    assert left(db) == (0, 0)
    assert orm.User.find(db, "ops").cookie_id != cookie


def test_role_assigned_through_the_role_counts(db: Session, ops: orm.User) -> None:
    cookie = ops.cookie_id
    db.commit()  # which forgets what was read of the user
    orm.Role.find(db, "admin").users = [ops]  # so JupyterHub takes over `load_roles`
    db.commit()
    assert left(db) == (0, 0)
    assert ops.cookie_id != cookie


def test_joining_an_admin_group_counts(db: Session, ops: orm.User) -> None:
    cookie = ops.cookie_id
    group = orm.Group(name="admins", roles=[orm.Role.find(db, "admin")])
    db.add(group)
    db.commit()
    group.users.append(ops)
    db.commit()
    assert left(db) == (0, 0)
    assert ops.cookie_id != cookie


def test_group_that_gets_the_admin_role_counts(db: Session, ops: orm.User) -> None:
    cookie = ops.cookie_id
    group = orm.Group(name="operators", users=[ops])
    db.add(group)
    db.commit()
    assert left(db) == (1, 1)
    orm.Role.find(db, "admin").groups = [group]
    db.commit()
    assert left(db) == (0, 0)
    assert ops.cookie_id != cookie


def test_sign_ins_of_existing_admins_stay(db: Session, ops: orm.User) -> None:
    ops.admin = True
    roles.assign_default_roles(db, ops)
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
        user.admin = True
        roles.assign_default_roles(db, user)
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
