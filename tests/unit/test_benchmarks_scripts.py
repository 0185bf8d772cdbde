"""The scripts that measure how rounds grow, how runs start, and everything on a GPU: what they say is so."""

import importlib
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from fltrain.core.errors import FltrainError

from .helpers import CPU

ROOT = Path(__file__).parents[2]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> ModuleType:
    """The script that a test names."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    monkeypatch.chdir(ROOT)
    return importlib.import_module(request.param)


scaling = pytest.mark.parametrize("script", ["scaling"], indirect=True)
startup = pytest.mark.parametrize("script", ["startup"], indirect=True)
cuda = pytest.mark.parametrize("script", ["on_cuda"], indirect=True)


# ---------------------------------------------------------------- scaling
@scaling
def test_a_curve_is_measured(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = script.Setting(model="mobilenet_tiny", dataset="digits", clients=4, per_round=1, epochs=1)
    monkeypatch.setattr(script, "METHODS", ("scaffold",))
    monkeypatch.setattr(script, "LIMIT_MB", 0)
    monkeypatch.setitem(script.CURVES, "per_round", ((1, 4), base))
    points = script.measure("per_round", script.Where(CPU, "sequential", tmp_path), repeats=2)
    assert [(point.setting.steps, len(point.seconds)) for point in points] == [(2, 2), (8, 2)]
    for point in points:
        assert point.in_file and point.kept == pytest.approx(4 * 4 * point.parameters / 1e6)
        assert point.memory > 0 and min(point.seconds) > 0


@scaling
def test_growth_and_ratios_are_those_of_the_times(script: ModuleType) -> None:
    """A round of four clients takes 4 ** 1.5 times that of one, each of its steps twice as long."""
    points = [
        script.Point(script.Setting(per_round=n), n, method, 10, 1.0, 1.0, False, [seconds, 3 * seconds])
        for method in script.METHODS
        for n, seconds in ((1, 0.5), (4, 4.0))
    ]
    assert script.power(points[:2]) == pytest.approx(1.5)
    lines = list(script.table("per_round", points))
    assert "| 2.00 (2.00 to 2.00) |" in lines[3]
    assert lines[-1] == "scaffold: the time of a round grows as per_round ** 1.50"


# ---------------------------------------------------------------- startup
@pytest.mark.slow
@startup
def test_a_run_passes_all_stages_and_imports_nothing_heavy(script: ModuleType, tmp_path: Path) -> None:
    (spec,) = script.demo_specs(tmp_path, 1)
    arguments = ["train", str(spec), "--quiet", "--device", "cpu", "--results", str(tmp_path / "results")]
    script.start_once(arguments)
    passed, heavy = script.start_once(arguments)
    assert tuple(one["stage"] for one in passed) == script.STAGES
    for clock in ("wall", "cpu"):
        times = [one[clock] for one in passed]
        assert times == sorted(times) and times[0] > 0
    assert heavy == []


# ---------------------------------------------------------------- cuda
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@cuda
def test_without_a_gpu_there_is_one_line(
    script: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "argv", ["on_cuda.py", "--out", str(tmp_path / "out")])
    with pytest.raises(SystemExit) as left:
        script.main()
    out, err = capsys.readouterr()
    assert left.value.code == 2 and not out and not (tmp_path / "out").exists()
    assert re.fullmatch(r"error: --device: 'cuda', but this machine has 0 CUDA devices; .*\n", err)


@cuda
def test_the_cpu_is_not_asked_for_products_of_ten_bits(script: ModuleType, tmp_path: Path) -> None:
    on_cpu = script.parts(script.Machine("cpu", tmp_path), script.REHEARSAL, None)
    on_gpu = script.parts(script.Machine("cuda:0", tmp_path), script.REHEARSAL, tmp_path / "c.npz")
    assert set(on_gpu) - set(on_cpu) == {
        "bench-mobilenet_tiny-tf32-exact",
        "scaling-cuda_graph",
        "accuracy-cifar10",
    }
    assert set(on_cpu) < set(on_gpu)


@cuda
def test_accuracies_are_compared_seed_by_seed(script: ModuleType) -> None:
    accuracies = {"reference": [50.0, 60.0, 70.0], "other": [51.0, 61.5, 71.0]}
    _, _, first, other = script.accuracy_lines(accuracies, {"reference": [b"a"], "other": [b"b"]})
    assert first == "| reference | 60.00 ± 10.00 | +0.00 (+0.00 to +0.00) | yes |"
    # 1, 1.5 and 1: 1.167 on average, 0.289 apart; t of 2 degrees of freedom is 4.303.
    assert other == "| other | 61.17 ± 10.00 | +1.17 (+0.45 to +1.88) | no |"


@cuda
def test_output_is_kept_and_failures_are_noticed(script: ModuleType, tmp_path: Path) -> None:
    machine = script.Machine("cpu", tmp_path)
    with pytest.raises(FltrainError, match=r"^one: .* ended with 2$"):
        machine.run("one", ["-m", "fltrain", "bench", "--model", "lenet"])
    machine.run("two", ["-c", "import sys; print(sys.argv[1:])"])
    assert "unknown 'lenet'" in (tmp_path / "one.txt").read_text()
    assert (tmp_path / "two.txt").read_text().endswith("['--device', 'cpu']\n")
