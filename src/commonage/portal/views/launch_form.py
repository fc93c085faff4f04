"""The launch form: the entered values, unchanged, and the submission made from them. Pure; used by `launch`.

A value that cannot be read becomes an error at its field, and the entered value stays.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from commonage import messages
from commonage.control.loops.session_restarts import own_variables
from commonage.control.workloads.submission import DEFAULT_GRACE_S, MAX_TOGETHER, Submission, Variables
from commonage.domain.cron_jobs import CronRule, MissedRuns, Overlap
from commonage.domain.errors import InvalidInput
from commonage.domain.profiles import Profile
from commonage.domain.requests import (
    format_cpus,
    format_memory,
    parse_cpus,
    parse_duration,
    parse_gpus,
    parse_labels,
    parse_memory,
)
from commonage.domain.volumes import VolumeRequest, parse_volume
from commonage.domain.workloads import Kind, RetryPolicy, Workload

T = TypeVar("T")
FIELDS = (
    "kind", "name", "environment", "gpus", "cpus", "memory", "time", "command", "retries", "key", "tenant", "priority",
    "preemptible", "nodes", "on", "near", "requeue",
    "volumes", "array", "grace", "again", "keep",
    "port", "health_path", "health_interval",
    "schedule", "time_zone", "overlap", "missed_runs", "starting_deadline",
)  # fmt: skip
KEPT = ("files", "variables", "secrets", "dependencies")
"""Values that the server copies from the repeated workload. The browser gets only their names."""
# The field of each error of control that has another name there.
_ALIASES = {
    "starting_deadline_s": "starting_deadline",
    "time_limit_s": "time",
    "health_interval_s": "health_interval",
    "depends_on": "keep",
    "variables": "keep",
    "secrets": "keep",
}
_SHELL = re.compile(r"[|&;<>()$`*?\[\]{}#~!\n\\]|^\s*\w+=")
_LONGEST = 200_000
_MAX_RETRIES = 100


@dataclass(frozen=True, slots=True)
class Earlier:
    """The workload that is run again. `has_files`: the server still keeps its files for `visitor`, a user name."""

    workload: Workload
    visitor: str
    has_files: bool

    @property
    def variables(self) -> Variables:
        """Without the variables that the hub gives a session at each start."""
        return own_variables(self.workload.spec)

    @property
    def secrets(self) -> Variables:
        """Secrets that the user need not enter again: the visitor's own, until the workload ends."""
        spec = self.workload.spec
        return spec.secrets if spec.owner == self.visitor and spec.kind is not Kind.SESSION else ()

    @property
    def secrets_to_enter(self) -> tuple[str, ...]:
        """The names of the other secrets. A session has only the hub's, which each start sets."""
        spec = self.workload.spec
        return () if self.secrets or spec.kind is Kind.SESSION else spec.secret_names


@dataclass(frozen=True, slots=True)
class LaunchForm:
    """The fields as text, and their errors; the key "" holds an error of the whole form.

    `secrets` are values that were entered. No page shows them.
    """

    values: Mapping[str, str]
    errors: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def read(cls, given: Mapping[str, str]) -> LaunchForm:
        """Read a form or a query; unknown names are ignored."""
        values = {name: given.get(name, "").strip()[:_LONGEST] for name in FIELDS}
        if values["kind"] not in set(Kind):
            values["kind"] = Kind.SESSION.value
        return cls(values)

    @classmethod
    def again(cls, workload: Workload) -> LaunchForm:
        spec = workload.spec
        return cls.read(
            {
                "kind": spec.kind,
                "name": spec.name,
                "environment": spec.environment,
                "gpus": gpus_text(spec.request.gpu.text) if spec.request.gpu else "",
                "cpus": format_cpus(spec.request.cpus_milli),
                "memory": format_memory(spec.request.memory_mib),
                "time": f"{spec.time_limit_s}s" if spec.time_limit_s else "",
                "command": command_text(spec.command),
                "retries": str(spec.retry.retries) if spec.retry.retries else "",
                "tenant": spec.tenant,
                "priority": str(spec.priority) if spec.priority else "",
                "preemptible": "1" if spec.preemptible else "",
                "volumes": ",".join(one.text for one in spec.volumes),
                "requeue": ("yes" if spec.requeue else "no") if spec.requeue is (spec.kind is Kind.SESSION) else "",
                "nodes": str(spec.array_size) if spec.gang else "",
                "array": str(spec.array_size) if spec.array_size and not spec.gang else "",
                "grace": f"{spec.grace_s}s" if spec.grace_s != DEFAULT_GRACE_S else "",
                "again": workload.id,
                "keep": ",".join(KEPT),
                "near": spec.near,
                "port": str(spec.port) if spec.port else "",
                "health_path": spec.health_path,
                "health_interval": f"{spec.health_interval_s}s" if spec.kind is Kind.SERVICE else "",
                "on": " ".join(f"{name}={value}" for name, value in spec.request.labels),
            }
        )

    @property
    def kind(self) -> Kind:
        return Kind(self.values["kind"])

    @property
    def keeps(self) -> frozenset[str]:
        """The names in `KEPT` that are taken over."""
        return frozenset(self.values["keep"].split(",")) & frozenset(KEPT)

    def changed(self, **values: str) -> LaunchForm:
        return replace(self, values={**self.values, **values})

    def refused(self, error: InvalidInput) -> LaunchForm:
        """A copy with an error of control at its field."""
        name = _ALIASES.get(error.field or "", error.field or "")
        return replace(self, errors={**self.errors, name if name in FIELDS else "": messages.of_error(error)})

    def submission(
        self, earlier: Earlier | None = None, *, considered: bool = False
    ) -> tuple[Submission | None, LaunchForm]:
        """The submission, or None and the form with its errors. `earlier` is the workload that is run again.

        `considered`: for a dry run; an empty command, or a secret that was not entered yet, is no error.
        """
        errors: dict[str, str] = {}

        def parsed(name: str, parse: Callable[[str], T]) -> T | None:
            text = self.values[name]
            if not text:
                return None
            try:
                return parse(text)
            except InvalidInput as error:
                errors[name] = messages.of_error(error)
                return None

        is_job, has_command = self.kind is Kind.JOB, self.kind is not Kind.SESSION
        is_service = self.kind is Kind.SERVICE
        command = (parsed("command", command_words) or ()) if has_command else ()
        if has_command and not command and considered:
            command = ("true",)
        size = (parsed("nodes", _nodes) or parsed("array", _array) or 0) if is_job else 0
        if is_job and self.values["nodes"] and self.values["array"]:
            errors["array"] = "A gang cannot be an array. Clear Nodes or Array."
        grace_s = parsed("grace", partial(parse_duration, field="grace", zero=True)) if has_command else None
        submission = Submission(
            kind=self.kind,
            command=command,
            name=self.values["name"] or None,
            environment=self.values["environment"] or None,
            cpus_milli=parsed("cpus", parse_cpus),
            memory_mib=parsed("memory", parse_memory),
            gpu=parsed("gpus", parse_gpus),
            time_limit_s=parsed("time", parse_duration),
            grace_s=DEFAULT_GRACE_S if grace_s is None else grace_s,
            retry=RetryPolicy(retries=(parsed("retries", _retries) or 0) if has_command else 0),
            key=self.values["key"] or None,
            tenant=self.values["tenant"] or None,
            priority=_priority(self.values["priority"]),
            preemptible=True if self.values["preemptible"] else None,
            volumes=parsed("volumes", _volumes) or (),
            requeue={"yes": True, "no": False}.get(self.values["requeue"]),
            array_size=size,
            gang=is_job and bool(self.values["nodes"]),
            labels=parsed("on", _labels) or (),
            near=self.values["near"] or None,
            port=parsed("port", _port) if is_service else None,
            health_path=self.values["health_path"] if is_service else "",
            health_interval_s=(
                parsed("health_interval", partial(parse_duration, field="health_interval")) if is_service else None
            ),
        )
        if earlier is not None:
            submission = replace(submission, **self._taken_over(earlier, submission))
            missing = [name for name in earlier.secrets_to_enter if name not in self.secrets]
            if has_command and "secrets" in self.keeps and missing and not considered:
                errors["keep"] = f"Enter the value of {', '.join(missing)}, or clear Secrets to run without."
        if has_command and not command and "command" not in errors:
            errors["command"] = f"A {self.kind} needs a command, for example: python train.py"
        return (None if errors else submission), replace(self, errors=errors)

    def rule(self) -> tuple[CronRule | None, LaunchForm]:
        """The rule of the cron job, None for a job that runs once; and the form with errors in these fields."""
        v, errors = self.values, dict[str, str]()
        if self.kind is not Kind.JOB or not v["schedule"]:
            return None, self
        deadline = v["starting_deadline"]
        try:
            rule = CronRule(
                v["schedule"],
                v["time_zone"] or "UTC",
                Overlap(v["overlap"]) if v["overlap"] in set(Overlap) else Overlap.SKIP,
                MissedRuns(v["missed_runs"]) if v["missed_runs"] in set(MissedRuns) else MissedRuns.RUN_ONCE,
                parse_duration(deadline, field="starting_deadline", zero=True) if deadline else None,
            )
            rule.check()
        except InvalidInput as error:
            errors[error.field or ""] = messages.of_error(error)
            return None, replace(self, errors={**self.errors, **errors})
        return rule, self

    def _taken_over(self, earlier: Earlier, submission: Submission) -> dict[str, Any]:
        """Values that the form does not show, by field of the submission. A session takes only values that the hub
        passes on.
        """
        spec = earlier.workload.spec
        taken: dict[str, Any] = {"one_numa": spec.request.one_numa}
        if "variables" in self.keeps:
            taken["variables"] = earlier.variables
        if self.kind is Kind.SESSION:
            return taken
        taken["retry"] = replace(submission.retry, backoff_s=spec.retry.backoff_s)
        if self.values["command"] == command_text(spec.command):
            taken["command"] = spec.command
        if "files" in self.keeps and earlier.has_files:
            taken["bundle"] = spec.bundle
        if "dependencies" in self.keeps:
            taken["depends_on"] = spec.depends_on
        if "secrets" in self.keeps:
            entered = {name: text for name, text in self.secrets.items() if name in earlier.secrets_to_enter}
            taken["secrets"] = (*earlier.secrets, *entered.items())
        return taken


def command_words(text: str) -> tuple[str, ...]:
    """The command: the words of one simple line, or a call of the shell if it has pipes, variables or several lines."""
    text = text.replace("\r\n", "\n").strip()
    if "\x00" in text:
        raise InvalidInput("The command contains a NUL character. Remove it.", field="command")
    if _SHELL.search(text):
        return ("sh", "-c", text)
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise InvalidInput(f"Cannot parse the command: {str(error).lower()}.", field="command") from None


def command_text(command: tuple[str, ...]) -> str:
    if len(command) == 3 and command[:2] == ("sh", "-c") and _SHELL.search(command[2]):
        return command[2]
    return shlex.join(command)


def profile_values(profile: Profile) -> dict[str, str]:
    """The fields that a profile fills; empty ones have their defaults."""
    return {
        "environment": profile.environment or "",
        "cpus": "" if profile.cpus_milli is None else format_cpus(profile.cpus_milli),
        "memory": "" if profile.memory_mib is None else format_memory(profile.memory_mib),
        "gpus": profile.gpus,
        "on": " ".join(f"{name}={value}" for name, value in profile.labels),
    }


def gpus_text(text: str) -> str:
    """A GPU request as people write it: `16384MiB` becomes `16GiB`."""
    return re.sub(r"(\d+)MiB$", lambda found: _round_memory(int(found[1])), text)


def _round_memory(mib: int) -> str:
    return f"{mib // 1024}GiB" if mib % 1024 == 0 else f"{mib}MiB"


def _priority(text: str) -> int | str:
    """A number, or the name of a class that control checks."""
    try:
        return int(text or "0")
    except ValueError:
        return text


def _labels(text: str) -> tuple[tuple[str, str], ...]:
    pairs = [part.partition("=") for part in text.replace(",", " ").split()]
    if not all(equals for _, equals, _ in pairs):
        raise InvalidInput("Write labels as NAME=VALUE, for example zone=basement or node=gpu-1.", field="on")
    return parse_labels([(name, value) for name, _, value in pairs])


def _volumes(text: str) -> tuple[VolumeRequest, ...]:
    return tuple(parse_volume(part) for part in text.split(",") if part.strip())


def number(text: str, *, name: str, label: str, least: int = 1, most: int | None = None) -> int:
    """A whole number in the field `name`. Raises InvalidInput for other texts and numbers."""
    value = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1
    if value < least or (most is not None and value > most):
        limits = f"from {least}" if most is None else f"from {least} to {most}"
        raise InvalidInput(f"{label} must be a number {limits}, not {text[:40]!r}.", field=name)
    return value


_nodes = partial(number, name="nodes", label="Nodes", most=MAX_TOGETHER)
_array = partial(number, name="array", label="The array size")  # control checks the maximum
_port = partial(number, name="port", label="The port", most=65535)
_retries = partial(number, name="retries", label="Retries", least=0, most=_MAX_RETRIES)
