"""Describes the program of a test, so that a fake engine can simulate it and a shell can run it.

The engine contract writes its programs as behaviours; an engine that runs real programs takes `shell_command`, the fake
engine takes the behaviour itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from commonage.domain.reasons import Reason

TERMINATED = 143
KILLED = 137


@dataclass(frozen=True, slots=True)
class Behaviour:
    """One program, and the course of its start.

    It prints `prints` and `NAME=value` of every variable in `shows` at once, then lasts `lasts_s` seconds (None: until
    it is ended) and exits with `exit_code` (128 and more: by that signal; None: unknown). At SIGTERM it dies, or exits
    with `on_term_exit`, or ignores it (`ignores_term`). `leaves_child`: it leaves a process behind in its own session
    that ignores SIGTERM as well. `oom`: it takes more memory than its limit. `holds_mib` is the memory it holds while
    it lasts.

    The remaining fields work only on fakes: `start_delay_s` and `start_reason` while starting, `refuses` (start raises
    EngineFailure with this text, `refusal_retryable` or not), `vanishes_after_s` (seconds of running after which it is
    gone and never reported again).
    """

    lasts_s: float | None = 0.0
    exit_code: int | None = 0
    prints: tuple[str, ...] = ()
    shows: tuple[str, ...] = ()
    ignores_term: bool = False
    on_term_exit: int | None = None
    leaves_child: bool = False
    oom: bool = False
    holds_mib: int = 1
    start_delay_s: float = 0.0
    start_reason: Reason | None = None
    refuses: str | None = None
    refusal_retryable: bool = False
    vanishes_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Aside:
    """One command run in an attempt with `Engine.exec`, next to its program.

    It writes `prints` to stdout and `complains` to stderr, then `NAME=value` of every variable in `shows`, a line each;
    the size of its terminal (`ROWS COLUMNS`) now and once more for each line that it reads, if `tells_size`; all its
    input, if `copies`; lines without end, if `floods`. Then it ends with `exit_code` (128 and more: by that signal), or
    stays if it `lasts`. `leaves_child` as in a Behaviour.
    """

    prints: str = ""
    complains: str = ""
    shows: tuple[str, ...] = ()
    tells_size: bool = False
    copies: bool = False
    floods: bool = False
    lasts: bool = False
    leaves_child: bool = False
    exit_code: int = 0


def shell_aside(aside: Aside) -> tuple[str, ...]:
    """A command for a POSIX shell that does what `aside` says; a missing one for exit code 127."""
    if aside.exit_code == 127:
        return ("no-such-command",)
    lines = []
    if aside.leaves_child:
        lines.append("""(trap '' HUP TERM; exec setsid sh -c 'exec sleep 300') &""")
    if aside.prints:
        lines.append(f"printf '%s\n' '{_quoted(aside.prints)}'")
    if aside.complains:
        lines.append(f"printf '%s\n' '{_quoted(aside.complains)}' >&2")
    lines += [f"printf '%s\n' \"{name}=${name}\"" for name in aside.shows]
    if aside.tells_size:
        lines.append("stty size; while read -r _; do stty size; done")
    if aside.copies:
        lines.append("cat")
    if aside.floods:
        lines.append("while :; do printf '%s\n' 0123456789012345678901234567890123456789; done")
    if aside.lasts:
        lines.append("exec sleep 300")
    code = aside.exit_code
    lines.append(f"kill -{code - 128} $$" if code > 128 else f"exit {code}")
    return ("sh", "-c", "\n".join(lines))


def shell_command(behaviour: Behaviour) -> tuple[str, ...]:
    """A command for a POSIX shell that does what `behaviour` says, as far as a program can."""
    lines = []
    if behaviour.ignores_term:
        lines.append("trap '' TERM")
    elif behaviour.on_term_exit is not None:
        # `wait` returns at the signal, a foreground sleep would not.
        lines.append(f"trap 'kill $sleeper 2>/dev/null; exit {behaviour.on_term_exit}' TERM")
    if behaviour.leaves_child:
        lines.append("""(trap '' TERM; exec setsid sh -c 'echo "child $$"; exec sleep 300') &""")
    lasts = behaviour.lasts_s is None or behaviour.lasts_s > 0
    if lasts:  # before the output: a reader of the output finds all of its processes there
        lines.append(f"sleep {300 if behaviour.lasts_s is None else behaviour.lasts_s} & sleeper=$!")
    lines += [f"printf '%s\\n' '{_quoted(text)}'" for text in behaviour.prints]
    lines += [f"printf '%s\\n' \"{name}=${name}\"" for name in behaviour.shows]
    if behaviour.oom:
        # A variable that doubles until the memory limit.
        lines.append('x=0123456789abcdef; while :; do x="$x$x"; done')
    if lasts:
        # A caught signal ends `wait` early: check again whether the sleeper still runs.
        lines.append("while kill -0 $sleeper 2>/dev/null; do wait $sleeper; done")
    code = behaviour.exit_code or 0
    lines.append(f"kill -{code - 128} $$" if code > 128 else f"exit {code}")
    return ("sh", "-c", "\n".join(lines))


def _quoted(text: str) -> str:
    return text.replace("'", "'\\''")
