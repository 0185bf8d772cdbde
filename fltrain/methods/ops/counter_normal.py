"""Normal random numbers as plain tensor operations, for local steps.

A local step must not use a generator: its state would tie results to the order of the steps and could not be
captured. Here number i of a stream is a hash of the stream's key and i (SplitMix64, Steele et al.
2014), made normal by Box and Muller's transform. The same key and counter give the same numbers on every
device, up to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from fltrain.core.lazy import Tensor, torch

_GOLDEN, _FIRST, _SECOND = (
    constant - (1 << 64) for constant in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)  # as signed integers; products wrap around
_BITS = 24
"""Random bits of a uniform number; a float32 holds no more."""


def _shifted(values: Tensor, bits: int) -> Tensor:
    """Shift right and fill with zeros (the operator keeps the sign)."""
    return (values >> bits) & ((1 << (64 - bits)) - 1)


def standard_normal(shape: Sequence[int], key: Tensor, counter: Tensor) -> Tensor:
    """Return float32 numbers from N(0, 1).

    Args:
        shape: shape of the result.
        key: int64 scalar that names the stream.
        counter: int64 scalar below 2**31; each value gives up to 2**33 other numbers.
    """
    size = math.prod(shape)
    pairs = (size + 1) // 2
    index = torch.arange(pairs, device=key.device) + (counter << 32)
    bits = (index + 1) * _GOLDEN + key
    bits = (bits ^ _shifted(bits, 30)) * _FIRST
    bits = (bits ^ _shifted(bits, 27)) * _SECOND
    bits = bits ^ _shifted(bits, 31)
    # Two uniform numbers from the upper and the lower bits; the first is never zero.
    radius = ((_shifted(bits, 64 - _BITS) + 0.5) * 2**-_BITS).log().mul(-2).sqrt()
    angle = (bits & ((1 << _BITS) - 1)) * (2 * math.pi * 2**-_BITS)
    return torch.cat([radius * angle.cos(), radius * angle.sin()])[:size].view(tuple(shape))
