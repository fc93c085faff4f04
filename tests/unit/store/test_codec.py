import json
from dataclasses import dataclass, fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Column, MetaData, Table, Text

from commonage.domain.codec import Unreadable
from commonage.domain.images import Image, Removal
from commonage.domain.nodes import Allocation, Node
from commonage.domain.reasons.attempts import StoppedBy
from commonage.domain.tenants import Reservation
from commonage.domain.usage import UsageReport
from commonage.domain.workloads import Attempt, Event, Kind, Spec, StopCause, StopRequest, Workload
from commonage.store import codec, tables
from commonage.testing import factories as make
from commonage.testing import strategies as some


@given(some.specs())
def test_spec_comes_back_without_its_secrets(spec: Spec) -> None:
    body = codec.spec_to_json(spec)
    secrets = codec.secrets_to_json(spec.secrets)
    assert codec.spec_from_json(body, secrets if spec.secrets else None) == spec
    assert codec.spec_from_json(body) == spec.without_secrets()


def test_values_of_secrets_stand_in_nothing_but_their_own_text() -> None:
    workload = make.workload(secrets=(("TOKEN", "hush-hush"),))
    rows = [codec.spec_to_json(workload.spec), codec.workload_row(workload, "spec", None)]
    assert "hush-hush" not in str(rows)
    assert codec.spec_from_json(codec.spec_to_json(workload.spec)).dropped_secrets == ("TOKEN",)


@given(some.attempts_of(make.workload_id()))
def test_attempt_comes_back(attempt: Attempt) -> None:
    row = codec.attempt_row(attempt, make.spec())
    assert codec.attempt_from_row([row[name] for name in codec.ATTEMPT_COLUMNS]) == attempt
    assert row["gpu_mib"] == sum(share.memory_mib for share in attempt.allocation.shares)


def comes_back(stored: codec.Stored[Any], value: object) -> bool:
    row = stored.row(value)
    return bool(stored.value([row[name] for name in stored.columns]) == value)


@given(some.nodes())
def test_node_comes_back(node: Node) -> None:
    assert comes_back(codec.NODE, node)


@pytest.mark.parametrize(
    ("stored", "value"),
    [
        (codec.EVENT, make.event(3, make.workload())),
        (codec.RESERVATION, make.reservation()),
        (codec.IMAGE, replace(make.image("lab/torch"), removed=Removal("ann", make.NOW))),
        (codec.USAGE_REPORT, make.usage_report(make.workload())),
    ],
)
def test_value_comes_back(stored: codec.Stored[Any], value: object) -> None:
    assert comes_back(stored, value)


@pytest.mark.parametrize("stop", [StopRequest("ann", 1.5, StopCause.EVICTION, StoppedBy(by="ü")), None])
def test_workload_comes_back_with_its_stop(stop: StopRequest | None) -> None:
    workload = make.workload(stop=stop)
    row = codec.workload_row(workload, "spec", None)
    own = [row[name] for name in codec.WORKLOAD.columns]
    assert codec.WORKLOAD.value(own, spec=workload.spec, attempt=None) == workload


@pytest.mark.parametrize(
    ("kind", "stored", "table", "elsewhere"),
    [
        (Workload, codec.WORKLOAD, tables.workloads, {"spec", "attempt"}),
        (Attempt, codec.ATTEMPT, tables.attempts, {"allocation"}),
        (Allocation, codec.ALLOCATION, tables.attempts, {"attempt_id"}),
        (Node, codec.NODE, tables.nodes, set()),
        (Event, codec.EVENT, tables.events, set()),
        (UsageReport, codec.USAGE_REPORT, tables.usage_reports, set()),
        (Reservation, codec.RESERVATION, tables.reservations, set()),
        (Image, codec.IMAGE, tables.images, set()),
    ],
    ids=lambda one: one.__name__ if isinstance(one, type) else "",
)
def test_every_field_of_the_domain_is_stored(
    kind: Any, stored: codec.Stored[Any], table: Table, elsewhere: set[str]
) -> None:
    assert set(stored.fields) | elsewhere == {field.name for field in fields(kind)}
    assert set(stored.columns) <= set(table.columns.keys())


def test_every_field_of_a_spec_is_stored() -> None:
    assert json.loads(codec.spec_to_json(make.spec())).keys() == {field.name for field in fields(Spec)}


def test_field_without_a_column_is_refused() -> None:
    @dataclass
    class Wider:
        id: str
        colour: str

    with pytest.raises(TypeError, match="specs has no column for colour"):
        codec.Stored(Wider, Table("specs", MetaData(), Column("id", Text)))


def test_what_an_older_program_wrote_is_read_with_defaults() -> None:
    old = {
        "kind": "job",
        "name": "n",
        "owner": "ann",
        "tenant": "lab",
        "environment": "python",
        "command": ["true"],
        "request": {"cpus_milli": 500, "memory_mib": 64},
    }
    spec = codec.spec_from_json(json.dumps(old))
    assert (spec.kind, spec.grace_s, spec.request.gpu, spec.retry.retries) == (Kind.JOB, 10, None, 0)


@given(st.text(st.characters()))
def test_cleaned_text_can_be_written(text: str) -> None:
    cleaned = codec.clean(text)
    assert "\x00" not in cleaned
    assert len(cleaned) == len(text)
    assert cleaned.encode().decode() == cleaned


def test_plain_text_is_left_alone() -> None:
    assert codec.clean("naïve 🦆\n\t") == "naïve 🦆\n\t"


def test_devices_that_an_older_or_a_newer_program_wrote_are_read() -> None:
    row = codec.NODE.row(make.node(devices=[make.device()]))
    report = json.loads(row["report"])
    (device,) = report["devices"]
    report["devices"] = [
        {name: device[name] for name in ("uuid", "index", "model", "memory_mib", "isolation", "faults")}
    ]
    report["devices"][0]["smell"] = "roses"
    row["report"] = json.dumps(report)
    (read,) = codec.NODE.value([row[name] for name in codec.NODE.columns]).report.devices
    assert (read.uuid, read.cuda, read.peers, read.unavailable) == (device["uuid"], "", (), ())


def test_value_of_the_wrong_type_is_refused() -> None:
    row = codec.RESERVATION.row(make.reservation())
    row["body"] = json.dumps(json.loads(row["body"]) | {"count": "two"})
    with pytest.raises(Unreadable, match="should be int"):
        codec.RESERVATION.value([row[name] for name in codec.RESERVATION.columns])
