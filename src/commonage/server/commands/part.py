"""`commonage part`: one of the server's parts, run apart from it."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from pathlib import Path

import click

from commonage.server.children import ChildFailed
from commonage.server.commands.common import Failure, reads_settings
from commonage.server.parts import PartError, run_part
from commonage.server.settings_sources import Resolved


@click.command
@click.argument("name", metavar="NAME")
@reads_settings
def part(resolved: Resolved, name: str) -> None:
    """Run JupyterHub, the proxy or the registry apart from the control plane: NAME is hub, proxy or registry.

    For containers: the control plane runs with `children = "apart"`, and each part in a container that shares
    the network of the node and the folders of the part. Waits until the control plane has said how the part is to
    run, and starts it anew when that changes.

    \b
    Example:
      commonage part hub --data-dir /var/lib/commonage
    """
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    try:
        asyncio.run(_run(name, resolved.settings.data_dir))
    except (PartError, ChildFailed) as error:
        raise Failure(str(error)) from None


async def _run(name: str, data_dir: Path) -> None:
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    await run_part(name, data_dir, stopping)
