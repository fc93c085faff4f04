"""The error message of a failed build: the step, its last output, and the next action. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from commonage.images.recipe import step_title

FULL = re.compile(r"[Nn]o space left on device")
_STEP = re.compile(r"(?:\[\d+/\d+\] )?STEP \d+/\d+: (.*)")
_ASIDE = re.compile(r"time=.* level=|subprocess exited with|--> |Using Python |(?:\[\d+/\d+\] )?COMMIT ")
_MAX_LINES, _MAX_WORDS = 12, 100
_WORDS = "FROM, RUN, COPY, ADD, ENV, ARG, WORKDIR, USER, LABEL, SHELL, CMD, ENTRYPOINT, EXPOSE, VOLUME, STOPSIGNAL"
_DEBIAN = "localhost/commonage/debian:bookworm"


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """The requested build: its file (empty: lists of requirements), and the folder of its context."""

    file: str
    context: str


def failure_message(lines: Sequence[str], request: BuildRequest, disk_space: Callable[[], str]) -> str:
    """The error message for a build that ended with these lines. `disk_space` returns advice for a full disk."""
    step, since = _last_step(lines)
    output = [_bare(text.strip(), step) for text in since if text.strip() and not _ASIDE.match(text)][-_MAX_LINES:]
    begin = f"{_shortened(step, request)}, in {request.file}," if request.file else _shortened(step, request)
    what = begin if step else f"the build of {request.file or 'the image'}"
    advice = _advice("\n".join(since), request, disk_space)
    return "\n".join([f"{what} failed:", *(f"  {text}" for text in output), *([advice] if advice else [])])


def _last_step(lines: Sequence[str]) -> tuple[str, Sequence[str]]:
    """The line of the step that began last, and the output since; empty if the lines contain no step."""
    at = next((at for at in range(len(lines) - 1, -1, -1) if _STEP.match(lines[at])), -1)
    return (lines[at] if at >= 0 else ""), lines[at + 1 :]


def _shortened(step: str, request: BuildRequest) -> str:
    found = _STEP.match(step)
    # A Containerfile made from lists is generated, so its line numbers mean nothing to users.
    words = (None if request.file else step_title(step)) or re.sub(r"--mount=\S+ ?", "", found[1] if found else step)
    return words if len(words) <= _MAX_WORDS else f"{words[:_MAX_WORDS]}…"


def _bare(text: str, step: str) -> str:
    """A line without the text that the step's line has already, and without buildah's internals."""
    text = text.removeprefix("Error: ").partition(" &imagebuilder.Step{")[0]
    if not text.startswith("building at STEP "):
        return text
    found = _STEP.match(step)
    plain = text.removeprefix(f'building at STEP "{found[1] if found else ""}": ')
    # The message for an unknown instruction quotes only the word, without its arguments.
    return re.sub(r'^building at STEP "\S+ ?": ', "", plain).removeprefix("while running runtime: ")


def _advice(output: str, request: BuildRequest, disk_space: Callable[[], str]) -> str:
    if FULL.search(output):
        return disk_space()
    for pattern, words in _ADVICE:
        found = re.search(pattern, output)
        if found is not None:
            return words(found, request)
    return "`--verbose` shows every line of the build."


def _base(found: re.Match[str], _: BuildRequest) -> str:
    image, rest = found["image"], found["rest"]
    host = image.partition("/")[0]
    hint = f"`buildah images` lists the available ones; {_DEBIAN} is made on demand, without a registry."
    if host == "localhost":
        return f"Image not found on this machine: {image}. {hint}"
    if re.search(r"unauthorized|denied|authentication required", rest):
        return f"{host} denied access to {image}. Check the name, or sign in with `buildah login {host}`."
    return f"Image not found on this machine or at {host}: {image}. Check the name and the network. {hint}"


_ADVICE: Sequence[tuple[str, Callable[[re.Match[str], BuildRequest], str]]] = (
    (r"creating build container: .*docker://(?P<image>[^\s:]+(?::\d+/[^\s:]+)?(?::[\w.-]+)?)(?P<rest>.*)", _base),
    (
        r'short-name "(?P<image>[^"]+)" did not resolve',
        lambda found, _: (
            f"Use {found['image']} with its registry, for example docker.io/library/{found['image']}, or {_DEBIAN}."
        ),
    ),
    (
        r"checking on sources under|no items matching glob",
        lambda _, request: (
            f"COPY and ADD take files only from the folder {request.context}. Move the file there, or give "
            "another folder after the Containerfile."
        ),
    ),
    (
        r'Unknown instruction: "(?P<word>[^"]+)"',
        lambda found, request: f"Unknown instruction {found['word']} in {request.file}. Known: {_WORDS}.",
    ),
    (
        r"no FROM statement found|no contents in ",
        lambda _, request: f"{request.file} must begin with the base image, for example FROM {_DEBIAN}.",
    ),
)
