"""The platform as a release of Helm, and the ways to it that people and tests have."""

from __future__ import annotations

import base64
import json
import os
import secrets
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import helm_python
import httpx2
import pytest
from tests.fakes.waiting import wait_until
from tests.kubernetes.conftest import PREFIX
from tests.kubernetes.kubectl import Kubectl

from commonage.wire.hub import API_PATH

IMAGES = os.environ.get("COMMONAGE_TEST_PLATFORM_IMAGES", "").split()
"""NAME:TAG of the two images of deploy/image/build, and of one with JupyterLab. The nodes have all three."""
NEEDS_IMAGES = [
    pytest.mark.timeout(900),
    pytest.mark.needs("chromium"),
    pytest.mark.skipif(len(IMAGES) != 3, reason="COMMONAGE_TEST_PLATFORM_IMAGES does not name three images"),
]
CHART = Path(__file__).parents[2] / "deploy" / "helm" / "commonage"
NAME = "commonage"
PARTS = ("control", "hub", "proxy")
READY_WITHIN_S = 300
KUBECTL = Kubectl()
PROGRAM = os.environ.get("KUBECTL", "kubectl")
Values = dict[str, Any]


@dataclass(frozen=True)
class Release:
    """`url`: of a port that leads to the proxy."""

    namespace: str
    url: str
    helm: helm_python.Config

    @property
    def workloads(self) -> str:
        """The namespace of Pods."""
        return f"{self.namespace}-workloads"

    def password(self, of: str) -> str:
        """`users` or `admin`: from the Secret, as the notes of the chart tell."""
        found = self.json("secret", "commonage-secrets")
        return base64.b64decode(found["data"][f"{of}_password"]).decode()

    def json(self, *what: str, namespace: str = "") -> Any:
        return json.loads(KUBECTL.must("-n", namespace or self.namespace, "get", *what, "-o", "json"))

    def pods(self) -> dict[str, str]:
        """Identities of the workloads' Pods by name: another identity is another Pod."""
        items = self.json("pods", namespace=self.workloads)["items"]
        return {one["metadata"]["name"]: one["metadata"]["uid"] for one in items}

    def await_ready(self, part: str) -> None:
        wait = ("rollout", "status", f"deployment/commonage-{part}", f"--timeout={READY_WITHIN_S}s")
        command = [PROGRAM, "-n", self.namespace, *wait]
        done = subprocess.run(command, capture_output=True, text=True, timeout=READY_WITHIN_S + 30, check=False)
        assert done.returncode == 0, done.stderr

    def await_way_in(self) -> None:
        """After an upgrade: until the old proxies are gone, to one of which the port may lead, and another answers."""

        def old() -> bool:
            pods = self.json("pods", "-l", "app.kubernetes.io/component=proxy")["items"]
            return any("deletionTimestamp" in one["metadata"] for one in pods)

        wait_until(lambda: not old(), "the old proxies end", within_s=READY_WITHIN_S, every_s=1)
        wait_until(lambda: self.answers("/hub/login"), "the way in", every_s=1)

    def answers(self, path: str) -> bool:
        """True if the page is there, or leads to the sign-in."""
        try:
            return httpx2.get(f"{self.url}{path}", trust_env=False).status_code < 400
        except httpx2.TransportError:
            return False

    @contextmanager
    def api(self) -> Iterator[httpx2.Client]:
        """The API as an admin."""
        with httpx2.Client(base_url=self.url, follow_redirects=True, trust_env=False, timeout=60) as browser:
            browser.get("/hub/login")
            form = {"username": "admin", "password": self.password("admin")}
            browser.post("/hub/login", data={**form, "_xsrf": browser.cookies.get("_xsrf", path="/hub/")})
            browser.get("/hub/home")
            xsrf = {"X-XSRFToken": str(browser.cookies.get("_xsrf", path="/hub/"))}
            made = browser.post("/hub/api/users/admin/tokens", json={"note": "tests"}, headers=xsrf).raise_for_status()
        headers = {"Authorization": f"Bearer {made.json()['token']}"}
        with httpx2.Client(base_url=f"{self.url}{API_PATH}", headers=headers, trust_env=False, timeout=60) as api:
            yield api


def trial(**changes: Values) -> Values:
    """Values with the images of this cluster. A cluster for tests may have no storage class, so they use none."""
    (program, _, tag), (services, _, services_tag) = (image.rpartition(":") for image in IMAGES[:2])
    database = {"image": {"name": services, "tag": services_tag}, "storage": {"type": "emptyDir"}}
    return {
        "image": {"name": program, "tag": tag},
        "workloads": {"image": IMAGES[2]},
        "control": {"storage": {"type": "emptyDir"}},
        **changes,
        "postgresql": {**database, **changes.get("postgresql", {})},
    }


@contextmanager
def installed(values: Values, log: Path, namespace: str = "") -> Iterator[Release]:
    """`helm install --create-namespace --wait`. What Helm keeps at an uninstall is removed at the end."""
    namespace = namespace or f"{PREFIX}-{secrets.token_hex(3)}"
    try:
        with helm_python.Config(namespace=namespace) as helm, _forwarded(namespace, log) as url:
            release = Release(namespace, url, helm)
            try:
                helm.install(CHART, NAME, values, create_namespace=True, wait="watcher", timeout=READY_WITHIN_S)
                release.await_way_in()
                yield release
            finally:
                helm.uninstall(NAME, ignore_not_found=True)
    finally:
        KUBECTL.run("delete", "--wait=false", "--ignore-not-found", "namespace", namespace, f"{namespace}-workloads")


@contextmanager
def _forwarded(namespace: str, log: Path) -> Iterator[str]:
    """The way in that the chart has without an ingress controller. It is made again when its Pod has ended."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [PROGRAM, "-n", namespace, "port-forward", "service/commonage-proxy-public", f"{port}:80"]
    ended, running = threading.Event(), []

    def forward() -> None:
        with log.open("w") as output:
            while not ended.wait(0.5):
                running[:] = [subprocess.Popen(command, stdout=output, stderr=output)]
                running[0].wait()

    thread = threading.Thread(target=forward)
    thread.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        ended.set()
        wait_until(lambda: _over(thread, running), "kubectl port-forward has ended")


def _over(thread: threading.Thread, running: list[subprocess.Popen[bytes]]) -> bool:
    for process in running:
        process.terminate()
    return not thread.is_alive()
