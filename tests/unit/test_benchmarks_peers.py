"""The comparison with other simulators: the description of the work is complete and gives equal results."""

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from fltrain.engine.executors.sequential import SequentialExecutor

ROOT = Path(__file__).parents[2]


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    for folder in ("benchmarks", "benchmarks/peers"):
        monkeypatch.syspath_prepend(ROOT / folder)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield {name: importlib.import_module(name) for name in ("task", "describe", "run_bare", "run_ours")}
    torch.set_num_threads(threads)


def grey_digits() -> dict[str, np.ndarray]:
    """Digits of 16 x 16 pixels in the layout of MedMNIST's files."""
    images, labels = load_digits(return_X_y=True)
    pixels = np.kron(images.reshape(-1, 8, 8), np.ones((1, 2, 2))).astype(np.uint8) * 15
    arrays = {"train_images": pixels[:1500], "test_images": pixels[1500:]}
    return {**arrays, "train_labels": labels[:1500, None], "test_labels": labels[1500:, None]}


def test_the_bare_loop_and_the_engine_end_at_the_same_weights(
    peers: dict[str, ModuleType], tmp_path: Path
) -> None:
    describe, task_module = peers["describe"], peers["task"]
    case = describe.Case("lenet5", 75, 2, {"epochs": 2, "batch_size": 10, "lr": 0.05})
    spec = describe.spec_of("mnist", case)
    described = describe.write_task(tmp_path, spec, grey_digits(), case.rounds, case.shards)
    task = task_module.read(str(tmp_path))
    assert task == described

    # The engine's memory layout: others round differently, which BatchNorm magnifies.
    bare, bare_report = peers["run_bare"].run(task, "channels_last")
    simulation, report = peers["run_ours"].run(task, SequentialExecutor)

    assert len(bare_report.ends) == len(report.ends) == case.rounds
    ours = torch.cat([simulation.server.weights, simulation.server.buffers])
    theirs = torch.cat([tensor.detach().flatten() for tensor in task_module.trained(bare)])
    start = torch.from_numpy(task.arrays["start"])
    assert len(simulation.server.weights) == len(start)
    assert (theirs[: len(start)] - start).abs().max() > 1e-2
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)
    assert task_module.accuracy(ours, task) == pytest.approx(task_module.accuracy(theirs, task), abs=0.01)
