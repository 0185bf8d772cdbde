"""The data as the local step sees them: uint8 images on the device, index arrays per client."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fltrain.data.datasets import RawSplits
from fltrain.data.prepared import Partition, PreparedData


@dataclass(frozen=True)
class Split:
    """Images uint8 ``[n, c, h, w]`` and labels int64 ``[n]`` on the device, and their normalisation."""

    images: Tensor
    labels: Tensor
    scale: Tensor
    shift: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Gather normalised float images and their labels."""
        return self._normalised(self.images[indices]), self.labels[indices]

    def chunk(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """The images from ``start`` to ``stop``, normalised, and their labels."""
        return self._normalised(self.images[start:stop]), self.labels[start:stop]

    def _normalised(self, images: Tensor) -> Tensor:
        return torch.addcmul(self.shift, images.float(), self.scale)


@dataclass(frozen=True)
class FederatedData:
    """A partitioned data set on the device."""

    train: Split
    test: Split
    clients: tuple[Tensor, ...]
    classes: int

    @classmethod
    def of(cls, data: PreparedData, partition: Partition, device: torch.device) -> FederatedData:
        """Move a prepared data set and its partition to ``device``."""
        mean = torch.tensor(data.mean, device=device).view(-1, 1, 1)
        std = torch.tensor(data.std, device=device).view(-1, 1, 1)
        splits: RawSplits = data.splits

        def split(images: object, labels: object) -> Split:
            # (image / 255 - mean) / std, as one multiplication and one addition
            return Split(
                torch.as_tensor(images, device=device),
                torch.as_tensor(labels, device=device),
                1 / (255 * std),
                -mean / std,
            )

        return cls(
            train=split(splits.train_images, splits.train_labels),
            test=split(splits.test_images, splits.test_labels),
            clients=tuple(torch.as_tensor(indices, device=device) for indices in partition.clients),
            classes=data.classes,
        )
