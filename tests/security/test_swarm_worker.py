"""Root on one worker of a Swarm tries to get at other nodes by the folder that all nodes see.

The attacker writes anywhere in that folder at any moment, also between two steps of the control plane. Swarm and agents
are real.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.contract.agent.test_swarm import Agents, agents_on
from tests.contract.engines.rigs import SwarmRig, swarm_rig
from tests.contract.harness.swarm import Swarm, swarm_of
from tests.integration.joining_world import opened

from commonage.domain.errors import EngineFailure
from commonage.domain.reasons.attempts import StartFailed
from commonage.domain.statuses import Phase, StartRequest
from commonage.engines.containers.daemon.connection import Json
from commonage.engines.swarm.client import Client
from commonage.join.config import MARK_FILE
from commonage.testing.behaviour import Behaviour
from commonage.testing.engine_rig import FOREVER

pytestmark = [pytest.mark.needs("docker"), pytest.mark.anyio]
ATTEMPTS = "swarm/attempts"
SECRET = "the-key-of-the-whole-site"
LOOK = ("sh", "-c", "ls $HOME; cat $HOME/key; echo looked")


@pytest.fixture(scope="module")
def swarm() -> Iterator[Swarm]:
    with swarm_of(1) as swarm:
        yield swarm


@pytest.fixture
async def agents(tmp_path: Path, swarm: Swarm) -> AsyncIterator[Agents]:
    async with agents_on(tmp_path / "agents", swarm) as agents:
        yield agents


@pytest.fixture
async def rig(tmp_path: Path, swarm: Swarm, agents: Agents) -> AsyncIterator[SwarmRig]:
    """Its `data` is the folder that all nodes see."""
    shared = tmp_path / "shared"
    shared.mkdir()
    async with swarm_rig(shared, swarm, agents.linked) as rig:  # type: ignore[arg-type]  # the port, too
        yield rig


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A folder of the victim, outside of what nodes share."""
    folder = tmp_path / "target"
    folder.mkdir()
    (folder / "key").write_text(f"{SECRET}\n")
    for name in ("claim", "stop", "end", "log"):
        (folder / name).write_text(f"{SECRET}\n")
    return folder


def content_of(folder: Path) -> dict[str, str]:
    return {str(one.relative_to(folder)): one.read_text() for one in sorted(folder.rglob("*")) if one.is_file()}


def replace_by_link(place: Path, target: Path) -> None:
    """As root of a worker does it."""
    if place.is_symlink() or place.is_file():
        place.unlink()
    elif place.is_dir():
        shutil.rmtree(place)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(target)


async def log_of(rig: SwarmRig, order: StartRequest) -> str:
    return "\n".join(await rig.lines(order.attempt_id))


async def test_a_changed_entry_is_not_run(rig: SwarmRig) -> None:
    await rig.engine()
    evil = "echo the script of the attacker >/run/commonage/log\n"
    for place in {*rig.data.rglob("entry*"), rig.data / "swarm" / "entry.sh"}:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(evil)
    order = rig.start_request(Behaviour(), command=("sh", "-c", "echo the command"))
    end = await rig.ended(order)
    assert (end.exit_code, await log_of(rig, order)) == (0, "the command")


async def test_secrets_in_a_box_are_not_run(rig: SwarmRig, monkeypatch: pytest.MonkeyPatch) -> None:
    evil = "echo the script of the attacker\n"

    def attack(order: StartRequest) -> None:
        (rig.data / ATTEMPTS / order.attempt_id / "control" / "secrets").write_text(evil)

    order = rig.start_request(Behaviour(), command=("sh", "-c", "echo $KEY"), secrets=(("KEY", SECRET),))
    just_before_it_is_made(monkeypatch, order, attack)
    assert (await rig.ended(order)).exit_code == 0
    assert await log_of(rig, order) == SECRET, "its own secrets reached it, and nothing else did"


async def test_secrets_never_lie_in_the_shared_folder_and_go_with_their_attempt(
    rig: SwarmRig, swarm: Swarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await rig.engine()

    def secrets() -> list[str]:
        return [one["Spec"]["Labels"]["commonage.attempt"] for one in swarm.manager.daemon.ask("GET", "/secrets")]

    # No node has room for it: while it is pending, its secrets exist and could be read.
    pending = rig.start_request(FOREVER, memory_mib=10_000_000, secrets=(("KEY", SECRET),))
    await engine.start(pending)
    running = await rig.started(rig.start_request(FOREVER, secrets=(("KEY", SECRET),)))

    async def is_made() -> bool:
        return len(swarm.services()) == 2

    await rig.until(is_made, "both have a service")
    found = [one for one in rig.data.rglob("*") if one.is_file() and SECRET.encode() in one.read_bytes()]
    assert found == []
    assert sorted(secrets()) == sorted([pending.attempt_id, running.attempt_id])
    for order in (pending, running):
        await engine.stop(order.attempt_id, 0)
        await rig.phase(order.attempt_id, Phase.ENDED)
        await engine.forget(order.attempt_id)

    async def is_gone() -> bool:
        return secrets() == []

    await rig.until(is_gone, "the Swarm has no secret any more")


async def test_a_secret_that_a_crash_left_behind_is_removed(rig: SwarmRig, swarm: Swarm) -> None:
    engine = await rig.engine()
    name = (rig.own / "swarm" / "installation").read_text().strip()
    labels = {"commonage.installation": name, "commonage.attempt": "w-0000000000-1"}
    left = {"Name": "commonage-left-over", "Labels": labels, "Data": "eA=="}
    swarm.manager.daemon.ask("POST", "/secrets/create", left)
    await engine.close()
    await rig.restart()

    async def is_gone() -> bool:
        return swarm.manager.daemon.ask("GET", "/secrets") == []

    await rig.until(is_gone, "a secret of an unknown attempt is removed")


def just_before_it_is_made(monkeypatch: pytest.MonkeyPatch, order: StartRequest, attack: object) -> None:
    """Have the attack done after all folders were made and looked at, and before Docker mounts them."""
    create = Client.create_service

    async def attacked(client: Client, spec: Json) -> str | None:
        assert callable(attack)
        attack(order)
        return await create(client, spec)

    monkeypatch.setattr(Client, "create_service", attacked)


@pytest.mark.parametrize("place", ["workspaces/ada", "workspaces"])
async def test_a_workspace_that_becomes_a_link_leads_nowhere(
    rig: SwarmRig, target: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    (target / "ada").mkdir()
    shutil.copy(target / "key", target / "ada" / "key")
    order = rig.start_request(Behaviour(), command=LOOK)
    moved = rig.data / f"{place}-moved"

    def attack(_: StartRequest) -> None:
        (rig.data / place).rename(moved)  # existing mounts must stay
        (rig.data / place).symlink_to(target)

    just_before_it_is_made(monkeypatch, order, attack)
    await rig.ended(order)
    log = await log_of(rig, order)
    assert log.endswith("looked"), "it ran in the folder that was mounted"
    assert SECRET not in log


async def test_a_workspace_that_is_a_link_is_refused(rig: SwarmRig, target: Path) -> None:
    before = content_of(target)
    replace_by_link(rig.data / "workspaces" / "ada", target)
    order = rig.start_request(Behaviour(), command=LOOK)
    end = await rig.ended(order)
    assert isinstance(end.reason, StartFailed) and "link" in end.reason.error
    assert SECRET not in await log_of(rig, order)
    assert content_of(target) == before


async def test_files_of_the_control_plane_in_the_place_of_a_log_or_a_box_stay_as_they_are(
    rig: SwarmRig, target: Path
) -> None:
    engine = await rig.engine()
    before = content_of(target)
    order = await rig.started(rig.start_request(FOREVER))
    mine = rig.data / ATTEMPTS / order.attempt_id
    replace_by_link(mine / "control", target)
    replace_by_link(mine / "log", target / "key")
    with pytest.raises(EngineFailure, match="is a link"):
        await rig.log(order.attempt_id)
    await engine.stop(order.attempt_id, 0.5)
    await rig.phase(order.attempt_id, Phase.ENDED)
    replace_by_link(mine, target)
    await engine.forget(order.attempt_id)
    assert content_of(target) == before


async def test_a_folder_that_is_there_before_its_attempt_is_not_followed(rig: SwarmRig, target: Path) -> None:
    engine = await rig.engine()
    before = content_of(target)
    order = rig.start_request(Behaviour())
    replace_by_link(rig.data / ATTEMPTS / order.attempt_id, target)
    with pytest.raises(EngineFailure, match="link"):
        await engine.start(order)
    assert content_of(target) == before


@pytest.mark.parametrize("name", ["swarm/entry.new", "swarm/installation.new", ATTEMPTS, "workspaces"])
async def test_a_start_overwrites_nothing(rig: SwarmRig, target: Path, name: str) -> None:
    engine = await rig.engine()
    await engine.close()
    before, modes = content_of(target), [one.stat().st_mode for one in (target, *sorted(target.iterdir()))]
    folder = name in (ATTEMPTS, "workspaces")
    (rig.data / "swarm" / "entry.sh").write_text("have it written again\n")
    (rig.data / "swarm" / "installation").unlink(missing_ok=True)
    replace_by_link(rig.data / name, target if folder else target / "key")
    try:
        await rig.restart()
    except EngineFailure as error:
        assert folder, error
    assert content_of(target) == before
    assert [one.stat().st_mode for one in (target, *sorted(target.iterdir()))] == modes
    os.unlink(rig.data / name)
    await rig.restart()


async def test_a_start_request_in_the_shared_folder_is_not_taken_up(rig: SwarmRig) -> None:
    engine = await rig.engine()
    order = rig.start_request(FOREVER)
    await engine.start(order)
    await engine.close()
    forged = replace(order, attempt_id="w-forged-1", owner="root")
    kept = rig.own / "swarm" / "runs" / order.attempt_id / "request.json"
    text = kept.read_text().replace(order.attempt_id, forged.attempt_id)
    for folder in ("swarm/runs", ATTEMPTS):
        place = rig.data / folder / forged.attempt_id
        place.mkdir(parents=True)
        (place / "request.json").write_text(text)
    again = await rig.restart()
    assert forged.attempt_id not in {one.attempt_id for one in await again.statuses()}


@pytest.mark.parametrize("what", ["link", "folder link", "pipe", "large"])
async def test_the_mark_of_the_site_is_written_over_no_other_file(tmp_path: Path, target: Path, what: str) -> None:
    before, shared = content_of(target), tmp_path / "shared"
    shared.mkdir()
    mark = shared / MARK_FILE
    if what == "pipe":
        os.mkfifo(mark)  # who reads it waits for ever
    elif what == "large":
        mark.write_bytes(b"x" * 10_000_000)
    else:
        mark.symlink_to(target / "key" if what == "link" else target)
    async with opened(tmp_path) as world:
        kept = mark.read_text().strip()
        assert (await world.ask("/join-config"))["mark"] == kept, "nodes know the folder by it"
    assert content_of(target) == before
