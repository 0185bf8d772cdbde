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

from fltrain.core.errors import FltrainError, count
from fltrain.core.files import digest, read_arrays, replacing, write_arrays
from fltrain.core.hashing import short_hash
from fltrain.core.shell import command
from fltrain.data.datasets import Dataset, DatasetEntry
from fltrain.data.fetch import obtain
from fltrain.data.partition import Division, Indices, class_counts
from fltrain.data.readers import ClassLabels, Images, statistics

LOG = logging.getLogger("fltrain")
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


def prepare(dataset: Dataset, path: Path, downloads: Path) -> PreparedData:
    """Fetch, read and resize a dataset; write it and a contact sheet to ``path``'s folder; return it."""
    entry = dataset.entry
    source = obtain(dataset.name, entry, downloads)
    raw = entry.reader.read(source, entry, dataset.image_size)
    classes = entry.classes or raw.classes
    arrays = {name: array for name, array in vars(raw).items() if isinstance(array, np.ndarray)}
    for name in ("train_images", "test_images"):
        arrays[name] = _resized(arrays[name], dataset.side or arrays[name].shape[2])
    labels = {split: arrays[f"{split}_labels"] for split in ("train", "test")}
    about = {
        "dataset": dataset.prepared.model_dump(mode="json"),
        "revision": dataset.revision,
        "normalisations": _normalisations(entry),
        "own_copy": _fingerprint(entry),
        "classes": classes,
        "class_names": raw.class_names,
        "histogram": {key: np.bincount(array, minlength=classes).tolist() for key, array in labels.items()},
        "notes": raw.notes,
    }
    _contact_sheet(arrays, classes, path.with_suffix(".png"))
    write_arrays(path, arrays, about)
    return load_prepared(dataset, path)


class _Older(FltrainError):
    """A prepared file has an older revision of its dataset."""


def load_prepared(dataset: Dataset, path: Path) -> PreparedData:
    """Return a prepared dataset after checking that it is complete and belongs to these settings."""
    size = f" --image-size {dataset.image_size}" if dataset.image_size else ""
    fetch = command(f"fltrain data fetch {dataset.name}{size}", path.parent.parent)
    arrays, about = read_arrays(path, "prepared dataset", f"run `{fetch}`")
    same_settings = about.get("dataset") == dataset.prepared.model_dump(mode="json")
    if not same_settings or (revision := about.get("revision", 0)) != dataset.revision:
        kind = _Older if same_settings and revision < dataset.revision else FltrainError
        raise kind(
            f"{path}: prepared from other settings or an older version; delete it to have it made again"
        )
    if difference := changed(dataset.entry, about):
        raise FltrainError(f"dataset {dataset.name!r}: {difference}")
    channels = arrays["test_images"].shape[1]
    if stated := dataset.entry.normalisation(dataset.normalisation, channels):
        mean, std = stated.mean, stated.std
    else:
        mean, std = statistics(arrays[f"{_main_split(arrays)}_images"])
    if len(mean) != channels:
        raise FltrainError(
            f"dataset {dataset.name!r}: mean and std have {count(len(mean), 'value')}, the images "
            f"{count(channels, 'channel')}; state one value per channel in the registry"
        )
    return PreparedData(
        **arrays, classes=about["classes"], mean=mean, std=std, digest=about["digest"], about=about
    )


def load_or_prepare(dataset: Dataset, path: Path, downloads: Path) -> PreparedData:
    """Return a prepared dataset; prepare it if it is missing or has an older revision."""
    if path.exists():
        try:
            return load_prepared(dataset, path)
        except _Older:
            LOG.info("%s: prepared again, because its revision is now %s", path, dataset.revision)
    return prepare(dataset, path, downloads)


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
    return {key: value and value.model_dump(mode="json") for key, value in entry.all_normalisations.items()}


def _fingerprint(entry: DatasetEntry) -> str | None:
    """Return a hash of names, sizes and times of the files at ``path``; None if there are none."""
    path = entry.own_copy
    if path is None or not path.exists():
        return None
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    return short_hash(
        [(str(file.relative_to(path)), (stat := file.stat()).st_size, stat.st_mtime_ns) for file in files]
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


def _main_split(arrays: Mapping[str, NDArray[Any]]) -> str:
    """Return the split that stands for a dataset; a test set has no training images."""
    return "train" if len(arrays["train_labels"]) else "test"


def _contact_sheet(arrays: Mapping[str, NDArray[Any]], classes: int, path: Path) -> None:
    """Write an image with the first images of each class in a row."""
    images, labels = (arrays[f"{_main_split(arrays)}_{kind}"] for kind in ("images", "labels"))
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
    """Index arrays into the training split, one per client, and the digest of all arrays of its file.

    With local test splits, ``tests`` holds the test images of each client, and all indices refer to
    ``PreparedData.merged``. ``validation`` holds the validation images, if there are any: of each client with
    local test splits, else one array. A file has ``arrays``: indices and sizes of each kind, and ``counts``,
    the training images by client and class ``[M, C]``.
    """

    clients: list[Indices]
    digest: str
    tests: list[Indices] | None = None
    validation: list[Indices] | None = None
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)


def partition(division: Division, data: PreparedData) -> Partition:
    """Return the partition of the images among clients; equal settings and data give equal ones."""
    pool = data.merged() if division.local_test else data
    labels = np.asarray(pool.train_labels)
    parts = division.parts(labels, data.classes, pool.writers)
    arrays = {"counts": class_counts(parts[""], labels, data.classes)}
    for kind, groups in parts.items():
        arrays[f"{kind}indices"] = np.concatenate(groups)
        arrays[f"{kind}sizes"] = np.array([len(group) for group in groups], np.int64)
    tests, validation = parts.get("test_"), parts.get("validation_")
    return Partition(parts[""], digest(arrays), tests, validation, arrays)


def stored_partition(division: Division, data: PreparedData, path: Path) -> Partition:
    """Return the partition of the images, and store it in a file unless it is there.

    Raises:
        FltrainError: if the file is damaged or has another partition.
    """
    divided = partition(division, data)
    if not path.exists():
        write_arrays(path, divided.arrays, {**division.settings, "data": data.digest})
    _, about = read_arrays(path, "partition")
    if about["digest"] != divided.digest:
        raise FltrainError(f"{path}: made from other data or settings; delete it to have it made again")
    return divided
