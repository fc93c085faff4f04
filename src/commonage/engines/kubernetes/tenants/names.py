"""Names and labels of objects in the cluster. Two different users, tenants or volumes never share a name."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

from commonage.engines.kubernetes.labels import label_value
from commonage.engines.kubernetes.manifest import Manifest

DOMAIN = "commonage.dev"
INSTALLATION, TENANT, OWNER, KIND, PART = (
    f"{DOMAIN}/{key}" for key in ("installation", "tenant", "owner", "kind", "part")
)
MANAGED_BY = "app.kubernetes.io/managed-by"
FIELD_MANAGER = "commonage"
MADE = f"{DOMAIN}/made"
"""Annotation of a namespace that Commonage created: it may delete it, too."""
MAX = 63
_PLAIN = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?", re.ASCII)
_HASHED = re.compile(r"(?:.*-)?[0-9a-f]{12}", re.ASCII)


def object_name(prefix: str, name: str) -> str:
    """`PREFIX-NAME` if that is a DNS label, otherwise a readable part with a digest; a plain name never looks so."""
    room = MAX - len(prefix) - 1
    if _PLAIN.fullmatch(name) and len(name) <= room and not _HASHED.fullmatch(name):
        return f"{prefix}-{name}"
    readable = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[: room - 13].strip("-")
    return "-".join(part for part in (prefix, readable, _digest(name)) if part)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]


def metadata(
    name: str, installation: str, labels: Mapping[str, str], *, namespace: str = "", part: str = ""
) -> Manifest:
    """`labels` have true values; those that no label can hold become annotations of the same name, too."""
    true = {INSTALLATION: installation, **labels}
    written = {key: label_value(text) for key, text in true.items()}
    made: Manifest = {
        "name": name,
        "labels": {MANAGED_BY: FIELD_MANAGER, **written, **({PART: part} if part else {})},
    }
    if namespace:
        made["namespace"] = namespace
    if hidden := {key: text for key, text in true.items() if written[key] != text}:
        made["annotations"] = hidden
    return made
