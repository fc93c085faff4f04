"""Reads and writes `commonage.yml` files: several YAML documents, one for each resource. Errors name the line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commonage.cli.errors import MISUSED, Failure

if TYPE_CHECKING:
    import yaml

    from commonage.sdk.errors import ApiError

MAX_BYTES = 1024 * 1024
SUFFIX = "commonage.yml"
_SCHEMA = "# yaml-language-server: $schema={url}\n"


class InvalidFile(ValueError):
    """A file that cannot be read; the message names file and line."""


@dataclass(frozen=True, slots=True)
class Located:
    """A document and its place. `lines` has the line of each field, by its dotted path; "" is the document itself."""

    document: dict[str, Any]
    file: str
    lines: dict[str, int] = field(default_factory=dict)

    def place(self, path: str = "") -> str:
        """`FILE, line N` of the field, or of the closest one around it."""
        while path and path not in self.lines:
            path = path.rpartition(".")[0]
        return f"{self.file}, line {self.lines.get(path, 1)}"


def read_paths(paths: Sequence[Path]) -> list[Located]:
    """The documents of these files; of a folder, those of all `*commonage.yml` in it. Raises Failure."""
    found: list[Located] = []
    for path in paths:
        files = sorted(path.rglob(f"*{SUFFIX}")) if path.is_dir() else [path]
        if not files:
            raise Failure(f"{path} contains no file whose name ends in {SUFFIX}", MISUSED)
        for file in files:
            try:
                found += read_text(text_of(file), str(file))
            except InvalidFile as error:
                raise Failure(str(error), MISUSED) from None
    if not found:
        named = ", ".join(str(path) for path in paths)
        raise Failure(f"no resource is declared in {named}. `commonage export` prints those in force", MISUSED)
    return found


def text_of(path: Path) -> str:
    """The text of a file. Raises Failure."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise Failure(f"{path} is larger than 1 MiB, which is too large for a file of resources", MISUSED)
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise Failure(f"{path} cannot be read: {error.strerror}", MISUSED) from error
    except UnicodeDecodeError as error:
        raise Failure(f"{path} is not UTF-8 text (byte {error.start})", MISUSED) from None


def read_text(text: str, file: str) -> list[Located]:
    """The documents of a text. Raises InvalidFile."""
    import yaml

    loader = yaml.CSafeLoader if hasattr(yaml, "CSafeLoader") else yaml.SafeLoader
    try:
        roots = [node for node in yaml.compose_all(text, Loader=loader) if not _is_empty(node)]
        return [_located(node, file) for node in roots]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or str(error)
        raise InvalidFile(f"{file}{f', line {mark.line + 1}' if mark else ''}: not valid YAML: {problem}") from None
    except RecursionError:
        raise InvalidFile(f"{file} is nested too deeply") from None


def _is_empty(node: yaml.Node | None) -> bool:
    return node is None or node.tag == "tag:yaml.org,2002:null"


def _located(node: yaml.Node, file: str) -> Located:
    import yaml

    line = node.start_mark.line + 1
    if not isinstance(node, yaml.MappingNode):
        raise InvalidFile(
            f"{file}, line {line}: a resource is a mapping with kind, name and fields. Put a line `---` between two of "
            "them, and no hyphen before the kind"
        )
    lines = {"": line}
    for path, number in _lines(node):
        if path in lines:
            raise InvalidFile(f"{file}, line {number}: {path} is given twice")
        lines[path] = number
    try:
        values = yaml.constructor.SafeConstructor().construct_document(node)
    except (yaml.YAMLError, ValueError) as error:
        raise InvalidFile(f"{file}, line {line}: invalid: {error}") from None
    return Located({str(name): value for name, value in values.items()}, file, lines)


def _lines(node: yaml.Node, path: str = "") -> Iterator[tuple[str, int]]:
    import yaml

    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield f"{path}{key.value}", key.start_mark.line + 1
            yield from _lines(value, f"{path}{key.value}.")
    elif isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            yield f"{path}{number}", value.start_mark.line + 1
            yield from _lines(value, f"{path}{number}.")


def with_place(error: ApiError, documents: Sequence[Located]) -> str:
    """The message of a refusal, with file and line of the document that it is about."""
    head, _, rest = (error.field or "").partition(".")
    number, _, path = rest.partition(".")
    if head == "documents" and number.isdigit() and int(number) < len(documents):
        return f"{documents[int(number)].place(path)}: {error.detail}"
    return error.detail


def write(documents: Sequence[dict[str, Any]], schema: str = "") -> str:
    """The text of a file with these documents."""
    import yaml

    text = yaml.safe_dump_all(documents, sort_keys=False, allow_unicode=True, default_flow_style=False, width=100)
    return f"{_SCHEMA.format(url=schema)}{text}" if schema else text
