"""Runs the deployment of deploy/: images of this checkout, a Docker daemon in a network of its own, and its containers.
Nothing of it is reached from outside; `Host.visit` runs a program on that node."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from tests.contract.harness.dockerd import IMAGE, Dockerd, minimal_image
from tests.contract.harness.leftovers import unmount_below
from tests.contract.harness.made_once import forget_others, made_once
from tests.contract.harness.swarm import Node, Swarm

from commonage.link.certificate_authority import CertificateAuthority

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
TAG = "under-test"
_IMAGES = "deploy-"
ADMIN_PASSWORD = "a-long-password-for-the-admin-of-tests-only"
USERS_PASSWORD = "a-password-for-users"
# A session in the smallest image: it says where it runs and what it was given.
_SESSION = """#!/usr/bin/python3
import http.server, os, urllib.parse
where = urllib.parse.urlsplit(os.environ["JUPYTERHUB_SERVICE_URL"])
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        said = ("a session of " + os.environ["JUPYTERHUB_USER"] + " in " + os.uname().nodename).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)
http.server.ThreadingHTTPServer(("0.0.0.0", where.port), Page).serve_forever()
"""


def archives() -> Path:
    """The folder with both images as archives; built when something that goes into them has changed since."""
    sources = [*(ROOT / "requirements").iterdir(), ROOT / "pyproject.toml", ROOT / "package-lock.json"]
    sources += [path for folder in ("src", "deploy") for path in (ROOT / folder).rglob("*") if path.is_file()]
    digest = hashlib.sha256()
    for path in sorted(path for path in sources if "__pycache__" not in path.parts):
        digest.update(str(path).encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    name = f"{_IMAGES}{digest.hexdigest()[:16]}"
    folder = made_once(name, _build)
    forget_others(_IMAGES, folder)  # half a gigabyte for each earlier state of a checkout
    return folder


def _build(folder: Path, log: IO[bytes]) -> None:
    build = [DEPLOY / "image" / "build", "--tag", TAG, "--archives", folder]
    built = subprocess.run(build, stdout=log, stderr=log, check=False)
    if built.returncode != 0:
        raise AssertionError(f"{log.name}: {Path(os.fsdecode(log.name)).read_text()[-4000:]}")


def session_image() -> bytes:
    """The test image with something that answers as a session."""
    buffer = io.BytesIO(minimal_image())
    with tarfile.open(fileobj=buffer, mode="a") as archive:
        script = _SESSION.encode()
        info = tarfile.TarInfo("usr/bin/jupyterhub-singleuser")
        info.mode, info.size = 0o755, len(script)
        archive.addfile(info, io.BytesIO(script))
    return buffer.getvalue()


class Host:
    """A node with a Docker daemon that has our images, and what is deployed on it.

    `worker` is another one of its Swarm, which has the workloads' image alone; `shared` is a folder that both see.
    """

    def __init__(self, swarm: Swarm, images: Path) -> None:
        self.swarm, self._images = swarm, images
        self.node = swarm.manager
        [self.worker] = swarm.workers
        self.daemon = self.node.daemon
        self.data = self.daemon.folder / "site"  # next to the daemon's own files, and deleted with them
        self.shared = self.daemon.folder / "shared"
        self.shared.mkdir()
        self.accounts = self.daemon.folder / "accounts"
        self.passwords = self.daemon.folder / "passwords"
        self.passwords.touch(mode=0o600)
        self.passwords.write_text(f"admin={ADMIN_PASSWORD}\nusers={USERS_PASSWORD}\n")
        authority = CertificateAuthority.open(self.daemon.folder / "authority")
        self.trusted = self.daemon.folder / "trusted.crt"  # instead of the authorities of this machine
        self.trusted.write_text(authority.certificate)
        served = authority.serve(["localhost", "127.0.0.1"])
        self.provider_certificate = self.daemon.folder / "provider.pem"
        self.provider_certificate.write_text(served.cert_pem + served.key_pem)
        for image in ("commonage", "commonage-services"):
            self.load(self.daemon, image)

    def load(self, daemon: Dockerd, image: str) -> None:
        load = ["docker", "-H", daemon.url, "load", "--quiet", "--input", str(self._images / f"{image}.tar")]
        subprocess.run(load, check=True, capture_output=True)

    @property
    def variables(self) -> dict[str, str]:
        """Variables of the compose file's .env, and of Docker's own programs to find the daemon."""
        return {
            "DOCKER_HOST": self.daemon.url,
            "COMMONAGE_SITE": "localhost",
            "COMMONAGE_SESSION_HOST": "*.localhost",
            "COMMONAGE_TAG": TAG,
            "COMMONAGE_DATA_DIR": str(self.data),
            "COMMONAGE_PASSWORDS": str(self.passwords),
            "COMMONAGE_CA_BUNDLE": str(self.trusted),
            "COMMONAGE_ACCOUNTS": str(self.accounts),
            "COMMONAGE_CERTIFICATES": str(self.daemon.folder / "certificates"),
            "COMMONAGE_DOCKER_RUN": str(self.daemon.folder),
            "COMMONAGE_DOCKER_IMAGE": IMAGE,
            "COMMONAGE_GPUS": "simulated:1x8GiB",
            "COMMONAGE_SHARED_DIR": str(self.shared),
        }

    def agent_on(self, node: Node, token: str) -> None:
        """Have an agent in a container on one of the nodes, which joins with this token."""
        self.load(node.daemon, "commonage")
        folder = node.daemon.folder
        file = folder / "agent-token"
        file.touch(mode=0o600)
        file.write_text(token)
        there = {
            "DOCKER_HOST": node.daemon.url,
            "COMMONAGE_DOCKER_RUN": str(folder),
            "COMMONAGE_DOCKER_ROOT": str(folder / "data"),
            "COMMONAGE_DOCKER_CERTIFICATES": str(folder / "certs.d"),
            "COMMONAGE_AGENT_TOKEN": str(file),
        }
        agent = str(DEPLOY / "compose" / "agent.yaml")
        self.run("docker-compose", "-f", agent, "-p", "agent", "up", "--detach", **there)

    def compose(self, *words: str, more: tuple[str, ...] = ()) -> str:
        """Run docker-compose on the compose file and these `more`; what it says. Fails when it does."""
        named = [word for file in ("compose.yaml", *more) for word in ("-f", str(DEPLOY / "compose" / file))]
        return self.run("docker-compose", *named, "-p", "site", *words)

    def stack(self, *files: str, **variables: str) -> None:
        """Deploy these files of the stack. The daemon goes about it by itself."""
        named = [word for file in files for word in ("-c", str(DEPLOY / "swarm" / file))]
        self.run("docker", "stack", "deploy", "--resolve-image", "never", *named, "site", **variables)

    def run(self, *command: str, **variables: str) -> str:
        """Run a Docker program against this daemon, with these additional variables."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("COMMONAGE_")}
        all_of_them: Mapping[str, str] = kept | self.variables | variables
        ran = subprocess.run(command, env=all_of_them, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, f"{command}: {ran.stdout[-2000:]}{ran.stderr[-4000:]}"
        return ran.stdout

    def visit(self, what: str, *words: str) -> Any:
        """Have `tests.integration.visiting` do something on that node; its answer."""
        command = [*self.node.inside(), sys.executable, "-m", "tests.integration.visiting", what, *words]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("COMMONAGE_")}
        environment = kept | {"SSL_CERT_FILE": str(self.certificate)} if self.certificate.exists() else kept
        ran = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, f"{what}: {ran.stdout[-2000:]}{ran.stderr[-4000:]}"
        return json.loads(ran.stdout.splitlines()[-1])

    @property
    def certificate(self) -> Path:
        return self.daemon.folder / "data/volumes/hub-caddy/_data/pki/authorities/local/root.crt"

    def states(self, label: str) -> dict[str, str]:
        """Each service with this label: its container's state in a word, `healthy` where it is checked."""
        found = {}
        for one in self.daemon.containers(label=[label]):
            try:
                state = self.daemon.ask("GET", f"/containers/{one['Id']}/json")["State"]
            except RuntimeError:  # it went meanwhile
                continue
            if state["Status"] != "exited":
                found[one["Labels"][label]] = state.get("Health", {}).get("Status", state["Status"])
        return found


@contextmanager
def host() -> Iterator[Host]:
    """A node with our images, the manager of a Swarm of two; all that is on them is removed in the end."""
    images = archives()
    mounts = Path("/run/commonage")
    mounts.mkdir(exist_ok=True)
    _make_shared_mount(mounts)
    swarm = Swarm(1, vram_mib=0, arguments=("--live-restore=false",))
    made = None
    try:
        swarm.start(session_image())
        made = Host(swarm, images)
        _make_shared_mount(made.shared)
        yield made
    finally:
        swarm.remove_services()
        for node in swarm.machines.values():
            with suppress(OSError, RuntimeError):
                node.daemon.remove_containers()  # they keep what is mounted in the shared folder
        if made is not None:
            unmount_below(made.shared)
        swarm.remove()
        unmount_below(mounts)


def _make_shared_mount(folder: Path) -> None:
    """As systemd has every folder: the node sees what a container mounts there, and the other way round."""
    for words in (("--bind", str(folder), str(folder)), ("--make-shared", str(folder))):
        subprocess.run(["mount", *words], check=True)
