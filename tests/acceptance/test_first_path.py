"""The whole path on one node: Alice's session holds most of a GPU, Bob's job waits for the rest, and runs."""

import asyncio
import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx2
import pytest
from playwright.sync_api import expect
from tests.acceptance.browser import await_page, chromium, load, person
from tests.acceptance.kernel import by_number, computing, run_cells, run_notebook, terminal_says
from tests.acceptance.served import USERS_PASSWORD, Served, served
from tests.acceptance.test_visits import open_lab
from tests.fakes.waiting import wait_until

from commonage.engines.containers.program import CONTAINER_SESSION
from commonage.engines.rundir.programs import SESSION_COMMAND
from commonage.wire.workloads import WorkloadOut

pytestmark = pytest.mark.timeout(900)
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("first-path")
    with served(folder, "--gpus", "simulated:1x24GiB", builds_environments=True) as running:
        yield running


def _session_token(installation: Served, user: str) -> str:
    made = installation.hub("POST", f"/users/{user}/tokens", json={"note": "test", "expires_in": 3600})
    assert made.status_code == 201, made.text
    return str(made.json()["token"])


def _answers(url: str, token: str) -> bool:
    address, host = by_number(url)
    headers = {"Authorization": f"token {token}", **host}
    with suppress(httpx2.TransportError):
        return httpx2.get(f"{address}api/status", headers=headers, timeout=30).status_code == 200
    return False


def test_session_and_job_share_one_device(installation: Served) -> None:
    alice, bob = installation.client("alice"), installation.client("bob")
    bobs_token = installation.token("bob")

    # Alice takes 16 of the GPU's 24 GiB, as the launch page and the hub's form would ask for it.
    asked = installation.hub(
        "POST",
        "/users/alice/server",
        json={"environment": "notebook", "cpus": "0.5", "memory": "1GiB", "gpus": "16GiB"},
    )
    assert asked.status_code in (201, 202), asked.text
    session = wait_until(lambda: list(alice.workloads(kind="session", state=["running"])), within_s=300)[0]
    assert session.shares[0].memory_mib == 16 * 1024
    assert session.shares[0].simulated

    # It is a real JupyterLab behind the proxy, and a notebook of the examples runs in its kernel.
    token = _session_token(installation, "alice")
    url = session.url
    assert url == f"http://alice.localhost:{installation.port}/user/alice/"
    wait_until(lambda: _answers(url, token))
    texts = asyncio.run(run_notebook(url, token, EXAMPLES / "digits.ipynb"))
    assert any("accuracy" in text for text in texts)
    assert any("16384" in text or "16 GiB" in text for text in texts), "the notebook shows its share"
    # Its terminal has the environment's own programs, too.
    said = asyncio.run(terminal_says(url, token, "command -v jupyter; echo that is a''ll", "that is all"))
    assert "/environments/notebook" in said, said

    # Bob requests 12 GiB where 8 are free: he waits, and sees why.
    done = installation.cli(
        "run", "--detach", "--json", "--gpus", "12GiB", "--env", "notebook", "--time", "10m",
        "--", "python", "train.py",
        token=bobs_token, cwd=EXAMPLES,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    job = json.loads(done.stdout)["id"]
    why = bob.explain(job)
    assert why.state == "queued"
    assert why.position == 1
    assert why.reasons[0].code == "InsufficientGpuMemory"
    assert (why.reasons[0].params["requested_mib"], why.reasons[0].params["free_mib"]) == (12 * 1024, 8 * 1024)
    # All users may see the owner, but not the names of others' workloads.
    assert [(holder.kind, holder.owner, holder.workload_id) for holder in why.holders] == [("session", "alice", None)]
    assert why.fits_now_gpus == "8192MiB"
    told = installation.cli("explain", job, token=bobs_token).stdout
    assert "12 GiB" in told and "8 GiB" in told and "alice" in told

    # What it says would start now does.
    small = installation.cli("run", "--gpus", why.fits_now_gpus, "--no-files", "--", "/bin/true", token=bobs_token)
    assert small.returncode == 0, small.stdout + small.stderr

    # Alice stops; the job starts by itself, trains and ends well.
    stopped_at = time.time()
    alice.stop(session.id)
    finished = bob.wait(job)
    assert finished.state == "succeeded", finished.reason.message
    ended = alice.workload(session.id)
    assert ended.state == "stopped"
    assert finished.started_at is not None and ended.ended_at is not None
    assert finished.started_at >= ended.ended_at > stopped_at, "the freed GPU was given on"
    log = "\n".join(line.text for line in bob.logs(job))
    assert "accuracy" in log

    # Both were accounted for.
    used = {row.subject: row.gpu_gib_h for row in installation.client("admin", "--admin").usage(by="owner").items}
    assert used["alice"] > 0 and used["bob"] > 0
    # The GPU is held from the allocation on, also while the environment is being made.
    held_s = ended.ended_at - alice.attempts(session.id)[0].allocated_at
    assert used["alice"] == pytest.approx(16 * held_s / 3600, rel=0.2)


def _notebook(*sources: str) -> str:
    cell = {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None}
    cells = [{**cell, "source": source} for source in sources]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return json.dumps({"nbformat": 4, "nbformat_minor": 4, "metadata": {"kernelspec": kernel}, "cells": cells})


@pytest.mark.needs("chromium")
def test_notebook_and_cell_run_as_jobs_of_a_session(installation: Served, tmp_path: Path) -> None:
    carol = installation.client("carol")
    asked = installation.hub("POST", "/users/carol/server", json={"environment": "notebook", "cpus": "0.5"})
    assert asked.status_code in (201, 202), asked.text
    session = wait_until(lambda: list(carol.workloads(kind="session", state=["running"])), within_s=300)[0]
    token = _session_token(installation, "carol")
    url = session.url
    assert url is not None
    wait_until(lambda: _answers(url, token))
    work = installation.data / "workspaces" / "carol" / "work"
    work.mkdir()
    (work / "one.ipynb").write_text(_notebook("import os; print(os.path.basename(os.getcwd()))", "1 / 0", "'never'"))

    # "Run as Job" in JupyterLab: the results until the failure are in the folder of the notebook, and open.
    with chromium() as browser, person(browser, installation.url, "carol", USERS_PASSWORD) as (page, _):
        open_lab(page, url)
        notebook, run = f"{url}lab/tree/work/one.ipynb", page.get_by_role("button", name="Run as Job")
        load(page, notebook)
        await_page(page, notebook, lambda: expect(run).to_be_visible(timeout=60_000))
        run.click()
        page.get_by_role("button", name="Open result").click(timeout=180_000)
        expect(page.get_by_role("tab", name="one.result-")).to_be_visible()
        expect(page.get_by_text("ZeroDivisionError").first).to_be_visible()
    [result] = work.glob("one.result-*.ipynb")
    done = json.loads(result.read_text())
    job = carol.workload(done["metadata"]["commonage"]["workload"])
    assert (job.state, job.environment) == ("failed", "notebook")
    assert job.request.text == f"{session.request.text}, site=local", "it runs where the home is"
    assert [len(cell["outputs"]) for cell in done["cells"]] == [1, 1, 0]
    assert "work" in "".join(done["cells"][0]["outputs"][0]["text"])

    # A cell as a job with a share of the GPU, of which the session has none; then one that fails, and one interrupted.
    cells = (
        "n = 20",
        "%%commonage --gpus 8GiB --in n --out m\nimport os\nm = n + 1\n"
        "print('on', os.environ['COMMONAGE_GPU_MEMORY_MIB'])\n2 * n",
        "m",
        "%%commonage\nint('no number')",
        "%%commonage --name long\nprint('begun')\nimport time\ntime.sleep(600)",
    )
    texts = asyncio.run(run_cells(url, token, *cells, interrupt_at="begun"))
    assert "on 8192\n" in texts[1] and "40" in texts[1], texts
    assert texts[2] == "21"
    assert "ValueError: invalid literal" in texts[3]
    assert "KeyboardInterrupt" in texts[4]
    [long] = (one for one in carol.workloads(kind="job") if one.name == "long")
    assert carol.wait(long.id).state == "stopped"

    # From the command line, by the same environment.
    (tmp_path / "two.ipynb").write_text(_notebook("print('two')"))
    ran = installation.cli("run", "two.ipynb", token=installation.token("carol"), cwd=tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "two" in ran.stdout.splitlines()
    assert list(work.parent.glob("jobs/*/two.result-*.ipynb"))
    carol.stop(session.id)


IDLERS = """
kind: Tenant
name: idlers
members: [{{user: carol, role: member}}]
idle: {{after: {after}, warn: 6s}}
"""


def _let_idle(installation: Served, after: str) -> None:
    """Sessions of Carol's tenant are stopped after this idle time. Their next report is two seconds away at most."""
    applied = installation.folder / "idlers.yml"
    applied.write_text(IDLERS.format(after=after))
    done = installation.cli("apply", str(applied), "--yes", token=installation.token("admin", "--admin"))
    assert done.returncode == 0, done.stdout + done.stderr


def _session_of_carol(installation: Served, name: str, **options: str) -> WorkloadOut:
    asked = installation.hub(
        "POST", f"/users/carol/servers/{name}",
        json={"environment": "notebook", "cpus": "0.2", "memory": "512MiB", "tenant": "idlers", **options},
    )  # fmt: skip
    assert asked.status_code in (201, 202), asked.text

    def running() -> WorkloadOut | None:
        found = installation.client("carol").workloads(kind="session", state=["running"])
        return next((one for one in found if one.name == name), None)

    return wait_until(running, within_s=300)


async def _until_it_ends(installation: Served, idle: WorkloadOut, busy: WorkloadOut) -> None:
    """Both have a kernel and an open WebSocket, like an open page; only one computes."""
    client, token = installation.client("carol"), _session_token(installation, "carol")
    async with computing(busy.url, token, "while True: pass"), computing(idle.url, token, "1 + 1"):
        await asyncio.to_thread(_let_idle, installation, "12s")
        await asyncio.wait_for(asyncio.to_thread(client.wait, idle.id), 180)
        assert (await asyncio.to_thread(client.workload, busy.id)).state == "running"


def test_an_idle_session_ends_and_a_busy_one_is_kept_and_gives_its_gpu_back(installation: Served) -> None:
    _let_idle(installation, "1h")
    carol, token = installation.client("carol"), _session_token(installation, "carol")
    busy = _session_of_carol(installation, "busy", gpus="4GiB")
    idle = _session_of_carol(installation, "idle")
    for one in (busy, idle):
        wait_until(lambda url=one.url: _answers(url, token))
    asyncio.run(_until_it_ends(installation, idle, busy))

    # The idle one was warned and stopped, although its page was open; a kernel that computes is use.
    ended = carol.wait(idle.id)
    assert (ended.state, ended.reason.code) == ("stopped", "IdleTooLong")
    said = [event.reason.code for event in carol.event_page(idle.id).items]
    assert said.index("IdleWarning") < said.index("Stopping")
    there = carol.workload(busy.id)
    assert (there.state, there.activity) == ("running", "active"), "its kernel computes, though its page is closed"
    assert "IdleWarning" not in [event.reason.code for event in carol.event_page(busy.id).items]

    # Its owner keeps it, and lets it go on without its GPU.
    kept = installation.cli("extend", "busy", "30m", token=installation.token("carol"))
    assert kept.returncode == 0, kept.stderr
    assert carol.workload(busy.id).kept_until > time.time() + 1700
    released = installation.cli("release-gpu", "busy", token=installation.token("carol"))
    assert released.returncode == 0, released.stderr
    assert carol.wait(busy.id).reason.code == "GpuReleased"
    again = wait_until(lambda: list(carol.workloads(kind="session", state=["running"])), within_s=120)[0]
    assert (again.name, again.shares, again.request.gpus) == ("busy", [], None)
    wait_until(lambda: _answers(again.url, token))
    carol.stop(again.id)
    carol.wait(again.id)


def test_what_only_a_hub_needs_is_left_out_of_the_notebooks_server(installation: Served, tmp_path: Path) -> None:
    python = _notebooks_python(installation)
    server = tmp_path / SESSION_COMMAND[0]
    server.write_text(f"#!{python}\n{WHAT_IS_THERE}")
    server.chmod(0o755)
    path = {"PATH": f"{tmp_path}:/usr/bin:/bin", "JUPYTERHUB_SERVICE_PREFIX": "/user/x/"}
    done = subprocess.run(CONTAINER_SESSION, env=path, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.splitlines() == ["jupyterhub.singleuser.extension", "the tables, when asked for"], done.stderr


WHAT_IS_THERE = """
import sys
print(*(name for name in ("jupyterhub.singleuser.extension", "jupyterhub.orm", "sqlalchemy") if name in sys.modules))
from jupyterhub import orm, scopes
from sqlalchemy.exc import SQLAlchemyError
assert scopes.orm.User is orm.User and issubclass(SQLAlchemyError, Exception)
print(orm.User.__tablename__ == "users" and "the tables, when asked for")
"""


def _notebooks_python(installation: Served) -> str:
    says = "import sys; print('python=' + sys.executable)"
    done = installation.cli(
        "run", "--no-files", "--env", "notebook", "--", "python", "-c", says, token=installation.token("alice")
    )
    assert done.returncode == 0, done.stderr
    return str(done.stdout.partition("python=")[2].split()[0])


def test_others_work_is_not_seen(installation: Served) -> None:
    alice = installation.client("alice")
    made = installation.cli(
        "run", "--detach", "--json", "--no-files", "--", "/bin/true", token=installation.token("bob")
    )
    refused = installation.cli("logs", json.loads(made.stdout)["id"], token=installation.token("alice"))
    assert refused.returncode != 0
    assert not [one for one in alice.workloads() if one.owner != "alice"]


def test_sign_in_by_password_leads_to_the_portal(installation: Served) -> None:
    with httpx2.Client(base_url=installation.url, follow_redirects=True, timeout=60) as browser:
        login = browser.get("/hub/login")
        form = {"username": "carol", "password": USERS_PASSWORD, "_xsrf": browser.cookies.get("_xsrf", path="/hub/")}
        entered = browser.post("/hub/login", data=form, headers={"Referer": str(login.url)})
        assert entered.status_code == 200
        assert "/services/commonage/" in str(entered.url)
        assert "carol" in entered.text
        wrong = browser.post("/hub/login", data={**form, "password": "no"})
        assert "/services/commonage/" not in str(wrong.url)
