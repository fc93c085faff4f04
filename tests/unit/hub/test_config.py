"""JupyterHub's configuration, as far as it can be judged without running one."""

from pathlib import Path

import pytest
from jupyterhub import roles
from pydantic import ValidationError
from traitlets.config import Config

from commonage.hub import scopes
from commonage.hub.config import configure
from commonage.wire.hub import HubSettings


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HubSettings:
    monkeypatch.setattr(roles, "get_default_roles", roles.get_default_roles)  # configure() replaces it
    for name in ("admin_password", "users_password", "hub_service_token", "spawner_token", "proxy_token"):
        (tmp_path / name).write_text(f"the {name}\n")
    return HubSettings(
        bind_url="http://127.0.0.1:8000",
        hub_url="http://127.0.0.1:8081",
        control_url="http://127.0.0.1:8082",
        proxy_api_url="http://127.0.0.1:8083",
        proxy_rules_file=str(tmp_path / "rules.toml"),
        database_url="sqlite://",
        secrets_dir=str(tmp_path),
    )


def configured(settings: HubSettings) -> Config:
    c = Config()
    configure(c, settings, "key")
    return c


def test_sessions_outlive_the_hub_and_hub_limits_no_starts(settings: HubSettings) -> None:
    c = configured(settings)
    assert c.JupyterHub.cleanup_servers is False
    assert c.JupyterHub.concurrent_spawn_limit == 0
    assert c.TraefikFileProviderProxy.should_start is False
    assert c.CommonageSpawner.start_timeout > 30 * 24 * 3600
    assert c.CommonageSpawner.api_url == "http://127.0.0.1:8082/services/commonage/api/v1"
    assert c.CommonageSpawner.sessions_api_url == c.CommonageSpawner.api_url


def test_names_of_sessions_are_limited(settings: HubSettings) -> None:
    c = configured(settings.model_copy(update={"max_named_servers_per_user": 300}))
    assert c.JupyterHub.named_server_limit_per_user == 300
    with pytest.raises(ValidationError):  # for JupyterHub, 0 is no limit
        HubSettings.model_validate(settings.model_dump() | {"max_named_servers_per_user": 0})


def test_sessions_elsewhere_reach_hub_and_control_plane_by_the_gateway_alone(settings: HubSettings) -> None:
    c = configured(settings.model_copy(update={"gateway_url": "http://gateway"}))
    assert c.CommonageSpawner.hub_connect_url == "http://gateway"
    assert c.CommonageSpawner.sessions_api_url == "http://gateway/services/commonage/api/v1"
    assert c.CommonageSpawner.api_url == "http://127.0.0.1:8082/services/commonage/api/v1"


def test_shared_passwords_are_the_default(settings: HubSettings) -> None:
    c = configured(settings)
    assert c.SharedPasswordAuthenticator.user_password == "the users_password"
    assert c.Authenticator.allow_all is True
    assert c.Authenticator.admin_users == {"admin"}


def test_other_authenticators_admit_nobody_by_default(settings: HubSettings) -> None:
    changes = {
        "authenticator_class": "github",
        "public_url": "https://hub.example.org",
        "admin_users": ["admin", "dora"],
    }
    c = configured(settings.model_copy(update=changes))
    assert c.Authenticator.admin_users == {"dora"}  # `admin` is an ordinary user there
    assert "allow_all" not in c.Authenticator
    assert "SharedPasswordAuthenticator" not in c
    assert c.OAuthenticator.oauth_callback_url == "https://hub.example.org/hub/oauth_callback"
    assert c.JupyterHub.public_url == "https://hub.example.org"


def test_admin_role_gets_our_scopes_and_no_way_past_us_into_sessions(settings: HubSettings) -> None:
    before = {role["name"]: role["scopes"] for role in roles.get_default_roles()}
    configured(settings)
    after = {role["name"]: role["scopes"] for role in roles.get_default_roles()}
    assert after == before | {"admin": scopes.of_admins(before["admin"])}
    assert "access:servers" not in after["admin"]
    assert {*scopes.ADMIN_SCOPES, "admin:servers"} <= {*after["admin"]}


def test_sessions_have_origins_of_their_own_and_services_have_the_hubs(settings: HubSettings) -> None:
    names = {"public_url": "https://hub.example.org:8443", "session_origin": "https://*.run.example.org:8443"}
    c = configured(settings.model_copy(update=names))
    assert c.JupyterHub.subdomain_host == "https://run.example.org:8443"
    assert c.JupyterHub.subdomain_hook("ann", "", kind="user") == "ann.run.example.org"
    assert c.JupyterHub.subdomain_hook("commonage", "", kind="service") == "hub.example.org"
    assert c.JupyterHub.cookie_host_prefix_enabled is True
    assert "subdomain_host" not in configured(settings).JupyterHub
