"""For tests of a whole site: `commonage up` with hub, proxy and registry on the manager of a real Swarm, real agents on
its workers. Users sign in and start sessions at the hub.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx2
from tests.acceptance.served import Served, served
from tests.contract.harness.agents import AgentProgram, make_config
from tests.contract.harness.dockerd import IMAGE, new_folder
from tests.contract.harness.leftovers import trusted_by_docker
from tests.contract.harness.small_session import session_image
from tests.contract.harness.swarm import MANAGER, Swarm, doorway, swarm_of
from tests.fakes.waiting import wait_until
from tests.integration.registry_site import buildah_store, forget_store

from commonage.link.certificate_authority import CertificateAuthority
from commonage.ports.registry import machine_user
from commonage.sdk import Client
from commonage.server.processes.ports import free_port
from commonage.wire.workloads import SubmitIn, WorkloadOut

WORKERS = ("worker1", "worker2")
DEVICE = "24GiB"
_AGENTS_PORT = 8444
_VOLUMES = """
[[volumes]]
name = "results"
kind = "docker"
per = "user"
size = "1GiB"

[[volumes]]
name = "projects"
source = "{shared}/projects/{{user}}"
mode = "rw"

[[volumes]]
name = "datasets"
source = "{shared}/datasets"
"""


class SwarmSite:
    def __init__(self, swarm: Swarm, server: Served, registry: str) -> None:
        self.swarm, self.server, self.registry = swarm, server, registry
        self.agents: dict[str, AgentProgram] = {}
        self._clients: dict[str, Client] = {}
        self._browsers: dict[str, httpx2.Client] = {}

    # --- its nodes -------------------------------------------------------------------------------------------------

    def start_agent(self, folder: Path, name: str) -> None:
        """The files that joining leaves on a node."""
        node, data = self.swarm.machines[name], self.server.data
        logins, authority = folder / name / "docker.json", CertificateAuthority.open(data / "authority")
        config = make_config(
            folder / name,
            authority,
            name,
            _AGENTS_PORT,
            node_id=self.swarm.node_id(name),
            control=(f"{self.swarm.manager.address}:{_AGENTS_PORT}",),
            docker=node.daemon.url,
            docker_config=str(logins),
            gpus=f"simulated:1x{DEVICE}",
            fence_after_s=2.0,
            firewall=True,
        )
        admitted = authority.admit(Path(config.request).read_text(), name, self.swarm.node_id(name))
        Path(config.certificate).write_text(admitted.certificate)
        known = base64.b64encode(f"{machine_user(name)}:{admitted.account}".encode()).decode()
        logins.write_text(json.dumps({"auths": {self.registry: {"auth": known}}}))
        self.agents[name] = AgentProgram(folder / name, config, before=node.inside())

    def use(self, *names: str) -> None:
        admin = self.admin
        for one in (MANAGER, *WORKERS):
            if one in names:
                admin.resume("local", one)
            else:
                admin.drain("local", one)

    # --- its people ---------------------------------------------------------------------------------------------------

    @property
    def admin(self) -> Client:
        if "admin" not in self._clients:
            self._clients["admin"] = self.server.client("admin", "--admin")
        return self._clients["admin"]

    def client(self, user: str) -> Client:
        if user not in self._clients:
            self._clients[user] = self.server.client(user)
        return self._clients[user]

    def browser(self, user: str) -> httpx2.Client:
        if user not in self._browsers:
            self.server.hub("POST", f"/users/{user}")
            made = self.server.hub("POST", f"/users/{user}/tokens", json={"note": "test", "expires_in": 3600})
            headers = {"Authorization": f"token {made.json()['token']}"}
            self._browsers[user] = httpx2.Client(base_url=self.server.url, headers=headers, timeout=60, trust_env=False)
        return self._browsers[user]

    def at_session(self, user: str, method: str, path: str, **options: Any) -> httpx2.Response:
        """The answer of the user's own session, at its host name, for a path below its address."""
        name = {"Host": f"{user}.localhost:{self.server.port}"}
        return self.browser(user).request(method, f"/user/{user}/{path}", headers=name, **options)

    def ask(self, user: str, **options: Any) -> httpx2.Response:
        small = {"cpus": "0.1", "memory": "64MiB"}
        return self.browser(user).post(f"/hub/api/users/{user}/server", json={**small, **options})

    def session(self, user: str, **options: Any) -> WorkloadOut:
        asked = self.ask(user, **options)
        assert asked.status_code in (201, 202), asked.text
        wait_until(lambda: self.is_ready(user), within_s=120)
        return self.live(user)[0]

    def is_ready(self, user: str) -> bool:
        return bool(self.browser(user).get(f"/hub/api/users/{user}").json()["servers"].get("", {}).get("ready"))

    def live(self, user: str) -> list[WorkloadOut]:
        states = ["held", "queued", "starting", "running"]
        return list(self.client(user).workloads(kind="session", owner=user, state=states))

    def says(self, user: str) -> Any:
        """The answer of the user's session through the proxy; None while it does not answer."""
        answer = self.at_session(user, "GET", "api")
        return answer.json() if answer.status_code == 200 and "workload" in answer.text else None

    def runs(self, user: str, job: str) -> None:
        client = self.client(user)
        try:
            wait_until(lambda: client.workload(job).state not in ("queued", "starting"), within_s=90)
        finally:
            found = client.workload(job)
            told = [one.reason.message for one in client.event_page(job).items]
            assert found.state == "running", f"{found.state}: {found.reason}: {told}"

    def run(self, user: str, node: str, script: str, **fields: Any) -> list[str]:
        ask = SubmitIn(command=["sh", "-c", script], on={"node": node}, memory_mib=64, cpus="0.1", **fields)
        client = self.client(user)
        job = client.submit(ask).workload
        ended = client.wait(job.id, timeout_s=120)
        said = [line.text for line in client.logs(job.id)]
        assert ended.state == "succeeded", f"{ended.reason}: {said}"
        return said

    def close(self) -> None:
        for one in (*self._clients.values(), *self._browsers.values()):
            one.close()
        for agent in self.agents.values():
            agent.close()


@contextmanager
def swarm_site() -> Iterator[SwarmSite]:
    """All of it, with both workers ready and the manager taking no work."""
    with ExitStack() as closing:
        swarm = closing.enter_context(swarm_of(len(WORKERS), session_image(), arguments=["--no-new-privileges"]))
        folder, port, registry_port = new_folder(), free_port(), free_port()
        closing.callback(shutil.rmtree, folder, ignore_errors=True)
        closing.callback(forget_store, folder)
        (folder / "shared").mkdir()
        (folder / "volumes" / "datasets").mkdir(parents=True)
        (folder / "volumes" / "datasets" / "one.csv").write_text("1,2\n")
        (folder / "commonage.toml").write_text(_VOLUMES.format(shared=folder / "volumes"))
        manager = swarm.manager
        variables = {
            "COMMONAGE_BIND": "0.0.0.0",
            "COMMONAGE_DOCKER_URL": manager.daemon.url,
            "COMMONAGE_DOCKER_IMAGE": IMAGE,
            "COMMONAGE_SHARED_DIR": str(folder / "shared"),
            "COMMONAGE_REGISTRY": "true",
            "COMMONAGE_REGISTRY_BIND": manager.address,
            "COMMONAGE_REGISTRY_PORT": str(registry_port),
            "COMMONAGE_PREPULL": "false",
            **buildah_store(folder),
        }
        closing.enter_context(doorway(manager.space, port))
        server = closing.enter_context(
            served(folder, "--engine", "swarm", before=manager.inside(), variables=variables, port=port)
        )
        site = SwarmSite(swarm, server, f"{manager.address}:{registry_port}")
        closing.callback(site.close)
        certificate = CertificateAuthority.open(server.data / "authority").certificate
        closing.enter_context(trusted_by_docker(site.registry, certificate))
        for name in WORKERS:
            site.start_agent(folder / "agents", name)
        wait_until(
            lambda: {one.name for one in site.admin.nodes() if one.devices and one.state == "ready"} == set(WORKERS)
        )
        site.use(*WORKERS)
        yield site


def push_image(server: Served, name: str) -> str:
    """Push the test image to the site's registry and catalogue under this name. Returns the reference.

    The server's variables say where buildah keeps images.
    """
    folder = server.folder / "build"
    folder.mkdir()
    (folder / "root.tar").write_bytes(session_image())
    (folder / "Containerfile").write_text("FROM scratch\nADD root.tar /\nENV PATH=/usr/bin\n")
    words = ["buildah", "bud", "--quiet", "--tag", f"localhost/{name}", str(folder)]
    built = subprocess.run(words, env={**os.environ, **server.variables}, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    done = server.cli("image", "push", name, token=server.token("admin", "--admin"))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()
