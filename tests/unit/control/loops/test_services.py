"""The loop of services: routes of those that run, and their health."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from tests.unit.control.world import ANN, ROOT, Site, submit

from commonage.control.control import Control
from commonage.control.workloads.submission import Submission
from commonage.domain.errors import Forbidden, InvalidInput, NotFound, Unavailable
from commonage.domain.reasons.notes import ServiceAnswers, ServiceNotAnswering
from commonage.domain.services import ServiceHealth, ServiceRoute
from commonage.domain.workloads import Kind, Workload
from commonage.ports.execs import NotRunning
from commonage.ports.store import Batch
from commonage.testing.fakes.store import MemoryStore

pytestmark = pytest.mark.anyio


class Proxy:
    """Notes the routes. `fails` is the result of health checks, which do not end while it `hangs`.

    `full`: nothing can be written.
    """

    def __init__(self) -> None:
        self.routes: Sequence[ServiceRoute] = ()
        self.asked: list[tuple[str, str]] = []
        self.fails: str | None = "connection refused"
        self.full = self.hangs = False

    async def publish(self, routes: Sequence[ServiceRoute]) -> None:
        if self.full:
            raise Unavailable("the disk is full")
        self.routes = routes

    async def failure(self, url: str, path: str) -> str | None:
        self.asked.append((url, path))
        if self.hangs:
            await asyncio.Event().wait()
        return self.fails


class Database(MemoryStore):
    """Writes nothing while it is `down`."""

    down = False

    async def commit(self, batch: Batch) -> None:
        if self.down:
            raise Unavailable("the database does not answer")
        await super().commit(batch)


@pytest.fixture
def store() -> Database:
    return Database()


@pytest.fixture
def site(store: Database) -> Site:
    made = Site(store=store)
    made.services = Proxy()
    return made


def service(**fields: Any) -> Submission:
    return Submission(Kind.SERVICE, ("serve",), **{"health_path": "/health", "health_interval_s": 5, **fields})


async def started(site: Site, control: Control, **fields: Any) -> Workload:
    made = await submit(control, service(**fields))
    await site.clock.advance(3)
    return site.there(made)


def health(site: Site, control: Control, one: Workload) -> ServiceHealth | None:
    return control.queries.details(site.there(one)).health


def told(site: Site, one: Workload) -> list[str]:
    reasons = [event.reason for event in site.store.shelf.events if event.workload_id == one.id]
    return [reason.code for reason in reasons if isinstance(reason, ServiceAnswers | ServiceNotAnswering)]


async def test_a_running_service_has_a_route_until_it_stops(site: Site) -> None:
    async with site.open() as control:
        one = await started(site, control)
        assert one.attempt is not None
        assert site.services.routes == (ServiceRoute(one.id, one.attempt.url),)
        assert set(site.services.asked) == {(one.attempt.url, "/health")}
        await control.workloads.stop(ANN, one.id)
        await site.clock.advance(20)
        assert site.services.routes == ()


async def test_a_service_is_known_while_it_lives(site: Site) -> None:
    async with site.open() as control:
        one, other = await started(site, control), await submit(control)
        known = control.live_state.is_service
        assert (known(one.id), known(other.id), known("0123456789abc")) == (True, False, False)
        await control.workloads.stop(ANN, one.id)
        await site.clock.advance(20)
        assert not known(one.id)


async def test_routes_are_written_again_after_a_failure_and_a_restart(site: Site) -> None:
    site.services.full = True
    async with site.open() as control:
        one = await started(site, control)
        assert site.services.routes == ()
        site.services.full = False
        await site.clock.advance(3)
        assert [route.workload_id for route in site.services.routes] == [one.id]
    site.services.routes = ()
    async with site.open():
        await site.clock.advance(3)
        assert [route.workload_id for route in site.services.routes] == [one.id]


async def test_checks_that_do_not_end_delay_no_route(site: Site) -> None:
    site.services.hangs = True
    async with site.open() as control:
        one, other = await started(site, control), await started(site, control)
        assert {route.workload_id for route in site.services.routes} == {one.id, other.id}
        assert len(site.services.asked) == 2, "a check that has not ended is not begun again"
        await control.workloads.stop(ANN, one.id)
        await site.clock.advance(20)
        assert [route.workload_id for route in site.services.routes] == [other.id]


async def test_health_that_cannot_be_written_is_told_after_the_outage(site: Site, store: Database) -> None:
    async with site.open() as control:
        one = await started(site, control)
        store.down, site.services.fails = True, None
        await site.clock.advance(10)
        assert (health(site, control, one), told(site, one)) == (ServiceHealth.STARTING, [])
        store.down = False
        await site.clock.advance(10)
        assert (health(site, control, one), told(site, one)) == (ServiceHealth.READY, ["ServiceAnswers"])


async def test_health_changes_after_three_failures_in_a_row_and_is_told(site: Site) -> None:
    async with site.open() as control:
        one = await started(site, control)
        assert (health(site, control, one), told(site, one)) == (ServiceHealth.STARTING, [])
        site.services.fails = None
        await site.clock.advance(5)
        assert (health(site, control, one), told(site, one)) == (ServiceHealth.READY, ["ServiceAnswers"])
        site.services.fails = "status 503"
        await site.clock.advance(8)
        assert health(site, control, one) is ServiceHealth.READY
        await site.clock.advance(12)
        assert health(site, control, one) is ServiceHealth.NOT_ANSWERING
        site.services.fails = None
        await site.clock.advance(5)
        assert told(site, one) == ["ServiceAnswers", "ServiceNotAnswering", "ServiceAnswers"]


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("port", {"port": 0}),
        ("port", {"port": 65536}),
        ("health_path", {"health_path": "health"}),
        ("health_path", {"health_path": "/a b"}),
        ("health_interval_s", {"health_interval_s": 3601}),
        ("port", {"kind": Kind.JOB, "port": 80, "health_path": "", "health_interval_s": None}),
    ],
)
async def test_refuses_ports_and_checks_out_of_bounds(site: Site, field: str, fields: dict[str, Any]) -> None:
    given = {"kind": Kind.SERVICE, "command": ("serve",), "health_path": "/", "health_interval_s": 5, **fields}
    async with site.open() as control:
        with pytest.raises(InvalidInput) as refused:
            await control.workloads.submit(ANN, Submission(**given))
        assert refused.value.field == field


async def test_only_its_owner_uses_a_service_where_all_share_one_origin(site: Site) -> None:
    async with site.open() as control:
        one = await started(site, control)
        assert (await control.visits.enter_service(ANN, one.id)).id == one.id
        with pytest.raises(Forbidden):
            await control.visits.enter_service(ROOT, one.id)
        await control.workloads.stop(ANN, one.id)
        await site.clock.advance(20)
        with pytest.raises((NotRunning, NotFound)):
            await control.visits.check_service(ANN, one.id)


async def test_the_owner_is_told_who_else_opens_a_service(site: Site) -> None:
    site = Site(session_origin="https://*.hub.example.org")
    async with site.open() as control:
        one = await started(site, control)
        await control.visits.check_service(ROOT, one.id)
        assert "ServiceOpened" not in [event.reason.code for event in site.store.shelf.events]
        await control.visits.enter_service(ROOT, one.id)
        assert [event.owner for event in site.store.shelf.events if event.reason.code == "ServiceOpened"] == ["ann"]
