"""The GPUs of a cluster as the engine lists them: what may not be read is not there, and the next list counts."""

from collections.abc import Mapping, Sequence

import pytest
from tests.kubernetes.gpus import GPU, device_class, part, resource_slice

from commonage.domain.errors import EngineFailure
from commonage.domain.reasons.devices import GpuHeldByOthers
from commonage.engines.kubernetes.cache import Listed
from commonage.engines.kubernetes.client import Client, Refused
from commonage.engines.kubernetes.gpus.hami import REGISTER
from commonage.engines.kubernetes.gpus.mode import VISIBLE, NodeObjects
from commonage.engines.kubernetes.gpus.plugin import Plugin
from commonage.engines.kubernetes.gpus.site_gpus import CLASSES, DEVICE_CLAIMS, MODE, SLICES, WEBHOOKS, SiteGpus
from commonage.engines.kubernetes.manifest import Manifest

pytestmark = pytest.mark.anyio

DRIVER = "gpu.nvidia.com"
Answers = Mapping[str, Sequence[Manifest] | int]
NODE: Manifest = {
    "metadata": {"name": "node-1", "labels": {"nvidia.com/gpu.memory": "15360"}},
    "status": {"allocatable": {"nvidia.com/gpu": "2"}},
}
POD: Manifest = {"metadata": {"name": "cm-1", "namespace": "lab"}, "spec": {"containers": [{"name": "main"}]}}
DRA: Answers = {
    CLASSES.path(None): [device_class(DRIVER, DRIVER)],
    SLICES.path(None): [resource_slice("slice-1", DRIVER, "node-1")],
}


class Answering(Client):
    """Lists the answers by path; a number is the HTTP status of a refusal, which is 404 for other paths."""

    def __init__(self, answers: Answers) -> None:
        super().__init__()
        self.answers = dict(answers)

    async def list_all(self, path: str, selector: str = "") -> Listed:
        answer = self.answers.get(path, 404)
        if isinstance(answer, int):
            raise Refused(answer, "refused", "list")
        return Listed(answer, "1")


async def read(answers: Answers) -> SiteGpus:
    gpus = SiteGpus(Answering(answers), "ours")
    await gpus.read([NODE])
    return gpus


@pytest.mark.parametrize("status", [403, 404])
async def test_mode_whose_objects_may_not_be_read_is_not_there(status: int) -> None:
    gpus = await read({**DRA, SLICES.path(None): status, WEBHOOKS.path(None): status, DEVICE_CLAIMS.path(None): status})
    assert gpus.mode == "plugin"
    assert len(gpus.devices_of(NODE, {})) == 2


async def test_failed_list_changes_nothing() -> None:
    client = Answering(DRA)
    gpus = SiteGpus(client, "ours")
    await gpus.read([NODE])
    client.answers[SLICES.path(None)] = 500
    with pytest.raises(EngineFailure):
        await gpus.read([NODE])
    assert (gpus.mode, [one.uuid for one in gpus.devices_of(NODE, {})]) == ("dra", [GPU])


async def test_device_that_comes_or_goes_is_in_the_next_list() -> None:
    client = Answering({**DRA, SLICES.path(None): []})
    gpus = SiteGpus(client, "ours")
    await gpus.read([])
    assert (gpus.mode, gpus.devices_of(NODE, {})) == ("", ())
    client.answers |= DRA
    await gpus.read([])
    assert [one.uuid for one in gpus.devices_of(NODE, {})] == [GPU]
    client.answers[SLICES.path(None)] = []
    await gpus.read([])
    assert (gpus.mode, gpus.devices_of(NODE, {})) == ("", ())


@pytest.mark.parametrize("installation", ["ours", "another"])
async def test_device_in_a_claim_of_another_installation_is_held(installation: str) -> None:
    result = {"request": "gpu-0", "driver": DRIVER, "pool": "node-1", "device": "gpu-0"}
    labels = {"commonage.dev/attempt": "1", "commonage.dev/installation": installation}
    claim = {
        "metadata": {"name": "cm-1", "labels": labels},
        "status": {"allocation": {"devices": {"results": [result]}}},
    }
    gpus = await read({**DRA, DEVICE_CLAIMS.path(None): [claim]})
    (device,) = gpus.devices_of(NODE, {})
    assert device.faults == (() if installation == "ours" else (GpuHeldByOthers(),))


async def test_pod_that_moves_or_goes_holds_nothing_on_its_node() -> None:
    gpus = await read({})
    resources = {"requests": {"nvidia.com/gpu": "1"}}
    pod = {"metadata": {"uid": "1"}, "spec": {"nodeName": "node-1", "containers": [{"resources": resources}]}}
    gpus.put_pod(pod)
    gpus.put_pod(pod | {"status": {"phase": "Running"}})
    assert [bool(one.faults) for one in gpus.devices_of(NODE, {})] == [False, True]
    gpus.remove_pod("1")
    gpus.remove_pod("1")
    assert not any(one.faults for one in gpus.devices_of(NODE, {}))


async def test_pod_is_marked_with_its_mode_and_needs_one() -> None:
    applied = (await read(DRA)).apply(POD, [part(16)])
    assert applied["metadata"]["annotations"] == {MODE: "dra"}
    with pytest.raises(EngineFailure, match="no GPUs now") as refused:
        SiteGpus(Answering({}), "ours").apply(POD, [part(16)])
    assert refused.value.is_retryable
    hidden = SiteGpus(Answering({}), "ours").apply(POD, [])
    assert hidden["spec"]["containers"][0]["env"] == [{"name": VISIBLE, "value": "void"}]


async def test_pod_of_an_unknown_mode_gets_nothing_and_says_so() -> None:
    pod = POD | {"metadata": POD["metadata"] | {"annotations": {MODE: "other"}}}
    with pytest.raises(EngineFailure, match="'other'"):
        await (await read(DRA)).make_extras(pod, [part(16)])


async def test_plugin_tells_the_uuids_of_the_variable() -> None:
    async def variable() -> str:
        return f"{GPU}\n"

    async def all_of_them() -> str:
        return "all\n"

    gpus = await read({})
    pod = POD | {"metadata": POD["metadata"] | {"annotations": {MODE: "plugin"}}}
    assert await gpus.granted(pod, variable) == (GPU,)
    assert await gpus.granted(pod, all_of_them) == ()


def test_units_that_hami_makes_are_no_devices_of_the_plugin() -> None:
    node = NODE | {"metadata": NODE["metadata"] | {"annotations": {REGISTER: "[]"}}}
    assert Plugin().devices(NodeObjects(node)) == ()
