"""The site's own certificate authority, in a folder of the control plane: the root of trust of the site's nodes.

It signs the certificates of the control plane's servers (the listener that agents dial, the registry) and the client
certificates that identify agents. Called by the server's wiring and by the code that lets nodes join. It knows nothing
of connections.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import ipaddress
import re
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from commonage.domain.errors import CommonageError, InvalidInput
from commonage.files.atomic import write_file
from commonage.link.issued_certificates import IssuedCertificate, IssuedCertificates
from commonage.link.messages import NODE_ID_URI
from commonage.link.sites.messages.hello import SITE_URI

AUTHORITY_YEARS = 10
SERVER_DAYS = 730
CLIENT_DAYS = 30
_CLOCKS_MAY_DIFFER = dt.timedelta(minutes=10)
_NAME_LIMIT = 64  # RFC 5280, ub-common-name
_YEAR_DAYS = 365.25
_NODE_ID = re.compile(r"[0-9a-z-]{1,64}", re.ASCII)  # of a Swarm node, or the UID of one in Kubernetes


class AuthorityError(CommonageError):
    """The authority's folder cannot be used; the message says which file, and what to do."""

    code = "authority"


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate together with the authority's own, and its key; both PEM."""

    cert_pem: str
    key_pem: str

    def __repr__(self) -> str:
        return "KeyPair(…)"  # a log line or a traceback must not show the key


@dataclass(frozen=True, slots=True)
class Admitted:
    """The credentials of a node that joined: its certificate (PEM), and its own secret for the site's registry."""

    certificate: str
    account: str

    def __repr__(self) -> str:
        return "Admitted(…)"


@dataclass(frozen=True, slots=True)
class SiteCertificate:
    """The certificate of a site elsewhere (PEM), the digest of its public key, and its end (unix seconds)."""

    pem: str
    key: str
    until: float


class CertificateAuthority(IssuedCertificates):
    """The authority of one installation. `now` gives unix seconds.

    Several instances may use one folder, also in several processes: the issued certificates are in a file behind a
    lock, which every call reads again.
    """

    def __init__(
        self, folder: Path, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey, now: Callable[[], float]
    ) -> None:
        super().__init__(folder / "issued.json", now)
        self._certificate, self._key = certificate, key

    @classmethod
    def open(cls, folder: Path, *, now: Callable[[], float] = time.time) -> Self:
        """Open the authority in this folder (0700, the key 0600); create it if it does not exist.

        Raises AuthorityError.
        """
        certificate, key = folder / "ca.crt", folder / "ca.key"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not key.exists():
                _make(certificate, key, now())
            if key.stat().st_mode & 0o077:
                raise AuthorityError(f"{key} can be read by others; run: chmod 600 {key}")
            return cls(folder, *_load(certificate, key), now)
        except OSError as error:
            raise AuthorityError(f"the authority in {folder} cannot be used: {error.strerror or error}") from error

    @property
    def certificate(self) -> str:
        """The authority's own certificate (PEM), which nodes trust."""
        return _pem(self._certificate)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of that certificate (of its DER), 64 hex digits."""
        return self._certificate.fingerprint(hashes.SHA256()).hex()

    def serve(self, names: Sequence[str]) -> KeyPair:
        """A new certificate for a server with these names: host names and IP addresses."""
        if not names:
            raise InvalidInput("a server's certificate needs a name or an address; none was given")
        key = ec.generate_private_key(ec.SECP256R1())
        names_extension = x509.SubjectAlternativeName([_general_name(name) for name in names])
        certificate = self._sign(
            key.public_key(),
            names[0][:_NAME_LIMIT],
            dt.timedelta(days=SERVER_DAYS),
            ExtendedKeyUsageOID.SERVER_AUTH,
            names_extension,
        )
        return KeyPair(_pem(certificate) + self.certificate, _key_pem(key))

    def sign(self, csr_pem: str, node: str, node_id: str) -> str:
        """Sign a client certificate (PEM) for this node and the key in the request, valid for 30 days.

        It binds the name to the Swarm node id, which the caller has verified. Only the key is taken from the request.
        Raises InvalidInput for an invalid request, name or id.
        """
        signed, entry = self._client(csr_pem, node, node_id)
        self._record(entry)
        return signed

    def admit(self, csr_pem: str, node: str, node_id: str) -> Admitted:
        """As `sign`, for a node that joins: revokes all earlier certificates of this name and of this Swarm node."""
        signed, entry = self._client(csr_pem, node, node_id)
        issued = replace(entry, account=secrets.token_hex(20))
        self._record_replacement(issued)
        return Admitted(signed, issued.account)

    def renew(self, csr_pem: str, node: str, node_id: str, serial: int) -> str:
        """As `sign`, to renew the certificate with this serial number.

        Raises Forbidden if that certificate is not valid any more.
        """
        signed, entry = self._client(csr_pem, node, node_id)
        self._record_renewal(serial, entry)
        return signed

    def sign_site(self, csr_pem: str, site: str) -> SiteCertificate:
        """Sign a client certificate for this site elsewhere and the key in the request, valid for 30 days.

        It holds while the registry of sites knows its key. Raises InvalidInput.
        """
        key = _requested_key(csr_pem)
        names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(f"{SITE_URI}{site}")])
        lasts = dt.timedelta(days=CLIENT_DAYS)
        signed = self._sign(key, site, lasts, ExtendedKeyUsageOID.CLIENT_AUTH, names)
        return SiteCertificate(_pem(signed), key_digest(key), signed.not_valid_after_utc.timestamp())

    def _client(self, csr_pem: str, node: str, node_id: str) -> tuple[str, IssuedCertificate]:
        """Sign a client certificate. The caller must record the returned entry before it hands out the certificate."""
        if not _NODE_ID.fullmatch(node_id):
            raise InvalidInput(f"{node_id[:64]!r} cannot be the id of a node", field="node_id")
        if not node or len(node) > _NAME_LIMIT or not node.isprintable():
            raise InvalidInput(
                f"{node!r} cannot be a node's name here: 1 to {_NAME_LIMIT} printable characters", field="node"
            )
        key = _requested_key(csr_pem)
        names_extension = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(f"{NODE_ID_URI}{node_id}")])
        signed = self._sign(key, node, dt.timedelta(days=CLIENT_DAYS), ExtendedKeyUsageOID.CLIENT_AUTH, names_extension)
        until = signed.not_valid_after_utc.timestamp()
        return _pem(signed), IssuedCertificate(node, f"{signed.serial_number:x}", until, node_id=node_id)

    def _sign(
        self,
        key: ec.EllipticCurvePublicKey,
        name: str,
        lasts: dt.timedelta,
        use: x509.ObjectIdentifier,
        names_extension: x509.SubjectAlternativeName,
    ) -> x509.Certificate:
        now = _moment(self._now())
        return (
            x509.CertificateBuilder()
            .subject_name(_common_name(name))
            .issuer_name(self._certificate.subject)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _CLOCKS_MAY_DIFFER)
            .not_valid_after(min(now + lasts, self._certificate.not_valid_after_utc))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([use]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .add_extension(names_extension, critical=False)
            .sign(self._key, hashes.SHA256())
        )


def _requested_key(csr_pem: str) -> ec.EllipticCurvePublicKey:
    """The key of a certificate request. Raises InvalidInput."""
    try:
        request = x509.load_pem_x509_csr(csr_pem.encode())
        sound = request.is_signature_valid
        key = request.public_key()
    except ValueError as error:
        raise InvalidInput(f"this is no certificate request in PEM: {error}", field="csr") from error
    if not sound:
        raise InvalidInput("the certificate request is not signed by its own key; make a new one", field="csr")
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise InvalidInput("the certificate request has another key than one of an elliptic curve (P-256)", field="csr")
    return key


def key_digest(key: CertificatePublicKeyTypes) -> str:
    """SHA-256 of a public key, 64 hex digits."""
    der = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(der).hexdigest()


def _make(certificate: Path, key_file: Path, now: float) -> None:
    """Create the authority. The key is written last: if it exists, the certificate does too."""
    key = ec.generate_private_key(ec.SECP256R1())
    # A node that knew another installation's authority must be able to tell the two apart.
    name = _common_name(f"Commonage {x509.random_serial_number():x}"[:26])
    moment = _moment(now)
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(moment - _CLOCKS_MAY_DIFFER)
        .not_valid_after(moment + dt.timedelta(days=_YEAR_DAYS * AUTHORITY_YEARS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    write_file(certificate, _pem(built), 0o644)
    write_file(key_file, _key_pem(key), 0o600)


def _load(certificate: Path, key_file: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    try:
        loaded = x509.load_pem_x509_certificate(certificate.read_bytes())
        key = serialization.load_pem_private_key(key_file.read_bytes(), password=None)
    except (ValueError, TypeError) as error:
        raise AuthorityError(
            f"{certificate} or {key_file} is damaged ({error}); put them back from a backup"
        ) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != loaded.public_key():
        raise AuthorityError(f"{key_file} is not the key of {certificate}; put both back from the same backup")
    return loaded, key


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass
    try:
        return x509.DNSName(name)
    except ValueError as error:
        raise InvalidInput(f"{name!r} is neither a host name nor an IP address: {error}") from error


def _moment(now: float) -> dt.datetime:
    return dt.datetime.fromtimestamp(int(now), tz=dt.UTC)


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
