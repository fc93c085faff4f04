"""Metrics for a scraper: figures of the live state, in a form that parses, for permitted readers only."""

from collections.abc import Mapping

import httpx2
import pytest
from fastapi import FastAPI
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from commonage.control.control import Control
from commonage.control.usage.attribution import UnattributedProcess
from commonage.domain.errors import Unavailable
from commonage.domain.workloads import State
from commonage.metrics.http_meter import HttpMeter
from commonage.metrics.prometheus import COUNT_EVERY_S, PATH, Exposition, metrics_router
from commonage.metrics.series import SERIES
from commonage.ports.store import Batch
from commonage.testing import factories
from commonage.testing.fakes.clock import FakeClock
from commonage.testing.fakes.store import MemoryStore

pytestmark = pytest.mark.anyio

DEVICE = {
    "site": "local",
    "node": "node-1",
    "device": "0",
    "uuid": "GPU-real",
    "model": "NVIDIA A30",
    "simulated": "false",
}
AS_DCGM = {
    "gpu": "0",
    "UUID": "GPU-real",
    "device": "nvidia0",
    "modelName": "NVIDIA A30",
    "Hostname": "node-1",
    "simulated": "false",
}
MIB = 1024 * 1024


async def scraped(control: Control, meter: HttpMeter | None = None) -> dict[str, Metric]:
    text, _ = await Exposition(control, meter).render()
    return {family.name: family for family in parse(text.decode())}


def value(families: Mapping[str, Metric], name: str, **labels: str) -> float:
    """The one value of this series; the parser drops a counter's ending from its family's name."""
    family = families.get(name) or families[name.removesuffix("_total")]
    found = [sample.value for sample in family.samples if sample.name == name and labels == sample.labels]
    assert len(found) == 1, family.samples
    return found[0]


async def call(app: object, **headers: str) -> httpx2.Response:
    transport = httpx2.ASGITransport(app=app)  # type: ignore[arg-type]
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as asks:
        return await asks.get(PATH, headers=named)


async def test_everything_in_the_table_is_given_and_nothing_else(control: Control) -> None:
    control.schedule.iterations.end()
    meter = HttpMeter()
    app = FastAPI()
    app.include_router(metrics_router(control, meter))
    await call(meter.around(app))
    families = await scraped(control, meter)
    given = {name for name in families if not name.startswith("process_") and not name.endswith("_created")}
    assert given == {series.name.removesuffix("_total") for series in SERIES}
    assert all(family.documentation for family in families.values())


async def test_work_is_counted_by_state_and_kind(control: Control) -> None:
    families = await scraped(control)
    assert value(families, "commonage_workloads", state="running", kind="session") == 1
    assert value(families, "commonage_workloads", state="queued", kind="job") == 1
    assert value(families, "commonage_workloads", state="held", kind="job") == 1
    assert value(families, "commonage_workloads", state="running", kind="job") == 0
    assert value(families, "commonage_queue_length") == 1
    assert value(families, "commonage_queue_oldest_seconds") == 90
    assert value(families, "commonage_active_users") == 2


async def test_shares_are_watched(control: Control) -> None:
    running = control.live_state.in_state(State.RUNNING)[0]
    assert running.attempt is not None
    spec = running.spec
    control.sampling.vram = {running.attempt.id: 300, "1m7ytqacd6d5a-1": 99}
    control.watchdog.counts["warned"] += 2
    control.watchdog.unattributed_processes = {
        factories.device_key("GPU-real"): (UnattributedProcess(99, 70, "blender"), UnattributedProcess(98, None, ""))
    }
    families = await scraped(control)
    used = value(families, "commonage_workloads_used_gpu_memory_bytes", tenant=spec.tenant, kind=spec.kind)
    assert used == 300 * MIB
    assert value(families, "commonage_watchdog_workloads_total", action="warned") == 2
    assert value(families, "commonage_watchdog_workloads_total", action="stopped") == 0
    assert value(families, "commonage_over_share_workloads") == 0
    assert value(families, "commonage_device_unattributed_memory_bytes", **DEVICE) == 70 * MIB


async def test_nodes_and_devices_say_what_is_held_and_what_is_used(control: Control) -> None:
    families = await scraped(control)
    assert value(families, "commonage_node_cpu_cores", site="local", node="node-1") == 8
    assert value(families, "commonage_node_allocated_cpu_cores", site="local", node="node-1") == 2
    assert value(families, "commonage_node_allocated_memory_bytes", site="local", node="node-1") == 4096 * MIB
    assert value(families, "commonage_node_free_disk_bytes", site="local", node="node-1") == 1024 * MIB
    assert value(families, "commonage_device_allocated_memory_bytes", **DEVICE) == 6 * 1024 * MIB
    assert value(families, "commonage_device_used_memory_bytes", **DEVICE) == 2048 * MIB
    assert value(families, "commonage_device_allocated_compute_ratio", **DEVICE) == 0.25
    assert value(families, "commonage_device_utilisation_ratio", **DEVICE) == 0.75
    assert value(families, "commonage_device_power_watts", **DEVICE) == 120
    assert value(families, "commonage_device_energy_joules_total", **DEVICE) == 5000
    assert value(families, "commonage_device_clock_hertz", **DEVICE, domain="sm") == 1_410_000_000
    assert value(families, "commonage_device_throttled_info", **DEVICE, reason="temperature") == 1
    assert value(families, "commonage_device_memory_errors_total", **DEVICE, corrected="false") == 1


async def test_devices_have_their_dcgm_names_and_units(control: Control) -> None:
    families = await scraped(control)
    assert value(families, "DCGM_FI_DEV_FB_USED", **AS_DCGM) == 2048
    assert value(families, "DCGM_FI_DEV_FB_FREE", **AS_DCGM) == factories.DEVICE_MIB - 2048
    assert value(families, "DCGM_FI_DEV_GPU_UTIL", **AS_DCGM) == 75
    assert value(families, "DCGM_FI_DEV_POWER_USAGE", **AS_DCGM) == 120
    assert value(families, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", **AS_DCGM) == 5_000_000
    assert value(families, "DCGM_FI_DEV_SM_CLOCK", **AS_DCGM) == 1410
    assert value(families, "DCGM_FI_DEV_XID_ERRORS", **AS_DCGM) == 31
    assert value(families, "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", **AS_DCGM) == 1


async def test_what_was_not_measured_is_absent_rather_than_zero(control: Control) -> None:
    families = await scraped(control)
    measured = {sample.labels["uuid"] for sample in families["commonage_device_used_memory_bytes"].samples}
    assert measured == {"GPU-real"}
    faults = {sample.labels["uuid"]: sample.value for sample in families["commonage_device_faults"].samples}
    assert faults == {"GPU-real": 0, "GPU-sick": 1}


async def test_a_lost_node_counts_and_offers_nothing(control: Control) -> None:
    families = await scraped(control)
    assert value(families, "commonage_nodes", state="lost") == 1
    assert [sample.labels["node"] for sample in families["commonage_node_cpu_cores"].samples] == ["node-1"]


async def test_what_has_ended_is_asked_of_the_store_now_and_then(control: Control) -> None:
    store, clock = control.store, control.clock
    assert isinstance(store, MemoryStore) and isinstance(clock, FakeClock)
    exposition = Exposition(control)
    for expected, passed_s in ((1, 0.0), (1, COUNT_EVERY_S / 2), (3, COUNT_EVERY_S)):
        await store.commit(Batch(inserts=[factories.workload(State.SUCCEEDED)]))
        await clock.advance(passed_s)
        text, _ = await exposition.render()
        families = {family.name: family for family in parse(text.decode())}
        assert value(families, "commonage_workloads_ended_total", state="succeeded") == expected
        assert value(families, "commonage_workloads_ended_total", state="failed") == 0


async def test_openmetrics_where_it_is_asked_for(control: Control) -> None:
    text, content_type = await Exposition(control, HttpMeter()).render("application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert "commonage_workloads" in {family.name for family in parse_openmetrics(text.decode())}


async def test_rendering_does_not_block_the_loop(control: Control, no_blocking: None) -> None:
    assert (await Exposition(control).render())[0]


@pytest.fixture
def app(control: Control) -> FastAPI:
    made = FastAPI()
    made.include_router(metrics_router(control))
    return made


async def test_a_local_process_needs_a_token_as_everybody_does(app: FastAPI) -> None:
    assert (await call(app)).status_code == 401


async def test_the_text_is_that_of_prometheus(app: FastAPI) -> None:
    answer = await call(app, authorization="Bearer reader")
    assert answer.headers["content-type"].startswith("text/plain")


@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        ("Bearer reader", 200),
        ("token admin", 200),
        ("Bearer submitter", 403),
        ("Bearer user", 403),
        ("Bearer nobody", 401),
        ("Basic reader", 401),
        ("Bearer ", 401),
    ],
)
async def test_the_token_of_an_operator_is_needed(app: FastAPI, authorization: str, status: int) -> None:
    answer = await call(app, authorization=authorization)
    assert answer.status_code == status
    assert ("commonage_workloads{" in answer.text) == (status == 200)


async def test_without_the_database_the_other_figures_come(control: Control) -> None:
    assert isinstance(control.store, MemoryStore)
    control.store.trouble = Unavailable("the database does not answer")
    control.writer.stuck = True
    families = await scraped(control)
    assert value(families, "commonage_store_up") == 0
    assert value(families, "commonage_queue_length") == 1
    assert "commonage_workloads_ended" not in families


async def test_requests_are_counted_by_area_and_class(control: Control) -> None:
    meter = HttpMeter()
    app = FastAPI()
    app.include_router(metrics_router(control, meter))
    measured = meter.around(app)
    await call(measured, authorization="Bearer reader")
    await call(measured)
    families = await scraped(control, meter)
    assert value(families, "commonage_http_requests_total", area="portal", method="GET", status="2xx") == 1
    assert value(families, "commonage_http_requests_total", area="portal", method="GET", status="4xx") == 1
    counts = [one for one in families["commonage_http_request_seconds"].samples if one.name.endswith("_count")]
    assert [(one.labels, one.value) for one in counts] == [({"area": "portal"}, 2)]


async def test_measured_use_of_a_node_is_in_base_units(control: Control) -> None:
    families = await scraped(control)
    assert value(families, "commonage_node_used_cpu_cores", site="local", node="node-1") == 1.5
    assert value(families, "commonage_node_used_memory_bytes", site="local", node="node-1") == 2048 * MIB
    assert value(families, "commonage_node_used_disk_bytes", site="local", node="node-1") == 100 * MIB
    assert value(families, "commonage_node_network_sent_bytes_per_second", site="local", node="node-1") == 40.0
    assert value(families, "commonage_node_temperature_celsius", site="local", node="node-1") == 55.0
