"""The configuration of JupyterHub. Called by `jupyterhub_config.py`.

JupyterHub does sign-in; the control plane manages workloads and nodes. The hub neither limits nor throttles starts,
because the queue does.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import bcrypt
from jupyterhub import roles
from traitlets.config import Config

from commonage.hub import scopes
from commonage.hub.accounts import end_earlier_sign_ins_of_new_admins, refuse_tokens_made_with_tokens
from commonage.hub.authenticators import authenticator_of
from commonage.hub.proxy import GuardedProxy, guards
from commonage.hub.spawner import CommonageSpawner
from commonage.wire.hub import (
    API_PATH,
    CALLBACK_PATH,
    OAUTH_CLIENT_ID,
    PORTAL_PATH,
    SERVICE_NAME,
    USER_NAME,
    HubSettings,
    docs_page,
)
from commonage.wire.origins import label_of, session_domain

_DAY_S = 24 * 3600
# A page that was opened or fetched by another page is out of reach of the other page's scripts.
_HEADERS = {
    "Cross-Origin-Opener-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_TEMPLATES = Path(__file__).parent / "templates"
# The portal's style, so that users see that the sign-in page belongs to it.
_LOGO = Path(__file__).parents[1] / "portal" / "static" / "logo.svg"


def configure(c: Config, settings: HubSettings, proxy_key: str) -> None:
    """Set everything in `c`. Raises OSError if a secret cannot be read.

    `proxy_key`: random text by which the hub knows requests of its proxy.
    """
    secrets = Path(settings.secrets_dir)
    _configure_hub(c, settings, secrets)
    _configure_proxy(c, settings, secrets, proxy_key)
    _configure_sign_in(c, settings, secrets)
    _configure_permissions(c, settings, secrets)
    _configure_sessions(c, settings, secrets)


class SqliteConnection(sqlite3.Connection):
    """A connection of the hub's, which commits about forty times for each session, and does nothing else meanwhile.

    A commit survives the end of the process; a power cut may undo those of the last half minute, and it ends the
    sessions that they are about. With a journal file, a commit takes 5 to 25 ms on common disks.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        for pragma in ("busy_timeout=15000", "journal_mode=WAL", "synchronous=NORMAL"):
            self.execute(f"PRAGMA {pragma}").close()


def _secret(folder: Path, name: str) -> str:
    return (folder / name).read_text(encoding="utf-8").strip()


def _configure_hub(c: Config, settings: HubSettings, secrets: Path) -> None:
    c.JupyterHub.bind_url = settings.bind_url
    c.JupyterHub.hub_bind_url = settings.hub_url
    if settings.hub_connect_url is not None:
        c.JupyterHub.hub_connect_url = settings.hub_connect_url
    if settings.public_url is not None:
        c.JupyterHub.public_url = settings.public_url
    if settings.session_origin:
        _configure_origins(c, settings)
    c.JupyterHub.db_url = settings.database_url
    if settings.database_url.startswith("sqlite"):
        c.JupyterHub.db_kwargs = {"connect_args": {"check_same_thread": False, "factory": SqliteConnection}}
    # Those of its services are random, and compared at each of their calls: 5 ms with the rounds for chosen passwords.
    c.JupyterHub.trust_user_provided_tokens = True
    c.JupyterHub.upgrade_db = True
    c.JupyterHub.cookie_secret_file = str(secrets / "cookie_secret")
    c.JupyterHub.default_url = PORTAL_PATH
    c.JupyterHub.logo_file = str(_LOGO)
    c.JupyterHub.template_paths = [str(_TEMPLATES)]
    c.JupyterHub.template_vars = {
        "site_name": settings.name,
        "portal": PORTAL_PATH,
        "docs": docs_page("operate/sign-in"),
        "contact": settings.contact,
        "token_days": settings.token_lifetime_s // _DAY_S,
    }
    c.JupyterHub.log_level = settings.log_level
    # Sessions outlive the hub, however it ends.
    c.JupyterHub.cleanup_servers = False
    c.JupyterHub.shutdown_on_logout = False
    # At its start the hub checks every session, and a queued one answers late. Meanwhile it serves users;
    # the routes of sessions that it still checks stay.
    c.JupyterHub.init_spawners_timeout = 1
    c.JupyterHub.tornado_settings = {
        "cookie_options": {"SameSite": "Lax"},
        # No script needs to read it: pages carry the token themselves.
        "xsrf_cookie_kwargs": {"httponly": True, "samesite": "Lax", "secure": _is_https(settings)},
        "headers": _HEADERS,
        # A start request is answered soon: "started" (or why not), or "waiting", which the progress page is made for.
        "slow_spawn_timeout": 2,
    }


def _configure_origins(c: Config, settings: HubSettings) -> None:
    """Give users' servers origins of their own; services stay on the hub's, because their pages are as trusted."""
    hub = urlsplit(settings.public_url or "").hostname or ""
    domain = session_domain(settings.session_origin)

    def host_of(name: str, _domain: str, kind: str) -> str:
        return f"{label_of(name)}.{domain}" if kind == "user" else hub

    c.JupyterHub.subdomain_host = settings.session_origin.replace("*.", "", 1)
    c.JupyterHub.subdomain_hook = host_of
    # A user's server may set cookies for the names above its own, but none with this prefix, which needs HTTPS.
    c.JupyterHub.cookie_host_prefix_enabled = _is_https(settings)


def _is_https(settings: HubSettings) -> bool:
    return (settings.public_url or "").startswith("https://")


def _configure_proxy(c: Config, settings: HubSettings, secrets: Path, proxy_key: str) -> None:
    c.JupyterHub.proxy_class = GuardedProxy
    c.GuardedProxy.entry_points = settings.entry_points
    c.GuardedProxy.serves_rules = settings.serves_rules
    proxy = c.TraefikFileProviderProxy
    user, token = "hub", _secret(secrets, "proxy_token")
    # traefik checks this hash at every call of the hub. A slow hash guards weak passwords; the token is 256
    # random bits.
    hashed = bcrypt.hashpw(token.encode(), bcrypt.gensalt(rounds=4)).decode()
    proxy.should_start = False  # the control plane keeps it running, so that routes outlive the hub
    proxy.dynamic_config_file = settings.proxy_rules_file
    proxy.traefik_api_url = settings.proxy_api_url
    proxy.traefik_api_username = user
    proxy.traefik_api_password = token
    proxy.traefik_api_hashed_password = hashed
    # The rules of an earlier run override the ones made now; this is merged in last.
    http = guards(settings, proxy_key)
    http["middlewares"]["auth_api"] = {"basicAuth": {"users": [f"{user}:{hashed}"]}}
    proxy.extra_dynamic_config = {"http": http}
    proxy.concurrency = 100


def _configure_sign_in(c: Config, settings: HubSettings, secrets: Path) -> None:
    c.Authenticator.username_pattern = USER_NAME
    if settings.authenticator_class == "shared-password":
        c.JupyterHub.authenticator_class = settings.authenticator_class
        c.Authenticator.admin_users = set(settings.admin_users)
        c.Authenticator.allow_all = True
        c.SharedPasswordAuthenticator.admin_password = _secret(secrets, "admin_password")
        c.SharedPasswordAuthenticator.user_password = _secret(secrets, "users_password")
    else:
        c.JupyterHub.authenticator_class = authenticator_of(settings.authenticator_class, settings.contact)
        # `admin` is the admin of the shared passwords. With other authenticators an unknown person may have that name,
        # and
        # JupyterHub lets every admin in; so there the extra configuration must name the admins.
        c.Authenticator.admin_users = set(settings.admin_users) - {"admin"}
        # The address to which GitHub or an OIDC provider sends users back. The extra configuration decides
        # who may sign in.
        c.OAuthenticator.oauth_callback_url = f"{settings.public_url or settings.bind_url}/hub/oauth_callback"
        c.LtiAuthenticator.tool_url = settings.public_url or settings.bind_url
        c.OAuthenticator.custom_403_message = (
            "Your user name at the provider cannot be used here, or is blocked. "
            f"Ask {settings.contact or 'the administrator of this server'} for help."
        )


def _configure_permissions(c: Config, settings: HubSettings, secrets: Path) -> None:
    c.JupyterHub.custom_scopes = scopes.SCOPES
    # Does not limit a session's token: that one ends with its session.
    c.JupyterHub.token_expires_in_max_seconds = settings.token_lifetime_s
    end_earlier_sign_ins_of_new_admins()
    refuse_tokens_made_with_tokens()
    _adapt_admin_role()
    c.JupyterHub.load_roles = [{"name": "user", "scopes": scopes.USER_SCOPES}, scopes.VISITS_ROLE]
    c.JupyterHub.services = [
        {
            "name": SERVICE_NAME,
            "url": settings.control_url,
            "display": False,  # it is the landing page anyway
            "api_token": _secret(secrets, "hub_service_token"),
            # It mints tokens, admins' too, and creates users, which only an admin may. (Naming it in the role
            # `admin` instead would freeze that role's members to the configured ones.)
            "admin": True,
            "timeout": 3,  # seconds that the hub's start waits for it; its route is made in any case
            "oauth_client_id": OAUTH_CLIENT_ID,
            "oauth_redirect_uri": CALLBACK_PATH,
            "oauth_client_allowed_scopes": scopes.PORTAL_SCOPES,
            "oauth_no_confirm": True,
        }
    ]


def _adapt_admin_role() -> None:
    """Give Commonage's admin scope to every admin, however they became one, and no way past it into sessions.

    Commonage's roles decide who may open the session of another user (see `scopes.VISITS_ROLE`).

    JupyterHub refuses another definition of the role `admin`, and a role of Commonage would have to list its
    members, who are known only to the authenticator. So the default that it compares with is extended.
    """
    original = roles.get_default_roles

    def extended() -> list[dict[str, Any]]:
        return [
            {**role, "scopes": scopes.of_admins(role["scopes"])} if role["name"] == "admin" else role
            for role in original()
        ]

    roles.get_default_roles = extended


def _configure_sessions(c: Config, settings: HubSettings, secrets: Path) -> None:
    c.JupyterHub.spawner_class = CommonageSpawner
    c.JupyterHub.allow_named_servers = True
    # The hub keeps a row for each name, also of ended sessions, and users may add names with their own token.
    c.JupyterHub.named_server_limit_per_user = settings.max_named_servers_per_user
    c.JupyterHub.concurrent_spawn_limit = 0  # no limit: the queue is the control plane's
    c.CommonageSpawner.api_url = f"{settings.control_url}{API_PATH}"
    c.CommonageSpawner.sessions_api_url = f"{settings.gateway_url or settings.control_url}{API_PATH}"
    c.CommonageSpawner.hub_connect_url = settings.gateway_url
    c.CommonageSpawner.api_token_file = str(secrets / "spawner_token")
    c.CommonageSpawner.server_token_scopes = scopes.SESSION_SCOPES
    # Waiting in the queue is no failure: the control plane limits how long a session may wait, so the
    # hub's own limit only has to be longer than any wait.
    c.CommonageSpawner.start_timeout = 90 * _DAY_S
    c.CommonageSpawner.http_timeout = 120
    c.CommonageSpawner.poll_interval = 5
    c.CommonageSpawner.consecutive_failure_limit = 0
