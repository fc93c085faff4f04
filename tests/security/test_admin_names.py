"""An attacker signs in under the name of a future admin and waits: what was opened then must never be an admin's."""

import json
from collections.abc import Iterator

import httpx2
import pytest
from tests.acceptance.served import ADMIN_PASSWORD, USERS_PASSWORD, Served, served
from tests.security.attacker import SignedIn

from commonage.wire.hub import API_PATH


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    # One origin for all: the client that stands for a browser here takes no cookies for `localhost`.
    with served(tmp_path_factory.mktemp("names"), variables={"COMMONAGE_SESSION_HOST": "none"}) as running:
        yield running


def status_of(installation: Served, token: str) -> int:
    headers = {"Authorization": f"Bearer {token}"}
    return httpx2.get(f"{installation.url}{API_PATH}/info", headers=headers, timeout=30).status_code


def test_a_token_on_the_server_makes_nobody_an_admin(installation: Served) -> None:
    with SignedIn(installation.url, "ops", USERS_PASSWORD) as attacker:
        assert attacker.is_in
        made = installation.cli("token", "--user", "ops", "--admin", "--data-dir", str(installation.data))
        assert (made.returncode, made.stdout) == (2, "")
        assert "admin_users" in made.stderr
        assert attacker.hub("GET", "/user").json()["admin"] is False
        assert attacker.hub("GET", "/users").status_code == 403


def test_a_name_that_nobody_has_used_is_not_made_either(installation: Served) -> None:
    made = installation.cli("token", "--user", "nobody-yet", "--admin", "--data-dir", str(installation.data))
    assert made.returncode == 2
    assert installation.hub("GET", "/users/nobody-yet").status_code == 404


def test_one_who_is_an_admin_has_tokens_of_an_admin(installation: Served) -> None:
    with installation.client("admin", "--admin") as client:
        assert client.info().admin


def test_the_page_of_admins_ends_what_was_opened_before(installation: Served) -> None:
    with SignedIn(installation.url, "eve", USERS_PASSWORD) as attacker:
        kept = attacker.token("eve")
        installation.hub("PATCH", "/users/eve", json={"admin": True}).raise_for_status()
        assert attacker.hub("GET", "/user").status_code == 403
        headers = {"Authorization": f"token {kept}"}
        hub = f"{installation.url}/hub/api"
        assert httpx2.get(f"{hub}/users", headers=headers, timeout=30).status_code == 403
    # With the shared passwords, a name that the settings do not list is an admin's until a user signs in with it.
    with SignedIn(installation.url, "eve", USERS_PASSWORD) as attacker:
        assert attacker.hub("GET", "/user").json()["admin"] is False


def test_the_command_line_on_the_server_is_nobodys(installation: Served) -> None:
    """Had it a token of the first admin, who signed in under that name would see what it does, and end it."""
    found = json.loads(installation.cli("info", "--json", "--data-dir", str(installation.data)).stdout)
    assert (found["user"], found["admin"]) == ("_operator", True)
    of_admin = installation.hub("GET", "/users/admin/tokens").json()["api_tokens"]
    assert not [one for one in of_admin if "command line" in one["note"]]
    refused = installation.cli("run", "--data-dir", str(installation.data), "--", "true")
    assert refused.returncode != 0
    assert "commonage token --user NAME" in refused.stderr


def test_a_name_that_becomes_an_admins_loses_all_that_was_opened_before(installation: Served) -> None:
    """The last one here: it starts the server again with other settings."""
    with (
        SignedIn(installation.url, "ops", USERS_PASSWORD) as attacker,
        SignedIn(installation.url, "bob", USERS_PASSWORD) as bob,
    ):
        kept, bobs = attacker.token("ops"), bob.token("bob")
        assert (status_of(installation, kept), status_of(installation, bobs)) == (200, 200)
        installation.hub("POST", "/users/zed").raise_for_status()  # an earlier version made admins at will
        installation.hub("PATCH", "/users/zed", json={"admin": True}).raise_for_status()
        installation.stop()
        installation.variables = {**installation.variables, "COMMONAGE_ADMIN_USERS": "admin,ops"}
        installation.start()
        assert attacker.hub("GET", "/user").status_code == 403
        assert not attacker.is_in
        assert (status_of(installation, kept), status_of(installation, bobs)) == (401, 200)
        assert bob.is_in
        assert installation.hub("GET", "/users/zed").json()["admin"] is False
    with SignedIn(installation.url, "ops", USERS_PASSWORD) as attacker:
        assert not attacker.is_in
    with SignedIn(installation.url, "ops", ADMIN_PASSWORD) as ops:
        assert ops.hub("GET", "/user").json()["admin"] is True
        kept = ops.token("ops")
    installation.stop()
    installation.start()
    assert status_of(installation, kept) == 200  # an admin stays one from start to start
