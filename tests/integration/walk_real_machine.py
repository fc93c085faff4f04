"""A whole machine joins: a kernel of its own, systemd, control groups of version 2, NFS, a disk with project quotas.

On the Swarm's manager runs a whole Commonage, whose shared folder is served from there by NFS. The machine is a Debian
13 in an emulator, at a tenth of the speed; so there is one, which the tests take through its life, in their order.

Not collected with the others: it wants two idle cores, as the timeouts of joining are meant for machines, not for
emulators that starve. `make test MACHINES=1 INSTALL=1 ARGS=tests/integration/walk_real_machine.py` runs it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from tests.acceptance.served import free_port, served
from tests.contract.dockerd import IMAGE, minimal_image, new_folder
from tests.contract.machine import MIRROR, Machine, machine_of
from tests.contract.nfs import served_by_nfs
from tests.contract.swarm import MANAGER, doorway, swarm_of
from tests.integration.test_joining import Site, wait_for

from commonage.sdk import Client

pytestmark = [pytest.mark.needs("docker", "machines"), pytest.mark.timeout(900)]

NAME = "gpu-7"
SLOW_S = 240.0
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


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    folder, shared, port = new_folder(), new_folder(), free_port()
    with ExitStack() as closing:
        for one in (folder, shared):
            closing.callback(shutil.rmtree, one, ignore_errors=True)
        swarm = closing.enter_context(swarm_of(0, image := minimal_image(python=False)))
        manager = swarm.manager
        (folder / "commonage.toml").write_text(_VOLUMES)
        (shared / "image.tar").write_bytes(image)
        closing.enter_context(served_by_nfs(shared, "/commonage", manager.inside()))
        variables = {
            "COMMONAGE_NAME": "Test site",
            "COMMONAGE_BIND": "0.0.0.0",
            "COMMONAGE_DOCKER_URL": manager.daemon.url,
            "COMMONAGE_DOCKER_IMAGE": IMAGE,
            "COMMONAGE_PREPULL": "false",
            "COMMONAGE_SHARED_DIR": str(shared),
            "COMMONAGE_SITE_ADDRESS": manager.address,
        }
        closing.enter_context(doorway(manager.space, port))
        server = closing.enter_context(
            served(folder, "--engine", "swarm", before=manager.inside(), variables=variables, port=port)
        )
        token = server.token("admin", "--admin")
        admin = closing.enter_context(Client(server.url, token))
        wait_for(lambda: MANAGER in {one.name for one in admin.nodes()})
        admin.drain("local", MANAGER)
        yield Site(swarm, server, admin, shared, token)


@pytest.fixture(scope="module")
def machine(site: Site) -> Iterator[Machine]:
    with machine_of(site.swarm, NAME, 21) as machine:
        yield machine


def join(site: Site, machine: Machine, *more: str) -> str:
    """`commonage node join` from the manager, over SSH; what it prints."""
    share = f"{site.swarm.manager.address}:/commonage"
    steps = ("--mirror", f"file:{MIRROR}", "--gpus", "simulated:1x24GiB", "--disk", "1", "--share", share)
    return site.done("node", "join", f"admin@{machine.address}", "--ssh-config", str(machine.ssh_config), *steps, *more)


def said_of(site: Site, script: str, **fields: object) -> list[str]:
    """What a job on the machine prints; it must end well."""
    job = site.submit(NAME, script, **fields)
    ended = site.admin.wait(job.id, timeout_s=SLOW_S)
    said = [line.text for line in site.admin.logs(job.id)]
    assert ended.state == "succeeded", f"{ended.reason}: {said}"
    return said


def kinds(site: Site, machine: Machine) -> list[str]:
    """What file systems are where."""
    return machine.ssh(f"stat -f -c %T /scratch {site.shared} /sys/fs/cgroup /var/lib/docker").stdout.split()


def what_is_there(machine: Machine) -> str:
    """What joining could change: files, mounts, who runs since when, the Swarm, the packages."""
    look = """
        find /etc /usr/local /root -type f ! -path '*/__pycache__/*' -printf '%p %T@ %m\\n' | sort
        grep -v -e overlay -e /run/docker -e shm /proc/mounts
        systemctl show --property MainPID,NRestarts,ExecMainStartTimestampMonotonic commonage-agent docker containerd
        docker info --format '{{json .Swarm.NodeID}}'
        dpkg-query -W
    """
    return machine.ssh(look).stdout


def agent_of(machine: Machine) -> str:
    """The id of the agent's process, as systemd has it; 0 while there is none."""
    return machine.ssh("systemctl show --property MainPID --value commonage-agent").stdout.strip()


@pytest.fixture(scope="module")
def joined(site: Site, machine: Machine) -> str:
    """What joining said; without it nothing else here can be."""
    return join(site, machine)


def test_it_joins_with_one_command(site: Site, machine: Machine, joined: str) -> None:
    assert f"{NAME} has joined Test site" in joined
    assert "tools        changed" in joined, "docker-cli was not there, and comes from the mirror"
    assert site.states(NAME) == ["ready"]
    units = machine.ssh("systemctl is-enabled commonage-agent docker; systemctl is-active commonage-agent docker")
    assert units.stdout.split() == ["enabled", "enabled", "active", "active"]
    assert kinds(site, machine) == ["tmpfs", "nfs", "cgroup2fs", "xfs"]
    wait_for(lambda: site.is_ready(NAME), SLOW_S)


@pytest.mark.usefixtures("joined")
def test_the_same_again_changes_nothing(site: Site, machine: Machine) -> None:
    before = what_is_there(machine)
    assert f"Nothing to do: {NAME} has joined Test site already" in join(site, machine)
    assert what_is_there(machine) == before


@pytest.mark.usefixtures("joined")
def test_what_runs_there_is_held_to_its_memory(site: Site, machine: Machine) -> None:
    assert machine.ssh(f"docker import {site.shared}/image.tar {IMAGE}").returncode == 0
    look = "cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/pids.max"
    assert said_of(site, look) == [str(64 * MIB), "4096"]
    job = site.submit(NAME, "x=aaaaaaaa; while :; do x=$x$x; done")
    ended = site.admin.wait(job.id, timeout_s=SLOW_S)
    assert ended.state == "failed"
    assert "memory" in ended.reason, ended.reason


@pytest.mark.usefixtures("joined")
def test_volumes_are_held_to_their_size_and_others_are_untouched(site: Site, machine: Machine) -> None:
    fill = "cat /dev/zero >/volumes/{0}/big; ls -l /volumes/{0}/big | tr -s ' ' | grep -o ' 8388608 '"
    script = f"{fill.format('results')}; {fill.format('scratch')}; echo mine >/volumes/other/file; cat /volumes/other/*"
    said = said_of(site, f"{{ {script}; }} 2>&1", volumes=["results:rw", "other:rw", "scratch:rw"])
    full, size = "cat: write error: No space left on device", " 8388608 "
    assert said == [full, size, full, size, "mine"]
    assert said_of(site, "rm /volumes/results/big; echo less >/volumes/results/one; cat /volumes/results/*",
                   volumes=["results:rw"]) == ["less"]  # fmt: skip


@pytest.mark.usefixtures("joined")
def test_a_home_on_nfs_follows_its_user(site: Site, machine: Machine) -> None:
    assert said_of(site, "grep ' /home/admin nfs4 ' /proc/mounts >/dev/null && echo of gpu-7 >~/note; cat ~/note") == [
        "of gpu-7"
    ]
    assert (site.shared / "workspaces/admin/note").read_text() == "of gpu-7\n"
    site.admin.resume("local", MANAGER)
    job = site.submit(MANAGER, "cat ~/note")
    assert site.admin.wait(job.id, timeout_s=60).state == "succeeded"
    assert [line.text for line in site.admin.logs(job.id)] == ["of gpu-7"]
    site.admin.drain("local", MANAGER)


@pytest.mark.usefixtures("joined")
def test_systemd_starts_the_agent_again_when_it_dies(site: Site, machine: Machine) -> None:
    before = agent_of(machine)
    assert machine.ssh("systemctl kill --signal=KILL commonage-agent").returncode == 0
    wait_for(lambda: agent_of(machine) not in (before, "0"), SLOW_S)
    wait_for(lambda: site.is_ready(NAME), SLOW_S)


@pytest.mark.usefixtures("joined")
def test_a_machine_that_is_cut_off_pauses_what_runs_there_and_it_goes_on(site: Site, machine: Machine) -> None:
    job = site.submit(NAME, "sleep 600")
    wait_for(lambda: site.admin.workload(job.id).state == "running", SLOW_S)
    frozen = "cat /sys/fs/cgroup/system.slice/docker-*.scope/cgroup.events | grep -c 'frozen 1'"
    assert machine.ssh(frozen).stdout == "0\n"
    # What a Swarm cannot say, the agent sees to: a tenth of a core weighs less than one.
    weight = "cat /sys/fs/cgroup/system.slice/docker-*.scope/cpu.weight"
    wait_for(lambda: machine.ssh(weight).stdout.strip() not in ("", "100"), SLOW_S)
    wall = f"iptables -{{}} OUTPUT -d {site.swarm.manager.address} -p tcp -m multiport --dports 2377,8444 -j DROP"
    machine.ssh(wall.format("I"))
    wait_for(lambda: machine.ssh(frozen).stdout == "1\n", SLOW_S)
    machine.ssh(wall.format("D"))
    wait_for(lambda: machine.ssh(frozen).stdout == "0\n", SLOW_S)
    site.admin.stop(job.id)
    wait_for(lambda: site.is_ready(NAME), SLOW_S)


@pytest.mark.usefixtures("joined")
def test_without_its_daemon_what_runs_there_is_ended(site: Site, machine: Machine) -> None:
    job = site.submit(NAME, "sleep 600", requeue=True)
    wait_for(lambda: site.admin.workload(job.id).state == "running", SLOW_S)
    look = "pgrep --full '[s]leep 600'"
    assert machine.ssh(look).stdout
    machine.ssh("systemctl mask --runtime docker.service docker.socket && pkill -9 dockerd")
    wait_for(lambda: not machine.ssh(look).stdout, SLOW_S)
    wait_for(lambda: site.admin.workload(job.id).state == "queued", SLOW_S)


@pytest.mark.usefixtures("joined")
def test_after_a_restart_the_machine_is_ready_and_its_work_runs(site: Site, machine: Machine) -> None:
    machine.reboot()
    wait_for(lambda: site.is_ready(NAME), SLOW_S)
    (job,) = site.admin.workloads(state=["queued", "starting", "running"])
    wait_for(lambda: site.admin.workload(job.id).state == "running", SLOW_S)
    assert kinds(site, machine) == ["tmpfs", "nfs", "cgroup2fs", "xfs"]
    assert said_of(site, "cat ~/note /volumes/results/one", volumes=["results"]) == ["of gpu-7", "less"]
    site.admin.stop(job.id)


@pytest.mark.usefixtures("joined")
def test_leaving_takes_everything_back(site: Site, machine: Machine) -> None:
    words = ("node", "leave", f"admin@{machine.address}", "--ssh-config", str(machine.ssh_config), "--force")
    assert "Left." in site.done(*words)
    left = machine.ssh(
        "systemctl list-unit-files --no-legend 'commonage*'; systemctl list-units --all --no-legend 'commonage*';"
        "ls -d /etc/commonage /usr/local/lib/commonage; grep commonage /etc/fstab; iptables -S | grep -i commonage"
    )
    assert not left.stdout
    assert machine.ssh("docker info --format '{{.Swarm.LocalNodeState}}'").stdout == "inactive\n"
    assert machine.ssh(f"mountpoint /scratch; mountpoint {site.shared}").returncode != 0
    wait_for(lambda: not site.is_ready(NAME), SLOW_S)
