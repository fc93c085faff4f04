"""Calls buildah, and turns its failure into an error: the step, its last output, and the next action."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commonage.images.recipe import step_title

Line = Callable[[str], None]
"""Takes a line of output."""

_LAST_LINES = 12
_KEPT_LINES = 40
_FULL = re.compile(r"[Nn]o space left on device")
_STEP = re.compile(r"(?:\[\d+/\d+\] )?STEP \d+/\d+: (.*)")
_ASIDE = re.compile(r"time=.* level=|subprocess exited with|--> |Using Python |(?:\[\d+/\d+\] )?COMMIT ")
_MAX_LINES, _MAX_WORDS = 12, 100
_NOT_STARTED = "sealing memfd copy"
"""buildah first copies itself into a sealed memfd. On a busy machine the kernel sometimes refuses the seal (EBUSY)."""
_TRIES = 5
_WORDS = "FROM, RUN, COPY, ADD, ENV, ARG, WORKDIR, USER, LABEL, SHELL, CMD, ENTRYPOINT, EXPOSE, VOLUME, STOPSIGNAL"
_DEBIAN = "localhost/commonage/debian:bookworm"


class ImageError(Exception):
    """An image cannot be built or pushed; the message says why and what to do."""


class BuildahFailed(ImageError):
    """buildah failed; `lines` are its last lines of output."""

    def __init__(self, lines: Sequence[str], what: str) -> None:
        super().__init__(complaint(lines, what))
        self.lines = tuple(lines)


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """The requested build: its file (empty: lists of requirements), and the folder of its context."""

    file: str
    context: str


def program() -> str:
    """The path of buildah. Raises ImageError."""
    path = shutil.which("buildah")
    if path is None:
        raise ImageError("buildah is not installed. Run: apt-get install buildah")
    return path


def version() -> str:
    number = re.search(r"\d+(\.\d+)+", call("--version"))
    return f"buildah {number[0]}" if number else "buildah"


def call(*arguments: str, stdin: str | None = None) -> str:
    """The output of buildah. Raises ImageError with its message."""
    for _ in range(_TRIES):
        done = subprocess.run(
            [program(), *arguments], input=stdin, capture_output=True, text=True, errors="replace", check=False
        )
        if done.returncode == 0 or _NOT_STARTED not in done.stderr:
            break
    if done.returncode != 0:
        raise ImageError(complaint(done.stderr.splitlines(), f"buildah {arguments[0]}"))
    return done.stdout


def follow(arguments: Sequence[str], line: Line) -> None:
    """Run buildah and pass on each line of output. Raises BuildahFailed with the last lines."""
    for _ in range(_TRIES):
        failed_with = stream([program(), *arguments], line)
        if failed_with is None or not any(_NOT_STARTED in text for text in failed_with):
            break
    if failed_with is not None:
        raise BuildahFailed(failed_with, f"buildah {arguments[0]}")


def stream(command: Sequence[str], line: Line) -> Sequence[str] | None:
    """Run a program, always to its end, and pass on each line of output. None if it succeeds, else its last lines."""
    last: deque[str] = deque(maxlen=_KEPT_LINES)
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        try:
            for text in process.stdout or ():
                last.append(text.rstrip())
                line(text.rstrip())
        except BaseException:
            process.terminate()
            raise
    return last if process.returncode else None


def complaint(lines: Sequence[str], what: str) -> str:
    output = [text.strip() for text in lines if text.strip()]
    return f"{what} failed:\n" + "\n".join(f"  {text}" for text in output[-_LAST_LINES:])


def disk_space() -> str:
    """The free disk space where buildah keeps images, and how to get more."""
    try:
        place = str(json.loads(call("info"))["store"]["GraphRoot"])
        free = f": {shutil.disk_usage(place).free >> 20} MiB free in {place}"
    except (ImageError, OSError, ValueError, KeyError, TypeError):
        free = ""
    return (
        f"The disk with buildah's images is full{free}. `buildah rm --all` and `buildah rmi --prune` remove "
        "earlier builds; `graphroot` in /etc/containers/storage.conf sets another folder."
    )


def exists(image: str) -> bool:
    """Whether the image is on this machine."""
    command = [program(), "inspect", "--type", "image", image]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def inspect(image: str) -> dict[str, Any]:
    description: dict[str, Any] = json.loads(call("inspect", "--type", "image", image))
    return description


def push(image: str, target: str, options: Sequence[str], folder: Path, line: Line) -> str:
    """Push it to `target` (HOST/REPOSITORY:TAG). Returns its digest in the registry. Raises ImageError."""
    digest = folder / "digest"
    follow(["push", *options, "--digestfile", str(digest), image, f"docker://{target}"], line)
    return digest.read_text(encoding="ascii").strip()


def failure_message(lines: Sequence[str], request: BuildRequest) -> str:
    step, since = _last_step(lines)
    output = [_bare(text.strip(), step) for text in since if text.strip() and not _ASIDE.match(text)][-_MAX_LINES:]
    begin = f"{_shortened(step, request)}, in {request.file}," if request.file else _shortened(step, request)
    what = begin if step else f"the build of {request.file or 'the image'}"
    advice = _advice("\n".join(since), request)
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


def _advice(output: str, request: BuildRequest) -> str:
    if _FULL.search(output):
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
