"""The Docker engine beyond the contract: crashes and restarts of the daemon and of the control plane."""

import asyncio
import random
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.contract.engines.rigs import DockerRig, docker_rig
from tests.contract.harness.dockerd import NO_RULES, Dockerd

from commonage.domain.errors import EngineFailure
from commonage.domain.images import Environment, EnvironmentState
from commonage.domain.reasons import attempts
from commonage.domain.reasons.nodes import EngineNotAnswering
from commonage.domain.statuses import Phase, StartRequest
from commonage.testing.behaviour import Behaviour
from commonage.testing.engine_rig import FOREVER

pytestmark = [pytest.mark.needs("docker"), pytest.mark.anyio]


def container(request: StartRequest) -> str:
    return f"commonage-{request.attempt_id}"


# --- the daemon goes and comes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("live_restore", [True, False])
async def test_a_killed_daemon_is_reported_and_nothing_runs_twice(
    rig: DockerRig, dockerd: Dockerd, live_restore: bool
) -> None:
    dockerd.restart_with(NO_RULES, *(["--live-restore"] if live_restore else []))
    engine = await rig.restart()
    living = await rig.started(rig.start_request(FOREVER, wants_port=True))
    before = await rig.phase(living.attempt_id, Phase.RUNNING)
    ending = await rig.started(rig.start_request(Behaviour(lasts_s=1, prints=("here",), exit_code=4)))
    dockerd.kill()

    async def is_noticed() -> bool:
        return any(isinstance(fault, EngineNotAnswering) for fault in (await engine.nodes())[0].faults)

    await rig.until(is_noticed, "the node says that the daemon is away")
    late = rig.start_request(Behaviour(prints=("here",), exit_code=5))
    await engine.start(late)
    await rig.pass_time(1)
    assert await rig.status(living.attempt_id) == before
    waiting = await rig.phase(late.attempt_id, Phase.STARTING)
    assert waiting.reason == attempts.WaitingForDaemon()

    dockerd.start()
    assert (await rig.phase(late.attempt_id, Phase.ENDED)).exit_code == 5
    # Of what ended while its containerd was away, too, a newer daemon only makes an exit code up: then it is lost.
    known = (4,) if int(dockerd.ask("GET", "/version")["Version"].split(".")[0]) < 25 else (4, None)
    assert (await rig.phase(ending.attempt_id, Phase.ENDED)).exit_code in known
    if live_restore:
        assert (await rig.phase(living.attempt_id, Phase.RUNNING)).url == before.url
    else:
        end = await rig.phase(living.attempt_id, Phase.ENDED)
        assert end.exit_code is None
        assert end.reason == attempts.DaemonRestarted()
    for request in (living, ending, late):
        assert await rig.lines(request.attempt_id) == ["here"]
    assert (await engine.nodes())[0].faults == ()


async def test_without_a_daemon_it_says_so_at_once(tmp_path: Path, dockerd: Dockerd) -> None:
    rig = DockerRig(tmp_path, f"unix://{tmp_path}/none.sock")
    with pytest.raises(EngineFailure, match=r"does not answer \(at unix://.*Is it running") as caught:
        await rig.engine()
    assert caught.value.is_retryable


# --- somebody else has the daemon, too ----------------------------------------------------------------------------


async def test_a_container_that_ended_does_not_run_again(rig: DockerRig, dockerd: Dockerd) -> None:
    request = rig.start_request(Behaviour(prints=("here",), exit_code=3))
    before = await rig.ended(request)
    dockerd.ask("POST", f"/containers/{container(request)}/start")
    await rig.pass_time(1)
    assert await rig.lines(request.attempt_id) == ["here"]
    assert await rig.status(request.attempt_id) == before


async def test_an_exit_code_that_a_second_start_covered_is_lost(rig: DockerRig, dockerd: Dockerd) -> None:
    waits = ("sh", "-c", "echo here; while [ ! -e $HOME/end-now ]; do sleep 0.1; done")
    request = await rig.started(rig.start_request(FOREVER, command=waits))
    await (await rig.engine()).close()
    (rig.data / "workspaces" / "ada" / "end-now").touch()
    dockerd.ask("POST", f"/containers/{container(request)}/wait")
    dockerd.ask("POST", f"/containers/{container(request)}/start")
    dockerd.ask("POST", f"/containers/{container(request)}/wait")
    await rig.reopen()
    end = await rig.phase(request.attempt_id, Phase.ENDED)
    assert end.exit_code is None
    assert end.reason == attempts.ExitCodeLost(why=attempts.ExitCodeLoss.STARTED_TWICE)
    assert await rig.lines(request.attempt_id) == ["here"]


async def test_what_others_end_or_remove_is_lost_not_failed(rig: DockerRig, dockerd: Dockerd) -> None:
    killed, removed = [await rig.started(rig.start_request(FOREVER)) for _ in range(2)]
    dockerd.ask("POST", f"/containers/{container(killed)}/kill")
    dockerd.ask("DELETE", f"/containers/{container(removed)}?force=1")
    reasons = (attempts.EndedFromOutside(by=attempts.ExternalActor.DOCKER), attempts.RemovedFromOutside())
    for request, reason in zip((killed, removed), reasons, strict=True):
        end = await rig.phase(request.attempt_id, Phase.ENDED)
        assert end.exit_code is None
        assert end.reason == reason


async def test_what_runs_is_given_its_grace_whatever_it_did_to_its_claim(rig: DockerRig) -> None:
    request = await rig.started(rig.start_request(replace(FOREVER, on_term_exit=7)))
    (rig.data / "docker" / "runs" / request.attempt_id / "control" / "claim").unlink()
    await (await rig.engine()).stop(request.attempt_id, 60)
    assert (await rig.phase(request.attempt_id, Phase.ENDED)).exit_code == 7


async def test_a_network_that_was_removed_is_made_anew(rig: DockerRig, dockerd: Dockerd) -> None:
    await rig.ended(rig.start_request(Behaviour()))
    for one in dockerd.containers():
        dockerd.ask("DELETE", f"/containers/{one['Id']}?force=1")
    dockerd.remove_networks("commonage.tenant")
    assert (await rig.ended(rig.start_request(Behaviour(exit_code=3)))).exit_code == 3


async def test_clean_up_takes_what_is_ours_and_nothing_else(rig: DockerRig, dockerd: Dockerd) -> None:
    request = await rig.started(rig.start_request(FOREVER))
    [ours] = dockerd.containers(label=[f"commonage.attempt={request.attempt_id}"])
    installation = ours["Labels"]["commonage.installation"]
    image = {"Image": "commonage-test:1", "Cmd": ["sleep", "300"]}
    foreign = {"commonage.installation": "another", "commonage.attempt": "1"}
    left = {"commonage.installation": installation, "commonage.attempt": "left-over-1"}
    keep = [
        dockerd.ask("POST", "/containers/create?name=foreign", image)["Id"],
        dockerd.ask("POST", "/containers/create?name=commonage-1", {**image, "Labels": foreign})["Id"],
        ours["Id"],
    ]
    gone = dockerd.ask("POST", "/containers/create?name=commonage-left-over-1", {**image, "Labels": left})["Id"]
    dockerd.ask("POST", "/networks/create", {"Name": "foreign"})
    unused = {"Name": "unused", "Labels": {"commonage.installation": installation, "commonage.tenant": "gone"}}
    dockerd.ask("POST", "/networks/create", unused)
    await rig.restart()

    async def is_clean() -> bool:
        there = [one["Id"] for one in dockerd.containers()]
        networks = {one["Name"] for one in dockerd.ask("GET", "/networks")}
        return gone not in there and "unused" not in networks

    await rig.until(is_clean, "what is left over was removed")
    assert {one["Id"] for one in dockerd.containers()} >= set(keep)
    assert "foreign" in {one["Name"] for one in dockerd.ask("GET", "/networks")}
    await rig.phase(request.attempt_id, Phase.RUNNING)
    dockerd.ask("DELETE", "/networks/foreign")
    for one in keep[:2]:
        dockerd.ask("DELETE", f"/containers/{one}?force=1")


# --- its owner is killed ------------------------------------------------------------------------------------------

BUSY_OWNER = """
import asyncio, sys
from pathlib import Path
from tests.contract.engines.rigs import DockerRig, Phase
from tests.contract.engines.docker.test_keeping import busy_requests

async def main():
    rig = DockerRig(Path(sys.argv[1]), sys.argv[2])
    engine = await rig.engine()
    print("open", flush=True)
    for request in busy_requests(rig):
        await engine.start(request)
    while not all(status.phase is Phase.ENDED for status in await engine.statuses()):
        await asyncio.sleep(0.05)
    await engine.close()

asyncio.run(main())
"""


def busy_requests(rig: DockerRig) -> list[StartRequest]:
    """The same orders each time: jobs that leave a line in a file of their own each time they run."""
    requests = []
    for number in range(40):
        stop = rig.start_request(Behaviour())
        attempt = f"busy{number:09}-1"
        command = ("sh", "-c", "echo ran >>$HOME/$COMMONAGE_ATTEMPT_ID; exit 2")
        requests.append(
            replace(stop, attempt_id=attempt, command=command, allocation=replace(stop.allocation, attempt_id=attempt))
        )
    return requests


async def test_jobs_run_once_however_often_their_owner_is_killed(tmp_path: Path, dockerd: Dockerd) -> None:
    chance = random.Random(7)
    for kills in range(5):
        owner = await asyncio.create_subprocess_exec(
            sys.executable, "-c", BUSY_OWNER, str(tmp_path), dockerd.url, stdout=asyncio.subprocess.PIPE
        )
        assert owner.stdout is not None
        assert await owner.stdout.readline() == b"open\n"
        if kills < 4:
            await asyncio.sleep(chance.uniform(0, 0.25))
            assert owner.returncode is None, "killed too late to prove anything"
            owner.kill()
        await owner.wait()
    async with docker_rig(tmp_path, dockerd) as rig:
        codes = {status.attempt_id: status.exit_code for status in await (await rig.engine()).statuses()}
        for request in busy_requests(rig):
            assert (tmp_path / "workspaces" / "ada" / request.attempt_id).read_text() == "ran\n"
            assert codes[request.attempt_id] in (2, None)
        assert list(codes.values()).count(2) >= 30


# --- environments -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        (Environment("list", "List", requirements=("numpy",)), "has a list of requirements, but no image"),
        (Environment("none", "None"), "has no image"),
        (Environment("name", "Name", image="no such:name:at all"), "not a name of an image"),
        (Environment("away", "Unreachable", image="127.0.0.1:1/away:1"), "registry cannot be reached"),
    ],
)
async def test_an_environment_without_its_image_says_what_is_missing(
    rig: DockerRig, environment: Environment, said: str
) -> None:
    engine = await rig.engine()
    with pytest.raises(EngineFailure) as failed:
        await engine.prepare(environment)
    reason = failed.value.reason
    assert isinstance(reason, attempts.EnvironmentFailed)
    assert reason.environment == environment.name
    assert said in reason.error
    [status] = await engine.environments()
    assert status.state is EnvironmentState.FAILED


async def test_where_nothing_is_fetched_a_missing_image_is_named_at_once(tmp_path: Path, dockerd: Dockerd) -> None:
    async with docker_rig(tmp_path, dockerd, pull="never") as rig:
        with pytest.raises(EngineFailure, match="no image far/away:1 on this machine"):
            await (await rig.engine()).prepare(Environment("away", "Unreachable", image="far/away:1"))
