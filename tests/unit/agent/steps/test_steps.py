"""The steps of joining that are pure, or can run on a fake node of files."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from commonage.agent.containers.docker import DaemonRefused, DockerDaemon
from commonage.agent.steps import docker as steps_docker
from commonage.agent.steps import host as packages
from commonage.agent.steps import nvidia as steps_nvidia
from commonage.agent.steps import preflight as steps_checks
from commonage.agent.steps import service
from commonage.agent.steps import storage as steps_storage
from commonage.agent.steps import swarm as steps_swarm
from commonage.agent.steps.credentials import Images
from commonage.agent.steps.host import CommandResult, Host, StepFailed
from commonage.agent.steps.step import (
    CheckResult,
    JoinContext,
    Options,
    State,
    blocked,
    done,
    needed,
    not_applicable,
    run_steps,
)
from commonage.domain.errors import EngineFailure
from commonage.join.config import MARK_FILE, JoinConfig

JOIN_CONFIG = JoinConfig(
    site="Lab", authority="PEM", agents=("h:1",), managers=("h:2",), swarm_token="t", shared_dir="/s", mark="m", now=1.0
)


class FakeHost(Host):
    """A node with these programs. The output of a command is looked up by its first words; `errors` let it fail."""

    def __init__(
        self,
        programs: tuple[str, ...] = (),
        message: dict[str, str] | None = None,
        errors: dict[str, str] | None = None,
    ) -> None:
        self.programs, self.message, self.errors = set(programs), message or {}, errors or {}
        self.ran: list[str] = []

    def has(self, program: str) -> bool:
        return program in self.programs

    def run(self, *words: str, **_: Any) -> CommandResult:
        command = " ".join(words)
        self.ran.append(command)
        for code, outputs in ((100, self.errors), (0, self.message)):
            for begin, output in outputs.items():
                if command.startswith(begin):
                    return CommandResult(code, "" if code else output, output if code else "")
        return CommandResult(1, "", f"{words[0]} knows nothing")


def context_of(
    host: Host, join_config: dict[str, Any] | None = None, client: Any = None, **options: Any
) -> JoinContext:
    """`join_config` replaces fields. Without a client no step may ask the control plane."""
    config = JoinConfig.from_json(JOIN_CONFIG.to_json() | (join_config or {}))
    return JoinContext(host, config, client, Options(**{"node": "gpu-1", **options}))


class Scripted:
    """A step that finds one thing after the other."""

    def __init__(self, name: str, *finds: CheckResult | Exception) -> None:
        self.name, self.finds, self.applied = name, list(finds), 0

    def check(self, context: JoinContext) -> CheckResult:
        found = self.finds.pop(0) if len(self.finds) > 1 else self.finds[0]
        if isinstance(found, Exception):
            raise found
        return found

    def apply(self, context: JoinContext) -> None:
        self.applied += 1


def walked(*steps: Scripted, plan: bool = False) -> tuple[Any, list[str]]:
    said: list[str] = []
    return run_steps(steps, context_of(FakeHost()), plan=plan, print_line=said.append), said


def test_applies_only_needed_steps() -> None:
    there, missing, away = (
        Scripted("a", done("x")),
        Scripted("b", needed("do b"), done("y")),
        Scripted("c", not_applicable("z")),
    )
    outcome, said = walked(there, missing, away)
    assert (outcome.changed, outcome.failed) == (("b",), "")
    assert (there.applied, missing.applied, away.applied) == (0, 1, 0)
    assert any("do b" in line for line in said)
    assert all(" s)" in line for line in said if "…" not in line)


def test_plan_changes_nothing_and_lists_all_obstacles() -> None:
    first, second, third = Scripted("a", blocked("no disk")), Scripted("b", needed("do b")), Scripted("c", done("x"))
    outcome, said = walked(first, second, third, plan=True)
    assert outcome.planned == ("a", "b")
    assert second.applied == 0
    assert "no disk" in said[0]
    assert "do b" in said[1]


@pytest.mark.parametrize(
    "finds", [(blocked("why"),), (needed("x"), blocked("why")), (StepFailed("why"),), (needed("x"), ValueError("why"))]
)
def test_failed_or_blocked_step_ends_the_run(finds: tuple[CheckResult | Exception, ...]) -> None:
    last = Scripted("last", done("x"))
    outcome, said = walked(Scripted("a", *finds), last)
    assert outcome.failed == "a"
    assert "why" in said[-1]
    assert not any("last" in line for line in said)


def test_step_without_effect_has_failed() -> None:
    outcome, said = walked(Scripted("a", needed("mount it")))
    assert outcome.failed == "a"
    assert "is still needed: mount it" in said[-1]


# --- Docker ---------------------------------------------------------------------------------------------------------


def test_docker_settings_are_merged() -> None:
    kept = {"log-driver": "local", "node-generic-resources": ["VRAM=100", "SSD=2"], "runtimes": {"kata": {"path": "k"}}}
    wanted = {
        "no-new-privileges": True,
        "node-generic-resources": ["VRAM=24576"],
        "runtimes": {"nvidia": {"path": "n", "args": []}},
    }
    made = steps_docker.merge_settings(kept, wanted)
    assert made == {
        "log-driver": "local",
        "node-generic-resources": ["SSD=2", "VRAM=24576"],
        "runtimes": {"kata": {"path": "k"}, "nvidia": {"path": "n", "args": []}},
        "no-new-privileges": True,
    }
    assert steps_docker.merge_settings(made, wanted) == made


def test_conflicting_docker_setting_is_refused() -> None:
    with pytest.raises(StepFailed, match="live-restore = true, and the site requires false"):
        steps_docker.merge_settings({"live-restore": True}, {"live-restore": False})


@pytest.mark.parametrize(("text", "why"), [("{", "is not JSON"), ("[]", "not a JSON object")])
def test_unreadable_docker_settings_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, why: str
) -> None:
    monkeypatch.setattr(steps_docker, "SETTINGS", tmp_path / "daemon.json")
    assert steps_docker.read_settings(Host()) == {}
    (tmp_path / "daemon.json").write_text(text)
    with pytest.raises(StepFailed, match=why):
        steps_docker.read_settings(Host())


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A node whose Docker runs with what the site wants; the folder with its settings."""
    for name, text in (("SETTINGS", "{}"), ("_DROP_IN", steps_docker._VARIABLE), ("PID_FILE", "7")):
        monkeypatch.setattr(steps_docker, name, tmp_path / name)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(steps_docker, "_DEFAULTS", tmp_path / "_DROP_IN")
    started = (tmp_path / "SETTINGS").stat().st_mtime + 10
    os.utime(tmp_path / "PID_FILE", (started, started))
    return tmp_path


def docker_with(ids: str = "") -> FakeHost:
    return FakeHost(("dockerd", "docker"), {"docker version": "20.10.24\n", "docker ps": ids})


def test_docker_with_all_settings_is_done(docker: Path) -> None:
    assert steps_docker.Docker().check(context_of(docker_with("c1\nc2\n"))) == done("Docker 20.10.24")


@pytest.mark.parametrize("name", ["SETTINGS", "_DROP_IN"])
def test_settings_newer_than_docker_need_a_restart(docker: Path, name: str) -> None:
    """An earlier join was interrupted after it wrote them, before the restart."""
    later = (docker / "PID_FILE").stat().st_mtime + 1
    os.utime(docker / name, (later, later))
    found = steps_docker.Docker().check(context_of(docker_with()))
    assert found.state is State.NEEDED
    assert found.changes[-1] == "restart Docker"


def test_unknown_start_of_docker_needs_no_restart(docker: Path) -> None:
    (docker / "PID_FILE").unlink()
    assert steps_docker.Docker().check(context_of(docker_with())).state is State.DONE


def test_restart_that_ends_containers_needs_force(docker: Path) -> None:
    (docker / "SETTINGS").write_text('{"node-generic-resources": ["VRAM=1"]}')
    context = context_of(docker_with("c1\nc2\n"), vram_mib=2)
    found = steps_docker.Docker().check(context)
    assert found.state is State.BLOCKED
    for words in ("node-generic-resources", "ends 2 running containers", "commonage node drain gpu-1", "--force"):
        assert words in found.message
    forced = steps_docker.Docker().check(context_of(docker_with("c1\nc2\n"), vram_mib=2, force=True))
    assert forced.changes[-1] == "restart Docker, which ends 2 running containers"
    assert steps_docker.Docker().check(context_of(docker_with(), vram_mib=2)).changes[-1] == "restart Docker"


def test_simulated_gpus_count_as_vram() -> None:
    assert steps_nvidia.vram_mib(context_of(FakeHost(), gpus="simulated:2x24GiB")) == 2 * 24576
    assert steps_nvidia.vram_mib(context_of(FakeHost(), gpus="none")) == 0
    assert steps_nvidia.vram_mib(context_of(FakeHost(), vram_mib=5, gpus="none")) == 5


# --- NVIDIA ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def bus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PCI bus with an NVIDIA GPU, its sound device, and a network GPU."""
    for name, vendor, kind in (
        ("0000:01:00.0", "0x10de", "0x030200"),
        ("0000:01:00.1", "0x10de", "0x040300"),
        ("0000:02:00.0", "0x8086", "0x020000"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "vendor").write_text(f"{vendor}\n")
        (tmp_path / name / "class").write_text(f"{kind}\n")
    monkeypatch.setattr(steps_nvidia, "PCI", tmp_path)
    return tmp_path


SMI = {
    "nvidia-smi --query-gpu=driver_version": "615.10\n",
    "nvidia-smi --query-gpu=memory.total": "24576\n",
}


def test_gpu_without_driver_blocks_until_the_owner_decides(bus: Path) -> None:
    found = steps_nvidia.Nvidia().check(context_of(FakeHost(("apt-get",), {"uname": "6.1.0-30-amd64\n"})))
    assert found.state is State.BLOCKED
    assert "without a driver and a container toolkit" in found.message
    assert "--nvidia install" in found.message
    for name in ("nvidia-driver, nvidia-smi, libcuda1, nvidia-container-toolkit", "linux-headers-6.1.0-30-amd64"):
        assert name in found.message


@pytest.mark.parametrize(
    ("kernel", "headers"),
    [
        ("6.1.0-30-amd64", "linux-headers-6.1.0-30-amd64, linux-headers-amd64"),
        ("6.12.43+deb13-cloud-amd64", "linux-headers-6.12.43+deb13-cloud-amd64, linux-headers-cloud-amd64"),
        ("6.8.0-45-generic", "linux-headers-6.8.0-45-generic, linux-headers-generic"),
        ("6.18.44-own", "linux-headers-6.18.44-own"),
    ],
)
def test_installs_the_packages_that_were_shown(bus: Path, kernel: str, headers: str) -> None:
    host = FakeHost(("apt-get",), {"apt-get": "", "uname": f"{kernel}\n", "modprobe": "", "ldconfig": "libcuda.so.1"})
    context = context_of(host, nvidia="install", driver="nvidia-open")
    shown = f"{headers}, nvidia-open, nvidia-container-toolkit"
    assert steps_nvidia.Nvidia().check(context).changes == (f"install {shown}", "load the driver")
    with pytest.raises(StepFailed, match="does not load"):
        steps_nvidia.Nvidia().apply(context)
    (installed,) = [line for line in host.ran if line.startswith("apt-get install")]
    assert installed.endswith(shown.replace(",", ""))
    assert "modprobe nvidia" in host.ran, "whatever its package is called"


def test_driver_without_libcuda_is_incomplete(bus: Path) -> None:
    host = FakeHost(("apt-get", "nvidia-ctk"), {**SMI, "ldconfig": "\tlibnvidia-ml.so.1 => /usr/lib", "apt-get": ""})
    context = context_of(host, nvidia="install")
    assert steps_nvidia.Nvidia().check(context).changes == ("install libcuda1",)
    assert "libcuda.so.1" in steps_nvidia.Nvidia().check(context_of(host)).message
    host.message["ldconfig"] = "\tlibcuda.so.1 (libc6,x86-64) => /usr/lib"
    assert steps_nvidia.Nvidia().check(context).state is State.DONE


@pytest.mark.parametrize(
    ("errors", "why"),
    [
        (
            {"apt-get install": "E: Unable to locate package nvidia-driver"},
            r"Unable to locate package nvidia-driver.*contrib, non-free",
        ),
        ({}, "restart the node, then run the same command again"),
        (
            {"modprobe": "modprobe: FATAL: Module nvidia-current not found in directory /lib/modules/6.1.0-30"},
            r"not built for the running kernel \(nvidia-current/535.261.03: added\)",
        ),
    ],
    ids=["package not found", "driver does not load", "driver is not built"],
)
def test_failed_driver_installation_gives_advice(bus: Path, errors: dict[str, str], why: str) -> None:
    message = {"apt-get": "", "uname": "6.1.0-30-amd64\n", "dkms status": "nvidia-current/535.261.03: added\n"}
    with pytest.raises(StepFailed, match=why):
        steps_nvidia.Nvidia().apply(context_of(FakeHost(("apt-get",), message, errors), nvidia="install"))


def test_working_gpu_is_configured_in_docker(bus: Path) -> None:
    context = context_of(FakeHost(("nvidia-ctk",), SMI))
    assert steps_nvidia.Nvidia().check(context).state is State.DONE
    wanted = steps_docker.wanted_settings(context)
    assert wanted["node-generic-resources"] == ["VRAM=24576"]
    assert wanted["default-runtime"] == "nvidia"


def test_skipped_gpu_is_not_configured(bus: Path) -> None:
    context = context_of(FakeHost(("nvidia-ctk",), SMI), nvidia="skip")
    assert steps_nvidia.Nvidia().check(context).state is State.NOT_APPLICABLE
    assert "default-runtime" not in steps_docker.wanted_settings(context)


# --- packages -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mirror", "line"),
    [
        ("file:/srv/mirror", "deb [trusted=yes] file:/srv/mirror ./"),
        ("http://mirror.site/flat", "deb http://mirror.site/flat ./"),
        ("deb [signed-by=/k] http://m bookworm main", "deb [signed-by=/k] http://m bookworm main"),
    ],
)
def test_only_a_local_mirror_needs_no_signature(mirror: str, line: str) -> None:
    assert packages.apt_line(mirror) == line


@pytest.mark.parametrize(
    ("manager", "begin"),
    [
        ("dnf", "dnf install -y -q --repofrompath commonage-mirror,http://m --repo commonage-mirror moby-engine"),
        ("zypper", "zypper --non-interactive --quiet --plus-repo http://m install docker"),
    ],
)
def test_dnf_and_zypper_take_a_mirror(manager: str, begin: str) -> None:
    host = FakeHost((manager,), {manager: ""})
    packages.install(host, packages.packages_for(host, ["docker"]), "http://m")
    assert host.ran == [begin]


def test_failed_installation_gives_advice() -> None:
    with pytest.raises(StepFailed, match=r"openssl could not be installed: dnf knows nothing; .* --mirror"):
        packages.install(FakeHost(("dnf",)), ["openssl"])
    with pytest.raises(StepFailed, match="apt-get, dnf, zypper"):
        packages.packages_for(FakeHost(), ["docker"])


# --- folders --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("share", "line"),
    [
        ("nas:/commonage", "nas:/commonage /s nfs _netdev,hard,noatime,nodev,nosuid 0 0"),
        ("/data/site", "/data/site /s none bind 0 0"),
        ("ceph mon:/ name=x,_netdev", "mon:/ /s ceph name=x,_netdev 0 0"),
        ("cifs //nas/x", "//nas/x /s cifs defaults,_netdev 0 0"),
    ],
)
def test_share_becomes_an_fstab_line(share: str, line: str) -> None:
    assert steps_storage.fstab_line(share, Path("/s")) == line


@pytest.mark.parametrize("share", ["", "nas", "a b c d"])
def test_invalid_share_is_refused_with_its_format(share: str) -> None:
    with pytest.raises(StepFailed, match="SERVER:/FOLDER"):
        steps_storage.fstab_line(share, Path("/s"))


def test_only_commonage_lines_of_fstab_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fstab = tmp_path / "fstab"
    fstab.write_text("# by hand\n/dev/sda1 / ext4 defaults 0 1")
    monkeypatch.setattr(steps_storage, "FSTAB", fstab)
    steps_storage.add_fstab_line(Host(), Path("/scratch"), "tmpfs /scratch tmpfs size=1G 0 0")
    steps_storage.add_fstab_line(Host(), Path("/scratch"), "tmpfs /scratch tmpfs size=2G 0 0")
    assert (
        fstab.read_text() == "# by hand\n/dev/sda1 / ext4 defaults 0 1\ntmpfs /scratch tmpfs size=2G 0 0 # commonage\n"
    )
    assert steps_storage.managed_mounts(Host()) == ["/scratch"]
    steps_storage.remove_fstab_lines(Host(), Path("/elsewhere"))
    assert steps_storage.managed_mounts(Host()) == ["/scratch"]
    steps_storage.remove_fstab_lines(Host(), Path("/scratch"))
    assert fstab.read_text() == "# by hand\n/dev/sda1 / ext4 defaults 0 1\n"
    with pytest.raises(StepFailed, match="has a line for /, but it is not mounted"):
        steps_storage.add_fstab_line(Host(), Path("/"), "x / y z 0 0")


def test_shared_folder_is_recognised_by_its_mark(tmp_path: Path) -> None:
    step = steps_storage.Share()
    context = context_of(Host(), {"shared_dir": str(tmp_path)})
    assert "--share SERVER:/FOLDER" in step.check(context).message
    (tmp_path / MARK_FILE).write_text("m\n")
    assert step.check(context).state is State.DONE
    (tmp_path / MARK_FILE).write_text("another\n")
    assert "another site" in step.check(context).message


# --- the Swarm ------------------------------------------------------------------------------------------------------


class SwarmJoinClient:
    """The control plane's, whose Swarm has another token since the node received the join config."""

    state = ""

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        if path == "/registration":
            return {"swarm": self.state, "taken": ""}
        return JOIN_CONFIG.to_json() | {"managers": ["away:2377", "h:2"], "swarm_token": "SWMTKN-new"}


NO_SWARM = {"docker info": '{"LocalNodeState": "inactive", "NodeID": "n1"}'}


def join_swarm(monkeypatch: pytest.MonkeyPatch, **refusals: EngineFailure) -> tuple[list[str], FakeHost]:
    """Apply the step; returns the joins as text. `refusals` are the daemon's errors by the manager's host."""
    client, joins, host = SwarmJoinClient(), list[str](), FakeHost(("docker",), NO_SWARM)

    class Daemon(DockerDaemon):
        def join_swarm(self, manager: str, token: str, address: str, within_s: float) -> None:
            joins.append(f"{manager} {token} {address}")
            if refusal := refusals.get(manager.partition(":")[0]):
                raise refusal
            client.state = "ready"

    monkeypatch.setattr(steps_swarm, "DockerDaemon", Daemon)
    steps_swarm.Swarm().apply(context_of(host, client=client, address="10.0.0.7"))
    return joins, host


def test_swarm_token_is_current_and_in_no_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    joins, host = join_swarm(monkeypatch, away=EngineFailure("rpc error"))
    assert joins == ["away:2377 SWMTKN-new 10.0.0.7", "h:2 SWMTKN-new 10.0.0.7"]
    assert not [command for command in host.ran if "SWMTKN" in command]


def test_swarm_refusal_has_the_daemons_text(monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = DaemonRefused("remote CA does not match fingerprint", 500)
    with pytest.raises(StepFailed, match="remote CA does not match fingerprint"):
        join_swarm(monkeypatch, away=refusal, h=refusal)


# --- images ---------------------------------------------------------------------------------------------------------


def test_image_that_cannot_be_pulled_does_not_fail_the_join() -> None:
    context = context_of(FakeHost(("docker",)), {"images": ["lab/torch:1"]})
    said: list[str] = []
    outcome = run_steps([Images()], context, plan=False, print_line=said.append)
    assert (outcome.changed, outcome.failed) == ((), "")
    assert "0 of 1 images are present" in said[-1]
    assert context.notes == [
        "lab/torch:1 could not be pulled now (docker knows nothing); it is pulled when a workload needs it"
    ]


def test_present_image_is_not_pulled() -> None:
    host = FakeHost(("docker",), {"docker image inspect": "sha256:1\n"})
    assert Images().check(context_of(host, {"images": ["lab/torch:1"]})) == done("1 of 1 images are present")
    assert not [command for command in host.ran if command.startswith("docker pull")]


# --- checks ---------------------------------------------------------------------------------------------------------


def test_preflight_reports_all_problems_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps_checks.platform, "release", lambda: "3.10.0-1160.el7")
    monkeypatch.setattr(steps_checks, "_unreachable", lambda place: "timed out")
    monkeypatch.setattr(steps_checks, "_free_gib", lambda path: 2.0)
    context = context_of(Host(), node="localhost")
    context.skew_s = -90.0
    said = steps_checks.Preflight().check(context).message
    for words in ("3.10.0-1160.el7", "2.0 GiB are free", "90 s behind", "is not unique", "h:2", "timed out"):
        assert words in said


@pytest.mark.parametrize(
    ("programs", "expected"),
    [
        (("openssl", "iptables"), done("openssl and iptables are installed")),
        (("openssl", "iptables", "dockerd", "docker"), done("openssl and iptables are installed")),
        (("openssl", "iptables", "dockerd"), needed("install docker-cli")),
        ((), needed("install openssl, iptables")),
    ],
)
def test_missing_tools_are_installed(programs: tuple[str, ...], expected: CheckResult) -> None:
    """Debian has them apart since 13."""
    assert steps_checks.Tools().check(context_of(FakeHost(programs))) == expected


@pytest.mark.parametrize("verb", ["status", "stop"])
def test_init_script_calls_only_what_it_defines(tmp_path: Path, verb: str) -> None:
    """Without systemd a script keeps the agent running. Nothing runs here, so its status is 1."""
    script = tmp_path / "commonage-agent"
    script.write_text(service._init_script().replace("/run/", f"{tmp_path}/"), encoding="utf-8")
    ran = subprocess.run(["sh", str(script), verb], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (1 if verb == "status" else 0, "")
