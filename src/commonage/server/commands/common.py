"""Shared by the commands of the server: the options for data folder and settings file, and errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from commonage.domain.errors import CommonageError
from commonage.server import ServerError
from commonage.server.settings.sources import resolve

F = TypeVar("F", bound=Callable[..., Any])
PATH = click.Path(path_type=Path)
_DATA_DIR = "Data folder of the server.  [default: .commonage]"
_CONFIG = "Settings file.  [default: commonage.toml]"


class Failure(click.ClickException):
    """The command failed. Exit code 2."""

    exit_code = 2

    def show(self, file: Any = None) -> None:
        click.echo(f"commonage: {self.format_message()}", file=file, err=file is None)


class NotRunning(Failure):
    """No server runs on the data folder."""

    exit_code = 3


def config_option(command: F) -> F:
    return click.option("--config", type=PATH, metavar="FILE", help=_CONFIG)(command)


def as_json(command: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def reads_settings(command: F) -> F:
    """Add --data-dir and --config. The command gets the `resolved` settings instead."""

    @wraps(command)
    def with_settings(*args: Any, data_dir: Path | None, config: Path | None, **rest: Any) -> Any:
        with reported():
            return command(*args, resolved=resolve({"data_dir": data_dir}, config=config), **rest)

    data_dir_option = click.option("--data-dir", type=PATH, metavar="DIR", help=_DATA_DIR)
    return data_dir_option(config_option(with_settings))  # type: ignore[return-value]  # click leaves it callable


@contextmanager
def reported() -> Iterator[None]:
    """Turn the errors of Commonage into Failure with their message."""
    try:
        yield
    except CommonageError as error:
        raise Failure(error.message) from None
    except ServerError as error:
        raise Failure(str(error)) from None
