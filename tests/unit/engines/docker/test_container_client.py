"""Translation of the daemon's report of an end into a status."""

from dataclasses import replace
from typing import Any

import pytest
from aiodocker.exceptions import DockerError

from commonage.domain.reasons import Reason, attempts
from commonage.domain.reasons.engines import NoLiveRestore, UsersMapped, UsersNotMapped
from commonage.domain.reasons.nodes import DaemonWithoutSeccomp
from commonage.engines.containers.daemon.connection import DaemonRefused, DaemonUnreachable, failure_of, translated
from commonage.engines.containers.daemon.descriptions import instant
from commonage.engines.containers.daemon.info import progress_of
from commonage.engines.containers.files.control_folder import StartDecision
from commonage.engines.docker.container_client import EndContext, end_of
from commonage.engines.docker.daemon import examined, notes_of, remapped_root

ABOUT = EndContext(StartDecision.STARTED, False, False, 500.0, 600.0, False, 2000.0)
"""The node is up since 500, the daemon since 600."""


def state(code: int, *, started: int = 700, ended: int = 800, **more: Any) -> dict[str, Any]:
    times = {"StartedAt": _time(started), "FinishedAt": _time(ended)}
    return {"Status": "exited", "ExitCode": code, "OOMKilled": False, "Error": "", **times, **more}


def _time(seconds: int) -> str:
    return f"1970-01-01T00:{seconds // 60:02}:{seconds % 60:02}.5Z"


def test_times_have_nanoseconds() -> None:
    assert instant("1970-01-01T00:00:01.123456789Z") == pytest.approx(1.123456789)
    assert instant("1970-01-01T00:00:01Z") == 1.0
    assert instant("0001-01-01T00:00:00Z") is None


@pytest.mark.parametrize("code", [0, 1, 126, 127, 137, 143, 255])
def test_exit_code_is_the_programs_own(code: int) -> None:
    end = end_of(state(code), ABOUT)
    assert (end.code, end.reason, end.oom, end.at) == (code, None, False, 800.5)


def test_oom_is_recognized_except_on_success() -> None:
    assert end_of(state(137, OOMKilled=True), ABOUT).oom
    assert not end_of(state(0, OOMKilled=True), ABOUT).oom


def test_daemon_restart_loses_container_without_live_restore() -> None:
    fallen = state(143, started=550, ended=601)
    assert end_of(fallen, ABOUT).code is None
    assert end_of(fallen, replace(ABOUT, live_restore=True)).code == 143
    assert end_of(fallen, replace(ABOUT, daemon_started_at=None)).code == 143
    assert end_of(state(4, started=550, ended=590), ABOUT).code == 4, "it ended while no daemon looked"


def test_made_up_exit_code_of_daemon_is_ignored() -> None:
    restored = replace(ABOUT, live_restore=True)
    end = end_of(state(255, started=550, ended=601), restored)
    assert end.code is None
    assert end.reason == attempts.ExitCodeLost(why=attempts.ExitCodeLoss.DAEMON_AWAY)
    assert end_of(state(4, started=550, ended=601), restored).code == 4
    assert end_of(state(255, started=550, ended=700), restored).code == 255, "long after the daemon came"
    assert end_of(state(255, started=610, ended=620), restored).code == 255, "the daemon saw it begin and end"


def test_node_restart_loses_container() -> None:
    end = end_of(state(255, started=400, ended=601), replace(ABOUT, live_restore=True))
    assert end.code is None
    assert end.reason == attempts.NodeRestarted()


def test_an_image_that_does_not_load_the_interposer_is_named() -> None:
    undecided = replace(ABOUT, decision=StartDecision.UNDECIDED, is_interposed=True)
    for code in (96, 127, 1):
        end = end_of(state(code), undecided)
        assert (end.code, end.reason) == (code, attempts.InterposerNotLoaded(path="/usr/local/vgpu/libvgpu.so"))
    others = [end_of(state(143), undecided), end_of(state(127, Error="no shell"), undecided)]
    others.append(end_of(state(127), replace(undecided, is_interposed=False)))
    assert all(isinstance(end.reason, attempts.ContainerStartFailed) for end in others)


@pytest.mark.parametrize(
    ("change", "code", "reason"),
    [
        ({"decision": StartDecision.FORBIDDEN}, 143, attempts.StoppedBeforeStart()),
        ({"decision": StartDecision.UNDECIDED}, 9, attempts.ContainerStartFailed(error="no shell")),
        ({"restarted": True}, None, attempts.ExitCodeLost(why=attempts.ExitCodeLoss.STARTED_TWICE)),
        ({"signalled": True}, None, attempts.EndedFromOutside(by=attempts.ExternalActor.DOCKER)),
    ],
)
def test_other_ends_have_their_reason(change: dict[str, Any], code: int | None, reason: Reason) -> None:
    end = end_of(state(9, Error="no shell"), replace(ABOUT, **change))
    assert end.code == code
    assert end.reason == reason


@pytest.mark.parametrize(
    ("status", "message", "said", "retryable"),
    [
        (500, "write /x: no space left on device", "disk of the Docker daemon is full", True),
        (404, "pull access denied for x, repository does not exist", "no such image", False),
        (500, "denied", "does not let us have it", False),
        (500, 'Head "https://r/v2/x/manifests/1": no basic auth credentials', "does not let us have it", False),
        (500, "mkdir /data: permission denied", "the Docker daemon refuses it", True),
        (500, "Get https://r/v2/: dial tcp: lookup r: no such host", "registry cannot be reached", True),
        (400, "invalid reference format", "not a name of an image", False),
        (500, 'could not select device driver "nvidia" with capabilities: [[gpu]]', "NVIDIA Container Toolkit", False),
        (404, "No such container: commonage-w-1", "its container was removed before it started", True),
        (404, "there is nothing of this name", "its container was removed before it started", True),
        (500, "something else", "the Docker daemon refuses it", True),
        (400, "something else", "the Docker daemon refuses it", False),
    ],
)
def test_daemon_errors_are_translated(status: int, message: str, said: str, retryable: bool) -> None:
    failure = failure_of(status, message)
    assert said in failure.message
    assert message not in failure.message, "the daemon's own text is for admins"
    assert str(failure) == f"{failure.message} (Docker: {message})"
    assert failure.is_retryable is retryable


def test_registry_refusal_names_the_image() -> None:
    why = "does not let this machine have the image lab/torch:2"
    with pytest.raises(DaemonRefused, match=why) as refused, translated("unix:///x", "lab/torch:2"):
        raise DockerError(500, "denied")
    assert (refused.value.is_retryable, refused.value.http_status) == (False, 500)


def test_a_daemon_that_does_not_answer_is_another_error() -> None:
    failure = failure_of(
        900, "Cannot connect to Docker Engine via unix:///x [Cannot connect [No such file]]", "unix:///x"
    )
    assert isinstance(failure, DaemonUnreachable)
    assert failure.message == "the Docker daemon does not answer"
    assert str(failure).startswith(f"{failure.message} (at unix:///x: No such file. Is it running (systemctl status")


def pulled(size: int) -> attempts.PullingImage:
    return attempts.PullingImage(image="x", pulled_bytes=size, total_bytes=100_000_000)


def test_the_progress_of_a_fetch_is_that_of_all_layers() -> None:
    layers: dict[str, tuple[int, int]] = {}
    assert progress_of("x", {"status": "Pulling from x"}, layers) == (
        attempts.PullingImage(image="x", step="pulling from x"),
        None,
    )
    told = {"status": "Downloading", "id": "a", "progressDetail": {"current": 50_000_000, "total": 100_000_000}}
    assert progress_of("x", told, layers) == (pulled(50_000_000), 0.5)
    assert progress_of("x", {"status": "Pull complete", "id": "a"}, layers) == (pulled(100_000_000), 1.0)


def test_a_daemon_that_maps_users_is_known_and_one_that_does_not_says_what_to_do() -> None:
    mapped = {"SecurityOptions": ["name=userns", "name=seccomp,profile=default"], "DockerRootDir": "/d/100000.100001"}
    assert remapped_root(mapped) == (100000, 100001)
    assert remapped_root({"SecurityOptions": [], "DockerRootDir": "/d/100000.100001"}) is None
    assert UsersMapped() in notes_of(mapped)
    notes = notes_of({})
    assert {UsersNotMapped(), DaemonWithoutSeccomp(), NoLiveRestore()} <= set(notes)


def test_the_doctor_names_what_there_is_and_what_to_do() -> None:
    info = {"ServerVersion": "20", "Driver": "overlay2", "CgroupDriver": "systemd", "Runtimes": {"nvidia": {}}}
    found = examined(info)
    assert "GPUs: nvidia" in found.said
    assert "daemon-reload" in found.advice
    assert "live-restore" in found.advice
