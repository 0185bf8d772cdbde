"""Recording of a client's local steps."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fltrain.methods.types import Place, Recording

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class Trajectory:
    """Recorded local steps of a client, a matrix ``[steps, P]``.

    A matrix on the host is in pinned memory, so that the device need not wait for the copies.
    """

    def __init__(self, recording: Recording, steps: int, start: Tensor, place: Place) -> None:
        self.recording = recording
        self.device = start.device
        dtype = DTYPES[recording.storage]
        host = start.is_cuda and place == "host"
        self.rows = torch.empty(
            (steps, len(start)), dtype=dtype, device="cpu" if host else start.device, pin_memory=host
        )
        self.taken = 0
        if recording.what == "displacement":
            self.before = start.clone()

    def finished(self) -> Tensor:
        """Return the matrix, once all copies to the host have arrived."""
        if self.rows.is_pinned():
            torch.cuda.synchronize(self.device)
        return self.rows


def record(
    trajectories: Sequence[Trajectory], gradients: Sequence[Tensor], weights: Sequence[Tensor]
) -> None:
    """Add a step to the trajectories of some clients, given the step's gradients and the weights after it.

    On a GPU, one operation copies all rows.
    """
    rows, ends = list(gradients), list(weights)
    displacements = trajectories[0].recording.what == "displacement"
    if displacements:
        rows = [one.before for one in trajectories]
        torch._foreach_sub_(rows, ends)
    torch._foreach_copy_([one.rows[one.taken] for one in trajectories], rows, non_blocking=True)
    if displacements:
        torch._foreach_copy_(rows, ends)
    for one in trajectories:
        one.taken += 1
