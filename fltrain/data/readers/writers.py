"""FEMNIST, handwriting by writer: the HDF5 files of TensorFlow Federated and the JSON files of LEAF.

Both have float pixels from 0 to 1, and white paper is 1. The readers convert pixels to bytes, not inverted.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fltrain.core.errors import FltrainError, count
from fltrain.core.files import read_json
from fltrain.data.readers.base import (
    ClassLabels,
    Facts,
    Images,
    LabelledImages,
    RawSplits,
    Reader,
    as_images,
    as_labels,
    extracted,
    locate,
    readable,
)

SPLITS = ("train", "test")
ARCHIVE = "fed_emnist.tar.bz2"

ByWriter = dict[str, LabelledImages]
"""Images and labels by writer."""


class Femnist(Reader):
    """``fed_emnist_{train,test}.h5`` of TensorFlow Federated: ``examples/<writer>/{pixels,label}``.

    The source has these files or the archive as downloaded, which needs 2.3 GB in the folder for temporary
    files while it is read.
    """

    name: Literal["femnist"] = "femnist"

    def load(self, source: Path, facts: Facts, side: int | None) -> RawSplits:
        with extracted(source, ARCHIVE) as folder:
            train, test = (_read_hdf5(locate(folder, f"fed_emnist_{split}.h5"), facts) for split in SPLITS)
        return assemble(source, train, test)


class Leaf(Reader):
    """``train/*.json`` and ``test/*.json`` as LEAF's preprocessing writes them."""

    name: Literal["leaf"] = "leaf"

    def load(self, source: Path, facts: Facts, side: int | None) -> RawSplits:
        train, test = (_read_leaf(source / split, facts) for split in SPLITS)
        return assemble(source, train, test)


def assemble(source: Path, train: ByWriter, test: ByWriter) -> RawSplits:
    """Return the joined images of the writers that are in both splits, ordered by their names."""
    complete = sorted(train.keys() & test.keys())
    everyone = count(len(train.keys() | test.keys()), "writer")
    if not complete:
        raise FltrainError(f"{source}: found {everyone}, but none with both training and test images")

    def joined(split: ByWriter) -> tuple[Images, ClassLabels, ClassLabels]:
        images, labels = zip(*(split[writer] for writer in complete), strict=True)
        writers = np.repeat(np.arange(len(complete)), [len(part) for part in labels])
        return np.concatenate(images), np.concatenate(labels), writers

    train_images, train_labels, writers = joined(train)
    test_images, test_labels, test_writers = joined(test)
    note = (
        f"{len(complete):,} of {everyone} have both training and test images: "
        f"{len(train_labels):,} and {len(test_labels):,} in all"
    )
    return RawSplits(
        train_images, train_labels, test_images, test_labels, writers, test_writers, notes=(note,)
    )


def _read_hdf5(path: Path, facts: Facts) -> ByWriter:
    import h5py  # type: ignore[import-untyped]

    split: ByWriter = {}
    with readable(path, "an HDF5 file"), h5py.File(path, "r") as file:
        for writer, group in file["examples"].items():
            _add(split, writer, group["pixels"][()], group["label"][()], path, facts)
    return split


def _read_leaf(folder: Path, facts: Facts) -> ByWriter:
    files = sorted(folder.glob("*.json"))
    if not files:
        raise FltrainError(f"{folder}: found no .json files, expected those of LEAF")
    split: ByWriter = {}
    for path in files:
        with readable(path, "images and labels of LEAF"):
            for writer, data in read_json(path)["user_data"].items():
                if writer in split:
                    raise FltrainError(f"{path}, {writer}: this writer is in an earlier file as well")
                rows, labels = np.array(data["x"], np.float32), np.array(data["y"])
                side = math.isqrt(rows.shape[-1])
                _add(split, writer, rows.reshape(len(rows), side, side), labels, path, facts)
    return split


def _add(
    split: ByWriter, writer: str, pixels: NDArray[Any], labels: NDArray[Any], path: Path, facts: Facts
) -> None:
    """Check the images of a writer and add them to the split; a writer without images is left out."""
    where = f"{path}, {writer}"
    if not len(pixels) and not len(labels):
        return
    if pixels.dtype.kind != "f" or not ((pixels >= 0) & (pixels <= 1)).all():
        found = pixels.dtype if pixels.dtype.kind != "f" else f"{pixels.min():.4g} to {pixels.max():.4g}"
        raise FltrainError(f"{where}: found pixels {found}, expected floats from 0 to 1")
    images = as_images(np.rint(pixels * 255).astype(np.uint8), where, facts)
    split[writer] = images, as_labels(labels, where, len(images), facts.classes)
