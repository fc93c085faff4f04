"""Maps a start request to a Pod and the objects that it needs. Pure; used by the launcher.

A Pod is made with a scheduling gate, which the launcher removes once it has written down the Pod's uid. So no program
runs that the control plane would not know of after a crash.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from commonage.domain.statuses import StartRequest
from commonage.domain.volumes import folder_name
from commonage.engines.containers.daemon.descriptions import CAPABILITIES, SHM_PART, host_name
from commonage.engines.containers.files.prepare import INJECTED_INSIDE, files_of
from commonage.engines.containers.program import Program
from commonage.engines.kubernetes.labels import digest, label_value
from commonage.engines.kubernetes.manifest import Manifest, owned
from commonage.engines.kubernetes.storage.claims import home_claim, volume_claims
from commonage.engines.kubernetes.storage.mounts import RUNTIME, RUNTIME_VARIABLES, home_volume, requested_volumes
from commonage.engines.kubernetes.tenants.network import PORT_NAME
from commonage.engines.settings import KubernetesSettings

PREFIX = "commonage.dev"
INSTALLATION, ATTEMPT = f"{PREFIX}/installation", f"{PREFIX}/attempt"
GATE = f"{PREFIX}/recorded"
"""A Pod waits behind this gate until its uid is written down."""
CONTAINER = "main"
FILES = "files"
"""The init container of a job whose files are sent along: it waits until they are there."""
_NAME_MAX = 63
_PLAIN = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?", re.ASCII)
_DIGEST = re.compile(r"[0-9a-f]{32}", re.ASCII)
_NO_KEY = re.compile(r"[^-._a-zA-Z0-9]")

ENTRY = """\
[ ! -d /run/commonage/python ] || export PYTHONPATH="/run/commonage/python${PYTHONPATH:+:$PYTHONPATH}"
[ ! -d /run/commonage/jupyter ] ||
  export JUPYTER_CONFIG_PATH="${JUPYTER_CONFIG_PATH:+$JUPYTER_CONFIG_PATH:}/run/commonage/jupyter"
if [ -n "${COMMONAGE_GANG_HOSTS-}" ]; then
  (
    IFS=,
    for host in $COMMONAGE_GANG_HOSTS; do
      echo "$host slots=$COMMONAGE_GANG_SLOTS"
    done
  ) >"$COMMONAGE_HOST_FILE"
fi
if ! (printf '%65536s' '' >"$HOME/.commonage-room") 2>/dev/null; then
  FULL
fi
rm -f "$HOME/.commonage-room"
exec 2>&1
exec "$@"
""".replace("FULL", "\n  ".join(f'export {name}="${{{name}:-{place}}}"' for name, place in RUNTIME_VARIABLES.items()))
"""First program of a Pod: adds our files to the search paths, as the entry of other engines (entry.sh).

In a home without 64 KiB of room, files that a session writes at its start go to space of the Pod.
"""


@dataclass(frozen=True, slots=True)
class PodContext:
    """Inputs of a Pod in addition to the request."""

    installation: str
    namespace: str


def pod_name(attempt_id: str) -> str:
    """The name of an attempt's Pod, of its Secret, and of the Service by which its gang finds it."""
    name = f"cm-{attempt_id.lower()}"
    fits = _PLAIN.fullmatch(name) and len(name) <= _NAME_MAX and attempt_id == attempt_id.lower()
    return name if fits else f"cm-{digest(attempt_id)}"


def namespace_of(tenant: str, settings: KubernetesSettings) -> str:
    """The namespace of a tenant's Pods."""
    if settings.namespaces == "single":
        return settings.namespace
    fits = _PLAIN.fullmatch(tenant) and len(settings.namespace) + len(tenant) < _NAME_MAX
    # A name that looks like a digest could be that of another tenant.
    plain = tenant if fits and not _DIGEST.fullmatch(tenant) else digest(tenant)
    return f"{settings.namespace}-{plain}"


def selector_of(installation: str) -> str:
    return f"{INSTALLATION}={label_value(installation)}"


def attempt_of(manifest: Manifest) -> str:
    """The attempt's id; empty for an object that belongs to no attempt."""
    return str((manifest["metadata"].get("annotations") or {}).get(ATTEMPT, ""))


def metadata_of(request: StartRequest, context: PodContext) -> Manifest:
    values = {
        INSTALLATION: context.installation,
        ATTEMPT: request.attempt_id,
        f"{PREFIX}/workload": request.workload_id,
        f"{PREFIX}/tenant": request.tenant,
        f"{PREFIX}/owner": request.owner,
        f"{PREFIX}/kind": str(request.kind),
    }
    return {
        "name": pod_name(request.attempt_id),
        "namespace": context.namespace,
        "labels": {name: label_value(value) for name, value in values.items()},
        "annotations": values,
    }


def pod_of(request: StartRequest, program: Program, context: PodContext, settings: KubernetesSettings) -> Manifest:
    """The Pod of an attempt. Raises EngineFailure for what a Pod here cannot have."""
    volumes, mounts = _volumes(request, program, context, settings)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata_of(request, context),
        "spec": {
            "schedulingGates": [{"name": GATE}],
            "restartPolicy": "Never",
            **priority(settings),
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": settings.grace_s,
            "hostname": host_name(request),
            # Signals reach a program that is not the first process of its PID namespace, and its exit code by a signal
            # is its own. The container's other processes end with it.
            "shareProcessNamespace": True,
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": _on(request)}},
            # A node that is cut off keeps its Pods: only its next report, or an admin, shows whether they still run.
            "tolerations": [
                *(
                    {"key": f"node.kubernetes.io/{taint}", "operator": "Exists", "effect": "NoExecute"}
                    for taint in ("not-ready", "unreachable")
                ),
                *(dict(one) for one in settings.tolerations),
            ],
            "securityContext": pod_security(settings),
            **host_users(settings, volumes),
            **pull_secrets(settings),
            **({"runtimeClassName": settings.runtime_class} if settings.runtime_class else {}),
            **({"initContainers": [_files_container(request, program, settings)]} if request.bundle_path else {}),
            "containers": [_container(request, program, settings, mounts)],
            "volumes": volumes,
        },
    }


def priority(settings: KubernetesSettings) -> Manifest:
    """A Pod gets a preemption policy only from its class: the cluster refuses a Pod whose policy differs."""
    return (
        {"priorityClassName": settings.priority_class, "preemptionPolicy": "Never"} if settings.priority_class else {}
    )


def _on(request: StartRequest) -> Manifest:
    """Affinity to the node of the allocation: the scheduler of the cluster still checks and binds."""
    field = {"key": "metadata.name", "operator": "In", "values": [request.allocation.node]}
    return {"nodeSelectorTerms": [{"matchFields": [field]}]}


def _container(
    request: StartRequest, program: Program, settings: KubernetesSettings, mounts: Sequence[Manifest]
) -> Manifest:
    env = [{"name": name, "value": literal(value)} for name, value in program.variables.items()]
    secret = {"envFrom": [{"secretRef": {"name": pod_name(request.attempt_id)}}]} if program.secrets else {}
    port = {"name": PORT_NAME, "containerPort": int(program.variables["COMMONAGE_PORT"])} if request.wants_port else {}
    return {
        "name": CONTAINER,
        "image": request.environment.image,
        "imagePullPolicy": "IfNotPresent" if settings.pull == "missing" else "Never",
        "command": ["/bin/sh", "-c", literal(ENTRY), "commonage"],
        "args": [literal(word) for word in program.command],
        "workingDir": program.cwd,
        "env": env,
        **secret,
        "resources": resources_of(request, settings),
        **({"ports": [port]} if port else {}),
        "volumeMounts": list(mounts),
        "securityContext": container_security(settings),
        "terminationMessagePolicy": "File",
    }


def _files_container(request: StartRequest, program: Program, settings: KubernetesSettings) -> Manifest:
    wait = 'until [ -d "$1" ]; do sleep 0.2 || sleep 1; done'
    return {
        "name": FILES,
        "image": request.environment.image,
        "imagePullPolicy": "IfNotPresent" if settings.pull == "missing" else "Never",
        "command": ["/bin/sh", "-c", literal(wait), "commonage", literal(program.cwd)],
        "resources": resources_of(request, settings),
        "volumeMounts": list(home_volume(request.owner, settings).mounts),
        "securityContext": container_security(settings),
    }


def literal(text: str) -> str:
    """The text as Kubernetes writes it in commands and variables, where `$` begins a reference."""
    return text.replace("$", "$$")


def resources_of(request: StartRequest, settings: KubernetesSettings) -> Manifest:
    """Requests are the allocation; memory is limited to it, and CPU if the site's CPUs are a quota."""
    memory, cpu = f"{request.allocation.memory_mib}Mi", f"{request.allocation.cpus_milli}m"
    limits = {"memory": memory} | ({"cpu": cpu} if settings.cpu_hold == "quota" else {})
    return {"requests": {"memory": memory, "cpu": cpu}, "limits": limits}


def is_restricted(settings: KubernetesSettings) -> bool:
    """True if Pods meet the Pod Security level `restricted`."""
    return settings.user != 0 and settings.homes != "host-path"


def pod_security(settings: KubernetesSettings) -> Manifest:
    user = settings.user
    made: Manifest = {"seccompProfile": {"type": "RuntimeDefault"}, "runAsUser": user, "runAsGroup": user}
    if user:
        made |= {"runAsNonRoot": True, "fsGroup": user, "fsGroupChangePolicy": "OnRootMismatch"}
    return made


def host_users(settings: KubernetesSettings, volumes: Sequence[Manifest] = ()) -> Manifest:
    """Root runs in a user namespace, in which it is an unprivileged user on the node. Folders of the node would not be
    its own there.
    """
    return {} if settings.user or any("hostPath" in one for one in volumes) else {"hostUsers": False}


def pull_secrets(settings: KubernetesSettings) -> Manifest:
    return {"imagePullSecrets": [{"name": one} for one in settings.pull_secrets]} if settings.pull_secrets else {}


def container_security(settings: KubernetesSettings) -> Manifest:
    drop: Manifest = {"drop": ["ALL"]}
    if settings.user == 0:
        return {"allowPrivilegeEscalation": False, "capabilities": drop | {"add": list(CAPABILITIES)}}
    return {"allowPrivilegeEscalation": False, "capabilities": drop}


# --- volumes ------------------------------------------------------------------------------------------------------


def _volumes(
    request: StartRequest, program: Program, context: PodContext, settings: KubernetesSettings
) -> tuple[list[Manifest], list[Manifest]]:
    home = home_volume(request.owner, settings)
    shm = {"medium": "Memory", "sizeLimit": f"{max(1, request.allocation.memory_mib // SHM_PART)}Mi"}
    volumes: list[Manifest] = [
        *home.volumes,
        {"name": "shm", "emptyDir": shm},
        {"name": "runtime", "emptyDir": {}},
    ]
    mounts: list[Manifest] = [
        *home.mounts,
        {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 - shared memory of the container, not a file of ours
        {"name": "runtime", "mountPath": RUNTIME},
    ]
    if files := config_map_of(request, context):
        items = [{"key": key, "path": path} for key, path in _places(request)]
        volumes.append({"name": "files", "configMap": {"name": files["metadata"]["name"], "items": items}})
        mounts.append({"name": "files", "mountPath": INJECTED_INSIDE, "readOnly": True})
    for number, mount in enumerate(settings.mounts):
        path = mount.source.replace("{user}", folder_name(request.owner)).replace(
            "{tenant}", folder_name(request.tenant)
        )
        volumes.append({"name": f"admin-{number}", "hostPath": {"path": path, "type": "Directory"}})
        mounts.append({"name": f"admin-{number}", "mountPath": mount.target, "readOnly": not mount.writable})
    asked = requested_volumes(sorted(request.mounts, key=lambda one: one.target), settings.storage)
    return [*volumes, *asked.volumes], [*mounts, *asked.mounts]


def claims_of(request: StartRequest, context: PodContext, settings: KubernetesSettings) -> tuple[Manifest, ...]:
    """The claims that its Pod mounts and the platform makes."""
    place, storage = (context.namespace, context.installation), settings.storage
    claims = volume_claims(request.mounts, request.tenant, *place, storage)
    if settings.homes != "claim":
        return claims
    return (home_claim(request.owner, request.tenant, request.home_mib, *place, storage), *claims)


def _places(request: StartRequest) -> list[tuple[str, str]]:
    """Key and path of each of our files. A ConfigMap's key has only letters, digits, `-`, `_` and `.`."""
    paths = [place.removeprefix(f"{INJECTED_INSIDE}/") for _, place, _ in files_of(request)]
    return [(_NO_KEY.sub("_", path.replace("/", ".")), path) for path in paths]


def config_map_of(request: StartRequest, context: PodContext) -> Manifest | None:
    """Our files that its program reads, named after their contents; None if it reads none."""
    texts = {key: text for (key, _), (_, _, text) in zip(_places(request), files_of(request), strict=True)}
    if not texts:
        return None
    named = digest("\0".join(f"{key}\0{text}" for key, text in sorted(texts.items())))
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": f"cm-files-{named[:16]}",
            "namespace": context.namespace,
            "labels": {INSTALLATION: label_value(context.installation)},
        },
        "immutable": True,
        "data": texts,
    }


def secret_of(request: StartRequest, secrets: Mapping[str, str], pod: Manifest, context: PodContext) -> Manifest:
    """The secret variables of an attempt, which are deleted with its Pod."""
    secret: Manifest = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata_of(request, context),
        "immutable": True,
        "type": "Opaque",
        "data": {name: base64.b64encode(value.encode()).decode("ascii") for name, value in secrets.items()},
    }
    return owned(secret, pod)


def gang_service(request: StartRequest, context: PodContext) -> Manifest:
    """The DNS name by which other members of the gang find this one, even before it runs."""
    metadata = metadata_of(request, context)
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata,
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {ATTEMPT: metadata["labels"][ATTEMPT]},
        },
    }


def gang_policy(request: StartRequest, context: PodContext) -> Manifest:
    """Lets the gang's members reach this one, and this one reach them, on every port, where a namespace denies that."""
    metadata = metadata_of(request, context)
    among = {"key": ATTEMPT, "operator": "In", "values": [label_value(one) for one in request.gang]}
    members = [{"podSelector": {"matchExpressions": [among]}}]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata,
        "spec": {
            "podSelector": {"matchLabels": {ATTEMPT: metadata["labels"][ATTEMPT]}},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": members}],
            "egress": [{"to": members}],
        },
    }


def pull_pod(image: str, node: str, context: PodContext, settings: KubernetesSettings, number: str) -> Manifest:
    """A Pod that does nothing, on a node that should pull the image."""
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    term = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"cm-pull-{digest(f'{image} {node}')[:16]}-{number}",
            "namespace": context.namespace,
            "labels": {INSTALLATION: label_value(context.installation), f"{PREFIX}/pull": "true"},
            "annotations": {f"{PREFIX}/image": image},
        },
        "spec": {
            "restartPolicy": "Never",
            **priority(settings),
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": term}},
            "securityContext": pod_security(settings),
            **host_users(settings),
            **pull_secrets(settings),
            "containers": [
                {
                    "name": CONTAINER,
                    "image": image,
                    "imagePullPolicy": "IfNotPresent" if settings.pull == "missing" else "Never",
                    "command": ["/bin/sh", "-c", "exit 0"],
                    "resources": {"requests": {"cpu": "1m", "memory": "8Mi"}, "limits": {"memory": "64Mi"}},
                    "securityContext": container_security(settings),
                }
            ],
        },
    }


def without_gate(pod: Manifest) -> Manifest:
    """The change that lets this Pod, and no other of its name, be scheduled."""
    return {
        "metadata": {"uid": pod["metadata"]["uid"]},
        "spec": {"schedulingGates": [{"name": GATE, "$patch": "delete"}]},
    }


def is_gated(pod: Manifest) -> bool:
    return any(one["name"] == GATE for one in pod["spec"].get("schedulingGates") or ())
