"""Course files in sessions that are containers: the copy, edits and a push; and a server that is killed during a sync.

The sessions are a small program instead of Jupyter. `tests/benchmarks/test_class.py` has materials on a Swarm.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from tests.acceptance.served import Served, served
from tests.contract.harness.dockerd import new_folder
from tests.contract.harness.small_session import session_daemon
from tests.fakes.waiting import wait_until
from tests.integration.git_server import GitServer, PushedRepository, stalling

from commonage.sdk import Client
from commonage.wire.materials import MaterialOut

pytestmark = [pytest.mark.timeout(900), pytest.mark.needs("docker")]
_LARGE = 8 * 1024 * 1024


@pytest.fixture(scope="module")
def installation() -> Iterator[Served]:
    with ExitStack() as ending:
        folder = new_folder()
        ending.callback(shutil.rmtree, folder, ignore_errors=True)
        variables = ending.enter_context(session_daemon())
        yield ending.enter_context(served(folder, "--engine", "docker", "--gpus", "none", variables=variables))


def _declare(admin: Client, name: str, url: str) -> None:
    admin.put_resource("Volume", name, {"always": True, "material": {"repository": url, "poll": "10s"}})


def _until(client: Client, name: str, what: Any) -> MaterialOut:
    found: MaterialOut = wait_until(lambda: one if what(one := client.material(name)) else None, within_s=240)
    return found


def _session(installation: Served, user: str) -> str:
    asked = installation.hub("POST", f"/users/{user}/server", json={})
    assert asked.status_code in (201, 202), asked.text
    running = wait_until(
        lambda: list(installation.client(user).workloads(kind="session", state=["running"])), within_s=300
    )
    return str(running[0].id)


def _inside(installation: Served, user: str, session: str, script: str) -> str:
    """Output of a shell in the session."""
    done = installation.cli("exec", session, "--", "sh", "-c", f"{{ {script}; }} 2>&1", token=installation.token(user))
    return done.stdout.strip()


def test_session_in_a_container_edits_its_copy_and_gets_a_push(installation: Served, course: PushedRepository) -> None:
    admin, ann = installation.client("admin", "--admin"), installation.client("ann")
    first = course.push({"lab.py": "one", "week-1/data.bin": os.urandom(_LARGE), "readme.md": "hello"})
    _declare(admin, "course", course.url)
    _until(admin, "course", lambda one: one.commit == first)
    session = _session(installation, "ann")
    _until(ann, "course", lambda one: one.mine is not None and one.mine.commit == first)
    there = _inside(
        installation, "ann", session, "cd ~/materials/course && cat lab.py && ls week-1 && echo two >>lab.py"
    )
    assert there == "onedata.bin"
    refused = _inside(installation, "ann", session, "echo x >~/volumes/course/current/lab.py; rm -r /volumes/course/*")
    assert refused.count("Read-only file system") >= 2

    before = {one.name: one.stat().st_ino for one in (installation.data / "materials/course/current/week-1").iterdir()}
    second = course.push({"lab.py": "three", "week-2/new.py": "new", "readme.md": None})
    mine = _until(ann, "course", lambda one: one.mine is not None and one.mine.commit == second).mine
    assert mine is not None and (mine.edited, mine.withdrawn, mine.error) == (["lab.py"], ["readme.md"], None)
    [offered] = mine.offered
    script = f"cd ~/materials/course && cat lab.py {offered} week-2/new.py readme.md && echo more >>{offered}"
    assert _inside(installation, "ann", session, script) == "onetwo\nthreenewhello"
    after = {one.name: one.stat().st_ino for one in (installation.data / "materials/course/current/week-1").iterdir()}
    assert before == after, "unchanged files are not written again"


def test_server_that_is_killed_while_it_syncs_goes_on(
    installation: Served, git: GitServer, course: PushedRepository
) -> None:
    commit = course.push({"data.bin": os.urandom(_LARGE)})
    with stalling(git, _LARGE // 4) as slow:
        _declare(installation.client("admin", "--admin"), "slow", slow.url(course))
        assert slow.stalled.wait(240)
        shown = _until(installation.client("admin", "--admin"), "slow", lambda one: one.syncing is not None).syncing
        assert shown is not None and shown.message.startswith("Sync of material slow: receiving objects, ")
        wait_until(lambda: list((installation.data / "repositories/slow/repository").rglob("tmp_pack_*")), "a fetch")
        installation.kill()
        slow.release()
        installation.start()
        done = _until(installation.client("admin", "--admin"), "slow", lambda one: one.commit == commit)
    assert (done.state, done.error, done.files) == ("current", None, 1)
