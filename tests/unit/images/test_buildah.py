"""Errors of failed builds, from the output of buildah 1.28."""

from __future__ import annotations

from pathlib import Path

import pytest

from commonage.images import buildah
from commonage.images.buildah import BuildRequest, failure_message

REQUEST = BuildRequest("here/Containerfile", "/src/here")
DEBIAN = "localhost/commonage/debian:bookworm"
FROM = f"STEP 1/4: FROM {DEBIAN}"
ENDED = "subprocess exited with status 1"
HAD = "creating build container: initializing source docker://{0}: pinging container registry {1}: Get ..."

CASES = {
    "the step that failed, not what the ones before said": (
        [FROM, "STEP 2/4: RUN echo fine", "fine", "--> 716e5341f1b", "STEP 3/4: RUN false", ENDED, ENDED,
         'Error: building at STEP "RUN false": exit status 1'],
        ["RUN false, in here/Containerfile, failed:", "  exit status 1", "`--verbose` shows every line of the build."],
    ),
    "of several stages, and what it said": (
        ["[2/2] STEP 2/7: COPY --from=one /a /a", "--> Using cache 3ab9",
         "[2/2] STEP 3/7: RUN --mount=type=secret,id=pip cat /a; exit 3", "a", ENDED,
         'Error: building at STEP "RUN --mount=type=secret,id=pip cat /a; exit 3": exit status 3'],
        ["RUN cat /a; exit 3, in here/Containerfile, failed:", "  a", "  exit status 3",
         "`--verbose` shows every line of the build."],
    ),
    "a word that is none": (
        [FROM, "STEP 2/2: RUNN echo x", 'time="2026-11-22T14:17:21Z" level=error msg="+(UNHANDLED LOGLEVEL)"',
         'Error: building at STEP "RUNN ": Build error: Unknown instruction: "RUNN" &imagebuilder.Step{Env:{}}'],
        ["RUNN echo x, in here/Containerfile, failed:", '  Build error: Unknown instruction: "RUNN"',
         "Unknown instruction RUNN in here/Containerfile. Known: FROM, RUN, COPY,…"],
    ),
    "a base that is not here": (
        ["STEP 1/2: FROM localhost/mine/none:1", "Error: " + HAD.format("localhost/mine/none:1", "localhost")],
        ["FROM localhost/mine/none:1, in here/Containerfile, failed:", "  creating build container:…",
         "Image not found on this machine: localhost/mine/none:1. `buildah images` lists the available ones;…"],
    ),
    "a registry that does not answer": (
        ["STEP 1/2: FROM 127.0.0.1:9/lab/base:1", "Error: " + HAD.format("127.0.0.1:9/lab/base:1", "127.0.0.1:9")],
        ["FROM 127.0.0.1:9/lab/base:1, in here/Containerfile, failed:", "  creating build container:…",
         "Image not found on this machine or at 127.0.0.1:9: 127.0.0.1:9/lab/base:1. Check the name…"],
    ),
    "a registry that refuses": (
        ["STEP 1/2: FROM reg.example/lab/x", "Error: creating build container: initializing source "
         "docker://reg.example/lab/x:latest: reading manifest latest in reg.example/lab/x: unauthorized: no"],
        ["FROM reg.example/lab/x, in here/Containerfile, failed:", "  creating build container:…",
         "reg.example denied access to reg.example/lab/x:latest. Check the name, or sign in with `buildah login…"],
    ),
    "a name without a registry": (
        ["STEP 1/2: FROM alpine:3",
         'Error: creating build container: short-name "alpine:3" did not resolve to an alias'],
        ["FROM alpine:3, in here/Containerfile, failed:", "  creating build container:…",
         f"Use alpine:3 with its registry, for example docker.io/library/alpine:3, or {DEBIAN}."],
    ),
    "a file that is not in the folder": (
        ["STEP 2/2: COPY x /",
         'Error: building at STEP "COPY x /": checking on sources under "/src/here": copier: ...'],
        ["COPY x /, in here/Containerfile, failed:", '  checking on sources under "/src/here": copier: ...',
         "COPY and ADD take files only from the folder /src/here. Move the file there,…"],
    ),
    "nothing to stand on": (
        ["Error: no FROM statement found"],
        ["the build of here/Containerfile failed:", "  no FROM statement found",
         f"here/Containerfile must begin with the base image, for example FROM {DEBIAN}."],
    ),
    "a full disk, whatever else is said": (
        ["STEP 2/2: RUN head /dev/zero > /big", "head: error writing 'standard output': No space left on device",
         'time="2026" level=error msg="write x: no space left on device"',
         'Error: building at STEP "RUN head /dev/zero > /big": exit status 1'],
        ["RUN head /dev/zero > /big, in here/Containerfile, failed:",
         "  head: error writing 'standard output': No space left on device", "  exit status 1", "THE ROOM"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_error_of_failed_build_names_step_and_next_action(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buildah, "disk_space", lambda: "THE ROOM")
    output, expected = CASES[case]
    found = failure_message(output, REQUEST).splitlines()
    assert len(found) == len(expected)
    for line, words in zip(found, expected, strict=True):
        assert line == words or (words.endswith("…") and line.startswith(words[:-1]))


def test_of_lists_the_kernel_is_named_and_no_line_of_ours() -> None:
    step = f"STEP 2/3: RUN --mount=type=bind,source=.,target=/x {'x' * 300} # kernel torch sha256:1"
    complaint = f'Error: building at STEP "{step.partition(": ")[2]}": exit status 1'
    lines = [step, "Using Python 3.11", "  No solution found: alpha==9.9", complaint]
    assert failure_message(lines, BuildRequest("", "")).splitlines() == [
        "kernel torch failed:",
        "  No solution found: alpha==9.9",
        "  exit status 1",
        "`--verbose` shows every line of the build.",
    ]


def test_of_much_that_was_said_the_last_is_shown() -> None:
    lines = ["STEP 2/3: RUN make " + "y" * 200, *(f"line {number}" for number in range(30))]
    head, *shown, _ = failure_message(lines, REQUEST).splitlines()
    assert head == f"RUN make {'y' * 91}…, in here/Containerfile, failed:"
    assert shown == [f"  line {number}" for number in range(18, 30)]


@pytest.mark.parametrize("refusals", [1, 9])
def test_repeats_what_could_not_start_and_gives_up_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusals: int
) -> None:
    fake = tmp_path / "buildah"
    fake.write_text(
        f"#!/bin/sh\necho x >>{tmp_path}/calls\n"
        f'if [ "$(wc -l <{tmp_path}/calls)" -le {refusals} ]; then\n'
        "  echo 'Close_Fd sealing memfd copy: Device or resource busy' >&2; exit 1\nfi\necho done\n"
    )
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    if refusals == 1:
        assert buildah.call("run") == "done\n"
    else:
        with pytest.raises(buildah.ImageError, match="sealing memfd"):
            buildah.call("run")
    (tmp_path / "calls").unlink()
    lines: list[str] = []
    if refusals == 1:
        buildah.follow(("build",), lines.append)
        assert lines[-1] == "done"
    else:
        with pytest.raises(buildah.BuildahFailed):
            buildah.follow(("build",), lines.append)
