"""`run --config FILE`: runs the agent until it is stopped by a signal."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from commonage.agent.agent import Agent
from commonage.agent.config import SETTINGS, read_config
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
    return run_agent(lambda: Agent(read_config(options.config)), verbose=options.verbose)


class Runnable(Protocol):
    async def run(self) -> None:
        """Run until cancelled."""


def run_agent(make: Callable[[], Runnable], *, verbose: bool) -> int:
    """Make an agent and run it. Exit codes: 0 stopped by a signal, 1 failed, 2 `make` raised InvalidInput."""
    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    try:
        return asyncio.run(_run_until_signal(make))
    except InvalidInput as error:
        print(f"commonage-agent: {error.message}", file=sys.stderr)
        return 2


async def _run_until_signal(make: Callable[[], Runnable]) -> int:
    try:
        agent = make()
    except OSError as error:
        raise InvalidInput(f"the state folder {error.filename} cannot be used: {error.strerror}") from error
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
