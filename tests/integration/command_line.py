"""The command line of Commonage, called in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from click.testing import CliRunner, Result

from commonage.cli import main

Run = Callable[..., Result]


def commonage_at(url: str, home: Path, variables: Mapping[str, str] | None = None, default_token: str = "ann") -> Run:
    """Calls of the command line with this `home`. Only exits are expected: any other exception is raised."""

    def run(*arguments: str, token: str | None = default_token, typed: str | None = None) -> Result:
        environ = {"XDG_CONFIG_HOME": str(home), "COMMONAGE_URL": url, "COMMONAGE_TOKEN": token, "NO_COLOR": "1"}
        environ |= variables or {}
        result = CliRunner().invoke(main, arguments, env=environ, input=typed, prog_name="commonage")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return run
