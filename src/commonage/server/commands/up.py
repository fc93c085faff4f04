"""`commonage up`: the server."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from commonage.server.commands.common import config_option, data_dir_option, settings_of


@click.command
@data_dir_option
@click.option("--bind", metavar="ADDR", help="Address that people reach; 0.0.0.0 for all.  [default: 127.0.0.1]")
@click.option("--port", metavar="N", help="Port that people reach; 0 for a free one.  [default: 8000]")
@click.option("--engine", metavar="ENGINE", help="What runs workloads: process or docker.  [default: process]")
@click.option("--gpus", metavar="WHICH", help="auto, nvml, amd, none or simulated:2x24GiB.  [default: auto]")
@click.option("--password-file", metavar="FILE", help="File (0600) with admin=… and users=….")
@click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error.  [default: info]")
@click.option("--log-format", metavar="FORMAT", help="text or json.  [default: text]")
@click.option("--stop-workloads", is_flag=True, help="End workloads on SIGTERM as well, not only on Ctrl-C.")
@config_option
def up(config: Path | None, stop_workloads: bool, **flags: Any) -> None:
    """Start Commonage on this machine, and run until Ctrl-C.

    Makes the data folder at the first start and says how to sign in. Ctrl-C ends everything, workloads too: sessions
    for good, jobs go back to the queue. SIGTERM ends the server alone; workloads go on and the next start finds them.

    \b
    Example:
      commonage up
      commonage up --data-dir /srv/commonage --bind 0.0.0.0 --gpus simulated:2x24GiB
    """
    resolved = settings_of(flags, config)
    from commonage.server.main import serve  # noqa: PLC0415 - all the server: not before the settings are known to be right

    sys.exit(serve(resolved.settings, stop_workloads=stop_workloads))
