"""The error message of a failed build: the step, its last output, and the next action. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from commonage.images.recipe import step_title

FULL = re.compile(r"[Nn]o space left on device")
_STEP = re.compile(r"(?:\[\d+/\d+\] )?STEP \d+/\d+: (.*)")
_ASIDE = re.compile(r"time=.* level=|subprocess exited with|--> |Using Python |(?:\[\d+/\d+\] )?COMMIT ")
_MOST_LINES, _MOST_WORDS = 12, 100
_WORDS = "FROM, RUN, COPY, ADD, ENV, ARG, WORKDIR, USER, LABEL, SHELL, CMD, ENTRYPOINT, EXPOSE, VOLUME, STOPSIGNAL"
_DEBIAN = "localhost/commonage/debian:bookworm"


@dataclass(frozen=True, slots=True)
class Asked:
    """The requested build: its file (empty: lists of requirements), and the folder of its context."""

    file: str
    context: str


def told(lines: Sequence[str], asked: Asked, room: Callable[[], str]) -> str:
    """The error message for a build that ended with these lines. `room` returns the disk's free space, and advice."""
    step, since = _last_step(lines)
    said = [_bare(text.strip(), step) for text in since if text.strip() and not _ASIDE.match(text)][-_MOST_LINES:]
    begin = f"{_shortened(step, asked)}, in {asked.file}," if asked.file else _shortened(step, asked)
    what = begin if step else f"the build of {asked.file or 'the image'}"
    advice = _advice("\n".join(since), asked, room)
    return "\n".join([f"{what} failed:", *(f"  {text}" for text in said), *([advice] if advice else [])])


def _last_step(lines: Sequence[str]) -> tuple[str, Sequence[str]]:
    """The line of the step that began last, and the output since; empty if the lines contain no step."""
    at = next((at for at in range(len(lines) - 1, -1, -1) if _STEP.match(lines[at])), -1)
    return (lines[at] if at >= 0 else ""), lines[at + 1 :]


def _shortened(step: str, asked: Asked) -> str:
    found = _STEP.match(step)
    # A Containerfile made from lists is generated, so its line numbers mean nothing to users.
    words = (None if asked.file else step_title(step)) or re.sub(r"--mount=\S+ ?", "", found[1] if found else step)
    return words if len(words) <= _MOST_WORDS else f"{words[:_MOST_WORDS]}…"


def _bare(text: str, step: str) -> str:
    """A line without the text that the step's line has already, and without buildah's internals."""
    text = text.removeprefix("Error: ").partition(" &imagebuilder.Step{")[0]
    if not text.startswith("building at STEP "):
        return text
    found = _STEP.match(step)
    plain = text.removeprefix(f'building at STEP "{found[1] if found else ""}": ')
    # The message for an unknown instruction quotes only the word, without its arguments.
    return re.sub(r'^building at STEP "\S+ ?": ', "", plain).removeprefix("while running runtime: ")


def _advice(said: str, asked: Asked, room: Callable[[], str]) -> str:
    if FULL.search(said):
        return room()
    for pattern, words in _ADVICE:
        found = re.search(pattern, said)
        if found is not None:
            return words(found, asked)
    return "`--verbose` shows every line of the build."


def _base(found: re.Match[str], _: Asked) -> str:
    image, rest = found["image"], found["rest"]
    host = image.partition("/")[0]
    there = f"`buildah images` shows those there are; {_DEBIAN} is made here when it is asked for, without a registry."
    if host == "localhost":
        return f"There is no image {image} on this machine. {there}"
    if re.search(r"unauthorized|denied|authentication required", rest):
        return f"{host} does not let you have {image}: is the name right? `buildah login {host}` keeps a password."
    return (
        f"{image} is not on this machine, and cannot be had from {host}: is the name right, is {host} reached? {there}"
    )


_ADVICE: Sequence[tuple[str, Callable[[re.Match[str], Asked], str]]] = (
    (r"creating build container: .*docker://(?P<image>[^\s:]+(?::\d+/[^\s:]+)?(?::[\w.-]+)?)(?P<rest>.*)", _base),
    (
        r'short-name "(?P<image>[^"]+)" did not resolve',
        lambda found, _: (
            f"Name {found['image']} with its registry, as docker.io/library/{found['image']}, or {_DEBIAN}."
        ),
    ),
    (
        r"checking on sources under|no items matching glob",
        lambda _, asked: (
            f"COPY and ADD take files of the folder {asked.context} alone: bring it there, or name another "
            "folder behind the Containerfile."
        ),
    ),
    (
        r'Unknown instruction: "(?P<word>[^"]+)"',
        lambda found, asked: (
            f"{found['word']} is no word for a line of {asked.file} to begin with; there are: {_WORDS}."
        ),
    ),
    (
        r"no FROM statement found|no contents in ",
        lambda _, asked: f"{asked.file} has to begin with what the image stands on: FROM {_DEBIAN}, for one.",
    ),
)
