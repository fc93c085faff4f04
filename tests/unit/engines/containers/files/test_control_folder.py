"""The control folder: who decides first, and that nothing put into it from inside can hurt us."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes.waiting import wait_until

from commonage.engines.containers.files import control_folder as box_module
from commonage.engines.containers.files.control_folder import ControlFolder, Owner, StartDecision, can_export, script_of
from commonage.files.safe_path import SafePath

ME = Owner(os.geteuid(), os.getegid(), os.geteuid(), os.getegid())
ENTRY = Path(str(box_module.__file__)).with_name("entry.sh")


@pytest.fixture
def control_folder(tmp_path: Path) -> ControlFolder:
    control_folder = ControlFolder(SafePath(tmp_path) / "control")
    control_folder.make({"KEY": "it's\n$HOME"}, ME)
    return control_folder


def enter(control_folder: ControlFolder, *command: str) -> tuple[int, str]:
    """Run the entry as a container would, with the control folder and the log elsewhere."""
    log = control_folder.path.parent / "log"
    script = (
        ENTRY.read_text()
        .replace("/run/commonage/control", str(control_folder.path))
        .replace("/run/commonage/log", str(log))
    )
    code = subprocess.run(["sh", "-c", script, "commonage", *command], check=False).returncode
    return code, log.read_text()


def test_the_entry_runs_its_command_once(control_folder: ControlFolder) -> None:
    assert enter(control_folder, "sh", "-c", "echo $KEY; exit 7") == (7, "it's $HOME\n")
    assert control_folder.decision() is StartDecision.STARTED
    assert not (control_folder.path / "secrets").exists()
    assert enter(control_folder, "echo", "twice") == (143, "it's $HOME\n")
    assert control_folder.was_restarted()


def test_mounted_files_are_added_to_search_paths(
    control_folder: ControlFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folders are elsewhere than in a container, in the same way as the control folder."""
    for name in ("python", "jupyter"):
        (control_folder.path.parent / name).mkdir()
    script = ENTRY.read_text().replace("/run/commonage/", f"{control_folder.path.parent}/")
    show = 'echo "$PYTHONPATH $JUPYTER_CONFIG_PATH"'
    monkeypatch.setenv("PYTHONPATH", "/of/the/image")
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", "/of/the/user")
    subprocess.run(["sh", "-c", script, "commonage", "sh", "-c", show], check=True)
    above = control_folder.path.parent
    assert (above / "log").read_text() == f"{above}/python:/of/the/image /of/the/user:{above}/jupyter\n"


def test_search_paths_are_unchanged_without_mounts(
    control_folder: ControlFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    assert enter(control_folder, "sh", "-c", 'echo "${PYTHONPATH-none} ${JUPYTER_CONFIG_PATH-none}"') == (
        0,
        "none none\n",
    )


def test_command_does_not_run_without_its_interposer(
    control_folder: ControlFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMMONAGE_GPU_PRELOAD", "/var/lib/commonage/gpus/preload")
    assert enter(control_folder, "echo", "here") == (96, "")
    assert control_folder.decision() is StartDecision.UNDECIDED


def test_forbidden_command_does_not_run(control_folder: ControlFolder) -> None:
    assert control_folder.forbid_start()
    assert enter(control_folder, "echo", "here") == (143, "")
    assert control_folder.decision() is StartDecision.FORBIDDEN
    assert control_folder.forbid_start(), "asked again, it is still so"


def test_running_command_cannot_be_forbidden(control_folder: ControlFolder) -> None:
    enter(control_folder, "true")
    assert not control_folder.forbid_start()


def test_missing_command_has_the_shells_exit_code(control_folder: ControlFolder, tmp_path: Path) -> None:
    code, log = enter(control_folder, "no-such-command")
    assert code == 127
    assert "not found" in log
    (tmp_path / "plain").write_text("")
    again = ControlFolder(SafePath(tmp_path) / "again")
    again.make({}, ME)
    assert enter(again, str(tmp_path / "plain"))[0] == 126


def test_secrets_are_private_and_written_once(control_folder: ControlFolder) -> None:
    assert (control_folder.path / "secrets").stat().st_mode & 0o777 == 0o600
    enter(control_folder, "true")
    control_folder.make({"KEY": "again"}, ME)
    assert not (control_folder.path / "secrets").exists(), "its entry was there already"


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_replaced_claim_is_not_followed(control_folder: ControlFolder, tmp_path: Path, kind: str) -> None:
    place = control_folder.path / "claim"
    (tmp_path / "never").write_text("never")
    {"link": lambda: place.symlink_to(tmp_path / "never"), "pipe": lambda: os.mkfifo(place), "folder": place.mkdir}[
        kind
    ]()
    assert control_folder.decision() is StartDecision.STARTED
    assert not control_folder.forbid_start()


def test_names_that_no_shell_takes_are_known() -> None:
    assert [name for name in ("A", "_b1", "1A", "A-B", "A.B", "", "Ä") if can_export(name)] == ["A", "_b1"]
    assert script_of({"A": "x"}) == "export A='x'\n"


# --- where containers run on other nodes -----------------------------------------------------------------------


@pytest.fixture
def asked(tmp_path: Path) -> ControlFolder:
    """A control folder with a request."""
    control_folder = ControlFolder(SafePath(tmp_path) / "control")
    control_folder.make({"KEY": "x"}, ME, stop=True)
    return control_folder


def started(control_folder: ControlFolder, *command: str) -> subprocess.Popen[bytes]:
    """The entry, in a group of its own, as a container's init has it; until its command prints."""
    log = control_folder.path.parent / "log"
    script = (
        ENTRY.read_text()
        .replace("/run/commonage/control", str(control_folder.path))
        .replace("/run/commonage/log", str(log))
    )
    running = subprocess.Popen(["sh", "-c", script, "commonage", *command], start_new_session=True)
    wait_until(lambda: log.exists() and log.read_text())
    return running


def test_stop_ends_command_and_end_is_recorded(asked: ControlFolder) -> None:
    script = "trap 'exit 7' TERM; echo $KEY; while :; do sleep 0.05; done"
    running = started(asked, "sh", "-c", script)
    assert asked.ran_at() is not None
    assert asked.end() is None
    asked.stop("term")
    assert running.wait(20) == 7
    end = asked.end()
    assert end is not None
    assert (end.code, end.oom, end.signalled) == (7, False, False)


def test_command_that_ignores_term_is_killed(asked: ControlFolder) -> None:
    running = started(asked, "sh", "-c", "trap '' TERM; echo here; while :; do sleep 0.05; done")
    asked.stop("term")
    asked.stop("kill")
    assert running.wait(20) == 137


def test_external_signal_is_recorded(asked: ControlFolder) -> None:
    running = started(asked, "sh", "-c", "trap 'exit 0' TERM; echo here; while :; do sleep 0.05; done")
    os.killpg(running.pid, signal.SIGTERM)
    assert running.wait(20) == 0
    end = asked.end()
    assert end is not None
    assert end.signalled


def test_started_command_can_be_interrupted(asked: ControlFolder, heeding: None) -> None:
    code = "import signal, time; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, flush=True)"
    assert started(asked, sys.executable, "-c", code).wait(20) == 0
    assert (asked.path.parent / "log").read_text() == "True\n"


@pytest.fixture
def heeding() -> Iterator[None]:
    """We heed an interrupt: who started the tests in the background of a script has what they start ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_replaced_end_file_is_no_end(asked: ControlFolder, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("0\n")
    (asked.path / "end").symlink_to(tmp_path / "elsewhere")
    assert asked.end() is None
    assert asked.end_unreadable()
    (asked.path / "stop").unlink()
    (asked.path / "stop").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="is a link"):
        asked.stop("kill")
    assert (tmp_path / "elsewhere").read_text() == "0\n"


def test_on_a_swarm_nothing_in_the_box_is_run(tmp_path: Path) -> None:
    control_folder = ControlFolder(SafePath(tmp_path) / "control")
    control_folder.make({}, ME)
    (control_folder.path / "secrets").write_text("echo the attacker; KEY=none; export KEY\n")
    entry, log = tmp_path / "entry", tmp_path / "log"
    (tmp_path / "secrets").write_text(script_of({"KEY": "mine"}))
    text = ENTRY.read_text()
    for name in ("entry", "control", "log", "secrets"):
        text = text.replace(f"/run/commonage/{name}", str(tmp_path / name))
    entry.write_text(text)
    subprocess.run(["sh", entry, "sh", "-c", "echo $KEY"], check=True)
    assert log.read_text() == "mine\n"


@pytest.mark.parametrize("is_link", [True, False])
def test_replaced_control_folder_changes_nothing(tmp_path: Path, is_link: bool) -> None:
    (tmp_path / "elsewhere").mkdir()
    control_folder = ControlFolder(SafePath(tmp_path) / "attempt" / "control")
    if is_link:
        (tmp_path / "attempt").symlink_to(tmp_path / "elsewhere")
    assert control_folder.forbid_start() is not is_link, "what was removed is made again, so that the attempt can end"
    assert os.listdir(tmp_path / "elsewhere") == []
