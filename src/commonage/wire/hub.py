"""Paths shared by the control plane and JupyterHub, and the settings that the hub reads at its start.

The settings are in DATA_DIR/hub/settings.json. They contain no secrets, only the folder of the secrets.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

# The control plane is the hub's service of this name; all its paths at the proxy are below this one.
SERVICE_NAME = "commonage"
# User names become names of folders and parts of addresses.
USER_NAME = r"^[a-z0-9][a-z0-9._@+-]{0,62}$"
PORTAL_PATH = f"/services/{SERVICE_NAME}/"
API_PATH = f"{PORTAL_PATH}api/v1"
# Where the portal's own page sends files.
UPLOAD_PATH = f"{PORTAL_PATH}data/content"
# The page that the proxy shows instead of one that it refuses.
REFUSED_PATH = f"{PORTAL_PATH}refused"
# The path to which the hub redirects after sign-in, and the portal's OAuth client.
CALLBACK_PATH = f"{PORTAL_PATH}oauth_callback"
# Signs in to the portal again, even if a user is signed in. `next` is the page that follows.
SIGN_IN_PATH = f"{PORTAL_PATH}sign-in"
SERVICE_ACCESS_PATH = f"{PORTAL_PATH}service-access/"
OAUTH_CLIENT_ID = f"service-{SERVICE_NAME}"
# Settings to enter at a learning platform, with the authenticator `lti`.
LTI_CONFIG_PATH = "/hub/lti/config"
# Where hub and control plane serve their part of the proxy's rules to a proxy that shares no folder with them.
HUB_RULES_PATH = "/hub/proxy-rules"
CONTROL_RULES_PATH = "/proxy-rules"
# For probes: the hub answers 200 there once it serves its rules, 503 before.
HUB_READY_PATH = f"{HUB_RULES_PATH}/ready"
# The documentation that the server itself serves.
DOCS_PATH = f"{PORTAL_PATH}docs/"


def docs_page(page: str) -> str:
    """The path of a page such as `operate/swarm#shared-folder`; tests/shape checks that it exists."""
    name, _, anchor = page.partition("#")
    return f"{DOCS_PATH}{name}.html" + (f"#{anchor}" if anchor else "")


class HubSettings(BaseModel):
    """Written by the server, read by the hub's configuration. URLs have no trailing slash."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    bind_url: str = Field(description="URL at which traefik listens: http://127.0.0.1:8000")
    public_url: str | None = Field(None, description="The origin of hub and portal, if known: https://hub.example.org")
    session_origin: str = Field(
        "", description="Origin of sessions: https://*.hub.example.org; empty if they share `public_url`."
    )
    hub_url: str = Field(description="URL at which the hub listens, also for sessions.")
    hub_connect_url: str | None = Field(None, description="URL at which proxy and control plane reach the hub.")
    gateway_url: str | None = Field(None, description="URL at which sessions reach the APIs of hub and control plane.")
    control_url: str = Field(description="URL at which the control plane listens.")
    proxy_api_url: str = Field(description="URL of traefik's API, for the hub only.")
    entry_points: list[str] = Field(["http"], description="Names of traefik's entry points for users.")
    proxy_rules_file: str = Field(description="File with the routes; the hub writes it, traefik watches it.")
    database_url: str = Field(description="SQLAlchemy URL of the hub's own database.")
    secrets_dir: str = Field(description="Folder of the secret files that the server created.")
    authenticator_class: str = Field("shared-password", description="Value of JupyterHub.authenticator_class.")
    name: str = Field("Commonage", description="Name of the installation, shown on the hub's pages.")
    contact: str | None = Field(None, description="The helpers whom refusals of a sign-in name.")
    admin_users: list[str] = Field(default_factory=lambda: ["admin"])
    max_failed_sign_ins_per_minute: int = Field(10, description="Limit for one client address and one user name.")
    max_named_servers_per_user: int = Field(
        200, gt=0, description="Names of sessions that the hub keeps for one user, live and ended ones."
    )
    token_lifetime_s: int = Field(30 * 24 * 3600, description="The longest lifetime of a user's token, in seconds.")
    serves_rules: bool = Field(False, description=f"Whether the proxy fetches the routes from {HUB_RULES_PATH}.")
    trusted_proxies: list[str] = Field(
        default_factory=list, description="Addresses of proxies, besides the loopback, that name the real client."
    )
    extra_config: str | None = Field(None, description="A Python file that is loaded last and overrides all settings.")
    tracing_endpoint: str | None = Field(None, description="Where traces go, by OTLP over HTTP.")
    tracing_share: float = Field(1.0, description="Share of the traces that are kept.")
    log_level: str = "INFO"
