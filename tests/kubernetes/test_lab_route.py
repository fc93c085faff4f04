"""JupyterLab in a Pod, reached from a machine without a route to Pods: pages, a kernel, and a large file."""

import asyncio
import hashlib
import json
import os
from collections.abc import AsyncIterator
from dataclasses import replace

import httpx2
import pytest
import websockets
from tests.kubernetes.rig import KubernetesRig

from commonage.domain.statuses import Phase
from commonage.testing.engine_rig import FOREVER

IMAGES = os.environ.get("COMMONAGE_TEST_PLATFORM_IMAGES", "").split()
pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(len(IMAGES) != 3, reason="COMMONAGE_TEST_PLATFORM_IMAGES does not name three images"),
    pytest.mark.allow_hosts(["127.0.0.0/8"]),
]
MUCH = 100_000_000
TOKEN = {"Authorization": "token letmein"}
_LAB = f"""
python3 -c "open('much.bin', 'wb').write(bytes(range(100)) * ({MUCH} // 100))"
exec jupyter lab --ip=0.0.0.0 --port="$COMMONAGE_PORT" --no-browser --ServerApp.token=letmein --ServerApp.root_dir=.
"""
_CELL = "import hashlib; print(hashlib.sha256(open('much.bin', 'rb').read()).hexdigest())"


@pytest.fixture
async def url(rig: KubernetesRig) -> AsyncIterator[str]:
    """The address of a JupyterLab that answers."""
    rig.settings = replace(rig.settings, reach="port-forward")
    environment = replace(rig.start_request.environment, image=IMAGES[2])
    request = rig.start_request(
        FOREVER, memory_mib=1024, command=("sh", "-c", _LAB), wants_port=True, environment=environment
    )
    await (await rig.engine()).start(request)
    found = (await rig.phase(request.attempt_id, Phase.RUNNING)).url
    assert found is not None and found.startswith("http://127.")

    async def answers() -> bool:
        try:
            async with httpx2.AsyncClient(trust_env=False) as client:
                return (await client.get(f"{found}/api/status", headers=TOKEN)).status_code == 200
        except httpx2.ConnectError:
            return False

    await rig.until(answers, "JupyterLab answers")
    yield found


async def printed(url: str, kernel: str) -> str:
    """The output of a cell."""
    content = {"code": _CELL, "silent": False, "store_history": False, "allow_stdin": False, "stop_on_error": True}
    header = {"msg_id": "1", "username": "", "session": "1", "msg_type": "execute_request", "version": "5.3"}
    cell = {"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"}
    channels = f"ws{url.removeprefix('http')}/api/kernels/{kernel}/channels"
    async with websockets.connect(channels, additional_headers=TOKEN, proxy=None) as stream:
        await stream.send(json.dumps(cell))
        async with asyncio.timeout(60):
            while True:
                message = json.loads(await stream.recv())
                if message["msg_type"] == "stream":
                    return str(message["content"]["text"]).strip()


async def test_jupyter_lab_is_used_through_the_api_server(url: str) -> None:
    async with httpx2.AsyncClient(trust_env=False, headers=TOKEN, timeout=120) as client:
        page = await client.get(f"{url}/lab")
        assert "JupyterLab" in page.text
        kernel = (await client.post(f"{url}/api/kernels", json={"name": "python3"})).json()["id"]
        file = (await client.get(f"{url}/files/much.bin")).content
    assert len(file) == MUCH
    assert await printed(url, kernel) == hashlib.sha256(file).hexdigest()
