"""The round loop: sample clients, train them, aggregate, test, record."""

from __future__ import annotations

import itertools
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
from fltrain.engine.client_store import ClientStore
from fltrain.engine.clients import SECOND, Clients, Ownership, Round, initial_updates
from fltrain.engine.data import FederatedData, Split
from fltrain.engine.evaluation import TestResult, test, test_clients
from fltrain.engine.local import LocalTraining, Trained
from fltrain.engine.statistics import FinishedRound, Row, finite_or_none, measure
from fltrain.engine.workers import ALONE, Workers
from fltrain.methods.composition import Composition
from fltrain.methods.types import Server, State, Task
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

    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    round_seconds: list[float] = field(default_factory=list)
    samples: int = 0

    @property
    def of_rounds(self) -> float:
        """Seconds of training and aggregation."""
        return self.seconds["train"] + self.seconds["aggregate"]

    @contextmanager
    def phase(self, name: str, device: torch.device) -> Iterator[None]:
        """Add the time of the enclosed work to a phase."""
        started = time.perf_counter()
        yield
        synchronize(device)
        self.seconds[name] += time.perf_counter() - started


class Simulation:
    """A run in memory: ``run`` trains it and yields the rows of its record.

    A checkpoint holds all that changes between rounds: ``finished`` (number of finished rounds), ``server``,
    ``clients``, ``last_models`` (models of the last round's clients, if the record keeps them),
    ``bytes_down``, ``bytes_up`` and the rows so far.
    """

    def __init__(
        self,
        spec: RunSpec,
        data: PreparedData,
        partition: Partition,
        device: torch.device,
        trainer: Trainer = LocalTraining,
        extra: Mapping[str, PreparedData] | None = None,
        store: ClientStore | None = None,
        poll: Callable[[], None] | None = None,
        workers: Workers = ALONE,
    ) -> None:
        """Build network, server and data on ``device``; client state goes into ``store``.

        ``poll`` is called before each client is trained. If it raises, the simulation is as before the round.
        ``workers`` divide the clients of a round, and the images of a test.

        Raises:
            FltrainError: if the spec does not fit the network or the data.
        """
        empty = next((client for client, images in enumerate(partition.clients) if not len(images)), None)
        if empty is not None:
            raise FltrainError(
                f"partition: client {empty} has no images to train on; set min_size to 1 or more"
            )
        for name, more in (extra or {}).items():
            found, expected = ((images.channels, images.side, images.classes) for images in (more, data))
            if found != expected:
                raise FltrainError(
                    f"evaluation.extra: {name!r}: channels, side, classes {found}, the run has {expected}"
                )
        self.spec = spec
        self.device = device
        self.costs = Costs()
        with self.costs.phase("setup", device):
            # The layout of tensor cores on GPUs.
            channels_last = spec.model.channels_last if device.type == "cpu" else spec.precision != "fp32"
            self.data = FederatedData.of(
                data, partition, device, extra, channels_last, spec.feature_skew, spec.seed
            )
            self.composition = spec.composition
            example = torch.zeros(1, data.channels, data.side, data.side, device=device)
            self.model = FlatModel(self._network(), example)
            self.network = self.model.network
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
            start = self.model.weights.clone()
            self.server = Server(
                start,
                self.model.buffers.clone(),
                self.model.counters.clone(),
                self.composition.server_init(self.task, start),
            )
            self.ownership = Ownership(
                private := self.composition.needs.private,
                buffers=spec.batchnorm == "local" or private in ("all", "batchnorm"),
                trained=spec.evaluation.point == "after_local",
            )
            self.everyone = Clients(self.model, self.data, spec.training, self.composition, self.ownership)
            self.clients = ClientStore() if store is None else store
            self.last_models: State = {}
            self._check_single_images(example)
            self.trainer = trainer(self.everyone)
            self.second: LocalTraining | None = None
            if (method := self.composition.needs.second) is not None:
                ownership = Ownership("all", buffers=True, name=SECOND)
                self.second = trainer(
                    replace(self.everyone, composition=Composition((method,)), ownership=ownership)
                )
        self.workers = workers
        for one in filter(None, (self.trainer, self.second)):
            one.workers = workers
            one.poll = poll or one.poll
        self.finished = self.bytes_down = self.bytes_up = 0

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

    def _check_single_images(self, example: Tensor) -> None:
        """Refuse BatchNorm with one value per channel in a step of any client that will take part.

        Raises:
            FltrainError: naming the client.
        """
        single = [
            client
            for client in range(self.task.clients)
            if 1 in self.everyone.step_sizes(self.everyone.images(client))
        ]
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
            for client in single:
                if client in cohorts:
                    raise FltrainError(
                        f"client {client} has a batch of one image, in which BatchNorm cannot normalise maps "
                        "of one pixel; set training.batch_size or the smallest client (partition.min_size) "
                        "to 2 or more, a larger dataset.image_size, or a model without BatchNorm"
                    ) from None

    def _initialise(self, client: int | None = None) -> tuple[Tensor, Tensor]:
        """Return weights and buffers of a newly drawn network; see ``Task.initialise``."""
        network = self._network(client)
        buffers = [buffer for buffer in network.buffers() if buffer.is_floating_point()]
        return (
            pack(network.parameters(), torch.float32, self.device),
            pack(buffers, torch.float32, self.device),
        )

    def run(self) -> Iterator[list[Row]]:
        """Train the remaining rounds and yield the rows of each.

        Raises:
            Diverged: if a loss or a weight is not finite; the rows of earlier rounds have been yielded.
        """
        for number in range(self.finished, self.spec.rounds):
            yield self.round(number)

    def sample(self, number: int) -> list[int]:
        """Return the cohort of a round, ascending: uniform without replacement, equal for every method."""
        count = self.spec.participation.per_round(self.task.clients)
        random = stream(self.spec.seed, Purpose.CLIENT_SAMPLING, round=number)
        return sorted(random.choice(self.task.clients, count, replace=False).tolist())

    def round(self, number: int) -> list[Row]:
        """Run one round (counted from 0) and return its rows (which count from 1)."""
        with noting(f"in round {number + 1}"), own_streams("the server's part of a round, or a test,"):
            return self._round(number)

    def _round(self, number: int) -> list[Row]:
        if number == 0 and self.composition.schedule.initial_upload:
            with self.costs.phase("setup", self.device):
                self._initial_upload()
        before, task, sampled = self.server, self._at(number), self.sample(number)
        spent = self.costs.of_rounds
        with self.costs.phase("train", self.device):
            trained, second = self.trainer.train(task, sampled, self.clients), []
            if self.second:
                second = self.second.train(self._second(task), sampled, self.clients)
        updates = [result.update for result in trained]
        train_loss = _finite(torch.stack([update.loss for update in updates]).mean(), "the training loss")

        with (
            noting(f"aggregating the uploads of clients {sampled}"),
            self.costs.phase("aggregate", self.device),
        ):
            weights, buffers, states, reports = self.composition.aggregate(self.task, before, updates)
            counters = torch.stack([update.counters for update in updates]).amax(0)
            if self.ownership.private is not None:
                private = self.model.layout.private(self.ownership.private)
                weights[private] = before.weights[private]
            if self.ownership.buffers:
                buffers, counters = before.buffers, before.counters
            # A last step can overflow although every loss was finite; such weights are not measured.
            _finite(weights.abs().max(), "a global weight")
            if second or not self.composition.needs.global_model:
                largest = [result.update.trained.abs().max() for result in second or trained]
                _finite(torch.stack(largest).max(), "a client's weight")
            self.server = Server(weights, buffers, counters, states)
        if self.spec.evaluation.keep == "clients":
            self.last_models = {
                "clients": torch.tensor([update.client for update in updates]),
                "client_weights": torch.stack([update.trained for update in updates]),
                "client_buffers": torch.stack([update.buffers for update in updates]),
            }
        for one in filter(None, (self.trainer, self.second)):
            sizes = [one.clients.step_sizes(update.samples) for update in updates]
            self.costs.samples += sum(map(sum, sizes))
        self._count_traffic(task, trained)

        rows: list[Row] = [{"kind": "train", "clients": sampled, "loss": train_loss}]
        with self.costs.phase("statistics", self.device):
            rows += measure(
                self.spec.evaluation.statistics,
                FinishedRound(
                    self.model.layout,
                    updates,
                    self.server,
                    # The states of clients are still those at the beginning of the round.
                    partial(self.trainer.gradients, task, sampled, self.clients),
                ),
            )
            rows += [{"kind": name, **row} for name, row in reports.items()]
        # Store client states last: statistics use those at the beginning of the round.
        with self.costs.phase("aggregate", self.device):
            for result, other in itertools.zip_longest(trained, second):
                self.clients[result.update.client] = {
                    **result.client_state,
                    **(other.client_state if other else {}),
                }
        self.costs.round_seconds.append(self.costs.of_rounds - spent)
        if self.spec.evaluates(number + 1):
            with noting("testing"), self.costs.phase("evaluate", self.device):
                rows += self._evaluate(number + 1)
        self.finished = number + 1
        return [{"round": number + 1, **row} for row in rows]

    def _at(self, number: int) -> Round:
        """Return a round (counted from 0) that begins with the current server."""
        payloads = self.composition.payload(self.server.states)
        return Round(number, self.task, self.server, payloads)

    def _second(self, round: Round) -> Round:
        """Return the round for the training of second models: its payload is the global weights."""
        assert self.second is not None
        name = self.second.composition.name
        return replace(round, payloads={name: {"global": round.server.weights}})

    def _initial_upload(self) -> None:
        """Collect the initial uploads of all clients, before the first round."""
        updates = initial_updates(self.everyone, self._at(0), self.workers)
        self.bytes_up += sum(_bytes(update.extras) for update in updates)
        states = self.composition.initial_server(self.task, self.server, updates)
        self.server = replace(self.server, states=states)

    def _evaluate(self, finished: int) -> list[Row]:
        """Test after ``finished`` rounds."""
        data, rows = self.data, list[Row]()

        def tested(split: Split, indices: Tensor | None = None, keep_features: bool = False) -> TestResult:
            self.model.load(self.server.weights, self.server.buffers, self.server.counters)
            return test(self.network, split, indices, keep_features, self.workers)

        if data.tests is None:
            wants_features = "separability" in self.spec.evaluation.statistics
            result = tested(data.test, keep_features=wants_features)
            rows.append(_tested("test", result))
            if result.features is not None:
                measured = separability(result.features, data.test.labels, data.classes)
                values = {name: finite_or_none(value) for name, value in measured.items()}
                rows.append({"kind": "separability", **values})
        for split, parts in {"local_test": data.tests, "validation": data.validation}.items():
            if parts is None:
                continue
            if data.tests is not None and self.spec.personal:
                owners, round = self.everyone, self._at(finished)
                if self.second is not None:
                    owners, round = self.second.clients, self._second(round)
                result = test_clients(owners, round, self.clients, parts, self.workers)
                rows.append(_tested(split, result, "personal", parts))
            else:
                result = tested(data.train, torch.cat(parts))
                rows.append(_tested(split, result, clients=parts if data.tests is not None else ()))
        rows += [_tested(name, tested(more)) for name, more in data.extra.items()]
        return rows

    def _count_traffic(self, round: Round, trained: Sequence[Trained]) -> None:
        weights, buffers = round.server.weights, round.server.buffers
        model = _bytes([weights, *([] if self.ownership.buffers else [buffers])])
        model -= _bytes(weights[self.model.layout.private(self.ownership.private)])
        self.bytes_down += (model + _bytes(round.payloads)) * len(trained)
        self.bytes_up += sum(model + _bytes(result.update.extras) for result in trained)


def _tested(split: str, result: TestResult, view: str = "global", clients: Sequence[Tensor] = ()) -> Row:
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
        each = result.by_client(clients)
        row |= {"macro": float(each.mean()), "std": float(each.std(unbiased=False))}
    return row


def _bytes(tensors: Any) -> int:
    """Return the size of a tensor, or of all tensors in lists and dictionaries."""
    return sum(tensor.nbytes for tensor in tree_leaves(tensors))


def _finite(value: Tensor | float, what: str) -> float:
    number = float(value)
    if not np.isfinite(number):
        raise Diverged(what)
    return number
