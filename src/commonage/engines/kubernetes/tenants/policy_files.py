"""The files that the admin of a cluster installs once: `deploy/kubernetes/policies`, or with settings of a site.

`python -m commonage.engines.kubernetes.tenants.policy_files FOLDER --registry registry.example.org/lab` writes them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

from commonage.engines.kubernetes.manifest import Manifest
from commonage.engines.kubernetes.tenants.admission import (
    access_policy,
    admission_manifests,
    gatekeeper_constraints,
    gatekeeper_templates,
)
from commonage.engines.kubernetes.tenants.falco import falco_rules
from commonage.engines.kubernetes.tenants.rbac import roles
from commonage.engines.settings import KubernetesPolicySettings

_NOTE = "# Made by `python -m commonage.engines.kubernetes.tenants.policy_files`; change its options, not this file.\n"


def policy_files(settings: KubernetesPolicySettings) -> dict[str, str]:
    """Text of each file by its name."""
    return {
        "access.yaml": _text([*access_policy(settings), *roles(settings)]),
        "admission.yaml": _text(admission_manifests(settings)),
        "gatekeeper-1-templates.yaml": _text(gatekeeper_templates(settings)),
        "gatekeeper-2-constraints.yaml": _text(gatekeeper_constraints(settings)),
        "falco-rules.yaml": _NOTE + _dump(falco_rules(settings)),
    }


def _text(manifests: Sequence[Manifest]) -> str:
    return _NOTE + "---\n".join(_dump(manifest) for manifest in manifests)


class _Dumper(yaml.SafeDumper):
    """Writes equal objects again, instead of references to the first."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _dump(data: object) -> str:
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)


def main(arguments: Sequence[str]) -> None:
    defaults = KubernetesPolicySettings(installation="commonage")
    parser = argparse.ArgumentParser(description="Write the files that bound Commonage and its pods in a cluster.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--installation", default="", help="value of the namespaces' label; by default the prefix")
    parser.add_argument("--namespace", default=defaults.namespace, help="namespace of the control plane")
    parser.add_argument("--service-account", default=defaults.service_account, help="of the control plane")
    parser.add_argument("--prefix", default=defaults.prefix, help="of the tenants' namespaces")
    parser.add_argument("--single", default=defaults.single, help="the namespace of all tenants")
    parser.add_argument("--registry", action="append", default=[], help="an image prefix that may run; may repeat")
    parser.add_argument("--host-folder", action="append", default=[], help="a folder of the nodes; may repeat")
    given = parser.parse_args(arguments)
    settings = KubernetesPolicySettings(
        installation=given.installation or given.prefix,
        namespace=given.namespace,
        service_account=given.service_account,
        prefix=given.prefix,
        single=given.single,
        registries=tuple(given.registry),
        host_folders=tuple(given.host_folder),
    )
    given.folder.mkdir(parents=True, exist_ok=True)
    for name, text in policy_files(settings).items():
        (given.folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
