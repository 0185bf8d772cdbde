"""A run on random images, to measure the engine without the run's dataset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from fltrain.core.errors import FltrainError
from fltrain.data.prepared import Partition, PreparedData
from fltrain.engine.local import LocalTraining
from fltrain.engine.simulation import Simulation, Trainer
from fltrain.runs.spec import RunSpec


def synthetic_run(
    settings: Mapping[str, Any],
    images: int,
    tests: int,
    device: torch.device,
    trainer: Trainer = LocalTraining,
) -> Simulation:
    """Return a simulation of a run with random images.

    Args:
        settings: the run; by default it neither ends nor tests. Only the number of clients of its partition
            matters.
        images: training images of each client.
        tests: number of test images; with local test splits, the clients share them.
        device: device of the run.
        trainer: local training.

    Raises:
        FltrainError: if the settings are wrong, or the registry lacks the size of the images.
    """
    spec = RunSpec.parse({"rounds": 10**6, "evaluation": {"every": 10**6}, **settings}, "synthetic run")
    entry, side = spec.dataset.entry, spec.dataset.side
    if not (entry.channels and entry.classes and side):
        raise FltrainError(
            f"dataset {spec.dataset.name!r}: the registry lacks the size of its images; state "
            "channels, side and classes in config/datasets.yaml"
        )
    clients = spec.partition.clients
    generator, count = np.random.default_rng(0), clients * images
    pixels = generator.integers(0, 256, (count + tests, entry.channels, side, side), np.uint8)
    labels = np.arange(count + tests) % entry.classes
    generator.shuffle(labels[:count])
    data = PreparedData(
        pixels[:count],
        labels[:count],
        pixels[count:],
        labels[count:],
        entry.classes,
        mean=(0.5,) * entry.channels,
        std=(0.25,) * entry.channels,
        digest="",
    )
    parts = np.array_split(np.arange(count), clients)
    aside = np.array_split(np.arange(count, count + tests), clients) if spec.local_test else None
    return Simulation(spec, data, Partition(parts, "", aside), device, trainer)
