"""Locates this installation's certificate authority. For all modules of the server that need a certificate."""

from __future__ import annotations

from pathlib import Path

from commonage.link.certificate_authority import Authority


def authority_of(data_dir: Path) -> Authority:
    """The authority of this data folder, created if it does not exist. Raises AuthorityError."""
    return Authority.open(data_dir.absolute() / "authority")
