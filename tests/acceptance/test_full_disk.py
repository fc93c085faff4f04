"""A disk that is filled to the last byte: people sign in, get a session and delete; nothing of the platform breaks.

With processes and with containers, whose sessions are a small program instead of Jupyter: the same is asked of it.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import httpx2
import pytest
from tests.acceptance.kernel import by_number
from tests.acceptance.served import USERS_PASSWORD, Served, served
from tests.contract.harness.dockerd import new_folder
from tests.contract.harness.small_session import session_daemon
from tests.fakes.waiting import wait_until

from commonage.sdk import Client
from commonage.sdk.errors import ApiError
from commonage.wire.hub import API_PATH
from commonage.wire.workloads import SubmitIn

pytestmark = [pytest.mark.timeout(900), pytest.mark.needs("mounts")]
_SIZE_MIB = 400
_MIB = 1024 * 1024


@pytest.fixture(scope="module", params=["process", pytest.param("docker", marks=pytest.mark.needs("docker"))])
def installation(request: pytest.FixtureRequest) -> Iterator[Served]:
    """One whose data folder is a small disk of its own; what is large, environments and images, lies elsewhere."""
    with ExitStack() as ending:
        folder = new_folder()
        ending.callback(shutil.rmtree, folder, ignore_errors=True)
        data, environments = folder / "data", folder / "environments"
        data.mkdir()
        environments.mkdir()
        variables = {}
        if request.param == "docker":
            variables = ending.enter_context(session_daemon())
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={_SIZE_MIB}m", "tmpfs", str(data)], check=True)
        ending.callback(subprocess.run, ["umount", "--lazy", str(data)], check=False)
        (data / "environments").symlink_to(environments)
        yield ending.enter_context(served(folder, "--engine", request.param, "--gpus", "none", variables=variables))


def _free_mib(installation: Served) -> int:
    stat = os.statvfs(installation.data)
    return stat.f_bavail * stat.f_frsize // _MIB


def _sign_in(installation: Served, name: str) -> str:
    """Where a user ends who signs in with the password, as a browser does."""
    with httpx2.Client(base_url=installation.url, follow_redirects=True, timeout=60) as browser:
        login = browser.get("/hub/login")
        form = {"username": name, "password": USERS_PASSWORD, "_xsrf": browser.cookies.get("_xsrf", path="/hub/")}
        entered = browser.post("/hub/login", data=form, headers={"Referer": str(login.url)})
        return f"{entered.status_code} {entered.url}"


def _session(installation: Served, user: str) -> httpx2.Client:
    """A session of the user, started through the hub, as a client of its Jupyter server."""
    asked = installation.hub("POST", f"/users/{user}/server", json={})
    assert asked.status_code in (201, 202) or "already running" in asked.text, asked.text
    commonage = installation.client(user)
    running = wait_until(lambda: list(commonage.workloads(kind="session", state=["running"])), within_s=300)[0]
    token = installation.hub("POST", f"/users/{user}/tokens", json={"note": "t", "expires_in": 3600}).json()["token"]
    address, host = by_number(str(running.url))
    headers = {"Authorization": f"token {token}", **host}
    jupyter = httpx2.Client(base_url=f"{address}api/", headers=headers, timeout=60)
    wait_until(lambda: jupyter.get("status").status_code == 200, within_s=240)
    return jupyter


def _fill(place: Path) -> None:
    """Until not a byte goes in any more."""
    with place.open("ab", buffering=0) as file:
        for size in (_MIB, 4096, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue


def test_who_has_filled_the_disk_signs_in_and_deletes(installation: Served) -> None:
    commonage = installation.client("alice")
    wait_until((installation.data / "reserve").exists, within_s=120)
    job = commonage.submit(SubmitIn(command=["sh", "-c", "cat /dev/zero >$HOME/big; exit 7"])).workload
    ended = commonage.wait(job.id)
    assert (ended.state, ended.exit_code) == ("failed", 7), "how it ended is known, though the disk was full"
    wait_until(lambda: _free_mib(installation) > 0, within_s=120)  # part of what was kept for this was given up

    # A new job waits and shows the reason; sign-ins and sessions do not wait.
    wait_until(
        lambda: any("DiskNearlyFull" in [why.code for why in one.reasons] for one in commonage.nodes()), within_s=120
    )
    waiting = commonage.submit(SubmitIn(command=["sh", "-c", "exit 0"], name="waits")).workload
    wait_until(lambda: "InsufficientDisk" in [one.code for one in commonage.explain(waiting.id).reasons], within_s=120)
    for user in ("alice", "somebody-new"):
        assert _sign_in(installation, user).startswith(f"200 {installation.url}/services/commonage/")
    with closing(_session(installation, "alice")) as jupyter:
        assert "big" in [one["name"] for one in jupyter.get("contents/").json()["content"]]
        assert jupyter.delete("contents/big").status_code == 204
    wait_until(lambda: _free_mib(installation) > _SIZE_MIB // 2, within_s=120)
    assert not (installation.data / "workspaces" / "alice" / "big").exists(), "not kept as rubbish either"
    assert commonage.wait(waiting.id).state == "succeeded"
    wait_until(
        lambda: (installation.data / "reserve").exists() and (installation.data / "reserve").stat().st_size == 64 * _MIB
    )


def test_when_nothing_is_left_at_all_the_platform_lives_on(installation: Served) -> None:
    alice, bob = (Client(installation.url, installation.token(one), reconnect_timeout_s=0) for one in ("alice", "bob"))
    with closing(_session(installation, "alice")) as jupyter, closing(alice), closing(bob):
        assert alice.info().user == "alice"
        home = installation.data / "workspaces" / "alice"
        give_up = time.monotonic() + 120
        while (installation.data / "reserve").exists() and time.monotonic() < give_up:
            _fill(home / "big")
            time.sleep(0.2)
        _fill(home / "big")
        assert _free_mib(installation) == 0
        # Requests are refused with the full disk as the reason, for users with and without an earlier sign-in.
        for client in (alice, bob):
            with pytest.raises(ApiError, match=r"the disk .* is full"):
                client.submit(SubmitIn(command=["sh", "-c", "exit 0"]))
        # Users cannot sign in any more, but the platform still runs and shows the reason.
        assert httpx2.get(f"{installation.url}{API_PATH}/health", timeout=60).status_code == 200
        assert installation.process is not None and installation.process.poll() is None
        # The session that runs deletes, and everything goes on.
        assert jupyter.delete("contents/big").status_code == 204
    assert installation.process is not None and installation.process.poll() is None
    done = wait_until(lambda: _done(installation), within_s=240)
    assert done == "succeeded"


def _done(installation: Served) -> str | None:
    made = installation.client("alice").submit(SubmitIn(command=["sh", "-c", "exit 0"])).workload
    return installation.client("alice").wait(made.id).state
