"""The handwritten digits inside scikit-learn: nothing to download."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from fltrain.core.rng import Purpose, stream
from fltrain.data.readers.base import Facts, RawSplits, Reader


class Digits(Reader):
    """Handwritten digits that ship inside scikit-learn: 1,797 grey images of 8 x 8 pixels, 10 classes.

    The set has no official test split. A fifth of each class is held out, always the same images, whatever
    the seed of the run.
    """

    name: Literal["digits"] = "digits"
    needs_files: ClassVar[bool] = False

    def load(self, source: Path, facts: Facts, side: int | None) -> RawSplits:
        from sklearn.datasets import load_digits

        bunch = load_digits()
        # The bundled values are 0..16 (ink counted in 4 x 4 blocks); spread them over a byte.
        images = np.rint(bunch.images * (255 / 16)).astype(np.uint8)[:, None]
        labels = bunch.target.astype(np.int64)
        test = np.zeros(len(labels), bool)
        random = stream(0, Purpose.TEST_SPLIT)
        for label in range(10):
            members = np.flatnonzero(labels == label)
            test[random.permutation(members)[: round(len(members) / 5)]] = True
        return RawSplits(images[~test], labels[~test], images[test], labels[test])
