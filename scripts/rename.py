#!/usr/bin/env python
"""Renames terms and moves modules by the table scripts/renames.toml, one section per commit.

    scripts/rename.py list                  the sections, in the order in which they are applied
    scripts/rename.py apply SECTION...      rename; with --commit, one commit per section
    scripts/rename.py left SECTION          what still uses the old words
    scripts/rename.py merge BRANCH          bring this branch over the rename commits of BRANCH, then merge BRANCH
    scripts/rename.py ignore                add new rename commits to .git-blame-ignore-revs

A rule of the table (`[[SECTION.rule]]`) has these keys, all optional:

    in, not_in   globs of files that the rule is for; without them all files
    names        whole identifiers, with or without leading underscores; `.name`: only as attribute or keyword argument
    words        words inside identifiers, with their plurals and in every case (card: CardFaults, free_cards, MAX_CARD)
    prose        words in sentences: docstrings, comments, documents, strings with spaces
    strings      whole string literals
    keep         identifiers, and regular expressions between slashes for sentences, that no rule of the section changes

The first rule that changes an identifier wins. A section may also have:

    modules      old dotted name -> new dotted name; files move with `git mv`, tests/unit follows
    packages     new package -> the docstring of its __init__.py
    [[SECTION.replace]]   file, old, new: literal text, for what no rule can know (layers of .importlinter)

The same section applied to another branch gives the same result, and applied twice it changes nothing.
"""

from __future__ import annotations

import argparse
import ast
import fnmatch
import os
import re
import subprocess
import symtable
import sys
import textwrap
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TABLE = "scripts/renames.toml"
IGNORED_REVISIONS = ".git-blame-ignore-revs"
TRAILER = "Rename-Section"
# Not ours, generated from the code, or about this script itself.
UNTOUCHED = (
    "package-lock.json",
    "requirements/*",
    "src/commonage/catalogue/notebook.*",
    "tests/data/docker_api.txt",
    "docs/images/*",
    "docs/reference/*",
    "LICENSE",
    "*.svg",
    "scripts/rename.py",
    TABLE,
    "tests/unit/scripts/test_rename.py",
    IGNORED_REVISIONS,
)

Rename = Callable[[str], str]


class RenameError(Exception):
    """The table cannot be applied; the message says why and where."""


# --- words ------------------------------------------------------------------------------------------------------------

_WORD = re.compile(r"[A-Z]+s?(?![a-z])|[A-Z]?[a-z]+|\d+")
_PIECES = re.compile(r"([A-Za-z0-9]+)")


def plural(word: str) -> str:
    """Return the regular English plural of a word or of the last word of a phrase."""
    if re.search(r"(s|x|ch|sh)$", word):
        return word + "es"
    if re.search(r"[^aeiou]y$", word):
        return word[:-1] + "ies"
    return word + "s"


def _like(shape: str, words: str, separator: str) -> str:
    """Write `words` (snake case) in the case of `shape`."""
    parts = words.split("_")
    if shape.isupper() and len(shape) > 1:
        return separator.join(part.upper() for part in parts)
    if shape[0].isupper():
        glue = "" if separator == "_" else separator
        return glue.join(part if part.isupper() else part.capitalize() for part in parts)
    return separator.join(part.lower() for part in parts)


def rename_words(name: str, words: Mapping[str, str]) -> str:
    """Replace words of an identifier (snake, kebab, Camel or UPPER case). Keys may have several words: `in_front`."""
    found = list(_WORD.finditer(name))
    lowered = [match.group().lower() for match in found]
    out, at, index = "", 0, 0
    while index < len(found):
        for old, new in words.items():
            wanted = old.split("_")
            if lowered[index : index + len(wanted)] == wanted:
                first, last = found[index], found[index + len(wanted) - 1]
                separator = "-" if "-" in name else "_"
                out += name[at : first.start()] + _like(first.group(), new, separator)
                at, index = last.end(), index + len(wanted)
                break
        else:
            index += 1
    return out + name[at:]


def with_plurals(words: Mapping[str, str]) -> dict[str, str]:
    """Add the plural of each pair that has none yet."""
    return {plural(old): plural(new) for old, new in words.items()} | dict(words)


# --- table ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rule:
    """One `[[SECTION.rule]]`."""

    inside: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)
    prose: Mapping[str, str] = field(default_factory=dict)
    strings: Mapping[str, str] = field(default_factory=dict)
    keep: tuple[str, ...] = ()

    def concerns(self, path: str) -> bool:
        """Whether the rule is for this file."""
        if any(fnmatch.fnmatch(path, glob) for glob in self.outside):
            return False
        return not self.inside or any(fnmatch.fnmatch(path, glob) for glob in self.inside)


@dataclass(frozen=True, eq=False)
class Section:
    """One table of renames, applied as one commit."""

    name: str
    subject: str
    body: str
    rules: tuple[Rule, ...]
    modules: Mapping[str, str]
    packages: Mapping[str, str]
    replace: tuple[Mapping[str, str], ...]


_RULE_KEYS = {"in", "not_in", "names", "words", "prose", "strings", "keep"}
_SECTION_KEYS = {"subject", "body", "rule", "modules", "packages", "replace"}


def read_table(text: str) -> dict[str, Section]:
    """Return the sections in the order of the file. Raises RenameError where a key is unknown or a rule is circular."""
    sections = {}
    for name, given in tomllib.loads(text).items():
        unknown = set(given) - _SECTION_KEYS
        rules = []
        for rule in given.get("rule", ()):
            unknown |= set(rule) - _RULE_KEYS
            rules.append(
                Rule(
                    inside=tuple(rule.get("in", ())),
                    outside=tuple(rule.get("not_in", ())),
                    names=rule.get("names", {}),
                    words=with_plurals(rule.get("words", {})),
                    prose=with_plurals(rule.get("prose", {})),
                    strings=rule.get("strings", {}),
                    keep=tuple(rule.get("keep", ())),
                )
            )
        if unknown:
            raise RenameError(f"{name}: unknown keys {sorted(unknown)}")
        sections[name] = Section(
            name,
            given.get("subject", f"names: apply {name}"),
            given.get("body", ""),
            tuple(rules),
            given.get("modules", {}),
            given.get("packages", {}),
            tuple(given.get("replace", ())),
        )
        _refuse_circles(sections[name])
    return sections


def _refuse_circles(section: Section) -> None:
    """A section must change nothing when it is applied a second time."""
    for rule in section.rules:
        names = Renamer([rule])
        for old, new in [*rule.names.items(), *rule.words.items()]:
            rename = names.attribute if old.startswith(".") else names.identifier
            if rename(new) != new:
                raise RenameError(f"{section.name}: {old} -> {new} would be renamed again, to {rename(new)}")


# --- renaming of identifiers and sentences ----------------------------------------------------------------------------


@cache
def _renamer(rules: tuple[int, ...], section: Section) -> Renamer:
    return Renamer([section.rules[index] for index in rules])


def renamer_of(section: Section, path: str) -> Renamer:
    """The renamer for one file, by the rules of a section; files with the same rules share one."""
    return _renamer(tuple(index for index, rule in enumerate(section.rules) if rule.concerns(path)), section)


class Renamer:
    """Applies rules to identifiers and sentences."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = list(rules)
        keep = [entry for rule in self._rules for entry in rule.keep]
        self._kept = [entry for entry in keep if not entry.startswith("/")]
        phrases = [entry.strip("/") for entry in keep if entry.startswith("/")]
        self._phrases = re.compile("|".join(f"(?:{one})" for one in phrases)) if phrases else None
        self._prose = {old: new for rule in reversed(self._rules) for old, new in rule.prose.items()}
        words = sorted(self._prose, key=len, reverse=True)
        self._sentence = re.compile(r"\b(?:([Aa])n?(\s+))?(" + "|".join(words) + r")\b", re.I) if words else None
        self.strings = {old: new for rule in reversed(self._rules) for old, new in rule.strings.items()}
        self.identifier: Rename = cache(self._identifier)
        self.attribute: Rename = cache(self._attribute)

        olds = {re.escape(old.strip(".")) for rule in self._rules for old in (*rule.names, *rule.strings)}
        olds |= {old.replace("_", "[_-]?") for rule in self._rules for old in (*rule.words, *rule.prose)}
        self._any = re.compile("|".join(olds), re.I) if olds else None

    def concerns(self, text: str) -> bool:
        """Whether anything in the text may have to be renamed."""
        return self._any is not None and self._any.search(text) is not None

    def _is_kept(self, name: str) -> bool:
        return any(fnmatch.fnmatchcase(name, kept) for kept in self._kept)

    def _identifier(self, name: str) -> str:
        return self._renamed(name, (name, name.strip("_")))

    def _attribute(self, name: str) -> str:
        """Rename the name of an attribute, a method or a keyword argument."""
        return self._renamed(name, (f".{name.strip('_')}", name, name.strip("_")))

    def _renamed(self, name: str, keys: Sequence[str]) -> str:
        if self._is_kept(name):
            return name
        for rule in self._rules:
            key = next((key for key in keys if key in rule.names), None)
            new = name.replace(key.lstrip("."), rule.names[key]) if key else rename_words(name, rule.words)
            if new != name:
                return new
        return name

    def sentence(self, text: str) -> str:
        """Rename plain words; what looks like code is renamed as code."""
        if self._phrases is None:
            return self._mixed(text)
        out, at = "", 0
        for match in self._phrases.finditer(text):
            out += self._mixed(text[at : match.start()]) + match.group()
            at = match.end()
        return out + self._mixed(text[at:])

    def _mixed(self, text: str) -> str:
        out, at = "", 0
        for match in _CODE_IN_PROSE.finditer(text):
            found = match.group()
            out += self._plain(text[at : match.start()])
            out += found if "://" in found else rename_tokens(found, self.identifier)
            at = match.end()
        return out + self._plain(text[at:])

    def _plain(self, text: str) -> str:
        return self._sentence.sub(self._word, text) if self._sentence else text

    def _word(self, match: re.Match[str]) -> str:
        article, space, old = match.groups()
        new = self._prose[old.lower()]
        if old.isupper() and len(old) > 1:
            new = new.upper()
        elif old[0].isupper():
            new = new[0].upper() + new[1:]
        if not article:
            return new
        return article + ("n" if new[0] in "aeioAEIO" else "") + space + new


_CODE_IN_PROSE = re.compile(
    r"""
      https?://\S+
    | ``?[^`\n]+``?                                    # quoted as code
    | --[a-z][\w-]*                                    # an option
    | \(\?P<\w+>                                       # a group of a regular expression
    | \[\[\w+\]\] | \b[a-z]\w*(?=\ ?=\ ?["'\d\[{tf])      # TOML
    | [\w.-]*\w(?:/[\w.{}<>*-]+)+/?                    # a path
    | [A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+(?:\(\))?         # a dotted name
    | \b\w*[a-z0-9]_\w+ | \b[A-Z]+_\w+ | \b_\w+        # snake_case, UPPER_CASE
    | \b[A-Z]?[a-z0-9]+[A-Z]\w*                        # CamelCase
    | \b[a-z]\w*(?=\()                                 # a call
    """,
    re.X,
)
_TOKEN = re.compile(r"\\[a-zA-Z]|[A-Za-z_]\w*(?:-[A-Za-z_]\w*)*")


def rename_tokens(text: str, rename: Rename) -> str:
    """Rename every identifier of a piece of code, kebab-case included."""

    def one(match: re.Match[str]) -> str:
        token = match.group()
        if token.startswith("\\"):
            return token
        # Documents are named with hyphens.
        return rename(token).replace("_", "-") if text.startswith(".md", match.end()) else rename(token)

    return _TOKEN.sub(one, text)


# --- Python -----------------------------------------------------------------------------------------------------------

_PYTHON = re.compile(
    r"""
      (?P<comment>\#[^\n]*)
    | (?P<string>(?:[rRbBuUfF]{0,2})(?:\"{3}(?:\\.|[^\\])*?\"{3}|'{3}(?:\\.|[^\\])*?'{3}
                                      |"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'))
    | (?P<number>\d[\w.]*)
    | (?P<name>[A-Za-z_]\w*)
    """,
    re.X | re.S,
)
_KEYWORD = re.compile(r"=(?![= ])")  # as the formatter writes a keyword argument
_ESCAPE = re.compile(r"(\\[abfnrtv])")
_LITERAL = re.compile(r"([a-zA-Z]*)(\"{3}|'{3}|\"|')(.*)\2", re.S)


def rename_python(text: str, names: Renamer) -> str:
    """Rename in a Python source: names, strings (as code or as sentences), comments."""

    def one(match: re.Match[str]) -> str:
        found = match.group()
        if match.lastgroup == "name":
            before = text[max(0, match.start() - 10) : match.start()]
            is_attribute = before.endswith((".", "    def ", "async def ")) or _KEYWORD.match(text, match.end())
            return names.attribute(found) if is_attribute else names.identifier(found)
        if match.lastgroup == "comment":
            return names.sentence(found)
        if match.lastgroup == "string":
            return _string(found, names)
        return found

    return _PYTHON.sub(one, text)


def _string(literal: str, names: Renamer) -> str:
    match = _LITERAL.fullmatch(literal)
    assert match, literal
    prefix, quote, body = match.groups()
    if body in names.strings:
        return prefix + quote + names.strings[body] + quote
    pieces = _fields(body) if "f" in prefix.lower() else [(body, False)]
    plain = "".join("x" if is_code else piece for piece, is_code in pieces)
    if _is_program(plain):
        as_text: Rename = lambda piece: rename_python(piece, names)  # noqa: E731
    elif re.search(r"\s", plain.strip()):
        as_text = lambda piece: "".join(map(names.sentence, _ESCAPE.split(piece)))  # noqa: E731
    else:
        as_text = lambda piece: rename_tokens(piece, names.identifier)  # noqa: E731
    new = "".join(rename_python(piece, names) if is_code else as_text(piece) for piece, is_code in pieces)
    return prefix + quote + new + quote


def _fields(body: str) -> list[tuple[str, bool]]:
    """Split the text of an f-string into (text, False) and the insides of its replacement fields (text, True)."""
    pieces, at, start = [], 0, 0
    while at < len(body):
        if body[at : at + 2] in ("{{", "}}"):
            at += 2
        elif body[at] == "{":
            end = _end_of_field(body, at)
            pieces += [(body[start : at + 1], False), (body[at + 1 : end], True)]
            at = start = end
        else:
            at += 1
    return [*pieces, (body[start:], False)]


def _end_of_field(body: str, at: int) -> int:
    depth = 0
    for index in range(at, len(body)):
        depth += (body[index] in "{[(") - (body[index] in "}])")
        if depth == 0:
            return index
    return len(body)


_STATEMENTS = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.Assign, ast.For, ast.With)


def _is_program(text: str) -> bool:
    """Whether a string is Python itself: tests run such strings as programs."""
    if "\n" not in text and ";" not in text and not text.startswith(("import ", "from ")):
        return False
    try:
        tree = ast.parse(textwrap.dedent(text.replace("\\n", "\n")))
    except (SyntaxError, ValueError):
        return False
    return any(isinstance(node, _STATEMENTS) for node in tree.body)


# --- other files ------------------------------------------------------------------------------------------------------

_JINJA = re.compile(
    r"(\{#.*?#\}|<!--.*?-->)|(\{\{.*?\}\}|\{%.*?%\})|(<[^<>{}]*(?:\{\{.*?\}\}[^<>{}]*|\{%.*?%\}[^<>{}]*)*>)", re.S
)
_SPOKEN_ATTRIBUTE = re.compile(r"((?:aria-label|title|placeholder|alt|data-title|label)=)(\"[^\"]*\"|'[^']*')")
_QUOTED = re.compile(r"\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|`[^`]*`")


def rename_html(text: str, names: Renamer) -> str:
    """Rename in a Jinja template: expressions and tags as code; text and spoken attributes as sentences."""
    out, at = "", 0
    for match in _JINJA.finditer(text):
        comment, expression, tag = match.groups()
        out += names.sentence(text[at : match.start()])
        if comment:
            out += names.sentence(comment)
        elif expression:
            out += rename_python(expression, names)
        else:
            out += _tag(tag, names)
        at = match.end()
    return out + names.sentence(text[at:])


def _tag(tag: str, names: Renamer) -> str:
    out, at = "", 0
    for match in _SPOKEN_ATTRIBUTE.finditer(tag):
        out += rename_tokens(tag[at : match.start()], names.identifier) + match.group(1)
        out += rename_html(match.group(2)[:-1], names) + match.group(2)[-1]
        at = match.end()
    return out + rename_tokens(tag[at:], names.identifier)


def rename_code(text: str, names: Renamer, comments: str) -> str:
    """Rename in another language: quoted text with spaces and comments as sentences, the rest as code."""
    pattern = re.compile(f"(?P<comment>{comments})|(?P<quoted>{_QUOTED.pattern})", re.S)
    out, at = "", 0
    for match in pattern.finditer(text):
        found = match.group()
        out += rename_tokens(text[at : match.start()], names.identifier)
        spoken = match.lastgroup == "comment" or (" " in found.strip("'\"`") and "\n" not in found)
        out += names.sentence(found) if spoken else rename_tokens(found, names.identifier)
        at = match.end()
    return out + rename_tokens(text[at:], names.identifier)


def rename_markdown(text: str, names: Renamer) -> str:
    """Rename in a document: fenced blocks as code, the rest as sentences."""
    parts = re.split(r"(^[ ]*```.*?^[ ]*```[ ]*$)", text, flags=re.M | re.S)
    return "".join(
        rename_code(part, names, _HASH) if index % 2 else names.sentence(part) for index, part in enumerate(parts)
    )


_HASH, _SLASHES, _DASHES = r"(?<![\w$&{])\#[^\n]*", r"/\*.*?\*/|(?<![:\w])//[^\n]*", r"--[^\n]*"


def rename_text(path: str, text: str, names: Renamer) -> str:
    """Rename in the text of a file, by what kind of file it is."""
    suffix = Path(path).suffix
    if suffix == ".py":
        return rename_python(text, names)
    if suffix == ".html":
        return rename_html(text, names)
    if suffix == ".md":
        return rename_markdown(text, names)
    if suffix in (".js", ".css", ".c", ".h"):
        return rename_code(text, names, _SLASHES)
    if suffix == ".lua":
        return rename_code(text, names, _DASHES)
    return rename_code(text, names, _HASH)


# --- clashes ----------------------------------------------------------------------------------------------------------


def clashes(path: str, text: str, names: Renamer) -> list[str]:
    """Names of one scope or one class that would become one name: two variables made into one are a bug."""
    found = []
    try:
        table = symtable.symtable(text, path, "exec")
    except SyntaxError as error:
        raise RenameError(f"{path} cannot be read as Python: {error}") from error
    waiting = [table]
    while waiting:
        scope = waiting.pop()
        waiting += scope.get_children()
        found += _merged(scope.get_identifiers(), names.identifier, f"{path}:{scope.get_lineno()} {scope.get_name()}")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef):
            mine = {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute) and _of_self(one)}
            mine |= {one.name for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)}
            found += _merged(mine, names.attribute, f"{path}:{node.lineno} {node.name}.self")
        elif isinstance(node, ast.Call):
            keywords = [keyword.arg for keyword in node.keywords if keyword.arg]
            found += _merged(keywords, names.attribute, f"{path}:{node.lineno} call")
    return found


def _of_self(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id == "self"


def _merged(names: Sequence[str] | set[str], rename: Rename, where: str) -> list[str]:
    by_new = defaultdict(set)
    for name in names:
        by_new[rename(name)].add(name)
    return [f"{where}: {' and '.join(sorted(olds))} -> {new}" for new, olds in by_new.items() if len(olds) > 1]


# --- modules ----------------------------------------------------------------------------------------------------------


_DONE = "\x00"


class Places:
    """Where modules and packages go, and what becomes of the text that names them."""

    def __init__(self, moves: Mapping[str, str], files: Sequence[str]) -> None:
        self.modules = {_dotted(path) for path in files if path.endswith(".py")}
        self.folders = {folder.as_posix().replace("/", ".") for path in files for folder in Path(path).parents}
        packages = {name.removeprefix("src.") for name in self.folders}
        there = self.modules | packages
        files_only = {_dotted(path) for path in files if path.endswith(".py") and not path.endswith("/__init__.py")}
        # `control.reservations -> control.reservations.windows`: done once the old file is a package.
        self._moves = {
            old: new for old, new in moves.items() if old in (files_only if new.startswith(f"{old}.") else there)
        }
        self._packages = packages
        for old, new in list(self._moves.items()):
            test_old, test_new = _test_of(old, old in packages), _test_of(new, old in packages)
            if test_old in there:
                self._moves.setdefault(test_old, test_new)

    def __bool__(self) -> bool:
        return bool(self._moves)

    def dotted(self, name: str) -> str:
        """The new name of a module, a package, or something in one."""
        parts = name.split(".")
        for count in range(len(parts), 1, -1):
            head = ".".join(parts[:count])
            if head in self._moves:
                return ".".join([self._moves[head], *parts[count:]])
        return name

    def path(self, path: str) -> str:
        """The new path of a file."""
        plain = path.removeprefix("src/")
        prefix = path[: len(path) - len(plain)]
        if plain.endswith(".py") and not plain.endswith("/__init__.py"):
            return prefix + self.dotted(plain[:-3].replace("/", ".")).replace(".", "/") + ".py"
        folder, _, name = plain.rpartition("/")
        if "." in folder:
            return path
        return prefix + self.dotted(folder.replace("/", ".")).replace(".", "/") + "/" + name if folder else path

    def text(self, path: str, text: str) -> str:
        """The text of a file with every place in it renamed."""
        if path.endswith(".py"):
            text = self._imports(text)
            text = self._depths(path, text)
        text = re.sub(r"\b(?:commonage|tests)(?:\.[A-Za-z_]\w*)+", lambda match: self.dotted(match.group()), text)
        text = re.sub(r"\b(?:src/)?(?:commonage|tests)(?:/[\w-]+)+(?:\.\w+|/)?", self._slashed, text)
        text = re.sub(r"(?<![\w/.-])(?:[a-z_]+/)+(?:[a-z_]+\.py|(?=[`\s]))(?!\w)", self._short, text)
        return text.replace(_DONE, "")

    def _slashed(self, match: re.Match[str]) -> str:
        found = match.group()
        if found.endswith("/"):
            return self.path(found + "__init__.py").removesuffix("__init__.py")
        if "." in found.rpartition("/")[2]:
            return self.path(found)
        return self.path(found + "/__init__.py").removesuffix("/__init__.py")

    def _short(self, match: re.Match[str]) -> str:
        """`control/fleet.py` and `placement/`, as documents write them."""
        found = match.group()
        name = found.removesuffix(".py").rstrip("/").replace("/", ".")
        if found.endswith("/") and f"commonage.{name}" not in self._packages:
            return found
        new = self.dotted(f"commonage.{name}").removeprefix("commonage.").replace(".", "/")
        return new + found[len(found.removesuffix(".py").rstrip("/")) :]

    def _imports(self, text: str) -> str:
        """`from PACKAGE import MODULE`, where MODULE moves: another package, perhaps another name."""
        lines = text.splitlines(keepends=True)
        renamed: dict[str, str] = {}
        tree = ast.parse(text)
        dotted = {id(one.value) for one in ast.walk(tree) if isinstance(one, ast.Attribute)}
        bare = {one.id for one in ast.walk(tree) if isinstance(one, ast.Name) and id(one) not in dotted}
        for node in reversed([one for one in ast.walk(tree) if isinstance(one, ast.ImportFrom)]):
            if node.level or node.module is None or node.end_lineno is None:
                continue
            new = self._import(node, renamed, bare)
            if new is not None:
                indent = " " * node.col_offset
                lines[node.lineno - 1 : node.end_lineno] = [indent + line + "\n" for line in new]
        text = "".join(lines)
        for old, new_name in renamed.items():
            text = re.sub(rf"(?<![\w.]){old}(?=\.)", new_name, text)
        return text

    def _import(self, node: ast.ImportFrom, renamed: dict[str, str], bare: set[str]) -> list[str] | None:
        by_home: dict[str, list[str]] = {}
        moved = False
        for alias in node.names:
            module = f"{node.module}.{alias.name}"
            new = self.dotted(module) if module in self.modules or module in self._packages else module
            if new == module:
                by_home.setdefault(str(node.module), []).append(ast.unparse(alias))
                continue
            moved = True
            home, _, name = new.rpartition(".")
            # One that is passed on as a whole keeps its name in this file: only `MODULE.` can be told from a variable.
            known_as = alias.asname or (alias.name if alias.name in bare else None)
            if known_as is None and name != alias.name:
                renamed[alias.name] = name
            by_home.setdefault(home, []).append(name + (f" as {known_as}" if known_as not in (None, name) else ""))
        if not moved:
            return None
        # What stays is written with the old package, which the pass over dotted names renames like all others; a new
        # home is marked, so that this pass leaves it alone.
        homes = {home: home if home == node.module else _DONE.join((home[:1], home[1:])) for home in by_home}
        return [f"from {homes[home]} import {', '.join(names)}" for home, names in by_home.items()]

    def _depths(self, path: str, text: str) -> str:
        """`Path(__file__).parents[N]` of a file that moves deeper or higher."""
        deeper = self.path(path).count("/") - path.count("/")
        if not deeper:
            return text
        pattern = r"(Path\(__file__\)(?:\.resolve\(\))?\.parents\[)(\d+)(\])"
        return re.sub(pattern, lambda match: f"{match[1]}{int(match[2]) + deeper}{match[3]}", text)


def _dotted(path: str) -> str:
    return path.removeprefix("src/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _test_of(module: str, is_package: bool) -> str:
    head, _, name = module.removeprefix("commonage.").rpartition(".")
    if is_package:
        return f"tests.unit.{module.removeprefix('commonage.')}"
    return ".".join(part for part in ("tests.unit", head, f"test_{name}") if part)


# --- the tree ---------------------------------------------------------------------------------------------------------


def git(*words: str, check: bool = True) -> str:
    """Run git in the repository and return what it printed."""
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    if check and done.returncode != 0:
        raise RenameError(f"git {' '.join(words)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def texts() -> dict[str, str]:
    """Every tracked text file that may be renamed in, by its path."""
    found = {}
    for path in git("ls-files", "-z").split("\0"):
        if not path or any(fnmatch.fnmatch(path, glob) for glob in UNTOUCHED) or (ROOT / path).is_symlink():
            continue
        try:
            found[path] = (ROOT / path).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
    return found


def apply(section: Section) -> None:
    """Rename in the tree. Raises RenameError, with the tree as it was, where two names would become one."""
    before = texts()
    places = Places(section.modules, list(before))
    problems: list[str] = []
    after: dict[str, str] = {}
    for path, text in before.items():
        names = renamer_of(section, path)
        new = places.text(path, text) if places else text
        if names.concerns(new):
            problems += clashes(path, new, names) if path.endswith(".py") else []
            new = rename_text(path, new, names)
        after[path] = new
    targets = {path: _new_path(section, places, path) for path in before}
    doubled = [path for path, count in Counter(targets.values()).items() if count > 1]
    problems += [f"two files would become {path}" for path in doubled]
    problems += [f"{path} is there already" for old, path in targets.items() if path != old and path in before]
    if problems:
        raise RenameError("two things would have one name; give one of them another:\n  " + "\n  ".join(problems))
    for path, text in after.items():
        if text != before[path]:
            (ROOT / path).write_text(text, encoding="utf-8")
    for old, new_path in targets.items():
        if old != new_path:
            (ROOT / new_path).parent.mkdir(parents=True, exist_ok=True)
            git("mv", old, new_path)
    _make_packages(section)
    _replace(section)
    _tidy()
    _write_reference()


def _new_path(section: Section, places: Places, path: str) -> str:
    folder, _, name = places.path(path).rpartition("/")
    names = renamer_of(section, path)
    if Path(name).suffix in (".py", ".html", ".js", ".css", ".md"):
        folder = "/".join(names.identifier(part) for part in folder.split("/"))
        stem, dot, suffix = name.partition(".")
        name = (names.identifier(stem).replace("_", "-") if suffix == "md" else names.identifier(stem)) + dot + suffix
    return f"{folder}/{name}" if folder else name


def _make_packages(section: Section) -> None:
    for package, docstring in section.packages.items():
        file = ROOT / "src" / package.replace(".", "/") / "__init__.py"
        if file.parent.is_dir() and not file.exists():
            file.write_text(f'"""{docstring}"""\n', encoding="utf-8")
            git("add", str(file))
    # A package of which everything has gone leaves nothing but its first line.
    for old in section.modules:
        file = ROOT / "src" / old.replace(".", "/") / "__init__.py"
        if file.exists() and not [path for path in file.parent.rglob("*") if path.is_file() and path != file]:
            git("rm", "-qf", str(file))


def _replace(section: Section) -> None:
    for one in section.replace:
        file = ROOT / one["file"]
        text = file.read_text(encoding="utf-8") if file.exists() else ""
        if one["old"] in text:
            file.write_text(text.replace(one["old"], one["new"]), encoding="utf-8")
        elif one["new"] not in text:
            print(f"{one['file']}: neither the old nor the new text is there: {one['old'][:60]!r}")


WIDTH = 120


def wrap(text: str) -> str:
    """Wrap the comments and docstring lines of a Python source that have grown too long, each into two lines."""
    if all(len(line) <= WIDTH for line in text.splitlines()):
        return text
    spoken = _docstring_lines(text)
    out = []
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) <= WIDTH or not (number in spoken or line.lstrip().startswith("#")):
            out.append(line)
            continue
        indent = line[: len(line) - len(line.lstrip())]
        start = indent + ("# " if line.lstrip().startswith("#") else "")
        end = '"""' if line.endswith('"""') and line.lstrip().startswith('"""') else ""
        cut = line.rfind(" ", 0, WIDTH + 1)
        out += [line[:cut], start + line[cut + 1 :].removesuffix(end), *([indent + end] if end else [])]
    return "\n".join(out) + "\n"


def _docstring_lines(text: str) -> set[int]:
    found: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            found.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return found


def _tidy() -> None:
    """Imports in their order and lines in their length."""
    bin_ = ROOT / ".venv" / "bin"
    for path in git("ls-files", "*.py").splitlines():
        file = ROOT / path
        text = file.read_text(encoding="utf-8")
        if (new := wrap(text)) != text:
            file.write_text(new, encoding="utf-8")
    for words in (
        ["check", "-q", "--fix", "."],
        ["format", "-q", "."],
        ["check", "-q", "--select", "E501", "--add-noqa", "."],
    ):
        subprocess.run([bin_ / "ruff", *words], cwd=ROOT, capture_output=True, check=False)


def _write_reference() -> None:
    bin_ = ROOT / ".venv" / "bin"
    done = subprocess.run([bin_ / "python", "scripts/docs.py"], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(f"docs/reference is as it was, because scripts/docs.py failed:\n{done.stderr[-2000:]}")


def commit(section: Section) -> None:
    """Commit what `apply` changed, and nothing else: the tree was clean before."""
    git("add", "-A")
    if git("status", "--porcelain").strip():
        body = section.body or "By scripts/rename.py; no manual change is in this commit."
        git("commit", "-q", "-m", f"{section.subject}\n\n{body}\n\n{TRAILER}: {section.name}")


def left(section: Section) -> dict[str, list[str]]:
    """Old words and names that are still there: identifier -> files."""
    found: dict[str, list[str]] = defaultdict(list)
    olds = {old for rule in section.rules for old in rule.words}
    names = {old for rule in section.rules for old in rule.names}
    for path, text in texts().items():
        for token in sorted(set(re.findall(r"[A-Za-z_]\w*", text))):
            words = "_".join(match.group().lower() for match in _WORD.finditer(token))
            if token.strip("_") in names or any(f"_{old}_" in f"_{words}_" for old in olds):
                found[token].append(path)
    return found


def rename_commits(revisions: str) -> Iterator[tuple[str, str]]:
    """The commits among `revisions` that this script made, oldest first, each with its section."""
    form = f"--format=%H %(trailers:key={TRAILER},valueonly,separator=%x20)"
    listed = git("log", "--reverse", "--topo-order", f"--grep=^{TRAILER}: ", form, revisions)
    for line in listed.splitlines():
        revision, _, section = line.partition(" ")
        yield revision, section.strip()


def merge(branch: str) -> None:
    """Bring this branch over every rename commit of another one, then merge the rest.

    Before each rename commit its parent is merged; then the same section is applied here, and the rename commit is
    joined as already done. So git compares new names with new names only. After a conflict: resolve, commit, run again.
    """
    for revision, name in rename_commits(f"HEAD..{branch}"):
        git("merge", "--no-edit", f"{revision}^")
        section = read_table(git("show", f"{revision}:{TABLE}"))[name]
        print(f"applying {name}")
        apply(section)
        commit(section)
        git("merge", "--no-edit", "-s", "ours", revision)
    git("merge", "--no-edit", branch)


def ignore() -> None:
    """Add the rename commits that are not in .git-blame-ignore-revs yet."""
    file = ROOT / IGNORED_REVISIONS
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    for revision, name in rename_commits("HEAD"):
        if revision not in text:
            text += f"# {name}\n{revision}\n"
    file.write_text(text, encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line; 1 if a section cannot be applied."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("list")
    applying = verbs.add_parser("apply")
    applying.add_argument("sections", nargs="+")
    applying.add_argument("--commit", action="store_true")
    verbs.add_parser("left").add_argument("section")
    verbs.add_parser("merge").add_argument("branch")
    verbs.add_parser("ignore")
    given = parser.parse_args(arguments)
    try:
        _run(given)
    except RenameError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _run(given: Any) -> None:
    table = read_table((ROOT / TABLE).read_text(encoding="utf-8"))
    if given.verb == "list":
        print("\n".join(f"{name:20} {section.subject}" for name, section in table.items()))
    elif given.verb == "ignore":
        ignore()
    elif given.verb == "left":
        for token, paths in sorted(left(table[given.section]).items()):
            print(f"{token:40} {len(paths):4} {' '.join(paths[:3])}")
    else:
        if git("status", "--porcelain").strip():
            raise RenameError("The working tree has changes. Commit them first, so that the renames stand alone.")
        if given.verb == "merge":
            merge(given.branch)
            return
        for name in given.sections:
            if name not in table:
                raise RenameError(f"There is no section {name!r} in {TABLE}; there are: {', '.join(table)}")
            apply(table[name])
            if given.commit:
                commit(table[name])


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main())
