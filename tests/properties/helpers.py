"""A small federation of handwritten digits, and local training that is observed."""

import ctypes
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import ClassVar, Literal
from unittest.mock import patch

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from fltrain.data.prepared import Partition, PreparedData
from fltrain.engine.clients import TRAINED, Round
from fltrain.engine.local import LocalTraining, Trained
from fltrain.engine.simulation import Simulation
from fltrain.engine.statistics import Row
from fltrain.methods import METHODS, checks
from fltrain.methods.base import Method
from fltrain.methods.composition import Composition
from fltrain.methods.training import Constant, Training
from fltrain.methods.types import Local, Task, Update
from fltrain.models.base import Model
from fltrain.models.networks.lenet5 import LeNet5
from fltrain.runs.spec import Evaluation, Participation, RunSpec

CPU = torch.device("cpu")
FULL_BATCH = 512
"""A batch size that holds all images of any client: an epoch is then one step."""

# Modules of mobilenet_tiny that have parameters, in the order in which the forward pass uses them.
FORWARD_ORDER = [
    *("stem.0", "stem.1"),
    *("stage1.expand", "stage1.expand_norm", "stage1.depthwise", "stage1.depthwise_norm"),
    *("stage1.project", "stage1.project_norm"),
    *("stage2.expand", "stage2.expand_norm", "stage2.depthwise", "stage2.depthwise_norm"),
    *("stage2.project", "stage2.project_norm"),
    *("head_conv1.0", "head_conv1.1", "classifier"),
]


class Tiny(Model):
    """Two convolutions with BatchNorm: every operation costs time."""

    name: Literal["tiny"] = "tiny"
    min_side: ClassVar[int] = 1

    def blocks(self, channels: int, side: int, classes: int) -> dict[str, nn.Module]:
        return {
            "stem": nn.Sequential(nn.Conv2d(channels, 4, 3, stride=4), nn.BatchNorm2d(4), nn.ReLU()),
            "last": nn.Sequential(nn.Conv2d(4, 20, 1), nn.BatchNorm2d(20), nn.ReLU()),
            "flatten": nn.Flatten(),
            "classifier": nn.Linear(80, classes),
        }


MODEL_FOR = {"fedma": LeNet5()}
"""Methods that cannot use networks with norm layers, and the model for their tests."""


BASES = [method for method in METHODS.values() if not method.plugin]
PLUGINS = [method for method in METHODS.values() if method.plugin]


def by_name(component: object) -> str:
    """Test ID of a method or a model (class or instance), or of several."""
    if isinstance(component, tuple):
        return "+".join(map(by_name, component))
    return component.model_fields["name"].default if isinstance(component, type) else component.name


def goes_with(base: Method, *plugins: Method) -> bool:
    """Return True if the plug-ins can be combined with the base method."""
    try:
        Composition((base, *plugins))
    except ValueError:
        return False
    return True


def with_all_plugins(base: Method) -> tuple[Method, ...]:
    """The base method with all plug-ins; a plug-in that cannot be combined with earlier ones is left out."""
    methods = (base,)
    for plugin in PLUGINS:
        if goes_with(*methods, plugin()):
            methods = (*methods, plugin())
    return methods


COMBINATIONS = [
    *(
        (base(), *plugins)
        for base in BASES
        for plugins in [(), *((plugin(),) for plugin in PLUGINS)]
        if goes_with(base(), *plugins)
    ),
    *(with_all_plugins(METHODS[base]()) for base in ("fedavg", "scaffold", "fedsol")),
]
"""Every base method alone and with every compatible plug-in, and some with all of them."""

VARIED = {"fedavg", "scaffold", "fedsol", "perfedavg", "gpfl"}
REPRESENTATIVES = [methods for methods in COMBINATIONS if len(methods) != 2 or methods[0].name in VARIED]
"""Every base method alone, and plug-ins on bases that differ in client state and local steps."""

EVERY = [
    *(methods for methods in COMBINATIONS if len(methods) == 1),
    *((METHODS["fedavg"](), plugin()) for plugin in PLUGINS),
    *(methods for methods in COMBINATIONS if len(methods) > 2),
]
"""Every method at least once."""

KINDS = [
    *("fedavg", "scaffold", "ditto", "fedsol", "perfedavg", "fedfcd", "fedbn", "fedma", "gpfl"),
    by_name(with_all_plugins(METHODS["fedsol"]())),
]
"""Names of combinations that use the engine in different ways.

They have client state, a second model, several batches in a step, phases, private layers, all clients in
every round, a changed architecture, extra parameters, and all plug-ins.
"""


def slow_unless(daily: Iterable[str], combinations: Iterable[tuple[Method, ...]]) -> list[object]:
    """Parameters of a test; `make test` trains the daily combinations, `make test-slow` the others."""
    names = set(daily)
    return [
        pytest.param(methods, marks=() if by_name(methods) in names else pytest.mark.slow)
        for methods in combinations
    ]


@cache
def digits(side: int = 8, train: int = 120, test: int = 40) -> PreparedData:
    """Some of scikit-learn's digits; pixels are repeated to get images of 16 or 24 pixels."""
    bunch = load_digits()
    pixels = (15 * bunch.images[: train + test]).astype(np.uint8)[:, None]
    images = pixels.repeat(side // 8, axis=2).repeat(side // 8, axis=3)
    labels = bunch.target[: train + test].astype(np.int64)
    splits = images[:train], labels[:train], images[train:], labels[train:]
    return PreparedData(*splits, classes=10, mean=(0.3,), std=(0.4,), digest="")


def skewed(data: PreparedData) -> Partition:
    """Six clients of different sizes; each has some images of all classes and more of its main classes."""
    by_label = np.argsort(data.train_labels, kind="stable")
    main_images, shared = by_label[::2], by_label[1::2]
    shared = shared.reshape(10, -1).T.flatten()
    cuts = np.cumsum([4, 7, 9, 10, 13])
    parts = zip(np.split(main_images, cuts), np.split(shared, cuts), strict=True)
    return Partition([np.concatenate(part) for part in parts], digest="")


def with_tests(partition: Partition) -> Partition:
    """Make every fourth image of each client a test image."""
    tests = [images[3::4] for images in partition.clients]
    training = [np.delete(images, np.s_[3::4]) for images in partition.clients]
    return Partition(training, digest="", tests=tests)


def simulation(
    *methods: Method,
    model: Model | None = None,
    data: PreparedData | None = None,
    partition: Partition | None = None,
    fraction: float = 0.5,
    statistics: Sequence[str] = (),
    trainer: type = LocalTraining,
    seed: int = 0,
    rounds: int = 100,
    evaluate_every: int = 1,
    batchnorm: str = "average",
    point: str = "after_download",
    precision: str = "fp32",
    workers: int = 1,
    device: torch.device = CPU,
    **training: object,
) -> Simulation:
    """A federation of a small network, a base method (default: federated averaging) and plug-ins.

    If clients have personal models, they also have test images. The spec is not validated, so that tests can
    define methods and models.
    """
    if not methods or methods[0].plugin:
        methods = (METHODS["fedavg"](), *methods)
    model = model or MODEL_FOR.get(methods[0].name, Tiny())
    data = data or digits(16 if isinstance(model, LeNet5) else 8)
    settings = {"epochs": 1, "batch_size": 16, "lr": 0.05, "lr_schedule": Constant(), **training}
    spec = RunSpec.model_construct(
        model=model,
        method=methods[0],
        plugins=methods[1:],
        training=Training(**settings),
        rounds=rounds,
        participation=Participation(fraction=fraction),
        evaluation=Evaluation(every=evaluate_every, statistics=tuple(statistics), point=point),
        batchnorm=batchnorm,
        precision=precision,
        seed=seed,
    )
    if partition is None:
        partition = with_tests(skewed(data)) if spec.personal else skewed(data)
    return Simulation(spec, data, partition, device, partial(trainer, workers=workers))


def trained(*methods: Method, rounds: int = 2, **settings: object) -> Simulation:
    """A federation after some rounds; their rows are in its attribute ``rows``."""
    federation = simulation(*methods, rounds=rounds, **settings)
    federation.rows = [row for rows in federation.run() for row in rows]
    return federation


reference = cache(trained)
"""The same federation, trained once and shared by tests, which must not change it."""


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Random numbers from a normal distribution."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@contextmanager
def strict_about_writes() -> Iterator[None]:
    """Compare the contents of tensors that hooks were handed, also after writes that PyTorch does not count.

    These are writes through ``data``, NumPy or other views of the memory.
    """

    def contents(tensors: Sequence[Tensor]) -> list[bytes]:
        storages = [tensor.untyped_storage() for tensor in tensors]
        return [ctypes.string_at(storage.data_ptr(), storage.nbytes()) for storage in storages]

    with patch.object(checks, "_versions", contents):
        yield


def layer_names(model: Model) -> list[str]:
    """Names of a model's layers, in order."""
    return [layer.name for layer in simulation(model=model).model.layout.layers]


def rows_of(federation: Simulation, kind: str) -> list[Row]:
    """The rows of one kind."""
    return [row for row in federation.rows if row["kind"] == kind]


def assert_same_model(first: Simulation, second: Simulation, hint: str = "") -> None:
    """Check that models agree bit for bit, with buffers and counters: the global and the clients' models.

    Client states of the methods that both federations use must agree, too. ``hint`` is for the message.
    """
    for part in ("weights", "buffers", "counters"):
        is_equal = torch.equal(getattr(first.server, part), getattr(second.server, part))
        assert is_equal, f"{part} of the global models differ{hint}"
    assert first.clients.keys() == second.clients.keys()
    for client, states in first.clients.items():
        other_states = second.clients[client]
        for name in states.keys() & other_states.keys() - {TRAINED}:
            assert states[name].keys() == other_states[name].keys(), (client, name)
            for part, tensor in states[name].items():
                assert torch.equal(tensor, other_states[name][part]), (client, name, part)


def assert_same_steps(first: Simulation, second: Simulation) -> None:
    """Check that all local steps of two traced federations agree bit for bit, in images and weights."""
    for step, other in zip(first.trainer.steps, second.trainer.steps, strict=True):
        assert torch.equal(step.chosen, other.chosen)
        assert torch.equal(step.weights, other.weights)


def mean_by_size(updates: Sequence[Update], part: str) -> Tensor:
    """The mean of a vector of the updates by data size, in double precision."""
    samples = torch.tensor([update.samples for update in updates]).double()
    return (samples / samples.sum()) @ torch.stack([getattr(update, part) for update in updates]).double()


def changed_parameters(federation: Simulation, first: Tensor, second: Tensor) -> set[str]:
    """Names of the parameters in which two weight vectors differ."""
    slots = federation.model.layout.parameters
    return {slot.name for slot in slots if not torch.equal(slot.of(first), slot.of(second))}


@dataclass(frozen=True)
class Step:
    """One local step: its images, and the model and step states (by method) after it."""

    round: int
    client: int
    chosen: Tensor
    weights: Tensor
    buffers: Tensor
    counters: Tensor
    step_states: dict[str, dict[str, Tensor]]


class Tracing(LocalTraining):
    """Stores every local step, the rounds as they began, and the updates of the last one."""

    def __init__(self, *args: object, **settings: object) -> None:
        super().__init__(*args, **settings)
        self.steps: list[Step] = []
        self.updates: list[Update] = []
        self.rounds: list[Round] = []

    def train(self, round: Round, *args: object) -> list[Trained]:
        self.rounds.append(round)
        results = super().train(round, *args)
        self.updates = [result.update for result in results]
        return results

    def step(self, hooks, optimiser, chosen, changes):
        result = super().step(hooks, optimiser, chosen, changes)
        local = next(iter(hooks.locals_.values()))
        step_states = {
            name: {key: tensor.clone() for key, tensor in step_state.items()}
            for name, step_state in hooks.step_states.items()
        }
        model = [tensor.clone() for tensor in (self.model.weights, self.model.buffers, self.model.counters)]
        self.steps.append(Step(local.round, local.client, chosen, *model, step_states))
        return result

    def steps_of(self, client: int, round: int = 0) -> list[Step]:
        """The steps of one client in one round."""
        return [step for step in self.steps if (step.client, step.round) == (client, round)]


def task_of(layout: object = None) -> Task:
    """A run of 10 classes whose 10 clients have 100 images together; its network is drawn as all zeros."""
    return Task(
        layout=layout,
        network=None,
        map_shape=lambda split: (1,),
        classes=10,
        clients=10,
        samples=100,
        training=Training(momentum=0.0),
        rounds=10,
        seed=0,
        initialise=lambda client=None: (torch.zeros(1), torch.zeros(0)),
        class_counts=torch.ones(10, 10),
    )


def local_of(
    start: Tensor,
    payload: dict[str, Tensor] | None = None,
    state: dict[str, Tensor] | None = None,
    *,
    lr: float = 0.1,
    steps: int = 4,
    counts: Tensor | None = None,
    task: Task | None = None,
) -> Local:
    """A client at the start of its local training, without images."""
    return Local(
        task=task or task_of(),
        client=0,
        round=0,
        start=start,
        buffers=torch.zeros(0),
        lr=lr,
        steps=steps,
        samples=1,
        class_counts=torch.ones(10) if counts is None else counts,
        examples=None,
        payload=payload or {},
        state=state or {},
    )


def update_of(start: Tensor, weights: Tensor, client: int = 0, samples: int = 1, **others: object) -> Update:
    """The upload of a client that trained from ``start`` to ``weights``."""
    empty = torch.zeros(0)
    return Update(
        client, samples, 1, start, weights, weights, empty, empty.long(), torch.tensor(0.0), **others
    )
