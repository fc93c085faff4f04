"""`commonage up --domain`: HTTPS by Caddy, with certificates from an ACME server on this machine.

Names come from a hosts file in a mount namespace, because no DNS is here. The ACME server is a second Caddy, which
checks names at port 80 or 443 as a public one does.
"""

import asyncio
import json
import random
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import aiohttp
import httpx2
import psutil
import pytest
from aiohttp.abc import AbstractResolver, ResolveResult
from tests.acceptance.browser import await_live, chromium, go, new_page, sign_in
from tests.acceptance.kernel import run_notebook
from tests.acceptance.served import USERS_PASSWORD, Served, served
from tests.fakes.waiting import wait_until

from commonage.server.processes.ports import free_port
from commonage.wire.hub import API_PATH

# An address of the loopback of its own: ports 80 and 443 of 127.0.0.1 may be in use.
ADDRESS = f"127.77.{random.randrange(256)}.{random.randrange(1, 255)}"
DOMAIN, CA = "gpu.example.test", "ca.example.test"
EXAMPLES = Path(__file__).parents[2] / "examples"
WITH_NAMES = ("unshare", "--mount", "sh", "-c", 'mount --bind hosts /etc/hosts && exec "$@"', "sh")

pytestmark = [
    pytest.mark.needs("mounts", "root"),
    pytest.mark.timeout(600),
    pytest.mark.allow_hosts([ADDRESS, "127.0.0.1", "::1", "localhost"]),
]


class Names(AbstractResolver):
    """Leads every name to the installation."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        return [{"hostname": host, "host": ADDRESS, "port": port, "family": family, "proto": 0, "flags": 0}]

    async def close(self) -> None: ...


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("https")
    names = (DOMAIN, CA, *(f"{user}.{DOMAIN}" for user in ("alice", "bob")))
    (made / "hosts").write_text("127.0.0.1 localhost\n" + "".join(f"{ADDRESS} {name}\n" for name in names))
    return made


@pytest.fixture(scope="module")
def acme(folder: Path) -> Iterator[dict[str, str]]:
    """The settings that lead to an ACME server."""
    port = free_port()
    serves = {"handler": "acme_server", "ca": "local"}
    server = {
        "listen": [f"{ADDRESS}:{port}"],
        "routes": [{"match": [{"host": [CA]}], "handle": [serves]}],
        "automatic_https": {"disable": True},
        "tls_connection_policies": [{}],
    }
    settings = {
        "admin": {"disabled": True},
        "storage": {"module": "file_system", "root": str(folder / "ca")},
        "apps": {
            "pki": {"certificate_authorities": {"local": {"install_trust": False}}},
            "tls": {
                "certificates": {"automate": [CA]},
                "automation": {"policies": [{"issuers": [{"module": "internal"}]}]},
            },
            "http": {"servers": {"acme": server}},
        },
    }
    (folder / "ca.json").write_text(json.dumps(settings))
    program = Path(sys.executable).with_name("caddy")
    with (folder / "ca.log").open("wb") as log:
        process = subprocess.Popen(
            [*WITH_NAMES, program, "run", "--config", "ca.json"], cwd=folder, stdout=log, stderr=log
        )
    root = folder / "ca" / "pki" / "authorities" / "local" / "root.crt"
    try:
        wait_until(root.exists)
        yield {"COMMONAGE_ACME_URL": f"https://{CA}:{port}/acme/local/directory", "COMMONAGE_ACME_ROOT": str(root)}
    finally:
        process.terminate()
        process.wait(10)


@pytest.fixture(scope="module")
def here(folder: Path, acme: dict[str, str]) -> Iterator[Served]:
    flags = ("--domain", DOMAIN, "--https-bind", ADDRESS, "--gpus", "simulated:1x24GiB")
    variables = {**acme, "COMMONAGE_MAX_REQUEST": "70MiB"}
    with served(folder, *flags, before=WITH_NAMES, variables=variables) as made:
        yield made


@pytest.fixture(scope="module")
def trusting(here: Served, acme: dict[str, str]) -> ssl.SSLContext:
    """Trusts the ACME server's authority, and none else."""
    return ssl.create_default_context(cafile=acme["COMMONAGE_ACME_ROOT"])


def ask(context: ssl.SSLContext, method: str, path: str, name: str = DOMAIN, **options: Any) -> httpx2.Response:
    """A request over HTTPS, whose certificate has to be for the name."""
    headers = {"Host": name, **options.pop("headers", {})}
    with httpx2.Client(verify=context, trust_env=False, timeout=60) as client:
        url = f"https://{ADDRESS}{path}"
        return client.request(method, url, headers=headers, extensions={"sni_hostname": name}, **options)


def answers(context: ssl.SSLContext, path: str, name: str = DOMAIN, **options: Any) -> bool:
    with suppress(httpx2.TransportError):
        return bool(ask(context, "GET", path, name, **options).is_success)
    return False


def test_the_name_has_a_certificate_and_http_leads_to_it(here: Served, trusting: ssl.SSLContext) -> None:
    answer = ask(trusting, "GET", f"{API_PATH}/health")
    assert answer.status_code == 200
    assert answer.headers["Strict-Transport-Security"] == "max-age=31536000"
    assert "Server" not in answer.headers
    for host in (DOMAIN, f"alice.{DOMAIN}"):
        led = httpx2.get(f"http://{ADDRESS}/hub/login?next=x", headers={"Host": host}, trust_env=False, timeout=60)
        assert (led.status_code, led.headers["Location"]) == (308, f"https://{host}/hub/login?next=x")
    elsewhere = httpx2.get(f"http://{ADDRESS}/x", headers={"Host": "evil.example"}, trust_env=False, timeout=60)
    assert elsewhere.headers["Location"] == f"https://{DOMAIN}/x"
    assert ask(trusting, "GET", "/", headers={"Host": "evil.example"}).status_code == 421
    assert f"https://{DOMAIN}/" in here.output
    assert f"do not resolve on this machine: *.{DOMAIN}" in here.output


def test_a_too_large_request_is_refused(here: Served, trusting: ssl.SSLContext) -> None:
    large = ask(trusting, "GET", "/hub/login", headers={"X-Large": "x" * 80_000})
    assert large.status_code == 431

    def body() -> Iterator[bytes]:
        for _ in range(71):
            yield bytes(1024 * 1024)

    announced = f"POST /hub/login HTTP/1.1\r\nHost: {DOMAIN}\r\nContent-Length: {71 << 20}\r\nConnection: close\r\n\r\n"
    with (
        socket.create_connection((ADDRESS, 443), timeout=60) as plain,
        trusting.wrap_socket(plain, server_hostname=DOMAIN) as connection,
    ):
        connection.sendall(announced.encode())
        answer = connection.recv(65536)
    assert answer.startswith(b"HTTP/1.1 413 ") and b"larger than 70 MiB" in answer
    upload = f"{API_PATH}/bundles"
    token = here.token("bob")
    streamed = ask(trusting, "POST", upload, content=body(), headers={"Authorization": f"Bearer {token}"})
    assert streamed.status_code == 413


def test_events_arrive_one_by_one(here: Served, trusting: ssl.SSLContext) -> None:
    token, go_on = here.token("bob"), here.folder / "go-on"
    says = f"echo first; until [ -e {go_on} ]; do sleep 0.1; done; echo second"
    made = here.cli("run", "--detach", "--json", "--no-files", "--", "sh", "-c", says, token=token)
    job = json.loads(made.stdout)["id"]
    with httpx2.Client(verify=trusting, trust_env=False, timeout=120) as client:
        url = f"https://{ADDRESS}{API_PATH}/workloads/{job}/logs?follow=true"
        headers = {"Host": DOMAIN, "Authorization": f"Bearer {token}", "Accept": "text/event-stream"}
        with client.stream("GET", url, headers=headers, extensions={"sni_hostname": DOMAIN}) as answer:
            lines = (line for line in answer.iter_lines() if line.startswith("data:"))
            # A buffer would hold this line until the job ends, and the job waits for the file.
            assert "first" in next(lines)
            go_on.touch()
            assert "second" in next(lines)


def test_a_notebook_computes_at_the_name_of_its_user(here: Served, trusting: ssl.SSLContext) -> None:
    options = {"environment": "notebook", "cpus": "0.5", "memory": "1GiB"}
    with here.client("alice") as alice:
        asked = here.hub("POST", "/users/alice/server", json=options)
        assert asked.status_code in (201, 202), asked.text
        session = wait_until(lambda: list(alice.workloads(kind="session", state=["running"])), within_s=300)[0]
    assert session.url == f"https://alice.{DOMAIN}/user/alice/"
    token = str(here.hub("POST", "/users/alice/tokens", json={"note": "test", "expires_in": 3600}).json()["token"])
    headers = {"Authorization": f"token {token}"}
    # The first connection makes Caddy get the certificate of this name.
    wait_until(lambda: answers(trusting, "/user/alice/api/status", f"alice.{DOMAIN}", headers=headers), within_s=120)

    async def in_the_kernel() -> list[str]:
        connector = aiohttp.TCPConnector(resolver=Names(), ssl=trusting)
        return await run_notebook(session.url, token, EXAMPLES / "digits.ipynb", connector)

    assert any("accuracy" in text for text in asyncio.run(in_the_kernel()))


def test_no_certificate_is_requested_for_an_invented_name(here: Served, trusting: ssl.SSLContext) -> None:
    with pytest.raises(httpx2.TransportError):
        ask(trusting, "GET", "/", f"nobody-has-this.{DOMAIN}")
    stored = [path.name for path in (here.data / "https").rglob("*.crt")]
    assert f"{DOMAIN}.crt" in stored
    assert not [name for name in stored if "nobody" in name]


@pytest.mark.needs("chromium")
def test_people_sign_in_and_see_live_pages(here: Served, trusting: ssl.SSLContext) -> None:
    assert trusting
    with chromium(f"--host-resolver-rules=MAP * {ADDRESS}") as browser:
        # The authority of the tests is in no store that Chromium reads.
        context = browser.new_context(base_url=f"http://{DOMAIN}", ignore_https_errors=True)
        with closing(context):
            page, problems = new_page(context)
            sign_in(page, "alice", USERS_PASSWORD)
            assert page.url.startswith(f"https://{DOMAIN}/")
            go(page, "workloads")
            await_live(page)
            assert problems.found == []
            cookies = {one["name"]: one for one in context.cookies()}
    assert all(one["secure"] for one in cookies.values()), cookies


def test_caddy_is_restarted(here: Served, trusting: ssl.SSLContext) -> None:
    assert here.process is not None
    [caddy] = [child for child in psutil.Process(here.process.pid).children() if child.name() == "caddy"]
    caddy.kill()
    wait_until(lambda: answers(trusting, f"{API_PATH}/health"))
