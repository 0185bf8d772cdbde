"""FedFCD: frozen parts of each pass, class means and the global classifier against naive loops."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import vector_to_parameters

from fltrain.data.prepared import Partition
from fltrain.engine.clients import OWN
from fltrain.engine.simulation import Simulation
from fltrain.methods.fedfcd import FedFcd
from fltrain.methods.training import Exponential
from fltrain.methods.types import State
from fltrain.models.base import Model, Part
from fltrain.models.network import Network
from fltrain.models.networks.mlp import Mlp
from fltrain.models.networks.mobilenet_tiny import MobileNetTiny

from .helpers import Step, Tracing, digits, rows_of, simulation, trained
from .ordinary import Description, averages, check_client_tests, features, flat, replica, running

MLP = Mlp(hidden=8)


SAMPLED = [[0, 3], [0, 1, 4], [2, 3]]
"""Cohorts by round; in each round, no client has some classes of ``specialists``."""


def specialists() -> Partition:
    """Five clients of different sizes with few classes each; no client has class 9."""
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


def watched(method: FedFcd, model: Model = MLP, **training: object) -> Simulation:
    """The specialists before the first round; each round halves the learning rates."""
    settings = {"epochs": 2, "batch_size": 8, "momentum": 0.5, "weight_decay": 0.01, **training}
    settings |= {"trainer": Tracing, "batchnorm": "local", "lr_schedule": Exponential(decay=0.5)}
    federation = simulation(method, model=model, partition=specialists(), **settings)
    federation.sample = SAMPLED.__getitem__
    return federation


def description(federation: Simulation, client: int, weights: Tensor, buffers: Tensor) -> Description:
    """A client's description of its training images with this model, one class after the other."""
    network = replica(federation, weights, buffers).eval()
    images, labels = federation.data.train.batch(federation.data.clients[client])
    with torch.no_grad():
        seen = features(network, images)
    return {
        label: (int((labels == label).sum()), seen[labels == label].mean(0))
        for label in sorted(set(labels.tolist()))
    }


def ordinary_head(head: Tensor, width: int) -> nn.Linear:
    """A separate classifier with these parameters, with a bias if they have one."""
    linear = nn.Linear(width, 10, bias=len(head) > 10 * width)
    vector_to_parameters(head.clone(), linear.parameters())
    return linear


def turns(method: FedFcd, batches: int) -> list[Part]:
    """The trained part in each step of an epoch."""
    if method.without_ho:
        return ["all"] * batches
    if method.alternate == "epoch":
        return ["body"] * batches + ["head"] * batches
    return ["body", "head"] * batches


def naive_loss(
    method: FedFcd, part: Part, network: Network, message: State, images: Tensor, labels: Tensor
) -> Tensor:
    """Cross entropy of the decision and, if the extractor trains, the distance from the means."""
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


def restart(network: Network, step: Step) -> None:
    """Put the model after a step into the same parameter objects, which optimisers hold."""
    vector_to_parameters(step.weights.clone(), network.parameters())
    floats = [buffer for buffer in network.buffers() if buffer.is_floating_point()]
    sizes = [len(buffer) for buffer in floats]
    for buffer, values in zip(floats, step.buffers.split(sizes) if sizes else (), strict=True):
        buffer.copy_(values)


LOCAL = [
    {},
    {"alternate": "batch", "distance": "sum"},
    {"extractor_loss": "local", "head_lr": 0.2},
    {"without_fa": True},
    {"without_fd": True},
    {"without_ho": True, "head_lr": 0.2, "extractor_loss": "local"},
    {"without_fa": True, "without_fd": True, "without_ho": True},
]


@pytest.mark.parametrize(
    ("settings", "model"),
    [*(({"weight": 0.5, **settings}, MLP) for settings in LOCAL), ({}, MobileNetTiny())],
    ids=str,
)
def test_local_training_equals_an_ordinary_loop(settings: dict[str, object], model: Model) -> None:
    """Two rounds, one optimiser per part, from the same weights at each step."""
    expected = FedFcd(**settings)
    federation = watched(expected, model, batch_size=12)
    training, at, start = federation.spec.training, federation.model.layout.head, federation.server
    common = {"momentum": training.momentum, "weight_decay": training.weight_decay}
    last: dict[int, Step] = {}
    for number in range(2):
        federation.round(number)
        (message,) = federation.trainer.rounds[-1].payloads.values()
        for update in federation.trainer.updates:
            before = last.get(update.client, start)
            assert torch.equal(update.start, before.weights)
            network = replica(federation, before.weights, before.buffers)
            head = list(network.classifier.parameters())
            body = [parameter for name, parameter in network.named_parameters() if "classifier" not in name]
            lr, head_lr = (rate / 2**number for rate in (training.lr, expected.head_lr or training.lr))
            optimisers = {
                "all": torch.optim.SGD([*body, *head], lr=lr, **common),
                "body": torch.optim.SGD(body, lr=lr, **common),
                "head": torch.optim.SGD(head, lr=head_lr, **common),
            }
            parts = turns(expected, len(training.batch_sizes(update.samples))) * training.epochs
            losses = []
            for part, step in zip(parts, federation.trainer.of(update.client, number), strict=True):
                images, labels = federation.data.train.batch(step.chosen)
                network.zero_grad()
                tracked = running(network)
                value = naive_loss(expected, part, network, message, images, labels)
                value.backward()
                optimisers[part].step()
                losses.append(value.item())
                torch.testing.assert_close(step.weights, flat(network.parameters()), rtol=1e-5, atol=1e-6)
                assert torch.equal(before.weights[at:], step.weights[at:]) == (part == "body")
                assert torch.equal(before.weights[:at], step.weights[:at]) == (part == "head")
                if len(start.buffers):
                    assert torch.equal(before.buffers, step.buffers) == (part == "head")
                    assert torch.equal(before.counters, step.counters) == (part == "head")
                wanted = tracked if part == "head" else running(network)
                torch.testing.assert_close(step.buffers, wanted, rtol=1e-5, atol=1e-6)
                restart(network, step)
                before = last[update.client] = step
            assert len(losses) == update.steps
            assert float(update.loss) == pytest.approx(sum(losses) / len(losses), rel=1e-5)
            assert torch.equal(update.trained, before.weights)


SERVER = [
    {"averaging": "plain"},
    {"averaging": "fedproto", "server_epochs": 3},
    {"cache": True},
    {"server_batch": "all", "cache": True, "averaging": "plain", "server_epochs": 2},
]


@pytest.mark.parametrize(
    ("settings", "model"),
    [*(({"server_lr": 0.1, **settings}, MLP) for settings in SERVER), ({}, MobileNetTiny())],
    ids=str,
)
def test_the_server_equals_ordinary_code(settings: dict[str, object], model: Model) -> None:
    """Class means and classifier from the initial uploads of all clients on; means in evaluation mode.

    Means of classes without a description stay unchanged.
    """
    expected = FedFcd(**settings)
    federation = watched(expected, model)
    start, sent = federation.server, list[State]()
    heard = [{client: description(federation, client, start.weights, start.buffers) for client in range(5)}]
    for number in range(len(SAMPLED)):
        federation.round(number)
        sent += federation.trainer.rounds[-1].payloads.values()
        updates = federation.trainer.updates
        heard.append(
            {one.client: description(federation, one.client, one.trained, one.buffers) for one in updates}
        )
    sent.append(federation.at(len(SAMPLED)).payloads[expected.name])
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


@pytest.mark.parametrize(
    ("settings", "batchnorm"), [({}, "local"), ({}, "average"), ({"without_fd": True}, "local")], ids=str
)
def test_clients_are_tested_with_their_model_and_the_newest_global_classifier(
    settings: dict[str, bool], batchnorm: str
) -> None:
    """Sampled or not; without fusion, the client's classifier decides alone."""
    method = FedFcd(server_lr=0.5, **settings)
    federation = trained(method, rounds=2, fraction=0.5, batchnorm=batchnorm)
    server, data = federation.server, federation.data
    assert 3 <= len(federation.clients) < len(data.clients)

    def logits(client: int, images: Tensor) -> Tensor:
        own = federation.clients.get(client, {}).get(OWN, {})
        model = own.get("weights", server.weights), own.get("buffers", server.buffers)
        network = replica(federation, *model).eval()
        seen = features(network, images)
        newest = ordinary_head(server.states[method.name]["head"], seen.shape[1])
        return network.classifier(seen) + (0 if method.without_fd else newest(seen))

    check_client_tests(federation, rows_of(federation, "evaluation")[-1], logits)
