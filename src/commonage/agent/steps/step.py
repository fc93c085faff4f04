"""The framework of join steps: a step checks the node, lists the changes that it would make, and makes them.

`join` lists the steps in order. A step is checked again after its changes: it fails if they had no effect. To add one:
docs/contribute/add-a-join-step.md.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar

from commonage.agent.steps.host import Host
from commonage.join.client import JoinClient
from commonage.join.config import JoinConfig
from commonage.link.exchange import error_text


class State(Enum):
    """The state in which a step finds the node."""

    DONE = "done"
    NEEDED = "needed"
    NOT_APPLICABLE = "not here"
    """The step does not apply to this node."""
    BLOCKED = "blocked"
    """The step cannot be done; the node's owner must do something first."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of a step's check.

    `message` is a line for people; `changes` has a line for each change that the step would make.
    """

    state: State
    message: str
    changes: tuple[str, ...] = ()


def done(message: str) -> CheckResult:
    return CheckResult(State.DONE, message)


def needed(*changes: str) -> CheckResult:
    return CheckResult(State.NEEDED, "; ".join(changes), changes)


def not_applicable(message: str) -> CheckResult:
    return CheckResult(State.NOT_APPLICABLE, message)


def blocked(message: str) -> CheckResult:
    return CheckResult(State.BLOCKED, message)


@dataclass(frozen=True, slots=True)
class Options:
    """The options of joining. Empty: chosen by the step.

    `scratch` is a size as tmpfs takes it, or `off`; `share` the source to mount as the shared folder; `nvidia` is ask,
    install or skip; `gpus` as the setting of that name; `vram_mib` replaces the GPUs' own figure. `force`: Docker may
    be restarted while containers run.
    """

    node: str
    scratch: str = "50%"
    share: str = ""
    mirror: str = ""
    nvidia: str = "ask"
    driver: str = ""
    gpus: str = "auto"
    vram_mib: int | None = None
    address: str = ""
    disk_gib: float = 10.0
    labels: tuple[tuple[str, str], ...] = ()
    force: bool = False


@dataclass(slots=True)
class JoinContext:
    """This node, the site it joins, and the data that steps share. `restart`: the agent must be restarted."""

    host: Host
    join_config: JoinConfig
    join_client: JoinClient
    options: Options
    skew_s: float = 0.0
    restart: bool = False
    notes: list[str] = field(default_factory=list)

    def registration(self, node_id: str, serial: str = "") -> dict[str, Any]:
        """The control plane's view of this node under this Swarm node id: `JoinService.registration`."""
        return self.join_client.post("/registration", {"node": self.options.node, "node_id": node_id, "serial": serial})


class Step(ABC):
    """One step. `check` changes nothing, and also works if earlier steps were only planned."""

    name: ClassVar[str]

    @abstractmethod
    def check(self, context: JoinContext) -> CheckResult: ...

    def apply(self, context: JoinContext) -> None:
        """Make the changes; by default a step only checks. Raises StepFailed, OSError."""
        return


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of all steps. `failed` is the step at which joining stopped, empty if none failed."""

    changed: tuple[str, ...]
    planned: tuple[str, ...]
    failed: str = ""


PrintLine = Callable[[str], None]


def run_steps(steps: Sequence[Step], context: JoinContext, *, plan: bool, print_line: PrintLine) -> Outcome:
    """Run the needed steps in order, until one fails. With `plan` only report what would change."""
    changed: list[str] = []
    planned: list[str] = []
    for number, step in enumerate(steps, start=1):
        line = _Progress(f"{number:>2}/{len(steps)}  {step.name:<12}", print_line)
        result = _check(step, context)
        if result.state is State.NEEDED and plan:
            planned.append(step.name)
            line.report("would", result.message)
            continue
        if result.state is State.NEEDED:
            for change in result.changes:
                line.begin(change)
            result = _check(step, context, after_changes=True)
            if result.state is State.DONE:
                changed.append(step.name)
                line.report("changed", result.message)
                continue
        if result.state is State.BLOCKED:
            line.report("stop", result.message)
            if plan:  # report every obstacle at once
                planned.append(step.name)
                continue
            return Outcome(tuple(changed), tuple(planned), step.name)
        line.report("ok" if result.state is State.DONE else "-", result.message)
    return Outcome(tuple(changed), tuple(planned))


def _check(step: Step, context: JoinContext, *, after_changes: bool = False) -> CheckResult:
    """Check the step, or make its changes and check it. Any error is reported as a line of this step."""
    try:
        if after_changes:
            step.apply(context)
        result = step.check(context)
    except Exception as error:  # a defect in one step is shown as its result, and does not hide the other steps
        return blocked(error_text(error))
    if after_changes and result.state is State.NEEDED:
        return blocked(f"the step was applied, and is still needed: {result.message}")
    return result


class _Progress:
    """Prints the progress of a step, with the seconds it took."""

    def __init__(self, prefix: str, print_line: PrintLine) -> None:
        self._prefix, self._print_line = prefix, print_line
        self._began = time.monotonic()

    def begin(self, change: str) -> None:
        self._print_line(f"{self._prefix} …        {change}")

    def report(self, result: str, message: str) -> None:
        seconds = time.monotonic() - self._began
        self._print_line(f"{self._prefix} {result:<8} {message}  ({seconds:.1f} s)")
