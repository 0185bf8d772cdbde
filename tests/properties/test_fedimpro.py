"""FedImpro: estimates of features at a cut, samples from the estimates, and training on the samples."""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fltrain.data.prepared import Partition
from fltrain.engine.simulation import Simulation
from fltrain.methods.base import Method
from fltrain.methods.fedavg import FedAvg
from fltrain.methods.fedimpro import FedImpro
from fltrain.methods.fedrs import FedRS
from fltrain.methods.fedsol import FedSOL
from fltrain.methods.types import Server, Update
from fltrain.metrics.updates import gradient_variance
from fltrain.models.network import Network
from fltrain.models.networks.lenet5 import LeNet5
from fltrain.models.networks.mobilenet_tiny import MobileNetTiny

from .helpers import (
    FULL_BATCH,
    Tracing,
    assert_same_model,
    digits,
    drawn,
    local_of,
    simulation,
    task_of,
    trained,
    update_of,
)
from .ordinary import gradient_of

CLASSES = 10
NUMBERS = ("mean", "spread", "seen", "spread_seen")
AT_ONCE = {"initial": "uniform", "weight": "constant"}
"""Samples of all classes from the first round on, fully weighted."""
LENET = {"model": LeNet5()}
"""A network without BatchNorm: cuts 1 (6 maps of 8 x 8 pixels) and 2 (64 numbers)."""


@dataclass
class Pass:
    """One forward pass in training: the input of the part above the cut, and the labels of the losses."""

    maps: Tensor
    losses: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    @property
    def labels(self) -> Tensor:
        return self.losses[0][1]

    @property
    def real(self) -> Tensor:
        return self.maps[: len(self.labels)]

    @property
    def sampled_labels(self) -> Tensor:
        return self.losses[1][1] if len(self.losses) > 1 else self.labels[:0]

    @property
    def sampled(self) -> Tensor:
        assert len(self.labels) + len(self.sampled_labels) == len(self.maps)
        return self.maps[len(self.labels) :]


def upper(network: Network, maps: Tensor, cut: int) -> Tensor:
    """The logits of maps from the part above a cut."""
    return network.classifier(network.upper_features(maps, cut))


def above(network: Network, cut: int) -> nn.Module:
    """The first block above a cut."""
    blocks = dict(network.named_children())
    names = list(blocks)
    return blocks[names[names.index(network.splits[cut]) + 1]]


def watch(federation: Simulation, cut: int, monkeypatch: pytest.MonkeyPatch) -> list[Pass]:
    """Record the forward passes in training, in the order of the steps."""
    passes: list[Pass] = []
    original = functional.cross_entropy

    def keep_maps(module: nn.Module, inputs: tuple[Tensor]) -> None:
        if module.training:
            passes.append(Pass(inputs[0].detach().clone()))

    def keep_labels(logits: Tensor, labels: Tensor, **others: object) -> Tensor:
        if logits.requires_grad:
            passes[-1].losses.append((logits.detach(), labels.clone()))
        return original(logits, labels, **others)

    above(federation.network, cut).register_forward_pre_hook(keep_maps)
    monkeypatch.setattr(functional, "cross_entropy", keep_labels)
    return passes


def passes_by_client(federation: Simulation, passes: list[Pass]) -> list[tuple[Update, list[Pass]]]:
    """The last round's updates with the passes behind them."""
    updates = federation.trainer.updates
    own = passes[-sum(update.steps for update in updates) :]
    cuts = np.cumsum([update.steps for update in updates])
    starts = [0, *cuts[:-1]]
    return [(update, own[a:b]) for update, a, b in zip(updates, starts, cuts, strict=True)]


def plugin_of(federation: Simulation) -> FedImpro:
    return next(method for method in federation.composition.methods if isinstance(method, FedImpro))


def estimates(federation: Simulation) -> dict[str, Tensor]:
    """The server's estimates."""
    return federation.server.states[plugin_of(federation).name]


def give_estimates(federation: Simulation, **numbers: Tensor) -> None:
    """Replace some of the server's estimates; by default, all classes are known."""
    known = {"seen": torch.ones(CLASSES), "spread_seen": torch.ones(CLASSES)}
    state = {**estimates(federation), **known, **numbers}
    states = {**federation.server.states, plugin_of(federation).name: state}
    federation.server = replace(federation.server, states=states)


def sent(update: Update) -> dict[str, Tensor]:
    """The plug-in's upload of a client."""
    (upload,) = update.extras.values()
    return upload


def random_estimates(federation: Simulation, seed: int = 0) -> dict[str, Tensor]:
    """Means and spreads of all classes."""
    shape = estimates(federation)["mean"].shape
    return {"mean": drawn(*shape, seed=seed), "spread": 0.1 * drawn(*shape, seed=seed + 1).abs()}


def evenly(clients: int) -> Partition:
    """Clients of equal size."""
    order = np.random.default_rng(0).permutation(120)
    return Partition(np.split(order, clients), digest="")


def by_class() -> Partition:
    """Three clients, each of which lacks some classes."""
    order = np.argsort(digits().train_labels, kind="stable")
    return Partition([order[:45], np.concatenate([order[45:70], order[:10]]), order[70:]], digest="")


def naive_moments(maps: Tensor, label: int, labels: Tensor, pooled: bool) -> tuple[Tensor, Tensor] | None:
    """Mean and standard deviation of a class, by image or by pixel."""
    own = maps[labels == label].double()
    if pooled:
        own = own.transpose(0, 1).flatten(1).T[:, :, None, None]  # every pixel counts as an image
    return (own.mean(0), own.std(0, correction=int(len(own) > 1))) if len(own) else None


def naive_estimates(
    received: dict[str, Tensor], passes: Sequence[Pass], method: FedImpro, class_counts: Tensor
) -> dict[str, Tensor]:
    """The moving averages of a client, class by class and batch by batch."""
    known = {name: received[name].double().clone() for name in NUMBERS}
    pooled = method.shape == "channel"
    for one in passes:
        for label in range(CLASSES):
            images = int((one.labels == label).sum())
            if not images:
                continue
            mean, deviation = naive_moments(one.real, label, one.labels, pooled)
            spread = deviation if method.moment == "std" else deviation**2
            for name, flag, fresh, enough in (
                ("mean", "seen", mean, 1),
                ("spread", "spread_seen", spread, 2),
            ):
                if images < enough:
                    continue
                if method.beta_client == "count":
                    share = min(1.0, images / float(class_counts[label]))
                else:
                    share = 1 - method.beta_client
                if not known[flag][label]:
                    share = 1.0
                known[name][label] = (1 - share) * known[name][label] + share * fresh
                known[flag][label] = 1
        if method.sigma_cap is not None:
            known["spread"].clamp_(max=method.sigma_cap)
    return known


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"shape": "channel", "moment": "var"},
        {"beta_client": 0.5, "sigma_cap": None},
        {"beta_client": "count", "sigma_cap": None, "shape": "channel"},
    ],
    ids=str,
)
def test_estimates_of_clients(settings: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rounds; in the second, estimates start from the server's and samples take part."""
    method = FedImpro(**settings)
    settings = {**LENET, "partition": by_class(), "fraction": 0.67, "trainer": Tracing}
    federation = simulation(method, **settings)
    passes = watch(federation, 1, monkeypatch)
    assert not estimates(federation)["seen"].any()
    for number in (0, 1):
        received = estimates(federation)
        federation.round(number)
        for update, own in passes_by_client(federation, passes):
            assert len(own) > 1
            assert all(len(one.sampled) == number * len(one.real) for one in own)
            counts = federation.data.class_counts[update.client]
            expected = naive_estimates(received, own, method, counts)
            for name in NUMBERS:
                torch.testing.assert_close(sent(update)[name].double(), expected[name], rtol=1e-4, atol=1e-6)
            # The client's classes are known now; estimates of the other classes come back bit for bit.
            assert torch.equal(sent(update)["seen"], received["seen"].maximum((counts > 0).float()))
            assert all(
                torch.equal(sent(update)[name][counts == 0], received[name][counts == 0]) for name in NUMBERS
            )
    assert 0 < estimates(federation)["seen"].sum() <= CLASSES


def upload(method: FedImpro, counts: Sequence[float] | Tensor, **numbers: object) -> Update:
    """The upload of a client with these numbers of images, given its estimates."""
    tensors = {name: torch.as_tensor(value, dtype=torch.float32) for name, value in numbers.items()}
    ones = torch.ones(len(tensors["mean"]))
    tensors = {"seen": ones, "spread_seen": ones, **tensors}
    start = torch.zeros(1)
    local = local_of(start, tensors, counts=torch.as_tensor(counts, dtype=torch.float32))
    update, _ = method.client_final(update_of(start, start), local, {**tensors, "step": torch.tensor(0)})
    return update


def served(method: FedImpro, before: dict[str, object], uploads: Sequence[Update]) -> dict[str, list[object]]:
    """The server's estimates afterwards."""
    state = {name: torch.as_tensor(value, dtype=torch.float32) for name, value in before.items()}
    state = {"seen": torch.ones(len(state["mean"])), "spread_seen": torch.ones(len(state["mean"])), **state}
    nothing = torch.zeros(0)
    server = Server(nothing, nothing, nothing.long(), {method.name: state})
    return method.aggregate(task_of(), state, server, uploads).state


def three_clients(method: FedImpro) -> list[Update]:
    """Two classes, a map of one number; the third client has none of the second class, which came as 10."""
    return [
        upload(method, [1, 2], mean=[[1.0], [4.0]], spread=[[0.01], [0.02]]),
        upload(method, [2, 6], mean=[[2.0], [8.0]], spread=[[0.02], [0.04]]),
        upload(method, [5, 0], mean=[[6.0], [10.0]], spread=[[0.06], [0.06]]),
    ]


BEFORE = {"mean": [[100.0], [10.0]], "spread": [[0.1], [0.06]]}


@pytest.mark.parametrize(
    ("aggregation", "mean", "spread"),
    [
        # If one of three clients lacks a class, a third of its new estimate is the old one.
        ("uniform_carry", [[3.0], [22 / 3]], [[0.03], [0.04]]),
        ("holders_only", [[3.0], [6.0]], [[0.03], [0.03]]),
    ],
)
def test_the_server_averages_estimates(
    aggregation: str, mean: list[list[float]], spread: list[list[float]]
) -> None:
    method = FedImpro(aggregation=aggregation, sigma_cap=None)
    after = served(method, BEFORE, three_clients(method))
    torch.testing.assert_close(after["mean"], torch.tensor(mean))
    torch.testing.assert_close(after["spread"], torch.tensor(spread), rtol=1e-5, atol=0)


@pytest.mark.parametrize("moment", ["std", "var"])
def test_the_pooled_spread_equals_that_of_the_pooled_data(moment: str) -> None:
    """From means and variances of clients of different sizes, the server computes both for all data."""
    method = FedImpro(aggregation="label_size", moment=moment, sigma_cap=None)
    groups = [5 * drawn(size, 6, seed=size) + size for size in (3, 10, 40)]
    uploads = []
    for group in groups:
        variance = group.var(0, correction=0)
        spread = variance if moment == "var" else variance.sqrt()
        uploads.append(upload(method, [len(group)], mean=group.mean(0)[None], spread=spread[None]))
    after = served(method, {"mean": torch.zeros(1, 6), "spread": torch.zeros(1, 6)}, uploads)
    pooled = torch.cat(groups)
    torch.testing.assert_close(after["mean"][0], pooled.mean(0), rtol=1e-5, atol=1e-5)
    variance = pooled.var(0, correction=0)
    expected = variance if moment == "var" else variance.sqrt()
    torch.testing.assert_close(after["spread"][0], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("aggregation", ["uniform_carry", "holders_only", "label_size"])
def test_clients_without_an_estimate_of_a_class_do_not_count_for_it(aggregation: str) -> None:
    method = FedImpro(aggregation=aggregation, sigma_cap=None)
    nothing = {name: [[0.0], [0.0]] for name in ("mean", "spread")}
    nothing |= {name: [0.0, 0.0] for name in ("seen", "spread_seen")}
    mean, first = [[2.0], [0.0]], [1.0, 0.0]
    uploads = [
        upload(method, [4, 0], **{**nothing, "mean": mean, "seen": first}),
        upload(method, [2, 0], mean=mean, spread=[[0.5], [0.0]], seen=first, spread_seen=first),
    ]
    after = served(method, nothing, uploads)
    assert after["mean"].flatten().tolist() == [2.0, 0.0]
    torch.testing.assert_close(after["spread"].flatten(), torch.tensor([0.5, 0.0]))
    assert after["seen"].tolist() == after["spread_seen"].tolist() == [1.0, 0.0]


def noise_of(method: FedImpro, **settings: object) -> tuple[list[dict[str, Tensor]], Simulation]:
    """The noise in the uploads of two clients in round 0, and the federation."""
    without = method.model_copy(update={"noise": 0.0})
    noisy, exact = (
        trained(one, **LENET, rounds=1, fraction=0.34, trainer=Tracing, **settings)
        for one in (method, without)
    )
    pairs = zip(noisy.trainer.updates, exact.trainer.updates, strict=True)
    return [{name: sent(one)[name] - sent(other)[name] for name in NUMBERS} for one, other in pairs], noisy


def test_uploads_have_independent_noise() -> None:
    """On every number, of known and unknown classes alike; independent by client and tensor."""
    method = FedImpro(noise=0.5)
    noises, federation = noise_of(method)
    flat = torch.stack([noise[name].flatten() for noise in noises for name in ("mean", "spread")])
    products = flat @ flat.T / flat.shape[1]
    torch.testing.assert_close(products, method.noise**2 * torch.eye(4), rtol=0, atol=0.02)
    assert not any(noise[name].any() for noise in noises for name in ("seen", "spread_seen"))
    assert estimates(federation)["spread"].min() == 0, "spreads that became negative are clamped on receipt"
    assert estimates(federation)["spread"].max() <= 0.1 + 1e-7


@pytest.mark.parametrize(
    "settings", [{"split": 2}, {"split": 1, "shape": "channel", "moment": "var"}], ids=str
)
def test_moments_of_samples(settings: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every element of every class: mean within 4 sigma / sqrt(n), standard deviation within 5 %."""
    method = FedImpro(n_hat=8000, **settings)
    federation = simulation(method, **LENET, fraction=0.1, batch_size=FULL_BATCH)
    passes = watch(federation, method.split, monkeypatch)
    given = random_estimates(federation)
    known = torch.zeros(CLASSES).index_fill(0, torch.tensor([1, 4]), 1.0)
    give_estimates(federation, **given, seen=known, spread_seen=known)
    federation.round(0)
    (one,) = passes
    for label in (1, 4):
        own = one.sampled[one.sampled_labels == label].double()
        assert len(own) == method.n_hat / 2
        mean, spread = (given[name][label].double().expand(own.shape[1:]) for name in ("mean", "spread"))
        deviation = spread if method.moment == "std" else spread.sqrt()
        assert ((own.mean(0) - mean).abs() <= 4 * deviation / math.sqrt(len(own))).all()
        torch.testing.assert_close(own.std(0), deviation, rtol=0.05, atol=0)
        # Elements of a map are drawn one by one.
        flat = ((own - mean) / deviation).flatten(1)
        products = flat.T @ flat / len(flat) - torch.eye(flat.shape[1])
        assert products.abs().max() < 0.12
    assert (one.sampled < 0).any(), "samples can be negative, unlike outputs of a ReLU"


def test_no_random_number_is_used_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in any step, client or round, also if the last batch is smaller."""
    method = FedImpro(split=2, sigma_cap=None)
    federation = simulation(method, **LENET, partition=evenly(4), fraction=0.5, batch_size=8)
    passes = watch(federation, 2, monkeypatch)
    shape = estimates(federation)["mean"].shape
    for number in range(2):
        give_estimates(federation, mean=torch.zeros(shape), spread=torch.ones(shape))
        federation.round(number)
    assert {len(one.sampled) for one in passes} == {8, 6}
    numbers = torch.cat([one.sampled.flatten() for one in passes])
    assert len(numbers) > 3000
    assert len(numbers.unique()) > 0.99 * len(numbers)


def labels_of_steps(
    method: FedImpro, known: Sequence[int], monkeypatch: pytest.MonkeyPatch, **training: object
) -> list[Pass]:
    """The passes of a round in which the server knows some classes."""
    federation = simulation(method, **LENET, partition=evenly(4), fraction=0.5, **training)
    passes = watch(federation, 1, monkeypatch)
    seen = torch.zeros(CLASSES).index_fill(0, torch.tensor(known), 1.0)
    give_estimates(federation, **random_estimates(federation), seen=seen, spread_seen=seen)
    federation.round(0)
    return passes


def counts_of(labels: Tensor) -> list[int]:
    return torch.bincount(labels, minlength=CLASSES).tolist()


@pytest.mark.parametrize("known", [range(10), [2, 5, 7], [3]], ids=str)
@pytest.mark.parametrize("n_hat", [None, 25])
def test_balanced_labels(n_hat: int | None, known: Sequence[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every known class floor(n / C) times; the rest at random, each class at most once."""
    rests: dict[int, list[list[int]]] = {}
    for one in labels_of_steps(FedImpro(n_hat=n_hat), known, monkeypatch, batch_size=8):
        count = len(one.labels) if n_hat is None else n_hat
        counts = counts_of(one.sampled_labels)
        assert sum(counts) == sum(counts[label] for label in known) == count == len(one.sampled)
        whole, rest = divmod(count, len(known))
        assert sorted(counts[label] - whole for label in known) == [0] * (len(known) - rest) + [1] * rest
        rests.setdefault(rest, []).append(counts)
    for rest, drawn_counts in rests.items():
        if rest and len(drawn_counts) > 2:
            assert any(counts != drawn_counts[0] for counts in drawn_counts), "every step draws new labels"


@pytest.mark.parametrize("known", [range(10), [2, 5, 7]], ids=str)
def test_tiled_labels_repeat_the_known_classes(known: Sequence[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """B // C + 1 samples of every known class, in full batches and others."""
    passes = labels_of_steps(FedImpro(labels="tiled"), known, monkeypatch, batch_size=12)
    assert {len(one.labels) for one in passes} == {12, 6}
    for one in passes:
        each = len(one.labels) // CLASSES + 1
        assert counts_of(one.sampled_labels) == [each * (label in known) for label in range(CLASSES)]


@pytest.mark.parametrize("known", [range(10), range(5)], ids=str)
def test_batch_labels_are_used_for_samples(known: Sequence[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Labels without an estimate are replaced."""
    for one in labels_of_steps(FedImpro(labels="batch"), known, monkeypatch, batch_size=7):
        assert torch.isin(one.sampled_labels, torch.tensor(known)).all()
        kept = torch.isin(one.labels, torch.tensor(known))
        assert torch.equal(one.sampled_labels[kept], one.labels[kept])
        assert len(one.sampled_labels) == len(one.labels)


@pytest.mark.parametrize("labels", ["balanced", "batch", "tiled"])
def test_without_estimates_there_are_no_samples(labels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first round is the base method's, bit for bit; in the second there are samples."""
    plain = trained(FedAvg(), **LENET, rounds=1)
    federation = simulation(FedImpro(labels=labels), **LENET)
    passes = watch(federation, 1, monkeypatch)
    rows = federation.round(0)
    assert all(len(one.maps) == len(one.labels) for one in passes)
    assert_same_model(federation, plain)
    assert {"round": 1, "kind": "fedimpro", "known_classes": 0} in rows
    del passes[:]
    known = int(estimates(federation)["seen"].sum())
    rows = federation.round(1)
    assert all(len(one.sampled) > 0 for one in passes)
    assert known > 5
    assert {"round": 2, "kind": "fedimpro", "known_classes": known} in rows


@pytest.mark.parametrize("source", ["global", "running"])
def test_samples_use_the_configured_estimates(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With almost no spread: the received means, or the client's updated means."""
    method = FedImpro(source=source, beta_client=0.5, sigma_cap=1e-6)
    federation = simulation(method, **LENET, partition=evenly(4), trainer=Tracing)
    passes = watch(federation, 1, monkeypatch)
    give_estimates(federation, **random_estimates(federation))
    received = estimates(federation)
    received["spread"].clamp_(max=1e-6)
    federation.round(0)
    for update, own in passes_by_client(federation, passes):
        for step, one in enumerate(own):
            counts = federation.data.class_counts[update.client]
            past = own[:step] if source == "running" else []
            means = naive_estimates(received, past, method, counts)["mean"]
            expected = means[one.sampled_labels]
            torch.testing.assert_close(one.sampled.double(), expected, rtol=1e-4, atol=2e-5)
        assert len(own) > 1


# Setting, rounds, epochs, and by round the weights of images and of samples.
WEIGHTS = [
    ({"weight": "ramp"}, 10, 1, {0: (1, 0), 1: (1, 0.2), 4: (1, 0.8), 5: (1, 1), 6: (1, 1), 10: (1, 1)}),
    ({"weight": "ramp", "ramp_rounds": 4}, 1000, 5, {0: (1, 0), 1: (1, 0.25), 4: (1, 1), 1000: (1, 1)}),
    ({"weight": "ramp"}, 7, 1, {0: (1, 0), 1: (1, 2 / 7), 3: (1, 6 / 7), 4: (1, 1), 7: (1, 1)}),
    ({"weight": "ramp_unclipped", "ramp_rounds": 500}, 400, 5, {0: (1, 0), 100: (1, 1), 400: (1, 4)}),
    ({"weight": "ramp_unclipped"}, 10, 2, {0: (1, 0), 5: (1, 2), 10: (1, 4)}),
    ({"weight": "constant"}, 10, 3, {0: (1, 1), 10: (1, 1)}),
    ({"weight": "half_half"}, 10, 1, {0: (1, 0), 1: (0.9, 0.1), 5: (0.5, 0.5), 10: (0.5, 0.5)}),
    ({"weight": "mean_concat"}, 10, 1, {0: (0.5, 0.5), 10: (0.5, 0.5)}),
    ({"weight": "mean_concat", "n_hat": 48}, 10, 1, {0: (0.25, 0.75), 10: (0.25, 0.75)}),
]


@pytest.mark.parametrize(("settings", "rounds", "epochs", "expected"), WEIGHTS, ids=str)
def test_weights_of_the_losses(
    settings: dict[str, object],
    rounds: int,
    epochs: int,
    expected: dict[int, tuple[float, float]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    method = FedImpro(initial="uniform", **settings)
    federation = simulation(method, **LENET, rounds=rounds, epochs=epochs, batch_size=16)
    task, start = federation.task, federation.server.weights
    step = SimpleNamespace(images=drawn(16, 1, 16, 16), labels=torch.arange(16) % CLASSES)
    monkeypatch.setattr(functional, "cross_entropy", lambda *_: torch.tensor(1.0))
    for number, weights in expected.items():
        local = replace(local_of(start, method.server_init(task, start), task=task), round=number)
        step_state = method.client_init(local)
        outputs = method.forward(federation.network, step, local, step_state)
        sampled, both = (
            float(method.loss(torch.tensor(loss), outputs, step, local, step_state)) for loss in (0.0, 1.0)
        )
        assert (both - sampled, sampled) == pytest.approx(weights, rel=1e-6, abs=1e-7), number


@pytest.mark.parametrize("cut", [1, 2])
def test_the_part_below_the_cut_learns_from_images_only_and_the_part_above_from_both(
    cut: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gradient of L below the cut and of L + w L' above it, in one step of plain SGD with rate 1."""
    method = FedImpro(split=cut, weight="ramp", ramp_rounds=4, n_hat=30)
    settings = {**LENET, "fraction": 0.1, "batch_size": FULL_BATCH, "lr": 1.0}
    settings |= {"momentum": 0.0, "weight_decay": 0.0}
    federation = simulation(method, trainer=Tracing, **settings)
    network = copy.deepcopy(federation.network)
    passes = watch(federation, cut, monkeypatch)
    give_estimates(federation, **random_estimates(federation))
    federation.round(3)
    ((one,), (update,), (step,)) = passes, federation.trainer.updates, federation.trainer.steps
    maps, labels = one.sampled, one.sampled_labels
    images, targets = federation.data.train.batch(step.chosen)
    expected = gradient_of(functional.cross_entropy(network(images), targets), network)
    samples = gradient_of(functional.cross_entropy(upper(network, maps, cut), labels), network)
    assert samples.norm() > 0.1 * expected.norm()
    torch.testing.assert_close(-update.displacement, expected + 0.75 * samples, rtol=1e-4, atol=1e-6)


def test_batchnorm_above_the_cut_sees_images_and_samples_together() -> None:
    """Below the cut it sees images only."""
    federation = simulation(
        FedImpro(split=4, n_hat=33, **AT_ONCE), model=MobileNetTiny(), fraction=0.1, batch_size=FULL_BATCH
    )
    seen: dict[str, int] = {}

    def keep(name: str) -> Callable[..., None]:
        return lambda module, args: seen.update({name: len(args[0])} if module.training else {})

    for name, module in federation.network.named_modules():
        if name.endswith("_norm"):
            module.register_forward_pre_hook(keep(name))
    (client,) = federation.sample(0)
    images = len(federation.data.clients[client])
    federation.round(0)
    assert seen == {name: images + 33 * (not name.startswith("stage1")) for name in seen}
    assert len(set(seen.values())) == 2


def dissimilarity_above(method: Method) -> float:
    """Dissimilarity of the gradients above the cut, of four clients with 30 images each.

    Estimates without spread, and equally many samples of every class, give all clients the same samples.
    """
    settings = {"partition": evenly(4), "fraction": 1.0, "batch_size": FULL_BATCH, "lr": 1.0}
    settings |= {"momentum": 0.0, "weight_decay": 0.0}
    federation = simulation(method, trainer=Tracing, **settings, **LENET)
    if isinstance(method, FedImpro):
        shape = estimates(federation)["mean"].shape
        give_estimates(federation, mean=drawn(*shape).abs(), spread=torch.zeros(shape))
    federation.round(0)
    gradients = -torch.stack([update.displacement for update in federation.trainer.updates])
    slots = [slot for slot in federation.model.layout.parameters if not slot.name.startswith("conv1.")]
    return gradient_variance(gradients, slots)


@pytest.mark.parametrize(
    ("settings", "factor"),
    [
        ({"weight": "mean_concat"}, 1 / 4),
        ({"weight": "mean_concat", "n_hat": 90}, 1 / 16),
        ({"weight": "constant"}, 1),
    ],
    ids=str,
)
def test_shared_samples_reduce_the_dissimilarity(settings: dict[str, object], factor: float) -> None:
    """By N^2 / (N + n)^2 with the weights of theorem 4.2's proof (equation 23), not of equation 5."""
    plain = dissimilarity_above(FedAvg())
    assert plain > 1e-3
    assert dissimilarity_above(FedImpro(**settings)) == pytest.approx(factor * plain, rel=1e-4)


def test_samples_are_the_same_in_all_passes_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """FedSOL goes through the network twice, with other weights; only the second pass has labels."""
    federation = simulation(FedSOL(), FedImpro(**AT_ONCE), **LENET, trainer=Tracing, partition=evenly(4))
    passes = watch(federation, 1, monkeypatch)
    federation.round(0)
    steps = list(zip(passes[::2], passes[1::2], strict=True))
    assert len(steps) == sum(update.steps for update in federation.trainer.updates) > 2
    for first, second in steps:
        assert not first.losses
        images = len(second.labels)
        assert torch.equal(first.maps[images:], second.sampled)
    assert any(not torch.equal(first.maps, second.maps) for first, second in steps)


def test_a_base_method_changes_the_logits_of_images_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """FedRS scales logits of classes that the client lacks; samples are of all classes."""
    federation = simulation(
        FedRS(), FedImpro(**AT_ONCE), **LENET, partition=by_class(), fraction=0.1, batch_size=FULL_BATCH
    )
    network = copy.deepcopy(federation.network)
    passes = watch(federation, 1, monkeypatch)
    federation.round(0)
    (one,) = passes
    _, (scaled, _), (logits, _) = one.losses  # the first is the plain cross entropy, which FedRS replaces
    torch.testing.assert_close(logits, upper(network, one.sampled, 1), rtol=1e-5, atol=1e-6)
    assert (scaled - upper(network, one.real, 1)).abs().max() > 1e-2
