"""For tests of the hub's rules: its database, in memory, as JupyterHub itself makes it."""

from collections.abc import Iterator

import pytest
from jupyterhub import orm
from sqlalchemy.orm import Session


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
