"""The hub adapter against a hub of a few lines: who is who, remembered for a while; errors in our own words."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from commonage.domain.errors import (
    Conflict,
    Forbidden,
    InvalidInput,
    NotFound,
    Unauthenticated,
    Unavailable,
)
from commonage.domain.principals import Principal, Scope
from commonage.ports.identity import Identity, IssuedToken
from commonage.server.identity import HubIdentity

pytestmark = pytest.mark.anyio

ALICE = {
    "kind": "user",
    "name": "alice",
    "admin": False,
    "groups": ["physics"],
    "scopes": ["custom:commonage:read", "custom:commonage:submit", "read:users:name!user=alice"],
}


class FakeHub:
    """Answers every request with what `answer` gives, and remembers the requests."""

    def __init__(self, answer: Callable[[httpx2.Request], httpx2.Response]) -> None:
        self.answer = answer
        self.requests: list[httpx2.Request] = []
        self.now = 100.0
        self.identity = HubIdentity(
            "http://hub", "service-token", transport=httpx2.MockTransport(self._handle), monotonic=lambda: self.now
        )

    async def _handle(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        await asyncio.sleep(0)
        return self.answer(request)


def hub(status: int, body: Any = None) -> FakeHub:
    return FakeHub(lambda _: httpx2.Response(status, json=body if body is not None else {}))


def test_is_the_port() -> None:
    identity: Identity = hub(200).identity
    assert identity


async def test_whois() -> None:
    fake = hub(200, ALICE)
    expected = Principal("alice", frozenset({Scope.READ, Scope.SUBMIT}), ("physics",))
    assert await fake.identity.whois("t0ken") == expected
    assert fake.requests[0].url == "http://hub/hub/api/user"
    assert fake.requests[0].headers["Authorization"] == "token t0ken"


async def test_whois_is_remembered_for_half_a_minute() -> None:
    fake = hub(200, ALICE)
    await fake.identity.whois("t0ken")
    fake.now += 29
    await fake.identity.whois("t0ken")
    assert len(fake.requests) == 1
    fake.now += 2
    await fake.identity.whois("t0ken")
    await fake.identity.whois("another")
    assert len(fake.requests) == 3


async def test_forget_asks_anew() -> None:
    fake = hub(200, ALICE)
    await fake.identity.whois("t0ken")
    fake.identity.forget("t0ken")
    await fake.identity.whois("t0ken")
    assert len(fake.requests) == 2


async def test_nobody_is_remembered_for_a_shorter_time() -> None:
    fake = hub(403, {"message": "Forbidden"})
    assert await fake.identity.whois("wrong") is None
    assert await fake.identity.whois("wrong") is None
    assert len(fake.requests) == 1
    fake.now += 6
    assert await fake.identity.whois("wrong") is None
    assert len(fake.requests) == 2


async def test_a_hub_that_cannot_write_is_not_believed_that_it_knows_nobody() -> None:
    why = ["the disk of /data is full"]
    answer = httpx2.MockTransport(lambda _: httpx2.Response(403))
    identity = HubIdentity("http://hub", "service-token", transport=answer, doubt=lambda: "".join(why))
    with pytest.raises(Unavailable, match="cannot be checked now: the disk of /data is full"):
        await identity.whois("t0ken")
    why.clear()
    assert await identity.whois("t0ken") is None, "and nothing wrong is remembered"


async def test_many_at_once_ask_once() -> None:
    fake = hub(200, ALICE)
    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(fake.identity.whois("t0ken")) for _ in range(50)]
    assert {task.result().name for task in asked if task.result()} == {"alice"}
    assert len(fake.requests) == 1


async def test_one_who_leaves_does_not_take_the_answer_along() -> None:
    fake = hub(200, ALICE)
    leaves = asyncio.create_task(fake.identity.whois("t0ken"))
    stays = asyncio.create_task(fake.identity.whois("t0ken"))
    await asyncio.sleep(0)
    leaves.cancel()
    found = await stays
    assert found is not None
    assert found.name == "alice"


async def test_a_service_is_nobody() -> None:
    assert await hub(200, {"kind": "service", "name": "grader", "scopes": []}).identity.whois("t") is None


async def test_an_unreachable_hub_is_not_remembered() -> None:
    def refuse(_: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("refused")

    fake = FakeHub(refuse)
    for _ in range(2):
        with pytest.raises(Unavailable) as caught:
            await fake.identity.whois("t0ken")
        assert caught.value.is_retryable
    assert len(fake.requests) == 2


async def test_a_hub_in_trouble() -> None:
    with pytest.raises(Unavailable, match="500"):
        await hub(500).identity.whois("t0ken")


async def test_sign_in() -> None:
    fake = hub(200, {"access_token": "t0ken"})
    url = httpx2.URL(fake.identity.authorize_url("st&te"))
    assert url.path == "/hub/api/oauth2/authorize"
    assert url.params["state"] == "st&te"
    assert url.params["redirect_uri"] == "/services/commonage/oauth_callback"
    assert await fake.identity.exchange("c0de") == "t0ken"
    assert b"client_secret=service-token" in fake.requests[0].content
    with pytest.raises(Unauthenticated, match="Sign in again"):
        await hub(400).identity.exchange("old")


async def test_start_session() -> None:
    fake = hub(202)
    await fake.identity.start_session("al/ice", "", {"gpus": "6GiB"})
    await fake.identity.start_session("alice", "big", {})
    assert [request.url.raw_path for request in fake.requests] == [
        b"/hub/api/users/al%2Fice/server",
        b"/hub/api/users/alice/servers/big",
    ]
    assert json.loads(fake.requests[0].content) == {"user_options": {"gpus": "6GiB"}}


@pytest.mark.parametrize("name", ["My Session", "1st", "a--b", "a-", "x" * 31, "a/b"])
async def test_start_session_by_a_name_that_is_no_address(name: str) -> None:
    fake = hub(202)
    with pytest.raises(InvalidInput, match="at most 30 lower-case letters") as caught:
        await fake.identity.start_session("alice", name, {})
    assert caught.value.field == "name"
    assert not fake.requests


@pytest.mark.parametrize(
    ("status", "message", "error"),
    [
        (400, "alice is already running", Conflict),
        (400, "alice:big is pending stop", Conflict),
        (404, "Not Found", NotFound),
        (400, "no environment torch", InvalidInput),
        (500, "12 GiB are more than any GPU has", InvalidInput),
        (503, "Service Unavailable", Unavailable),
    ],
)
async def test_start_session_refused(status: int, message: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        await hub(status, {"message": message}).identity.start_session("alice", "", {})


@pytest.mark.parametrize(
    ("status", "servers", "is_open"),
    [
        (200, {"big": {"ready": True}}, True),
        (200, {"big": {"ready": False}}, False),
        (200, {}, False),
        (404, {}, False),
    ],
)
async def test_a_session_is_open_when_the_hub_leads_there(status: int, servers: Any, is_open: bool) -> None:
    assert await hub(status, {"servers": servers}).identity.is_open("alice", "big") is is_open


@pytest.mark.parametrize("status", [202, 204, 400, 404])
async def test_stop_session_that_is_there_or_not(status: int) -> None:
    await hub(status).identity.stop_session("alice", "big")


async def test_stop_session_refused() -> None:
    with pytest.raises(Unavailable):
        await hub(500).identity.stop_session("alice", "big")


async def test_mint_token() -> None:
    fake = hub(201, {"id": "a7", "token": "new", "expires_at": "2026-11-22T21:00:00.500000Z"})
    made = await fake.identity.mint_token("alice", [Scope.READ], "for the CLI", 60)
    assert made == IssuedToken("a7", "new", 1795381200.5)
    assert json.loads(fake.requests[0].content) == {
        "note": "for the CLI",
        "expires_in": 60,
        "scopes": ["custom:commonage:read"],
    }


@pytest.mark.parametrize(("status", "error"), [(403, NotFound), (400, Forbidden), (500, Unavailable)])
async def test_mint_token_refused(status: int, error: type[Exception]) -> None:
    with pytest.raises(error):
        await hub(status).identity.mint_token("alice", [Scope.ADMIN], "", None)


async def test_a_token_that_never_expires_is_not_handed_on() -> None:
    with pytest.raises(Unavailable):
        await hub(201, {"id": "a7", "token": "new", "expires_at": None}).identity.mint_token("a", [Scope.READ], "", 60)


async def test_mint_token_names_the_setting_that_limits_it() -> None:
    with pytest.raises(InvalidInput, match="token_lifetime"):
        await hub(400, {"message": "token expires_in: 9 must not exceed 5"}).identity.mint_token("a", [], "", 9)


async def test_when_a_token_expires() -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.url.path.endswith("/user"):
            return httpx2.Response(200, json={**ALICE, "token_id": "a3"})
        assert request.headers["Authorization"] == "token service-token"
        return httpx2.Response(200, json={"expires_at": expires_at})

    fake = FakeHub(answer)
    expires_at: str | None = "2026-11-22T21:00:00Z"
    assert await fake.identity.expires_at("hers") == 1795381200
    assert fake.requests[-1].url.path == "/hub/api/users/alice/tokens/a3"
    expires_at = None
    assert await fake.identity.expires_at("hers") is None
    with pytest.raises(Unauthenticated):
        await hub(403).identity.expires_at("nobody's")


@pytest.mark.parametrize("status", [204, 404])
async def test_revoke_token_that_is_there_or_not(status: int) -> None:
    fake = hub(status)
    await fake.identity.revoke_token("alice", "a7")
    assert (fake.requests[0].method, fake.requests[0].url.path) == ("DELETE", "/hub/api/users/alice/tokens/a7")


@pytest.mark.parametrize(
    ("status", "body", "admin"), [(200, {"admin": True}, True), (200, {}, False), (404, {}, False)]
)
async def test_is_admin(status: int, body: dict[str, bool], admin: bool) -> None:
    assert await hub(status, body).identity.is_admin("alice") is admin


async def test_ensure_user_that_is_there_already() -> None:
    fake = hub(409)
    await fake.identity.ensure_user("alice")
    assert [request.method for request in fake.requests] == ["POST"]


async def test_ensure_user_refused() -> None:
    with pytest.raises(InvalidInput, match=r"Invalid user name '\.\./x'\. Use at most 63 lower-case letters"):
        await hub(400, {"message": "Failed to create user: ../x"}).identity.ensure_user("../x")


@pytest.mark.parametrize("text", ["<html>Sign in to the network</html>", "[]"])
async def test_answer_of_another_program_means_that_the_hub_is_away(text: str) -> None:
    answer = httpx2.MockTransport(lambda _: httpx2.Response(200, text=text))
    identity = HubIdentity("http://hub", "service-token", transport=answer)
    with pytest.raises(Unavailable, match="Another program"):
        await identity.whois("t0ken")
