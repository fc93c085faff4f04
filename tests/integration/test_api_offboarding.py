"""Users and tenants are renamed and removed over the API and by the command line, after a plan."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.waiting import until
from tests.integration.api_world import Api, served, serving
from tests.integration.command_line import Run, commonage_at

from commonage.domain.offboarding import Subject
from commonage.domain.permissions import Role, RoleBinding, SubjectKind
from commonage.domain.tenants import Rules, Tenant
from commonage.domain.workloads import State
from commonage.ports.identity import Account
from commonage.testing.behaviour import Behaviour
from commonage.wire.hub import PORTAL_PATH

pytestmark = pytest.mark.anyio
MANAGER = RoleBinding(SubjectKind.USER, "bob", Role.MANAGER)
REMOVE = {"subject": "user", "change": "remove", "name": "ann"}


def prepare(api: Api) -> None:
    api.identity.users |= {name: Account(name, admin=name == "root", tokens=1) for name in ("ann", "bob", "root")}
    api.engine.default = Behaviour(lasts_s=None)


async def planned(api: Api, ask: dict[str, Any]) -> dict[str, Any]:
    async with api.client("admin:root") as admin:
        response = await admin.post("/offboarding-plans", json=ask)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


async def test_a_removed_user_is_refused_everywhere(tmp_path: Path) -> None:
    async with serving(tmp_path) as api:
        prepare(api)
        async with api.client("ann") as ann, api.client("admin:root") as admin:
            made = (await ann.post("/workloads", json={"command": ["sleep"]})).json()["workload"]["id"]
            await until(lambda: api.control.live_state.in_state(State.RUNNING))
            plan = await planned(api, REMOVE)
            assert plan["items"][0]["code"] == "WorkloadsStop"
            assert plan["items"][0]["params"] == {"workloads": [made]}
            begun = await admin.post("/offboardings", json={**REMOVE, "version": plan["version"]})
            assert begun.status_code == 202
            path = f"/offboardings/{begun.json()['id']}"
            assert (await ann.get("/workloads")).json()["code"] == "name-retired"
            await until(lambda: not api.control.names.pending())
            done = (await admin.get(path)).json()
            assert (done["next_step"], done["last_error"], done["ended_at"] is not None) == (None, "", True)
            again = await admin.post("/offboardings", json={**REMOVE, "version": "other"})
            assert (again.status_code, again.json()["id"]) == (202, begun.json()["id"])
            for asked in (ann.get("/info"), ann.post("/workloads", json={"command": ["x"]})):
                refused = await asked
                assert (refused.status_code, refused.json()["code"]) == (403, "name-retired")
            users = {one["name"]: one for one in (await admin.get("/users")).json()["items"]}
            assert users["ann"]["in_hub"] is False
            assert users["ann"]["offboarding"]["id"] == begun.json()["id"]
            assert (await admin.get("/users/ann")).json() == users["ann"]
            assert (await admin.post(f"{path}/release")).json()["released_by"] == "root"
            assert (await ann.get("/info")).status_code == 200


async def test_the_portal_refuses_a_retired_name(tmp_path: Path) -> None:
    async with serving(tmp_path) as api:
        prepare(api)
        plan = await planned(api, REMOVE)
        async with api.client("ann") as browser, api.client("admin:root") as admin:
            base = str(browser.base_url).partition("/services")[0]
            sent = await browser.get(f"{base}{PORTAL_PATH}")
            state = sent.headers["location"].partition("state=")[2]
            await browser.get(f"{base}{PORTAL_PATH}oauth_callback?state={state}&code=ann")
            assert (await browser.get(f"{base}{PORTAL_PATH}workloads")).status_code == 200
            await admin.post("/offboardings", json={**REMOVE, "version": plan["version"]})
            await until(lambda: not api.control.names.pending())
            refused = await browser.get(f"{base}{PORTAL_PATH}workloads")
            assert refused.status_code == 403
            assert "was removed" in refused.text


async def test_a_plan_that_changed_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as api:
        prepare(api)
        plan = await planned(api, REMOVE)
        async with api.client("ann") as ann, api.client("admin:root") as admin:
            await ann.post("/workloads", json={"command": ["sleep"]})
            refused = await admin.post("/offboardings", json={**REMOVE, "version": plan["version"]})
            assert (refused.status_code, refused.json()["code"]) == (409, "version-mismatch")
            assert api.control.names.retired(Subject.USER, "ann") is None


async def test_managers_of_a_tenant_neither_rename_nor_remove_it(tmp_path: Path) -> None:
    rules = Rules((Tenant("optics", members=(MANAGER,)),))
    asks: list[dict[str, Any]] = [
        {"subject": "tenant", "change": "rename", "name": "optics", "to": "photonics"},
        {"subject": "tenant", "change": "remove", "name": "optics"},
    ]
    async with serving(tmp_path, rules=rules) as api, api.client("bob") as bob:
        for ask in asks:
            for response in (
                await bob.post("/offboarding-plans", json=ask),
                await bob.post("/offboardings", json={**ask, "version": "v"}),
            ):
                assert (response.status_code, response.json()["code"]) == (403, "permission-missing")


@pytest.mark.parametrize(
    ("ask", "status", "code"),
    [
        ({**REMOVE, "name": "nobody"}, 404, "user-not-found"),
        ({**REMOVE, "subject": "tenant"}, 404, "tenant-not-found"),
        ({**REMOVE, "subject": "node"}, 422, "invalid-input"),
        ({**REMOVE, "data": "burn"}, 422, "invalid-input"),
        ({**REMOVE, "data": "hand-over"}, 422, "invalid-input"),
        ({**REMOVE, "change": "rename", "to": "../x"}, 422, "invalid-input"),
        ({**REMOVE, "name": "root"}, 422, "invalid-input"),
        ({**REMOVE, "colour": "red"}, 422, "unknown-field"),
    ],
)
async def test_bad_requests_say_what_is_wrong(tmp_path: Path, ask: dict[str, Any], status: int, code: str) -> None:
    async with serving(tmp_path) as api, api.client("admin:root") as admin:
        prepare(api)
        response = await admin.post("/offboarding-plans", json=ask)
        assert (response.status_code, response.json()["code"]) == (status, code), response.text
        assert len(response.json()["detail"]) > 20


# --- command line -----------------------------------------------------------------------------------------------------


@pytest.fixture
def commonage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    def tell(api: Api) -> None:
        prepare(api)
        api.identity.users["carl"] = Account("carl", tokens=2)

    monkeypatch.chdir(tmp_path)
    with served(tmp_path / "api", prepare=tell) as url:
        yield commonage_at(url, tmp_path, default_token="admin:root")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> None:
    (tmp_path / "api").mkdir(exist_ok=True)


def test_the_command_line_plans_asks_renames_and_removes(commonage: Run) -> None:
    plan = commonage("user", "rename", "carl", "carla", "--plan")
    assert plan.exit_code == 0, plan.output
    assert "Rename user carl to carla:" in plan.stdout
    assert "2 API tokens stay valid" in plan.stdout
    shown = json.loads(commonage("user", "rename", "carl", "carla", "--plan", "--json").stdout)
    assert shown["obstacles"] == []
    unsure = commonage("user", "rename", "carl", "carla")
    assert unsure.exit_code == 2
    assert "--yes" in unsure.output
    done = commonage("user", "rename", "carl", "carla", "--yes")
    assert done.exit_code == 0, done.output
    assert "Done." in done.stdout
    repeated = commonage("user", "rename", "carl", "carla", "--yes")
    assert repeated.exit_code == 0, repeated.output
    removed = json.loads(commonage("user", "remove", "carla", "--yes", "--json").stdout)
    steps = ["tokens", "workloads", "account", "data", "resources", "cron-jobs", "reservations", "images"]
    assert removed["done"] == steps
    listed = commonage("user", "ls").stdout
    assert "renamed to carla" in listed
    assert "removed" in listed
    assert "next step" not in commonage("user", "show", "carla").stdout
    taken = commonage("user", "rename", "ann", "bob", "--yes")
    assert taken.exit_code == 2
    assert "obstacles" in taken.output
    assert commonage("user", "release", "carla").exit_code == 0
    assert commonage("user", "release", "carla").exit_code == 2


def test_the_command_line_renames_and_removes_a_tenant(commonage: Run, tmp_path: Path) -> None:
    (tmp_path / "t.commonage.yml").write_text("kind: Tenant\nname: optics\n")
    assert commonage("apply", "t.commonage.yml", "--yes").exit_code == 0
    renamed = commonage("tenant", "rename", "optics", "photonics", "--yes")
    assert renamed.exit_code == 0, renamed.output
    assert "photonics" in commonage("tenant", "ls").stdout
    again = commonage("apply", "t.commonage.yml", "--yes")
    assert again.exit_code != 0
    assert "commonage tenant release optics" in again.output
    removed = commonage("tenant", "remove", "photonics", "--data", "keep", "--yes")
    assert removed.exit_code == 0, removed.output
    assert "photonics" not in commonage("tenant", "ls").stdout
    assert commonage("tenant", "release", "optics").exit_code == 0
    assert commonage("apply", "t.commonage.yml", "--yes").exit_code == 0
