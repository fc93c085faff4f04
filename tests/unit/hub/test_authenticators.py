"""Texts for a refused user, and the names of LDAP groups."""

import ssl
from typing import Any

import pytest
from jupyterhub.auth import Authenticator, DummyAuthenticator
from ldap3.core.exceptions import LDAPSocketOpenError
from oauthenticator.generic import GenericOAuthenticator
from oauthenticator.github import GitHubOAuthenticator
from tornado import web
from tornado.httpclient import HTTPClientError
from traitlets import TraitError, Unicode
from traitlets.config import Config

from commonage.hub.authenticators import authenticator_of, name_in, refusal


@pytest.mark.parametrize(
    ("distinguished", "name"),
    [
        ("cn=GPU-Users,ou=groups,dc=example,dc=org", "gpu-users"),
        ("CN=Optics\\, Lab,DC=org", "optics, lab"),
        ("gpu-users", "gpu-users"),
    ],
)
def test_a_group_of_ldap_is_called_by_its_first_part(distinguished: str, name: str) -> None:
    assert name_in(distinguished) == name


def test_a_refusal_names_the_organizations_and_whom_to_ask() -> None:
    github = GitHubOAuthenticator(allowed_organizations={"our-lab", "partners:gpu"})
    said = refusal(github, "mona", "help@example.org")
    assert (
        "mona, who is not a member of the GitHub organization our-lab or the team gpu of the GitHub organization"
        in said
    )
    assert "Ask help@example.org to add you" in said and "grant this application access" in said


def test_a_refusal_names_the_groups() -> None:
    said = refusal(GenericOAuthenticator(allowed_groups={"gpu-users"}, manage_groups=True), "bob", None)
    assert "bob, who is not a member of the group gpu-users. Ask the administrator of this server" in said


def test_a_refusal_without_a_rule_names_the_user() -> None:
    assert "does not admit that user. Ask the administrator" in refusal(DummyAuthenticator(), "bob", None)


@pytest.mark.anyio
async def test_an_extended_authenticator_has_the_options_of_its_base() -> None:
    kind = authenticator_of("dummy", "help@example.org")
    made = kind(config=Config({"DummyAuthenticator": {"allowed_users": {"ada"}}}))
    assert isinstance(made, DummyAuthenticator)
    assert await made.check_allowed("ada")
    with pytest.raises(web.HTTPError, match="does not admit that user") as refused:
        await made.check_allowed("bob")
    assert refused.value.status_code == 403


@pytest.mark.anyio
@pytest.mark.parametrize(
    "error", [ConnectionRefusedError(), HTTPClientError(502), LDAPSocketOpenError(), TimeoutError()]
)
async def test_a_provider_that_does_not_answer_is_named(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr(DummyAuthenticator, "authenticate", fails)
    made = authenticator_of("dummy", "help@example.org")(login_service="Example University")
    with pytest.raises(web.HTTPError, match=r"Example University does not answer .* ask help@example.org") as refused:
        await made.authenticate(None, {})
    assert refused.value.status_code == 503


def test_ldap_checks_the_certificate_of_the_directory() -> None:
    made = authenticator_of("ldap", None)(config=Config({"LDAPAuthenticator": {"tls_kwargs": {"sni": "ldap"}}}))
    assert made.tls_kwargs == {"sni": "ldap", "validate": ssl.CERT_REQUIRED}


def test_an_unknown_authenticator_is_refused() -> None:
    with pytest.raises(ImportError):
        authenticator_of("no_such_package.Authenticator", None)


class Directory(Authenticator):
    """Like LDAPAuthenticator."""

    bind_dn_template = Unicode().tag(config=True)


def directory(**options: Any) -> Any:
    named = f"{Directory.__module__}.{Directory.__name__}"
    return authenticator_of(named, None)(config=Config({"Directory": {"manage_groups": True, **options}}))


@pytest.mark.anyio
async def test_only_groups_of_ldap_below_the_given_parent_count() -> None:
    found = [
        "CN=GPU-Users, OU=Groups,DC=example,DC=org",
        "cn=gpu-admins,ou=self-service,dc=example,dc=org",
        "cn=gpu-admins,ou=self-service,ou=groups,dc=example,dc=org",
        "cn=gpu-admins\\,ou=groups,dc=example,dc=org",
        "gpu-admins",
    ]
    made = directory(group_parent_dn="ou=groups,dc=example,dc=org")
    model = await made.run_post_auth_hook(None, {"name": "ada", "auth_state": {"ldap_groups": found}})
    assert model["groups"] == ["gpu-users"]


def test_groups_of_ldap_need_a_parent() -> None:
    with pytest.raises(TraitError, match="Set it to the name directly above your groups"):
        directory()
    assert directory(manage_groups=False).group_parent_dn == ""
