import pytest

from commonage.domain.errors import Conflict, StaleVersion
from commonage.domain.workloads import State
from commonage.ports.store import Batch
from commonage.store.changes import Changes
from commonage.testing import factories as make


def test_members_of_an_array_share_one_spec_and_its_key() -> None:
    changes = Changes(Batch(make.array(1000, key="k", secrets=(("A", "b"),))))
    assert len(changes.new_specs) == 1
    assert {row["spec_id"] for row in changes.new} == {changes.new_specs[0]["id"]}
    assert [row["key"] for row in changes.new if row["key"]] == ["k"]
    assert len(changes.new_secrets) == 1000


def test_changes_of_a_new_workload_are_written_with_it() -> None:
    new = make.workload()
    ended = make.changed(new, state=State.STOPPED)
    changes = Changes(Batch([new], [ended]))
    assert [(row["version"], row["state"]) for row in changes.new] == [(2, "stopped")]
    assert changes.changed == []
    assert changes.versions == {}


def test_several_updates_of_a_workload_become_one_row() -> None:
    second = make.changed(make.workload(version=4), attempt=make.attempt(number=1))
    third = make.changed(second, attempt=make.attempt(number=2), state=State.FAILED)
    changes = Changes(Batch(updates=[second, third]))
    assert changes.versions == {second.id: 4}
    assert [row["version"] for row in changes.changed] == [6]
    assert [row["number"] for row in changes.attempts.values()] == [1, 2]
    assert changes.ended == [second.id]


def test_skipped_versions_and_duplicate_ids_are_refused() -> None:
    new = make.workload()
    with pytest.raises(StaleVersion):
        Changes(Batch([new], [make.workload(id=new.id, version=3)]))
    with pytest.raises(Conflict):
        Changes(Batch([new, new]))
