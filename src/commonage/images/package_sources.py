"""This machine's settings for package sources, for the time of a build: indexes, proxies, certificates.

They enter a build as secrets and mounts, and stay in no image. uv gets its own variables; for Containerfiles there
is a pip.conf.
"""

from __future__ import annotations

import configparser
import io
import os
import re
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from commonage.engines.process.uv import read_pip_settings, uv_environment
from commonage.images.recipe import CERTIFICATES

PIP_CERTIFICATES = "/run/secrets/ca"
_FOR_PACKAGES = re.compile(
    r"UV_(DEFAULT_INDEX|INDEX|INDEX_URL|EXTRA_INDEX_URL|INDEX_STRATEGY|FIND_LINKS|INSECURE_HOST|HTTP_TIMEOUT"
    r"|EXCLUDE_NEWER|SYSTEM_CERTS|CONCURRENT_\w+)|(https?|all|no)_proxy",
    re.IGNORECASE,
)
_PLACES = ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS")
_PIP = ("index-url", "extra-index-url", "find-links", "trusted-host", "timeout", "no-index")
_BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")


@dataclass(frozen=True, slots=True)
class PackageSources:
    """Variables for uv, a pip.conf, the certificates to trust (PEM), folders of this machine with packages."""

    variables: Mapping[str, str]
    pip_conf: str
    certificates: str
    places: tuple[str, ...]


def package_sources(environ: Mapping[str, str], wheels: Sequence[Path] = ()) -> PackageSources:
    """The package sources of this machine; with folders of `wheels` only these, and no network is needed."""
    uv_variables = uv_environment(environ, read_pip_settings(environ))
    variables = {name: value for name, value in uv_variables.items() if _FOR_PACKAGES.fullmatch(name)}
    if wheels:
        variables = {name: value for name, value in variables.items() if name not in _PLACES}
        variables["UV_FIND_LINKS"] = ",".join(str(one.absolute()) for one in wheels)
    variables["SSL_CERT_FILE"] = CERTIFICATES
    return PackageSources(variables, _pip_conf(environ), _certificates(uv_variables), _places(variables))


def _certificates(uv_variables: Mapping[str, str]) -> str:
    named = (uv_variables.get("SSL_CERT_FILE"), ssl.get_default_verify_paths().cafile, *_BUNDLES)
    for name in named:
        if name and Path(name).is_file():
            return Path(name).read_text(encoding="utf-8", errors="replace")
    return ""


def _places(variables: Mapping[str, str]) -> tuple[str, ...]:
    words = [word for name in _PLACES for word in re.split(r"[\s,]+", variables.get(name, "")) if word]
    paths = [unquote(urlsplit(word).path) if word.startswith("file://") else word for word in words]
    return tuple(dict.fromkeys(_whole(path) for path in paths if path.startswith("/") and Path(path).is_dir()))


def _whole(path: str) -> str:
    """An index in a folder called `simple` usually has its packages in the parent folder."""
    folder = Path(path)
    return str(folder.parent if folder.name == "simple" else folder)


def _pip_conf(environ: Mapping[str, str]) -> str:
    """pip's configuration on this machine, from files and variables, in one file."""
    found = {name: value for name, value in read_pip_settings(environ).items() if name in _PIP}
    for name in _PIP:
        value = environ.get("PIP_" + name.replace("-", "_").upper())
        if value:
            found[name] = value
    parser = configparser.ConfigParser(interpolation=None)
    parser["global"] = {**found, "cert": PIP_CERTIFICATES, "disable-pip-version-check": "1", "no-cache-dir": "1"}
    written = io.StringIO()
    parser.write(written)
    return written.getvalue()


def has_packages(folder: Path) -> bool:
    """True if it is a folder with at least one wheel or source archive."""
    return folder.is_dir() and any(name.endswith((".whl", ".tar.gz")) for name in os.listdir(folder))
