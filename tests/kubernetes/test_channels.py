"""Commands and ports of Pods, on the cluster that KUBECONFIG names."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterator
from functools import partial

import pytest
from lightkube.config.kubeconfig import KubeConfig
from tests.fakes.waiting import until
from tests.kubernetes.conftest import kubectl

from commonage.engines.kubernetes.channels.connection import Connections, Container
from commonage.engines.kubernetes.channels.execs import PodExecs
from commonage.engines.kubernetes.channels.ports import PodRelays
from commonage.ports.execs import ERR, OUT, ExecStream, NotRunning, Terminal

pytestmark = [pytest.mark.anyio, pytest.mark.allow_hosts(["127.0.0.0/8"])]
IMAGE = os.environ.get("COMMONAGE_TEST_IMAGE", "localhost/commonage-lab/base:1")
MUCH = bytes(range(256)) * 4096
NAME = "channels"


@pytest.fixture(scope="module")
def container(namespace: str) -> Iterator[Container]:
    """A Pod that serves HTTP on port 8080."""
    program = "mkdir /tmp/w && echo hello >/tmp/w/index.html && httpd -p 8080 -h /tmp/w && sleep 3600"
    security = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    one = {"name": "main", "image": IMAGE, "command": ["sh", "-c", program], "securityContext": security}
    spec = {"terminationGracePeriodSeconds": 0, "containers": [{**one, "imagePullPolicy": "IfNotPresent"}]}
    made = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": NAME, "namespace": namespace}, "spec": spec}
    kubectl("create", "-f", "-", text=json.dumps(made))
    kubectl("wait", "-n", namespace, "--for=condition=Ready", f"pod/{NAME}", "--timeout=60s")
    yield Container(namespace, NAME, "main")
    kubectl("delete", "pod", "-n", namespace, NAME, "--ignore-not-found")


@pytest.fixture
async def connections() -> AsyncIterator[Connections]:
    config = KubeConfig.from_file(os.environ["KUBECONFIG"]).get()
    assert config is not None
    made = Connections(config)
    yield made
    await made.close()


@pytest.fixture
async def execs(connections: Connections) -> AsyncIterator[PodExecs]:
    made = PodExecs(connections)
    yield made
    await made.close()


async def said(stream: ExecStream) -> dict[int, bytes]:
    found = {OUT: b"", ERR: b""}
    async with asyncio.timeout(60):
        while (one := await stream.read()) is not None:
            found[one[0]] += one[1]
    return found


@pytest.mark.parametrize(("command", "code"), [(("true",), 0), (("sh", "-c", "exit 42"), 42), (("no-such",), 127)])
async def test_tells_the_exit_code(execs: PodExecs, container: Container, command: tuple[str, ...], code: int) -> None:
    stream = await execs.begin(container, "a", command, None)
    await said(stream)
    assert await stream.exit_code() == code


async def test_file_that_is_no_program_has_exit_code_126(execs: PodExecs, container: Container) -> None:
    stream = await execs.begin(container, "a", ("/tmp",), None)
    await said(stream)
    assert await stream.exit_code() == 126


async def test_input_and_output_are_complete(execs: PodExecs, container: Container) -> None:
    stream = await execs.begin(container, "a", ("sh", "-c", "echo woe >&2; cat"), None)

    async def give() -> None:
        await stream.write(MUCH)
        await stream.close_stdin()

    giving = asyncio.create_task(give())
    assert await said(stream) == {OUT: MUCH, ERR: b"woe\n"}
    await giving
    assert await stream.exit_code() == 0


async def test_terminal_has_its_size_and_interrupts(execs: PodExecs, container: Container) -> None:
    stream = await execs.begin(container, "a", ("sh", "-c", "stty size; cat"), Terminal(101, 37))
    first = await asyncio.wait_for(stream.read(), 60)
    assert first == (OUT, b"37 101\r\n")
    await stream.write(b"a\n")
    echoed = b""
    while echoed != b"a\r\na\r\n":  # of the terminal and of `cat`, which reads now
        one = await asyncio.wait_for(stream.read(), 60)
        assert one is not None
        echoed += one[1]
    await stream.write(b"\x03")
    await said(stream)
    assert await stream.exit_code() == 130


async def test_close_ends_what_the_command_started(execs: PodExecs, container: Container) -> None:
    stream = await execs.begin(container, "a", ("sh", "-c", "sleep 4321 & echo here; sleep 4322"), None)
    assert await asyncio.wait_for(stream.read(), 60) == (OUT, b"here\n")
    await stream.close()
    looking = await execs.begin(container, "a", ("sh", "-c", "ps -o args | grep -c 'sleep 43[2]'"), None)
    assert (await said(looking))[OUT] == b"0\n"


async def test_unread_output_does_not_prevent_the_close(execs: PodExecs, container: Container) -> None:
    stream = await execs.begin(container, "a", ("yes",), None)
    assert await asyncio.wait_for(stream.read(), 60)
    async with asyncio.timeout(60):
        await stream.close()
    assert await stream.read() is None
    assert await stream.exit_code() != 0


async def test_pod_that_does_not_exist_runs_nothing(execs: PodExecs, container: Container) -> None:
    with pytest.raises(NotRunning):
        await execs.begin(Container(container.namespace, "no-such", "main"), "a", ("true",), None)


async def test_relay_forwards_many_connections(connections: Connections, container: Container) -> None:
    relays = PodRelays(connections)
    address = relays.address("a-1", container, 8080)
    assert address is not None

    async def fetch() -> bytes:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"GET / HTTP/1.0\r\n\r\n")
        async with asyncio.timeout(60):
            found = await reader.read()
        writer.close()
        return found

    try:
        await until(partial(is_open, address), "the relay listens", within_s=60)
        assert all(found.endswith(b"hello\n") for found in await asyncio.gather(*(fetch() for _ in range(10))))
    finally:
        await relays.close()


async def test_relay_to_a_closed_port_refuses_connections(connections: Connections, container: Container) -> None:
    relays = PodRelays(connections)
    address = relays.address("a-1", container, 8081)
    assert address is not None
    try:
        for _ in range(10):
            assert not await is_open(address)
            await asyncio.sleep(0.3)
    finally:
        await relays.close()


async def is_open(address: tuple[str, int]) -> bool:
    try:
        _, writer = await asyncio.open_connection(*address)
    except ConnectionRefusedError:
        return False
    writer.close()
    return True


async def test_end_of_the_pod_ends_the_command(execs: PodExecs, container: Container) -> None:
    stream = await execs.begin(container, "a", ("sh", "-c", "echo here; sleep 4323"), None)
    assert await asyncio.wait_for(stream.read(), 60) == (OUT, b"here\n")
    await asyncio.to_thread(kubectl, "delete", "pod", "-n", container.namespace, container.pod, "--wait=false")
    await said(stream)
    assert await stream.exit_code() > 128
    with pytest.raises(NotRunning):
        await execs.begin(container, "a", ("true",), None)
