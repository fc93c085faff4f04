"""Admission policies of a site, as ValidatingAdmissionPolicies and for Gatekeeper. Their expressions are the same.

The admin installs them once, because an account that may change them can disable them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from commonage.engines.kubernetes.labels import label_value
from commonage.engines.kubernetes.manifest import Manifest
from commonage.engines.kubernetes.tenants.names import INSTALLATION, metadata
from commonage.engines.kubernetes.tenants.pods import BASELINE_CAPABILITIES
from commonage.engines.kubernetes.tenants.rbac import tenant_role_name
from commonage.engines.settings import KubernetesPolicySettings

_VOLUMES = ("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "image", "persistentVolumeClaim", "projected")
_CONTAINERS = (
    "dyn(object.spec.containers) + dyn(object.spec.?initContainers.orValue([]))"
    " + dyn(object.spec.?ephemeralContainers.orValue([]))"
)
# As Pod Security's `restricted`, which a namespace with declared folders cannot have.
_SELINUX_TYPES = ["", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"]
_SYSCTLS = [
    "kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start", "net.ipv4.ping_group_range", "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl", "net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_rmem", "net.ipv4.tcp_syncookies", "net.ipv4.tcp_wmem",
]  # fmt: skip
_DEFAULT_TOLERATIONS = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"]


@dataclass(frozen=True, slots=True)
class Rule:
    """An expression in CEL that is true for allowed objects, and the message for refused ones."""

    expression: str
    message: str


@dataclass(frozen=True, slots=True)
class Policy:
    """`resources`: (API group, version, resources, operations). `variables`: (name, expression).

    `user`: it is only about requests of this user, in all namespaces; otherwise about the tenants' namespaces.
    """

    name: str
    kind: str
    resources: tuple[tuple[str, str, tuple[str, ...], tuple[str, ...]], ...]
    rules: tuple[Rule, ...]
    variables: tuple[tuple[str, str], ...] = ()
    user: str = ""


def policies(settings: KubernetesPolicySettings) -> tuple[Policy, ...]:
    """Those about the tenants' namespaces."""
    made = [_placement(settings), _pods(settings)]
    if settings.registries:
        made.insert(1, _images(settings))
    return tuple(made)


_PODS = (("", "v1", ("pods", "pods/ephemeralcontainers"), ("CREATE", "UPDATE")),)


def _placement(settings: KubernetesPolicySettings) -> Policy:
    chosen = (
        "has(object.spec.nodeName) || has(object.spec.nodeSelector)"
        " || has(object.spec.affinity) && has(object.spec.affinity.nodeAffinity)"
        f" || object.spec.?tolerations.orValue([]).exists(t, !(t.?key.orValue('') in {_cel(_DEFAULT_TOLERATIONS)}))"
    )
    # A pod behind a scheduling gate can be given a selector or affinity later, and any pod a toleration.
    same = "oldObject != null && " + " && ".join(
        f"dyn(object.spec).?{one}.orValue({empty}) == dyn(oldObject.spec).?{one}.orValue({empty})"
        for one, empty in (("nodeSelector", "{}"), ("affinity.?nodeAffinity", "{}"), ("tolerations", "[]"))
    )
    # Kueue opens its gates so.
    by_controller = (
        "oldObject != null && request.userInfo.username.startsWith('system:serviceaccount:')"
        " && !request.userInfo.username.startsWith('system:serviceaccount:' + request.namespace + ':')"
    )
    return Policy(
        "placement",
        "CommonagePlacement",
        (("", "v1", ("pods",), ("CREATE", "UPDATE")),),
        (
            Rule(
                f"request.userInfo.username == {_cel(settings.user)} || !variables.choosesNode"
                " || variables.isSame || variables.isByController",
                "Only Commonage places pods here. Remove nodeName, nodeSelector, node affinity and tolerations.",
            ),
        ),
        (("choosesNode", chosen), ("isSame", same), ("isByController", by_controller)),
    )


def _images(settings: KubernetesPolicySettings) -> Policy:
    prefixes = [one if one.endswith("/") else f"{one}/" for one in settings.registries]
    # An image without a registry is one of docker.io, as the container runtime reads it.
    whole = (
        "variables.references.map(i, i.matches('^([^/]*[.:][^/]*|localhost)/') ? i"
        " : i.contains('/') ? 'docker.io/' + i : 'docker.io/library/' + i)"
    )
    references = (
        "variables.containers.map(c, c.image)"
        " + object.spec.?volumes.orValue([]).filter(v, has(v.image)).map(v, v.image.?reference.orValue(''))"
    )
    return Policy(
        "images",
        "CommonageImages",
        _PODS,
        (
            Rule(
                f"variables.images.all(i, {_cel(prefixes)}.exists(p, i.startsWith(p)))",
                f"Images come from {', '.join(prefixes)} here. Use one of these, or ask the admin to allow the other.",
            ),
        ),
        (("containers", _CONTAINERS), ("references", references), ("images", whole)),
    )


def _pods(settings: KubernetesPolicySettings) -> Policy:
    folders = [folder.rstrip("/") for folder in settings.host_folders]
    kinds = " || ".join(f"has(v.{kind})" for kind in (*_VOLUMES, "secret", "hostPath"))
    volumes = "object.spec.?volumes.orValue([])"
    add = "c.?securityContext.?capabilities.?add.orValue([])"
    profiles = "['RuntimeDefault', 'Localhost']"
    contexts = (
        "[dyn(object.spec).?securityContext.orValue({})] + variables.containers.map(c, c.?securityContext.orValue({}))"
    )
    declared = f" Declared are: {', '.join(folders)}." if folders else ""
    return Policy(
        "pods",
        "CommonagePods",
        _PODS,
        (
            Rule(
                "!object.spec.?hostNetwork.orValue(false) && !object.spec.?hostPID.orValue(false)"
                " && !object.spec.?hostIPC.orValue(false)",
                "A pod cannot share the node's namespaces. Remove hostNetwork, hostPID and hostIPC.",
            ),
            Rule(
                "variables.containers.all(c, c.?ports.orValue([]).all(p, p.?hostPort.orValue(0) == 0))",
                "A pod cannot take a port of the node. Remove hostPort.",
            ),
            Rule(
                f"{volumes}.all(v, !has(v.hostPath) || {_cel(folders)}.exists(f,"
                " v.hostPath.path == f || v.hostPath.path.startsWith(f + '/')))",
                f"A pod cannot mount folders of the node that the admin did not declare.{declared}",
            ),
            # Below a declared folder are other users' files, and links that users make, which the node follows.
            Rule(
                f"request.operation == 'UPDATE' || request.userInfo.username == {_cel(settings.user)}"
                f" || {volumes}.all(v, !has(v.hostPath))",
                "Only Commonage mounts folders of the node here. Use a claim.",
            ),
            # Mounted with mapped ids, a folder of the node would belong to root in the pod.
            Rule(
                f"!variables.hasOwnUsers || {volumes}.all(v, !has(v.hostPath))",
                "A pod with hostUsers: false cannot mount folders of the node. Use a claim.",
            ),
            Rule(
                f"{volumes}.all(v, {kinds})",
                "A pod mounts file shares only by claims. Create a persistent volume and a claim.",
            ),
            Rule(
                "variables.containers.all(c, !c.?securityContext.?privileged.orValue(false))",
                "A container cannot be privileged. Remove privileged.",
            ),
            Rule(
                "variables.hasOwnUsers"
                " || variables.containers.all(c, c.?securityContext.?allowPrivilegeEscalation.orValue(true) == false)",
                "Set allowPrivilegeEscalation: false, or hostUsers: false where the tenant may run as root.",
            ),
            Rule(
                "variables.hasOwnUsers || variables.containers.all(c, c.?securityContext.?runAsNonRoot.orValue("
                "object.spec.?securityContext.?runAsNonRoot.orValue(false)))",
                "Set runAsNonRoot: true, or hostUsers: false where the tenant may run as root.",
            ),
            Rule(
                f"variables.containers.all(c, {add}.all(k, k in (variables.hasOwnUsers ?"
                f" {_cel(list(BASELINE_CAPABILITIES))} : ['NET_BIND_SERVICE'])))",
                "The pod adds capabilities that are not allowed here. Remove them.",
            ),
            Rule(
                "variables.containers.all(c, c.?securityContext.?seccompProfile.?type.orValue("
                f"object.spec.?securityContext.?seccompProfile.?type.orValue('')) in {profiles})",
                "Set the seccomp profile RuntimeDefault or Localhost.",
            ),
            Rule(
                "object.spec.?automountServiceAccountToken.orValue(true) == false && "
                f"{volumes}.all(v, !has(v.projected) || v.projected.?sources.orValue([]).all(s,"
                " !has(s.serviceAccountToken) && !has(s.podCertificate)))",
                "Users' programs get no access to the cluster. Set automountServiceAccountToken: false.",
            ),
            Rule(
                "variables.hasOwnUsers || variables.containers.all(c,"
                " c.?securityContext.?capabilities.?drop.orValue([]).exists(k, k == 'ALL'))",
                "Drop the capabilities ALL, or set hostUsers: false where the tenant may run as root.",
            ),
            Rule(
                "variables.contexts.all(s, s.?appArmorProfile.?type.orValue('RuntimeDefault')"
                f" in {profiles} && s.?procMount.orValue('Default') == 'Default'"
                f" && s.?seLinuxOptions.?type.orValue('') in {_cel(_SELINUX_TYPES)}"
                " && s.?seLinuxOptions.?user.orValue('') == '' && s.?seLinuxOptions.?role.orValue('') == ''"
                " && !s.?windowsOptions.?hostProcess.orValue(false))",
                "A pod keeps the node's protection. Remove appArmorProfile, seLinuxOptions, procMount and hostProcess.",
            ),
            Rule(
                f"dyn(object.spec).?securityContext.?sysctls.orValue([]).all(s, s.name in {_cel(_SYSCTLS)})",
                "The pod sets kernel parameters that are not allowed here. Remove them from sysctls.",
            ),
            # The kubelet would connect there, past the tenant's firewall.
            Rule(
                "variables.containers.all(c, [c.?livenessProbe, c.?readinessProbe, c.?startupProbe,"
                " c.?lifecycle.?postStart, c.?lifecycle.?preStop].all(p,"
                " p.?httpGet.?host.orValue('') == '' && p.?tcpSocket.?host.orValue('') == ''))",
                "Probes and hooks reach only their own pod. Remove host.",
            ),
        ),
        (
            ("containers", _CONTAINERS),
            ("contexts", contexts),
            ("hasOwnUsers", "object.spec.?hostUsers.orValue(true) == false"),
        ),
    )


def _own(settings: KubernetesPolicySettings) -> Policy:
    """Bounds the control plane itself, because RBAC cannot bound names that do not exist yet."""
    if settings.single:
        ours = f"variables.place == {_cel(settings.single)}"
    else:
        ours = (
            f"variables.place.startsWith({_cel(settings.prefix + '-')})"
            f" && variables.place != {_cel(settings.namespace)}"
        )
    return Policy(
        "own",
        "CommonageOwn",
        (
            ("", "v1", ("namespaces",), ("CREATE", "UPDATE", "DELETE")),
            ("rbac.authorization.k8s.io", "v1", ("rolebindings",), ("CREATE", "UPDATE", "DELETE")),
        ),
        (
            Rule(ours, "Commonage changes only its tenants' namespaces. Check the prefix in its settings."),
            Rule(
                "request.kind.kind != 'RoleBinding' || request.operation == 'DELETE'"
                " || dyn(object).roleRef.kind == 'ClusterRole'"
                f" && dyn(object).roleRef.name == {_cel(tenant_role_name(settings))}"
                " && dyn(object).?subjects.orValue([]).all(s, s.kind == 'ServiceAccount'"
                f" && s.name == {_cel(settings.service_account)}"
                f" && s.?namespace.orValue('') == {_cel(settings.namespace)})",
                "Commonage gives access to its tenants' namespaces to itself only.",
            ),
        ),
        (("place", "request.kind.kind == 'Namespace' ? request.name : request.namespace"),),
        settings.user,
    )


def _cel(value: object) -> str:
    """A literal of CEL, which reads JSON's."""
    return json.dumps(value)


def access_policy(settings: KubernetesPolicySettings) -> tuple[Manifest, ...]:
    """Bounds the right to bind the tenants' role. It is installed with that right, never apart from it."""
    return _built_in(_own(settings), settings)


def admission_manifests(settings: KubernetesPolicySettings) -> tuple[Manifest, ...]:
    """ValidatingAdmissionPolicies with their bindings."""
    return tuple(made for policy in policies(settings) for made in _built_in(policy, settings))


def _built_in(policy: Policy, settings: KubernetesPolicySettings) -> tuple[Manifest, Manifest]:
    name = f"{settings.prefix}-{policy.name}"
    spec: Manifest = {
        "failurePolicy": "Fail",
        "matchConstraints": {
            "resourceRules": [
                {
                    "apiGroups": [group],
                    "apiVersions": [version],
                    "resources": list(resources),
                    "operations": list(operations),
                }
                for group, version, resources, operations in policy.resources
            ]
        },
        "validations": [_validation(rule) for rule in policy.rules],
    }
    if policy.variables:
        spec["variables"] = [{"name": key, "expression": text} for key, text in policy.variables]
    binding: Manifest = {"policyName": name, "validationActions": ["Deny"]}
    if policy.user:
        spec["matchConditions"] = [_by(policy.user)]
    else:
        binding["matchResources"] = {"namespaceSelector": _tenants(settings)}
    meta = metadata(name, settings.installation, {})
    api = "admissionregistration.k8s.io/v1"
    return (
        {"apiVersion": api, "kind": "ValidatingAdmissionPolicy", "metadata": meta, "spec": spec},
        {"apiVersion": api, "kind": "ValidatingAdmissionPolicyBinding", "metadata": meta, "spec": binding},
    )


def _validation(rule: Rule) -> Manifest:
    return {"expression": rule.expression, "message": rule.message, "reason": "Forbidden"}


def _by(user: str) -> Manifest:
    return {"name": "by-commonage", "expression": f"request.userInfo.username == {_cel(user)}"}


def _tenants(settings: KubernetesPolicySettings) -> Manifest:
    return {"matchLabels": {INSTALLATION: label_value(settings.installation)}}


def gatekeeper_templates(settings: KubernetesPolicySettings) -> tuple[Manifest, ...]:
    """ConstraintTemplates for Gatekeeper 3.18 or newer, whose engine `K8sNativeValidation` reads CEL."""
    return tuple(_template(policy, settings) for policy in policies(settings))


def _template(policy: Policy, settings: KubernetesPolicySettings) -> Manifest:
    source: Manifest = {
        "failurePolicy": "Fail",
        "validations": [{"expression": rule.expression, "message": rule.message} for rule in policy.rules],
    }
    if policy.variables:
        source["variables"] = [{"name": key, "expression": text} for key, text in policy.variables]
    code = {"engine": "K8sNativeValidation", "source": source}
    return {
        "apiVersion": "templates.gatekeeper.sh/v1",
        "kind": "ConstraintTemplate",
        "metadata": metadata(policy.kind.lower(), settings.installation, {}),
        "spec": {
            "crd": {"spec": {"names": {"kind": policy.kind}}},
            "targets": [{"target": "admission.k8s.gatekeeper.sh", "code": [code]}],
        },
    }


def gatekeeper_constraints(settings: KubernetesPolicySettings) -> tuple[Manifest, ...]:
    """Applied after Gatekeeper has made a kind from each template."""
    return tuple(_constraint(policy, settings) for policy in policies(settings))


def _constraint(policy: Policy, settings: KubernetesPolicySettings) -> Manifest:
    match: Manifest = {"kinds": _kinds(policy.resources), "namespaceSelector": _tenants(settings)}
    return {
        "apiVersion": "constraints.gatekeeper.sh/v1beta1",
        "kind": policy.kind,
        "metadata": metadata(f"{settings.prefix}-{policy.name}", settings.installation, {}),
        "spec": {"enforcementAction": "deny", "match": match},
    }


_KIND_OF = {"pods": "Pod"}


def _kinds(resources: Sequence[tuple[str, str, tuple[str, ...], tuple[str, ...]]]) -> list[Manifest]:
    return [
        {"apiGroups": [group], "kinds": [_KIND_OF[name] for name in names if name in _KIND_OF]}
        for group, _, names, _ in resources
    ]
