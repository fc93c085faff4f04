"""Retired terms stay out of public surfaces: reference, API, documentation, portal.

The reference is generated from the code (see test_docs), so it holds all public names: commands, options, settings,
metrics, problem codes, reasons, and the OpenAPI document.
"""

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
TEMPLATES = ROOT / "src" / "commonage" / "portal" / "templates"

IN_NAMES = {
    "apart", "board", "card", "departure", "door", "fleet", "hands", "lacks", "lease", "ledger", "looker", "office",
    "parting", "patience", "receipt", "recall", "sighting", "stray", "sureness", "told", "trouble", "unplaceable",
    "vigil", "walls", "wish", "witness",
}  # fmt: skip
"""Words of identifiers that design and glossary replaced. Others, like `order`, have other meanings as well."""

IN_SENTENCES = {
    "anew", "card", "fleet", "lease", "ledger", "receipt", "sighting", "stray", "sureness", "unplaceable", "vigil",
}  # fmt: skip

NOT_OURS = {
    "docs/adr": {"lease"},  # a leader's Lease object
}

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_FENCED = re.compile(r"```.*?```", re.DOTALL)
_INLINE = re.compile(r"`[^`\n]*`")
_COMMAND_OR_OPTION = re.compile(r"commonage(?: [a-z-]+)+|--[a-z-]+")


def words(text: str) -> set[str]:
    """Lower-case words of an identifier or a sentence, plurals without their s."""
    found = {match.group().lower() for match in _WORD.finditer(text)}
    return found | {word.removesuffix("s") for word in found}


def openapi_names(value: Any) -> Iterator[str]:
    """All keys of the document, and the names of parameters and paths."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            if key == "name" and isinstance(inner, str):
                yield inner
            yield from openapi_names(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from openapi_names(inner)


def openapi_sentences(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from (
            inner for key, inner in value.items() if key in {"summary", "description"} and isinstance(inner, str)
        )
        for inner in value.values():
            yield from openapi_sentences(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from openapi_sentences(inner)


class _Text(HTMLParser):
    """The visible text of a template, and its labels."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_data(self, data: str) -> None:
        self.found.append(re.sub(r"\{[{%#].*?[}%#]\}", " ", data, flags=re.DOTALL))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value or "" for name, value in attrs if name in {"title", "placeholder", "aria-label", "alt"}]


def visible(template: str) -> str:
    parser = _Text()
    parser.feed(template)
    return " ".join(parser.found)


def test_no_public_name_has_a_retired_word() -> None:
    names = set(openapi_names(json.loads((REFERENCE / "openapi.json").read_text(encoding="utf-8"))))
    for page in REFERENCE.glob("*.md"):
        text = page.read_text(encoding="utf-8")
        names.update(_INLINE.findall(_FENCED.sub(" ", text)))
        names.update(_COMMAND_OR_OPTION.findall(text))
    assert len(names) > 1000
    assert {name: retired for name in names if (retired := words(name) & IN_NAMES)} == {}


def test_no_public_sentence_has_a_retired_word() -> None:
    document = json.loads((REFERENCE / "openapi.json").read_text(encoding="utf-8"))
    texts = {"OpenAPI": " ".join(openapi_sentences(document))}
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))):
        text = page.read_text(encoding="utf-8")
        if page.name != "cli.md":  # whose blocks are the help of commands
            text = _FENCED.sub(" ", text)
        texts[page.relative_to(ROOT).as_posix()] = _INLINE.sub(" ", text)
    for template in sorted(TEMPLATES.rglob("*.html")):
        texts[template.relative_to(ROOT).as_posix()] = visible(template.read_text(encoding="utf-8"))
    found = {}
    for place, text in texts.items():
        allowed = {word for start, those in NOT_OURS.items() if place.startswith(start) for word in those}
        if retired := words(text) & (IN_SENTENCES - allowed):
            found[place] = retired
    assert found == {}


def test_a_retired_word_is_found_in_every_form() -> None:
    assert words("freeCards") & IN_NAMES == words("free_cards") & IN_NAMES == words("FREE-CARD") & IN_NAMES == {"card"}
    assert "card" in words(visible('<a title="A card"></a>'))
    assert "card" not in words(visible("<p>{{ card }}</p>"))
    assert not words("dashboard discard record") & IN_NAMES
