"""docs/concepts/states.md shows what step() does: its table is compared with the code, cell by cell."""

from pathlib import Path

from tests.unit.domain.triggers import NOW, situations, triggers

from commonage.domain.lifecycle import step
from commonage.domain.workloads import State, Workload

DOCUMENT = Path(__file__).parents[3] / "docs" / "concepts" / "states.md"


def outcome(workload: Workload, trigger: str) -> str:
    after = step(workload, triggers(workload)[trigger], NOW + 1)
    if after.workload == workload and not after.effects:
        return "·"
    if after.workload.stop != workload.stop and not after.workload.state.is_terminal and after.workload.stop:
        return {"user": "being stopped", "time-limit": "over its limit", "eviction": "evicted"}[
            after.workload.stop.cause
        ]
    if after.workload.state == workload.state:
        return "noted" if after.workload != workload else "·"
    return str(after.workload.state)


def cell(situation: str, trigger: str) -> str:
    found = {outcome(one, trigger): None for one in situations(0)[situation]}
    again = {outcome(one, trigger): None for one in situations(1)[situation]}
    requeued = {outcome(one, trigger): None for one in situations(0, requeue=True)[situation]}
    words = [one for one in {**found, **again, **requeued} if one != "·"]
    return " or ".join(words) or "·"


def table() -> str:
    columns = list(situations())
    rows = list(triggers(situations()["queued"][0]))
    lines = ["| what happens | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    lines += [f"| {row} | " + " | ".join(cell(column, row) for column in columns) + " |" for row in rows]
    return "\n".join(lines)


def test_the_table_is_what_the_code_does() -> None:
    expected = table()
    assert expected in DOCUMENT.read_text(), f"docs/concepts/states.md should hold this table:\n{expected}"


def test_every_state_is_named_in_the_document() -> None:
    text = DOCUMENT.read_text()
    assert [state for state in State if f"`{state}`" not in text] == []
