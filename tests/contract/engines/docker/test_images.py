"""Images of the catalogue over a real daemon: two kernels that differ in one image, each with its own programs."""

import json
import tarfile
from dataclasses import replace
from io import BytesIO

import pytest
from tests.contract.engines.rigs import DockerRig
from tests.contract.harness.dockerd import Dockerd, minimal_image

from commonage.domain.errors import EngineFailure
from commonage.domain.images import Environment, EnvironmentState, Image, Kernel, environments_of
from commonage.domain.reasons import Reason
from commonage.domain.reasons.attempts import PullingImage
from commonage.domain.workloads import Kind
from commonage.testing.behaviour import Behaviour
from commonage.testing.factories import NOW

pytestmark = [pytest.mark.anyio, pytest.mark.needs("docker")]
KERNELS = (Kernel("old", "Old", "/opt/kernels/old"), Kernel("new", "New", "/opt/kernels/new"))
_SAYS = '#!/bin/sh\necho "{what} in ${{VIRTUAL_ENV:-none}}"\n'


def two_kernels() -> bytes:
    """The test image with two environments that have a `tool` each, and a third that has the server."""
    buffer = BytesIO(minimal_image())
    with tarfile.open(fileobj=buffer, mode="a") as archive:
        for path, what in (
            ("opt/kernels/old/bin/tool", "old"),
            ("opt/kernels/new/bin/tool", "new"),
            ("opt/server/bin/jupyterhub-singleuser", "server"),
        ):
            content = _SAYS.format(what=what).encode()
            info = tarfile.TarInfo(path)
            info.size, info.mode = len(content), 0o755
            archive.addfile(info, BytesIO(content))
    return buffer.getvalue()


@pytest.fixture(scope="module")
def environments(dockerd: Dockerd) -> dict[str, Environment]:
    said = dockerd.ask("POST", "/images/create?fromSrc=-", content=two_kernels())
    lines = said if isinstance(said, dict) else json.loads(bytes(said).strip().splitlines()[-1])
    whole = Image(
        "lab/two", "lab", lines["status"], "ada", NOW, kinds=tuple(Kind), kernels=KERNELS, server_prefix="/opt/server"
    )
    return {one.name: one for one in environments_of(whole)}


@pytest.mark.parametrize(
    ("name", "kind", "command", "says"),
    [
        ("lab/two/old", Kind.JOB, ("tool",), "old in /opt/kernels/old"),
        ("lab/two/new", Kind.JOB, ("sh", "-c", "tool"), "new in /opt/kernels/new"),
        ("lab/two", Kind.SESSION, (), "server in none"),
    ],
)
async def test_each_kernel_of_an_image_has_its_own_programs(
    rig: DockerRig, environments: dict[str, Environment], name: str, kind: Kind, command: tuple[str, ...], says: str
) -> None:
    request = rig.start_request(Behaviour(), environment=environments[name], kind=kind, command=command)
    ended = await rig.ended(replace(request, wants_port=kind is Kind.SESSION))
    assert (ended.exit_code, await rig.lines(request.attempt_id)) == (0, [says])


async def test_a_job_does_not_find_the_programs_of_the_other_kernel(
    rig: DockerRig, environments: dict[str, Environment]
) -> None:
    request = rig.start_request(
        Behaviour(), environment=environments["lab/two/new"], command=("jupyterhub-singleuser",)
    )
    assert (await rig.ended(request)).exit_code == 127


async def test_an_image_is_prepared_by_its_id_and_its_absence_is_told(
    rig: DockerRig, environments: dict[str, Environment]
) -> None:
    engine = await rig.engine()
    heard: list[Reason] = []
    await engine.prepare(environments["lab/two"], "here", lambda reason, _: heard.append(reason))
    (status,) = [one for one in await engine.environments() if one.name == "lab/two"]
    assert (status.state, heard) == (EnvironmentState.READY, [])
    gone = replace(environments["lab/two"], image=f"127.0.0.1:1/lab/two@sha256:{'0' * 64}")
    with pytest.raises(EngineFailure, match=r"EnvironmentFailed\(environment='lab/two', error=.*cannot be reached"):
        await engine.prepare(gone, "here", lambda reason, _: heard.append(reason))
    assert heard[0] == PullingImage(image=gone.image)
