"""`commonage up`: starts the server."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from commonage.server.commands.common import F, config_option, settings_of
from commonage.server.settings.settings import FLAGS
from commonage.server.settings.show import flag_help


def _setting_options(command: F) -> F:
    """Add an option for each setting that has a flag. The values are strings or None, as `resolve` takes them."""
    for flag, name in reversed(FLAGS.items()):
        metavar = flag.rpartition("-")[2].upper()
        command = click.option(flag, name, metavar=metavar, help=flag_help(name))(command)
    return command


@click.command
@_setting_options
@click.option("--stop-workloads", is_flag=True, help="On SIGTERM, end workloads, too. Ctrl-C always ends them.")
@config_option
def up(config: Path | None, stop_workloads: bool, **flags: Any) -> None:
    """Start Commonage on this machine, and run until Ctrl-C.

    The first start creates the data folder and prints how to sign in. Ctrl-C ends the server and all workloads:
    sessions end for good, jobs are requeued. SIGTERM ends only the server: workloads continue, and the next start
    adopts them.

    \b
    Examples:
      commonage up
      commonage up --data-dir /srv/commonage --bind 0.0.0.0 --gpus simulated:2x24GiB
    """
    resolved = settings_of(flags, config)
    from commonage.server.main import serve  # noqa: PLC0415 - imports the whole server: only once the settings are valid

    sys.exit(serve(resolved.settings, stop_workloads=stop_workloads))
