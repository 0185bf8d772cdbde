"""Methods with a model for each client, against their formulas in plain PyTorch: see ``reference``."""

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fltrain.core.errors import FltrainError
from fltrain.data.prepared import Partition
from fltrain.engine.clients import OWN, SECOND
from fltrain.engine.simulation import Diverged, Simulation
from fltrain.methods import METHODS
from fltrain.methods.base import Method, Needs
from fltrain.methods.composition import Composition
from fltrain.methods.ditto import Ditto
from fltrain.methods.fedamp import FedAmp
from fltrain.methods.fedavg import FedAvg
from fltrain.methods.fedbn import FedBN
from fltrain.methods.fedfcd import FedFcd
from fltrain.methods.fedgh import FedGh
from fltrain.methods.fedper import FedPer
from fltrain.methods.fedproto import FedProto
from fltrain.methods.gpfl import Gpfl
from fltrain.methods.local import LocalOnly
from fltrain.methods.types import Update
from fltrain.models.base import Model
from fltrain.models.network import Network
from fltrain.models.networks.mlp import Mlp
from fltrain.models.networks.mobilenet_tiny import MobileNetTiny
from fltrain.runs.spec import RunSpec

from .helpers import (
    BASES,
    PLUGINS,
    Tracing,
    assert_same_steps,
    by_name,
    digits,
    drawn,
    local_of,
    simulation,
    skewed,
    trained,
    with_tests,
)
from .reference import Reference, check, features, flat, replica

MLP = Mlp(hidden=8)
OWN_TESTS = {"partition": with_tests(skewed(digits()))}
LOCAL_NORM = {"batchnorm": "local"}


# ---------------------------------------------------------------- private parts
class Private(Reference):
    """Some parameters stay with their client, by the beginnings of their names."""

    def __init__(self, run: Simulation) -> None:
        super().__init__(run)
        private = run.composition.needs.private
        head, norms = ("classifier.",), ("stem.1.", "last.1.")
        body = ("stem.0.", "last.0.", "fc1.", *norms)
        names = {"head": head, "body": body, "all": (*body, *head), "batchnorm": norms, None: ()}
        self.private = self.mask(*names[private])
        self.local_buffers |= private in ("all", "batchnorm")


class KeepingBody(Method):
    """Averages classifiers only, which no method of this project does."""

    name: Literal["keeping"] = "keeping"
    needs: ClassVar[Needs] = Needs(private="body")


@pytest.mark.parametrize("method", [FedBN(), FedPer(), LocalOnly(), KeepingBody()], ids=by_name)
def test_private_parameters_stay_with_their_client(method: Method) -> None:
    check(Private, method)


def test_local_statistics_stay_with_their_client() -> None:
    reference = check(Private, FedAvg(), **OWN_TESTS, **LOCAL_NORM)
    updates = reference.run.trainer.updates
    assert not reference.run.server.counters.any()
    assert (updates[0].counters == 2 * updates[0].steps).all(), "client 0 has trained twice"


@pytest.mark.parametrize("method", [FedAvg(), FedBN()], ids=by_name)
def test_tests_after_local_training_use_the_trained_model(method: Method) -> None:
    check(Private, method, **OWN_TESTS, point="after_local")


# ---------------------------------------------------------------- Ditto, FedAMP
class Second(Reference):
    """Ditto's personal models: from the last one, or from the received weights w; pulled to w."""

    def __init__(self, run: Simulation) -> None:
        super().__init__(run)
        self.private, self.local_buffers = self.mask(""), True

    def start(self, client: int) -> Tensor:
        self.weights, self.buffers = self.run.server.weights, self.run.server.buffers
        return self.updates[client].trained if client in self.updates else self.weights

    def correct(self, gradient: Tensor, weights: Tensor) -> Tensor:
        return gradient + self.method.weight * (weights - self.weights)


class WithSecond(Reference):
    """Ditto: federated averaging, and tests of the personal models."""

    def __init__(self, run: Simulation) -> None:
        super().__init__(run)
        self.models.append(Second(run))

    def tested(self, client: int) -> tuple[Tensor, Tensor]:
        update = self.models[1].updates.get(client)
        return (update.trained, update.buffers) if update else (self.weights, self.buffers)


@pytest.mark.parametrize(
    ("weight", "passes", "point"),
    [(0.0, 1, "after_download"), (0.3, 2, "after_download"), (4.0, 1, "after_local")],
)
def test_ditto(weight: float, passes: int, point: str) -> None:
    reference = check(WithSecond, Ditto(weight=weight, passes=passes), point=point, momentum=0.5)
    plain = check(Reference, FedAvg(), **OWN_TESTS, momentum=0.5).run
    run = reference.run
    assert torch.equal(run.server.weights, plain.server.weights)
    assert run.costs.samples == (1 + passes) * plain.costs.samples
    assert (run.bytes_down, run.bytes_up) == (plain.bytes_down, plain.bytes_up)
    assert all(SECOND in run.clients[client] for client in (0, 1, 2, 3, 5))


class Mixed(Reference):
    """FedAMP: from the client's cloud model, pulled to it by lambda / alpha; clouds pair by pair."""

    def __init__(self, run: Simulation) -> None:
        super().__init__(run)
        self.clouds: dict[int, Tensor] = {}

    def start(self, client: int) -> Tensor:
        return self.clouds.get(client, self.initial)

    def correct(self, gradient: Tensor, weights: Tensor) -> Tensor:
        method = self.method
        alpha = method.alpha or {"heuristic": 1e4, "kernel": 1.0}[method.variant]
        if method.variant == "heuristic":
            alpha *= method.alpha_decay ** (self.number // method.decay_every)
        return gradient + min(method.weight / alpha, 1 / self.lr) * (weights - self.received)

    def serve(self, updates: Sequence[Update]) -> Tensor:
        method, models = self.method, [update.trained.double() for update in updates]
        for i, (update, model) in enumerate(zip(updates, models, strict=True)):
            others = {j: other for j, other in enumerate(models) if j != i}
            if method.variant == "kernel":
                share = {
                    j: method.alpha
                    * math.exp(-float((model - other).square().sum()) / method.sigma)
                    / method.sigma
                    for j, other in others.items()
                }
                total = max(1.0, sum(share.values()))
                share = {j: value / total for j, value in share.items()}
            else:
                share_i = method.self_weight or 1 / len(models)
                cosine = {j: functional.cosine_similarity(model, other, dim=0) for j, other in others.items()}
                likeness = {j: math.exp(method.scale * (float(value) - 1)) for j, value in cosine.items()}
                share = {j: (1 - share_i) * value / sum(likeness.values()) for j, value in likeness.items()}
            mixture = (1 - sum(share.values())) * model
            self.clouds[update.client] = mixture + sum(share[j] * models[j] for j in others)
        return self.weights

    def tested(self, client: int) -> tuple[Tensor, Tensor]:
        update = self.updates.get(client)
        return (update.trained if update else self.initial), self.buffers


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        (FedAmp(scale=50.0, alpha=0.5, alpha_decay=0.5, decay_every=1), {}),
        (FedAmp(self_weight=0.6, alpha=1.0, weight=0.0), {}),
        (FedAmp(alpha=1e-6), {}),  # the pull is limited
        (FedAmp(), {"cohorts": ([0], [1], [0])}),
        (FedAmp(variant="kernel", alpha=0.4, weight=2.0), {}),
        (FedAmp(variant="kernel", alpha=20.0, sigma=10.0), {}),  # the shares of the others are limited
        (FedAmp(variant="kernel", alpha=1.0), {"cohorts": ([0], [1], [0])}),
    ],
    ids=str,
)
def test_fedamp(method: FedAmp, settings: dict[str, object]) -> None:
    check(Mixed, method, lr=0.2, momentum=0.5, **settings)


def test_kernel_shares_do_not_depend_on_a_common_offset() -> None:
    """Weights are far longer than their differences, which must not be lost to rounding."""
    # Multiples of a power of two, so that adding the common part is exact.
    weights = (0.01 * drawn(4, 4000) * 2**14).round() / 2**14
    method = FedAmp(variant="kernel", alpha=0.3, sigma=0.5)
    near, far = method.shares(list(weights)), method.shares(list(weights + 1.0))
    assert 0.1 < float(near[0, 1]) < 0.3
    torch.testing.assert_close(far, near, rtol=0, atol=1e-5)


def test_the_pfllib_variant_of_fedamp_is_local_training_bit_for_bit() -> None:
    settings = {"rounds": 3, **LOCAL_NORM, "trainer": Tracing, "epochs": 2}
    mixing, alone = trained(FedAmp(variant="pfllib"), **settings), trained(LocalOnly(), **settings)
    assert_same_steps(mixing, alone)
    assert mixing.rows == alone.rows
    for client, states in mixing.clients.items():
        assert torch.equal(states["fedamp"]["weights"], alone.clients[client][OWN]["weights"])


# ---------------------------------------------------------------- class means: FedProto, FedGH, FedFCD
def specialists() -> Partition:
    """Six clients of different sizes with few classes each; no client has class 9, and 0 and 1 some more."""
    labels = digits().train_labels
    images = [np.flatnonzero(labels == label) for label in range(10)]
    clients = [
        np.concatenate([images[0][:3], images[1][:7], images[2][:9]]),
        np.concatenate([images[0][3:9], images[1][7:9], images[3]]),
        np.concatenate([images[4], images[5]]),
        np.concatenate([images[6][:6], images[7]]),
        images[8][:6],
        np.concatenate([images[0][9:], images[6][6:], images[8][6:]]),
    ]
    unused = np.setdiff1d(np.arange(len(labels)), np.concatenate(clients))
    return Partition(clients, digest="", tests=list(np.array_split(unused, 6)))


Description = dict[int, tuple[int, Tensor]]
"""Number and mean features of a client's images, by class."""


class Describing(Private):
    """Clients keep their models and upload class means of their features.

    Attributes:
        means: of the server, by class.
        head: the server's separate classifier.
    """

    def __init__(self, run: Simulation) -> None:
        super().__init__(run)
        self.private, self.local_buffers = self.mask(""), True
        self.means: dict[int, Tensor] = {}
        self.head = copy.deepcopy(run.network.classifier)
        self.uploads: dict[int, Description] = {}
        self.taught = 0

    def described(self, network: Network, images: Tensor, labels: Tensor) -> Description:
        """Means over images, with the network in its mode."""
        with torch.no_grad():
            seen = features(network, images).double()
        groups = {label: seen[labels == label] for label in sorted(set(labels.tolist()))}
        return {label: (len(group), group.mean(0)) for label, group in groups.items()}

    def finish(self, update: Update) -> None:
        network = replica(self.run, update.trained, update.buffers).eval()
        self.uploads[update.client] = self.described(network, *self.images(update.client))

    def average(self, clients: Sequence[int]) -> None:
        """Renew the means of the classes that the clients have; ``fedproto`` is the paper's formula."""
        for label in range(10):
            pairs = [self.uploads[client][label] for client in clients if label in self.uploads[client]]
            if not pairs:
                continue
            images = sum(count for count, _ in pairs)
            weighted = sum(count * mean for count, mean in pairs) / images
            plain = sum(mean for _, mean in pairs) / len(pairs)
            averaging = self.method.averaging
            mean = {"weighted": weighted, "plain": plain, "fedproto": weighted / len(pairs)}[averaging]
            self.means[label] = mean.float()

    def teach(self, clients: Sequence[int], batch: int) -> None:
        """Train the server's classifier on the clients' class means."""
        pairs = [(mean, label) for client in clients for label, (_, mean) in self.uploads[client].items()]
        random = self.method.random(self.run.task, round=self.taught)
        sgd = torch.optim.SGD(self.head.parameters(), self.method.server_lr)
        for _ in range(self.method.server_epochs):
            order = random.permutation(len(pairs))
            for first in range(0, len(pairs), batch):
                chosen = [pairs[index] for index in order[first : first + batch]]
                inputs = torch.stack([mean.float() for mean, _ in chosen])
                sgd.zero_grad()
                loss = functional.cross_entropy(self.head(inputs), torch.tensor([c for _, c in chosen]))
                loss.backward()
                sgd.step()
        self.taught += 1

    def distance(self, seen: Tensor, labels: Tensor) -> Tensor:
        """Squared distance from the means, averaged over dimensions and images, image by image."""
        pairs = [
            (row, self.means[label])
            for row, label in zip(seen, labels.tolist(), strict=True)
            if label in self.means
        ]
        return sum((row - mean).square().mean() for row, mean in pairs) / len(labels)


class Prototypes(Describing):
    """FedProto: cross entropy and lambda times the distance; the nearest mean decides."""

    def begin(self, update: Update) -> None:
        self.seen, self.steps = list[tuple[Tensor, Tensor]](), update.steps

    def loss(self, network: Network, images: Tensor, labels: Tensor) -> Tensor:
        seen = features(network, images)
        self.seen.append((seen.detach(), labels))
        plain = functional.cross_entropy(network.classifier(seen), labels)
        return plain + self.method.weight * self.distance(seen, labels)

    def finish(self, update: Update) -> None:
        """Means in evaluation mode after training, or of the features in training mode before every step."""
        super().finish(update)
        if self.method.source != "post":
            first = update.steps // 2 if self.method.source == "last_epoch" else 0  # of two epochs
            seen, labels = (torch.cat(parts) for parts in zip(*self.seen[first:], strict=True))
            identity = nn.Sequential()
            self.uploads[update.client] = self.described(identity, seen, labels)

    def serve(self, updates: Sequence[Update]) -> Tensor:
        self.average([update.client for update in updates])
        return self.weights

    def logits(self, client: int, network: Network, images: Tensor) -> Tensor:
        seen = features(network, images)
        if self.method.inference == "head" or not self.means:
            return network.classifier(seen)
        means = torch.stack([self.means.get(label, torch.zeros_like(seen[0])) for label in range(10)])
        has_mean = torch.tensor([label in self.means for label in range(10)])
        distances = (seen[:, None] - means).norm(dim=2)
        return -torch.where(has_mean, distances, distances.amax(1, keepdim=True) + 1)


@pytest.mark.parametrize(
    "settings",
    [
        {"weight": 5.0},
        {"source": "running", "averaging": "weighted"},
        {"source": "last_epoch", "averaging": "fedproto"},
        {"inference": "head"},
    ],
    ids=str,
)
def test_fedproto(settings: dict[str, object]) -> None:
    check(Prototypes, FedProto(**settings), partition=specialists(), last_batch="drop")


def test_unknown_classes_are_never_chosen() -> None:
    """Even if the placeholder of the class is the nearest; losses stay finite.

    Before there are any means, the classifier decides.
    """
    random = torch.Generator().manual_seed(1)
    means, has_mean = torch.randn(10, 8, generator=random), torch.arange(10) > 3
    means[~has_mean] = 0
    network = Network(classifier=nn.Linear(8, 10))
    assert torch.equal(FedProto().predict(network, means, local_of(torch.zeros(1))), network(means))
    local = local_of(torch.zeros(1), {"means": means, "known": has_mean})
    for seen in (torch.zeros(3, 8), torch.randn(40, 8, generator=random), 1e4 + torch.zeros(2, 8)):
        with torch.no_grad():
            logits = FedProto().predict(network, seen, local)
        assert has_mean[logits.argmax(1)].all()
        labels = torch.arange(len(seen)) % 10
        assert functional.cross_entropy(logits, labels, reduction="none").isfinite().all()


class ServersHead(Describing):
    """FedGH: the client's extractor with the server's classifier; both train."""

    def start(self, client: int) -> Tensor:
        weights = super().start(client).clone()
        head = flat(self.head.parameters())
        weights[-len(head) :] = head
        return weights

    def serve(self, updates: Sequence[Update]) -> Tensor:
        self.teach([update.client for update in updates], self.run.spec.training.batch_size)
        return self.weights


@pytest.mark.parametrize(("epochs", "point"), [(1, "after_local"), (3, "after_download")])
def test_fedgh(epochs: int, point: str) -> None:
    """In the last test, client 4 has never trained."""
    method = FedGh(server_lr=0.3, server_epochs=epochs)
    check(ServersHead, method, partition=specialists(), point=point)


class Fused(Describing):
    """FedFCD: logits of both classifiers are added; extractor and classifier train in turn."""

    def __init__(self, run: Simulation) -> None:
        super().__init__(run)
        for client in range(6):  # the initial uploads
            network = replica(run, self.initial, self.buffers).eval()
            self.uploads[client] = self.described(network, *self.images(client))
        self.serve_clients(range(6))

    def serve_clients(self, clients: Sequence[int]) -> None:
        method = self.method
        clients = sorted(self.uploads) if method.cache else clients
        self.teach(clients, 1000 if method.server_batch == "all" else self.run.spec.training.batch_size)
        self.average(clients)

    def serve(self, updates: Sequence[Update]) -> Tensor:
        self.serve_clients([update.client for update in updates])
        return self.weights

    def optimisers(self, network: Network) -> dict[str, torch.optim.Optimizer]:
        head = list(network.classifier.parameters())
        body = [parameter for name, parameter in network.named_parameters() if "classifier" not in name]
        head_lr = self.lr * (self.method.head_lr or 0.05) / 0.05
        parts = {"all": ([*body, *head], self.lr), "body": (body, self.lr), "head": (head, head_lr)}
        return {part: self.optimiser(*settings) for part, settings in parts.items()}

    def turns(self, steps: int) -> list[str]:
        if self.method.without_ho:
            turns = ["all"] * steps
        elif self.method.alternate == "batch":
            turns = ["body", "head"] * (steps // 2)
        else:  # two epochs
            turns = (["body"] * (steps // 4) + ["head"] * (steps // 4)) * 2
        self.parts = iter(turns)
        return turns

    def gradient(self, network: Network, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        method, part = self.method, next(self.parts)
        if part == "head":  # the extractor is fixed, with its statistics
            seen = features(copy.deepcopy(network), images).detach()
        else:
            seen = features(network, images)
        logits = network.classifier(seen)
        if not (method.without_fd or (part == "body" and method.extractor_loss == "local")):
            logits = logits + self.head(seen)
        loss = functional.cross_entropy(logits, labels)
        if part != "head" and not method.without_fa:
            dimensions = 1 if method.distance == "mse" else seen.shape[1]
            loss = loss + method.weight * dimensions * self.distance(seen, labels)
        gradient = flat(
            torch.autograd.grad(loss, [*network.parameters()], materialize_grads=True, allow_unused=True)
        )
        head = self.mask("classifier.")
        return gradient.where({"all": head | ~head, "body": ~head, "head": head}[part], 0.0), loss

    def logits(self, client: int, network: Network, images: Tensor) -> Tensor:
        seen = features(network, images)
        return network.classifier(seen) + (0 if self.method.without_fd else self.head(seen))


@pytest.mark.parametrize(
    ("settings", "model"),
    [
        ({"weight": 0.5}, MLP),
        ({"alternate": "batch", "distance": "sum", "averaging": "plain"}, MLP),
        ({"extractor_loss": "local", "head_lr": 0.2, "cache": True, "averaging": "fedproto"}, MLP),
        ({"without_fa": True, "server_batch": "all", "server_epochs": 3}, MLP),
        ({"without_fd": True, "cache": True}, MLP),
        ({"without_ho": True, "head_lr": 0.2, "extractor_loss": "local"}, MLP),
        ({"without_fa": True, "without_fd": True, "without_ho": True}, MLP),
        ({}, MobileNetTiny()),
    ],
    ids=str,
)
def test_fedfcd(settings: dict[str, object], model: Model) -> None:
    method = FedFcd(**{"server_lr": 0.1, **settings})
    check(Fused, method, model=model, partition=specialists(), momentum=0.5, weight_decay=0.01)


# ---------------------------------------------------------------- GPFL
class Valved(Private):
    """GPFL: features through a valve with two conditions, made of the embeddings of the classes."""

    additions = ("valve.", "embeddings.")

    def __init__(self, run: Simulation) -> None:
        super().__init__(run)
        slots = run.model.layout.parameters
        self.slot = next(slot for slot in slots if slot.name == "embeddings.weight")

    def conditions(self, client: int, start: Tensor) -> tuple[Tensor, Tensor]:
        """Mean of all embeddings, and of the embeddings of a client's images; zero before there are any."""
        source = start if self.number else torch.zeros_like(start)
        if self.method.conditions == "trained":
            update = self.updates.get(client)
            source = update.trained if update else torch.zeros_like(start)
        embeddings, labels = self.slot.of(source), self.images(client)[1].tolist()
        return embeddings.mean(0), sum(embeddings[label] for label in labels) / len(labels)

    def valve(self, network: Network, seen: Tensor, condition: Tensor) -> Tensor:
        """ReLU(x (gamma(v) + 1) + beta(v)), with gamma and beta = LayerNorm(ReLU(Linear(v)))."""
        parameters = dict(network.named_parameters())

        def branch(name: str) -> Tensor:
            weight, bias, scale, shift = (
                parameters[f"valve.{name}.{place}.{kind}"] for place in (0, 2) for kind in ("weight", "bias")
            )
            hidden = (weight @ condition + bias).clamp(min=0)
            centred = hidden - hidden.mean()
            return scale * centred / (centred.square().mean() + 1e-5).sqrt() + shift

        return (seen * (branch("gamma") + 1) + branch("beta")).clamp(min=0)

    def decided(self, network: Network, images: Tensor, personal: Tensor) -> tuple[Tensor, Tensor]:
        """Features before the valve, and logits."""
        seen = images
        for name, block in network.named_children():
            if not f"{name}.".startswith((*self.additions, "classifier.")):
                seen = block(seen)
        return seen, network.classifier(self.valve(network, seen, personal))

    def loss(self, network: Network, images: Tensor, labels: Tensor) -> Tensor:
        """Cross entropies of logits and cosines, and the unsquared distance of the batch as one matrix."""
        general, personal = self.conditions(self.client, self.received)
        seen, logits = self.decided(network, images, personal)
        drawn_in = self.valve(network, seen, general)
        embeddings = dict(network.named_parameters())["embeddings.weight"]
        lengths = drawn_in.norm(dim=1)[:, None] * embeddings.norm(dim=1)
        cosines = functional.cross_entropy(drawn_in @ embeddings.T / lengths, labels)
        distance = (drawn_in - self.slot.of(self.received)[labels]).square().sum().sqrt()
        return functional.cross_entropy(logits, labels) + cosines + self.method.weight * distance

    def correct(self, gradient: Tensor, weights: Tensor) -> Tensor:
        """Weight decay of the additions alone."""
        return gradient + self.method.decay * weights * self.mask(*self.additions)

    def logits(self, client: int, network: Network, images: Tensor) -> Tensor:
        return self.decided(network, images, self.conditions(client, self.start(client))[1])[1]


@pytest.mark.parametrize(
    ("method", "model"),
    [
        (Gpfl(weight=0.3), Mlp(hidden=12)),
        (Gpfl(weight=0.3, conditions="trained"), Mlp(hidden=12)),
        (Gpfl(), MobileNetTiny()),  # BatchNorm, and the authors' settings
    ],
    ids=str,
)
def test_gpfl(method: Gpfl, model: Model) -> None:
    check(Valved, method, model=model, momentum=0.5, weight_decay=0.01)


# ---------------------------------------------------------------- refusals
def test_fedbn_needs_batchnorm() -> None:
    with pytest.raises(FltrainError, match="method 'fedbn' needs a model with BatchNorm"):
        simulation(FedBN(), model=Mlp())


SENDING = [plugin for plugin in PLUGINS if plugin().needs.uploads]


@pytest.mark.parametrize("plugin", SENDING, ids=by_name)
def test_plugins_that_change_uploads_are_refused_without_uploads(plugin: type[Method]) -> None:
    with pytest.raises(ValueError, match=f"{plugin().name!r} needs the weights .* 'local'"):
        Composition((LocalOnly(), plugin()))
    for base in (FedPer(), KeepingBody()):
        Composition((base, plugin()))
    for base in ("local", "fedproto"):
        message = refusal(method=base, plugins=[plugin().name], local_test={})
        assert repr(plugin().name) in message and repr(base) in message


RUN = {
    "dataset": {"name": "digits", "image_size": 16},
    "partition": {"name": "iid", "clients": 4},
    "model": "mobilenet_tiny",
    "method": "fedavg",
}
PERSONAL = [base().name for base in BASES if Composition((base(),)).personal]


def refusal(**settings: object) -> str:
    with pytest.raises(FltrainError) as caught:
        RunSpec.parse({**RUN, **settings}, "run")
    message = str(caught.value)
    assert message.startswith("run: ") and "\n" not in message
    return message.removeprefix("run: ")


@pytest.mark.parametrize(
    ("settings", "key", "value"),
    [
        *(({"method": name}, "method", name) for name in PERSONAL[:2]),
        ({"batchnorm": "local"}, "batchnorm", "local"),
        ({"evaluation": {"point": "after_local"}}, "evaluation.point", "after_local"),
    ],
    ids=str,
)
def test_personal_models_need_test_images(settings: dict[str, Any], key: str, value: str) -> None:
    message = refusal(**settings)
    assert message.startswith(f"{key}: {value!r} ")
    assert "; set local_test" in message
    assert RunSpec.parse({**RUN, **settings, "local_test": {}}, "run").personal


@pytest.mark.parametrize(
    ("settings", "culprit", "refused"),
    [
        ({"method": "local"}, "method 'local'", ("divergence", "dissimilarity", "drift", "similarity")),
        # If only classifiers are private, the shared part is compared.
        ({"method": "gpfl"}, "method 'gpfl'", ("divergence", "dissimilarity")),
        ({"batchnorm": "local"}, "batchnorm 'local'", ()),
    ],
    ids=str,
)
def test_settings_that_need_a_global_model_are_refused_without_one(
    settings: dict[str, Any], culprit: str, refused: tuple[str, ...]
) -> None:
    settings = {**settings, "local_test": {}}
    statistics = [{"statistics": [statistic]} for statistic in refused]
    for evaluation in ({"extra": [{"name": "mnist", "image_size": 16}]}, {"keep": "model"}, *statistics):
        message = refusal(**settings, evaluation=evaluation)
        assert message.startswith(f"evaluation.{next(iter(evaluation))}: ") and culprit in message
    allowed = [statistic for statistic in ("drift", "similarity") if statistic not in refused]
    RunSpec.parse({**RUN, **settings, "evaluation": {"statistics": allowed}}, "run")


@pytest.mark.parametrize("method", ["local", "fedamp", "gpfl", "ditto"])
def test_private_weights_that_overflow_in_the_last_step_end_the_run(method: str) -> None:
    class Overflowing(Tracing):
        """The losses are finite; the weights after the last step are not."""

        def train(self, *args):
            results = super().train(*args)
            update = results[0].update
            broken = replace(update, trained=update.trained * torch.inf)
            return [replace(results[0], update=broken), *results[1:]]

    federation = simulation(METHODS[method](), trainer=Overflowing)
    with pytest.raises(Diverged, match="a client's weight"):
        federation.round(0)
