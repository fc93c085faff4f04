"""Shared by the commands of the server: the options for data folder and settings file, and errors."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from commonage.server.settings.settings import Resolved
from commonage.server.settings.sources import SettingsError, resolve

F = TypeVar("F", bound=Callable[..., Any])


class Failure(click.ClickException):
    """The command failed. Exit code 2."""

    exit_code = 2

    def show(self, file: Any = None) -> None:
        click.echo(f"commonage: {self.format_message()}", file=file, err=file is None)


class NotRunning(Failure):
    """No server runs on the data folder."""

    exit_code = 3


def data_dir_option(command: F) -> F:
    text = "Data folder of the server.  [default: .commonage]"
    return click.option("--data-dir", type=click.Path(path_type=Path), metavar="DIR", help=text)(command)


def config_option(command: F) -> F:
    text = "Settings file.  [default: commonage.toml]"
    return click.option("--config", type=click.Path(path_type=Path), metavar="FILE", help=text)(command)


def as_json(command: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def reads_settings(command: F) -> F:
    """Add --data-dir and --config. The command gets the `resolved` settings instead."""

    @wraps(command)
    def with_settings(*args: Any, data_dir: Path | None, config: Path | None, **rest: Any) -> Any:
        return command(*args, resolved=settings_of({"data_dir": data_dir}, config), **rest)

    return data_dir_option(config_option(with_settings))  # type: ignore[return-value]  # click leaves it callable


def settings_of(flags: dict[str, Any], config: Path | None) -> Resolved:
    """The settings from all sources. Raises Failure if one is invalid."""
    try:
        return resolve(flags, config=config)
    except SettingsError as error:
        raise Failure(str(error)) from None
