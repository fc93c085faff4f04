"""What the verbs of the server share: the options that name data folder and settings file, and how they fail."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from commonage.server.settings.sources import Resolved, SettingsError, resolve

F = TypeVar("F", bound=Callable[..., Any])


class Failure(click.ClickException):
    """What was asked cannot be done; exit code 2, unless said otherwise."""

    exit_code = 2

    def show(self, file: Any = None) -> None:
        """The sentence on stderr."""
        click.echo(f"commonage: {self.format_message()}", file=file, err=file is None)


class NotRunning(Failure):
    """No server answers there."""

    exit_code = 3


def data_dir_option(verb: F) -> F:
    """--data-dir."""
    says = "The server's data folder.  [default: .commonage]"
    return click.option("--data-dir", type=click.Path(path_type=Path), metavar="DIR", help=says)(verb)


def config_option(verb: F) -> F:
    """--config."""
    says = "Settings file, instead of commonage.toml."
    return click.option("--config", type=click.Path(path_type=Path), metavar="FILE", help=says)(verb)


def as_json(verb: F) -> F:
    """--json."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")(verb)


def reads_settings(verb: F) -> F:
    """Give a verb --data-dir and --config; it gets the `resolved` settings instead of both."""

    @wraps(verb)
    def with_settings(*args: Any, data_dir: Path | None, config: Path | None, **rest: Any) -> Any:
        return verb(*args, resolved=settings_of({"data_dir": data_dir}, config), **rest)

    return data_dir_option(config_option(with_settings))  # type: ignore[return-value]  # click leaves it callable


def settings_of(flags: dict[str, Any], config: Path | None) -> Resolved:
    """The settings that hold. Raises Failure with the sentence of what is wrong."""
    try:
        return resolve(flags, config=config)
    except SettingsError as error:
        raise Failure(str(error)) from None
