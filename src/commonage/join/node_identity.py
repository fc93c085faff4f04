"""Verifies which Swarm node a joining node is. Called by `service` before it has a certificate signed."""

from __future__ import annotations

import base64
import binascii
import datetime as dt

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from commonage.domain.errors import Forbidden, InvalidInput
from commonage.join.config import IdentityProof
from commonage.ports.joining import SwarmTrust

_ROLES = {"swarm-worker", "swarm-manager"}
_JOIN_SWARM = "join this machine to this site's Swarm first (`commonage node join` does that)"


def verified_node_id(proof: IdentityProof, signed: bytes, trust: SwarmTrust, now: float) -> str:
    """The Swarm node id of the node that signed these bytes with its Swarm key. `now` in unix seconds.

    Raises InvalidInput for a proof that cannot be read, Forbidden for one that is not valid.
    """
    leaf, intermediates = _certificates(proof)
    try:
        signature = base64.b64decode(proof.signature, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidInput("the signature is not base64", field="signature") from None
    _verify_chain(leaf, intermediates, trust, now)
    key = leaf.public_key()
    try:
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise InvalidSignature
        key.verify(signature, signed, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        raise Forbidden(
            "the join request is not signed with the key of the Swarm certificate that it shows: only the node "
            f"that holds this key can join as this Swarm node. Run the join command on that node, or {_JOIN_SWARM}"
        ) from None
    return _only(leaf, NameOID.COMMON_NAME)


def _certificates(proof: IdentityProof) -> tuple[x509.Certificate, list[x509.Certificate]]:
    try:
        leaf, *intermediates = x509.load_pem_x509_certificates(proof.certificates.encode())
    except ValueError as error:
        raise InvalidInput(f"the Swarm certificate cannot be read: {error}", field="swarm_certificates") from error
    return leaf, intermediates


def _verify_chain(leaf: x509.Certificate, intermediates: list[x509.Certificate], trust: SwarmTrust, now: float) -> None:
    moment = dt.datetime.fromtimestamp(now, tz=dt.UTC)
    try:
        roots = x509.load_pem_x509_certificates(trust.roots.encode())
        PolicyBuilder().store(Store(roots)).time(moment).build_client_verifier().verify(leaf, intermediates)
    except (VerificationError, ValueError) as error:
        raise Forbidden(
            f"the Swarm certificate is not of this site's Swarm, or has expired ({error}): {_JOIN_SWARM}"
        ) from error
    swarm, role = _only(leaf, NameOID.ORGANIZATION_NAME), _only(leaf, NameOID.ORGANIZATIONAL_UNIT_NAME)
    if swarm != trust.swarm_id or role not in _ROLES:
        raise Forbidden(f"the Swarm certificate is of {role!r} in the Swarm {swarm!r}: {_JOIN_SWARM}")


def _only(certificate: x509.Certificate, kind: x509.ObjectIdentifier) -> str:
    """The only attribute of this kind in the subject; empty if it has none or several."""
    attributes = certificate.subject.get_attributes_for_oid(kind)
    return str(attributes[0].value) if len(attributes) == 1 else ""
