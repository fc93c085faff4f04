"""The documents are complete: what the code has, docs/reference has, and every verb and setting is described. The site
builds strictly.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

ROOT = Path(__file__).parents[2]


def test_reference_is_up_to_date() -> None:
    command = [sys.executable, "scripts/docs.py", "--check"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        pytest.fail(result.stdout + result.stderr, pytrace=False)


def build(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "docs/build.py", "--strict", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_site_builds_strictly(tmp_path: Path) -> None:
    result = build("--out", tmp_path / "site")
    if result.returncode != 0:
        pytest.fail(result.stdout + result.stderr, pytrace=False)
    pages = [page.read_text() for page in (tmp_path / "site").rglob("*.html")]
    assert pages
    assert not [page for page in pages if re.search(r"<style|<script(?![^>]*src=)|<[^>]+ on\w+=", page)]
    foreign = r"<(?:script|link|img)[^>]+(?:src|href)=\"(?:https?:)?//"
    assert not [page for page in pages if re.search(foreign, page)]


def test_dead_links_end_the_build(tmp_path: Path) -> None:
    source = tmp_path / "docs"
    (source / "_static").mkdir(parents=True)
    (source / "_static" / "commonage.css").touch()
    dead = "[page](a.md) [anchor](#b) [anchor elsewhere](other.md#c) ![image](d.svg)"
    (source / "index.md").write_text(f"# Title\n\n{dead}\n\n```{{toctree}}\nother\n```\n")
    (source / "other.md").write_text("# Other\n\nText.\n")
    (source / "lost.md").write_text("# In no table of contents\n\nText.\n")
    result = build("--source", source, "--out", tmp_path / "site")
    assert result.returncode != 0
    assert all(fault in result.stderr for fault in ("'a.md'", "'b'", "'c'", "d.svg", "lost.md"))
    assert not (tmp_path / "site").exists()


def test_pages_that_messages_name_exist() -> None:
    named = {
        page
        for path in [*(ROOT / "src").rglob("*.py"), *(ROOT / "src/commonage/portal/templates").rglob("*.html")]
        for page in re.findall(r"""docs_page\(["']([^"'#]+)""", path.read_text())
    }
    assert named
    assert [page for page in sorted(named) if not (ROOT / "docs" / f"{page}.md").is_file()] == []


def commands(path: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            verb = command.get_command(context, name)
            assert verb is not None
            yield from commands(f"{path} {name}".strip(), verb)
    else:
        yield path, command


def test_every_verb_says_what_it_does_with_an_example() -> None:
    from commonage.cli import main

    verbs = dict(commands("", main))
    without = [path for path, verb in verbs.items() if not verb.hidden and "commonage " not in (verb.help or "")]
    assert verbs
    assert not without, "the help of a verb has an example: a line that begins with `commonage`"


def test_every_option_is_described() -> None:
    from commonage.cli import main

    without = [
        f"{path} {option.opts[0]}"
        for path, verb in commands("", main)
        for option in verb.params
        if isinstance(option, click.Option) and not option.hidden and not option.help
    ]
    assert not without


def test_every_setting_is_described() -> None:
    from commonage.server.settings.settings import Settings

    without = [name for name, field in Settings.model_fields.items() if not field.description]
    assert Settings.model_fields
    assert not without


def written_commands() -> Iterator[tuple[str, list[str]]]:
    """Each `commonage` command in the code blocks of the pages, with the page; without what follows a pipe."""
    for page in [*(ROOT / "docs").glob("[!ar]*/*.md"), ROOT / "README.md"]:
        for block in re.findall(r"```(?:sh|console|text)?\n(.*?)```", page.read_text(), re.DOTALL):
            for line in re.findall(r"^\s*(?:[$#] )?(?:sudo )?commonage (.*)$", block, re.MULTILINE):
                words = re.split(r" \| | > | >|  +#| -- |…", line)[0].split()
                yield page.name, words


def test_commands_on_the_pages_exist() -> None:
    from commonage.cli import main

    wrong = []
    for page, words in written_commands():
        command: click.Command = main
        names = [word for word in words if not word.startswith("-")]
        while isinstance(command, click.Group) and names:
            found = command.get_command(click.Context(command), names.pop(0))
            if found is None:
                break
            command = found
        options = {option for one in command.params for option in (*one.opts, *one.secondary_opts)} | {"--help"}
        unknown = [word for word in words if word.startswith("--") and word.partition("=")[0] not in options]
        if isinstance(command, click.Group) or unknown:
            wrong.append(f"{page}: commonage {' '.join(words)}")
    assert wrong == []
