"""Ready environments, and when others are built; a function replaces uv."""

import asyncio
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from commonage.catalogue import builtin_environments, read_requirements
from commonage.domain.errors import EngineFailure
from commonage.domain.images import Environment, EnvironmentState
from commonage.domain.reasons import Reason
from commonage.domain.reasons.attempts import PreparingEnvironment
from commonage.engines.process import environments as module
from commonage.engines.process.environments import Environments
from commonage.ports.agents import OnProgress

pytestmark = pytest.mark.anyio
LAB = Environment("lab", "Lab", requirements=("numpy==2",))


class Uv:
    """Counts builds; `breaks` has them fail."""

    def __init__(self) -> None:
        self.built: list[tuple[str, ...]] = []
        self.breaks = False

    async def make(
        self, folder: Path, environment: Environment, variables: Mapping[str, str], held: int, told: OnProgress
    ) -> None:
        assert not folder.exists()
        (folder / "bin").mkdir(parents=True)
        self.built.append(environment.requirements)
        told("halfway", 0.5)
        await asyncio.sleep(0.01)
        if self.breaks:
            raise EngineFailure("no such package")


@pytest.fixture
def uv(monkeypatch: pytest.MonkeyPatch) -> Uv:
    fake = Uv()
    monkeypatch.setattr(module, "make_environment", fake.make)
    return fake


@pytest.fixture
def environments(tmp_path: Path, uv: Uv) -> Environments:
    made = Environments(tmp_path / "environments", "site", {})
    made.open()
    return made


def state_of(environments: Environments, name: str) -> EnvironmentState:
    return {status.name: status.state for status in environments.statuses()}[name]


async def test_two_starts_at_once_build_once_and_both_hear_of_it(environments: Environments, uv: Uv) -> None:
    heard: list[list[tuple[Reason, float | None]]] = [[], []]
    places = await asyncio.gather(
        *(environments.ensure(LAB, lambda reason, part, mine=mine: mine.append((reason, part))) for mine in heard)
    )
    assert places[0] == places[1] == environments.ready(LAB)
    assert uv.built == [("numpy==2",)]
    assert heard[0] == heard[1] == [(PreparingEnvironment(environment="lab", step="halfway"), 0.5)]
    assert state_of(environments, "lab") is EnvironmentState.READY


async def test_cancelled_waiter_leaves_build_running(environments: Environments, uv: Uv) -> None:
    first, second = (asyncio.create_task(environments.ensure(LAB, lambda *_: None)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await second
    assert environments.ready(LAB) is not None


async def test_a_failure_says_why_and_is_tried_again(environments: Environments, uv: Uv) -> None:
    uv.breaks = True
    with pytest.raises(EngineFailure, match=r"EnvironmentFailed\(environment='lab', error='no such package'\)"):
        await environments.ensure(LAB, lambda *_: None)
    assert state_of(environments, "lab") is EnvironmentState.FAILED
    assert environments.ready(LAB) is None
    uv.breaks = False
    await environments.ensure(LAB, lambda *_: None)
    assert state_of(environments, "lab") is EnvironmentState.READY


async def test_another_list_is_another_environment(environments: Environments, uv: Uv) -> None:
    other = Environment("lab", "Lab", requirements=("numpy==3",))
    places = [await environments.ensure(environment, lambda *_: None) for environment in (LAB, other)]
    assert places[0].programs != places[1].programs


async def test_restart_finds_ready_environments_and_rebuilds_partial_ones(
    tmp_path: Path, environments: Environments, uv: Uv
) -> None:
    place = await environments.ensure(LAB, lambda *_: None)
    again = Environments(tmp_path / "environments", "site", {})
    again.open()
    assert state_of(again, "lab") is EnvironmentState.READY
    assert again.ready(LAB) == place
    assert place.root is not None
    (place.root / ".ready").unlink()
    assert again.ready(LAB) is None
    await again.ensure(LAB, lambda *_: None)
    assert len(uv.built) == 2


async def test_installations_share_a_linked_folder(tmp_path: Path, environments: Environments, uv: Uv) -> None:
    (tmp_path / "linked").symlink_to(tmp_path / "environments")
    linked = Environments(tmp_path / "linked", "site", {})
    place = await linked.ensure(LAB, lambda *_: None)
    assert environments.ready(LAB) == place  # its scripts hold a path that is valid in both
    linked.note_session(place)
    assert environments.used_by_sessions(time.time()) == [place.programs]


async def test_an_interpreter_that_is_there_needs_no_building(environments: Environments, uv: Uv) -> None:
    place = environments.ready(Environment("here", "Here", python=sys.executable))
    assert place is not None
    assert place.programs == Path(sys.executable).parent
    with pytest.raises(EngineFailure, match="not a program here"):
        environments.ready(Environment("gone", "NodeGone", python="/not/there/python"))
    assert uv.built == []


async def test_an_image_is_not_for_this_engine(environments: Environments) -> None:
    with pytest.raises(EngineFailure, match="container image"):
        environments.ready(Environment("torch", "Torch", image="torch:1"))


def test_the_catalogue_is_pinned_with_hashes() -> None:
    base, notebook = builtin_environments()
    assert base.requirements == ()
    names = {requirement.partition("==")[0] for requirement in notebook.requirements}
    assert {"jupyterlab", "jupyterhub", "ipykernel", "numpy", "scikit-learn", "matplotlib"} <= names
    assert all("==" in requirement and "--hash=sha256:" in requirement for requirement in notebook.requirements)


def test_the_notebooks_jupyterhub_is_the_servers() -> None:
    import jupyterhub

    [pinned] = [one for one in builtin_environments()[1].requirements if one.startswith("jupyterhub==")]
    assert pinned.split()[0] == f"jupyterhub=={jupyterhub.__version__}"


def test_requirements_are_read_as_pip_reads_them() -> None:
    text = "# comment\na==1 \\\n    --hash=sha256:x \\\n    --hash=sha256:y\n\n  b==2 ; python_version < '3.12'\n"
    assert read_requirements(text) == ("a==1 --hash=sha256:x --hash=sha256:y", "b==2 ; python_version < '3.12'")


def aged(folder: Path, days: float) -> None:
    then = time.time() - days * 24 * 3600
    for one in (*folder.iterdir(), folder):
        os.utime(one, (then, then))


async def replaced_environment(environments: Environments) -> tuple[Path, Path]:
    """The folders of LAB before and after a change of its list."""
    old = await environments.ensure(LAB, lambda *_: None)
    new = await environments.ensure(replace(LAB, requirements=("numpy==3",)), lambda *_: None)
    return old.programs.parent, new.programs.parent


async def test_a_replaced_environment_goes_when_unused_for_a_month(environments: Environments) -> None:
    old, new = await replaced_environment(environments)
    assert environments.remove_replaced(time.time(), []) == []
    aged(old, 31)
    aged(new, 30.5)
    assert environments.remove_replaced(time.time(), []) == [old]
    assert not old.exists()
    assert new.exists()
    assert environments.remove_replaced(time.time(), []) == []


@pytest.mark.parametrize("by_interpreter", [True, False])
async def test_a_replaced_environment_stays_while_an_attempt_uses_it(
    environments: Environments, *, by_interpreter: bool
) -> None:
    old, new = await replaced_environment(environments)
    aged(old, 31)
    aged(new, 30.5)
    user = Environment("lab", "Lab", python=str(old / "bin" / "python")) if by_interpreter else LAB
    assert environments.remove_replaced(time.time(), [user]) == []
    assert (old / "bin").exists()


async def test_a_replaced_environment_that_is_used_again_stays(environments: Environments) -> None:
    old, new = await replaced_environment(environments)
    aged(old, 31)
    aged(new, 30.5)
    assert environments.ready(LAB) is not None
    assert environments.remove_replaced(time.time(), []) == []


async def test_an_interrupted_removal_is_finished(environments: Environments) -> None:
    old, _ = await replaced_environment(environments)
    (old / ".ready").rename(old / ".removing")
    aged(old, 31)
    assert environments.ready(LAB) is None
    assert environments.remove_replaced(time.time(), []) == [old]
    await environments.ensure(LAB, lambda *_: None)
    assert environments.ready(LAB) is not None
