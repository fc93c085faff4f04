"""Commands in running containers, through the filter before the Docker socket, which lets only these through."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.contract.docker_filter.filtering import filter_before
from tests.contract.engines.rigs import DockerRig, docker_rig
from tests.contract.harness.dockerd import Dockerd

from commonage.domain.statuses import StartRequest
from commonage.engines.containers.docker_api import STREAMS
from commonage.engines.docker.translate import container_name
from commonage.testing.engine_rig import FOREVER
from commonage.testing.exec_contract import ExecContract

pytestmark = [pytest.mark.needs("docker"), pytest.mark.needs("haproxy"), pytest.mark.anyio]


@pytest.fixture(scope="module")
def filtered(dockerd: Dockerd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    data = tmp_path_factory.getbasetemp()
    below = ("workspaces/*", "docker/runs/*/control", "docker/runs/*/log")
    told = {"COMMONAGE_DATA_DIR": "/nowhere", "COMMONAGE_MOUNTS": ":".join(f"{data}/*/{one}" for one in below)}
    with filter_before(dockerd.socket, tmp_path_factory.mktemp("filter"), **told) as made:
        yield made


@pytest.fixture
async def rig(tmp_path: Path, dockerd: Dockerd, filtered: Path) -> AsyncIterator[DockerRig]:
    async with docker_rig(tmp_path, dockerd):
        through = DockerRig(tmp_path, f"unix://{filtered}")
        yield through
        await (await through.engine()).close()  # what is left is ended past the filter


def _ask(socket_: Path, head: str, body: str = "") -> str:
    """The first line of the answer; empty without an answer."""
    with closing(socket.socket(socket.AF_UNIX)) as plug:
        plug.settimeout(20)
        plug.connect(str(socket_))
        about = f"Host: docker\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        if head.endswith("1.1"):
            about += "Connection: close\r\n"
        plug.sendall(f"{head}\r\n{about}\r\n{body}".encode())
        try:
            return plug.recv(65536).decode().partition("\r\n")[0]
        except ConnectionError:
            return ""


def _created(filtered: Path, name: str, **fields: object) -> str:
    body = json.dumps({"Cmd": ["id"], "AttachStdout": True, **fields})
    return _ask(filtered, f"POST /v1.41/containers/{name}/exec HTTP/1.1", body)


async def test_commands_get_through_and_no_more(rig: DockerRig, filtered: Path) -> None:
    await rig.engine()
    contract = ExecContract()
    await asyncio.gather(
        contract.test_exec_pipes_are_complete_and_separate(rig),
        contract.test_terminal_has_its_size_and_is_resized(rig),
        contract.test_end_of_connection_ends_the_command(rig),
    )
    request: StartRequest = await rig.started(rig.start_request(FOREVER))
    name = container_name(request.attempt_id)
    assert " 201 " in _created(filtered, name)
    for fields in (
        {"User": "0"}, {"user": "daemon"}, {"Privileged": True}, {"PRIVILEGED": 1}, {"WorkingDir": "/"},
        {"DetachKeys": "a"},
    ):  # fmt: skip
        assert " 403 " in _created(filtered, name, **fields), fields
    found = (await rig.engine())._table.runs[request.attempt_id].container
    for other in ("commonage-control-1", "commonage_control_1", "docker-filter", found):
        assert " 403 " in _created(filtered, str(other)), other


async def test_streams_are_of_commands_alone(filtered: Path) -> None:
    streams = filtered.with_suffix(STREAMS)
    start = f"POST /v1.41/exec/{'0' * 64}/start HTTP/1.0"
    assert " 404 " in _ask(streams, start, '{"Detach": false, "Tty": true}')
    for head, body in (
        ("GET /containers/json HTTP/1.0", ""),
        (start.replace("1.0", "1.1"), '{"Detach": false, "Tty": true}'),
        (start, '{"Detach": true, "Tty": true}'),
        (start, '{"Detach": false, "Tty": true}GET /info HTTP/1.0\r\n\r\n'),
        (f"{start}\r\nConnection: keep-alive", '{"Detach": false, "Tty": true}'),
    ):
        assert _ask(streams, head, body) == "", head
    assert " 403 " in _ask(filtered, start, '{"Detach": false, "Tty": true}')
