"""JupyterHub, extended by start-up steps that it has no setting for."""

from __future__ import annotations

from jupyterhub.app import JupyterHub
from jupyterhub.authenticators.shared import SharedPasswordAuthenticator

from commonage.hub.admins import keep_admins
from commonage.hub.tokens import limit_older_tokens


class CommonageHub(JupyterHub):
    """Also brings older users and tokens in line with the settings."""

    async def init_users(self) -> None:
        """Called once, before the first request is served."""
        await super().init_users()
        if isinstance(self.authenticator, SharedPasswordAuthenticator):
            # JupyterHub also revokes admin rights of users under other names, but only when they sign in.
            keep_admins(self.db, self.authenticator.admin_users)
        if lifetime_s := self.token_expires_in_max_seconds:
            limited = limit_older_tokens(self.db, lifetime_s)
            self.log.info("%d tokens that lasted longer now expire in %d s", limited, lifetime_s)
