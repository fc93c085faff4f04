"""Shows the progress of build and push: a line for each step with its time, and the details."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

_WIDTH = 30
_SHOWN = 100


class Steps:
    """Reports steps on stderr. `verbose` prints every line of output."""

    def __init__(self, verbose: bool, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._verbose = verbose
        self._monotonic = monotonic
        self._live = sys.stderr.isatty() and not verbose
        self._title = ""
        self._began = 0.0

    def begin(self, title: str) -> None:
        """Start a step, and end the one before."""
        self.done()
        self._title, self._began = title, self._monotonic()
        if self._live or self._verbose:
            self._show(f"  {title} …")

    def detail(self, text: str) -> None:
        """Show a line of output of the step."""
        if self._verbose:
            click.echo(f"    {text}", err=True)
        elif self._live and text.strip():
            self._show(f"  {self._title:<{_WIDTH}} {text.strip()}"[:_SHOWN])

    def done(self) -> None:
        """End the step."""
        if self._title:
            self._clear()
            click.echo(f"  {self._title:<{_WIDTH}} done after {self._monotonic() - self._began:.1f} s", err=True)
        self._title = ""

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Run the block as one step."""
        self.begin(title)
        yield
        self.done()

    def abort(self) -> None:
        """Clear the step that failed, before the error is printed."""
        self._clear()

    def _show(self, text: str) -> None:
        if self._live:
            self._clear()
            click.echo(text, nl=False, err=True)
        else:
            click.echo(text, err=True)

    def _clear(self) -> None:
        if self._live:
            click.echo("\r\x1b[2K", nl=False, err=True)
