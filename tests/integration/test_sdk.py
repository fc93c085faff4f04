"""Both clients against the API on a real socket: whatever the API can do, they can."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.integration.api_world import served

from commonage.sdk import ApiError, AsyncClient, Client, SubmitIn


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(tmp_path_factory.mktemp("sdk")) as url:
        yield url


@pytest.fixture
def ann(url: str) -> Iterator[Client]:
    with Client(url, "ann") as client:
        yield client


@pytest.fixture
async def bob(url: str) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(url, "bob") as client:
        yield client


def test_a_job_from_submit_to_its_cost(ann: Client, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('hello')")
    bundle = ann.bundle(tmp_path)
    assert ann.bundle({"train.py": tmp_path / "train.py"}) == bundle
    ask = SubmitIn(command=["python", "train.py"], gpus="6GiB", bundle=bundle.digest, key="from-the-sdk")
    assert ann.dry_run(ask).startable_now
    made = ann.submit(ask)
    assert (made.created, ann.submit(ask).created) == (True, False)
    job = made.workload.id
    assert ann.wait(job, timeout_s=60).state == "succeeded"
    assert list(ann.logs(job)) == []
    assert [event.kind for event in ann.event_page(job).items][-1] == "ended"
    assert [one.id for one in ann.workloads(state=["succeeded"], text=job[:12])] == [job]
    assert ann.workload_page(limit=1, counts=True).counts["succeeded"] >= 1
    assert ann.attempts(job)[0].exit_code == 0
    assert ann.workload_usage(job).items[0].gpu_gib_h > 0
    assert ann.workload_metrics(job).series is not None
    assert [one.code for one in ann.explain(job).reasons] == ["Completed"]
    with pytest.raises(ApiError) as caught:
        ann.stop(job)
    assert (caught.value.code, caught.value.status, caught.value.retryable) == ("already-ended", 409, False)


def test_the_installation(ann: Client, url: str) -> None:
    assert {node.name for node in ann.nodes()} == {"cpu-1", "gpu-1"}
    assert ann.node_metrics("local", "gpu-1").series
    assert {one.name for one in ann.environments()} == {"base", "notebook"}
    assert ann.usage(by="environment").by == "environment"
    assert ann.info().user == "ann"
    assert ann.launch_options().simulated_gpus
    assert ann.token(note="for me").token == "token-of-ann"
    with Client(url, "admin:root") as root:
        assert root.drain("local", "cpu-1").state == "draining"
        assert root.drain("local", "cpu-1", requeue=True, by="18:00", time_zone="Europe/Berlin").leave_by is not None
        with pytest.raises(ApiError, match="ready and takes work"):
            root.remove_node("local", "gpu-1", force=True)
        assert root.resume("local", "cpu-1").state == "ready"
        assert root.launch_options("bob").simulated_gpus
    with Client(url, None) as nobody:
        assert nobody.health().status == "ok"
        with pytest.raises(ApiError) as caught:
            nobody.info()
    assert (caught.value.code, caught.value.status) == ("unauthenticated", 401)


def test_a_refusal_has_the_fields_of_its_problem(ann: Client) -> None:
    with pytest.raises(ApiError) as caught:
        ann.submit(SubmitIn(command=["x"], gpus="1/0"))
    error = caught.value
    assert (error.code, error.field, error.status) == ("invalid-gpus", "gpus", 422)
    assert "1/0" in error.detail == str(error)
    assert error.title


@pytest.mark.anyio
async def test_asyncio(bob: AsyncClient) -> None:
    before = (await bob.event_page()).items
    watching = bob.events(after=before[-1].seq if before else 0)
    job = (await bob.submit(SubmitIn(command=["true"], name="one"))).workload.id
    assert (await anext(watching)).workload_id == job
    await watching.aclose()
    assert (await bob.wait(job, timeout_s=60)).state == "succeeded"
    assert [line.text async for line in bob.logs(job, follow=True)] == []
    assert [one.id async for one in bob.workloads(text="one")] == [job]
    with pytest.raises(ApiError, match="no workload"):
        await bob.workload("0000000000000")


@pytest.mark.anyio
async def test_waiting_in_vain(bob: AsyncClient) -> None:
    held = (await bob.submit(SubmitIn(command=["true"]))).workload.id
    await bob.wait(held)
    jobs = await bob.submit(SubmitIn(command=["true"], array=3))
    assert len(jobs.ids) == jobs.count == 3
    with pytest.raises(TimeoutError):
        await bob.wait(jobs.ids[2], timeout_s=0)


def test_both_clients_can_the_same() -> None:
    def calls(kind: type) -> dict[str, list[str]]:
        return {
            name: list(inspect.signature(method).parameters)
            for name, method in vars(kind).items()
            # A client of a command reads and writes at the same time, which only the asyncio client can do.
            if not name.startswith("_") and name not in ("close", "aclose", "exec")
        }

    assert calls(Client) == calls(AsyncClient)
    assert len(calls(Client)) > 20
