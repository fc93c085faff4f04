"""A whole site on a real Swarm, as its people meet it: a node dies under their sessions, a share that no GPU has,
images of the site's own registry, data that is nobody else's.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator

import httpx2
import pytest
from tests.acceptance.served import USERS_PASSWORD
from tests.contract.harness.processes import processes_of
from tests.fakes.waiting import wait_until
from tests.integration.swarm_site import DEVICE, WORKERS, SwarmSite, push_image, swarm_site

from commonage.wire.hub import PORTAL_PATH
from commonage.wire.workloads import SubmitIn

pytestmark = [pytest.mark.needs("docker", "images"), pytest.mark.timeout(600)]
DIES, STAYS = "worker2", "worker1"


@pytest.fixture(scope="module")
def site() -> Iterator[SwarmSite]:
    with swarm_site() as made:
        yield made


# --- a share that is not to be had ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gpus", "words"),
    [
        ("40GiB", "40 GiB requested, and the largest GPU has 24 GiB"),
        ("2", "2 requested, and no node has more than 1"),
        ("H100:8GiB", "No GPU of the model H100 here. Available: Simulated GPU"),
    ],
)
def test_a_share_that_no_device_has_is_refused_with_its_numbers(site: SwarmSite, gpus: str, words: str) -> None:
    site.browser("ada")
    began = time.monotonic()
    asked = site.ask("ada", gpus=gpus)
    print(f"{gpus}: refused after {time.monotonic() - began:.2f} s: {asked.text}")
    assert asked.status_code >= 400
    assert words in asked.json()["message"]
    assert site.live("ada") == []


def test_a_share_that_others_hold_is_waited_for_with_its_numbers(site: SwarmSite) -> None:
    bob = site.client("bob")
    ask = SubmitIn(command=["sleep", "600"], gpus="1", array=len(WORKERS), memory_mib=64, cpus="0.1")
    holders = bob.submit(ask).ids
    for one in holders:
        site.runs("bob", one)
    # At each change of a node Swarm looks whether its tasks still fit: those that hold all of it do.
    for name in WORKERS:
        site.swarm.label(name, "changed", "1")
    said, seconds = _progress_until(site, "ada", DEVICE.replace("G", " G"), gpus=DEVICE)
    print(f"it waits, which was told after {seconds:.2f} s: {said}")
    assert [one.state for one in site.live("ada")] == ["queued"]
    assert [(one, bob.workload(one).state, bob.workload(one).attempts) for one in holders] == [
        (one, "running", 1) for one in holders
    ]
    for one in holders:
        bob.stop(one)
    wait_until(lambda: site.is_ready("ada"))
    assert site.browser("ada").delete("/hub/api/users/ada/server").status_code in (202, 204)
    wait_until(lambda: not site.live("ada"))


def _progress_until(site: SwarmSite, user: str, words: str, **options: str) -> tuple[str, float]:
    """Request a session, and read the hub's progress page until it shows this text. Returns the seconds."""
    browser = site.browser(user)
    began = time.monotonic()
    asking = threading.Thread(target=site.ask, args=(user,), kwargs=options)
    asking.start()
    try:
        wait_until(
            lambda: browser.get(f"/hub/api/users/{user}").json()["servers"].get("", {}).get("pending"), within_s=30
        )
        with browser.stream("GET", f"/hub/api/users/{user}/server/progress") as answer:
            for line in answer.iter_lines():
                if line.startswith("data:") and words in (said := json.loads(line.removeprefix("data:"))["message"]):
                    return str(said), time.monotonic() - began
        raise AssertionError(f"the page never says {words!r}")
    finally:
        asking.join()


# --- data that is nobody else's -------------------------------------------------------------------------------------


def test_homes_follow_their_users_and_volumes_are_their_own(site: SwarmSite) -> None:
    write = "echo mine >$HOME/diary; echo 42 >/volumes/results/answer; echo plan >/volumes/projects/plan; id -u"
    mine = ["results:rw", "projects:rw"]
    assert site.run("ada", STAYS, write, volumes=mine) == ["0"]
    # On another machine the home and what is shared are the same; a Docker volume is each node's own.
    read = "cat $HOME/diary /volumes/projects/plan; ls /volumes/results"
    assert site.run("ada", DIES, read, volumes=mine) == ["mine", "plan"]
    # On the same node, as another user: none of the data is visible anywhere.
    look = (
        "ls /home; ls -A $HOME/.. /volumes/results /volumes/projects /volumes/projects/..; cat /home/ada/diary 2>&1;"
        "ls /run/docker.sock /var/run/docker.sock 2>&1; (echo x >/volumes/datasets/one.csv) 2>&1; "
        "cat /volumes/datasets/one.csv"
    )
    said = site.run("eve", STAYS, look, volumes=[*mine, "datasets"])
    assert said[0] == "eve"
    assert not any(one in ("ada", "answer", "plan", "mine") for one in said)
    assert "Read-only file system" in " ".join(said)
    assert said[-1] == "1,2"
    assert len([one for one in said if "No such file" in one]) == 3


def test_a_size_that_does_not_hold_is_said(site: SwarmSite) -> None:
    notes = {one.name: (one.place, [note.code for note in one.notes]) for one in site.client("ada").volumes().items}
    assert notes["results"] == ("/volumes/results", ["VolumeSizeNotEnforced"])
    assert notes["datasets"] == ("/volumes/datasets", [])
    assert "Nothing enforces the size of results on " in site.server.output


# --- images of the site's own registry ------------------------------------------------------------------------------


def test_an_image_of_the_sites_registry_is_fetched_once_by_the_nodes_agent(site: SwarmSite) -> None:
    reference = push_image(site.server, "public/small")
    daemon = site.swarm.machines[STAYS].daemon

    def pulled(listens: bool = False) -> tuple[int, list[str]]:
        began, client = time.time(), site.client("ada")
        ask = SubmitIn(command=["sh", "-c", "echo $COMMONAGE_USER"], environment="public/small", on={"node": STAYS})
        job = client.submit(ask.model_copy(update={"memory_mib": 64, "cpus": "0.1"})).workload
        told = []
        while (now := client.workload(job.id)).ended_at is None:
            told.append(f"{now.reason.message} {now.progress}")
        assert now.state == "succeeded", now.reason
        assert [line.text for line in client.logs(job.id)] == ["ada"]
        return daemon.pulls(began), told

    fetched, told = pulled()
    assert fetched == 1
    assert any(re.search(r"\d+ of \d+ MB", one) for one in told), sorted(set(told))
    assert pulled()[0] == 0
    daemon.ask("DELETE", f"/images/{reference}?force=1")
    assert pulled()[0] == 1
    other = site.swarm.machines[DIES].daemon
    with pytest.raises(RuntimeError, match="404"):
        other.ask("GET", f"/images/{reference}/json")
    # If an admin requests it, the image is pulled before a workload needs it.
    site.admin.prepull("public/small", [DIES])
    wait_until(
        lambda: [one.state for one in site.admin.image("public/small").nodes if one.node == DIES] == ["ready"],
        within_s=60,
    )
    assert other.ask("GET", f"/images/{reference}/json")["RepoDigests"] == [reference]


# --- a node is drained -------------------------------------------------------------------------------------------


def test_users_of_a_drained_node_are_told_and_requeued_where_they_wished(site: SwarmSite) -> None:
    site.use(DIES)
    ada, bob = site.session("ada", requeue="true"), site.session("bob")
    client = site.client("ada")
    small = {"memory_mib": 64, "cpus": "0.1"}
    serve = "exec python3 -m http.server $COMMONAGE_PORT"
    job = client.submit(SubmitIn(command=["sleep", "600"], **small)).workload
    service = client.submit(SubmitIn(kind="service", command=["sh", "-c", serve], **small)).workload
    for one in (job, service):
        site.runs("ada", one.id)
    assert {client.workload(one.id).node for one in (ada, job, service)} == {DIES}
    site.use(*WORKERS)

    site.admin.drain("local", DIES, requeue=True, by="10s")
    [told] = [one.reason for one in site.client("bob").event_page(bob.id).items if one.kind == "warning"]
    assert (told.code, told.params["node"], told.params["by"]) == ("NodeMustBeEmpty", DIES, "admin")
    assert told.params["fate"] == "session-ends"
    for one in (job, service):
        wait_until(
            lambda one=one: client.workload(one.id).node == STAYS and client.workload(one.id).state == "running",
            within_s=60,
        )
        first, _ = sorted(client.attempts(one.id), key=lambda attempt: attempt.number)
        assert processes_of(first.id) == []
    wait_until(
        lambda: site.is_ready("ada") and (site.says("ada") or {}).get("workload") not in (None, ada.id), within_s=60
    )
    [again] = site.live("ada")
    assert (again.node, again.state) == (STAYS, "running")
    told = [one.reason for one in client.event_page(again.id).items if one.reason.code == "RestartOf"]
    assert [one.params["workload_id"] for one in told] == [ada.id]
    # Who did not wish it stays until the deadline, and then reads why it is over.
    wait_until(lambda: site.client("bob").workload(bob.id).state == "stopped")
    drained = site.client("bob").workload(bob.id).reason
    assert (drained.code, drained.params["node"], drained.params["by"]) == ("NodeDrained", DIES, "admin")
    assert drained.params["leave_by_at"] is not None
    wait_until(lambda: not site.swarm.machines[DIES].daemon.containers(label=["commonage.attempt"]))
    for one in (job, service):
        client.stop(one.id)
    assert site.browser("ada").delete("/hub/api/users/ada/server").status_code in (202, 204)
    wait_until(
        lambda: not site.live("ada") and not site.browser("bob").get("/hub/api/users/bob").json()["servers"],
        within_s=60,
    )


# --- a node dies ---------------------------------------------------------------------------------------------------


def test_users_whose_node_dies_read_why_and_go_on_elsewhere_where_they_wished(site: SwarmSite) -> None:
    site.use(DIES)
    lost = {"ada": site.session("ada", requeue="true"), "bob": site.session("bob")}
    assert {one.node for one in lost.values()} == {DIES}
    assert site.at_session("ada", "PUT", "api/contents/kept", content=b"saved").status_code == 201
    site.use(*WORKERS)
    daemon = site.swarm.machines[DIES].daemon
    daemon.kill()
    began = time.monotonic()
    try:
        for user, session in lost.items():
            wait_until(
                lambda user=user, session=session: site.client(user).workload(session.id).state == "lost", within_s=60
            )
            ended = site.client(user).workload(session.id)
            assert (ended.reason.code, ended.reason.params["node"]) == ("NodeLost", DIES)
            told = [one.reason for one in site.client(user).event_page(session.id).items]
            assert ended.reason in told, told
        print(f"both were told {time.monotonic() - began:.1f} s after the daemon was killed: {ended.reason.message}")
        _goes_on_elsewhere(site, lost["ada"].id)
        print(f"who wished it had a session elsewhere after {time.monotonic() - began:.1f} s")
        _ends_and_is_told(site, lost["bob"].id)
        attempts = [one.id for user, session in lost.items() for one in site.client(user).attempts(session.id)]
        assert [processes_of(one) for one in attempts] == [[], []], "no process of the lost attempts continues"
    finally:
        daemon.start()
    admin = site.admin
    wait_until(lambda: all(one.state == "ready" for one in admin.nodes() if one.name in WORKERS))
    wait_until(lambda: not daemon.containers(label=["commonage.attempt"]))
    assert len(site.live("ada")) == 1


def _goes_on_elsewhere(site: SwarmSite, lost: str) -> None:
    wait_until(
        lambda: site.is_ready("ada") and (site.says("ada") or {}).get("workload") not in (None, lost), within_s=120
    )
    [again] = site.live("ada")
    assert (again.node, again.state, site.says("ada")["workload"]) == (STAYS, "running", again.id)
    assert site.at_session("ada", "GET", "api/contents/kept").content == b"saved"
    told = [one.reason for one in site.client("ada").event_page(again.id).items if one.reason.code == "RestartOf"]
    assert [one.params["workload_id"] for one in told] == [lost]
    [notice] = site.client("ada").launch_options().notices
    assert (notice.code, notice.params["cause"]["params"]["node"]) == ("SessionRestarted", DIES)


def _ends_and_is_told(site: SwarmSite, lost: str) -> None:
    bob = site.browser("bob")
    wait_until(lambda: not bob.get("/hub/api/users/bob").json()["servers"])
    assert site.live("bob") == []
    reason = site.client("bob").workload(lost).reason.message
    with httpx2.Client(base_url=site.server.url, follow_redirects=True, timeout=60, trust_env=False) as browser:
        page = browser.get("/hub/login")
        form = {"username": "bob", "password": USERS_PASSWORD, "_xsrf": browser.cookies.get("_xsrf", path="/hub/")}
        browser.post("/hub/login", data=form, headers={"Referer": str(page.url)})
        front = browser.get(PORTAL_PATH).text
        assert f"Your session ended. {reason}" in front
        assert f"launch?again={lost}" in front, "and what to do about it"
        assert f"Your session ended. {reason}" in browser.get("/hub/spawn/bob").text
