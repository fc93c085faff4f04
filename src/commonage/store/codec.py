"""Domain objects to rows and back: the only module that knows their stored form.

Pure; called by the repositories of this package. Fields missing from JSON of an older program get their defaults.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from commonage.domain.codec import from_json, to_json
from commonage.domain.events import Event, EventKind
from commonage.domain.nodes import Allocation, Device, Isolation, Node, NodeReport, NodeState, Share
from commonage.domain.reasons import Reason
from commonage.domain.requests import GpuRequest, Request
from commonage.domain.volumes import VolumeRequest
from commonage.domain.workloads import (
    Attempt,
    Condition,
    Dependency,
    Kind,
    RetryPolicy,
    Spec,
    State,
    StopCause,
    StopRequest,
    Workload,
)

Row = dict[str, Any]

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_encoder = json.JSONEncoder(separators=(",", ":"), check_circular=False)


def clean(text: str) -> str:
    """`text` as a database can hold it: U+FFFD for NUL and lone surrogates, which a program's output may contain."""
    return _UNSTORABLE.sub("\ufffd", text)


def clean_or_none(text: str | None) -> str | None:
    """`clean` for optional text."""
    return None if text is None else clean(text)


# --- specs and requests -------------------------------------------------------------------------------------------


def spec_to_json(spec: Spec) -> str:
    """Everything except the values of secrets, which are stored separately."""
    return _encoder.encode(
        {
            "kind": spec.kind,
            "name": spec.name,
            "owner": spec.owner,
            "tenant": spec.tenant,
            "environment": spec.environment,
            "command": spec.command,
            "request": request_to_json(spec.request),
            "variables": spec.variables,
            "priority": spec.priority,
            "time_limit_s": spec.time_limit_s,
            "grace_s": spec.grace_s,
            "retries": spec.retry.retries,
            "backoff_s": spec.retry.backoff_s,
            "depends_on": [(each.workload_id, each.condition) for each in spec.depends_on],
            "bundle": spec.bundle,
            "array_id": spec.array_id,
            "array_size": spec.array_size,
            "key": spec.key,
            "preemptible": spec.preemptible,
            "gang": spec.gang,
            "volumes": [(each.name, each.writable, each.target) for each in spec.volumes],
            "requeue": spec.requeue,
            "secret_names": spec.secret_names,
        }
    )


def spec_from_json(body: str, secrets: str | None = None) -> Spec:
    """The spec that `spec_to_json` and `pairs_to_json` (for the secrets) wrote."""
    read: Mapping[str, Any] = json.loads(body)
    return Spec(
        kind=Kind(read["kind"]),
        name=read["name"],
        owner=read["owner"],
        tenant=read["tenant"],
        environment=read["environment"],
        command=tuple(read["command"]),
        request=request_from_json(read["request"]),
        variables=_pairs(read.get("variables", ())),
        secrets=_pairs(json.loads(secrets)) if secrets else (),
        dropped_secrets=() if secrets else tuple(read.get("secret_names", ())),
        priority=read.get("priority", 0),
        time_limit_s=read.get("time_limit_s"),
        grace_s=read.get("grace_s", 10),
        retry=RetryPolicy(read.get("retries", 0), read.get("backoff_s", 10.0)),
        depends_on=tuple(Dependency(each, Condition(when)) for each, when in read.get("depends_on", ())),
        bundle=read.get("bundle"),
        array_id=read.get("array_id"),
        array_size=read.get("array_size", 0),
        key=read.get("key"),
        preemptible=read.get("preemptible", False),
        gang=read.get("gang", False),
        volumes=tuple(VolumeRequest(*each) for each in read.get("volumes", ())),
        requeue=read.get("requeue", False),
    )


def pairs_to_json(pairs: Sequence[tuple[str, str]]) -> str:
    """Secrets, in their order."""
    return _encoder.encode(pairs)


def _pairs(read: Sequence[Sequence[str]]) -> tuple[tuple[str, str], ...]:
    return tuple((name, value) for name, value in read)


def request_to_json(request: Request) -> Row:
    """The resources that one workload, or one place of a reservation, needs."""
    gpu = request.gpu
    return {
        "cpus_milli": request.cpus_milli,
        "memory_mib": request.memory_mib,
        "gpu": gpu
        and {
            "whole": gpu.whole,
            "fraction_milli": gpu.fraction_milli,
            "vram_mib": gpu.vram_mib,
            "model": gpu.model,
        },
        "labels": request.labels,
        "one_numa": request.one_numa,
    }


def request_from_json(read: Mapping[str, Any]) -> Request:
    """The request that `request_to_json` wrote."""
    gpu = read.get("gpu")
    return Request(
        read["cpus_milli"],
        read["memory_mib"],
        GpuRequest(**gpu) if gpu else None,
        _pairs(read.get("labels", ())),
        read.get("one_numa", False),
    )


# --- progress -----------------------------------------------------------------------------------------------------


def workload_row(workload: Workload, spec_id: str, key: str | None) -> Row:
    """A whole row; `key` is the client's, given to the first member of an array only."""
    spec = workload.spec
    return {
        "id": workload.id,
        "kind": spec.kind.value,
        "owner": clean(spec.owner),
        "tenant": clean(spec.tenant),
        "environment": clean(spec.environment),
        "submitted_at": workload.submitted_at,
        "array_id": spec.array_id,
        "array_index": workload.array_index,
        "key": clean_or_none(key),
        "name_folded": clean(spec.name).casefold(),
        "spec_id": spec_id,
        **progress_row(workload),
    }


def progress_row(workload: Workload) -> Row:
    """The columns that change in a workload's life."""
    attempt = workload.attempt
    return {
        "version": workload.version,
        "state": workload.state.value,
        "node": clean(attempt.allocation.node) if attempt else None,
        "attempt_id": attempt.id if attempt else None,
        "since": workload.since,
        "reason": reason_to_json(workload.reason),
        "stop": _stop_to_json(workload.stop) if workload.stop else None,
        "not_before": workload.not_before,
        "warned": workload.warned,
        "retried": workload.retried,
        "losses": workload.losses,
    }


def _stop_to_json(stop: StopRequest) -> str:
    return _encoder.encode({"by": stop.by, "at": stop.at, "cause": stop.cause, "reason": _reason(stop.reason)})


def stop_from_json(body: str | None) -> StopRequest | None:
    """The stop request, if there is one."""
    if body is None:
        return None
    read = json.loads(body)
    reason = None if read["reason"] is None else from_json(Reason, read["reason"])
    return StopRequest(read["by"], read["at"], StopCause(read["cause"]), reason)


def reason_to_json(reason: Reason) -> str:
    """Code and parameters."""
    return _encoder.encode(_reason(reason))


def reason_from_json(body: str) -> Reason:
    """The reason that `reason_to_json` wrote."""
    return from_json(Reason, json.loads(body))


def _reason(reason: Reason | None) -> Any:
    """The reason as a database can hold it: it may contain any text of an engine."""
    return None if reason is None else _cleaned(to_json(reason))


def _cleaned(data: Any) -> Any:
    if isinstance(data, str):
        return clean(data)
    if isinstance(data, dict):
        return {name: _cleaned(value) for name, value in data.items()}
    return [_cleaned(value) for value in data] if isinstance(data, list) else data


def attempt_row(attempt: Attempt, spec: Spec) -> Row:
    """An attempt with its allocation (allocation); owner, tenant and environment are those of its workload's spec."""
    allocation = attempt.allocation
    return {
        "id": attempt.id,
        "workload_id": attempt.workload_id,
        "number": attempt.number,
        "state": attempt.state.value,
        "owner": clean(spec.owner),
        "tenant": clean(spec.tenant),
        "environment": clean(spec.environment),
        "node": clean(allocation.node),
        "cpus_milli": allocation.cpus_milli,
        "memory_mib": allocation.memory_mib,
        "gpu_mib": sum(share.memory_mib for share in allocation.shares),
        "gpu_milli": sum(share.compute_milli for share in allocation.shares),
        "shares": _encoder.encode([_share_to_json(share) for share in allocation.shares])
        if allocation.shares
        else "[]",
        "allocated_at": allocation.at,
        "started_at": attempt.started_at,
        "ended_at": attempt.ended_at,
        "exit_code": attempt.exit_code,
        "reason": None if attempt.reason is None else reason_to_json(attempt.reason),
        "url": clean_or_none(attempt.url),
    }


ATTEMPT_COLUMNS = (
    "id", "workload_id", "number", "state", "node", "cpus_milli", "memory_mib", "shares", "allocated_at",
    "started_at", "ended_at", "exit_code", "reason", "url",
)  # fmt: skip


def attempt_from_row(row: Sequence[Any]) -> Attempt:
    """From the values of ATTEMPT_COLUMNS."""
    name, workload, number, state, node, cpus, memory, shares, allocated, started, ended, code, reason, url = row
    held = tuple(_share_from_json(read) for read in json.loads(shares)) if shares != "[]" else ()
    return Attempt(
        id=name,
        workload_id=workload,
        number=number,
        state=State(state),
        allocation=Allocation(name, node, cpus, memory, held, allocated),
        started_at=started,
        ended_at=ended,
        exit_code=code,
        reason=None if reason is None else reason_from_json(reason),
        url=url,
    )


def _share_to_json(share: Share) -> Row:
    return {
        "device_uuid": share.device_uuid,
        "device_index": share.device_index,
        "model": share.model,
        "memory_mib": share.memory_mib,
        "compute_milli": share.compute_milli,
        "whole": share.whole,
        "device_memory_mib": share.device_memory_mib,
        "simulated": share.simulated,
        "isolation": share.isolation,
    }


def _share_from_json(read: Mapping[str, Any]) -> Share:
    return Share(**{**read, "isolation": Isolation(read["isolation"])})


# --- events and nodes ---------------------------------------------------------------------------------------------


def event_row(event: Event) -> Row:
    """A whole row."""
    return {
        "seq": event.seq,
        "kind": event.kind.value,
        "at": event.at,
        "reason": reason_to_json(event.reason),
        "workload_id": event.workload_id,
        "attempt_id": event.attempt_id,
        "owner": clean_or_none(event.owner),
        "tenant": clean_or_none(event.tenant),
        "state": event.state,
    }


EVENT_COLUMNS = ("kind", "at", "reason", "workload_id", "attempt_id", "owner", "tenant", "state", "seq")


def event_from_row(row: Sequence[Any]) -> Event:
    """From the values of EVENT_COLUMNS."""
    return Event(EventKind(row[0]), row[1], reason_from_json(row[2]), *row[3:])


def node_row(node: Node) -> Row:
    """A whole row."""
    return {
        "site": clean(node.site),
        "name": clean(node.name),
        "engine": node.engine,
        "state": node.state.value,
        "drain": node.drain,
        "reason": clean(node.reason),
        "observed_at": node.observed_at,
        "report": _encoder.encode(_report_to_json(node.report)),
        "leave_by": node.leave_by,
        "drained_by": clean(node.drained_by),
    }


NODE_COLUMNS = ("name", "site", "engine", "state", "report", "observed_at", "drain", "reason", "leave_by", "drained_by")


def node_from_row(row: Sequence[Any]) -> Node:
    """From the values of NODE_COLUMNS."""
    name, site, engine, state, report, observed_at, drain, reason, leave_by, drained_by = row
    found = _report_from_json(json.loads(report))
    by = drained_by or ("an admin" if drain else "")  # an older server did not record who drained the node
    return Node(name, site, engine, NodeState(state), found, observed_at, by, reason, leave_by)


def _report_to_json(report: NodeReport) -> Row:
    return {
        "name": report.name,
        "cpus_milli": report.cpus_milli,
        "memory_mib": report.memory_mib,
        "devices": [{name: getattr(device, name) for name in _DEVICE_FIELDS} for device in report.devices],
        "disk_free_mib": report.disk_free_mib,
        "labels": report.labels,
        "faults": report.faults,
        "tight": report.tight,
        "gone": report.gone,
        "undecided": report.undecided,
    }


def _report_from_json(read: Mapping[str, Any]) -> NodeReport:
    return NodeReport(
        name=read["name"],
        cpus_milli=read["cpus_milli"],
        memory_mib=read["memory_mib"],
        devices=tuple(_device_from_json(each) for each in read["devices"]),
        disk_free_mib=read.get("disk_free_mib"),
        labels=_pairs(read.get("labels", ())),
        faults=tuple(read.get("faults", ())),
        tight=read.get("tight", ""),
        gone=read.get("gone", False),
        undecided=read.get("undecided", ""),
    )


_DEVICE_FIELDS = tuple(field.name for field in fields(Device))


def _device_from_json(read: Mapping[str, Any]) -> Device:
    """Fields missing from data of an older server get their defaults; unknown fields of a newer one are ignored."""
    known = {name: value for name, value in read.items() if name in _DEVICE_FIELDS}
    return Device(
        **{
            **known,
            "isolation": Isolation(read["isolation"]),
            "faults": tuple(read["faults"]),
            "notices": tuple(read.get("notices", ())),
            "peers": tuple((uuid, links) for uuid, links in read.get("peers", ())),
            "unavailable": tuple((Isolation(level), why) for level, why in read.get("unavailable", ())),
        }
    )
