"""Images recovered from features: similarity measures, attacks, targets, and the figure."""

import base64
import io
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from fltrain.analysis import feature_inversion as inversion
from fltrain.analysis.feature_inversion import (
    Inverted,
    Recovered,
    invert,
    private_images,
    recover,
    ssim,
)
from fltrain.analysis.trained_model import TrainedRun
from fltrain.core.files import write_json
from fltrain.data.partition import class_counts
from fltrain.engine.data import FederatedData, ImageSet
from fltrain.experiments.layout import Attack, Inversion, ItemJob
from fltrain.reporting.figures import draw as figures
from fltrain.reporting.figures import models
from fltrain.reporting.figures.models import draw_inversion
from fltrain.runs.record import Record, Results

from .helpers import CPU, Cells, seal, tiny, trained

ATTACK = {"steps": 150, "lr": 0.01, "ema": 0.9, "channels": 8}


def layout(**settings: Any) -> Inversion:
    """A figure's layout as written in a config; one step of a small attack by default."""
    return Inversion.parse({"kind": "inversion", "attack": {**ATTACK, "steps": 1}, **settings}, "test")


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def naive_ssim(image: NDArray[np.float64], other: NDArray[np.float64], side: int) -> float:
    """Wang et al. (2004), equation 13, window by window; images ``[channels, height, width]``."""
    line = np.exp(-((np.arange(side) - side // 2) ** 2) / (2 * 1.5**2))
    window = np.outer(line, line) / line.sum() ** 2
    values = []
    for x, y in zip(image, other, strict=True):
        for top in range(x.shape[0] - side + 1):
            for left in range(x.shape[1] - side + 1):
                a, b = (plane[top : top + side, left : left + side] for plane in (x, y))
                ma, mb = (window * a).sum(), (window * b).sum()
                va, vb = (window * (a - ma) ** 2).sum(), (window * (b - mb) ** 2).sum()
                cov = (window * (a - ma) * (b - mb)).sum()
                c1, c2 = 0.01**2, 0.03**2
                values.append((2 * ma * mb + c1) * (2 * cov + c2) / ((ma**2 + mb**2 + c1) * (va + vb + c2)))
    return float(np.mean(values))


@pytest.mark.parametrize(
    ("channels", "height", "width", "window"),
    [(1, 11, 13, 11), (3, 14, 14, 11), (1, 8, 8, 7), (3, 10, 10, 7), (1, 6, 7, 5)],
)
def test_structural_similarity_is_that_of_a_naive_loop(
    channels: int, height: int, width: int, window: int
) -> None:
    images, others = (random(2, channels, height, width, seed=seed) for seed in (1, 2))
    others[1] = 0.8 * images[1] + 0.2 * others[1]
    expected = [naive_ssim(*pair, window) for pair in zip(images.numpy(), others.numpy(), strict=True)]
    assert expected[1] > 0.5 > expected[0]
    assert ssim(images, others).tolist() == pytest.approx(expected, abs=1e-5)


@pytest.fixture(scope="module")
def victim() -> nn.Module:
    """An early layer of a random network: 8 maps of a grey image."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.LeakyReLU(0.1)).requires_grad_(False)


def smooth(count: int, channels: int = 1, side: int = 8) -> Tensor:
    """Images with visible structure: bright blobs."""
    return nn.functional.interpolate(random(count, channels, 3, 3, seed=5), (side, side), mode="bilinear")


def test_attacks_depend_on_their_seed_and_change_no_global_generator(victim: nn.Module) -> None:
    targets, chosen = victim(smooth(2)), Attack(**{**ATTACK, "steps": 5})
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].tolist()
    first, again, other = (invert(victim, targets, (1, 8, 8), chosen, seed) for seed in (1, 1, 2))
    assert torch.equal(first.images, again.images)
    assert torch.equal(first.loss, again.loss)
    assert not torch.equal(first.images, other.images)
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert np.random.get_state()[1].tolist() == numpy_state


@pytest.mark.parametrize(("channels", "side"), [(3, 13), (1, 28), (1, 4)])
def test_images_of_any_size_and_colour(channels: int, side: int) -> None:
    images = smooth(2, channels, side)
    inverted = invert(lambda x: 2 * x, 2 * images, images.shape[1:], Attack(**{**ATTACK, "steps": 12}))
    assert inverted.images.shape == images.shape
    assert 0 <= inverted.images.min() < inverted.images.max() <= 1
    assert (inverted.loss < inverted.before).all()
    mean_square = (2 * inverted.images - 2 * images).square().flatten(1).mean(1)
    assert inverted.loss.tolist() == pytest.approx(mean_square.tolist(), rel=1e-4), "the loss of the images"


def federated(labels: list[int], clients: list[list[int]]) -> FederatedData:
    """Empty images, divided over clients."""
    count, classes = len(labels), max(labels) + 1
    empty = ImageSet(
        torch.zeros(count, 1, 8, 8, dtype=torch.uint8), torch.tensor(labels), *[torch.ones(1, 8, 8)] * 2
    )
    owned = [np.array(client) for client in clients]
    counts = torch.from_numpy(class_counts(owned, np.array(labels), classes)).float()
    return FederatedData(empty, empty, tuple(map(torch.from_numpy, owned)), None, {}, classes, counts)


def test_private_images_are_those_of_the_client_with_most_of_the_class() -> None:
    labels = [0, 0, 0, 1, 1, 1, 2]
    data = federated(labels, [[3, 0, 6], [5, 2, 4, 1]])
    cases = list(private_images(data))
    assert [(case.label, case.client, case.image) for case in cases] == [
        (0, 1, 2),
        (1, 1, 5),
        (2, 0, 6),
        (0, 1, 1),
        (1, 1, 4),
    ], "sorted by rank within the class"
    assert cases[0].of_class.tolist() == cases[3].of_class.tolist() == [2, 1]
    assert cases[2].of_class.tolist() == [6]
    assert cases[2].of_client.tolist() == [3, 0, 6]
    assert [cases[2].averaged(target) for target in ("raw", "class_mean", "mean")] == [1, 1, 3]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return Results(tmp_path_factory.mktemp("results"))


@pytest.fixture(scope="module")
def record(results: Results) -> Record:
    """A trained run whose record contains its model."""
    return trained(tiny(evaluation={"keep": "model"}), results.root)


@pytest.fixture(scope="module")
def run(record: Record, results: Results) -> TrainedRun:
    return TrainedRun(record, results, CPU)


@pytest.fixture(scope="module")
def recovered(run: TrainedRun) -> Recovered:
    """Images recovered by a strong attack."""
    return recover(run, layout(attack={**ATTACK, "steps": 400}, noises=[0.0, 0.5], images=4))


def test_raw_features_reveal_images_and_means_do_not(recovered: Recovered) -> None:
    raw, mean, noisy, all_classes = recovered.recoveries
    assert (raw.before / raw.loss).min() > 100
    assert (raw.recovered.psnr > recovered.class_means.psnr + 10).all()
    for other in (mean, noisy, all_classes):
        assert (other.recovered.psnr < recovered.baseline(other).psnr + 4).all()
        assert (other.recovered.psnr < raw.recovered.psnr - 10).all()
        assert (other.recovered.ssim < raw.recovered.ssim).all()
    assert (noisy.loss > mean.loss).all()
    assert not torch.equal(noisy.recovered.images, mean.recovered.images)


def test_images_and_means_are_compared_with_the_nearest_private_image(
    recovered: Recovered, run: TrainedRun
) -> None:
    """PSNR and SSIM to the nearest candidate image, found by a search one by one."""
    images = run.data.train.images.double().numpy() / 255
    recoveries = [(recovery.recovered, recovery.row.target == "mean") for recovery in recovered.recoveries]
    for batch, of_client in [(recovered.class_means, False), (recovered.client_means, True), *recoveries]:
        for place, case in enumerate(recovered.private):
            image = batch.images[place].double().numpy()
            ids = (case.of_client if of_client else case.of_class).tolist()
            error, nearest = min((((images[index] - image) ** 2).mean(), index) for index in ids)
            assert batch.psnr[place].item() == pytest.approx(-10 * math.log10(error), abs=1e-3)
            assert batch.ssim[place].item() == pytest.approx(naive_ssim(image, images[nearest], 7), abs=1e-4)
    for place, case in enumerate(recovered.private):
        for batch, ids in ((recovered.class_means, case.of_class), (recovered.client_means, case.of_client)):
            np.testing.assert_allclose(batch.images[place].numpy(), images[ids.numpy()].mean(0), atol=1e-6)
        np.testing.assert_allclose(recovered.images[place].numpy(), images[case.image], atol=1e-6)


Spied = Callable[..., tuple[Tensor, Recovered]]


@pytest.fixture
def targets_of(run: TrainedRun, monkeypatch: pytest.MonkeyPatch) -> Spied:
    """A function from settings to the attacked targets ``[rows, images, ...]`` and the recovered images."""

    def spied(**settings: Any) -> tuple[Tensor, Recovered]:
        seen: list[Tensor] = []

        def watched(features: Any, targets: Tensor, *rest: Any) -> Inverted:
            seen.append(targets)
            return invert(features, targets, *rest)

        monkeypatch.setattr(inversion, "invert", watched)
        result = recover(run, layout(**settings))
        return seen[0].unflatten(0, (len(result.recoveries), -1)), result

    return spied


@pytest.mark.parametrize("batch", [inversion.BATCH, 7], ids=["one batch", "several batches"])
def test_targets_are_features_at_the_cut_and_their_means(
    batch: int, targets_of: Spied, run: TrainedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inversion, "BATCH", batch)
    targets, result = targets_of(split=7, images=2)
    network, train = run.network, run.data.train

    def features(index: int) -> Tensor:
        image = (train.images[index : index + 1].float() / 255 - 0.3053) / 0.3759  # see config/datasets.yaml
        with torch.no_grad():
            for name, block in network.named_children():
                image = block(image)
                if name == "stage2":
                    return image[0].double()
        raise AssertionError

    for place, case in enumerate(result.private):
        expected = [
            features(case.image),
            sum(features(index) for index in case.of_class.tolist()) / len(case.of_class),
            sum(features(index) for index in case.of_client.tolist()) / len(case.of_client),
        ]
        for row, value in enumerate(expected):
            torch.testing.assert_close(targets[row, place].double(), value, atol=1e-5, rtol=1e-5)


def test_noise_has_the_set_deviation_and_is_equal_for_all_targets(targets_of: Spied) -> None:
    targets, _ = targets_of(targets=["class_mean"], noises=[0.0, 0.01, 0.1], images=5)
    clean, little, much = targets
    assert (little - clean).std().item() == pytest.approx(0.01, rel=0.05)
    assert (much - clean).mean().abs() < 0.01
    torch.testing.assert_close((much - clean), 10 * (little - clean), atol=1e-5, rtol=0)
    assert not torch.allclose(much[0] - clean[0], much[1] - clean[1]), "each image has separate noise"


def sheet(*records: Record) -> ItemJob:
    """A sheet with one point, and a seed for each record; the first seed is the largest."""
    cells = Cells(Path("nowhere"))
    for number, record in enumerate(records):
        cells.place({"method": "FedAvg"}, record.run_id, seed=42 - number)
    return cells.sheet(id="toy/figure")


def test_the_figure_has_private_images_mean_images_and_a_row_per_target(recovered: Recovered) -> None:
    ((panel,),), numbers = draw_inversion(recovered)
    tiles = pd.DataFrame(panel["data"]["values"])
    assert [*dict.fromkeys(tiles["row"])] == [
        "private images",
        "mean image of the class",
        "from raw features",
        "from class means",
        "from class means, noise 0.5",
        "from the mean of all classes",
    ]
    assert tiles["image"].head(4).tolist() == [f"{place + 1}: class {place}" for place in range(4)]
    assert len(numbers) == 16
    for place, row in enumerate(tiles[tiles["row"] == "from raw features"].itertuples()):
        batch = recovered.recoveries[0].recovered
        assert row.text == f"{batch.psnr[place]:.1f} dB, {batch.ssim[place]:.2f}"
        picture = np.asarray(Image.open(io.BytesIO(base64.b64decode(row.url.partition(",")[2]))))
        expected = 255 * batch.images[place, 0].numpy()
        np.testing.assert_allclose(picture[::4, ::4, 0], expected, atol=0.51)


def test_the_first_seed_is_attacked(record: Record, results: Results) -> None:
    other = trained(tiny(evaluation={"keep": "model"}, seed=1), results.root)
    figure = layout(images=2)
    expected = draw_inversion(recover(TrainedRun(record, results, CPU), figure))[1]
    pd.testing.assert_frame_equal(models.draw(sheet(record, other), figure, results)[1], expected)
    assert not models.draw(sheet(other, record), figure, results)[1].equals(expected)


def test_a_figure_of_a_run_that_diverged_is_empty(record: Record, tmp_path: Path) -> None:
    folder = Results(tmp_path).run(record.run_id)
    shutil.copytree(record.folder, folder)
    write_json(folder / "summary.json", {**record.summary, "status": "diverged"})
    seal(folder)
    drawn = sheet(record).model_copy(update={"figure": layout()})
    spec, numbers = figures.draw(drawn, Results(tmp_path))
    assert spec["vconcat"][0]["hconcat"][0]["mark"]["text"] == "no run"
    assert numbers.empty
