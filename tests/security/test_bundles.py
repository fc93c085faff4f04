"""The attacker is a user who sends files along: to kill the control plane, fill its disk, or read what others sent."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import io
import itertools
import os
import signal
import socket
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.fakes.waiting import wait_until
from tests.integration.api_world import serving

from commonage.control.settings import BundleLimits
from commonage.wire.hub import API_PATH

MIB = 1 << 20
GZIP = {"Content-Type": "application/gzip"}
ROOT = Path(__file__).parents[2]


@dataclass
class Server:
    process: subprocess.Popen[bytes]
    folder: Path
    http: httpx2.Client

    def send(self, content: bytes) -> str:
        answer = self.http.post("/bundles", content=content, headers=GZIP)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["digest"])

    def submit(self, **fields: Any) -> str:
        answer = self.http.post("/workloads", json={"kind": "job", "command": ["/bin/true"], **fields})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["workload"]["id"])

    def workload(self, workload_id: str) -> dict[str, Any]:
        answer = self.http.get(f"/workloads/{workload_id}")
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def ended(self, workload_id: str) -> tuple[str, str]:
        """Its last state, and why."""
        states = ("succeeded", "failed", "stopped", "lost")
        found = wait_until(lambda: one if (one := self.workload(workload_id))["state"] in states else None)
        return found["state"], found["reason"]["params"].get("error", "")

    def memory_mib(self) -> int:
        """The most memory that the server has had."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) // 1024

    def children(self) -> list[int]:
        """The processes that unpack for it, by the argument that names their parent."""
        last, found = f"\0{self.process.pid}\0".encode(), []
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                line = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
                if b"unpack_child.py" in line and line.endswith(last):
                    found.append(int(entry.name))
        return found

    def kill_while_unpacking(self) -> None:
        unpacking = wait_until(self.children)
        for child in unpacking:
            os.kill(child, signal.SIGSTOP)  # it may not be done before the server is killed
        self.kill()
        for child in unpacking:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGCONT)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@contextmanager
def started(folder: Path) -> Iterator[Server]:
    """A server on this folder that has begun to start; killed at the end, if it was not before."""
    folder.mkdir(exist_ok=True)
    (folder / "port").unlink(missing_ok=True)
    process = subprocess.Popen([sys.executable, "-m", "tests.security.bundle_server", str(folder)], cwd=ROOT)
    try:
        with httpx2.Client(headers={"Authorization": "Bearer ann"}, timeout=60) as http:
            yield Server(process, folder, http)
    finally:
        process.kill()
        process.wait()


@contextmanager
def running(folder: Path) -> Iterator[Server]:
    with started(folder) as server:
        wait_until(lambda: server.process.poll() is not None or (folder / "port").exists())
        server.http.base_url = httpx2.URL(f"http://127.0.0.1:{(folder / 'port').read_text()}{API_PATH}")
        yield server


def packed(files: dict[str, bytes]) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz", compresslevel=1) as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text))
    return content.getvalue()


def bomb(kind: bytes, size: int) -> bytes:
    """An archive of one extension header that is as large as `size` says, and a few hundred KiB packed."""
    header, content = tarfile.TarInfo("header"), io.BytesIO()
    header.type, header.size = kind, size
    with gzip.GzipFile(fileobj=content, mode="wb", compresslevel=1) as archive:
        archive.write(header.tobuf(tarfile.GNU_FORMAT))
        for _ in range(size // MIB):
            archive.write(bytes(MIB))
        archive.write(bytes(1024))
    return content.getvalue()


def test_a_bundle_of_huge_headers_takes_no_memory_of_the_server(tmp_path: Path) -> None:
    with running(tmp_path / "server") as server:
        for kind in (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME):
            bundle = bomb(kind, 600 * MIB)
            assert len(bundle) < 4 * MIB
            state, reason = server.ended(server.submit(bundle=server.send(bundle)))
            assert (state, "extension header" in reason) == ("failed", True)
        good = server.send(packed({"run.sh": b"exit 0"}))
        assert server.ended(server.submit(command=["/bin/sh", "run.sh"], bundle=good))[0] == "succeeded"
        assert server.memory_mib() < 500


def test_a_bundle_whose_unpacking_ends_the_server_is_not_unpacked_at_every_start(tmp_path: Path) -> None:
    folder = tmp_path / "server"
    many = packed({f"{index % 50}/{index}": b"" for index in range(30_000)})
    with running(folder) as server:
        workload = server.submit(bundle=server.send(many))
        server.kill_while_unpacking()
        [attempt] = (folder / "data" / "runs").glob("*/unpacking")
        wait_until(lambda: not server.children())  # nothing goes on behind its back
    with started(folder) as server:
        server.kill_while_unpacking()
        assert attempt.read_text() == "2"
    with running(folder) as server:
        state, reason = server.ended(workload)
        assert (state, "ended 2 times while it unpacked" in reason) == ("failed", True)
        assert server.children() == []
        assert server.ended(server.submit())[0] == "succeeded"
        job_folders = folder / "data" / "workspaces" / "ann" / "jobs"
        assert server.ended(server.submit(bundle=server.send(many)))[0] == "succeeded", "it does no harm by itself"
        assert any(job_folders.iterdir())


def test_an_upload_that_is_cut_off_by_a_kill_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "server"
    with running(folder) as server:
        address = (server.http.base_url.host, server.http.base_url.port)
        with socket.create_connection(address) as line:
            head = f"POST {API_PATH}/bundles HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ann\r\n"
            head += "Content-Length: 9999999\r\nContent-Type: application/gzip\r\n\r\n"
            line.sendall(head.encode() + b"\x1f\x8b" + bytes(1000))
            wait_until(lambda: list((folder / "bundles").glob(".coming-*")))
            server.kill()
    with running(folder):
        assert list((folder / "bundles").iterdir()) == []


@pytest.mark.anyio
async def test_the_digest_of_a_bundle_opens_nothing_to_others(tmp_path: Path) -> None:
    secret = packed({"exam.txt": b"the answers"})
    digest = hashlib.sha256(secret).hexdigest()
    async with serving(tmp_path) as api, api.client() as ann, api.client("bob") as bob:
        assert (await ann.post("/bundles", content=secret, headers=GZIP)).status_code == 201
        ask = {"command": ["cat", "exam.txt"], "bundle": digest}
        refused = await bob.post("/workloads", json=ask)
        never = await bob.post("/workloads", json={**ask, "bundle": "0" * 64})
        assert (refused.status_code, refused.json()["code"]) == (404, "bundle-not-found")
        # The answer does not reveal whether another user sent it.
        assert refused.json()["detail"].replace(digest[:16], "") == never.json()["detail"].replace("0" * 16, "")
        assert (await ann.post("/workloads", json=ask)).status_code == 201


@pytest.mark.anyio
async def test_one_user_cannot_fill_the_disk_with_bundles(tmp_path: Path) -> None:
    most = 20
    async with (
        serving(tmp_path, bundles=BundleLimits(per_user=most)) as api,
        api.client() as ann,
        api.client("bob") as bob,
    ):
        for number in range(most):
            sent = await ann.post("/bundles", content=b"\x1f\x8b" + str(number).encode(), headers=GZIP)
            assert sent.status_code == 201
        refused = await ann.post("/bundles", content=b"\x1f\x8bone more", headers=GZIP)
        assert (refused.status_code, refused.json()["code"]) == (429, "too-many-bundles")
        assert f"{most} of {most} allowed" in refused.json()["detail"]
        assert (await ann.post("/bundles", content=b"\x1f\x8b0", headers=GZIP)).status_code == 201, (
            "it is there already"
        )
        assert (await bob.post("/bundles", content=b"\x1f\x8bone more", headers=GZIP)).status_code == 201
    assert sum(len(files) for _, _, files in os.walk(tmp_path / "bundles")) == most + 1


@pytest.mark.anyio
async def test_slow_uploads_take_no_place_of_others(tmp_path: Path) -> None:
    over = asyncio.Event()

    async def slow() -> Any:
        yield b"\x1f\x8b"
        await over.wait()

    async with serving(tmp_path) as api, api.client() as ann, api.client("bob") as bob:
        held = [asyncio.create_task(ann.post("/bundles", content=slow(), headers=GZIP)) for _ in range(20)]
        refused = [await one for one in itertools.islice(asyncio.as_completed(held), 16)]
        assert {(one.status_code, one.json()["code"]) for one in refused} == {(429, "too-many-uploads")}
        waiting = [one for one in held if not one.done()]
        assert len(waiting) == 4
        assert (await bob.post("/bundles", content=b"\x1f\x8b", headers=GZIP)).status_code == 201
        over.set()
        assert {one.status_code for one in await asyncio.gather(*waiting)} == {201}
