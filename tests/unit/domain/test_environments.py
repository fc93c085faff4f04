"""What environments are made of, beside what their lists say."""

from pathlib import Path

import pytest

from commonage.catalogue import builtin_environments
from commonage.domain.images import left_out

ROOT = Path(__file__).parents[3]


def test_what_makes_sessions_slow_is_left_out_as_from_our_own_pins() -> None:
    ours = (ROOT / "requirements" / "left-out.txt").read_text(encoding="utf-8").splitlines(keepends=True)
    assert left_out(["jupyterlab", "numpy==2"]) == "".join(line for line in ours if not line.startswith("#"))
    for environment in builtin_environments():
        assert left_out(environment.requirements), f"{environment.name} names it"


@pytest.mark.parametrize("name", ["rfc3987-syntax", "rfc3987_syntax==1.1.0", "RFC3987.Syntax>=1"])
def test_who_names_it_gets_it(name: str) -> None:
    assert left_out(["jupyterlab", name]) == ""
    assert left_out(["jupyterlab", "rfc3987", "rfc3987-syntaxes"]) != ""
