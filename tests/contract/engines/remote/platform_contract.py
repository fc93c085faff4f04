"""A workload on an appliance reaches the hub of the control plane by the link. For real engines."""

import asyncio

from tests.contract.engines.firewall_tries import answer_hello
from tests.contract.engines.remote.rig import RemoteRealRig

from commonage.testing.behaviour import Behaviour

_FETCH = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=20).read().decode())"


class PlatformContract:
    async def test_workloads_reach_the_platform_by_the_link(self, rig: RemoteRealRig) -> None:
        server = await asyncio.start_server(answer_hello, "127.0.0.1", 0)
        async with server:
            rig.gateway_port = server.sockets[0].getsockname()[1]
            request = rig.start_request(
                Behaviour(),
                command=("sh", "-c", f'python3 -c "{_FETCH}" $HUB'),
                variables=(("HUB", f"http://127.0.0.1:{rig.hub_port}"),),
            )
            await rig.ended(request)
            assert await rig.lines(request.attempt_id) == ["hello"]
