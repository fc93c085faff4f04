"""Signs of use of a session: kernels that compute and programs in terminals, not shells that wait."""

from __future__ import annotations

import importlib.util
import os
import pty
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import psutil
import pytest
from tests.fakes.waiting import wait_until

from commonage.files.injected import JUPYTER


@pytest.fixture(scope="module")
def module() -> Iterator[Any]:
    """The module as a session loads it. Jupyter's server is not among our own dependencies: only names are needed."""
    before = set(sys.modules)
    for name in ("jupyter_server", "jupyter_server.base", "jupyter_server.base.handlers", "jupyter_server.utils"):
        sys.modules.setdefault(name, ModuleType(name))
    vars(sys.modules["jupyter_server.base.handlers"]).setdefault("APIHandler", object)
    vars(sys.modules["jupyter_server.utils"]).setdefault("url_path_join", os.path.join)
    spec = importlib.util.spec_from_file_location("commonage_session", JUPYTER / "commonage_session.py")
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    yield loaded
    for name in set(sys.modules) - before:
        if name.startswith("jupyter_server"):
            del sys.modules[name]


@dataclass
class Kernels:
    """The kernel manager of a server: `kernels` by id."""

    kernels: dict[str, Any] = field(default_factory=dict)

    def list_kernel_ids(self) -> list[str]:
        return list(self.kernels)

    def get_kernel(self, kernel_id: str) -> Any:
        return self.kernels[kernel_id]


def kernel(state: str, active_s: float = 0.0, pid: int | None = None) -> Any:
    at = datetime.now(UTC) - timedelta(seconds=active_s)
    return SimpleNamespace(
        execution_state=state, last_activity=at, kernel_name="python3", provisioner=SimpleNamespace(pid=pid)
    )


@pytest.fixture
def attempt() -> str:
    """One for each test: programs of others may still be ending."""
    return f"1m7yv9fqka6p0-{uuid.uuid4().hex}"


@pytest.fixture
def kernels() -> Kernels:
    return Kernels()


@pytest.fixture
def watch(module: Any, kernels: Kernels, attempt: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """This process is the session's server. It may have other children, such as the Docker daemon of other tests."""
    earlier = {child.pid for child in psutil.Process().children(recursive=True)}
    children = module._children
    monkeypatch.setattr(
        module, "_children", lambda there: children({pid: one for pid, one in there.items() if pid not in earlier})
    )
    found = module.Watch(SimpleNamespace(kernel_manager=kernels, web_app=SimpleNamespace(settings={})), attempt)
    found.active_at -= 1000
    return found


def age(module: Any, watch: Any) -> float:
    return float(module.time.monotonic() - watch.active_at)


def looks(watch: Any) -> Any:
    watch.look()
    return watch


@dataclass
class Shell:
    master: int

    def type(self, line: str) -> None:
        os.write(self.master, line.encode())


@pytest.fixture
def shell(attempt: str) -> Iterator[Shell]:
    """A shell in a terminal of the attempt; not a child of this process, as in tmux."""
    master, slave = pty.openpty()
    code = (
        "import os,sys; os.fork() and sys.exit(); os.setsid(); import fcntl,termios; "
        "fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execvp('sh', ['sh', '-i'])"
    )
    environ = {"PATH": os.environ["PATH"], "COMMONAGE_ATTEMPT_ID": attempt, "PS1": "> "}
    subprocess.run([sys.executable, "-c", code], stdin=slave, stdout=slave, stderr=slave, env=environ, check=True)
    os.close(slave)
    yield Shell(master)
    os.close(master)  # hangs up


def test_a_kernel_that_computes_is_use_and_one_that_waits_is_none(module: Any, watch: Any, kernels: Kernels) -> None:
    kernels.kernels = {"a": kernel("idle", 500), "b": kernel("busy", 900)}
    assert looks(watch).is_busy
    assert watch.programs == ["kernel python3"]
    assert age(module, watch) < 5
    watch.active_at -= 1000
    kernels.kernels = {"a": kernel("idle", 500), "b": kernel("idle", 700)}
    assert not looks(watch).is_busy
    assert 499 <= age(module, watch) < 600


def test_the_processes_of_a_kernel_are_use_while_they_compute(watch: Any, kernels: Kernels) -> None:
    code = "import subprocess,sys; subprocess.run([sys.executable, '-c', 'while True: pass'])"
    waits = "import time; print(flush=True); time.sleep(600)"
    quiet = f"import subprocess,sys; subprocess.run([sys.executable, '-c', '{waits}'])"
    for program, computes in ((code, True), (quiet, False)):
        root = subprocess.Popen([sys.executable, "-c", program], start_new_session=True, stdout=subprocess.PIPE)
        assert root.stdout is not None
        try:
            kernels.kernels = {"a": kernel("idle", 500, root.pid)}
            if computes:
                wait_until(lambda: looks(watch).is_busy, within_s=60)
            else:
                assert root.stdout.readline() == b"\n", "its start is use"
                assert not looks(watch).is_busy
                assert not looks(watch).is_busy
        finally:
            os.killpg(root.pid, 9)
            root.wait()
            root.stdout.close()


def test_a_program_in_a_terminal_is_use_and_a_shell_that_waits_is_none(module: Any, watch: Any, shell: Shell) -> None:
    wait_until(lambda: not looks(watch).is_busy, within_s=60)
    for line in ("sleep 600\n", "\x03", "sleep 600 &\n"):
        shell.type(line)
        running = line.startswith("sleep")
        wait_until(lambda running=running: looks(watch).is_busy is running, within_s=60)
        assert watch.programs == (["sleep"] if running else [])
    shell.type("kill $!\n")
    wait_until(lambda: not looks(watch).is_busy, within_s=60)
    assert age(module, watch) < 600, "what was typed is a sign of use"


def test_terminals_of_other_sessions_are_not_looked_at(
    module: Any, kernels: Kernels, shell: Shell, attempt: str
) -> None:
    other = module.Watch(
        SimpleNamespace(kernel_manager=kernels, web_app=SimpleNamespace(settings={})), "1m7yv9fqka6p1-1"
    )
    mine = module.Watch(SimpleNamespace(kernel_manager=kernels, web_app=SimpleNamespace(settings={})), attempt)
    shell.type("sleep 600\n")
    wait_until(lambda: looks(mine).is_busy, within_s=60)
    assert not looks(other).is_busy


def test_a_program_beside_the_server_makes_its_use_unknown(watch: Any) -> None:
    app = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        assert not looks(watch).is_measured
        assert not watch.is_busy
    finally:
        app.kill()
        app.wait()
    assert looks(watch).is_measured


@contextmanager
def beside_the_server(attempt: str, folder: Path, *command: str) -> Iterator[None]:
    """Run a command of this attempt that is no child of the server and has no terminal, like `commonage exec`."""
    code = (
        "import os,sys; os.fork() and sys.exit(); os.setsid(); "
        "open(sys.argv[1], 'w').write(str(os.getpid())); os.execvp(sys.argv[2], sys.argv[2:])"
    )
    environ = {"PATH": os.environ["PATH"], "COMMONAGE_ATTEMPT_ID": attempt}
    note = folder / "pid"
    subprocess.run([sys.executable, "-c", code, str(note), *command], stdin=subprocess.DEVNULL, env=environ, check=True)
    wait_until(lambda: note.exists() and note.read_text() != "", within_s=60)
    try:
        yield
    finally:
        os.killpg(int(note.read_text()), 9)


def test_a_program_without_a_terminal_beside_the_server_is_use(watch: Any, attempt: str, tmp_path: Path) -> None:
    train = tmp_path / "train"
    train.symlink_to(shutil.which("sleep") or "/bin/sleep")
    with beside_the_server(attempt, tmp_path, str(train), "600"):
        wait_until(lambda: looks(watch).programs == ["train"], within_s=60)
        assert watch.is_busy and watch.is_measured
    wait_until(lambda: not looks(watch).is_busy, within_s=60)


def test_a_program_that_sleeps_beside_the_server_is_none(watch: Any, attempt: str, tmp_path: Path) -> None:
    with beside_the_server(attempt, tmp_path, "sh", "-c", f": >{tmp_path}/began; sleep 600; true"):
        wait_until((tmp_path / "began").exists, within_s=60)
        assert not looks(watch).is_busy


def test_a_shell_beside_the_server_is_none(watch: Any, attempt: str, tmp_path: Path) -> None:
    fifo = tmp_path / "input"
    os.mkfifo(fifo)
    with beside_the_server(attempt, tmp_path, "sh", "-c", f": >{tmp_path}/began; read line <>{fifo}"):
        wait_until((tmp_path / "began").exists, within_s=60)
        assert not looks(watch).is_busy


def test_a_connection_by_ssh_makes_the_use_unknown(watch: Any, attempt: str, tmp_path: Path) -> None:
    sshd = tmp_path / "sshd"
    sshd.symlink_to(shutil.which("sleep") or "/bin/sleep")
    # Like the real one it shows no environment of its own; the shell that started it does.
    with beside_the_server(attempt, tmp_path, "sh", "-c", f"env -i {sshd} 600; true"):
        wait_until(lambda: looks(watch).programs == ["sshd"], within_s=60)
        assert not watch.is_measured and not watch.is_busy
    wait_until(lambda: looks(watch).is_measured, within_s=60)


@pytest.mark.parametrize(
    ("words", "program"),
    [
        (["node", "/home/birgit/.local/code-server", "--lsp", "/home/birgit/git"], "code-server"),
        (["/usr/bin/gitea", "web"], "gitea"),
        (["python3", "-I", "/srv/start_app.py", "tensorboard", "/tmp/socket"], "tensorboard"),
        (["/usr/bin/python3.11", "-m", "pylsp"], "pylsp"),
        (["python3", "-c", "pass", "git"], "python3"),
        (["node", "/opt/bin/bash-language-server", "start"], "bash-language-server"),
    ],
)
def test_a_script_is_called_by_its_own_name(module: Any, words: list[str], program: str) -> None:
    assert module._program_in(words) == program


@pytest.mark.parametrize("name", ["git", "git-remote-https", "bash-language-server", "pylsp", "tensorboard"])
def test_programs_that_nobody_works_in_do_not_hide_that_a_session_is_idle(
    watch: Any, tmp_path: Path, name: str
) -> None:
    program = tmp_path / name
    program.symlink_to(shutil.which("sleep") or "/bin/sleep")
    with child_of_the_server(str(program), "600"):
        assert looks(watch).is_measured


def test_words_of_the_command_do_not_hide_an_app(watch: Any) -> None:
    with child_of_the_server(sys.executable, "-c", "import time; time.sleep(600)", "/home/birgit/pandoc", "--lsp"):
        assert not looks(watch).is_measured


@contextmanager
def child_of_the_server(*command: str) -> Iterator[None]:
    child = subprocess.Popen(command)  # returns after exec
    try:
        yield
    finally:
        child.kill()
        child.wait()
