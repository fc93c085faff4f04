"""Components of the server that run apart: real processes, by what the control plane wrote down of them."""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from commonage.server.processes.children import Child, ChildFailed
from commonage.server.processes.components import (
    ComponentError,
    ExternalComponent,
    check_places,
    run_component,
    write_components,
)
from commonage.server.settings.settings import Settings

pytestmark = pytest.mark.anyio

# Writes to a file that it runs, its arguments, and that it was ended.
PROGRAM = """
import os, pathlib, signal, sys
said = pathlib.Path(sys.argv[1])
def end(*_):
    said.unlink()
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
said.write_text(os.environ.get("GIVEN", "") + os.environ.get("COMMONAGE_TOKEN", ""))
while True:
    signal.pause()
"""


def _child(folder: Path, given: str, ready: Callable[[], Awaitable[bool]] | None = None) -> Child:
    return Child(
        name="hub",
        argv=[sys.executable, "-c", PROGRAM, str(folder / "said")],
        env={"GIVEN": given},
        log_path=folder / "hub.log",
        cwd=folder,
        ready=ready,
        ready_s=1,
        grace_s=5,
    )


async def _until(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not what():  # noqa: ASYNC110 - looks at a file of another process
            await asyncio.sleep(0.02)


async def test_a_component_waits_and_follows_what_is_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMMONAGE_TOKEN", "ours")
    said, stopping = tmp_path / "said", asyncio.Event()
    component = asyncio.create_task(run_component("hub", tmp_path, stopping))
    await asyncio.sleep(0.1)
    assert not said.exists()
    write_components([_child(tmp_path, "first")], tmp_path)
    # Our own settings, some of which are secret, are not for a component.
    await _until(lambda: said.exists() and said.read_text() == "first")
    write_components([_child(tmp_path, "first")], tmp_path)
    write_components([_child(tmp_path, "second")], tmp_path)
    await _until(lambda: said.exists() and said.read_text() == "second")
    (tmp_path / "components" / "hub.json").unlink()
    await _until(lambda: not said.exists())
    write_components([_child(tmp_path, "third")], tmp_path)
    await _until(lambda: said.exists() and said.read_text() == "third")
    stopping.set()
    await component
    assert not said.exists()


@pytest.mark.parametrize("named_in", ["argv", "reads"])
async def test_a_change_of_its_settings_starts_it_anew(tmp_path: Path, named_in: str) -> None:
    child = _child(tmp_path, "same")
    settings = tmp_path / "settings.json"
    if named_in == "argv":
        child = replace(child, argv=[*child.argv, str(settings)])
    else:
        child = replace(child, reads=[settings])
    described = []
    for content in ("one", "one", "two"):
        settings.write_text(content)
        write_components([child], tmp_path)
        described.append((tmp_path / "components" / "hub.json").read_text())
    assert described[0] == described[1] != described[2]
    assert (tmp_path / "components" / "hub.json").stat().st_mode & 0o777 == 0o600


async def test_one_that_runs_apart_is_started_and_stopped(tmp_path: Path) -> None:
    said, stopping = tmp_path / "said", asyncio.Event()

    async def ready() -> bool:
        return said.exists()

    external = ExternalComponent(_child(tmp_path, "x", ready), tmp_path)
    component = asyncio.create_task(run_component("hub", tmp_path, stopping))
    await external.start()
    assert said.exists()
    await external.stop()
    assert not said.exists()
    stopping.set()
    await component


async def test_one_that_nobody_runs_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("commonage.server.processes.components._EXTERNAL_WITHIN_S", 0.1)

    async def never() -> bool:
        return False

    with pytest.raises(ChildFailed, match="Check that `commonage component hub` runs"):
        await ExternalComponent(_child(tmp_path, "x", never), tmp_path).start()


async def test_what_cannot_be_run_is_said(tmp_path: Path) -> None:
    with pytest.raises(ComponentError, match=r"Unknown component .* The components are hub, proxy and registry"):
        await run_component("../hub", tmp_path, asyncio.Event())
    (tmp_path / "components").mkdir()
    (tmp_path / "components" / "hub.json").write_text(json.dumps({"argv": 1}))
    with pytest.raises(ComponentError, match="Restart the control plane, which writes it"):
        await run_component("hub", tmp_path, asyncio.Event())
    with pytest.raises(ComponentError, match="Set hub_port, which is 0 now"):
        check_places(Settings(children="external", control_port=8081, hub_port=0, proxy_api_port=8083))
