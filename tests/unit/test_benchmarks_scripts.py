"""The scripts that measure the growth of round times, start-up times, and all work on a GPU."""

import importlib
from pathlib import Path
from types import ModuleType

import pytest

from .helpers import CPU

ROOT = Path(__file__).parents[2]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> ModuleType:
    """The script that a test names as parameter."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    monkeypatch.chdir(ROOT)
    return importlib.import_module(request.param)


scaling = pytest.mark.parametrize("script", ["scaling"], indirect=True)
cuda = pytest.mark.parametrize("script", ["on_cuda"], indirect=True)


@pytest.mark.slow
@scaling
def test_round_growth_is_measured(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = script.Setting(model="mobilenet_tiny", dataset="digits", clients=4, per_round=1, epochs=1)
    monkeypatch.setattr(script, "METHODS", ("scaffold",))
    monkeypatch.setattr(script, "LIMIT_MB", 0)
    monkeypatch.setitem(script.CURVES, "per_round", ((1, 4), base))
    points = script.measure("per_round", script.Where(CPU, "sequential", tmp_path), repeats=2)
    assert [(point.setting.steps, len(point.seconds)) for point in points] == [(2, 2), (8, 2)]
    for point in points:
        assert point.in_file and point.kept == pytest.approx(4 * 4 * point.parameters / 1e6)
        assert point.memory > 0 and min(point.seconds) > 0


@cuda
def test_accuracies_are_compared_seed_by_seed(script: ModuleType) -> None:
    accuracies = {"reference": [50.0, 60.0, 70.0], "other": [51.0, 61.5, 71.0]}
    _, _, first, other = script.accuracy_lines(accuracies)
    assert first == "| reference | 60.00 ± 10.00 | +0.00 (+0.00 to +0.00) |"
    # 1, 1.5 and 1: 1.167 on average, 0.289 apart; t of 2 degrees of freedom is 4.303.
    assert other == "| other | 61.17 ± 10.00 | +1.17 (+0.45 to +1.88) |"
