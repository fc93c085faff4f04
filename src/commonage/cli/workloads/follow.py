"""Follows a workload until it ends: its state, its log and its result. Used by run and attach."""

from __future__ import annotations

import sys
import time
from contextlib import closing
from typing import TYPE_CHECKING

import click

from commonage.cli import output
from commonage.cli.errors import FAILED
from commonage.sdk.errors import ApiError

if TYPE_CHECKING:
    from rich.status import Status

    from commonage.sdk import Client
    from commonage.wire.reasons import ReasonOut
    from commonage.wire.workloads import WorkloadOut

INTERRUPTED = 130
_MIN_PAUSE_S, _MAX_PAUSE_S = 0.05, 1.0  # between two requests; the pause grows while the workload waits


def follow(client: Client, workload: WorkloadOut) -> int:
    """Follow until the workload ends, or Ctrl-C detaches. Returns the exit code for this command."""
    follower = _Follower(client, workload)
    while True:
        try:
            return follower.run()
        except KeyboardInterrupt:
            follower.status.clear()  # it would overwrite the question
            code = _interrupted(client, follower.workload)
            if code is not None:
                return code


def exit_code(workload: WorkloadOut) -> int:
    if workload.state == "succeeded":
        return 0
    code = workload.exit_code
    return code if workload.state == "failed" and code is not None and 0 < code < 256 else FAILED


def gpu_use(workload: WorkloadOut) -> str | None:
    """The GPU usage of a workload, to print after its id; None without GPUs or a usage report."""
    usage_report = workload.usage_report
    return usage_report.summary if usage_report is not None and usage_report.devices else None


class _Follower:
    def __init__(self, client: Client, workload: WorkloadOut) -> None:
        self._client = client
        self.workload = workload
        # Attempts whose log was shown. `attach` starts with the present attempt, or the last one.
        self._shown = max(workload.attempts - 1, 0)
        self._reported = self._shown  # attempts whose end was reported
        self._offset: int | None = None
        self.status = StatusLine()

    def run(self) -> int:
        from commonage.wire.workloads import TERMINAL_STATES

        while True:
            self._wait_for_start()
            if self.workload.kind == "service" and self.workload.url is not None:
                self.status.print(f"{self.workload.id} runs at {self.workload.url}")
            self._show_logs(self.workload.attempts)
            self.workload = self._client.workload(self.workload.id)
            if self.workload.state in TERMINAL_STATES:
                break
            time.sleep(_MIN_PAUSE_S)
        self.status.clear()
        if self.workload.state != "succeeded":
            self.status.print(f"{self.workload.id} {_result(self.workload.state, self.workload.reason)}")
        used = gpu_use(self.workload)
        if used is not None:
            self.status.print(f"{self.workload.id} {used}")
        return exit_code(self.workload)

    def _wait_for_start(self) -> None:
        pause_s = _MIN_PAUSE_S
        self._report_attempts()
        while self.workload.state in ("held", "queued", "starting"):
            # An attempt may end between two requests: show its log before waiting for the next attempt.
            self._show_logs(self.workload.attempts - (self.workload.state == "starting"))
            self._report_attempts()
            self.status.update(f"{self.workload.state}: {output.node_or_reason(self.workload)}")
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, _MAX_PAUSE_S)
            self.workload = self._client.workload(self.workload.id)
        self.status.clear()

    def _report_attempts(self) -> None:
        """Report why shown attempts ended that are followed by others: failed, or preempted."""
        if self._reported == self._shown:
            return
        for attempt in self._client.attempts(self.workload.id):
            if self._reported < attempt.number <= self._shown and attempt.ended_at is not None:
                self.status.print(f"attempt {attempt.number} {_result(attempt.state, attempt.reason)}")
                self._reported = attempt.number

    def _show_logs(self, last: int) -> None:
        """Show the logs of all attempts up to this one that were not shown yet."""
        while self._shown < last:
            self.status.clear()
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
            if error.status != 404:  # the attempt ended without a log
                raise


def _result(state: str, reason: ReasonOut | None) -> str:
    """`failed: Exit code 3.`"""
    ended = state.replace("_", " ")
    return ended if reason is None else f"{ended}: {reason.message}"


class StatusLine:
    """Reports progress on stderr: one line that changes in a terminal, else a line for each change."""

    def __init__(self) -> None:
        self._last = ""
        self._in_terminal = sys.stderr.isatty()
        self._status: Status | None = None

    def update(self, text: str) -> None:
        if text == self._last:
            return
        self._last = text
        if not self._in_terminal:
            click.echo(f"commonage: {text}", err=True)
            return
        if self._status is None:
            self._status = output.console(err=True).status("")
            self._status.start()
        self._status.update(output.text(text))

    def clear(self) -> None:
        if self._status is not None:
            self._status.stop()
        self._status = None

    def print(self, text: str) -> None:
        self.clear()
        if text == self._last and not self._in_terminal:
            return  # `update` has printed it
        click.echo(f"commonage: {text}", err=True)


def _interrupted(client: Client, workload: WorkloadOut) -> int | None:
    """Ask whether to detach or stop. Returns the exit code; None to continue."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        _print_detached(workload)
        return INTERRUPTED
    click.echo(err=True)
    try:
        answer = click.prompt(
            f"{workload.id} is still live. [d]etach, [s]top it, or continue to [f]ollow?",
            type=click.Choice(["d", "s", "f"], case_sensitive=False),
            default="d", show_choices=False, err=True,
        )  # fmt: skip
    except (click.Abort, KeyboardInterrupt):
        answer = "d"
    if answer == "d":
        _print_detached(workload)
        return INTERRUPTED
    if answer == "s":
        try:
            client.stop(workload.id, "Ctrl-C")
        except ApiError as error:
            if error.code != "already-ended":
                raise
    return None


def _print_detached(workload: WorkloadOut) -> None:
    click.echo(
        f"commonage: detached. {workload.id} continues. Follow it with `commonage attach {workload.id}`, "
        f"stop it with `commonage stop {workload.id}`.",
        err=True,
    )
