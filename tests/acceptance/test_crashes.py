"""kill -9 of control plane, hub, proxy and of everything, at random moments of a run with sessions and jobs.

Afterwards every workload is accounted for, none ran twice, none is lost, and the sessions that lived still live.
"""

import contextlib
import os
import random
import signal
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from tests.acceptance.served import Served, served
from tests.fakes.waiting import wait_until

from commonage.sdk import ApiError, Client
from commonage.wire.workloads import SubmitIn

pytestmark = pytest.mark.timeout(900)
JOBS = 200
KILLS = 10
TERMINAL = {"succeeded", "failed", "stopped", "timed_out", "lost"}


def _children(installation: Served) -> dict[str, int]:
    """The hub's and the proxy's process ids."""
    assert installation.process is not None
    found = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            command = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
            stat = (entry / "stat").read_text() if command else ""
            parent = int(stat.rpartition(")")[2].split()[1]) if stat else 0
            if parent == installation.process.pid:
                name = (
                    "proxy" if b"traefik" in command.split(b"\0")[0] else "hub" if b"commonage.hub" in command else ""
                )
                if name:
                    found[name] = int(entry.name)
    return found


def _kill(installation: Served, victim: str) -> None:
    if victim in ("hub", "proxy"):
        pid = _children(installation).get(victim)
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
        return
    if victim == "everything":
        for pid in _children(installation).values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    installation.kill()
    installation.start()


def _submit_all(client: Client, writer: Path, acknowledged: list[str]) -> None:
    """Submit the jobs, each with a key of its own, again until it is acknowledged."""
    for number in range(JOBS):
        line = f"echo {number} >> {writer}; sleep 0.05"
        ask = SubmitIn(
            command=["sh", "-c", line], cpus="50m", memory_mib=32, name=f"job {number}", key=f"crash-{number}"
        )
        while True:
            try:
                acknowledged.append(client.submit(ask).workload.id)
                break
            except (ApiError, OSError):
                time.sleep(0.2)
        time.sleep(0.05)


def test_nothing_is_lost_and_nothing_runs_twice(tmp_path: Path) -> None:
    chance = random.Random(int(os.environ.get("COMMONAGE_TEST_SEED", "20261121")))
    victims = [chance.choice(("control plane", "hub", "proxy", "everything")) for _ in range(KILLS - 4)]
    victims += ["control plane", "hub", "proxy", "everything"]
    chance.shuffle(victims)
    ran = tmp_path / "ran"
    admins = {"COMMONAGE_ADMIN_USERS": "admin,alice"}
    with served(tmp_path, "--gpus", "simulated:1x24GiB", variables=admins) as installation:
        client = installation.client("alice", "--admin")
        for name in ("", "second"):
            path = "/users/alice/server" + (f"s/{name}" if name else "")
            options = {"environment": "notebook", "cpus": "0.2", "memory": "512MiB", "gpus": "4GiB"}
            assert installation.hub("POST", path, json=options).status_code in (201, 202)
        wait_until(lambda: len(list(client.workloads(kind="session", state=["running"]))) == 2, within_s=300)
        # A session that cannot ask the hub while it starts ends itself: only those that stand are to survive.
        wait_until(
            lambda: all(one["ready"] for one in installation.hub("GET", "/users/alice").json()["servers"].values()),
            within_s=120,
        )
        sessions = {one.id for one in client.workloads(kind="session", state=["running"])}
        claims = _claims(installation, sessions)

        acknowledged: list[str] = []
        submitting = threading.Thread(target=_submit_all, args=(client, ran, acknowledged))
        submitting.start()
        for victim in victims:
            time.sleep(chance.uniform(0.2, 2.0))
            _kill(installation, victim)
        submitting.join(300)
        assert not submitting.is_alive()
        installation.await_ready()

        wait_until(
            lambda: len(list(client.workloads(kind="job", state=list(TERMINAL)))) >= JOBS, within_s=120, every_s=0.5
        )
        jobs = list(client.workloads(kind="job"))
        assert len(acknowledged) == JOBS
        assert {one.id for one in jobs} == set(acknowledged), "exactly the acknowledged jobs exist"
        assert Counter(one.state for one in jobs) == {"succeeded": JOBS}, [
            (one.name, one.state, one.reason.message) for one in jobs if one.state != "succeeded"
        ]
        assert Counter(ran.read_text().split()) == Counter(str(number) for number in range(JOBS)), "each ran once"
        assert {one.id for one in client.workloads(kind="session", state=["running"])} == sessions
        assert _claims(installation, sessions) == claims, "the very same processes serve the sessions"
        assert all(_alive(claim) for claim in claims.values())
        wait_until(lambda: installation.hub("GET", "/users/alice").json()["servers"]["second"]["ready"])


def _claims(installation: Served, sessions: set[str]) -> dict[str, str]:
    """The process of each session, from its run folder. The process itself writes it, once."""
    return {one: (installation.data / "runs" / f"{one}-1" / "pid").read_text() for one in sessions}


def _alive(claim: str) -> bool:
    pid, began, _ = claim.split()
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19] == began
    return False
