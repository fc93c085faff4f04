"""The life of an installation by Helm: install, test, upgrade, roll back, uninstall, and install again."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect
from tests.acceptance.browser import await_state, chromium, go, launch, person
from tests.acceptance.test_visits import open_lab
from tests.fakes.waiting import wait_until
from tests.kubernetes.conftest import PREFIX
from tests.kubernetes.notebooks import run_cell, run_in_new_tab
from tests.kubernetes.release import (
    CHART,
    KUBECTL,
    NAME,
    NEEDS_IMAGES,
    READY_WITHIN_S,
    Release,
    Values,
    installed,
    trial,
)
from tests.kubernetes.rig import IMAGE

pytestmark = NEEDS_IMAGES
OWNERS = {"control": "1000:1000", "database": "102:105", "home": "1000:1000"}
"""The users that write into the volumes: a provisioner of a real cluster gives them the volumes by `fsGroup`."""
SMALL = {"cpus": "0.1", "memory": "512MiB"}
AS_HELM: Values = {"wait": "watcher", "timeout": READY_WITHIN_S}


@dataclass(frozen=True)
class Disks:
    """Volumes of one node for the claims of one installation."""

    namespace: str
    storage_class: str
    node: str

    def values(self, **settings: Any) -> Values:
        of_class = {"type": "pvc", "storageClassName": self.storage_class, "size": "64Mi"}
        homes = {"storageClass": self.storage_class, "storageAccessModes": ["ReadWriteOnce"]}
        return trial(
            control={"storage": of_class},
            postgresql={"storage": of_class},
            singleuser={"storage": {"capacity": "64Mi", "dynamic": homes}},
            settings=settings,
        )


@pytest.fixture
def disks() -> Iterator[Disks]:
    """Folders of a node, and a PersistentVolume for each: the cluster for tests provisions none."""
    nodes = json.loads(KUBECTL.must("get", "nodes", "-l", "commonage-lab/fake!=true", "-o", "json"))["items"]
    node = next(one["metadata"]["name"] for one in nodes if not one["spec"].get("taints"))
    namespace = f"{PREFIX}-{secrets.token_hex(3)}"
    name, place = f"{namespace}-disks", f"/tmp/{namespace}"
    claims = {
        "control": (namespace, "commonage-control"),
        "database": (namespace, "data-commonage-postgresql-0"),
        "home": (f"{namespace}-workloads", "home-alice"),
    }
    make = " && ".join(f"mkdir -p {place}/{one} && chown {owner} {place}/{one}" for one, owner in OWNERS.items())
    container = {
        "name": "disks",
        "image": IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", f"{make} && touch {place}/made && trap exit TERM && while sleep 1; do :; done"],
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
        "readinessProbe": {"exec": {"command": ["test", "-e", f"{place}/made"]}, "periodSeconds": 1},
    }
    spec = {
        "nodeName": node,
        "terminationGracePeriodSeconds": 5,
        "containers": [container],
        "volumes": [{"name": "tmp", "hostPath": {"path": "/tmp", "type": "Directory"}}],
    }
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "disks", "namespace": name}, "spec": spec}
    KUBECTL.must("create", "namespace", name)
    try:
        KUBECTL.must("create", "-f", "-", manifest=pod)
        KUBECTL.must("-n", name, "wait", "--for=condition=Ready", "pod/disks", "--timeout=60s")
        for part, claim in claims.items():
            KUBECTL.must(
                "create", "-f", "-", manifest=_volume(f"{namespace}-{part}", name, f"{place}/{part}", node, claim)
            )
        yield Disks(namespace, name, node)
    finally:
        KUBECTL.run("-n", name, "exec", "disks", "--", "rm", "-rf", place)
        KUBECTL.run("delete", "pv", *(f"{namespace}-{part}" for part in claims), "--ignore-not-found", "--wait=false")
        KUBECTL.run("delete", "namespace", name, "--wait=false")


def _volume(name: str, storage_class: str, path: str, node: str, claim: tuple[str, str]) -> Values:
    on_node = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "64Mi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": storage_class,
            "hostPath": {"path": path, "type": "Directory"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [on_node]}]}},
            "claimRef": {"namespace": claim[0], "name": claim[1]},
        },
    }


def _revisions(release: Release) -> list[tuple[int, str]]:
    return [(one["revision"], one["status"]) for one in release.helm.history(NAME)]


def _drain_all_but(node: str, release: Release) -> None:
    """The home is a disk of one node."""
    with release.api() as api:
        wait_until(lambda: len(api.get("/nodes").raise_for_status().json()["items"]) > 0, "the nodes are known")
        for one in api.get("/nodes").json()["items"]:
            if one["name"] != node:
                api.post(f"/nodes/{one['site']}/{one['name']}/drain").raise_for_status()


def _title(release: Release) -> str:
    with release.api() as api:
        return str(api.get("/info").raise_for_status().json()["name"])


@pytest.mark.timeout(1800)
def test_work_survives_upgrade_and_rollback_and_data_the_uninstall(disks: Disks, tmp_path: Path) -> None:
    with (
        installed(disks.values(name="Physics"), tmp_path / "port-forward.log", disks.namespace) as release,
        chromium() as browser,
        person(browser, release.url, "alice", release.password("users")) as (page, _),
    ):
        release.helm.test(NAME, timeout=120)
        assert _title(release) == "Physics"
        _drain_all_but(disks.node, release)
        job = launch(page, "job", command="until test -e ~/go; do sleep 1; done; echo done", **SMALL)
        await_state(page, "Running", within_s=180)
        launch(page, "session", **SMALL)
        await_state(page, "Running", within_s=180)
        session = f"{release.url}/user/alice/"
        open_lab(page, session)
        run_cell(page, "x = 6; print(x)", "6")
        pods = release.pods()
        assert len(pods) == 2

        release.helm.upgrade(CHART, NAME, disks.values(name="Chemistry"), **AS_HELM)
        release.await_way_in()
        assert _title(release) == "Chemistry"
        assert release.pods() == pods
        run_in_new_tab(page, session, "print(x * 7)", "42")

        release.helm.rollback(NAME, **AS_HELM)
        release.await_way_in()
        assert _revisions(release) == [(1, "superseded"), (2, "superseded"), (3, "deployed")]
        assert _title(release) == "Physics"
        assert release.pods() == pods
        run_in_new_tab(page, session, "from pathlib import Path; (Path.home() / 'go').touch(); print(x * 8)", "48")
        go(page, f"workloads/{job}")
        await_state(page, "Succeeded")

        password = release.password("users")
        release.helm.uninstall(NAME, wait="watcher", timeout=READY_WITHIN_S)
        kept = {one["metadata"]["name"] for one in release.json("pvc")["items"]}
        assert kept == {"commonage-control", "data-commonage-postgresql-0"}
        assert [one["metadata"]["name"] for one in release.json("pvc", namespace=release.workloads)["items"]] == [
            "home-alice"
        ]
        assert release.json("deployments,statefulsets,daemonsets,services")["items"] == []
        assert release.password("users") == password

        release.helm.install(CHART, NAME, disks.values(name="Physics"), **AS_HELM)
        release.await_way_in()
        with person(browser, release.url, "alice", password) as (again, _):
            go(again, f"workloads/{job}")
            await_state(again, "Succeeded")
            expect(again.get_by_text("done").first).to_be_visible()
