"""`commonage component`: runs one component of the server as a separate process."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from pathlib import Path

import click

from commonage.server.commands.common import Failure, reads_settings
from commonage.server.processes.children import ChildFailed
from commonage.server.processes.components import ComponentError, run_component
from commonage.server.settings.sources import Resolved


@click.command
@click.argument("name", metavar="NAME")
@reads_settings
def component(resolved: Resolved, name: str) -> None:
    """Run one component of the server in its own process: hub, proxy or registry.

    Use it for containers, with the setting `children = "external"`. Each container shares the network of the node, and
    the folders of its component. The command waits for the configuration from the control plane, and restarts the
    component when the configuration changes.

    \b
    Example:
      commonage component hub --data-dir /var/lib/commonage
    """
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    try:
        asyncio.run(_run(name, resolved.settings.data_dir))
    except (ComponentError, ChildFailed) as error:
        raise Failure(str(error)) from None


async def _run(name: str, data_dir: Path) -> None:
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    await run_component(name, data_dir, stopping)
