"""`commonage-agent join`: joins this node to a site, step by step. Running it again changes nothing.

Started by `join.sh`, which has put the token, the site's authority and this program here. The steps are in `steps_…`.
"""

from __future__ import annotations

import argparse
import os
import socket
import time
from collections.abc import Sequence

from commonage.agent.steps.docker import Docker
from commonage.agent.steps.host import Host
from commonage.agent.steps.nvidia import Nvidia
from commonage.agent.steps.preflight import Checks, Tools
from commonage.agent.steps.service import Agent, Certificate, Registered
from commonage.agent.steps.step import Case, Options, Outcome, Step, walk
from commonage.agent.steps.storage import Scratch, Share
from commonage.agent.steps.swarm import Images, Registry, Swarm
from commonage.join.client import JoinClient, Refusal
from commonage.join.config import JoinConfig, JoinConfigError

DONE, FAILED, MISUSED = 0, 1, 2


def all_steps() -> list[Step]:
    """All steps in order: a later step relies on the earlier ones."""
    return [
        Checks(), Tools(), Nvidia(), Docker(), Scratch(), Share(), Swarm(), Certificate(), Registry(), Agent(),
        Images(), Registered(),
    ]  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code: 0 joined (or planned), 1 a step failed, 2 wrong usage."""
    asked = _parser().parse_args(arguments)
    if os.geteuid() != 0:
        return _say("joining changes the node, so it must be root who does it", MISUSED)
    token = os.environ.pop("COMMONAGE_JOIN_TOKEN", "")  # child processes must not inherit it
    authority = os.environ.get("COMMONAGE_JOIN_AUTHORITY", "")
    if not token or not authority:
        return _say("begin with the script: `commonage node token` on the control plane's side shows how", MISUSED)
    began = time.monotonic()
    try:
        join_client = JoinClient(token, authority)
        join_config = JoinConfig.from_json(join_client.post("/join_config", {}))
        options = _options(asked)
    except (Refusal, JoinConfigError) as error:
        return _say(str(error), FAILED)
    except ValueError as error:
        return _say(str(error), MISUSED)
    case = Case(Host(), join_config, join_client, options, skew_s=time.time() - join_config.now)
    print(f"{options.node} {'would join' if asked.plan else 'joins'} {join_config.site}", flush=True)
    outcome = walk(all_steps(), case, plan=asked.plan, tell=lambda line: print(line, flush=True))
    for note in case.notes:
        print(f"Note: {note}", flush=True)
    print(_summary(outcome, options.node, join_config.site, time.monotonic() - began, plan=asked.plan), flush=True)
    return FAILED if outcome.failed else DONE


def _summary(outcome: Outcome, node: str, site: str, seconds: float, *, plan: bool) -> str:
    if outcome.failed:
        return f"Not joined: {outcome.failed} is in the way. What was done stays; mend that and run the same again."
    if plan:
        what = ", ".join(outcome.planned)
        return f"This would be done or is in the way: {what}. Nothing was changed." if what else "Nothing to do."
    if outcome.changed:
        return f"{node} has joined {site} in {seconds:.1f} s; changed: {', '.join(outcome.changed)}."
    return f"Nothing to do: {node} has joined {site} already ({seconds:.1f} s)."


def _say(sentence: str, code: int) -> int:
    print(f"join: {sentence}", flush=True)
    return code


def _options(asked: argparse.Namespace) -> Options:
    """Raises ValueError with a message."""
    labels = []
    for one in asked.label:
        name, equals, value = one.partition("=")
        if not name or not equals or not value:
            raise ValueError(f"--label takes NAME=VALUE, not {one!r}")
        labels.append((name, value))
    return Options(
        node=socket.gethostname(),
        scratch=asked.scratch,
        share=asked.share,
        mirror=asked.mirror,
        nvidia=asked.nvidia,
        driver=asked.driver,
        gpus=asked.gpus,
        vram_mib=asked.vram,
        address=asked.address,
        disk_gib=asked.disk,
        labels=tuple(labels),
        force=asked.force,
    )


def _parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="join",
        description="Has this machine join a site of Commonage. The same again changes nothing.",
        epilog="Example: sh join.sh --token-file FILE --share nas:/commonage --scratch 25%% --plan",
    )
    add = made.add_argument
    add("--plan", action="store_true", help="only show what would be done")
    add("--force", action="store_true", help="restart Docker, if need be, also while containers run: they end")
    add("--share", default="", metavar="SOURCE", help="shared folder: SERVER:/FOLDER for NFS, or 'TYPE SOURCE OPTIONS'")
    add("--scratch", default="50%", metavar="SIZE", help="tmpfs at /scratch: 50%% of the memory, 64G, … or off")
    add("--nvidia", default="ask", choices=("ask", "install", "skip"), help="what to do about a GPU without driver")
    add("--driver", default="", metavar="PACKAGE", help="the driver's package, if not the distribution's usual one")
    add("--mirror", default="", metavar="SOURCE", help="install from there alone: file:/FOLDER, or a sources.list line")
    add("--gpus", default="auto", metavar="WHICH", help="GPUs on offer: auto, none, or simulated:1x24GiB")
    add("--vram", type=int, metavar="MIB", help="memory of all GPUs together, if not what the driver says")
    add("--address", default="", help="this machine's address in the Swarm, if not the one towards the manager")
    add("--disk", type=float, default=10.0, metavar="GIB", help="how much must be free for images and containers")
    add("--label", action="append", default=[], metavar="NAME=VALUE", help="what else is to be known of the node")
    return made
