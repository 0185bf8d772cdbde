"""The comparison with other simulators: the description of the work is complete and gives all the same."""

import importlib
import sys
from collections.abc import Callable, Iterator
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


def colour_digits() -> dict[str, np.ndarray]:
    """Digits of 8 x 8 pixels, a colour image each."""
    arrays = grey_digits()
    for name in ("train_images", "test_images"):
        arrays[name] = np.stack([arrays[name][:, ::2, ::2]] * 3, axis=-1)
    return arrays


@pytest.mark.parametrize(
    ("dataset", "model", "digits", "parameters"),
    [("mnist", "lenet5", grey_digits, 21_386), ("cifar10", "ecgr_cnn", colour_digits, 1_129_472)],
)
def test_the_bare_loop_and_the_engine_end_at_the_same_weights(
    peers: dict[str, ModuleType],
    tmp_path: Path,
    dataset: str,
    model: str,
    digits: Callable[[], dict[str, np.ndarray]],
    parameters: int,
) -> None:
    describe, task_module = peers["describe"], peers["task"]
    case = describe.Case(model, 75, 2, {"epochs": 2, "batch_size": 10, "lr": 0.05})
    described = describe.write_task(
        tmp_path, describe.spec_of(dataset, case), digits(), case.rounds, case.shards
    )
    task = task_module.read(str(tmp_path))
    assert task == described

    # As the engine lays images out: other layouts round otherwise, which BatchNorm magnifies.
    bare, bare_report = peers["run_bare"].run(task, "channels_last")
    simulation, report = peers["run_ours"].run(task, SequentialExecutor)

    assert len(bare_report.ends) == len(report.ends) == case.rounds
    ours = torch.cat([simulation.server.weights, simulation.server.buffers])
    theirs = torch.cat([tensor.detach().flatten() for tensor in task_module.trained(bare)])
    start = torch.from_numpy(task.arrays["start"])
    assert len(simulation.server.weights) == len(start) == parameters
    assert (theirs[: len(start)] - start).abs().max() > 1e-2
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)
    assert task_module.accuracy(ours, task) == pytest.approx(task_module.accuracy(theirs, task), abs=0.01)


def test_clients_share_no_image_and_visit_each_of_theirs_once_in_an_epoch(
    peers: dict[str, ModuleType], tmp_path: Path
) -> None:
    describe = peers["describe"]
    case = describe.Case("lenet5", 50, 3, {"epochs": 2, "batch_size": 10, "lr": 0.05})
    arrays = grey_digits()
    task = describe.write_task(tmp_path, describe.spec_of("mnist", case), arrays, case.rounds, case.shards)

    orders = task.arrays["orders"]
    assert orders.shape == (3, 10, 2, 30)
    own = task.arrays["shards"]
    assert sorted(own.flatten()) == list(range(300))
    assert (np.sort(orders) == own[None, :, None]).all()
    assert len(np.unique(orders, axis=2)) == 3
    assert (orders[0] != orders[1]).any() and (orders[0, :, 0] != orders[0, :, 1]).any()
    # They are images of the file, with their labels.
    pairs = zip(arrays["train_images"], arrays["train_labels"][:, 0], strict=True)
    labels = {image.tobytes(): label for image, label in pairs}
    found = [labels[image.tobytes()] for image in task.arrays["train_images"]]
    assert found == task.arrays["train_labels"].tolist()


def test_batches_that_do_not_divide_the_images_of_a_client_are_refused(
    peers: dict[str, ModuleType], tmp_path: Path
) -> None:
    describe = peers["describe"]
    case = describe.Case("lenet5", 50, 3, {"epochs": 2, "batch_size": 7, "lr": 0.05})
    with pytest.raises(SystemExit, match="batches of 7 must divide a client's 30 images evenly"):
        describe.write_task(
            tmp_path, describe.spec_of("mnist", case), grey_digits(), case.rounds, case.shards
        )


def test_a_peer_that_fails_is_left_out_and_the_rest_is_kept(
    peers: dict[str, ModuleType],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    compare = importlib.import_module("compare")
    monkeypatch.setattr(compare, "python_of", lambda _: sys.executable)
    small = peers["describe"].Case("lenet5", 50, 3, {"epochs": 1, "batch_size": 10, "lr": 0.05})
    monkeypatch.setitem(compare.CASES, "mnist", small)
    np.savez(tmp_path / "digits.npz", **grey_digits())
    ours = compare.Entry("ours", "one thread", 1, arguments=("sequential",))
    bare = compare.Entry("bare", "one thread", 1, arguments=("channels_last",))
    broken = compare.Entry("pfl", "broken", 1, launcher=("-c", "raise SystemExit('as a peer does')"))

    rows = compare.compare("mnist", tmp_path / "digits.npz", [broken, ours, bare], small.rounds, 1)

    assert list(rows["who"]) == ["ours", "bare"]
    assert len(list(compare.table(rows))) == 4
    assert "left out: pfl (broken) failed; its last words:\nas a peer does" in capsys.readouterr().err
    with pytest.raises(SystemExit, match=r"ours .+ failed"):
        faulty = compare.Entry("ours", "in vain", 1, launcher=("-c", "raise SystemExit(1)"))
        compare.compare("mnist", tmp_path / "digits.npz", [faulty, bare], small.rounds, 1)
