"""A small federation of handwritten digits, and executors that watch the reference loop or disturb it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from fltrain.data.datasets import Digits, RawSplits
from fltrain.data.partition import Dirichlet, Iid
from fltrain.data.prepared import Partition, PreparedData
from fltrain.engine.local import LoopExecutor, Trained
from fltrain.engine.rounds import Row, Simulation
from fltrain.methods import METHODS
from fltrain.methods.base import Local, Method, Task, Update
from fltrain.models.catalogue import LeNet5, MobileNetTiny, Model
from fltrain.spec import Constant, Evaluation, Participation, RunSpec, Training

CPU = torch.device("cpu")
FULL_BATCH = 512
"""A batch that holds all images of any client here: an epoch is then one step."""

# Modules of mobilenet_tiny that have parameters, in the order in which the forward pass uses them.
FORWARD_ORDER = [
    *("stem.0", "stem.1"),
    *("stage1.expand", "stage1.expand_norm", "stage1.depthwise", "stage1.depthwise_norm"),
    *("stage1.project", "stage1.project_norm"),
    *("stage2.expand", "stage2.expand_norm", "stage2.depthwise", "stage2.depthwise_norm"),
    *("stage2.project", "stage2.project_norm"),
    *("head_conv1.0", "head_conv1.1", "classifier"),
]
LAYERS = [name for name in FORWARD_ORDER if not name.endswith((".1", "_norm"))]

BASES = [method for method in METHODS.values() if not method.plugin]
PLUGINS = [method for method in METHODS.values() if method.plugin]


def by_name(component: object) -> str:
    """Test id of a method or a model, class or instance."""
    return component.model_fields["name"].default if isinstance(component, type) else component.name


@cache
def digits(side: int = 8, train: int = 180, test: int = 40) -> PreparedData:
    """Some of the digits; pixels are repeated to get images of 16 or 24 pixels."""
    raw = Digits().load()

    def enlarge(images: np.ndarray) -> np.ndarray:
        return images.repeat(side // 8, axis=2).repeat(side // 8, axis=3)

    splits = RawSplits(
        enlarge(raw.train_images[:train]),
        raw.train_labels[:train],
        enlarge(raw.test_images[:test]),
        raw.test_labels[:test],
    )
    return PreparedData(splits, Digits.classes, Digits.mean, Digits.std, digest="")


def skewed(data: PreparedData, clients: int = 6) -> Partition:
    """Clients of unequal size and with different classes."""
    scheme = Dirichlet(clients=clients, alpha=0.5, capped=False, min_size=8)
    return Partition(scheme.split(data.splits.train_labels, data.classes, seed=0), digest="")


def even(data: PreparedData, clients: int = 6) -> Partition:
    """Clients of (almost) equal size that hold all classes."""
    return Partition(Iid(clients=clients).split(data.splits.train_labels, data.classes, seed=0), digest="")


def simulation(
    *methods: Method,
    model: Model | None = None,
    data: PreparedData | None = None,
    partition: Partition | None = None,
    fraction: float = 0.5,
    statistics: Sequence[str] = (),
    executor: type = LoopExecutor,
    seed: int = 0,
    rounds: int = 100,
    evaluate_every: int = 1,
    **training: object,
) -> Simulation:
    """A federation that trains with a base method (federated averaging if none is given) and plug-ins.

    The spec is not validated, so that methods and models made for a test can be in it.
    """
    if not methods or methods[0].plugin:
        methods = (METHODS["fedavg"](), *methods)
    model = model or MobileNetTiny()
    data = data or digits(16 if isinstance(model, LeNet5) else 8)
    settings = {"epochs": 1, "batch_size": 16, "lr": 0.05, **training}
    spec = RunSpec.model_construct(
        dataset=Digits(),
        partition=Iid(),
        model=model,
        method=methods[0],
        plugins=methods[1:],
        training=Training(lr_schedule=Constant(), **settings),
        rounds=rounds,
        participation=Participation(fraction=fraction),
        evaluation=Evaluation(every=evaluate_every, statistics=tuple(statistics)),
        seed=seed,
    )
    return Simulation(spec, data, partition or skewed(data), CPU, executor)


def trained(*methods: Method, rounds: int = 2, **settings: object) -> Simulation:
    """A federation after some rounds; their rows are in its attribute ``rows``."""
    federation = simulation(*methods, rounds=rounds, **settings)
    federation.rows = list(federation.run())
    return federation


def layer_names(model: Model) -> list[str]:
    """Names of a model's layers, in order."""
    return [layer.name for layer in simulation(model=model).model.layout.layers]


def rows_of(federation: Simulation, kind: str) -> list[Row]:
    """The rows of one kind."""
    return [row for row in federation.rows if row["kind"] == kind]


def assert_same_model(first: Simulation, second: Simulation) -> None:
    """The global models agree bit for bit, buffers and counters included."""
    for part in ("weights", "buffers", "counters"):
        assert torch.equal(getattr(first.server, part), getattr(second.server, part)), part


def changed_parameters(federation: Simulation, first: Tensor, second: Tensor) -> set[str]:
    """Names of the parameters in which two weight vectors differ."""
    slots = federation.model.layout.parameters
    return {slot.name for slot in slots if not torch.equal(slot.of(first), slot.of(second))}


# ------------------------------------------------------------------------------------ executors
@dataclass(frozen=True)
class Step:
    """One local step: the images it used, and weights and carries (by method) after it."""

    round: int
    client: int
    lr: float
    chosen: Tensor
    weights: Tensor
    carries: dict[str, dict[str, Tensor]]


class Tracing(LoopExecutor):
    """The reference loop; keeps every local step, and the updates of the last round."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.steps: list[Step] = []
        self.updates: list[Update] = []

    def train(self, *args: object) -> list[Trained]:
        results = super().train(*args)
        self.updates = [result.update for result in results]
        return results

    def _step(self, chosen, hooks, optimiser):
        loss = super()._step(chosen, hooks, optimiser)
        local = next(iter(hooks.locals_.values()))
        carries = {
            name: {key: tensor.clone() for key, tensor in carry.items()}
            for name, carry in hooks.carries.items()
        }
        self.steps.append(
            Step(local.round, local.client, local.lr, chosen, self.model.weights.clone(), carries)
        )
        return loss

    def of(self, client: int, round: int = 0) -> list[Step]:
        """The steps of one client in one round."""
        return [step for step in self.steps if (step.client, step.round) == (client, round)]


class Reversing(LoopExecutor):
    """Trains the clients in reversed order."""

    def train(self, round, clients, states):
        return super().train(round, clients[::-1], states[::-1])[::-1]


# ------------------------------------------------------------------------------------ single hooks
def local_of(
    start: Tensor,
    payload: dict[str, Tensor] | None = None,
    state: dict[str, Tensor] | None = None,
    *,
    lr: float = 0.1,
    steps: int = 4,
    momentum: float = 0.0,
    clients: int = 10,
    layout: object = None,
) -> Local:
    """A client at the start of its local training."""
    task = Task(layout, classes=10, clients=clients, momentum=momentum, seed=0)
    return Local(task, 0, 0, start, lr, steps, payload or {}, state or {})


def update_of(start: Tensor, weights: Tensor, client: int = 0, samples: int = 1, **others: object) -> Update:
    """What a client sends back after training from ``start`` to ``weights``."""
    empty = torch.zeros(0)
    return Update(client, samples, 1, start, weights, empty, empty.long(), torch.tensor(0.0), **others)
