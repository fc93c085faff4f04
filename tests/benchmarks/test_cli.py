"""`python -m benchmarks`: each name leads to a command with an example, and `make bench` takes NAME as an argument."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from benchmarks.cli import BENCHMARKS, main

ROOT = Path(__file__).parents[2]


def test_lists_all_benchmarks_without_a_name() -> None:
    result = CliRunner().invoke(main, [])
    assert result.exit_code == 0
    assert all(f"  {name} " in result.output for name in BENCHMARKS)


def test_unknown_name_lists_the_benchmarks() -> None:
    result = CliRunner().invoke(main, ["speed"])
    assert result.exit_code == 2
    assert "Unknown benchmark 'speed'. The benchmarks are placement, schedule," in " ".join(result.output.split())


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_has_an_example_and_describes_its_options(name: str) -> None:
    command = main.get_command(click.Context(main), name)
    assert command is not None
    assert f"python -m benchmarks {name}" in (command.help or "")
    assert all(option.help for option in command.params if isinstance(option, click.Option))


@pytest.mark.parametrize(
    ("arguments", "variables", "words"),
    [
        (["NAME=gpu", "ARGS=--json"], {}, ["gpu", "--json"]),
        ([], {"NAME": "a-variable-of-the-shell"}, []),
    ],
)
def test_make_takes_the_name_only_from_its_command_line(
    arguments: list[str], variables: dict[str, str], words: list[str]
) -> None:
    argv = ["make", "--dry-run", "bench", *arguments]
    outer = {"ARGS", "MAKEFLAGS", "MAKELEVEL", "MFLAGS"}  # of the make that runs the tests
    environ = {name: value for name, value in os.environ.items() if name not in outer} | variables
    result = subprocess.run(argv, cwd=ROOT, env=environ, capture_output=True, text=True, check=True)
    assert result.stdout.partition(" -m benchmarks")[2].split() == words


def test_the_product_has_no_benchmarks() -> None:
    from commonage.cli.app import COMMANDS

    assert "bench" not in COMMANDS
