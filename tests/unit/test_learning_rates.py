"""Schedules of the learning rate: factors by round, how they are written, and what clients train with."""

from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml

from fltrain.core.errors import FltrainError
from fltrain.data.prepared import PreparedData
from fltrain.engine.executors.loop import LoopExecutor, Round
from fltrain.experiments.plan import plan
from fltrain.methods.training import LEARNING_RATES, Constant, Exponential, LearningRate, Steps
from fltrain.runs.spec import RunSpec

from .helpers import TINY, federation, tiny

Yaml = dict[str, Any]


def rates(schedule: LearningRate, rounds: int = 100) -> list[float]:
    """Factors of the rounds, which are counted from 1 by people and from 0 by the engine."""
    return [schedule.factor(round - 1) for round in range(1, rounds + 1)]


# ---------------------------------------------------------------- factors
def test_constant() -> None:
    assert set(rates(Constant())) == {1.0}


def test_exponential_decays_by_round() -> None:
    """The first round has the full rate; FLFA's protocol: 0.01 * 0.998^t, t = 0, 1, 2 ..."""
    factors = rates(Exponential(), 500)
    assert factors[0] == 1.0
    assert factors[1] == 0.998
    for round, factor in enumerate(factors):
        assert factor == pytest.approx(0.998**round, rel=1e-12)
    assert rates(Exponential(decay=0.5), 4) == [1.0, 0.5, 0.25, 0.125]
    assert set(rates(Exponential(decay=1.0))) == {1.0}


def check_halving_every_ten_rounds(schedule: LearningRate) -> None:
    """ECGR's code halves at the start of rounds 10, 20 ... 100 (counted from 1)."""
    factors = dict(enumerate(rates(schedule), start=1))
    assert {factors[round] for round in range(1, 10)} == {1.0}
    assert {factors[round] for round in range(10, 20)} == {1 / 2}
    assert factors[59] == 1 / 32
    assert {factors[round] for round in range(60, 70)} == {1 / 64}
    assert {factors[round] for round in range(90, 100)} == {1 / 512}
    assert factors[100] == 1 / 1024


def test_halving_every_ten_rounds() -> None:
    check_halving_every_ten_rounds(Steps(every=10, decay=0.5))
    check_halving_every_ten_rounds(Steps())


def test_steps_of_other_lengths() -> None:
    assert rates(Steps(every=1, decay=0.5), 4) == [0.5, 0.25, 0.125, 0.0625]
    assert rates(Steps(every=3, decay=0.1), 7) == pytest.approx([1, 1, 0.1, 0.1, 0.1, 0.01, 0.01])
    assert set(rates(Steps(every=101))) == {1.0}


def test_cosine_falls_from_one_to_zero() -> None:
    """cos^2 of a right angle's share: 1 in the first round, 1/2 half way, 0 after ``rounds`` rounds."""
    schedule = LEARNING_RATES["cosine"](rounds=12)
    factors = rates(schedule, 12)
    assert factors[0] == 1.0
    for round, share in ((4, 3 / 4), (6, 1 / 2), (8, 1 / 4)):
        assert factors[round] == pytest.approx(share, rel=1e-12)
    assert all(later < earlier for earlier, later in pairwise(factors))
    assert factors[-1] > 0
    assert schedule.factor(12) == schedule.factor(1000) == pytest.approx(0, abs=1e-12)


# ---------------------------------------------------------------- in a spec
def written(text: str) -> RunSpec:
    """The small run with a ``training`` section as a user writes it."""
    return RunSpec.parse({**TINY, **yaml.safe_load(text)}, "test")


def test_a_schedule_is_written_in_yaml() -> None:
    short = written("training: {lr: 0.01, lr_schedule: {name: step, every: 10}}")
    assert short.training.lr_schedule == Steps(every=10, decay=0.5)
    check_halving_every_ten_rounds(short.training.lr_schedule)
    long = written("training: {lr: 0.01, lr_schedule: {name: step, every: 10, decay: 0.5}}")
    assert long.run_id == short.run_id
    assert written("training: {lr_schedule: step}").training.lr_schedule == Steps()
    assert written("training: {lr_schedule: constant}").training.lr_schedule == Constant()
    faded = written("training: {lr_schedule: {name: exponential, decay: 9.9e-1}}")
    assert faded.training.lr_schedule == Exponential(decay=0.99)
    assert written("rounds: 1").training.lr_schedule == Constant()


def test_every_schedule_makes_another_run_and_is_read_back() -> None:
    parameters = [{"decay": 0.1}, {"decay": 0.7}, {"every": 3}, {"rounds": 7}]
    schedules = [
        {"name": name, **chosen}
        for name, schedule in LEARNING_RATES.items()
        for chosen in parameters
        if chosen.keys() <= schedule.model_fields.keys()
    ]
    schedules.append({"name": "constant"})
    assert {schedule["name"] for schedule in schedules} == set(LEARNING_RATES)
    specs = [tiny(training={"lr_schedule": schedule}) for schedule in schedules]
    assert len({spec.run_id for spec in specs}) == len(schedules) > 5
    for spec in specs:
        again = RunSpec.model_validate_json(spec.to_json())
        assert again.training.lr_schedule == spec.training.lr_schedule


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ("stepp", "unknown learning-rate schedule 'stepp'; did you mean 'step'?"),
        ({"every": 10}, "needs a 'name'"),
        ({"name": "step", "every": 0}, "every: input should be greater than or equal to 1"),
        ({"name": "step", "every": 2.5}, "every: "),
        ({"name": "step", "decay": 0.0}, "decay: input should be greater than 0"),
        ({"name": "step", "decay": 1.5}, "decay: input should be less than or equal to 1"),
        ({"name": "exponential", "decay": -0.1}, "decay: input should be greater than 0"),
        ({"name": "exponential", "every": 10}, "unknown key 'every'"),
        ({"name": "constant", "decay": 0.5}, "unknown key 'decay'"),
    ],
    ids=str,
)
def test_mistakes_are_told(schedule: object, message: str) -> None:
    with pytest.raises(FltrainError) as raised:
        tiny(training={"lr_schedule": schedule})
    assert "training.lr_schedule" in str(raised.value)
    assert message in str(raised.value)


# ---------------------------------------------------------------- in training
class Telling(LoopExecutor):
    """Keeps the rates that clients train with, by round."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.told: list[tuple[int, float]] = []

    def train(self, round: Round, clients: Any, kept: Any) -> Any:
        self.number = round.number
        return super().train(round, clients, kept)

    def _step(self, images: Any, chosen: Any, how: Any, hooks: Any, optimiser: Any) -> Any:
        (local, *_) = hooks.locals_.values()
        assert optimiser.lr == local.lr
        self.told.append((self.number, optimiser.lr))
        return super()._step(images, chosen, how, hooks, optimiser)


def test_clients_train_with_the_rate_of_their_round(digits: PreparedData) -> None:
    """Constant within a round, whatever the number of steps."""
    training = {"lr": 0.1, "lr_schedule": {"name": "step", "every": 2}, "batch_size": 64, "epochs": 1}
    simulation = federation(tiny(training=training, rounds=5, evaluation={"every": 5}), digits, Telling)
    for number in range(5):
        simulation.round(number)
    told = simulation.executor.told
    expected = {0: 0.1, 1: 0.05, 2: 0.05, 3: 0.025, 4: 0.025}
    assert len(told) > 10
    assert told == [(number, expected[number]) for number, _ in told]
    assert {number for number, _ in told} == set(expected)


# ---------------------------------------------------------------- rates of single methods in a grid
PAPER = """
paper: toy
title: A toy
citation: none
settings:
  dataset: digits
  partition: {name: dirichlet, clients: 10}
  model: mobilenet_tiny
  training: {lr: 0.01, momentum: 0.5, lr_schedule: {name: step, every: 10}}
seeds: 1
items:
  table:
    title: Methods with a rate of their own
    axes:
      method:
        FedAvg: {set: {method: fedavg}}
        FedNova: {set: {method: {name: fednova, normaliser: tau}, training: {lr: 0.002}}}
        SCAFFOLD: {set: {method: scaffold, training: {lr: 1.0e-3, lr_schedule: constant}}}
        MOON:
          set: {method: moon, training: {lr_schedule: {decay: 0.1}}}
      plugin:
        none: {set: {plugins: []}}
        ECGR: {set: {plugins: [ecgr]}}
    table: {rows: method, columns: plugin, measures: [{measure: final_accuracy}]}
"""
SCALE = "{scale: small, title: a trial, reduced: true, items: [toy/table]}"


@pytest.fixture
def grid(tmp_path: Path) -> dict[tuple[str, str], RunSpec]:
    """The runs of a table by the labels of their method and plug-in."""
    for name, text in (("papers/toy", PAPER), ("scales/small", SCALE)):
        path = tmp_path / f"{name}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    (item,) = plan(tmp_path, "small").items
    return {(entry.labels["method"], entry.labels["plugin"]): entry.spec for entry in item.entries}


def test_a_point_of_an_axis_can_set_a_method_and_its_rate(grid: dict[tuple[str, str], RunSpec]) -> None:
    halving = Steps(every=10, decay=0.5)
    expected: dict[str, tuple[str, float, LearningRate]] = {
        "FedAvg": ("fedavg", 0.01, halving),
        "FedNova": ("fednova", 0.002, halving),
        "SCAFFOLD": ("scaffold", 0.001, Constant()),
        "MOON": ("moon", 0.01, Steps(every=10, decay=0.1)),
    }
    assert len(grid) == 2 * len(expected)
    for (label, plugin), spec in grid.items():
        training = spec.training
        assert (spec.method.name, training.lr, training.lr_schedule) == expected[label]
        assert training.momentum == 0.5, "what a point does not name stays"
        assert [method.name for method in spec.plugins] == ([] if plugin == "none" else ["ecgr"])


def test_another_rate_makes_another_run(grid: dict[tuple[str, str], RunSpec]) -> None:
    spec = grid["FedNova", "none"]
    data = spec.model_dump(mode="json")
    same = RunSpec.parse(data, "test")
    other = RunSpec.parse({**data, "training": {**data["training"], "lr": 0.01}}, "test")
    assert same.run_id == spec.run_id != other.run_id
    assert len({spec.run_id for spec in grid.values()}) == len(grid)
    assert len({spec.partition_id for spec in grid.values()}) == 1


# ---------------------------------------------------------------- mutations
class CountingFromZero(Steps):
    """Halves one round too late."""

    name: Literal["counting_from_zero"] = "counting_from_zero"

    def factor(self, round: int) -> float:
        return super().factor(round - 1)


class OncePerRound(Steps):
    """Decays in every round."""

    name: Literal["once_per_round"] = "once_per_round"

    def factor(self, round: int) -> float:
        return self.decay**round


@pytest.mark.parametrize("mutant", [CountingFromZero(), OncePerRound()], ids=lambda schedule: schedule.name)
def test_wrong_schedules_are_noticed(mutant: Steps) -> None:
    with pytest.raises(AssertionError):
        check_halving_every_ten_rounds(mutant)
