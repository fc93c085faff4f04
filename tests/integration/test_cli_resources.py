"""Platform resources on the command line: plan, apply, diff and export of files, and single resources."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.api_world import Api, served
from tests.integration.command_line import Run, commonage_at

from commonage.testing.behaviour import Behaviour

FILE = """\
kind: Tenant
name: optics
nominal:
  gpus: 4
  memory: 64GiB
---
# a comment
---
kind: Volume
name: data
source: /srv/data
tenants: [optics]
"""


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    def prepare(api: Api) -> None:
        api.engine.behave(Behaviour(lasts_s=None))

    with served(tmp_path / "api", prepare=prepare) as address:
        yield address


@pytest.fixture
def commonage(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    return commonage_at(url, tmp_path, default_token="admin:root")


def test_files_are_planned_applied_and_compared(commonage: Run, tmp_path: Path) -> None:
    folder = tmp_path / "platform"
    folder.mkdir()
    (folder / "lab.commonage.yml").write_text(FILE)
    planned = commonage("plan", "platform")
    assert planned.exit_code == 0, planned.output
    assert planned.stdout.splitlines() == [
        "+ Tenant optics",
        "+ Volume data",
        "2 to create, 0 to change, 0 to delete, 0 unchanged.",
    ]
    assert commonage("diff", "platform").exit_code == 1
    applied = commonage("apply", "platform")
    assert (applied.exit_code, applied.stdout.splitlines()[-1]) == (0, "Applied."), applied.output
    assert commonage("diff", "platform").stdout == "No changes: 2 resources match.\n"
    commonage("resource", "set", "Tenant", "optics", "nominal.gpus=2", "title=Lab: Optics")
    drift = commonage("diff", "platform")
    assert drift.exit_code == 1
    assert "    nominal.gpus: 2.0 -> 4.0" in drift.stdout or "    nominal.gpus: 2 -> 4" in drift.stdout
    assert "    title: Lab: Optics -> default" in drift.stdout


def test_export_can_be_applied_again(commonage: Run, tmp_path: Path) -> None:
    (tmp_path / "lab.yml").write_text(FILE)
    commonage("apply", "lab.yml")
    assert commonage("export", "-o", "all.yml").exit_code == 0
    assert commonage("diff", "all.yml").exit_code == 0
    assert commonage("export").stdout == (tmp_path / "all.yml").read_text()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (FILE.replace("gpus: 4", "gpu: 4"), "lab.yml, line 4: Tenant optics: nominal.gpu: no such field"),
        (FILE.replace("[optics]", "[optic]"), "the volume data: tenants: 'optic' does not exist"),
        (FILE.replace("kind: Volume", "title: x"), "lab.yml, line 9: The kind is missing. Kinds: PlatformRole, "),
        (
            FILE.replace("name: optics", "name: '!'"),
            "lab.yml, line 2: Tenant !: name: '!' is not allowed. Use at most 128 ",
        ),
        (
            FILE.replace("gpus: 4", "running: few"),
            "lab.yml, line 4: Tenant optics: nominal.running: 'few' is not a whole",
        ),
        ("", "no resource is declared in"),
        ("- kind: Tenant\n  name: x\n", "Put a line `---` between two of them"),
        (FILE.replace("kind: Volume", "kind: Volum"), "lab.yml, line 9: 'Volum' is no kind of resource. Did you mean"),
        (FILE.replace("name: data", "source: /x"), "lab.yml, line 11: source is given twice"),
        ("kind: [", "lab.yml, line 2: not valid YAML"),
        ("- kind: Tenant", "lab.yml, line 1: a resource is a mapping"),
    ],
)
def test_mistakes_are_reported_with_file_and_line(commonage: Run, tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "lab.yml").write_text(text)
    done = commonage("plan", "lab.yml")
    assert done.exit_code == 2
    assert said in done.stderr


def test_single_resources_are_created_shown_and_deleted(commonage: Run) -> None:
    made = commonage("resource", "set", "Site", "north", "title=North", "order=1")
    assert made.stdout == "kind: Site\nname: north\ntitle: North\norder: 1\n", made.output
    assert json.loads(commonage("resource", "show", "Site", "north", "--json").stdout)["version"] == 1
    assert "title" not in commonage("resource", "set", "Site", "north", "title=").stdout
    assert "north" in commonage("resource", "ls", "Site").stdout
    assert commonage("resource", "rm", "Site", "north").stdout == "Site north deleted\n"
    assert commonage("resource", "show", "Site", "north").exit_code == 2


def test_tenant_with_work_is_not_deleted_by_files_that_lack_it(commonage: Run, tmp_path: Path) -> None:
    (tmp_path / "lab.yml").write_text("kind: Tenant\nname: optics\nmembers: [{user: ann, role: member}]\n")
    commonage("apply", "lab.yml")
    submitted = commonage("run", "--detach", "--no-files", "--tenant", "optics", "--", "x", token="ann")
    assert submitted.exit_code == 0, submitted.output
    (tmp_path / "none.yml").write_text("kind: Site\nname: north\n")
    planned = commonage("plan", "none.yml", "--prune")
    assert "- Tenant optics\n    refused: " in planned.stdout
    assert "commonage tenant remove optics --plan" in planned.stdout
    assert planned.exit_code == 1
    for options in ((), ("--yes",)):
        refused = commonage("apply", "none.yml", "--prune", *options)
        assert (refused.exit_code, "commonage tenant remove optics --plan" in refused.stderr) == (2, True)
    assert "optics" in commonage("resource", "ls", "Tenant").stdout


def test_change_that_affects_workloads_needs_consent(commonage: Run, tmp_path: Path) -> None:
    (tmp_path / "lab.yml").write_text("kind: Environment\nname: torch\nrequirements: [torch]\n")
    commonage("apply", "lab.yml")
    submitted = commonage("run", "--detach", "--no-files", "--env", "torch", "--", "x", token="ann")
    assert submitted.exit_code == 0, submitted.output
    (tmp_path / "none.yml").write_text("kind: Site\nname: north\n")
    refused = commonage("apply", "none.yml", "--prune")
    assert "! Environment torch is deleted." in refused.stdout
    assert "people: ann" in refused.stdout
    assert (refused.exit_code, "Repeat it with --yes" in refused.stderr) == (2, True)
    assert commonage("apply", "none.yml", "--prune", "--yes").exit_code == 0
    assert commonage("resource", "ls").stdout.count("Environment") == 0
