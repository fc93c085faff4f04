"""The registry's settings: where it answers, how machines call it, where it sends its clients for tokens."""

from pathlib import Path
from typing import Any

import pytest

from commonage.server.registry import RegistryPlan, registry_settings
from commonage.server.settings_sources import SettingsError, resolve


def plan(**changed: Any) -> RegistryPlan:
    known = {
        "bind": "127.0.0.1",
        "port": 5000,
        "host": "hub.example",
        "realm": "https://hub.example/token",
        "keep_days": 14,
    }
    return RegistryPlan(folder=Path("/data/registry"), logs=Path("/data/logs"), **{**known, **changed})


def test_what_docker_registry_is_told() -> None:
    told = registry_settings(plan())
    assert told["http"]["addr"] == "127.0.0.1:5000"
    assert told["http"]["host"] == "https://hub.example:5000"
    assert told["auth"]["token"]["service"] == "hub.example:5000"
    assert told["auth"]["token"]["realm"] == "https://hub.example/token"
    assert told["storage"]["delete"] == {"enabled": True}
    assert set(told["auth"]) == {"token"}


@pytest.mark.parametrize(
    ("bind", "addr", "here"),
    [
        ("0.0.0.0", "0.0.0.0:5000", "127.0.0.1"),
        ("::", "[::]:5000", "[::1]"),
        ("fd00::1", "[fd00::1]:5000", "[fd00::1]"),
        ("10.0.0.5", "10.0.0.5:5000", "10.0.0.5"),
    ],
)
def test_where_it_listens_and_how_this_machine_reaches_it(bind: str, addr: str, here: str) -> None:
    assert registry_settings(plan(bind=bind))["http"]["addr"] == addr
    assert plan(bind=bind).here == here


def test_the_settings_are_read(tmp_path: Path) -> None:
    environ = {
        "COMMONAGE_REGISTRY": "true",
        "COMMONAGE_REGISTRY_HOST": "Hub.Example.org",
        "COMMONAGE_REGISTRY_BIND": "::",
    }
    found = resolve({}, environ=environ, folder=tmp_path).settings
    assert (found.registry, found.registry_host, found.registry_bind, found.registry_port) == (
        True, "hub.example.org", "::", 5000,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("COMMONAGE_REGISTRY_HOST", "hub.example:5000"),
        ("COMMONAGE_REGISTRY_HOST", "https://hub"),
        ("COMMONAGE_REGISTRY_BIND", "hub"),
        ("COMMONAGE_REGISTRY_PORT", "0"),
        ("COMMONAGE_REGISTRY_KEEP_DAYS", "-1"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, variable: str, value: str) -> None:
    with pytest.raises(SettingsError, match=variable):
        resolve({}, environ={variable: value}, folder=tmp_path)
