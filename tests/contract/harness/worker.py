"""A test node that becomes a worker: its own Debian with sshd, in its own namespaces.

Its root file system is built like that of images, and kept in /tmp under a name that identifies its content. Each node
is an overlay on it, so no data of one node is left for the next. It reaches the other nodes of its Swarm and nothing
else.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

from tests.contract.harness.leftovers import FOLDER, tag
from tests.contract.harness.made_once import made_once
from tests.contract.harness.newcomer import FURNISH, MIRROR, Newcomer, new_key
from tests.contract.harness.swarm import Node, Swarm
from tests.integration.registry_site import buildah_store, forget_store

from commonage.images import base as images_base

SUITE = "bookworm"
PACKAGES = ("cloud-init", "curl", "docker.io", "iproute2", "iptables", "openssh-server", "python3", "sudo")
DOCKER = ("docker.io", "containerd", "runc", "tini")
"""In its mirror, for a node that has not even that; openssl is there, too."""
_LAYOUT = 6  # rises when what is made here changes
# What a cloud's image has it do, of which only what concerns us; all of it in one go.
_CLOUD = """datasource_list: [NoCloud]
disable_root: false
network: {config: disabled}
cloud_init_modules: [set_hostname, write_files, runcmd, scripts_user]
system_info: {distro: debian}
"""
_SEED = "/var/lib/cloud/seed/nocloud-net"
_BASE = "import sys; from commonage.images.base import debian_base; print(debian_base(sys.argv[1], None, True, print))"


@cache
def base() -> Path:
    """A folder with `root`, the root file system, and `key`; made when it is not there: about a minute."""
    told = f"{_LAYOUT} {SUITE} {PACKAGES} {DOCKER} {inspect.getsource(images_base)}"
    return made_once(f"worker-{hashlib.sha256(told.encode()).hexdigest()[:12]}", _make)


def _make(place: Path, log: IO[bytes]) -> None:
    root = place / "root"
    root.mkdir()
    _build(root, log)
    _furnish(root, new_key(place / "key"), log)


def _build(root: Path, log: IO[bytes]) -> None:
    """A Debian as `commonage image build` makes it, by the real debootstrap; without what only the image needs."""
    with TemporaryDirectory(prefix=f"{FOLDER}{tag()}-") as folder:
        # What a power cut deletes is created again.
        environment = {**os.environ, **buildah_store(Path(folder)), "DPKG_FORCE": "unsafe-io"}

        def said(*words: str) -> str:
            ran = subprocess.run(words, stdout=subprocess.PIPE, stderr=log, check=True, env=environment, text=True)
            log.write(ran.stdout.encode())
            return ran.stdout.splitlines()[-1]

        try:
            container = said("buildah", "from", "--pull-never", said(sys.executable, "-c", _BASE, SUITE))
            tree = said("buildah", "mount", container)
            subprocess.run(["cp", "--archive", f"{tree}/.", root], check=True)
            said("buildah", "rm", container)
        finally:
            forget_store(Path(folder))


def _furnish(root: Path, key: str, log: IO[bytes]) -> None:
    """Install packages and a mirror, and make an admin who may become root."""
    shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
    (root / "etc/apt/sources.list").write_text(f"deb {images_base.own_mirror(SUITE)} {SUITE} main\n")
    script = f"""
        mount -t proc proc /proc
        printf '#!/bin/sh\\nexit 101\\n' >/usr/sbin/policy-rc.d && chmod +x /usr/sbin/policy-rc.d
        apt-get update -qq
        apt-get install -y -qq --no-install-recommends {" ".join(PACKAGES)}
        dpkg --force-depends --purge openssl
        rm /usr/sbin/policy-rc.d
        let_in '{key}'
        mkdir -p {MIRROR} /run/sshd && cd {MIRROR}
        apt-get download -qq openssl {" ".join(DOCKER)}
        # Its script ends when it cannot raise limits, which it cannot where the tests run.
        dpkg-deb --raw-extract docker.io_*.deb /tmp/docker
        sed -i 's/ulimit .*/& || :/' /tmp/docker/etc/init.d/docker
        sed -i '\\|etc/init.d/docker$|d' /tmp/docker/DEBIAN/md5sums
        rm docker.io_*.deb && dpkg-deb -Znone --build /tmp/docker docker.io.deb && rm -r /tmp/docker
        list_mirror
        apt-get clean
        rm -rf /var/lib/apt/lists/*
        : >/etc/resolv.conf
    """
    alone = ["unshare", "--mount", "chroot", root, "sh", "-ec", FURNISH + script]
    subprocess.run(alone, check=True, stdout=log, stderr=log)
    (root / "etc/cloud/cloud.cfg").write_text(_CLOUD)


class Worker(Newcomer):
    """One such node. `shared` is a folder of this machine that it sees under the same path."""

    up_within_s = 90

    def __init__(self, swarm: Swarm, name: str, number: int, shared: Path) -> None:
        super().__init__(swarm, name, number, base() / "key")
        # Only its network is used: it has a daemon of its own inside.
        self.node = Node(name, self.address, self.switch)
        self._shared = shared

    def _switch_on(self, log: IO[bytes]) -> subprocess.Popen[bytes]:
        for name in ("upper", "work", "root", "docker"):
            (self.folder / name).mkdir()
        self.node.plug_in()
        alone = ("unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "sh", "-euc", _BOOT, "sh")
        words = (self.name, str(base() / "root"), str(self.folder), str(self._shared))
        command = [*self.node.inside(), *alone, *words]
        return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def forget_docker(self) -> None:
        """Make it a node on which Docker was never installed."""
        ran = self.ssh(f"dpkg --purge {' '.join(DOCKER)} && ! command -v dockerd")
        assert ran.returncode == 0, ran.stdout + ran.stderr

    def first_start(self, user_data: str) -> str:
        """Have cloud-init do what it does when a cloud starts a node with these user data; what it says."""
        given = self._shared / f"user-data-of-{self.name}"
        given.write_text(user_data)
        put = (
            f"mkdir -p {_SEED} && install -m 600 {given} {_SEED}/user-data && echo 'instance-id: i' >{_SEED}/meta-data"
        )
        ran = self.ssh(f"{put} && cloud-init init", timeout=180)
        given.unlink()
        return ran.stdout + ran.stderr

    def vanish(self) -> None:
        """As a node that is switched off: nothing of it answers, or says good-bye."""
        if self._program is not None:
            self.node.unplug()
        super().vanish()

    def remove(self) -> None:
        super().remove()
        self.node.remove()


_BOOT = r"""
name=$1 lower=$2 folder=$3 shared=$4 root=$3/root
mount --make-rprivate /
hostname "$name"
mount -t overlay overlay -o "lowerdir=$lower,upperdir=$folder/upper,workdir=$folder/work" "$root"
mkdir -p "$root/var/lib/docker"
mount --bind "$folder/docker" "$root/var/lib/docker"
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount --rbind /sys/fs/cgroup "$root/sys/fs/cgroup"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/run"
mount -t tmpfs tmpfs "$root/tmp"
mkdir -p "$root$shared" "$root/run/sshd" "$root/old"
mount --bind "$shared" "$root$shared"
echo "$name" >"$root/etc/hostname"
echo "127.0.0.1 localhost $name" >"$root/etc/hosts"
# The script would mount control groups that this machine has not, and leave them to it: containerd then finds no OOM.
echo "none /sys/fs/cgroup cgroup noauto 0 0" >>"$root/etc/fstab"
# Limits cannot be raised where the tests run; the script ends when it cannot.
sed -i "s/ulimit .*/& || :/" "$root/etc/init.d/docker"
cd "$root"
pivot_root . old
umount -l /old
exec sh -c '/usr/sbin/sshd -D -e & while :; do wait; sleep 1; done'
"""
