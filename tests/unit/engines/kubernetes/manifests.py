"""Golden files of manifests, and the check against the API schemas of three Kubernetes minors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import kubernetes_validate
import yaml

from commonage.engines.kubernetes.manifest import Manifest

GOLDEN = Path(__file__).parent / "golden"
MINORS = ("1.34", "1.36", "1.37")
WITHOUT_SCHEMA = ("templates.gatekeeper.sh", "constraints.gatekeeper.sh", "snapshot.storage.k8s.io")


def assert_golden(name: str, manifests: Sequence[Manifest]) -> None:
    """Equal to the file, which this writes if it is missing, and valid in each minor."""
    for manifest in manifests:
        if not manifest["apiVersion"].startswith(WITHOUT_SCHEMA):
            for minor in MINORS:
                kubernetes_validate.validate(manifest, minor, strict=True)
    path = GOLDEN / f"{name}.yaml"
    if not path.exists():
        path.write_text(yaml.safe_dump_all(manifests, sort_keys=False, width=120), encoding="utf-8")
        raise AssertionError(f"{path} was missing and is written now; read it and run again")
    assert list(manifests) == list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
