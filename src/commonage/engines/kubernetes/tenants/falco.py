"""Falco rules for pods of users: what a notebook or job never needs, and an intruder does first."""

from __future__ import annotations

from dataclasses import dataclass

from commonage.engines.kubernetes.manifest import Manifest
from commonage.engines.settings import KubernetesPolicySettings


@dataclass(frozen=True, slots=True)
class _Alarm:
    name: str
    desc: str
    condition: str
    priority: str
    fields: str = "command=%proc.cmdline user=%user.uid"


_ALARMS = (
    _Alarm(
        "Connection to a metadata service",
        "A program asks the cloud's metadata service, which hands out the node's credentials.",
        'evt.type = connect and (fd.sip = "169.254.169.254" or fd.sip = "fd00:ec2::254")',
        "CRITICAL",
        "command=%proc.cmdline user=%user.uid connection=%fd.name",
    ),
    _Alarm(
        "Connection to the API server",
        "Users' programs have no token of the cluster, and no reason to ask its API.",
        "evt.type = connect and fd.sport in (443, 6443) and fd.sip.name = kubernetes.default.svc.cluster.local",
        "WARNING",
        "command=%proc.cmdline user=%user.uid connection=%fd.name",
    ),
    _Alarm(
        "Token of a ServiceAccount read",
        "These pods get no token. Somebody added one, or looks for it.",
        "evt.type in (open, openat, openat2) and fd.name startswith /var/run/secrets/kubernetes.io",
        "CRITICAL",
        "command=%proc.cmdline user=%user.uid file=%fd.name",
    ),
    _Alarm(
        "Change of namespaces or mounts",
        "The first step of most escapes from a container.",
        "evt.type in (setns, unshare, mount, umount, umount2, pivot_root) and evt.res = SUCCESS",
        "CRITICAL",
    ),
    _Alarm(
        "Kernel module or program loaded",
        "A container without privileges cannot do this. That it tries is an attack.",
        "evt.type in (init_module, finit_module, bpf)",
        "CRITICAL",
    ),
    _Alarm(
        "Another process traced across users",
        "Debuggers trace programs of their own user.",
        'evt.type = ptrace and evt.arg.request in ("PTRACE_ATTACH", "PTRACE_SEIZE") and user.uid = 0',
        "WARNING",
    ),
    _Alarm(
        "Connection to a mining pool",
        "A program speaks the protocol of mining pools, or uses one of their usual ports.",
        'proc.cmdline contains "stratum+" or (evt.type = connect and fd.sport in (3333, 4444, 14433, 14444, 45560))',
        "WARNING",
        "command=%proc.cmdline user=%user.uid connection=%fd.name",
    ),
)


def falco_rules(settings: KubernetesPolicySettings) -> list[Manifest]:
    """The content of a rules file. A terminal in a notebook is normal here, so shells raise no alarm."""
    compared = f'= "{settings.single}"' if settings.single else f'startswith "{settings.prefix}-"'
    inside = f"k8s.ns.name {compared}"
    rules: list[Manifest] = [{"macro": "commonage_pod", "condition": f"container.id != host and {inside}"}]
    return rules + [
        {
            "rule": f"Commonage: {alarm.name}",
            "desc": alarm.desc,
            "condition": f"commonage_pod and ({alarm.condition})",
            "output": f"{alarm.name} (pod=%k8s.ns.name/%k8s.pod.name {alarm.fields})",
            "priority": alarm.priority,
            "tags": ["commonage"],
        }
        for alarm in _ALARMS
    ]
