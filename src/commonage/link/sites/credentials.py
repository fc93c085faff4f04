"""The identity of an appliance: its key and certificate, the authority, and where to dial. One file (0600).

One file, so that a join or a renewal replaces all of it at once. Used by the appliance only.
"""

from __future__ import annotations

import json
import ssl
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from commonage.domain.codec import Unreadable, from_json, to_json
from commonage.domain.errors import CommonageError, file_errors
from commonage.files.atomic import write_file
from commonage.link.tls import load_pair


class NotJoined(CommonageError):
    """This machine has no usable identity of a site; the message says what to do."""

    code = "not-joined"


@dataclass(frozen=True, slots=True)
class SiteIdentity:
    """`addresses` are those of the control plane (HOST:PORT); certificates and key are PEM, `until` is the end of the
    certificate (unix seconds). `token` is the digest of the token that it joined with.
    """

    site: str
    addresses: tuple[str, ...]
    authority: str
    certificate: str
    key: str
    until: float
    token: str = ""

    def __repr__(self) -> str:
        return f"SiteIdentity({self.site}, …)"  # a log line or a traceback must not show the key

    def context(self) -> ssl.SSLContext:
        """TLS 1.3 to the control plane: verifies its certificate, shows the site's. Blocks. Raises NotJoined."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        try:
            context.load_verify_locations(cadata=self.authority)
            load_pair(context, self.key, self.certificate)
        except (OSError, ValueError) as error:
            raise NotJoined(f"the identity of the site {self.site} is damaged ({error}): join again") from error
        return context


def new_key() -> str:
    """A new private key, PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    pkcs8, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, pkcs8, plain).decode()


def signing_request(key_pem: str, site: str) -> str:
    """A certificate request (PEM) for this key. Raises ValueError for a damaged key."""
    key = serialization.load_pem_private_key(key_pem.encode(), password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("the key is not one of an elliptic curve")
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, site)])
    request = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA256())
    return request.public_bytes(serialization.Encoding.PEM).decode()


class SiteCredentials:
    """The identity in a folder (0700). All methods block; writing raises OSError."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._identity, self._pending = folder / "identity.json", folder / "joining.key"

    def identity(self) -> SiteIdentity:
        """Raises NotJoined."""
        try:
            return from_json(SiteIdentity, json.loads(self._identity.read_text(encoding="utf-8")), ignore_unknown=True)
        except FileNotFoundError:
            raise NotJoined(f"{self.folder} has no identity of a site: run `commonage site join` here first") from None
        except (OSError, ValueError, Unreadable) as error:
            raise NotJoined(f"{self._identity} cannot be read ({error}): join again with a new token") from error

    @property
    def authority(self) -> Path:
        """The file with the certificate of the control plane's authority, for other programs; see `keep_authority`."""
        return self.folder / "authority.crt"

    def keep_authority(self, identity: SiteIdentity) -> None:
        """Raises Unavailable. It is written once, so that an agent starts again on a full disk."""
        with file_errors("the certificate of the control plane's authority", self.authority):
            if not self.authority.exists() or self.authority.read_text(encoding="utf-8") != identity.authority:
                write_file(self.authority, identity.authority, 0o644)

    def keep(self, identity: SiteIdentity) -> None:
        write_file(self._identity, json.dumps(to_json(identity), indent=1), 0o600)
        self._pending.unlink(missing_ok=True)

    def pending_key(self) -> str:
        """The key of a join that has not succeeded yet: a retry after a crash uses the same."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            key = self._pending.read_text(encoding="ascii")
            signing_request(key, "site")
        except (FileNotFoundError, ValueError):
            key = new_key()
            write_file(self._pending, key, 0o600)
        return key
