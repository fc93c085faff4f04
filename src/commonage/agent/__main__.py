"""Runs `python3 -m commonage.agent VERB …` on a node. A verb is the module of that name, with its `main`."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence

VERBS = {
    "run": "stay, report, and do what the control plane asks",
    "join": "make this machine one of the site, step by step",
    "contained": "join from a container of its own, where it has not joined yet, and stay",
    "leave": "take it out again",
}


def main(arguments: Sequence[str]) -> int:
    """Run the verb in the first argument with the other arguments. Returns the exit code: 2 for an unknown verb."""
    verb, rest = (arguments[0], arguments[1:]) if arguments else ("", ())
    if verb not in VERBS or importlib.util.find_spec(f"commonage.agent.{verb}") is None:
        known = "\n".join(f"  {name:9} {said}" for name, said in VERBS.items())
        print(f"usage: python3 -m commonage.agent VERB …, VERB one of\n{known}", file=sys.stderr)
        return 2
    code: int = importlib.import_module(f"commonage.agent.{verb}").main(rest)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
