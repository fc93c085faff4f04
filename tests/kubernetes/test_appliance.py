"""A site agent whose engine is the cluster that KUBECONFIG names: the contract through its link, and a walk.

The walk needs a route to the addresses of Pods, and COMMONAGE_TEST_ADDRESS: an address of this machine that Pods reach.
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.acceptance.browser import await_state, chromium, launch, person
from tests.acceptance.cluster_appliance import (
    NAME,
    Joined,
    Loop,
    joined,
    walk_cut,
    walk_job,
    walk_service,
    walk_way_back,
)
from tests.acceptance.served import USERS_PASSWORD
from tests.acceptance.test_visits import open_lab
from tests.contract.engines.remote.rig import RemoteRealRig
from tests.fakes.waiting import wait_until
from tests.kubernetes.kubectl import Kubectl
from tests.kubernetes.notebooks import run_cell
from tests.kubernetes.release import IMAGES, NEEDS_IMAGES
from tests.kubernetes.rig import IMAGE, KeepsFirstGracePeriod, KubernetesRig

from commonage.testing.engine_contract import EngineContract
from commonage.testing.engine_rig import EngineRig
from commonage.testing.exec_contract import ExecContract

ADDRESS = os.environ.get("COMMONAGE_TEST_ADDRESS", "")
ROLES = Path(__file__).parents[2] / "deploy" / "kustomize" / "site-agent" / "roles.yaml"
KUBECTL = Kubectl()
needs_images = NEEDS_IMAGES[-1]
needs_route = pytest.mark.skipif(not ADDRESS, reason="COMMONAGE_TEST_ADDRESS names no address of this machine")


class TestKubernetesAtSite(KeepsFirstGracePeriod, EngineContract, ExecContract):
    @pytest.fixture
    async def rig(self, rig: KubernetesRig, tmp_path: Path) -> AsyncIterator[RemoteRealRig]:
        remote = RemoteRealRig(rig, tmp_path)
        yield remote
        await remote.close()

    async def test_has_all_capabilities_whose_lack_the_contract_passes_over(self, rig: EngineRig) -> None:
        can = (await rig.engine()).capabilities()
        assert (can.limits_memory, can.limits_cpu, can.mounts, can.ports, can.isolates_users) == (True,) * 5


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory, namespace: str) -> Iterator[Path]:
    """A kubeconfig with the rights of deploy/kustomize/site-agent, in the namespace of this run, and no others."""
    folder = tmp_path_factory.mktemp("rights")
    roles = folder / "roles.yaml"
    roles.write_text(re.sub("commonage-site(-workloads|-agent)?", namespace, ROLES.read_text()))
    KUBECTL.must("-n", namespace, "create", "serviceaccount", namespace)
    KUBECTL.must("apply", "-f", str(roles))
    try:
        token = KUBECTL.must("-n", namespace, "create", "token", namespace, "--duration=2h")
        yield Path(KUBECTL.with_token(token, folder / "kubeconfig").config)
    finally:
        KUBECTL.run("delete", "--ignore-not-found", "-f", str(roles))


@pytest.fixture(scope="module")
def site(
    tmp_path_factory: pytest.TempPathFactory, namespace: str, priority_class: str, config: Path
) -> Iterator[Joined]:
    loop = Loop()
    variables = {
        "COMMONAGE_KUBERNETES_KUBECONFIG": str(config),
        "COMMONAGE_KUBERNETES_NAMESPACE": namespace,
        "COMMONAGE_KUBERNETES_PRIORITY_CLASS": priority_class,
        "COMMONAGE_KUBERNETES_ADDRESS": ADDRESS,
    }
    with joined(tmp_path_factory.mktemp("appliance"), loop, IMAGE, variables) as made:
        yield made
    loop.close()


@needs_route
@pytest.mark.timeout(900)
class TestWalk:
    def test_a_job_runs_on_the_cluster(self, site: Joined) -> None:
        walk_job(site)

    def test_a_command_runs_in_a_pod(self, site: Joined) -> None:
        job = site.run("--detach", "--", "sleep", "600").split()[0]
        client, token = site.platform.client("ann"), site.platform.token("ann")
        wait_until(lambda: client.workload(job).state == "running", "the job")
        done = site.platform.cli("exec", job, "--", "sh", "-c", "echo in $COMMONAGE_WORKLOAD_ID", token=token)
        assert (done.returncode, done.stdout) == (0, f"in {job}\n"), done.stderr
        client.stop(job)
        wait_until(lambda: client.workload(job).state == "stopped", "the stop")

    def test_a_pod_reaches_the_platform_by_the_link(self, site: Joined) -> None:
        walk_way_back(site, ADDRESS)

    def test_a_service_is_opened_through_the_tunnel(self, site: Joined) -> None:
        walk_service(site, 8080)

    @needs_images
    def test_a_session_opens_in_the_portal_and_computes(self, site: Joined) -> None:
        platform = site.platform
        environment = f"kind: Environment\nname: lab\nkinds: [session]\nimage: {IMAGES[2]}\n"
        (platform.folder / "lab.commonage.yml").write_text(environment)
        applied = platform.cli("apply", "--yes", "lab.commonage.yml", token=platform.token("admin", "--admin"))
        assert applied.returncode == 0, applied.stdout + applied.stderr
        client = platform.client("ann")
        with chromium() as browser, person(browser, platform.url, "ann", USERS_PASSWORD) as (page, problems):
            session = launch(page, "session", environment="lab")
            await_state(page, "Running", within_s=300)
            assert client.workload(session).site == NAME
            assert problems.found == []
            open_lab(page, client.workload(session).url or "")
            run_cell(page, "import os; print(6 * 7, os.uname().nodename)", "42 ")
        client.stop(session)
        wait_until(lambda: client.workload(session).state == "stopped", "the stop")

    def test_a_job_survives_a_cut_of_the_link_and_the_end_of_the_agent(self, site: Joined) -> None:
        walk_cut(site)
