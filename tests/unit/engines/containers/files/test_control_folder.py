"""The box: who decides first, and that nothing put into it from inside can hurt us."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from commonage.engines.containers.files import control_folder as box_module
from commonage.engines.containers.files.control_folder import Box, Claim, Owner, can_export, script_of
from commonage.files.beneath import Beneath

ME = Owner(os.geteuid(), os.getegid(), os.geteuid(), os.getegid())
ENTRY = Path(str(box_module.__file__)).with_name("entry.sh")


@pytest.fixture
def box(tmp_path: Path) -> Box:
    box = Box(Beneath(tmp_path) / "box")
    box.make({"KEY": "it's\n$HOME"}, ME)
    return box


def enter(box: Box, *command: str) -> tuple[int, str]:
    """Run the entry as a container would, with the box and the log elsewhere."""
    log = box.path.parent / "log"
    script = ENTRY.read_text().replace("/run/commonage/box", str(box.path)).replace("/run/commonage/log", str(log))
    code = subprocess.run(["sh", "-c", script, "commonage", *command], check=False).returncode
    return code, log.read_text()


def test_the_entry_runs_its_command_once(box: Box) -> None:
    assert enter(box, "sh", "-c", "echo $KEY; exit 7") == (7, "it's $HOME\n")
    assert box.claim() is Claim.RAN
    assert not (box.path / "secrets").exists()
    assert enter(box, "echo", "twice") == (143, "it's $HOME\n")
    assert box.was_run_again()


def test_what_is_mounted_goes_on_the_search_paths_with_what_is_set(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folders are elsewhere than in a container, in the same way as the box."""
    for name in ("python", "jupyter"):
        (box.path.parent / name).mkdir()
    script = ENTRY.read_text().replace("/run/commonage/", f"{box.path.parent}/")
    show = 'echo "$PYTHONPATH $JUPYTER_CONFIG_PATH"'
    monkeypatch.setenv("PYTHONPATH", "/of/the/image")
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", "/of/the/user")
    subprocess.run(["sh", "-c", script, "commonage", "sh", "-c", show], check=True)
    above = box.path.parent
    assert (above / "log").read_text() == f"{above}/python:/of/the/image /of/the/user:{above}/jupyter\n"


def test_nothing_goes_on_the_search_paths_where_nothing_is_mounted(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    assert enter(box, "sh", "-c", 'echo "${PYTHONPATH-none} ${JUPYTER_CONFIG_PATH-none}"') == (0, "none none\n")


def test_what_shall_never_run_does_not(box: Box) -> None:
    assert box.claim_never()
    assert enter(box, "echo", "here") == (143, "")
    assert box.claim() is Claim.NEVER
    assert box.claim_never(), "asked again, it is still so"


def test_what_runs_cannot_be_called_off(box: Box) -> None:
    enter(box, "true")
    assert not box.claim_never()


def test_commands_that_are_not_there_have_the_shells_codes(box: Box, tmp_path: Path) -> None:
    code, log = enter(box, "no-such-command")
    assert code == 127
    assert "not found" in log
    (tmp_path / "plain").write_text("")
    again = Box(Beneath(tmp_path) / "again")
    again.make({}, ME)
    assert enter(again, str(tmp_path / "plain"))[0] == 126


def test_secrets_are_private_and_written_once(box: Box) -> None:
    assert (box.path / "secrets").stat().st_mode & 0o777 == 0o600
    enter(box, "true")
    box.make({"KEY": "again"}, ME)
    assert not (box.path / "secrets").exists(), "its entry was there already"


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_what_is_put_in_the_claims_place_is_not_followed(box: Box, tmp_path: Path, kind: str) -> None:
    place = box.path / "claim"
    (tmp_path / "never").write_text("never")
    {"link": lambda: place.symlink_to(tmp_path / "never"), "pipe": lambda: os.mkfifo(place), "folder": place.mkdir}[
        kind
    ]()
    assert box.claim() is Claim.RAN
    assert not box.claim_never()


def test_names_that_no_shell_takes_are_known() -> None:
    assert [name for name in ("A", "_b1", "1A", "A-B", "A.B", "", "Ä") if can_export(name)] == ["A", "_b1"]
    assert script_of({"A": "x"}) == "export A='x'\n"


# --- where containers run on other nodes -----------------------------------------------------------------------


@pytest.fixture
def asked(tmp_path: Path) -> Box:
    """A box with a wish."""
    box = Box(Beneath(tmp_path) / "box")
    box.make({"KEY": "x"}, ME, stop=True)
    return box


def started(box: Box, *command: str) -> subprocess.Popen[bytes]:
    """The entry, in a group of its own, as a container's init has it; until its command prints."""
    log = box.path.parent / "log"
    script = ENTRY.read_text().replace("/run/commonage/box", str(box.path)).replace("/run/commonage/log", str(log))
    running = subprocess.Popen(["sh", "-c", script, "commonage", *command], start_new_session=True)
    for _ in range(500):
        if log.exists() and log.read_text():
            break
        time.sleep(0.01)
    return running


def test_a_stop_is_heard_and_the_end_is_written_down(asked: Box) -> None:
    script = "trap 'exit 7' TERM; echo $KEY; while :; do sleep 0.05; done"
    running = started(asked, "sh", "-c", script)
    assert asked.ran_at() is not None
    assert asked.end() is None
    asked.stop("term")
    assert running.wait(20) == 7
    end = asked.end()
    assert end is not None
    assert (end.code, end.oom, end.outside) == (7, False, False)


def test_who_does_not_care_is_killed(asked: Box) -> None:
    running = started(asked, "sh", "-c", "trap '' TERM; echo here; while :; do sleep 0.05; done")
    asked.stop("term")
    asked.stop("kill")
    assert running.wait(20) == 137


def test_a_signal_from_outside_is_told_apart(asked: Box) -> None:
    running = started(asked, "sh", "-c", "trap 'exit 0' TERM; echo here; while :; do sleep 0.05; done")
    os.killpg(running.pid, signal.SIGTERM)
    assert running.wait(20) == 0
    end = asked.end()
    assert end is not None
    assert end.outside


def test_what_was_started_can_be_interrupted(asked: Box, heeding: None) -> None:
    code = "import signal, time; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, flush=True)"
    assert started(asked, sys.executable, "-c", code).wait(20) == 0
    assert (asked.path.parent / "log").read_text() == "True\n"


@pytest.fixture
def heeding() -> Iterator[None]:
    """We heed an interrupt: who started the tests in the background of a script has what they start ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_what_is_in_the_place_of_an_end_is_no_end(asked: Box, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("0\n")
    (asked.path / "end").symlink_to(tmp_path / "elsewhere")
    assert asked.end() is None
    assert asked.could_not_tell()
    (asked.path / "stop").unlink()
    (asked.path / "stop").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="is a link"):
        asked.stop("kill")
    assert (tmp_path / "elsewhere").read_text() == "0\n"


def test_on_a_swarm_nothing_in_the_box_is_run(tmp_path: Path) -> None:
    box = Box(Beneath(tmp_path) / "box")
    box.make({}, ME)
    (box.path / "secrets").write_text("echo the attacker; KEY=none; export KEY\n")
    entry, log = tmp_path / "entry", tmp_path / "log"
    (tmp_path / "secrets").write_text(script_of({"KEY": "mine"}))
    text = ENTRY.read_text()
    for name in ("entry", "box", "log", "secrets"):
        text = text.replace(f"/run/commonage/{name}", str(tmp_path / name))
    entry.write_text(text)
    subprocess.run(["sh", entry, "sh", "-c", "echo $KEY"], check=True)
    assert log.read_text() == "mine\n"


@pytest.mark.parametrize("is_link", [True, False])
def test_a_box_that_was_replaced_ends_nothing_and_changes_nothing(tmp_path: Path, is_link: bool) -> None:
    (tmp_path / "elsewhere").mkdir()
    box = Box(Beneath(tmp_path) / "attempt" / "box")
    if is_link:
        (tmp_path / "attempt").symlink_to(tmp_path / "elsewhere")
    assert box.claim_never() is not is_link, "what was removed is made again, so that the attempt can end"
    assert os.listdir(tmp_path / "elsewhere") == []
