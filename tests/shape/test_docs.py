"""The documents are complete: what the code has, docs/reference has, and every verb and setting is described."""

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
    from commonage.server.settings import Settings

    without = [name for name, field in Settings.model_fields.items() if not field.description]
    assert Settings.model_fields
    assert not without
