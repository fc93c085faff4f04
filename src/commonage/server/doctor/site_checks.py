"""The checks of `commonage doctor` on an appliance: its engine, its link and its clock. They change nothing."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from pathlib import Path

from commonage.domain.errors import CommonageError
from commonage.link.messages import RENEW_BEFORE_S
from commonage.link.sites.credentials import NotJoined, SiteCredentials, SiteIdentity
from commonage.link.sites.dialer import SiteRefused, probe
from commonage.link.sites.messages.hello import MAX_CLOCK_OFFSET_S, SiteWelcome
from commonage.server.commands.site_join import FOLDER
from commonage.server.data_dir import DataDirError, running_server
from commonage.server.doctor import checks
from commonage.server.doctor.checks import Finding, Outcome
from commonage.server.settings.settings import Settings
from commonage.site_agent.network import KeptNetwork

_DAY_S = 86_400.0
_REGISTRY_TIMEOUT_S = 5.0
_JOIN = (
    "make a token on the control plane (`commonage site token NAME`), and run: commonage site join --token-file FILE"
)


def is_appliance(settings: Settings) -> bool:
    """True if this machine has joined, or begun to join, as a site with this data folder."""
    folder = settings.data_dir / FOLDER
    return any((folder / name).exists() for name in ("identity.json", "joining.key"))


def examine_site(settings: Settings) -> list[Finding]:
    """Run all checks, in order."""
    outcomes = {name: check(settings) for name, check in checks.OF_EVERY_MACHINE.items()}
    outcomes["engine"] = checks.cgroups(settings) if settings.engine == "process" else checks.container_engine(settings)
    outcomes |= _link_and_clock(settings.data_dir / FOLDER)
    if settings.engine != "process":
        outcomes["registry"] = _registry(settings)
    outcomes["site agent"] = _agent(settings)
    return [Finding(name, *outcome) for name, outcome in outcomes.items()]


def _link_and_clock(folder: Path) -> dict[str, Outcome]:
    try:
        identity = SiteCredentials(folder).identity()
    except NotJoined as error:
        return {"site": Outcome("bad", error.message, _JOIN)}
    link, welcome = _link(identity)
    return {"site": _identity(identity), "link": link, "clock": _clock(welcome)}


def _identity(identity: SiteIdentity) -> Outcome:
    left_s = identity.until - time.time()
    if left_s <= 0:
        return Outcome("bad", f"the certificate of the site {identity.site} has expired", _JOIN)
    found = f"this machine is the site {identity.site}; its certificate is valid for {left_s / _DAY_S:.0f} days"
    if left_s < RENEW_BEFORE_S / 2:
        return Outcome("note", found, "the site agent renews it over the link: check the link")
    return Outcome("ok", found)


def _link(identity: SiteIdentity) -> tuple[Outcome, SiteWelcome | None]:
    """Ask at each address until one answers."""
    failed = []
    for address in identity.addresses:
        try:
            welcome = asyncio.run(probe(identity, address))
        except SiteRefused as error:
            advice = "" if "join" in error.message or "upgrade" in error.message else _JOIN
            return Outcome("bad", f"the control plane at {address} refuses this site: {error.message}", advice), None
        except CommonageError as error:
            failed.append(error.message)
        else:
            return Outcome(
                "ok", f"the control plane at {address} admits this site (version {welcome.version})"
            ), welcome
    advice = "check that the control plane runs, and that this network lets TLS out to its port"
    return Outcome("bad", "; ".join(failed), advice), None


def _clock(welcome: SiteWelcome | None) -> Outcome:
    if welcome is None:
        return Outcome("note", "not compared with the control plane's: there is no link")
    ahead_s = -welcome.clock_offset_s
    if abs(ahead_s) > MAX_CLOCK_OFFSET_S:
        found = f"the clock here is {abs(ahead_s):.1f} s {'ahead of' if ahead_s > 0 else 'behind'} the control plane's"
        return Outcome("bad", found, "run an NTP client on both machines")
    return Outcome("ok", "the clock agrees with the control plane's")


def _registry(settings: Settings) -> Outcome:
    """Can the Docker daemon here, or the cluster, pull images from the control plane's registry?"""
    folder = settings.data_dir / FOLDER
    network, credentials = KeptNetwork(folder).read(), SiteCredentials(folder)
    if network is None:
        return Outcome("note", "not known before the first link")
    if not network.registry:
        return Outcome("ok", "the control plane has no registry")
    if settings.engine == "kubernetes":
        return _registry_of_cluster(settings, network.registry)
    host, _, port = network.registry.rpartition(":")
    try:
        context = ssl.create_default_context(cadata=credentials.identity().authority)
        with (
            socket.create_connection((host.strip("[]"), int(port)), _REGISTRY_TIMEOUT_S) as connection,
            context.wrap_socket(connection, server_hostname=host.strip("[]")),
        ):
            pass
    except (OSError, NotJoined) as error:
        found = f"the control plane's registry {network.registry} cannot be reached: {error}"
        return Outcome("bad", found, "let this machine connect to it, or load images here with `docker load`")
    place = checks.TRUSTED / network.registry / "ca.crt"
    if not place.exists():
        advice = f"as root: install -D -m 644 {credentials.authority} {place}"
        return Outcome("note", f"Docker on this machine may not trust the registry {network.registry}", advice)
    return Outcome("ok", f"the control plane's registry {network.registry} can be reached, and Docker trusts it")


def _registry_of_cluster(settings: Settings, registry: str) -> Outcome:
    """The nodes pull, so only the account can be checked from here."""
    if secrets := settings.kubernetes_pull_secrets:
        return Outcome("ok", f"Pods may pull from {registry} with the accounts of {', '.join(secrets)}")
    found = f"the cluster has no account for the control plane's registry {registry}"
    advice = "push the images to a registry of the cluster, or set kubernetes_pull_secrets"
    return Outcome("note", found, advice)


def _agent(settings: Settings) -> Outcome:
    try:
        running = running_server(settings.data_dir)
    except DataDirError as error:
        return Outcome("bad", str(error))
    if running is None:
        advice = f"start it: commonage site agent --data-dir {settings.data_dir}"
        return Outcome("bad", f"not running on {settings.data_dir}", advice)
    return Outcome("ok", f"process {running.pid}; its log is {settings.data_dir / 'logs' / 'server.log'}")
