"""`run-in-pod`: measures the node of this Pod of a DaemonSet, until a signal stops it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from commonage.agent.config import AgentConfig
from commonage.agent.kubernetes.agent import PodAgent
from commonage.agent.kubernetes.join import PodIdentity
from commonage.agent.run import run_agent


def main(arguments: Sequence[str]) -> int:
    """Exit codes: 0 stopped by a signal, 2 the configuration is not valid."""
    given = parser().parse_args(arguments)
    state = given.state
    config = AgentConfig(
        node=given.node,
        control=(f"{given.control}:{given.agents_port}",),
        certificate=str(state / "agent.crt"),
        key=str(state / "agent.key"),
        request=str(state / "agent.csr"),
        authority=str(given.authority),
        state=str(state),
        gpus=given.gpus,
        isolation="cooperative",  # the cluster allocates the GPUs
    )
    identity = PodIdentity(config, given.token, f"{given.control}:{given.join_port}")
    return run_agent(lambda: PodAgent(config, identity, given.root, [Path("/"), *given.disk]), verbose=given.verbose)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="commonage.agent run-in-pod", description="Measure the Kubernetes node of this Pod for the control plane."
    )
    add = made.add_argument
    add("--node", required=True, help="the node's name in the cluster")
    add("--control", required=True, metavar="HOST", help="the control plane")
    add("--join-port", type=int, default=8445, help="its port for agents that join")
    add("--agents-port", type=int, default=8444, help="its port for reports")
    add("--authority", type=Path, required=True, metavar="FILE", help="the certificate that verifies the control plane")
    add("--token", type=Path, required=True, metavar="FILE", help="the token of this Pod")
    add("--state", type=Path, required=True, metavar="FOLDER", help="a folder in memory, for key and certificate")
    add("--root", type=Path, default=Path("/host"), help="where the node's /proc and /sys are mounted")
    add("--disk", type=Path, action="append", default=[], help="a folder on a disk of the node; repeatable")
    add("--gpus", default="auto", metavar="WHICH", help="GPUs to measure: auto, none, or simulated:1x24GiB")
    add("--verbose", action="store_true", help="log debug messages")
    return made
