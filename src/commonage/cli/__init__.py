"""The command line, `commonage`: one file per noun, each loaded when its verb is used."""

from commonage.cli.app import app as main

__all__ = ["main"]
