"""The examples match the documents. The acceptance tests run them."""

import json
import re
from pathlib import Path

import yaml

from commonage.catalogue import builtin_environments
from commonage.cli.workloads.job_file import read
from commonage.resources.documents import parse_all
from commonage.resources.kinds import KINDS
from commonage.units import TEXT_FIELDS, with_units_in_names
from commonage.wire.cron_jobs import CronJobIn
from commonage.wire.workloads import SubmitIn

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
# Asked for through the API alone: files are sent by `files`, and only admins and the hub act for others.
NOT_IN_FILES = {"bundle", "class_meeting", "groups", "owner"}


def test_job_files_are_read_and_send_files_that_are_there() -> None:
    for path in EXAMPLES.glob("*.commonage.yml"):
        for entry in read(path):
            assert isinstance(entry.files, list)
            assert all((EXAMPLES / name).is_file() for name in entry.files)
            assert entry.request.environment in {one.name for one in builtin_environments()}


def test_every_field_of_a_job_is_explained() -> None:
    pages = "".join((ROOT / "docs/use" / page).read_text() for page in ("write-a-job.md", "repeat-a-job.md"))
    explained = set(re.findall(r"^\| `(\w+)` \|", pages, re.MULTILINE))
    text = dict.fromkeys(("time", "grace", "backoff", "starting_deadline", "health_interval"), "1s")
    text["memory"] = "1MiB"
    assert text.keys() == TEXT_FIELDS <= explained
    fields = explained - {"files"} - TEXT_FIELDS | with_units_in_names(text).keys()
    of_files = SubmitIn.model_fields.keys() | CronJobIn.model_fields.keys()
    assert fields == of_files - NOT_IN_FILES - {"kind", "job"}


def test_the_job_shown_in_the_document_is_the_example_shortened() -> None:
    document = (ROOT / "docs/use/write-a-job.md").read_text()
    shown = document.split("```yaml\n")[1].split("```")[0].splitlines()
    example = [line.split(" #")[0] for line in (EXAMPLES / "train.commonage.yml").read_text().splitlines()]
    assert set(shown) <= set(example)


def test_notebooks_are_kept_without_what_they_printed() -> None:
    for path in EXAMPLES.glob("*.ipynb"):
        cells = json.loads(path.read_text())["cells"]
        assert not [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")]


def test_resources_in_the_documents_are_valid() -> None:
    found = set()
    for page in sorted((ROOT / "docs").rglob("*.md")):
        for block in re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
            loaded = [one if isinstance(one, list) else [one] for one in yaml.safe_load_all(block)]
            documents = [one for part in loaded for one in part if isinstance(one, dict)]
            resources = [one for one in documents if one.get("kind") in KINDS and "apiVersion" not in one]
            assert parse_all(resources).keys() == {(one["kind"], one["name"]) for one in resources}, page
            found |= {one["kind"] for one in resources}
    assert found == KINDS.keys()
