"""Registrations that the authenticator `lti` refuses, and the user names that it makes."""

from typing import Any

import pytest
from traitlets import TraitError
from traitlets.config import Config

from commonage.hub.authenticators import authenticator_of
from commonage.hub.lti_message import Refused, user_name

OPTIONS = {
    "issuer": "https://moodle.example.org",
    "client_id": "a",
    "deployment_ids": {"1"},
    "authorize_url": "https://moodle.example.org/auth",
    "jwks_url": "https://moodle.example.org/keys",
    "tool_url": "https://hub.example.org",
}
CLAIMS = {
    "sub": "2",
    "email": "Ada@Example.org",
    "https://purl.imsglobal.org/spec/lti/claim/ext": {"user_username": "ada"},
    "https://purl.imsglobal.org/spec/lti/claim/custom": {"login": 7},
}


def made(**changed: Any) -> Any:
    return authenticator_of("lti", None)(config=Config({"LtiAuthenticator": OPTIONS | changed}))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"issuer": ""}, "LtiAuthenticator.issuer is not set"),
        ({"deployment_ids": set()}, "LtiAuthenticator.deployment_ids is not set"),
        ({"tool_url": "http://hub.example.org"}, "tool_url is 'http://hub.example.org', and must begin with https://"),
        ({"jwks_url": "http://moodle.example.org/keys"}, "jwks_url"),
        ({"manage_groups": True}, "manage_groups is set"),
    ],
)
def test_an_incomplete_or_unsafe_registration_is_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(TraitError, match=said):
        made(**changed)


def test_plain_http_is_accepted_on_the_loopback() -> None:
    assert made(tool_url="http://localhost:8000").tool("/hub/lti/login") == "http://localhost:8000/hub/lti/login"


@pytest.mark.parametrize(
    ("claim", "name"),
    [
        ("sub", "x-2"),
        ("email", "x-ada@example.org"),
        ("ext:user_username", "x-ada"),
        ("custom:login", "x-7"),
    ],
)
def test_a_user_name_is_the_configured_claim(claim: str, name: str) -> None:
    assert user_name(CLAIMS, claim, "x-", "help") == name


def test_a_user_id_that_is_no_plain_name_becomes_a_digest() -> None:
    names = {user_name({"sub": sub}, "sub", "", "help") for sub in ("Ab", "aB", "a b", "ü", "a" * 255)}
    assert len(names) == 5
    assert all(len(name) == 32 and name.isalnum() for name in names)


@pytest.mark.parametrize("claim", ["custom:user_username", "ext:login", "nickname", "custom:"])
def test_a_missing_claim_is_not_replaced_by_another(claim: str) -> None:
    with pytest.raises(Refused, match="did not send"):
        user_name(CLAIMS, claim, "", "help")
