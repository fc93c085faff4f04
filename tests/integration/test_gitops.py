"""`commonage gitops`: a branch of a real git repository is kept in force; a broken commit changes nothing."""

from __future__ import annotations

import http.server
import json
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.api_world import served
from tests.integration.command_line import Run, commonage_at

GOOD = "kind: Tenant\nname: optics\nweight: 2\n"
SITE = "kind: Site\nname: north\n"


class Repository:
    """A repository with a work tree, as a person has it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.git("init", "--quiet", "--initial-branch=main")

    def git(self, *arguments: str) -> str:
        person = ["-c", "user.name=ann", "-c", "user.email=ann@example.org", "-c", "commit.gpgsign=false"]
        done = subprocess.run(["git", *person, *arguments], cwd=self.folder, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def commit(self, files: dict[str, str]) -> str:
        for name, text in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "-m", "change")
        return self.git("rev-parse", "HEAD")


class Forge:
    """The part of GitHub and GitLab that takes commit statuses."""

    def __init__(self) -> None:
        self.statuses: list[tuple[str, dict[str, Any], str]] = []
        forge = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                token = self.headers.get("Authorization") or self.headers.get("PRIVATE-TOKEN") or ""
                forge.statuses.append((self.path, body, token))
                self.send_response(201)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"


@pytest.fixture
def forge() -> Iterator[Forge]:
    made = Forge()
    thread = threading.Thread(target=made.server.serve_forever)
    thread.start()
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "repository")


@pytest.fixture
def commonage(tmp_path: Path) -> Iterator[Run]:
    with served(tmp_path / "api", run=False) as url:
        yield commonage_at(
            url, tmp_path, {"GITHUB_TOKEN": "hub-secret", "GITLAB_TOKEN": "lab-secret"}, default_token="admin:root"
        )


@pytest.fixture
def reconcile(commonage: Run, repository: Repository) -> Callable[..., Any]:
    def run(*options: str) -> Any:
        return commonage("gitops", "--repo", str(repository.folder), "--once", *options)

    return run


def names(commonage: Run) -> list[tuple[str, str]]:
    found = json.loads(commonage("resource", "ls", "--json").stdout)
    return [(one["name"], one["managed_by"]) for one in found]


def test_commits_are_applied_and_reverts_roll_back(
    commonage: Run, repository: Repository, reconcile: Callable[..., Any]
) -> None:
    source = f"git:{repository.folder}@main"
    repository.commit({"lab.commonage.yml": GOOD})
    done = reconcile()
    assert done.exit_code == 0, done.output
    repository.commit({"lab.commonage.yml": GOOD.replace("2", "5"), "sites/all.commonage.yml": SITE})
    assert reconcile().exit_code == 0
    assert names(commonage) == [("north", source), ("optics", source)]
    repository.git("revert", "--no-edit", "HEAD")
    assert reconcile().exit_code == 0
    assert names(commonage) == [("optics", source)]
    assert "weight: 2.0" in commonage("resource", "show", "Tenant", "optics").stdout
    refused = commonage("resource", "set", "Tenant", "optics", "weight=9")
    assert (refused.exit_code, "is managed by git:" in refused.stderr) == (2, True)


def test_broken_commit_changes_nothing_and_says_why(
    commonage: Run, repository: Repository, reconcile: Callable[..., Any], forge: Forge
) -> None:
    status = ("--status", "github:lab/platform", "--status-url", forge.url)
    good = repository.commit({"lab.commonage.yml": GOOD})
    assert reconcile(*status).exit_code == 0
    bad = repository.commit({"lab.commonage.yml": GOOD + "wieght: 3\n", "site.commonage.yml": SITE})
    done = reconcile(*status)
    assert done.exit_code == 1
    assert "lab.commonage.yml, line 4: Tenant optics: wieght: no such field" in done.stderr
    assert [name for name, _ in names(commonage)] == ["optics"]
    assert [(path, body["state"], token) for path, body, token in forge.statuses] == [
        (f"/repos/lab/platform/statuses/{good}", "success", "Bearer hub-secret"),
        (f"/repos/lab/platform/statuses/{bad}", "failure", "Bearer hub-secret"),
    ]
    assert forge.statuses[1][1]["description"].startswith("lab.commonage.yml, line 4")


def test_status_at_gitlab_names_the_project_and_the_branch_is_its_own_source(
    commonage: Run, repository: Repository, reconcile: Callable[..., Any], forge: Forge
) -> None:
    repository.commit({"lab.commonage.yml": GOOD})
    repository.git("checkout", "--quiet", "-b", "staging")
    commit = repository.commit({"lab.commonage.yml": GOOD, "more.commonage.yml": SITE})
    done = reconcile("--branch", "staging", "--status", "gitlab:labs/vision/platform", "--status-url", forge.url)
    assert done.exit_code == 0, done.output
    ((path, body, token),) = forge.statuses
    assert path == f"/api/v4/projects/labs%2Fvision%2Fplatform/statuses/{commit}"
    assert (body["state"], body["name"], token) == ("success", "commonage", "lab-secret")
    assert {source for _, source in names(commonage)} == {f"git:{repository.folder}@staging"}
    # Another branch cannot take its resources.
    refused = reconcile("--branch", "main")
    assert (refused.exit_code, "is managed by" in refused.stderr) == (1, True)


@pytest.mark.parametrize("path", ["nowhere", "../.."])
def test_folder_without_files_is_refused_and_deletes_nothing(
    commonage: Run, repository: Repository, reconcile: Callable[..., Any], path: str
) -> None:
    repository.commit({"lab.commonage.yml": GOOD})
    assert reconcile().exit_code == 0
    assert reconcile("--path", path).exit_code == 1
    assert [name for name, _ in names(commonage)] == ["optics"]


def test_only_the_folder_counts(commonage: Run, repository: Repository, reconcile: Callable[..., Any]) -> None:
    repository.commit({"production/a.commonage.yml": GOOD, "other/b.commonage.yml": SITE, "production/c.yml": "x: ["})
    assert reconcile("--path", "production/").exit_code == 0
    assert [name for name, _ in names(commonage)] == ["optics"]


def test_unreachable_repository_is_reported(commonage: Run, tmp_path: Path) -> None:
    done = commonage("gitops", "--repo", str(tmp_path / "missing"), "--once")
    assert (done.exit_code, "unreachable" in done.stderr) == (1, True)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--branch", "--upload-pack=x"), "not the name of a branch"),
        (("--status", "forge:lab/x"), "github:OWNER/NAME"),
        (("--repo", "ext::sh -c id"), "transport 'ext' not allowed"),
    ],
)
def test_options_that_could_run_programs_or_mean_nothing_are_refused(
    commonage: Run, options: tuple[str, ...], said: str
) -> None:
    done = commonage("gitops", "--once", *(() if "--repo" in options else ("--repo", "/nowhere")), *options)
    assert done.exit_code != 0
    assert said in done.stderr
