"""Tokens for the registry: signed here, verified there by the certificate in its settings.

The form is that of the registries' token protocol; the key identifier is derived from the key as docker-registry
does it.
"""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import secrets
from collections.abc import Sequence
from typing import Any

import jwt
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from commonage.domain.images import Access

ISSUER = "commonage"
LASTS_S = 300
_CLOCKS_MAY_DIFFER_S = 60


class Signer:
    """A key for one run of the registry. It is only in memory, so it cannot leak from a file."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._key_id = key_id(self._key.public_key())

    def certificate(self, now: float) -> str:
        """The certificate by which the registry verifies tokens, PEM. It only carries the key: it is self-signed."""
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Commonage registry tokens")])
        moment = dt.datetime.fromtimestamp(int(now), tz=dt.UTC)
        built = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(self._key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(moment - dt.timedelta(days=1))
            .not_valid_after(moment + dt.timedelta(days=3650))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        return built.public_bytes(serialization.Encoding.PEM).decode()

    def sign(self, subject: str, audience: str, access: Sequence[Access], now: float) -> str:
        """A token for the registry called `audience`."""
        claims: dict[str, Any] = {
            "iss": ISSUER,
            "sub": subject,
            "aud": audience,
            "iat": int(now),
            "nbf": int(now) - _CLOCKS_MAY_DIFFER_S,
            "exp": int(now) + LASTS_S,
            "jti": secrets.token_hex(16),
            "access": [{"type": one.kind, "name": one.name, "actions": list(one.actions)} for one in access],
        }
        return jwt.encode(claims, self._key, algorithm="ES256", headers={"kid": self._key_id})


def key_id(key: ec.EllipticCurvePublicKey) -> str:
    """240 bits of the key's SHA-256 in base 32, in twelve groups of four."""
    der = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    letters = base64.b32encode(hashlib.sha256(der).digest()[:30]).decode()
    return ":".join(letters[start : start + 4] for start in range(0, len(letters), 4))
