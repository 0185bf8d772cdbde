"""``benchmarks bench``: the bare loop against the engine, refusals."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.bench import TRAINERS, Bare, Bench, model_of, timed
from fltrain.core.errors import MethodError
from fltrain.engine.local import LocalTraining

from .helpers import CPU

SMALL: dict[str, Any] = {
    "model": "mobilenet_tiny",
    "dataset": "digits",
    "method": "fedavg",
    "device": CPU,
    "batch_size": 4,
    "clients": 2,
    "steps": 3,
    "repeats": 2,
}


def small(**changes: Any) -> Bench:
    """Settings of a very short measurement."""
    return Bench(**{**SMALL, **changes})


def test_the_bare_loop_equals_federated_averaging() -> None:
    """Weights and BatchNorm statistics equal the engine's after every round, also for unequal clients."""
    simulation = small().simulation("fedavg")
    first, second = simulation.data.clients
    object.__setattr__(simulation.data, "clients", (torch.cat([first, second[:4]]), second[4:]))
    bare = Bare(simulation)
    for number in range(2):
        before = model_of(bare)
        bare.round(number)
        simulation.round(number)
        assert torch.allclose(model_of(bare), model_of(simulation), rtol=0, atol=1e-6)
        assert not torch.allclose(model_of(bare), before, rtol=0, atol=1e-4)


class Careless(LocalTraining):
    """Drops the last client's training."""

    def train(self, round: Any, clients: Any, kept: Any) -> Any:
        first, *_ = super().train(round, clients[:1], kept)
        return [first] * len(clients)


def test_an_engine_with_different_results_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TRAINERS, "sequential", Careless)
    with pytest.raises(MethodError, match=r"^sequential: after a round .* its weights differ by "):
        timed(small())


@pytest.mark.slow
def test_measurements_of_a_gpu_can_be_rehearsed(tmp_path: Path) -> None:
    """Without the parts `scaling` and `startup`, which take minutes."""
    options = ("--rehearse", "--device", "cpu", "--only", "bench-mlp-fp32-exact", "accuracy")
    command = (sys.executable, "benchmarks", "on_cuda", *options, "--out", str(tmp_path))
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "bench-mlp-fp32-exact.json").read_text())["rows"]
    assert len(rows) == 2 and all(row["ratio"] > 0 for row in rows)
    assert "of bare" in (tmp_path / "bench-mlp-fp32-exact.txt").read_text()
    cases = (tmp_path / "accuracy-digits.txt").read_text()
    assert all(case in cases for case in ("reference", "fast", "bf16"))
