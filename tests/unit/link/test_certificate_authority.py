"""The authority: current TLS accepts its certificates, and revoked ones are known."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from commonage.domain.errors import Forbidden, InvalidInput
from commonage.link.certificate_authority import AuthorityError, CertificateAuthority

DAY = 86_400.0
NOW = 1_800_000_000.0


def request_of(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey, name: str = "whatever") -> str:
    """A certificate request by this key."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    built = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    return built.public_bytes(serialization.Encoding.PEM).decode()


def a_request() -> str:
    return request_of(ec.generate_private_key(ec.SECP256R1()))


def serial_of(pem: str) -> int:
    return x509.load_pem_x509_certificate(pem.encode()).serial_number


@pytest.fixture
def clock() -> list[float]:
    """The time, in its only item."""
    return [NOW]


@pytest.fixture
def authority(tmp_path: Path, clock: list[float]) -> CertificateAuthority:
    return CertificateAuthority.open(tmp_path, now=lambda: clock[0])


def test_authority_is_created_once(tmp_path: Path) -> None:
    first = CertificateAuthority.open(tmp_path / "ca")
    again = CertificateAuthority.open(tmp_path / "ca")
    assert first.certificate == again.certificate
    assert first.fingerprint == again.fingerprint
    assert len(first.fingerprint) == 64
    assert stat.S_IMODE((tmp_path / "ca" / "ca.key").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "ca").stat().st_mode) == 0o700


def test_authorities_of_two_installations_differ(tmp_path: Path) -> None:
    one, other = CertificateAuthority.open(tmp_path / "one"), CertificateAuthority.open(tmp_path / "other")
    assert one.fingerprint != other.fingerprint
    subjects = {x509.load_pem_x509_certificate(each.certificate.encode()).subject for each in (one, other)}
    assert len(subjects) == 2


def test_client_certificate_takes_only_the_key_from_the_request(authority: CertificateAuthority) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    signed = x509.load_pem_x509_certificate(authority.sign(request_of(key, "worker9"), "worker1", "idworker1").encode())
    assert signed.subject.rfc4514_string() == "CN=worker1"
    names = signed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == ["commonage:swarm-node:idworker1"]
    assert signed.public_key() == key.public_key()
    uses = signed.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(uses) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    assert signed.not_valid_after_utc.timestamp() == NOW + 30 * DAY
    assert not signed.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    signed.verify_directly_issued_by(x509.load_pem_x509_certificate(authority.certificate.encode()))


def test_server_certificate_has_names_and_addresses(tmp_path: Path) -> None:
    pair = CertificateAuthority.open(tmp_path).serve(["hub.example.org", "10.1.0.1", "fd00::1"])
    leaf, root = x509.load_pem_x509_certificates(pair.cert_pem.encode())
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["hub.example.org"]
    assert [str(each) for each in names.get_values_for_type(x509.IPAddress)] == ["10.1.0.1", "fd00::1"]
    assert root.fingerprint(hashes.SHA256()).hex() == CertificateAuthority.open(tmp_path).fingerprint
    assert "PRIVATE" not in repr(pair)


def test_revocation_spares_later_certificates(tmp_path: Path, authority: CertificateAuthority) -> None:
    def serial(node: str) -> int:
        return serial_of(authority.sign(a_request(), node, f"id{node}"))

    first, renewed, other = serial("worker1"), serial("worker1"), serial("worker2")
    authority.revoke("worker1")
    authority.revoke("unheard-of")
    joined_again = serial("worker1")
    another_process = CertificateAuthority.open(tmp_path)
    assert another_process.revoked() == {first, renewed}
    assert not {other, joined_again} & authority.revoked()


def test_renews_only_valid_certificates(authority: CertificateAuthority, clock: list[float]) -> None:
    first = serial_of(authority.admit(a_request(), "worker1", "idworker1").certificate)
    second = serial_of(authority.renew(a_request(), "worker1", "idworker1", first))
    with pytest.raises(Forbidden, match="worker2 does not hold"):
        authority.renew(a_request(), "worker2", "idworker2", first)
    clock[0] += 31 * DAY
    for serial in (first, second):
        with pytest.raises(Forbidden, match="join again"):
            authority.renew(a_request(), "worker1", "idworker1", serial)
    third = serial_of(authority.sign(a_request(), "worker1", "idworker1"))
    authority.revoke("worker1")
    with pytest.raises(Forbidden, match="join again"):
        authority.renew(a_request(), "worker1", "idworker1", third)
    assert authority.revoked() == {third}, "nothing was given to who was refused"


def test_joining_revokes_earlier_certificates_of_the_name(authority: CertificateAuthority) -> None:
    before = serial_of(authority.admit(a_request(), "worker1", "idworker1").certificate)
    authority.admit(a_request(), "worker2", "idworker2")
    authority.admit(a_request(), "worker1", "idworker1")
    assert authority.revoked() == {before}


def test_name_and_swarm_node_are_bound_one_to_one(authority: CertificateAuthority) -> None:
    authority.admit(a_request(), "worker1", "n1")
    authority.admit(a_request(), "worker2", "n2")
    assert authority.bindings() == {"n1": "worker1", "n2": "worker2"}
    authority.admit(a_request(), "worker1", "n3")
    assert authority.bindings() == {"n3": "worker1", "n2": "worker2"}, "a name has one Swarm node"
    authority.admit(a_request(), "worker3", "n2")
    assert authority.bindings() == {"n3": "worker1", "n2": "worker3"}, "a Swarm node has one name"
    assert authority.node_ids("worker1") == {"n1", "n3"}, "those that it had before are removed with it"
    assert authority.node_ids("worker2") == frozenset(), "that node has another name now"
    authority.revoke("worker1")
    assert authority.bindings() == {"n2": "worker3"}
    assert authority.node_ids("worker1") == {"n1", "n3"}


def test_renewal_needs_the_same_swarm_node(authority: CertificateAuthority) -> None:
    serial = serial_of(authority.admit(a_request(), "worker1", "n1").certificate)
    with pytest.raises(Forbidden, match="join again"):
        authority.renew(a_request(), "worker1", "n2", serial)
    authority.renew(a_request(), "worker1", "n1", serial)


def test_certificates_of_an_earlier_release_bind_no_swarm_node(tmp_path: Path, authority: CertificateAuthority) -> None:
    entry = {"node": "worker1", "serial": "a1", "until": NOW + DAY, "revoked": False, "account": "secret"}
    (tmp_path / "issued.json").write_text(json.dumps([entry]))
    assert authority.bindings() == {}
    assert authority.holds("worker1"), "it can still be taken back"
    authority.admit(a_request(), "worker1", "n1")
    assert authority.revoked() == {0xA1}


@pytest.mark.parametrize("node_id", ["", "N1", "n1 ", "n/1", "n" * 65])
def test_refuses_invalid_node_ids(tmp_path: Path, node_id: str) -> None:
    with pytest.raises(InvalidInput, match="cannot be the id of a node"):
        CertificateAuthority.open(tmp_path).sign(a_request(), "worker1", node_id)


def test_registry_secret_is_valid_as_long_as_the_certificate(
    tmp_path: Path, authority: CertificateAuthority, clock: list[float]
) -> None:
    admitted = authority.admit(a_request(), "worker1", "idworker1")
    assert admitted.account not in repr(admitted)
    assert authority.has_account("worker1", admitted.account)
    assert not authority.has_account("worker2", admitted.account)
    assert not authority.has_account("worker1", "")
    serial = serial_of(admitted.certificate)
    clock[0] += 25 * DAY
    authority.renew(a_request(), "worker1", "idworker1", serial)
    clock[0] += 25 * DAY
    assert authority.has_account("worker1", admitted.account), "it is renewed with the certificate"
    authority.revoke("worker1")
    assert not authority.has_account("worker1", admitted.account)
    assert authority.admit(a_request(), "worker1", "idworker1").account != admitted.account
    assert stat.S_IMODE((tmp_path / "issued.json").stat().st_mode) == 0o600


def test_expired_certificates_are_dropped(tmp_path: Path, authority: CertificateAuthority, clock: list[float]) -> None:
    authority.sign(a_request(), "worker1", "idworker1")
    clock[0] += 31 * DAY
    authority.sign(a_request(), "worker2", "idworker2")
    kept = (tmp_path / "issued.json").read_text()
    assert "worker2" in kept
    assert "worker1" not in kept


@pytest.mark.parametrize(
    ("csr", "node", "words"),
    [
        ("nonsense", "worker1", "no certificate request"),
        ("", "", "cannot be a node's name"),
        ("", "w" * 65, "cannot be a node's name"),
        ("", "wor\nker", "cannot be a node's name"),
    ],
)
def test_refuses_invalid_requests_and_names(tmp_path: Path, csr: str, node: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        CertificateAuthority.open(tmp_path).sign(csr, node, "n1")


def test_refuses_rsa_keys(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="elliptic curve"):
        CertificateAuthority.open(tmp_path).sign(
            request_of(rsa.generate_private_key(65537, 2048)), "worker1", "idworker1"
        )


def test_server_needs_a_valid_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="none was given"):
        CertificateAuthority.open(tmp_path).serve([])
    with pytest.raises(InvalidInput, match="neither a host name"):
        CertificateAuthority.open(tmp_path).serve(["höst"])


def test_refuses_a_key_that_others_can_read(tmp_path: Path) -> None:
    CertificateAuthority.open(tmp_path)
    (tmp_path / "ca.key").chmod(0o644)
    with pytest.raises(AuthorityError, match="chmod 600"):
        CertificateAuthority.open(tmp_path)


def test_refuses_a_key_of_another_certificate(tmp_path: Path) -> None:
    CertificateAuthority.open(tmp_path / "one")
    CertificateAuthority.open(tmp_path / "other")
    (tmp_path / "one" / "ca.key").write_bytes((tmp_path / "other" / "ca.key").read_bytes())
    with pytest.raises(AuthorityError, match="same backup"):
        CertificateAuthority.open(tmp_path / "one")


def test_refuses_a_damaged_certificate(tmp_path: Path) -> None:
    CertificateAuthority.open(tmp_path)
    (tmp_path / "ca.crt").write_text("gone")
    with pytest.raises(AuthorityError, match="backup"):
        CertificateAuthority.open(tmp_path)
