"""Tokens for the registry: signed, short-lived, for one registry."""

import jwt
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from commonage.domain.images import Access
from commonage.images.registry_tokens import LASTS_S, Signer, key_id

NOW = 1_790_000_000.0


def test_a_token_says_for_whom_for_what_and_how_long() -> None:
    signer = Signer()
    text = signer.sign("ann", "hub:5000", [Access("repository", "lab/torch", ("pull", "push"))], NOW)
    key = x509.load_pem_x509_certificate(signer.certificate(NOW).encode()).public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    said = jwt.decode(
        text, key, algorithms=["ES256"], audience="hub:5000", options={"verify_exp": False, "verify_nbf": False}
    )
    assert (said["sub"], said["iss"], said["exp"] - said["iat"]) == ("ann", "commonage", LASTS_S)
    assert said["access"] == [{"type": "repository", "name": "lab/torch", "actions": ["pull", "push"]}]
    assert jwt.get_unverified_header(text)["kid"] == key_id(key)


def test_another_run_of_the_registry_believes_none_of_it() -> None:
    text = Signer().sign("ann", "hub:5000", [], NOW)
    other = x509.load_pem_x509_certificate(Signer().certificate(NOW).encode()).public_key()
    assert isinstance(other, ec.EllipticCurvePublicKey)
    with pytest.raises(jwt.InvalidSignatureError):
        jwt.decode(text, other, algorithms=["ES256"], audience="hub:5000")


def test_the_key_identifier_is_twelve_groups_of_four() -> None:
    groups = key_id(ec.generate_private_key(ec.SECP256R1()).public_key()).split(":")
    assert [len(group) for group in groups] == [4] * 12
    assert all(set(group) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567") for group in groups)
