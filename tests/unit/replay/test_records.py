"""Traces read into records, and errors of invalid traces."""

from __future__ import annotations

from pathlib import Path

import pytest

from commonage.domain.errors import InvalidInput
from commonage.domain.requests import GpuRequest, Request
from commonage.replay.records import read_trace

HEAD = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time"


def trace(folder: Path, *rows: str, head: str = HEAD) -> Path:
    path = folder / "trace.csv"
    path.write_text("\n".join([head, *rows]) + "\n")
    return path


def test_trace_rows_become_requests(tmp_path: Path) -> None:
    records = read_trace(
        trace(
            tmp_path,
            "b,6000,12288,1,460,,LS,Running,20,100,30",
            "a,12000,16384,1,1000,A100|V100,BE,Running,10,100,10",
            "c,1000,64,2,1000,,LS,Running,30,100,30",
            "d,500,64,0,0,,,Running,40,40,40",
        )
    ).items
    assert [record.id for record in records] == ["a", "b", "c", "d"]
    assert [record.request.gpu for record in records] == [
        GpuRequest(whole=1, model="A100|V100"),
        GpuRequest(fraction_milli=460),
        GpuRequest(whole=2),
        None,
    ]
    assert records[1].request == Request(6000, 12288, GpuRequest(fraction_milli=460))
    assert (records[1].submitted_at, records[1].duration_s, records[1].waited_s) == (20, 70, 10)
    assert [record.tenant for record in records] == ["be", "ls", "ls", "everybody"]
    assert records[3].duration_s == 1


def test_unstarted_workloads_are_omitted_with_a_note(tmp_path: Path) -> None:
    records = read_trace(trace(tmp_path, "a,1,1,0,0,,LS,Pending,10,100,", "b,1,1,0,0,,LS,Running,10,100,10"))
    assert [record.id for record in records.items] == ["b"]
    assert records.notes == ("1 workloads that never started are omitted: their durations are unknown",)


@pytest.mark.parametrize(
    ("rows", "head", "message"),
    [
        (["a,1"], "name,cpu_milli", "has no column memory_mib, num_gpu"),
        ([], HEAD, "no workload that started"),
        (["a,x,1,0,0,,LS,Running,1,2,1"], HEAD, "line 2: expected a number"),
        (["a,1,1,0,0,,LS,Running,1"], HEAD, "line 2: expected a number"),
    ],
)
def test_invalid_trace_raises_a_precise_error(tmp_path: Path, rows: list[str], head: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        read_trace(trace(tmp_path, *rows, head=head))


def test_missing_trace_raises_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be read: No such file"):
        read_trace(tmp_path / "nothing.csv")


def test_time_limits_are_added_only_if_missing(tmp_path: Path) -> None:
    records = read_trace(trace(tmp_path, "a,1,1,0,0,,LS,Running,0,1000,0", "b,1,1,0,0,,LS,Running,500,510,500"))
    assert [record.time_limit_s for record in records.with_limits(2).items] == [2000, 60]
    assert [record.time_limit_s for record in records.with_limits(2).with_limits(9).items] == [2000, 60]
    assert records.with_limits(None) == records
    assert [record.id for record in records.of_the_last(100).items] == ["b"]
