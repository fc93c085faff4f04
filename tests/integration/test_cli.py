"""The command line against the whole API, with the control plane and the fake engine."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.api_world import served
from tests.integration.command_line import Run, commonage_at


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(tmp_path_factory.mktemp("api")) as address:
        yield address


@pytest.fixture
def commonage(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    monkeypatch.chdir(work)
    return commonage_at(url, home)


def test_run_detached_prints_the_workload(commonage: Run) -> None:
    done = commonage("run", "--detach", "--json", "--name", "one", "-e", "A=1", "--no-files", "--", "echo", "hello")
    assert done.exit_code == 0, done.stderr
    made = json.loads(done.stdout)
    assert (made["name"], made["command"], made["variables"], made["owner"]) == (
        "one",
        ["echo", "hello"],
        {"A": "1"},
        "ann",
    )
    assert made["ids"] == [made["id"]]
    listed = json.loads(commonage("ps", "--all", "--json").stdout)
    assert {"id", "state"} <= set(listed[0])
    assert made["id"] in {one["id"] for one in listed}


def test_run_follows_until_the_end(commonage: Run) -> None:
    done = commonage("run", "--no-files", "--", "echo", "hello")
    assert done.exit_code == 0, done.stderr
    assert "commonage: " in done.stderr


def test_files_of_folder_are_sent(commonage: Run, tmp_path: Path) -> None:
    (tmp_path / "work" / "train.py").write_text("print(1)")
    made = json.loads(commonage("run", "--detach", "--json", "--", "python", "train.py").stdout)
    assert len(made["bundle"]) == 64
    again = json.loads(commonage("run", "--detach", "--json", "--", "python", "train.py").stdout)
    assert again["bundle"] == made["bundle"]
    assert json.loads(commonage("run", "-d", "--json", "--no-files", "--", "true").stdout)["bundle"] is None


def test_array_is_submitted_and_followed(commonage: Run) -> None:
    done = commonage("run", "--detach", "--array", "3", "--no-files", "--", "true")
    ids = done.stdout.split()
    assert len(ids) == 3
    assert commonage("run", "--array", "3", "--no-files", "--", "true").exit_code == 0


def test_same_key_returns_same_job(commonage: Run) -> None:
    one, other = (commonage("run", "-d", "--key", "k1", "--no-files", "--", "true").stdout for _ in range(2))
    assert one == other


def test_id_may_be_shortened(commonage: Run) -> None:
    made = commonage(
        "run", "-d", "--no-files", "--gpus", "24GiB", "--name", "waits-long", "--", "sleep", "1"
    ).stdout.strip()
    assert commonage("explain", made[-5:]).exit_code == 0
    assert "no workload of yours" in commonage("explain", "nothing-like-it").stderr
    assert commonage("logs", made).exit_code == 0


def test_stop_reports_each_failure(commonage: Run) -> None:
    done = commonage("stop", "0000000000000", "nothing-like-it")
    assert done.exit_code == 2
    assert "0000000000000" in done.stderr
    assert "nothing-like-it" in done.stderr
    assert commonage("stop").exit_code == 2


def test_explain_a_request(commonage: Run) -> None:
    assert "Starts now" in commonage("explain", "--gpus", "6GiB").stdout
    said = json.loads(commonage("explain", "--gpus", "6GiB", "--json").stdout)
    assert said["startable_now"] is True
    refused = commonage("explain", "--gpus", "600GiB")
    assert refused.exit_code == 2
    assert "600 GiB" in refused.stderr
    assert "24 GiB" in refused.stderr


def test_submit_a_file(commonage: Run, tmp_path: Path) -> None:
    (tmp_path / "work" / "two.commonage.yml").write_text(
        "- name: prepare\n  command: echo 1\n- name: train\n  command: echo 2\n  depends_on: afterok:prepare\n"
    )
    made = json.loads(commonage("submit", "two.commonage.yml", "--json").stdout)
    assert [one["name"] for one in made] == ["prepare", "train"]
    assert made[1]["depends_on"] == [{"id": made[0]["id"], "condition": "afterok"}]
    assert made[0]["bundle"] is not None
    assert "Starts now" in commonage("submit", "--dry-run", "two.commonage.yml").stdout


def test_lists_for_people(commonage: Run) -> None:
    assert "gpu-1" in commonage("node", "ls").stdout
    assert "cooperative" in commonage("node", "show", "gpu-1").stdout
    assert "notebook" in commonage("env", "ls").stdout
    assert "ann" in commonage("info").stdout
    assert "gpu-1" in commonage("top", "--once").stdout
    assert "WORKLOADS" in commonage("usage").stdout
    assert "NAME" in commonage("ps", "--all", "--limit", "1").stdout


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (["ps"], list),
        (["node", "ls"], list),
        (["node", "show", "gpu-1"], dict),
        (["env", "ls"], list),
        (["info"], dict),
        (["usage", "--by", "workload", "--since", "1h"], dict),
        (["top", "--once"], dict),
    ],
)
def test_every_listing_has_json(commonage: Run, arguments: list[str], kind: type) -> None:
    assert isinstance(json.loads(commonage(*arguments, "--json").stdout), kind)


def test_nodes_are_drained_by_admins_only(commonage: Run) -> None:
    refused = commonage("node", "drain", "cpu-1")
    assert refused.exit_code == 2
    assert "admin" in refused.stderr
    assert "draining" in commonage("node", "drain", "cpu-1", token="admin:root").stdout
    assert "ready" in commonage("node", "resume", "local/cpu-1", token="admin:root").stdout
    assert "ready" in commonage("node", "resume", "gpu-1", "--gpu", "0", token="admin:root").stdout
    assert "GPU '9' is none on gpu-1" in commonage("node", "resume", "gpu-1", "--gpu", "9", token="admin:root").stderr
    assert "no node 'gone'" in commonage("node", "drain", "gone", token="admin:root").stderr


def test_drain_with_deadline(commonage: Run) -> None:
    done = commonage("node", "drain", "cpu-1", "--requeue", "--by", "2h", token="admin:root")
    assert done.exit_code == 0, done.stderr
    assert "Workloads that still run there are evicted at" in done.stdout
    wrong = commonage("node", "drain", "cpu-1", "--by", "tomorrow", token="admin:root")
    assert wrong.exit_code == 2
    assert "by 'tomorrow' is no time; write it like" in wrong.stderr
    assert "ready" in commonage("node", "resume", "cpu-1", token="admin:root").stdout


def test_job_may_disable_requeue(commonage: Run) -> None:
    for flags, shown in (([], True), (["--requeue"], True), (["--no-requeue"], False)):
        made = json.loads(commonage("run", "-d", "--json", "--no-files", *flags, "--", "true").stdout)
        assert made["requeue"] is shown


def test_only_admins_list_workloads_of_others(commonage: Run) -> None:
    commonage("run", "-d", "--no-files", "--", "true", token="bob")
    assert "only admins can list" in commonage("ps", "-A").stderr
    everybody = json.loads(commonage("ps", "-A", "--all", "--json", token="admin:root").stdout)
    assert {"ann", "bob"} <= {one["owner"] for one in everybody}
    own = json.loads(commonage("ps", "--all", "--json", token="admin:root").stdout)
    assert {one["owner"] for one in own} <= {"root"}


def test_login_saves_token_for_owner_only(commonage: Run, url: str, tmp_path: Path) -> None:
    done = commonage("login", url, token=None, typed="ann\n")
    assert done.exit_code == 0, done.stderr
    assert "You are ann" in done.stdout
    kept = tmp_path / "home" / "commonage" / "credentials.json"
    assert kept.stat().st_mode & 0o777 == 0o600
    assert commonage("ps", token=None).exit_code == 0
    refused = commonage("login", url, token=None, typed="nobody\n")
    assert refused.exit_code == 2
    assert json.loads(kept.read_text())["tokens"] == {url: "ann"}


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["ps", "--url", "http://127.0.0.1:9"], 3, "http://127.0.0.1:9"),
        (["ps", "--token", "nobody"], 2, "commonage login"),
        (["run"], 2, "a command is needed"),
        (["run", "--gpus", "6XiB", "--no-files", "--", "true"], 2, "gpus '6XiB'"),
        (["run", "--gpus", "H100:1", "--no-files", "--", "true"], 2, "H100"),
        (["run", "--time", "90", "--no-files", "--", "true"], 2, "--time 90 has no unit. Write 90m for minutes"),
        (["run", "--time", "-5m", "--no-files", "--", "true"], 2, "-5m"),
        (["run", "--env", "gone", "--no-files", "--", "true"], 2, "Environment gone not found"),
        (["run", "--name", "n" * 300, "--no-files", "--", "true"], 2, "name"),
        (["run", "--colour", "red", "--", "true"], 2, "--colour"),
        (["run", "--priority", "7", "--no-files", "--", "true"], 2, "admins"),
        (["run", "--files", "gone", "--", "true"], 2, "'gone'"),
        (["run", "--dependency", "before:x", "--no-files", "--", "true"], 2, "before:x"),
        (["submit", "gone.yml"], 2, "job file gone.yml does not exist"),
        (["logs", "0000000000000"], 2, "0000000000000"),
        (["usage", "--since", "yesterday"], 2, "yesterday"),
        (["explain", "x", "--gpus", "1"], 2, "either an id or a request"),
    ],
)
def test_mistakes_have_message_and_exit_code(commonage: Run, arguments: list[str], code: int, said: str) -> None:
    done = commonage(*arguments)
    assert done.exit_code == code, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_missing_token_is_reported_with_login_command(commonage: Run, url: str) -> None:
    done = commonage("ps", token=None)
    assert done.exit_code == 2
    assert f"commonage login {url}" in done.stderr
