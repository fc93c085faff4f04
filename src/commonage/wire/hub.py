"""What the control plane and JupyterHub agree on: addresses, and the settings the hub gets at its start.

The settings are DATA_DIR/hub/settings.json; they hold no secrets, only where those are.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

# The control plane is the hub's service of this name; everything of it lives below this path of the proxy.
SERVICE_NAME = "commonage"
PORTAL_PATH = f"/services/{SERVICE_NAME}/"
API_PATH = f"{PORTAL_PATH}api/v1"
# What the proxy shows in place of a page that it keeps from a browser.
REFUSED_PATH = f"{PORTAL_PATH}refused"
# Where the hub sends a browser back to after sign-in, and as whom the portal asks.
CALLBACK_PATH = f"{PORTAL_PATH}oauth_callback"
OAUTH_CLIENT_ID = f"service-{SERVICE_NAME}"


class HubSettings(BaseModel):
    """Written by the server, read by the hub's configuration. URLs have no trailing slash."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    bind_url: str = Field(description="Where traefik listens, http://127.0.0.1:8000.")
    public_url: str | None = Field(
        None, description="The origin of hub and portal, if it is known: https://hub.example.org"
    )
    session_origin: str = Field(
        "", description="Where browsers reach sessions: https://*.hub.example.org; empty if at `public_url` as well."
    )
    hub_url: str = Field(description="Where the hub listens; sessions reach it there.")
    hub_connect_url: str | None = Field(None, description="Where sessions on other nodes reach the hub.")
    control_url: str = Field(description="Where the control plane listens.")
    proxy_api_url: str = Field(description="Where traefik's API listens, for the hub alone.")
    entry_points: list[str] = Field(["http"], description="Names of the addresses at which traefik listens for people.")
    proxy_rules_file: str = Field(description="The routes: written by the hub, watched by traefik.")
    database_url: str = Field(description="The hub's own database, as SQLAlchemy takes it.")
    secrets_dir: str = Field(description="Folder with the files that server.secrets made.")
    authenticator_class: str = Field("shared-password", description="As JupyterHub.authenticator_class takes it.")
    admin_users: list[str] = Field(default_factory=lambda: ["admin"])
    max_failed_sign_ins_per_minute: int = Field(10, description="Of one address for one user name.")
    token_lifetime_s: int = Field(90 * 24 * 3600, description="The longest that a token of a user lasts.")
    extra_config: str | None = Field(None, description="A Python file loaded last; what it sets wins.")
    log_level: str = "INFO"
