"""Job files, `NAME.commonage.yml`: one workload or a list of them, read with the line of whatever is wrong.

A workload is written with the fields of the API, with three differences. `time`, `grace`, `backoff` and `memory` are
text with a unit, as on the command line, in place of `time_limit_s`, `grace_s`, `backoff_s` and `memory_mib`. `command`
may be text as in a shell, and `depends_on` takes `afterok:ID` with an id or the name of a workload above. `files` says
what goes along: `true` (the file's folder), `false`, or a list of paths in it. Used by submit.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commonage.cli.asks import CONDITIONS
from commonage.cli.failures import MISUSED, Failure
from commonage.units import TEXT_FIELDS, UnitError, with_units_in_names

if TYPE_CHECKING:
    import yaml

    from commonage.wire.workloads import SubmitIn

LARGEST_BYTES = 1024 * 1024
MOST_WORKLOADS = 1000
_YAML_BOOL, _YAML_NULL, _YAML_TEXT = (f"tag:yaml.org,2002:{name}" for name in ("bool", "null", "str"))


@dataclass(frozen=True, slots=True)
class Entry:
    """One workload of a file. `files`: what goes along, False for nothing, an empty list for the whole folder."""

    ask: SubmitIn
    files: list[str] | bool
    after: list[tuple[str, str]]  # (name of an entry above, condition)


class _Wrong(Exception):
    """Something at a line of the file."""

    def __init__(self, line: int, sentence: str) -> None:
        super().__init__(f"line {line}: {sentence}")


def read(path: Path) -> list[Entry]:
    """What the file describes. Raises Failure with the line of each mistake."""
    import yaml

    text = _text(path)
    try:
        root = yaml.compose(text, Loader=yaml.CSafeLoader if hasattr(yaml, "CSafeLoader") else yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise Failure(f"{path}: {_yaml_sentence(error)}", MISUSED) from None
    except RecursionError:
        raise Failure(f"{path} is nested too deeply", MISUSED) from None
    if root is None:
        raise Failure(f"{path} is empty; it takes a workload like: command: python train.py", MISUSED)
    nodes = root.value if isinstance(root, yaml.SequenceNode) else [root]
    if len(nodes) > MOST_WORKLOADS:
        raise Failure(f"{path} describes {len(nodes)} workloads; at most {MOST_WORKLOADS} go into one file", MISUSED)
    entries: list[Entry] = []
    mistakes: list[str] = []
    for node in nodes:
        try:
            entries.append(_entry(node, {entry.ask.name for entry in entries if entry.ask.name}))
        except _Wrong as error:
            mistakes.append(str(error))
    if mistakes:
        raise Failure("\n".join(f"{path}, {mistake}" for mistake in mistakes), MISUSED)
    return entries


def _text(path: Path) -> str:
    try:
        if not path.is_file():
            raise Failure(f"there is no job file {path}", MISUSED)
        size = path.stat().st_size
        if size > LARGEST_BYTES:
            raise Failure(
                f"{path} is {size / 1024**2:.1f} MiB; a job file has at most 1 MiB (data goes along as `files`)",
                MISUSED,
            )
        return path.read_bytes().decode()
    except OSError as error:
        raise Failure(f"{path} cannot be read: {error.strerror}", MISUSED) from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise Failure(f"{path}, line {line}: not UTF-8 text (byte {error.start})", MISUSED) from None


def _yaml_sentence(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error)
    return f"line {mark.line + 1}: not valid YAML: {problem}" if mark else f"not valid YAML: {problem}"


def _entry(node: yaml.Node, above: set[str]) -> Entry:
    import yaml
    from pydantic import ValidationError

    from commonage.cli.asks import sentences
    from commonage.sdk import SubmitIn

    line = node.start_mark.line + 1
    if not isinstance(node, yaml.MappingNode):
        raise _Wrong(line, "a workload is written as fields, like `command: python train.py`")
    lines = {str(key.value): key.start_mark.line + 1 for key, _ in node.value}
    doubled = [str(key.value) for key, _ in node.value if lines[str(key.value)] != key.start_mark.line + 1]
    if doubled:
        raise _Wrong(lines[doubled[0]], f"{doubled[0]} stands there twice")
    values = _plain(node)
    files = _files(values.pop("files", True), lines.get("files", line))
    if isinstance(values.get("command"), str):
        values["command"] = _split(values["command"], lines["command"])
    for name in values.keys() & TEXT_FIELDS:
        number = _number(name, values.pop(name), lines[name])
        if number.keys() & values.keys():
            raise _Wrong(lines[name], f"{name} and {', '.join(number)} are the same. Give one of them.")
        values |= number
    values["depends_on"], after = _dependencies(values.get("depends_on", []), above, lines.get("depends_on", line))
    try:
        return Entry(SubmitIn.model_validate({k: v for k, v in values.items() if v not in (None, [])}), files, after)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = lines.get(str(first["loc"][0]), line) if first["loc"] else line
        raise _Wrong(where, "; ".join(sentences(error))) from None


def _plain(node: yaml.MappingNode) -> dict[str, Any]:
    import yaml

    for key, value in node.value:
        if key.tag == _YAML_BOOL:  # `on` is a field here, not YAML's word for true
            key.tag = _YAML_TEXT
        if key.value in TEXT_FIELDS and isinstance(value, yaml.ScalarNode) and value.tag != _YAML_NULL:
            value.tag = _YAML_TEXT  # 1:30:00 is a time here, not YAML's number to the base of 60
    try:
        values = yaml.constructor.SafeConstructor().construct_document(node)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise _Wrong(node.start_mark.line + 1, f"not understood: {error}") from None
    return {str(key): value for key, value in values.items()}


def _number(name: str, text: object, line: int) -> dict[str, Any]:
    """The field that JSON has in place of this text with a unit."""
    try:
        return with_units_in_names({name: text})
    except UnitError as error:
        raise _Wrong(line, str(error)) from None


def _files(given: object, line: int) -> list[str] | bool:
    if given is True:
        return []
    if given is False or given is None:
        return False
    if isinstance(given, list) and given and all(isinstance(one, str) for one in given):
        return given
    raise _Wrong(line, "files takes true, false, or a list of paths")


def _split(command: str, line: int) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError as error:
        raise _Wrong(line, f"the command is not understood: {error}") from None


def _dependencies(given: object, above: set[str], line: int) -> tuple[list[Any], list[tuple[str, str]]]:
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
            raise _Wrong(
                line, f"the dependency {one!r} is not understood; write one of {', '.join(CONDITIONS)} and :ID"
            )
        if target in above:
            after.append((target, condition))
        else:
            ids.append({"id": target, "condition": condition})
    return ids, after
