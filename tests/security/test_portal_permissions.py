"""Every page, stream, form and WebSocket, for every role: the rows below are compared with the routes that there are.

The API's plain routes are walked by `test_permissions`, whose world this is.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, replace

import pytest
from starlette.routing import Route
from tests.fakes.waiting import until
from tests.security.asgi import Answer, ask
from tests.security.test_permissions import (
    CALLERS,
    HIDDEN,
    NOBODY,
    NOWHERE,
    OTHER,
    OUTSIDER,
    OWN,
    TENANT_ROLES,
    World,
    address,
    anonymous,
    may,
    owner_in,
    signed_in,
    world,
)

from commonage.domain.permissions import Permission, Role
from commonage.wire.hub import API_PATH, PORTAL_PATH

pytestmark = pytest.mark.anyio
__all__ = ["world"]  # the fixture
P = Permission


@dataclass(frozen=True)
class Row:
    """`needs` in the tenant or on the platform; without `hides` in the tenant, its things do not exist."""

    needs: Permission | None = None
    hides: Permission | None = None
    is_public: bool = False


EVERYBODY = Row()
PUBLIC = Row(is_public=True)
ROWS = {
    "GET ": EVERYBODY,
    "GET live/overview": EVERYBODY,
    "GET launch": EVERYBODY,
    "POST launch": EVERYBODY,
    "POST launch/dry-run": EVERYBODY,
    "GET workloads": EVERYBODY,
    "GET live/workloads": EVERYBODY,
    "GET workloads/{id}": Row(P.SEE_WORKLOADS, P.SEE_WORKLOADS),
    "GET workloads/{id}/live": Row(P.SEE_WORKLOADS, P.SEE_WORKLOADS),
    "GET workloads/{id}/log": Row(P.READ_OUTPUT, P.SEE_WORKLOADS),
    "POST workloads/{id}/stop": Row(P.STOP_WORKLOADS, P.SEE_WORKLOADS),
    "POST workloads/{id}/extend": Row(P.STOP_WORKLOADS, P.SEE_WORKLOADS),
    "POST workloads/{id}/release-gpu": Row(P.STOP_WORKLOADS, P.SEE_WORKLOADS),
    "POST workloads/{id}/open": Row(P.ENTER_WORKLOADS, P.SEE_WORKLOADS),
    "GET nodes": EVERYBODY,
    "GET live/nodes": EVERYBODY,
    "POST nodes/{site}/{name}/drain": Row(P.DRAIN_NODES),
    "POST nodes/{site}/{name}/resume": Row(P.DRAIN_NODES),
    "POST nodes/{site}/{name}/remove": Row(P.MANAGE_PLATFORM),
    "GET sites": Row(P.SEE_PLATFORM),
    "POST sites": Row(P.MANAGE_PLATFORM),
    "POST sites/{name}/node-token": Row(P.MANAGE_PLATFORM),
    "POST sites/{name}/revoke": Row(P.MANAGE_PLATFORM),
    "POST sites/{name}/remove": Row(P.MANAGE_PLATFORM),
    "GET cron-jobs": EVERYBODY,
    "GET cron-jobs/{id}": Row(P.SEE_WORKLOADS, P.SEE_WORKLOADS),
    "POST cron-jobs/{id}/suspend": Row(P.STOP_WORKLOADS, P.SEE_WORKLOADS),
    "POST cron-jobs/{id}/resume": Row(P.STOP_WORKLOADS, P.SEE_WORKLOADS),
    "POST cron-jobs/{id}/trigger": Row(P.ENTER_WORKLOADS, P.SEE_WORKLOADS),
    "POST cron-jobs/{id}/remove": Row(P.STOP_WORKLOADS, P.SEE_WORKLOADS),
    "GET materials": EVERYBODY,
    "GET materials/{name}": Row(P.MANAGE_MATERIALS, P.SEE_TENANT),
    "GET data": EVERYBODY,
    "GET data/content": EVERYBODY,
    "PATCH data/content": EVERYBODY,
    "GET data/upload": EVERYBODY,
    "POST data/folder": EVERYBODY,
    "POST data/move": EVERYBODY,
    "POST data/remove": EVERYBODY,
    "GET classes": EVERYBODY,
    "GET class-form": EVERYBODY,
    "POST class-form": EVERYBODY,
    "GET classes/{name}": EVERYBODY,
    "GET classes/{name}/live": EVERYBODY,
    "GET classes/{name}/session": EVERYBODY,
    "POST classes/{name}/message": EVERYBODY,
    "POST classes/{name}/ask": EVERYBODY,
    "POST classes/{name}/answer": EVERYBODY,
    "POST classes/{name}/start": EVERYBODY,
    "POST classes/{name}/remove": EVERYBODY,
    "GET environments": EVERYBODY,
    "POST environments": EVERYBODY,  # an invalid form is shown again; test_permissions has its route
    "GET live/environments": EVERYBODY,
    "POST environments/{scope}/{name}/remove": EVERYBODY,  # the world has none; test_permissions has its route
    "GET workloads/{id}/service": Row(P.ENTER_WORKLOADS, P.SEE_WORKLOADS),
    "GET service-access/{id}": PUBLIC,  # the proxy asks with the visitor's own headers
    "POST workloads/{id}/reset-packages": Row(P.ENTER_WORKLOADS, P.SEE_WORKLOADS),
    "POST materials/{name}/sync": Row(P.MANAGE_MATERIALS, P.SEE_TENANT),
    "POST materials/{name}/reset": Row(P.SUBMIT, P.SEE_TENANT),
    "POST materials/{name}/token": Row(P.MANAGE_MATERIALS, P.SEE_TENANT),
    "GET people": Row(P.SEE_PLATFORM),
    "GET offboard": Row(P.SEE_PLATFORM),
    "POST offboard": Row(P.MANAGE_PLATFORM),
    "POST offboard/plan": Row(P.SEE_PLATFORM),
    "GET offboard/{id}": Row(P.SEE_PLATFORM),
    "POST offboard/{id}/release": Row(P.MANAGE_PLATFORM),
    "GET images": EVERYBODY,
    "GET live/images": EVERYBODY,
    "POST images/{scope}/{name}/remove": Row(P.MANAGE_IMAGES, P.SEE_TENANT),
    "POST images/{scope}/{name}/prepull": Row(P.MANAGE_IMAGES, P.SEE_TENANT),
    "GET reservations": EVERYBODY,
    "POST reservations": Row(P.RESERVE),
    "POST reservations/{id}/remove": Row(P.RESERVE),
    "GET usage": EVERYBODY,
    "GET platform": Row(P.SEE_PLATFORM),
    "GET platform/edit": Row(P.SEE_PLATFORM),
    "POST platform/edit": Row(P.MANAGE_PLATFORM),
    "POST platform/remove": Row(P.MANAGE_PLATFORM),
    "GET oauth_callback": PUBLIC,
    "GET sign-in": PUBLIC,
    "POST sign-out": EVERYBODY,
    "GET static/{name:path}": PUBLIC,
    "GET docs": PUBLIC,
    "GET docs/{path:path}": PUBLIC,
    "GET refused": PUBLIC,
    "GET {path:path}": EVERYBODY,
}
# The form of a class is for those who teach anywhere, so it is of no tenant.
NOT_WALKED = ("POST sign-out", "GET class-form")
WALKED = {name: row for name, row in ROWS.items() if not row.is_public and name not in NOT_WALKED}
QUERIES = {"platform/edit": "?kind=Tenant&name={tenant}", "workloads": "?owner=*", "usage": "?by=tenant"}
FORMS = {
    "platform/edit": {"kind": "Site", "name": "north", "version": "0"},
    "nodes/{site}/{name}/drain": {"drain": "0"},
}


def names_of(route: Route) -> set[str]:
    path = route.path.removeprefix(PORTAL_PATH.rstrip("/")).removeprefix("/")
    return {f"{method} {path}" for method in route.methods or () if method != "HEAD"}


async def test_every_route_of_the_portal_has_a_row(world: World) -> None:
    routes = [one for one in world.api.app.router.routes if isinstance(one, Route)]
    found = {name for route in routes if route.path.startswith(PORTAL_PATH.rstrip("/")) for name in names_of(route)}
    assert {name for name in found if not name.endswith(" refused")} | {"GET refused"} == set(ROWS)
    assert [one.path for one in routes if not one.path.startswith(PORTAL_PATH.rstrip("/"))] == []


def of_tenant(path: str, world: World, name: str) -> str:
    kinds = {"reservations": "reservation_id", "cron-jobs": "cron_job_id:workload"}
    kind = kinds.get(path.partition("/")[0], "workload_id:workload")
    values = {"{id}": f"{{{kind}}}", "{path:path}": "no-such-page"}
    for short, known in values.items():
        path = path.replace(short, known)
    query = QUERIES.get(path, "").format(tenant=name)
    return PORTAL_PATH + address(_named(path, name), world, name) + query


def _named(path: str, name: str) -> str:
    if path.startswith("materials/"):
        return path.replace("{name}", name)
    return path.replace("{name}", "torch:1") if path.startswith("images/") else path


async def visit(world: World, caller: str | None, name: str, tenant: str) -> Answer:
    """The answer to a signed-in user who sends the form as the page would."""
    world.api.control.catalogue.put(world.images.values())  # an earlier caller may have removed one
    for cron_job in world.cron_jobs.values():
        world.api.control.live_state.put_cron_job(cron_job)
    method, _, path = name.partition(" ")
    headers, form = {}, None
    if caller is not NOBODY:
        async with signed_in(world, caller) as browser:
            page = await browser.get(PORTAL_PATH)
            headers["cookie"] = "; ".join(f"{one.name}={one.value}" for one in browser.cookies.jar)
            csrf = re.search(r'name="csrf" value="([^"]+)"', page.text)
            form = {"csrf": csrf[1]} if csrf else {}
    if method == "PATCH":
        headers |= {"x-csrf-token": (form or {}).get("csrf", "")}
    if method == "POST":
        form = {**(form or {}), "tenant": tenant, **FORMS.get(path, {})}
        headers |= {"origin": "http://here.example", "sec-fetch-site": "same-origin"}
    else:
        form = None
    return await ask(world.api.app, method, of_tenant(path, world, tenant), headers=headers, form=form)


def without_own(body: bytes, world: World, tenant: str) -> bytes:
    """The body with what was asked for replaced, and without what differs from one sign-in to the next."""
    text = re.sub(rb'name="csrf" value="[^"]+"|"X-CSRF-Token": "[^"]+"', b"", body)
    return anonymous(text, world, tenant)


async def submitted(world: World, tenant: str) -> str:
    async with world.api.client(owner_in(tenant)) as owner:
        return str((await owner.post("/workloads", json={"command": ["x"]})).json()["workload"]["id"])


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("name", WALKED)
async def test_pages_follow_the_table_and_name_nothing_hidden(world: World, name: str, caller: str | None) -> None:
    row = WALKED[name]
    if name == "POST workloads/{id}/stop":  # the others look at the ones of the world
        world = replace(world, workloads={tenant: await submitted(world, tenant) for tenant in (OWN, OTHER)})
    answers = {tenant: await visit(world, caller, name, tenant) for tenant in (OWN, OTHER, NOWHERE)}
    if name == "POST workloads/{id}/stop":
        for tenant in (OWN, OTHER):
            async with world.api.client(owner_in(tenant)) as owner:
                await owner.post(f"/workloads/{world.workloads[tenant]}/stop")
    if caller is NOBODY:
        assert {one.status for one in answers.values()} <= {302, 303, 401, 403}
        assert len({without_own(answers[one].body, world, one) for one in answers}) == 1
        return
    for tenant in (OWN, OTHER):
        status = answers[tenant].status
        if row.hides is not None and not may(caller, row.hides, tenant):
            assert (status, answers[NOWHERE].status) == (404, 404)
            hidden, absent = (without_own(answers[one].body, world, one) for one in (tenant, NOWHERE))
            assert hidden == absent
        elif row.needs is not None and not may(caller, row.needs, tenant):
            assert status == 403
        elif row.needs is not None:
            assert status not in (401, 403) and (status != 404 or row.needs.of_platform)
        else:
            assert status not in (401, 403) or b"may not submit to" in answers[tenant].body
    for asked, answer in answers.items():
        hidden = [one for one in {OWN, OTHER} - {asked} if not may(caller, P.SEE_TENANT, one)]
        assert [text for one in hidden for text in world.secrets_of(one) if text.encode() in answer.body] == []
        unread = [one for one in (OWN, OTHER) if not may(caller, P.READ_OUTPUT, one)]
        assert [one for one in unread if f"{one}-secret".encode() in answer.body] == [], "a command is content"


STREAMS = ["/events", "/workloads/{workload_id:workload}/events", "/workloads/{workload_id:workload}/logs"]


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("path", STREAMS[1:])
async def test_streams_of_a_workload_follow_the_table(world: World, path: str, caller: str | None) -> None:
    needs = P.READ_OUTPUT if path.endswith("logs") else P.SEE_WORKLOADS
    headers = {"accept": "text/event-stream", **({} if caller is NOBODY else {"authorization": f"Bearer {caller}"})}
    answers = {
        tenant: await ask(world.api.app, "GET", API_PATH + address(path, world, tenant), headers=headers)
        for tenant in (OWN, OTHER, NOWHERE)
    }
    for tenant in (OWN, OTHER):
        if caller is NOBODY:
            assert answers[tenant].status == 401
        elif not may(caller, P.SEE_WORKLOADS, tenant):
            assert answers[tenant].status == 404
            hidden, absent = (anonymous(answers[one].body, world, one) for one in (tenant, NOWHERE))
            assert hidden == absent
        else:
            refused = b"permission-missing" in answers[tenant].body
            assert refused != may(caller, needs, tenant), answers[tenant].body


@pytest.mark.parametrize("caller", CALLERS)
async def test_commands_follow_the_table(world: World, caller: str | None) -> None:
    headers = {} if caller is NOBODY else {"authorization": f"Bearer {caller}"}
    path = "/workloads/{workload_id:workload}/exec"
    answers = {
        tenant: await ask(world.api.app, "WEBSOCKET", API_PATH + address(path, world, tenant), headers=headers)
        for tenant in (OWN, OTHER, NOWHERE)
    }
    for tenant in (OWN, OTHER):
        found = answers[tenant]
        if caller is NOBODY:
            assert (found.status, found.accepted) == (401, False)
        elif not may(caller, P.SEE_WORKLOADS, tenant):
            assert (found.status, found.accepted) == (404, False)
            hidden, absent = (anonymous(answers[one].body, world, one) for one in (tenant, NOWHERE))
            assert hidden == absent
        else:
            allowed = may(caller, P.ENTER_WORKLOADS, tenant)
            assert (found.status, found.accepted) == ((0, True) if allowed else (403, False))


@pytest.mark.parametrize("caller", [OUTSIDER, *TENANT_ROLES])
async def test_a_stream_of_events_never_carries_those_of_another_tenant(world: World, caller: str) -> None:
    """The caller's own event comes after one of another tenant, so that the first would have been seen by then."""
    title = f"mark-of-{caller}"
    headers = {"accept": "text/event-stream", "authorization": f"Bearer {caller}"}
    opened = asyncio.Event()

    def enough(body: bytes) -> bool:
        opened.set()
        return title.encode() in body

    reading = asyncio.create_task(
        ask(world.api.app, "GET", f"{API_PATH}/events?after=0", headers=headers, enough=enough)
    )
    async with world.api.client(owner_in(OTHER)) as other, world.api.client(caller) as own:
        await other.post("/workloads", json={"command": ["x"], "name": f"{OTHER}-new", "gpus": "24GiB"})
        asked = {"command": ["x"], "name": title, "gpus": "24GiB", "tenant": "commons"}
        made = (await own.post("/workloads", json=asked)).json()["workload"]["id"]
        title = made
        found = await reading
        await own.post(f"/workloads/{made}/stop")
    assert [text for text in world.secrets_of(OTHER) if text.encode() in found.body] == []


@pytest.mark.parametrize("caller", CALLERS)
async def test_sessions_are_opened_by_the_table_alone(
    world: World, caller: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub is asked to admit a user exactly where the table permits it, and the owner is notified before."""
    api, identity = world.api, world.api.identity
    monkeypatch.setattr(api.control.settings, "session_origin", "http://*.here.example")
    name = f"s-{caller or 'nobody'}"
    sessions = {}
    for tenant in (OWN, OTHER):
        async with api.client(owner_in(tenant)) as owner:
            asked = {"kind": "session", "name": name, "environment": "notebook", "tenant": tenant, "key": name}
            sessions[tenant] = (await owner.post("/workloads", json=asked)).json()["workload"]["id"]
    await until(lambda: all(api.control.live_state.get(one).state == "running" for one in sessions.values()))
    for tenant, workload in sessions.items():
        identity.shared.clear()
        async with api.client(caller) as client:
            answer = await client.post(f"/workloads/{workload}/open")
            absent = await client.post(f"/workloads/{'0' * 13}/open")
        allowed = may(caller, P.ENTER_WORKLOADS, tenant)
        assert identity.shared == ([(owner_in(tenant), name, caller)] if allowed else [])
        events = [one.reason.code for one in await api.control.store.events(workload_id=workload)]
        assert ("SessionOpened" in events) == allowed
        if allowed:
            assert answer.json()["url"].endswith(f"/user/{owner_in(tenant)}/{name}/")
        elif caller is not NOBODY and not may(caller, P.SEE_WORKLOADS, tenant):
            assert answer.json()["code"] in HIDDEN
            assert answer.text.replace(workload, "ID") == absent.text.replace("0" * 13, "ID")
        else:
            assert answer.status_code == (401 if caller is NOBODY else 403)
        async with api.client(owner_in(tenant)) as owner:
            await owner.post(f"/workloads/{workload}/stop")


async def test_no_session_of_others_is_opened_where_its_page_could_act_as_the_visitor(world: World) -> None:
    async with world.api.client(owner_in(OWN)) as owner, world.api.client(Role.TEACHER) as teacher:
        asked = {"kind": "session", "name": "shared-origin", "environment": "notebook", "tenant": OWN, "key": "shared"}
        session = (await owner.post("/workloads", json=asked)).json()["workload"]["id"]
        await until(lambda: world.api.control.live_state.get(session).state == "running")
        world.api.identity.shared.clear()
        assert (await teacher.post(f"/workloads/{session}/open")).json()["code"] == "sessions-share-origin"
        assert (await owner.post(f"/workloads/{session}/open")).status_code == 200
        await owner.post(f"/workloads/{session}/stop")
    assert world.api.identity.shared == []
