"""Run IDs survive new settings, and no default changes unnoticed."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import Field

from fltrain.core.config import Settings, added
from fltrain.core.hashing import canonical_json
from fltrain.data.feature_skew import FeatureSkew
from fltrain.runs.spec import RunSpec

from ..golden import identity
from ..golden.identity import Locked
from .helpers import TINY, shipped

ROOT = Path(__file__).parents[2]

# Every class of settings derives from `Settings`, so a field of the base class is a new field in all of them.
NEW_SETTING_EVERYWHERE = """
import json
from pathlib import Path
import fltrain.core.config as config

class Nested(config.Settings):
    depth: int = config.added(2)

class Settings(config.Settings):
    new: float = config.added(0.5, ge=0)
    nested: Nested = config.added(Nested())

config.Settings = Settings
from fltrain.experiments.plan import plan
from fltrain.runs.spec import RunSpec

ids = [
    [entry.spec.run_id, entry.spec.partition_id]
    for item in plan(Path("config"), "demo").items for entry in item.entries
]
spec = RunSpec.parse(json.loads(%r), "spec")
everywhere = [spec, spec.dataset, spec.partition, spec.model, spec.method, spec.training, spec.local_test,
              spec.training.augmentation, spec.training.lr_schedule, spec.participation, spec.evaluation]
print(json.dumps([ids, spec.run_id, all(one.new == 0.5 and one.nested.depth == 2 for one in everywhere)]))
"""


def test_a_new_setting_in_every_class_changes_no_id() -> None:
    spec = {**TINY, "local_test": {"fraction": 0.25}}
    program = NEW_SETTING_EVERYWHERE % json.dumps(spec)
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    ids, run_id, has_new_setting = json.loads(done.stdout)
    assert has_new_setting
    assert run_id == RunSpec.parse(spec, "spec").run_id
    assert ids == [
        [entry.spec.run_id, entry.spec.partition_id]
        for item in shipped("demo").items
        for entry in item.entries
    ]


def test_a_revision_of_feature_skew_concerns_its_runs_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def ids() -> list[str]:
        return [RunSpec.parse(TINY | more, "spec").run_id for more in ({}, {"feature_skew": {"noise": 0.1}})]

    before = ids()
    monkeypatch.setattr(FeatureSkew, "revision", FeatureSkew.revision + 1)
    after = ids()
    assert before[0] == after[0] and before[1] != after[1]


class Inner(Settings):
    old: int = 1
    new: float = added(0.5)


class Outer(Settings):
    inner: Inner = Inner()
    several: tuple[Inner, ...] = Field(default=(), strict=False)
    switch: bool | int = added(False)


@pytest.mark.parametrize(
    ("written", "dumped"),
    [
        ({}, {"inner": {"old": 1}, "several": []}),
        ({"inner": {"new": 0.5}, "switch": False}, {"inner": {"old": 1}, "several": []}),
        ({"inner": {"new": 1}}, {"inner": {"old": 1, "new": 1.0}, "several": []}),
        (
            {"several": [{}, {"new": 2.0}]},
            {"inner": {"old": 1}, "several": [{"old": 1}, {"old": 1, "new": 2.0}]},
        ),
        ({"switch": 0}, {"inner": {"old": 1}, "several": [], "switch": 0}),
    ],
)
def test_added_settings_are_written_unless_they_have_their_default(
    written: dict[str, Any], dumped: dict[str, Any]
) -> None:
    outer = Outer.parse(written, "outer")
    assert canonical_json(outer.model_dump(mode="json")) == canonical_json(dumped)
    assert Outer.parse(dumped, "outer") == outer
    everything = outer.all_settings()
    assert everything["inner"]["new"] == outer.inner.new and everything["switch"] is outer.switch
    assert Outer.parse(everything, "outer") == outer


def test_the_lock_has_the_current_settings() -> None:
    locked, current = identity.read(), identity.current()
    assert identity.faults(locked, current) == []
    assert locked == current, "run `make golden` and commit tests/golden/identity.json"


LOCKED = {"Training": Locked(1, {"lr": 0.1}), "Method fedprox": Locked(2, {"mu": 0.1, "name": "fedprox"})}


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        (
            {"Training": Locked(1, {"lr": 0.2})},
            "default of Training.lr changed from 0.1 to 0.2: raise ENGINE_REV",
        ),
        ({"Training": Locked(2, {"lr": 0.2})}, None),
        ({"Training": Locked(1, {"lr": 0.1, "nu": 1})}, "Training.nu is new .* `added"),
        ({"Training": Locked(2, {"lr": 0.1, "nu": 1})}, None),
        ({"Training": Locked(1, {"lr": 0.1, "nu": 1}, frozenset({"nu"}))}, None),
        ({"Training": Locked(1, {})}, "Training.lr is gone"),
        ({"Training": Locked(1, {"lr": 0.1}, frozenset({"lr"}))}, "Training.lr is no longer"),
        ({"Method fedprox": Locked(2, {"mu": 1.0, "name": "fedprox"})}, "raise Method fedprox.revision"),
        ({"Method fedprox": Locked(3, {"mu": 1.0, "name": "fedprox"})}, None),
        ({"Method new": Locked(1, {"name": "new"})}, None),
    ],
)
def test_ids_change_with_a_revision_only(changes: dict[str, Locked], fault: str | None) -> None:
    faults = identity.faults(LOCKED, {**LOCKED, **changes})
    assert len(faults) == (fault is not None)
    assert fault is None or re.search(fault, faults[0])
