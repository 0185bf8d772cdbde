"""Prepared datasets and partitions: their files, and the checks when they are read."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fltrain.core.errors import FltrainError
from fltrain.core.files import read_arrays, replacing, write_arrays
from fltrain.core.hashing import short_hash
from fltrain.data.datasets import Dataset
from fltrain.data.fetch import obtain
from fltrain.data.partition import Division, Indices, class_counts, validation_split
from fltrain.data.readers import ClassLabels, Images, RawSplits, statistics
from fltrain.data.registry import DatasetEntry

LOG = logging.getLogger("fltrain")
SPLITS = ("train", "test")
SHEET_COLUMNS = 12
"""Images per class on the contact sheet."""


@dataclass(frozen=True)
class PreparedData:
    """A dataset ready for training, as arrays mapped from its file.

    Attributes:
        train_images, test_images: uint8 ``[n, channels, side, side]``.
        train_labels, test_labels: int64 ``[n]``.
        writers, test_writers: writer of each image, int64 ``[n]``; None if unknown.
        classes: number of classes.
        mean, std: normalisation per channel, for pixels from 0 to 1.
        digest: SHA-256 of the arrays.
        about: the other metadata of the file (histogram, class names, notes).
    """

    train_images: Images
    train_labels: ClassLabels
    test_images: Images
    test_labels: ClassLabels
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    digest: str
    writers: ClassLabels | None = None
    test_writers: ClassLabels | None = None
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def channels(self) -> int:
        """Channels of an image."""
        return int(self.test_images.shape[1])

    @property
    def side(self) -> int:
        """Height and width of an image."""
        return int(self.test_images.shape[2])

    def merged(self) -> PreparedData:
        """Return the data with training and test images in one training split, for local test splits."""
        writers = None
        if self.writers is not None and self.test_writers is not None:
            writers = np.concatenate([self.writers, self.test_writers])
        return replace(
            self,
            train_images=np.concatenate([self.train_images, self.test_images]),
            train_labels=np.concatenate([self.train_labels, self.test_labels]),
            writers=writers,
        )


def prepare(dataset: Dataset, path: Path, downloads: Path, quiet: bool = False) -> PreparedData:
    """Fetch, read and resize a dataset; write it and a contact sheet to ``path``'s folder; return it."""
    entry = dataset.entry
    source = obtain(dataset.name, entry, downloads, quiet)
    raw = entry.reader.read(source, entry, dataset.image_size)
    classes = entry.classes or raw.classes
    arrays = {name: array for name, array in vars(raw).items() if isinstance(array, np.ndarray)}
    for name in ("train_images", "test_images"):
        arrays[name] = _resized(arrays[name], dataset.side or arrays[name].shape[2])
    about = {
        "dataset": dataset.prepared.model_dump(mode="json"),
        "revision": dataset.revision,
        "normalisations": _normalisations(entry),
        "own_copy": _fingerprint(entry),
        "classes": classes,
        "class_names": raw.class_names,
        "histogram": {
            split: np.bincount(arrays[f"{split}_labels"], minlength=classes).tolist() for split in SPLITS
        },
        "notes": raw.notes,
    }
    _contact_sheet(raw, arrays, classes, path.with_suffix(".png"))
    write_arrays(path, arrays, about)
    return load_prepared(dataset, path)


def load_prepared(dataset: Dataset, path: Path) -> PreparedData:
    """Return a prepared dataset after checking that it is complete and belongs to these settings."""
    return _checked(dataset, path, *read_arrays(path, "prepared dataset"))


def load_or_prepare(dataset: Dataset, path: Path, downloads: Path, quiet: bool = False) -> PreparedData:
    """Return a prepared dataset; prepare it if it is missing or has an older revision."""
    if not path.exists():
        return prepare(dataset, path, downloads, quiet)
    arrays, about = read_arrays(path, "prepared dataset")
    same = about.get("dataset") == dataset.prepared.model_dump(mode="json")
    if same and about.get("revision", 0) < dataset.revision:
        LOG.info("%s: prepared again, because its revision is now %s", path, dataset.revision)
        return prepare(dataset, path, downloads, quiet)
    return _checked(dataset, path, arrays, about)


def _checked(
    dataset: Dataset, path: Path, arrays: dict[str, NDArray[Any]], about: dict[str, Any]
) -> PreparedData:
    settings = dataset.prepared.model_dump(mode="json")
    if about.get("dataset") != settings or about.get("revision") != dataset.revision:
        raise FltrainError(
            f"{path}: prepared from other settings or an older version; delete it to have it made again"
        )
    if difference := changed(dataset.entry, about):
        raise FltrainError(f"dataset {dataset.name!r}: {difference}")
    normalisation = dataset.entry.normalisation(dataset.normalisation, arrays["test_images"].shape[1])
    mean, std = (
        (normalisation.mean, normalisation.std)
        if normalisation
        else statistics(arrays["train_images" if len(arrays["train_images"]) else "test_images"])
    )
    if len(mean) != arrays["test_images"].shape[1]:
        raise FltrainError(
            f"dataset {dataset.name!r}: mean and std have {len(mean)} values, the images "
            f"{arrays['test_images'].shape[1]} channel(s); state one value per channel in the registry"
        )
    return PreparedData(
        **arrays, classes=about["classes"], mean=mean, std=std, digest=about["digest"], about=about
    )


def changed(entry: DatasetEntry, about: Mapping[str, Any]) -> str:
    """Return the difference between a prepared file and its registry entry, with a remedy; empty if none.

    Run IDs contain the revision of the entry. This check finds changed numbers without a new revision.
    """
    remedy = "increase its 'revision' in the registry, which separates new runs from old ones"
    if about.get("normalisations") != _normalisations(entry):
        return f"'mean', 'std' or 'normalisations' have changed since it was prepared; {remedy}"
    fingerprint = _fingerprint(entry)
    if fingerprint is not None and about.get("own_copy") != fingerprint:
        return (
            f"{entry.own_copy} has changed since it was prepared; if its images have, {remedy}; if not, "
            "delete the prepared file to prepare it again"
        )
    return ""


def _normalisations(entry: DatasetEntry) -> dict[str, Any]:
    """Return all normalisations of the entry, by name."""
    stated = {"default": entry.normalisation(), **entry.normalisations}
    return {name: one and one.model_dump(mode="json") for name, one in stated.items()}


def _fingerprint(entry: DatasetEntry) -> str | None:
    """Return a hash of names, sizes and times of the files at ``path``; None if there are none."""
    own = entry.own_copy
    if own is None or not own.exists():
        return None
    files = sorted(file for file in own.rglob("*") if file.is_file()) if own.is_dir() else [own]
    return short_hash(
        [(str(file.relative_to(own)), (at := file.stat()).st_size, at.st_mtime_ns) for file in files]
    )


def _resized(images: Images, side: int) -> Images:
    """Return images resized bilinearly to ``side`` x ``side`` pixels."""
    if images.shape[2:] == (side, side):
        return images
    resized = np.empty((*images.shape[:2], side, side), np.uint8)
    for image, out in zip(images, resized, strict=True):
        for plane, channel in zip(image, out, strict=True):
            channel[:] = Image.fromarray(plane).resize((side, side), Image.Resampling.BILINEAR)
    return resized


def _contact_sheet(raw: RawSplits, arrays: Mapping[str, NDArray[Any]], classes: int, path: Path) -> None:
    """Write an image with the first images of each class in a row."""
    split = "train" if len(raw.train_labels) else "test"
    images, labels = arrays[f"{split}_images"], arrays[f"{split}_labels"]
    side, gap = images.shape[2], 2
    sheet = np.full((classes * (side + gap), SHEET_COLUMNS * (side + gap), 3), 255, np.uint8)
    for label in range(classes):
        for column, index in enumerate(np.flatnonzero(labels == label)[:SHEET_COLUMNS]):
            top, left = label * (side + gap), column * (side + gap)
            sheet[top : top + side, left : left + side] = images[index].transpose(1, 2, 0)
    with replacing(path) as temporary:
        scale = max(1, 32 // side)
        size = (sheet.shape[1] * scale, sheet.shape[0] * scale)
        Image.fromarray(sheet).resize(size, Image.Resampling.NEAREST).save(temporary, format="png")


@dataclass(frozen=True)
class Partition:
    """Index arrays into the training split, one per client, and their digest.

    With local test splits, ``tests`` holds the test images of each client, and all indices refer to
    ``PreparedData.merged``. ``validation`` holds the validation images, if there are any: of each client with
    local test splits, else one array.
    """

    clients: list[Indices]
    digest: str
    tests: list[Indices] | None = None
    validation: list[Indices] | None = None


def partition(division: Division, data: PreparedData, path: Path) -> Partition:
    """Partition the images among clients; write the result, with class counts per client, to ``path``."""
    local_test, validation, seed = division.local_test, division.validation, division.seed
    pool = data.merged() if local_test else data
    labels = np.asarray(pool.train_labels)
    images, arrays = np.arange(len(labels)), dict[str, NDArray[Any]]()
    if validation and local_test is None:
        (images,), held_out = validation_split([images], validation, labels, seed)
        images.sort()
    writers = None if pool.writers is None else pool.writers[images]
    clients = [images[own] for own in division.scheme.split(labels[images], data.classes, seed, writers)]
    if local_test is not None:
        clients, tests = local_test.split(clients, labels, seed)
        arrays |= {"test_indices": np.concatenate(tests), "test_sizes": _sizes(tests)}
        if validation:
            clients, held_out = validation_split(clients, validation, labels, seed)
    if validation:
        arrays |= {"validation_indices": np.concatenate(held_out), "validation_sizes": _sizes(held_out)}
    arrays |= {
        "indices": np.concatenate(clients),
        "sizes": _sizes(clients),
        "counts": class_counts(clients, labels, data.classes),
    }
    write_arrays(path, arrays, {**division.settings, "data": data.digest})
    return load_partition(division, data, path)


def load_partition(division: Division, data: PreparedData, path: Path) -> Partition:
    """Return a partition after checking that it is complete and belongs to these data and settings."""
    arrays, about = read_arrays(path, "partition")
    if not {**division.settings, "data": data.digest}.items() <= {"validation": None, **about}.items():
        raise FltrainError(f"{path}: made from other data or settings; delete it to have it made again")
    tests = _parts(arrays, "test_") if division.local_test else None
    held_out = _parts(arrays, "validation_") if division.validation else None
    return Partition(_parts(arrays), about["digest"], tests, held_out)


def _sizes(parts: list[Indices]) -> Indices:
    return np.array([len(part) for part in parts], np.int64)


def _parts(arrays: Mapping[str, NDArray[Any]], kind: str = "") -> list[Indices]:
    return np.split(arrays[f"{kind}indices"], np.cumsum(arrays[f"{kind}sizes"])[:-1])
