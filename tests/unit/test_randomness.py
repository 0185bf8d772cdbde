"""Random numbers are functions of their coordinates, and there are no others."""

import random
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fltrain.randomness import Purpose, stream, torch_seed

from .helpers import tiny, trained

WORDS = st.integers(0, 2**63 - 1)
COORDINATES = st.fixed_dictionaries({"round": WORDS, "client": WORDS, "epoch": WORDS})


def raw(seed: int, purpose: Purpose, **coordinates: int) -> list[int]:
    """The first numbers of a stream, as the bit generator makes them."""
    return stream(seed, purpose, **coordinates).bit_generator.random_raw(4).tolist()


# The values decide every result ever recorded: if these tests fail, raise the revisions of everything.
def test_first_values_are_those_of_the_scheme() -> None:
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


def test_what_numpy_makes_of_them() -> None:
    order = stream(7, Purpose.BATCH_ORDER, round=1, client=2, epoch=3).permutation(10)
    assert order.tolist() == [5, 6, 1, 9, 3, 0, 7, 2, 8, 4]
    clients = stream(7, Purpose.CLIENT_SAMPLING, round=1).choice(100, 5, replace=False)
    assert clients.tolist() == [52, 9, 79, 16, 84]
    shares = stream(7, Purpose.PARTITION).dirichlet([0.3] * 3)
    assert shares == pytest.approx([0.6790442413714062, 0.08028912144759007, 0.2406666371810038], rel=1e-12)
    assert torch_seed(0, Purpose.INITIALISATION) == 7511823885658883584


def test_purposes_keep_their_numbers() -> None:
    assert {purpose.name: purpose.value for purpose in Purpose} == {
        "PARTITION": 1,
        "INITIALISATION": 2,
        "CLIENT_SAMPLING": 3,
        "BATCH_ORDER": 4,
        "AUGMENTATION": 5,
        "DROPOUT": 6,
        "METHOD": 7,
        "TEST_SPLIT": 8,
    }


@given(seed=WORDS, purpose=st.sampled_from(Purpose), coordinates=COORDINATES, others=st.lists(COORDINATES))
def test_a_stream_depends_on_nothing_drawn_before(
    seed: int, purpose: Purpose, coordinates: dict[str, int], others: list[dict[str, int]]
) -> None:
    first = raw(seed, purpose, **coordinates)
    for other in others:
        stream(seed, purpose, **other).normal(size=3)
    assert raw(seed, purpose, **coordinates) == first


@given(seed=WORDS, purpose=st.sampled_from(Purpose), coordinates=COORDINATES)
def test_every_coordinate_matters(seed: int, purpose: Purpose, coordinates: dict[str, int]) -> None:
    neighbours = [
        raw(seed, purpose, **coordinates),
        raw(seed + 1, purpose, **coordinates),
        *(raw(seed, other, **coordinates) for other in Purpose if other != purpose),
        *(raw(seed, purpose, **coordinates | {name: value + 1}) for name, value in coordinates.items()),
    ]
    assert all(not set(first) & set(second) for first, second in combinations(neighbours, 2))


def test_coordinates_cannot_be_swapped() -> None:
    draws = {
        tuple(raw(1, Purpose.METHOD, round=a, client=b, epoch=c))
        for a, b, c in [(1, 2, 3), (1, 3, 2), (2, 1, 3), (2, 3, 1), (3, 1, 2), (3, 2, 1)]
    }
    assert len(draws) == 6


@pytest.mark.parametrize("name", ["round", "client", "epoch", "seed"])
def test_neighbouring_streams_are_uncorrelated(name: str) -> None:
    coordinates = [{"seed": 0, "purpose": Purpose.BATCH_ORDER} | {name: value} for value in range(40)]
    draws = np.stack([stream(**where).normal(size=2000) for where in coordinates])
    correlations = np.corrcoef(draws)[np.triu_indices(40, k=1)]
    # 780 correlations of 2,000 pairs: each has a standard deviation of 1 / sqrt(2000).
    assert abs(correlations).max() < 4.5 / np.sqrt(2000)
    assert correlations.std() == pytest.approx(1 / np.sqrt(2000), rel=0.1)
    assert draws.mean() == pytest.approx(0, abs=4 / np.sqrt(draws.size))
    assert draws.std() == pytest.approx(1, abs=4 / np.sqrt(draws.size))


@pytest.mark.parametrize("coordinates", [{"round": -1}, {"client": -1}, {"epoch": 2**64}, {"seed": -1}])
def test_coordinates_out_of_range_are_refused(coordinates: dict[str, int]) -> None:
    with pytest.raises(OverflowError):
        stream(**{"seed": 0, "purpose": Purpose.METHOD} | coordinates)


# ------------------------------------------------------------------------------------ global generators
def global_states() -> list[Any]:
    kind, key, *position = np.random.get_state()
    return [random.getstate(), kind, key.tobytes(), position, torch.get_rng_state().tolist()]


def test_a_run_neither_reads_nor_changes_a_global_generator(tmp_path: Path) -> None:
    # Random feedback: the method itself draws numbers, too.
    plugin = {"name": "flfa", "strategy": "fixed", "layers": "all", "feedback": "random"}
    spec = tiny(method="scaffold", plugins=[plugin], rounds=2)
    outcomes = []
    for seed in (0, 1):
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        before = global_states()
        record = trained(spec, tmp_path / str(seed))
        assert global_states() == before
        outcomes.append((record.folder / "metrics.jsonl").read_bytes())
    assert outcomes[0] == outcomes[1]
