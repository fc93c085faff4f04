"""Sessions that are forked from a waiting parent keep the engine contract, and are like sessions that are not."""

import asyncio
import json
import os
import re
import signal
import sys
import sysconfig
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.contract.engines.rigs import ProcessRig, process_rig

from commonage.domain.errors import EngineFailure
from commonage.domain.images import Environment
from commonage.domain.statuses import Phase, StartRequest
from commonage.domain.workloads import Kind
from commonage.engines.process.translate import Program
from commonage.engines.process.warm import sessions as warm
from commonage.engines.process.warm.sessions import PROGRAM, WarmSessions
from commonage.engines.rundir.runs import RunFolder
from commonage.engines.settings import ProcessSettings
from commonage.testing.behaviour import Behaviour, shell_command
from commonage.testing.engine_contract import EngineContract
from commonage.testing.engine_rig import FOREVER, EngineRig, StartRequestFactory

pytestmark = [pytest.mark.anyio, pytest.mark.needs("cgroups")]
HERE = ProcessSettings(node_name="here")
# The fake replaces any of the libraries that a parent imports.
LIBRARY = "aiodns"
RUNS_ITS_ARGUMENTS = "import os, sys\nos.execvp(sys.argv[1], sys.argv[1:])\n"


def make_environment(folder: Path, program: str = RUNS_ITS_ARGUMENTS, library: str = "", python: str = "") -> Path:
    """A virtual environment with our session program; gives the folder of its programs."""
    programs, packages = folder / "bin", folder / f"lib/python3.{sys.version_info.minor}/site-packages"
    programs.mkdir(parents=True)
    packages.mkdir(parents=True)
    real = Path(sysconfig.get_config_var("BINDIR"), f"python3.{sys.version_info.minor}")
    (folder / "pyvenv.cfg").write_text(f"home = {real.parent}\ninclude-system-site-packages = false\n")
    (programs / "real-python").symlink_to(real)
    if python:
        (programs / "python").write_text(python)
        (programs / "python").chmod(0o755)
    else:
        (programs / "python").symlink_to(real)
    (programs / PROGRAM).write_text(f"#!{programs / ('real-python' if python else 'python')}\n{program}")
    (programs / PROGRAM).chmod(0o755)
    if library:
        (packages / f"{LIBRARY}.py").write_text(library)
    return programs


class SessionRequestFactory(StartRequestFactory):
    """Orders for sessions."""

    def __call__(self, behaviour: Behaviour, *, memory_mib: int = 256, **changes: object) -> StartRequest:
        return super().__call__(behaviour, memory_mib=memory_mib, **{"kind": Kind.SESSION, **changes})


def _command(behaviour: Behaviour) -> tuple[str, ...]:
    return ("no-such-command",) if behaviour.exit_code == 127 else (PROGRAM, *shell_command(behaviour))


@asynccontextmanager
async def warm_rig(
    data: Path, programs: Path, settings: ProcessSettings = HERE, node: str = "here"
) -> AsyncIterator[ProcessRig]:
    async with process_rig(data, settings) as rig:
        place = Environment("place", "Place", python=str(programs / "python"), kinds=(Kind.SESSION,))
        rig.start_request = SessionRequestFactory(place, node, _command, time.time)
        yield rig


class TestForkedSessions(EngineContract):
    @pytest.fixture
    async def rig(self, tmp_path: Path) -> AsyncIterator[EngineRig]:
        async with warm_rig(tmp_path / "data", make_environment(tmp_path / "env")) as rig:
            yield rig


def name_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")[0].decode()


def keeper_of(data: Path, request: StartRequest) -> int:
    runner = RunFolder(data / "runs" / request.attempt_id).runner()
    assert runner is not None
    return runner.pid


def is_forked(data: Path, request: StartRequest) -> bool:
    return name_of(keeper_of(data, request)) == "commonage-keeper"


def parents_of(programs: Path) -> list[int]:
    """The waiting parents for this environment, ready or not."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
        except OSError:
            continue
        ready = words[:2] == [b"commonage-warm-parent", bytes(programs)]
        if ready or (words[:1] == [bytes(programs / "python")] and any(word.endswith(b"zygote.py") for word in words)):
            found.append(int(entry.name))
    return found


def only_parent_of(programs: Path) -> int:
    """Its pid. A keeper that was just forked still has its parent's name, until it takes its own."""
    while len(found := parents_of(programs)) != 1:
        time.sleep(0.01)
    return found[0]


# Everything that a program can find out about its start. Parent and session differ by design.
LOOKS_AROUND = """
import atexit, json, locale, os, random, signal, sys, sysconfig, tempfile, threading
status = {line.partition(":")[0]: line.partition(":")[2].strip() for line in open("/proc/self/status")}
seen = {
    "variables": dict(os.environ), "cwd": os.getcwd(), "argv": sys.argv, "orig_argv": sys.orig_argv, "path": sys.path,
    "executable": sys.executable, "prefix": sys.prefix, "file": __file__, "name": __name__,
    "cmdline": open("/proc/self/cmdline").read().rstrip("\\0"), "comm": open("/proc/self/comm").read(),
    "files": [(n, os.readlink(f"/proc/self/fd/{n}")) for n in os.listdir("/proc/self/fd") if int(n) < 3],
    "more files": len(os.listdir("/proc/self/fd")), "inheritable": [os.get_inheritable(n) for n in range(3)],
    "signals": [status[name] for name in ("SigBlk", "SigIgn", "SigCgt")], "umask": status["Umask"],
    "int": str(signal.getsignal(signal.SIGINT)), "term": str(signal.getsignal(signal.SIGTERM)),
    "threads": threading.active_count(), "nice": os.nice(0), "tmp": tempfile.gettempdir(),
    "home": os.path.expanduser("~"), "userbase": sysconfig.get_config_var("userbase"),
    "locale": [locale.setlocale(locale.LC_ALL), locale.getpreferredencoding(), sys.getfilesystemencoding()],
    "out": [(s.encoding, s.errors, s.write_through, type(s.buffer).__name__) for s in (sys.stdout, sys.stderr)],
    "groups": sorted(line.split(":")[2] for line in open("/proc/self/cgroup").read().split()),
    "chance": random.random(),
}
print(json.dumps(seen), flush=True)
atexit.register(print, "bye")
threading.Timer(0.1, print, ["later"]).start()
sys.exit(5)
"""


async def test_a_forked_session_is_like_one_that_is_started_afresh(tmp_path: Path) -> None:
    programs = make_environment(tmp_path / "env", LOOKS_AROUND)
    seen = []
    for folder, settings in (
        ("folder-1", HERE),
        ("folder-2", HERE),
        ("folder-3", ProcessSettings(node_name="here", warm_sessions=False)),
    ):
        async with warm_rig(tmp_path / folder, programs, settings) as rig:
            request = rig.start_request(
                Behaviour(), command=(PROGRAM, "--port={port}", "ü"), wants_port=True, variables=(("OWN", "a b\nc"),)
            )
            assert (await rig.ended(request)).exit_code == 5
            assert (tmp_path / folder / "runs" / request.attempt_id / "exit").read_text() == "5\n"
            text, *rest = await rig.lines(request.attempt_id)
            assert rest == ["later", "bye"]
            port = re.findall(r"--port=(\d+)", text)[0]
            for own in (request.attempt_id, request.workload_id, folder, port):
                text = text.replace(own, "ID")
            seen.append(json.loads(text))
            seen[-1]["groups"] = [re.sub("[0-9a-f]{12}", "KEY", path) for path in seen[-1]["groups"] if "ID" in path]
    forked, again, fresh = seen
    assert forked.pop("chance") != again.pop("chance")
    fresh.pop("chance")
    assert forked.pop("groups") == fresh.pop("groups") != []
    assert forked == fresh


async def test_the_log_says_what_went_wrong(tmp_path: Path) -> None:
    async with warm_rig(tmp_path / "data", make_environment(tmp_path / "env", "print('out')\n1 / 0")) as rig:
        request = rig.start_request(Behaviour())
        assert (await rig.ended(request)).exit_code == 1
        lines = await rig.lines(request.attempt_id)
        assert lines[0] == "out"
        assert lines[-1] == "ZeroDivisionError: division by zero"


async def test_sessions_are_forked_and_a_job_is_not(tmp_path: Path) -> None:
    programs = make_environment(tmp_path / "env")
    async with warm_rig(tmp_path / "data", programs) as rig:
        job = await rig.started(rig.start_request(FOREVER, kind=Kind.JOB))
        assert not is_forked(tmp_path / "data", job)
        assert parents_of(programs) == []
        requests = [rig.start_request(FOREVER) for _ in range(4)]
        await asyncio.gather(*(rig.started(request) for request in requests))
        assert all(is_forked(tmp_path / "data", request) for request in requests)
        assert len(parents_of(programs)) == 1


async def test_a_parent_that_is_killed_takes_nobody_along_and_is_replaced(tmp_path: Path) -> None:
    programs = make_environment(tmp_path / "env")
    async with warm_rig(tmp_path / "data", programs) as rig:
        before = await rig.started(rig.start_request(FOREVER))
        [parent] = parents_of(programs)
        os.kill(parent, signal.SIGKILL)

        async def is_gone() -> bool:
            return parents_of(programs) == []

        await rig.until(is_gone, "the parent ended")
        after = await rig.started(rig.start_request(FOREVER))
        assert is_forked(tmp_path / "data", after)
        assert len(parents_of(programs)) == 1
        for request in (before, after):
            await rig.phase(request.attempt_id, Phase.RUNNING)
            await (await rig.engine()).stop(request.attempt_id, 60)
            assert (await rig.phase(request.attempt_id, Phase.ENDED)).exit_code == 143


async def test_forks_from_a_new_parent_when_the_old_one_is_killed_just_before_the_fork(tmp_path: Path) -> None:
    programs = make_environment(tmp_path / "env")
    sessions = WarmSessions({})
    run = tmp_path / "run"
    run.mkdir()
    (tmp_path / "group").write_text("")
    variables = {"PATH": f"{programs}:/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONUNBUFFERED": "1"}
    program = Program((PROGRAM, "sh", "-c", "exit 0"), variables)
    try:
        for _ in range(warm.FAILURES_MAX + 1):
            coming = sessions.prepare(programs)
            if coming is not None:
                await asyncio.wrap_future(coming)
            os.kill(await asyncio.to_thread(only_parent_of, programs), signal.SIGKILL)
            pid = await asyncio.to_thread(sessions.spawn, programs, run, [str(tmp_path / "group")], program, tmp_path)
            assert pid is not None
    finally:
        sessions.close()


async def test_forks_from_a_new_parent_when_many_sessions_start_as_the_old_one_is_killed(tmp_path: Path) -> None:
    programs = make_environment(tmp_path / "env")
    sessions = WarmSessions({})
    (tmp_path / "group").write_text("")
    variables = {"PATH": f"{programs}:/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONUNBUFFERED": "1"}
    program = Program((PROGRAM, "sh", "-c", "exit 0"), variables)
    runs = [tmp_path / f"run-{number}" for number in range(6)]
    for run in runs:
        run.mkdir()
    try:
        coming = sessions.prepare(programs)
        assert coming is not None
        await asyncio.wrap_future(coming)
        os.kill(await asyncio.to_thread(only_parent_of, programs), signal.SIGKILL)
        group = [str(tmp_path / "group")]
        spawned = [asyncio.to_thread(sessions.spawn, programs, run, group, program, tmp_path) for run in runs]
        assert None not in await asyncio.gather(*spawned)
    finally:
        sessions.close()


async def test_a_parent_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = make_environment(tmp_path / "env")
    async with warm_rig(tmp_path / "data", programs) as rig:
        await rig.started(rig.start_request(FOREVER))
        [parent] = parents_of(programs)
        os.kill(parent, signal.SIGSTOP)
        with monkeypatch.context() as impatient:
            impatient.setattr(warm, "ANSWERS_WITHIN_S", 0.3)
            request = await rig.started(rig.start_request(FOREVER))
        assert not is_forked(tmp_path / "data", request)
        assert parents_of(programs) == []
        assert await rig.lines(request.attempt_id) == ["here"]
        assert is_forked(tmp_path / "data", await rig.started(rig.start_request(FOREVER)))


async def test_an_environment_whose_parents_fail_is_left_alone(tmp_path: Path) -> None:
    tried = tmp_path / "tried"
    programs = make_environment(tmp_path / "env", python=f"#!/bin/sh\necho tried >>{tried}\n")
    async with warm_rig(tmp_path / "data", programs) as rig:
        for _ in range(warm.FAILURES_MAX + 2):
            request = await rig.started(rig.start_request(FOREVER))
            assert not is_forked(tmp_path / "data", request)
    assert len(tried.read_text().split()) == warm.FAILURES_MAX


@pytest.mark.parametrize(
    "library",
    [
        "import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
        "kept = open('/dev/null')",
        "import sys; sys.modules['numpy'] = sys",
        "import os; home = os.path.expanduser('~/.local')",
        "import os; all = os.environ.copy()",
        "import os; home = os.environb.get(b'HOME')",
    ],
)
async def test_an_environment_that_is_not_fit_for_forks_starts_cold(tmp_path: Path, library: str) -> None:
    async with warm_rig(tmp_path / "data", make_environment(tmp_path / "env", library=library)) as rig:
        for _ in range(2):
            assert not is_forked(tmp_path / "data", await rig.started(rig.start_request(FOREVER)))


async def test_a_variable_that_a_library_has_read_makes_a_cold_start_if_it_is_set(tmp_path: Path) -> None:
    library = "import os; CHOICE = os.environ.get('CHOICE', 'none')"
    programs = make_environment(tmp_path / "env", f"import {LIBRARY}\nprint({LIBRARY}.CHOICE)", library)
    async with warm_rig(tmp_path / "data", programs) as rig:
        for variables, shown in (((), "none"), ((("CHOICE", "other"),), "other"), ((("PYTHONPATH", "/x"),), "none")):
            request = rig.start_request(Behaviour(), variables=variables)
            await rig.ended(request)
            assert await rig.lines(request.attempt_id) == [shown]


async def test_what_was_installed_meanwhile_is_there(tmp_path: Path) -> None:
    programs = make_environment(tmp_path / "env", f"import {LIBRARY}\nprint({LIBRARY}.NUMBER)", "NUMBER = 1")
    [packages] = programs.parent.glob("lib/*/site-packages")
    async with warm_rig(tmp_path / "data", programs) as rig:
        for number in (1, 22):
            (packages / f"{LIBRARY}.py").write_text(f"NUMBER = {number}")
            (packages / f"{LIBRARY}-{number}.dist-info").mkdir()
            request = rig.start_request(Behaviour())
            await rig.ended(request)
            assert await rig.lines(request.attempt_id) == [str(number)]


async def test_what_cannot_be_passed_on_is_refused(tmp_path: Path) -> None:
    async with warm_rig(tmp_path / "data", make_environment(tmp_path / "env")) as rig:
        await rig.started(rig.start_request(FOREVER))
        with pytest.raises(EngineFailure, match="cannot be passed on"):
            await (await rig.engine()).start(rig.start_request(FOREVER, command=(PROGRAM, "a\0b")))


async def test_two_forks_of_one_attempt_are_one(tmp_path: Path) -> None:
    programs = make_environment(tmp_path / "env")
    sessions = WarmSessions({})
    coming = sessions.prepare(programs)
    assert coming is not None
    assert await asyncio.wrap_future(coming) is not None
    run = tmp_path / "run"
    run.mkdir()
    (tmp_path / "group").write_text("")
    variables = {"PATH": f"{programs}:/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONUNBUFFERED": "1"}
    program = Program((PROGRAM, "sh", "-c", "echo here; sleep 0.5; exit 3"), variables)
    pids = {sessions.spawn(programs, run, [str(tmp_path / "group")], program, tmp_path) for _ in range(5)}
    assert len(pids) == 5
    deadline = time.monotonic() + 20
    while not (run / "exit").exists() or not (run / "exit").read_text():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
    assert (run / "exit").read_text() == "3\n"
    assert (run / "log").read_text() == "here\n"
    sessions.close()
    assert sessions.prepare(programs) is None
    assert parents_of(programs) == []


async def test_parents_are_few(tmp_path: Path) -> None:
    sessions = WarmSessions({})
    places = [make_environment(tmp_path / str(number)) for number in range(warm.PARENTS_MAX + 2)]
    for place in places:
        sessions.prepare(place)
    assert [len(parents_of(place)) for place in places] == [0, 0, *[1] * warm.PARENTS_MAX]
    sessions.close()


OWNER = """
import asyncio, sys
from pathlib import Path
from tests.contract.engines.process.test_warm import FOREVER, Behaviour, warm_rig

async def main():
    async with warm_rig(Path(sys.argv[1]), Path(sys.argv[2])) as rig:
        living = await rig.started(rig.start_request(FOREVER))
        ending = await rig.started(rig.start_request(Behaviour(lasts_s=0.5, prints=("here",), exit_code=4)))
        print(living.attempt_id, ending.attempt_id, flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""


async def test_a_killed_owner_loses_no_session_and_leaves_no_parent(tmp_path: Path) -> None:
    programs = make_environment(tmp_path / "env")
    owner = await asyncio.create_subprocess_exec(
        sys.executable, "-c", OWNER, str(tmp_path / "data"), str(programs), stdout=asyncio.subprocess.PIPE
    )
    assert owner.stdout is not None
    living, ending = (await owner.stdout.readline()).decode().split()
    assert len(parents_of(programs)) == 1
    owner.kill()
    await owner.wait()
    await asyncio.sleep(0.8)
    async with warm_rig(tmp_path / "data", programs) as rig:

        async def is_gone() -> bool:
            return parents_of(programs) == []

        await rig.until(is_gone, "the parent ended with its owner")
        await rig.phase(living, Phase.RUNNING)
        assert (await rig.phase(ending, Phase.ENDED)).exit_code == 4
        assert await rig.lines(living) == ["here"]
        await (await rig.engine()).stop(living, 60)
        assert (await rig.phase(living, Phase.ENDED)).exit_code == 143


async def test_a_session_whose_keeper_is_shot_is_lost_and_nothing_of_it_stays(tmp_path: Path) -> None:
    async with warm_rig(tmp_path / "data", make_environment(tmp_path / "env")) as rig:
        request = await rig.started(rig.start_request(FOREVER))
        os.kill(keeper_of(tmp_path / "data", request), signal.SIGKILL)
        assert (await rig.phase(request.attempt_id, Phase.ENDED)).exit_code is None
        assert await rig.processes(request.attempt_id) == 0
