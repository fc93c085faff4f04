"""Homes and volumes that are claims, on the double of a cluster."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from tests.kubernetes.rig import IMAGE, KubernetesRig

from commonage.domain.reasons.attempts import ClusterAdmissionDenied, ClusterQuotaExceeded
from commonage.domain.statuses import Phase, StartRequest
from commonage.domain.volumes import Extent, Mount, Volume, VolumeKind, folder_name, source_of
from commonage.engines.kubernetes.manifest import Manifest
from commonage.engines.kubernetes.storage.claims import volume_claim_name
from commonage.engines.kubernetes.storage.sizes import ClusterHomes
from commonage.engines.settings import KubernetesStorageSettings
from commonage.files.safe_path import SafePath
from commonage.ports.homes import FolderSize
from commonage.storage.homes import HomeFolders
from commonage.testing.behaviour import Behaviour
from commonage.testing.fakes.kubernetes.cluster import FakeCluster
from commonage.testing.fakes.kubernetes.store import PODS, VOLUME_CLAIMS, Kind

pytestmark = pytest.mark.anyio
NOTES_VOLUME = Volume("notes", kind=VolumeKind.DOCKER, per=Extent.USER)
RESULTS = Mount("results", VolumeKind.DOCKER, "results.physics", "/volumes/results", writable=True)


@dataclass
class Site:
    cluster: FakeCluster
    rig: KubernetesRig

    def request(self, script: str, **changes: object) -> StartRequest:
        return self.rig.start_request(Behaviour(), command=("sh", "-c", script), **changes)

    def claim(self, name: str) -> Manifest | None:
        return self.cluster.store.find(VOLUME_CLAIMS, ("commonage", name))


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with FakeCluster(tmp_path / "cluster", nodes=["node-1"], images=[IMAGE]) as cluster:
        storage = KubernetesStorageSettings(home_mib=100, storage_class="fast", access="ReadWriteOnce")
        rig = KubernetesRig(
            tmp_path / "data", "commonage", "node-1", kubeconfig=cluster.kubeconfig, homes="claim", storage=storage
        )
        yield Site(cluster, rig)
        await rig.end_all(forget=True)


async def test_next_attempt_finds_what_the_one_before_wrote(site: Site) -> None:
    first = await site.rig.ended(site.request('echo kept >"$HOME/note"; echo more >results', mounts=(RESULTS,)))
    assert first.exit_code == 0
    await (await site.rig.engine()).forget(first.attempt_id)
    second = site.request('cat "$HOME/note"', mounts=(RESULTS,))
    assert (await site.rig.ended(second)).exit_code == 0
    assert await site.rig.lines(second.attempt_id) == ["kept"]


async def test_claim_of_a_home_is_as_the_settings_say_and_outlives_the_pod(site: Site) -> None:
    ended = await site.rig.ended(site.request("true"))
    await (await site.rig.engine()).forget(ended.attempt_id)
    claim = site.claim("home-ada")
    assert claim is not None
    assert claim["spec"]["accessModes"] == ["ReadWriteOnce"]
    assert claim["spec"]["storageClassName"] == "fast"
    assert claim["spec"]["resources"]["requests"]["storage"] == "100Mi"


async def test_quota_of_the_tenant_is_the_size_of_a_new_home(site: Site) -> None:
    await site.rig.ended(replace(site.request("true"), home_mib=300))
    claim = site.claim("home-ada")
    assert claim is not None
    assert claim["spec"]["resources"]["requests"]["storage"] == "300Mi"


async def test_claim_that_cannot_grow_stays_and_the_attempt_runs(site: Site) -> None:
    await site.rig.ended(site.request("true"))
    assert (await site.rig.ended(replace(site.request("true"), home_mib=300))).exit_code == 0
    claim = site.claim("home-ada")
    assert claim is not None
    assert claim["spec"]["resources"]["requests"]["storage"] == "100Mi"


async def test_volume_that_the_cluster_keeps_is_a_claim(site: Site) -> None:
    assert (await site.rig.ended(site.request("true", mounts=(RESULTS,)))).exit_code == 0
    claim = site.claim(volume_claim_name("results.physics"))
    assert claim is not None
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    assert claim["metadata"]["labels"]["commonage.dev/volume"] == "results"


async def test_refusal_of_the_claim_becomes_the_reason_and_no_pod_is_made(site: Site) -> None:
    def refuse(kind: Kind, _manifest: Manifest) -> str:
        return "no claims today" if kind is VOLUME_CLAIMS else ""

    site.cluster.admit_by(refuse)
    end = await site.rig.ended(site.request("true"))
    assert isinstance(end.reason, ClusterAdmissionDenied)
    assert "no claims today" in end.reason.error
    assert not list(site.cluster.store.all(PODS))


async def test_refusal_by_a_quota_returns_the_attempt_at_once(site: Site) -> None:
    told = "exceeded quota: small, requested: requests.cpu=10, used: requests.cpu=0, limited: requests.cpu=1"
    asked = []

    def refuse(kind: Kind, _manifest: Manifest) -> str:
        asked.append(kind)
        return told if kind is PODS else ""

    site.cluster.admit_by(refuse)
    end = await site.rig.ended(site.request("true"))
    assert end.exit_code is None
    assert isinstance(end.reason, ClusterQuotaExceeded)
    assert end.reason.error.endswith(told)
    assert asked.count(PODS) == 1


async def test_claim_that_an_admin_made_is_taken_as_it_is(site: Site) -> None:
    made = {"metadata": {"name": "home-ada", "namespace": "commonage"}, "spec": {"volumeName": "old"}}
    site.cluster.store.create(VOLUME_CLAIMS, made)
    assert (await site.rig.ended(replace(site.request("true"), home_mib=300))).exit_code == 0
    claim = site.claim("home-ada")
    assert claim is not None
    assert claim["spec"] == {"volumeName": "old"}
    assert not claim["metadata"].get("labels")


async def test_claims_tell_their_size_and_what_they_hold(site: Site, tmp_path: Path) -> None:
    running = site.request('head -c 3000000 /dev/zero >"$HOME/big"; echo done; sleep 60', mounts=(RESULTS,))
    await site.rig.started(running)
    sizes = (await site.rig.engine()).claim_sizes()
    home, volume = sorted(await sizes.measure(), key=lambda one: one.volume)
    homes = ClusterHomes(HomeFolders(SafePath(tmp_path / "homes"), tmp_path / "archive"), lambda: sizes)
    both = ["commonage/home-ada", f"commonage/{volume_claim_name('results.physics')}"]
    assert await homes.claims_of([], tenant=running.tenant) == both
    assert await homes.claims_of([], tenant="another") == []
    assert await homes.claims_of([], user=running.owner) == both[:1]
    tenant = folder_name(running.tenant)
    assert home == FolderSize("", tenant, folder_name(running.owner), 3, size_mib=100)
    assert (volume.volume, volume.tenant, volume.user, volume.size_mib) == ("results", tenant, None, 10 * 1024)
    await (await site.rig.engine()).stop(running.attempt_id, 0)
    await site.rig.phase(running.attempt_id, Phase.ENDED)
    assert home in await sizes.measure(), "what was told last"


async def test_claims_of_a_user_are_the_home_and_those_of_volumes_for_each_user(site: Site, tmp_path: Path) -> None:
    plain = site.request("true")
    source = source_of(NOTES_VOLUME, plain.owner, plain.tenant)
    notes = Mount("notes", VolumeKind.DOCKER, source, "/volumes/notes", writable=True)
    await site.rig.ended(site.request("true", mounts=(RESULTS, notes)))
    engine = await site.rig.engine()
    homes = ClusterHomes(HomeFolders(SafePath(tmp_path / "homes"), tmp_path / "archive"), engine.claim_sizes)
    mine = ["commonage/home-ada", f"commonage/{volume_claim_name(source)}"]
    assert await homes.claims_of([NOTES_VOLUME], user=plain.owner) == mine
    assert await homes.claims_of([NOTES_VOLUME], user="another") == []
    assert len(await homes.claims_of([NOTES_VOLUME], tenant=plain.tenant)) == 3


async def test_an_unused_claim_counts_with_its_size_and_others_claims_do_not(site: Site) -> None:
    await site.rig.ended(site.request("true"))
    site.cluster.store.create(VOLUME_CLAIMS, {"metadata": {"name": "other", "namespace": "commonage"}, "spec": {}})
    [home] = await (await site.rig.engine()).claim_sizes().measure()
    assert (home.counted_mib, home.is_known) == (100, False)
