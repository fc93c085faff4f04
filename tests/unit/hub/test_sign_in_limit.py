"""The address that failures are counted for, and how they are counted."""

from types import SimpleNamespace
from typing import Any

import pytest
from jupyterhub import log
from jupyterhub.auth import Authenticator
from tornado.httpserver import HTTPServer
from tornado.httputil import HTTPHeaders
from tornado.web import Application, HTTPError

from commonage.hub.proxy import PROXY_KEY_HEADER
from commonage.hub.sign_in_limit import MAX_BODY_BYTES, SignInLimit, client_address, install


@pytest.mark.parametrize(
    ("forwarded_for", "address"),
    [
        ([], "192.0.2.1"),
        (["198.51.100.7"], "198.51.100.7"),
        (["198.51.100.7, 127.0.0.1"], "198.51.100.7"),
        (["203.0.113.9, 198.51.100.7, 127.0.0.1"], "198.51.100.7"),
        (["203.0.113.9", "198.51.100.7, ::1"], "198.51.100.7"),
        (["nonsense, , 127.0.0.1"], "192.0.2.1"),
        (["2001:db8:1:2:3:4:5:6"], "2001:db8:1:2::/64"),
    ],
)
def test_client_is_the_last_forwarded_address_that_is_not_local(forwarded_for: list[str], address: str) -> None:
    assert client_address(forwarded_for, "192.0.2.1") == address


def test_local_address_counts_as_client() -> None:
    assert client_address(["127.0.0.1"], "127.0.0.1") == "this machine"


def test_failures_expire_and_successes_do_not_count() -> None:
    now = 1000.0
    limit = SignInLimit(6, lambda: now)
    assert [limit.take("a", "ann") for _ in range(6)] == [0.0] * 6
    assert limit.take("a", "ann") == pytest.approx(10.0)
    assert limit.take("a", "bob") == limit.take("b", "ann") == 0.0
    now += 10.0
    assert limit.take("a", "ann") == 0.0
    limit.give_back("a", "ann")
    assert limit.take("a", "ann") == 0.0
    assert limit.take("a", "ann") > 0
    assert [bool(limit.take("a", f"user{number}")) for number in range(30)].count(True) == 3


@pytest.fixture
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def authenticate(_self: Authenticator, _handler: Any, data: Any) -> Any:
        return {"name": "ann"} if data is None or data["password"] == "right" else None

    monkeypatch.setattr(Authenticator, "get_authenticated_user", authenticate)
    monkeypatch.setattr(HTTPServer, "initialize", HTTPServer.initialize)
    monkeypatch.setattr(log, "_scrub_headers", log._scrub_headers)
    install(2, "key")


def _handler(peer: str, forwarded_for: str, key: str = "") -> SimpleNamespace:
    headers = HTTPHeaders({"X-Forwarded-For": forwarded_for, PROXY_KEY_HEADER: key})
    connection = SimpleNamespace(context=SimpleNamespace(address=(peer, 54321)))
    # tornado takes the address from the header, whoever sent it
    request = SimpleNamespace(headers=headers, connection=connection, remote_ip=forwarded_for)
    return SimpleNamespace(request=request)


@pytest.mark.usefixtures("_installed")
@pytest.mark.anyio
@pytest.mark.parametrize(("peer", "key"), [("192.0.2.1", ""), ("192.0.2.1", "guessed"), ("127.0.0.1", "")])
async def test_who_reaches_the_hub_without_the_proxy_cannot_forge_an_address(peer: str, key: str) -> None:
    async def tries(number: int) -> Any:
        data = {"username": "ann", "password": "wrong"}
        return await Authenticator().get_authenticated_user(_handler(peer, f"198.51.100.{number}", key), data)

    assert [await tries(1), await tries(2)] == [None, None]
    with pytest.raises(HTTPError, match="at most 2 a minute"):
        await tries(3)


@pytest.mark.usefixtures("_installed")
@pytest.mark.anyio
async def test_every_authenticator_counts_only_failures() -> None:
    class Own(Authenticator):
        pass

    async def tries(password: str | None, name: str = "ann", address: str = "192.0.2.1") -> Any:
        handler = _handler("127.0.0.1", f"203.0.113.9, {address}, 127.0.0.1", key="key")
        data = None if password is None else {"username": name, "password": password}
        return await Own().get_authenticated_user(handler, data)

    for _ in range(20):
        assert await tries("right")
    assert [await tries("wrong"), await tries("wrong")] == [None, None]
    for name in ("ann", "ANN", " ann "):
        with pytest.raises(HTTPError, match=r"from 192\.0\.2\.1: at most 2 a minute") as caught:
            await tries("right", name)
        assert caught.value.status_code == 429
        assert int(caught.value.headers["Retry-After"]) > 0  # type: ignore[attr-defined]  # the hub's handlers look
    assert await tries("right", "bob")
    assert await tries("right", address="192.0.2.2")
    assert await tries(None)  # back from another site's sign-in


@pytest.mark.usefixtures("_installed")
def test_the_hub_keeps_no_large_request_in_memory() -> None:
    server = HTTPServer(Application(), xheaders=True)
    assert server.conn_params.max_body_size == MAX_BODY_BYTES


@pytest.mark.usefixtures("_installed")
def test_key_of_proxy_is_not_logged() -> None:
    headers = HTTPHeaders({PROXY_KEY_HEADER: "key", "Authorization": "token abc", "Host": "gpu.example.org"})
    assert log._scrub_headers(headers) == {"Authorization": "token [secret]", "Host": "gpu.example.org"}
