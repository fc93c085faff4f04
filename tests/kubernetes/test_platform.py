"""The whole platform by two commands, and a session in a real browser through it, as a new user opens one."""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import re
import secrets
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml
from playwright.sync_api import Page, expect
from tests.acceptance.browser import await_state, chromium, launch, person
from tests.acceptance.test_visits import open_lab
from tests.fakes.waiting import wait_until
from tests.kubernetes.conftest import PREFIX
from tests.kubernetes.kubectl import Kubectl

from commonage.wire.hub import API_PATH

IMAGES = os.environ.get("COMMONAGE_TEST_PLATFORM_IMAGES", "").split()
"""NAME:TAG of the two images of deploy/image/build, and of one with JupyterLab. The nodes have all three."""
pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.needs("chromium"),
    pytest.mark.skipif(len(IMAGES) != 3, reason="COMMONAGE_TEST_PLATFORM_IMAGES does not name three images"),
]
ROOT = Path(__file__).parents[2]
READY_WITHIN_S = 300
PARTS = ("control", "hub", "proxy")
KUBECTL = Kubectl()
PROGRAM = os.environ.get("KUBECTL", "kubectl")


@dataclass(frozen=True)
class Platform:
    """`url`: of a port that leads to the proxy. `workloads`: the namespace of Pods."""

    namespace: str
    workloads: str
    url: str
    password: str
    admin_password: str

    def answers(self, path: str) -> bool:
        """True if the page is there, or leads to the sign-in."""
        try:
            return httpx2.get(f"{self.url}{path}").status_code < 400
        except httpx2.TransportError:
            return False


def _manifests(namespace: str) -> str:
    """The chart with the images of this cluster. A cluster for tests may have no storage class, so it uses none."""
    spec = importlib.util.spec_from_file_location("kustomize", ROOT / "scripts" / "kustomize.py")
    assert spec is not None and spec.loader is not None
    kustomize = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(kustomize)
    (program, _, tag), (services, _, services_tag) = (image.rpartition(":") for image in IMAGES[:2])
    values = {
        "image": {"name": program, "tag": tag},
        "postgresql": {"image": {"name": services, "tag": services_tag}, "storage": {"type": "emptyDir"}},
        "control": {"storage": {"type": "emptyDir"}},
        "workloads": {"image": IMAGES[2]},
    }
    objects = [one for part in kustomize.rendered(values, namespace).values() for one in part]
    return yaml.safe_dump_all(sorted(objects, key=lambda one: one["kind"] != "Namespace"))


def _await_ready(namespace: str, part: str) -> None:
    wait = ("rollout", "status", f"deployment/commonage-{part}", f"--timeout={READY_WITHIN_S}s")
    done = subprocess.run(
        [PROGRAM, "-n", namespace, *wait], capture_output=True, text=True, timeout=READY_WITHIN_S + 30, check=False
    )
    assert done.returncode == 0, done.stderr


@contextmanager
def _forwarded(namespace: str, log: Path) -> Iterator[str]:
    """The way in that the chart has without an ingress controller."""
    forward = [PROGRAM, "-n", namespace, "port-forward", "service/commonage-proxy-public", ":80"]
    with log.open("w") as output, subprocess.Popen(forward, stdout=output, stderr=output) as process:
        try:
            found = wait_until(lambda: re.search(r"Forwarding from 127\.0\.0\.1:(\d+)", log.read_text()), "a port")
            yield f"http://127.0.0.1:{found[1]}"
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    namespace = f"{PREFIX}-{secrets.token_hex(3)}"
    file = tmp_path_factory.mktemp("platform") / "platform.yaml"
    file.write_text(_manifests(namespace))
    try:
        KUBECTL.must("create", "namespace", namespace)
        KUBECTL.must("apply", "-f", str(file))
        for part in PARTS:
            _await_ready(namespace, part)
        secret = json.loads(KUBECTL.must("-n", namespace, "get", "secret", "commonage-secrets", "-o", "json"))
        passwords = [base64.b64decode(secret["data"][f"{one}_password"]).decode() for one in ("users", "admin")]
        with _forwarded(namespace, file.with_name("port-forward.log")) as url:
            yield Platform(namespace, f"{namespace}-workloads", url, *passwords)
    finally:
        KUBECTL.run("delete", "--wait=false", "--ignore-not-found", "-f", str(file))
        KUBECTL.run("delete", "--wait=false", "--ignore-not-found", "namespace", namespace)


def _run_cell(page: Page, source: str, said: str) -> None:
    """In a new notebook of JupyterLab."""
    page.locator(".jp-LauncherCard[data-category='Notebook']").first.click()
    expect(page.get_by_text("| Idle")).to_be_visible(timeout=120_000)
    cell = page.locator(".jp-Notebook .jp-Cell .cm-content").first
    cell.click()
    cell.press_sequentially(source)
    page.keyboard.press("Shift+Enter")
    expect(page.locator(".jp-OutputArea-output").first).to_contain_text(said)


def test_a_new_user_signs_in_and_runs_a_cell_in_a_session(platform: Platform, tmp_path: Path) -> None:
    with chromium() as browser, person(browser, platform.url, "alice", platform.password) as (page, problems):
        launch(page, "session")
        await_state(page, "Running", within_s=180)
        assert problems.found == []
        open_lab(page, f"{platform.url}/user/alice/")
        # The session reaches the API by the gateway, with its own token.
        _run_cell(
            page,
            "import os, urllib.request as r; u = os.environ['COMMONAGE_URL']; "
            "q = r.Request(u + '/info', headers={'Authorization': 'Bearer ' + os.environ['COMMONAGE_TOKEN']}); "
            "print(6 * 7, r.urlopen(q).status, u.split('/')[2].split('.')[0])",
            "42 200 commonage-gateway",
        )
        page.screenshot(path=tmp_path / "cell.png")
    [pod] = json.loads(KUBECTL.must("-n", platform.workloads, "get", "pods", "-o", "json"))["items"]
    assert pod["spec"]["preemptionPolicy"] == "Never"
    assert pod["spec"]["automountServiceAccountToken"] is False


@contextmanager
def _api(platform: Platform) -> Iterator[httpx2.Client]:
    """The API as an admin."""
    with httpx2.Client(base_url=platform.url, follow_redirects=True, trust_env=False, timeout=60) as browser:
        browser.get("/hub/login")
        form = {"username": "admin", "password": platform.admin_password}
        browser.post("/hub/login", data={**form, "_xsrf": browser.cookies.get("_xsrf", path="/hub/")})
        browser.get("/hub/home")
        xsrf = {"X-XSRFToken": str(browser.cookies.get("_xsrf", path="/hub/"))}
        made = browser.post("/hub/api/users/admin/tokens", json={"note": "tests"}, headers=xsrf).raise_for_status()
    headers = {"Authorization": f"Bearer {made.json()['token']}"}
    with httpx2.Client(base_url=f"{platform.url}{API_PATH}", headers=headers, trust_env=False, timeout=60) as api:
        yield api


def _nodes() -> set[str]:
    """Those with a kernel: a lab may have nodes that exist only in the API."""
    selector = "commonage-lab/fake!=true"
    return set(KUBECTL.must("get", "nodes", "-l", selector, "-o", "jsonpath={.items[*].metadata.name}").split())


def test_every_node_tells_what_is_used_on_it(platform: Platform) -> None:
    names = _nodes()
    with _api(platform) as api:

        def used() -> dict[str, Any] | None:
            nodes = api.get("/nodes").raise_for_status().json()["items"]
            found = {one["name"]: one["usage"] for one in nodes if one["usage"] and one["usage"]["cpu_cores"]}
            return found if found.keys() >= names else None

        found = wait_until(used, "the nodes tell what is used", within_s=READY_WITHIN_S, every_s=2)
        metrics = httpx2.get(f"{platform.url}/services/commonage/metrics", headers=api.headers, trust_env=False)
    assert set(found) == names
    for one in found.values():
        assert one["memory_mib"] > 0
        assert 0 < one["disk_used_mib"] < one["disk_total_mib"]
        assert one["network_received_bytes_per_s"] is not None
    assert "commonage_node_used_memory_bytes{" in metrics.text


def test_agents_run_with_no_privilege(platform: Platform) -> None:
    where = ("-n", platform.namespace)
    pods = json.loads(KUBECTL.must(*where, "get", "pods", "-l", "app.kubernetes.io/component=agent", "-o", "json"))
    name = next(one["metadata"]["name"] for one in pods["items"] if one["spec"]["nodeName"] in _nodes())
    status = KUBECTL.must(*where, "exec", name, "--", "cat", "/proc/self/status")
    fields = dict(line.split(":", 1) for line in status.splitlines())
    assert fields["Uid"].split() == ["1000"] * 4
    assert {fields[f"Cap{one}"].strip() for one in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {"0" * 16}
    assert (fields["NoNewPrivs"].strip(), fields["Seccomp"].strip()) == ("1", "2")
    for refused in ("cat /host/proc/1/environ", "ls /host/proc/1/root/", "touch /opt/x", "touch /host/sys/fs/cgroup/x"):
        assert KUBECTL.run(*where, "exec", name, "--", *refused.split()).returncode != 0, refused
    account = f"--as=system:serviceaccount:{platform.namespace}:commonage-agent"
    assert KUBECTL.run("auth", "can-i", "get", "pods", account, *where).stdout.strip() == "no"
    assert KUBECTL.run("auth", "can-i", "get", "configmaps", account, *where).stdout.strip() == "no"


@pytest.mark.parametrize("part", ["hub", "control"])
def test_a_session_answers_while_a_component_is_replaced(platform: Platform, part: str) -> None:
    session = "/user/alice/api"  # tells the version, to everybody
    assert platform.answers(session), "the session of the test before"
    label = f"app.kubernetes.io/component={part}"
    KUBECTL.must("-n", platform.namespace, "delete", "pod", "-l", label, "--wait=false")
    page = "/hub/login" if part == "hub" else "/services/commonage/api/v1/health"
    wait_until(lambda: not platform.answers(page), f"the {part} is away")
    assert platform.answers(session)
    _await_ready(platform.namespace, part)
    wait_until(lambda: platform.answers(page), f"the {part} is back")
    assert platform.answers(session)
