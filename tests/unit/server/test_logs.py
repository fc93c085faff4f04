"""Log lines: what they carry, as text and as JSON."""

import json
import logging
import subprocess
import sys
from pathlib import Path

from commonage.server.logs import JsonLines, Short, TextLines


def record(message: str, *, failed: bool = False, **extra: object) -> logging.LogRecord:
    made = logging.makeLogRecord({"name": "commonage.x", "levelname": "INFO", "msg": message, "created": 0.0, **extra})
    if failed:
        try:
            raise ValueError("why")
        except ValueError:
            made.exc_info = sys.exc_info()
    return made


def test_text_carries_what_was_given() -> None:
    line = TextLines().format(record("started", workload="1m7y", reason="two words", nothing=""))
    assert line == ('1970-01-01T00:00:00.000Z INFO commonage.x: started workload=1m7y reason="two words" nothing=""')


def test_text_of_users_is_one_line_and_no_command_to_a_terminal() -> None:
    forged = record("refused: it\n1970-01-01 INFO fine\x1b[2J", name_="a\x9bb\nc")
    for formatter in (TextLines(), Short()):
        line = formatter.format(forged)
        assert line.isprintable(), line
        assert r"it\n1970" in line


def test_json_carries_the_same() -> None:
    line = json.loads(JsonLines().format(record("started", failed=True, workload="1m7y", path=object)))
    assert line["message"] == "started"
    assert line["workload"] == "1m7y"
    assert line["at"] == "1970-01-01T00:00:00.000+00:00"
    assert "ValueError: why" in line["traceback"]


def test_a_terminal_gets_no_traceback() -> None:
    line = Short().format(record("it broke", failed=True))
    assert "Traceback" not in line
    assert "it broke (ValueError: why; more in logs/server.log)" in line


def test_terminal_names_each_error_of_a_group() -> None:
    made = record("control ended unexpectedly")
    try:
        raise ExceptionGroup("unhandled errors in a TaskGroup", [ValueError("why"), KeyError("a")])
    except ExceptionGroup:
        made.exc_info = sys.exc_info()
    assert "control ended unexpectedly (ValueError: why; KeyError: 'a'; more in" in Short().format(made)


def test_full_disk_prints_no_traceback_for_each_record(tmp_path: Path) -> None:
    (tmp_path / "server.log").symlink_to("/dev/full")
    program = (
        "import logging, os, pathlib, sys\nfrom commonage.server import logs\n"
        "logs.set_up(pathlib.Path(sys.argv[1]), 'info', 'text')\n"
        "logging.warning('the disk is full')\nos._exit(0)"
    )
    ran = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)
    [line] = ran.stderr.splitlines()
    assert line.endswith("warning: the disk is full")
