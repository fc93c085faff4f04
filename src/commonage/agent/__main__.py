"""Runs `python3 -m commonage.agent VERB …` on a node. The module of the verb's name has its `main`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

VERBS = {
    "run": "run the agent: report to the control plane and serve its requests",
    "join": "join this machine to a site, step by step",
    "join-and-run": "in a container: join if that has not happened yet, then run the agent",
    "run-in-pod": "in a Pod of a DaemonSet: measure the node for the control plane",
    "leave": "remove this node from its site",
}


def main(arguments: Sequence[str]) -> int:
    """Run the verb in the first argument with the other arguments. Returns the exit code: 2 for an unknown verb."""
    verb, rest = (arguments[0], arguments[1:]) if arguments else ("", ())
    if verb not in VERBS:
        known = "\n".join(f"  {name:12} {description}" for name, description in VERBS.items())
        print(f"usage: python3 -m commonage.agent VERB …, VERB one of\n{known}", file=sys.stderr)
        return 2
    code: int = importlib.import_module(f"commonage.agent.{verb.replace('-', '_')}").main(rest)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
