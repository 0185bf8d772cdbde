"""FEMNIST, handwriting by writer: the HDF5 files of TensorFlow Federated."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np

from fltrain.core.errors import FltrainError, count
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


class Femnist(Reader):
    """``fed_emnist_{train,test}.h5`` of TensorFlow Federated: ``examples/<writer>/{pixels,label}``.

    The source has these files or the archive as downloaded, which needs 2.3 GB in the folder for temporary
    files while it is read. Pixels are floats from 0 to 1, and white paper is 1. They become bytes, not
    inverted. Writers without training or without test images are left out; the others are ordered by name.
    """

    name: Literal["femnist"] = "femnist"

    def load(self, source: Path, facts: Facts, side: int | None) -> RawSplits:
        with extracted(source, "fed_emnist.tar.bz2") as folder:
            splits = [
                _by_writer(locate(folder, f"fed_emnist_{split}.h5"), facts) for split in ("train", "test")
            ]
        complete = sorted(splits[0].keys() & splits[1].keys())
        total = count(len(splits[0].keys() | splits[1].keys()), "writer")
        if not complete:
            raise FltrainError(f"{source}: found {total}, but none with both training and test images")

        def joined(split: dict[str, LabelledImages]) -> tuple[Images, ClassLabels, ClassLabels]:
            images, labels = zip(*(split[writer] for writer in complete), strict=True)
            writers = np.repeat(np.arange(len(complete)), [len(part) for part in labels])
            return np.concatenate(images), np.concatenate(labels), writers

        (images, labels, writers), (test_images, test_labels, test_writers) = map(joined, splits)
        note = (
            f"{len(complete):,} of {total} have both training and test images: "
            f"{len(labels):,} and {len(test_labels):,} in all"
        )
        return RawSplits(images, labels, test_images, test_labels, writers, test_writers, notes=(note,))


def _by_writer(path: Path, facts: Facts) -> dict[str, LabelledImages]:
    """Return the checked images and labels by writer, without writers that have none."""
    import h5py  # type: ignore[import-untyped]

    split = {}
    with readable(path, "an HDF5 file"), h5py.File(path, "r") as file:
        for writer, group in file["examples"].items():
            pixels, labels, where = group["pixels"][()], group["label"][()], f"{path}, {writer}"
            if not len(pixels) and not len(labels):
                continue
            if pixels.dtype.kind != "f" or not ((pixels >= 0) & (pixels <= 1)).all():
                floats = pixels.dtype.kind == "f"
                values = f"{pixels.min():.4g} to {pixels.max():.4g}" if floats else pixels.dtype
                raise FltrainError(f"{where}: found pixels {values}, expected floats from 0 to 1")
            images = as_images(np.rint(pixels * 255).astype(np.uint8), where, facts)
            split[writer] = images, as_labels(labels, where, len(images), facts.classes)
    return split
