"""Making a network from its declaration."""

from __future__ import annotations

import torch

from fltrain.models.catalogue import Model
from fltrain.models.network import Network
from fltrain.randomness import Purpose, torch_seed


def build(model: Model, channels: int, side: int, classes: int, seed: int) -> Network:
    """Return the network with the framework's default initialisation, drawn from the seed's own stream.

    PyTorch's layers initialise themselves from the global generator; it is seeded for the purpose and left
    as it was.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(seed, Purpose.INITIALISATION))
        return model.network(channels, side, classes)
