"""Counter-based random streams: the only source of random numbers.

A stream is Philox keyed by (seed, purpose); its counter starts at (round, client, epoch). No generator state
is stored or advanced: the same coordinates give the same numbers, in any order. Therefore results do not
depend on the order of clients, resuming needs no generator state, and a method that draws more numbers cannot
change another method's data order.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum, unique
from typing import Any

import numpy as np

from fltrain.core.errors import FltrainError


@unique
class Purpose(IntEnum):
    """Use of the random numbers. The values are part of every result: never change or reuse them."""

    PARTITION = 1
    INITIALISATION = 2
    CLIENT_SAMPLING = 3
    BATCH_ORDER = 4
    AUGMENTATION = 5
    DROPOUT = 6
    METHOD = 7
    TEST_SPLIT = 8
    VALIDATION_SPLIT = 9
    SEARCH = 10
    FEATURE_SKEW = 11


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
def own_streams(where: str) -> Iterator[None]:
    """Refuse code that draws from a global generator, because its numbers would not repeat.

    Args:
        where: place of the code, for the message.

    Raises:
        FltrainError: naming the generators of Python, NumPy or PyTorch (CPU) whose state changed.
    """
    before = _global_states()
    yield
    changed = [name for name, state in _global_states().items() if state != before[name]]
    if changed:
        raise FltrainError(
            f"{where} draws from the global generator of {' and '.join(changed)}, which does not repeat; "
            "draw from self.random(task, round=..., client=...)"
        )


def _global_states() -> dict[str, Any]:
    import torch

    kind, key, *position = np.random.get_state(legacy=True)
    return {
        "Python": random.getstate(),
        "NumPy": (kind, np.asarray(key).tobytes(), *position),
        "PyTorch": torch.get_rng_state().numpy().tobytes(),
    }


@contextmanager
def seeded_torch(seed: int, purpose: Purpose, *, round: int = 0, client: int = 0) -> Iterator[None]:
    """Seed PyTorch's global generators from the stream at these coordinates, within the context.

    PyTorch draws the initialisation of layers and dropout from no other generator. Afterwards the context
    restores the generators.
    """
    import torch

    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    drawn = int(stream(seed, purpose, round=round, client=client).integers(2**63))
    with torch.random.fork_rng(devices):
        # Not `torch.manual_seed`: for devices that are not in use it records the whole stack, which takes
        # up to half a millisecond for each client.
        torch.default_generator.manual_seed(drawn)
        if devices:
            torch.cuda.manual_seed(drawn)
        yield
