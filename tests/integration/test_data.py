"""Transfers of files by the SDK and the command line, over real connections that break."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.integration.api_world import served
from tests.integration.command_line import Run, commonage_at

from commonage.sdk import AsyncClient
from commonage.testing.fault_proxy import FaultProxy

CONTENT = random.Random(1).randbytes(20 * 1024 * 1024)
BREAKS_IN = 11 * 1024 * 1024  # in the middle of the second piece


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    folder = tmp_path_factory.mktemp("api")
    with served(folder, run=False) as address:
        yield address, folder / "workspaces" / "ann"


@pytest.fixture
def commonage(server: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return commonage_at(server[0], tmp_path)


@pytest.mark.anyio
async def test_transfers_go_on_after_broken_connections(server: tuple[str, Path], tmp_path: Path) -> None:
    address, home = server
    proxy = FaultProxy(urlsplit(address).port or 0)
    await proxy.open()
    (tmp_path / "big.bin").write_bytes(CONTENT)
    progress: list[int] = []
    try:
        async with AsyncClient(f"http://127.0.0.1:{proxy.port}", "ann", reconnect_timeout_s=30) as client:
            proxy.faults.cut_in = BREAKS_IN
            await client.upload(tmp_path / "big.bin", "big.bin", on_progress=lambda sent, _: progress.append(sent))
            assert proxy.faults.cut_in is None
            assert (home / "big.bin").read_bytes() == CONTENT
            assert progress == sorted(progress) and progress[-1] == len(CONTENT)
            proxy.faults.cut_in = BREAKS_IN
            received: list[int] = []
            await client.download("big.bin", tmp_path / "back.bin", on_progress=lambda got, _: received.append(got))
            assert proxy.faults.cut_in is None
            assert (tmp_path / "back.bin").read_bytes() == CONTENT
            assert received == sorted(received)  # nothing was sent twice
    finally:
        await proxy.close()


def test_folders_are_uploaded_listed_and_downloaded(commonage: Run, server: tuple[str, Path], tmp_path: Path) -> None:
    source = tmp_path / "work" / "train"
    (source / "deep").mkdir(parents=True)
    (source / "a.txt").write_text("a")
    (source / "deep" / "b.txt").write_text("b")
    (source / "empty").touch()
    (source / "link").symlink_to("/etc/passwd")
    done = commonage("data", "put", "train", "home:")
    assert done.exit_code == 0, done.stderr
    assert "left out: train/link" in done.stderr
    assert (server[1] / "train" / "deep" / "b.txt").read_text() == "b"
    assert (server[1] / "train" / "empty").read_bytes() == b""
    assert not (server[1] / "train" / "link").exists()
    listed = json.loads(commonage("data", "ls", "home:train", "--json").stdout)
    assert [(one["name"], one["kind"]) for one in listed["items"]] == [
        ("deep", "folder"), ("a.txt", "file"), ("empty", "file"),
    ]  # fmt: skip
    assert "train/" in commonage("data", "ls", "home:").stdout
    assert commonage("data", "get", "home:train", "back").exit_code == 0
    assert (tmp_path / "work" / "back" / "deep" / "b.txt").read_text() == "b"
    assert commonage("data", "get", "home:train/a.txt", "back").exit_code == 2
    assert commonage("data", "get", "--replace", "home:train/a.txt", "back").exit_code == 0


def test_existing_files_are_replaced_only_when_asked(commonage: Run, server: tuple[str, Path]) -> None:
    Path("a.txt").write_text("one")
    assert commonage("data", "put", "a.txt", "home:b.txt").exit_code == 0
    Path("a.txt").write_text("two")
    refused = commonage("data", "put", "a.txt", "home:b.txt")
    assert refused.exit_code != 0
    assert (server[1] / "b.txt").read_text() == "one"
    assert commonage("data", "put", "--replace", "a.txt", "home:b.txt").exit_code == 0
    assert (server[1] / "b.txt").read_text() == "two"
    assert commonage("data", "mv", "home:b.txt", "c.txt").exit_code == 0
    assert commonage("data", "mkdir", "home:folder").exit_code == 0
    assert commonage("data", "rm", "home:c.txt", typed="n\n").exit_code != 0
    assert commonage("data", "rm", "-y", "home:c.txt", "home:folder").exit_code == 0
    assert not (server[1] / "c.txt").exists() and not (server[1] / "folder").exists()


def test_places_show_mode_and_use(commonage: Run) -> None:
    listed = commonage("data", "ls").stdout
    assert "home:" in listed and "datasets:" in listed
    assert commonage("data", "ls", "/etc").exit_code == 2
