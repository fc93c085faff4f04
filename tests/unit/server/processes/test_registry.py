"""The registry's settings: where it answers, how nodes call it, where it sends its clients for tokens; what goes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.unit.images.test_registry import Storage

from commonage.images.registry import Stored
from commonage.link.certificate_authority import CertificateAuthority
from commonage.server.processes.children import Child
from commonage.server.processes.registry import PlatformRegistry, RegistryPlan, registry_settings
from commonage.server.settings.sources import SettingsError, resolve


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
def test_where_it_listens_and_how_this_node_reaches_it(bind: str, addr: str, here: str) -> None:
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


# --- what goes ----------------------------------------------------------------------------------------------------

DAY = 86_400.0
HUB = "hub.example:5000"


class Nothing:
    """A registry that does not run."""

    async def start(self) -> None:
        """Nothing."""

    async def stop(self) -> None:
        """Nothing."""


class Collections:
    """A registry's folder, collected at given instants in days. Deletes manifests only, no layers."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.day, self.gone = 0.0, list[str]()
        self.storage = Storage(folder / "registry/storage")
        self.plan = RegistryPlan(folder / "registry", folder, "127.0.0.1", 5000, "hub.example", "https://x/token", 14)
        self._authority = CertificateAuthority.open(folder / "ca")

        async def delete(_: PlatformRegistry, doomed: Sequence[Stored]) -> None:
            await self._delete(doomed)

        patch.setattr(PlatformRegistry, "_delete", delete)
        patch.setattr(PlatformRegistry, "_remove_layers", Nothing.start)

    async def _delete(self, doomed: Sequence[Stored]) -> None:
        self.gone += map(str, doomed)
        for one in doomed:
            code, place = one.digest.partition(":")[2], f"{one.repository}/_manifests/revisions/sha256"
            (self.storage.root / "docker/registry/v2/repositories" / place / code / "link").unlink()

    async def on(self, day: float, *keep: str) -> list[str]:
        """The images that a collection on that day removes, by a restarted control plane."""

        def run(_: Child) -> Nothing:
            return Nothing()

        self.day = day
        registry = PlatformRegistry(self.plan, self._authority, "x", now=lambda: self.day * DAY, supervise=run)
        return [one.rpartition("@")[0] for one in (await registry.collect(keep)).images]


@pytest.mark.anyio
async def test_an_image_stays_for_as_long_after_it_was_replaced_as_after_a_push(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Collections(tmp_path, monkeypatch)
    old = f"{HUB}/lab/torch@{found.storage.put('lab/torch', 'a', 1 * DAY)}"
    found.storage.put("lab/never", "c", 1 * DAY)
    assert await found.on(100, old) == ["lab/never"]
    # Built and pushed again under its name on the next day: attempts of the old image may still be pulling it.
    new = f"{HUB}/lab/torch@{found.storage.put('lab/torch', 'b', 101 * DAY)}"
    for day in (101, 107, 113.9):
        assert await found.on(day, new) == []
    assert await found.on(115, new) == ["lab/torch"]
    assert found.gone[-1] == old.removeprefix(f"{HUB}/")


@pytest.mark.anyio
async def test_an_environment_that_names_a_digest_keeps_it_whatever_its_tag_is_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Collections(tmp_path, monkeypatch)
    pinned = f"{HUB}/lab/torch:2@{found.storage.put('lab/torch', 'a', 1 * DAY)}"
    found.storage.put("lab/torch", "b", 1 * DAY, tag="2")
    assert await found.on(100, pinned, f"{HUB}/lab/torch:2") == [], "the tag is another one's now"
    assert await found.on(120, pinned) == ["lab/torch"]
    assert found.gone[-1].endswith("b" * 64), "the newer one, which nothing names"
    assert await found.on(1000, pinned) == []
