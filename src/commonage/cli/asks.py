"""The options that describe what to run, the same for run and explain, and the message made of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from commonage.cli.failures import MISUSED, Failure
from commonage.units import UnitError, with_units_in_names

if TYPE_CHECKING:
    from pydantic import ValidationError

    from commonage.wire.workloads import SubmitIn

F = TypeVar("F", bound=Callable[..., Any])

_TYPES = ("str", "int", "float", "constrained-str", "constrained-int", "[key]")
_PLAIN = {
    "extra_forbidden": "there is no such field",
    "missing": "is missing",
    "list_type": "must be a list",
    "dict_type": "must be names with values",
    "string_unicode": "is not valid UTF-8",
}
_OPTIONS_WITH_UNITS = {"time": "--time", "memory": "--mem", "grace": "--grace"}
CONDITIONS = ("afterok", "afternotok", "afterany", "after")

_REQUEST = (
    click.option("--gpus", metavar="SHARE", help="GPU: 6GiB of VRAM, 0.25 or 1/3 of a GPU, 2 GPUs, A100|H100:6GiB."),
    click.option("--cpus", metavar="N", help="Cores: 2, 0.5 or 1500m."),
    click.option("--mem", "memory", metavar="SIZE", help="Memory: 4GiB or 512MiB; 4096 is MiB, as in Slurm."),
    click.option("--time", metavar="LIMIT", help="Time limit: 90s, 30m, 1h30m, 2d, or 01:30:00 as in Slurm."),
    click.option("--env", "environment", metavar="NAME", help="Environment; `commonage env ls` lists them."),
    click.option("--priority", metavar="CLASS|N", help="low, normal, high …, or -100 to 100; above 0 for admins."),
    click.option("--preemptible", is_flag=True, default=None, help="Others may take its place; it then queues again."),
    click.option("--tenant", metavar="NAME", help="On whose account, if you are in several."),
    click.option("--volume", "volumes", multiple=True, metavar="NAME[:rw]", help="Data; see `commonage volume ls`."),
    click.option("--on", "on", multiple=True, metavar="KEY=VALUE", help="Only on such a node: zone=a, node=gpu-1."),
    click.option("--site", metavar="NAME", help="Only at this site; short for --on site=NAME."),
    click.option("--one-numa", is_flag=True, default=None, help="Several GPUs must hang on the same NUMA node."),
)  # fmt: skip


def request_options(verb: F) -> F:
    """Give a verb the options of a request; `of_request` makes fields of the message of them."""
    for option in reversed(_REQUEST):
        verb = option(verb)
    return verb


def of_request(given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that the options of a request stand for; what was not given is left out. Raises Failure."""
    names = ("gpus", "cpus", "memory", "time", "environment", "priority", "preemptible", "tenant", "one_numa")
    fields = with_units({name: given[name] for name in names if given[name] is not None})
    if given["volumes"]:
        fields["volumes"] = list(given["volumes"])
    found = labels(given["on"])
    if given["site"] is not None and found.setdefault("site", given["site"]) != given["site"]:
        raise Failure(f"--site {given['site']} and --on site={found['site']} exclude each other", MISUSED)
    return {**fields, "on": found} if found else fields


def with_units(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the message for options with units (`--time 90m` is time_limit_s=5400). Raises Failure."""
    try:
        return with_units_in_names(fields, _OPTIONS_WITH_UNITS)
    except UnitError as error:
        raise Failure(str(error), MISUSED) from None


def labels(given: Iterable[str]) -> dict[str, str]:
    """What the `--on`s of a verb say. Raises Failure."""
    found: dict[str, str] = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not equals or not name or not value:
            raise Failure(f"--on {one}: write it like --on zone=basement, or --on node=gpu-1", MISUSED)
        if found.setdefault(name, value) != value:
            raise Failure(f"--on {name}={found[name]} and --on {one} exclude each other", MISUSED)
    return found


def message(values: dict[str, Any]) -> SubmitIn:
    """The message of what was given; None is left out. Raises Failure with a sentence for each wrong field."""
    from pydantic import ValidationError

    from commonage.sdk import SubmitIn

    try:
        return SubmitIn.model_validate({name: value for name, value in values.items() if value not in (None, {}, [])})
    except ValidationError as error:
        raise Failure("\n".join(sentences(error)), MISUSED) from None


def sentences(error: ValidationError) -> list[str]:
    """What is wrong with each field, in words. Values are not repeated: they may be secrets."""
    found = []
    for one in error.errors(include_url=False):
        # A union names its members behind the field; the field is what the user knows.
        where = ".".join(str(part) for part in one["loc"] if part not in _TYPES)
        found.append(f"{where}: {_sentence(one['type'], one)}")
    return list(dict.fromkeys(found))


def _sentence(kind: str, found: Mapping[str, Any]) -> str:
    context, value = found.get("ctx") or {}, found.get("input")
    if "[key]" in found["loc"] and found["loc"][0] == "on":
        return "a label's name has letters, digits and . _ / -, at most 63 of them"
    if "[key]" in found["loc"]:
        return "a variable's name has letters, digits and _, no digit first, and at most 128 of them"
    if kind == "string_too_long":
        return f"{len(str(value))} characters; at most {context['max_length']} are allowed"
    if kind == "too_long":
        return f"{context['actual_length']} entries; at most {context['max_length']} are allowed"
    if kind == "string_pattern_mismatch":
        return "has characters that are not allowed, or not the right form"
    if kind in _PLAIN:
        return _PLAIN[kind]
    return f"{found['msg'][0].lower()}{found['msg'][1:]}"


def variables(given: Iterable[str], option: str) -> dict[str, str]:
    """`NAME=VALUE`s as a mapping; `NAME` alone takes the value it has here. Raises Failure."""
    import os

    found: dict[str, str] = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not equals:
            if name not in os.environ:
                raise Failure(f"{option} {name}: no such variable here; write {option} {name}=VALUE", MISUSED)
            value = os.environ[name]
        found[name] = value
    return found


def dependencies(given: Sequence[str]) -> list[dict[str, str]]:
    """What `afterok:ID[:ID…]` (or just an ID) means, several with commas between. Raises Failure."""
    found: list[dict[str, str]] = []
    for part in (part.strip() for text in given for part in text.split(",")):
        condition, *ids = part.split(":")
        if not ids:
            condition, ids = "afterok", [part]
        if condition not in CONDITIONS or not all(ids):
            raise Failure(
                f"the dependency {part!r} is not understood; write afterok:ID, with one of {', '.join(CONDITIONS)}",
                MISUSED,
            )
        found += [{"id": one, "condition": condition} for one in ids]
    return found
