"""Locates this installation's certificate authority. For all modules of the server that need a certificate."""

from __future__ import annotations

from pathlib import Path

from commonage.link.certificate_authority import CertificateAuthority


def authority_of(data_dir: Path) -> CertificateAuthority:
    """The authority of this data folder, created if it does not exist. Raises AuthorityError."""
    return CertificateAuthority.open(data_dir.absolute() / "authority")
