"""Augmented batches against torchvision, and the random parameters of augmentations."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torchvision.transforms.v2 import functional as transforms

from fltrain.core.rng import Purpose, stream
from fltrain.data.augmentation import Augmentation
from fltrain.engine.augment import Augmented
from fltrain.engine.data import ImageSet
from fltrain.runtime.guard import no_host_sync

EVERYTHING = Augmentation(crop_padding=2, flip=True, cutout=4)
COMBINATIONS = [
    Augmentation(),
    Augmentation(crop_padding=3, flip=True),
    Augmentation(crop_padding=1, padding_mode="reflect", cutout=1),
    Augmentation(crop_padding=6, padding_mode="reflect", flip=True, cutout=5),
    EVERYTHING,
]


def random_split(samples: int = 40, channels: int = 3, side: int = 8) -> ImageSet:
    """Random images, normalised per channel; without black pixels, so that padding shows."""
    random = torch.Generator().manual_seed(samples + 10 * channels + 100 * side)
    images = torch.randint(1, 256, (samples, channels, side, side), dtype=torch.uint8, generator=random)
    labels = torch.randint(0, 10, (samples,), generator=random)
    mean = torch.tensor([0.49, 0.48, 0.45])[:channels].view(-1, 1, 1)
    std = torch.tensor([0.25, 0.24, 0.26])[:channels].view(-1, 1, 1)
    return ImageSet(images, labels, 1 / (255 * std), -mean / std)


def by_torchvision(
    split: ImageSet, indices: Tensor, parameters: Tensor, augmentation: Augmentation
) -> Tensor:
    """Image by image, in the order of the original code: pad, crop, flip, normalise, cut out."""
    padding, side = augmentation.crop_padding, split.images.shape[-1]
    mode = {"zeros": "constant", "reflect": "reflect"}[augmentation.padding_mode]
    moved = []
    for index, (top, left, flip, _, _) in zip(indices.tolist(), parameters.tolist(), strict=True):
        image = split.images[index]
        if padding:
            image = transforms.pad(image, [padding] * 4, fill=0, padding_mode=mode)
        image = transforms.crop(image, top, left, side, side)
        moved.append(transforms.horizontal_flip(image) if flip else image)
    changed = ImageSet(torch.stack(moved), split.labels[indices], split.scale, split.shift)
    images = list(changed.batch(torch.arange(len(indices)))[0])
    if augmentation.cutout:
        for position, (_, _, _, row, column) in enumerate(parameters.tolist()):
            edges = [
                min(max(edge, 0), side)
                for start in (row - augmentation.cutout // 2, column - augmentation.cutout // 2)
                for edge in (start, start + augmentation.cutout)
            ]
            y1, y2, x1, x2 = edges
            images[position] = transforms.erase(
                images[position], y1, x1, y2 - y1, x2 - x1, torch.zeros(()), inplace=False
            )
    return torch.stack(images)


def extremes(augmentation: Augmentation, side: int) -> Tensor:
    """Every corner of the ranges of the parameters."""
    crops = [0, 2 * augmentation.crop_padding]
    centres = [0, side - 1] if augmentation.cutout else [0]
    corners = itertools.product(crops, crops, [0, int(augmentation.flip)], centres, centres)
    return torch.tensor(list(corners), dtype=torch.int16)


@pytest.mark.parametrize(("channels", "side"), [(1, 7), (3, 8), (3, 13)])
@pytest.mark.parametrize("augmentation", COMBINATIONS, ids=str)
def test_batches_equal_torchvision(augmentation: Augmentation, side: int, channels: int) -> None:
    split = random_split(30, channels, side)
    source = Augmented(split, augmentation)
    parameters = torch.cat([source.parameters(0, 1, 2, 1, 24)[0], extremes(augmentation, side)])
    indices = torch.randint(0, len(split), (len(parameters),), generator=torch.Generator().manual_seed(0))
    images, labels = source.batch(indices, parameters)
    assert images.is_contiguous() and images.dtype == torch.float32
    assert torch.equal(images, by_torchvision(split, indices, parameters, augmentation))
    assert torch.equal(labels, split.labels[indices])


@pytest.mark.filterwarnings("error")  # such as a fallback of an operation to a loop
@pytest.mark.parametrize("augmentation", COMBINATIONS, ids=str)
def test_batches_stay_on_the_device(augmentation: Augmentation) -> None:
    source = Augmented(random_split(), augmentation)
    parameters = source.parameters(0, 0, 0, 1, 40)[0]
    with no_host_sync():
        source.batch(torch.arange(40), parameters)


def drawn(augmentation: Augmentation, samples: int = 1000, side: int = 8) -> np.ndarray:
    return augmentation.draw(samples, side, stream(3, Purpose.AUGMENTATION))


def test_parameters_take_all_values() -> None:
    parameters = drawn(EVERYTHING)
    for column, choices in enumerate([5, 5, 2, 8, 8]):
        assert set(parameters[:, column]) == set(range(choices))


def test_one_augmentation_does_not_change_the_parameters_of_another() -> None:
    everything = drawn(EVERYTHING)
    assert np.array_equal(drawn(Augmentation(crop_padding=2))[:, :2], everything[:, :2])
    assert np.array_equal(drawn(Augmentation(flip=True))[:, 2], everything[:, 2])
    assert np.array_equal(drawn(Augmentation(cutout=4))[:, 3:], everything[:, 3:])
    assert np.array_equal(drawn(EVERYTHING, samples=10), everything[:10])


@pytest.mark.parametrize("augmentation", [Augmentation(), EVERYTHING])
@pytest.mark.parametrize("channels", [1, 3])
def test_memory_layouts_have_equal_images_and_networks_use_them(
    channels: int, augmentation: Augmentation
) -> None:
    first = random_split(channels=channels)
    last = replace(first, channels_last=True)
    indices = torch.arange(len(first))
    (images, _), (others, _) = (
        augmented.batch(indices, augmented.parameters(0, 0, 0, 1, len(indices))[0])
        for augmented in (Augmented(first, augmentation), Augmented(last, augmentation))
    )
    assert torch.equal(images, others)
    convolution = nn.Conv2d(channels, 4, 3)
    assert convolution(images).is_contiguous()
    assert convolution(others).is_contiguous(memory_format=torch.channels_last)
