"""Schedules of the learning rate: factors by round."""

from itertools import pairwise

import pytest

from fltrain.methods.training import LEARNING_RATES, Exponential, LearningRate, Steps


def rates(schedule: LearningRate, rounds: int = 100) -> list[float]:
    """Factors of the rounds, which users count from 1 and the engine from 0."""
    return [schedule.factor(round - 1) for round in range(1, rounds + 1)]


def test_exponential_decays_by_round() -> None:
    """The first round has the full rate; FLFA's protocol: 0.01 * 0.998^t, t = 0, 1, 2 ..."""
    factors = rates(Exponential(), 500)
    assert factors[0] == 1.0
    assert factors[1] == 0.998
    assert (factors[346], factors[499]) == pytest.approx((0.5002271798, 0.3682477504), rel=1e-9)
    assert rates(Exponential(decay=0.5), 4) == [1.0, 0.5, 0.25, 0.125]
    assert set(rates(Exponential(decay=1.0))) == {1.0}


@pytest.mark.parametrize("schedule", [Steps(every=10, decay=0.5), Steps()], ids=str)
def test_halving_every_ten_rounds(schedule: LearningRate) -> None:
    """ECGR's code halves at the start of rounds 10, 20 ... 100 (counted from 1)."""
    factors = dict(enumerate(rates(schedule), start=1))
    assert {factors[round] for round in range(1, 10)} == {1.0}
    assert {factors[round] for round in range(10, 20)} == {1 / 2}
    assert factors[59] == 1 / 32
    assert {factors[round] for round in range(60, 70)} == {1 / 64}
    assert {factors[round] for round in range(90, 100)} == {1 / 512}
    assert factors[100] == 1 / 1024


def test_cosine_falls_from_one_to_zero() -> None:
    """Half a cosine period: 1 in the first round, 1/2 half way, 0 after ``rounds`` rounds."""
    schedule = LEARNING_RATES["cosine"](rounds=12)
    factors = rates(schedule, 12)
    assert factors[0] == 1.0
    for round, share in ((4, 3 / 4), (6, 1 / 2), (8, 1 / 4)):
        assert factors[round] == pytest.approx(share, rel=1e-12)
    assert all(later < earlier for earlier, later in pairwise(factors))
    assert factors[-1] > 0
    assert schedule.factor(12) == schedule.factor(1000) == pytest.approx(0, abs=1e-12)
