"""`commonage profiles`: launch profiles of JupyterHub on Kubernetes as resources."""

from __future__ import annotations

from pathlib import Path

import click

from commonage.cli.connection import Server, calls_server
from commonage.cli.errors import MISUSED, Failure
from commonage.cli.resources.apply import put_in_force
from commonage.cli.resources.documents import Located, text_of, write
from commonage.cli.resources.profile_list import NotProfiles, find_profiles, import_profiles


@click.group
def profiles() -> None:
    """Import launch profiles.

    \b
    Examples:
      commonage profiles import values.yaml > profiles.commonage.yml
      commonage profiles import values.yaml --apply
    """


@profiles.command("import")
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--tenant", default="", help="Tenant whose members get them.  [default: all]")
@click.option("--apply", "applies", is_flag=True, help="Apply them. For admins.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask before changes that affect workloads.")
@calls_server
def import_file(server: Server, file: Path, tenant: str, applies: bool, yes: bool) -> None:
    """Print a `profile_list` of KubeSpawner as documents of environments and profiles.

    FILE is YAML: the list itself, or values of Zero to JupyterHub that contain it. Keys that cannot be kept are
    named on stderr.

    \b
    Examples:
      commonage profiles import values.yaml > profiles.commonage.yml
      commonage profiles import values.yaml --tenant physics --apply
    """
    import yaml

    try:
        found = import_profiles(find_profiles(yaml.safe_load(text_of(file))), tenant)
    except yaml.YAMLError as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None) or "cannot be read"
        at = f", line {mark.line + 1}" if mark else ""
        raise Failure(f"{file}{at}: not valid YAML: {problem}", MISUSED) from None
    except NotProfiles as error:
        raise Failure(f"{file}: {error}", MISUSED) from None
    for note in found.notes:
        click.echo(note, err=True)
    if applies:
        documents = [Located(one, str(file)) for one in found.documents]
        put_in_force(server, documents, prune=False, take_over=False, yes=yes, as_json=False)
    else:
        click.echo(write(found.documents), nl=False)
