"""A Docker Swarm of the tests' own: several daemons, each in a network namespace, joined by a switch in another one.

Nothing of it is reached from outside, and it reaches nothing: the namespaces have no route out. `Swarm.run_in` starts a
program on one of the nodes.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import socket
import subprocess
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.client import HTTPException
from itertools import count
from typing import Any

from tests.contract.harness.dockerd import Dockerd, minimal_image, new_folder
from tests.contract.harness.leftovers import SPACE, clear_leftovers, tag
from tests.fakes.waiting import wait_until

MANAGER = "manager"
VRAM_MIB = 24576
_SWARM_PORT = 2377
_HEARTBEAT_NS = 2_000_000_000
_NUMBERS = count()
_NETWORK = 0x40000000  # CLONE_NEWNET


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


class Node:
    """One node: a network namespace with an address, and a daemon in it."""

    def __init__(
        self, name: str, address: str, switch: str, *, vram_mib: int = 0, arguments: Sequence[str] = ()
    ) -> None:
        self.name, self.address = name, address
        # What the kernel calls it: several Swarms may be on this machine at once.
        self.space = f"{switch}-{name}"
        self._switch, self._port = switch, f"p{address.rpartition('.')[2]}"
        resources = [f"--node-generic-resource=VRAM={vram_mib}"] if vram_mib else []
        self.daemon = Dockerd(new_folder(), *resources, *arguments, before=self.inside(host_name=name))

    def inside(self, host_name: str | None = None) -> tuple[str, ...]:
        """The words before a command that have it run on this machine."""
        words: tuple[str, ...] = ("nsenter", f"--net=/run/netns/{self.space}")
        if host_name is not None:
            # Images are local here; without this each start first asks an unreachable registry.
            named = f'hostname {host_name}; DOCKER_SERVICE_PREFER_OFFLINE_IMAGE=1 exec "$@"'
            words += ("unshare", "--uts", "sh", "-c", named, "sh")
        return words

    def rename(self, host_name: str) -> None:
        """Give the node another host name, as its root can. Docker tells the Swarm within half a minute."""
        pid = (self.daemon.folder / "pid").read_text()
        subprocess.run(["nsenter", f"--uts=/proc/{pid}/ns/uts", "hostname", host_name], check=True)

    def plug_in(self) -> None:
        """Have the namespace, with a cable to the switch."""
        _ip("netns", "add", self.space)
        inner, outer = "eth0", self._port
        _ip("link", "add", outer, "netns", self._switch, "type", "veth", "peer", "name", inner, "netns", self.space)
        _ip("-n", self._switch, "link", "set", outer, "master", "br0", "up")
        _ip("-n", self.space, "addr", "add", f"{self.address}/24", "dev", inner)
        _ip("-n", self.space, "link", "set", inner, "up")
        _ip("-n", self.space, "link", "set", "lo", "up")

    def unplug(self) -> None:
        """Pull the network cable: the node continues to run, but cannot be reached and reaches no other node."""
        _ip("-n", self._switch, "link", "set", self._port, "nomaster")

    def plug(self) -> None:
        _ip("-n", self._switch, "link", "set", self._port, "master", "br0")

    def remove(self) -> None:
        """The daemon, its containers, its files and the namespace."""
        with suppress(OSError, HTTPException, RuntimeError):
            self.daemon.ask("POST", "/swarm/leave?force=1")
        self.daemon.remove()
        # An unanswered connection keeps the namespace, and with it the virtual cable, for minutes.
        for words in (("-n", self._switch, "link", "delete", self._port), ("netns", "delete", self.space)):
            with suppress(subprocess.CalledProcessError):
                _ip(*words)


class Swarm:
    """One manager and some workers, each with `vram_mib` of VRAM as a generic resource and the test image."""

    def __init__(self, workers: int, *, vram_mib: int = VRAM_MIB, arguments: Sequence[str] = ()) -> None:
        clear_leftovers()
        self._switch = f"{SPACE}{tag()}n{next(_NUMBERS)}"
        names = [MANAGER, *(f"worker{number}" for number in range(1, workers + 1))]
        self.machines = {
            name: Node(name, f"10.98.0.{at}", self._switch, vram_mib=vram_mib, arguments=arguments)
            for at, name in enumerate(names, start=1)
        }

    @property
    def manager(self) -> Node:
        return self.machines[MANAGER]

    @property
    def workers(self) -> list[Node]:
        return [node for name, node in self.machines.items() if name != MANAGER]

    def start(self, image: bytes | None = None, name: str = "commonage-test:1", changes: str = "") -> None:
        """Plug in and start all, form the Swarm, load the image everywhere (`changes`: as the import takes them)."""
        _ip("netns", "add", self._switch)
        _ip("-n", self._switch, "link", "add", "br0", "type", "bridge")
        _ip("-n", self._switch, "link", "set", "br0", "up")
        image = image or minimal_image()
        repository, _, tag = name.partition(":")
        path = f"/images/create?fromSrc=-&repo={repository}&tag={tag}{changes}"

        def start(node: Node) -> None:
            node.plug_in()
            node.daemon.start()
            node.daemon.ask("POST", path, content=image)

        with ThreadPoolExecutor() as at_once:
            list(at_once.map(start, self.machines.values()))
        first = self.manager
        body: dict[str, Any] = {
            "ListenAddr": f"{first.address}:{_SWARM_PORT}",
            "AdvertiseAddr": first.address,
            # Without an address range it takes 10.0.0.0/8, which may be this machine's network. Without a subnet size
            # no task gets an address, and all stay in the state `new`.
            "DefaultAddrPool": ["10.97.0.0/16"],
            "SubnetSize": 24,
            # A node that is gone is noticed after three of these.
            "Spec": {"Dispatcher": {"HeartbeatPeriod": _HEARTBEAT_NS}},
        }
        first.daemon.ask("POST", "/swarm/init", body)
        for node in self.workers:
            self.join(node)

    def join(self, node: Node) -> None:
        """Have it join as a worker."""
        token = self.manager.daemon.ask("GET", "/swarm")["JoinTokens"]["Worker"]
        body = {
            "ListenAddr": f"{node.address}:{_SWARM_PORT}",
            "AdvertiseAddr": node.address,
            "RemoteAddrs": [f"{self.manager.address}:{_SWARM_PORT}"],
            "JoinToken": token,
        }
        try:
            node.daemon.ask("POST", "/swarm/join", body)
        except RuntimeError as error:
            if "will continue in the background" not in str(error):
                raise
            asked = node.daemon.ask
            wait_until(lambda: asked("GET", "/info")["Swarm"]["LocalNodeState"] == "active", f"{node.name} has joined")

    def nodes(self) -> dict[str, Any]:
        """The manager's descriptions of nodes, by name."""
        return {node["Description"]["Hostname"]: node for node in self.manager.daemon.ask("GET", "/nodes")}

    def node_id(self, name: str) -> str:
        """The id of this machine in the Swarm, as its own daemon says it."""
        return str(self.machines[name].daemon.ask("GET", "/info")["Swarm"]["NodeID"])

    def label(self, name: str, label: str, value: str) -> None:
        node = self.nodes()[name]
        spec = {**node["Spec"], "Labels": {**(node["Spec"].get("Labels") or {}), label: value}}
        self.manager.daemon.ask("POST", f"/nodes/{node['ID']}/update?version={node['Version']['Index']}", spec)

    def services(self) -> list[Any]:
        return list(self.manager.daemon.ask("GET", "/services"))

    def networks(self) -> set[str]:
        """The names of the networks that any daemon knows. One that does not answer is left out."""
        found: set[str] = set()
        for node in self.machines.values():
            with suppress(OSError, HTTPException):
                found |= {one["Name"] for one in node.daemon.ask("GET", "/networks")}
        return found

    def run_in(self, name: str, *command: str, **options: Any) -> subprocess.Popen[bytes]:
        """Start a program on this machine; it is the caller's to end."""
        return subprocess.Popen([*self.machines[name].inside(), *command], **options)

    def remove_services(self) -> None:
        """All of them, before containers are removed: else the Swarm would start others."""
        with suppress(OSError, HTTPException, RuntimeError):
            for service in self.services():
                self.manager.daemon.ask("DELETE", f"/services/{service['ID']}")

    def remove(self) -> None:
        """All of it. The nodes go at once, the manager last. What goes wrong with one keeps none of the others."""
        self.remove_services()
        with ThreadPoolExecutor() as at_once:
            removals = [at_once.submit(node.remove) for node in self.workers]
        try:
            self.manager.remove()
        finally:
            with suppress(subprocess.CalledProcessError):
                _ip("netns", "delete", self._switch)
        for removal in removals:
            removal.result()


@contextmanager
def swarm_of(workers: int = 3, image: bytes | None = None, **options: Any) -> Iterator[Swarm]:
    swarm = Swarm(workers, **options)
    try:
        swarm.start(image)
        yield swarm
    finally:
        swarm.remove()


def enter(space: str) -> None:
    """Have this thread make its connections in a network namespace from now on. There is no way back."""
    with open(f"/run/netns/{space}", "rb") as there:
        failed = ctypes.CDLL(None, use_errno=True).setns(there.fileno(), _NETWORK)
    assert failed == 0, os.strerror(ctypes.get_errno())


@contextmanager
def doorway(space: str, port: int) -> Iterator[None]:
    """Let who connects to this port of the loopback here come out at the same port of the loopback there."""
    here = socket.create_server(("127.0.0.1", port))
    loop, stop = asyncio.new_event_loop(), asyncio.Event()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while some := await reader.read(65536):
                writer.write(some)
                await writer.drain()
        writer.close()

    async def come_in(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            answers, asks = await asyncio.open_connection("127.0.0.1", port)
        except OSError:  # nothing listens there yet, or any more
            writer.close()
            return
        await asyncio.gather(carry(reader, asks), carry(answers, writer))

    async def stand_open() -> None:
        server = await asyncio.start_server(come_in, sock=here)
        await stop.wait()
        server.close()

    def run() -> None:  # in a thread of its own: the namespace is the thread's
        enter(space)
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(stand_open())

    thread = threading.Thread(target=run, name=f"doorway to {space}")
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
