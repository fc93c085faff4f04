"""Descriptions for the filter before the Docker socket: what the engines send, and what is a little different."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from functools import reduce
from types import MappingProxyType
from typing import Any

from tests.unit.engines.containers.test_program import request

from commonage.domain.nodes import Allocation, Share
from commonage.domain.volumes import Mount as Volume
from commonage.domain.volumes import VolumeKind
from commonage.domain.workloads import Kind
from commonage.engines.containers.daemon.descriptions import AttemptFolders, network_name
from commonage.engines.containers.files.prepare import files_of
from commonage.engines.containers.program import ContainerNetwork, program_of
from commonage.engines.docker import translate as docker
from commonage.engines.settings import DockerSettings, Mount, SwarmSettings
from commonage.engines.swarm import translate as swarm
from commonage.engines.swarm.swarm_files import Delivery
from commonage.files import preload

Json = dict[str, Any]
INSTALLATION = "0123456789abcdef"
NETWORK = network_name(INSTALLATION, "lab")
DATA, SHARED, AGENT = "/var/lib/commonage", "/srv/commonage", "/var/lib/commonage-agent"
CREATE = "POST /v1.41/containers/create?name=commonage-0a1b2c3d4e5f6-1"
SERVICE = "POST /v1.41/services/create"
OURS, ANOTHERS = "a" * 64, "b" * 64
"""The ids of an object of Commonage and of one of another owner, of any kind."""
CONFIG, SECRET = "commonage-configs", "commonage-secrets"
"""The names of the config and the secret with the id OURS."""

VOLUMES = (
    Volume("data", VolumeKind.FOLDER, "/srv/datasets", "/volumes/data", writable=False),
    Volume("projects", VolumeKind.FOLDER, "/srv/projects/lab/ada~0f", "/volumes/projects", writable=True),
    Volume("more", VolumeKind.FOLDER, f"{DATA}/volumes/x", "/volumes/x", writable=True),
    Volume("results", VolumeKind.DOCKER, "results.lab.0f", "/data", writable=True, size_mib=10),
    Volume("scratch", VolumeKind.SCRATCH, "", "/volumes/scratch", writable=True, size_mib=5),
    Volume("quick", VolumeKind.SCRATCH, "", "/volumes/quick", writable=True, size_mib=7, memory=True),
)
DEVICES = (Share("GPU-a-1", 0, "A100", 1024, 500, False, 40960, False),)


def container(
    gpus: Any = "request",
    *,
    quota: bool = True,
    cpu_hold: Any = "weight",
    devices: Mapping[str, str] = MappingProxyType({}),
    **changes: object,
) -> Json:
    """The description that the Docker engine sends for a start request with all fields set."""
    folders = AttemptFolders(
        f"{DATA}/workspaces/ada~0f", f"{DATA}/docker/runs/w-1/control", f"{DATA}/docker/runs/w-1/log"
    )
    context = docker.ContainerContext(INSTALLATION, NETWORK, folders, f"{DATA}/docker/injected", "0:0", gpus, quota)
    stop = request(allocation=Allocation("w-1", "local", "here", 1500, 64, DEVICES, 0.0), mounts=VOLUMES, **changes)
    program = program_of(stop, ContainerNetwork("10.213.0.1", frozenset()), {}, devices)
    settings = DockerSettings(cpu_hold=cpu_hold, mounts=(Mount("/srv/datasets", "/more"),))
    return docker.container_config(stop, program, context, "the entry", settings)


def service(*, port: int | None = 31000, devices: Mapping[str, str] = MappingProxyType({}), **settings: Any) -> Json:
    mounted = "/run/commonage/attempts/w-1"
    context = swarm.ContainerContext(
        INSTALLATION,
        NETWORK,
        AttemptFolders(f"{mounted}/workspace", f"{mounted}/control", f"{mounted}/log"),
        Delivery("a" * 64, "commonage-configs"),
        (0, 0),
        "abc123",
        Delivery("a" * 64, "commonage-secrets"),
        declares_vram=True,
        port=port,
    )
    stop = request(allocation=Allocation("w-1", "local", "here", 1500, 64, DEVICES, 0.0), mounts=VOLUMES)
    program = program_of(stop, ContainerNetwork("10.98.0.1", frozenset()), {}, devices)
    spec = swarm.service_spec(stop, program, context, SwarmSettings(**settings))
    return {"Name": swarm.service_names(stop)[0], **spec}


def but(made: Json, place: str, value: object) -> Json:
    """A copy with another value at `a.b.0.c`; the value `...` deletes the key."""
    made = copy.deepcopy(made)
    *way, last = [int(one) if one.isdecimal() else one for one in place.split(".")]
    inner: Any = reduce(lambda found, key: found[key], way, made)
    if value is ...:
        del inner[last]
    elif isinstance(inner, list):
        inner.insert(int(last), value)
    else:
        inner[last] = value
    return made


NETWORKS = (
    docker.network_config(INSTALLATION, "lab", "10.213.2.0/23"),
    swarm.network_config(INSTALLATION, "lab", "10.98.4.0/22", encrypted=True),
    swarm.network_config(INSTALLATION, "lab", "10.98.4.0/22", encrypted=False),
)
SPEC: Json = {
    "Name": "default",
    "Labels": {},
    "Orchestration": {"TaskHistoryRetentionLimit": 5},
    "Raft": {
        "SnapshotInterval": 10000,
        "KeepOldSnapshots": 0,
        "LogEntriesForSlowFollowers": 500,
        "ElectionTick": 10,
        "HeartbeatTick": 1,
    },
    "Dispatcher": {"HeartbeatPeriod": 2000000000},
    "CAConfig": {"NodeCertExpiry": 7776000000000000},
    "TaskDefaults": {},
    "EncryptionConfig": {"AutoLockManagers": False},
}
UPDATE = "POST /v1.41/swarm/update?version=12&rotateWorkerToken=true"
NETWORK_CREATE = "POST /v1.41/networks/create"
VOLUME_CREATE = "POST /v1.41/volumes/create"
CONFIG_CREATE = "POST /v1.41/configs/create"
SECRET_CREATE = "POST /v1.50/secrets/create"
EXEC = "POST /v1.41/containers/commonage-0a1b2c3d4e5f6-1/exec"
COMMAND: Json = {
    "AttachStdin": True,
    "AttachStdout": True,
    "AttachStderr": True,
    "Tty": False,
    "Env": ["A=b"],
    "Cmd": ["sh", "-c", "id"],
}
H, C, T = "HostConfig", "TaskTemplate.ContainerSpec", "TaskTemplate"


def bound(source: str, **more: object) -> Json:
    return {
        "Type": "bind",
        "Source": source,
        "Target": "/there",
        "ReadOnly": False,
        "BindOptions": {"Propagation": "rprivate"},
        **more,
    }


ATTEMPT = "0a1b2c3d4e5f6-1"
LABELS = {"commonage.installation": INSTALLATION}
STORED: Json = {"Name": "commonage-entry-0a1b2c", "Labels": LABELS, "Data": "IyEvYmluL3NoCg=="}
ENTRY: Json = {
    "File": {"Name": "/run/commonage/entry", "UID": "0", "GID": "0", "Mode": 0o444},
    "ConfigID": OURS,
    "ConfigName": CONFIG,
}
INJECTED = [
    {**ENTRY, "File": {**ENTRY["File"], "Name": place}}
    for _, place, _ in files_of(
        request(kind=Kind.SESSION, allocation=Allocation("w-1", "local", "here", 1500, 64, DEVICES, 0.0))
    )
]
"""All files of Commonage that a session with a share of a GPU reads."""
PASSWORDS: Json = {
    "File": {"Name": "passwords.json", "UID": "1000", "GID": "1000", "Mode": 0o400},
    "SecretID": OURS,
    "SecretName": SECRET,
}


def service_with_files() -> Json:
    """A service with a config, a secret, and folders that the agent of its node has mounted."""
    made = but(but(service(), f"{C}.Configs", [ENTRY, *INJECTED]), f"{C}.Secrets", [PASSWORDS])
    mounts = [
        bound(f"/run/commonage/attempts/{ATTEMPT}/{name}") for name in ("workspace", "control", "log", "volume-0")
    ]
    return but(made, f"{C}.Mounts", mounts)


WILD = (
    'SAYS="Privileged": true, "Binds": ["/:/host"]',
    "\\u0041",
    "ä\u017f",
    '{"\u017f": 1}',
    "\\",
    '"',
    "\x1f\n",
    "\U0001f600",
)

MEANT: list[tuple[str, str, Json]] = [
    ("a container", CREATE, container()),
    ("an interposer", CREATE, container(devices={preload.VARIABLE: f"{DATA}/gpus/preload"})),
    ("an interposer of a node", SERVICE, service(devices={preload.VARIABLE: f"{AGENT}/gpus/preload"})),
    ("a session", CREATE, container(kind=Kind.SESSION)),
    ("by CDI", CREATE, container("cdi", quota=False, cpu_hold="quota")),
    (
        "a user's own words",
        CREATE,
        container(
            command=WILD, variables=tuple((f"V{i}", one) for i, one in enumerate(WILD)), name=WILD[0], owner=WILD[2]
        ),
    ),
    ("a service", SERVICE, service()),
    ("a service with a config and a secret", SERVICE, service_with_files()),
    ("a config", CONFIG_CREATE, STORED),
    ("a secret", SECRET_CREATE, STORED),
    ("a service without a port", SERVICE, service(port=None, cpu_hold="quota")),
    *((f"a network {number}", NETWORK_CREATE, one) for number, one in enumerate(NETWORKS)),
    ("whether sizes hold", VOLUME_CREATE, {"Name": "commonage-probe-0a1b2c3d", "DriverOpts": {"size": "1048576"}}),
    ("another token", UPDATE, SPEC),
    ("a command", EXEC, COMMAND),
]


SOURCES = [
    "/",
    "/etc",
    "/var/run/docker.sock",
    DATA,
    f"{DATA}/",
    f"{DATA}/secrets",
    f"{DATA}/workspaces",
    f"{DATA}/workspaces/",
    f"{DATA}/workspaces/.",
    f"{DATA}/workspaces/..",
    f"{DATA}/workspaces/../secrets",
    f"{DATA}/workspaces/ada/../../secrets",
    # Files below a folder that users can write to may be links.
    f"{DATA}/workspaces/ada/link",
    f"{DATA}/workspaces/ada/link/etc",
    f"{DATA}/workspaces//ada",
    f"{DATA}/workspaces/ada/",
    f"{DATA}/workspaces/ada//",
    f"{DATA}/docker/injected",
    f"{DATA}/docker/injected/python/sitecustomize.py",
    f"{DATA}/docker/runs/w-1",
    f"{DATA}/docker/runs/w-1/control/link",
    f"{DATA}/docker/runs/w-1/request.json",
    f"{DATA}/docker/runs/../../secrets/control",
    f"{DATA}/docker",
    f"{DATA}/gpus",
    f"{DATA}/gpus/preload",
    f"{DATA}/gpus/preload/other.so",
    f"{DATA}/gpus/holds/libvgpu.so",
    AGENT,
    f"{AGENT}/gpus/preload",
    f"{AGENT}/gpus/preload/other.so",
    f"{AGENT}/gpus/preload/../preload/libvgpu.so",
    f"{DATA}/volumes",
    f"{DATA}/volumes/x/link",
    f"{DATA}x/workspaces/ada",
    f"{SHARED}",
    f"{SHARED}/swarm",
    f"{SHARED}/swarm/attempts/w-1",
    f"{SHARED}/workspaces/ada/link",
    "/srv/datasets/link",
    "/srv/datasets/",
    "/srv/datasetsx",
    "/srv/projects",
    "/srv/projects/lab",
    "/srv/projects/lab/ada/link",
    "/srv/projects/lab/..",
    "/srv/projects/../x",
    "srv/datasets",
    "",
    "commonage-x",
    f"x{DATA}/workspaces/ada",
    "\\srv\\datasets",
    f"{DATA}/workspaces/a\nb",
    f"{DATA}/workspaces/a\u0000",
    f'{DATA}/workspaces/\u00e9"',
    "/run/commonage",
    "/run/commonage/attempts",
    f"/run/commonage/attempts/{ATTEMPT}",
    f"/run/commonage/attempts/{ATTEMPT}/",
    f"/run/commonage/attempts/{ATTEMPT}/other",
    f"/run/commonage/attempts/{ATTEMPT}/volume-",
    f"/run/commonage/attempts/{ATTEMPT}/volume-0x",
    f"/run/commonage/attempts/{ATTEMPT}/control/link",
    f"/run/commonage/attempts/{ATTEMPT}/../control",
    f"/run/commonage/attempts//{ATTEMPT}/control",
    "/run/commonage/attempts/../control",
    "/run/commonage/attempts/*/control",
    f"/run/commonage/other/{ATTEMPT}/control",
    f"/run/../etc/commonage/attempts/{ATTEMPT}/control",
]

CONTAINERS: list[tuple[str, str, object]] = [
    ("privileged", f"{H}.Privileged", True),
    ("privileged in another case", f"{H}.privileged", True),
    ("privileged by a letter that is taken for i", f"{H}.Pr\u0131vileged", True),
    ("the network of the node", f"{H}.NetworkMode", "host"),
    ("no network said", f"{H}.NetworkMode", ...),
    ("the default network", f"{H}.NetworkMode", "default"),
    ("the network of a container", f"{H}.NetworkMode", f"container:{ANOTHERS}"),
    ("another endpoint", "NetworkingConfig.EndpointsConfig.bridge", {}),
    (
        "an address of another",
        f"NetworkingConfig.EndpointsConfig.{NETWORK}",
        {"IPAMConfig": {"IPv4Address": "10.213.2.1"}},
    ),
    ("an alias", f"NetworkingConfig.EndpointsConfig.{NETWORK}", {"Aliases": ["hub"]}),
    ("a GPU of the network", f"NetworkingConfig.EndpointsConfig.{NETWORK}", {"MacAddress": "02:42:ac:11:00:02"}),
    *(
        (f"{name} of the node", f"{H}.{name}", "host")
        for name in ("PidMode", "UTSMode", "UsernsMode", "IpcMode", "CgroupnsMode")
    ),
    ("the processes of a container", f"{H}.PidMode", f"container:{ANOTHERS}"),
    ("memory that others share", f"{H}.IpcMode", "shareable"),
    ("no word of IPC", f"{H}.IpcMode", ...),
    ("no word of control groups", f"{H}.CgroupnsMode", ...),
    ("control groups elsewhere", f"{H}.CgroupParent", "/"),
    ("a control group", f"{H}.Cgroup", "container:x"),
    ("another runtime", f"{H}.Runtime", "runc-unconfined"),
    ("a runtime outside", "Runtime", "x"),
    ("volumes of others", f"{H}.VolumesFrom", [ANOTHERS]),
    ("binds", f"{H}.Binds", ["/:/host"]),
    ("a device", f"{H}.Devices", [{"PathOnHost": "/dev/sda"}]),
    ("rules of devices", f"{H}.DeviceCgroupRules", ["a *:* rwm"]),
    ("settings of the kernel", f"{H}.Sysctls", {"kernel.core_pattern": "|/x"}),
    ("capabilities as they were", f"{H}.CapDrop", ...),
    ("no capability dropped", f"{H}.CapDrop", []),
    ("one capability dropped", f"{H}.CapDrop", ["MKNOD"]),
    ("a capability", f"{H}.CapAdd", ["CHOWN", "SYS_ADMIN"]),
    ("all capabilities", f"{H}.CapAdd", ["ALL"]),
    ("raw sockets", f"{H}.CapAdd", ["NET_RAW"]),
    ("capabilities as they once were said", f"{H}.Capabilities", ["CAP_SYS_ADMIN"]),
    ("no seccomp", f"{H}.SecurityOpt", ["no-new-privileges", "seccomp=unconfined"]),
    ("no AppArmor", f"{H}.SecurityOpt", ["no-new-privileges", "apparmor=unconfined"]),
    ("system paths", f"{H}.SecurityOpt", ["no-new-privileges", "systempaths=unconfined"]),
    ("labels off", f"{H}.SecurityOpt", ["no-new-privileges", "label=disable"]),
    ("privileges to gain", f"{H}.SecurityOpt", ...),
    ("privileges to gain, said", f"{H}.SecurityOpt", ["no-new-privileges=false"]),
    ("nothing of security", f"{H}.SecurityOpt", []),
    ("security as null", f"{H}.SecurityOpt", None),
    ("paths of the kernel", f"{H}.MaskedPaths", []),
    ("paths of the kernel to write to", f"{H}.ReadonlyPaths", []),
    ("groups of the node", f"{H}.GroupAdd", ["0"]),
    ("a port of the node", f"{H}.PortBindings", {"80/tcp": [{"HostPort": "443"}]}),
    ("all ports", f"{H}.PublishAllPorts", True),
    ("links", f"{H}.Links", ["postgres:db"]),
    ("names of hosts", f"{H}.ExtraHosts", ["hub:10.0.0.1"]),
    ("to be started for ever", f"{H}.RestartPolicy", {"Name": "always"}),
    ("a volume driver", f"{H}.VolumeDriver", "x"),
    ("not to be killed", f"{H}.OomScoreAdj", -1000),
    ("not to be killed for memory", f"{H}.OomKillDisable", True),
    ("no limit of memory", f"{H}.Memory", ...),
    ("memory without an end", f"{H}.Memory", 0),
    ("swap without an end", f"{H}.MemorySwap", -1),
    ("no limit of processes", f"{H}.PidsLimit", ...),
    ("processes without an end", f"{H}.PidsLimit", -1),
    ("processes by null", f"{H}.PidsLimit", None),
    ("a limit", f"{H}.Ulimits", [{"Name": "memlock", "Soft": -1, "Hard": -1}]),
    ("real time", f"{H}.CpuRealtimeRuntime", 950000),
    ("annotations", f"{H}.Annotations", {"x": "y"}),
    ("storage", f"{H}.StorageOpt", {"size": "1T"}),
    ("memory mounts", f"{H}.Tmpfs", {"/x": "exec,suid,dev"}),
    ("a disk", f"{H}.BlkioDeviceWriteBps", [{"Path": "/dev/sda", "Rate": 1}]),
    ("what it says to a socket", f"{H}.LogConfig", {"Type": "syslog", "Config": {"syslog-address": "unix:///run/x"}}),
    ("what it says to a file", f"{H}.LogConfig", {"Type": "json-file", "Config": {"max-size": "1m", "env": "X"}}),
    ("all GPUs", f"{H}.DeviceRequests", [{"Driver": "nvidia", "Count": -1, "Capabilities": [["gpu"]]}]),
    (
        "options of GPUs",
        f"{H}.DeviceRequests",
        [
            {
                "Driver": "nvidia",
                "DeviceIDs": ["GPU-a"],
                "Capabilities": [["gpu", "compute", "utility"]],
                "Options": {"x": "y"},
            }
        ],
    ),
    ("another's device by CDI", f"{H}.DeviceRequests", [{"Driver": "cdi", "DeviceIDs": ["vendor.com/disk=all"]}]),
    ("all GPUs by CDI", f"{H}.DeviceRequests", [{"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=all"]}]),
    ("volumes as they once were said", "Volumes", {"/x": {}}),
    ("an address on the bridge", "MacAddress", "02:42:ac:11:00:02"),
    ("build steps", "OnBuild", ["RUN x"]),
    ("another user's name", "User", "root"),
    ("a shell", "Shell", ["x"]),
    ("no host configuration", H, ...),
    ("a null one", H, None),
    ("a mount that comes back", f"{H}.Mounts.0", bound("/srv/datasets", BindOptions={"Propagation": "rshared"})),
    (
        "a mount that makes folders",
        f"{H}.Mounts.0",
        bound("/srv/datasets", BindOptions={"Propagation": "rprivate", "CreateMountpoint": True}),
    ),
    ("a mount of no kind", f"{H}.Mounts.0", {"Source": "/", "Target": "/there"}),
    ("a pipe", f"{H}.Mounts.0", bound("/srv/datasets", Type="npipe")),
    ("a volume of the cluster", f"{H}.Mounts.0", bound("x", Type="cluster")),
    ("an image as a mount", f"{H}.Mounts.0", bound("x", Type="image")),
    ("the database", f"{H}.Mounts.0", {"Type": "volume", "Source": "hub-postgres-data", "Target": "/there"}),
    ("a volume by a path", f"{H}.Mounts.0", {"Type": "volume", "Source": "/", "Target": "/there"}),
    (
        "a part of a volume",
        f"{H}.Mounts.0",
        {"Type": "volume", "Target": "/there", "VolumeOptions": {"Subpath": "../.."}},
    ),
    *(
        (
            f"a volume: {what}",
            f"{H}.Mounts.0",
            {"Type": "volume", "Target": "/there", "VolumeOptions": {"Labels": {}, "DriverConfig": driver}},
        )
        for what, driver in (
            ("a folder by options", {"Name": "local", "Options": {"type": "none", "o": "bind", "device": "/"}}),
            (
                "a folder by its options alone",
                {"Name": "local", "Options": {"type": "tmpfs", "o": "bind", "device": "/etc"}},
            ),
            (
                "options in the middle",
                {
                    "Name": "local",
                    "Options": {"type": "tmpfs", "device": "tmpfs", "o": "size=1m,mode=1777,nosuid,nodev,bind"},
                },
            ),
            (
                "with devices",
                {"Name": "local", "Options": {"type": "tmpfs", "device": "tmpfs", "o": "size=1m,mode=1777"}},
            ),
            ("NFS", {"Name": "local", "Options": {"type": "nfs", "o": "addr=10.0.0.1", "device": ":/"}}),
            ("a disk", {"Name": "local", "Options": {"type": "ext4", "device": "/dev/vda1"}}),
            ("another driver", {"Name": "sshfs", "Options": {}}),
            ("a driver by null", {"Name": None, "Options": {"device": "/"}}),
        )
    ),
    (
        "memory with devices",
        f"{H}.Mounts.0",
        {
            "Type": "tmpfs",
            "Target": "/x",
            "TmpfsOptions": {"SizeBytes": 1, "Mode": 511, "Options": [["dev"], ["suid"]]},
        },
    ),
    *((f"a folder {source!r}", f"{H}.Mounts.0", bound(source)) for source in SOURCES),
]

SERVICES: list[tuple[str, str, object]] = [
    ("the network of the node", f"{T}.Networks", [{"Target": "host"}]),
    ("no network", f"{T}.Networks", ...),
    ("a network by its id", f"{T}.Networks", [{"Target": "x" * 25}]),
    ("an alias", f"{T}.Networks", [{"Target": NETWORK, "Aliases": ["hub"]}]),
    ("options of a driver", f"{T}.Networks", [{"Target": NETWORK, "DriverOpts": {"x": "y"}}]),
    ("networks as they once were said", "Networks", [{"Target": "host"}]),
    *(
        (f"{kind.lower()}s: {what}", f"{C}.{kind}s", [but(good, place.replace("KIND", kind), value)])
        for kind, good in (("Config", ENTRY), ("Secret", PASSWORDS))
        for what, place, value in (
            ("no file", "File", ...),
            ("no id", "KINDID", ...),
            ("no name", "KINDName", ...),
            ("another's name", "KINDName", "site_passwords"),
            ("the name of another one of ours", "KINDName", "commonage-other"),
            ("another's id", "KINDID", ANOTHERS),
            ("an id of nothing", "KINDID", "e" * 25),
            ("a way to an id", "KINDID", f"../{OURS}"),
            ("a part of an id", "KINDID", OURS[:20]),
            ("an empty id", "KINDID", ""),
            ("in place of the shell", "File.Name", "/bin/sh"),
            ("a way out", "File.Name", "/run/commonage/../../bin/sh"),
            ("a way up", "File.Name", "../../bin/sh"),
            ("a folder below", "File.Name", "/run/commonage/control/x"),
            ("a file that all may write to", "File.Mode", 0o666),
            ("a program as its owner", "File.Mode", 0o4555),
            ("a mode that is none", "File.Mode", -1),
            ("a user's name", "File.UID", "root"),
            ("no group", "File.GID", ...),
            ("for the runtime", "Runtime", {}),
        )
    ),
    ("a capability", f"{C}.CapabilityAdd", ["CAP_SYS_ADMIN"]),
    ("capabilities as they were", f"{C}.CapabilityDrop", ...),
    ("a setting of the kernel", f"{C}.Sysctls", {"x": "1"}),
    ("no seccomp", f"{C}.Privileges", {"Seccomp": {"Mode": "unconfined"}}),
    ("no AppArmor", f"{C}.Privileges", {"AppArmor": {"Mode": "disabled"}}),
    ("a context", f"{C}.Privileges", {"SELinuxContext": {"Disable": True}}),
    ("credentials", f"{C}.Privileges", {"CredentialSpec": {"File": "x"}}),
    ("isolation", f"{C}.Isolation", "process"),
    ("groups", f"{C}.Groups", ["0"]),
    ("names of hosts", f"{C}.Hosts", ["10.0.0.1 hub"]),
    ("a server of names", f"{C}.DNSConfig", {"Nameservers": ["x"]}),
    ("a plugin", f"{T}.Runtime", "plugin"),
    ("a plugin's description", f"{T}.PluginSpec", {"Name": "x"}),
    ("an attachment", f"{T}.NetworkAttachmentSpec", {"ContainerID": ANOTHERS}),
    ("what it says", f"{T}.LogDriver", {"Name": "gelf", "Options": {"gelf-address": "udp://x"}}),
    ("to be started for ever", f"{T}.RestartPolicy", {"Condition": "any"}),
    ("no word of starting again", f"{T}.RestartPolicy", ...),
    ("everywhere", "Mode", {"Global": {}}),
    ("many", "Mode", {"Replicated": {"Replicas": 1000}}),
    ("any node", f"{T}.Placement", ...),
    ("by a label", f"{T}.Placement", {"Constraints": ["node.role==manager"]}),
    (
        "a port of the node's own",
        "EndpointSpec.Ports",
        [{"Protocol": "tcp", "TargetPort": 443, "PublishedPort": 443, "PublishMode": "host"}],
    ),
    (
        "a port everywhere",
        "EndpointSpec.Ports",
        [{"Protocol": "tcp", "TargetPort": 31000, "PublishedPort": 31000, "PublishMode": "ingress"}],
    ),
    ("an address for all", "EndpointSpec.Mode", "vip"),
    ("no limits", f"{T}.Resources", ...),
    ("memory without an end", f"{T}.Resources.Limits", {"Pids": 4096}),
    ("another's name", "Name", "site_control"),
    ("a folder", f"{C}.Mounts.0", bound("/etc")),
    ("a link in a home", f"{C}.Mounts.0", bound(f"{SHARED}/workspaces/ada/link")),
    ("the secrets of the hub", f"{C}.Mounts.0", bound(f"{DATA}/secrets")),
    (
        "a volume that is a folder",
        f"{C}.Mounts.0",
        {
            "Type": "volume",
            "Target": "/x",
            "VolumeOptions": {
                "Labels": {},
                "DriverConfig": {"Name": "local", "Options": {"o": "bind", "device": "/", "type": "none"}},
            },
        },
    ),
]

OTHERS: list[tuple[str, str, Json]] = [
    (
        "a network: the bridge of others",
        NETWORK_CREATE,
        but(NETWORKS[0], "Options", {"com.docker.network.bridge.name": "docker0"}),
    ),
    ("a network: another driver", NETWORK_CREATE, but(NETWORKS[0], "Driver", "macvlan")),
    (
        "a network: the node's cable",
        NETWORK_CREATE,
        but(but(NETWORKS[0], "Driver", "ipvlan"), "Options", {"parent": "eth0"}),
    ),
    ("a network: no driver", NETWORK_CREATE, but(NETWORKS[0], "Driver", ...)),
    ("a network: addresses by a plugin", NETWORK_CREATE, but(NETWORKS[0], "IPAM.Driver", "plugin")),
    (
        "a network: another gateway",
        NETWORK_CREATE,
        but(NETWORKS[0], "IPAM.Config.0", {"Subnet": "10.213.2.0/23", "Gateway": "10.0.0.1"}),
    ),
    ("a network: a name", NETWORK_CREATE, but(NETWORKS[0], "Name", "ingress")),
    ("a network: for all nodes", NETWORK_CREATE, but(NETWORKS[1], "Ingress", True)),
    ("a network: to be joined by hand", NETWORK_CREATE, but(NETWORKS[1], "Attachable", True)),
    ("a network: of another's settings", NETWORK_CREATE, but(NETWORKS[0], "ConfigFrom", {"Network": "x"})),
    (
        "a volume: a folder",
        VOLUME_CREATE,
        {"Name": "commonage-probe-0a1b2c3d", "DriverOpts": {"type": "none", "o": "bind", "device": "/"}},
    ),
    (
        "a volume: a driver",
        VOLUME_CREATE,
        {"Name": "commonage-probe-0a1b2c3d", "Driver": "sshfs", "DriverOpts": {"size": "1"}},
    ),
    ("a volume: another's name", VOLUME_CREATE, {"Name": "hub-postgres-data", "DriverOpts": {"size": "1"}}),
    ("a volume: of the cluster", VOLUME_CREATE, {"Name": "commonage-probe-0a1b2c3d", "ClusterVolumeSpec": {}}),
    *(
        (f"{what}: {how}", head, but(STORED, place, value))
        for what, head in (("a config", CONFIG_CREATE), ("a secret", SECRET_CREATE))
        for how, place, value in (
            ("no label", "Labels", {}),
            ("another label", "Labels", {"app": "x"}),
            ("no labels", "Labels", ...),
            ("a label that is none", "Labels", {"commonage.installation": "x y"}),
            ("another's name", "Name", "site_passwords"),
            ("a template", "Templating", {"Name": "golang"}),
            ("a driver", "Driver", {"Name": "x"}),
            ("no data", "Data", ...),
            ("what is no base64", "Data", "{{}}"),
        )
    ),
    ("a container without our label", CREATE, but(container(), "Labels", {"app": "x"})),
    ("a service without our label", SERVICE, but(service(), "Labels", {"app": "x"})),
    ("a network without our label", NETWORK_CREATE, but(NETWORKS[0], "Labels", {})),
    ("the Swarm: who signs", UPDATE, but(SPEC, "CAConfig.SigningCACert", "x")),
    ("the Swarm: who else signs", UPDATE, but(SPEC, "CAConfig.ExternalCAs", [{"Protocol": "cfssl", "URL": "x"}])),
    ("the Swarm: what all say", UPDATE, but(SPEC, "TaskDefaults.LogDriver", {"Name": "syslog", "Options": {}})),
    ("a command as another", EXEC, but(COMMAND, "User", "0")),
    ("a privileged command", EXEC, but(COMMAND, "Privileged", True)),
    ("a privileged command in another case", EXEC, but(COMMAND, "pRIVILEGED", 1)),
    ("a command elsewhere", EXEC, but(COMMAND, "WorkingDir", "/")),
    ("a command without an end", EXEC, but(COMMAND, "Detach", True)),
    ("a container by another name", CREATE.partition("?")[0] + "?name=docker-filter", container()),
    ("a container by two names", f"{CREATE}&name=docker-filter", container()),
    ("a container without a name", CREATE.partition("?")[0], container()),
    ("a container for another machine", f"{CREATE}&platform=linux/arm64", container()),
]
BAD = [
    *((f"container: {what}", CREATE, but(container(), place, value)) for what, place, value in CONTAINERS),
    *((f"service: {what}", SERVICE, but(service(), place, value)) for what, place, value in SERVICES),
    *OTHERS,
]


# --- descriptions that one reader takes for another than the next ---------------------------------------------------

PLAIN = json.dumps(container())


PRIVILEGED = '"HostConfig": {"Privileged": true}'
SHAPES: list[tuple[str, bytes]] = [
    ("twice the same key, the bad one first", PLAIN.replace("{", "{" + PRIVILEGED + ", ", 1).encode()),
    ("twice the same key, the bad one last", (PLAIN[:-1] + ", " + PRIVILEGED + "}").encode()),
    (
        "twice the same key, inside",
        PLAIN.replace('"Privileged": false', '"Privileged": true, "Privileged": false').encode(),
    ),
    ("the same key in another case", (PLAIN[:-1] + ', "hostconfig": {"Privileged": true}}').encode()),
    (
        "a key behind an escape",
        PLAIN.replace('"Privileged": false', '"Privileged": false, "\\u0050rivileged": true').encode(),
    ),
    (
        "a key that is written with an escape",
        PLAIN.replace('"Privileged": false', '"\\u0050rivileged": false').encode(),
    ),
    (
        "a letter that Go takes for s",
        PLAIN.replace('"Init": true', '"Init": true, "Bind\u017f": ["/:/x"]').encode(),
    ),
    ("a second value behind", (PLAIN + '{"HostConfig": {"Privileged": true}}').encode()),
    ("a value before", ('{"HostConfig": {"Privileged": true}}' + PLAIN).encode()),
    ("something behind", (PLAIN + "x").encode()),
    ("a mark before", b"\xef\xbb\xbf" + PLAIN.encode()),
    ("two bytes a letter", PLAIN.encode("utf-16")),
    ("a zero byte", PLAIN.replace('"Init"', '"Init\0"').encode()),
    ("a comment", PLAIN.replace('"Init"', '/* */ "Init"').encode()),
    ("a comma too many", PLAIN.replace('"Init": true', '"Init": true,').encode()),
    ("a quote too few", PLAIN[:-2].encode()),
    ("single quotes", PLAIN.replace('"', "'").encode()),
    ("a list", f"[{PLAIN}]".encode()),
    ("nothing", b""),
    ("null", b"null"),
    ("as deep as it goes", b'{"Labels": ' * 50_000 + b"1" + b"}" * 50_000),
    ("a number that is none", PLAIN.replace('"Memory": ', '"Memory": 0x').encode()),
    ("a number with a sign", PLAIN.replace('"Memory": ', '"Memory": -').encode()),
    ("a number that is too large", PLAIN.replace('"Memory": ', '"Memory": 1e').encode()),
    ("true in another case", PLAIN.replace('"Init": true', '"Init": True').encode()),
]
