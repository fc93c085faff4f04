"""Translation of Swarm's states of tasks into statuses."""

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.engines.containers.test_program import request

from commonage.domain.nodes import Allocation, Share
from commonage.domain.reasons import attempts
from commonage.engines.containers.files.control_folder import End, StartDecision
from commonage.engines.swarm.statuses import (
    EndContext,
    attempt_of,
    end_of,
    ended_by_itself,
    has_ended,
    is_refused_room,
    runs,
    waiting_reason,
)

ABOUT = EndContext("worker1", StartDecision.STARTED, False, None, False, False, 2000.0)


def task(state: str, *, code: int | None = None, err: str = "") -> dict[str, Any]:
    container = {} if code is None else {"ContainerStatus": {"ExitCode": code}}
    status = {"State": state, "Timestamp": "1970-01-01T00:13:20.5Z", "Err": err, **container}
    spec = {"ContainerSpec": {"Labels": {"commonage.attempt": "w-1"}}}
    return {"ID": "t", "ServiceID": "id-0", "Status": status, "Spec": spec}


def said(code: int, *, oom: bool = False, signalled: bool = False) -> End:
    return End(code, oom, signalled, 700.0)


def test_a_task_says_whose_it_is_and_whether_it_runs() -> None:
    assert attempt_of(task("running")) == "w-1"
    assert attempt_of({"Spec": {"ContainerSpec": {}}}) == ""
    assert runs(task("running"))
    assert not has_ended(task("running"))
    assert all(has_ended(task(state)) for state in ("complete", "failed", "shutdown", "rejected", "orphaned"))
    assert [state for state in ("complete", "failed", "shutdown", "running") if ended_by_itself(task(state))] == [
        "complete",
        "failed",
    ]


@pytest.mark.parametrize("code", [0, 1, 127, 137, 143])
def test_exit_code_is_the_programs_own(code: int) -> None:
    end = end_of(task("failed" if code else "complete", code=code), replace(ABOUT, end=said(code)))
    assert (end.code, end.reason, end.oom) == (code, None, False)
    assert end.at == 800.5, "by Swarm's clock: the control folder is its owner's to write to"


def test_oom_is_recognized() -> None:
    assert end_of(task("failed", code=137), replace(ABOUT, end=said(137, oom=True))).oom
    assert not end_of(task("complete", code=0), replace(ABOUT, end=said(0, oom=True))).oom


@pytest.mark.parametrize(
    ("state", "code", "change"),
    [
        ("failed", 137, {}),  # the whole container was killed: the entry could not leave word
        ("failed", 143, {"end": said(143, signalled=True)}),
        ("complete", 0, {"end": said(0, signalled=True)}),
        ("shutdown", 0, {}),
        ("failed", 3, {"restarted": True}),
    ],
)
def test_externally_ended_attempt_is_lost(state: str, code: int, change: dict[str, Any]) -> None:
    end = end_of(task(state, code=code), replace(ABOUT, **change))
    assert end.code is None
    assert end.reason


def test_stopped_attempt_is_not_lost() -> None:
    stop_requested = replace(ABOUT, stop_requested=True)
    assert end_of(task("failed", code=137), stop_requested).code == 137
    assert end_of(task("failed", code=143), replace(stop_requested, end=said(143, signalled=True))).code == 143


def test_full_disk_keeps_exit_code() -> None:
    assert end_of(task("failed", code=5), replace(ABOUT, could_not_write=True)).code == 5


def test_unstarted_task_has_its_reason() -> None:
    never = replace(ABOUT, decision=StartDecision.UNDECIDED)
    missing = end_of(task("rejected", err="invalid mount: bind source path does not exist: /srv/site/x"), never)
    assert missing.code is None, "the folder may be mounted elsewhere, or again"
    assert missing.reason == attempts.SharedFolderNotMounted(node="worker1", path="/srv/site/x")
    taken = end_of(task("failed", err="driver failed: Bind for 0.0.0.0:20001 failed: port is already allocated"), never)
    assert taken.code is None, "another port is tried with the next attempt"
    withdrawn = end_of(task("rejected", err="assigned node no longer meets constraints"), never)
    assert (withdrawn.code, type(withdrawn.reason)) == (None, attempts.SwarmWithdrew), "it may begin again"
    image = end_of(task("rejected", err="No such image: away:1"), never)
    assert image.code == 1
    assert isinstance(image.reason, attempts.ContainerStartFailed)
    assert image.reason.error == "its image is not on the node"
    full = end_of(task("rejected", err="mkdir /var/lib/docker/x: no space left on device"), never)
    assert isinstance(full.reason, attempts.ContainerStartFailed)
    assert (full.code, full.reason.node) == (None, "worker1")
    assert full.reason.error == "the disk of the Docker daemon is full"
    overlaps = end_of(task("rejected", err="Pool overlaps with other one on this address space"), never)
    assert isinstance(overlaps.reason, attempts.ContainerStartFailed)
    assert (overlaps.code, "not yet removed a network" in overlaps.reason.error) == (None, True), "soon it will have"
    unknown = end_of(task("rejected", err="failed to create shim task: EOF"), never)
    assert isinstance(unknown.reason, attempts.ContainerStartFailed)
    assert unknown.code is None, "the node did not start it: another one may, or this one a moment later"
    ended = end_of(task("failed", code=127, err="task: non-zero exit (127): no such file"), never)
    assert ended.code == 127, "its first process ended: that is the image's"
    unloaded = end_of(task("failed", code=96, err="task: non-zero exit (96)"), replace(never, is_interposed=True))
    assert unloaded.code == 96
    assert unloaded.reason == attempts.InterposerNotLoaded(path="/usr/local/vgpu/libvgpu.so")
    gone = end_of(task("shutdown"), never)
    assert gone.code is None
    early = end_of(task("failed", code=143), replace(ABOUT, decision=StartDecision.FORBIDDEN))
    assert (early.code, early.reason) == (143, attempts.StoppedBeforeStart())


def test_waiting_says_for_what() -> None:
    share = Share("GPU-a", 0, "A100", 8192, 500, False, 40960)
    stop = request(allocation=Allocation("w-1", "local", "worker1", 1000, 2048, (share,), 0.0))
    preparing = waiting_reason(task("preparing"), stop, declares_vram=True)
    assert preparing == attempts.PreparingOnNode(node="worker1")
    pending = task("pending", err="no suitable node (insufficient resources on 1 node)")
    assert is_refused_room(pending)
    assert waiting_reason(pending, stop, declares_vram=True) == attempts.SwarmSeesNoRoom(
        node="worker1", memory_mib=2048, gpu_memory_mib=8192
    )
    other = task("pending", err="no suitable node (host-mode port already in use on 1 node)")
    refused = waiting_reason(other, stop, declares_vram=True)
    assert isinstance(refused, attempts.SwarmRefuses) and "host-mode port already in use" in refused.error
