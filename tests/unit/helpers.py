"""A small training run on the handwritten digits."""

from pathlib import Path
from typing import Any

import torch

from fltrain.records import Record, Results
from fltrain.spec import RunSpec
from fltrain.train import train

CPU = torch.device("cpu")

TINY: dict[str, Any] = {
    "dataset": "digits",
    "partition": {"name": "dirichlet", "clients": 10},
    "model": "mobilenet_tiny",
    "method": "fedavg",
    "training": {"epochs": 1, "batch_size": 32, "lr": 0.1},
    "rounds": 3,
    "participation": {"fraction": 0.2},
}
"""A run of a fraction of a second, as a user would write it."""


def tiny(**changes: Any) -> RunSpec:
    """The small run with some settings replaced."""
    return RunSpec.parse({**TINY, **changes}, "test")


def trained(spec: RunSpec, root: Path) -> Record:
    """Train a run on one thread of the CPU."""
    return train(spec, Results(root), CPU, threads=1)
