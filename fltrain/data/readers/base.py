"""Shared parts of all readers: their results, the facts to check, and checks of arrays.

Files may be hostile or damaged. Readers execute nothing in them. Every mismatch is reported in one line with
file, value and expected value.
"""

from __future__ import annotations

import logging
import tarfile
import tempfile
import zipfile
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fltrain.core.config import Settings, similar
from fltrain.core.errors import FltrainError, count, listed, refusing
from fltrain.core.registry import Component

LOG = logging.getLogger("fltrain")
Images = NDArray[np.uint8]
ClassLabels = NDArray[np.int64]
LabelledImages = tuple[Images, ClassLabels]

_MOST_CLASSES = 2**24
"""More classes than any dataset of images has; arrays have an entry per class."""

ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2")
"""Endings of the archives that can be unpacked."""


@dataclass(frozen=True)
class RawSplits:
    """Images as uint8 ``[n, channels, height, width]`` and labels as int64 ``[n]``, per split.

    Attributes:
        train_images, train_labels: empty for a test set of another dataset.
        test_images, test_labels: the official test split.
        writers, test_writers: writer of each image, numbered from 0, int64 ``[n]``; None if unknown.
        class_names: in the order of the labels; empty if the files have no names.
        notes: remarks for the user, for example about images left out.
    """

    train_images: Images
    train_labels: ClassLabels
    test_images: Images
    test_labels: ClassLabels
    writers: ClassLabels | None = None
    test_writers: ClassLabels | None = None
    class_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def classes(self) -> int:
        """Number of classes: of the names, or up to the largest label."""
        return len(self.class_names) or 1 + int(np.concatenate([self.train_labels, self.test_labels]).max())


class Facts(Settings):
    """Known properties of a dataset; None: derived from the data.

    Attributes:
        classes: number of classes.
        channels: 1 (grey) or 3 (colour).
        side: native height and width in pixels; None if images differ in size.
        train_images: number of training images; 0 for a test set.
        test_images: number of test images.
    """

    classes: int | None = Field(default=None, ge=2)
    channels: Literal[1, 3] | None = None
    side: int | None = Field(default=None, ge=1, le=1024)
    train_images: int | None = Field(default=None, ge=0)
    test_images: int | None = Field(default=None, ge=1)


UNKNOWN = Facts()


class Reader(Component):
    """A file format, with its options."""

    needs_files: ClassVar[bool] = True
    """False if the images ship with a dependency."""

    def read(self, source: Path, facts: Facts = UNKNOWN, side: int | None = None) -> RawSplits:
        """Return the checked splits of a dataset.

        Args:
            source: folder of the raw files, or the only file.
            facts: expected properties.
            side: target height and width. Readers of photographs resize to it; others return the native size.
        """
        if self.needs_files and not source.exists():
            remedy = similar(source) or "; correct 'path' in datasets.yaml"
            raise FltrainError(f"{source}: no such file or folder{remedy}")
        splits = self.load(source, facts, side)
        _check_splits(splits, facts, source)
        warnings = _warnings(splits)
        for warning in warnings:
            LOG.warning("%s: %s", source, warning)
        return replace(splits, notes=(*splits.notes, *warnings))

    @abstractmethod
    def load(self, source: Path, facts: Facts, side: int | None) -> RawSplits:
        """Read the format; ``read`` checks the splits as a whole."""


def statistics(images: Images) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of each channel, for pixels from 0 to 1.

    Sums are exact integers, so the order of the images does not matter. A constant channel gets the deviation
    1, because pixels are divided by it.
    """
    values = np.arange(256, dtype=np.float64) / 255
    counts = np.zeros((images.shape[1], 256), np.int64)
    for start in range(0, len(images), 1024):
        for channel, total in enumerate(counts):
            total += np.bincount(images[start : start + 1024, channel].ravel(), minlength=256)
    shares = counts / counts.sum(axis=1, keepdims=True)
    mean = shares @ values
    std = np.sqrt((shares * (values - mean[:, None]) ** 2).sum(axis=1))
    return tuple(mean.tolist()), tuple(np.where(std > 0, std, 1.0).tolist())


def as_images(array: NDArray[Any], where: str, facts: Facts) -> Images:
    """Check images ``[n, h, w]`` or ``[n, h, w, c]`` and return them as ``[n, c, h, w]``."""
    if array.dtype != np.uint8:
        raise FltrainError(f"{where}: found {array.dtype} images, expected uint8 (0 to 255)")
    if array.ndim not in (3, 4) or (array.ndim == 4 and array.shape[3] not in (1, 3)):
        raise FltrainError(
            f"{where}: found an array of shape {array.shape}, expected images (n, height, width) "
            "or (n, height, width, 1 or 3)"
        )
    images, height, width = array.shape[:3]
    if not images:
        raise FltrainError(f"{where}: found no images, expected at least one")
    side = facts.side or height or 1
    if (height, width) != (side, side):
        raise FltrainError(f"{where}: found images of {height} x {width} pixels, expected {side} x {side}")
    channels = array.shape[3] if array.ndim == 4 else 1
    if facts.channels not in (None, channels):
        raise FltrainError(f"{where}: found {count(channels, 'channel')}, expected {facts.channels}")
    planes = array[:, None] if array.ndim == 3 else array.transpose(0, 3, 1, 2)
    return np.ascontiguousarray(planes)


def as_labels(
    array: NDArray[Any], where: str, images: int, classes: int | None = None, first: int = 0
) -> ClassLabels:
    """Check labels ``[n]`` or ``[n, 1]`` and return them as int64 ``[n]``.

    Args:
        array: content of the file.
        where: the file, for messages.
        images: expected number of labels.
        classes: number of classes, if known.
        first: smallest label of the format.
    """
    if array.dtype.kind not in "iu":
        raise FltrainError(f"{where}: found {array.dtype} labels, expected integers")
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise FltrainError(f"{where}: found labels of shape {array.shape}, expected one for each image")
    if len(array) != images:
        raise FltrainError(f"{where}: found {count(len(array), 'label')} for {count(images, 'image')}")
    low, high = int(array.min()), int(array.max())
    if low < first or high >= first + (classes or _MOST_CLASSES):
        expected = (
            f"{first} to {first + classes - 1}" if classes else f"{first} or more, below {_MOST_CLASSES:,}"
        )
        raise FltrainError(f"{where}: found labels {low} to {high}, expected {expected}")
    return array.astype(np.int64)


def unpack(archive: Path, folder: Path) -> Path:
    """Unpack a zip or tar archive into ``folder``, unless the folder exists, and return ``folder``.

    The archive is not trusted. The folder appears when everything is in it.

    Raises:
        FltrainError: if the archive is damaged or truncated, or holds devices, links or paths that lead out
            of the folder; the folder does not exist then.
    """
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix=".", dir=folder.parent) as temporary,
        readable(archive, "an archive"),
    ):
        content = Path(temporary) / folder.name
        if archive.suffix.lower() == ".zip":
            with zipfile.ZipFile(archive) as file:
                file.extractall(content)
        else:
            _unpack_tar(archive, content)
        if not folder.exists():  # else another process has unpacked it meanwhile
            content.rename(folder)
    return folder


def _unpack_tar(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as file:
        file.extractall(folder, filter="data")
        # tarfile takes damage for the end, and leaves the checksum of the compression unread.
        content: Any = file.fileobj
        content.seek(file.offset)
        if content.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
            raise EOFError(f"no member and no end after {file.offset} bytes")
        while content.read(1 << 20):
            pass


def locate(source: Path, *names: str) -> Path:
    """Return the file with one of these names in a folder or below it; earlier names are preferred."""
    for name in names:
        if (source / name).is_file():
            return source / name
        matches = [source] if source.is_file() and source.name == name else sorted(source.rglob(name))
        if len(matches) > 1:
            raise FltrainError(f"{source}: found {name} in {count(len(matches), 'place')}, expected one")
        if matches:
            return matches[0]
    raise FltrainError(f"{source}: found no {' or '.join(names)}")


@contextmanager
def extracted(source: Path, archive_name: str) -> Iterator[Path]:
    """Yield a folder with the content of an archive, or ``source`` if it is a folder without the archive.

    The folder is temporary; error messages name the archive in its place.
    """
    archive = source if source.is_file() else source / archive_name
    if not archive.is_file():
        yield source
        return
    with tempfile.TemporaryDirectory(prefix="fltrain-") as temporary:
        folder = unpack(archive, Path(temporary) / "content")
        try:
            yield folder
        except FltrainError as error:
            raise FltrainError(str(error).replace(str(folder), str(archive))) from None


def readable(path: Path, kind: str) -> AbstractContextManager[None]:
    """Turn any error of a parser into one line that names the file and the expected kind.

    Parsers raise almost anything on damaged files, and the user can only replace the file.
    """
    return refusing(f"{path}: not readable as {kind}")


def _check_splits(splits: RawSplits, facts: Facts, source: Path) -> None:
    if splits.train_images.shape[1:] != splits.test_images.shape[1:]:
        raise FltrainError(
            f"{source}: found training images of {splits.train_images.shape[1:]} but test images of "
            f"{splits.test_images.shape[1:]} (channels, height, width)"
        )
    for split, labels, expected in (
        ("training", splits.train_labels, facts.train_images),
        ("test", splits.test_labels, facts.test_images),
    ):
        if expected not in (None, len(labels)):
            raise FltrainError(
                f"{source}: found {count(len(labels), f'{split} image')}, expected {expected:,}"
            )
    present = np.unique(np.concatenate([splits.train_labels, splits.test_labels]))
    if len(present) == 1 and len(splits.train_labels):
        raise FltrainError(
            f"{source}: all images are of class {present[0]}, expected at least two classes; check the labels"
        )
    if facts.classes is None and len(present) < splits.classes:
        missing = int(np.flatnonzero(present != np.arange(len(present)))[0])
        raise FltrainError(
            f"{source}: found labels up to {splits.classes - 1} but no label {missing}; "
            "number the classes from 0, or state 'classes'"
        )


def _warnings(splits: RawSplits) -> tuple[str, ...]:
    """Return a warning for each split of a single class, and for classes that only one split has."""
    by_split = {"training": splits.train_labels, "test": splits.test_labels}
    single = [
        f"all {len(labels):,} {split} images are of class {labels[0]}: a constant prediction reaches 100 %"
        for split, labels in by_split.items()
        if len(labels) and labels.min() == labels.max()
    ]
    if single or not len(splits.train_labels):
        return tuple(single)
    absent = {split: np.setdiff1d(range(splits.classes), labels) for split, labels in by_split.items()}
    return tuple(
        f"no {split} images of class {listed(map(str, classes), 3)}"
        for split, classes in absent.items()
        if len(classes)
    )
