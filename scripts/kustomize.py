#!/usr/bin/env python
"""Writes deploy/kustomize/base from the defaults of the Helm chart. With --check it writes nothing, and ends with status 1
if the base is out of date; tests/unit/deploy compares the two as well.
"""

import sys
from pathlib import Path
from typing import Any

import helm_python
import yaml

ROOT = Path(__file__).parents[1]
CHART = ROOT / "deploy" / "helm" / "commonage"
BASE = ROOT / "deploy" / "kustomize" / "base"
NOTE = "# Made from the Helm chart by scripts/kustomize.py; change the chart, not this file.\n"
NAMESPACE = "commonage"
# The Secret is not in the base: deploy/kustomize/secret makes it once.
VALUES = {"existingSecret": "commonage-secrets"}


def rendered(values: dict[str, Any], namespace: str = NAMESPACE) -> dict[str, list[dict[str, Any]]]:
    """The chart's manifests, by the name of the template."""
    with helm_python.Chart.load(CHART) as chart:
        found = chart.render(values, name="commonage", namespace=namespace)
    parts = {Path(path).name: list(yaml.safe_load_all(text)) for path, text in found.items() if path.endswith(".yaml")}
    return {name: [one for one in manifests if one] for name, manifests in parts.items()}


def base() -> dict[str, str]:
    """The files of the base, by name."""
    files = {}
    for name, manifests in sorted(rendered(VALUES).items()):
        for one in manifests:
            _say_kustomize(one)
        if manifests:
            files[name] = NOTE + yaml.safe_dump_all(manifests, sort_keys=False, width=1000)
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": sorted(files),
    }
    return {**files, "kustomization.yaml": NOTE + yaml.safe_dump(kustomization, sort_keys=False)}


def _say_kustomize(value: Any) -> None:
    if isinstance(value, dict):
        if "app.kubernetes.io/managed-by" in value:
            value["app.kubernetes.io/managed-by"] = "kustomize"
        value.pop("helm.sh/resource-policy", None)
        for one in value.values():
            _say_kustomize(one)
    elif isinstance(value, list):
        for one in value:
            _say_kustomize(one)


def main() -> int:
    wanted = base()
    there = {path.name: path.read_text() for path in BASE.glob("*.yaml")}
    if "--check" in sys.argv:
        return int(wanted != there)
    BASE.mkdir(parents=True, exist_ok=True)
    for name in there.keys() - wanted.keys():
        (BASE / name).unlink()
    for name, text in wanted.items():
        (BASE / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
