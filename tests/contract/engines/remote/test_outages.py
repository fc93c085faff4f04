"""An appliance whose link is cut, or where either side is restarted or killed: nothing is lost, nothing runs twice."""

import asyncio
import json
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from tests.contract.engines.remote.rig import SITE, RemoteFakeRig, RemoteRealRig
from tests.contract.engines.rigs import ProcessRig

from commonage.domain.codec import to_json
from commonage.domain.errors import CommonageError, EngineFailure
from commonage.domain.reasons.attempts import NotDelivered, StoppedBeforeStart
from commonage.domain.reasons.nodes import SiteUnreachable
from commonage.domain.statuses import Phase, Status
from commonage.engines.remote.commands import WITHDRAW_AFTER_S
from commonage.engines.remote.engine import GRACE_S
from commonage.engines.settings import ProcessSettings
from commonage.link.sites.messages.engine import Start
from commonage.link.sites.sqlite_file import SqliteFile, Statement
from commonage.testing.behaviour import Aside, Behaviour
from commonage.testing.engine_rig import FOREVER

pytestmark = pytest.mark.anyio


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[RemoteFakeRig]:
    rig = RemoteFakeRig(tmp_path)
    await rig.engine()
    yield rig
    await rig.close()


@pytest.fixture
async def real(tmp_path: Path) -> AsyncIterator[RemoteRealRig]:
    rig = RemoteRealRig(ProcessRig(tmp_path / "data", ProcessSettings(node_name="here", cgroups=False)), tmp_path)
    await rig.engine()
    yield rig
    await rig.close()


async def unreachable(rig: RemoteFakeRig) -> None:
    await rig.cut()
    await rig.pass_time(GRACE_S + 1)


async def pass_rounds(rig: RemoteFakeRig, rounds: int) -> None:
    """Let the agent measure that often, and write it to disk each time."""
    agent = rig.agent
    assert agent is not None
    for number in range(rounds):

        async def is_written(number: int = number) -> bool:
            return len(await agent._file.read("SELECT id FROM samples")) > number

        await rig.until(is_written, "the round is written")


# --- what users and the core see --------------------------------------------------------------------------------------


async def test_unreachable_site_keeps_its_last_known_state(rig: RemoteFakeRig) -> None:
    engine = await rig.engine()
    request = await rig.started(rig.start_request(FOREVER))

    async def are_reported() -> bool:
        return bool(await engine.environments())

    await rig.until(are_reported, "the environments are reported")
    [known] = await engine.statuses()
    cut_at = rig.clock.now()
    await unreachable(rig)
    assert await engine.statuses() == [known], "a workload keeps its state, so that it is not requeued"
    [node] = await engine.nodes()
    assert node.gone
    assert node.awaits_admin == SiteUnreachable(site=SITE, since=cut_at)
    assert node.faults == (node.awaits_admin,)
    assert {one.reason for one in await engine.environments()} == {node.awaits_admin}
    assert list(await engine.measure()) == []
    await rig.connect()
    assert [one.gone for one in await engine.nodes()] == [False]
    assert (await rig.phase(request.attempt_id, Phase.RUNNING)) == known


async def test_short_interruption_is_not_shown(rig: RemoteFakeRig) -> None:
    engine = await rig.engine()
    before = await engine.nodes()
    await rig.cut()
    assert await engine.nodes() == before


@pytest.mark.parametrize("call", ["logs", "exec", "prepare"])
async def test_call_that_needs_an_answer_fails_at_once(rig: RemoteFakeRig, call: str) -> None:
    engine = await rig.engine()
    request = await rig.started(rig.start_request(FOREVER))
    await rig.cut()

    async def read_log() -> None:
        await rig.log(request.attempt_id)

    async def run_command() -> None:
        await engine.exec(request.attempt_id, ("true",))

    calls: dict[str, Callable[[], Awaitable[None]]] = {
        "logs": read_log,
        "exec": run_command,
        "prepare": lambda: engine.prepare(request.environment),
    }
    with pytest.raises(EngineFailure) as failure:
        await calls[call]()
    assert isinstance(failure.value.reason, SiteUnreachable)
    assert failure.value.is_retryable


async def test_state_survives_a_restart_of_the_control_plane_without_the_site(rig: RemoteFakeRig) -> None:
    request = await rig.started(rig.start_request(FOREVER))
    known = await rig.status(request.attempt_id)
    capabilities = (await rig.engine()).capabilities()
    cut_at = rig.clock.now()
    await rig.stop_control()
    await rig.pass_time(100)
    engine = await rig.start_control()
    await rig.pass_time(GRACE_S + 1)
    assert await engine.statuses() == [known]
    assert engine.capabilities() == capabilities
    assert engine.unreachable == SiteUnreachable(site=SITE, since=cut_at), "since the last contact, not since its start"


# --- autonomy ---------------------------------------------------------------------------------------------------------


async def test_ends_of_an_outage_are_reported_once_and_kept_until_forgotten(rig: RemoteFakeRig) -> None:
    engine = await rig.engine()
    ends, lasts = rig.start_request(Behaviour(lasts_s=3, prints=("here",), exit_code=4)), rig.start_request(FOREVER)
    await rig.started(ends)
    await rig.started(lasts)
    watched: list[Status] = []

    async def watch() -> None:
        async for status in engine.watch():
            watched.append(status)

    watching = asyncio.create_task(watch())
    await rig.cut()
    await rig.pass_time(60)
    for _ in range(2):
        await rig.connect()
        assert (await rig.phase(ends.attempt_id, Phase.ENDED)).exit_code == 4
        await rig.cut()
    assert [one.attempt_id for one in watched] == [ends.attempt_id]
    await rig.connect()
    await engine.forget(ends.attempt_id)
    await rig.cut()
    await rig.connect()
    assert [one.attempt_id for one in await engine.statuses()] == [lasts.attempt_id]
    assert rig.fake.world.starts[ends.attempt_id] == 1
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


async def test_samples_of_an_outage_are_stored_afterwards(rig: RemoteFakeRig) -> None:
    request = await rig.started(rig.start_request(FOREVER))
    await rig.pass_time(5)
    assert rig.stored == [], "while the link is up, the control plane measures"
    began = rig.clock.now()
    await rig.cut()
    await pass_rounds(rig, 20)
    ended = rig.clock.now()
    await rig.connect()

    async def all_stored() -> bool:
        return len({one.at for one in rig.stored}) >= 18

    await rig.until(all_stored, "the samples are stored")
    stored = {(one.subject, one.metric) for one in rig.stored if not one.subject.startswith("node:")}
    assert stored == {(f"attempt:{request.attempt_id}", metric) for metric in ("cpu_cores", "memory_mib")}
    assert all(began <= one.at <= ended + 1 for one in rig.stored)
    keys = [(one.subject, one.metric, one.at) for one in rig.stored]
    assert len(keys) == len(set(keys))


async def test_agent_that_restarts_during_an_outage_keeps_samples(rig: RemoteFakeRig) -> None:
    await rig.started(rig.start_request(FOREVER))
    await rig.cut()
    await pass_rounds(rig, 10)
    await rig.stop_agent()
    await rig.start_agent()
    await rig.connect()

    async def are_stored() -> bool:
        return len({one.at for one in rig.stored}) >= 8

    await rig.until(are_stored, "the samples from before the restart are stored")


async def test_restarted_agent_reports_what_runs_with_its_first_link(rig: RemoteFakeRig) -> None:
    request = await rig.started(rig.start_request(FOREVER))
    known = await rig.status(request.attempt_id)
    await rig.stop_agent()
    await rig.start_agent()
    await rig.connect()
    assert await rig.status(request.attempt_id) == known


# --- commands ---------------------------------------------------------------------------------------------------------


async def test_start_is_delivered_once_when_the_link_is_back(rig: RemoteFakeRig) -> None:
    engine = await rig.engine()
    request = rig.start_request(FOREVER)
    await unreachable(rig)
    await engine.start(request)
    await engine.start(request)
    waiting = await rig.phase(request.attempt_id, Phase.STARTING)
    assert isinstance(waiting.reason, SiteUnreachable)
    await rig.stop_control()
    await rig.start_control()
    assert (await rig.phase(request.attempt_id, Phase.STARTING)).node == request.allocation.node
    await rig.connect()
    await rig.phase(request.attempt_id, Phase.RUNNING)
    assert rig.fake.world.starts[request.attempt_id] == 1


async def test_start_that_never_left_is_lost_after_a_while_and_never_runs(rig: RemoteFakeRig) -> None:
    engine = await rig.engine()
    request = rig.start_request(FOREVER)
    await unreachable(rig)
    await engine.start(request)

    async def is_withdrawn() -> bool:
        await asyncio.sleep(0.1)  # its loop is in real time
        return (await rig.status(request.attempt_id) or Status("", Phase.STARTING, 0)).phase is Phase.ENDED

    await rig.pass_time(WITHDRAW_AFTER_S)
    await rig.until(is_withdrawn, "it is withdrawn", within_s=5)
    end = await rig.phase(request.attempt_id, Phase.ENDED)
    assert end.exit_code is None, "lost: it may start elsewhere"
    assert isinstance(end.reason, NotDelivered)
    assert isinstance(end.reason.cause, SiteUnreachable)
    await rig.connect()
    await engine.forget(request.attempt_id)
    await rig.pass_time(3)
    assert rig.fake.world.starts[request.attempt_id] == 0
    assert list(await engine.statuses()) == []


async def test_start_stopped_before_it_left_never_runs(rig: RemoteFakeRig) -> None:
    engine = await rig.engine()
    request = rig.start_request(FOREVER)
    await unreachable(rig)
    await engine.start(request)
    await engine.stop(request.attempt_id, 5)
    assert isinstance((await rig.phase(request.attempt_id, Phase.ENDED)).reason, StoppedBeforeStart)
    await rig.connect()
    await rig.pass_time(3)
    assert rig.fake.world.starts[request.attempt_id] == 0


async def test_stop_and_forget_are_delivered_when_the_link_is_back(rig: RemoteFakeRig) -> None:
    engine = await rig.engine()
    runs = await rig.started(rig.start_request(FOREVER))
    over = rig.start_request(Behaviour())
    await rig.ended(over)
    await unreachable(rig)
    await engine.stop(runs.attempt_id, 5)
    await engine.forget(over.attempt_id)
    await rig.phase(runs.attempt_id, Phase.RUNNING)
    assert await rig.status(over.attempt_id) is None
    await rig.stop_control()
    await rig.start_control()
    assert await rig.status(over.attempt_id) is None
    await rig.connect()
    await rig.phase(runs.attempt_id, Phase.ENDED)
    assert await rig.status(over.attempt_id) is None
    local = await rig.fake.engine()

    async def is_forgotten() -> bool:
        return over.attempt_id not in [one.attempt_id for one in await local.statuses()]

    await rig.until(is_forgotten, "the site has forgotten it, too")


async def test_refusal_after_an_outage_becomes_the_end_of_the_attempt(rig: RemoteFakeRig) -> None:
    engine = await rig.engine()
    request = rig.start_request(Behaviour(refuses="no such device"))
    await unreachable(rig)
    await engine.start(request)
    await rig.connect()
    end = await rig.phase(request.attempt_id, Phase.ENDED)
    assert end.exit_code == 1
    assert "no such device" in str(end.reason)
    await engine.forget(request.attempt_id)
    assert await rig.status(request.attempt_id) is None


@pytest.mark.parametrize("cut_after", range(0, 12, 2))
async def test_link_cut_in_the_middle_of_a_start_starts_it_once(rig: RemoteFakeRig, cut_after: int) -> None:
    engine = await rig.engine()
    request = rig.start_request(FOREVER)
    starting = asyncio.create_task(engine.start(request))
    for _ in range(cut_after):
        await asyncio.sleep(0.001)
    await rig.cut()
    await starting
    await rig.connect()
    await rig.phase(request.attempt_id, Phase.RUNNING)
    assert rig.fake.world.starts[request.attempt_id] == 1
    await rig.stop_agent()
    await rig.start_agent()
    await rig.connect()
    await rig.phase(request.attempt_id, Phase.RUNNING)
    assert rig.fake.world.starts[request.attempt_id] == 1


# --- full disks -------------------------------------------------------------------------------------------------------


class FullDisk:
    """Of one of the two ends: writes that contain `words` do not fit, until `frees`."""

    def __init__(self, file: SqliteFile, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self._commit, self._words, self._full = file._commit, words, True
        self.refused = 0
        monkeypatch.setattr(file, "_commit", self._check)

    def _check(self, statements: Sequence[Statement]) -> None:
        if self._full and any(self._words in statement for statement, _ in statements):
            self.refused += 1
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error
        self._commit(statements)

    async def was_met(self) -> bool:
        return self.refused > 0

    def frees(self) -> None:
        self._full = False


def agent_file(rig: RemoteFakeRig) -> SqliteFile:
    assert rig.agent is not None
    return rig.agent._file


async def known_attempts(rig: RemoteFakeRig) -> list[str]:
    return [one for (one,) in await agent_file(rig).read("SELECT id FROM attempts")]


async def test_forget_that_the_site_cannot_write_is_repeated(
    rig: RemoteFakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await rig.engine()
    request = rig.start_request(Behaviour())
    await rig.ended(request)
    disk = FullDisk(agent_file(rig), "DELETE FROM attempts", monkeypatch)
    with suppress(CommonageError):
        await engine.forget(request.attempt_id)
    assert await known_attempts(rig) == [request.attempt_id]
    assert disk.refused
    disk.frees()

    async def is_forgotten() -> bool:
        await asyncio.sleep(0.1)  # the loop of the control plane is in real time
        return await known_attempts(rig) == []

    await rig.until(is_forgotten, "the site has forgotten it")


async def test_attempt_that_the_engine_has_forgotten_holds_nothing_at_the_site(rig: RemoteFakeRig) -> None:
    request = rig.start_request(Behaviour())
    await rig.ended(request)
    local = await rig.fake.engine()
    await local.forget(request.attempt_id)

    async def is_dropped() -> bool:
        await rig.pass_time(0.5)
        return await known_attempts(rig) == []

    await rig.until(is_dropped, "the site has dropped it")


async def test_start_that_arrives_after_its_forget_does_not_run(rig: RemoteFakeRig) -> None:
    engine = await rig.engine()
    request = rig.start_request(Behaviour())
    await rig.ended(request)
    await engine.forget(request.attempt_id)
    assert rig.agent is not None
    await rig.agent._attempts.start(Start(request, ""))
    assert await known_attempts(rig) == []
    assert rig.fake.world.starts[request.attempt_id] == 1


async def test_start_that_can_neither_begin_nor_be_withdrawn_is_accepted(
    rig: RemoteFakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await rig.engine()
    request = rig.start_request(Behaviour(refuses="no such device"))
    disk = FullDisk(agent_file(rig), "DELETE FROM attempts", monkeypatch)
    await engine.start(request)
    end = await rig.phase(request.attempt_id, Phase.ENDED)
    assert end.exit_code == 1
    disk.frees()
    await engine.forget(request.attempt_id)
    assert await known_attempts(rig) == []


async def test_start_whose_success_cannot_be_noted_runs(rig: RemoteFakeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = await rig.engine()
    request = rig.start_request(FOREVER)
    disk = FullDisk(agent_file(rig), "UPDATE attempts", monkeypatch)
    await engine.start(request)
    await rig.phase(request.attempt_id, Phase.RUNNING)
    assert await known_attempts(rig) == [request.attempt_id]
    assert disk.refused
    disk.frees()
    await rig.pass_time(1)
    assert rig.fake.world.starts[request.attempt_id] == 1


async def test_delivered_start_is_no_failure_if_the_disk_of_the_control_plane_is_full(
    rig: RemoteFakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await rig.engine()
    request = rig.start_request(FOREVER)
    await unreachable(rig)
    await engine.start(request)
    watched: list[Phase] = []

    async def watch() -> None:
        async for status in engine.watch():
            watched.append(status.phase)

    watching = asyncio.create_task(watch())
    disk = FullDisk(engine._records._file, "DELETE FROM commands", monkeypatch)
    await rig.connect()
    await rig.until(disk.was_met, "the disk is full")
    await rig.phase(request.attempt_id, Phase.RUNNING)
    await rig.pass_time(1)
    assert Phase.ENDED not in watched
    disk.frees()
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    await engine.stop(request.attempt_id, 0)
    await rig.phase(request.attempt_id, Phase.ENDED)
    assert await engine._records._file.read("SELECT id FROM commands") == []


async def test_start_is_lost_only_once_its_withdrawal_is_on_disk(
    rig: RemoteFakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await rig.engine()
    request = rig.start_request(FOREVER)
    await unreachable(rig)
    await engine.start(request)
    disk = FullDisk(engine._records._file, "DELETE FROM commands", monkeypatch)
    await rig.pass_time(WITHDRAW_AFTER_S)

    async def was_met() -> bool:
        await asyncio.sleep(0.1)  # the loop of the control plane is in real time
        return await disk.was_met()

    await rig.until(was_met, "the disk is full", within_s=5)
    await rig.phase(request.attempt_id, Phase.STARTING)
    disk.frees()

    async def is_lost() -> bool:
        await asyncio.sleep(0.1)
        return (await rig.status(request.attempt_id) or Status("", Phase.STARTING, 0)).phase is Phase.ENDED

    await rig.until(is_lost, "it is lost", within_s=5)


# --- streams ----------------------------------------------------------------------------------------------------------


async def test_followed_log_goes_on_where_the_link_was_cut(rig: RemoteFakeRig) -> None:
    engine = await rig.engine()
    request = await rig.started(rig.start_request(FOREVER))
    lines: list[str] = []

    async def follow() -> None:
        async for line in engine.logs(request.attempt_id, follow=True):
            lines.append(line.text)

    following = asyncio.create_task(follow())
    local = await rig.fake.engine()
    for number in range(4):
        if number % 2:
            await rig.cut()
        local.say(request.attempt_id, str(number))
        if number % 2:
            await rig.connect()

        async def has_line(number: int = number) -> bool:
            return str(number) in lines

        await rig.until(has_line, "the line arrived")
    assert lines == ["here", "0", "1", "2", "3"]
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


async def test_command_ends_with_the_link(rig: RemoteFakeRig) -> None:
    engine = await rig.engine()
    request = await rig.started(rig.start_request(FOREVER))
    command = await engine.exec(request.attempt_id, rig.aside(Aside(prints="here", lasts=True)))
    assert await command.read() == (1, b"here\n")
    await rig.cut()
    with pytest.raises(EngineFailure):
        await command.read()
    await command.close()

    async def only_it_runs() -> bool:
        return await rig.processes(request.attempt_id) == 1

    await rig.until(only_it_runs, "the command has ended at the site")


# --- real processes ---------------------------------------------------------------------------------------------------


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionResetError):  # the link ended first
        while data := await reader.read(1000):
            writer.write(data.upper())
    writer.close()


async def test_workloads_reach_the_platform_by_the_gateway(real: RemoteRealRig) -> None:
    server = await asyncio.start_server(_echo, "127.0.0.1", 0)
    async with server:
        await real.stop_control()
        real.gateway_port = server.sockets[0].getsockname()[1]
        await real.start_control()
        await real.connect()
        reader, writer = await asyncio.open_connection("127.0.0.1", real.gateway.port)
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"HELLO"
        writer.close()


async def test_an_upload_whose_start_never_arrives_is_removed(rig: RemoteFakeRig, tmp_path: Path) -> None:
    agent, digest = rig.agent, "a" * 64
    assert agent is not None
    bundles = tmp_path / "site" / "bundles"
    for name in ("link", "agent"):
        upload = bundles / f"{digest}.tar.gz"
        upload.write_bytes(b"files of a job")
        agent._bundles._arriving[digest] = 1
        if name == "link":
            await rig.cut()
            await rig.connect()
        else:
            await rig.stop_agent()
            upload.write_bytes(b"files of a job")  # as if the agent had been killed
            agent = await rig.start_agent()
        assert not upload.exists(), name


KILLED_AGENT = """
import asyncio, os, signal, sys
from pathlib import Path
from tests.contract.engines.remote.rig import RealClock
from tests.contract.engines.rigs import ProcessRig
from commonage.domain.codec import from_json
from commonage.engines.settings import ProcessSettings
from commonage.link.sites.messages.engine import Start
from commonage.site_agent.agent import SiteAgent
from commonage.site_agent.gateway import SiteGateway
import json

folder, kill = Path(sys.argv[1]), sys.argv[2]
start = from_json(Start, json.loads(sys.stdin.read()))

async def main():
    engine = ProcessRig(folder / "data", ProcessSettings(node_name="here", cgroups=False)).make()
    begin = engine.start
    async def start_and_die(request):
        if kill == "after":
            await begin(request)
        os.kill(os.getpid(), signal.SIGKILL)
    engine.start = start_and_die
    agent = SiteAgent(engine, SiteGateway(), folder / "site", RealClock())
    await agent.open()
    await agent._attempts.start(start)

asyncio.run(main())
"""


@pytest.mark.parametrize("kill", ["before", "after"])
async def test_agent_killed_while_it_starts_an_attempt_starts_it_once(tmp_path: Path, kill: str) -> None:
    rig = RemoteRealRig(ProcessRig(tmp_path / "data", ProcessSettings(node_name="here", cgroups=False)), tmp_path)
    request = rig.start_request(FOREVER)
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", KILLED_AGENT, str(tmp_path), kill, stdin=asyncio.subprocess.PIPE
    )
    await child.communicate(json.dumps(to_json(Start(request))).encode())
    assert child.returncode == -signal.SIGKILL
    await rig.engine()
    await rig.phase(request.attempt_id, Phase.RUNNING)

    async def has_printed() -> bool:
        return bool(await rig.lines(request.attempt_id))

    await rig.until(has_printed, "it prints")
    await rig.pass_time(1)
    assert await rig.lines(request.attempt_id) == ["here"]
    await rig.close()
