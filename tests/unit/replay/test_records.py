"""Traces read into records, and what is wrong with those that cannot be."""

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


def test_shares_whole_devices_and_none(tmp_path: Path) -> None:
    found = read_trace(
        trace(
            tmp_path,
            "b,6000,12288,1,460,,LS,Running,20,100,30",
            "a,12000,16384,1,1000,A100|V100,BE,Running,10,100,10",
            "c,1000,64,2,1000,,LS,Running,30,100,30",
            "d,500,64,0,0,,,Running,40,40,40",
        )
    ).items
    assert [one.id for one in found] == ["a", "b", "c", "d"]
    assert [one.request.gpu for one in found] == [
        GpuRequest(whole=1, model="A100|V100"),
        GpuRequest(fraction_milli=460),
        GpuRequest(whole=2),
        None,
    ]
    assert found[1].request == Request(6000, 12288, GpuRequest(fraction_milli=460))
    assert (found[1].submitted_at, found[1].duration_s, found[1].waited_s) == (20, 70, 10)
    assert [one.tenant for one in found] == ["be", "ls", "ls", "everybody"]
    assert found[3].duration_s == 1


def test_what_never_started_is_left_out_and_said(tmp_path: Path) -> None:
    found = read_trace(trace(tmp_path, "a,1,1,0,0,,LS,Pending,10,100,", "b,1,1,0,0,,LS,Running,10,100,10"))
    assert [one.id for one in found.items] == ["b"]
    assert found.notes == ("1 that never started are left out: nobody knows how long they take",)


@pytest.mark.parametrize(
    ("rows", "head", "says"),
    [
        (["a,1"], "name,cpu_milli", "has no column memory_mib, num_gpu"),
        ([], HEAD, "no workload that ever started"),
        (["a,x,1,0,0,,LS,Running,1,2,1"], HEAD, "line 2: a number is wanted"),
        (["a,1,1,0,0,,LS,Running,1"], HEAD, "line 2: a number is wanted"),
    ],
)
def test_a_file_that_cannot_be_replayed_says_why(tmp_path: Path, rows: list[str], head: str, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        read_trace(trace(tmp_path, *rows, head=head))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be read: No such file"):
        read_trace(tmp_path / "nothing.csv")


def test_limits_are_given_only_where_none_are(tmp_path: Path) -> None:
    records = read_trace(trace(tmp_path, "a,1,1,0,0,,LS,Running,0,1000,0", "b,1,1,0,0,,LS,Running,500,510,500"))
    assert [one.time_limit_s for one in records.with_limits(2).items] == [2000, 60]
    assert [one.time_limit_s for one in records.with_limits(2).with_limits(9).items] == [2000, 60]
    assert records.with_limits(None) == records
    assert [one.id for one in records.of_the_last(100).items] == ["b"]
