"""What augmentation costs: batches of CIFAR-10's size, as a share of a training step of the smallest network.

Images are random bytes. A training step is forward pass, backward pass and SGD of ``fedavg_cnn`` on a batch
that is ready. Drawing counts per batch. All is measured on one thread, in turns; times are medians of
processor seconds, which other work on the machine disturbs less than the clock.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from fltrain.data.augmentation import Augmentation
from fltrain.engine.augment import Augmented
from fltrain.engine.data import Split
from fltrain.models.build import build
from fltrain.models.catalogue import FedAvgCnn

IMAGES, CHANNELS, SIDE, CLASSES = 50_000, 3, 32, 10
BATCH = 64
BATCHES = 8
SAMPLES = BATCHES * BATCH  # what one of 100 clients holds, about

AUGMENTATIONS = {
    "none": Augmentation(),
    "flip": Augmentation(flip=True),
    "crop, flip": Augmentation(crop_padding=4, flip=True),
    "crop (reflect), flip": Augmentation(crop_padding=4, padding_mode="reflect", flip=True),
    "crop, flip, cutout": Augmentation(crop_padding=4, flip=True, cutout=16),
}


def random_images() -> Split:
    """A data set of CIFAR-10's size."""
    random = torch.Generator().manual_seed(0)
    images = torch.randint(256, (IMAGES, CHANNELS, SIDE, SIDE), dtype=torch.uint8, generator=random)
    labels = torch.randint(CLASSES, (IMAGES,), generator=random)
    mean, std = torch.full((CHANNELS, 1, 1), 0.5), torch.full((CHANNELS, 1, 1), 0.25)
    return Split(images, labels, 1 / (255 * std), -mean / std)


def training_step(images: Tensor, labels: Tensor) -> Callable[[], None]:
    """A step on one batch."""
    network = build(FedAvgCnn(), CHANNELS, SIDE, CLASSES, seed=0)
    optimiser = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-3, fused=True)

    def step() -> None:
        optimiser.zero_grad()
        functional.cross_entropy(network(images), labels).backward()
        optimiser.step()

    return step


def gather(source: Augmented, chosen: Tensor, parameters: Tensor) -> None:
    """The batches of an epoch."""
    for batch in zip(chosen.split(BATCH), parameters.split(BATCH), strict=True):
        source.batch(*batch)


def timed(work: Callable[..., object], *arguments: object) -> float:
    started = time.process_time()
    work(*arguments)
    return time.process_time() - started


def measure(repeats: int) -> tuple[float, dict[str, tuple[float, float]]]:
    """Seconds of a training step; seconds of drawing and of gathering per batch, by augmentation."""
    split = random_images()
    sources = {name: Augmented(split, augmentation) for name, augmentation in AUGMENTATIONS.items()}
    step = training_step(*split.batch(torch.arange(BATCH)))
    steps: list[float] = []
    draws: dict[str, list[float]] = {name: [] for name in sources}
    gathers: dict[str, list[float]] = {name: [] for name in sources}
    for repeat in range(repeats):
        steps.append(timed(step))
        chosen = torch.randint(IMAGES, (SAMPLES,), generator=torch.Generator().manual_seed(repeat))
        for name, source in sources.items():
            where = (0, repeat, 0, 1, SAMPLES)
            draws[name].append(timed(source.parameters, *where))
            gathers[name].append(timed(gather, source, chosen, source.parameters(*where)[0]))
    return statistics.median(steps), {
        name: (statistics.median(draws[name]) / BATCHES, statistics.median(gathers[name]) / BATCHES)
        for name in sources
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--csv", type=Path, help="where to write the table")
    options = parser.parse_args()

    torch.set_num_threads(1)
    step, costs = measure(options.repeats)
    print(f"{'microseconds per batch':24}{'draw':>8}{'gather':>8}{'of a step':>11}")
    for name, (draw, gather) in costs.items():
        print(f"{name:24}{draw * 1e6:8.0f}{gather * 1e6:8.0f}{(draw + gather) / step:11.2%}")
    print(f"training step: {step * 1e3:.1f} ms (batch of {BATCH}, medians of {options.repeats})")
    if options.csv:
        with options.csv.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["augmentation", "draw_seconds", "gather_seconds", "step_seconds"])
            writer.writerows(
                (name, *(f"{cost:.3e}" for cost in (*both, step))) for name, both in costs.items()
            )


if __name__ == "__main__":
    main()
