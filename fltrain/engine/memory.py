"""What to do when a device has no memory left."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

LOG = logging.getLogger("fltrain")

MOST = {"cpu": 64, "cuda": 1024}
"""Images at once in evaluation mode: on a CPU, activations should stay in its caches (measured: up to three
times faster)."""

BATCH = dict(MOST)
"""How many there are now: fewer, where memory ran out."""

_SAID = ("can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")
"""What PyTorch says in plain RuntimeErrors: of the CPU, and of NVIDIA's libraries."""

Result = TypeVar("Result")


def out_of_memory(error: BaseException) -> bool:
    """Whether the error says that a device, or the machine, has no memory left."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(said in str(error) for said in _SAID)


def start_anew() -> None:
    """Forget, before a run, that memory ran out in another one."""
    BATCH.update(MOST)


def reduced() -> bool:
    """Whether memory ran out, so that numbers may be rounded otherwise than they would have been."""
    return BATCH != MOST


def in_batches(indices: Tensor, work: Callable[[Tensor], Result]) -> list[Result]:
    """Do the work, in evaluation mode, on as many indices at once as memory allows; results in their order.

    When memory runs out, the batch is done again in halves, and the rest of the run keeps to that size.

    Raises:
        RuntimeError, MemoryError: if a single image is too much.
    """
    results: list[Result] = []
    rest, device = indices, indices.device.type
    while True:
        batch = rest[: BATCH[device]]
        try:
            results.append(work(batch))
        except (RuntimeError, MemoryError) as error:
            if len(batch) <= 1 or not out_of_memory(error):
                raise
            # What the failed work had made is freed with the error: at the end of this block.
        else:
            rest = rest[len(batch) :]
            if not len(rest):
                return results
            continue
        BATCH[device] = len(batch) // 2
        LOG.warning(
            "out of memory with %d images at once in evaluation mode; %d at once from now on",
            len(batch),
            BATCH[device],
        )
        if device == "cuda":
            torch.cuda.empty_cache()
