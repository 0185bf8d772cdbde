"""Numbers change with a revision only."""

import pytest

from fltrain.core.hashing import canonical_json

from ..golden import golden
from ..golden.golden import Entry
from ..released import UNTRACKED

ENTRIES = [
    entry for entry in golden.entries() if not any(f"({module})" in entry.revision for module in UNTRACKED)
]
KEPT = golden.read()


LARGE = ("resnet", "vgg", "mobilenetv")
"""Beginnings of the names of networks that take seconds."""
DAILY = [
    entry
    for entry in ENTRIES
    if "=" not in entry.name and not entry.name.endswith(" normed") and not entry.name.startswith(LARGE)
]
"""Components with their defaults, and the engine's settings; `make test-slow` checks all variants."""


@pytest.mark.parametrize(
    "entry",
    [entry if entry in DAILY else pytest.param(entry, marks=pytest.mark.slow) for entry in ENTRIES],
    ids=lambda entry: entry.name,
)
def test_numbers_change_with_a_revision_only(entry: Entry) -> None:
    problem = golden.fault(entry, KEPT)
    assert problem is None, problem


def test_there_are_no_numbers_of_removed_entries() -> None:
    left_over = KEPT.keys() - {entry.key for entry in ENTRIES}
    assert not left_over, f"no entry has these keys any more, run `make golden`: {sorted(left_over)}"


def test_no_two_entries_have_the_same_numbers() -> None:
    """A choice without an effect would not be tested: see ``COMPANIONS`` and ``SETTING``."""
    by_numbers: dict[str, list[str]] = {}
    for entry in ENTRIES:
        if entry.key not in KEPT:
            continue  # the test above names it
        by_numbers.setdefault(canonical_json(KEPT[entry.key]), []).append(entry.name)
    assert [names for names in by_numbers.values() if len(names) > 1] == []
