"""Every route of the API, for every role, on the own tenant's things, another's, and what does not exist.

Expectations come from the table of `domain.permissions` and from what each route declares (`api.routing.asks`). An
answer about what a user may not see is the same, byte for byte, as one about what does not exist; and no answer has a
name of a tenant that the user does not see.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from fastapi.routing import APIRoute
from starlette.routing import Mount, WebSocketRoute
from tests.fakes.waiting import until
from tests.integration.api_world import URL, Api, FakeIdentity, serving

from commonage.api.routes.classes import CLASS
from commonage.api.routing import Guarded, asked_permission
from commonage.domain.cron_jobs import CronJob
from commonage.domain.images import Image
from commonage.domain.permissions import PERMISSIONS, Permission, Role, RoleBinding, SubjectKind
from commonage.domain.principals import Principal, Scope
from commonage.domain.tenants import Rules, Tenant
from commonage.domain.workloads import State
from commonage.testing import factories as make
from commonage.testing.behaviour import Behaviour
from commonage.wire.hub import CALLBACK_PATH, PORTAL_PATH

pytestmark = pytest.mark.anyio

OWN, OTHER, NOWHERE = "physics", "chemistry", "alchemy"
OUTSIDER, NOBODY = "outsider", None
TENANT_ROLES = [role for role in Role if not role.of_platform]
PLATFORM_ROLES = [role for role in Role if role.of_platform]
# Those who change least come first: an admin removes what the walk is about.
CALLERS = [NOBODY, OUTSIDER, *TENANT_ROLES, *PLATFORM_ROLES]
EVERYTHING = frozenset({Scope.READ, Scope.SUBMIT, Scope.MANAGE, Scope.TOKENS})
REFUSED = {"permission-missing", "scope-missing", "not-yours", "not-a-member", "not-admin"}
HIDDEN = {"workload-not-found", "tenant-not-found", "image-not-found", "reservation-not-found", "cron-job-not-found"}
HIDDEN |= {"material-not-found"}


class Users(FakeIdentity):
    """Every token is the name of its user, and has all scopes but that of the hub's admins."""

    async def whois(self, token: str) -> Principal | None:
        return Principal(token, EVERYTHING)


def bound(role: Role) -> RoleBinding:
    return RoleBinding(SubjectKind.USER, role.value, role)


def owner_in(tenant: str) -> str:
    return f"{tenant}-owner"


def tenant(name: str, *more: RoleBinding) -> Tenant:
    own = RoleBinding(SubjectKind.USER, owner_in(name), Role.MEMBER)
    return Tenant(name, title=f"{name}-title", members=(own, *more))


@dataclass
class World:
    api: Api
    workloads: dict[str, str]
    reservations: dict[str, str]
    images: dict[str, Image]
    cron_jobs: dict[str, CronJob]

    def cron_job_id(self, name: str) -> str:
        return self.cron_jobs[name].id if name in self.cron_jobs else "c" + "0" * 13

    def secrets_of(self, name: str) -> list[str]:
        """The texts that only users who see this tenant may read."""
        return [name, self.workloads[name], self.reservations[name], self.cron_jobs[name].id]


@pytest.fixture(scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    rules = Rules((tenant(OWN, *map(bound, TENANT_ROLES)), tenant(OTHER)))
    roles = tuple(map(bound, PLATFORM_ROLES))
    folder = tmp_path_factory.mktemp("permissions")
    async with serving(folder, rules=rules, identity=Users(), platform_roles=roles) as api:
        api.engine.default = Behaviour(lasts_s=None, prints=("printed",))
        workloads, reservations, images, cron_jobs = {}, {}, {}, {}
        tomorrow = datetime.now(UTC).date() + timedelta(days=1)
        async with api.client(Role.ADMIN) as admin:
            for name in (OTHER, OWN):
                async with api.client(owner_in(name)) as owner:
                    ask = {"command": [f"{name}-secret"], "gpus": "8GiB", "name": f"{name}-name"}
                    workloads[name] = (await owner.post("/workloads", json=ask)).json()["workload"]["id"]
                    ask = {"schedule": "0 0 1 1 *", "job": {"command": [f"{name}-secret"], "name": f"{name}-yearly"}}
                    made = (await owner.post("/cron-jobs", json=ask)).json()
                    cron_jobs[name] = api.control.live_state.cron_jobs[made["id"]]
                window = {"starts_at": f"{tomorrow} 10:00", "ends_at": "11:00", "time_zone": "UTC"}
                ask = {"tenant": name, "title": f"{name}-reserved", "gpus": "1GiB", **window}
                found = (await admin.post("/reservations", json=ask)).json()
                reservations[name] = found["items"][0]["id"]
                material = {"tenants": [name], "material": {"repository": "git://127.0.0.1:1/none", "poll": "1h"}}
                await admin.put(f"/resources/Volume/{name}", json={"document": material})
                images[name] = make.image(f"{name}/torch:1", name, by=owner_in(name))
        live = api.control.live_state
        await until(lambda: len(live.in_state(State.RUNNING)) == len(workloads))
        api.control.catalogue.put(images.values())
        yield World(api, workloads, reservations, images, cron_jobs)


@asynccontextmanager
async def signed_in(world: World, caller: str) -> AsyncIterator[httpx2.AsyncClient]:
    """A browser in which the caller has signed in to the portal."""
    transport = httpx2.ASGITransport(app=world.api.app)
    async with httpx2.AsyncClient(transport=transport, base_url=URL) as browser:
        state = parse_qs(urlsplit((await browser.get(PORTAL_PATH)).headers["location"]).query)["state"][0]
        await browser.get(CALLBACK_PATH, params={"state": state, "code": caller})
        yield browser


def all_routes(api: Api) -> Iterator[tuple[str, APIRoute | WebSocketRoute]]:
    mount = next(one for one in api.app.router.routes if isinstance(one, Mount))
    for route in mount.routes:
        if isinstance(route, APIRoute):
            for method in sorted(route.methods):
                yield method, route
        elif isinstance(route, WebSocketRoute):
            yield "WEBSOCKET", route


def described(api: Api) -> list[tuple[str, APIRoute]]:
    return [(method, route) for method, route in all_routes(api) if isinstance(route, APIRoute)
            and not route.path.startswith(("/docs", "/openapi"))]  # fmt: skip


def roles_of(caller: str | None, name: str) -> list[Role]:
    """The caller's roles in the tenant: each role's user has it in OWN, and a role of the platform everywhere."""
    role = Role(caller) if caller in set(Role) else None
    return [role] if role is not None and (role.of_platform or name == OWN) else []


def may(caller: str | None, permission: Permission, name: str) -> bool:
    return any(permission in PERMISSIONS[role] for role in roles_of(caller, name))


def address(path: str, world: World, name: str) -> str:
    """The path with the things of this tenant; of NOWHERE with ones of the same form that do not exist."""
    values = {
        "workload_id:workload": world.workloads.get(name, "0" * 13),
        "name:path": name,
        "cron_job_id:workload": world.cron_job_id(name),
        "reservation_id": world.reservations.get(name, "r" + "0" * 13),
        "scope": name,
        "site": "local",
        "kind": "Tenant",
        "offboarding_id": "o" + "0" * 13,
        "name": name if path.startswith("/materials/") else "torch:1" if "/images/" in path else "gpu-1",
    }
    return re.sub(r"{([^}]+)}", lambda found: values[found[1]], path)


def example(route: APIRoute) -> Any:
    content = (route.openapi_extra or {}).get("requestBody", {}).get("content", {})
    return content.get("application/json", {}).get("example")


async def answer(world: World, caller: str | None, method: str, route: APIRoute, name: str) -> httpx2.Response:
    world.api.control.catalogue.put(world.images.values())  # an earlier caller may have removed one
    for cron_job in world.cron_jobs.values():
        world.api.control.live_state.put_cron_job(cron_job)
    async with world.api.client(caller) as client:
        return await client.request(method, address(route.path, world, name), json=example(route))


def code_of(response: httpx2.Response) -> str:
    return str(response.json()["code"]) if response.headers["content-type"] == "application/problem+json" else ""


def anonymous(body: bytes, world: World, name: str) -> bytes:
    """The body with the names that were asked for replaced."""
    text = body.decode()
    text = text.replace("exam" if name == OTHER else "nothing", "ASKED")
    for kind in (
        world.cron_job_id(name), world.workloads.get(name, "0" * 13),
        world.reservations.get(name, "r" + "0" * 13), name,
    ):  # fmt: skip
        text = text.replace(kind, "ASKED")
    return text.encode()


async def test_every_route_declares_its_permission(world: World) -> None:
    routes = [route for _, route in all_routes(world.api) if not route.path.startswith(("/docs", "/openapi"))]
    assert len(routes) > 30
    for route in routes:
        asked_permission(route.endpoint)  # raises AttributeError
    public = {route.path for route in routes if isinstance(route, APIRoute) and not isinstance(route, Guarded)}
    assert public == {"/health", "/registry/token", "/materials/{name}/webhook"}, "all others need a token"


def hiding(route: APIRoute) -> Permission | None:
    """The permission without which the things of a route do not exist for the caller."""
    path, asked = route.path, asked_permission(route.endpoint)
    if asked is not None and asked.of_platform:
        return None  # refused before anything is looked up
    if path.endswith("/webhook"):
        return None  # its signature counts, and not who calls it
    if "{workload_id" in path or "{cron_job_id" in path:
        return Permission.SEE_WORKLOADS
    return (
        Permission.SEE_TENANT if path.startswith("/tenants/") or "/images/{" in path or "/materials/{" in path else None
    )


@pytest.mark.parametrize("caller", [OUTSIDER, *TENANT_ROLES])
async def test_hidden_and_absent_things_get_the_same_bytes(world: World, caller: str) -> None:
    compared = 0
    for method, route in described(world.api):
        hides = hiding(route)
        for name in (OWN, OTHER):
            if hides is None or may(caller, hides, name):
                continue
            hidden = await answer(world, caller, method, route, name)
            absent = await answer(world, caller, method, route, NOWHERE)
            assert hidden.status_code == absent.status_code == 404
            assert anonymous(hidden.content, world, name) == anonymous(absent.content, world, NOWHERE)
            assert {**hidden.headers, "content-length": ""} == {**absent.headers, "content-length": ""}
            compared += 1
    assert compared > 10


@pytest.mark.parametrize("caller", [OUTSIDER, *TENANT_ROLES])
async def test_no_answer_names_what_the_caller_does_not_see(world: World, caller: str) -> None:
    leaks = []
    for method, route in described(world.api):
        for asked in (OWN, OTHER, NOWHERE):
            response = await answer(world, caller, method, route, asked)
            for name in {OWN, OTHER} - {asked}:
                if not may(caller, Permission.SEE_TENANT, name):
                    leaks += [(method, route.path, text) for text in world.secrets_of(name) if text in response.text]
    assert leaks == []


@pytest.mark.parametrize("caller", [OUTSIDER, *TENANT_ROLES])
@pytest.mark.parametrize("path", ["/workloads", "/workloads/dry-run"])
async def test_submissions_tell_nothing_of_other_tenants(world: World, caller: str, path: str) -> None:
    images = {OTHER: f"{OTHER}/torch:1", NOWHERE: f"{NOWHERE}/torch:1"}
    base: dict[str, Any] = {"command": ["true"]}
    if path == "/workloads":
        base["gpus"] = "1000GiB"  # no node is large enough, so nothing is left behind
    async with world.api.client(caller) as client:
        for field, values in {
            "tenant": {OTHER: OTHER, NOWHERE: NOWHERE},
            "environment": images,
            "volumes": {OTHER: ["exam"], NOWHERE: ["nothing"]},
            "depends_on": {OTHER: [{"id": world.workloads[OTHER]}], NOWHERE: [{"id": "0" * 13}]},
        }.items():
            ask = {name: {**base, field: value} for name, value in values.items()}
            if field == "depends_on":
                ask = {name: {**one, "gpus": None} for name, one in ask.items()}
            hidden, absent = [await client.post(path, json=ask[name]) for name in (OTHER, NOWHERE)]
            assert hidden.status_code == absent.status_code >= 400, hidden.text
            assert anonymous(hidden.content, world, OTHER) == anonymous(absent.content, world, NOWHERE)


async def test_a_viewer_sees_workloads_without_their_content(world: World) -> None:
    async with world.api.client(Role.VIEWER) as viewer, world.api.client(Role.TEACHER) as teacher:
        path = f"/workloads/{world.workloads[OWN]}"
        seen, whole = (await viewer.get(path)).json(), (await teacher.get(path)).json()
        listed = (await viewer.get("/workloads")).json()["items"]
    assert (seen["command"], seen["variables"], seen["owner"]) == ([], {}, owner_in(OWN))
    assert whole["command"] == [f"{OWN}-secret"]
    assert {one["tenant"] for one in listed} == {OWN, "commons"}, "the walk submits to the default tenant"


async def test_the_page_of_a_workload_shows_a_viewer_no_log(world: World) -> None:
    path = f"{PORTAL_PATH}workloads/{world.workloads[OWN]}"
    for caller, reads in ((Role.VIEWER, False), (Role.TEACHER, True)):
        async with signed_in(world, caller) as browser:
            shown, log = await browser.get(path), await browser.get(f"{path}/log")
        assert (shown.status_code, 'id="log"' in shown.text, f"{OWN}-secret" in shown.text) == (200, reads, reads)
        assert (log.status_code, "printed" in log.text) == ((200, True) if reads else (403, False))


async def test_holders_of_other_tenants_are_an_anonymous_total(world: World) -> None:
    async with world.api.client(OUTSIDER) as client:
        nodes = (await client.get("/nodes")).json()["items"]
    assert {one["name"] for one in nodes} == {"gpu-1", "cpu-1"}
    async with world.api.client(owner_in(OWN)) as client:
        found = (await client.post("/workloads/dry-run", json={"command": ["x"], "gpus": "20GiB"})).json()
    assert OTHER not in str(found)
    others = [one for one in found["holders"] if not one["owner"]]
    assert [(one["workload_id"], one["name"], one["kind"], one["text"]) for one in others] == [
        (None, "", "", "another tenant, 8 GiB of GPU memory")
    ]


async def test_events_belong_to_those_who_see_the_workload(world: World) -> None:
    async def owners(caller: str) -> set[str | None]:
        principal = Principal(caller, EVERYTHING)
        found = await world.api.control.queries.events(principal, limit=10_000)
        return {event.tenant for event in found if event.owner != caller}

    assert await owners(OUTSIDER) == set()
    assert await owners(Role.MEMBER) == {OWN}, "the reservation of the tenant, which has no owner"
    assert await owners(Role.VIEWER) == {OWN}
    assert await owners(Role.OPERATOR) >= {OWN, OTHER}


@pytest.mark.parametrize("caller", [OUTSIDER, *TENANT_ROLES])
async def test_no_page_names_what_the_visitor_does_not_see(world: World, caller: str) -> None:
    pages = ["", "launch", "workloads", "workloads?owner=*", "nodes", "images", "reservations", "cron-jobs", "usage",
             "usage?by=tenant", "usage?by=owner"]  # fmt: skip
    async with signed_in(world, caller) as browser:
        for page in pages:
            shown = await browser.get(PORTAL_PATH + page)
            assert shown.status_code == 200, page
            hidden = [one for one in (OWN, OTHER) if not may(caller, Permission.SEE_TENANT, one)]
            assert not [(page, text) for one in hidden for text in world.secrets_of(one) if text in shown.text]
        hidden_page = await browser.get(f"{PORTAL_PATH}workloads/{world.workloads[OTHER]}")
        absent_page = await browser.get(f"{PORTAL_PATH}workloads/{'0' * 13}")
    assert hidden_page.status_code == absent_page.status_code == 404
    assert anonymous(hidden_page.content, world, OTHER) == anonymous(absent_page.content, world, NOWHERE)


@pytest.mark.parametrize(
    ("scopes", "method", "path"),
    [
        (frozenset({Scope.READ}), "POST", "/workloads/{own}/stop"),
        (frozenset({Scope.READ, Scope.SUBMIT}), "POST", "/workloads/{own}/stop"),
        (frozenset({Scope.SUBMIT, Scope.MANAGE}), "GET", "/workloads/{own}"),
    ],
)
async def test_the_scopes_of_a_token_bound_its_roles(
    world: World, monkeypatch: pytest.MonkeyPatch, scopes: frozenset[Scope], method: str, path: str
) -> None:
    async def whois(_self: Users, token: str) -> Principal:
        return Principal(token, scopes)

    monkeypatch.setattr(Users, "whois", whois)
    async with world.api.client(Role.TEACHER) as client:
        response = await client.request(method, path.format(own=world.workloads[OWN]))
    assert (response.status_code, code_of(response)) == (403, "scope-missing")


@pytest.mark.parametrize("caller", CALLERS)
async def test_answers_follow_the_table(world: World, caller: str | None) -> None:
    """The last test, because some callers are allowed to stop what the others look at."""
    wrong = []
    for method, route in described(world.api):
        permission, hides = asked_permission(route.endpoint), hiding(route)
        if permission is None:
            continue
        for name in (OWN, OTHER):
            response = await answer(world, caller, method, route, name)
            code = code_of(response)
            if caller is NOBODY:
                right = response.status_code == 401
            elif hides is not None and not may(caller, hides, name):
                right = response.status_code == 404 and code in HIDDEN
            elif (permission.of_platform or hides is not None) and permission is not Permission.ISSUE_TOKENS:
                allowed = may(caller, permission, name)
                right = (
                    code not in HIDDEN | REFUSED if allowed else (response.status_code, code in REFUSED) == (403, True)
                )
            else:
                # The tenant of a class is in the body: a user who does not teach there is refused.
                in_body = {"not-a-member", "not-admin", *({"permission-missing"} if route.path == CLASS else ())}
                right = response.status_code not in (401, 403) or code in in_body
            if not right:
                wrong.append((method, route.path, name, response.status_code, response.text[:200]))
    assert wrong == []
