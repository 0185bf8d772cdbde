"""Multiply-adds of runs, counted from the shapes of their networks, and the speed of a device. Imports torch.

The count has the products in convolutions and linear layers: of the forward and backward passes of local
training, of tests, and of the further passes of methods and statistics. It leaves out element-wise operations
(norms, activations, optimisers) and products of methods with features or updates.

It is exact for clients of equal size. If sizes differ, all clients count with the mean size. If only some
clients train in a round, passes that need the state of an earlier round count at their mean share. A run that
ends early (``evaluation.until``) counts all rounds. FLFA's direct feedback counts like backpropagation.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from fltrain.engine.synthetic import synthetic_run
from fltrain.methods.base import Method
from fltrain.methods.composition import Composition
from fltrain.methods.workload import Workload
from fltrain.models.network import Network, in_mode
from fltrain.runs.spec import RunSpec
from fltrain.runtime.process import compute_as_runs

ELEMENTWISE = (nn.BatchNorm2d, nn.GroupNorm, nn.ReLU, nn.ReLU6, nn.Dropout, nn.Dropout2d)
"""Layers without products that keep the shape of their input."""

MEASURED = 0.5
"""Seconds of training after which a measurement of speed ends."""


class Work:
    """Counts multiply-adds of runs; runs that differ in their seed are counted once.

    Each network is built once, on the meta device, without numbers.
    """

    def __init__(self) -> None:
        self._runs: dict[str, float | None] = {}
        self._networks: dict[tuple[Any, ...], Workload] = {}
        self._speeds: dict[tuple[Any, ...], float] = {}

    def multiply_adds(self, spec: RunSpec) -> float | None:
        """Return the multiply-adds of a run; None if the registry lacks the size of the dataset."""
        key = spec.model_dump_json(exclude={"seed"})
        if key not in self._runs:
            parts = self.parts(spec)
            self._runs[key] = parts and sum(parts)
        return self._runs[key]

    def parts(self, spec: RunSpec) -> tuple[float, float] | None:
        """Return the multiply-adds of a run's training and of its tests."""
        entry, side, evaluation = spec.dataset.entry, spec.dataset.side, spec.evaluation
        train, test = entry.train_images, entry.test_images
        if train is None or test is None or side is None or entry.channels is None or entry.classes is None:
            return None
        if spec.local_test:
            train, test = train + test, round((train + test) * spec.local_test.fraction)
            train -= test
        validation = round(train * evaluation.validation)
        train -= validation
        clients = spec.partition.clients
        size = replace(
            self._network(spec, (entry.channels, side, entry.classes)),
            clients=clients,
            cohort=spec.participation.per_round(clients),
            rounds=spec.rounds,
            batch_size=spec.training.batch_size,
        )
        methods = [spec.composition]
        if second := spec.composition.needs.second:
            methods.append(Composition((second,)))
        own_tests = (
            [n / clients for n in (test, validation) if n] if spec.local_test and spec.personal else []
        )
        local = testing = 0.0
        images, larger = divmod(train, clients)
        for count, share in ((images, clients - larger), (images + 1, larger)):
            size = replace(size, images=count)
            local += share * sum(_local(composition, spec, size) for composition in methods)
            if "dissimilarity" in evaluation.statistics:
                local += share * count * size.gradient()
            for tests in own_tests:
                size = replace(size, tests=tests)
                testing += share * sum(method.testing_work(size) for method in spec.composition.methods)
        tested = test + validation + sum(data.entry.test_images or 0 for data in evaluation.extra)
        times = spec.rounds // evaluation.every
        times += sum(1 for number in spec.final_rounds if number % evaluation.every)
        return spec.rounds * size.cohort * local / clients, times * (tested * size.forward + testing)

    def _network(self, spec: RunSpec, shape: tuple[int, int, int]) -> Workload:
        """Return the multiply-adds of a run's network."""
        adapting = [method for method in spec.composition.methods if type(method).adapt is not Method.adapt]
        key = (shape, *(part.model_dump_json() for part in (spec.model, *adapting)))
        if key not in self._networks:
            channels, side, classes = shape
            with torch.device("meta"):
                network = spec.model.network(channels, side, classes)
            network = spec.composition.adapt(network, classes).to("meta")
            for module in network.modules():  # slow on the meta device
                if isinstance(module, ELEMENTWISE):
                    module.__dict__["forward"] = lambda maps: maps
            images = torch.zeros(2, channels, side, side, device="meta")
            self._networks[key] = network_work(network, images, classes)
        return self._networks[key]

    @compute_as_runs()
    def speed(self, spec: RunSpec, device: torch.device) -> float:
        """Return the multiply-adds per second of a device with a run's network, measured in local training.

        Clients train with FedAvg on random images, in full batches, until half a second has passed.
        """
        entry, training = spec.dataset.entry, spec.training
        images = max(1, (entry.train_images or training.batch_size) // spec.partition.clients)
        batch, clients, steps = min(training.batch_size, images), 2, 2
        settings = spec.model_dump(mode="json", include={"dataset", "model", "precision"})
        key = (str(settings), batch, str(device))
        if key not in self._speeds:
            local = {"batch_size": batch, "epochs": 1, "lr": 1e-3, "lr_schedule": "constant"}
            settings |= {
                "method": "fedavg",
                "partition": {"name": "iid", "clients": clients},
                "participation": 1.0,
                "training": {**training.model_dump(mode="json"), **local},
            }
            simulation = synthetic_run(settings, steps * batch, 2 * (entry.classes or 1), device)
            shape = simulation.data.train.images.shape[1], simulation.data.train.images.shape[2]
            per_image = self._network(simulation.spec, (*shape, simulation.data.classes)).gradient()
            simulation.round(0)  # warms up
            begun, rounds = time.perf_counter(), 0
            while rounds == 0 or time.perf_counter() - begun < MEASURED:
                rounds += 1
                simulation.round(rounds)
            seconds = time.perf_counter() - begun
            self._speeds[key] = rounds * clients * steps * batch * per_image / seconds
        return self._speeds[key]


def _local(composition: Composition, spec: RunSpec, size: Workload) -> float:
    """Return the multiply-adds of a client's local training in a round."""
    schedule = composition.schedule
    sizes = tuple(spec.training.batch_sizes(size.images, schedule.batches))
    size = replace(size, sizes=sizes, passes=spec.training.epochs * schedule.passes)
    ordinary = sum(size.trained * size.gradient(phase.part) for phase in schedule.phases)
    return ordinary + sum(method.training_work(size) for method in composition.methods)


def network_work(network: Network, images: Tensor, classes: int) -> Workload:
    """Return the multiply-adds of a network for one image, from a forward pass.

    Layers that do not read the batch, as in GPFL's valve, are left out; their method counts them.

    Args:
        network: its mode and weights do not change.
        images: a batch of two images or more, on the network's device.
        classes: number of classes.
    """
    of_block = dict.fromkeys((name for name, _ in network.named_children()), 0)
    first = 0

    def count(block: str, module: nn.Module, inputs: Tensor, output: Tensor) -> None:
        nonlocal first
        size = module.weight[0].numel() if isinstance(module, nn.Conv2d) else module.in_features
        fan_in = int(size)  # type: ignore[arg-type]
        if len(output) == len(images):
            of_block[block] += output[0].numel() * fan_in
            first += 0 if inputs.requires_grad else output[0].numel() * fan_in

    def hook(block: str) -> Any:
        return lambda module, inputs, output: count(block, module, inputs[0], output)

    with ExitStack() as hooks, torch.enable_grad(), in_mode(network, training=False):
        for name, module in network.named_modules():
            if isinstance(module, nn.Conv2d) or hasattr(module, "in_features"):
                hooks.enter_context(module.register_forward_hook(hook(name.partition(".")[0])))
        network(images)

    def above(split: int | None) -> int:
        blocks = list(of_block)
        start = blocks.index(network.splits[network.cut(split)]) + 1
        return sum(of_block[block] for block in blocks[start:])

    head = of_block["classifier"]
    width = next(network.classifier.parameters()).shape[1]
    return Workload(sum(of_block.values()) - head, head, first, above, width, classes)
