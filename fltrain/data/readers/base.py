"""What every reader shares: what it returns, what it is told, and how arrays are checked.

Files are read as if they were hostile or damaged: nothing in them is executed, and whatever does not fit is
refused with one line that names the file, what was found and what is expected.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fltrain.core.errors import FltrainError
from fltrain.core.registry import Component

Images = NDArray[np.uint8]
Labels = NDArray[np.int64]
Split = tuple[Images, Labels]

CHANNELS = (1, 3)
"""Grey or colour: what an image can have."""


@dataclass(frozen=True)
class RawSplits:
    """Images as uint8 ``[n, channels, height, width]`` and labels as int64 ``[n]``, per split.

    A set that is for testing only has no training images (``n`` is 0). ``writers`` and
    ``test_writers`` say for each image who made it, counted from 0, where the set knows. ``class_names`` are
    in the order of the labels, where the files state them. ``notes`` are for the user: what was left out, and
    how much.
    """

    train_images: Images
    train_labels: Labels
    test_images: Images
    test_labels: Labels
    writers: Labels | None = None
    test_writers: Labels | None = None
    class_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Facts:
    """What a data set must be like; what is not known beforehand (None) is read off the data."""

    classes: int | None = None
    channels: int | None = None
    side: int | None = None
    train_images: int | None = None
    test_images: int | None = None


class Reader(Component):
    """A way to read the files of a data set, with its options."""

    needs_files: ClassVar[bool] = True
    """Whether there is anything to download or to bring along."""

    def read(self, source: Path, facts: Facts = Facts(), side: int | None = None) -> RawSplits:
        """Read a data set and check it.

        Args:
            source: folder of the raw files, or the one file, where a format has only one.
            facts: what the data must be like.
            side: height and width wanted. Only readers of photographs heed it, which bring images to one
                size as they read them; others return the native size.

        Raises:
            FltrainError: if anything is missing, damaged, or not as the facts say.
        """
        if self.needs_files and not source.exists():
            raise FltrainError(f"{source}: no such file or folder")
        splits = self.load(source, facts, side)
        _check_splits(splits, facts, source)
        return splits

    def load(self, source: Path, facts: Facts, side: int | None) -> RawSplits:
        """The format itself; ``read`` checks what concerns the splits together."""
        raise TypeError(f"reader {self.name!r} does not say how to read its files")

    def side_read(self, facts: Facts) -> int | None:
        """Height and width of the images when no other is wanted; None if only the data can say."""
        return facts.side


def observed(splits: RawSplits) -> Facts:
    """What the data are like. Classes are counted up to the largest label, or by their names."""
    labels = np.concatenate([splits.train_labels, splits.test_labels])
    return Facts(
        classes=len(splits.class_names) or int(labels.max()) + 1,
        channels=splits.test_images.shape[1],
        side=splits.test_images.shape[2],
        train_images=len(splits.train_labels),
        test_images=len(splits.test_labels),
    )


def statistics(images: Images) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel, pixels counted from 0 to 1.

    Sums are exact integers, so the result does not depend on their order. A channel without any variation
    gets the deviation 1, as it is there to divide by.
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


def as_images(array: NDArray[Any], where: str, facts: Facts = Facts()) -> Images:
    """Check images ``[n, h, w]`` or ``[n, h, w, c]`` and bring them to ``[n, c, h, w]``.

    Raises:
        FltrainError: if they are not square uint8 images of the expected size and channels.
    """
    if array.dtype != np.uint8:
        raise FltrainError(f"{where}: found {array.dtype} images, expected uint8 (0 to 255)")
    if array.ndim not in (3, 4) or (array.ndim == 4 and array.shape[3] not in CHANNELS):
        raise FltrainError(
            f"{where}: found an array of shape {array.shape}, expected images (n, height, width) "
            "or (n, height, width, 1 or 3)"
        )
    found, height, width = array.shape[:3]
    if not found:
        raise FltrainError(f"{where}: found no images, expected at least one")
    expected = facts.side or height or 1
    if (height, width) != (expected, expected):
        raise FltrainError(
            f"{where}: found images of {height} x {width} pixels, expected {expected} x {expected}"
        )
    channels = array.shape[3] if array.ndim == 4 else 1
    if facts.channels not in (None, channels):
        raise FltrainError(f"{where}: found {count(channels, 'channel')}, expected {facts.channels}")
    planes = array[:, None] if array.ndim == 3 else array.transpose(0, 3, 1, 2)
    return np.ascontiguousarray(planes)


def as_labels(
    array: NDArray[Any], where: str, images: int, classes: int | None = None, first: int = 0
) -> Labels:
    """Check labels ``[n]`` or ``[n, 1]`` of so many images and bring them to int64 ``[n]``.

    Args:
        array: what the file holds.
        where: the file, for messages.
        images: how many labels there must be.
        classes: how many classes there are, if that is known.
        first: smallest label that the format uses.

    Raises:
        FltrainError: if they are not integers, too few or too many, or not labels of these classes.
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
    if low < first or (classes is not None and high >= first + classes):
        expected = f"{first} to {first + classes - 1}" if classes is not None else f"{first} or more"
        raise FltrainError(f"{where}: found labels {low} to {high}, expected {expected}")
    return array.astype(np.int64)


def count(number: int, noun: str) -> str:
    """For example ``1,712 images``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def listing(names: Iterable[str], most: int = 3) -> str:
    """The first few names, and how many more there are."""
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def locate(source: Path, *names: str) -> Path:
    """Return the file with one of these names in a folder, or the one below; earlier names are preferred.

    Raises:
        FltrainError: if there is none, or more than one of the same name.
    """
    for name in names:
        if (source / name).is_file():
            return source / name
        found = [source] if source.is_file() and source.name == name else sorted(source.rglob(name))
        if len(found) > 1:
            raise FltrainError(f"{source}: found {name} in {count(len(found), 'place')}, expected one")
        if found:
            return found[0]
    raise FltrainError(f"{source}: found no {' or '.join(names)}")


def tar_members(archive: Path) -> Iterator[tuple[PurePosixPath, IO[bytes]]]:
    """Names and contents of the plain files in an archive, one after the other; nothing is written."""
    with tarfile.open(archive, "r|*") as members:
        for member in members:
            file = members.extractfile(member) if member.isfile() else None
            if file is not None:
                yield PurePosixPath(member.name), file


@contextmanager
def readable(path: Path, what: str) -> Iterator[None]:
    """Turn whatever goes wrong while a file is parsed into one line that names it.

    Parsers of damaged files raise almost anything; none of it is of use to someone who cannot mend the file.
    """
    try:
        yield
    except (FltrainError, MemoryError):
        raise
    except FileNotFoundError:
        raise FltrainError(f"{path}: no such file, expected {what}") from None
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise FltrainError(f"{path}: not readable as {what} ({reason})") from None


def _check_splits(splits: RawSplits, facts: Facts, source: Path) -> None:
    if splits.train_images.shape[1:] != splits.test_images.shape[1:]:
        raise FltrainError(
            f"{source}: found training images of {_form(splits.train_images)} "
            f"but test images of {_form(splits.test_images)}"
        )
    seen = observed(splits)
    for split, found, expected in (
        ("training", seen.train_images or 0, facts.train_images),
        ("test", seen.test_images or 0, facts.test_images),
    ):
        if expected not in (None, found):
            raise FltrainError(f"{source}: found {count(found, f'{split} image')}, expected {expected:,}")
    if facts.classes is None:
        _check_gaps(splits, seen.classes or 0, source)


def _form(images: Images) -> str:
    _, channels, height, width = images.shape
    return f"{height} x {width} pixels and {count(channels, 'channel')}"


def _check_gaps(splits: RawSplits, classes: int, source: Path) -> None:
    """Refuse labels that skip a class when the number of classes was read off them."""
    present = np.unique(np.concatenate([splits.train_labels, splits.test_labels]))
    if len(present) < classes:
        missing = int(np.flatnonzero(present != np.arange(len(present)))[0])
        raise FltrainError(
            f"{source}: found labels up to {classes - 1} but none that is {missing}; "
            "number the classes from 0, or state 'classes'"
        )
