"""The command line `commonage`: one file for each noun, imported when its command is used."""

from commonage.cli.app import app as main

__all__ = ["main"]
