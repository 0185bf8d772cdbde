"""Prepared data sets and partitions: how they lie on disk, and how their integrity is checked."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fltrain.data.datasets import Dataset, Images, Labels, RawSplits
from fltrain.data.partition import Indices, Scheme
from fltrain.errors import FltrainError
from fltrain.files import read_arrays, write_arrays

SPLITS = ("train", "test")


def digest(arrays: Mapping[str, NDArray[Any]]) -> str:
    """SHA-256 over names, types, shapes and bytes of the arrays, in the order of their names."""
    state = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        state.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        state.update(array.data)
    return state.hexdigest()


@dataclass(frozen=True)
class PreparedData:
    """A data set ready for training: uint8 images ``[n, c, h, w]``, int64 labels ``[n]``, per split."""

    splits: RawSplits
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    digest: str

    @property
    def channels(self) -> int:
        """Channels of an image."""
        return int(self.splits.train_images.shape[1])

    @property
    def side(self) -> int:
        """Height and width of an image."""
        return int(self.splits.train_images.shape[2])


def prepare(dataset: Dataset, path: Path) -> PreparedData:
    """Load a data set, bring it to its size, and write it to ``path``."""
    raw = dataset.load()
    arrays: dict[str, NDArray[Any]] = {}
    histogram: dict[str, list[int]] = {}
    for split in SPLITS:
        labels: Labels = getattr(raw, f"{split}_labels")
        arrays[f"{split}_images"] = _resized(getattr(raw, f"{split}_images"), dataset.side)
        arrays[f"{split}_labels"] = labels
        histogram[split] = np.bincount(labels, minlength=dataset.classes).tolist()
    about = {
        "dataset": dataset.model_dump(mode="json"),
        "revision": dataset.revision,
        "classes": dataset.classes,
        "mean": dataset.mean,
        "std": dataset.std,
        "histogram": histogram,
        "digest": digest(arrays),
    }
    write_arrays(path, arrays, about)
    return load_prepared(dataset, path)


def load_prepared(dataset: Dataset, path: Path) -> PreparedData:
    """Read a prepared data set, and check that it is whole and is the one asked for.

    Raises:
        FltrainError: if it is missing, damaged, or made from other settings.
    """
    arrays, about = read_arrays(path, "prepared data set")
    if about.get("dataset") != dataset.model_dump(mode="json") or about.get("revision") != dataset.revision:
        raise FltrainError(
            f"{path}: prepared from other settings or an older version; delete it to have it made again"
        )
    if digest(arrays) != about["digest"]:
        raise FltrainError(f"{path}: the data do not match their digest; delete it to have it made again")
    splits = RawSplits(**arrays)
    return PreparedData(splits, about["classes"], tuple(about["mean"]), tuple(about["std"]), about["digest"])


def _resized(images: Images, side: int) -> Images:
    """Images resized bilinearly to ``side`` pixels on each side, if they are of another size."""
    if images.shape[2:] == (side, side):
        return images
    planes = [
        np.asarray(Image.fromarray(plane).resize((side, side), Image.Resampling.BILINEAR))
        for plane in images.reshape(-1, *images.shape[2:])
    ]
    return np.stack(planes).reshape(*images.shape[:2], side, side)


@dataclass(frozen=True)
class Partition:
    """Index arrays into the training split, one per client, and their digest."""

    clients: list[Indices]
    digest: str


def partition(scheme: Scheme, data: PreparedData, seed: int, path: Path) -> Partition:
    """Divide the training split and write the result to ``path``, with client-by-class counts."""
    labels = data.splits.train_labels
    clients = scheme.split(labels, data.classes, seed)
    arrays: dict[str, NDArray[Any]] = {
        "indices": np.concatenate(clients),
        "sizes": np.array([len(client) for client in clients], np.int64),
        "counts": np.stack([np.bincount(labels[client], minlength=data.classes) for client in clients]),
    }
    about = {
        "scheme": scheme.model_dump(mode="json"),
        "revision": scheme.revision,
        "seed": seed,
        "data": data.digest,
        "digest": digest(arrays),
    }
    write_arrays(path, arrays, about)
    return load_partition(scheme, data, seed, path)


def load_partition(scheme: Scheme, data: PreparedData, seed: int, path: Path) -> Partition:
    """Read a partition, and check that it is whole and belongs to these data and settings.

    Raises:
        FltrainError: if it is missing, damaged, or made from other data or settings.
    """
    arrays, about = read_arrays(path, "partition")
    expected = {
        "scheme": scheme.model_dump(mode="json"),
        "revision": scheme.revision,
        "seed": seed,
        "data": data.digest,
    }
    if any(about.get(key) != value for key, value in expected.items()):
        raise FltrainError(f"{path}: made from other data or settings; delete it to have it made again")
    if digest(arrays) != about["digest"]:
        raise FltrainError(f"{path}: the indices do not match their digest; delete it to have it made again")
    return Partition(np.split(arrays["indices"], np.cumsum(arrays["sizes"])[:-1]), about["digest"])
