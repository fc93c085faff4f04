"""A whole node of the tests' own that is to become a worker: a kernel, systemd, sshd, two disks, in an emulator.

`worker` has a node that is only namespaces of this one: no systemd, no reboot, none of the kernel's quotas and NFS.
Here they are, at a tenth of the speed. The disks are made once, without the emulator, and kept in /tmp under a name
that says what is in them; what a node writes goes to files without a name, which go when it goes. On the second
disk is an XFS with project quotas, where Docker's files lie. It reaches the nodes of its Swarm and nothing else.
"""

from __future__ import annotations

import hashlib
import lzma
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import IO

from tests.contract.harness.made_once import made_once
from tests.contract.harness.newcomer import FURNISH, Newcomer, new_key
from tests.contract.harness.swarm import Swarm

SUITE = "trixie"
PACKAGES = (
    "busybox-static", "cpio", "curl", "dbus", "docker.io", "iproute2", "iptables", "kmod", "libnss-myhostname",
    "nfs-common", "openssh-server", "openssl", "procps", "python3", "sudo", "systemd-sysv", "udev", "xfsprogs",
)  # fmt: skip
_LAYOUT = 3  # rises when what is made here changes
_MODULES = ("virtio_pci", "virtio_blk", "ext4")
# What a node without people at a keyboard, and without anything to look up, need not wait for.
_MASKED = (
    "apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "fstrim.timer", "e2scrub_all.timer",
    "e2scrub_reap.service", "xfs_scrub_all.timer", "systemd-tmpfiles-clean.timer", "rpcbind.service", "rpcbind.socket",
    "nfs-blkmap.service", "rpc-statd-notify.service", "systemd-binfmt.service", "getty@tty1.service",
    "serial-getty@ttyS0.service", "systemd-networkd-persistent-storage.service", "systemd-pstore.service",
    "sys-kernel-debug.mount", "sys-kernel-tracing.mount", "sys-fs-fuse-connections.mount", "dev-mqueue.mount",
    "dev-hugepages.mount", "modprobe@drm.service", "modprobe@efi_pstore.service", "modprobe@fuse.service",
    "systemd-journal-flush.service", "systemd-logind.service", "systemd-udev-load-credentials.service",
)  # fmt: skip


@cache
def base() -> Path:
    """A folder with `root.img`, `data.img`, `vmlinuz`, `initrd` and `key`; made when it is not there: two minutes."""
    named = hashlib.sha256(f"{_LAYOUT} {SUITE} {PACKAGES} {_MASKED}".encode()).hexdigest()[:12]
    return made_once(f"node-{named}", _make)


def _make(place: Path, log: IO[bytes]) -> None:
    tree = place / "tree"
    command = ["debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", SUITE, str(tree)]
    # What a power cut deletes is created again.
    quick = {**os.environ, "DPKG_FORCE": "unsafe-io"}
    subprocess.run(command, stdout=log, stderr=log, check=True, env=quick)
    for folder in ("proc", "sys"):
        subprocess.run(["umount", "--lazy", tree / folder], check=False, capture_output=True)
    shutil.copy("/etc/resolv.conf", tree / "etc/resolv.conf")
    inside = ["chroot", tree, "sh", "-euc", FURNISH + _FURNISH, "sh", new_key(place / "key"), " ".join(_MASKED)]
    subprocess.run(inside, stdout=log, stderr=log, check=True)
    _make_initrd(tree)
    for name in ("vmlinuz", "initrd", "data.img"):
        (tree / "made" / name).rename(place / name)
    (tree / "made").rmdir()
    root = place / "root.img"
    subprocess.run(["mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-d", tree, "-F", root, "6G"], check=True)
    subprocess.run(["rm", "-rf", "--one-file-system", tree], check=True)


_FURNISH = r"""
let_in "$1"
ssh-keygen -A

apt-get update -qq
mkdir -p "$mirror" /made
cd "$mirror"
# This Debian has it apart from docker.io.
apt-get download -qq docker-cli
list_mirror

# The kernel as a package would want an initrd of everything.
cd /made
apt-get download -qq "$(apt-cache depends linux-image-cloud-amd64 | sed -n 's/.*Depends: //p')"
dpkg-deb --extract linux-image-*.deb /made/kernel
mv /made/kernel/boot/vmlinuz-* /made/vmlinuz
cp -a /made/kernel/usr/lib/modules /usr/lib/ 2>/dev/null || cp -a /made/kernel/lib/modules /usr/lib/
rm -rf /made/kernel linux-image-*.deb
depmod "$(ls /usr/lib/modules)"

mkfs.xfs -q -d "file,name=/made/data.img,size=4g"
mkdir -p /var/lib/docker
printf '/dev/vda / ext4 noatime 0 0\n/dev/vdb /var/lib/docker xfs noatime,pquota 0 0\n' >/etc/fstab

systemctl enable ssh systemd-networkd
# Installed, and not running: that it starts with the node is the join's to see to.
systemctl disable docker.service docker.socket containerd.service
systemctl mask $2
systemctl set-default multi-user.target
# What is found out at the first start of a node is found out here, where that is quick.
ldconfig
journalctl --update-catalog
systemd-sysusers
rm -f /etc/machine-id && systemd-node-id-setup
apt-get clean
rm -rf /var/lib/apt/lists/*
: >/etc/resolv.conf
touch /etc/.updated /var/.updated
"""

_INIT = """#!/bin/sh
for module in /modules/*; do insmod "$module"; done
mount -t devtmpfs dev /dev
n=0
until [ -b /dev/vda ] || [ $n = 100 ]; do sleep 0.1; n=$((n + 1)); done
mount -t ext4 -o noatime /dev/vda /root
mount --move /dev /root/dev
exec switch_root /root /sbin/init
"""


def _make_initrd(tree: Path) -> None:
    """A shell that loads what the disk takes, mounts it, and hands over: quicker by far than a distribution's own."""
    (release,) = os.listdir(tree / "usr/lib/modules")
    folder = tree / "made/first"
    for name in ("bin", "dev", "root", "modules"):
        (folder / name).mkdir(parents=True)
    shutil.copy(tree / "usr/bin/busybox", folder / "bin/busybox")
    for name in ("sh", "insmod", "mount", "sleep", "switch_root"):
        (folder / "bin" / name).symlink_to("busybox")
    (folder / "init").write_text(_INIT)
    (folder / "init").chmod(0o755)
    show = ["chroot", tree, "modprobe", "--set-version", release, "--show-depends", "--all", *_MODULES]
    shown = subprocess.run(show, check=True, capture_output=True, text=True).stdout
    files = dict.fromkeys(line.split()[1] for line in shown.splitlines() if line.startswith("insmod"))
    for number, file in enumerate(files):
        content = (tree / file.lstrip("/")).read_bytes()
        plain = lzma.decompress(content) if file.endswith(".xz") else content
        (folder / "modules" / f"{number:02}").write_bytes(plain)
    pack = "cd /made/first && find . | cpio --quiet -o -H newc >/made/initrd && rm -rf /made/first"
    subprocess.run(["chroot", tree, "sh", "-euc", pack], check=True)


class Node(Newcomer):
    up_within_s = 300

    def __init__(self, swarm: Swarm, name: str, number: int) -> None:
        super().__init__(swarm, name, number, base() / "key")
        self._tap = f"t{number}"

    def _switch_on(self, log: IO[bytes]) -> subprocess.Popen[bytes]:
        at_switch = ("nsenter", f"--net=/run/netns/{self.switch}")
        for words in (f"tuntap add dev {self._tap} mode tap", f"link set {self._tap} master br0 up"):
            subprocess.run([*at_switch, "ip", *words.split()], check=True, capture_output=True)
        # It ends with who started it, however that one ends.
        command = [*at_switch, "setpriv", "--pdeathsig", "KILL", "qemu-system-x86_64", *self._words(base())]
        own = {**os.environ, "TMPDIR": str(self.folder)}
        return subprocess.Popen(
            command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True, env=own
        )

    def _words(self, made: Path) -> list[str]:
        net = f"ip={self.address}:::255.255.255.0::eth0:off net.ifnames=0 systemd.hostname={self.name}"
        kernel = f"root=/dev/vda rw console=ttyS0 panic=-1 mitigations=off nokaslr quiet audit=0 {net}"
        disk = "format=raw,if=virtio,snapshot=on,cache=unsafe"
        return [
            # This emulator spoils flags at a 16 byte compare-and-exchange, on which newer kernels trip; and what wider
            # processors have makes it slower, as programs then use it.
            "-accel", "tcg,thread=multi,tb-size=512", "-cpu", "Nehalem,-cx16", "-smp", "2", "-m", "1536",
            "-display", "none", "-monitor", "none", "-serial", "stdio",
            "-kernel", f"{made}/vmlinuz", "-initrd", f"{made}/initrd", "-append", kernel,
            "-drive", f"file={made}/root.img,{disk}", "-drive", f"file={made}/data.img,{disk}",
            "-netdev", f"tap,id=net,ifname={self._tap},script=no,downscript=no",
            "-device", "virtio-net-pci,netdev=net,romfile=", "-device", "virtio-rng-pci",
        ]  # fmt: skip

    def reboot(self) -> None:
        """Reboot it as an admin does, and wait until its sshd answers again."""
        before = self.await_up()
        self.ssh("systemctl reboot")
        self.hang_up()
        self.await_up(other_than=before)

    def remove(self) -> None:
        super().remove()
        words = ["ip", "-n", self.switch, "link", "delete", self._tap]
        subprocess.run(words, check=False, capture_output=True)
