"""`commonage-agent join`: joins this node to a site, step by step. Running it again changes nothing.

`join.sh` starts it, with the token and the site's authority in environment variables. The steps are in `steps`.
"""

from __future__ import annotations

import argparse
import os
import socket
import time
from collections.abc import Sequence

from commonage.agent.steps.credentials import Certificate, Images, Registry
from commonage.agent.steps.docker import Docker
from commonage.agent.steps.host import Host
from commonage.agent.steps.nvidia import Nvidia
from commonage.agent.steps.preflight import Preflight, Tools
from commonage.agent.steps.service import Agent, Registered
from commonage.agent.steps.step import JoinContext, Options, Outcome, Step, run_steps
from commonage.agent.steps.storage import Scratch, Share
from commonage.agent.steps.swarm import Swarm
from commonage.join.client import JoinClient, JoinRefused
from commonage.join.config import JoinConfig, JoinConfigError

DONE, FAILED, MISUSED = 0, 1, 2


def all_steps() -> list[Step]:
    """All steps in order: a later step relies on the earlier ones."""
    return [
        Preflight(), Tools(), Nvidia(), Docker(), Scratch(), Share(), Swarm(), Certificate(), Registry(), Agent(),
        Images(), Registered(),
    ]  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code: 0 joined (or planned), 1 a step failed, 2 wrong usage."""
    given = _parser().parse_args(arguments)
    if os.geteuid() != 0:
        return _print("run this as root: it changes the system", MISUSED)
    token = os.environ.pop("COMMONAGE_JOIN_TOKEN", "")  # child processes must not inherit it
    authority = os.environ.get("COMMONAGE_JOIN_AUTHORITY", "")
    if not token or not authority:
        return _print(
            "no join token: start with the join script that `commonage node token` shows on the control plane", MISUSED
        )
    began = time.monotonic()
    try:
        join_client = JoinClient(token, authority)
        join_config = JoinConfig.from_json(join_client.post("/join-config", {}))
        options = _options(given)
    except (JoinRefused, JoinConfigError) as error:
        return _print(str(error), FAILED)
    except ValueError as error:
        return _print(str(error), MISUSED)
    context = JoinContext(Host(), join_config, join_client, options, skew_s=time.time() - join_config.now)
    print(f"{options.node} {'would join' if given.plan else 'joins'} {join_config.site}", flush=True)
    outcome = run_steps(all_steps(), context, plan=given.plan, print_line=lambda line: print(line, flush=True))
    for note in context.notes:
        print(f"Note: {note}", flush=True)
    print(_summary(outcome, options.node, join_config.site, time.monotonic() - began, plan=given.plan), flush=True)
    return FAILED if outcome.failed else DONE


def _summary(outcome: Outcome, node: str, site: str, seconds: float, *, plan: bool) -> str:
    if outcome.failed:
        return (
            f"Not joined: step {outcome.failed} failed. Completed steps stay. Fix the cause, then run the same command "
            "again."
        )
    if plan:
        planned = ", ".join(outcome.planned)
        return f"Steps that are needed or blocked: {planned}. Nothing was changed." if planned else "Nothing to do."
    if outcome.changed:
        return f"{node} has joined {site} in {seconds:.1f} s; changed: {', '.join(outcome.changed)}."
    return f"Nothing to do: {node} has joined {site} already ({seconds:.1f} s)."


def _print(sentence: str, code: int) -> int:
    print(f"join: {sentence}", flush=True)
    return code


def _options(given: argparse.Namespace) -> Options:
    """Raises ValueError with a message."""
    labels = []
    for one in given.label:
        name, equals, value = one.partition("=")
        if not name or not equals or not value:
            raise ValueError(f"--label takes NAME=VALUE, not {one!r}")
        labels.append((name, value))
    same = {name: value for name, value in vars(given).items() if name not in ("plan", "label")}
    return Options(node=socket.gethostname(), labels=tuple(labels), **same)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="join",
        description="Join this machine to a Commonage site. Running it again changes nothing.",
        epilog="Example: sh join.sh --token-file FILE --share nas:/commonage --scratch 25%% --plan",
    )
    add = parser.add_argument
    add("--plan", action="store_true", help="only show the changes")
    add("--force", action="store_true", help="restart Docker if needed, even if that ends running containers")
    add("--share", default="", metavar="SOURCE", help="shared folder: SERVER:/FOLDER for NFS, or 'TYPE SOURCE OPTIONS'")
    add("--scratch", default="50%", metavar="SIZE", help="tmpfs at /scratch: 50%% of the memory, 64G, … or off")
    add("--nvidia", default="ask", choices=("ask", "install", "skip"), help="how to treat a GPU without driver")
    add("--driver", default="", metavar="PACKAGE", help="the driver's package, if not the distribution's default")
    add(
        "--mirror",
        default="",
        metavar="SOURCE",
        help="install packages only from here: file:/FOLDER, or a sources.list line",
    )
    add("--gpus", default="auto", metavar="WHICH", help="GPUs to share: auto, none, or simulated:1x24GiB")
    add(
        "--vram",
        dest="vram_mib",
        type=int,
        metavar="MIB",
        help="total memory of all GPUs, if the driver reports it wrong",
    )
    add("--address", default="", help="this node's address in the Swarm (default: the one that reaches the manager)")
    add(
        "--disk",
        dest="disk_gib",
        type=float,
        default=10.0,
        metavar="GIB",
        help="disk space that must be free for images and containers",
    )
    add("--label", action="append", default=[], metavar="NAME=VALUE", help="label of the node; repeatable")
    return parser
