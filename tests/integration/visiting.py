"""What a person and their programs do on a deployed host, from within its network: run by `Host.visit`, it prints
its answer as JSON."""

import json
import ssl
import sys
import time
from contextlib import closing

import httpx2
from tests.integration.sign_in import sign_in

from commonage.sdk import Client
from commonage.wire.workloads import SubmitIn

URL = "https://localhost"
_WITHIN_S = 60


def signed_in(user: str, password: str) -> str | None:
    """Sign in through the browser's door; whom the portal greets."""
    return sign_in(URL, user, password, ssl.create_default_context())


def job(token: str, *command: str) -> dict[str, object]:
    """Run a job to its end: its id, its state and what it said."""
    with closing(Client(URL, token)) as client:
        ask = SubmitIn(command=list(command), memory=64, cpus=0.1)
        found = client.wait(client.submit(ask).workload.id, timeout_s=_WITHIN_S)
        said = [line.text for line in client.logs(found.id)]
        return {"id": found.id, "state": found.state, "reason": found.reason, "said": said}


def started(token: str, *command: str) -> str:
    """Start a job and wait until it runs; its id."""
    with closing(Client(URL, token)) as client:
        found = client.submit(SubmitIn(command=list(command), memory=64, cpus=0.1)).workload
        return _until_it_runs(client, found.id)


def _until_it_runs(client: Client, workload: str) -> str:
    give_up = time.monotonic() + _WITHIN_S
    while (found := client.workload(workload)).state != "running":
        assert time.monotonic() < give_up and found.state in ("queued", "starting"), found
        time.sleep(0.2)
    return workload


def measured(token: str, workload: str) -> float:
    """How much memory it was measured to use, at most; waits for a measurement."""
    give_up = time.monotonic() + _WITHIN_S
    with closing(Client(URL, token)) as client:
        while time.monotonic() < give_up:
            series = client.workload_metrics(workload).series
            found = [value for one in series if "memory" in one.metric for point in one.points if (value := point.most)]
            if found:
                return max(found)
            time.sleep(0.5)
    raise AssertionError(f"nothing was measured of {workload}")


def ended(token: str, workload: str) -> dict[str, object]:
    """Wait for its end; how it ended, after how many tries."""
    with closing(Client(URL, token)) as client:
        found = client.wait(workload, timeout_s=_WITHIN_S)
        said = [line.text for line in client.logs(workload)]
        return {"state": found.state, "attempts": len(client.attempts(workload)), "said": said}


def session(token: str, user: str) -> str:
    """Have the user's session started, if it is not, and look into it through HTTPS; what it says."""
    headers = {"Authorization": f"token {token}"}
    with httpx2.Client(base_url=URL, headers=headers, timeout=30, follow_redirects=True) as browser:
        browser.post(f"/hub/api/users/{user}/server")
        give_up = time.monotonic() + _WITHIN_S
        while not (page := browser.get(f"/user/{user}/api")).text.startswith("a session of"):
            assert time.monotonic() < give_up, f"{page.status_code} {page.text[:500]}"
            time.sleep(0.2)
        return page.text


if __name__ == "__main__":
    what, *words = sys.argv[1:]
    acts = {act.__name__: act for act in (signed_in, job, started, measured, ended, session)}
    print(json.dumps(acts[what](*words)))
