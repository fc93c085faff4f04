"""`commonage site agent`: serves an engine as a site of a control plane elsewhere. Runs on the appliance."""

from __future__ import annotations

import asyncio
import logging

import click
import uvloop

from commonage.link.sites.credentials import SiteCredentials
from commonage.server import logs
from commonage.server.commands.common import reads_settings
from commonage.server.commands.site_join import FOLDER
from commonage.server.data_dir import prepare
from commonage.server.settings.settings import Resolved


@click.command("agent")
@reads_settings
def agent(resolved: Resolved) -> None:
    """Run the site agent on this machine until Ctrl-C or SIGTERM. The machine must have joined (`commonage site join`).

    The engine is that of the settings: processes, Docker, Swarm or Kubernetes. Workloads keep running when the agent
    stops, and while the control plane is unreachable.

    \b
    Examples:
      commonage site agent
      COMMONAGE_ENGINE=docker commonage site agent --data-dir /srv/commonage
      COMMONAGE_ENGINE=kubernetes KUBECONFIG=admin.conf commonage site agent
    """
    settings = resolved.settings
    with prepare(settings.data_dir) as data:
        folder = data.path / FOLDER
        SiteCredentials(folder).identity()  # before anything is opened: raises NotJoined
        logs.set_up(data.logs, settings.log_level, settings.log_format, logging.INFO)
        from commonage.server.site_agent import run_site_agent  # noqa: PLC0415 - imports the engines: only when joined

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run_site_agent(settings, data, folder))
