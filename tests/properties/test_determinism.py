"""The numbers of a run depend on its spec, and on nothing else."""

import json
import os
import random
import subprocess
import sys
import warnings
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch

from fltrain.core.rng import Purpose, stream
from fltrain.data.prepared import Partition
from fltrain.methods.base import Method
from fltrain.methods.composition import Composition
from fltrain.methods.fedavg import FedAvg
from fltrain.methods.flfa import Flfa
from fltrain.methods.scaffold import Scaffold
from fltrain.methods.types import Schedule
from fltrain.runs.record import Results
from fltrain.runs.spec import RunSpec
from fltrain.runtime.determinism import Determinism, Profile, determined

from .helpers import (
    REPRESENTATIVES,
    Reversing,
    Tracing,
    assert_same_model,
    by_name,
    digits,
    simulation,
    skewed,
    slow_unless_daily,
    trained,
    with_tests,
)

STATISTICS = ("drift", "similarity", "separability")

combinations = pytest.mark.parametrize("methods", slow_unless_daily(REPRESENTATIVES), ids=by_name)


def seed_everywhere(seed: int) -> None:
    """Leave the global generators in another state for every seed."""
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


@combinations
def test_neither_global_generators_nor_the_order_of_clients_change_a_run(methods: tuple[Method, ...]) -> None:
    seed_everywhere(1)
    first = trained(*methods, rounds=3, statistics=STATISTICS)
    seed_everywhere(2)
    second = trained(*methods, rounds=3, statistics=STATISTICS, executor=Reversing)
    assert first.rows == second.rows
    assert_same_model(first, second)


def test_another_seed_gives_other_rows() -> None:
    assert trained(seed=1).rows != trained(seed=2).rows


def test_a_run_leaves_the_global_generators_alone() -> None:
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    trained(Scaffold(), Flfa(n_fa=2, feedback="random"), statistics=STATISTICS)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]
    assert random.getstate() == before[2]


# ------------------------------------------------------------------------------------ clients and batches
class Noisy(FedAvg):
    """Draws random numbers from everywhere and does nothing with them."""

    name: Literal["noisy"] = "noisy"

    def _draw(self) -> None:
        torch.rand(3)
        np.random.rand(3)
        random.random()
        stream(0, Purpose.METHOD).random(5)

    def client_init(self, local):
        self._draw()
        return super().client_init(local)

    def correct(self, gradient, weights, local, step_state):
        self._draw()
        return gradient

    def server_step(self, task, state, before, updates):
        self._draw()
        return state


Visits = list[tuple[int, int, list[int]]]
"""Round, client and images of every local step."""


def visits(*methods: Method, **settings: object) -> Visits:
    federation = trained(*methods, rounds=3, epochs=2, executor=Tracing, **settings)
    return [(step.round, step.client, step.chosen.tolist()) for step in federation.executor.steps]


def clients_images(personal: bool) -> Partition | None:
    """The usual ones, or with test images for every client."""
    return with_tests(skewed(digits())) if personal else None


@cache
def visits_of_averaging(personal: bool) -> Visits:
    return visits(FedAvg(), partition=clients_images(personal))


def test_methods_that_draw_numbers_do_not_change_clients_or_batches() -> None:
    assert_same_model(trained(Noisy(), rounds=3), trained(FedAvg(), rounds=3))
    assert visits(Noisy()) == visits(FedAvg())


@combinations
def test_every_method_sees_the_same_clients_and_batches(methods: tuple[Method, ...]) -> None:
    composition = Composition(methods)
    own = visits(*methods, partition=clients_images(composition.personal))
    plain = visits_of_averaging(composition.personal)
    if composition.schedule == Schedule():
        assert own == plain
        return
    # Others go over the same images in their own way, as often as they say.
    often = composition.schedule.passes * len(composition.schedule.phases)
    for key in {visit[:2] for visit in own} | {visit[:2] for visit in plain}:
        seen, expected = (
            Counter(image for *who, images in steps if tuple(who) == key for image in images)
            for steps in (own, plain)
        )
        assert seen == {image: often * count for image, count in expected.items()}


def test_batches_of_a_client_do_not_depend_on_who_else_takes_part() -> None:
    some, everything = visits(fraction=0.34), visits(fraction=1.0)
    assert len(some) < len(everything)
    assert all(visit in everything for visit in some)


def test_clients_are_sampled_without_replacement_anew_in_every_round() -> None:
    federation = simulation(fraction=0.5)
    samples = [federation.sample(number) for number in range(40)]
    assert all(sample == sorted(set(sample)) and len(sample) == 3 for sample in samples)
    assert len({tuple(sample) for sample in samples}) > 10
    # Uniform: each of the 6 clients takes part in half of the rounds, give or take 4 standard deviations.
    counts = np.bincount(np.concatenate(samples), minlength=6)
    assert np.all(np.abs(counts - 20) < 4 * np.sqrt(40 / 4))
    assert [federation.sample(number) for number in range(40)] == samples


# ------------------------------------------------------------------------------------ levels and profiles
CPU, CUDA = torch.device("cpu"), torch.device("cuda")
WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


@pytest.fixture(autouse=True)
def workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a test does to the environment, the next one begins without a choice for cuBLAS."""
    monkeypatch.setenv(WORKSPACE, "")
    del os.environ[WORKSPACE]


def switches() -> dict[str, object]:
    """What profiles set in PyTorch."""
    return {
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "warns": torch.is_deterministic_algorithms_warn_only_enabled(),
        "cudnn": torch.backends.cudnn.deterministic,
        "benchmark": torch.backends.cudnn.benchmark,
        "tf32": (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32),
    }


def without_algorithm() -> None:
    """Do what PyTorch has no deterministic algorithm for on any device."""
    torch.zeros(3).put_(torch.tensor([1]), torch.ones(1))


def test_profiles_switch_and_switch_back() -> None:
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


@pytest.mark.parametrize("given", [None, ":16:8"])
def test_cublas_is_told_which_workspace_to_use_unless_it_was(
    given: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if given:
        monkeypatch.setenv(WORKSPACE, given)
    with determined("fast", CUDA):
        assert os.environ.get(WORKSPACE) == given
    with determined("exact", CUDA):
        assert os.environ[WORKSPACE] == (given or ":4096:8")


@pytest.mark.parametrize("profile", ["exact", "fast"])
def test_profiles_leave_the_cpu_alone(profile: Profile) -> None:
    before = switches()
    with determined(profile, CPU) as determinism:
        assert switches() == before and WORKSPACE not in os.environ
        without_algorithm()
    assert determinism.facts == {"determinism": "bitwise", "nondeterministic_operations": []}


def test_levels() -> None:
    assert Determinism(CPU).level == Determinism(CUDA, "exact").level == "bitwise"
    assert Determinism(CUDA, "fast").level == Determinism(CUDA).level == "statistical"


def test_operations_without_a_deterministic_algorithm_are_noted() -> None:
    with determined("exact", CUDA) as determinism:
        torch.zeros(3).index_add_(0, torch.tensor([0, 0]), torch.ones(2))
        assert determinism.level == "bitwise"
        for _ in range(3):
            without_algorithm()
        assert determinism.facts == {
            "determinism": "statistical",
            "nondeterministic_operations": ["put_"],
        }
        # As PyTorch says it when the environment came too late.
        warnings.warn(
            "Deterministic behavior was enabled with `torch.use_deterministic_algorithms(True)`, but this "
            "operation is not deterministic because it uses CuBLAS and you have CUDA >= 10.2.",
            stacklevel=1,
        )
    assert determinism.facts["nondeterministic_operations"] == ["CuBLAS", "put_"]


def test_other_warnings_are_shown_and_none_are_noted_afterwards() -> None:
    with pytest.warns(UserWarning) as shown, determined("exact", CUDA) as determinism:
        without_algorithm()
        warnings.warn("something else", stacklevel=1)
    assert [str(warning.message) for warning in shown] == ["something else"]
    torch.set_deterministic_debug_mode("warn")
    try:
        with pytest.warns(UserWarning, match="put_ does not have a deterministic implementation"):
            without_algorithm()
    finally:
        torch.set_deterministic_debug_mode("default")
    assert determinism.operations == {"put_"}


def test_two_processes_write_the_same_bytes(tmp_path: Path) -> None:
    common = {
        "dataset": "digits",
        "partition": {"name": "dirichlet", "clients": 10},
        "model": "mobilenet_tiny",
        "training": {"epochs": 1, "batch_size": 32, "lr": 0.1, "augmentation": {"crop_padding": 1}},
        "rounds": 3,
        "participation": {"fraction": 0.2},
        "evaluation": {"statistics": ["drift", "similarity", "separability"]},
    }
    specs = [
        RunSpec.parse({**common, "method": "scaffold", "plugins": ["flfa", "ecgr"]}, "test"),
        RunSpec.parse({**common, "method": "fedsol", "evaluation": {"keep": "model"}}, "test"),
    ]
    files = []
    for spec in specs:
        files.append(tmp_path / f"{spec.run_id}.json")
        files[-1].write_text(spec.to_json())
    written = []
    for process in ("one", "two"):
        results = tmp_path / process
        command = [sys.executable, "-m", "fltrain", "train", *map(str, files), "--results", str(results)]
        environment = {**os.environ, "PYTHONHASHSEED": "1" if process == "one" else "2"}
        subprocess.run([*command, "--quiet", "--device", "cpu"], check=True, env=environment)
        folders = [Results(results).run(spec.run_id) for spec in specs]
        for folder in folders:
            assert json.loads((folder / "provenance.json").read_text())["determinism"] == "bitwise"
        paths = [folder / name for folder in folders for name in ("metrics.jsonl", "summary.json")]
        written.append([path.read_bytes() for path in (*paths, folders[1] / "models.safetensors")])
    assert written[0] == written[1]
