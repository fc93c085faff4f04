"""Attacks on the network of a Swarm: by a host that is no member, by a container, by who listens on the wire.

A whole site: the server on the manager of a real Swarm, real agents with their firewalls on the workers. The attacker
is a host on the same switch, or code in a container.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.contract.harness.swarm import Node
from tests.fakes.waiting import wait_until
from tests.integration.swarm_site import WORKERS, SwarmSite, swarm_site

from commonage.wire.hub import API_PATH
from commonage.wire.workloads import SubmitIn

pytestmark = [pytest.mark.needs("docker", "images"), pytest.mark.timeout(540)]
NODE = WORKERS[0]
METRICS = "/services/commonage/metrics"


@pytest.fixture(scope="module")
def site() -> Iterator[SwarmSite]:
    with swarm_site() as made:
        yield made


@pytest.fixture(scope="module")
def outsider(site: SwarmSite) -> Iterator[Node]:
    """A host on the switch of the site's nodes that is no member of the Swarm."""
    host = Node("outsider", "10.98.0.66", site.swarm.manager.space.rpartition("-")[0])
    host.plug_in()
    yield host
    host.remove()


def ports(site: SwarmSite) -> tuple[int, int]:
    """The hub's and the control plane's."""
    found = json.loads((site.server.data / "ports.json").read_text())
    return found["hub"], found["control"]


_ASK = """
import socket, sys
host, port, path = sys.argv[1], int(sys.argv[2]), sys.argv[3]
try:
    with socket.create_connection((host, port), 5) as there:
        there.sendall(f"GET {path} HTTP/1.0\\r\\nHost: x\\r\\n\\r\\n".encode())
        print(there.recv(12).decode() or "closed")
except OSError:
    print("closed")
"""


def ask_from(node: Node, host: str, port: int, path: str = "/") -> str:
    """The first line of what is answered; `closed` if nothing is."""
    words = [*node.inside(), sys.executable, "-S", "-c", _ASK, host, str(port), path]
    return subprocess.run(words, capture_output=True, text=True, check=True, timeout=30).stdout.strip()


def test_a_host_that_is_no_member_gets_nothing_from_the_relay(site: SwarmSite, outsider: Node) -> None:
    manager = site.swarm.manager.address
    hub, control = ports(site)
    tries = ((hub, "/hub/api/"), (hub, "/hub/login"), (control, f"{API_PATH}/health"), (control, METRICS))
    assert [ask_from(outsider, manager, *one) for one in tries] == ["closed"] * len(tries)
    # A member of the Swarm is answered.
    wait_until(lambda: ask_from(site.swarm.machines[NODE], manager, control, f"{API_PATH}/health") == "HTTP/1.1 200")


def test_a_process_of_the_servers_own_node_reads_no_metrics(site: SwarmSite) -> None:
    _, control = ports(site)
    manager = site.swarm.manager
    answer = wait_until(lambda: "closed" not in (said := ask_from(manager, "127.0.0.1", control, METRICS)) and said)
    assert answer == "HTTP/1.1 401"


_FETCH = """
import os, urllib.error, urllib.request
def fetch(url, **headers):
    try:
        asked = urllib.request.Request(url, headers={name.replace("_", "-"): text for name, text in headers.items()})
        return urllib.request.urlopen(asked, timeout=20).status
    except urllib.error.HTTPError as error:
        return error.code
hub, control = os.environ["HUB"], os.environ["CONTROL"]
"""


def run_inside(site: SwarmSite, program: str) -> list[str]:
    """Output of a program in eve's container on a worker."""
    hub, control = ports(site)
    variables = {"HUB": f"http://127.0.0.1:{hub}", "CONTROL": f"http://127.0.0.1:{control}"}
    return site.run("eve", NODE, f"python3 - <<'END'\n{_FETCH}\n{program}\nEND", variables=variables)


def test_a_container_reaches_the_apis_and_nothing_else(site: SwarmSite) -> None:
    tries = {
        'hub + "/hub/api/"': "200",
        f'control + "{API_PATH}/health"': "200",
        f'control + "{METRICS}"': "404",
        f'control + "{METRICS}", X_Forwarded_For="127.0.0.1"': "404",
        f'control + "{API_PATH}/../../metrics"': "404",
        'control + "/services/commonage/"': "404",
        'hub + "/hub/login"': "404",
        'hub + "/hub/login", X_Forwarded_For="127.0.0.1", X_Forwarded_Proto="https"': "404",
        'hub + "/hub/api/../login"': "404",
    }
    program = "\n".join(f"print(fetch({one}))" for one in tries)
    assert dict(zip(tries, run_inside(site, program), strict=True)) == tries


_LISTEN = """
import socket, sys
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(3))
wire.bind(("eth0", 0))
print("listening", flush=True)
with open(sys.argv[1], "wb", buffering=0) as file:
    while True:
        file.write(wire.recv(65536))
"""


def test_a_token_is_not_read_on_the_wire(site: SwarmSite, tmp_path: Path) -> None:
    heard, secret = tmp_path / "wire", "0123token4567token89ab"
    words = [*site.swarm.machines[NODE].inside(), sys.executable, "-S", "-c", _LISTEN, str(heard)]
    listener = subprocess.Popen(words, stdout=subprocess.PIPE)
    try:
        assert listener.stdout is not None
        assert listener.stdout.readline() == b"listening\n"
        program = f'print(fetch(hub + "/hub/api/user", Authorization="token {secret}"), hub)'
        [said] = run_inside(site, program)
    finally:
        listener.kill()
        listener.wait()
        listener.stdout.close()  # type: ignore[union-attr]
    status, hub = said.split()
    assert status == "403"  # the hub was asked, and does not know this token
    wire = heard.read_bytes()
    assert wire, "the agent's own traffic at least is heard"
    assert secret.encode() not in wire
    assert site.swarm.manager.address not in hub


def _links(node: Node) -> Sequence[str]:
    """Its IPv6 addresses at the switch."""
    words = ["ip", "-n", node.space, "-j", "-6", "addr", "show", "dev", "eth0"]
    found = json.loads(subprocess.run(words, check=True, capture_output=True).stdout)
    return [one["local"] for link in found for one in link["addr_info"]]


def test_a_published_port_takes_connections_from_the_control_plane_only(site: SwarmSite, outsider: Node) -> None:
    client = site.client("ada")
    command = ["sh", "-c", "exec python3 -m http.server $COMMONAGE_PORT"]
    asked = SubmitIn(kind="service", command=command, on={"node": NODE}, memory_mib=64, cpus="0.1")
    service = client.submit(asked).workload.id
    site.runs("ada", service)
    try:
        node, manager = site.swarm.machines[NODE], site.swarm.manager
        words = [*node.inside(), "ss", "-Htln"]
        listening = subprocess.run(words, check=True, capture_output=True, text=True).stdout
        [port] = {int(one.split()[3].rpartition(":")[2]) for one in listening.splitlines() if ":2" in one} & set(
            range(20000, 30000)
        )
        wait_until(lambda: ask_from(manager, node.address, port).startswith("HTTP/1.0 200"))
        assert ask_from(outsider, node.address, port) == "closed"
        assert ask_from(site.swarm.machines[WORKERS[1]], node.address, port) == "closed"
        # Docker publishes by IPv6, too: there it answers only the node itself.
        wait_until(lambda: ask_from(node, "::1", port) == "HTTP/1.0 200")
        for address in _links(node):
            assert ask_from(outsider, f"{address}%eth0", port) == "closed"
    finally:
        client.stop(service)
