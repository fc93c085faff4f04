"""`run --config FILE`: the agent itself, until it is stopped. Its loops: daemon, site, node, link and firewall.

Workloads on the node continue when the agent ends, and are found again when it starts.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from commonage.agent.config import DEFAULT_FILE, AgentConfig, read_config
from commonage.agent.connection import ControlPlaneConnection
from commonage.agent.containers.containers import Containers
from commonage.agent.containers.docker import DaemonGone, DockerDaemon
from commonage.agent.containers.execs import Execs
from commonage.agent.containers.images import Puller
from commonage.agent.containers.limits import Limits
from commonage.agent.containers.mounts import Mounts
from commonage.agent.devices import AgentDevices, Look
from commonage.agent.fencing.daemon_health import Answer, DaemonHealth
from commonage.agent.fencing.fencing import Fences
from commonage.agent.fencing.partition import SWARM_PORT, PartitionMonitor, answers
from commonage.agent.network.firewall_keeper import FirewallKeeper
from commonage.agent.network.gateway import ContainerGateway
from commonage.agent.node import Node
from commonage.domain.errors import EngineFailure, InvalidInput
from commonage.domain.statuses import ProcessOwner
from commonage.engines.containers.daemon.gpus import services_fault
from commonage.engines.containers.daemon.security import MAY_GAIN, may_gain, swarm_faults
from commonage.engines.containers.usage import measure, owners_of
from commonage.link import messages
from commonage.link.connection import Answer as Answering
from commonage.link.connection import Connection, MessageHandlers
from commonage.link.execs import EXEC
from commonage.link.messages import ReportHeard, RequestType, Welcome
from commonage.ports.agents import PARTITIONED_AFTER_S, NodeNetwork, OnProgress
from commonage.ports.devices import Hold

_log = logging.getLogger(__name__)
_PING_EVERY_S, _PING_WITHIN_S = 1.0, 3.0
_LOOK_EVERY_S = 0.25
_RELEASE_EVERY_S = 60.0
_MOST_WARNINGS = 200
_KNOWN_REPORTS = 16


class Agent:
    """The agent of one node. Raises InvalidInput for a configuration that is not valid."""

    def __init__(self, config: AgentConfig) -> None:
        state = Path(config.state)
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._config = config
        self._daemon = DockerDaemon(config.docker)
        self._containers = Containers(self._daemon)
        self._holding = Limits(self._daemon, weighs=config.cpu_hold == "share")
        self._fences = Fences(self._daemon, state)
        self._devices = AgentDevices(config)
        self._node = Node(config, self._fences.root)
        self._mounts = Mounts(Path(config.mounts), config.shared)
        self._execs = Execs(self._daemon)
        self._puller = Puller(self._daemon, Path(config.docker_config), config.node)
        self._firewall = FirewallKeeper(config, state)
        self._gateway = ContainerGateway(config, state, self._network_changed)
        self._daemon_health = DaemonHealth(config.fence_after_s, config.fence_silent_after_s)
        self._contact = PartitionMonitor(config, state)
        # Separate threads: pausing workloads in time must not wait for threads that a silent daemon blocks.
        self._pausing = ThreadPoolExecutor(1, thread_name_prefix="pausing")
        # Separate, too: a file server that hangs must block only mounts.
        self._mounting = ThreadPoolExecutor(1, thread_name_prefix="mounting")
        self._cannot_mount = self._mounts.fault()
        self._unfit: tuple[str, ...] = ()
        self._bounds_volumes = False
        hears: MessageHandlers = {
            **self._execs.hears(),
            "heard": (ReportHeard, self._was_heard),
            "network": (NodeNetwork, self._gateway.learn),
            "reach": (messages.Reach, lambda reach: self._firewall.reach(reach.addresses)),
            "neighbors": (messages.Neighbors, self._contact.learn),
        }
        self._dialler = ControlPlaneConnection(config, self._offers(), hears, self._report_to)
        self._look = Look()
        self._changed = asyncio.Event()
        self._number = 0
        self._made: dict[int, float] = {}  # times of the last reports, by number
        self._warnings: list[tuple[int, tuple[str, str]]] = []  # with the number of the report that carried it, or 0

    async def run(self) -> None:
        """Run until cancelled. An unexpected error in one loop ends all: the supervisor restarts the agent."""
        await self._gateway.open()  # before the first report, which contains its address
        self._network_changed()
        try:
            async with asyncio.TaskGroup() as loops:
                loops.create_task(self._watch_daemon(), name="daemon")
                loops.create_task(self._watch_site(), name="site")
                loops.create_task(self._look_at_node(), name="node")
                loops.create_task(self._release_unseen(), name="release")
                loops.create_task(self._firewall.keep(), name="firewall")
                loops.create_task(self._gateway.keep(), name="gateway")
                loops.create_task(self._dialler.run(), name="link")
        finally:
            await self._execs.close()
            await self._puller.close()
            await self._devices.close()
            self._pausing.shutdown(wait=False)
            self._mounting.shutdown(wait=False)

    # --- the daemon -----------------------------------------------------------------------------------------------

    async def _watch_daemon(self) -> None:
        known = False
        while True:
            before = self._daemon_health.fault(time.monotonic()) != ""
            known = await self._ping(known)
            now = time.monotonic()
            if self._daemon_health.is_due(now):
                done = await asyncio.to_thread(self._fences.end_all, "the Docker daemon is away")
                self._daemon_health.note_fenced(done=done)
                self._changed.set()
            if (self._daemon_health.fault(now) != "") != before:
                _log.warning("%s", self._daemon_health.fault(now) or "the Docker daemon answers again")
                self._changed.set()
            await asyncio.sleep(_PING_EVERY_S)

    async def _ping(self, known: bool) -> bool:
        """Ping the daemon, and list its containers if it answers; returns whether it did.

        `known`: it did the last time.
        """
        began = time.monotonic()
        try:
            await asyncio.to_thread(self._daemon.ping, _PING_WITHIN_S)
        except DaemonGone:
            self._daemon_health.note(Answer.GONE, began)
            return False
        except EngineFailure:
            self._daemon_health.note(Answer.SILENT, began)
            return False
        self._daemon_health.note(Answer.ANSWERS, began)
        try:
            if not known:
                await asyncio.to_thread(self._get_to_know)
                self._firewall.look_again()  # the daemon may have recreated its chains
                await self._execs.end_left_over()
            await asyncio.to_thread(self._containers.look)
            await asyncio.to_thread(self._holding.see_to, self._containers.running, time.monotonic())
        except (EngineFailure, OSError) as error:
            _log.warning("what runs here cannot be looked at: %s", error)
            return False
        return True

    def _get_to_know(self) -> None:
        info = self._daemon.info()
        self._unfit = swarm_faults(info)
        self._containers.daemon_lets_gain(may_gain(info) or False)
        self._devices.note_not_given(services_fault(info))
        self._bounds_volumes = self._daemon.holds_volume_sizes()
        root = str(info["DockerRootDir"])
        self._node.note_docker_root(root)
        self._fences.note_root(root)

    # --- the site -------------------------------------------------------------------------------------------------

    async def _watch_site(self) -> None:
        """Pause workloads while the node is cut off, repeatedly: the daemon may be about to start more."""
        pause = partial(self._fences.pause_all, "this machine is cut off from its site")
        while True:
            await self._contact.look()
            if self._contact.is_partitioned:
                await asyncio.get_running_loop().run_in_executor(self._pausing, pause)
                self._changed.set()
            await asyncio.sleep(_LOOK_EVERY_S)

    def _network_changed(self) -> None:
        self._firewall.set_network(self._gateway.network, self._gateway.reaches)
        self._changed.set()

    # --- messages -------------------------------------------------------------------------------------------------

    async def _look_at_node(self) -> None:
        while True:
            self._look = await self._devices.look(self._owners)
            new = [(0, one) for one in await self._warnings_of_devices()]
            self._warnings = [*self._warnings, *new][-_MOST_WARNINGS:]
            await asyncio.sleep(messages.REPORT_EVERY_S)

    async def _warnings_of_devices(self) -> Sequence[tuple[str, str]]:
        return () if self._devices.is_silent else await self._devices.take_warnings()

    async def _report_to(self, peer: Connection, welcome: Welcome) -> None:
        self._execs.speak_to(peer)
        self._firewall.reach(welcome.reaches)
        await self._gateway.settle()
        self._warnings = [(0, one) for _, one in self._warnings]
        while not peer.is_over:
            self._changed.clear()
            peer.say("report", await self._report())
            try:
                async with asyncio.timeout(messages.REPORT_EVERY_S):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def _report(self) -> messages.Report:
        look = self._look
        broken = (look.fault, self._firewall.fault, self._gateway.fault, self._cannot_mount, *self._unfit)
        faults = tuple(one for one in broken if one)
        node = await asyncio.to_thread(self._node.report, look.devices, faults)
        self._number += 1
        self._made = {number: at for number, at in self._made.items() if number > self._number - _KNOWN_REPORTS}
        self._made[self._number] = time.monotonic()
        told = tuple(one for number, one in self._warnings if number == 0)
        self._warnings = [(number or self._number, one) for number, one in self._warnings]
        return messages.Report(
            self._number,
            node,
            engine_fault=self._daemon_health.fault(time.monotonic()),
            fenced=self._fences.fenced,
            paused=self._fences.paused,
            samples=look.samples,
            owners=look.owners,
            neighbors=self._contact.neighbors,
            notices=(MAY_GAIN,) if self._containers.may_gain else (),
            bounds_volumes=self._bounds_volumes,
            gateway=self._gateway.address,
            mounts=True,
            warnings=told,
        )

    def _was_heard(self, heard: ReportHeard) -> None:
        if heard.number in self._made:
            self._contact.hear(self._made[heard.number])
        self._warnings = [(number, one) for number, one in self._warnings if number == 0 or number > heard.number]

    # --- requests -------------------------------------------------------------------------------------------------

    def _offers(self) -> Mapping[RequestType[Any, Any], Answering]:
        return {
            messages.MEASURE: self._measure,
            messages.OWNERS: self._whose,
            messages.CONFINE: self._confine,
            messages.RELEASE: self._release,
            messages.MOUNT: self._mount,
            messages.UNMOUNT: self._unmount,
            messages.PULL: self._pull,
            EXEC: self._execs.answer,
            messages.FENCE: self._fence,
            messages.UNPAUSE: self._unpause,
            messages.REACHES: self._reaches,
            messages.NOTE_ALLOCATIONS: self._note_allocations,
            messages.RESUME: self._resume,
        }

    def _owners(self, pids: Collection[int]) -> Sequence[ProcessOwner]:
        return owners_of(pids, self._containers.of_attempts())

    async def _measure(self, _: messages.Nothing, _on_progress: OnProgress) -> messages.Measured:
        running = list(self._containers.running.values())
        found = await asyncio.to_thread(lambda: [measure(one.attempt_id, one.pid) for one in running])
        return messages.Measured(tuple(one for one in found if one is not None))

    async def _whose(self, pids: messages.Pids, _on_progress: OnProgress) -> messages.Owned:
        return messages.Owned(tuple(await asyncio.to_thread(self._owners, pids.each)))

    async def _confine(self, hold: Hold, _on_progress: OnProgress) -> messages.Variables:
        return messages.Variables(tuple((await self._devices.confine(hold)).items()))

    async def _release(self, attempts: messages.Attempts, _on_progress: OnProgress) -> messages.Nothing:
        await self._devices.release(attempts.ids)
        return messages.Nothing()

    async def _mount(self, asked: messages.Mounts, _on_progress: OnProgress) -> messages.Mounted:
        have = partial(self._mounts.have, asked.attempt_id, asked.each)
        return messages.Mounted(await asyncio.get_running_loop().run_in_executor(self._mounting, have))

    async def _unmount(self, attempts: messages.Attempts, _on_progress: OnProgress) -> messages.Nothing:
        try:
            await asyncio.get_running_loop().run_in_executor(self._mounting, self._mounts.remove, attempts.ids)
        except OSError as error:
            raise EngineFailure(f"the folders of {', '.join(attempts.ids)} cannot be unmounted: {error}") from error
        return messages.Nothing()

    async def _pull(self, image: messages.Image, told: OnProgress) -> messages.Nothing:
        await self._puller.ensure(image.name, told)
        return messages.Nothing()

    async def _fence(self, attempts: messages.Attempts, _on_progress: OnProgress) -> messages.Attempts:
        return messages.Attempts(tuple(await asyncio.to_thread(self._fences.end, attempts.ids)))

    async def _unpause(self, going: messages.Unpause, _on_progress: OnProgress) -> messages.Nothing:
        made = self._made.get(going.number)
        if made is None or time.monotonic() - made > PARTITIONED_AFTER_S:  # it may have been requeued elsewhere since
            return messages.Nothing()
        stood = await asyncio.to_thread(self._fences.unpause, going.ids)
        words = "it stood still for {:.0f} s, as its node was cut off from the control plane, and goes on now"
        self._warnings += [(0, (one, words.format(seconds))) for one, seconds in stood.items()]
        self._changed.set()
        return messages.Nothing()

    async def _reaches(self, place: messages.Place, _on_progress: OnProgress) -> messages.Reached:
        return messages.Reached(await answers(place.address, SWARM_PORT, refused=False))

    async def _note_allocations(self, allocations: messages.Allocations, _on_progress: OnProgress) -> messages.Nothing:
        await self._devices.note_allocations(allocations.each)
        return messages.Nothing()

    async def _resume(self, device: messages.Device, _on_progress: OnProgress) -> messages.Nothing:
        await self._devices.resume(device.uuid)
        return messages.Nothing()

    async def _release_unseen(self) -> None:
        while True:
            await asyncio.sleep(_RELEASE_EVERY_S)
            live = set(self._containers.of_attempts().values())
            await self._devices.release_unseen(live, time.monotonic())
            unmount = partial(self._mounts.remove_unseen, live, time.monotonic())
            try:
                await asyncio.get_running_loop().run_in_executor(self._mounting, unmount)
            except OSError as error:
                _log.warning("folders of attempts that are not here any more cannot be unmounted: %s", error)


def main(arguments: Sequence[str]) -> int:
    """Run until SIGTERM or SIGINT. Exit codes: 0 stopped by a signal, 2 the configuration is not valid."""
    parser = argparse.ArgumentParser(prog="commonage.agent run", description="Stay, report, do what is asked.")
    parser.add_argument("--config", type=Path, default=Path(DEFAULT_FILE), help=f"its settings ({DEFAULT_FILE})")
    parser.add_argument("--verbose", action="store_true", help="say more")
    options = parser.parse_args(arguments)
    logging.basicConfig(
        level=logging.DEBUG if options.verbose else logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    try:
        return asyncio.run(_live(read_config(options.config)))
    except InvalidInput as error:
        print(f"commonage-agent: {error.message}", file=sys.stderr)
        return 2


async def _live(config: AgentConfig) -> int:
    try:
        agent = Agent(config)
    except OSError as error:
        raise InvalidInput(f"the folder {config.state} cannot be used: {error.strerror}") from error
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    running, stopping = asyncio.create_task(agent.run()), asyncio.create_task(stop.wait())
    await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
    broke = running.done()
    for task in (running, stopping):
        task.cancel()
    [ended, _] = await asyncio.gather(running, stopping, return_exceptions=True)
    if broke and isinstance(ended, BaseException):
        _log.critical("the agent broke; what runs here goes on", exc_info=ended)
        return 1
    _log.info("stopped; what runs here goes on")
    return 0
