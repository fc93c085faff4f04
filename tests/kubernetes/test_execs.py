"""Commands next to the program of a Pod, beyond the contract of all engines."""

import asyncio

import pytest
from tests.kubernetes.rig import KubernetesRig

from commonage.ports.execs import OUT, ExecStream
from commonage.testing.engine_rig import FOREVER

pytestmark = pytest.mark.anyio


async def output(stream: ExecStream) -> bytes:
    said = b""
    async with asyncio.timeout(60):
        while (one := await stream.read()) is not None:
            said += one[1] if one[0] == OUT else b""
    return said


async def test_exec_command_has_the_programs_folder_secrets_and_limits(rig: KubernetesRig) -> None:
    program = ("sh", "-c", "cat /proc/self/cgroup >own; echo ready; sleep 300")
    request = await rig.started(rig.start_request(FOREVER, command=program, secrets=(("TOKEN", "s3cret"),)))

    async def is_ready() -> bool:
        return "ready" in await rig.lines(request.attempt_id)

    await rig.until(is_ready, "the program wrote its control group")
    looks = 'pwd; echo "$TOKEN"; cat own; echo /; cat /proc/self/cgroup'
    stream = await (await rig.engine()).exec(request.attempt_id, ("sh", "-c", looks))
    folder, token, groups = (await output(stream)).decode().split("\n", 2)
    assert (folder, token) == ("/home/ada", "s3cret")
    of_program, of_command = groups.split("/\n", 1)
    assert of_command == of_program != ""
    await stream.close()
