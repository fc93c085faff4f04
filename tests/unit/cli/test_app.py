"""The table of verbs: all load, help names them in groups, nothing heavy is imported before it is needed."""

import subprocess
import sys

import click
import httpx2
import pytest
from click.testing import CliRunner

from commonage import __version__
from commonage.cli.app import VERBS, app
from commonage.cli.failures import MISUSED, UNREACHABLE, Refused
from commonage.sdk.calls import image_path
from commonage.sdk.errors import ApiError, Unreachable
from commonage.sdk.transport import failure


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_loads_and_shows_an_example(name: str) -> None:
    result = CliRunner().invoke(app, [name, "--help"])
    assert result.exit_code == 0, result.output
    assert "Example" in result.output


def test_help_names_every_verb_without_loading_it() -> None:
    result = CliRunner().invoke(app, ["--help"])
    assert [name for name in VERBS if f"\n  {name} " not in result.output] == []
    assert "Exit codes" in result.output


@pytest.mark.parametrize(
    ("arguments", "not_yet"),
    [
        ("['--version']", ["httpx2", "pydantic", "rich", "yaml", "sqlalchemy", "fastapi", "jinja2"]),
        ("['ps', '--help']", ["httpx2", "pydantic", "rich", "sqlalchemy", "fastapi"]),
        ("['up', '--help']", ["sqlalchemy", "fastapi", "uvicorn", "jinja2"]),
    ],
)
def test_what_is_not_needed_is_not_imported(arguments: str, not_yet: list[str]) -> None:
    program = (
        f"import sys\nfrom commonage.cli import main\ntry:\n    main({arguments})\nexcept SystemExit:\n    pass\n"
        f"print(sorted(set({not_yet}) & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


def test_version() -> None:
    assert CliRunner().invoke(app, ["--version"]).output == f"commonage {__version__}\n"


def test_an_unknown_verb_is_misuse() -> None:
    result = CliRunner().invoke(app, ["rum"], prog_name="commonage")
    assert result.exit_code == MISUSED
    assert "`commonage rum` is no verb; did you mean run? There are: run, profile, submit" in one_line(result.output)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["volume", "rm"], "`commonage volume rm` is no verb. There are: ls"),
        (["node", "drian"], "`commonage node drian` is no verb; did you mean drain? There are:"),
        (["image", "buld"], "`commonage image buld` is no verb; did you mean build? There are:"),
        (["registry", "ls"], "`commonage registry` is no verb. There are:"),
    ],
)
def test_a_mistyped_verb_of_a_noun_is_told_what_there_is(words: list[str], said: str) -> None:
    result = CliRunner().invoke(app, words, prog_name="commonage")
    assert result.exit_code == MISUSED
    assert said in one_line(result.output)


def one_line(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("name", ["torch", "lab/torch/x", "../lab", "lab/..", "/torch", "lab/"])
def test_what_names_no_image_is_refused_before_anybody_is_asked(name: str) -> None:
    with pytest.raises(ApiError, match="is not the name of an image; write TENANT/NAME") as refused:
        image_path(name)
    assert refused.value.status == 422


def test_what_a_message_cannot_hold_is_a_sentence() -> None:
    words = ["image", "prepull", "lab/torch", *(f"gpu-{number}" for number in range(2000))]
    result = CliRunner().invoke(app, [*words, "--url", "http://127.0.0.1:9", "--token", "t"], prog_name="commonage")
    assert result.exit_code == MISUSED
    assert result.output == "commonage: nodes: 2000 entries; at most 1024 are allowed\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str) -> None:
    result = CliRunner().invoke(app, ["completion", shell])
    assert result.exit_code == 0
    assert "_COMMONAGE_COMPLETE" in result.output


def test_completion_completes_verbs() -> None:
    environ = {"_COMMONAGE_COMPLETE": "bash_complete", "COMP_WORDS": "commonage ex", "COMP_CWORD": "1"}
    result = CliRunner().invoke(app, [], prog_name="commonage", env=environ)
    assert result.output == "plain,exec\nplain,explain\n"


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (Unreachable("nobody answers at http://x"), UNREACHABLE, "commonage up"),
        (ApiError.of(502, b"<html>"), UNREACHABLE, "Try again in a moment"),
        (ApiError("unavailable", "the hub is away", status=503), UNREACHABLE, "the hub is away"),
        (ApiError("unauthenticated", "who are you", status=401), MISUSED, "commonage login"),
        (ApiError("invalid-gpus", "gpus 'x'", status=422), MISUSED, "gpus 'x'"),
        (ApiError("error", "it broke", status=500), 1, "it broke"),
    ],
)
def test_refusals_become_a_sentence_and_a_code(error: ApiError, code: int, said: str) -> None:
    refused = Refused(error)
    assert refused.exit_code == code
    assert said in refused.format_message()


def test_a_certificate_that_is_not_trusted_is_no_server_that_is_off() -> None:
    broken = httpx2.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] unable to get local issuer certificate")
    error, reached = failure(broken, httpx2.URL("https://hub.example.org"))
    said = Refused(error).format_message()
    assert "the certificate of https://hub.example.org is not trusted here" in said
    assert "SSL_CERT_FILE" in said
    assert "commonage up" not in said
    assert (reached, Refused(error).exit_code) == (False, UNREACHABLE)


def test_several_mistakes_are_all_named() -> None:
    error = ApiError("invalid-input", "two things are wrong", status=422)
    error.errors = [{"field": "cpus", "detail": "no"}, {"field": "time", "detail": "neither"}]
    assert Refused(error).format_message() == "two things are wrong\n  cpus: no\n  time: neither"


def test_the_table_is_a_table_of_commands() -> None:
    context = click.Context(app)
    assert all(isinstance(app.get_command(context, name), click.Command) for name in VERBS)
    assert app.get_command(context, "nothing") is None
