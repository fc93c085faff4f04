"""Records played through the scheduler."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from commonage.domain.requests import Request, parse_gpus
from commonage.domain.tenants import Bounds, Quota, Rules, Tenant
from commonage.replay.clusters import parse_cluster
from commonage.replay.play import play, runnable_records
from commonage.replay.records import Record, Records

ONE_DEVICE = parse_cluster("1x1x24GiB:T4")


def record(number: int, gpus: str = "1", at: float = 0.0, lasts: float = 100.0, **more: object) -> Record:
    request = Request(1000, 1024, parse_gpus(gpus))
    made = Record(f"r{number:03}", "ada", "commons", request, at, lasts)
    return replace(made, **more)  # type: ignore[arg-type]  # fields of a record


def test_workloads_queue_for_one_device() -> None:
    played = play([record(0), record(1, at=10), record(2, at=20)], ONE_DEVICE, Rules())
    assert [(entry.started_at, entry.ended_at) for entry in played.ran] == [(0, 100), (100, 200), (200, 300)]
    assert [(entry.at, entry.gpu_milli, entry.waiting) for entry in played.samples] == [
        (0, 1000, 0), (10, 1000, 1), (20, 1000, 2), (100, 1000, 1), (200, 1000, 0), (300, 0, 0),
    ]  # fmt: skip
    assert played.figures.gpu_utilisation == 1.0
    assert played.figures.wait_p95_s == 180


def test_half_devices_run_in_parallel() -> None:
    played = play([record(0, "0.5"), record(1, "12GiB")], ONE_DEVICE, Rules())
    assert [workload.started_at for workload in played.ran] == [0, 0]


def test_quota_delays_its_tenant() -> None:
    recorded = [record(0), record(1, tenant="be", at=1.0), record(2, tenant="be", at=1.0)]
    free = play(recorded, parse_cluster("1x3"), Rules())
    rules = Rules(tenants=(Tenant("be", quota=Quota(Bounds(gpu_milli=1000), Bounds(gpu_milli=0))),))
    bound = play(recorded, parse_cluster("1x3"), rules)
    assert [one.started_at for one in free.ran] == [0, 1, 1]
    assert [one.started_at for one in bound.ran] == [0, 1, 101]


def test_preempted_workload_restarts_from_the_beginning() -> None:
    rules = Rules(guaranteed_s=0.0)
    recorded = [record(0, preemptible=True, priority=-50), record(1, at=40, priority=10)]
    low, high = play(recorded, ONE_DEVICE, rules).ran
    assert (high.started_at, high.ended_at) == (40, 140)
    assert (low.started_at, low.ended_at, low.preempted) == (0, 240, 1)


def test_unknown_models_and_omitted_workloads_are_noted() -> None:
    recorded = [record(0, "A100:1"), record(1, "T4:1"), record(2, "2"), record(3, "V100|t4:0.5")]
    runnable = runnable_records(Records(tuple(recorded)), ONE_DEVICE)
    gpus = [str(item.request.gpu) for item in runnable.items]
    assert gpus == ["1 whole GPU", "1 whole GPU (T4)", "0.5 of a GPU (V100 or t4)"]
    assert runnable.notes == (
        "1 requested a GPU model that no node has: replayed with any model",
        "1 workloads are omitted: no node could run them",
    )


def test_unfinished_workloads_do_not_stop_the_replay() -> None:
    played = play([record(0, "2"), record(1)], ONE_DEVICE, Rules())
    assert [workload.ended_at for workload in played.ran] == [None, 100]
    assert played.figures.unfinished == 1


records = st.builds(
    record,
    gpus=st.sampled_from(["0", "0.25", "0.5", "1", "2", "6GiB"]),
    at=st.floats(0, 500),
    lasts=st.floats(1, 1000),
    number=st.just(0),
    time_limit_s=st.none() | st.just(2000),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(records, min_size=1, max_size=25))
def test_every_record_runs_once_for_its_duration_within_capacity(drawn: list[Record]) -> None:
    recorded = sorted(
        (replace(workload, id=f"r{number:03}") for number, workload in enumerate(drawn)),
        key=lambda workload: workload.submitted_at,
    )
    played = play(recorded, parse_cluster("2x2x24GiB"), Rules())
    changes: dict[float, float] = defaultdict(float)
    for workload in played.ran:
        assert workload.started_at is not None
        assert workload.ended_at is not None
        assert workload.started_at >= workload.record.submitted_at
        assert abs(workload.ended_at - workload.started_at - workload.record.duration_s) < 1e-6
        gpu = workload.record.request.gpu
        part = 0.0 if gpu is None else gpu.whole + gpu.fraction_milli / 1000 + gpu.vram_mib / (24 * 1024)
        changes[round(workload.started_at, 6)] += part
        changes[round(workload.ended_at, 6)] -= part
    in_use = 0.0
    for at in sorted(changes):
        in_use += changes[at]
        assert in_use < 4 + 1e-6
    assert played == play(recorded, parse_cluster("2x2x24GiB"), Rules())
