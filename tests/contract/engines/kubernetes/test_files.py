"""Files of homes and volumes that are claims, and copies of materials in them, on the double of a cluster."""

import asyncio
import hashlib
import io
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import pytest
from tests.kubernetes.rig import IMAGE, KubernetesRig

from commonage.domain.errors import CommonageError, Conflict, InvalidInput, NotFound, Unavailable
from commonage.domain.files import EntryKind
from commonage.domain.materials import MaterialFile, Version
from commonage.domain.reasons.refusals import FilesGap, FilesNotHere
from commonage.domain.statuses import Phase
from commonage.domain.volumes import Extent, Mount, Volume, VolumeKind
from commonage.engines.kubernetes.manifest import Manifest
from commonage.engines.kubernetes.storage import file_pods
from commonage.engines.kubernetes.storage.file_pod import FilePlace
from commonage.engines.kubernetes.storage.files import ClusterCopies, ClusterFiles
from commonage.engines.settings import KubernetesStorageSettings
from commonage.files.safe_path import SafePath
from commonage.ports.files import Place, Upload
from commonage.ports.materials import EVERYTHING, Damaged, Delivery
from commonage.storage.user_files import FolderFiles
from commonage.testing.behaviour import Behaviour
from commonage.testing.fakes.kubernetes.cluster import FakeCluster
from commonage.testing.fakes.kubernetes.store import PODS, VOLUME_CLAIMS

pytestmark = pytest.mark.anyio
HOME = Place(home="ada")
KEY = "0" * 31 + "1"


@dataclass
class Site:
    cluster: FakeCluster
    rig: KubernetesRig
    files: ClusterFiles
    copies: ClusterCopies
    home: Path
    """The folder of the claim of ada's home."""

    def file_pods(self) -> list[Manifest]:
        labels = (one for one in self.cluster.store.all(PODS))
        return [one for one in labels if one["metadata"]["labels"].get("commonage.dev/kind") == "files"]


@pytest.fixture
async def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    # Programs of the double are those of this machine.
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    async with FakeCluster(tmp_path / "cluster", nodes=["node-1"], images=[IMAGE]) as cluster:
        storage = KubernetesStorageSettings(files_image=IMAGE, access="ReadWriteOnce", folders=(("/data", "datasets"),))
        rig = KubernetesRig(
            tmp_path / "data", "commonage", "node-1", kubeconfig=cluster.kubeconfig, homes="claim", storage=storage
        )
        engine = await rig.engine()
        files = ClusterFiles(FolderFiles(SafePath(tmp_path / "homes")), rig.settings, engine.file_pods)
        copies = ClusterCopies(rig.settings, engine.file_pods)
        yield Site(cluster, rig, files, copies, tmp_path / "cluster" / "node-1" / "claims" / "commonage" / "home-ada")
        await rig.end_all(forget=True)


async def visited(site: Site, script: str = "true", **changes: object) -> None:
    """Run a program in the home, which makes its claim."""
    ended = await site.rig.ended(site.rig.start_request(Behaviour(), command=("sh", "-c", script), **changes))
    assert ended.exit_code == 0, ended


async def sent(*chunks: bytes) -> AsyncIterator[bytes]:
    for one in chunks:
        yield one


async def read(site: Site, *path: str) -> bytes:
    file = await site.files.open(HOME, path)
    content = b""
    while part := await file.read(len(content), file.size_bytes):
        content += part
    return content


# --- files ------------------------------------------------------------------------------------------------------------


async def test_files_are_listed_sent_read_moved_and_removed_without_a_session(site: Site) -> None:
    await visited(site, 'mkdir "$HOME/old"; echo kept >"$HOME/old/note"')
    listing = await site.files.list(HOME, ())
    assert [(one.name, one.kind) for one in listing.entries] == [("old", EntryKind.FOLDER)]
    assert await read(site, "old", "note") == b"kept\n"
    await site.files.make_folder(HOME, ("new",))
    big = os.urandom(3 * 2**20 + 17)
    upload = Upload(("new", "big"), KEY, len(big))
    assert await site.files.receive(HOME, upload, 0, sent(big[:2_000_000], big[2_000_000:])) == len(big)
    await site.files.move(HOME, ("new", "big"), ("old", "big"))
    file = await site.files.open(HOME, ("old", "big"))
    assert await file.read(2**20, 100) == big[2**20 : 2**20 + 100]
    await site.files.remove(HOME, ("new",))
    assert [one.name for one in (await site.files.list(HOME, ())).entries] == ["old"]
    assert len(site.file_pods()) == 1


async def test_an_upload_that_broke_off_goes_on_where_it_stopped(site: Site) -> None:
    await visited(site)
    upload = Upload(("data.csv",), KEY, 6)

    async def broken() -> AsyncIterator[bytes]:
        yield b"abc"
        raise Unavailable("the client is gone")

    with pytest.raises(Unavailable, match="the client is gone"):
        await site.files.receive(HOME, upload, 0, broken())
    assert await site.files.uploaded(HOME, upload.path, KEY) == 3
    with pytest.raises(Conflict) as wrong:
        await site.files.receive(HOME, upload, 1, sent(b"x"))
    assert wrong.value.problem_code == "upload-offset"
    assert await site.files.receive(HOME, upload, 3, sent(b"def")) == 6
    assert await read(site, "data.csv") == b"abcdef"


@pytest.mark.parametrize(
    ("path", "kind", "code"),
    [
        (("out", "passwd"), InvalidInput, "invalid-path"),
        (("missing",), NotFound, "file-not-found"),
        (("pipe",), InvalidInput, "invalid-path"),
    ],
)
async def test_paths_are_as_safe_as_on_other_engines(
    site: Site, path: tuple[str, ...], kind: type[CommonageError], code: str
) -> None:
    await visited(site, 'cd "$HOME"; ln -s /etc out; mkfifo pipe')
    with pytest.raises(kind) as refused:
        await site.files.open(HOME, path)
    assert refused.value.problem_code == code


async def test_nothing_is_replaced_unasked(site: Site) -> None:
    await visited(site, 'echo mine >"$HOME/a"')
    with pytest.raises(Conflict) as refused:
        await site.files.receive(HOME, Upload(("a",), KEY, 1), 0, sent(b"x"))
    assert refused.value.problem_code == "file-exists"
    await site.files.receive(HOME, Upload(("a",), KEY, 1, replace=True), 0, sent(b"x"))
    assert await read(site, "a") == b"x"


async def test_a_home_that_no_workload_has_needed_is_empty_and_takes_nothing(site: Site) -> None:
    assert (await site.files.list(HOME, ())).entries == ()
    assert await site.files.uploaded(HOME, ("a",), KEY) == 0
    with pytest.raises(NotFound):
        await site.files.open(HOME, ("a",))
    with pytest.raises(Conflict) as refused:
        await site.files.make_folder(HOME, ("a",))
    assert refused.value.reason == FilesNotHere(volume="", gap=FilesGap.NOT_MADE)
    assert site.file_pods() == []


async def test_volumes_are_reached_by_their_claims(site: Site) -> None:
    mount = Mount("results", VolumeKind.DOCKER, "results.physics", "/volumes/results", writable=True)
    await visited(site, "echo 1 >results", mounts=(mount,))
    place = Place(source="results.physics", volume="results", tenant="physics")
    await site.files.make_folder(place, ("plots",))
    site.cluster.store.create(VOLUME_CLAIMS, {"metadata": {"name": "datasets", "namespace": "commonage"}, "spec": {}})
    assert (await site.files.list(Place(source="/data/train", volume="data", writable=False), ())).entries == ()
    [read_only] = [one for one in site.file_pods() if one["spec"]["volumes"][0]["name"] == "folder-0"]
    assert read_only["spec"]["containers"][0]["volumeMounts"] == [
        {"name": "folder-0", "mountPath": "/data", "readOnly": True, "subPath": "train"}
    ]


async def test_says_which_volumes_are_seen_and_which_are_apart(site: Site) -> None:
    kept = Volume("results", kind=VolumeKind.DOCKER)
    assert site.files.gap(kept) is None and not site.files.is_per_tenant(kept)
    assert site.files.is_per_tenant(replace(kept, per=Extent.TENANT))
    assert site.files.gap(Volume("x", kind=VolumeKind.SCRATCH)) is FilesGap.SCRATCH
    assert site.files.gap(None) is None
    for namespaces in ("tenant", "kept"):
        apart = ClusterFiles(
            site.files, replace(site.rig.settings, namespaces=namespaces), lambda: pytest.fail("no Pod")
        )
        assert apart.is_per_tenant(kept) and apart.is_per_tenant(None)
    none = replace(site.rig.settings, homes="empty")
    assert ClusterFiles(site.files, none, lambda: pytest.fail("no Pod")).gap(None) is FilesGap.POD
    bare = replace(site.rig.settings, storage=KubernetesStorageSettings())
    assert ClusterFiles(site.files, bare, lambda: pytest.fail("no Pod")).gap(None) is FilesGap.NO_IMAGE


# --- the Pods ---------------------------------------------------------------------------------------------------------


async def test_an_attempt_goes_first_and_the_files_are_opened_on_its_node_afterwards(site: Site) -> None:
    await visited(site)
    await site.files.list(HOME, ())
    [before] = site.file_pods()
    running = site.rig.start_request(Behaviour(), command=("sh", "-c", "echo started; sleep 60"))
    await site.rig.phase((await site.rig.started(running)).attempt_id, Phase.RUNNING)
    assert before["metadata"]["uid"] not in {one["metadata"]["uid"] for one in site.file_pods()}
    await site.files.list(HOME, ())
    [after] = site.file_pods()
    affinity = after["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert affinity["nodeSelectorTerms"][0]["matchFields"][0]["values"] == ["node-1"]


async def test_a_start_ends_when_an_attempt_needs_the_claim(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    await visited(site)
    pods = (await site.rig.engine()).file_pods()
    create, created = pods._create, asyncio.Event()

    async def slowly(place: FilePlace, node: str) -> None:
        created.set()
        await asyncio.sleep(0.5)
        await create(place, node)

    monkeypatch.setattr(pods, "_create", slowly)
    looking = asyncio.create_task(site.files.list(HOME, ()))
    await created.wait()
    await pods.release("commonage", "home-ada")
    with pytest.raises(Unavailable, match="is starting"):
        await looking
    await site.rig.until(lambda: _none(site), "no file Pod is left")


async def _none(site: Site) -> bool:
    return not site.file_pods()


async def test_a_lost_connection_is_made_again(site: Site) -> None:
    await visited(site)
    await site.files.list(HOME, ())
    [pod] = site.file_pods()
    site.cluster.store.remove(PODS, ("commonage", pod["metadata"]["name"]))
    engine = await site.rig.engine()
    [held] = engine.file_pods()._held.values()
    assert held.link is not None
    await held.link._taking
    assert (await site.files.list(HOME, ())).entries == ()


async def test_says_why_a_pod_does_not_start(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    await visited(site)
    storage = replace(site.rig.settings.storage, files_image="localhost/missing:1")
    engine = await site.rig.engine()
    monkeypatch.setattr(engine.file_pods(), "_settings", replace(site.rig.settings, storage=storage))
    with pytest.raises(Unavailable, match=r"does not start .*localhost/missing:1"):
        await site.files.list(HOME, ())


async def test_pods_end_when_nobody_uses_them_and_those_of_before_are_cleared(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    await visited(site)
    await site.files.list(HOME, ())
    engine = await site.rig.engine()
    pods = engine.file_pods()
    await pods.clear()
    assert len(site.file_pods()) == 1
    monkeypatch.setattr(file_pods, "IDLE_S", -1.0)
    await pods.end_unused()
    assert site.file_pods() == []


# --- materials --------------------------------------------------------------------------------------------------------


@dataclass
class Course:
    """Versions of a material, with their content in memory."""

    contents: dict[str, bytes]

    def delivery(self, files: Mapping[str, bytes], reset: frozenset[str] = frozenset()) -> Delivery:
        made = {}
        for path, content in files.items():
            blob = hashlib.sha1(f"blob {len(content)}\0".encode() + content, usedforsecurity=False).hexdigest()
            made[path] = MaterialFile(blob, len(content))
            self.contents[path] = content
        tree = hashlib.sha1(repr(made).encode(), usedforsecurity=False).hexdigest()
        return Delivery(Version(tree, tree, 1.8e9, made), self.open, time.time(), reset)

    def open(self, path: str) -> BinaryIO:
        if path not in self.contents:
            raise FileNotFoundError(path)
        return io.BytesIO(self.contents[path])


@pytest.fixture
def course() -> Iterator[Course]:
    yield Course({})


async def test_files_arrive_new_ones_come_beside_edits_and_a_reset_brings_the_originals(
    site: Site, course: Course
) -> None:
    await visited(site)
    big = os.urandom(2**21 + 5)
    first = await site.copies.deliver("course", HOME, course.delivery({"lab": b"one", "week/big": big, "empty": b""}))
    assert first.error is None and first.edited == ()
    assert await read(site, "materials", "course", "week", "big") == big
    await visited(site, 'cat "$HOME/materials/course/lab" | grep one && echo mine >"$HOME/materials/course/lab"')
    second = await site.copies.deliver("course", HOME, course.delivery({"lab": b"two", "week/big": b"small"}))
    assert second.error is None and second.edited == ("lab",) and len(second.offered) == 1
    assert await read(site, "materials", "course", "lab") == b"mine\n"
    assert await read(site, "materials", "course", *second.offered) == b"two"
    assert await read(site, "materials", "course", "week", "big") == b"small"
    looked = await site.copies.look("course", HOME, course.delivery({"lab": b"two", "week/big": b"small"}).version)
    assert looked is not None and looked.edited == ("lab",)
    delivery = course.delivery({"lab": b"two", "week/big": b"small"}, EVERYTHING)
    assert (await site.copies.deliver("course", HOME, delivery)).edited == ()
    assert await read(site, "materials", "course", "lab") == b"two"
    kept = [one.name for one in (await site.files.list(HOME, ("materials", "course"))).entries]
    assert any(one.startswith("lab.mine-") for one in kept)


async def test_a_damaged_version_is_not_delivered(site: Site, course: Course) -> None:
    await visited(site)
    delivery = course.delivery({"lab": b"one"})
    course.contents["lab"] = b"other"
    with pytest.raises(Damaged, match="lab"):
        await site.copies.deliver("course", HOME, delivery)
    del course.contents["lab"]
    with pytest.raises(Damaged, match="lab"):
        await site.copies.deliver("course", HOME, delivery)


async def test_a_home_without_a_claim_gets_its_copy_later(site: Site, course: Course) -> None:
    with pytest.raises(Conflict) as refused:
        await site.copies.deliver("course", HOME, course.delivery({"lab": b"one"}))
    assert refused.value.reason == FilesNotHere(volume="", gap=FilesGap.NOT_MADE)
    assert await site.copies.look("course", HOME, None) is None
