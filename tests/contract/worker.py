"""A machine of the tests' own that is to become a worker: a Debian of its own, with sshd, in namespaces of its own.

Its root file system is made as that of images is, and kept in /tmp under a name that says what is in it; each machine
lies over it, so that nothing of one is left for the next. It reaches the other machines of its Swarm and nothing else.
"""

from __future__ import annotations

import fcntl
import hashlib
import inspect
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

from tests.contract.dockerd import new_folder
from tests.contract.leftovers import FOLDER, tag, unmount_below
from tests.contract.swarm import Machine, Swarm
from tests.integration.registry_site import buildah_store, forget_store

from commonage.images import base as images_base

SUITE = "bookworm"
PACKAGES = ("cloud-init", "curl", "docker.io", "iproute2", "iptables", "openssh-server", "python3", "sudo")
DOCKER = ("docker.io", "containerd", "runc", "tini")
MIRROR = "/srv/mirror"
"""A flat mirror inside, with what is not installed: openssl; and with Docker, for a machine that has not even that."""
ADMIN = "admin"
_LAYOUT = 5  # rises when what `_furnish` does changes
_UP_WITHIN_S = 90
# What a cloud's image has it do, of which only what concerns us; all of it in one go.
_CLOUD = """datasource_list: [NoCloud]
disable_root: false
network: {config: disabled}
cloud_init_modules: [set_hostname, write_files, runcmd, scripts_user]
system_info: {distro: debian}
"""
_SEED = "/var/lib/cloud/seed/nocloud-net"
_BASE = "import sys; from commonage.images.base import debian_base; print(debian_base(sys.argv[1], None, True, print))"


def base() -> Path:
    """The root file system, made when it is not there: about a minute."""
    told = f"{_LAYOUT} {SUITE} {PACKAGES} {DOCKER} {inspect.getsource(images_base)}"
    place = Path(f"/tmp/cmng-worker-{hashlib.sha256(told.encode()).hexdigest()[:12]}")
    with open(f"{place}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            fresh = place.with_name(f"{place.name}.new")
            unmount_below(fresh)  # one that was killed
            subprocess.run(["rm", "-rf", "--one-file-system", fresh], check=True)
            fresh.mkdir()
            with open(f"{fresh}.log", "wb") as log:
                _build(fresh, log)
                _furnish(fresh, log)
            fresh.rename(place)
    return place


def _build(root: Path, log: IO[bytes]) -> None:
    """A Debian as `commonage image build` makes it, by the real debootstrap; without what only the image needs."""
    with TemporaryDirectory(prefix=f"{FOLDER}{tag()}-") as folder:
        # What is lost in a power cut is made anew.
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


def _furnish(root: Path, log: IO[bytes]) -> None:
    """What such machines have installed, a mirror, an admin who may become root, no waiting for names."""
    shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
    (root / "etc/apt/sources.list").write_text(f"deb {images_base.own_mirror(SUITE)} {SUITE} main\n")
    script = f"""
        mount -t proc proc /proc
        export DEBIAN_FRONTEND=noninteractive DPKG_FORCE=unsafe-io
        printf '#!/bin/sh\\nexit 101\\n' >/usr/sbin/policy-rc.d && chmod +x /usr/sbin/policy-rc.d
        apt-get update -qq
        apt-get install -y -qq --no-install-recommends {" ".join(PACKAGES)}
        dpkg --force-depends --purge openssl
        rm /usr/sbin/policy-rc.d
        useradd --create-home --shell /bin/sh {ADMIN}
        echo '{ADMIN} ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/{ADMIN}
        mkdir -p {MIRROR} /run/sshd && cd {MIRROR}
        apt-get download -qq openssl {" ".join(DOCKER)}
        # Its script ends when it cannot raise limits, which it cannot where the tests run.
        dpkg-deb --raw-extract docker.io_*.deb /tmp/docker
        sed -i 's/ulimit .*/& || :/' /tmp/docker/etc/init.d/docker
        sed -i '\\|etc/init.d/docker$|d' /tmp/docker/DEBIAN/md5sums
        rm docker.io_*.deb && dpkg-deb -Znone --build /tmp/docker docker.io.deb && rm -r /tmp/docker
        for deb in *.deb; do
          dpkg-deb --field "$deb"
          echo "Filename: ./$deb"
          echo "Size: $(stat --format=%s "$deb")"
          echo "SHA256: $(sha256sum "$deb" | cut -d ' ' -f 1)"
          echo
        done >Packages
        apt-get clean
        rm -rf /var/lib/apt/lists/*
        # Logging in must not wait for a name server that is not there.
        printf 'UseDNS no\\nUsePAM no\\n' >>/etc/ssh/sshd_config
        : >/etc/resolv.conf
    """
    subprocess.run(["unshare", "--mount", "chroot", root, "sh", "-ec", script], check=True, stdout=log, stderr=log)
    (root / "etc/cloud/cloud.cfg").write_text(_CLOUD)


class Worker:
    """One such machine at a Swarm's switch. `shared` is a folder of this machine that it sees under the same path."""

    def __init__(self, swarm: Swarm, name: str, number: int, shared: Path) -> None:
        self.name = name
        # Only its network is used: it has a daemon of its own inside.
        self.machine = Machine(name, f"10.98.0.{number}", swarm.manager.space.rpartition("-")[0])
        self.address = self.machine.address
        self._neighbour = swarm.manager.inside()
        self.folder = new_folder()
        self.key = self.folder / "key"
        self._shared = shared
        self._init: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Boot it, and wait until its sshd answers."""
        lower = base()
        for name in ("upper", "work", "root", "docker"):
            (self.folder / name).mkdir()
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.key], check=True)
        self.machine.plug_in()
        alone = ("unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "sh", "-euc", _BOOT, "sh")
        words = (self.name, str(lower), str(self.folder), str(self._shared), self.key.with_suffix(".pub").read_text())
        with open(self.folder / "log", "ab") as log:
            self._init = subprocess.Popen(
                [*self.machine.inside(), *alone, *words], stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + _UP_WITHIN_S
        while self.ssh("true").returncode != 0:
            assert self._init.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < deadline, "its sshd does not answer"
            time.sleep(0.1)

    @property
    def ssh_config(self) -> Path:
        """A file for `ssh -F`, with the key, and with who is known."""
        path = self.folder / "ssh_config"
        lines = (
            f"Host {self.address}",
            f"  IdentityFile {self.key}",
            f"  UserKnownHostsFile {self.folder}/known_hosts",
            "  StrictHostKeyChecking accept-new",
            "  IdentitiesOnly yes",
        )
        path.write_text("".join(f"{line}\n" for line in lines))
        return path

    def ssh(self, command: str, user: str = "root", timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """Run a command there, by ssh, as it would come from another machine."""
        words = ["ssh", "-F", str(self.ssh_config), "-o", "ConnectTimeout=5", f"{user}@{self.address}", command]
        return subprocess.run([*self._neighbour, *words], capture_output=True, text=True, timeout=timeout, check=False)

    def forget_docker(self) -> None:
        """Have it as a machine is on which nobody ever installed Docker."""
        ran = self.ssh(f"dpkg --purge {' '.join(DOCKER)} && ! command -v dockerd")
        assert ran.returncode == 0, ran.stdout + ran.stderr

    def first_start(self, user_data: str) -> str:
        """Have cloud-init do what it does when a cloud starts a machine with these user data; what it says."""
        given = self._shared / f"user-data-of-{self.name}"
        given.write_text(user_data)
        put = (
            f"mkdir -p {_SEED} && install -m 600 {given} {_SEED}/user-data && echo 'instance-id: i' >{_SEED}/meta-data"
        )
        ran = self.ssh(f"{put} && cloud-init init", timeout=180)
        given.unlink()
        return ran.stdout + ran.stderr

    def vanish(self) -> None:
        """As a machine that is switched off: nothing of it answers, or says good-bye."""
        if self._init is not None:
            self.machine.unplug()
            with suppress(ProcessLookupError):
                os.killpg(self._init.pid, signal.SIGKILL)
            self._init.wait()
            self._init = None

    def remove(self) -> None:
        """All of it."""
        self.vanish()
        self.machine.remove()
        shutil.rmtree(self.folder, ignore_errors=True)


_BOOT = r"""
name=$1 lower=$2 folder=$3 shared=$4 key=$5 root=$3/root
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
for home in root home/admin; do
  mkdir -p -m 700 "$root/$home/.ssh"
  echo "$key" >"$root/$home/.ssh/authorized_keys"
done
chroot "$root" chown -R admin: /home/admin/.ssh
# The script would mount control groups that this machine has not, and leave them to it: containerd then finds no OOM.
echo "none /sys/fs/cgroup cgroup noauto 0 0" >>"$root/etc/fstab"
# Limits cannot be raised where the tests run; the script ends when it cannot.
sed -i "s/ulimit .*/& || :/" "$root/etc/init.d/docker"
cd "$root"
pivot_root . old
umount -l /old
exec sh -c '/usr/sbin/sshd -D -e & while :; do wait; sleep 1; done'
"""


@contextmanager
def worker_of(swarm: Swarm, name: str, number: int, shared: Path) -> Iterator[Worker]:
    """A machine for a while. `number` is the last of its address."""
    worker = Worker(swarm, name, number, shared)
    try:
        worker.start()
        yield worker
    finally:
        worker.remove()
