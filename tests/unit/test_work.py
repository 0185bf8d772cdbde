"""Multiply-adds against PyTorch's counter, in networks and in training; hours and the run table by hand."""

from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.flop_counter import FlopCounterMode, conv_flop_count

from fltrain.core.errors import FltrainError
from fltrain.data.prepared import Partition, PreparedData
from fltrain.engine.simulation import Simulation
from fltrain.experiments import work as counting
from fltrain.experiments.costs import GPUS, hours, run_table, together
from fltrain.experiments.plan import plan
from fltrain.experiments.work import Work, network_work
from fltrain.methods import METHODS, fedimpro
from fltrain.methods.ops import classifier_head, prototypes
from fltrain.models.networks import MODELS
from fltrain.runs.spec import RunSpec

from .conftest import Register
from .helpers import CPU, TINY, TWO_METHODS, pixels, tiny, write_config

CLIENTS, TRAIN, TEST, SIDE, CLASSES = 2, 32, 16, 12, 4


def backward(grad: Any, x: Any, w: Any, *rest: Any, out_val: Any = None, **_: Any) -> int:
    """Operations of a convolution's backward pass; PyTorch's formula ignores groups in weights' gradients."""
    errors, weights, _biases = rest[-1]
    return int(conv_flop_count(x.shape, w.shape, grad.shape) * (errors + weights))


backward._get_raw = True  # type: ignore[attr-defined]


def counted(run: Callable[[], object]) -> float:
    """Multiply-adds of products while a function runs."""
    convolution = torch.ops.aten.convolution_backward
    with FlopCounterMode(display=False, custom_mapping={convolution: backward}) as counter:
        run()
    return counter.get_total_flops() / 2


@pytest.mark.parametrize("name", MODELS)
def test_every_network_forward_and_backward(name: str) -> None:
    model = MODELS[name]()
    side = max(model.min_side, 8)
    network = model.network(3, side, 10)
    images = torch.zeros(2, 3, side, side)
    work = network_work(network, images, 10)
    assert counted(lambda: network(images)) == 2 * work.forward
    loss = functional.cross_entropy(network.train()(images), torch.tensor([0, 1]))
    parameters = dict(network.named_parameters())
    head = [value for key, value in parameters.items() if key.startswith("classifier.")]
    body = [value for key, value in parameters.items() if not key.startswith("classifier.")]
    for part, chosen in {"all": [*body, *head], "body": body, "head": head}.items():
        operations = counted(lambda chosen=chosen: torch.autograd.grad(loss, chosen, retain_graph=True))  # type: ignore[misc]
        assert operations == 2 * (work.gradient(part) - work.forward), part  # type: ignore[arg-type]
    assert work.features + work.head == work.forward and work.head == 10 * work.width


VARIANTS: list[dict[str, Any]] = [
    {"method": {"name": "fedfcd", "without_ho": True}},
    {"method": {"name": "fedfcd", "extractor_loss": "local", "alternate": "batch"}},
    {"method": {"name": "fedfcd", "without_fd": True}},
    *({"method": {"name": "fedsol", "part": part}} for part in ("head", "body")),
    {"method": {"name": "fedsol", "proximal": "l2"}},
    {"method": {"name": "perfedavg", "version": "hf", "passes": 1, "eval_steps": 3}},
    {"method": {"name": "ditto", "passes": 3}},
    *({"method": {"name": "moon", "first": first, "head": "mlp"}} for first in ("initial", "random")),
    {"method": {"name": "moon", "mu": 0.0}},
    {"method": {"name": "scaffold", "option": "I"}},
    {"method": {"name": "fedproto", "source": "running", "inference": "head"}},
    {"method": {"name": "fedma", "mode": "bbp_map"}},
    {"method": {"name": "fed2", "groups": 2, "width": "uneven"}},
    {"plugins": [{"name": "fedimpro", "n_hat": 5, "split": 1}]},
    {"plugins": [{"name": "fedimpro", "labels": "tiled"}]},
    {"plugins": [{"name": "fedimpro", "initial": "uniform", "labels": "batch"}]},
    {"plugins": [{"name": "fedimpro", "n_hat": 0}]},
    {"method": "scaffold", "plugins": ["flfa", "ecgr", "fedimpro"]},
    {"rounds": 3, "evaluation": {"every": 2, "validation": 0.25, "statistics": ["dissimilarity"]}},
    {"method": "perfedavg", "evaluation": {"validation": 0.25}},
    {"training": {"last_batch": "drop", "epochs": 2}},
]
RUNS = [
    *({"method": name} for name, method in METHODS.items() if not method.plugin),
    *({"plugins": [name]} for name, method in METHODS.items() if method.plugin),
    *(pytest.param(settings, marks=pytest.mark.slow) for settings in VARIANTS),
]


@pytest.mark.parametrize("settings", RUNS, ids=str)
def test_every_method_in_whole_runs(
    settings: dict[str, Any], register: Register, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = {"train_images": TRAIN, "test_images": TEST, "channels": 1, "side": SIDE, "classes": CLASSES}
    register({"toy": {"reader": "npz", "path": "nowhere", **facts}})
    for owner, name in NOT_LAYERS:
        monkeypatch.setattr(owner, name, uncounted(getattr(owner, name)))
    base: dict[str, Any] = {
        "dataset": "toy",
        "partition": {"name": "iid", "clients": CLIENTS},
        "model": "mobilenet_tiny" if settings.get("method") == "fedbn" else "lenet5",
        "method": "fedavg",
        "rounds": 2,
        "participation": 1.0,
        **settings,
        "training": {"epochs": 1, "batch_size": 10, **settings.get("training", {})},
    }
    try:
        spec = RunSpec.parse(base, "test")
    except FltrainError as error:
        assert "set local_test" in str(error)
        spec = RunSpec.parse({**base, "local_test": TEST / (TRAIN + TEST)}, "test")
    federation = simulated(spec)
    assert counted(lambda: list(federation.run())) == Work().multiply_adds(spec)


NOT_LAYERS: list[tuple[Any, str]] = [
    *((prototypes, "class_sums"), (fedimpro, "class_moments"), (classifier_head, "train")),
    *((METHODS["ecgr"], "client_final"), (METHODS["fed2"], "client_final")),
    *((METHODS["fedamp"], "aggregate"), (METHODS["fedma"], "aggregate"), (METHODS["flfa"], "aggregate")),
]
"""Functions with products of features or updates."""


def uncounted(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose products do not count."""

    def run(*arguments: Any, **named: Any) -> Any:
        with _disable_current_modes():
            return function(*arguments, **named)

    return run


def simulated(spec: RunSpec) -> Simulation:
    """A run whose clients have equally many images of every class."""
    images, labels = pixels(TRAIN + TEST, 1, SIDE, SIDE), np.arange(TRAIN + TEST) % CLASSES
    split = (images[:TRAIN], labels[:TRAIN], images[TRAIN:], labels[TRAIN:])
    data = PreparedData(*split, CLASSES, mean=(0.5,), std=(0.3,), digest="")
    clients, validation, tests = np.array_split(np.arange(TRAIN), CLIENTS), None, None
    if spec.local_test:
        tests = np.array_split(np.arange(TRAIN, TRAIN + TEST), CLIENTS)
    if share := spec.evaluation.validation:
        aside = round(share * TRAIN) // CLIENTS
        validation, clients = [part[:aside] for part in clients], [part[aside:] for part in clients]
    return Simulation(spec, data, Partition(clients, "", tests, validation), CPU)


# ---------------------------------------------------------------- hours and the run table
def test_arithmetic_takes_the_peak_of_the_precision() -> None:
    """A multiply-add is two operations; 5 to 20 % of the peak are assumed."""
    h100 = {precision: hours(67e12 * 1800, GPUS["h100"].speed(precision)) for precision in ("fp32", "tf32")}
    assert h100 == {"fp32": pytest.approx((5, 20)), "tf32": pytest.approx((0.677, 2.707), abs=5e-4)}
    assert together(h100.values()) == pytest.approx((5.677, 22.707), abs=5e-4)
    assert GPUS["v100"].speed("bf16") == GPUS["v100"].speed("fp32"), "it has no other peak"


def test_the_run_table_has_a_row_per_cell_and_seed(tmp_path: Path) -> None:
    planned = plan(write_config(tmp_path, {"table": TWO_METHODS}, seeds=2), "one")
    first, *others = planned.runs
    rows = run_table(planned, {first: 12.0}, {first: (1.0, 2.0)})
    assert [row["run"] for row in rows] == [first, *others]
    costs = [(row["multiply_adds"], row["hours_least"], row["hours_most"]) for row in rows]
    assert costs == [("12", 1.0, 2.0), *[("", "", "")] * 3]


def test_the_speed_is_the_work_of_a_round_by_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two clients with two batches of 32 each; a round ends after two ticks of a second."""
    clock = count()
    monkeypatch.setattr(counting, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    work, spec = Work(), tiny(method="moon", evaluation={"every": 3})
    single = tiny(rounds=1, partition={"name": "iid", "clients": 1}, participation=1.0)
    training, _ = work.parts(single) or (0.0, 0.0)
    per_image = training / 1438  # of an image, in the only epoch
    assert work.speed(spec, CPU) == 2 * 2 * 32 * per_image / 2
    assert work.speed(spec.model_copy(update={"seed": 1}), CPU) == 2 * 2 * 32 * per_image / 2, "measured once"


def test_runs_without_the_size_of_the_dataset_are_not_counted(register: Register) -> None:
    register({"mine": {"reader": "npz", "path": "mine.npz"}})
    spec = {**TINY, "dataset": "mine", "partition": {"name": "iid", "clients": 10}, "model": "lenet5"}
    assert Work().multiply_adds(RunSpec.parse(spec, "test")) is None
