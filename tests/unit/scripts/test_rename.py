"""The script that renames: identifiers in every case, sentences, f-strings, templates, modules, and what it refuses."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "scripts"))
import rename

TABLE = """
[device]
[[device.rule]]
in = ["special.py"]
names = { card = "index", ".card" = "device" }
[[device.rule]]
words = { card = "device", in_front = "jobs_ahead" }
prose = { card = "GPU", lease = "allocation" }
keep = ["drm_card", "/sound card/"]
"""


def renamer(path: str = "any.py") -> rename.Renamer:
    return rename.renamer_of(rename.read_table(TABLE)["device"], path)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("card", "device"),
        ("free_cards", "free_devices"),
        ("MAX_CARD_MIB", "MAX_DEVICE_MIB"),
        ("CardFaults", "DeviceFaults"),
        ("AllCards", "AllDevices"),
        ("InFront", "JobsAhead"),
        ("card-list", "device-list"),
        ("discard", "discard"),
        ("drm_card", "drm_card"),
    ],
)
def test_identifiers_keep_their_case_and_number(old: str, new: str) -> None:
    assert renamer().identifier(old) == new


def test_python_is_renamed_as_code_and_as_sentences() -> None:
    text = (
        'def f(card):\n    """Give a lease on a card; see `card_of`."""\n'
        '    return f"a card of {card.name}", "card"  # cards\n'
    )
    assert rename.rename_python(text, renamer()) == (
        'def f(device):\n    """Give an allocation on a GPU; see `device_of`."""\n'
        '    return f"a GPU of {device.name}", "device"  # GPUs\n'
    )


def test_phrases_that_are_kept_stay() -> None:
    assert renamer().sentence("a sound card and a card") == "a sound card and a GPU"


def test_a_program_in_a_string_is_code() -> None:
    assert rename.rename_python('"""import os\nfor card in cards:\n    pass\n"""', renamer()) == (
        '"""import os\nfor device in devices:\n    pass\n"""'
    )


def test_an_attribute_may_have_another_name_than_a_variable() -> None:
    assert (
        rename.rename_python("self.card[card] = f(card=1)", renamer("special.py")) == "self.device[index] = f(device=1)"
    )


def test_templates_are_code_in_tags_and_sentences_between() -> None:
    text = '<p class="card" title="A card">{{ node.cards|length }} cards</p>'
    assert rename.rename_html(text, renamer()) == ('<p class="device" title="A GPU">{{ node.devices|length }} GPUs</p>')


def test_two_names_that_would_become_one_are_found() -> None:
    found = rename.clashes("a.py", "def f(card, device): pass\n", renamer())
    assert found == ["a.py:1 f: card and device -> device"]


def test_a_rule_that_would_rename_again_is_refused() -> None:
    with pytest.raises(rename.RenameError, match="would be renamed again"):
        rename.read_table('[a]\n[[a.rule]]\nwords = { node = "node_pool" }\n')


def test_an_unknown_key_is_refused() -> None:
    with pytest.raises(rename.RenameError, match="wrods"):
        rename.read_table('[a]\n[[a.rule]]\nwrods = { b = "c" }\n')


FILES = [
    "src/commonage/__init__.py",
    "src/commonage/old/__init__.py",
    "src/commonage/old/plan.py",
    "src/commonage/old/grid.py",
    "src/commonage/old/rules.py",
    "tests/unit/old/test_grid.py",
]


def places() -> rename.Places:
    moves = {
        "commonage.old": "commonage.new",
        "commonage.old.grid": "commonage.new.model.grid",
        "commonage.old.rules": "commonage.old.rules.table",
    }
    return rename.Places(moves, FILES)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("src/commonage/old/plan.py", "src/commonage/new/plan.py"),
        ("src/commonage/old/grid.py", "src/commonage/new/model/grid.py"),
        ("tests/unit/old/test_grid.py", "tests/unit/new/model/test_grid.py"),
        ("src/commonage/other.py", "src/commonage/other.py"),
    ],
)
def test_files_follow_their_modules_and_tests_follow_both(old: str, new: str) -> None:
    assert places().path(old) == new


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("from commonage.old.grid import Grid\n", "from commonage.new.model.grid import Grid\n"),
        ("from commonage.old import grid\n", "from commonage.new.model import grid\n"),
        ("from commonage.old import rules\nrules.x\n", "from commonage.old.rules import table\ntable.x\n"),
        ("from commonage.old import rules\nf(rules)\n", "from commonage.old.rules import table as rules\nf(rules)\n"),
        ('HOME = "commonage.old.plan:run"\n', 'HOME = "commonage.new.plan:run"\n'),
        (
            "# see old/grid.py and src/commonage/old/plan.py\n",
            "# see new/model/grid.py and src/commonage/new/plan.py\n",
        ),
    ],
)
def test_imports_strings_and_paths_follow(old: str, new: str) -> None:
    assert places().text("src/commonage/user.py", old) == new


def test_a_file_that_moves_deeper_counts_its_parents_anew() -> None:
    text = "ROOT = Path(__file__).parents[1]\n"
    assert places().text("src/commonage/old/grid.py", text) == "ROOT = Path(__file__).parents[2]\n"


def test_a_second_application_changes_nothing() -> None:
    once = rename.rename_python('card = "free_cards"  # a card\n', renamer())
    assert rename.rename_python(once, renamer()) == once


def test_long_comments_and_docstrings_are_wrapped() -> None:
    text = f'def f():\n    """{"word " * 24}end."""\n'
    wrapped = rename.wrap(text)
    assert max(map(len, wrapped.splitlines())) <= rename.WIDTH
    assert wrapped.replace('"""', "").split() == text.replace('"""', "").split()
