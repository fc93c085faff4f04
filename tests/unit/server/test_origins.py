"""Origins from settings, and settings that conflict."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from commonage.domain.errors import InvalidInput
from commonage.server.origins import Origins, origins_of, warning_of
from commonage.server.processes import hub
from commonage.server.processes.hub import HubPlan
from commonage.server.settings.settings import Settings


def origins(**values: str) -> Origins:
    return origins_of(Settings.model_validate(values), 8000)


def test_on_the_loopback_sessions_have_names_below_localhost() -> None:
    assert origins() == Origins("http://localhost:8000", "http://*.localhost:8000")
    assert origins(bind="::1").sessions == "http://*.localhost:8000"
    assert warning_of(origins()) == ""


@pytest.mark.parametrize(
    "values",
    [{"bind": "0.0.0.0"}, {"bind": "127.0.0.2"}, {"public_url": "https://hub.example.org"}, {"session_host": "none"}],
)
def test_without_a_wildcard_name_origins_are_shared_and_admins_are_warned(values: dict[str, str]) -> None:
    found = origins(**values)
    assert found == Origins(values.get("public_url"))
    assert "session_host" in warning_of(found)


@pytest.mark.parametrize("wildcard", ["*.hub.example.org", "*.Hub.Example.org.", "*.sessions.example.net"])
def test_behind_an_edge_sessions_have_names_below_the_wildcard(wildcard: str) -> None:
    found = origins(public_url="https://Hub.example.org:8443/", session_host=wildcard)
    assert found == Origins("https://hub.example.org:8443", f"https://{wildcard.lower().rstrip('.')}:8443")


def test_wildcard_must_not_cover_the_name_of_the_hub() -> None:
    with pytest.raises(InvalidInput, match=r"also matches hub\.example\.org.*Use \*\.hub\.example\.org"):
        origins(public_url="https://hub.example.org", session_host="*.example.org")


def test_wildcard_needs_the_address_of_the_hub() -> None:
    with pytest.raises(InvalidInput, match="needs public_url"):
        origins(session_host="*.hub.example.org")
    with pytest.raises(InvalidInput, match="without a path"):
        origins(session_host="*.hub.example.org", public_url="https://example.org/hub")


@pytest.mark.parametrize("value", ["hub.example.org", "*", "*.", "*.10.0.0.1", "*.a b", "*.*.org", "*.x`)", "**.org"])
def test_what_is_no_wildcard_name_is_refused(value: str) -> None:
    with pytest.raises(ValidationError):
        Settings.model_validate({"session_host": value})


def test_empty_value_of_a_compose_file_is_the_default() -> None:
    assert Settings.model_validate({"session_host": ""}).session_host == "auto"


def _addresses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, ipv6: bool, **settings: str) -> list[str]:
    monkeypatch.setattr(hub, "is_free", lambda address: ipv6 or ":" not in address)
    public_url = settings.get("public_url")
    made = HubPlan(tmp_path, Settings.model_validate(settings), 8000, 8081, 8082, 8083, public_url)
    points = hub.proxy_settings(made)["entryPoints"]
    return [one["address"] for name, one in points.items() if name != "auth_api"]


def test_no_address_of_localhost_is_left_to_workloads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    local = "http://localhost:8000"
    both = _addresses(monkeypatch, tmp_path, ipv6=True, public_url=local)
    assert both == ["127.0.0.1:8000", "[::1]:8000"]
    assert _addresses(monkeypatch, tmp_path, ipv6=True, public_url=local, bind="::1") == both[::-1]
    assert _addresses(monkeypatch, tmp_path, ipv6=False, public_url=local) == both[:1]
    assert _addresses(monkeypatch, tmp_path, ipv6=True, public_url="https://hub.example.org") == both[:1]
