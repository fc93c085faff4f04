"""Rules for every file of the repository: no registry addresses, pins with hashes, no dead links."""

import json
import re
import subprocess
import tomllib
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).parents[2]
# In pieces, since this file is searched, too.
REGISTRIES = re.compile(
    "|".join(
        [
            r"pypi\." + "org",
            r"python" + r"hosted\.",
            r"registry\." + "npmjs",
            r"registry\." + "yarnpkg",
            r"\bunpkg\." + "com",
            r"jsdelivr\." + "net",
            r"cdnjs\." + "cloudflare",
            r"--(?:extra-)?index" + "-url [^\\s-]",
        ]
    )
)
LINK = re.compile(r"(?<!\!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")


def files(*patterns: str) -> list[Path]:
    """Return the files that git tracks or could track, without ignored ones."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *patterns]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [path for name in listed.split("\0") if name and (path := ROOT / name).is_file()]


@pytest.mark.needs("git")
def test_no_file_names_a_registry() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {match.group()}"
        for path in files()
        if (match := REGISTRIES.search(path.read_text(errors="replace")))
    ]
    assert not found, "where packages come from is the node's choice, not the repository's"


@pytest.mark.parametrize("name", ["run", "tracing", "dev", "build", "uv"])
def test_requirements_are_pinned_with_hashes(name: str) -> None:
    text = (ROOT / "requirements" / f"{name}.txt").read_text().replace("\\\n", "")
    pins = [line for line in text.splitlines() if line and not line.lstrip().startswith("#")]
    loose = [line for line in pins if "==" not in line or "--hash=sha256:" not in line]
    assert pins
    assert not loose


def test_requirements_cover_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pinned = {
        match.group(1)
        for line in (ROOT / "requirements" / "run.txt").read_text().splitlines()
        if (match := re.match(r"([a-z0-9.-]+)(?:\[[^\]]*\])?==", line))
    }
    wanted = {re.split(r"[^A-Za-z0-9.-]", line, maxsplit=1)[0].lower() for line in project["dependencies"]}
    assert wanted <= pinned, "run: make lock"


def test_the_lockfile_of_the_assets_has_hashes_and_no_addresses() -> None:
    packages = json.loads((ROOT / "package-lock.json").read_text())["packages"]
    assert all("integrity" in package and "resolved" not in package for name, package in packages.items() if name)


@pytest.mark.needs("git")
def test_links_of_the_documents_lead_somewhere() -> None:
    dead = []
    for document in files("*.md"):
        for match in LINK.finditer(document.read_text()):
            target = match.group(1) or match.group(2)
            if re.match(r"[a-z]+:", target) or target.startswith("#"):
                continue
            if not (document.parent / unquote(target.split("#")[0])).exists():
                dead.append(f"{document.relative_to(ROOT)}: {target}")
    assert not dead


@pytest.mark.needs("git")
def test_scripts_are_executable() -> None:
    scripts = [path for path in files("scripts", ".ci") if path.read_text().startswith("#!")]
    assert scripts
    assert [path.name for path in scripts if not path.stat().st_mode & 0o111] == []
