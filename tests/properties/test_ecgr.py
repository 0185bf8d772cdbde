"""ECGR: the selection of local steps, and the upload that replaces the client's displacement."""

import math
from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from fltrain.engine.simulation import Simulation
from fltrain.engine.trajectory import Trajectory
from fltrain.methods.base import Method
from fltrain.methods.ecgr import Ecgr
from fltrain.methods.fedavg import FedAvg
from fltrain.methods.fednova import FedNova
from fltrain.methods.fedprox import FedProx
from fltrain.methods.scaffold import Scaffold

from . import helpers
from .helpers import (
    FULL_BATCH,
    Tracing,
    assert_same_model,
    by_name,
    local_of,
    rows_of,
    simulation,
    trained,
    update_of,
)

AFTER_STEP = {"correction": "after_step", "normaliser": "plain"}
PUBLISHED = [FedAvg(), FedProx(mu=0.1), FedNova(normaliser="tau"), Scaffold(**AFTER_STEP)]
"""The base methods of the paper, with the settings of its code."""

two_bases = pytest.mark.parametrize("base", [FedAvg(), Scaffold(**AFTER_STEP)], ids=by_name)


def drawn(steps: int, size: int = 30, seed: int = 0, decay: float = 1.0) -> Tensor:
    """Random steps; each is on average ``decay`` times as long as the previous one."""
    return helpers.drawn(steps, size, seed=seed) * decay ** torch.arange(steps)[:, None]


def finished_update(
    method: Ecgr, steps: Tensor, *, lr: float = 0.1, round: int = 0, client: int = 0, seed: int = 0
) -> tuple[Tensor, list[int]]:
    """Return the uploaded displacement (downwards) and the selected steps."""
    start = drawn(1, steps.shape[1], seed=99)[0]
    local = local_of(start, steps=len(steps), lr=lr)
    local = replace(local, round=round, client=client, task=replace(local.task, seed=seed))
    # From zero, so that the sum of the steps is not rounded away.
    moved = update_of(torch.zeros_like(start), -steps.sum(0), client=client)
    update = replace(moved, steps=len(steps), trajectory=steps)
    finished, state = method.client_final(update, local, {})
    assert state == local.state
    return update.start - finished.weights, finished.statistics[method.name]["selected"].tolist()


def greedy(steps: np.ndarray, count: int, centred: bool = False) -> list[int]:
    """Selected steps in order: each time the step that gives the shortest sum."""
    rows = np.asarray(steps, dtype=np.float64)
    if centred:
        rows = rows - rows.mean(0)
    total, picked = np.zeros(rows.shape[1]), []
    for _ in range(count):
        lengths = [np.inf if j in picked else np.linalg.norm(total + row) for j, row in enumerate(rows)]
        picked.append(lengths.index(min(lengths)))
        total = total + rows[picked[-1]]
    return picked


def combine(steps: np.ndarray, picked: list[int], beta: float) -> np.ndarray:
    """alpha (the selected + beta times the others), with the length of the sum of all steps."""
    rows = np.asarray(steps, dtype=np.float64)
    combined = sum(row if j in picked else beta * row for j, row in enumerate(rows))
    return np.linalg.norm(rows.sum(0)) / np.linalg.norm(combined) * combined


def test_known_values_of_four_steps() -> None:
    """Four steps in the plane, kappa 0.5, beta 0.2: c = (1.6, 1.4), alpha = 2.351802."""
    uploaded, selected = finished_update(
        Ecgr(), torch.tensor([[3.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 2.0]])
    )
    assert selected == [1, 2]
    np.testing.assert_allclose(uploaded, [3.762883, 3.292523], atol=2e-6)
    np.testing.assert_allclose(uploaded / torch.tensor([1.6, 1.4]), 2.351802, atol=2e-6)
    assert uploaded.norm().item() == pytest.approx(5, abs=1e-5)


@pytest.mark.parametrize("rule", ["herd", "closest", "aligned", "smallest"])
@pytest.mark.parametrize("centred", [False, True])
def test_the_first_of_equal_steps_are_selected(rule: str, centred: bool) -> None:
    assert finished_update(Ecgr(rule=rule, centred=centred), torch.ones(7, 3))[1] == [0, 1, 2]


RULES = {
    # Lengths 6.7, 4, 2, 3.6; from (0, 2) on, the sum is (6, 5), (4, 2) or (2, 5).
    "herd": [1, 2],
    # From the mean (3, 2): squared distances 10, 5, 9, 2.
    "closest": [1, 3],
    # Cosine with the mean times its length: 3.58, 3, 2, 3.33.
    "aligned": [0, 3],
    # Lengths 6.7, 4, 2, 3.6.
    "smallest": [2, 3],
    "last": [2, 3],
}


@pytest.mark.parametrize("rule", RULES)
def test_selection_rules_by_hand(rule: str) -> None:
    rows = torch.tensor([[6.0, 3.0], [4.0, 0.0], [0.0, 2.0], [2.0, 3.0]])
    for beta in (0.0, 0.2):
        uploaded, selected = finished_update(Ecgr(rule=rule, beta=beta), rows)
        assert selected == RULES[rule]
        np.testing.assert_allclose(uploaded, combine(rows, RULES[rule], beta), rtol=1e-5)


def test_shares_are_multiplied_as_decimal_numbers() -> None:
    """0.29 of 100 steps are 29, although the floating-point product is below 29.

    The number is rounded down, but at least one step is selected.
    """
    for kappa, steps, count in ((0.5, 1, 1), (0.5, 3, 1), (0.1, 9, 1), (0.25, 11, 2), (1.0, 5, 5)):
        assert len(finished_update(Ecgr(kappa=kappa), drawn(steps))[1]) == count
    for hundredths in range(1, 101):
        expected = math.floor(Fraction(hundredths, 100) * 100)
        selected = finished_update(Ecgr(kappa=hundredths / 100, rule="last"), drawn(100, size=2))[1]
        assert len(selected) == expected, hundredths


@pytest.mark.parametrize(("beta", "kappa"), [(0.0, 0.5), (0.2, 0.5), (0.8, 0.25), (1.0, 0.5), (0.2, 1.0)])
def test_statistics_reaggregated_as_in_the_authors_code_for_fednova(beta: float, kappa: float) -> None:
    """They move by (the selected + beta times the others) / ratio, ratio the norm of the weights' c over g_0.

    Source: NUDTPingLuo/ECGR, commit 2032f41, fed_baselines/client_fednova_ecgr.py.
    """
    method = Ecgr(buffers="reaggregated", beta=beta, kappa=kappa)
    assert method.needs.recording is not None and method.needs.recording.buffers
    rows, buffers, statistics = drawn(8), drawn(8, 6, seed=5), drawn(1, 6, seed=6)[0]
    local = replace(local_of(drawn(1, seed=99)[0], steps=8), buffers=statistics)
    update = replace(
        update_of(torch.zeros(30), -rows.sum(0)),
        steps=8,
        buffers=statistics - buffers.sum(0),
        trajectory=torch.cat([rows, buffers], dim=1),
    )
    finished, _ = method.client_final(update, local, {})
    picked = greedy(rows, max(1, int(8 * kappa)))
    factors = torch.tensor([1.0 if step in picked else beta for step in range(8)])
    ratio = (factors @ rows).norm() / rows.sum(0).norm()
    torch.testing.assert_close(finished.buffers, statistics - factors @ buffers / ratio)
    resting = torch.cat([torch.zeros_like(rows), buffers], dim=1)
    unscaled, _ = method.client_final(replace(update, trajectory=resting, weights=update.start), local, {})
    assert torch.equal(unscaled.buffers, update.buffers), "steps that cancel out have no scale"
    plain, _ = Ecgr(beta=beta, kappa=kappa).client_final(replace(update, trajectory=rows), local, {})
    assert torch.equal(plain.weights, finished.weights)
    assert torch.equal(plain.buffers, update.buffers)


def test_statistics_cannot_be_reaggregated_without_displacements() -> None:
    with pytest.raises(ValueError, match="buffers: 'reaggregated' needs displacements"):
        Ecgr(buffers="reaggregated", vector="gradient")


def test_memory_and_computation_of_the_selection() -> None:
    """Section 3.3: a client keeps its T local steps, and selects by one product of 2 T^2 P operations."""
    recording = Ecgr().needs.recording
    assert recording is not None
    for steps in (8, 16):
        with FlopCounterMode(display=False) as counter:
            finished_update(Ecgr(), drawn(steps, 50))
        assert counter.get_total_flops() == 2 * steps**2 * 50
        local = SimpleNamespace(steps=steps, start=torch.zeros(50), buffers=torch.zeros(0))
        assert Trajectory(recording, local).rows.shape == (steps, 50)


def test_steps_that_cancel_out_do_not_change_the_displacement() -> None:
    cancelling = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [2.0, 0.0], [5.0, 1.0]])
    resting = torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 0.0], [1.0, 0.0]])
    for rows, selected in ((cancelling, [0, 1]), (resting, [0, 2])):
        uploaded, picked = finished_update(Ecgr(beta=0.0), rows)
        assert picked == selected
        assert torch.equal(uploaded, rows.sum(0))
    assert finished_update(Ecgr(), torch.zeros(4, 3))[0].tolist() == [0.0, 0.0, 0.0]


def test_selected_steps_equal_those_of_the_naive_algorithm() -> None:
    for centred in (False, True):
        for decay in (1.0, 0.7, 1.1):
            for steps, seed in ((2, 0), (9, 2), (31, 4)):
                rows = drawn(steps, seed=seed, decay=decay)
                _, selected = finished_update(Ecgr(centred=centred), rows)
                assert selected == sorted(greedy(rows, max(1, steps // 2), centred)), (centred, decay, steps)


def test_random_steps_are_drawn_by_seed_round_and_client() -> None:
    rows = drawn(40, size=2)

    def picks(**settings: int) -> list[int]:
        return finished_update(Ecgr(rule="random"), rows, **settings)[1]

    places = [dict(round=r, client=k, seed=s) for r in range(3) for k in range(3) for s in range(2)]
    selections = [tuple(picks(**place)) for place in places]
    assert [tuple(picks(**place)) for place in places] == selections
    assert len(set(selections)) == len(places)
    assert all(len(set(selected)) == 20 and selected == tuple(sorted(selected)) for selected in selections)
    assert set(np.concatenate(selections)) == set(range(40))


@two_bases
def test_with_one_local_step_it_is_the_base_bit_for_bit(base: Method) -> None:
    plain = trained(base, rounds=3, batch_size=FULL_BATCH)
    for settings in ({"beta": 0.0}, {"rule": "random"}, {"vector": "gradient", "beta": 0.0}):
        damped = trained(base, Ecgr(**settings), rounds=3, batch_size=FULL_BATCH)
        assert_same_model(damped, plain)
        assert all(row["lateness"] is None for row in rows_of(damped, "ecgr"))


def displacements(federation: Simulation, client: int, round: int, received: Tensor) -> np.ndarray:
    """Weights before minus weights after every local step, ``[steps, P]``."""
    weights = [step.weights for step in federation.trainer.steps_of(client, round)]
    return (torch.stack([received, *weights[:-1]]) - torch.stack(weights)).double().numpy()


def second_round(*methods: Method, **settings: object) -> tuple[Simulation, Tensor, list[np.ndarray]]:
    """A federation after two rounds, with the received weights and displacements of the second."""
    federation = simulation(
        *methods, **{"batch_size": 8, "epochs": 2, "fraction": 0.5, "trainer": Tracing, **settings}
    )
    federation.round(0)
    received = federation.server.weights.clone()
    federation.rows = federation.round(1)
    updates = federation.trainer.updates
    return federation, received, [displacements(federation, u.client, 1, received) for u in updates]


@pytest.mark.parametrize(
    ("base", "centred"), [*((base, False) for base in PUBLISHED), (FedAvg(), True)], ids=str
)
def test_uploads_are_combined_from_steps_with_all_corrections(base: Method, centred: bool) -> None:
    """Displacements contain momentum, weight decay, proximal pull and SCAFFOLD's correction after a step."""
    federation, received, clients = second_round(base, Ecgr(centred=centred))
    for update, moves in zip(federation.trainer.updates, clients, strict=True):
        np.testing.assert_allclose(moves.sum(0), received - update.trained, atol=1e-5)
        picked = greedy(moves, len(moves) // 2, centred)
        selected = update.statistics["ecgr"]["selected"].tolist()
        if centred and len(moves) == 2:  # opposite to each other after centring: rounding decides
            assert len(selected) == 1
            picked = selected
        assert selected == sorted(picked)
        expected = combine(moves, picked, 0.2)
        assert np.linalg.norm(expected - moves.sum(0)) > 0.02 * np.linalg.norm(expected)
        np.testing.assert_allclose(-update.displacement, expected, rtol=1e-3, atol=2e-6)
        assert update.trajectory is None, "recordings do not leave the client"


def test_the_record_has_the_selected_steps_and_their_mean_position() -> None:
    federation, _, clients = second_round(Ecgr())
    (row,) = rows_of(federation, "ecgr")
    sampled = [str(update.client) for update in federation.trainer.updates]
    picked = [sorted(greedy(moves, len(moves) // 2)) for moves in clients]
    assert row["selected"] == dict(zip(sampled, picked, strict=True))
    assert row["steps"] == dict(zip(sampled, map(len, clients), strict=True))
    positions = [np.mean(chosen) / (len(moves) - 1) for chosen, moves in zip(picked, clients, strict=True)]
    assert row["lateness"] == pytest.approx(np.mean(positions) - 0.5, rel=1e-9)
    assert set(row) == {"round", "kind", "selected", "steps", "lateness"}
