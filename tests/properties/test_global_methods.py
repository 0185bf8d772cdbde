"""Methods that train one global model, against their formulas in plain PyTorch: see ``reference``."""

import logging
from collections import defaultdict
from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import vector_to_parameters

from fltrain.core.errors import FltrainError
from fltrain.data.augmentation import Augmentation
from fltrain.data.prepared import Partition
from fltrain.methods.base import Method
from fltrain.methods.ecgr import Ecgr
from fltrain.methods.fedacg import FedACG
from fltrain.methods.fedavg import FedAvg
from fltrain.methods.fedavgm import FedAvgM
from fltrain.methods.feddyn import FedDyn
from fltrain.methods.fedlc import FedLC
from fltrain.methods.fednova import FedNova
from fltrain.methods.fedopt import FedOpt
from fltrain.methods.fedprox import FedProx
from fltrain.methods.fedrs import FedRS
from fltrain.methods.fedsol import FedSOL
from fltrain.methods.flfa import Flfa
from fltrain.methods.moon import Moon
from fltrain.methods.perfedavg import PerFedAvg
from fltrain.methods.scaffold import Scaffold
from fltrain.methods.types import Update
from fltrain.models.base import Model, build
from fltrain.models.feedback import feedback
from fltrain.models.network import Network
from fltrain.models.networks.lenet5 import LeNet5
from fltrain.models.networks.mobilenet_tiny import MobileNetTiny
from fltrain.models.parts import mean_pool
from fltrain.runs.spec import RunSpec

from .helpers import (
    FULL_BATCH,
    Tiny,
    Tracing,
    assert_same_model,
    by_name,
    digits,
    mean_by_size,
    rows_of,
    simulation,
    skewed,
    trained,
    with_tests,
)
from .reference import Reference, check, features, flat, gradient_of, replica, running_statistics
from .test_step import nearby_model, step_of

RUN = {"dataset": "digits", "partition": {"name": "iid", "clients": 4}, "model": "mobilenet_tiny"}


def clipped(vector: Tensor, limit: float) -> Tensor:
    return vector * min(1.0, limit / float(vector.norm()))


def moved(updates: Sequence[Update]) -> Tensor:
    """Mean displacement by data size."""
    return mean_by_size(updates, "displacement")


# ---------------------------------------------------------------- FedAvg, FedProx, server optimisers
@pytest.mark.parametrize(
    "settings",
    [
        {"momentum": 0.0, "weight_decay": 0.1},
        {"clip_norm": 0.1, "last_batch": "drop"},
        {"clip_norm": 1e9, "model": LeNet5()},
    ],
    ids=str,
)
def test_fedavg(settings: dict[str, object]) -> None:
    check(Reference, FedAvg(), **settings)


def test_counters_stay_integers_and_take_the_maximum() -> None:
    federation = trained(FedAvg(), rounds=1, trainer=Tracing)
    updates, counters = federation.trainer.updates, federation.server.counters
    steps = [update.steps for update in updates]
    assert [update.counters.unique().tolist() for update in updates] == [[count] for count in steps]
    assert counters.dtype == torch.int64
    assert len(set(steps)) > 1 and counters.tolist() == [max(steps)] * 2


def test_an_epoch_visits_every_image_of_the_client_once() -> None:
    federation = trained(rounds=2, epochs=2, trainer=Tracing)
    for number in range(2):
        for client in federation.sample(number):
            chosen = torch.cat([step.chosen for step in federation.trainer.steps_of(client, number)])
            first, second = chosen.chunk(2)
            owned = federation.data.clients[client].sort().values
            assert torch.equal(first.sort().values, owned) and torch.equal(second.sort().values, owned)
            assert not torch.equal(first, second)


class Pulled(Reference):
    """FedProx: (mu / 2) ||w - r||^2 in the loss."""

    def correct(self, gradient: Tensor, weights: Tensor) -> Tensor:
        return gradient + self.method.mu * (weights - self.received)


def test_fedprox() -> None:
    check(Pulled, FedProx(mu=0.5))


class ServerSgd(Reference):
    """FedAvgM: PyTorch's SGD on the pseudo-gradient, which does not dampen the first step."""

    def __init__(self, *run: object) -> None:
        super().__init__(*run)
        self.velocity = torch.zeros(len(self.weights), dtype=torch.float64)

    def serve(self, updates: Sequence[Update]) -> Tensor:
        method, gradient = self.method, -moved(updates)
        if method.form == "dampened":
            self.velocity = method.beta * self.velocity + (1 - method.beta) * gradient
            return self.weights - method.server_lr * self.velocity
        parameter = nn.Parameter(self.weights.double())
        nesterov = method.form == "nesterov"
        sgd = torch.optim.SGD([parameter], method.server_lr, method.beta, nesterov=nesterov)
        sgd.state[parameter] = {"momentum_buffer": self.velocity}
        parameter.grad = gradient
        sgd.step()
        return parameter.detach()


@pytest.mark.parametrize("form", ["heavy_ball", "dampened", "nesterov"])
def test_fedavgm(form: str) -> None:
    check(ServerSgd, FedAvgM(form=form, beta=0.8, server_lr=0.3))


class Adaptive(Reference):
    """FedOpt: m over the root of v, which begins at tau^2. Yogi's v moves by D^2 towards D^2."""

    def __init__(self, *run: object) -> None:
        super().__init__(*run)
        self.momentum, self.second = 0.0, self.method.tau**2

    def serve(self, updates: Sequence[Update]) -> Tensor:
        method, change = self.method, moved(updates)
        self.momentum = method.beta1 * self.momentum + (1 - method.beta1) * change
        self.second = {
            "adam": method.beta2 * self.second + (1 - method.beta2) * change**2,
            "adagrad": self.second + change**2,
            "yogi": self.second + (1 - method.beta2) * change**2 * (2.0 * (self.second < change**2) - 1),
        }[method.form]
        return self.weights + method.server_lr * self.momentum / (self.second**0.5 + method.tau)


@pytest.mark.parametrize("form", ["adam", "yogi", "adagrad"])
def test_fedopt(form: str) -> None:
    check(Adaptive, FedOpt(form=form, server_lr=0.05, beta1=0.5, beta2=0.75, tau=0.03))


class Lookahead(Reference):
    """FedACG: clients start from w + lam m and stay near it; tests use w."""

    momentum: Tensor | float = 0.0

    def start(self, client: int) -> Tensor:
        return self.weights + self.method.lam * self.momentum

    def correct(self, gradient: Tensor, weights: Tensor) -> Tensor:
        return gradient + 2 * self.method.beta * (weights - self.received)

    def serve(self, updates: Sequence[Update]) -> Tensor:
        plain = torch.stack([update.displacement for update in updates]).double().mean(0)
        change = moved(updates) if self.method.mean == "data" else plain
        self.momentum = self.method.lam * self.momentum + change
        return self.weights + self.momentum

    def tested(self, client: int) -> tuple[Tensor, Tensor]:
        return self.weights, self.start_buffers(client)


@pytest.mark.parametrize(
    ("mean", "settings"),
    [
        ("data", {}),
        ("uniform", {}),
        ("data", {"partition": with_tests(skewed(digits())), "batchnorm": "local"}),  # tests of each client
    ],
    ids=lambda value: str(value)[:20],
)
def test_fedacg(mean: str, settings: dict[str, object]) -> None:
    check(Lookahead, FedACG(lam=0.85, beta=0.5, mean=mean), **settings)


# ---------------------------------------------------------------- FedNova, SCAFFOLD, FedDyn
class Normalised(Reference):
    """FedNova: displacements over a_k, the movement of SGD of rate 1 under a constant unit gradient."""

    velocity: Tensor | float = 0.0

    def correct(self, gradient: Tensor, weights: Tensor) -> Tensor:
        return gradient + self.method.mu * (weights - self.received)

    def factors(self, updates: Sequence[Update]) -> Tensor:
        """p_k tau_eff / a_k of each client."""
        steps = [update.steps for update in updates]
        sizes = torch.tensor([float(update.samples) for update in updates]).double()
        shares, counts = sizes / sizes.sum(), list(map(float, steps))
        if self.method.normaliser == "momentum":
            counts = []
            for count in steps:
                weight = velocity = 0.0
                for _ in range(count):
                    velocity = (
                        self.run.spec.training.momentum * velocity - 1 + self.lr * self.method.mu * weight
                    )
                    weight -= velocity
                counts.append(weight)
        effective = shares @ torch.tensor(counts if self.method.tau_eff == "normalisers" else steps).double()
        return shares * effective / torch.tensor(counts)

    def serve(self, updates: Sequence[Update]) -> Tensor:
        rows = torch.stack([update.displacement for update in updates]).double()
        self.velocity = self.method.server_momentum * self.velocity + self.factors(updates) @ rows
        return self.weights + self.velocity

    def serve_buffers(self, updates: Sequence[Update]) -> Tensor:
        if self.method.buffers == "averaged":
            return super().serve_buffers(updates)
        rows = torch.stack([update.buffers for update in updates]).double()
        return self.buffers + self.factors(updates) @ (rows - self.buffers)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"normaliser": "tau", "buffers": "normalised"},
        {"mu": 1.0, "tau_eff": "steps", "server_momentum": 0.5},
    ],
    ids=str,
)
def test_fednova(settings: dict[str, object], momentum: float) -> None:
    check(Normalised, FedNova(**settings), momentum=momentum)


class Controlled(Reference):
    """SCAFFOLD in the paper's letters: c, c_k, and omega_k, the scale of the objective."""

    def __init__(self, *run: object) -> None:
        super().__init__(*run)
        self.server, self.c_k = torch.zeros_like(self.weights).double(), defaultdict(float)
        sizes = torch.tensor([float(len(images)) for images in self.run.data.clients])
        scaled = self.method.weighting == "scaled"
        self.omega = (sizes / sizes.mean() if scaled else torch.ones(len(sizes))).tolist()

    def begin(self, update: Update) -> None:
        common = self.server / self.omega[self.client]
        self.correction = (common - self.c_k[self.client]).float()

    def correct(self, gradient: Tensor, weights: Tensor) -> Tensor:
        return gradient + self.correction if self.method.correction == "gradient" else gradient

    def after_step(self, weights: Tensor) -> Tensor:
        return weights - self.lr * self.correction if self.method.correction == "after_step" else weights

    def finish(self, update: Update) -> None:
        method, client = self.method, update.client
        if method.option == "I":  # all images at once, not augmented
            network = replica(self.run, self.received, self.received_buffers)
            images, labels = self.images(client)
            self.c_k[client] = gradient_of(
                functional.cross_entropy(network(images), labels), network
            ).double()
            return
        momentum = self.run.spec.training.momentum if method.normaliser == "effective" else 0.0
        steps = sum(momentum**j for step in range(update.steps) for j in range(step + 1))
        weights = update.trained if method.displacement == "raw" else update.weights
        self.c_k[client] = (self.received - weights).double() / (self.lr * steps) - self.correction.double()

    def serve(self, updates: Sequence[Update]) -> Tensor:
        method, clients = self.method, [update.client for update in updates]
        if method.weighting == "data":
            sizes = torch.tensor([float(update.samples) for update in updates]).double()
            self.server = (sizes / sizes.sum()) @ torch.stack([self.c_k[client] for client in clients])
        else:
            self.server = sum(self.omega[client] * c_k for client, c_k in self.c_k.items()) / len(self.omega)
        plain = torch.stack([update.displacement for update in updates]).double().mean(0)
        change = moved(updates) if method.weighting in ("weights", "data") else plain
        return self.weights + method.server_lr * change


AFTER_STEP = {"correction": "after_step", "normaliser": "plain"}
WEIGHTINGS = ("uniform", "weights", "scaled", "data")
LENET = {"model": LeNet5()}


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        *((Scaffold(weighting=weighting), {}) for weighting in WEIGHTINGS),
        *((Scaffold(**AFTER_STEP, weighting=weighting), {"momentum": 0.5}) for weighting in WEIGHTINGS),
        *((Scaffold(option="I", weighting=weighting), LENET) for weighting in WEIGHTINGS),
        (Scaffold(normaliser="plain", server_lr=0.5), {"momentum": 0.0, "clip_norm": 1.0}),
        # A client has 14 images: the last one joins the batch before it.
        (Scaffold(option="I", **AFTER_STEP), {**LENET, "batch_size": 13, "last_batch": "drop"}),
        # Batch statistics depend on the other images in the batch.
        (Scaffold(option="I"), {"model": MobileNetTiny(), "batch_size": FULL_BATCH}),
    ],
    ids=str,
)
def test_scaffold(method: Scaffold, settings: dict[str, object]) -> None:
    check(Controlled, method, **settings)


@pytest.mark.parametrize("settings", [{}, AFTER_STEP], ids=str)
@pytest.mark.parametrize("source", ["raw", "uploaded"])
def test_scaffold_reads_the_trained_or_the_uploaded_weights(settings: dict[str, str], source: str) -> None:
    check(Controlled, Scaffold(displacement=source, **settings), Ecgr())


def test_scaffold_measures_gradients_without_augmentation() -> None:
    plain, augmented = (
        trained(Scaffold(option="I"), rounds=1, batch_size=FULL_BATCH, augmentation=augmentation, **LENET)
        for augmentation in (Augmentation(), Augmentation(crop_padding=2, flip=True))
    )
    assert not torch.equal(plain.server.weights, augmented.server.weights)
    assert torch.equal(*(run.server.states["scaffold"]["control"] for run in (plain, augmented)))


def test_a_variant_of_scaffold_sets_its_options() -> None:
    written = Scaffold.parse({"name": "scaffold", "variant": "ecgr", "server_lr": 0.5}, "method")
    assert written == Scaffold(**AFTER_STEP, weighting="data", server_lr=0.5)
    assert Scaffold.parse({"name": "scaffold", "variant": "paper"}, "method") == Scaffold()
    with pytest.raises(FltrainError, match="variant 'ecgr' sets 'weighting'; leave one of the two out"):
        Scaffold.parse({"name": "scaffold", "variant": "ecgr", "weighting": "data"}, "method")
    with pytest.raises(FltrainError, match="unknown variant 'egcr'; write paper, ecgr, fedimpro"):
        Scaffold.parse({"name": "scaffold", "variant": "egcr"}, "method")


def test_corrections_after_the_step_need_the_plain_normaliser() -> None:
    method = {"name": "scaffold", "correction": "after_step"}
    with pytest.raises(FltrainError, match="method: correction 'after_step' goes with normaliser 'plain'"):
        RunSpec.parse({**RUN, "method": method}, "test")
    assert Scaffold(correction="after_step", option="I").normaliser == "effective"  # nothing is divided
    RunSpec.parse({**RUN, "method": {**method, "normaliser": "plain"}}, "test")


class Dynamic(Reference):
    """FedDyn: f_k(w) - <lam_k, w> + (alpha_k / 2) ||w - r||^2, with lam_k = -alpha_k a_k.

    a_k is the sum of a client's displacements, and the mean of all a_k is -h / alpha. This form allows
    alpha = 0. Of ``except_decay`` see alpemreacar/FedDyn, commit 48a19fa, utils_general.py, train_feddyn_mdl:
    it clips the gradient of f_k + alpha_k <w, a_k - r>, and SGD adds alpha_k w.
    """

    def __init__(self, *run: object) -> None:
        super().__init__(*run)
        self.sums = defaultdict(lambda: torch.zeros_like(self.weights))

    def begin(self, update: Update) -> None:
        relative = update.samples / self.run.task.samples * self.run.task.clients
        self.alpha = self.method.alpha / (relative if self.method.alpha_mode == "data" else 1)

    def correct(self, gradient: Tensor, weights: Tensor) -> Tensor:
        limit, linear = self.method.clip or torch.inf, self.alpha * (self.sums[self.client] - self.received)
        if self.method.clipped == "except_decay":
            return clipped(gradient + linear, limit) + self.alpha * weights
        return clipped(gradient + linear + self.alpha * weights, limit)

    def finish(self, update: Update) -> None:
        self.sums[update.client] = self.sums[update.client] + update.trained - update.start

    def serve(self, updates: Sequence[Update]) -> Tensor:
        mean = torch.stack([update.trained for update in updates]).mean(0)
        collected = sum(self.sums.values()) / self.run.task.clients
        return mean + collected if self.method.server_correction else mean


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"alpha": 1.0, "clip": None},
        {"alpha": 0.5, "alpha_mode": "data", "clip": 0.3},
        {"clipped": "except_decay", "alpha_mode": "data", "clip": 0.3},
        {"alpha": 0.0},
        {"server_correction": False},
    ],
    ids=str,
)
def test_feddyn(settings: dict[str, object]) -> None:
    check(Dynamic, FedDyn(**settings))


# ---------------------------------------------------------------- MOON, FedLC, FedRS
class Contrasting(Reference):
    """MOON: -log[exp(cos_g / tau) / (exp(cos_g / tau) + exp(cos_p / tau))] on deep copies."""

    def previous(self) -> tuple[Tensor, Tensor] | None:
        """The model that the client trained last, not the one that it uploaded."""
        if self.client in self.updates:
            return self.updates[self.client].trained, self.updates[self.client].buffers
        if self.method.first == "initial":
            return self.run.task.initialise()
        random = self.method.first == "random" and self.number
        return self.run.task.initialise(self.client) if random else None

    def begin(self, update: Update) -> None:
        models = [(self.received, self.received_buffers), self.previous()]
        self.others = [replica(self.run, *model).eval() for model in models if model]

    def loss(self, network: Network, images: Tensor, labels: Tensor) -> Tensor:
        query = features(network, images)
        plain = functional.cross_entropy(network.classifier(query), labels)
        if len(self.others) < 2:
            return plain
        with torch.no_grad():
            received, previous = (features(other, images) for other in self.others)
        # In double precision: at tau = 0.01, exponentials overflow a float32.
        positive, negative = (
            ((query * key).sum(1).double() / (query.norm(dim=1) * key.norm(dim=1)) / self.method.tau).exp()
            for key in (received, previous)
        )
        return plain - self.method.mu * (positive / (positive + negative)).log().mean().float()


@pytest.mark.parametrize(
    ("settings", "model", "plugins"),
    [
        ({}, Tiny(), ()),
        ({}, LeNet5(), (Ecgr(),)),
        ({"mu": 5.0, "tau": 0.1, "first": "initial"}, Tiny(), ()),
        ({"tau": 0.01}, Tiny(), ()),
        ({"first": "random"}, Tiny(), ()),
        ({"head": "mlp"}, Tiny(), ()),
    ],
    ids=str,
)
def test_moon(settings: dict[str, object], model: Model, plugins: tuple[Method, ...]) -> None:
    check(Contrasting, Moon(**settings), *plugins, model=model)


@pytest.mark.parametrize("model", [Tiny(), LeNet5()], ids=by_name)
def test_the_projection_head_of_moon_does_not_change_other_initial_weights(model: Model) -> None:
    side = 16 if isinstance(model, LeNet5) else 8
    plain = dict(build(model, 1, side, 10, seed=0).named_parameters())
    federation = simulation(Moon(head="mlp"), model=model)
    slots = {slot.name: slot.of(federation.server.weights) for slot in federation.model.layout.parameters}
    new = {name for name in slots if name.split(".")[0] in ("projection", "classifier")}
    assert slots.keys() - new == {name for name in plain if not name.startswith("classifier.")}
    assert all(torch.equal(slots[name], plain[name]) for name in slots.keys() - new)
    for name in new:  # PyTorch draws a linear layer's weight and bias uniformly in +-1/sqrt(fan in)
        bound = slots[name.replace("bias", "weight")].shape[1] ** -0.5
        assert 0.5 * bound < slots[name].abs().max() <= bound, name
    other = simulation(Moon(head="mlp"), model=model, seed=1)
    assert_same_model(federation, simulation(Moon(head="mlp"), model=model))
    assert not torch.equal(federation.server.weights, other.server.weights)


class Calibrated(Reference):
    """FedLC: -log[e^(z_y - tau n_y^(-1/4)) / sum of the same over classes]."""

    def loss(self, network: Network, images: Tensor, labels: Tensor) -> Tensor:
        method, counts, losses = self.method, self.counts(self.client), []
        least = {"mask": 0, "clamp": 1, "eps": 1e-8}[method.missing]
        for row, label in zip(network(images), labels.tolist(), strict=True):
            terms = {
                c: (row[c] - method.tau / max(count, least) ** 0.25).exp()
                for c, count in enumerate(counts)
                if max(count, least) > 0
            }
            others = [term for c, term in terms.items() if c != label or method.denominator == "full"]
            losses.append(-(terms[label] / sum(others)).log())
        return sum(losses) / len(losses)


MISSING = [{"missing": "mask"}, {"missing": "clamp"}, {"missing": "eps"}]


@pytest.mark.parametrize(
    "settings", [*MISSING, *({**settings, "denominator": "exclusive"} for settings in MISSING[1:])], ids=str
)
def test_fedlc(settings: dict[str, str]) -> None:
    check(Calibrated, FedLC(tau=2.0, **settings))


@pytest.mark.parametrize(("missing", "expected"), [("mask", 1), ("clamp", 0)])
def test_clients_of_one_class_are_named_when_a_run_starts(
    missing: str, expected: int, caplog: pytest.LogCaptureFixture
) -> None:
    clients = [np.flatnonzero(digits().train_labels == label) for label in range(10)]
    run = simulation(FedLC(missing=missing), partition=Partition(clients, digest=""), fraction=0.2)
    messages = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert len(messages) == expected and all("10 of 10 clients" in message for message in messages)
    assert (run.round(0)[0]["loss"] == 0) is bool(expected)


def test_the_exclusive_denominator_is_refused_if_it_would_be_empty() -> None:
    method = {"name": "fedlc", "denominator": "exclusive"}
    with pytest.raises(FltrainError, match="method: denominator 'exclusive' needs missing 'clamp' or 'eps'"):
        RunSpec.parse({**RUN, "method": method}, "mine.yaml")
    for missing in ("clamp", "eps"):
        RunSpec.parse({**RUN, "method": {**method, "missing": missing}}, "mine.yaml")


class Restricted(Reference):
    """FedRS: cross entropy of whole logits, bias included, times a factor."""

    def loss(self, network: Network, images: Tensor, labels: Tensor) -> Tensor:
        counts = torch.tensor(self.counts(self.client))
        shares = (counts > 0).float() if self.method.mode == "binary" else counts / counts.max()
        factors = self.method.alpha + (1 - self.method.alpha) * shares
        return functional.cross_entropy(factors * network(images), labels)


@pytest.mark.parametrize("settings", [{"alpha": 0.0}, {}, {"mode": "frequency"}], ids=str)
def test_fedrs(settings: dict[str, object]) -> None:
    check(Restricted, FedRS(**settings))


# ---------------------------------------------------------------- FedSOL
class SmoothModel(Model):
    """Two convolutions with hyperbolic tangents: without kinks, rounding errors stay small."""

    name: Literal["smooth"] = "smooth"
    min_side: ClassVar[int] = 1
    normed: bool = True

    def network(self, channels: int, side: int, classes: int) -> Network:
        def block(inputs: int, width: int, stride: int) -> nn.Sequential:
            norm = nn.BatchNorm2d(width) if self.normed else nn.Identity()
            return nn.Sequential(nn.Conv2d(inputs, width, 3, stride, padding=1), norm, nn.Tanh())

        blocks = {"stem": block(channels, 6, stride=2), "body": block(6, 8, stride=1)}
        return Network(**blocks, pool=mean_pool(), classifier=nn.Linear(8, classes))


def uphill(method: FedSOL, network: Network, teacher: Network, images: Tensor) -> Tensor:
    """rho Lambda g / ||g||, g the gradient of the proximal loss in the parameters that are moved."""
    if method.proximal == "kl":
        with torch.no_grad():
            target = (teacher(images) / method.temperature).softmax(1)
        log_output = (network(images) / method.temperature).log_softmax(1)
        loss = (target * (target.log() - log_output)).sum(1).mean()
    else:
        pairs = zip(network.parameters(), teacher.parameters(), strict=True)
        loss = sum((weight - other.detach()).square().sum() for weight, other in pairs) / 2
    gradients = torch.autograd.grad(loss, list(network.parameters()))
    moves = []
    for (name, value), other, gradient in zip(
        network.named_parameters(), teacher.parameters(), gradients, strict=True
    ):
        gradient = gradient * (method.part in ("all", "head" if name.startswith("classifier.") else "body"))
        scale = functional.normalize((value - other).abs(), dim=0) if method.perturbation == "adaptive" else 1
        moves.append((gradient, scale * gradient))
    length = flat(gradient for gradient, _ in moves).norm()
    is_still = method.perturbation == "fixed" and length < 1e-5
    return flat(move for _, move in moves) * (0 if is_still else method.rho / (length + 1e-12))


class Uphill(Reference):
    """FedSOL: the gradient at perturbed weights, on a copy; the running statistics see each batch once."""

    tolerance = 0, 1e-6

    def begin(self, update: Update) -> None:
        self.teacher = replica(self.run, self.received, self.received_buffers)
        self.teacher.train(self.method.teacher == "train")

    def gradient(self, network: Network, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        weights, statistics = flat(network.parameters()), running_statistics(network)
        move = uphill(self.method, network, self.teacher, images)
        perturbed = replica(self.run, weights + move, statistics)
        loss = functional.cross_entropy(perturbed(images), labels)
        if self.method.proximal == "l2":  # the only forward pass
            network.load_state_dict({**network.state_dict(), **dict(perturbed.named_buffers())})
        return gradient_of(loss, perturbed), loss


@pytest.mark.parametrize(
    ("settings", "normed"),
    [
        ({}, True),
        ({}, False),
        ({"perturbation": "fixed", "rho": 0.5, "temperature": 1.0}, True),
        ({"part": "head"}, True),
        ({"perturbation": "fixed", "part": "body"}, True),
        ({"perturbation": "fixed", "teacher": "train"}, True),
        ({"proximal": "l2"}, True),
        ({"proximal": "l2", "perturbation": "fixed", "part": "head"}, True),
    ],
    ids=str,
)
def test_fedsol(settings: dict[str, object], normed: bool) -> None:
    check(Uphill, FedSOL(**settings), model=SmoothModel(normed=normed), momentum=0.0)


def test_fedsol_does_not_scale_up_rounding_noise_to_a_fixed_move() -> None:
    """Student and teacher agree at the received weights if both use batch statistics."""
    settings = {"rounds": 3, "batch_size": FULL_BATCH}
    plain = trained(FedAvg(), **settings)
    assert_same_model(trained(FedSOL(perturbation="fixed", teacher="train"), **settings), plain)
    # A teacher in evaluation mode differs by more than noise.
    perturbed = trained(FedSOL(perturbation="fixed"), **settings)
    assert not torch.equal(perturbed.server.weights, plain.server.weights)


@pytest.mark.parametrize("passes", ["both", "loss"])
def test_feedback_alignment_acts_in_both_passes_of_fedsol_or_in_the_loss_pass_only(passes: str) -> None:
    method = FedSOL(perturbation="fixed", feedback=passes)
    flfa = Flfa(strategy="fixed", layers=("stage1.project", "head_conv1.0"), feedback="random", scale="none")
    federation = trained(method, flfa, model=MobileNetTiny(), rounds=1)
    (weights, _), buffers = nearby_model(federation, seed=1), federation.server.buffers
    step = step_of(federation, weights=weights)
    gradient = step.hooks.gradient(step, federation.model.weights)[0].clone()
    names = [layer.name for layer in federation.model.layout.layers]
    tensors = {
        names[int(key.partition(".")[2])]: tensor
        for key, tensor in step.hooks.step_states["flfa"].items()
        if key.startswith("feedback.")
    }

    def expected(aligned: bool) -> Tensor:
        """The gradient if feedback alignment acts in the proximal pass, or does not."""
        teacher = replica(federation, federation.server.weights, buffers).eval()
        network = replica(federation, weights, buffers)
        rerouted = {network.get_submodule(name): tensor for name, tensor in tensors.items()}
        with feedback(rerouted if aligned else {}):
            move = uphill(method, network, teacher, step.images)
        network = replica(federation, weights + move, buffers)
        with feedback({network.get_submodule(name): tensor for name, tensor in tensors.items()}):
            return gradient_of(functional.cross_entropy(network(step.images), step.labels), network)

    both_passes, plain = expected(True), expected(False)
    assert (both_passes - plain).norm() > 0.05 * plain.norm(), "feedback alignment has no effect"
    torch.testing.assert_close(gradient, both_passes if passes == "both" else plain, rtol=1e-3, atol=1e-4)


# ---------------------------------------------------------------- Per-FedAvg
class Meta(Reference):
    """Per-FedAvg: v = grad F(w - a grad F(w; D1); D2), and for ``hf`` v - a (grad F(w + d v; D3) - ...) / 2d.

    Each client is tested after plain SGD on random batches of its images.
    """

    @property
    def rate(self) -> float:
        return self.lr if self.method.inner_lr is None else self.method.inner_lr

    def gradient(self, network: Network, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        count, current = {"fo": 2, "hf": 3}[self.method.version], flat(network.parameters())
        cuts = [list(range(len(labels)))] * count
        if len(labels) >= 2 * count:  # else BatchNorm could not train on a part
            cuts = [part.tolist() for part in np.array_split(np.arange(len(labels)), count)]

        def at(weights: Tensor, part: int, tracked: bool = False) -> tuple[Tensor, Tensor]:
            """Gradient and loss; only D2 moves the running statistics."""
            model = network if tracked else replica(self.run, weights, running_statistics(network))
            vector_to_parameters(weights.clone(), model.parameters())
            loss = functional.cross_entropy(model(images[cuts[part]]), labels[cuts[part]])
            return gradient_of(loss, model), loss

        gradient, loss = at(current - self.rate * at(current, 0)[0], 1, tracked=True)
        if count == 3:
            delta = self.method.delta
            ahead, behind = (at(current + sign * delta * gradient, 2)[0] for sign in (1, -1))
            gradient = gradient - self.rate * (ahead - behind) / (2 * delta)
        vector_to_parameters(current, network.parameters())
        return gradient, loss

    def tested(self, client: int) -> tuple[Tensor, Tensor]:
        run, weights, images = self.run, self.weights, self.run.data.clients[client]
        random = self.method.random(run.task, round=self.number, client=client, use="adaptation")
        network = replica(run, weights, self.buffers)
        for _ in range(self.method.eval_steps):
            size = min(len(images), run.spec.training.batch_size)
            chosen = torch.from_numpy(random.choice(len(images), size, replace=False))
            batch, labels = run.data.train.batch(images[chosen])
            weights = weights - self.rate * gradient_of(
                functional.cross_entropy(network(batch), labels), network
            )
            vector_to_parameters(weights.clone(), network.parameters())
        return weights, self.buffers


EVERYONE = {"cohorts": ([*range(6)], [*range(6)])}


def few_images(images: int) -> dict[str, object]:
    """A client with fewer images than a step takes; BatchNorm could not train on a part of one image."""
    clients, tests = [np.arange(images), np.arange(6, 30)], [np.arange(30, 40), np.arange(40, 50)]
    return {"partition": Partition(clients, digest="", tests=tests), "cohorts": ([0, 1], [0])}


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        (PerFedAvg(inner_lr=0.5), EVERYONE),
        (PerFedAvg(passes=1, eval_steps=3), EVERYONE),
        (PerFedAvg(version="hf", inner_lr=0.5, delta=0.1, eval_steps=0), EVERYONE),
        *((PerFedAvg(), few_images(images)) for images in (1, 3)),
        (PerFedAvg(version="hf", delta=0.1), few_images(5)),
    ],
    ids=lambda value: str(value)[:60],
)
def test_perfedavg(method: PerFedAvg, settings: dict[str, object]) -> None:
    """Clients of 6 to 26 images: full chunks, usable rests, dropped rests."""
    size, reference = 5, check(Meta, method, batch_size=5, **settings)
    per_step = size * {"fo": 2, "hf": 3}[method.version]
    for client, update in reference.updates.items():
        full, rest = divmod(update.samples, per_step)
        sizes = [per_step] * full + [rest] * (rest >= 2 * per_step // size or (not full and rest > 0))
        batch_sizes = [len(step.chosen) for step in reference.run.trainer.steps if step.client == client]
        assert batch_sizes[: update.steps] == sizes * (2 * method.passes)


def test_adaptation_changes_no_model_state_or_random_number() -> None:
    often, never = (
        trained(PerFedAvg(inner_lr=0.5, eval_steps=2), rounds=3, evaluate_every=period) for period in (1, 100)
    )
    assert_same_model(often, never)
    assert rows_of(often, "train") == rows_of(never, "train")
    assert len(rows_of(often, "evaluation")) == 3 > len(rows_of(never, "evaluation"))
    assert all(not any(states.values()) for states in often.clients.values())
