"""Sizes of a run, from which methods count their multiply-adds for a plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fltrain.models.base import Part


@dataclass(frozen=True)
class Workload:
    """Sizes of a run, and the multiply-adds of its network, from which methods count their further passes.

    Attributes:
        features, head: multiply-adds of a forward pass on one image, below the classifier and in it.
        first: multiply-adds in the layers that read the images; no error travels back through them.
        above: returns the multiply-adds above a cut of the network (None: the middle one), with the
            classifier.
        width: number of features d.
        classes: number of classes C.
        images: training images of a client.
        sizes: images of each local step in a pass over the client's images.
        passes: passes in a round.
        batch_size: images of a full batch.
        tests: test images of a client.
        clients, cohort: number of all clients, and of the clients in a round.
        rounds: number of rounds.
    """

    features: int
    head: int
    first: int
    above: Callable[[int | None], int]
    width: int
    classes: int
    images: int = 0
    sizes: tuple[int, ...] = ()
    passes: int = 1
    batch_size: int = 1
    tests: float = 0.0
    clients: int = 1
    cohort: int = 1
    rounds: int = 1

    @property
    def trained(self) -> int:
        """Images of a client's local steps in a round."""
        return self.passes * sum(self.sizes)

    @property
    def forward(self) -> int:
        """Multiply-adds of a forward pass on one image."""
        return self.features + self.head

    def gradient(self, part: Part = "all") -> int:
        """Multiply-adds of a forward and a backward pass on one image, for the gradient of a part."""
        if part == "head":
            return self.forward + self.head
        errors = self.forward - self.first
        return self.forward + errors + (self.forward if part == "all" else self.features)
