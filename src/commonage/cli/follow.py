"""Following a workload to its end: why it waits, what it says, how it ended. Used by run and attach."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING

import click

from commonage.cli import show, usage_reports
from commonage.cli.failures import FAILED
from commonage.sdk.errors import ApiError

if TYPE_CHECKING:
    from commonage.sdk import Client
    from commonage.wire.workloads import ReasonOut, WorkloadOut

INTERRUPTED = 130
# A quick job ends within the first of these; one that waits for hours is asked about once a second.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0


def follow(client: Client, workload: WorkloadOut) -> int:
    """Show all until the workload has ended. Returns the exit code to end with. Ctrl-C asks what to do."""
    follower = _Follower(client, workload)
    while True:
        try:
            return follower.to_the_end()
        except KeyboardInterrupt:
            follower.pause()  # what moves on the line would write over the question
            code = _interrupted(client, follower.workload)
            if code is not None:
                return code


def exit_code(workload: WorkloadOut) -> int:
    """The code to end with: the job's own, if it had one and failed by it."""
    if workload.state == "succeeded":
        return 0
    code = workload.exit_code
    return code if workload.state == "failed" and code is not None and 0 < code < 256 else FAILED


class _Follower:
    def __init__(self, client: Client, workload: WorkloadOut) -> None:
        self._client = client
        self.workload = workload
        # Attempts whose log was shown. Who attaches later wants the present one, or the last.
        self._shown = max(workload.attempts - 1, 0)
        self._told = self._shown  # attempts of which it was said how they ended
        self._offset: int | None = None
        self._say = Teller()

    def to_the_end(self) -> int:
        """Wait, show the log of each attempt, and say how it ended."""
        from commonage.wire.workloads import TERMINAL_STATES

        while True:
            self._until_it_speaks()
            self._show_logs(self.workload.attempts)
            self.workload = self._client.workload(self.workload.id)
            if self.workload.state in TERMINAL_STATES:
                break
            time.sleep(_FIRST_PAUSE_S)
        self._say.done()
        if self.workload.state != "succeeded":
            self._say.line(f"{self.workload.id} {_ended(self.workload.state, self.workload.reason)}")
        usage_report = usage_reports.used(self.workload)
        if usage_report is not None:
            self._say.line(f"{self.workload.id} {usage_report}")
        return exit_code(self.workload)

    def pause(self) -> None:
        """Write nothing until it goes on."""
        self._say.done()

    def _until_it_speaks(self) -> None:
        pause_s = _FIRST_PAUSE_S
        self._tell_ends()
        while self.workload.state in ("held", "queued", "starting"):
            # An attempt may be over before anybody looked: it is said what it said before the next one is waited for.
            self._show_logs(self.workload.attempts - (self.workload.state == "starting"))
            self._tell_ends()
            self._say.status(self._waiting())
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, _LONGEST_PAUSE_S)
            self.workload = self._client.workload(self.workload.id)
        self._say.done()

    def _tell_ends(self) -> None:
        """Why the tries that were shown have ended, where others follow: it failed, or had to make room."""
        if self._told == self._shown:
            return
        for one in self._client.attempts(self.workload.id):
            if self._told < one.number <= self._shown and one.ended_at is not None:
                self._say.line(f"attempt {one.number} {_ended(one.state, one.reason)}")
                self._told = one.number

    def _waiting(self) -> str:
        return f"{self.workload.state}: {show.where(self.workload)}"

    def _show_logs(self, last: int) -> None:
        """The logs of all attempts up to this one that were not shown yet."""
        while self._shown < last:
            self._say.done()
            self._show_log(self._shown + 1)
            self._shown += 1
            self._offset = None

    def _show_log(self, attempt: int) -> None:
        try:
            lines = self._client.logs(self.workload.id, follow=True, attempt=attempt, offset=self._offset)
            with closing(lines):
                for line in lines:
                    self._offset = line.offset
                    click.echo(line.text)
        except ApiError as error:
            if error.status != 404:  # it said nothing before it ended
                raise


def _ended(state: str, reason: ReasonOut | None) -> str:
    """`failed: Exit code 3.`"""
    ended = state.replace("_", " ")
    return ended if reason is None else f"{ended}: {reason.message}"


class Teller:
    """Says on stderr what happens: one line that changes in a terminal, else a line for each change."""

    def __init__(self) -> None:
        self._last = ""
        self._in_terminal = sys.stderr.isatty()
        self._stop: Callable[[], None] | None = None
        self._update: Callable[[str], None] | None = None

    def status(self, text: str) -> None:
        """What is the case now."""
        if text == self._last:
            return
        self._last = text
        if not self._in_terminal:
            click.echo(f"commonage: {text}", err=True)
            return
        if self._update is None:
            status = show.console(err=True).status("")
            status.start()
            self._stop, self._update = status.stop, status.update
        self._update(show.text(text))

    def done(self) -> None:
        """Nothing more to wait for."""
        if self._stop is not None:
            self._stop()
        self._stop = self._update = None

    def line(self, text: str) -> None:
        """Something that stays."""
        self.done()
        if text == self._last and not self._in_terminal:
            return  # it stands there already
        click.echo(f"commonage: {text}", err=True)


def _interrupted(client: Client, workload: WorkloadOut) -> int | None:
    """Ask whether to detach or stop. Returns the exit code, None to go on following."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        _say_detached(workload)
        return INTERRUPTED
    click.echo(err=True)
    try:
        answer = click.prompt(
            f"{workload.id} goes on. [d]etach, [s]top it, or [f]ollow on?",
            type=click.Choice(["d", "s", "f"], case_sensitive=False),
            default="d", show_choices=False, err=True,
        )  # fmt: skip
    except (click.Abort, KeyboardInterrupt):
        answer = "d"
    if answer == "d":
        _say_detached(workload)
        return INTERRUPTED
    if answer == "s":
        try:
            client.stop(workload.id, "Ctrl-C")
        except ApiError as error:
            if error.code != "already-ended":
                raise
    return None


def _say_detached(workload: WorkloadOut) -> None:
    click.echo(
        f"commonage: detached; {workload.id} goes on. Follow it with `commonage attach {workload.id}`, "
        f"end it with `commonage stop {workload.id}`.",
        err=True,
    )
