"""What somebody who means harm tries as root of a container, in shell: each line of output is a way that was open."""

from __future__ import annotations

_PYTHON = {
    "make a device": "import os; os.mknod('/tmp/disk', 0o60600, os.makedev(254, 0))",
    "leave its namespaces": "import os; os.setns(os.open('/proc/1/ns/net', os.O_RDONLY), 0)",
    "open a raw socket": "import socket; socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)",
    # With one, answers for others' addresses are made.
    "open a socket for whole packets": "import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 3)",
    "take another address": (
        "import fcntl, socket, struct; "
        "fcntl.ioctl(socket.socket(), 0x8916, struct.pack('16sH2s4s8s', b'lo', 2, b'', bytes([10, 0, 0, 1]), b''))"
    ),
    "set the clock": "import time; time.clock_settime(time.CLOCK_REALTIME, 0)",
    "change its root": "import os; os.chroot('/tmp')",
    "get users of its own": "import ctypes; exit(ctypes.CDLL(None).unshare(0x10000000))",
    "be more than it is": "import os; os.setpriority(os.PRIO_PROCESS, 0, -10)",
}
_SHELL = {
    "mount at all": "mkdir -p /tmp/m && mount -t tmpfs none /tmp/m",
    "mount control groups": "mkdir -p /tmp/c && mount -t cgroup -o memory none /tmp/c",
    "mount control groups of today": "mkdir -p /tmp/c && mount -t cgroup2 none /tmp/c",
    "make a control group": "mkdir /sys/fs/cgroup/x /sys/fs/cgroup/memory/x",
    "have the kernel run a program when a group is empty": "echo /x >/sys/fs/cgroup/memory/release_agent",
    "have the kernel run a program for devices": "echo /x >/sys/kernel/uevent_helper",
    "have the kernel run a program for what crashes": "echo '|/x' >/proc/sys/kernel/core_pattern",
    "have the kernel run a program for modules": "echo /x >/proc/sys/kernel/modprobe",
    "have the kernel run other programs": "ls /proc/sys/fs/binfmt_misc/register",
    "write to the kernel": "echo 1 >/proc/sys/kernel/panic",
    "press a key of the kernel's": "echo h >/proc/sysrq-trigger",
    "read the machine's memory": "head -c 1 /proc/kcore | grep -q .",
    "see what keys there are": "grep -q . /proc/keys",
    "read what the kernel says": "head -c 1 /dev/kmsg",
    "open a disk": "head -c 1 /dev/vda || head -c 1 /dev/sda || head -c 1 /dev/loop0",
    "open memory": "head -c 1 /dev/mem",
    "see other processes": "ls -d /proc/[0-9]*/exe | xargs -n 1 readlink | grep -q docker",
}
# Keys, modules, tracing, another kernel, handles of files by number: x86-64's numbers.
_CALLS = {
    "bpf": 321, "perf_event_open": 298, "add_key": 248, "request_key": 249, "keyctl": 250, "init_module": 175,
    "finit_module": 313, "kexec_load": 246, "open_by_handle_at": 304, "pivot_root": 155, "swapon": 167, "reboot": 169,
    "iopl": 172, "quotactl": 179, "acct": 163, "move_mount": 429, "fsopen": 430, "open_tree": 428, "userfaultfd": 323,
}  # fmt: skip
_ASKED = (
    "import ctypes, os\n"
    "libc = ctypes.CDLL(None, use_errno=True)\n"
    f"for name, number in ({_CALLS} if os.uname().machine == 'x86_64' else {{}}).items():\n"
    "    said = libc.syscall(number, 0, 0, 0, 0, 0)\n"
    "    if said != -1 or ctypes.get_errno() not in (1, 38): print('call', name, ctypes.get_errno())\n"
)


def tries_of(**more: str) -> str:
    """A script that tries all, and `more` of them: what each says first, with _ for a space, and what is run."""
    tries = {
        **_SHELL,
        **{what: f'python3 -c "{code}"' for what, code in _PYTHON.items()},
        **{what.replace("_", " "): code for what, code in more.items()},
    }
    lines = [f"if ( {code} ) >/dev/null 2>&1; then echo '{what}'; fi" for what, code in tries.items()]
    return "\n".join([*lines, f'python3 - <<"EOF"\n{_ASKED}EOF'])
