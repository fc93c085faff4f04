"""A whole node joins: a kernel of its own, systemd, control groups of version 2, NFS, a disk with project quotas.

On the Swarm's manager runs a whole Commonage, whose shared folder is served from there by NFS. The node is a Debian
13 in an emulator, at a tenth of the speed; so there is one, which the tests take through its life, in their order.

Not collected with the others: it takes 13 minutes of two cores, two of them once, for the disks; and idle they must be,
as the timeouts of joining are meant for nodes, not for emulators that starve. It is run by
`make test NODES=1 INSTALL=1 ARGS=tests/integration/walk_real_machine.py`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator

import pytest
from tests.contract.harness.dockerd import minimal_image
from tests.contract.harness.newcomer import switched_on
from tests.contract.harness.nfs import served_by_nfs
from tests.contract.harness.node import Node
from tests.contract.harness.swarm import MANAGER, swarm_of
from tests.fakes.waiting import wait_until
from tests.integration.joining_site import STEPS, Site, new_folders, site_of, what_is_there

pytestmark = [pytest.mark.needs("docker", "machines"), pytest.mark.timeout(900)]

NAME = "gpu-7"
MIB = 1024 * 1024
_VOLUMES = """
[[volumes]]
name = "results"
kind = "docker"
per = "user"
size = "8MiB"

[[volumes]]
name = "other"
kind = "docker"
per = "user"
size = "8MiB"

[[volumes]]
name = "scratch"
kind = "scratch"
size = "8MiB"
"""


def slowly(condition: Callable[[], object]) -> None:
    """Wait for what an emulator takes its time for, without keeping it busy with the question."""
    wait_until(condition, within_s=240, every_s=1)


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    image = minimal_image(python=False)
    with new_folders() as (folder, shared), swarm_of(0, image) as swarm:
        (folder / "commonage.toml").write_text(_VOLUMES)
        steps = (*STEPS, "--share", f"{swarm.manager.address}:/commonage")
        run = site_of(swarm, folder, shared, steps=steps, variables={"COMMONAGE_PREPULL": "false"}, image=image)
        with served_by_nfs(shared, "/commonage", swarm.manager.inside()), run as site:
            yield site


@pytest.fixture(scope="module")
def node(site: Site) -> Iterator[Node]:
    with switched_on(Node(site.swarm, NAME, 21)) as node:
        yield node


def kinds(site: Site, node: Node) -> list[str]:
    """Types of the file systems of the node's folders."""
    return node.ssh(f"stat -f -c %T /scratch {site.shared} /sys/fs/cgroup /var/lib/docker").stdout.split()


def agent_of(node: Node) -> str:
    """The id of the agent's process, as systemd has it; 0 while it does not run."""
    return node.ssh("systemctl show --property MainPID --value commonage-agent").stdout.strip()


@pytest.fixture(scope="module")
def joined(site: Site, node: Node) -> str:
    """Output of joining. All other tests here need it."""
    return site.join(node)


@pytest.mark.parametrize(("hours", "said"), [
    (1, r"this machine's clock is 3[56]\d\d s ahead of the control plane's, and .*: `timedatectl set-ntp true`, or"),
    # Before it can read the correct time: the certificate of a new site is not valid yet at its clock.
    (-1, r"this machine's clock says .* does not hold then .*: set the clock, by `timedatectl set-ntp true` or"),
], ids=["ahead", "behind"])  # fmt: skip
def test_a_wrong_clock_is_in_the_way_and_nothing_is_changed(site: Site, node: Node, hours: int, said: str) -> None:
    before = what_is_there(node)
    set_clock(node, hours)
    try:
        refused = site.command(*site.joining(node))
    finally:
        set_clock(node)
    assert refused.returncode != 0
    assert re.search(said, refused.stdout), refused.stdout + refused.stderr
    assert what_is_there(node) == before
    assert not site.states(NAME)


def set_clock(node: Node, hours_ahead: int = 0) -> None:
    """To the time of this machine."""
    assert node.ssh(f"date --set=@{time.time() + hours_ahead * 3600:.2f}").returncode == 0


def test_it_joins_with_one_command(site: Site, node: Node, joined: str) -> None:
    assert f"{NAME} has joined Test site" in joined
    assert "tools        changed" in joined, "docker-cli was not there, and comes from the mirror"
    assert site.states(NAME) == ["ready"]
    units = node.ssh("systemctl is-enabled commonage-agent docker; systemctl is-active commonage-agent docker")
    assert units.stdout.split() == ["enabled", "enabled", "active", "active"]
    assert kinds(site, node) == ["tmpfs", "nfs", "cgroup2fs", "xfs"]
    slowly(lambda: site.is_ready(NAME))


@pytest.mark.usefixtures("joined")
def test_the_same_again_changes_nothing(site: Site, node: Node) -> None:
    before = what_is_there(node)
    assert f"Nothing to do: {NAME} has joined Test site already" in site.join(node)
    assert what_is_there(node) == before


@pytest.mark.usefixtures("joined")
def test_what_runs_there_is_held_to_its_memory(site: Site, node: Node) -> None:
    site.load_image(node)
    look = "cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/pids.max"
    assert site.said_of(NAME, look) == [str(64 * MIB), "4096"]
    job = site.submit(NAME, "x=aaaaaaaa; while :; do x=$x$x; done")
    ended = site.admin.wait(job.id, timeout_s=240)
    assert ended.state == "failed"
    assert ended.reason.code == "OutOfMemory", ended.reason


@pytest.mark.usefixtures("joined")
def test_volumes_are_held_to_their_size_and_others_are_untouched(site: Site, node: Node) -> None:
    fill = "cat /dev/zero >/volumes/{0}/big; ls -l /volumes/{0}/big | tr -s ' ' | grep -o ' 8388608 '"
    script = f"{fill.format('results')}; {fill.format('scratch')}; echo mine >/volumes/other/file; cat /volumes/other/*"
    said = site.said_of(NAME, f"{{ {script}; }} 2>&1", volumes=["results:rw", "other:rw", "scratch:rw"])
    full, size = "cat: write error: No space left on device", " 8388608 "
    assert said == [full, size, full, size, "mine"]
    assert site.said_of(NAME, "rm /volumes/results/big; echo less >/volumes/results/one; cat /volumes/results/*",
                   volumes=["results:rw"]) == ["less"]  # fmt: skip


@pytest.mark.usefixtures("joined")
def test_a_home_on_nfs_follows_its_user(site: Site, node: Node) -> None:
    write = "grep ' /home/admin nfs4 ' /proc/mounts >/dev/null && echo of gpu-7 >~/note; cat ~/note"
    assert site.said_of(NAME, write) == ["of gpu-7"]
    assert (site.shared / "workspaces/admin/note").read_text() == "of gpu-7\n"
    site.admin.resume("local", MANAGER)
    assert site.said_of(MANAGER, "cat ~/note") == ["of gpu-7"]
    site.admin.drain("local", MANAGER)


@pytest.mark.usefixtures("joined")
def test_systemd_starts_the_agent_again_when_it_dies(site: Site, node: Node) -> None:
    before = agent_of(node)
    assert node.ssh("systemctl kill --signal=KILL commonage-agent").returncode == 0
    slowly(lambda: agent_of(node) not in (before, "0"))
    slowly(lambda: site.is_ready(NAME))


@pytest.mark.usefixtures("joined")
def test_a_node_that_is_cut_off_pauses_what_runs_there_and_it_goes_on(site: Site, node: Node) -> None:
    job = site.submit(NAME, "sleep 600")
    slowly(lambda: site.admin.workload(job.id).state == "running")
    frozen = "cat /sys/fs/cgroup/system.slice/docker-*.scope/cgroup.events | grep -c 'frozen 1'"
    assert node.ssh(frozen).stdout == "0\n"
    # The agent sets what a Swarm cannot express: a tenth of a core weighs less than one core.
    weight = "cat /sys/fs/cgroup/system.slice/docker-*.scope/cpu.weight"
    slowly(lambda: node.ssh(weight).stdout.strip() not in ("", "100"))
    wall = f"iptables -{{}} OUTPUT -d {site.swarm.manager.address} -p tcp -m multiport --dports 2377,8444 -j DROP"
    node.ssh(wall.format("I"))
    slowly(lambda: node.ssh(frozen).stdout == "1\n")
    node.ssh(wall.format("D"))
    slowly(lambda: node.ssh(frozen).stdout == "0\n")
    site.admin.stop(job.id)
    slowly(lambda: site.is_ready(NAME))


@pytest.mark.usefixtures("joined")
def test_without_its_daemon_what_runs_there_is_ended(site: Site, node: Node) -> None:
    job = site.submit(NAME, "sleep 600", requeue=True)
    slowly(lambda: site.admin.workload(job.id).state == "running")
    look = "pgrep --full '[s]leep 600'"
    assert node.ssh(look).stdout
    node.ssh("systemctl mask --runtime docker.service docker.socket && pkill -9 dockerd")
    slowly(lambda: not node.ssh(look).stdout)
    slowly(lambda: site.admin.workload(job.id).state == "queued")


@pytest.mark.usefixtures("joined")
def test_after_a_restart_the_node_is_ready_and_its_work_runs(site: Site, node: Node) -> None:
    node.reboot()
    slowly(lambda: site.is_ready(NAME))
    (job,) = site.admin.workloads(state=["queued", "starting", "running"])
    slowly(lambda: site.admin.workload(job.id).state == "running")
    assert kinds(site, node) == ["tmpfs", "nfs", "cgroup2fs", "xfs"]
    assert site.said_of(NAME, "cat ~/note /volumes/results/one", volumes=["results"]) == ["of gpu-7", "less"]
    site.admin.stop(job.id)


@pytest.mark.usefixtures("joined")
def test_leaving_takes_everything_back(site: Site, node: Node) -> None:
    assert "Left." in site.leave(node, "--force")
    left = node.ssh(
        "systemctl list-unit-files --no-legend 'commonage*'; systemctl list-units --all --no-legend 'commonage*';"
        "ls -d /etc/commonage /usr/local/lib/commonage; grep commonage /etc/fstab; iptables -S | grep -i commonage"
    )
    assert not left.stdout
    assert node.ssh("docker info --format '{{.Swarm.LocalNodeState}}'").stdout == "inactive\n"
    assert node.ssh(f"mountpoint /scratch; mountpoint {site.shared}").returncode != 0
    slowly(lambda: not site.is_ready(NAME))
