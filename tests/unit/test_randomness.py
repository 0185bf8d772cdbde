"""Random numbers are functions of their coordinates, and no other generator is used."""

import random
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch

from fltrain.core.rng import Purpose, seeded_torch, stream
from fltrain.data.prepared import PreparedData
from fltrain.methods.fedavg import FedAvg
from fltrain.methods.types import Local

from .helpers import federation, tiny


def raw(seed: int, purpose: Purpose, **coordinates: int) -> list[int]:
    """The first raw outputs of a stream's bit generator."""
    return stream(seed, purpose, **coordinates).bit_generator.random_raw(4).tolist()


# All recorded results depend on these values: if these tests fail, raise all revisions.
def test_first_values_follow_the_documented_scheme() -> None:
    assert (Purpose.VALIDATION_SPLIT, len(Purpose)) == (9, 11)
    assert raw(0, Purpose.PARTITION) == [
        15003734204198539638,
        13859618513508960101,
        12389738016430293093,
        8912064414512752064,
    ]
    assert raw(2**64 - 1, Purpose.METHOD, round=3, client=2, epoch=1) == [
        5592121892972585941,
        8628880120499760324,
        10844274608532621619,
        5622955571101255187,
    ]


def global_states() -> list[Any]:
    kind, key, *position = np.random.get_state()
    return [random.getstate(), kind, key.tobytes(), position, torch.get_rng_state().tolist()]


def drawn(seed: int = 0, purpose: Purpose = Purpose.DROPOUT, **coordinates: int) -> list[float]:
    with seeded_torch(seed, purpose, **coordinates):
        return torch.rand(3).tolist()


def test_pytorch_is_seeded_from_the_stream_at_the_coordinates() -> None:
    with seeded_torch(5, Purpose.DROPOUT, round=2, client=3):
        seed = int(stream(5, Purpose.DROPOUT, round=2, client=3).integers(2**63))
        assert torch.initial_seed() == seed
    assert drawn(round=1, client=2) == drawn(round=1, client=2)
    others = [{}, {"round": 1}, {"client": 1}, {"seed": 1}, {"purpose": Purpose.INITIALISATION}]
    assert len({tuple(drawn(**where)) for where in others}) == len(others)


@pytest.mark.parametrize("fails", [False, True])
def test_pytorchs_generator_is_restored_afterwards(fails: bool) -> None:
    before = global_states()
    with suppress(RuntimeError), seeded_torch(0, Purpose.DROPOUT):
        torch.rand(3)
        with seeded_torch(1, Purpose.DROPOUT):
            torch.rand(3)
        if fails:
            raise RuntimeError
    assert global_states() == before


DROPOUT = tiny(
    model="vgg9",
    partition={"name": "iid", "clients": 40},
    participation={"fraction": 0.05},
    training={"epochs": 2, "batch_size": 16, "lr": 0.01, "augmentation": {"crop_padding": 1}},
    rounds=2,
)
"""Two rounds of two clients with 36 images each."""


def test_dropout_has_a_separate_stream_for_every_round_and_client(
    digits: PreparedData, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds: dict[tuple[int, int], int] = {}
    begin = FedAvg.client_init

    def noted(self: FedAvg, local: Local) -> Any:
        seeds[local.round, local.client] = torch.initial_seed()
        return begin(self, local)

    monkeypatch.setattr(FedAvg, "client_init", noted)
    list(federation(DROPOUT, digits).run())
    assert len(seeds) == len(set(seeds.values())) == 4
    for (round, client), seed in seeds.items():
        assert seed == int(stream(0, Purpose.DROPOUT, round=round, client=client).integers(2**63))
