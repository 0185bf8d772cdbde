"""Create a network from its declaration."""

from __future__ import annotations

from fltrain.core.rng import Purpose, seeded_torch
from fltrain.models.base import Model
from fltrain.models.network import Network


def build(
    model: Model, channels: int, side: int, classes: int, seed: int, client: int | None = None
) -> Network:
    """Return the network with the framework's default initialisation, drawn from the seed's own stream.

    Without ``client`` it is the initial network of the run; with ``client``, the initial one of that client.
    """
    with seeded_torch(seed, Purpose.INITIALISATION, client=0 if client is None else client + 1):
        return model.network(channels, side, classes)
