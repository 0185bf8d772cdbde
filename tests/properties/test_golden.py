"""Numbers change with a revision, or not at all."""

from dataclasses import replace

import pytest

from fltrain.core.errors import FltrainError
from fltrain.core.hashing import canonical_json
from fltrain.data.partition import SCHEMES
from fltrain.methods import METHODS
from fltrain.methods.training import LEARNING_RATES
from fltrain.models.networks import MODELS

from ..golden import golden
from ..golden.golden import Entry, Numbers

ENTRIES = golden.entries()
KEPT = golden.read()


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_numbers_change_with_a_revision_only(entry: Entry) -> None:
    said = golden.fault(entry, KEPT)
    assert said is None, said


def test_there_are_no_numbers_of_what_is_no_more() -> None:
    left_over = KEPT.keys() - {entry.key for entry in ENTRIES}
    assert not left_over, f"no entry has these keys any more, run `make golden`: {sorted(left_over)}"


def test_every_component_has_golden_numbers() -> None:
    names = {entry.name for entry in ENTRIES}
    assert len(names) == len(ENTRIES)
    assert names >= {*METHODS, *MODELS, *SCHEMES, *LEARNING_RATES}


def test_no_two_entries_have_the_same_numbers() -> None:
    """A choice that makes no difference would not be watched at all: see ``COMPANIONS`` and ``SETTING``."""
    by_numbers: dict[str, list[str]] = {}
    for entry in ENTRIES:
        by_numbers.setdefault(canonical_json(KEPT[entry.key]), []).append(entry.name)
    assert [names for names in by_numbers.values() if len(names) > 1] == []


# ------------------------------------------------------------------------------------ the check itself
KEPT_ONE: Numbers = {"loss": [2.5, 1.5], "~norm": 100.0, "bytes": [10, 20], "digest": "a", "by": {"fc": 1.0}}


def entry(name: str = "one", key: str = "one-1", **numbers: object) -> Entry:
    return Entry(name, key, f"{name}.revision", lambda: {**KEPT_ONE, **numbers})


@pytest.mark.parametrize(
    "changed",
    [
        {"loss": [2.5, 1.5 * (1 + 2 * golden.FINE)]},
        {"loss": [2.5]},
        {"~norm": 100 * (1 + 2 * golden.ROUGH)},
        {"bytes": [10, 21]},
        {"digest": "b"},
        {"by": {"fc": 1.001}},
        {"by": {"conv": 1.0}},
        {"accuracy": 1.0},
    ],
    ids=str,
)
def test_changed_numbers_are_told_and_not_kept(changed: Numbers) -> None:
    kept = {"one-1": KEPT_ONE, "two-1": KEPT_ONE}
    said = golden.fault(entry(**changed), kept)
    assert said is not None
    assert "numbers of one changed but its revision did not: raise one.revision" in said
    assert "make golden" in said and next(iter(changed)) in said
    with pytest.raises(FltrainError, match="numbers of one changed") as refused:
        golden.updated([entry(**changed), entry("two", "two-1"), entry("new", "new-1")], kept)
    assert "two.revision" not in str(refused.value)


@pytest.mark.parametrize(
    "rounding",
    [{"loss": [2.5 * (1 + golden.FINE / 2), 1.5]}, {"~norm": 100 * (1 - golden.ROUGH / 2)}],
    ids=str,
)
def test_rounding_is_no_change_and_is_not_kept(rounding: Numbers) -> None:
    kept = {"one-1": KEPT_ONE}
    assert golden.fault(entry(**rounding), kept) is None
    assert golden.updated([entry(**rounding)], kept) == kept


def test_a_new_key_has_to_be_kept_and_an_old_one_goes() -> None:
    raised = replace(entry(loss=[1 / 3]), key="one-2")
    said = golden.fault(raised, {"one-1": KEPT_ONE})
    assert said is not None and said.endswith("one-2 has no golden numbers: run `make golden`")
    assert golden.updated([raised], {"one-1": KEPT_ONE}) == {"one-2": {**KEPT_ONE, "loss": [0.3333333]}}


def test_kept_numbers_are_written_and_read(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(golden, "GOLDEN", tmp_path / "golden.json")
    assert golden.read() == {}
    golden.write({"two-1": KEPT_ONE, "one-1": {"loss": [0.1]}})
    assert golden.read() == {"two-1": KEPT_ONE, "one-1": {"loss": [0.1]}}
    assert len((tmp_path / "golden.json").read_text().splitlines()) == 4
