"""Photographs in one folder per class: LC25000, ImageNet-100, and your own."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NoReturn

import numpy as np
from pydantic import Field

from fltrain.core.config import ListOf, suggest
from fltrain.core.errors import FltrainError, count, listed
from fltrain.core.files import natural
from fltrain.data.readers.base import LOG, Facts, Images, LabelledImages, RawSplits, Reader, readable

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".ppm", ".pgm", ".tif", ".tiff", ".webp"})
GREY_MODES = frozenset({"1", "L", "LA"})
DEEP_MODES = frozenset({"I", "F", "I;16", "I;16L", "I;16B", "I;16N"})
"""More than 8 bits per channel; a conversion would clip them."""

_ORIENTATION = 0x0112
"""EXIF tag; 1: as the pixels are stored."""

Tree = dict[str, list[Path]]
"""Class -> its files, in order."""


class Folder(Reader):
    """Images in one folder per class, below ``train`` and ``test`` (or ``val``) or in a single tree.

    A class is a folder with images, at any depth. Classes and files are sorted in natural order (``a2``
    before ``a10``).

    Attributes:
        side: target height and width: the shorter side is resized bilinearly, the longer one cut at both
            ends. Without it all images must have the same size.
        train_fraction: for a single tree: share of each class, in the order of the files, for training; the
            rest is for testing.
        only: classes to use; others are ignored.
    """

    name: Literal["folder"] = "folder"
    side: int | None = Field(default=None, ge=1, le=1024)
    train_fraction: float | None = Field(default=None, gt=0, lt=1)
    only: ListOf[str] | None = None

    def load(self, source: Path, facts: Facts, side: int | None) -> RawSplits:
        train, test, notes = self._splits(source)
        names = sorted(train, key=natural)
        if facts.classes not in (None, len(names)):
            folders = f"{count(len(names), 'folder')} with images ({listed(names, 3)})"
            raise FltrainError(f"{source}: found {folders}, expected {facts.classes} classes")
        with opened(train[names[0]][0]) as first:
            width, grey = first.width, first.mode in GREY_MODES
        target = side or self.side or facts.side or width
        native = facts.side if side or self.side else target
        channels = facts.channels or (1 if grey else 3)
        turned: list[Path] = []

        def read(file: Path) -> Images:
            """Return one image ``[channels, target, target]``."""
            with opened(file) as image:
                if native is not None and image.size != (native, native):
                    raise FltrainError(
                        f"{file}: found {image.height} x {image.width} pixels, expected {native} x {native}; "
                        "set the reader's 'side' to resize all images, or correct 'side' of the dataset"
                    )
                mode = image.mode
                if mode in DEEP_MODES:
                    raise FltrainError(
                        f"{file}: found more than 8 bits per channel (mode {mode}), expected 8"
                    )
                if grey and facts.channels is None and mode not in GREY_MODES:
                    raise FltrainError(
                        f"{file}: found a colour image after grey ones; state 'channels' (1 or 3)"
                    )
                if image.getexif().get(_ORIENTATION, 1) != 1:
                    turned.append(file)
                plain = image.convert("L" if channels == 1 else "RGB")
                pixels = np.asarray(centred(plain, target)).reshape(target, target, channels)
            return pixels.transpose(2, 0, 1)

        def split(tree: Tree) -> LabelledImages:
            files = [file for name in names for file in tree[name]]
            labels = np.repeat(np.arange(len(names)), [len(tree[name]) for name in names])
            images = np.empty((len(files), channels, target, target), np.uint8)
            with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
                # In order, so that the error names the first bad image.
                for index, image in enumerate(pool.map(read, files)):
                    images[index] = image
            return images, labels

        splits = (*split(train), *split(test))
        if turned:
            note = f"the EXIF orientation of {count(len(turned), 'image')} is not applied, as in torchvision"
            LOG.warning("%s: %s", source, note)
            notes = (*notes, note)
        return RawSplits(*splits, class_names=tuple(names), notes=notes)

    def _splits(self, source: Path) -> tuple[Tree, Tree, tuple[str, ...]]:
        """Return the files of both splits, and notes."""
        present = [name for name in ("train", "test", "val") if (source / name).is_dir()]
        if present[:1] != ["train"] or len(present) == 1:
            if self.train_fraction is None:
                folders = f"only {', '.join(present)}" if present else "neither"
                raise FltrainError(
                    f"{source}: found {folders}, expected folders train and test (or val); "
                    "for a single tree set the reader's 'train_fraction'"
                )
            return *_divided(class_tree(source, self.only), self.train_fraction, source), ()
        if self.train_fraction is not None:
            raise FltrainError(
                f"{source}: found folders {' and '.join(present)}, expected a single tree; "
                "remove the reader's 'train_fraction'"
            )
        train, test = (class_tree(source / name, self.only) for name in present[:2])
        unmatched = sorted(train.keys() ^ test.keys(), key=natural)
        if unmatched:
            raise FltrainError(
                f"{source}: found {listed(unmatched, 3)} in only one of {present[0]} and {present[1]}, "
                "expected the same classes in both"
            )
        return train, test, tuple(f"the folder {name!r} is not used" for name in present[2:])


def class_tree(root: Path, only: Sequence[str] | None) -> Tree:
    """Return the image files below a folder, by class."""
    tree: Tree = {}
    others: list[str] = []

    def refuse(error: OSError) -> NoReturn:  # os.walk would skip the folder silently
        raise FltrainError(f"{error.filename}: cannot be listed ({error.strerror})")

    for folder, subfolders, files in os.walk(root, onerror=refuse, followlinks=True):
        visible = [name for name in subfolders if not name.startswith((".", "__MACOSX"))]
        subfolders[:] = sorted(visible, key=natural)
        path = Path(folder)
        images = [file for file in files if file[0] != "." and Path(file).suffix.lower() in SUFFIXES]
        if path == root or not images:
            continue
        if only is not None and path.name not in only:
            others.append(path.name)
            continue
        if path.name in tree:
            raise FltrainError(
                f"{root}: found two folders {path.name!r} with images "
                f"({tree[path.name][0].parent} and {path}), expected one for each class"
            )
        tree[path.name] = [path / file for file in sorted(images, key=natural)]
    if missing := sorted(set(only or ()) - tree.keys(), key=natural):
        hint = suggest(missing[0], others)
        raise FltrainError(f"{root}: found no folder with images called {listed(missing, 3)}{hint}")
    if not tree:
        raise FltrainError(f"{root}: found no images, expected one folder of them for each class")
    return tree


def _divided(tree: Tree, fraction: float, source: Path) -> tuple[Tree, Tree]:
    train: Tree = {}
    test: Tree = {}
    for name, files in tree.items():
        cut = round(fraction * len(files))
        train[name], test[name] = files[:cut], files[cut:]
        if not train[name] or not test[name]:
            raise FltrainError(
                f"{source}: found {count(len(files), 'image')} of {name!r}; train_fraction {fraction} leaves "
                "none for training or none for testing"
            )
    return train, test


def centred(image: Image, side: int) -> Image:
    """Return the image with its shorter side resized bilinearly and its longer side cut at both ends."""
    from PIL.Image import Resampling

    width, height = (side * length // min(image.size) for length in image.size)
    left, top = round((width - side) / 2), round((height - side) / 2)
    resized = image.resize((width, height), Resampling.BILINEAR)
    return resized.crop((left, top, left + side, top + side))


@contextmanager
def opened(file: Path) -> Iterator[Image]:
    """Open an image; any error is one line that names it."""
    from PIL import Image

    with readable(file, "an image"), Image.open(file) as image:
        yield image
