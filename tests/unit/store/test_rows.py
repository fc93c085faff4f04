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
from commonage.domain.tenants import QuotaNotice, Reservation
from commonage.domain.usage import UsageReport
from commonage.domain.workloads import Attempt, Event, Kind, Spec, StopCause, StopRequest, Workload
from commonage.store import rows, tables
from commonage.testing import factories as make
from commonage.testing import strategies as some


@given(some.specs())
def test_spec_comes_back_without_its_secrets(spec: Spec) -> None:
    read = rows.spec_from_json(rows.spec_to_json(spec))
    assert read == spec.without_secrets()
    if spec.secrets:
        assert rows.with_secrets(read, rows.secrets_to_json(spec.secrets)) == spec


def test_values_of_secrets_are_only_in_their_own_column() -> None:
    workload = make.workload(secrets=(("TOKEN", "hush-hush"),))
    written = [rows.spec_to_json(workload.spec), rows.workload_row(workload, "spec", None)]
    assert "hush-hush" not in str(written)
    assert rows.spec_from_json(rows.spec_to_json(workload.spec)).dropped_secrets == ("TOKEN",)


@given(some.attempts_of(make.workload_id()))
def test_attempt_comes_back(attempt: Attempt) -> None:
    row = rows.attempt_row(attempt, make.spec())
    assert rows.attempt_from_row([row[name] for name in rows.ATTEMPT_COLUMNS]) == attempt
    assert row["gpu_mib"] == sum(share.memory_mib for share in attempt.allocation.shares)


def columns_of(stored: rows.Stored[Any], row: rows.Row) -> list[Any]:
    return [row[name] for name in stored.columns]


@given(some.nodes())
def test_node_comes_back(node: Node) -> None:
    assert rows.NODE.value(columns_of(rows.NODE, rows.NODE.row(node))) == node


@pytest.mark.parametrize(
    ("stored", "value"),
    [
        (rows.EVENT, make.event(3, make.workload())),
        (rows.RESERVATION, make.reservation()),
        (rows.IMAGE, replace(make.image("lab/torch"), removed=Removal("ann", make.NOW))),
        (rows.USAGE_REPORT, make.usage_report(make.workload())),
    ],
)
def test_value_comes_back(stored: rows.Stored[Any], value: object) -> None:
    assert stored.value(columns_of(stored, stored.row(value))) == value


@pytest.mark.parametrize("stop", [StopRequest("ann", 1.5, StopCause.EVICTION, StoppedBy(by="ü")), None])
def test_workload_comes_back_with_its_stop(stop: StopRequest | None) -> None:
    workload = make.workload(stop=stop)
    row = rows.workload_row(workload, "spec", None)
    assert rows.WORKLOAD.value(columns_of(rows.WORKLOAD, row), spec=workload.spec, attempt=None) == workload


@pytest.mark.parametrize(
    ("kind", "stored", "table", "elsewhere"),
    [
        (Workload, rows.WORKLOAD, tables.workloads, {"spec", "attempt"}),
        (Attempt, rows.ATTEMPT, tables.attempts, {"allocation"}),
        (Allocation, rows.ALLOCATION, tables.attempts, {"attempt_id"}),
        (Node, rows.NODE, tables.nodes, set()),
        (Event, rows.EVENT, tables.events, set()),
        (UsageReport, rows.USAGE_REPORT, tables.usage_reports, set()),
        (Reservation, rows.RESERVATION, tables.reservations, set()),
        (Image, rows.IMAGE, tables.images, set()),
        (QuotaNotice, rows.QUOTA_NOTICE, tables.quota_notices, set()),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_every_field_of_the_domain_is_stored(
    kind: Any, stored: rows.Stored[Any], table: Table, elsewhere: set[str]
) -> None:
    assert set(stored.fields) | elsewhere == {field.name for field in fields(kind)}
    assert set(stored.columns) <= set(table.columns.keys())


def test_every_field_of_a_spec_is_stored() -> None:
    assert json.loads(rows.spec_to_json(make.spec())).keys() == {field.name for field in fields(Spec)}


def test_field_without_a_column_is_refused() -> None:
    @dataclass
    class Wider:
        id: str
        colour: str

    with pytest.raises(TypeError, match="specs has no column for colour"):
        rows.Stored(Wider, Table("specs", MetaData(), Column("id", Text)))


def test_spec_of_an_older_program_is_read_with_defaults() -> None:
    texts = {"kind": "job", "name": "n", "owner": "ann", "tenant": "lab", "environment": "python"}
    old = {**texts, "command": ["true"], "request": {"cpus_milli": 500, "memory_mib": 64}}
    spec = rows.spec_from_json(json.dumps(old))
    assert (spec.kind, spec.grace_s, spec.request.gpu, spec.retry.retries) == (Kind.JOB, 10, None, 0)


@given(st.text(st.characters()))
def test_cleaned_text_can_be_written(text: str) -> None:
    cleaned = rows.clean(text)
    assert "\x00" not in cleaned
    assert len(cleaned) == len(text)
    assert cleaned.encode().decode() == cleaned


def test_plain_text_is_not_cleaned() -> None:
    assert rows.clean("naïve 🦆\n\t") == "naïve 🦆\n\t"


def test_devices_of_older_and_newer_programs_are_read() -> None:
    row = rows.NODE.row(make.node(devices=[make.device()]))
    report = json.loads(row["report"])
    (device,) = report["devices"]
    old = {name: device[name] for name in ("uuid", "index", "model", "memory_mib", "isolation", "faults")}
    report["devices"] = [{**old, "field_of_a_newer_program": "x"}]
    row["report"] = json.dumps(report)
    (read,) = rows.NODE.value(columns_of(rows.NODE, row)).report.devices
    assert (read.uuid, read.cuda, read.peers, read.unavailable) == (device["uuid"], "", (), ())


def test_value_of_the_wrong_type_is_refused() -> None:
    row = rows.RESERVATION.row(make.reservation())
    row["body"] = json.dumps(json.loads(row["body"]) | {"count": "two"})
    with pytest.raises(Unreadable, match="should be int"):
        rows.RESERVATION.value(columns_of(rows.RESERVATION, row))
