"""Counter-based random streams: the only source of random numbers.

A stream is Philox keyed by (seed, purpose) whose counter starts at (round, client, epoch). Nothing has to
be stored or advanced: whoever knows the coordinates can draw the same numbers again, in any order. Hence
results do not depend on the order of clients, resuming needs no generator state, and a method that draws
more numbers cannot disturb another's data order.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

import numpy as np


class Purpose(IntEnum):
    """What numbers are drawn for. The values are part of every result: never change or reuse one."""

    PARTITION = 1
    INITIALISATION = 2
    CLIENT_SAMPLING = 3
    BATCH_ORDER = 4
    AUGMENTATION = 5
    DROPOUT = 6
    METHOD = 7
    TEST_SPLIT = 8


def stream(
    seed: int, purpose: Purpose, *, round: int = 0, client: int = 0, epoch: int = 0
) -> np.random.Generator:
    """Return the generator at the given coordinates (each a non-negative integer below 2**64)."""
    # The first of the four counter words is the one that Philox itself counts up.
    return np.random.Generator(
        np.random.Philox(
            key=np.array([seed, purpose], np.uint64), counter=np.array([0, round, client, epoch], np.uint64)
        )
    )


@contextmanager
def seeded_torch(seed: int, purpose: Purpose, *, round: int = 0, client: int = 0) -> Iterator[None]:
    """Within the context, PyTorch's global generators are seeded from the stream at these coordinates.

    For what PyTorch draws from no other generator: the initialisation of layers, and dropout. Afterwards the
    generators are as they were.
    """
    import torch

    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    drawn = int(stream(seed, purpose, round=round, client=client).integers(2**63))
    with torch.random.fork_rng(devices):
        # Not `torch.manual_seed`: for devices that are not in use it writes down the whole stack, which takes
        # up to half a millisecond for every client.
        torch.default_generator.manual_seed(drawn)
        if devices:
            torch.cuda.manual_seed(drawn)
        yield
