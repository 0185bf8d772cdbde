"""Recording of a client's local steps."""

from __future__ import annotations

import torch
from torch import Tensor

from fltrain.methods.types import Memory, Recording

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class Trajectory:
    """Recorded local steps of a client, a matrix ``[steps, P]``.

    A matrix on the host is in pinned memory, so that the device need not wait for the copies.
    """

    def __init__(self, recording: Recording, steps: int, start: Tensor, memory: Memory) -> None:
        self.recording = recording
        self.device = start.device
        dtype = DTYPES[recording.storage]
        host = start.is_cuda and memory == "host"
        self.rows = torch.empty(
            (steps, len(start)), dtype=dtype, device="cpu" if host else start.device, pin_memory=host
        )
        self.taken = 0
        if recording.what == "displacement":
            self.before = start.clone()

    def add(self, gradient: Tensor, weights: Tensor) -> None:
        """Record a step, given its gradient and the weights after it."""
        row = gradient
        if self.recording.what == "displacement":
            row = self.before.sub_(weights)
        self.rows[self.taken].copy_(row, non_blocking=True)
        if self.recording.what == "displacement":
            self.before.copy_(weights)
        self.taken += 1

    def finished(self) -> Tensor:
        """Return the matrix, once all copies to the host have arrived."""
        if self.rows.is_pinned():
            torch.cuda.synchronize(self.device)
        return self.rows
