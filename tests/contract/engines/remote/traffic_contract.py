"""Traffic between the control plane and an attempt on an appliance, beyond the contract. For real engines."""

from __future__ import annotations

import asyncio
import hashlib
import tarfile
from pathlib import Path
from typing import ClassVar

import httpx2
import pytest
from tests.contract.engines.remote.rig import RemoteRealRig

from commonage.domain.statuses import Phase
from commonage.domain.volumes import Volume, VolumeRequest, mounts_of
from commonage.testing.behaviour import Behaviour
from commonage.testing.engine_rig import FOREVER

_SERVER = """
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        if self.headers.get("Upgrade") != "websocket":
            self.send_response(200)
            self.send_header("Content-Length", "3")
            self.end_headers()
            self.wfile.write(b"web")
            return
        self.wfile.write(b"HTTP/1.1 101 Switching Protocols\\r\\nUpgrade: websocket\\r\\n\\r\\n")
        while data := self.rfile.read1(1000):
            self.wfile.write(data.upper())
        self.close_connection = True

print("here", flush=True)
ThreadingHTTPServer((os.environ["BIND"], int(os.environ["PORT"])), Handler).serve_forever()
"""


class TrafficContract:
    """Fixture `rig`: a `RemoteRealRig`. `python`: its command there. `bind`: the address of servers."""

    pytestmark: ClassVar = pytest.mark.anyio
    python: ClassVar = "python3"
    bind: ClassVar = "0.0.0.0"

    @pytest.mark.allow_hosts(["127.0.0.1", "127.64.0.0/10", "10.213.0.0/16"])
    async def test_web_pages_and_websockets_of_an_attempt_are_reached(self, rig: RemoteRealRig) -> None:
        variables = (("PORT", "{port}"), ("BIND", self.bind))
        request = rig.start_request(FOREVER, command=(self.python, "-c", _SERVER), wants_port=True, variables=variables)
        await rig.started(request)
        url = (await rig.phase(request.attempt_id, Phase.RUNNING)).url
        assert url is not None
        assert url.startswith("http://127."), "an address of the control plane's own"
        async with httpx2.AsyncClient(trust_env=False) as client:

            async def answers() -> bool:
                try:
                    return (await client.get(url)).text == "web"
                except httpx2.HTTPError:
                    return False

            await rig.until(answers, "the page is served")
        host, _, port = url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET / HTTP/1.1\r\nHost: it\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
        assert b"101" in await reader.readuntil(b"\r\n\r\n")
        for _ in range(3):
            writer.write(b"cell")
            assert await reader.readexactly(4) == b"CELL"
        writer.write_eof()
        assert await reader.read() == b"", "the end goes through in both directions"
        writer.close()

    async def test_files_of_a_job_arrive_and_stay_until_it_is_forgotten(
        self, rig: RemoteRealRig, tmp_path: Path
    ) -> None:
        engine = await rig.engine()
        (tmp_path / "said").write_text("from the bundle\n")
        bundle = tmp_path / "bundle.tar.gz"
        with tarfile.open(bundle, "w:gz") as archive:
            archive.add(tmp_path / "said", "said")
        requests = [rig.start_request(Behaviour(), command=("cat", "said"), bundle_path=str(bundle)) for _ in range(2)]
        for request in requests:
            assert (await rig.ended(request)).exit_code == 0
            assert await rig.lines(request.attempt_id) == ["from the bundle"]
        kept = tmp_path / "site" / "bundles" / f"{hashlib.sha256(bundle.read_bytes()).hexdigest()}.tar.gz"
        await engine.forget(requests[0].attempt_id)
        assert kept.exists(), "the other attempt has it, too"
        await engine.forget(requests[1].attempt_id)
        assert not kept.exists()

    async def test_volumes_are_folders_of_the_appliance(self, rig: RemoteRealRig, tmp_path: Path) -> None:
        folder = tmp_path / "data sets"
        folder.mkdir()
        (folder / "one.csv").write_text("1,2\n")
        volume = Volume("datasets", source=str(folder))
        mounts = mounts_of([VolumeRequest("datasets", None)], (volume,), "ada", "lab")
        script = "cat $COMMONAGE_VOLUME_DATASETS/one.csv"
        request = rig.start_request(Behaviour(), command=("sh", "-c", script), mounts=mounts)
        await rig.ended(request)
        assert await rig.lines(request.attempt_id) == ["1,2"]

    async def test_secrets_stay_on_no_disk_of_the_link(self, rig: RemoteRealRig, tmp_path: Path) -> None:
        """The engine alone keeps them, while the attempt runs."""
        request = rig.start_request(FOREVER, secrets=(("SESAME", "open-up-please"),))
        await rig.started(request)
        await rig.stop_agent()
        await rig.stop_control()
        for folder in ("site", "control"):
            for path in (tmp_path / folder).rglob("*"):
                assert not path.is_file() or b"open-up-please" not in path.read_bytes(), path
