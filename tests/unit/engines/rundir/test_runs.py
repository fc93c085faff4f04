"""Runs that are read back from run folders."""

import os
import resource
import time
from pathlib import Path

import pytest

from commonage.domain.errors import EngineFailure
from commonage.domain.images import Environment
from commonage.domain.nodes import Allocation, Isolation, Share
from commonage.domain.reasons.attempts import NodeLost, StartFailed
from commonage.domain.statuses import StartRequest
from commonage.domain.workloads import Kind
from commonage.engines.process.node import PortRange
from commonage.engines.rundir.runs import Exit, Runs
from commonage.files.safe_path import SafePath

SHARE = Share("GPU-1", 0, "A100", 6144, 250, False, 24576, True, Isolation.COOPERATIVE)
REQUEST = StartRequest(
    attempt_id="a-1",
    workload_id="a",
    kind=Kind.SESSION,
    name="übung",
    owner="ada",
    tenant="lab",
    environment=Environment("base", "Base", requirements=("numpy",), kinds=(Kind.JOB,), variables=(("A", "b"),)),
    command=("python", "a\n'\"b"),
    allocation=Allocation("a-1", "local", "here", 1500, 1024, (SHARE,), 12.5),
    variables=(("X", "y"),),
    secrets=(("KEY", "sesame"),),
    wants_port=True,
)


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    made = Runs(tmp_path / "runs")
    made.open()
    return made


def test_request_is_read_back_unchanged(runs: Runs) -> None:
    folder = runs.create(REQUEST, 20_001)
    assert folder.request() == (REQUEST, 20_001)
    assert runs.all() == ["a-1"]
    assert b"sesame" not in (folder.path / "request.json").read_bytes()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"port": 1}', b'{"port": 1, "order": {"attempt_id": 1}}'])
def test_incomplete_request_is_none(runs: Runs, content: bytes) -> None:
    folder = runs.create(REQUEST, None)
    (folder.path / "request.json").write_bytes(content)
    assert folder.request() is None


def test_after_the_end_the_secrets_are_gone_but_the_request_is_there(runs: Runs) -> None:
    folder = runs.create(REQUEST, None)
    (folder.tmp / "left").mkdir()
    folder.tidy()
    folder.tidy()
    read = folder.request()
    assert read is not None
    assert read[0].secrets == ()
    assert not folder.tmp.exists()


def test_only_one_claim_holds(runs: Runs) -> None:
    folder = runs.create(REQUEST, None)
    assert folder.runner() is None
    assert folder.forbid_start()
    assert not folder.forbid_start()
    runner = folder.runner()
    assert runner is not None
    assert runner.is_forbidden


def test_claim_fails_on_full_disk(runs: Runs) -> None:
    """An incomplete one would prevent every start, without a visible reason."""
    folder = runs.create(REQUEST, None)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            folder.forbid_start()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not (folder.path / "pid").exists()
    assert folder.forbid_start()


def test_claim_identifies_one_process(runs: Runs) -> None:
    folder = runs.create(REQUEST, None)
    (folder.path / "pid").write_text("12 3456 boot\n")
    runner = folder.runner()
    assert runner is not None
    assert (runner.pid, runner.began, runner.boot_id, runner.is_forbidden) == (12, 3456, "boot", False)
    (folder.path / "pid").write_text("12")
    assert folder.runner() is None


def test_exits_are_read_as_the_shim_and_as_we_write_them(runs: Runs) -> None:
    folder = runs.create(REQUEST, None)
    assert folder.exit() is None
    (folder.path / "exit").write_text("")
    assert folder.exit() is None
    assert folder.has_empty_exit()
    (folder.path / "exit").write_text("137\n")
    read = folder.exit()
    assert read is not None
    assert (read.code, read.reason, read.oom) == (137, None, False)
    for end in (
        Exit(137, None, 100.0, oom=True),
        Exit(None, NodeLost(node="n"), 100.5),
        Exit(1, StartFailed(error="so"), 7.25),
    ):
        folder.write_exit(end)
        assert folder.exit() == end


def test_forgotten_run_keeps_its_log(runs: Runs) -> None:
    folder = runs.create(REQUEST, None)
    folder.log.path.write_text("hello")
    runs.forget("a-1")
    runs.forget("a-1")
    place = runs.log_path("a-1")
    assert place is not None
    assert place.read(9) == b"hello"
    assert place.parent.list_names() == ["log"]
    assert runs.is_forgotten("a-1")
    assert runs.all() == []


@pytest.mark.parametrize("name", ["", ".", "..", "../a", "a/b", ".old", "a b", "x" * 101, "a\0"])
def test_invalid_id_reaches_no_folder(runs: Runs, name: str) -> None:
    assert runs.log_path(name) is None
    with pytest.raises(EngineFailure):
        runs.folder(name)


def test_ports_are_given_in_turn_and_not_twice() -> None:
    first = 20_900 + int(time.time()) % 50
    ports = PortRange(first, first + 2, start=first)
    taken = [ports.take(one) for one in "abc"]
    assert len(set(taken)) == 3
    with pytest.raises(EngineFailure, match="no port"):
        ports.take("d")
    ports.give_back(taken[1], "b")
    assert ports.take("d") == taken[1]
    ports.give_back(taken[0], "a")
    ports.hold(taken[0], "e")
    with pytest.raises(EngineFailure):
        ports.take("f")


def test_a_port_given_back_twice_is_not_taken_from_its_next_attempt() -> None:
    first = 20_900 + int(time.time()) % 50
    ports = PortRange(first, first, start=first)
    ports.take("ended")
    ports.give_back(first, "ended")
    ports.take("next")
    ports.give_back(first, "ended")
    with pytest.raises(EngineFailure, match="no port"):
        ports.take("third")


def test_a_gang_holds_its_port_until_its_last_member_ends() -> None:
    first = 20_900 + int(time.time()) % 50
    ports = PortRange(first, first, start=first)
    ports.take("rank-0")
    ports.hold(first, "rank-1")
    ports.give_back(first, "rank-0")
    with pytest.raises(EngineFailure, match="no port"):
        ports.take("other")
    ports.give_back(first, "rank-1")
    assert ports.take("other") == first


def test_ports_begin_where_they_are_told_and_go_on_at_the_first() -> None:
    first = 20_960 + int(time.time()) % 30
    ports = PortRange(first, first + 2, start=first + 1)
    assert [ports.take(one) for one in "abc"] == [first + 1, first + 2, first]


def test_other_nodes_see_only_the_log(tmp_path: Path) -> None:
    runs = Runs(tmp_path / "runs", SafePath(tmp_path / "shared") / "attempts")
    runs.open()
    folder = runs.create(REQUEST, 20_001)
    seen = tmp_path / "shared" / "attempts"
    assert sorted(str(one.relative_to(seen)) for one in seen.rglob("*")) == [".old", "a-1", "a-1/log"]
    assert folder.request() == (REQUEST, 20_001)
    (seen / "forged").mkdir()
    (seen / "forged" / "request.json").write_bytes((folder.path / "request.json").read_bytes())
    assert runs.load() == [(REQUEST, 20_001)], "what was forged is not taken up"
    (seen / "a-1" / "log").write_text("hello")
    (seen / "a-1" / "more").mkdir()
    runs.forget("a-1")
    place = runs.log_path("a-1")
    assert place is not None
    assert (place.read(9), place.parent.list_names(), runs.is_forgotten("a-1")) == (b"hello", ["log"], True)
    assert runs.clear_old(time.time() + 100 * 86_400, 90 * 86_400, 1) == 1
    assert (os.listdir(seen / ".old"), os.listdir(tmp_path / "runs" / ".old")) == ([], [])
    runs.create(REQUEST, None)
    runs.remove("a-1")
    assert (runs.all(), (seen / "a-1").exists()) == ([], False)


def test_link_in_place_of_forgotten_run_is_not_followed(tmp_path: Path) -> None:
    runs = Runs(tmp_path / "runs", SafePath(tmp_path / "shared") / "attempts")
    runs.open()
    runs.create(REQUEST, None)
    elsewhere, mine = tmp_path / "elsewhere", tmp_path / "shared" / "attempts" / "a-1"
    elsewhere.mkdir()
    (elsewhere / "key").write_text("secret")
    (mine / "log").unlink()
    mine.rmdir()
    mine.symlink_to(elsewhere)
    runs.forget("a-1")
    assert (runs.log_path("a-1"), runs.is_forgotten("a-1")) == (None, True)
    assert os.listdir(elsewhere) == ["key"]
