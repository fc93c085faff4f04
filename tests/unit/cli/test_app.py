"""The table of commands: all load, help lists them in sections, and slow imports are deferred."""

import subprocess
import sys
from collections.abc import Iterator

import click
import httpx2
import pytest
from click.testing import CliRunner

from commonage import __version__
from commonage.cli.app import COMMANDS, app
from commonage.cli.errors import MISUSED, UNREACHABLE, ServerRefused
from commonage.sdk.calls import image_path
from commonage.sdk.errors import ApiError, Unreachable
from commonage.sdk.transport import failure


def paths(group: click.Group, *path: str) -> Iterator[tuple[str, ...]]:
    """The words that call each command of the group and its subgroups."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        yield (*path, name)
        if isinstance(command, click.Group):
            yield from paths(command, *path, name)


@pytest.mark.parametrize("words", list(paths(app)), ids=" ".join)
def test_every_command_loads_and_shows_an_example(words: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, [*words, "--help"])
    assert result.exit_code == 0, result.output
    assert "Example" in result.output


def test_help_lists_every_command() -> None:
    result = CliRunner().invoke(app, ["--help"])
    assert [name for name in COMMANDS if f"\n  {name} " not in result.output] == []
    assert "Exit codes" in result.output


@pytest.mark.parametrize(
    ("arguments", "not_yet"),
    [
        ("['--version']", ["httpx2", "pydantic", "rich", "yaml", "sqlalchemy", "fastapi", "jinja2"]),
        ("['ps', '--help']", ["httpx2", "pydantic", "rich", "sqlalchemy", "fastapi"]),
        ("['up', '--help']", ["sqlalchemy", "fastapi", "uvicorn", "jinja2"]),
    ],
)
def test_slow_imports_are_deferred(arguments: str, not_yet: list[str]) -> None:
    program = (
        f"import sys\nfrom commonage.cli import main\ntry:\n    main({arguments})\nexcept SystemExit:\n    pass\n"
        f"print(sorted(set({not_yet}) & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


def test_version() -> None:
    assert CliRunner().invoke(app, ["--version"]).output == f"commonage {__version__}\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rum"], "no command `commonage rum`. Did you mean run? Commands: run, profile, submit"),
        (["volume", "rm"], "no command `commonage volume rm`. Commands: ls"),
        (["node", "drian"], "no command `commonage node drian`. Did you mean drain? Commands:"),
        (["image", "buld"], "no command `commonage image buld`. Did you mean build? Commands:"),
        (["registry", "ls"], "no command `commonage registry`. Commands:"),
    ],
)
def test_unknown_command_is_reported_with_known_ones(words: list[str], message: str) -> None:
    result = CliRunner().invoke(app, words, prog_name="commonage")
    assert result.exit_code == MISUSED
    assert message in " ".join(result.output.split())


@pytest.mark.parametrize("name", ["torch", "lab/torch/x", "../lab", "lab/..", "/torch", "lab/"])
def test_invalid_image_name_is_refused_without_request(name: str) -> None:
    with pytest.raises(ApiError, match="is not the name of an image; write TENANT/NAME") as refused:
        image_path(name)
    assert refused.value.status == 422


def test_invalid_message_is_reported() -> None:
    words = ["image", "prepull", "lab/torch", *(f"gpu-{number}" for number in range(2000))]
    result = CliRunner().invoke(app, [*words, "--url", "http://127.0.0.1:9", "--token", "t"], prog_name="commonage")
    assert result.exit_code == MISUSED
    assert result.output == "commonage: nodes: 2000 entries; at most 1024 are allowed\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str) -> None:
    result = CliRunner().invoke(app, ["completion", shell])
    assert result.exit_code == 0
    assert "_COMMONAGE_COMPLETE" in result.output


def test_completion_completes_commands() -> None:
    environ = {"_COMMONAGE_COMPLETE": "bash_complete", "COMP_WORDS": "commonage ex", "COMP_CWORD": "1"}
    result = CliRunner().invoke(app, [], prog_name="commonage", env=environ)
    assert result.output == "plain,exec\nplain,explain\nplain,extend\nplain,export\n"


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (Unreachable("nobody answers at http://x"), UNREACHABLE, "commonage up"),
        (ApiError.of(502, b"<html>"), UNREACHABLE, "Try again in a moment"),
        (ApiError("unavailable", "the hub is away", status=503), UNREACHABLE, "the hub is away"),
        (ApiError("unauthenticated", "who are you", status=401), MISUSED, "commonage login"),
        (ApiError("invalid-gpus", "gpus 'x'", status=422), MISUSED, "gpus 'x'"),
        (ApiError("error", "it broke", status=500), 1, "it broke"),
    ],
)
def test_refusals_have_message_and_exit_code(error: ApiError, code: int, text: str) -> None:
    refused = ServerRefused(error)
    assert refused.exit_code == code
    assert text in refused.format_message()


def test_untrusted_certificate_is_not_reported_as_stopped_server() -> None:
    broken = httpx2.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] unable to get local issuer certificate")
    error, reached = failure(broken, httpx2.URL("https://hub.example.org"))
    message = ServerRefused(error).format_message()
    assert "the certificate of https://hub.example.org is not trusted here" in message
    assert "SSL_CERT_FILE" in message
    assert "commonage up" not in message
    assert (reached, ServerRefused(error).exit_code) == (False, UNREACHABLE)


def test_all_mistakes_are_listed() -> None:
    error = ApiError("invalid-input", "two things are wrong", status=422)
    error.errors = [{"field": "cpus", "detail": "no"}, {"field": "time", "detail": "neither"}]
    assert ServerRefused(error).format_message() == "two things are wrong\n  cpus: no\n  time: neither"
