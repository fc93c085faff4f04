"""The framework of joining: steps that check whether they are done, say what they would change, and change it.

`join` has them in order; each is in a `steps_…` module. A step checks again after its changes, and reports if they had
no effect. To add one: docs/contribute/add-a-join-step.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from commonage.agent.steps.host import Host
from commonage.join.client import JoinClient
from commonage.join.config import JoinConfig


class State(Enum):
    """The state in which a step finds the node."""

    DONE = "done"
    NEEDED = "needed"
    NOT_HERE = "not here"
    """The step does not apply to this node."""
    BAD = "bad"
    """The step cannot be done; the node's owner must do something first."""


@dataclass(frozen=True, slots=True)
class Look:
    """The result of a step's check.

    `says` is a line for people, `changes` a line for each change that it would make.
    """

    state: State
    says: str
    changes: tuple[str, ...] = ()


def done(says: str) -> Look:
    """Nothing is left to do."""
    return Look(State.DONE, says)


def needed(*changes: str) -> Look:
    """These changes are needed."""
    return Look(State.NEEDED, "; ".join(changes), changes)


def not_here(says: str) -> Look:
    """The step does not apply to this node."""
    return Look(State.NOT_HERE, says)


def bad(says: str) -> Look:
    """The node's owner must do something first."""
    return Look(State.BAD, says)


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
class Case:
    """This node, the site it joins, and the data that steps share. `restart`: the agent must be restarted."""

    host: Host
    join_config: JoinConfig
    join_client: JoinClient
    options: Options
    skew_s: float = 0.0
    restart: bool = False
    notes: list[str] = field(default_factory=list)


class Step(Protocol):
    """One step. `look` changes nothing, and also works if earlier steps were only planned."""

    @property
    def name(self) -> str:
        """One or two words."""
        ...

    def look(self, case: Case) -> Look:
        """Check the node."""
        ...

    def apply(self, case: Case) -> None:
        """Make the changes. Raises StepFailed, OSError."""
        ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of all steps. `failed` is the name of the step that ended the walk, empty if none failed."""

    changed: tuple[str, ...]
    planned: tuple[str, ...]
    failed: str = ""


Tell = Callable[[str], None]


def walk(steps: Sequence[Step], case: Case, *, plan: bool, tell: Tell) -> Outcome:
    """Run each step that is needed, in order, until one fails. With `plan` only say what would be done."""
    changed: list[str] = []
    planned: list[str] = []
    for number, step in enumerate(steps, start=1):
        line = _Line(f"{number:>2}/{len(steps)}", step.name, tell)
        found = _looked(step, case)
        if found.state is State.NEEDED and plan:
            planned.append(step.name)
            line.say("would", found.says)
            continue
        if found.state is State.NEEDED:
            for change in found.changes:
                line.begin(change)
            found = _applied(step, case)
            if found.state is State.DONE:
                changed.append(step.name)
                line.say("changed", found.says)
                continue
        if found.state is State.BAD:
            line.say("stop", found.says)
            if plan:  # report every obstacle at once
                planned.append(step.name)
                continue
            return Outcome(tuple(changed), tuple(planned), step.name)
        line.say("ok" if found.state is State.DONE else "-", found.says)
    return Outcome(tuple(changed), tuple(planned))


def _looked(step: Step, case: Case) -> Look:
    try:
        return step.look(case)
    except Exception as error:  # report any error as a line for people, with the step's name
        return bad(_sentence(error))


def _applied(step: Step, case: Case) -> Look:
    try:
        step.apply(case)
        found = step.look(case)
    except Exception as error:  # likewise
        return bad(_sentence(error))
    if found.state is State.NEEDED:
        return bad(f"it was done, and yet is needed: {found.says}")
    return found


def _sentence(error: Exception) -> str:
    return str(error) or type(error).__name__


class _Line:
    """Prints the progress of a step, with the seconds it took."""

    def __init__(self, place: str, name: str, tell: Tell) -> None:
        self._place, self._name, self._tell = place, name, tell
        self._began = time.monotonic()

    def begin(self, change: str) -> None:
        """Print the change that starts now."""
        self._tell(f"{self._place}  {self._name:<12} …        {change}")

    def say(self, how: str, says: str) -> None:
        """Print the result."""
        seconds = time.monotonic() - self._began
        self._tell(f"{self._place}  {self._name:<12} {how:<8} {says}  ({seconds:.1f} s)")
