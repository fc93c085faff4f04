"""Attacks by root of a container, on the Docker engine and on a Swarm."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.contract.engines.rigs import DockerRig, SwarmRig

from commonage.engines.settings import Mount
from commonage.testing.behaviour import Behaviour

SESAME = (("SESAME", "open-up"),)


def shared_mounts(folder: Path) -> tuple[Mount, Mount]:
    """`/system` with a file of the platform, read-only, and `/shared` with a folder for each tenant."""
    shared, system = folder / "shared", folder / "system"
    for tenant in ("lab", "other"):
        (shared / tenant).mkdir(parents=True)
        (shared / tenant / "data").write_text(f"of {tenant}")
    system.mkdir()
    (system / "file").write_text("ours")
    return Mount(str(system), "/system"), Mount(f"{shared}/{{tenant}}", "/shared", writable=True)


async def printed(rig: DockerRig | SwarmRig, script: str, **changes: object) -> list[str]:
    """Output of a shell script in a container. Its exit code does not count."""
    request = rig.start_request(Behaviour(), command=("bash", "-c", script), **changes)
    await rig.ended(request)
    return await rig.lines(request.attempt_id)


def connect(host: str, port: str | int) -> str:
    """A shell command that says whether it got through."""
    return f"if timeout 2 bash -c 'exec 3<>/dev/tcp/{host}/{port}' 2>/dev/null; then echo through; else echo wall; fi"


async def assert_root_inside_is_not_root(rig: DockerRig | SwarmRig, *places: str) -> None:
    assert await printed(rig, f"{tries_of(*places)}\nid -u; cat /system/file") == ["0", "ours"]
    status = dict(line.split(":\t", 1) for line in await printed(rig, "cat /proc/self/status") if ":\t" in line)
    assert status["NoNewPrivs"] == "1"
    assert status["Seccomp"] == "2"
    # CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, SETGID, SETUID
    assert int(status["CapBnd"], 16) == 0b11111011


async def answer_hello(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello")
    await writer.drain()
    writer.close()


async def try_ports_of_this_node(rig: DockerRig | SwarmRig, hub_port: int) -> tuple[bool, str, str]:
    """Whether an address that is not reached is left as it is, what the hub's port answers, and what another does."""
    hub = await asyncio.start_server(answer_hello, "127.0.0.1", hub_port)
    other = await asyncio.start_server(answer_hello, "127.0.0.1", 0)
    hidden = other.sockets[0].getsockname()[1]
    async with hub, other:
        variables = (("HUB", f"http://127.0.0.1:{hub_port}"), ("HIDDEN", f"http://127.0.0.1:{hidden}"))
        fetch = "import os, urllib.request as u; print(u.urlopen(os.environ['HUB'], timeout=30).read().decode())"
        script = f'echo $HIDDEN; python3 -c "{fetch}"; gateway=${{HUB#http://}}; gateway=${{gateway%:*}}; '
        script += connect("'$gateway'", hidden)
        shown, fetched, wall = await printed(rig, script, variables=variables)
    return shown == f"http://127.0.0.1:{hidden}", fetched, wall


_PROGRAM = r"""
import ctypes, fcntl, os, shutil, socket, struct, sys, time

libc = ctypes.CDLL(None, use_errno=True)

def call(found):
    if found == -1:
        raise OSError(ctypes.get_errno(), "refused")

def write(path, text):
    with open(path, "w") as file:
        file.write(text)

def read(path):
    with open(path, "rb") as file:
        if not file.read(1):
            raise OSError("it is empty")

def mount(kind, flags=0, place="/tmp/mounted", options=b""):
    os.makedirs(place, exist_ok=True)
    call(libc.mount(b"none", place.encode(), kind, flags, options))

def make_device(kind, major, minor):
    os.mknod(f"/tmp/device-{major}-{minor}", kind | 0o600, os.makedev(major, minor))

def address():
    ask = struct.pack("16sH2s4s8s", b"lo", 2, b"", bytes([10, 0, 0, 1]), b"")
    fcntl.ioctl(socket.socket(socket.AF_INET, socket.SOCK_DGRAM), 0x8916, ask)

def strangers():
    for one in os.listdir("/proc"):
        if one.isdigit() and open(f"/proc/{one}/comm").read().strip() in ("dockerd", "containerd"):
            return
    raise OSError("there are none")

def become_root():
    shell = "/tmp/shell"
    shutil.copy("/usr/bin/bash", shell)
    os.chmod(shell, 0o4755)
    if (child := os.fork()) == 0:
        os.setgid(65534)
        os.setuid(65534)
        os.execv(shell, [shell, "-p", "-c", "[ $EUID = 0 ]"])
    if os.waitpid(child, 0)[1] != 0:
        raise OSError("it is nobody")

PACKETS = (socket.AF_PACKET, socket.SOCK_RAW, 3)
tries = {
    "become root by a program of root's": become_root,
    "mount": lambda: mount(b"tmpfs"),
    "mount control groups": lambda: mount(b"cgroup", options=b"memory"),
    "mount control groups of today": lambda: mount(b"cgroup2"),
    "mount what the kernel shows": lambda: mount(b"proc"),
    "mount a disk": lambda: mount(b"overlay"),
    "uncover what is hidden of the kernel": lambda: call(libc.umount2(b"/proc/sys", 2)),
    "mount the system read-write": lambda: mount(b"", 32 | 4096, "/system"),
    "unmount the system": lambda: call(libc.umount2(b"/system", 2)),
    "write to the system": lambda: write("/system/file", "theirs"),
    "write to the init of all": lambda: write("/sbin/docker-init", "x") or write("/usr/bin/docker-init", "x"),
    "make a disk": lambda: make_device(0o60000, 254, 0),
    "make memory": lambda: make_device(0o20000, 1, 1),
    "leave its namespaces": lambda: call(libc.setns(os.open("/proc/1/ns/net", os.O_RDONLY), 0)),
    "get users of its own": lambda: call(libc.unshare(0x10000000)),
    "get mounts of its own": lambda: call(libc.unshare(0x20000)),
    "change its root": lambda: os.chroot("/tmp"),
    "open a raw socket": lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1),
    "answer for others' addresses": lambda: socket.socket(*PACKETS),
    "take another address": address,
    "set the clock": lambda: time.clock_settime(time.CLOCK_REALTIME, 0),
    "go before others": lambda: os.setpriority(os.PRIO_PROCESS, 0, -10),
    "make a control group": lambda: os.mkdir("/sys/fs/cgroup/memory/x"),
    "have a program run when a group is empty": lambda: write("/sys/fs/cgroup/memory/release_agent", "/x"),
    "leave the control group": lambda: write("/sys/fs/cgroup/memory/cgroup.procs", "1"),
    "raise its limits": lambda: write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "-1"),
    "raise its limits of today": lambda: read("/sys/fs/cgroup/memory.max") or write("/sys/fs/cgroup/memory.max", "max"),
    "allow itself devices": lambda: write("/sys/fs/cgroup/devices/devices.allow", "a *:* rwm"),
    "have a program run for devices": lambda: write("/sys/kernel/uevent_helper", "/x"),
    "have a program run for what crashes": lambda: write("/proc/sys/kernel/core_pattern", "|/x"),
    "have a program run for modules": lambda: write("/proc/sys/kernel/modprobe", "/x"),
    "have another program run": lambda: write("/proc/sys/fs/binfmt_misc/register", ":x:M::x::/x:"),
    "write to the kernel": lambda: write("/proc/sys/kernel/panic", "1"),
    "press a key of the kernel's": lambda: write("/proc/sysrq-trigger", "h"),
    "read the machine's memory": lambda: read("/proc/kcore"),
    "see keys": lambda: read("/proc/keys"),
    "read what the kernel says": lambda: read("/dev/kmsg"),
    "see others' processes": strangers,
    "see the daemon's": lambda: os.stat("/proc/1/root/var/run/docker.sock"),
    **{f"reach {path}": lambda path=path: os.stat(path) for path in ("/var/run/docker.sock", "/run/docker.sock")},
    **{f"open {path}": lambda path=path: read(path) for path in ("/dev/mem", "/dev/vda", "/dev/sda", "/dev/loop0")},
    **{f"write to {path}": lambda path=path: write(path, "x") for path in sys.argv[1:]},
}
if os.uname().machine == "x86_64":
    numbers = dict(
        bpf=321, perf_event_open=298, add_key=248, request_key=249, keyctl=250, init_module=175, finit_module=313,
        kexec_load=246, open_by_handle_at=304, pivot_root=155, swapon=167, reboot=169, iopl=172, quotactl=179,
        acct=163, move_mount=429, fsopen=430, open_tree=428, userfaultfd=323,
    )

    def number(one):
        call(libc.syscall(one, 0, 0, 0, 0, 0))

    tries |= {f"call {name}": lambda one=one: number(one) for name, one in numbers.items()}
REFUSED = {1, 38}
for what, attempt in tries.items():
    try:
        attempt()
    except OSError as error:
        if what.startswith("call ") and error.errno not in REFUSED:
            print(what, error.errno)
    else:
        print(what)
"""


def tries_of(*places: str) -> str:
    """A bash script that tries all addresses, and writes to these `places`. Each printed line is a hole."""
    return f"python3 - {' '.join(places)} <<'EOF'\n{_PROGRAM}EOF"
