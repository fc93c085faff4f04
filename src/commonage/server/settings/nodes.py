"""The settings of this node and of the engine, of how other nodes join, and of node pools in clouds."""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, ValidationInfo

from commonage.clouds import Rental, driver_of
from commonage.domain.resources import NodePool
from commonage.engines.kubernetes.placement.tolerations import read_toleration
from commonage.engines.kubernetes.storage.claims import CLAIM_NAME
from commonage.gpu.detect import check_wanted
from commonage.gpu.slots import parse_slots
from commonage.resources.fields import (
    UNIQUE_NAMES,
    DiskMib,
    Labels,
    Mib,
    Milli,
    Takes,
    check_domain,
)
from commonage.resources.workloads import KUBERNETES, NodePoolEntry
from commonage.server.settings.fields import (
    IpAddress,
    Mounts,
    Names,
    Networks,
    OptionalPath,
    OptionalText,
    Port,
    PortOrFree,
    PrivateRange,
    host_or_address,
    setting,
    split_list,
)
from commonage.wire.hub import docs_page


def _gpus(value: str) -> str:
    return check_domain(lambda: check_wanted(value))


def _library(value: Path | None) -> Path | None:
    if value is not None and not value.is_absolute():
        raise ValueError(f"{value} is not an absolute path like /usr/local/vgpu/libvgpu.so")
    return value


def _slots(value: str) -> str:
    check_domain(lambda: parse_slots(value))
    return value


def _source_ranges(value: tuple[str, ...]) -> tuple[str, ...]:
    for one in value:
        try:
            ipaddress.ip_network(one)
        except ValueError as error:
            raise ValueError(f"{one} is not like 10.0.0.7 or 10.0.0.0/24: {error}") from None
    return value


class NodeSettings(BaseModel):
    node_name: OptionalText = setting(None, "Name of this node. Default: the host name.", "a name")
    node_labels: Labels = setting(
        {}, "Labels of this node, such as `zone=basement`. Users select nodes by label with `--on`."
    )
    cpus: Milli | None = setting(
        None, "Cores that workloads may use. Default: all cores. Set it to keep cores for other programs."
    )
    memory: Mib | None = setting(
        None, "Memory that workloads may use. Default: all memory. Set it to keep memory for other programs."
    )
    cpu_hold: Literal["share", "quota"] = setting(
        "share",
        "How the cores of a request are enforced. `share`: a workload gets its request when cores are short and may "
        "use idle cores. `quota`: it never gets more than its request, so that run times are comparable.",
    )
    gpus: Annotated[str, AfterValidator(_gpus)] = setting(
        "auto",
        "GPUs that workloads may use. `auto` takes the real GPUs, or simulates one GPU if the node has none.",
        "auto, nvml, amd, none, or simulated:2x24GiB",
        flag="--gpus",
    )
    gpu_isolation: Literal["auto", "driver-limit", "mig", "mps", "preload", "cooperative"] = setting(
        "auto",
        "Isolation level of GPU shares. `auto` takes the strongest level that holds on the GPU. If a level is named "
        f"and does not hold on a GPU, that GPU takes no workloads ({docs_page('concepts/gpu-sharing')}).",
    )
    gpu_preload: Annotated[OptionalPath, AfterValidator(_library)] = setting(
        None,
        "Interposer with the interface of HAMi-core, which containers load to enforce GPU shares "
        f"({docs_page('concepts/gpu-sharing')}). Nodes that join use the same path. Default: none, and no `preload`.",
        "the path of libvgpu.so",
    )
    gpu_slots: Annotated[str, BeforeValidator(str), AfterValidator(_slots)] = setting(
        "",
        "Number of equal slots of each GPU, for all GPUs or by model. Default: shares of any size.",
        "a number like 3, or A100=4,T4=2",
    )
    warm_sessions: bool = setting(
        True,
        "Start sessions from a waiting process that has loaded the libraries. Faster, but needs about 130 MiB of "
        "memory for each environment.",
    )


class EngineSettings(BaseModel):
    engine: Literal["process", "docker", "swarm", "kubernetes"] = setting(
        "process",
        "Where workloads run: processes of this machine, containers of its Docker daemon, services of its Swarm, or "
        "Pods of a Kubernetes cluster.",
        flag="--engine",
    )
    docker_url: str = setting("unix:///var/run/docker.sock", "Socket of this machine's Docker daemon.", "unix:///…")
    docker_image: OptionalText = setting(
        None,
        "Image of the built-in environments. It needs a shell, and for sessions `jupyterhub-singleuser`.",
        "the name of an image",
    )
    docker_pull: Literal["missing", "never"] = setting(
        "missing", "Whether an image that is missing on a node is pulled. Use `never` without a network."
    )
    docker_mounts: Mounts = setting(
        (),
        "Folders of this machine that are mounted in every container, read-only unless `:rw` is added. `{user}` and "
        "`{tenant}` are replaced by the names of the workload's user and tenant.",
    )
    warm_containers: Annotated[int, Field(ge=0, le=1000), Takes("a number from 0 to 1000")] = setting(
        2,
        "Containers of the engine `docker` that wait, with the libraries of a session loaded, for the next sessions "
        f"without a GPU. Faster, but each takes about 60 MiB of memory ({docs_page('operate/docker')}).",
    )
    docker_networks: PrivateRange = setting(
        "10.213.0.0/16",
        "Address range for the networks of the tenants. Change it if your site already uses this range.",
    )
    shared_dir: OptionalPath = setting(
        None,
        "Folder that every node of a Swarm has under this path, for workspaces and logs. Default: the data folder; "
        f"then only the node of the control plane takes workloads ({docs_page('operate/swarm')}).",
        "a folder",
    )
    swarm_without_agents: bool = setting(
        False,
        "Whether Swarm nodes without an agent take workloads. If true, root of any node of the Swarm can redirect the "
        f"folders of workloads on such a node ({docs_page('operate/swarm')}).",
    )
    swarm_address: OptionalText = setting(
        None,
        "Address at which containers on all nodes reach the hub. Default: this machine's address in the Swarm.",
        "an IP address of this machine",
    )
    swarm_networks: PrivateRange = setting(
        "10.214.0.0/16",
        "Address range for the overlay networks of the tenants in a Swarm. Change it if your site already uses it.",
        "a private range like 10.214.0.0/16",
    )
    swarm_encrypted: bool = setting(
        False, "Whether the overlay networks of the tenants are encrypted between nodes. This costs some bandwidth."
    )
    port_source_ranges: Annotated[
        tuple[str, ...],
        BeforeValidator(split_list),
        AfterValidator(_source_ranges),
        Takes("addresses or networks like 10.0.0.0/24, separated by commas"),
    ] = setting(
        (),
        "Addresses that may connect to the ports of sessions and services on Swarm nodes, in addition to this "
        "machine's own addresses. Add a network from which users call services directly by plain HTTP, or this "
        "machine's address behind NAT.",
    )


def _tolerations(value: tuple[str, ...]) -> tuple[str, ...]:
    for one in value:
        read_toleration(one)
    return value


def _folder_claims(value: tuple[str, ...]) -> tuple[str, ...]:
    for one in value:
        folder, _, claim = one.partition("=")
        if not (folder.startswith("/") and ".." not in folder.split("/") and CLAIM_NAME.fullmatch(claim)):
            raise ValueError(f"{one} is not like /data=datasets: an absolute folder and the name of a claim")
    return value


def _namespaced_name(value: str) -> str:
    namespace, slash, name = value.partition("/")
    if value and not (namespace and slash and name and "/" not in name):
        raise ValueError(f"{value} is not like NAMESPACE/NAME")
    return value


_LONGEST_PREFIX = 30  # a namespace has 63 characters, and a tenant's name may become a digest of 32


def _namespaces(value: str, info: ValidationInfo) -> str:
    prefix = info.data.get("kubernetes_namespace", "")
    if value != "single" and len(prefix) > _LONGEST_PREFIX:
        raise ValueError(f"kubernetes_namespace has {len(prefix)} characters; here it may have {_LONGEST_PREFIX}")
    return value


class KubernetesSettings(BaseModel):
    kubernetes_kubeconfig: OptionalPath = setting(
        None,
        "File with the address of the cluster and the credentials. Default: the service account of the Pod, or the "
        f"file of KUBECONFIG, or ~/.kube/config ({docs_page('operate/kubernetes')}).",
        "a file",
    )
    kubernetes_context: OptionalText = setting(
        None, "Context of the kubeconfig. Default: its current one.", "the name of a context"
    )
    kubernetes_namespace: str = setting(
        "commonage", "Namespace of the Pods, or the beginning of the tenants' namespaces.", "the name of a namespace"
    )
    kubernetes_namespaces: Annotated[Literal["single", "tenant", "kept"], AfterValidator(_namespaces)] = setting(
        "single",
        "Namespaces of the Pods. `single`: one namespace for all. `tenant`: NAMESPACE-TENANT for each tenant, which "
        "an admin creates. `kept`: the same, but Commonage creates them and keeps their quota and network policies "
        f"up to date. This needs more rights in the cluster ({docs_page('operate/kubernetes-policies')}).",
    )
    kubernetes_pod_security: Literal["restricted", "baseline", "privileged"] = setting(
        "restricted",
        "Pod Security level of namespaces that are kept. `kubernetes_user = 0` needs `baseline`. Homes and mounts in "
        "folders of the nodes need `privileged`; then only the admission policies protect the nodes.",
    )
    kubernetes_internet: bool = setting(
        True, "Whether Pods in namespaces that are kept reach addresses outside private networks."
    )
    kubernetes_open_networks: Networks = setting(
        (), "Private networks that Pods in namespaces that are kept reach, for example a license server."
    )
    kubernetes_node_networks: Networks = setting(
        (), "Addresses of the nodes, which Pods in namespaces that are kept never reach, even in an open network."
    )
    kubernetes_gpu_quota: Names = setting(
        (),
        "Extended resources that count whole GPUs, such as nvidia.com/gpu. The ResourceQuota of a namespace that is "
        "kept limits them, too.",
    )
    kubernetes_homes: Literal["empty", "host-path", "claim", "shared-claim"] = setting(
        "empty",
        "Storage of homes. `empty`: storage of each Pod, deleted when it ends. `host-path`: folders in "
        "`kubernetes_homes_path`, which every node has under this path. `claim`: a PersistentVolumeClaim for each "
        "user, which the engine creates and never deletes. `shared-claim`: folders in the claim "
        f"`kubernetes_homes_claim` of each namespace ({docs_page('operate/kubernetes-storage')}).",
    )
    kubernetes_homes_path: OptionalText = setting(
        None, "Folder of the homes on every node, for `kubernetes_homes = host-path`.", "a folder"
    )
    kubernetes_homes_claim: str = setting(
        "commonage-homes",
        "Claim with all homes, in each namespace of Pods, for `kubernetes_homes = shared-claim`.",
        "the name of a claim",
    )
    kubernetes_home_size: DiskMib = setting(
        10 * 1024,
        "Size of the claim of a home, for tenants without a quota for each user's storage.",
        "an amount of disk space like 10GiB",
    )
    kubernetes_storage_class: str = setting(
        "", "StorageClass of homes that are claims. Default: the cluster's.", "the name of a StorageClass"
    )
    kubernetes_access_mode: Literal["ReadWriteOnce", "ReadWriteMany", "ReadWriteOncePod"] = setting(
        "ReadWriteMany",
        "Access mode of homes that are claims. With ReadWriteOnce all Pods of a user must be on one node.",
    )
    kubernetes_volume_class: str = setting(
        "", "StorageClass of volumes that are claims. Default: the cluster's.", "the name of a StorageClass"
    )
    kubernetes_folder_claims: Annotated[
        tuple[str, ...],
        BeforeValidator(split_list),
        AfterValidator(_folder_claims),
        Takes("/folder=CLAIM, separated by commas"),
    ] = setting(
        (),
        "Claims, in each namespace of Pods, that contain these folders. Volumes of these folders, and of folders "
        "below them, are mounted from the claim, not from the node.",
    )
    kubernetes_files_image: str = setting(
        "",
        "Image with this program, for the Pods through which the control plane reads and writes claims: for the page "
        "Data and for materials. The chart sets its own. Default: none, and claims support neither "
        f"({docs_page('operate/kubernetes-storage')}).",
        "the name of an image",
    )
    kubernetes_user: Annotated[int, Field(ge=0, le=65534)] = setting(
        1000,
        "Number of the user that programs in Pods run as. 0 is root, which Pod Security `restricted` refuses.",
        "a number",
    )
    kubernetes_priority_class: OptionalText = setting(
        None,
        "PriorityClass of the Pods. Its preemption policy must be Never: then Kubernetes ends no other Pod for them.",
        "the name of a PriorityClass",
    )
    kubernetes_tolerations: Annotated[
        tuple[str, ...],
        BeforeValidator(split_list),
        AfterValidator(_tolerations),
        Takes("taints like KEY, KEY=VALUE or KEY=VALUE:NoSchedule, separated by commas"),
    ] = setting((), "Taints of nodes that the Pods tolerate. Nodes with other taints take no work.")
    kubernetes_queue: str = setting(
        "",
        "LocalQueue of Kueue that the Pods go to, in each of their namespaces. Default: the one that the namespace's "
        "label `kueue.x-k8s.io/queue-name` names, if any.",
        "a name",
    )
    kubernetes_runtime_class: OptionalText = setting(None, "RuntimeClass of the Pods.", "the name of a RuntimeClass")
    kubernetes_pull_secrets: Names = setting((), "Secrets in the namespace with accounts of image registries.")
    kubernetes_address: OptionalText = setting(
        None,
        "Address of this machine at which Pods reach the hub and the API, or the name of a Service that leads to it. "
        "Default: they reach neither.",
        "an IP address of this machine, or a name",
    )
    kubernetes_reach: Literal["pod-ip", "port-forward"] = setting(
        "pod-ip",
        "How sessions and services are reached: at the Pods' addresses; or by port-forward through the API server, for "
        f"a machine without a route to the Pods ({docs_page('operate/kubernetes')}).",
    )
    kubernetes_placeholder_class: OptionalText = setting(
        None,
        "PriorityClass of the placeholders of node pools, with a value below that of all other Pods "
        f"({docs_page('operate/kubernetes-node-pools')}).",
        "the name of a PriorityClass",
    )
    kubernetes_agents: Annotated[str, AfterValidator(_namespaced_name)] = setting(
        "",
        "Namespace and name that the ServiceAccount of the node agents and their ConfigMap have. The server writes the "
        "certificate of its own authority into the ConfigMap. Default: there are no agents "
        f"({docs_page('operate/kubernetes-agent')}).",
        "NAMESPACE/NAME",
    )
    kubernetes_placement_timeout: Annotated[int, Field(ge=5, le=86_400)] = setting(
        60,
        "Seconds that Kubernetes has to bind a Pod to its node. After that the workload queues again, and the node is "
        "avoided for a while.",
        "a number of seconds",
    )
    kubernetes_prepare_timeout: Annotated[int, Field(ge=5, le=86_400)] = setting(
        600,
        "Seconds that a node has to mount the volumes, prepare the device claims and set up the network of a Pod. Time "
        "to pull images does not count. After that the workload queues again, and the node is avoided for a while.",
        "a number of seconds",
    )
    kubernetes_lost_after: Annotated[int, Field(ge=10, le=86_400)] = setting(
        60,
        "Seconds after which a node that does not answer is given up. Its workloads start elsewhere only once it is "
        "certain that they do not run.",
        "a number of seconds",
    )


def _endpoints(value: tuple[str, ...]) -> tuple[str, ...]:
    for one in value:
        address, _, port = one.rpartition(":")
        try:
            ipaddress.IPv4Address(address)
        except ValueError:
            raise ValueError(f"{one} is not like 10.0.0.5:3141") from None
        if not (port.isascii() and port.isdigit() and 0 < int(port) <= 65_535):
            raise ValueError(f"{one} is not like 10.0.0.5:3141")
    return value


class JoinSettings(BaseModel):
    site_address: Annotated[OptionalText, AfterValidator(host_or_address)] = setting(
        None,
        "Name or address at which other nodes reach this one. Nodes can join only if it is set "
        f"({docs_page('operate/join-nodes')}).",
        "a host name or an IP address",
    )
    joining_bind: IpAddress = setting("0.0.0.0", "Address at which the join listener accepts machines that join.")
    joining_port: Port = setting(
        8445, "Port of the join listener. It uses TLS with a certificate of the server's own authority."
    )
    agents_bind: IpAddress = setting(
        "0.0.0.0",
        "Address at which the agents of nodes connect. Agents need a certificate of the server's own authority.",
    )
    agents_port: PortOrFree = setting(8444, "Port at which the agents of nodes connect.")
    sites_bind: IpAddress = setting(
        "0.0.0.0",
        "Address at which sites elsewhere connect, if `site_address` is set. They need a certificate of the server's "
        "own authority.",
    )
    sites_port: PortOrFree = setting(8446, "Port at which sites elsewhere connect.")
    containers_reach: Annotated[
        tuple[str, ...],
        BeforeValidator(split_list),
        AfterValidator(_endpoints),
        Takes("addresses with ports like 10.0.0.5:3141, separated by commas"),
    ] = setting(
        (),
        "Addresses in the site's networks that containers on Swarm nodes may reach in addition to the hub, such as a "
        f"package mirror or a database ({docs_page('operate/agents')}).",
    )


def _known_provider(pools: tuple[NodePoolEntry, ...]) -> tuple[NodePoolEntry, ...]:
    for pool in pools:
        if pool.provider != KUBERNETES:
            check_domain(lambda pool=pool: driver_of(rental_of(pool.node_pool())))  # type: ignore[misc]  # a default binds it
    return pools


def rental_of(pool: NodePool) -> Rental:
    """The request to the cloud. Credentials come only from COMMONAGE_NODE_POOL_<NAME>_KEY and …_SECRET."""
    prefix = f"COMMONAGE_NODE_POOL_{pool.policy.name.upper().replace('-', '_')}"
    key, secret = os.environ.get(f"{prefix}_KEY", ""), os.environ.get(f"{prefix}_SECRET", "")
    account = (key, secret, pool.location)
    return Rental(pool.provider, pool.size, pool.image, *account, pool.arguments, pool.options)


class NodePoolSettings(BaseModel):
    node_pools: Annotated[tuple[NodePoolEntry, ...], UNIQUE_NAMES, AfterValidator(_known_provider)] = setting(
        (),
        "Node pools: cloud nodes that are added while workloads wait for them and removed when they are idle "
        f"({docs_page('operate/node-pools')}).",
    )
