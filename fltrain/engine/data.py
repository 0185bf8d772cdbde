"""Data for the local step: uint8 images on the device, index arrays per client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fltrain.core.errors import FltrainError
from fltrain.data.feature_skew import FeatureSkew
from fltrain.data.partition import Indices
from fltrain.data.prepared import Partition, PreparedData
from fltrain.data.readers import ClassLabels, Images


def at_once(device: torch.device) -> int:
    """Return the number of images at once in evaluation mode.

    On a CPU, activations should stay in its caches (measured: up to three times faster).
    """
    return 64 if device.type == "cpu" else 256


@dataclass(frozen=True)
class ImageSet:
    """Images uint8 ``[n, c, h, w]`` and labels int64 ``[n]`` on the device.

    ``scale`` and ``shift`` normalise a byte by one multiplication and one addition; they have a number for
    each pixel ``[c, h, w]``, which is several times faster on a CPU than one for each channel.

    ``channels_last``: batches store the channels of a pixel next to one another; networks compute in the
    layout of their input. Layouts differ in speed and in rounding.
    """

    images: Tensor
    labels: Tensor
    scale: Tensor
    shift: Tensor
    channels_last: bool = False

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Gather normalised float images and their labels."""
        images = self.normalised(self.images.index_select(0, indices))
        return self.laid_out(images), self.labels.index_select(0, indices)

    def normalised(self, images: Tensor) -> Tensor:
        """Return byte images ``[b, c, h, w]`` as normalised floats."""
        return torch.addcmul(self.shift, images.float(), self.scale)

    def laid_out(self, images: Tensor) -> Tensor:
        """Return the images ``[b, c, h, w]`` in the layout of batches."""
        if not self.channels_last:
            return images
        # The detour by one dimension is for grey images: their strides do not determine the layout.
        pixels = images.movedim(1, -1)
        return pixels.flatten().view(pixels.shape).movedim(-1, 1)


@dataclass(frozen=True)
class FederatedData:
    """A partitioned dataset on the device.

    Attributes:
        train: images that ``clients`` index.
        test: the global test images.
        clients: training images of each client.
        tests: test images of each client, indices into ``train``, with local test splits.
        extra: test images of further datasets by name.
        classes: number of classes.
        class_counts: training images per client and class, float32 ``[clients, classes]``.
        validation: validation images, indices into ``train``: of each client with local test splits, else one
            tensor.
    """

    train: ImageSet
    test: ImageSet
    clients: tuple[Tensor, ...]
    tests: tuple[Tensor, ...] | None
    extra: Mapping[str, ImageSet]
    classes: int
    class_counts: Tensor
    validation: tuple[Tensor, ...] | None = None

    @classmethod
    def of(
        cls,
        data: PreparedData,
        partition: Partition,
        device: torch.device,
        extra: Mapping[str, PreparedData] | None = None,
        channels_last: bool = False,
        feature_skew: FeatureSkew | None = None,
        seed: int = 0,
    ) -> FederatedData:
        """Move a prepared dataset, its partition and further test images to ``device``.

        ``feature_skew`` changes the clients' images, with noise that depends on ``seed``.

        Raises:
            FltrainError: if a client has no images, or further images have another shape.
        """
        for client, indices in enumerate(partition.clients):
            if not len(indices):
                raise FltrainError(
                    f"partition: client {client} has no images to train on; set min_size to 1 or more"
                )
        for name, more in (extra or {}).items():
            shape, expected = ((images.channels, images.side, images.classes) for images in (more, data))
            if shape != expected:
                raise FltrainError(
                    f"evaluation.extra: {name!r}: channels, side, classes {shape}, the run has {expected}"
                )
        mean = torch.tensor(data.mean, device=device).view(-1, 1, 1)
        std = torch.tensor(data.std, device=device).view(-1, 1, 1)

        def split(images: Images, labels: ClassLabels) -> ImageSet:
            scale, shift = 1 / (255 * std), -mean / std  # of (image / 255 - mean) / std
            return ImageSet(
                torch.as_tensor(images, device=device),
                torch.as_tensor(labels, device=device),
                scale.expand(images.shape[1:]).contiguous(),
                shift.expand(images.shape[1:]).contiguous(),
                channels_last,
            )

        def on_device(parts: Sequence[Indices]) -> tuple[Tensor, ...]:
            return tuple(torch.as_tensor(indices, device=device) for indices in parts)

        pool = data.merged() if partition.tests is not None else data
        images = pool.train_images
        if feature_skew is not None:
            tests = (partition.tests, partition.validation) if partition.tests else ()
            parts = zip(partition.clients, *filter(None, tests), strict=True)
            images = feature_skew.changed(images, [np.concatenate(indices) for indices in parts], seed)
        counts = [
            np.bincount(pool.train_labels[indices], minlength=data.classes) for indices in partition.clients
        ]
        return cls(
            train=split(images, pool.train_labels),
            test=split(data.test_images, data.test_labels),
            clients=on_device(partition.clients),
            tests=None if partition.tests is None else on_device(partition.tests),
            validation=None if partition.validation is None else on_device(partition.validation),
            extra={name: split(more.test_images, more.test_labels) for name, more in (extra or {}).items()},
            classes=data.classes,
            class_counts=torch.tensor(np.stack(counts), dtype=torch.float32, device=device),
        )
