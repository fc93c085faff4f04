"""Tokens of an earlier version, or of a longer limit: they expire from the next start on."""

from datetime import timedelta

from jupyterhub import orm
from jupyterhub.utils import utcnow
from sqlalchemy.orm import Session

from commonage.hub.tokens import limit_older_tokens

DAY_S = 24 * 3600


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
