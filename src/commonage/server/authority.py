"""Where this installation keeps its certificate authority. For all of the server that needs a certificate."""

from __future__ import annotations

from pathlib import Path

from commonage.link.ca import Authority


def authority_of(data_dir: Path) -> Authority:
    """The authority of this data folder; made when there is none. Raises AuthorityError."""
    return Authority.open(data_dir.absolute() / "authority")
