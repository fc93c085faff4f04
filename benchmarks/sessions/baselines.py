"""The baselines of `sessions` and `swarm-share`: JupyterHub with a common spawner in its usual configuration.

Each is a process of its own on loopback, with a token for the measuring.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.report import BenchmarkError
from commonage.server.processes.ports import free_port

TOKEN = "0" * 64  # of a short-lived hub on loopback
_COMMON = """
c.JupyterHub.bind_url = "http://127.0.0.1:{port}"
c.JupyterHub.db_url = "sqlite:///{folder}/jupyterhub.sqlite"
c.JupyterHub.cookie_secret_file = "{folder}/cookie_secret"
c.JupyterHub.authenticator_class = "dummy"
c.Authenticator.allow_all = True
c.Spawner.http_timeout = 300
c.Spawner.start_timeout = 300
c.JupyterHub.concurrent_spawn_limit = 100
c.JupyterHub.proxy_class = "traefik_file"
c.TraefikFileProviderProxy.dynamic_config_file = "{folder}/rules.toml"
c.TraefikFileProviderProxy.static_config_file = "{folder}/traefik.toml"
c.TraefikFileProviderProxy.traefik_api_url = "http://127.0.0.1:{api_port}"
c.JupyterHub.services = [{{"name": "bench", "api_token": "{token}"}}]
c.JupyterHub.load_roles = [{{"name": "bench", "scopes": ["admin:users", "admin:servers"], "services": ["bench"]}}]
"""
LOCAL = """
c.JupyterHub.hub_bind_url = "http://127.0.0.1:{hub_port}"
c.JupyterHub.spawner_class = "simple"
c.SimpleLocalProcessSpawner.home_dir_template = "{folder}/homes/{{username}}"
c.Spawner.cmd = ["{python}", "-m", "jupyterhub.singleuser", "--allow-root"]
"""
"""JupyterHub's own local spawner; `python` is the interpreter of the sessions."""

DOCKER = """
c.JupyterHub.spawner_class = "docker"
c.JupyterHub.hub_bind_url = "http://{reach}:{hub_port}"
c.JupyterHub.hub_connect_url = "http://{reach}:{hub_port}"
c.DockerSpawner.client_kwargs = {{"base_url": "{docker_url}"}}
c.DockerSpawner.image = "{image}"
c.DockerSpawner.use_internal_ip = True
c.DockerSpawner.network_name = "{network}"
c.DockerSpawner.name_template = "baseline-{{username}}"
c.DockerSpawner.notebook_dir = "/tmp"
c.DockerSpawner.remove = True
c.Spawner.cmd = ["jupyterhub-singleuser", "--allow-root", "--ip=0.0.0.0"]
"""
"""DockerSpawner on the daemon at `docker_url`, whose containers reach this machine at `reach`."""

SWARM = '''
import docker
from dockerspawner import SwarmSpawner


class HostPorts(SwarmSpawner):
    """SwarmSpawner with host ports: a hub outside of the Swarm cannot reach the overlay network."""

    async def create_object(self):
        # Everything but the port mode is SwarmSpawner's default.
        self.extra_endpoint_spec = {{
            "mode": "dnsrr",
            "ports": [{{"Protocol": "tcp", "TargetPort": self.port, "PublishMode": "host"}}],
        }}
        return await super().create_object()

    async def get_ip_and_port(self):
        task = await self.get_task()
        node = await self.docker("inspect_node", task["NodeID"])
        return node["Status"]["Addr"], task["Status"]["PortStatus"]["Ports"][0]["PublishedPort"]


c.JupyterHub.spawner_class = HostPorts
c.JupyterHub.hub_bind_url = "http://{reach}:{hub_port}"
c.JupyterHub.hub_connect_url = "http://{reach}:{hub_port}"
c.DockerSpawner.client_kwargs = {{"base_url": "{docker_url}"}}
c.DockerSpawner.image = "{image}"
c.DockerSpawner.use_internal_ip = False
c.DockerSpawner.network_name = "{network}"
c.DockerSpawner.name_template = "baseline-{{username}}"
c.DockerSpawner.notebook_dir = "/tmp"
c.Spawner.cmd = ["jupyterhub-singleuser", "--allow-root", "--ip=0.0.0.0"]
c.SwarmSpawner.extra_placement_spec = {{"constraints": {constraints}}}
'''
"""SwarmSpawner on the Swarm of the daemon at `docker_url`, whose nodes reach this machine at `reach`.

`constraints`: on which of them it may run.
"""


@dataclass(frozen=True, slots=True)
class Hub:
    """A hub to measure: the address and token of its API, and the body of a session request."""

    api: str
    token: str
    options: dict[str, Any] = field(default_factory=dict)


@contextlib.contextmanager
def jupyterhub(folder: Path, spawner: str, **names: object) -> Iterator[Hub]:
    """JupyterHub with this spawner configuration, formatted with `names`; stopped when the context ends."""
    folder.mkdir()
    port, hub_port, api_port = free_port(), free_port(), free_port()
    values = {"port": port, "hub_port": hub_port, "api_port": api_port, "folder": folder, "token": TOKEN, **names}
    config = folder / "jupyterhub_config.py"
    config.write_text((_COMMON + spawner).format(**values))
    with (folder / "jupyterhub.log").open("wb") as log:
        argv = [sys.executable, "-m", "jupyterhub", "-f", str(config)]
        programs = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}  # traefik is there
        process = subprocess.Popen(
            argv, stdout=log, stderr=subprocess.STDOUT, cwd=folder, start_new_session=True, env=programs
        )
        try:
            _await_running(folder / "jupyterhub.log", process)
            yield Hub(f"http://127.0.0.1:{port}/hub/api", TOKEN)
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
            process.kill()
            process.wait()


def _await_running(log: Path, process: subprocess.Popen[bytes]) -> None:
    give_up = time.monotonic() + 60
    while "JupyterHub is now running" not in log.read_text():
        if process.poll() is not None or time.monotonic() > give_up:
            raise BenchmarkError(f"the baseline does not start:\n{log.read_text()[-2000:]}")
        time.sleep(0.1)
    time.sleep(1.0)
