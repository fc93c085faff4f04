"""Keeps the firewall up: builds them when their settings are known, and again when another program removed them.

Used by `run`.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from commonage.agent.config import AgentConfig
from commonage.agent.network.firewall import NO_NETWORK, Firewall, FirewallError, Plan, plan_for
from commonage.ports.agents import NodeNetwork

_log = logging.getLogger(__name__)
_LOOK_EVERY_S = 30.0


class FirewallKeeper:
    """The firewall of this node. `fault` says why they are not up; empty while they are, or are not wanted."""

    def __init__(self, config: AgentConfig, folder: Path, firewall: Firewall | None = None) -> None:
        self._config, self._firewall = config, firewall or Firewall()
        self._file = folder / "reaches.json"
        self._reaches = _kept(self._file)
        self._network = NO_NETWORK
        self._gateway: tuple[str, ...] = ()
        self._again = asyncio.Event()
        self._built: Plan | None = None
        self.fault = ""

    def reach(self, reaches: Collection[str]) -> None:
        """Set what containers may reach (`ADDRESS:PORT`), as the control plane says."""
        wanted = tuple(reaches)
        if wanted != self._reaches:
            self._reaches = wanted
            with suppress(OSError):  # the control plane sends it again with the next link
                self._file.write_text(json.dumps(wanted), encoding="utf-8")
            self._again.set()

    def set_network(self, network: NodeNetwork, gateway: Collection[str]) -> None:
        """Set the node's network, and the address of its container gateway (`ADDRESS:PORT`)."""
        self._network, self._gateway = network, tuple(gateway)
        self._again.set()

    def look_again(self) -> None:
        """Check soon: another program may have removed them."""
        self._built = None
        self._again.set()

    async def keep(self) -> None:
        """Keep them up until cancelled; they stay up then."""
        while self._config.firewall:
            self._again.clear()
            try:
                await asyncio.to_thread(self._build)
            except (FirewallError, OSError, ValueError) as error:
                if not self.fault:
                    _log.error("the firewall around containers do not stand: %s", error)
                self.fault = f"containers are not kept from this machine's network: {error}"
            else:
                self.fault = ""
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_EVERY_S):
                    await self._again.wait()

    def _build(self) -> None:
        reaches = (*self._reaches, *self._gateway)
        plan = plan_for(self._config.firewall_interfaces, self._config.site_networks, reaches, self._network)
        if plan != self._built or not self._firewall.are_first():
            self._firewall.build(plan)
            self._built = plan
            _log.info("containers reach of this machine and its site only: %s", ", ".join(reaches) or "nothing")


def _kept(file: Path) -> tuple[str, ...]:
    try:
        return tuple(map(str, json.loads(file.read_text(encoding="utf-8"))))
    except (OSError, ValueError, TypeError):
        return ()
