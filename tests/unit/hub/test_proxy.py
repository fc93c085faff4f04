"""The guards before hub and portal, as far as they can be judged without a proxy; tests/security has the rest."""

from __future__ import annotations

from typing import Any

import pytest

from commonage.hub.proxy import guards
from commonage.wire.hub import HubSettings

SHARED = HubSettings(
    bind_url="http://127.0.0.1:8000",
    hub_url="http://127.0.0.1:8081",
    control_url="http://127.0.0.1:8082",
    proxy_api_url="http://127.0.0.1:8083",
    proxy_rules_file="rules.toml",
    database_url="sqlite://",
    secrets_dir="",
)
APART = SHARED.model_copy(
    update={"public_url": "https://hub.example.org", "session_origin": "https://*.hub.example.org"}
)


def rules(settings: HubSettings) -> str:
    found: dict[str, Any] = guards(settings, "key")["routers"]
    return " ".join(one["rule"] for one in found.values())


def test_session_origins_reach_the_hub_only_by_their_own_path() -> None:
    assert r"HostRegexp(`^[^.]+\.hub\.example\.org$`)" in rules(APART)
    assert (
        guards(APART, "key")["middlewares"]["guard-to-hub"]["redirectRegex"]["replacement"]
        == "https://hub.example.org${1}"
    )
    assert "Host" not in rules(SHARED)


def test_where_origins_are_shared_referers_count_too() -> None:
    assert "Referer" in rules(SHARED)
    assert "Referer" not in rules(APART)


@pytest.mark.parametrize("settings", [SHARED, APART], ids=["shared", "apart"])
def test_sessions_cannot_clear_cookies_or_widen_workers(settings: HubSettings) -> None:
    stripped = guards(settings, "key")["middlewares"]["guard-session-headers"]["headers"]["customResponseHeaders"]
    assert {"Clear-Site-Data", "Service-Worker-Allowed"} <= {name for name, text in stripped.items() if text == ""}


def test_long_requests_to_sessions_have_no_time_limit() -> None:
    timeouts = guards(SHARED, "key")["serversTransports"]["guard-to-session"]["forwardingTimeouts"]
    assert "responseHeaderTimeout" not in timeouts
