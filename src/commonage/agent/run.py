"""`run --config FILE`: runs the agent until it is stopped by a signal."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from commonage.agent.agent import Agent
from commonage.agent.config import SETTINGS, AgentConfig, read_config
from commonage.domain.errors import InvalidInput

_log = logging.getLogger(__name__)


def main(arguments: Sequence[str]) -> int:
    """Run until SIGTERM or SIGINT. Exit codes: 0 stopped by a signal, 2 the configuration is not valid."""
    parser = argparse.ArgumentParser(
        prog="commonage.agent run", description="Run the agent: report to the control plane and serve its requests."
    )
    parser.add_argument("--config", type=Path, default=SETTINGS, help=f"settings file (default: {SETTINGS})")
    parser.add_argument("--verbose", action="store_true", help="log debug messages")
    options = parser.parse_args(arguments)
    logging.basicConfig(
        level=logging.DEBUG if options.verbose else logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    try:
        return asyncio.run(_run_until_signal(read_config(options.config)))
    except InvalidInput as error:
        print(f"commonage-agent: {error.message}", file=sys.stderr)
        return 2


async def _run_until_signal(config: AgentConfig) -> int:
    try:
        agent = Agent(config)
    except OSError as error:
        raise InvalidInput(f"the state folder {config.state} cannot be used: {error.strerror}") from error
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    running, stopping = asyncio.create_task(agent.run()), asyncio.create_task(stop.wait())
    await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
    failed = running.done()
    for task in (running, stopping):
        task.cancel()
    [ended, _] = await asyncio.gather(running, stopping, return_exceptions=True)
    if failed and isinstance(ended, BaseException):
        _log.critical("the agent failed; workloads on this node continue", exc_info=ended)
        return 1
    _log.info("stopped; workloads on this node continue")
    return 0
