"""The whole platform by one command of Helm, and a session in a real browser through it, as a new user opens one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.acceptance.browser import await_state, chromium, launch, person
from tests.acceptance.test_visits import open_lab
from tests.fakes.waiting import wait_until
from tests.kubernetes.notebooks import run_cell
from tests.kubernetes.release import KUBECTL, NEEDS_IMAGES, READY_WITHIN_S, Release, installed, trial

pytestmark = NEEDS_IMAGES


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    with installed(trial(), tmp_path_factory.mktemp("platform") / "port-forward.log") as release:
        yield release


def test_a_new_user_signs_in_and_runs_a_cell_in_a_session(platform: Release, tmp_path: Path) -> None:
    with chromium() as browser, person(browser, platform.url, "alice", platform.password("users")) as (page, problems):
        launch(page, "session")
        await_state(page, "Running", within_s=180)
        assert problems.found == []
        open_lab(page, f"{platform.url}/user/alice/")
        # The session reaches the API by the gateway, with its own token.
        run_cell(
            page,
            "import os, urllib.request as r; u = os.environ['COMMONAGE_URL']; "
            "q = r.Request(u + '/info', headers={'Authorization': 'Bearer ' + os.environ['COMMONAGE_TOKEN']}); "
            "print(6 * 7, r.urlopen(q).status, u.split('/')[2].split('.')[0])",
            "42 200 commonage-gateway",
        )
        page.screenshot(path=tmp_path / "cell.png")
    [pod] = platform.json("pods", namespace=platform.workloads)["items"]
    assert pod["spec"]["preemptionPolicy"] == "Never"
    assert pod["spec"]["automountServiceAccountToken"] is False


def _nodes() -> set[str]:
    """Those with a kernel: a lab may have nodes that exist only in the API."""
    selector = "commonage-lab/fake!=true"
    return set(KUBECTL.must("get", "nodes", "-l", selector, "-o", "jsonpath={.items[*].metadata.name}").split())


def test_every_node_tells_what_is_used_on_it(platform: Release) -> None:
    names = _nodes()
    with platform.api() as api:

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


def test_agents_run_with_no_privilege(platform: Release) -> None:
    where = ("-n", platform.namespace)
    pods = platform.json("pods", "-l", "app.kubernetes.io/component=agent")
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
def test_a_session_answers_while_a_component_is_replaced(platform: Release, part: str) -> None:
    session = "/user/alice/api"  # tells the version, to everybody
    assert platform.answers(session), "the session of the test before"
    label = f"app.kubernetes.io/component={part}"
    KUBECTL.must("-n", platform.namespace, "delete", "pod", "-l", label, "--wait=false")
    page = "/hub/login" if part == "hub" else "/services/commonage/api/v1/health"
    wait_until(lambda: not platform.answers(page), f"the {part} is away")
    assert platform.answers(session)
    platform.await_ready(part)
    wait_until(lambda: platform.answers(page), f"the {part} is back")
    assert platform.answers(session)
