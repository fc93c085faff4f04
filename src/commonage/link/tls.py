"""TLS of the link's listeners, and loading a key that is in memory."""

from __future__ import annotations

import ssl
import tempfile
from pathlib import Path

from commonage.link.certificate_authority import KeyPair


def server_context(pair: KeyPair, authority: str) -> ssl.SSLContext:
    """TLS for a server that requires client certificates of this authority (PEM). Blocks."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=authority)
    load_pair(context, pair.key_pem, pair.cert_pem)
    return context


def load_pair(context: ssl.SSLContext, key_pem: str, cert_pem: str) -> None:
    """Use this key and certificate. Blocks; raises OSError."""
    with tempfile.TemporaryDirectory(prefix="commonage-tls-") as folder:  # 0700; `ssl` takes files only
        pair_file = Path(folder, "pair.pem")
        pair_file.touch(mode=0o600)
        pair_file.write_text(key_pem + cert_pem, encoding="ascii")
        context.load_cert_chain(pair_file)
