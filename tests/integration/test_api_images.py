"""Images through the API and the SDK, on every store: registration, visibility, removal."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from click.testing import CliRunner
from tests.fakes.waiting import until
from tests.integration.api_world import STORES, Api, make_store, served, serving

from commonage.cli import main
from commonage.domain.principals import Principal, Scope
from commonage.domain.tenants import Rules, Tenant
from commonage.domain.workloads import State
from commonage.ports.registry import RegistryAbout
from commonage.sdk.errors import ApiError
from commonage.sdk.synchronous import Client
from commonage.testing.behaviour import Behaviour
from commonage.wire.images import ImageIn, KernelIn

pytestmark = pytest.mark.anyio
RULES = Rules((Tenant("lab", "The Lab"), Tenant("optics")))
HERE = "registry.test:5000"
ROOT = Principal("root", frozenset(Scope))
TWO = [
    {"name": "torch", "title": "PyTorch", "prefix": "/opt/kernels/torch"},
    {"name": "py310", "prefix": "/opt/kernels/py310"},
]


@dataclass
class SomeRegistry:
    about: RegistryAbout


def wanted(name: str = "lab/torch", digit: str = "a", **fields: Any) -> dict[str, Any]:
    reference = f"{HERE}/{name.partition(':')[0]}@sha256:{digit * 64}"
    return {"name": name, "reference": reference, "kernels": TWO, "server_prefix": "/opt/server", **fields}


@pytest.fixture(params=STORES)
async def api(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Api]:
    async with serving(tmp_path, make_store(request.param, tmp_path, request), rules=RULES) as running:
        running.identity.groups["ann"] = ("lab", "staff")
        running.identity.groups["bob"] = ("optics",)
        running.app.state.context.registry = SomeRegistry(RegistryAbout(HERE, "PEM"))
        running.engine.behave(Behaviour(lasts_s=None))
        yield running


async def test_registered_image_is_listed_and_runs_workloads(api: Api, ann: httpx2.AsyncClient) -> None:
    provenance = {
        "at": 1.5e9,
        "builder": "buildah 1.28",
        "base": "debian:bookworm",
        "files": [{"path": "requirements.txt", "digest": "sha256:" + "1" * 64}],
        "commit": "c0ffee1",
        "dirty": True,
    }
    ask = wanted("lab/torch:2.4", size_bytes=5_000_000, title="Torch", vram_mib=4096, provenance=provenance)
    answer = await ann.post("/images", json=ask)
    assert answer.status_code == 201, answer.text
    made = answer.json()
    assert (made["name"], made["tenant"], made["by"]) == ("lab/torch:2.4", "lab", "ann")
    assert made["digest"] == "sha256:" + "a" * 64
    assert made["kinds"] == ["session", "job", "service"]
    assert made["environments"] == ["lab/torch:2.4", "lab/torch:2.4/torch", "lab/torch:2.4/py310"]
    assert [(one["title"], one["environment"]) for one in made["kernels"]] == [
        ("PyTorch", "lab/torch:2.4/torch"),
        ("py310", "lab/torch:2.4/py310"),
    ]
    assert made["provenance"] == {**provenance, "by": "ann", "base_digest": ""}
    assert (made["vram_mib"], made["mine"], made["running"]) == (4096, True, 0)
    environments = {one["name"]: one for one in (await ann.get("/environments")).json()["items"]}
    assert environments["lab/torch:2.4/torch"]["kinds"] == ["job", "service"]
    job = {"command": ["python", "x.py"], "environment": "lab/torch:2.4/torch"}
    refused = await ann.post("/workloads", json=job)
    assert (refused.status_code, refused.json()["code"], refused.json()["field"]) == (422, "needs-gpu", "gpus")
    started = await ann.post("/workloads", json={**job, "gpus": "4GiB"})
    assert (started.status_code, started.json()["workload"]["tenant"]) == (201, "lab")
    await until(lambda: api.control.queries.live_counts().get(State.RUNNING))
    await until(lambda: all(one.state == "ready" for one in api.control.images.one(ROOT, "lab/torch:2.4").nodes))
    found = (await ann.get("/images/lab/torch:2.4")).json()
    assert (found["running"], [one["node"] for one in found["nodes"]]) == (1, ["cpu-1", "gpu-1"])
    (run,) = api.engine.world.runs.values()
    path = dict(run.request.environment.variables)["PATH"]
    assert path.startswith("/opt/kernels/torch/bin:/usr/local/sbin:")


async def test_the_apps_of_an_image_are_those_that_sessions_know(ann: httpx2.AsyncClient) -> None:
    refused = await ann.post("/images", json=wanted(apps=["tensorboard", "solitaire"]))
    assert (refused.status_code, refused.json()["code"], refused.json()["field"]) == (422, "invalid-image", "apps")
    made = await ann.post("/images", json=wanted(apps=["desktop"]))
    assert (made.status_code, made.json()["apps"]) == (201, ["desktop"]), made.text


async def test_images_of_other_tenants_are_hidden(ann: httpx2.AsyncClient, bob: httpx2.AsyncClient) -> None:
    assert (await ann.post("/images", json=wanted())).status_code == 201
    assert (await bob.get("/images")).json() == {"items": []}
    names = [one["name"] for one in (await bob.get("/environments")).json()["items"]]
    assert names == ["base", "notebook"]
    offered = [one["name"] for one in (await bob.get("/launch-options")).json()["environments"]]
    assert offered == names
    for answer, code in (
        (await bob.get("/images/lab/torch"), "image-not-found"),
        (await bob.delete("/images/lab/torch"), "image-not-found"),
        (await bob.post("/images/lab/torch/prepull"), "image-not-found"),
        (await bob.post("/images", json=wanted()), "not-a-member"),
        (await bob.post("/images", json=wanted("public/torch")), "not-admin"),
        (
            await bob.post("/workloads", json={"command": ["x"], "environment": "lab/torch/torch"}),
            "unknown-environment",
        ),
        (
            await bob.post("/workloads/dry-run", json={"command": ["x"], "environment": "lab/torch"}),
            "unknown-environment",
        ),
    ):
        assert answer.json()["code"] == code, answer.text


async def test_name_can_be_checked_before_push(api: Api, ann: httpx2.AsyncClient, bob: httpx2.AsyncClient) -> None:
    asked = {"name": "lab/torch"}
    assert (await ann.post("/images/dry-run", json=asked)).json() == {**asked, "tenant": "lab", "replaces": False}
    assert (await ann.post("/images", json=wanted())).status_code == 201
    assert (await ann.post("/images/dry-run", json=asked)).json()["replaces"]
    for person, name, code in (
        (bob, "lab/torch", "not-a-member"),
        (ann, "public/torch", "not-admin"),
        (ann, "Torch", "invalid-image"),
    ):
        assert (await person.post("/images/dry-run", json={"name": name})).json()["code"] == code
    api.identity.groups["bob"] = ("lab",)
    async with api.client("bob") as again:
        assert (await again.post("/images/dry-run", json=asked)).json()["code"] == "not-yours"
    assert (await ann.get("/images/dry-run")).status_code in (404, 405)


async def test_launch_options_show_images_of_the_users_tenants(api: Api, ann: httpx2.AsyncClient) -> None:
    await ann.post("/images", json=wanted())
    async with api.client("admin:root") as root:
        assert [one["name"] for one in (await root.get("/images")).json()["items"]] == ["lab/torch"]
        for groups, offered in ((["lab"], True), (["optics"], False)):
            found = await root.get("/launch-options", params={"user": "eve", "group": groups})
            assert ("lab/torch" in [one["name"] for one in found.json()["environments"]]) is offered
        made = await root.post("/images", json=wanted("public/any", reference="sha256:" + "c" * 64))
        assert (made.status_code, made.json()["tenant"]) == (201, None)
    assert [one["mine"] for one in (await ann.get("/images")).json()["items"]] == [True, False]


async def test_removed_image_is_refused_with_reason(api: Api, ann: httpx2.AsyncClient) -> None:
    await ann.post("/images", json=wanted())
    ask = {"command": ["x"], "environment": "lab/torch/torch", "cpus": 8}
    ids = [(await ann.post("/workloads", json=ask)).json()["workload"]["id"] for _ in range(3)]
    await until(lambda: api.control.queries.live_counts().get(State.RUNNING) == 2)
    removed = await ann.delete("/images/lab/torch")
    assert (removed.status_code, removed.json()["waiting"]) == (200, [ids[2]])
    await until(lambda: api.control.queries.live_counts().get(State.HELD))
    waits = (await ann.get(f"/workloads/{ids[2]}")).json()
    assert (waits["reason"]["code"], waits["reason"]["params"]["by"]) == ("ImageRemoved", "ann")
    refused = (await ann.post("/workloads", json=ask)).json()
    assert refused["reason"]["code"] == "EnvironmentNotOffered"
    assert refused["reason"]["params"]["removed"]["code"] == "ImageRemoved"
    assert refused["reason"]["params"]["offered"] == ["base"]
    assert [(await ann.delete("/images/lab/torch")).status_code, (await ann.get("/images")).json()] == [
        404,
        {"items": []},
    ]
    assert (await ann.post("/images", json=wanted(digit="b"))).status_code == 201
    await until(lambda: not api.control.queries.live_counts().get(State.HELD))


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"name": "lab/torch"}, 422, "invalid-input"),
        (wanted(extra=1), 422, "unknown-field"),
        (wanted("Lab/Torch"), 422, "invalid-image"),
        (wanted(reference=f"{HERE}/lab/torch:latest"), 422, "invalid-image"),
        (wanted(reference=f"elsewhere.test/lab/torch@sha256:{'a' * 64}"), 403, "not-admin"),
        (wanted(kernels=[*TWO, TWO[0]]), 422, "invalid-image"),
        (wanted(kinds=[]), 422, "invalid-image"),
        (wanted(kinds=["party"]), 422, "invalid-input"),
        (wanted(vram_mib="much"), 422, "invalid-memory"),
        (wanted(provenance={"files": [{"path": "x", "digest": "md5:1"}]}), 422, "invalid-input"),
    ],
)
async def test_refuses_invalid_images(ann: httpx2.AsyncClient, body: dict[str, Any], status: int, code: str) -> None:
    answer = await ann.post("/images", json=body)
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    assert (await ann.get("/images")).json() == {"items": []}


def test_sdk_has_a_call_for_each_route(tmp_path: Path) -> None:
    digest = "sha256:" + "d" * 64
    with served(tmp_path) as url, Client(f"{url}", "admin:root") as client:
        assert not client.check_image_name("public/x:1").replaces
        made = client.register_image(ImageIn(name="public/x:1", reference=digest, kernels=[KernelIn(name="python3")]))
        assert (made.name, made.environments, made.digest) == ("public/x:1", ["public/x:1"], digest)
        assert [one.name for one in client.images()] == ["public/x:1"]
        assert client.prepull("public/x:1", ["gpu-1"]).nodes
        assert client.image("public/x:1").by == "root"
        assert client.remove_image("public/x:1").waiting == []
        with pytest.raises(ApiError, match="there is no image 'public/x:1'"):
            client.image("public/x:1")


def test_environments_show_tenant_and_gpu_needs(tmp_path: Path) -> None:
    def prepare(api: Api) -> None:
        api.identity.groups["ann"] = ("lab",)
        api.app.state.context.registry = SomeRegistry(RegistryAbout(HERE, "PEM"))

    with served(tmp_path, prepare=prepare, rules=RULES) as url:
        with Client(url, "ann") as client:
            client.register_image(ImageIn.model_validate(wanted(vram_mib=4096, title="Torch")))
        told = {}
        for person in ("ann", "bob"):
            variables = {
                "XDG_CONFIG_HOME": str(tmp_path),
                "COMMONAGE_URL": url,
                "COMMONAGE_TOKEN": person,
                "COLUMNS": "200",
            }
            done = CliRunner().invoke(main, ["env", "ls"], env=variables, prog_name="commonage")
            assert done.exit_code == 0, done.output
            told[person] = done.stdout
    line = next(one for one in told["ann"].splitlines() if "lab/torch/py310" in one)
    assert "Torch: py310" in line
    assert " lab " in line
    assert "job, service" in line
    assert "needs 4 GiB of VRAM" in line
    assert "lab/torch" not in told["bob"]
