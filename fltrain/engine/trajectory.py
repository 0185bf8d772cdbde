"""Recording of a client's local steps."""

from __future__ import annotations

import torch
from torch import Tensor

from fltrain.methods.types import Local, Recording


class Trajectory:
    """Recorded local steps of a client: ``rows`` is a matrix ``[steps, P]``, or ``[steps, P + B]``."""

    def __init__(self, recording: Recording, local: Local) -> None:
        self.recording, self.taken = recording, 0
        self.before = recording.recorded(local.start, local.buffers).clone()
        shape, storage = (local.steps, len(self.before)), getattr(torch, recording.storage)
        self.rows = self.before.new_empty(shape, dtype=storage)

    def add(self, gradient: Tensor, weights: Tensor, buffers: Tensor) -> None:
        """Record a step, given its gradient, and weights and buffers after it."""
        after = self.recording.recorded(weights, buffers)
        self.rows[self.taken] = gradient if self.recording.what == "gradient" else self.before.sub_(after)
        self.before.copy_(after)
        self.taken += 1
