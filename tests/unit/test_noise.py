"""Normal random numbers for local steps: definition and shapes."""

import math
from collections.abc import Iterator
from itertools import islice

import numpy as np
import pytest
import torch
from torch import Tensor

from fltrain.methods.ops.counter_normal import standard_normal

WORD = 2**64
GOLDEN, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
KEYS = [0, 1, -1, 2**62 + 12345, -(2**63)]


def drawn(*shape: int, key: int = 7, counter: int = 0) -> Tensor:
    return standard_normal(shape, torch.tensor(key), torch.tensor(counter))


def splitmix64(seed: int) -> Iterator[int]:
    """The generator of Steele et al. (2014), word by word."""
    state = seed % WORD
    while True:
        state = (state + GOLDEN) % WORD
        word = ((state ^ (state >> 30)) * FIRST) % WORD
        word = ((word ^ (word >> 27)) * SECOND) % WORD
        yield word ^ (word >> 31)


def box_muller(words: list[int]) -> list[float]:
    """Two numbers of each word: first all cosines, then all sines."""
    radii = [math.sqrt(-2 * math.log(((word >> 40) + 0.5) / 2**24)) for word in words]
    angles = [2 * math.pi * (word % 2**24) / 2**24 for word in words]
    pairs = list(zip(radii, angles, strict=True))
    return [r * math.cos(a) for r, a in pairs] + [r * math.sin(a) for r, a in pairs]


def test_the_reference_generator_is_splitmix64() -> None:
    """Published outputs for the seed 1234567."""
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert list(islice(splitmix64(1234567), 4)) == published


@pytest.mark.parametrize("key", KEYS)
def test_numbers_are_those_of_the_definition(key: int) -> None:
    expected = box_muller(list(islice(splitmix64(key), 50)))
    np.testing.assert_allclose(drawn(100, key=key).numpy(), expected, atol=1e-4)


@pytest.mark.parametrize("shape", [(), (1,), (2,), (7,), (3, 5), (4, 1, 3, 3), (0,), (3, 0)])
def test_numbers_can_have_any_shape(shape: tuple[int, ...]) -> None:
    values = drawn(*shape, counter=5)
    assert values.shape == shape
    assert values.dtype == torch.float32
    assert values.is_contiguous()
    assert len(values.flatten().unique()) == values.numel()
