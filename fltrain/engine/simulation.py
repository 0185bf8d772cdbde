"""The round loop: sample clients, train them, aggregate, test, record."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from fltrain.core.errors import FltrainError, noting
from fltrain.core.rng import Purpose, own_streams, seeded_torch, stream
from fltrain.data.prepared import Partition, PreparedData
from fltrain.engine.clients import SECOND, Clients, ClientState, Ownership, Round, initial_updates
from fltrain.engine.data import FederatedData, ImageSet
from fltrain.engine.evaluation import Outcome, test, test_clients
from fltrain.engine.local import LocalTraining
from fltrain.engine.statistics import FinishedRound, Row, statistics_rows
from fltrain.methods.checks import recorded
from fltrain.methods.composition import Composition
from fltrain.methods.types import Server, State, Task, Update
from fltrain.metrics.separability import separability
from fltrain.models.base import build
from fltrain.models.flat import FlatModel, pack
from fltrain.models.network import Network, in_mode, map_shape
from fltrain.runs.spec import RunSpec
from fltrain.runtime.devices import synchronize

NO_VARIANCE = "Expected more than 1 value per channel when training"
"""PyTorch's message for a batch in which every channel has a single value."""

Trainer = Callable[[Clients], LocalTraining]
"""Makes the local training of some clients."""


class Diverged(Exception):
    """A loss, a global weight, or a weight of a client's own model is no longer a finite number."""


@dataclass
class Costs:
    """Wall time by phase, in seconds, and the amount of work."""

    device: torch.device
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    round_seconds: list[float] = field(default_factory=list)
    samples: int = 0

    @property
    def of_rounds(self) -> float:
        """Seconds of training and aggregation."""
        return self.seconds["train"] + self.seconds["aggregate"]

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time of the enclosed work to a phase."""
        started = time.perf_counter()
        yield
        synchronize(self.device)
        self.seconds[name] += time.perf_counter() - started


def cohort(spec: RunSpec, clients: int, number: int) -> list[int]:
    """Return the clients of a round (counted from 0), ascending.

    They are drawn uniformly without replacement, and equal for every method.
    """
    random = stream(spec.seed, Purpose.CLIENT_SAMPLING, round=number)
    return sorted(random.choice(clients, spec.participation.per_round(clients), replace=False).tolist())


class Simulation:
    """A run in memory: ``run`` trains it and yields the rows of its record.

    A checkpoint holds all that changes between rounds: ``finished`` (number of finished rounds), ``server``,
    ``clients`` (client states), ``last_models`` (models of the last cohort, if the record keeps them),
    ``bytes_down``, ``bytes_up``, ``costs`` and the rows so far.
    """

    def __init__(
        self,
        spec: RunSpec,
        data: PreparedData,
        partition: Partition,
        device: torch.device,
        trainer: Trainer = LocalTraining,
        extra: Mapping[str, PreparedData] | None = None,
    ) -> None:
        """Build network, server and data on ``device``.

        Raises:
            FltrainError: if the spec does not fit the network or the data.
        """
        self.spec, self.device, self.composition = spec, device, spec.composition
        self.costs = Costs(device)
        with self.costs.phase("setup"):
            # The layout of tensor cores on GPUs.
            channels_last = spec.model.channels_last if device.type == "cpu" else spec.precision != "fp32"
            self.data = FederatedData.of(
                data, partition, device, extra, channels_last, spec.feature_skew, spec.seed
            )
            example = torch.zeros(1, data.channels, data.side, data.side, device=device)
            self.model = FlatModel(self._network(), example)
            self.network = self.model.network
            self._check_logits(example)
            self.task = Task(
                layout=self.model.layout,
                network=self.network,
                map_shape=partial(map_shape, self.network, example),
                classes=data.classes,
                clients=len(self.data.clients),
                samples=sum(len(images) for images in self.data.clients),
                training=spec.training,
                rounds=spec.rounds,
                seed=spec.seed,
                initialise=self._initialise,
                class_counts=self.data.class_counts,
            )
            start, buffers = self.model.weights.clone(), self.model.buffers.clone()
            states = self.composition.server_init(self.task, start)
            self.server = Server(start, buffers, self.model.counters.clone(), states)
            self.ownership = Ownership(
                private := self.composition.needs.private,
                buffers=spec.batchnorm == "local" or private in ("all", "batchnorm"),
                keeps_trained=spec.evaluation.point == "after_local",
            )
            all_clients = Clients(self.model, self.data, spec.training, self.composition, self.ownership)
            self.trainers = [trainer(all_clients)]
            if (method := self.composition.needs.second) is not None:
                ownership = Ownership("all", buffers=True, name=SECOND)
                second = replace(all_clients, composition=Composition((method,)), ownership=ownership)
                self.trainers.append(trainer(second))
            self._check_single_images(example)
        self.clients: dict[int, ClientState] = {}
        self.last_models: State = {}
        self.finished = self.bytes_down = self.bytes_up = 0

    @property
    def trainer(self) -> LocalTraining:
        """Local training of the model that clients upload; a method's second model has another one."""
        return self.trainers[0]

    def _network(self, client: int | None = None) -> Network:
        """Return a newly drawn network, adapted by the methods: the run's initial one, or a client's own."""
        spec, (_, channels, side, _) = self.spec, self.data.train.images.shape
        network = build(spec.model, channels, side, self.data.classes, spec.seed, client)
        # A separate stream, so that additions of methods do not change the other initial weights.
        stream_client = 0 if client is None else client + 1
        with seeded_torch(spec.seed, Purpose.INITIALISATION, round=1, client=stream_client):
            network = self.composition.adapt(network, self.data.classes)
        network.products = torch.bfloat16 if spec.precision == "bf16" else None
        network.tf32 = spec.precision == "tf32"
        return network

    def _initialise(self, client: int | None = None) -> tuple[Tensor, Tensor]:
        """Return weights and buffers of a newly drawn network; see ``Task.initialise``."""
        network = self._network(client)
        buffers = [buffer for buffer in network.buffers() if buffer.is_floating_point()]
        weights, statistics = (
            pack(tensors, torch.float32, self.device) for tensors in (network.parameters(), buffers)
        )
        return weights, statistics

    def _check_logits(self, example: Tensor) -> None:
        """Refuse a network that does not return a logit for each class."""
        with torch.no_grad(), in_mode(self.network, training=False):
            shape, wanted = [*self.network(example).shape], [1, self.data.classes]
        if shape != wanted:
            raise FltrainError(
                f"model {self.spec.model.name!r} should return logits {wanted} for an image, found {shape}"
            )

    def _check_single_images(self, example: Tensor) -> None:
        """Refuse BatchNorm with one value per channel in a step of any client that will take part."""
        clients = self.trainer.clients
        single = {
            client for client in range(self.task.clients) if 1 in clients.step_sizes(clients.images(client))
        }
        if not single:
            return
        try:
            with (
                torch.no_grad(),
                in_mode(self.network, training=True),
                self.model.untracked(),
                seeded_torch(self.spec.seed, Purpose.DROPOUT),
            ):
                self.network(example)
        except ValueError as error:
            if NO_VARIANCE not in str(error):
                raise
            cohorts = {client for number in range(self.spec.rounds) for client in self.sample(number)}
            if single & cohorts:
                raise FltrainError(
                    f"client {min(single & cohorts)} has a batch of one image, in which BatchNorm cannot "
                    "normalise maps of one pixel; set training.batch_size or the smallest client "
                    "(partition.min_size) to 2 or more, a larger dataset.image_size, or a model without "
                    "BatchNorm"
                ) from None

    # ---------------------------------------------------------------- the round loop
    def run(self) -> Iterator[list[Row]]:
        """Train the remaining rounds and yield the rows of each; ``Diverged`` ends them."""
        for number in range(self.finished, self.spec.rounds):
            yield self.round(number)

    def sample(self, number: int) -> list[int]:
        """Return the cohort of a round (counted from 0)."""
        return cohort(self.spec, self.task.clients, number)

    def round(self, number: int) -> list[Row]:
        """Run one round (counted from 0) and return its rows (which count from 1)."""
        with noting(f"in round {number + 1}"), own_streams("the server's part of a round, or a test,"):
            if number == 0 and (introducing := self.composition.introducing):
                with self.costs.phase("setup"):
                    self._introduce(introducing)
            cohort, before, spent = self.sample(number), self.server, self.costs.of_rounds
            rounds = self._rounds(number)
            with self.costs.phase("train"):
                by_trainer = [
                    trainer.train(round, cohort, self.clients)
                    for trainer, round in zip(self.trainers, rounds, strict=True)
                ]
            updates = [result.update for result in by_trainer[0]]
            loss = _finite(torch.stack([update.loss for update in updates]).mean(), "the training loss")
            with noting(f"aggregating the uploads of clients {cohort}"), self.costs.phase("aggregate"):
                server, reports = self._aggregated(before, updates)
                if len(by_trainer) > 1 or not self.composition.needs.global_model:
                    largest = [result.update.trained.abs().max() for result in by_trainer[-1]]
                    _finite(torch.stack(largest).max(), "a client's weight")
                self.server = server
            self._account(rounds[0], updates)
            rows: list[Row] = [{"kind": "train", "clients": cohort, "loss": loss}]
            with self.costs.phase("statistics"):
                # Client states are still from the beginning of the round.
                gradients = partial(self.trainer.gradients, rounds[0], cohort, self.clients)
                finished = FinishedRound(self.model.layout, updates, self.server, gradients)
                rows += statistics_rows(self.spec.evaluation.statistics, finished)
                rows += [{"kind": name, **row} for name, row in reports.items()]
            with self.costs.phase("aggregate"):
                for results in zip(*by_trainer, strict=True):
                    states: dict[str, State] = {}
                    for result in results:
                        states |= result.client_state
                    self.clients[results[0].update.client] = states
            self.costs.round_seconds.append(self.costs.of_rounds - spent)
            if self.spec.evaluates(number + 1):
                with noting("testing"), self.costs.phase("evaluate"):
                    rows += self._tests(number + 1)
            self.finished = number + 1
            return [{"round": number + 1, **row} for row in rows]

    def at(self, number: int) -> Round:
        """Return a round (counted from 0) that begins with the current server."""
        return Round(number, self.task, self.server, self.composition.payload(self.server.states))

    def _rounds(self, number: int) -> list[Round]:
        """Return a round for each local training; the payload of a second model is the global weights."""
        round, payload = self.at(number), {"global": self.server.weights}
        seconds = (second.composition.name for second in self.trainers[1:])
        return [round, *(replace(round, payloads={name: payload}) for name in seconds)]

    def _aggregated(
        self, before: Server, updates: Sequence[Update]
    ) -> tuple[Server, dict[str, dict[str, Any]]]:
        """Return the server after a round, and the methods' rows for the record."""
        weights, buffers, states, reports = self.composition.aggregate(self.task, before, updates)
        counters = torch.stack([update.counters for update in updates]).amax(0)
        if self.ownership.private is not None:
            private = self.model.layout.private(self.ownership.private)
            weights[private] = before.weights[private]
        if self.ownership.buffers:
            buffers, counters = before.buffers, before.counters
        # A last step can overflow although every loss was finite; such weights are not measured.
        _finite(weights.abs().max(), "a global weight")
        return Server(weights, buffers, counters, states), reports

    def _introduce(self, composition: Composition) -> None:
        """Run ``client_final`` of all clients without a local step, and aggregate their uploads."""
        clients = replace(self.trainer.clients, composition=composition)
        updates = initial_updates(clients, self.at(0), self.trainer.workers)
        self.bytes_up += sum(_bytes(update.extras) for update in updates)
        states = composition.aggregate(self.task, self.server, updates)[2]
        self.server = replace(self.server, states=states)

    def _account(self, round: Round, updates: Sequence[Update]) -> None:
        """Count images and traffic, and keep the clients' models if the record will hold them."""
        for trainer in self.trainers:
            sizes = [trainer.clients.step_sizes(update.samples) for update in updates]
            self.costs.samples += sum(map(sum, sizes))
        weights, buffers = round.server.weights, round.server.buffers
        shared = _bytes(weights) - _bytes(weights[self.model.layout.private(self.ownership.private)])
        statistics = 0 if self.ownership.buffers else _bytes(buffers)
        sent = math.ceil(shared * math.prod(method.footprint.upload for method in self.composition.methods))
        self.bytes_down += (shared + statistics + _bytes(round.payloads)) * len(updates)
        self.bytes_up += sum(sent + statistics + _bytes(update.extras) for update in updates)
        if self.spec.evaluation.keep == "clients":
            self.last_models = {
                "clients": torch.tensor([update.client for update in updates]),
                "client_weights": torch.stack([update.trained for update in updates]),
                "client_buffers": torch.stack([update.buffers for update in updates]),
            }

    # ---------------------------------------------------------------- tests
    def _tests(self, finished: int) -> list[Row]:
        data, workers, rows = self.data, self.trainer.workers, list[Row]()

        def tested(images: ImageSet, indices: Tensor | None = None, features: bool = False) -> Outcome:
            self.model.load(self.server.weights, self.server.buffers, self.server.counters)
            return test(self.network, images, indices, features, workers)

        if data.tests is None:
            result = tested(data.test, features="separability" in self.spec.evaluation.statistics)
            rows.append(_tested("test", result))
            if result.features is not None:
                measured = separability(result.features, data.test.labels, data.classes)
                rows.append({"kind": "separability", **recorded(measured)})
        for split, parts in {"local_test": data.tests, "validation": data.validation}.items():
            if parts is None:
                continue
            if data.tests is not None and self.spec.personal:
                clients, round = self.trainers[-1].clients, self._rounds(finished)[-1]
                result = test_clients(clients, round, self.clients, parts, workers)
                rows.append(_tested(split, result, "personal", parts))
            else:
                result = tested(data.train, torch.cat(parts))
                rows.append(_tested(split, result, clients=parts if data.tests is not None else ()))
        rows += [_tested(name, tested(images)) for name, images in data.extra.items()]
        return rows


def _tested(split: str, result: Outcome, view: str = "global", clients: Sequence[Tensor] = ()) -> Row:
    """Return the row of a test, with mean and spread over ``clients`` if each has its own images."""
    row: Row = {
        "kind": "evaluation",
        "split": split,
        "view": view,
        "accuracy": result.accuracy,
        "loss": _finite(result.loss, f"the loss on {split!r}"),
        "images": len(result.correct),
    }
    if clients:
        accuracies = result.by_client(clients)
        row |= {"macro": float(accuracies.mean()), "std": float(accuracies.std(unbiased=False))}
    return row


def _bytes(tensors: Any) -> int:
    """Return the size of a tensor, or of all tensors in lists and dictionaries."""
    return sum(tensor.nbytes for tensor in tree_leaves(tensors))


def _finite(value: Tensor | float, quantity: str) -> float:
    number = float(value)
    if not np.isfinite(number):
        raise Diverged(quantity)
    return number
