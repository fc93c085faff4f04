"""The command line, `commonage`: one file per noun, each loaded when its verb is used."""

from __future__ import annotations


def main() -> None:
    """Run the command line; what it was given is in sys.argv."""
    from commonage.cli.app import app

    app(prog_name="commonage")
