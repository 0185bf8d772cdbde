"""The scripts that measure how rounds grow, how runs start, and everything on a GPU: what they say is so."""

import csv
import importlib
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from fltrain.core.errors import FltrainError
from fltrain.engine.client_store import ClientStore

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
def tiny(script: ModuleType) -> Any:
    """A curve of two points with the smallest network."""
    base = script.Setting(model="mobilenet_tiny", dataset="digits", clients=4, per_round=1, epochs=1)
    return script.Curve("per_round", (1, 4), "Clients", "clients", base)


@scaling
def test_what_clients_keep_is_there_and_spills(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "LIMIT_MB", 0)
    setting = tiny(script).settings[0]
    where = script.Where(CPU, "loop", tmp_path)
    simulation = setting.simulation("scaffold", where)
    store = simulation.clients
    assert isinstance(store, ClientStore) and store.spilled and len(store) == 4
    assert store.bytes == 4 * 4 * simulation.model.layout.size
    assert len(simulation.sample(0)) == 1
    assert simulation.round(0) and simulation.costs.samples == setting.steps * script.BATCH


@pytest.mark.slow
@scaling
def test_a_curve_is_measured(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "METHODS", ("scaffold",))
    curve, where = tiny(script), script.Where(CPU, "loop", tmp_path)
    monkeypatch.setitem(script.CURVES, "per_round", curve)
    points = script.measure(curve, where, repeats=2)
    assert [(point.steps, len(point.seconds)) for point in points] == [(2, 2), (8, 2)]
    for point in points:
        assert point.memory.peak > point.memory.kept > point.memory.images > 0
        assert not point.memory.in_file and min(point.seconds) > 0 and point.gflop > 0
    script.write({"per_round": points}, tmp_path / "all.csv")
    with (tmp_path / "all.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["per_round"], row["repeat"]) for row in rows] == [
        ("1", "0"),
        ("1", "1"),
        ("4", "0"),
        ("4", "1"),
    ]
    script.draw({"per_round": points}, where, tmp_path / "all.png")
    assert (tmp_path / "all.png").stat().st_size > 10_000


@scaling
def test_growth_and_ratios_are_those_of_the_times(script: ModuleType) -> None:
    """A round of four clients takes 4 ** 1.5 times that of one, each of its steps twice as long."""
    curve, memory = tiny(script), script.Memory(1.0, 1.0, 1.0, False)
    points = [
        script.Point(curve, setting, "fedavg", 10, 1.0, memory, [seconds, 3 * seconds])
        for setting, seconds in zip(curve.settings, (0.5, 4.0), strict=True)
    ]
    assert script.power(points) == pytest.approx(1.5)
    assert script.of_first(points[1], points[0]) == "2.00 (2.00 to 2.00)"
    assert points[0].step_ms == pytest.approx(500) and points[1].step_ms == pytest.approx(1000)


@scaling
def test_the_most_memory_is_that_of_the_process(script: ModuleType) -> None:
    now, before = script.now_mb(CPU), script.peak_mb(CPU)
    taken = np.ones(int(before - now + 100) * 10**6, np.uint8)
    assert script.peak_mb(CPU) > before + 80  # the system counts some pages late
    assert taken.all()


# ---------------------------------------------------------------- startup
@pytest.mark.slow
@startup
def test_a_run_passes_all_stages_and_imports_nothing_heavy(script: ModuleType, tmp_path: Path) -> None:
    (spec,) = script.demo_specs(tmp_path, 1)
    arguments = ["train", str(spec), "--quiet", "--device", "cpu", "--results", str(tmp_path / "results")]
    script.start_once(arguments)
    passed, heavy = script.start_once(arguments)
    assert tuple(one.stage for one in passed) == script.STAGES
    clocks, processors = [one.clock for one in passed], [one.processor for one in passed]
    assert clocks == sorted(clocks) and processors == sorted(processors) and clocks[0] > 0
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
    assert re.fullmatch(r"error: --device: 'cuda' asked for, but this machine has 0 CUDA devices; .*\n", err)


@cuda
def test_the_cpu_is_not_asked_for_products_of_ten_bits(script: ModuleType, tmp_path: Path) -> None:
    on_cpu = script.parts(script.Machine(CPU, tmp_path), script.REHEARSAL, None)
    on_gpu = script.parts(script.Machine(torch.device("cuda"), tmp_path), script.FULL, tmp_path / "c.npz")
    assert set(on_gpu) - set(on_cpu) == {"bench-tf32-exact", "accuracy-cifar10"}
    assert set(on_cpu) < set(on_gpu)


@cuda
def test_accuracies_are_compared_seed_by_seed(script: ModuleType) -> None:
    accuracies = {"loop": [50.0, 60.0, 70.0], "graph": [50.0, 60.0, 70.0], "stack": [51.0, 61.5, 71.0]}
    metrics = {"loop": [b"a"], "graph": [b"a"], "stack": [b"b"]}
    _, _, loop, graph, stack = script.accuracy_lines(accuracies, metrics)
    assert loop == "| loop | 60.00 ± 10.00 | +0.00 (+0.00 to +0.00) | yes | yes |"
    assert graph.endswith("| yes | yes |")
    # 1, 1.5 and 1: 1.167 on average, 0.289 apart; t of 2 degrees of freedom is 4.303.
    assert stack == "| stack | 61.17 ± 10.00 | +1.17 (+0.45 to +1.88) | no | no |"


@cuda
def test_what_programs_say_is_kept_and_failures_are_noticed(script: ModuleType, tmp_path: Path) -> None:
    machine = script.Machine(CPU, tmp_path)
    with pytest.raises(FltrainError, match=r"^one: .* ended with 2$"):
        machine.run("one", ["-m", "fltrain", "bench", "--models", "lenet"])
    machine.run("two", ["-c", "import sys; print(sys.argv[1:])"])
    assert "unknown 'lenet'" in (tmp_path / "one.txt").read_text()
    assert (tmp_path / "two.txt").read_text().endswith("['--device', 'cpu']\n")
