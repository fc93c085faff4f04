"""Rules for JupyterHub's API tokens: every one expires, and none makes another one. Used by `hub.config` and
`hub.app`.

JupyterHub lets a token with the scope `tokens` make one that lasts longer and may do more. The control plane's API
does not, so that API is the only way from one token to another.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from jupyterhub import orm
from jupyterhub.apihandlers.users import UserTokenListAPIHandler
from jupyterhub.utils import utcnow
from sqlalchemy import or_
from sqlalchemy.orm import Session
from tornado import web

from commonage.wire.hub import API_PATH

_REFUSAL = (
    f"A token cannot make another one here. Send POST {API_PATH}/tokens, whose tokens last no longer and may do no "
    "more than yours; or sign in and use the page Token."
)


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
    found = db.query(orm.APIToken).filter(
        orm.APIToken.user_id.is_not(None),
        orm.APIToken.client_id == "jupyterhub",  # others are sign-ins, which expire with their cookies
        or_(orm.APIToken.expires_at.is_(None), orm.APIToken.expires_at > latest),
    )
    limited = [one for one in found if (one.user_id, one.note) not in of_sessions]
    for token in limited:
        token.expires_at = latest
    db.commit()
    return len(limited)
