"""The firewall around containers: keeps them from this node and its site, with two iptables chains. Used by `agent`.

All rules (`firewall_rules`) are rewritten at once, so that building them is idempotent. `FirewallKeeper` builds them
when their settings are known, and again when another program removed them.
"""

from __future__ import annotations

import asyncio
import logging
import subprocess
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

from commonage.agent.config import AgentConfig, read_state, save_state
from commonage.agent.network.firewall_rules import FORWARD, INPUT, Plan, plan_for, rules_of, rules_of_ipv6
from commonage.domain.reasons import Reason
from commonage.domain.reasons.nodes import FirewallNotBuilt
from commonage.ports.agents import NodeNetwork

_log = logging.getLogger(__name__)
_CHAINS = (("iptables", FORWARD, "DOCKER-USER"), ("iptables", INPUT, "INPUT"))
# Docker also publishes ports by IPv6: its own process takes these connections, and passes them on by IPv4.
_CHAINS_IPV6 = (("ip6tables", INPUT, "INPUT"),)
_COMMAND_TIMEOUT_S = 20.0
_CHECK_INTERVAL_S = 30.0


class FirewallError(Exception):
    """The firewall could not be built; the message says why."""


class Firewall:
    """The firewall of this node. `prefix` comes before each command, to run it in another network namespace."""

    def __init__(self, prefix: Sequence[str] = ()) -> None:
        self._prefix = tuple(prefix)

    def build(self, plan: Plan) -> None:
        """Build the planned rules. Idempotent. Raises FirewallError."""
        self._tables("iptables-restore", "--noflush", stdin=rules_of(plan))
        if self._has_ipv6():
            self._tables("ip6tables-restore", "--noflush", stdin=rules_of_ipv6(plan))
        for program, chain, hook in self._chains():
            jump = (hook, "-j", chain)
            if not self._is(program, "-C", *jump):
                self._tables(program, "-I", *jump)
            elif not self._is_first(program, hook, chain):
                self._tables(program, "-D", *jump)
                self._tables(program, "-I", *jump)

    def remove(self) -> None:
        """Remove all rules. Idempotent; missing rules are no error."""
        for program, chain, hook in self._chains():
            while self._is(program, "-D", hook, "-j", chain):
                pass
            if self._is(program, "-F", chain):
                self._is(program, "-X", chain)

    def exists(self) -> bool:
        """True if all chains exist and are used."""
        return all(self._is(program, "-C", hook, "-j", chain) for program, chain, hook in self._chains())

    def is_active(self) -> bool:
        """True if all chains exist, and no rule of another program comes before them."""
        return self.exists() and all(self._is_first(program, hook, chain) for program, chain, hook in self._chains())

    def _chains(self) -> tuple[tuple[str, str, str], ...]:
        return _CHAINS + _CHAINS_IPV6 if self._has_ipv6() else _CHAINS

    def _has_ipv6(self) -> bool:
        try:
            return bool(self._run("cat", "/proc/net/if_inet6"))
        except FirewallError:  # the kernel has no IPv6
            return False

    def _is_first(self, program: str, hook: str, chain: str) -> bool:
        listed = self._tables(program, "-S", hook).splitlines()
        return next((line for line in listed if line.startswith("-A")), "") == f"-A {hook} -j {chain}"

    def _is(self, program: str, *words: str) -> bool:
        try:
            self._tables(program, *words)
        except FirewallError:
            return False
        return True

    def _tables(self, program: str, *words: str, stdin: str = "") -> str:
        """Run one of the iptables programs; waits at most 10 s for another one that holds its lock."""
        return self._run(program, "--wait", "10", *words, stdin=stdin)

    def _run(self, *words: str, stdin: str = "") -> str:
        try:
            ended = subprocess.run(
                [*self._prefix, *words],
                input=stdin,
                capture_output=True,
                text=True,
                timeout=_COMMAND_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise FirewallError(f"{words[0]} cannot be run: {error}") from error
        if ended.returncode != 0:
            raise FirewallError(f"{' '.join(words)}: {ended.stderr.strip()[:300]}")
        return ended.stdout


class FirewallKeeper:
    """The firewall of this node. `fault` says why it is not active; None while it is active, or not requested."""

    def __init__(self, config: AgentConfig, folder: Path, firewall: Firewall | None = None) -> None:
        self._config, self._firewall = config, firewall or Firewall()
        self._file = folder / "reaches.json"
        self._allowed = read_state(self._file, tuple[str, ...], ())
        self._network = NodeNetwork()
        self._gateway: tuple[str, ...] = ()
        self._changed = asyncio.Event()
        self._active: Plan | None = None
        self.fault: Reason | None = None

    def allow_addresses(self, addresses: Collection[str]) -> None:
        """Set what containers may reach (`ADDRESS:PORT`), as set by the control plane."""
        wanted = tuple(addresses)
        if wanted != self._allowed:
            self._allowed = wanted
            save_state(self._file, wanted)
            self._changed.set()

    def set_network(self, network: NodeNetwork, gateway: Collection[str]) -> None:
        """Set the node's network, and the address of its container gateway (`ADDRESS:PORT`)."""
        self._network, self._gateway = network, tuple(gateway)
        self._changed.set()

    def check_soon(self) -> None:
        """Check now: another program may have removed the rules."""
        self._active = None
        self._changed.set()

    async def run(self) -> None:
        """Keep it active until cancelled; it stays active then."""
        while self._config.firewall:
            self._changed.clear()
            try:
                await asyncio.to_thread(self._build)
            except (FirewallError, OSError, ValueError) as error:
                if self.fault is None:
                    _log.error("the firewall around containers cannot be built: %s", error)
                self.fault = FirewallNotBuilt(error=str(error))
            else:
                self.fault = None
            with suppress(TimeoutError):
                async with asyncio.timeout(_CHECK_INTERVAL_S):
                    await self._changed.wait()

    def _build(self) -> None:
        allowed = (*self._allowed, *self._gateway)
        plan = plan_for(self._config.firewall_interfaces, self._config.site_networks, allowed, self._network)
        if plan != self._active or not self._firewall.is_active():
            self._firewall.build(plan)
            self._active = plan
            _log.info(
                "the firewall is active; containers may reach these addresses of the site: %s",
                ", ".join(allowed) or "none",
            )
