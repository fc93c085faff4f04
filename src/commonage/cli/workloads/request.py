"""The options of a request, and the message that is made from them. Used by run, profile, explain and reservation."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from commonage.cli.errors import MISUSED, Failure
from commonage.units import UnitError, with_units_in_names

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

    from commonage.wire.workloads import SubmitIn

F = TypeVar("F", bound=Callable[..., Any])
M = TypeVar("M", bound="BaseModel")

_TYPES = ("str", "int", "float", "constrained-str", "constrained-int", "[key]")
_MESSAGES = {
    "extra_forbidden": "unknown field",
    "missing": "is required",
    "list_type": "must be a list",
    "dict_type": "must be names with values",
    "string_unicode": "is not valid UTF-8",
    "string_pattern_mismatch": "has characters that are not allowed, or a wrong form",
}
_OPTIONS_WITH_UNITS = {
    "time": "--time", "memory": "--mem", "grace": "--grace", "starting_deadline": "--starting-deadline",
    "health_interval": "--health-interval",
}  # fmt: skip
CONDITIONS = ("afterok", "afternotok", "afterany", "after")

_REQUEST = (
    click.option(
        "--gpus",
        metavar="SHARE",
        help="GPU request: VRAM (6GiB), a fraction (0.25, 1/3), GPUs (2), or a model (A100|H100:6GiB).",
    ),
    click.option("--cpus", metavar="N", help="CPU cores: 2, 0.5 or 1500m."),
    click.option("--mem", "memory", metavar="SIZE", help="Memory: 4GiB or 512MiB. A plain number is MiB, as in Slurm."),
    click.option("--time", metavar="LIMIT", help="Time limit: 90s, 30m, 1h30m, 2d, or 01:30:00 as in Slurm."),
    click.option("--env", "environment", metavar="NAME", help="Environment. `commonage environment ls` lists all."),
    click.option(
        "--priority",
        metavar="CLASS|N",
        help="Priority class (low, normal, high, …), or -100 to 100. Only admins may set a number above 0.",
    ),
    click.option(
        "--preemptible", is_flag=True, default=None, help="The workload may be preempted. It is then requeued."
    ),
    click.option("--tenant", metavar="NAME", help="Tenant to charge, if you are a member of several."),
    click.option(
        "--volume",
        "volumes",
        multiple=True,
        metavar="NAME[:rw]",
        help="Volume to mount, read-only unless `:rw`. See `commonage volume ls`. Repeatable.",
    ),
    click.option(
        "--on",
        "on",
        multiple=True,
        metavar="KEY=VALUE",
        help="Only on nodes with this label: zone=a, node=gpu-1. Repeatable.",
    ),
    click.option("--site", metavar="NAME", help="Only at this site. Short for --on site=NAME."),
    click.option("--near", metavar="VOLUME", help="Only at a site that has this volume. It need not be mounted."),
    click.option("--one-numa", is_flag=True, default=None, help="All GPUs must be on the same NUMA node."),
)


_JOB = (
    click.option("--name", metavar="NAME", help="Name to show.  [default: from the command]"),
    click.option(
        "-e",
        "--var",
        "given",
        multiple=True,
        metavar="NAME[=VALUE]",
        help="Environment variable of the job. Repeatable.",
    ),
    click.option(
        "--secret", multiple=True, metavar="NAME[=VALUE]", help="Secret environment variable: never shown. Repeatable."
    ),
    click.option("--files", multiple=True, metavar="PATH", help="Send only this file or folder. Repeatable."),
    click.option("--no-files", is_flag=True, help="Send no files."),
)


def add_options(options: Sequence[Callable[[F], F]]) -> Callable[[F], F]:
    def decorate(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


request_options = add_options(_REQUEST)
"""The options of a request; `request_fields` turns their values into fields of the message."""
job_options = add_options(_JOB)
"""The options of a job that is made from a command and the files of a folder."""


def request_fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the message for the options of a request, without unset ones. Raises Failure."""
    names = ("gpus", "cpus", "memory", "time", "environment", "priority", "preemptible", "tenant", "near", "one_numa")
    fields = with_units({name: given[name] for name in names if given[name] is not None})
    if given["volumes"]:
        fields["volumes"] = list(given["volumes"])
    on, site = labels(given["on"]), given["site"]
    if site is not None and on.setdefault("site", site) != site:
        raise Failure(f"--site {site} and --on site={on['site']} exclude each other. Remove one of them.", MISUSED)
    return {**fields, "on": on} if on else fields


def job_fields(options: Mapping[str, Any], command: Sequence[str]) -> dict[str, Any]:
    """The fields of the message for the options of a request and of a job. Raises Failure."""
    return {
        **request_fields(options),
        "kind": "job",
        "name": options["name"],
        "command": list(command),
        "variables": variables(options["given"], "--var"),
        "secrets": variables(options["secret"], "--secret"),
        "key": options.get("key") or new_key(),
    }


def with_units(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the message for options with units: `--time 90m` is time_limit_s=5400. Raises Failure."""
    try:
        return with_units_in_names(fields, _OPTIONS_WITH_UNITS)
    except UnitError as error:
        raise Failure(str(error), MISUSED) from None


def labels(given: Iterable[str]) -> dict[str, str]:
    values: dict[str, str] = {}
    for text in given:
        name, _, value = text.partition("=")
        if not name or not value:
            raise Failure(f"--on {text} is not a label. Write --on zone=basement, or --on node=gpu-1.", MISUSED)
        if values.setdefault(name, value) != value:
            raise Failure(
                f"--on {name}={values[name]} and --on {text} exclude each other. Remove one of them.", MISUSED
            )
    return values


def message(values: dict[str, Any]) -> SubmitIn:
    """The message of these fields, without empty ones. Raises Failure that names each invalid field."""
    from commonage.sdk import SubmitIn

    return validate(SubmitIn, values)


def validate(model: type[M], values: dict[str, Any]) -> M:
    """A message of any kind, without empty fields. Raises Failure that names each invalid field."""
    from pydantic import ValidationError

    try:
        return model.model_validate({name: value for name, value in values.items() if value not in (None, {}, [])})
    except ValidationError as error:
        raise Failure("\n".join(validation_messages(error)), MISUSED) from None


def validation_messages(error: ValidationError) -> list[str]:
    """One message for each invalid field. Values are not repeated, because they may be secrets."""
    messages = []
    for mistake in error.errors(include_url=False):
        # pydantic appends the members of a union to the location; users know only the field.
        field = ".".join(str(part) for part in mistake["loc"] if part not in _TYPES)
        messages.append(f"{field}: {_validation_message(mistake)}")
    return list(dict.fromkeys(messages))


def _validation_message(mistake: Mapping[str, Any]) -> str:
    kind, location, context = mistake["type"], mistake["loc"], mistake.get("ctx") or {}
    if "[key]" in location and location[0] == "on":
        return "the name of a label has at most 63 letters, digits and . _ / -"
    if "[key]" in location:
        return "the name of a variable has at most 128 letters, digits and _, and does not start with a digit"
    if kind == "string_too_long":
        return f"{len(str(mistake.get('input')))} characters; at most {context['max_length']} are allowed"
    if kind == "too_long":
        return f"{context['actual_length']} entries; at most {context['max_length']} are allowed"
    return _MESSAGES.get(kind) or f"{mistake['msg'][0].lower()}{mistake['msg'][1:]}"


def variables(given: Iterable[str], option: str) -> dict[str, str]:
    """The mapping of `NAME=VALUE` texts. `NAME` takes its value from the environment. Raises Failure."""
    values: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals and name not in os.environ:
            raise Failure(f"{option} {name}: this variable is not set here. Write {option} {name}=VALUE.", MISUSED)
        values[name] = value if equals else os.environ[name]
    return values


def new_key() -> str:
    """An idempotency key, so that a retry after a lost response does not create a second job."""
    return f"cli-{uuid.uuid4().hex}"


def dependencies(given: Sequence[str]) -> list[dict[str, str]]:
    """The dependencies of `afterok:ID[:ID…]`, or of an ID alone; several separated by commas. Raises Failure."""
    parsed: list[dict[str, str]] = []
    for part in (part.strip() for text in given for part in text.split(",")):
        condition, *ids = part.split(":")
        if not ids:
            condition, ids = "afterok", [part]
        if condition not in CONDITIONS or not all(ids):
            raise Failure(invalid_dependency(part), MISUSED)
        parsed += [{"id": workload_id, "condition": condition} for workload_id in ids]
    return parsed


def invalid_dependency(text: str) -> str:
    return f"invalid dependency {text!r}. Write CONDITION:ID with one of {', '.join(CONDITIONS)}."
