"""FedFCD: passes that freeze what they must, class means and the global classifier against naive loops."""

from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import vector_to_parameters

from fltrain.data.prepared import Partition
from fltrain.engine.clients import OWN
from fltrain.engine.executors.sequential import SequentialExecutor, Trained
from fltrain.engine.simulation import Simulation
from fltrain.methods.fedfcd import FedFcd
from fltrain.methods.local import LocalOnly
from fltrain.methods.training import Exponential
from fltrain.methods.types import Outputs, State
from fltrain.models.base import Model
from fltrain.models.network import Network
from fltrain.models.networks.mlp import Mlp
from fltrain.models.networks.mobilenet_tiny import MobileNetTiny
from fltrain.models.part import Part

from .helpers import assert_same_model, digits, local_of, rows_of, simulation, skewed, trained
from .ordinary import features, flat, replica, running

MLP = Mlp(hidden=8)


class Bare(Mlp):
    """A perceptron whose classifier has no bias."""

    name: Literal["bare"] = "bare"

    def network(self, channels: int, side: int, classes: int) -> Network:
        network = super().network(channels, side, classes)
        network.classifier = nn.Linear(self.hidden, classes, bias=False)
        return network


SAMPLED = [[0, 3], [0, 1, 4], [2, 3]]
"""Who takes part; in each round some classes of ``specialists`` are not heard of."""

Description = dict[int, tuple[int, Tensor]]
"""Number and mean features of a client's images, by class."""


def specialists() -> Partition:
    """Five clients of different sizes with few classes each; nobody trains on class 9."""
    labels = digits().train_labels
    images = [np.flatnonzero(labels == label) for label in range(10)]
    clients = [
        np.concatenate([images[0][:3], images[1][:7], images[2][:9]]),
        np.concatenate([images[0][3:9], images[1][7:9], images[3]]),
        np.concatenate([images[4], images[5]]),
        np.concatenate([images[6][:6], images[7], images[8]]),
        np.concatenate([images[0][9:], images[6][6:]]),
    ]
    rest = np.setdiff1d(np.arange(len(labels)), np.concatenate(clients))
    return Partition(clients, digest="", tests=list(np.array_split(rest, 5)))


# ------------------------------------------------------------------------------------ watching
Values = tuple[Tensor, Tensor, Tensor]
"""Weights, BatchNorm statistics, and counters of a model."""


@dataclass(frozen=True)
class Seen:
    """A local step: its images, and the model before and after it."""

    chosen: Tensor
    before: Values
    after: Values


class Watching(SequentialExecutor):
    """The reference loop; keeps the server's messages, and every step and upload by round and client."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.messages: list[State] = []
        self.messages_after: list[State] = []
        self.results: dict[tuple[int, int], Trained] = {}
        self.steps: dict[tuple[int, int], list[Seen]] = {}

    def train(self, round, clients, kept):
        (sent,) = round.payloads.values()
        self.messages.append({name: value.clone() for name, value in sent.items()})
        results = super().train(round, clients, kept)
        self.messages_after.append({name: value.clone() for name, value in sent.items()})
        for result in results:
            self.results[round.number, result.update.client] = result
        return results

    def _now(self) -> Values:
        return self.model.weights.clone(), self.model.buffers.clone(), self.model.counters.clone()

    def _step(self, images, chosen, how, hooks, optimiser):
        local = next(iter(hooks.locals_.values()))
        before = self._now()
        result = super()._step(images, chosen, how, hooks, optimiser)
        seen = Seen(chosen, before, self._now())
        self.steps.setdefault((local.round, local.client), []).append(seen)
        return result


def watched(method: FedFcd, model: Model = MLP, rounds: int = 3, **training: object) -> Simulation:
    """The specialists after some rounds, in each of which learning rates are half those of the last."""
    settings = {"epochs": 2, "batch_size": 8, "momentum": 0.5, "weight_decay": 0.01, **training}
    federation = simulation(
        method,
        model=model,
        partition=specialists(),
        executor=Watching,
        batchnorm="local",
        **settings,
    )
    halving = federation.spec.training.model_copy(update={"lr_schedule": Exponential(decay=0.5)})
    federation.spec = federation.spec.model_copy(update={"training": halving})
    federation.sample = SAMPLED.__getitem__
    federation.initial = federation.server
    for number in range(rounds):
        federation.round(number)
    return federation


# ------------------------------------------------------------------------------------ naive copies
def description(federation: Simulation, client: int, weights: Tensor, buffers: Tensor) -> Description:
    """What a client with this model says of its training images, one class after the other."""
    network = replica(federation, weights, buffers).eval()
    images, labels = federation.data.train.batch(federation.data.clients[client])
    with torch.no_grad():
        seen = features(network, images)
    return {
        label: (int((labels == label).sum()), seen[labels == label].mean(0))
        for label in sorted(set(labels.tolist()))
    }


def averages(descriptions: list[Description], averaging: str) -> dict[int, Tensor]:
    """The mean of each class over the clients that have it."""
    found: dict[int, Tensor] = {}
    for label in range(10):
        held = [own[label] for own in descriptions if label in own]
        if not held:
            continue
        images = sum(count for count, _ in held)
        found[label] = sum(count * mean for count, mean in held) / images
        if averaging == "plain":
            found[label] = sum(mean for _, mean in held) / len(held)
        if averaging == "fedproto":
            found[label] = found[label] / len(held)
    return found


def ordinary_head(head: Tensor, width: int) -> nn.Linear:
    """A classifier of its own with these parameters, with a bias if they have one."""
    linear = nn.Linear(width, 10, bias=len(head) > 10 * width)
    vector_to_parameters(head.clone(), linear.parameters())
    return linear


def turns(method: FedFcd, batches: int, epochs: int) -> list[tuple[Part, int]]:
    """What each step of a round trains, and which of the epoch's batches it has."""
    if method.without_ho:
        epoch = [("all", batch) for batch in range(batches)]
    elif method.alternate == "epoch":
        epoch = [(part, batch) for part in ("body", "head") for batch in range(batches)]
    else:
        epoch = [(part, batch) for batch in range(batches) for part in ("body", "head")]
    return epoch * epochs


def naive_loss(
    method: FedFcd, part: Part, network: Network, message: State, images: Tensor, labels: Tensor
) -> Tensor:
    """Cross entropy of the decision and, where the extractor trains, the distance from the means."""
    if part == "head":
        with torch.no_grad():
            seen = features(network, images)
    else:
        seen = features(network, images)
    logits = network.classifier(seen)
    if not method.without_fd and not (part == "body" and method.extractor_loss == "local"):
        logits = logits + ordinary_head(message["head"], seen.shape[1]).requires_grad_(False)(seen)
    loss = functional.cross_entropy(logits, labels)
    if part == "head" or method.without_fa:
        return loss
    for own, label in zip(seen, labels.tolist(), strict=True):
        deviation = (own - message["means"][label]).square()
        distance = deviation.mean() if method.distance == "mse" else deviation.sum()
        loss = loss + method.weight * distance / len(labels)
    return loss


# ------------------------------------------------------------------------------------ checks of a method
# Each compares what ``method`` does with what the settings ``expected`` ask for.
def check_local_training(expected: FedFcd, method: FedFcd | None = None, model: Model = MLP) -> None:
    """Two rounds against ordinary loops with an optimiser for each part; every step starts as it did."""
    federation = watched(method or expected, model, rounds=2, batch_size=12)
    executor, training = federation.executor, federation.spec.training
    common = {"momentum": training.momentum, "weight_decay": training.weight_decay}
    last = {}
    for (number, client), steps in executor.steps.items():
        update, message = executor.results[number, client].update, executor.messages[number]
        weights, buffers = last.get(client, (federation.initial.weights, federation.initial.buffers))
        assert torch.equal(update.start, weights)
        network = replica(federation, weights, buffers)
        head = list(network.classifier.parameters())
        body = [parameter for name, parameter in network.named_parameters() if "classifier" not in name]
        lr, head_lr = (rate / 2**number for rate in (training.lr, expected.head_lr or training.lr))
        if expected.without_ho:
            optimisers = {"all": torch.optim.SGD([*body, *head], lr=lr, **common)}
        else:
            optimisers = {
                "body": torch.optim.SGD(body, lr=lr, **common),
                "head": torch.optim.SGD(head, lr=head_lr, **common),
            }
        plan = turns(expected, len(training.batch_sizes(update.samples)), training.epochs)
        assert len(steps) == update.steps == len(plan)
        losses = []
        for (part, _), step in zip(plan, steps, strict=True):
            images, labels = federation.data.train.batch(step.chosen)
            network.zero_grad()
            tracked = running(network)
            value = naive_loss(expected, part, network, message, images, labels)
            value.backward()
            optimisers[part].step()
            losses.append(value.item())
            torch.testing.assert_close(step.after[0], flat(network.parameters()), rtol=1e-5, atol=1e-6)
            wanted = tracked if part == "head" else running(network)
            torch.testing.assert_close(step.after[1], wanted, rtol=1e-5, atol=1e-6)
            network = restart(network, *step.after)
        assert float(update.loss) == pytest.approx(sum(losses) / len(losses), rel=1e-5)
        last[client] = step.after[:2]
        assert torch.equal(update.trained, last[client][0])


def restart(network: Network, weights: Tensor, buffers: Tensor, counters: Tensor) -> Network:
    """The network, its parameters the same objects, with other values."""
    vector_to_parameters(weights.clone(), network.parameters())
    floats = [buffer for buffer in network.buffers() if buffer.is_floating_point()]
    sizes = [buffer.numel() for buffer in floats]
    for buffer, values in zip(floats, buffers.split(sizes) if floats else (), strict=True):
        buffer.copy_(values.view_as(buffer))
    return network


def check_server(expected: FedFcd, method: FedFcd | None = None, model: Model = MLP) -> None:
    """Class means and classifier that go down, from the introductions on, against dictionaries and SGD."""
    method = method or expected
    federation = watched(method, model)
    executor, start = federation.executor, federation.initial
    heard = [{client: description(federation, client, start.weights, start.buffers) for client in range(5)}]
    for number, sampled in enumerate(SAMPLED):
        updates = [executor.results[number, client].update for client in sampled]
        heard.append(
            {one.client: description(federation, one.client, one.trained, one.buffers) for one in updates}
        )
    sent = [*executor.messages, federation.composition.payload(federation.server.states)[method.name]]
    width = sent[0]["means"].shape[1]
    head = ordinary_head(start.weights[federation.model.layout.head :], width)
    optimiser = torch.optim.SGD(head.parameters(), lr=expected.server_lr)
    batch = federation.spec.training.batch_size if expected.server_batch == "local" else 1000
    means: dict[int, Tensor] = {}
    memory: dict[int, Description] = {}
    for number, (found, message) in enumerate(zip(heard, sent, strict=True)):
        memory = {**memory, **found} if expected.cache else found
        descriptions = [memory[client] for client in sorted(memory)]
        pairs = [(mean, label) for own in descriptions for label, (_, mean) in own.items()]
        random = FedFcd().random(federation.task, round=number)
        for _ in range(expected.server_epochs):
            order = random.permutation(len(pairs))
            for first in range(0, len(pairs), batch):
                chosen = [pairs[index] for index in order[first : first + batch]]
                inputs, labels = torch.stack([mean for mean, _ in chosen]), [label for _, label in chosen]
                optimiser.zero_grad()
                functional.cross_entropy(head(inputs), torch.tensor(labels)).backward()
                optimiser.step()
        means |= averages(descriptions, expected.averaging)
        torch.testing.assert_close(message["head"], flat(head.parameters()), rtol=1e-5, atol=1e-6)
        assert message["known"].tolist() == [label in means for label in range(10)]
        for label, mean in means.items():
            torch.testing.assert_close(message["means"][label], mean, rtol=1e-4, atol=1e-5)


ALONE = {
    **{"epochs": 2, "momentum": 0.9, "weight_decay": 0.01, "rounds": 3},
    **{"batchnorm": "local", "model": MobileNetTiny()},
}


@cache
def local_only() -> Simulation:
    """Clients that train on their own."""
    return trained(LocalOnly(), **ALONE)


def check_local_only(method: FedFcd) -> None:
    """Nothing that the server sends is used: clients train, and are tested, as if each were alone."""
    own, alone = trained(method, **ALONE), local_only()
    assert_same_model(own, alone)
    assert own.clients.keys() == alone.clients.keys()
    for client, kept in alone.clients.items():
        assert own.clients[client][OWN].keys() == kept[OWN].keys() == {"weights", "buffers", "counters"}
        for name, value in kept[OWN].items():
            assert torch.equal(own.clients[client][OWN][name], value)
    assert own.rows == alone.rows


def check_testing(method: FedFcd, *, fused: bool = True, **settings: str) -> None:
    """Every client, sampled or not, with its own model and the newest global classifier."""
    federation = trained(method, rounds=2, fraction=0.5, **settings)
    server, data = federation.server, federation.data
    assert 3 <= len(federation.clients) < len(data.clients)
    correct, losses = [], []
    for client, tests in enumerate(data.tests):
        own = federation.clients.get(client, {}).get(OWN, {})
        network = replica(
            federation, own.get("weights", server.weights), own.get("buffers", server.buffers)
        ).eval()
        images, labels = data.train.batch(tests)
        with torch.no_grad():
            seen = features(network, images)
            logits = network.classifier(seen)
            if fused:
                newest = server.states[method.name]["head"]
                logits = logits + ordinary_head(newest, seen.shape[1])(seen)
        correct.append((logits.argmax(1) == labels).double())
        losses.append(functional.cross_entropy(logits, labels, reduction="none"))
    row = rows_of(federation, "evaluation")[-1]
    assert (row["view"], row["split"], row["images"]) == ("personal", "local_test", len(torch.cat(correct)))
    assert row["accuracy"] == pytest.approx(torch.cat(correct).mean().item())
    assert row["macro"] == pytest.approx(torch.stack([own.mean() for own in correct]).mean().item())
    assert row["loss"] == pytest.approx(torch.cat(losses).mean().item(), rel=1e-5)


# ------------------------------------------------------------------------------------ invariants
WITHOUT = {"without_fa": True, "without_fd": True, "without_ho": True}


@pytest.mark.parametrize("settings", [{}, {"without_fa": False, "weight": 0.0}], ids=str)
def test_without_its_three_parts_it_is_local_training_bit_for_bit(settings: dict[str, object]) -> None:
    check_local_only(FedFcd(**{**WITHOUT, **settings}))


@pytest.mark.parametrize("part", WITHOUT)
def test_each_of_the_three_parts_makes_a_difference(part: str) -> None:
    with pytest.raises(AssertionError):
        check_local_only(FedFcd(**{**WITHOUT, part: False}))


@pytest.mark.parametrize("alternate", ["epoch", "batch"])
def test_passes_freeze_what_they_must(alternate: str) -> None:
    """Bit for bit: the pass over the extractor spares both classifiers, the other one all else."""
    expected = FedFcd(alternate=alternate)
    method = None
    federation = watched(method or expected, MobileNetTiny(), rounds=1, batch_size=12)
    executor, training = federation.executor, federation.spec.training
    head = federation.model.layout.head
    assert executor.messages[0]["head"].any()
    for name, sent in executor.messages[0].items():
        assert torch.equal(sent, executor.messages_after[0][name])
    for (number, client), steps in executor.steps.items():
        batches = len(training.batch_sizes(executor.results[number, client].update.samples))
        plan = turns(expected, batches, training.epochs)
        assert len(steps) == len(plan)
        for index, ((part, batch), step) in enumerate(zip(plan, steps, strict=True)):
            (weights, *statistics), (trained, *tracked) = step.before, step.after
            assert torch.equal(weights[head:], trained[head:]) == (part == "body")
            assert torch.equal(weights[:head], trained[:head]) == (part == "head")
            for before, after in zip(statistics, tracked, strict=True):
                assert torch.equal(before, after) == (part == "head")
            # Both passes see the same images, in the same order; different epochs do not.
            epoch = index - index % (2 * batches)
            for (_, other), seen in list(zip(plan, steps, strict=True))[epoch : epoch + 2 * batches]:
                assert torch.equal(step.chosen, seen.chosen) == (batch == other)


def test_clients_with_the_same_extractor_average_to_the_means_of_all_images() -> None:
    """All clients introduce themselves with the same extractor: means over all their images together."""
    method = FedFcd()
    federation = watched(method, MobileNetTiny(), rounds=1)
    start, message = federation.initial, federation.executor.messages[0]
    network = replica(federation, start.weights, start.buffers).eval()
    images, labels = federation.data.train.batch(torch.cat(federation.data.clients))
    with torch.no_grad():
        seen = features(network, images)
    assert message["known"].tolist() == [True] * 9 + [False]
    for label in range(9):
        expected = seen[labels == label].mean(0)
        torch.testing.assert_close(message["means"][label], expected, rtol=1e-4, atol=1e-6)
    head = federation.model.layout.head
    assert not torch.equal(message["head"], start.weights[head:])


@pytest.mark.parametrize("averaging", ["weighted", "plain", "fedproto"])
def test_the_global_means_of_a_single_client_are_its_own(averaging: str) -> None:
    alone = skewed(digits()).clients[0]
    partition = Partition([alone[1::2]], digest="", tests=[alone[::2]])
    federation = trained(FedFcd(averaging=averaging), partition=partition, fraction=1.0, executor=Watching)
    for number in range(2):
        update = federation.executor.results[number, 0].update
        own = update.extras["fedfcd"]
        held = own["classes"]
        means = [*federation.executor.messages, federation.server.states["fedfcd"]][number + 1]["means"]
        torch.testing.assert_close(means[held], own["means"], rtol=0, atol=0)
        for label, (_, mean) in description(federation, 0, update.trained, update.buffers).items():
            torch.testing.assert_close(means[label], mean, rtol=1e-4, atol=1e-5)


def test_a_global_classifier_of_zeros_leaves_the_clients_decision() -> None:
    """The sum of both classifiers' logits; a global classifier of zeros leaves the client's own."""
    method = FedFcd()
    federation = watched(method, rounds=1)
    network, images = federation.network.eval(), federation.data.test.batch(torch.arange(20))[0]
    head = torch.randn(90, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        seen, own = features(network, images), network.classifier
        both = seen @ (own.weight + head[:80].view(10, 8)).T + own.bias + head[80:]
        for sent, expected in ((head, both), (torch.zeros(90), network(images))):
            local = local_of(federation.server.weights, {"head": sent}, task=federation.task)
            exact = {} if sent.any() else {"rtol": 0, "atol": 0}
            torch.testing.assert_close(method.predict(network, images, local), expected, **exact)


def test_all_clients_start_from_one_model_whenever_they_come() -> None:
    federation = watched(FedFcd())
    seen = set()
    for (_, client), result in federation.executor.results.items():
        first = client not in seen
        assert torch.equal(result.update.start, federation.initial.weights) == first
        seen.add(client)
    assert seen == {0, 1, 2, 3, 4}


# ------------------------------------------------------------------------------------ local training
LOCAL = [
    {},
    {"alternate": "batch"},
    {"distance": "sum"},
    {"extractor_loss": "local"},
    {"head_lr": 0.2},
    {"without_fa": True},
    {"without_fd": True},
    {"without_ho": True},
    {"without_ho": True, "head_lr": 0.2, "extractor_loss": "local"},
]


@pytest.mark.parametrize("settings", LOCAL, ids=str)
def test_local_training_is_that_of_an_ordinary_loop(settings: dict[str, object]) -> None:
    check_local_training(FedFcd(weight=0.5, **settings))


@pytest.mark.parametrize("settings", LOCAL[1:], ids=str)
def test_settings_of_local_training_are_told_from_the_defaults(settings: dict[str, object]) -> None:
    """The ordinary loops notice if a setting has no effect."""
    with pytest.raises(AssertionError):
        check_local_training(FedFcd(weight=0.5, **settings), FedFcd(weight=0.5))


@pytest.mark.parametrize("settings", [{}, {"alternate": "batch"}], ids=str)
def test_local_training_of_a_network_with_batch_statistics(settings: dict[str, object]) -> None:
    check_local_training(FedFcd(**settings), model=MobileNetTiny())


def regulariser(method: FedFcd, labels: list[int], known: list[bool]) -> tuple[Tensor, Tensor, Tensor]:
    """The term added to the loss, its gradient in the features, and the features; all means are 1."""

    @dataclass(frozen=True)
    class Batch:
        labels: Tensor
        part: Part = "body"

    seen = torch.tensor([[0.0, 3.0], [2.0, 2.0], [5.0, 1.0]], requires_grad=True)
    message = {"means": torch.ones(3, 2), "known": torch.tensor(known), "head": torch.zeros(1)}
    outputs = Outputs(seen, torch.zeros(3, 3))
    local = local_of(torch.zeros(1), message)
    term = method.loss(torch.zeros(()), outputs, Batch(torch.tensor(labels)), local, {})
    (gradient,) = torch.autograd.grad(term, seen)
    return term.detach(), gradient, seen.detach()


def test_the_regulariser_by_hand() -> None:
    """Squared distances from (1, 1) are 5, 2 and 16."""
    for distance, dimensions in (("mse", 2), ("sum", 1)):
        term, gradient, seen = regulariser(FedFcd(weight=3.0, distance=distance), [0, 1, 2], [True] * 3)
        assert term.item() == pytest.approx(3 * (5 + 2 + 16) / 3 / dimensions)
        torch.testing.assert_close(gradient, 3 * 2 * (seen - 1) / 3 / dimensions)


def test_images_of_classes_without_a_mean_add_nothing() -> None:
    """They still count among the images of the batch."""
    term, gradient, seen = regulariser(FedFcd(weight=3.0), [0, 1, 2], [True, True, False])
    assert term.item() == pytest.approx(3 * (5 + 2) / 3 / 2)
    torch.testing.assert_close(gradient[:2], 3 * 2 * (seen[:2] - 1) / 3 / 2)
    assert not gradient[2].any()
    assert not regulariser(FedFcd(), [2, 2, 2], [True, True, False])[1].any()


# ------------------------------------------------------------------------------------ the server
SERVER = [
    {},
    {"averaging": "plain"},
    {"averaging": "fedproto"},
    {"cache": True},
    {"server_epochs": 3},
    {"server_batch": "all"},
    {"server_batch": "all", "cache": True, "averaging": "plain", "server_epochs": 2},
]


@pytest.mark.parametrize("settings", SERVER, ids=str)
def test_the_server_does_what_ordinary_code_does(settings: dict[str, object]) -> None:
    """All clients introduce themselves; afterwards, means of classes that nobody describes stay."""
    check_server(FedFcd(server_lr=0.1, **settings))


@pytest.mark.parametrize("settings", [*SERVER[1:], {"server_lr": 0.2}], ids=str)
def test_settings_of_the_server_are_told_from_the_defaults(settings: dict[str, object]) -> None:
    """Ordinary code notices if a setting has no effect."""
    with pytest.raises(AssertionError):
        check_server(FedFcd(**{"server_lr": 0.1, **settings}), FedFcd(server_lr=0.1))


def test_a_classifier_without_bias() -> None:
    check_local_training(FedFcd(), model=Bare(hidden=8))
    check_server(FedFcd(server_lr=0.1), model=Bare(hidden=8))


def test_class_means_are_taken_in_evaluation_mode() -> None:
    check_server(FedFcd(), model=MobileNetTiny())


def test_models_stay_with_the_clients() -> None:
    """Up go number, count and mean of a client's own classes; down classifier and means. Models stay."""
    method = FedFcd()
    federation = watched(method, rounds=2)
    classes = [3, 3, 2, 3, 2]
    assert [len(set(digits().train_labels[own])) for own in specialists().clients] == classes
    introduced, sampled = sum(classes), sum(classes[client] for client in SAMPLED[0] + SAMPLED[1])
    assert federation.bytes_up == (introduced + sampled) * (8 + 4 + 4 * 8)
    means, known, head = 4 * 10 * 8, 10, 4 * (8 * 10 + 10)
    assert federation.bytes_down == 5 * (means + known + head)
    assert torch.equal(federation.server.weights, federation.initial.weights)


# ------------------------------------------------------------------------------------ tests
@pytest.mark.parametrize("batchnorm", ["local", "average"])
def test_testing_is_with_the_own_model_and_the_newest_global_classifier(batchnorm: str) -> None:
    check_testing(FedFcd(server_lr=0.5), batchnorm=batchnorm)


def test_without_fusion_the_own_classifier_decides_alone() -> None:
    check_testing(FedFcd(server_lr=0.5, without_fd=True), fused=False, batchnorm="local")


def test_downloading_changes_nothing_in_the_model_that_is_tested() -> None:
    """With local statistics; the global classifier is the newest at both points."""
    download, local = (
        trained(FedFcd(server_lr=0.5), rounds=3, batchnorm="local", point=point)
        for point in ("after_download", "after_local")
    )
    assert download.rows == local.rows
