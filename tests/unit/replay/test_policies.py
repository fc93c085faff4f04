"""Policies by name and by `module:name`, and the errors of unusable modules."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from commonage.domain.errors import InvalidInput
from commonage.replay.policies import maker_of
from commonage.scheduler.model.grid import Grid
from commonage.scheduler.policies.mix import WorkloadMix
from commonage.scheduler.policies.registry import POLICIES
from commonage.scheduler.policies.scored import BestFit

MODULES = {
    "good_policy": "from commonage.scheduler.policies.scored import BestFit\nclass Good(BestFit): pass\n",
    "needs_policy": "import no_such_package\n",
    "raises_policy": "LIMIT = 1\nraise KeyError('LIMITS')\n",
    "exits_policy": "import sys\nsys.exit(3)\n",
    "unreadable_policy": "def score(:\n",
    "empty_policy": "LIMIT = 1\n",
    "odd_policy": (
        "class Half:\n    def __init__(self, grid, mix, seed): pass\n    def costs(self, shape): pass\n"
        "def fails(grid, mix, seed):\n    return 1 / 0\n"
    ),
}


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in MODULES.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)


def test_policy_is_found_by_name_or_in_a_module_of_the_current_folder() -> None:
    assert maker_of("best-fit", POLICIES) is BestFit
    assert isinstance(maker_of("good_policy:Good", POLICIES)(Grid(()), WorkloadMix(), 0), BestFit)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("magic", "unknown policy 'magic'; known policies: best-fit, spread, expected-waste. Write "
         "module:name for your own policy, like quiet:Quiet"),
        ("good_policy:", "unknown policy 'good_policy:'; known policies: best-fit,"),
        (".good_policy:Good", "unknown policy '.good_policy:Good'; known policies: best-fit,"),
        ("no_such:Good", "policy 'no_such:Good' cannot be used: there is no module 'no_such'. Run the command in the "
         "folder that holds it, or install it into this environment"),
        ("no_such.policies:Good", "there is no module 'no_such'."),
        ("good_policy.more:Good", "there is no module 'good_policy.more'."),
        ("needs_policy:Good", "importing the module needs_policy failed: ModuleNotFoundError: No module named "
         "'no_such_package' (needs_policy.py, line 1). Correct it and run the command again"),
        ("raises_policy:Good", "failed: KeyError: 'LIMITS' (raises_policy.py, line 2)"),
        ("exits_policy:Good", "importing the module exits_policy failed: SystemExit: 3 (exits_policy.py, line 2)"),
        ("unreadable_policy:Good", "importing the module unreadable_policy failed: SyntaxError: invalid syntax "
         "(unreadable_policy.py, line 1)"),
        ("good_policy:Best", "module good_policy has no 'Best'. It has Good"),
        ("empty_policy:Best", "module empty_policy has no 'Best'. It defines no class or function"),
        ("empty_policy:LIMIT", "with a grid, a mix and a seed failed: TypeError: 'int' object is not callable"),
        ("odd_policy:fails", "calling it with a grid, a mix and a seed failed: ZeroDivisionError: division by zero "
         "(odd_policy.py, line 5)"),
        ("odd_policy:Half", "the object it returns has no arrived, devices. A policy has arrived, costs, devices"),
    ],
)  # fmt: skip
def test_unusable_policy_raises_an_error_with_the_next_step(name: str, message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        maker_of(name, POLICIES)
    assert message in caught.value.message
