"""Reads job files, `NAME.commonage.yml`: one workload or a list of them. Errors name the line. Used by submit.

A workload has the fields of the API, with these differences. `time`, `grace`, `backoff` and `memory` are text with a
unit, in place of `time_limit_s`, `grace_s`, `backoff_s` and `memory_mib`. `command` may be text as in a shell.
`depends_on` takes `afterok:ID` with an id or the name of an earlier entry. `files` selects the files to send: `true`
(the folder of the job file), `false`, or a list of paths in it.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commonage.cli.errors import MISUSED, Failure
from commonage.cli.workloads.request import CONDITIONS
from commonage.units import TEXT_FIELDS, UnitError, with_units_in_names

if TYPE_CHECKING:
    import yaml

    from commonage.wire.workloads import SubmitIn

MAX_BYTES = 1024 * 1024
MAX_WORKLOADS = 1000
_YAML_BOOL, _YAML_NULL, _YAML_TEXT = (f"tag:yaml.org,2002:{name}" for name in ("bool", "null", "str"))


@dataclass(frozen=True, slots=True)
class Entry:
    """One workload of a file. `files`: the files to send; False for none, an empty list for the whole folder."""

    request: SubmitIn
    files: list[str] | bool
    after: list[tuple[str, str]]  # (name of an earlier entry, condition)


class _LineError(Exception):
    """A mistake in a line of the file."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(f"line {line}: {message}")


def read(path: Path) -> list[Entry]:
    """The entries of the file. Raises Failure with the line of each mistake."""
    import yaml

    text = _text(path)
    try:
        root = yaml.compose(text, Loader=yaml.CSafeLoader if hasattr(yaml, "CSafeLoader") else yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise Failure(f"{path}: {_yaml_message(error)}", MISUSED) from None
    except RecursionError:
        raise Failure(f"{path} is nested too deeply", MISUSED) from None
    if root is None:
        raise Failure(f"{path} is empty. Write a workload, such as: command: python train.py", MISUSED)
    nodes = root.value if isinstance(root, yaml.SequenceNode) else [root]
    if len(nodes) > MAX_WORKLOADS:
        raise Failure(f"{path} has {len(nodes)} workloads; a job file has at most {MAX_WORKLOADS}", MISUSED)
    entries: list[Entry] = []
    mistakes: list[str] = []
    for node in nodes:
        try:
            entries.append(_entry(node, {entry.request.name for entry in entries if entry.request.name}))
        except _LineError as error:
            mistakes.append(str(error))
    if mistakes:
        raise Failure("\n".join(f"{path}, {mistake}" for mistake in mistakes), MISUSED)
    return entries


def _text(path: Path) -> str:
    try:
        if not path.is_file():
            raise Failure(f"the job file {path} does not exist", MISUSED)
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise Failure(
                f"{path} is {size / 1024**2:.1f} MiB; a job file has at most 1 MiB. Send data as `files`.",
                MISUSED,
            )
        return path.read_bytes().decode()
    except OSError as error:
        raise Failure(f"{path} cannot be read: {error.strerror}", MISUSED) from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise Failure(f"{path}, line {line}: not UTF-8 text (byte {error.start})", MISUSED) from None


def _yaml_message(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error)
    return f"line {mark.line + 1}: not valid YAML: {problem}" if mark else f"not valid YAML: {problem}"


def _entry(node: yaml.Node, earlier: set[str]) -> Entry:
    import yaml
    from pydantic import ValidationError

    from commonage.cli.workloads.request import validation_messages
    from commonage.sdk import SubmitIn

    line = node.start_mark.line + 1
    if not isinstance(node, yaml.MappingNode):
        raise _LineError(line, "a workload is a mapping, like `command: python train.py`")
    lines = {str(key.value): key.start_mark.line + 1 for key, _ in node.value}
    repeated = [str(key.value) for key, _ in node.value if lines[str(key.value)] != key.start_mark.line + 1]
    if repeated:
        raise _LineError(lines[repeated[0]], f"{repeated[0]} is given twice")
    values = _plain(node)
    files = _files(values.pop("files", True), lines.get("files", line))
    if isinstance(values.get("command"), str):
        values["command"] = _split(values["command"], lines["command"])
    for name in values.keys() & TEXT_FIELDS:
        number = _number(name, values.pop(name), lines[name])
        if number.keys() & values.keys():
            raise _LineError(lines[name], f"{name} and {', '.join(number)} are the same. Give one of them.")
        values |= number
    values["depends_on"], after = _dependencies(values.get("depends_on", []), earlier, lines.get("depends_on", line))
    try:
        return Entry(SubmitIn.model_validate({k: v for k, v in values.items() if v not in (None, [])}), files, after)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = lines.get(str(first["loc"][0]), line) if first["loc"] else line
        raise _LineError(where, "; ".join(validation_messages(error))) from None


def _plain(node: yaml.MappingNode) -> dict[str, Any]:
    import yaml

    for key, value in node.value:
        if key.tag == _YAML_BOOL:  # `on` is a field, not YAML's true
            key.tag = _YAML_TEXT
        if key.value in TEXT_FIELDS and isinstance(value, yaml.ScalarNode) and value.tag != _YAML_NULL:
            value.tag = _YAML_TEXT  # 1:30:00 is a time, not a sexagesimal number of YAML
    try:
        values = yaml.constructor.SafeConstructor().construct_document(node)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise _LineError(node.start_mark.line + 1, f"invalid: {error}") from None
    return {str(key): value for key, value in values.items()}


def _number(name: str, text: object, line: int) -> dict[str, Any]:
    """The field of the API for this text with a unit."""
    try:
        return with_units_in_names({name: text})
    except UnitError as error:
        raise _LineError(line, str(error)) from None


def _files(given: object, line: int) -> list[str] | bool:
    if given is True:
        return []
    if given is False or given is None:
        return False
    if isinstance(given, list) and given and all(isinstance(one, str) for one in given):
        return given
    raise _LineError(line, "files must be true, false, or a list of paths")


def _split(command: str, line: int) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError as error:
        raise _LineError(line, f"invalid command: {error}") from None


def _dependencies(given: object, earlier: set[str], line: int) -> tuple[list[Any], list[tuple[str, str]]]:
    ids: list[Any] = []
    after: list[tuple[str, str]] = []
    for one in given if isinstance(given, list) else [given]:
        if not isinstance(one, str):
            ids.append(one)
            continue
        condition, colon, target = one.partition(":")
        if not colon:
            condition, target = "afterok", one
        if condition not in CONDITIONS:
            raise _LineError(
                line, f"invalid dependency {one!r}. Write CONDITION:ID with one of {', '.join(CONDITIONS)}."
            )
        if target in earlier:
            after.append((target, condition))
        else:
            ids.append({"id": target, "condition": condition})
    return ids, after
