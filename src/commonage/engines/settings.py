"""Settings of the engines, and the syntax of the folders that the admin mounts into every container.

Filled by bootstrap; nothing is read from the environment here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from commonage.domain.errors import InvalidInput
from commonage.ports.registry import GetPullToken, RegistryAccount

# Sockets and data of the daemon and of container runtimes, or folders above those: access to them means root.
_SECRET_PLACES = ("/", "/var", "/var/lib")
_SECRET_FOLDERS = ("/run", "/var/run", "/var/lib/docker", "/var/lib/containerd", "/proc")


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder of this node that every container gets. `{user}` and `{tenant}` in `source` name the attempt's owner."""

    source: str
    target: str
    writable: bool = False


def parse_mount(text: str) -> Mount:
    """Parse `/host/folder:/folder` or `…:rw`; read-only by default. Raises InvalidInput."""
    source, _, rest = text.partition(":")
    target, _, mode = rest.partition(":")
    if not (source.startswith("/") and target.startswith("/")) or mode not in ("", "ro", "rw"):
        raise InvalidInput(
            f"{text!r} is not a mount; it is written /folder/here:/folder/inside or …:rw", field="mounts"
        )
    plain = PurePosixPath("/" + source.lstrip("/"))  # pathlib would keep two leading slashes
    secret = str(plain) in _SECRET_PLACES or any(plain.is_relative_to(folder) for folder in _SECRET_FOLDERS)
    if ".." in plain.parts or secret:
        raise InvalidInput(f"{source} cannot be given to containers: it leads to the Docker daemon, and so to root")
    if str(PurePosixPath(target)) in ("/", "/home") or PurePosixPath(target).is_relative_to("/run/commonage"):
        raise InvalidInput(f"nothing can be mounted at {target}: that place is taken")
    return Mount(source, target, mode == "rw")


@dataclass(frozen=True)
class EngineSettings:
    """Settings of every engine.

    `cpu_hold`: requested CPUs are a weight (`share`) or a limit (`quota`). `processes_max`: limit of processes and
    threads of one attempt. `max_log_mib`: disk limit of one log. `bundle_max_mib`: limit of the unpacked files of a
    job. `disk_low_mib`: with less free space the node reports a fault. `keep_logs_s`, `keep_logs_mib`: retention of the
    logs of forgotten attempts. `keep_job_files_s`: of the folders of jobs in homes.
    """

    cpu_hold: Literal["share", "quota"] = "share"
    processes_max: int = 4096
    max_log_mib: int = 512
    bundle_max_mib: int = 2048
    disk_low_mib: int = 256
    keep_logs_s: float = 90 * 86_400.0
    keep_logs_mib: int = 20 * 1024
    keep_job_files_s: float = 365 * 86_400.0


@dataclass(frozen=True)
class LocalNodeSettings(EngineSettings):
    """Description of an engine's single node. None: the host's name, and the detected cores and memory."""

    node_name: str | None = None
    cpus_milli: int | None = None
    memory_mib: int | None = None
    labels: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class ProcessSettings(LocalNodeSettings):
    """Settings of one process engine; every default is meant to be right for a single node.

    `first_port`..`last_port`: ports of sessions and services, below the kernel's range
    for outgoing connections. `cgroups`: whether control groups may be used. `warm_sessions`: fork sessions from a
    preloaded parent, which takes about 130 MiB for each environment.
    """

    first_port: int = 20_000
    last_port: int = 29_999
    cgroups: bool = True
    warm_sessions: bool = True


@dataclass(frozen=True)
class ContainerSettings(EngineSettings):
    """Settings of engines with a Docker daemon.

    `url`: address of the daemon, in a Swarm of a manager on the control plane's node. `pull`: whether a missing image
    is pulled. `reaches`: loopback ports of the hub and the control plane, which containers reach by the gateway of
    their network. `gateway_port`: loopback port of the workload gateway, which serves these connections. `account`:
    credentials for the site's registry; `get_pull_token`: gets them for one image, at a site elsewhere. `networks`:
    address range of the tenants' networks.
    """

    url: str = "unix:///var/run/docker.sock"
    pull: Literal["missing", "never"] = "missing"
    reaches: tuple[int, ...] = ()
    gateway_port: int = 0
    account: RegistryAccount | None = None
    get_pull_token: GetPullToken | None = None
    mounts: tuple[Mount, ...] = ()
    networks: str = "10.213.0.0/16"


@dataclass(frozen=True)
class DockerSettings(ContainerSettings, LocalNodeSettings):
    """Settings of one Docker engine.

    `warm_containers`: how many containers wait for sessions, at most.
    """

    warm_containers: int = 0


@dataclass(frozen=True)
class RemoteSettings:
    """Settings of the engines of all sites elsewhere.

    `folder`: keeps the last known state of each, and the commands that wait for its link. `gateway_port`: loopback port
    of the workload gateway (0: workloads there reach neither hub nor control plane). `ports`: loopback ports by which
    workloads address these. `registry`: the image registry of the control plane; empty without one. `reserved`: the
    installation's own ports.
    """

    folder: Path
    gateway_port: int = 0
    ports: tuple[int, ...] = ()
    registry: str = ""
    reserved: frozenset[int] = frozenset()


@dataclass(frozen=True)
class KubernetesStorageSettings:
    """Settings of the claims of a Kubernetes site.

    `homes_claim`: the claim with all homes, for `shared-claim`. `home_mib`: size of a home without a quota of its own.
    `storage_class`, `volume_class`: of homes, and of volumes; empty: the cluster's default. `access`: access mode of
    homes. `volume_mib`: size of a volume that names none. `files_image`: of the Pods through which the control plane
    reads and writes claims, with this program in it; empty: it does not. `folders`: (path, claim); this path of folder
    volumes, and all below it, is in this claim of the tenant's namespace.
    """

    homes_claim: str = "commonage-homes"
    home_mib: int = 10 * 1024
    storage_class: str = ""
    volume_class: str = ""
    access: Literal["ReadWriteOnce", "ReadWriteMany", "ReadWriteOncePod"] = "ReadWriteMany"
    volume_mib: int = 10 * 1024
    files_image: str = ""
    folders: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class KeptNamespaceSettings:
    """The limits of the namespaces that Commonage keeps; each field is as in `KubernetesPolicySettings`."""

    security_level: Literal["restricted", "baseline", "privileged"] = "restricted"
    internet: bool = True
    open_networks: tuple[str, ...] = ()
    node_networks: tuple[str, ...] = ()
    gpu_resources: tuple[str, ...] = ()


@dataclass(frozen=True)
class KubernetesSettings(EngineSettings):
    """Settings of one Kubernetes engine.

    `kubeconfig` None: the Pod's service account, or KUBECONFIG, or ~/.kube/config; `context`: of the kubeconfig.
    `namespaces`: one for all Pods (`namespace`), or one for each tenant (`namespace`-TENANT), which an admin makes
    (`tenant`) or Commonage makes and keeps (`kept`, with `policies`). `homes`: `empty` (gone with the Pod),
    `host-path`, folders in `homes_path`, which every node sees, `claim`, a claim for each user in the namespace, or
    `shared-claim`, folders in one claim of the namespace. `agents`: NAMESPACE/NAME of the ServiceAccount and the
    ConfigMap of the node agents; empty: no agents. `user`: the number of the user that programs run as; 0 is root,
    which the Pod Security level `restricted` refuses. `address`: by which Pods reach the ports of `reaches` (None: they
    do not). `priority_class`: of all Pods; one whose preemption policy is `Never`. `lost_after_s`: how long a node may
    not answer before it is given up. `room_timeout_s`: how long an attempt that the cluster does not start waits before
    it returns to the scheduler. `prepare_timeout_s`: how long a node may prepare volumes, device claims and network of
    a Pod, images excluded. `grace_s`: seconds between SIGTERM and SIGKILL when the cluster itself ends a Pod.
    `tolerations`: of all Pods, as in their spec; nodes with other taints take no work. `queue`: the LocalQueue of Kueue
    that Pods go to; empty: that of the namespace's label, if any. `placeholder_class`: the priority class of the
    placeholders of node pools. `reach`: the control plane connects to ports of Pods at the Pods' addresses, or through
    the API server.
    """

    kubeconfig: Path | None = None
    context: str = ""
    namespace: str = "commonage"
    namespaces: Literal["single", "tenant", "kept"] = "single"
    homes: Literal["empty", "host-path", "claim", "shared-claim"] = "empty"
    homes_path: str = ""
    user: int = 1000
    pull: Literal["missing", "never"] = "missing"
    pull_secrets: tuple[str, ...] = ()
    runtime_class: str = ""
    priority_class: str = ""
    mounts: tuple[Mount, ...] = ()
    address: str | None = None
    reaches: tuple[int, ...] = ()
    gateway_port: int = 0
    lost_after_s: float = 60.0
    room_timeout_s: float = 60.0
    prepare_timeout_s: float = 600.0
    grace_s: int = 10
    tolerations: tuple[Mapping[str, str], ...] = ()
    queue: str = ""
    placeholder_class: str = ""
    agents: str = ""
    reach: Literal["pod-ip", "port-forward"] = "pod-ip"
    storage: KubernetesStorageSettings = KubernetesStorageSettings()
    policies: KeptNamespaceSettings = KeptNamespaceSettings()


@dataclass(frozen=True)
class SwarmSettings(ContainerSettings):
    """Settings of one Swarm engine; Swarm reserves the CPUs if they are a limit.

    `address`: by which containers reach the ports of `reaches` (None: this node's address in the Swarm). `encrypted`:
    the traffic of the tenants' networks between nodes is encrypted. `ports`: first and last port of the nodes for
    sessions and services; `sources`: addresses or networks that may connect to them, in addition to this node.
    `without_agents`: nodes without an agent take work too; then root on any node can redirect mounts there.
    `room_timeout_s`: how long an attempt that Swarm finds no room for waits before it returns to the scheduler.
    `grace_s`: seconds between SIGTERM and SIGKILL when Swarm itself ends a container.
    """

    networks: str = "10.214.0.0/16"
    address: str | None = None
    encrypted: bool = False
    ports: tuple[int, int] = (20000, 29999)
    sources: tuple[str, ...] = ()
    without_agents: bool = False
    room_timeout_s: float = 60.0
    grace_s: int = 10


@dataclass(frozen=True)
class KubernetesPolicySettings:
    """Settings of the namespaces and policies of a Kubernetes site.

    `namespace`, `service_account`: of the control plane; empty if it has none, as outside the cluster, where it may
    have an `address`. `prefix`: of the tenants' namespaces, `PREFIX-TENANT`; `single`: all tenants share the namespace
    of this name, then without quotas of the cluster. `root_tenants`: those whose pods may run as root, in a user
    namespace. `security_level`: that Pod Security enforces; empty: the strictest that `root_tenants` and
    `host_folders` allow. `registries`: prefixes of the images that may run; empty: any. `host_folders`: folders of the
    nodes that pods may mount. `seccomp`: a profile on the nodes; empty: the runtime's. `internet`: pods reach addresses
    outside `closed_networks`. `node_networks`: the nodes' addresses, never reached. `open_networks`: networks within
    `closed_networks` that pods reach, for example a license server. `platform_ports`: ports of proxy and workload
    gateway. `gpu_resources`: extended resources of which each means a whole GPU.
    """

    installation: str
    namespace: str = "commonage"
    service_account: str = "commonage"
    prefix: str = "commonage"
    single: str = ""
    address: str = ""
    security_level: str = ""
    root_tenants: tuple[str, ...] = ()
    registries: tuple[str, ...] = ()
    host_folders: tuple[str, ...] = ()
    seccomp: str = ""
    internet: bool = True
    closed_networks: tuple[str, ...] = (
        "10.0.0.0/8",
        "100.64.0.0/10",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.168.0.0/16",
        "fc00::/7",
        "fe80::/10",
    )
    node_networks: tuple[str, ...] = ()
    open_networks: tuple[str, ...] = ()
    platform_ports: tuple[int, ...] = (8000, 8084)
    gpu_resources: tuple[str, ...] = ()

    @property
    def user(self) -> str:
        """The control plane's name in the cluster."""
        return f"system:serviceaccount:{self.namespace}:{self.service_account}"
