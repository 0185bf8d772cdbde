"""Recovery when a device has no memory left."""

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
"""Current numbers: smaller after memory ran out."""

_OUT_OF_MEMORY = ("can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")
"""PyTorch's texts in plain RuntimeErrors: of the CPU, and of NVIDIA's libraries."""

Result = TypeVar("Result")


def out_of_memory(error: BaseException) -> bool:
    """Return True if the error means that a device, or the machine, has no memory left."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(message in str(error) for message in _OUT_OF_MEMORY)


def start_anew() -> None:
    """Reset the batch sizes before a run, after memory ran out in another one."""
    BATCH.update(MOST)


def reduced() -> bool:
    """Return True if memory ran out, so that rounding may differ from that of a run with ample memory."""
    return BATCH != MOST


def in_batches(indices: Tensor, work: Callable[[Tensor], Result]) -> list[Result]:
    """Do the work in evaluation mode on batches that fit into memory; return the results in their order.

    When memory runs out, the batch is repeated in halves, and the rest of the run keeps to that size.

    Raises:
        RuntimeError, MemoryError: if a single image needs too much memory.
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
            # The tensors of the failed work are freed with the error: at the end of this block.
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
