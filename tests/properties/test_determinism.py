"""The numbers of a run depend on its spec only."""

import json
import os
import random
import warnings
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from fltrain.core.errors import FltrainError
from fltrain.engine.checkpoint import Checkpoints, Progress
from fltrain.engine.simulation import Simulation
from fltrain.methods.base import Method
from fltrain.methods.composition import Composition
from fltrain.methods.fedavg import FedAvg
from fltrain.methods.types import Schedule
from fltrain.runtime.determinism import Profile, determined

from .helpers import (
    CPU,
    EVERY,
    KINDS,
    REPRESENTATIVES,
    Tracing,
    by_name,
    digits,
    reference,
    simulation,
    skewed,
    slow_unless,
    trained,
    with_tests,
)

STATISTICS = ("drift", "similarity", "dissimilarity", "separability")

combinations = pytest.mark.parametrize(
    "methods", slow_unless(map(by_name, EVERY), REPRESENTATIVES), ids=by_name
)


def seed_everywhere(seed: int) -> None:
    """Put the global generators into a different state for every seed."""
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


def settings_of(methods: tuple[Method, ...]) -> dict[str, object]:
    """Settings with tests after local training, so that client states contain trained models."""
    point = "after_local" if methods[0].name in ("fedavg", "fedfcd") else "after_download"
    return {"rounds": 2, "statistics": STATISTICS, "point": point}


def traced_run(methods: tuple[Method, ...], device: torch.device = CPU) -> Simulation:
    """A traced run, trained once."""
    seed_everywhere(1)
    return reference(*methods, trainer=Tracing, device=device, **settings_of(methods))


@pytest.mark.parametrize("methods", slow_unless(KINDS, EVERY), ids=by_name)
def test_neither_global_generators_nor_workers_change_a_run(methods: tuple[Method, ...]) -> None:
    """Two processes divide the clients, the larger ones first, gradients and tests."""
    first = traced_run(methods)
    seed_everywhere(2)
    second = trained(*methods, workers=2, **settings_of(methods))
    assert json.dumps(first.rows) == json.dumps(second.rows)
    assert_close(state(first), state(second), rtol=0, atol=0)


def test_another_seed_gives_other_rows() -> None:
    assert trained(seed=1).rows != trained(seed=2).rows


Visits = list[tuple[int, int, list[int]]]
"""Round, client and images of every local step."""


def visits(federation: Simulation) -> Visits:
    return [(step.round, step.client, step.chosen.tolist()) for step in federation.trainer.steps]


@cache
def visits_of_averaging(personal: bool) -> Visits:
    """Visits of federated averaging; clients have test images if the models are personal."""
    partition = with_tests(skewed(digits())) if personal else None
    return visits(trained(FedAvg(), partition=partition, rounds=2, trainer=Tracing))


@combinations
def test_every_method_sees_the_same_clients_and_batches(methods: tuple[Method, ...]) -> None:
    federation, schedule = traced_run(methods), Composition(methods).schedule
    method_visits, plain_visits = visits(federation), visits_of_averaging(federation.spec.personal)
    if schedule == Schedule():
        assert method_visits == plain_visits
        return
    # Other methods visit the same images in another order, as often as their schedule declares.
    repeats = schedule.passes * len(schedule.phases)
    for key in {visit[:2] for visit in method_visits} | {visit[:2] for visit in plain_visits}:
        counts, expected = (
            Counter(image for *place, images in steps if tuple(place) == key for image in images)
            for steps in (method_visits, plain_visits)
        )
        assert counts == {image: repeats * count for image, count in expected.items()}


def test_batches_of_a_client_do_not_depend_on_the_other_clients() -> None:
    partial_visits, all_visits = (
        visits(trained(rounds=2, trainer=Tracing, fraction=fraction)) for fraction in (0.34, 1.0)
    )
    assert len(partial_visits) < len(all_visits)
    assert all(visit in all_visits for visit in partial_visits)


def test_clients_are_sampled_without_replacement_anew_in_every_round() -> None:
    federation = simulation(fraction=0.5)
    samples = [federation.sample(number) for number in range(40)]
    assert all(sample == sorted(set(sample)) and len(sample) == 3 for sample in samples)
    assert len({tuple(sample) for sample in samples}) > 10
    assert set(np.concatenate(samples)) == set(range(6))
    assert [federation.sample(number) for number in range(40)] == samples


CUDA = torch.device("cuda")
WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


@pytest.fixture(autouse=True)
def workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unset cuBLAS's workspace variable before each test, and restore the environment afterwards."""
    monkeypatch.setenv(WORKSPACE, "")
    del os.environ[WORKSPACE]


def switches() -> dict[str, object]:
    """The PyTorch settings that profiles change."""
    return {
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "warns": torch.is_deterministic_algorithms_warn_only_enabled(),
        "cudnn": torch.backends.cudnn.deterministic,
        "benchmark": torch.backends.cudnn.benchmark,
        "tf32": (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32),
    }


def without_algorithm() -> None:
    """Call an operation without a deterministic algorithm on any device."""
    torch.zeros(3).put_(torch.tensor([1]), torch.ones(1))


def test_profiles_change_pytorch_settings_and_restore_them() -> None:
    torch.backends.cudnn.benchmark = torch.backends.cuda.matmul.allow_tf32 = True
    try:
        before = switches()
        exact = {"deterministic": True, "warns": True, "cudnn": True}
        fast = {"deterministic": False, "warns": False, "cudnn": False}
        profiles: dict[Profile, dict[str, bool]] = {"exact": exact, "fast": fast}
        for profile, expected in profiles.items():
            with determined(profile, CUDA):
                benchmark = profile == "fast"
                assert switches() == {**expected, "benchmark": benchmark, "tf32": (False, False)}
                assert not torch.utils.deterministic.fill_uninitialized_memory, "a kernel per new tensor"
            assert switches() == before
        with pytest.raises(KeyError), determined("exact", CUDA):
            raise KeyError
        assert switches() == before
    finally:
        torch.backends.cudnn.benchmark = torch.backends.cuda.matmul.allow_tf32 = False


@pytest.mark.parametrize("user_value", [None, ":16:8"])
def test_the_cublas_workspace_is_set_unless_the_user_has_set_it(
    user_value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if user_value:
        monkeypatch.setenv(WORKSPACE, user_value)
    with determined("fast", CUDA):
        assert os.environ.get(WORKSPACE) == user_value
    with determined("exact", CUDA):
        assert os.environ[WORKSPACE] == (user_value or ":4096:8")


@pytest.mark.parametrize("profile", ["exact", "fast"])
def test_profiles_change_nothing_on_the_cpu(profile: Profile) -> None:
    before = switches()
    with determined(profile, CPU) as determinism:
        assert switches() == before and WORKSPACE not in os.environ
        without_algorithm()
    assert determinism.facts == {"determinism": "bitwise", "nondeterministic_operations": []}


def test_operations_without_a_deterministic_algorithm_are_recorded() -> None:
    with determined("exact", CUDA) as determinism:
        torch.zeros(3).index_add_(0, torch.tensor([0, 0]), torch.ones(2))
        assert determinism.level == "bitwise"
        for _ in range(3):
            without_algorithm()
        assert determinism.facts == {"determinism": "statistical", "nondeterministic_operations": ["put_"]}
        # PyTorch's message when the variable was set too late.
        warnings.warn(
            "Deterministic behavior was enabled with `torch.use_deterministic_algorithms(True)`, but this "
            "operation is not deterministic because it uses CuBLAS and you have CUDA >= 10.2.",
            stacklevel=1,
        )
    assert determinism.facts["nondeterministic_operations"] == ["CuBLAS", "put_"]


def state(run: Simulation) -> dict[str, Any]:
    """All data that later rounds and the record depend on."""
    server = run.server
    return {
        "server": {"weights": server.weights, "buffers": server.buffers, "counters": server.counters},
        "methods": dict(server.states),
        "clients": {client: run.clients[client] for client in run.clients},
        "models": run.last_models,
        "traffic": (run.bytes_down, run.bytes_up),
        "finished": run.finished,
    }


@combinations
def test_resuming_from_a_checkpoint_changes_no_result(
    tmp_path: Path, methods: tuple[Method, ...], device: torch.device
) -> None:
    expected, rows, starts = traced_run(methods, device), [], []
    for stop in (1, 2):  # each part in a separate simulation
        part = simulation(*methods, device=device, **settings_of(methods))
        checkpoints = Checkpoints(tmp_path / "run", {"spec": 1})
        progress = checkpoints.restore(part) or Progress([], 0.0, [])
        assert progress.rows == rows
        starts.append(part.finished)
        while part.finished < stop:
            progress.rows += part.round(part.finished)
        assert checkpoints.save(part, progress)
        rows = progress.rows
    assert starts == [0, 1]
    assert json.dumps(rows) == json.dumps(expected.rows)
    assert_close(state(part), state(expected), rtol=0, atol=0)


class Drawing(FedAvg):
    """Draws from a global generator on the server, or in local training."""

    name: Literal["drawing"] = "drawing"
    draw: str
    server: bool = True

    def aggregate(self, task, state, before, updates):
        if self.server:
            DRAWS[self.draw]()
        return super().aggregate(task, state, before, updates)

    def client_init(self, local):
        if not self.server:
            DRAWS[self.draw]()
        return {}


DRAWS = {"Python": random.random, "NumPy": np.random.rand, "PyTorch": lambda: torch.rand(1)}


@pytest.mark.parametrize(
    ("draw", "server", "workers"),
    [*((draw, True, 1) for draw in DRAWS), ("Python", False, 1), ("NumPy", False, 2)],
)
def test_draws_from_global_generators_are_refused(draw: str, server: bool, workers: int) -> None:
    """In local training, PyTorch's generator has the stream of the client."""
    part = "the server's part of a round.*" if server else "local training"
    with pytest.raises(
        FltrainError, match=rf"^{part} draws from the global generator of {draw}, .*self\.random"
    ):
        trained(Drawing(draw=draw, server=server), rounds=1, fraction=0.5, workers=workers)


class Naming(FedAvg):
    """Has states in bfloat16, of whole numbers, and with a slash in their names."""

    name: Literal["naming"] = "naming"

    def server_init(self, task, start):
        return {"a/b": start.bfloat16(), "a": torch.arange(3), "%2F": torch.tensor(True)}

    def client_final(self, update, local, step_state):
        return update, {"half/first": update.weights.bfloat16(), "half": torch.tensor(local.round)}


def test_names_and_types_of_states_survive_a_checkpoint(tmp_path: Path) -> None:
    first, second = trained(Naming(), rounds=1, fraction=0.34), simulation(Naming(), fraction=0.34)
    checkpoints = Checkpoints(tmp_path, {})
    assert checkpoints.save(first, Progress([], 0.0, [{}]))
    checkpoints.restore(second)
    assert_close(state(first), state(second), rtol=0, atol=0)
    assert second.server.states["naming"].keys() == {"a/b", "a", "%2F"}
    assert second.server.states["naming"]["a/b"].dtype == torch.bfloat16
