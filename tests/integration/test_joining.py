"""Nodes join for real: a Debian of its own with sshd, over SSH and by the script, into a real Swarm.

On the Swarm's manager runs a whole Commonage, whose jobs run on what joined. The nodes know nobody else. What they
have to install comes from a mirror of their own.
"""

from __future__ import annotations

import base64
import json
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx2
import pytest
from tests.contract.harness.agents import without_node_id
from tests.contract.harness.newcomer import switched_on
from tests.contract.harness.swarm import swarm_of
from tests.contract.harness.worker import Worker
from tests.fakes.waiting import wait_until
from tests.integration.joining_site import STEPS, Site, new_folders, site_of, what_is_there
from tests.integration.registry_site import buildah_store, forget_store
from tests.integration.swarm_site import push_image

from commonage.wire.hub import API_PATH
from commonage.wire.workloads import SubmitIn

pytestmark = [
    pytest.mark.needs("docker", "debootstrap", "images"),
    pytest.mark.timeout(600),
    pytest.mark.made_ahead("worker base"),
]

_REGISTRY_ADDRESS, _REGISTRY_PORT = "10.98.0.1", "5000"
_REGISTRY = f"{_REGISTRY_ADDRESS}:{_REGISTRY_PORT}"
_IMAGE = "public/small"
_LOG = "cat /var/log/commonage-agent.log"
_SETTINGS = """
[[environments]]
name = "early"
title = "What most people start"
image = "{registry}/public/small:latest"

[[node_pools]]
name = "burst"
provider = "tests.contract.harness.paper_cloud:Paper"
size = "1"
image = "1"
max = 1
wait = "1s"
idle = "1s"
cpus = 1
memory = "512MiB"
price = 1.5
arguments = {{ folder = "{cloud}" }}
join_options = {options}
"""


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with new_folders() as (folder, shared), swarm_of(0) as swarm:
        (folder / "cloud").mkdir()
        about = {"registry": _REGISTRY, "cloud": folder / "cloud", "options": list(STEPS)}
        (folder / "commonage.toml").write_text(_SETTINGS.format(**about))
        variables = {
            "COMMONAGE_REGISTRY": "true",
            "COMMONAGE_REGISTRY_BIND": _REGISTRY_ADDRESS,
            "COMMONAGE_REGISTRY_PORT": _REGISTRY_PORT,
            "PYTHONPATH": str(Path(__file__).parents[2]),  # the cloud is the tests' own
            **buildah_store(folder),
        }
        try:
            with site_of(swarm, folder, shared, variables=variables) as site:
                yield site
        finally:
            forget_store(folder)


@pytest.fixture(scope="module")
def new_worker(site: Site) -> Iterator[Callable[[str, int], Worker]]:
    with ExitStack() as closing:
        yield lambda name, number: closing.enter_context(switched_on(Worker(site.swarm, name, number, site.shared)))


@pytest.fixture(scope="module")
def worker(new_worker: Callable[[str, int], Worker]) -> Worker:
    """A node that the tests below take through its life, in their order."""
    return new_worker("worker1", 11)


def test_a_plan_shows_all_and_changes_nothing(site: Site, worker: Worker) -> None:
    before = what_is_there(worker)
    said = site.join(worker, "--plan")
    for line in ("install openssl", "join the Swarm of 10.98.0.1:2377", "/etc/docker/daemon.json", "at /scratch"):
        assert line in said
    assert "Nothing was changed." in said
    assert what_is_there(worker) == before
    assert not site.states("worker1")


def test_a_node_that_is_not_fit_is_told_all_at_once_and_left_as_it_is(site: Site, worker: Worker) -> None:
    before = what_is_there(worker)
    hold = "import socket, time; s = socket.socket(2, {kind}); s.bind(('0.0.0.0', {port})); {more}time.sleep(60)"
    for kind, port, more in ((1, 7946, "s.listen(); "), (2, 4789, "")):
        program = hold.format(kind=kind, port=port, more=more)
        worker.ssh(f'nohup python3 -c "{program}" >/dev/null 2>&1 & echo $! >>/run/holders')
    try:
        wait_until(lambda: all(port in worker.ssh("ss -Hlntu").stdout for port in (":7946", ":4789")))
        # The kernel tells programs of long ago that it is one of those that they know.
        refused = worker.ssh(site.script().replace("sudo sh", "sudo setarch --uname-2.6 sh"), "admin")
    finally:
        worker.ssh("kill $(cat /run/holders); rm /run/holders")
    assert refused.returncode != 0
    for words in (
        "the kernel is 2.6.",
        "port 7946/tcp is in use",
        "port 4789/udp is in use",
        "end the program that uses it",
    ):
        assert words in refused.stdout, refused.stdout
    over_ssh = site.command(*site.joining(worker, "--disk", "99999"))
    assert over_ssh.returncode != 0
    for words in ("GiB are free for images and containers", "99999 GiB are required", "step preflight failed"):
        assert words in over_ssh.stdout, over_ssh.stdout
    assert what_is_there(worker) == before
    assert not site.states("worker1")


def test_one_command_over_ssh_and_the_node_has_joined(site: Site, worker: Worker) -> None:
    said = site.join(worker, "--label", "zone=north")
    steps = re.findall(r"^ *(\d+)/12  (\w+) +\S+ .*\(\d+\.\d s\)$", said, re.MULTILINE)
    assert [int(number) for number, _ in steps] == list(range(1, 13)), "each is shown, with the seconds it took"
    assert "11/12  images       …        pull " in said, "and what is about to be done"
    assert "worker1 has joined Test site" in said
    assert "tools        changed" in said, "openssl was not there, and comes from the mirror"
    assert site.states("worker1") == ["ready"]
    wait_until(lambda: site.is_ready("worker1"))
    (resource,) = site.swarm.nodes()["worker1"]["Description"]["Resources"]["GenericResources"]
    assert resource["DiscreteResourceSpec"] == {"Kind": "VRAM", "Value": 24576}
    node = site.node("worker1")
    assert node is not None and (len(node.devices), node.labels["zone"]) == (1, "north")
    settings = json.loads(worker.ssh("cat /etc/docker/daemon.json").stdout)
    assert settings["no-new-privileges"] is True
    trusted = worker.ssh(f"cat /etc/docker/certs.d/{_REGISTRY}/ca.crt").stdout
    assert trusted == worker.ssh("cat /etc/commonage/ca.crt").stdout
    assert base64.b64decode(login_of(worker)).startswith(b"node@worker1:")
    assert may_pull(site, worker)
    modes = worker.ssh("stat -f -c %T /scratch; stat -c %a /etc/commonage/agent.key /root/.docker/config.json")
    assert modes.stdout.split() == ["tmpfs", "600", "600"]
    memory = int(worker.ssh("grep MemTotal /proc/meminfo").stdout.split()[1]) * 1024
    assert abs(scratch_bytes(worker) / memory - 0.5) < 0.01


def test_the_same_again_changes_nothing(site: Site, worker: Worker) -> None:
    before = what_is_there(worker)
    said = site.join(worker, "--label", "zone=north", user="root")
    assert "Nothing to do: worker1 has joined Test site already" in said
    assert what_is_there(worker) == before


def test_what_joined_runs_jobs_with_what_it_has(site: Site, worker: Worker) -> None:
    site.load_image(worker)
    assert site.said_of("worker1", "grep NoNewPrivs /proc/self/status", gpus="20GiB") == ["NoNewPrivs:\t1"]


def test_what_is_pushed_comes_to_what_joined_by_the_trust_it_was_given(site: Site, worker: Worker) -> None:
    """Without a request, the node's Docker pulls it by TLS of the site's authority, signed in as the node."""
    reference = push_image(site.server, _IMAGE)
    assert reference.startswith(f"{_REGISTRY}/{_IMAGE}@sha256:")
    wait_until(lambda: has_image(worker, reference))
    (known,) = [one for one in site.admin.image(_IMAGE).nodes if one.node == "worker1"]
    assert known.state == "ready"
    assert site.said_of("worker1", "echo $COMMONAGE_USER", environment=_IMAGE) == ["admin"]


def test_a_restart_that_was_cut_off_is_made_up_for_and_ends_nobodys_work(site: Site, worker: Worker) -> None:
    # As if SSH had broken off after the settings were written, and before Docker was restarted.
    worker.ssh("touch /etc/docker/daemon.json")
    begun = worker.ssh("cat /run/docker.pid").stdout
    job = site.submit("worker1", "sleep 600")
    wait_until(lambda: site.admin.workload(job.id).state == "running")
    again = site.joining(worker, "--label", "zone=north")
    refused = site.command(*again)
    assert refused.returncode != 0
    assert "ends 1 running containers" in refused.stdout, refused.stdout + refused.stderr
    assert worker.ssh("cat /run/docker.pid").stdout == begun
    assert site.admin.workload(job.id).state == "running"
    site.admin.stop(job.id)
    wait_until(lambda: not worker.ssh("docker ps --quiet").stdout)
    assert "changed: docker, images." in site.done(*again), "what most people start can be had since"
    assert worker.ssh("cat /run/docker.pid").stdout != begun
    wait_until(lambda: site.is_ready("worker1"))


def test_a_node_of_an_earlier_release_joins_again_while_its_work_runs(site: Site, worker: Worker) -> None:
    """Its certificate names no node, and the authority wrote none down."""
    job = site.submit("worker1", "sleep 600")
    wait_until(lambda: site.admin.workload(job.id).state == "running")
    authority, certificate = site.server.data / "authority", "/etc/commonage/agent.crt"
    old = without_node_id(authority, worker.ssh(f"cat {certificate}").stdout)
    issued = json.loads((authority / "issued.json").read_text())
    (authority / "issued.json").write_text(json.dumps([{**one, "node_id": ""} for one in issued]))
    worker.ssh(f"echo '{old}' >{certificate}; /etc/init.d/commonage-agent restart")
    wait_until(lambda: "names no node: join the node again" in worker.ssh(_LOG).stdout)
    node = wait_until(lambda: (one := site.node("worker1")) is not None and one.state == "faulty" and one)
    assert "NoNodeCertificate" in [one.code for one in node.reasons], node
    assert "certificate  changed" in site.join(worker, "--label", "zone=north")
    wait_until(lambda: site.is_ready("worker1"))
    assert site.admin.workload(job.id).state == "running"
    site.admin.stop(job.id)
    wait_until(lambda: not worker.ssh("docker ps --quiet").stdout)


def test_the_agent_is_started_again_when_it_dies(site: Site, worker: Worker) -> None:
    # The brackets keep the shell that looks from finding itself.
    look = "pgrep --full '[c]ommonage.agent run'"
    before = worker.ssh(look).stdout
    assert worker.ssh(f"kill -9 $({look})").returncode == 0
    wait_until(lambda: (found := worker.ssh(look).stdout) and found != before)
    wait_until(lambda: site.is_ready("worker1"))


def test_the_script_does_the_same(site: Site, new_worker: Callable[[str, int], Worker]) -> None:
    """On a node that has no Docker yet, with less scratch space."""
    other = new_worker("worker2", 12)
    other.forget_docker()
    scratch = "--scratch=64m"
    first = other.ssh(site.script(scratch), "admin", timeout=180)
    assert "worker2 has joined Test site" in first.stdout, first.stdout + first.stderr
    assert "…        install docker.io, iptables" in first.stdout
    assert other.ssh("dpkg-query -W -f '${db:Status-Status}' docker.io").stdout == "installed"
    assert scratch_bytes(other) == 64 * 2**20
    assert has_image(other, f"{_REGISTRY}/{_IMAGE}:latest"), "what most people start is here before they do"
    assert "11/12  images       changed  1 of 2 images are present" in first.stdout
    before = what_is_there(other)
    again = other.ssh(site.script(scratch), "admin")
    assert "Nothing to do: worker2 has joined Test site already" in again.stdout
    assert what_is_there(other) == before
    wait_until(lambda: site.is_ready("worker2"))


def test_a_token_is_for_joining_and_nothing_else(site: Site, worker: Worker) -> None:
    made = json.loads(site.done("node", "token", "--for", "10m", "--json"))["token"]
    for path in ("/nodes", "/join-kit", "/registry/token"):
        for kind in ("Bearer", "token"):
            answer = httpx2.get(f"{site.server.url}{API_PATH}{path}", headers={"Authorization": f"{kind} {made}"})
            assert answer.status_code in (401, 403), path
    admins = worker.ssh(re.sub(r"cmj1\.\S+", site.token, site.script()), "admin")
    assert (admins.returncode, "is not a join token" in admins.stderr) == (1, True), (
        "nor does an admin's do for joining"
    )


def test_a_revoked_token_and_one_of_another_site_are_refused(site: Site, worker: Worker) -> None:
    command, of_swarm = site.script(), swarm_token(site)
    site.done("node", "token", "--revoke")
    refused = worker.ssh(command, "admin")
    assert refused.returncode != 0
    assert "or was revoked" in refused.stdout + refused.stderr
    assert swarm_token(site) != of_swarm, "holders of the token also had the Swarm's token"


def test_a_node_that_is_removed_is_not_let_in_until_it_joins_again(site: Site, worker: Worker) -> None:
    of_swarm, command = swarm_token(site), site.script()
    site.done("node", "drain", "worker1")
    said = site.done("node", "rm", "worker1")
    assert "certificate is revoked" in said and "removed from the Swarm" in said
    assert not site.states("worker1")
    # Its credentials are of no use to it any more.
    assert not may_pull(site, worker)
    assert "was removed from this site" in wait_until(lambda: refusal(worker))
    manager = f"{site.swarm.manager.address}:2377"
    worker.ssh("docker swarm leave --force")
    assert "join token" in worker.ssh(f"docker swarm join --token {of_swarm} {manager}").stderr
    assert "or was revoked" in worker.ssh(command, "admin").stderr
    again = site.join(worker, "--label", "zone=north")
    assert "changed: swarm, certificate, registry, agent." in again
    assert site.states("worker1") == ["ready"]
    assert may_pull(site, worker)
    wait_until(lambda: site.is_ready("worker1"))


def test_leaving_takes_everything_back_and_the_site_knows_the_node_no_more(site: Site, worker: Worker) -> None:
    job = site.submit("worker1", "sleep 600", requeue=True)
    wait_until(lambda: site.admin.workload(job.id).state == "running")
    refused = worker.ssh("commonage-agent leave")
    assert refused.returncode == 1 and "1 workload is running" in refused.stdout, refused
    said = site.leave(worker, "--force")
    assert "the control plane removed this node" in said and "Left." in said, said
    assert site.node("worker1") is None
    wait_until(lambda: not site.states("worker1"))
    wait_until(lambda: site.admin.workload(job.id).state == "queued")
    site.admin.stop(job.id)
    assert worker.ssh("docker info --format '{{.Swarm.LocalNodeState}}'").stdout.strip() == "inactive"
    left = worker.ssh("ls -d /etc/commonage /etc/init.d/commonage-agent /scratch/* /etc/docker/certs.d/*; iptables -S")
    assert "commonage" not in left.stdout.lower()
    assert not worker.ssh("grep commonage /etc/fstab").stdout
    assert "Nothing to do" in site.leave(worker)
    nobody = site.command("node", "rm", "worker1")
    assert nobody.returncode == 2 and "there is no node 'worker1'" in nobody.stderr, nobody


def test_a_node_that_vanished_is_replaced_by_what_a_cloud_starts(
    site: Site, new_worker: Callable[[str, int], Worker]
) -> None:
    data = site.done("node", "template", "--for", "10m", *site.steps)
    first = new_worker("worker3", 13)
    assert "worker3 has joined Test site" in boot_with(first, data)
    site.load_image(first)
    wait_until(lambda: site.is_ready("worker3"))
    script = 'echo try >>"$HOME/tries"; [ "$(grep -c try "$HOME/tries")" = 1 ] || exit 0; sleep 600'
    job = site.submit("worker3", script, requeue=True)
    wait_until(lambda: site.admin.workload(job.id).state == "running" and list(site.shared.rglob("tries")))
    first.vanish()
    wait_until(lambda: site.admin.workload(job.id).state == "queued")
    wait_until(lambda: "ready" not in site.states("worker3"))
    first.remove()
    second = new_worker("worker3", 13)
    site.load_image(second)
    assert "worker3 has joined Test site" in boot_with(second, data)
    assert site.states("worker3") == ["ready"], "the one that vanished is forgotten"
    assert site.admin.wait(job.id, timeout_s=60).state == "succeeded", "its work continues on the node that returned"
    (tries,) = site.shared.rglob("tries")
    assert tries.read_text() == "try\ntry\n"


def test_a_node_pool_rents_a_node_for_who_waits_and_gives_it_back(
    site: Site, new_worker: Callable[[str, int], Worker]
) -> None:
    """By libcloud's dummy driver, which starts no machine: this test boots the requested one."""
    cloud = site.server.folder / "cloud"
    ask = SubmitIn(command=["sh", "-c", "true"], on={"node-pool": "burst"}, memory_mib=64, cpus="0.1")
    job = site.admin.submit(ask).workload
    [rented] = wait_until(lambda: list(cloud.glob("*.yaml")))
    name = rented.stem
    assert re.fullmatch("burst-[0-9a-f]{6}", name)
    wait_until(lambda: [one.params["pool"] for one in site.admin.workload(job.id).notes] == ["burst"])
    [node_pool] = json.loads(site.done("node-pool", "ls", "--json"))
    assert (node_pool["cost_per_h"], [one["name"] for one in node_pool["nodes"]]) == (1.5, [name])
    node = new_worker("as-the-cloud-calls-it", 14)
    site.load_image(node)
    assert f"{name} has joined Test site" in boot_with(node, rented.read_text())
    ended = site.admin.wait(job.id, timeout_s=60)
    assert (ended.state, ended.node) == ("succeeded", name)
    wait_until(lambda: not list(cloud.iterdir()), within_s=90)
    wait_until(lambda: site.node(name) is None and not site.states(name))
    assert "was removed from this site" in wait_until(lambda: refusal(node)), "should it come back, it is not let in"
    wait_until(lambda: site.admin.node_pools()[0].cost_per_h == 0)
    told = {one.reason.code: one.reason.params for one in site.admin.event_page().items}
    added, removed = told["PoolNodeAdded"], told["PoolNodeRemoved"]
    assert (added["node"], added["price_before_per_h"], added["price_per_h"]) == (name, 0.0, 1.5)
    assert (removed["node"], removed["price_before_per_h"], removed["price_per_h"]) == (name, 1.5, 0.0)


def test_a_template_without_cloud_init_is_a_script_with_a_token(site: Site) -> None:
    script = site.done("node", "template", "--shell", "--scratch", "off")
    call, token, _ = script.splitlines()[-3:]
    assert call == "main --token-file - --scratch=off <<'END_OF_TOKEN'"
    assert token.startswith("cmj1.")
    checked = subprocess.run(["sh", "-n"], input=script, text=True, capture_output=True, check=False)
    assert checked.returncode == 0, checked.stderr


def may_pull(site: Site, worker: Worker) -> bool:
    """Whether the registry knows the node by the login that Docker has there."""
    scope = "repository:lab/torch:pull"
    realm = f"http://{site.swarm.manager.address}:{site.server.port}/services/commonage/api/v1/registry/token"
    answer = worker.ssh(f"curl -sS -H 'Authorization: Basic {login_of(worker)}' '{realm}?scope={scope}'")
    return "access_token" in json.loads(answer.stdout)


def login_of(worker: Worker) -> str:
    logins = json.loads(worker.ssh("cat /root/.docker/config.json").stdout)
    return str(logins["auths"][_REGISTRY]["auth"])


def swarm_token(site: Site) -> str:
    return str(site.swarm.manager.daemon.ask("GET", "/swarm")["JoinTokens"]["Worker"])


def scratch_bytes(worker: Worker) -> int:
    """Size of the scratch space in bytes."""
    return int(worker.ssh("df --output=size -B1 /scratch | tail -n 1").stdout)


def has_image(worker: Worker, image: str) -> bool:
    return worker.ssh(f"docker image inspect {image}").returncode == 0


def boot_with(worker: Worker, user_data: str) -> str:
    """The log of joining after a first start with these user data."""
    said = worker.first_start(user_data)
    assert "token" not in worker.ssh("ls /run/commonage").stdout.split(), f"the token stays: {said}"
    return worker.ssh("cat /var/log/commonage-join.log").stdout


def refusal(worker: Worker) -> str:
    """The agent's log line about its refusal; empty before."""
    return worker.ssh("grep 'was removed from this site' /var/log/commonage-agent.log | tail -n 1").stdout
