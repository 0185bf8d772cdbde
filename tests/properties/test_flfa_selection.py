"""FLFA's selection of layers, its traffic, and its reports."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import skew

from fltrain.core.errors import FltrainError
from fltrain.methods.flfa import Flfa
from fltrain.methods.types import Task, Update
from fltrain.models.flat import Layout, slots
from fltrain.models.network import Layer

from .helpers import (
    rows_of,
    simulation,
    task_of,
    trained,
    update_of,
)

SHAPES = [(3, 2), (2, 2, 1, 1), (1, 4), (5, 1), (2, 3), (2, 2)]


def chain(shapes: Sequence[tuple[int, ...]] = SHAPES) -> Task:
    """Layers with biases in sequence; the first reads the images."""
    last = len(shapes) - 1
    parameters = slots(
        (f"layer{index}.{part}", torch.zeros(shape))
        for index, weight in enumerate(shapes)
        for part, shape in (("weight", weight), ("bias", weight[:1]))
    )
    layers = tuple(Layer(f"layer{i}", 1, i > 0, (i + 1,) if i < last else ()) for i in range(len(shapes)))
    return task_of(Layout(parameters, (), (), layers, parameters[::2]))


def updates_with(similarities: Sequence[float], task: Task) -> list[Update]:
    """Two clients; their updates of layer l are at the angle arccos S_l on either side of the mean."""
    rows = torch.randn(2, task.layout.size, generator=torch.Generator().manual_seed(0))
    for slot, similarity in zip(task.layout.weights, similarities, strict=True):
        parts = rows[:, slot.start : slot.stop].zero_()
        parts[:, 0] = similarity
        parts[:, 1] = math.sqrt(1 - similarity**2) * torch.tensor([1.0, -1.0])
        # Cosines do not depend on the size of a layer's updates.
        parts *= 10.0 ** (slot.start % 3)
    start = torch.zeros(task.layout.size)
    return [update_of(start, row) for row in rows]


def selected_after(flfa: Flfa, rounds: Sequence[Sequence[float]]) -> list[list[int]]:
    """Selected indices by round, from the first, for the given similarities of each round."""
    task = chain()
    start = torch.zeros(task.layout.size)
    state = flfa.server_init(task, start)
    selections = [flfa.payload(state)["selected"].tolist()]
    for similarities in rounds:
        state = flfa._selection(task, state, updates_with(similarities, task))
        selections.append(flfa.payload(state)["selected"].tolist())
    return selections


TIED = [0.5, 0.25, 0.75, 0.25, 0.75, 0.25]
ROUNDS = [[0.5, 0.9, 0.2, 0.7, 0.3, 0.6], [0.1, 0.8, 0.9, 0.6, 0.7, 0.2]]


def test_lowest_selects_the_least_similar_layers() -> None:
    """The layers with the lowest similarity in the previous round; the smaller index wins ties."""
    assert selected_after(Flfa(), ROUNDS) == [[], [2], [0]]
    assert selected_after(Flfa(n_fa=3), ROUNDS) == [[], [2, 4, 0], [0, 5, 3]]
    assert selected_after(Flfa(n_fa=2), [TIED])[1] == [1, 3]
    assert selected_after(Flfa(n_fa=0), ROUNDS) == [[], [], []]


def test_highest_selects_the_most_similar_layers() -> None:
    assert selected_after(Flfa(strategy="highest"), ROUNDS) == [[], [1], [2]]
    assert selected_after(Flfa(strategy="highest", n_fa=2), ROUNDS) == [[], [1, 3], [2, 1]]
    assert selected_after(Flfa(strategy="highest", n_fa=1), [TIED])[1] == [2]
    assert selected_after(Flfa(strategy="highest", n_fa=3), [TIED])[1] == [2, 4, 0]


def test_random_layers_are_drawn_anew_in_every_round() -> None:
    rounds = [ROUNDS[0]] * 300
    first, *drawn = selected_after(Flfa(strategy="random", n_fa=2), rounds)
    assert first == [] and {len(set(layers)) for layers in drawn} == {2}
    others = selected_after(Flfa(strategy="random", n_fa=2), [ROUNDS[1]] * 300)
    assert others[1:] == drawn, "whatever the similarities"
    assert len(set(map(tuple, drawn))) == 6 * 5
    effective = selected_after(Flfa(strategy="random", candidates="effective"), rounds[:60])[1:]
    assert 0 not in np.concatenate(effective)


def test_fixed_layers_are_selected_in_every_round() -> None:
    assert selected_after(Flfa(strategy="fixed", layers=("layer4", "layer1")), ROUNDS) == [[4, 1]] * 3
    assert selected_after(Flfa(strategy="fixed", layers="all"), ROUNDS) == [list(range(6))] * 3


LOW_BULK = [0.1, 0.11, 0.12, 0.13, 0.14, 0.9]  # tail upwards: positively skewed
HIGH_BULK = [0.9, 0.89, 0.88, 0.87, 0.86, 0.1]  # negatively


@pytest.mark.parametrize("sign", [1, -1])
def test_skew_chooses_the_rule_once_after_the_first_round(sign: int) -> None:
    assert skew(LOW_BULK) > 0.05
    assert skew(HIGH_BULK) < -0.05
    flfa = Flfa(strategy="skew", skew_sign=sign)
    for first, second, positive in ((LOW_BULK, HIGH_BULK, True), (HIGH_BULK, LOW_BULK, False)):
        strategy = "lowest" if positive == (sign == 1) else "highest"
        rounds = [first, second, *ROUNDS]
        assert selected_after(flfa, rounds) == selected_after(Flfa(strategy=strategy), rounds)


@pytest.mark.parametrize("sign", [1, -1])
def test_without_clear_skewness_it_is_lowest(sign: int) -> None:
    """|g1| below 0.05."""
    upwards, downwards = [0.1, 0.3, 0.5, 0.7, 0.905, 0.5], [0.095, 0.3, 0.5, 0.7, 0.9, 0.5]
    assert 0 < skew(upwards) < 0.05
    assert -0.05 < skew(downwards) < 0
    flfa = Flfa(strategy="skew", skew_sign=sign)
    assert selected_after(flfa, [upwards])[1] == [0]
    assert selected_after(flfa, [downwards])[1] == [0]


def test_layers_without_an_input_error_can_be_excluded() -> None:
    stem_lowest = [[0.1, 0.9, 0.2, 0.7, 0.3, 0.8]]
    assert selected_after(Flfa(n_fa=2), stem_lowest)[1] == [0, 2]
    assert selected_after(Flfa(n_fa=2, candidates="effective"), stem_lowest)[1] == [2, 4]
    last_lowest = [[0.2, 0.9, 0.3, 0.7, 0.4, 0.1]]
    # With feedback of the next layers, the last layer is excluded instead of the first.
    assert selected_after(Flfa(n_fa=2, target="next"), last_lowest)[1] == [5, 0]
    assert selected_after(Flfa(n_fa=2, target="next", candidates="effective"), last_lowest)[1] == [0, 2]


def test_layers_without_a_similarity_are_not_selected() -> None:
    task = chain()
    start = torch.zeros(task.layout.size)
    updates = updates_with(ROUNDS[0], task)
    still, broken = task.layout.weights[2], task.layout.weights[4]
    first = updates[0].weights.clone()
    first[still.start : still.stop] = 0
    first[broken.start] = math.inf
    updates[0] = replace(updates[0], weights=first)
    for strategy, expected in (("lowest", [0, 5, 3, 1]), ("highest", [1, 3, 5, 0])):
        flfa = Flfa(strategy=strategy, n_fa=6)
        state = flfa.server_init(task, start)
        assert flfa._selection(task, state, updates)["selected"].tolist() == expected


def report_of(flfa: Flfa, **settings: object) -> dict:
    """The report of a single round."""
    (row,) = rows_of(trained(flfa, rounds=1, **settings), "flfa")
    return row


def fixed(*layers: str, **settings: object) -> Flfa:
    return Flfa(strategy="fixed", layers=layers, **settings)


def test_report_names_the_layers_and_if_they_took_effect() -> None:
    assert report_of(Flfa()) == {"round": 1, "kind": "flfa", "selected": [], "effective": False}
    for layers, target, effective in (
        (("stem.0",), "own", False),
        (("last.0",), "own", True),
        (("stem.0", "classifier"), "own", True),
        (("stem.0",), "next", True),
        (("classifier",), "next", False),
        (("classifier", "last.0"), "next", True),
    ):
        row = report_of(fixed(*layers, target=target))
        assert row["selected"] == list(layers)
        assert row["effective"] is effective


def test_layers_that_do_not_exist_are_refused() -> None:
    simulation(Flfa(n_fa=3))
    with pytest.raises(FltrainError, match=r"unknown layer 'classifer'; did you mean 'classifier'"):
        simulation(fixed("classifer"))
    with pytest.raises(FltrainError, match="4 layers, but the network has 3"):
        simulation(Flfa(n_fa=4))
