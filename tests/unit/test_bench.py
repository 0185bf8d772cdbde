"""``benchmarks bench``: the bare loop against the engine, refusals."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from benchmarks.bench import Bare, agree, contender, model_of

SMALL: dict[str, Any] = {
    "model": "mobilenet_tiny",
    "dataset": "digits",
    "method": "fedavg",
    "device": "cpu",
    "batch_size": 4,
    "clients": 2,
    "steps": 3,
    "precision": "fp32",
}


def test_the_bare_loop_equals_federated_averaging() -> None:
    """Weights and BatchNorm statistics equal the engine's after every round, also for unequal clients."""
    simulation = contender("this", "", SMALL)
    first, second = simulation.data.clients
    object.__setattr__(simulation.data, "clients", (torch.cat([first, second[:4]]), second[4:]))
    bare = Bare(simulation)
    for number in range(2):
        before = model_of(bare)
        bare.round(number)
        simulation.round(number)
        assert torch.allclose(model_of(bare), model_of(simulation), rtol=0, atol=1e-6)
        assert not torch.allclose(model_of(bare), before, rtol=0, atol=1e-4)


@pytest.mark.parametrize(("exact", "limit"), [(True, 1e-6), (False, 0.5)])
def test_ways_with_different_results_are_not_measured(exact: bool, limit: float) -> None:
    models = np.zeros((2, 4), np.float32)
    models[1, 0] = 2.0
    other = models.copy()
    other[1, 1] = 0.9 * limit
    agree("this", other, models, exact)
    other[1, 1] = 1.1 * limit
    with pytest.raises(SystemExit, match=r"^error: this: after a round its weights differ by "):
        agree("this", other, models, exact)


@pytest.mark.slow
def test_measurements_of_a_gpu_can_be_rehearsed(tmp_path: Path) -> None:
    """Without `scaling`, which takes minutes."""
    options = ("--rehearse", "--device", "cpu", "--only", "bench-mlp-fp32-exact", "startup")
    command = (sys.executable, "benchmarks", "on_cuda", *options, "--out", str(tmp_path))
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = pd.read_csv(tmp_path / "bench-mlp-fp32-exact.csv")
    assert set(rows["way"]) == {"bare", "this"} and (rows["wall"] > 0).all()
    assert "of the first" in (tmp_path / "bench-mlp-fp32-exact.txt").read_text()
    assert "first local step" in (tmp_path / "startup.txt").read_text()
