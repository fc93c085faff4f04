import json

from hypothesis import given
from hypothesis import strategies as st

from commonage.domain.nodes import Node
from commonage.domain.reasons.attempts import StoppedBy
from commonage.domain.workloads import Attempt, Kind, Spec, StopCause, StopRequest
from commonage.store import codec
from commonage.testing import factories as make
from commonage.testing import strategies as some


@given(some.specs())
def test_spec_comes_back_without_its_secrets(spec: Spec) -> None:
    body = codec.spec_to_json(spec)
    secrets = codec.pairs_to_json(spec.secrets)
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


@given(some.nodes())
def test_node_comes_back(node: Node) -> None:
    row = codec.node_row(node)
    assert codec.node_from_row([row[name] for name in codec.NODE_COLUMNS]) == node


def test_event_comes_back() -> None:
    event = make.event(3, make.workload())
    row = codec.event_row(event)
    assert codec.event_from_row([row[name] for name in codec.EVENT_COLUMNS]) == event


def test_stop_to_stop_comes_back() -> None:
    stop = StopRequest("ann", 1.5, StopCause.EVICTION, StoppedBy(by="ü"))
    row = codec.progress_row(make.workload(stop=stop))
    assert codec.stop_from_json(row["stop"]) == stop
    assert codec.stop_from_json(None) is None


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
    row = codec.node_row(make.node(devices=[make.device()]))
    report = json.loads(row["report"])
    (device,) = report["devices"]
    report["devices"] = [
        {name: device[name] for name in ("uuid", "index", "model", "memory_mib", "isolation", "faults")}
    ]
    report["devices"][0]["smell"] = "roses"
    row["report"] = json.dumps(report)
    (read,) = codec.node_from_row([row[name] for name in codec.NODE_COLUMNS]).report.devices
    assert (read.uuid, read.cuda, read.peers, read.unavailable) == (device["uuid"], "", (), ())


def test_who_drained_a_node_is_an_admin_where_an_older_program_did_not_write_it() -> None:
    row = codec.node_row(make.node(drained_by="root")) | {"drained_by": None}
    assert codec.node_from_row([row[name] for name in codec.NODE_COLUMNS]).drained_by == "an admin"
