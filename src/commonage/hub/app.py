"""JupyterHub, with what no setting of it does at its start."""

from __future__ import annotations

from jupyterhub.app import JupyterHub
from jupyterhub.authenticators.shared import SharedPasswordAuthenticator

from commonage.hub.admins import keep_admins
from commonage.hub.tokens import limit_older_tokens


class CommonageHub(JupyterHub):
    """Also brings older users and tokens in line with the settings."""

    async def init_users(self) -> None:
        """Called once, before anybody is served."""
        await super().init_users()
        if isinstance(self.authenticator, SharedPasswordAuthenticator):
            # It makes whoever signs in under another name no admin, either, but only then.
            keep_admins(self.db, self.authenticator.admin_users)
        if lifetime_s := self.token_expires_in_max_seconds:
            limited = limit_older_tokens(self.db, lifetime_s)
            self.log.info("%d tokens that lasted longer now expire in %d s", limited, lifetime_s)
