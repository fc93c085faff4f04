"""Routes of the image registry: address, token rights, collection of unused images."""

import base64
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.integration.api_world import Api, serving

from commonage.domain.images import Access
from commonage.domain.tenants import Rules, Tenant
from commonage.ports.registry import Collected, RegistryAbout, RegistryToken

pytestmark = pytest.mark.anyio


@dataclass
class FakeRegistry:
    """The registry port without a registry: a token says in plain text what it grants."""

    about: RegistryAbout = field(default_factory=lambda: RegistryAbout("hub.example:5000", "the certificate"))
    kept: list[set[str]] = field(default_factory=list)

    def is_node(self, user: str, password: str) -> bool:
        return (user, password) == ("node", "secret")

    def token(self, subject: str, access: Sequence[Access]) -> RegistryToken:
        granted = " ".join(f"{one.kind}:{one.name}:{','.join(one.actions)}" for one in access)
        return RegistryToken(f"{subject} {granted}".strip(), 1_790_000_000.0, 300)

    def push_token(self, subject: str, repository: str) -> RegistryToken:
        return self.token(subject, [Access("repository", repository, ("pull", "push"))])

    async def collect(self, keep: Collection[str]) -> Collected:
        self.kept.append(set(keep))
        return Collected(("lab/old@sha256:1",), 1024)


def known(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


async def asked(api: Api, path: str, token: str | None = "bob", **more: Any) -> httpx2.Response:
    async with api.client(token) as client:
        return await client.request(more.pop("method", "GET"), path, **more)


async def answered(tmp_path: Path, *asks: tuple[str, dict[str, Any]]) -> list[httpx2.Response]:
    """The answers to these, of an installation in which bob is in the lab."""
    async with serving(tmp_path, run=False, rules=Rules(tenants=(Tenant("lab"), Tenant("Course 1")))) as api:
        api.identity.groups = {"bob": ("lab",), "ann": ("Course 1",)}
        api.app.state.context.registry = FakeRegistry()
        return [await asked(api, path, **more) for path, more in asks]


SCOPES = {"scope": ["repository:lab/torch:pull,push", "repository:public/x:pull,push repository:other/y:pull"]}


@pytest.mark.parametrize(
    ("headers", "gets"),
    [
        (known("bob", "bob"), "bob repository:lab/torch:pull,push repository:public/x:pull"),
        (known("bob", "read:bob"), "bob repository:lab/torch:pull repository:public/x:pull"),
        (known("ann", "ann"), "ann repository:public/x:pull"),
        (
            known("root", "admin:root"),
            "root repository:lab/torch:pull,push repository:public/x:pull,push repository:other/y:pull",
        ),
        (
            known("node", "secret"),
            "node repository:lab/torch:pull repository:public/x:pull repository:other/y:pull",
        ),
        ({"Authorization": "Bearer bob"}, "bob repository:lab/torch:pull,push repository:public/x:pull"),
    ],
)
async def test_a_token_grants_what_its_owner_may(tmp_path: Path, headers: dict[str, str], gets: str) -> None:
    (answer,) = await answered(tmp_path, ("registry/token", {"token": None, "params": SCOPES, "headers": headers}))
    assert answer.status_code == 200, answer.text
    said = answer.json()
    assert said["token"] == said["access_token"] == gets
    assert (said["expires_in"], said["issued_at"]) == (300, "2026-09-21T14:13:20+00:00")


async def test_tenant_with_an_invalid_registry_name_has_its_own_scope(tmp_path: Path) -> None:
    scope = {"scope": ["repository:course-1-c4a9baca/x:push repository:course-1/x:push"]}
    (answer,) = await answered(tmp_path, ("registry/token", {"token": "ann", "params": scope}))
    granted = answer.json()["token"].split()
    assert all(word.startswith("repository:course-1-") for word in granted[1:])
    assert "repository:course-1/x:push" not in granted


@pytest.mark.parametrize(
    ("headers", "says"),
    [
        ({}, "a token is required"),
        (known("bob", "nobody"), "does not know this token"),
        (known("ann", "bob"), "is a token of bob, not of 'ann'"),
        (known("node", "guessed"), "does not know this token"),
        (known("bob", ""), "the password is missing"),
        ({"Authorization": "Basic %%%"}, "header must be"),
        ({"Authorization": "Basic"}, "header must be"),
    ],
)
async def test_unauthenticated_client_gets_registry_error_details(
    tmp_path: Path, headers: dict[str, str], says: str
) -> None:
    (answer,) = await answered(tmp_path, ("registry/token", {"token": None, "headers": headers}))
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Basic")
    assert says in answer.json()["details"]
    assert answer.json()["code"] == "unauthenticated"


async def test_refuses_invalid_scope(tmp_path: Path) -> None:
    (answer,) = await answered(tmp_path, ("registry/token", {"params": {"scope": "nonsense"}}))
    assert (answer.status_code, answer.json()["field"]) == (422, "scope")


async def test_shows_address_and_collects_unused_images(tmp_path: Path) -> None:
    about, refused, done = await answered(
        tmp_path,
        ("registry", {}),
        ("registry/collect", {"method": "POST"}),
        ("registry/collect", {"method": "POST", "token": "admin:root"}),
    )
    assert about.json() == {"address": "hub.example:5000", "certificate": "the certificate"}
    assert (refused.status_code, refused.json()["code"]) == (403, "permission-missing")
    assert done.json() == {"images": ["lab/old@sha256:1"], "freed_bytes": 1024}


async def test_installation_without_registry_is_not_found(tmp_path: Path) -> None:
    async with serving(tmp_path, run=False) as api:
        for path, method in (("registry", "GET"), ("registry/token", "GET"), ("registry/collect", "POST")):
            answer = await asked(api, path, "admin:root", method=method)
            assert (answer.status_code, answer.json()["code"]) == (404, "registry-not-found")
