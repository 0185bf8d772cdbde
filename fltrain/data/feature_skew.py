"""Feature skew: images that look different from client to client. Does not import torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from fltrain.core.config import Settings
from fltrain.core.rng import Purpose, stream
from fltrain.data.partition import Indices
from fltrain.data.readers import Images


class FeatureSkew(Settings):
    """Turn the images of each client and add noise, once before training.

    This changes all images of the clients. Without ``local_test``, test and validation images belong to no
    client and stay as they are.

    Attributes:
        noise: sigma; client i of N, counted from 1, gets Gaussian noise of level sigma i / N, for pixels from
            0 to 1 (Li et al., Federated learning on non-IID data silos, ICDE 2022). Noisy pixels are rounded
            to bytes and cut off at 0 and 1. The authors' code draws new noise in every epoch and has i - 1
            and N - 1.
        level: the level is the ``variance`` (paper) or the standard ``deviation`` (the authors' code).
        rotations: number of orientations k; client i, counted from 0, has its images turned anticlockwise by
            i mod k times 360 / k degrees (Ghosh et al., An efficient framework for clustered federated
            learning, NeurIPS 2020).
    """

    revision: ClassVar[int] = 2
    """Part of the run ID; increase it with every change of the numbers."""

    noise: float = Field(default=0.0, ge=0)
    level: Literal["variance", "deviation"] = "variance"
    rotations: Literal[1, 2, 4] = 1

    @model_validator(mode="after")
    def _changes_something(self) -> Self:
        if not self.noise and self.rotations == 1:
            raise ValueError("changes no image; set 'noise' or 'rotations', or leave out 'feature_skew'")
        return self

    def changed(self, images: Images, clients: Sequence[Indices], seed: int) -> Images:
        """Return a copy of the images, uint8 ``[n, c, side, side]``; only the clients' images are changed."""
        images = np.array(images)
        for client, indices in enumerate(clients):
            turned = np.rot90(images[indices], client % self.rotations * 4 // self.rotations, axes=(2, 3))
            level = self.noise * (client + 1) / len(clients)
            if level:
                deviation = 255 * (math.sqrt(level) if self.level == "variance" else level)
                random = stream(seed, Purpose.FEATURE_SKEW, client=client)
                noise = random.standard_normal(turned.shape, np.float32)
                turned = np.rint(turned + deviation * noise).clip(0, 255).astype(np.uint8)
            images[indices] = turned
        return images
