"""A joined site that reports about other sites, or sends data that cannot be stored: one test per message."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.fakes.metrics import KeptMetrics

from commonage.control.usage.site_samples import SiteSamples
from commonage.domain.codec import MAX_CAUSES, from_json, to_json
from commonage.domain.errors import EngineFailure
from commonage.domain.nodes import NodeReport
from commonage.domain.reasons import Reason
from commonage.domain.reasons.attempts import NodeLost, NotDelivered, StartFailed
from commonage.domain.reasons.nodes import SiteUnreachable
from commonage.domain.reasons.notes import NewerReason
from commonage.domain.statuses import Capabilities, LastUse, Measurement, Phase, StartRequest, Status
from commonage.domain.tenants import Tenant
from commonage.domain.workloads import State
from commonage.engines.remote.claims import MAX_DEVICES, checked_folders, checked_homes
from commonage.engines.remote.engine import FromSites, RemoteEngine
from commonage.engines.remote.records import SiteRecords
from commonage.engines.remote.statuses import MAX_UNKNOWN
from commonage.engines.remote.tunnels import Tunnels
from commonage.engines.settings import RemoteSettings
from commonage.link.exchange import MAX_TEXT, RequestHandler
from commonage.link.messages import Nothing, RequestType
from commonage.link.sites.messages.cron import REPORT_RUNS, SiteRuns
from commonage.link.sites.messages.engine import (
    ATTACH,
    MEASURE,
    PREPARE,
    PULL_TOKEN,
    REPORT,
    START,
    STATUSES,
    STORE_SAMPLES,
    STORE_WARNINGS,
    DeviceWarning,
    DeviceWarnings,
    NodeDevices,
    Samples,
    SiteMeasured,
    SiteReport,
    SiteStatuses,
    WantedImage,
)
from commonage.link.sites.messages.storage import HomeSize
from commonage.link.sites.messages.tenants import KEEP_TENANTS, SiteTenants, TenantsWaiting
from commonage.link.sites.transport.connection import Handlers, SiteConnection
from commonage.messages import text
from commonage.ports.agents import OnProgress
from commonage.ports.cron_sites import SiteRun
from commonage.ports.devices import DeviceSample
from commonage.ports.homes import FolderSize
from commonage.ports.metrics import Sample
from commonage.ports.registry import PullToken
from commonage.ports.store import Batch
from commonage.scheduler.model.grid import labels_of
from commonage.testing import factories as make
from commonage.testing.behaviour import Behaviour
from commonage.testing.engine_rig import StartRequestFactory
from commonage.testing.fakes.clock import FakeClock
from commonage.testing.fakes.store import MemoryStore
from commonage.testing.site_links import connected_pair

pytestmark = [pytest.mark.anyio, pytest.mark.allow_hosts(["127.0.0.1", "127.64.0.0/10"])]
RESERVED = 8000
"""A port of the installation."""
PORT_URL = "http://127.0.0.1:28123/"


@dataclass
class Attack:
    """The engine of the site `lab`, and the end of its link that the attacker has."""

    engine: RemoteEngine
    site: SiteConnection
    clock: FakeClock
    stored: list[tuple[str, Sample]]

    async def report(self, *statuses: Status) -> None:
        """Returns once they are processed: messages and requests are taken in their order."""
        self.site.send(STATUSES, SiteStatuses(statuses, complete=True))
        await self.site.request(STORE_SAMPLES, Samples(()))

    async def statuses(self) -> dict[str, Status]:
        return {one.attempt_id: one for one in await self.engine.statuses()}

    def request(self) -> StartRequest:
        factory = StartRequestFactory(make.environment(), "node-1", lambda _: ("act",), self.clock.now)
        return factory(Behaviour())


@asynccontextmanager
async def attack(
    folder: Path, more: Mapping[RequestType[Any, Any], RequestHandler] = MappingProxyType({})
) -> AsyncIterator[Attack]:
    clock, stored = FakeClock(), list[tuple[str, Sample]]()

    async def store(site: str, samples: Sequence[Sample]) -> None:
        stored.extend((site, one) for one in samples)

    async def hold(_: Any, __: OnProgress) -> Nothing:
        await asyncio.Event().wait()
        return Nothing()

    async def accept(_: Any, __: OnProgress) -> Nothing:
        return Nothing()

    def pull_token(site: str, image: str) -> PullToken:
        name = image.partition("/")[2]
        return PullToken("hub:5000", f"{site} pulls {name}", 60)

    from_sites = FromSites(store, pull_token=pull_token)
    engine = RemoteEngine("lab", RemoteSettings(folder / "sites", reserved=frozenset({RESERVED})), clock, from_sites)
    await engine.open()
    served = Handlers(requests={ATTACH: hold, START: accept, **more})
    async with connected_pair(engine.handlers(), served) as (control, site):
        engine.attach(control)
        yield Attack(engine, site, clock, stored)
    await engine.close()


@pytest.fixture
async def attacked(tmp_path: Path) -> AsyncIterator[Attack]:
    async with attack(tmp_path) as made:
        yield made


# --- images -----------------------------------------------------------------------------------------------------------


async def test_site_gets_access_to_images_of_its_own_workloads_alone(attacked: Attack) -> None:
    image = WantedImage("hub:5000/lab/own:1")
    request = replace(attacked.request(), environment=make.environment(image=image.image))
    with pytest.raises(EngineFailure, match="no workload with the image"):
        await attacked.site.request(PULL_TOKEN, image)
    await attacked.report()
    await attacked.engine.start(request)
    given = await attacked.site.request(PULL_TOKEN, image)
    assert given.token is not None and (given.token.text, given.token.lasts_s) == ("lab pulls lab/own:1", 60)
    with pytest.raises(EngineFailure, match="no workload with the image"):
        await attacked.site.request(PULL_TOKEN, WantedImage("hub:5000/other/secret:1"))
    await attacked.report(Status(request.attempt_id, Phase.ENDED, attacked.clock.now(), exit_code=0))
    with pytest.raises(EngineFailure, match="no workload with the image"):
        await attacked.site.request(PULL_TOKEN, image)


# --- statuses ---------------------------------------------------------------------------------------------------------


async def test_attempt_that_was_never_dispatched_there_gets_no_address(attacked: Attack) -> None:
    request = attacked.request()
    await attacked.report()
    await attacked.engine.start(request)
    now = attacked.clock.now()
    names = (request.attempt_id, "foreign-1")
    await attacked.report(*(Status(one, Phase.RUNNING, now, url=PORT_URL) for one in names))
    own, foreign = [(await attacked.statuses())[one] for one in names]
    assert own.url is not None
    assert own.url.startswith("http://127.")
    assert foreign.url is None


async def test_number_of_attempts_that_a_site_invents_is_limited(attacked: Attack) -> None:
    invented = [Status(f"invented-{number}", Phase.RUNNING, 0.0) for number in range(MAX_UNKNOWN + 500)]
    await attacked.report(*invented)
    assert len(await attacked.engine.statuses()) <= MAX_UNKNOWN


BAD = {
    "id that leads out of a folder": Status("../../etc", Phase.RUNNING, 0.0),
    "NUL in the id": Status("a\0b", Phase.RUNNING, 0.0),
    "exit code that no column holds": Status("bad-1", Phase.ENDED, 0.0, exit_code=2**40),
    "use that no column holds": Status("bad-1", Phase.ENDED, 0.0, exit_code=0, used=LastUse(1.0, 2**70)),
    "endless reason": Status("bad-1", Phase.ENDED, 0.0, reason=NodeLost(node="x" * 100_000)),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
async def test_status_that_nobody_can_store_is_dropped_alone(attacked: Attack, bad: Status) -> None:
    good = Status("good-1", Phase.RUNNING, attacked.clock.now())
    await attacked.report(bad, good)
    assert set(await attacked.statuses()) == {"good-1"}


@pytest.mark.parametrize(
    "url", ["javascript:alert(1)", "file:///etc/passwd", "http://h:99999/", "http://[", "http://h:0/"]
)
async def test_address_that_is_no_port_is_not_used(attacked: Attack, url: str) -> None:
    request = attacked.request()
    await attacked.report()
    await attacked.engine.start(request)
    await attacked.report(Status(request.attempt_id, Phase.RUNNING, attacked.clock.now(), url=url))
    assert (await attacked.statuses())[request.attempt_id].url is None


@pytest.mark.parametrize("port", [443, RESERVED])
async def test_port_that_the_installation_needs_is_not_listened_on(attacked: Attack, port: int) -> None:
    """Nothing can listen on 0.0.0.0:443 while 127.64.1.2:443 is taken."""
    request = attacked.request()
    await attacked.report()
    await attacked.engine.start(request)
    url = f"http://127.0.0.1:{port}/"
    await attacked.report(Status(request.attempt_id, Phase.RUNNING, attacked.clock.now(), url=url))
    found = (await attacked.statuses())[request.attempt_id].url
    assert found is not None
    assert urlsplit(found).port == port + 20_000


async def test_reserved_port_of_an_earlier_version_is_not_listened_on_again(tmp_path: Path) -> None:
    records = SiteRecords(tmp_path / "site.db")
    await records.open()
    tunnels = Tunnels("lab", records, _never, {28_000})
    tunnels.restore({"a-1": ("127.64.1.2", 443), "a-2": ("127.64.1.2", 28_000), "a-3": ("127.64.1.2", 28_001)})
    assert tunnels._addresses == {"a-3": ("127.64.1.2", 28_001)}
    tunnels.close()
    await records.close()


async def test_number_of_addresses_of_a_site_is_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("commonage.engines.remote.tunnels.MAX_TUNNELS", 3)
    records = SiteRecords(tmp_path / "site.db")
    await records.open()
    tunnels = Tunnels("lab", records, _never)
    urls = [tunnels.url(f"a-{number}", PORT_URL) for number in range(6)]
    assert [url is not None for url in urls] == [True] * 3 + [False] * 3
    assert [one.levelname for one in caplog.records] == ["WARNING"]
    tunnels.end("a-0")
    assert tunnels.url("a-5", PORT_URL) is not None
    tunnels.close()
    await records.close()


async def _never(_: str, __: socket.socket) -> None:
    raise AssertionError("nobody connects")


# --- runs of cron jobs ------------------------------------------------------------------------------------------------


async def test_runs_that_the_control_plane_ignores_are_not_known(attacked: Attack) -> None:
    """Else a site could invent attempts without limit, and each would get an address."""
    names = ("own-1", "../../etc", *(f"foreign-{number}" for number in range(20)))
    now = attacked.clock.now()
    runs = tuple(SiteRun("c1", now, now, make.allocation(one, site="lab")) for one in names)
    await attacked.report()

    async def adopt_first() -> None:
        async for report in attacked.engine.cron_site.reports():
            report.done.set_result(frozenset({"own-1"}))

    adopting = asyncio.create_task(adopt_first())
    await attacked.site.request(REPORT_RUNS, SiteRuns(runs))
    adopting.cancel()
    assert set(await attacked.statuses()) == {"own-1"}


async def test_number_of_runs_of_a_message_is_limited(attacked: Attack) -> None:
    run = SiteRun("c1", 1.0, 1.0)
    with pytest.raises(EngineFailure, match="1001 runs"):
        await attacked.site.request(REPORT_RUNS, SiteRuns((run,) * 1001))


IMPOSSIBLE = {
    "CPU time": SiteMeasured((Measurement("a-1", 1e306, 1),)),
    "memory": SiteMeasured((Measurement("a-1", 1.0, 10**400),)),
    "power": SiteMeasured((), (NodeDevices("n", (DeviceSample("GPU-1", 1, 0.5, power_w=1e308),)),)),
    "VRAM": SiteMeasured((), (NodeDevices("n", (DeviceSample("GPU-1", 10**400, 0.5),)),)),
}


@pytest.mark.parametrize("measured", IMPOSSIBLE.values(), ids=IMPOSSIBLE.keys())
async def test_impossible_measurement_is_bounded(tmp_path: Path, measured: SiteMeasured) -> None:
    async def measure(_: Nothing, __: OnProgress) -> SiteMeasured:
        return measured

    async with attack(tmp_path, {MEASURE: measure}) as attacked:
        attacked.site.send(REPORT, SiteReport(Capabilities("process"), (NodeReport("n", 1000, 1000),)))
        await attacked.report()
        for one in await attacked.engine.measure():
            assert max(one.cpu_s, one.memory_mib) <= 2**53
        assert len(attacked.engine.devices._measured) == len(measured.devices)
        for devices in attacked.engine.devices._measured:
            assert all(max(one.memory_used_mib or 0, one.power_w or 0) <= 2**53 for one in devices.samples)


async def test_each_reported_node_is_measured_once(tmp_path: Path) -> None:
    async def measure(_: Nothing, __: OnProgress) -> SiteMeasured:
        first = NodeDevices("n", (DeviceSample("GPU-1", 1, 0.5),))
        return SiteMeasured((), (first, *(NodeDevices("n", ()),) * 1000, *(NodeDevices("foreign", ()),) * 1000))

    async with attack(tmp_path, {MEASURE: measure}) as attacked:
        attacked.site.send(REPORT, SiteReport(Capabilities("process"), (NodeReport("n", 1000, 1000),)))
        await attacked.report()
        await attacked.engine.measure()
        (one,) = attacked.engine.devices._measured
        assert len(one.samples) == 1


async def test_texts_that_are_shown_are_short(tmp_path: Path) -> None:
    endless = "x" * 1_000_000

    async def fail(_: Any, __: OnProgress) -> SiteMeasured:
        raise EngineFailure(StartFailed(error=endless), native=endless)

    async with attack(tmp_path, {PREPARE: fail}) as attacked:
        attacked.site.send(REPORT, SiteReport(Capabilities("process"), failure=endless))
        await attacked.report()
        with pytest.raises(EngineFailure) as failed:
            await attacked.engine.prepare(make.environment())
        assert max(len(failed.value.message), len(failed.value.native)) <= MAX_TEXT
        with pytest.raises(EngineFailure) as failed:
            await attacked.engine.nodes()
        assert len(failed.value.message) < 2 * MAX_TEXT
        await attacked.site.request(STORE_WARNINGS, DeviceWarnings((DeviceWarning(1, "n", "a-1", endless),)))
        ((_, _, words),) = attacked.engine.devices.take_warnings()
        assert len(words) == MAX_TEXT


def test_folder_of_negative_size_is_not_counted() -> None:
    good = FolderSize("data", "lab", None, 1, size_mib=5)
    folders = [good, replace(good, size_mib=-(10**12)), replace(good, used_mib=-1), replace(good, size_mib=None)]
    assert checked_folders(folders, {"data"}) == (good, replace(good, size_mib=None))
    assert len(checked_folders([good] * 20_000, {"data"})) == 10_000
    assert len(checked_homes([HomeSize("ann", 1)] * 20_000)) == 10_000


async def test_chain_of_causes_is_shortened(tmp_path: Path) -> None:
    """Else reading it, or what it is wrapped in, is too deep for the interpreter."""
    why: Reason = SiteUnreachable(site="lab", since=0.0)
    for _ in range(150):
        why = NotDelivered(cause=why)

    async def keep(_: SiteTenants, __: OnProgress) -> TenantsWaiting:
        return TenantsWaiting((("lab", why),))

    async with attack(tmp_path, {KEEP_TENANTS: keep}) as attacked:
        attacked.site.send(REPORT, SiteReport(Capabilities("process"), keeps_tenants=True))
        await attacked.report()
        waiting = await attacked.engine.keep_tenants([Tenant("lab")])
        read: Any = waiting["lab"]
        causes = 0
        while isinstance(read, NotDelivered):
            read, causes = read.cause, causes + 1
        assert (causes, type(read)) == (MAX_CAUSES + 1, NewerReason)
        assert from_json(Reason, to_json(NotDelivered(cause=waiting["lab"]))), "wrapped and stored, it can be read"


async def test_time_of_no_calendar_has_a_text(attacked: Attack) -> None:
    """Notes of an engine are printed at each start of the server."""
    note = SiteUnreachable(site="lab", since=1e300)
    attacked.site.send(REPORT, SiteReport(Capabilities("process", notes=(note,))))
    await attacked.report()
    (kept,) = attacked.engine.capabilities().notes
    assert "9999" in text(kept)


async def test_text_that_no_database_holds_is_replaced(attacked: Attack) -> None:
    good = Sample("power_w", "device:/GPU-1", 1.0, 100.0)
    await attacked.site.request(STORE_SAMPLES, Samples((replace(good, subject="device:/\ud800", value=1e300), good)))
    stored = [(sample.subject, sample.value) for _, sample in attacked.stored]
    assert stored == [("device:lab/\ufffd", 2.0**53), ("device:lab/GPU-1", 100.0)]
    warned = DeviceWarnings((DeviceWarning(1, "n", "a-1", "a \ud800 \0 b"), DeviceWarning(2, "n", "a-1", r"\u0000")))
    await attacked.site.request(STORE_WARNINGS, warned)
    texts = [words for _, _, words in attacked.engine.devices.take_warnings()]
    assert texts == ["a \ufffd \ufffd b", r"\u0000"]


async def test_times_long_ago_are_no_longer_ago_than_ten_years(attacked: Attack) -> None:
    await attacked.report(Status("a-1", Phase.RUNNING, -1e15, started_at=-1e15))
    found = (await attacked.statuses())["a-1"]
    assert found.started_at is not None and attacked.clock.now() - found.started_at < 11 * 365 * 86400


async def test_times_in_the_future_become_now(attacked: Attack) -> None:
    await attacked.report(Status("later-1", Phase.RUNNING, 9e11, started_at=9e11))
    found = (await attacked.statuses())["later-1"]
    assert found.at <= attacked.clock.now()
    assert found.started_at is not None
    assert found.started_at <= attacked.clock.now()


# --- nodes ------------------------------------------------------------------------------------------------------------


async def test_report_has_own_nodes_only(attacked: Attack) -> None:
    node = NodeReport("node-1", 1000, 1000)
    nodes = (node, replace(node, cpus_milli=9), replace(node, name="other/node-1"), replace(node, name=""))
    bounds = Capabilities("process", bounded_on=("node-1", "elsewhere"), unbounded_on=("elsewhere",))
    attacked.site.send(REPORT, SiteReport(bounds, nodes))
    await attacked.report()
    assert list(await attacked.engine.nodes()) == [node]
    assert attacked.engine.capabilities().bounded_on == ("node-1",)
    assert attacked.engine.capabilities().unbounded_on == ()


async def test_node_with_more_devices_than_a_machine_has_is_not_kept(attacked: Attack) -> None:
    """The scheduler's arrays are as wide as the node with the most devices."""
    huge = NodeReport("huge", 1000, 1000, tuple(make.device(number) for number in range(257)))
    node = NodeReport("node-1", 1000, 1000, (make.device(),))
    attacked.site.send(REPORT, SiteReport(Capabilities("process"), (huge, node)))
    await attacked.report()
    assert list(await attacked.engine.nodes()) == [node]


async def test_number_of_devices_of_a_site_is_limited(attacked: Attack) -> None:
    full = [
        NodeReport(f"n-{node}", 1000, 1000, tuple(make.device(number) for number in range(250))) for node in range(50)
    ]
    attacked.site.send(REPORT, SiteReport(Capabilities("process"), tuple(full)))
    await attacked.report()
    assert sum(len(one.devices) for one in await attacked.engine.nodes()) == MAX_DEVICES


async def test_texts_of_a_report_can_be_stored(attacked: Attack) -> None:
    bad = NodeReport("node-1", 1000, 1000, labels=(("zone", "a\0b"),))
    attacked.site.send(REPORT, SiteReport(Capabilities("process"), (bad,)))
    await attacked.report()
    (node,) = await attacked.engine.nodes()
    assert node.labels == (("zone", "a\ufffdb"),)


@pytest.mark.parametrize("label", ["site", "node", "engine"])
def test_label_does_not_attract_workloads_of_another_site(label: str) -> None:
    node = make.node("node-1", labels=((label, "clinic"), ("zone", "a")))
    assert (label, "clinic") not in labels_of(node)
    assert ("zone", "a") in labels_of(node)


# --- samples ----------------------------------------------------------------------------------------------------------


async def test_samples_are_kept_with_the_site_that_sent_them(attacked: Attack) -> None:
    now = attacked.clock.now()
    named = ("node:clinic/node-1", "device:clinic/GPU-0", "platform", "node:/own")
    await attacked.site.request(STORE_SAMPLES, Samples(tuple(Sample("cpu_cores", one, now, 1.0) for one in named)))
    assert [(site, one.subject) for site, one in attacked.stored] == [("lab", "node:lab/own")]


async def test_samples_of_attempts_of_another_site_are_not_stored() -> None:
    clock, store, metrics = FakeClock(), MemoryStore(), KeptMetrics()
    await store.open()
    now = clock.now()
    attempts = []
    for site in ("lab", "clinic"):
        workload = make.workload(State.RUNNING)
        assert workload.attempt is not None
        allocation = replace(workload.attempt.allocation, site=site, at=now - 60)
        workload = replace(workload, attempt=replace(workload.attempt, allocation=allocation))
        await store.commit(Batch(inserts=[workload]))
        attempts.append(allocation.attempt_id)
    samples = [Sample("cpu_cores", f"attempt:{one}", now - 30, 1.0) for one in (*attempts, "evil", "")]
    samples.append(Sample("cpu_cores", f"attempt:{attempts[0]}", now - 9999, 1.0))
    samples.append(Sample("cpu_cores", f"attempt:{attempts[0]}", now + 9999, 1.0))
    await SiteSamples(store, metrics, clock).write("lab", samples)
    assert [(one.subject, one.at) for one in metrics.samples] == [(f"attempt:{attempts[0]}", now - 30)]
