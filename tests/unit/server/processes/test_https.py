"""The settings of HTTPS, what is refused before the start, and who gets a certificate."""

import datetime
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from commonage.server.origins import origins_of
from commonage.server.processes.https import (
    HttpsError,
    HttpsPlan,
    caddy_settings,
    check_https,
    https_plan,
)
from commonage.server.processes.hub import HubPlan
from commonage.server.processes.ports import PortError, free_port
from commonage.server.session_names import SessionNames
from commonage.server.settings.settings import Settings
from commonage.server.settings.sources import SettingsError, resolve
from commonage.wire.origins import service_url


def settings_of(**flags: str) -> Settings:
    return resolve({"domain": "gpu.example.org", **flags}, environ={}, folder=Path("/nonexistent")).settings


def plan_of(**flags: str) -> HttpsPlan:
    settings = settings_of(**flags)
    origins = origins_of(settings, settings.port)
    hub = HubPlan(Path("/data"), settings, 8000, 8081, 8082, 8083, origins.hub, origins.sessions)
    plan = https_plan(hub)
    assert plan is not None
    return plan


def loopback(**flags: str) -> HttpsPlan:
    ports = {"https_port": str(free_port()), "http_port": str(free_port())}
    return plan_of(**{"https_bind": "127.0.0.1", **ports, **flags})


def test_the_domain_gives_the_addresses() -> None:
    settings = settings_of()
    assert (settings.public_url, settings.session_host) == ("https://gpu.example.org", "*.gpu.example.org")
    assert settings_of(https_port="8443").public_url == "https://gpu.example.org:8443"
    assert settings_of(session_host="*.sessions.example.net").session_host == "*.sessions.example.net"
    assert plan_of(session_host="none").hosts == ["gpu.example.org"]
    resolved = resolve({"domain": "gpu.example.org"}, environ={}, folder=Path("/nonexistent"))
    assert resolved.origins["public_url"] == "domain (flag --domain)"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"public_url": "https://hub.example.org"}, "Remove one of the two"),
        ({"bind": "0.0.0.0"}, "https_bind sets the address for HTTPS"),
        ({"children": "external"}, "Caddy has a container of its own"),
        ({"domain": "192.0.2.1"}, "a DNS name like gpu.example.org"),
        ({"domain": "https://gpu.example.org"}, "a DNS name like gpu.example.org"),
        ({"domain": "gpu"}, "a DNS name like gpu.example.org"),
        ({"tls": "me@example.org"}, "acme, internal, or two files"),
        ({"acme_url": "http://ca.example.org"}, "an address like https://"),
    ],
)
def test_settings_that_do_not_fit_are_refused(flags: dict[str, str], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        settings_of(**flags)


def test_a_port_in_use_is_refused() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        with pytest.raises(PortError, match=f"Port {port} of 127.0.0.1 is in use.*--http-port"):
            check_https(loopback(tls="internal", http_port=port))


def test_http_and_https_cannot_share_a_port() -> None:
    port = str(free_port())
    with pytest.raises(HttpsError, match="Change --http-port"):
        check_https(loopback(tls="internal", http_port=port, https_port=port))


def test_an_unknown_name_is_refused_for_acme_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(HttpsError, match=r"gpu.example.org does not resolve.*Create a DNS record.*--tls internal"):
        check_https(loopback())
    check_https(loopback(tls="internal"))


def test_a_missing_root_certificate_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HttpsError, match="does not exist"):
        check_https(loopback(acme_root=str(tmp_path / "missing.pem")))


def files(folder: Path, *names: str, days: int = 30) -> str:
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=60))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(one) for one in names]), critical=False)
        .sign(key, hashes.SHA256())
    )
    (folder / "chain.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    (folder / "key.pem").write_bytes(pem)
    return f"{folder}/chain.pem {folder}/key.pem"


def test_files_must_be_for_all_names_and_fit_together(tmp_path: Path) -> None:
    check_https(loopback(tls=files(tmp_path, "gpu.example.org", "*.gpu.example.org")))
    check_https(loopback(tls=files(tmp_path, "*.example.org", "*.gpu.example.org")))
    with pytest.raises(HttpsError, match=r"is for gpu.example.org, but not for \*.gpu.example.org"):
        check_https(loopback(tls=files(tmp_path, "gpu.example.org")))
    with pytest.raises(HttpsError, match="expired on"):
        check_https(loopback(tls=files(tmp_path, "gpu.example.org", "*.gpu.example.org", days=-1)))
    given = files(tmp_path, "gpu.example.org", "*.gpu.example.org")
    other = tmp_path / "other"
    other.mkdir()
    files(other, "gpu.example.org")
    with pytest.raises(HttpsError, match=r"Name a PEM chain and its key"):
        check_https(loopback(tls=f"{given.split()[0]} {other}/key.pem"))
    with pytest.raises(HttpsError, match=r"cannot use .*missing.pem: No such file"):
        check_https(loopback(tls=f"{tmp_path}/missing.pem {tmp_path}/key.pem"))
    (tmp_path / "chain.pem").write_text("no certificate")
    with pytest.raises(HttpsError, match="not a certificate in PEM format"):
        check_https(loopback(tls=given))


def tls_of(plan: HttpsPlan) -> dict[str, Any]:
    found: dict[str, Any] = caddy_settings(plan)["apps"]["tls"]
    return found


def test_only_acme_requests_a_certificate_for_each_session_name(tmp_path: Path) -> None:
    policies = tls_of(plan_of())["automation"]["policies"]
    assert [(one["subjects"], one.get("on_demand", False)) for one in policies] == [
        (["gpu.example.org"], False),
        (["*.gpu.example.org"], True),
    ]
    assert (
        tls_of(plan_of())["automation"]["on_demand"]["permission"]["endpoint"] == "http://127.0.0.1:8081/session-name"
    )
    assert tls_of(plan_of(tls="internal"))["certificates"]["automate"] == ["gpu.example.org", "*.gpu.example.org"]
    assert "on_demand" not in tls_of(plan_of(tls="internal"))["automation"]
    assert "on_demand" not in tls_of(plan_of(session_host="none"))["automation"]
    assert "automation" not in tls_of(plan_of(tls=files(tmp_path, "gpu.example.org")))


@dataclass(frozen=True)
class User:
    name: str


class Hub:
    """Users and a clock: sleeping makes time pass."""

    def __init__(self) -> None:
        self.users, self.asked, self.now = ["alice"], 0, 100.0
        self.services = {"0123456789abc"}
        self.names = SessionNames(
            self.accounts, self.services.__contains__, "https://*.gpu.example.org", lambda: self.now, self.sleep
        )

    async def accounts(self) -> Sequence[User]:
        self.asked += 1
        return [User(name) for name in self.users]

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.anyio
async def test_only_names_of_users_get_certificates() -> None:
    hub = Hub()
    assert await hub.names.has("alice.gpu.example.org")
    assert await hub.names.has("Alice.gpu.example.org")
    assert hub.asked == 1
    for name in ("bob.gpu.example.org", "alice.example.org", "a.alice.gpu.example.org", "gpu.example.org", ""):
        assert not await hub.names.has(name)
    hub.users.append("bob")
    assert await hub.names.has("bob.gpu.example.org"), "a new user waits for the next reading, and is not refused"


@pytest.mark.anyio
async def test_live_services_get_certificates_and_unknown_ones_do_not() -> None:
    hub = Hub()
    name = urlsplit(service_url("https://*.gpu.example.org", "0123456789abc")).hostname
    assert name is not None
    assert await hub.names.has(name)
    hub.services.clear()
    assert not await hub.names.has(name)
    assert not await hub.names.has("service--.gpu.example.org")
    assert hub.asked == 0, "an invented service costs the hub nothing"


@pytest.mark.anyio
async def test_a_flood_of_invented_names_asks_the_hub_once_a_second() -> None:
    hub = Hub()
    for number in range(20):
        assert not await hub.names.has(f"invented-{number}.gpu.example.org")
    assert hub.asked <= hub.now - 100.0 + 1
