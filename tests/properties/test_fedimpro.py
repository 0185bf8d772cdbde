"""FedImpro: estimates of the features at a cut, what is sampled of them, and who learns from the samples."""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import SimpleNamespace
from typing import ClassVar, Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fltrain.core.errors import FltrainError
from fltrain.core.rng import Purpose, stream
from fltrain.data.prepared import Partition
from fltrain.engine.simulation import Simulation
from fltrain.methods.base import Method
from fltrain.methods.ecgr import Ecgr
from fltrain.methods.fedavg import FedAvg
from fltrain.methods.fedimpro import FedImpro, class_moments
from fltrain.methods.fedrs import FedRS
from fltrain.methods.fedsol import FedSOL
from fltrain.methods.flfa import Flfa
from fltrain.methods.moon import Moon
from fltrain.methods.scaffold import Scaffold
from fltrain.methods.training import Cosine
from fltrain.methods.types import Server, Task, Update
from fltrain.metrics.updates import gradient_variance
from fltrain.models.base import Model
from fltrain.models.build import build
from fltrain.models.network import Network, map_shape
from fltrain.models.networks.lenet5 import LeNet5
from fltrain.models.networks.mobilenet_tiny import MobileNetTiny
from fltrain.models.networks.resnet import ResNet18, ResNet50
from fltrain.models.networks.vgg import Vgg9
from fltrain.runs.spec import RunSpec

from .helpers import (
    FULL_BATCH,
    Tracing,
    assert_same_model,
    by_name,
    digits,
    local_of,
    rows_of,
    simulation,
    task_of,
    trained,
    update_of,
)

CLASSES = 10
NUMBERS = ("mean", "spread", "seen", "spread_seen")
AT_ONCE = {"initial": "uniform", "weight": "constant"}
"""Samples of all classes from the first round on, fully weighted."""
PLAIN = {"momentum": 0.0, "weight_decay": 0.0}
LENET = {"model": LeNet5()}
"""A network without BatchNorm: cuts 1 (6 maps of 8 x 8 pixels) and 2 (64 numbers)."""


# ------------------------------------------------------------------------------------ looking into a run
@dataclass
class Pass:
    """One forward pass in training: what entered the part above the cut, and the labels of the losses."""

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


def above(network: Network, cut: int) -> nn.Module:
    """The first block above a cut."""
    blocks = dict(network.named_children())
    names = list(blocks)
    return blocks[names[names.index(network.splits[cut]) + 1]]


def watch(federation: Simulation, cut: int, monkeypatch: pytest.MonkeyPatch) -> list[Pass]:
    """Forward passes in training as they come, in the order of the steps."""
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
    updates = federation.executor.updates
    own = passes[-sum(update.steps for update in updates) :]
    cuts = np.cumsum([update.steps for update in updates])
    starts = [0, *cuts[:-1]]
    return [(update, own[a:b]) for update, a, b in zip(updates, starts, cuts, strict=True)]


def plugin_of(federation: Simulation) -> FedImpro:
    return next(method for method in federation.composition.methods if isinstance(method, FedImpro))


def estimates(federation: Simulation) -> dict[str, Tensor]:
    """What the server knows."""
    return federation.server.states[plugin_of(federation).name]


def give_estimates(federation: Simulation, **numbers: Tensor) -> None:
    """Replace some of what the server knows; classes are known unless it is said otherwise."""
    known = {"seen": torch.ones(CLASSES), "spread_seen": torch.ones(CLASSES)}
    state = {**estimates(federation), **known, **numbers}
    states = {**federation.server.states, plugin_of(federation).name: state}
    federation.server = replace(federation.server, states=states)


def sent(update: Update) -> dict[str, Tensor]:
    """What a client uploads for the plug-in."""
    (upload,) = update.extras.values()
    return upload


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def random_estimates(federation: Simulation, seed: int = 0) -> dict[str, Tensor]:
    """Means and spreads of all classes."""
    shape = estimates(federation)["mean"].shape
    return {"mean": drawn(*shape, seed=seed), "spread": 0.1 * drawn(*shape, seed=seed + 1).abs()}


def evenly(clients: int) -> Partition:
    """Clients of one size."""
    order = np.random.default_rng(0).permutation(120)
    return Partition(np.split(order, clients), digest="")


def by_class() -> Partition:
    """Three clients, each of which lacks some classes."""
    order = np.argsort(digits().train_labels, kind="stable")
    return Partition([order[:45], np.concatenate([order[45:70], order[:10]]), order[70:]], digest="")


# ------------------------------------------------------------------------------------ moments by class
def naive_moments(maps: Tensor, label: int, labels: Tensor, pooled: bool) -> tuple[Tensor, Tensor] | None:
    """Mean and standard deviation of a class, by image or by pixel."""
    own = maps[labels == label].double()
    if pooled:
        own = own.transpose(0, 1).flatten(1).T[:, :, None, None]  # every pixel counts as an image
    return (own.mean(0), own.std(0, correction=int(len(own) > 1))) if len(own) else None


@pytest.mark.parametrize(
    ("maps", "shape"), [((3, 4, 5), (3, 4, 5)), ((3, 4, 5), (3, 1, 1)), ((7,), (7,)), ((3, 1, 1), (3, 1, 1))]
)
def test_moments_by_class(maps: tuple[int, ...], shape: tuple[int, ...]) -> None:
    """Against a loop over the classes; 1 has no images, 4 has one."""
    labels = torch.tensor([0, 2, 2, 3, 3, 3, 0, 4, 0, 2, 3])
    values = 3 + drawn(len(labels), *maps)
    counts, means, variances = class_moments(values, labels, 6, shape)
    assert counts.tolist() == [3, 0, 3, 4, 1, 0]
    assert means.shape == variances.shape == (6, *shape)
    pooled = shape != maps
    for label in range(6):
        expected = naive_moments(values, label, labels, pooled)
        if expected is None:
            assert not means[label].any()
            assert not variances[label].any()
            continue
        torch.testing.assert_close(means[label].double(), expected[0], rtol=1e-5, atol=1e-6)
        if counts[label] > 1:
            deviation = variances[label].double().sqrt()
            torch.testing.assert_close(deviation, expected[1], rtol=1e-5, atol=1e-6)
    assert pooled or not variances[4].any()


def test_variances_of_large_values_keep_their_digits() -> None:
    values, labels = 1000 + drawn(50, 20), torch.zeros(50, dtype=torch.int64)
    _, _, variances = class_moments(values, labels, 1, (20,))
    torch.testing.assert_close(variances[0].double(), values.double().var(0), rtol=1e-3, atol=0)


# ------------------------------------------------------------------------------------ estimates of a client
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
        {"shape": "channel"},
        {"moment": "var"},
        {"shape": "channel", "moment": "var"},
        {"beta_client": 0.0},
        {"beta_client": 0.5, "sigma_cap": None},
        {"beta_client": "count"},
        {"beta_client": "count", "sigma_cap": None, "shape": "channel"},
    ],
    ids=str,
)
def test_estimates_of_clients(settings: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rounds; in the second, estimates start from the server's and samples take part."""
    method = FedImpro(**settings)
    settings = {**LENET, "partition": by_class(), "fraction": 0.67, "executor": Tracing}
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
            # The classes that the client has are known now, those of others still as they came.
            assert torch.equal(sent(update)["seen"], received["seen"].maximum((counts > 0).float()))
    assert 0 < estimates(federation)["seen"].sum() <= CLASSES


def test_moving_average_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two batches of a client: m, then 0.9 m + 0.1 m', and no spread of a class with single images."""
    settings = {**LENET, "partition": evenly(4), "executor": Tracing}
    federation = simulation(FedImpro(sigma_cap=None), **settings)
    passes = watch(federation, 1, monkeypatch)
    federation.round(0)
    both = single = 0
    for update, (first, second) in passes_by_client(federation, passes):
        for label in range(CLASSES):
            a, b = (one.real[one.labels == label] for one in (first, second))
            if len(a) >= 2 and len(b) >= 2:
                both += 1
                mean = 0.9 * a.mean(0) + 0.1 * b.mean(0)
                spread = 0.9 * a.std(0) + 0.1 * b.std(0)
                torch.testing.assert_close(sent(update)["mean"][label], mean, rtol=1e-5, atol=1e-6)
                torch.testing.assert_close(sent(update)["spread"][label], spread, rtol=1e-5, atol=1e-6)
            elif len(a) <= 1 and len(b) <= 1 and len(a) + len(b):
                single += 1
                assert sent(update)["seen"][label] == 1
                assert sent(update)["spread_seen"][label] == 0
                assert not sent(update)["spread"][label].any()
    assert both and single


def test_the_cap_holds_and_is_reached() -> None:
    for moment in ("std", "var"):
        capped, free = (
            sent(trained(method, **LENET, rounds=1, executor=Tracing).executor.updates[0])["spread"]
            for method in (FedImpro(moment=moment, sigma_cap=0.05), FedImpro(moment=moment, sigma_cap=None))
        )
        assert (free > 0.05).any()
        assert (free[free > 0] < 0.05).any()
        torch.testing.assert_close(capped, free.clamp(max=0.05), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    "settings", [{}, {"initial": "uniform"}, {"beta_client": "count", "moment": "var"}], ids=str
)
def test_absent_classes_come_back(settings: dict[str, object]) -> None:
    """What a client has no images of, it returns bit for bit."""
    method = FedImpro(**settings)
    federation = simulation(method, **LENET, partition=by_class(), fraction=0.67, executor=Tracing)
    absent = 0
    for number in range(3):
        received = {name: estimates(federation)[name].clone() for name in NUMBERS}
        federation.round(number)
        for update in federation.executor.updates:
            without = federation.data.class_counts[update.client] == 0
            absent += int((received["seen"][without] > 0).sum())
            for name in NUMBERS:
                assert torch.equal(sent(update)[name][without], received[name][without]), name
    assert absent, "nobody lacked a class that was known"


def test_estimates_at_the_start() -> None:
    masked = estimates(simulation(FedImpro(), **LENET))
    assert not any(masked[name].any() for name in NUMBERS)
    for moment, spread in (("std", 0.1), ("var", 0.01)):
        start = estimates(simulation(FedImpro(initial="uniform", moment=moment), **LENET))
        assert (start["seen"] == 1).all()
        assert (start["spread_seen"] == 1).all()
        assert start["mean"].min() >= 0
        assert start["mean"].max() < 1
        assert start["mean"].double().mean() == pytest.approx(0.5, abs=4 * math.sqrt(1 / 12 / 3840))
        torch.testing.assert_close(start["spread"], torch.full_like(start["spread"], spread))
    others = [estimates(simulation(FedImpro(initial="uniform"), **LENET, seed=seed)) for seed in (0, 0, 1)]
    assert torch.equal(others[0]["mean"], others[1]["mean"])
    assert not torch.equal(others[0]["mean"], others[2]["mean"])


# ------------------------------------------------------------------------------------ the server
def upload(method: FedImpro, counts: Sequence[float] | Tensor, **numbers: object) -> Update:
    """What a client with such numbers of images sends, given its estimates."""
    tensors = {name: torch.as_tensor(value, dtype=torch.float32) for name, value in numbers.items()}
    ones = torch.ones(len(tensors["mean"]))
    tensors = {"seen": ones, "spread_seen": ones, **tensors}
    start = torch.zeros(1)
    local = local_of(start, tensors, counts=torch.as_tensor(counts, dtype=torch.float32))
    update, _ = method.client_final(update_of(start, start), local, {**tensors, "step": torch.tensor(0)})
    return update


def served(method: FedImpro, before: dict[str, object], uploads: Sequence[Update]) -> dict[str, list[object]]:
    """What the server knows afterwards."""
    state = {name: torch.as_tensor(value, dtype=torch.float32) for name, value in before.items()}
    state = {"seen": torch.ones(len(state["mean"])), "spread_seen": torch.ones(len(state["mean"])), **state}
    nothing = torch.zeros(0)
    server = Server(nothing, nothing, nothing.long(), {method.name: state})
    return method.server_step(task_of(), state, server, uploads)


def three_clients(method: FedImpro) -> list[Update]:
    """Two classes, a map of one number; the third client has none of the second class, which came as 10."""
    return [
        upload(method, [1, 2], mean=[[1.0], [4.0]], spread=[[0.01], [0.02]]),
        upload(method, [2, 6], mean=[[2.0], [8.0]], spread=[[0.02], [0.04]]),
        upload(method, [5, 0], mean=[[6.0], [10.0]], spread=[[0.06], [0.06]]),
    ]


BEFORE = {"mean": [[100.0], [10.0]], "spread": [[0.1], [0.06]]}


def test_uniform_means_with_what_was_carried() -> None:
    """A class that one of three clients lacks keeps a third of what it was."""
    method = FedImpro()
    after = served(method, BEFORE, three_clients(method))
    torch.testing.assert_close(after["mean"], torch.tensor([[3.0], [22 / 3]]))
    torch.testing.assert_close(after["spread"], torch.tensor([[0.03], [0.04]]))


def test_means_over_holders() -> None:
    method = FedImpro(aggregation="holders_only")
    after = served(method, BEFORE, three_clients(method))
    torch.testing.assert_close(after["mean"], torch.tensor([[3.0], [6.0]]))
    torch.testing.assert_close(after["spread"], torch.tensor([[0.03], [0.03]]))


def test_means_by_size_of_the_class() -> None:
    """(1 + 4 + 30) / 8 and (8 + 48) / 8; variances within and between clients."""
    method = FedImpro(aggregation="label_size", sigma_cap=None)
    after = served(method, BEFORE, three_clients(method))
    torch.testing.assert_close(after["mean"], torch.tensor([[35 / 8], [7.0]]))
    within = (1 * 0.01**2 + 2 * 0.02**2 + 5 * 0.06**2) / 8
    between = (1 * (1 - 35 / 8) ** 2 + 2 * (2 - 35 / 8) ** 2 + 5 * (6 - 35 / 8) ** 2) / 8
    second = (2 * 0.02**2 + 6 * 0.04**2) / 8 + (2 * 3**2 + 6 * 1**2) / 8
    expected = torch.tensor([[within + between], [second]]).sqrt()
    torch.testing.assert_close(after["spread"], expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize("moment", ["std", "var"])
def test_pooled_spread_is_that_of_the_pooled_data(moment: str) -> None:
    """Clients of different sizes that know their own mean and variance: the server finds those of all."""
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
def test_old_estimates_weigh_beta(aggregation: str) -> None:
    fresh, mixed = (
        served(method, BEFORE, three_clients(method))
        for method in (
            FedImpro(aggregation=aggregation, beta_server=beta, sigma_cap=None) for beta in (0.0, 0.7)
        )
    )
    for name in ("mean", "spread"):
        expected = 0.7 * torch.tensor(BEFORE[name]) + 0.3 * fresh[name]
        torch.testing.assert_close(mixed[name], expected)
    unknown = {**BEFORE, "seen": [0.0, 1.0], "spread_seen": [0.0, 1.0]}
    first = served(
        FedImpro(aggregation=aggregation, beta_server=0.7),
        unknown,
        three_clients(FedImpro(aggregation=aggregation)),
    )
    torch.testing.assert_close(first["mean"][0], fresh["mean"][0])
    assert first["seen"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("aggregation", ["uniform_carry", "holders_only", "label_size"])
def test_nobody_counts_for_a_class_that_he_knows_nothing_of(aggregation: str) -> None:
    method = FedImpro(aggregation=aggregation, sigma_cap=None)
    nothing = {
        "mean": [[0.0], [0.0]],
        "spread": [[0.0], [0.0]],
        "seen": [0.0, 0.0],
        "spread_seen": [0.0, 0.0],
    }
    uploads = [
        upload(method, [4, 0], **{**nothing, "mean": [[2.0], [0.0]], "seen": [1.0, 0.0]}),
        upload(
            method,
            [2, 0],
            mean=[[2.0], [0.0]],
            spread=[[0.5], [0.0]],
            seen=[1.0, 0.0],
            spread_seen=[1.0, 0.0],
        ),
    ]
    after = served(method, nothing, uploads)
    assert after["mean"].flatten().tolist() == [2.0, 0.0]
    torch.testing.assert_close(after["spread"].flatten(), torch.tensor([0.5, 0.0]))
    assert after["seen"].tolist() == after["spread_seen"].tolist() == [1.0, 0.0]


def test_classes_that_no_holder_was_sampled_of_stay_as_they_are() -> None:
    for aggregation in ("holders_only", "label_size"):
        method = FedImpro(aggregation=aggregation)
        after = served(method, BEFORE, three_clients(method)[2:])
        assert after["mean"][1].item() == 10.0
        assert after["spread"][1].item() == pytest.approx(0.06)


def test_mean_of_uploads() -> None:
    """All clients hold all classes: their plain mean, in the real loop, whatever their sizes."""
    method = FedImpro()
    order = np.random.default_rng(0).permutation(120)
    partition = Partition(np.split(order, [30, 75]), digest="")
    settings = {**LENET, "partition": partition, "fraction": 1.0, "batch_size": FULL_BATCH}
    federation = simulation(method, executor=Tracing, **settings)
    for number in range(2):
        federation.round(number)
        updates = federation.executor.updates
        held = torch.stack([federation.data.class_counts[update.client] for update in updates]).amin(0) > 1
        assert held.sum() > 5
        for name in ("mean", "spread"):
            mean = torch.stack([sent(update)[name][held].double() for update in updates]).mean(0)
            torch.testing.assert_close(estimates(federation)[name][held].double(), mean, rtol=1e-5, atol=1e-7)


# ------------------------------------------------------------------------------------ noise on what goes up
def noise_of(method: FedImpro, **settings: object) -> tuple[list[dict[str, Tensor]], Simulation]:
    """What the noise added to the uploads of two clients in round 0, and the federation."""
    without = method.model_copy(update={"noise": 0.0})
    noisy, exact = (
        trained(one, **LENET, rounds=1, fraction=0.34, executor=Tracing, **settings)
        for one in (method, without)
    )
    pairs = zip(noisy.executor.updates, exact.executor.updates, strict=True)
    return [{name: sent(one)[name] - sent(other)[name] for name in NUMBERS} for one, other in pairs], noisy


def check_noise(method: FedImpro) -> None:
    """N(0, s^2) on every number, of known and unknown classes alike; its own for each client and tensor."""
    noises, federation = noise_of(method)
    assert len(noises) == 2
    flat = [noise[name].flatten().double() for noise in noises for name in ("mean", "spread")]
    for one in flat:
        assert len(one) == 3840
        assert abs(one.mean()) < 4 * method.noise / math.sqrt(len(one))
        assert float(one.std()) == pytest.approx(method.noise, rel=4 / math.sqrt(2 * len(one)))
    correlations = np.corrcoef(torch.stack(flat).numpy())
    assert np.abs(correlations - np.eye(4)).max() < 4 / math.sqrt(3840)
    for noise in noises:
        assert not noise["seen"].any()
        assert not noise["spread_seen"].any()
    assert estimates(federation)["spread"].min() == 0, "spreads that became negative are clamped on receipt"
    assert estimates(federation)["spread"].max() <= 0.1 + 1e-7


@pytest.mark.parametrize("noise", [0.001, 0.5])
def test_noise(noise: float) -> None:
    if noise > 0.1:  # for less, spreads need not become negative
        check_noise(FedImpro(noise=noise))
    else:
        noises, _ = noise_of(FedImpro(noise=noise))
        assert float(noises[0]["mean"].std()) == pytest.approx(noise, rel=0.05)


def test_noise_is_reproducible_and_differs_by_round_and_seed() -> None:
    first, again, other = (noise_of(FedImpro(noise=0.5), seed=seed)[0][0]["mean"] for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    method, start = FedImpro(noise=0.5), torch.zeros(1)
    numbers = {name: torch.zeros(2, 50) for name in ("mean", "spread")}
    flags = {name: torch.ones(2) for name in ("seen", "spread_seen")}
    of_rounds = [
        sent(
            method.client_final(
                update_of(start, start), replace(local_of(start), round=number), numbers | flags
            )[0]
        )
        for number in (0, 1)
    ]
    assert abs(np.corrcoef(*(one["mean"].flatten().numpy() for one in of_rounds))[0, 1]) < 0.4


def test_noise_is_for_the_estimates_alone() -> None:
    """The weights of the round are not touched, nor those of any round without samples."""
    noisy, exact = (
        trained(FedImpro(n_hat=0, noise=noise), **LENET, rounds=3, executor=Tracing) for noise in (0.5, 0.0)
    )
    assert_same_model(noisy, exact)
    assert not torch.equal(estimates(noisy)["mean"], estimates(exact)["mean"])


# ------------------------------------------------------------------------------------ samples


MOMENTS = [
    {"split": 2},
    {"split": 2, "moment": "var"},
    {"split": 1, "shape": "channel"},
    {"split": 1, "shape": "channel", "moment": "var"},
]


@pytest.mark.parametrize("settings", MOMENTS, ids=str)
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
    assert (one.sampled < 0).any(), "samples are not clamped to what a ReLU gives out"


def noise_in_the_samples(
    monkeypatch: pytest.MonkeyPatch, rounds: int = 1, **settings: object
) -> list[list[Tensor]]:
    """Samples of mean 0 and spread 1, step by step, client by client."""
    federation = simulation(
        FedImpro(split=2, sigma_cap=None),
        **LENET,
        partition=evenly(4),
        fraction=0.5,
        executor=Tracing,
        **settings,
    )
    passes = watch(federation, 2, monkeypatch)
    shape = estimates(federation)["mean"].shape
    found: list[list[Tensor]] = []
    for number in range(rounds):
        give_estimates(federation, mean=torch.zeros(shape), spread=torch.ones(shape))
        federation.round(number)
        found += [[one.sampled for one in own] for _, own in passes_by_client(federation, passes)]
    return found


def test_every_step_client_and_round_has_its_own_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    found = noise_in_the_samples(monkeypatch, rounds=2, batch_size=8)
    steps = [sampled.flatten()[:300] for client in found for sampled in client if len(sampled) == 8]
    assert len(steps) >= 8
    correlations = np.corrcoef(torch.stack(steps).numpy())
    assert np.abs(correlations - np.eye(len(steps))).max() < 5 / math.sqrt(300)


def test_no_random_number_serves_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a last batch is smaller than those before it."""
    found = noise_in_the_samples(monkeypatch, batch_size=8, epochs=2)
    assert {len(sampled) for client in found for sampled in client} == {8, 6}
    numbers = torch.cat([sampled.flatten() for client in found for sampled in client])
    assert len(numbers) > 3000
    assert len(numbers.unique()) > 0.99 * len(numbers)


# ------------------------------------------------------------------------------------ labels of samples
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
@pytest.mark.parametrize("n_hat", [None, 25, 3])
def test_balanced_labels(n_hat: int | None, known: Sequence[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every known class floor(n / C) times, and the rest at random, each class at most once."""
    passes = labels_of_steps(FedImpro(n_hat=n_hat), known, monkeypatch, batch_size=8, last_batch="drop")
    rests = []
    for one in passes:
        count = len(one.labels) if n_hat is None else n_hat
        counts = counts_of(one.sampled_labels)
        assert sum(counts) == count
        assert sum(counts[label] for label in known) == count
        whole, rest = divmod(count, len(known))
        assert sorted(counts[label] - whole for label in known) == [0] * (len(known) - rest) + [1] * rest
        rests.append(counts)
        assert len(one.sampled) == count
    if rest:
        assert len({tuple(counts) for counts in rests}) > 1, "the rest is drawn anew in every step"


@pytest.mark.parametrize("batch_size", [25, FULL_BATCH])
def test_balanced_labels_of_batches_that_are_not_full(
    batch_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many samples as the batch has images, balanced as well."""
    passes = labels_of_steps(FedImpro(), range(10), monkeypatch, batch_size=batch_size)
    assert any(len(one.labels) < batch_size for one in passes)
    for one in passes:
        counts = counts_of(one.sampled_labels)
        assert sum(counts) == len(one.labels)
        assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize(("known", "expected"), [(range(10), 20), ([2, 5, 7], 6)], ids=str)
def test_tiled_labels(known: Sequence[int], expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """C (B // C + 1) samples of all classes in turn."""
    method = FedImpro(labels="tiled")
    for one in labels_of_steps(method, known, monkeypatch, batch_size=12, last_batch="drop"):
        assert len(one.labels) == 12
        assert len(one.sampled_labels) == expected
        assert counts_of(one.sampled_labels) == [2 * (label in known) for label in range(CLASSES)]


@pytest.mark.parametrize("batch_size", [7, 12, FULL_BATCH])
def test_tiled_labels_of_batches_that_are_not_full(batch_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """B is the number of images in the batch."""
    passes = labels_of_steps(FedImpro(labels="tiled"), range(10), monkeypatch, batch_size=batch_size)
    assert any(len(one.labels) < batch_size for one in passes)
    for one in passes:
        assert counts_of(one.sampled_labels) == [len(one.labels) // CLASSES + 1] * CLASSES


def test_labels_of_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    for one in labels_of_steps(FedImpro(labels="batch"), range(10), monkeypatch, batch_size=7):
        assert torch.equal(one.sampled_labels, one.labels)


def test_labels_of_the_batch_without_an_estimate_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    known = torch.tensor([0, 1, 2, 3, 4])
    passes = labels_of_steps(FedImpro(labels="batch"), known.tolist(), monkeypatch, batch_size=7)
    replaced = 0
    for one in passes:
        assert torch.isin(one.sampled_labels, known).all()
        kept = torch.isin(one.labels, known)
        assert torch.equal(one.sampled_labels[kept], one.labels[kept])
        replaced += int((~kept).sum())
    assert replaced


@pytest.mark.parametrize("labels", ["balanced", "batch", "tiled"])
def test_samples_are_of_the_class_that_their_label_says(labels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    federation = simulation(FedImpro(labels=labels), **LENET)
    passes = watch(federation, 1, monkeypatch)
    given = random_estimates(federation)
    give_estimates(federation, mean=given["mean"], spread=torch.zeros_like(given["mean"]))
    federation.round(0)
    for one in passes:
        assert torch.equal(one.sampled, given["mean"][one.sampled_labels])


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
def test_source_of_the_samples(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With hardly any spread: the means as received, or as the client has renewed them so far."""
    method = FedImpro(source=source, beta_client=0.5, sigma_cap=1e-6)
    federation = simulation(method, **LENET, partition=evenly(4), executor=Tracing)
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


# ------------------------------------------------------------------------------------ weights of the losses
def weights_in_round(
    method: FedImpro, number: int, monkeypatch: pytest.MonkeyPatch, rounds: int = 10, epochs: int = 1
) -> tuple[float, float]:
    """What the losses on images and on samples are multiplied by."""
    federation = simulation(method, **LENET, rounds=rounds, epochs=epochs, batch_size=16)
    task, start = federation.task, federation.server.weights
    local = local_of(start, method.server_init(task, start), task=task)
    local = replace(local, round=number)
    step_state = method.client_init(local)
    step = SimpleNamespace(images=drawn(16, 1, 16, 16), labels=torch.arange(16) % CLASSES)
    outputs = method.forward(federation.network, step, local, step_state)
    with monkeypatch.context() as context:
        context.setattr(functional, "cross_entropy", lambda *_: torch.tensor(1.0))
        sampled = float(method.loss(torch.tensor(0.0), outputs, step, local, step_state))
        return float(method.loss(torch.tensor(1.0), outputs, step, local, step_state)) - sampled, sampled


# Setting, rounds, epochs, and by round the weights of images and of samples.
WEIGHTS = [
    ({"weight": "ramp"}, 10, 1, {0: (1, 0), 1: (1, 0.2), 4: (1, 0.8), 5: (1, 1), 6: (1, 1), 10: (1, 1)}),
    ({"weight": "ramp"}, 1000, 5, {0: (1, 0), 250: (1, 0.5), 500: (1, 1), 999: (1, 1), 1000: (1, 1)}),
    ({"weight": "ramp", "ramp_rounds": 4}, 1000, 1, {0: (1, 0), 1: (1, 0.25), 4: (1, 1), 1000: (1, 1)}),
    ({"weight": "ramp"}, 7, 1, {0: (1, 0), 1: (1, 2 / 7), 3: (1, 6 / 7), 4: (1, 1), 7: (1, 1)}),
    ({"weight": "ramp"}, 1, 1, {0: (1, 0), 1: (1, 1)}),
    ({"weight": "ramp_unclipped", "ramp_rounds": 500}, 1000, 1, {0: (1, 0), 500: (1, 1), 1000: (1, 2)}),
    ({"weight": "ramp_unclipped", "ramp_rounds": 500}, 400, 5, {0: (1, 0), 100: (1, 1), 400: (1, 4)}),
    ({"weight": "ramp_unclipped"}, 10, 2, {0: (1, 0), 5: (1, 2), 10: (1, 4)}),
    ({"weight": "constant"}, 10, 3, {0: (1, 1), 5: (1, 1), 10: (1, 1)}),
    ({"weight": "half_half"}, 10, 1, {0: (1, 0), 1: (0.9, 0.1), 5: (0.5, 0.5), 10: (0.5, 0.5)}),
    ({"weight": "mean_concat"}, 10, 1, {0: (0.5, 0.5), 5: (0.5, 0.5), 10: (0.5, 0.5)}),
    ({"weight": "mean_concat", "n_hat": 48}, 10, 1, {0: (0.25, 0.75), 10: (0.25, 0.75)}),
    ({"weight": "mean_concat", "n_hat": 4}, 10, 1, {0: (0.8, 0.2)}),
]


@pytest.mark.parametrize(("settings", "rounds", "epochs", "expected"), WEIGHTS, ids=str)
def test_weights_of_the_losses(
    settings: dict[str, object], rounds: int, epochs: int, expected: dict[int, tuple[float, float]]
) -> None:
    method = FedImpro(initial="uniform", **settings)
    with pytest.MonkeyPatch.context() as monkeypatch:
        for number, weights in expected.items():
            found = weights_in_round(method, number, monkeypatch, rounds, epochs)
            assert found == pytest.approx(weights, rel=1e-6, abs=1e-7), number


def test_one_mean_over_images_and_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """``mean_concat`` is the mean cross entropy of the whole batch that passed through the network."""
    federation = simulation(
        FedImpro(initial="uniform", weight="mean_concat", n_hat=5),
        **LENET,
        fraction=0.1,
        batch_size=FULL_BATCH,
    )
    passes = watch(federation, 1, monkeypatch)
    (row,) = (row for row in federation.round(0) if row["kind"] == "train")
    (one,) = passes
    logits, labels = (torch.cat(parts) for parts in zip(*one.losses, strict=True))
    assert row["loss"] == pytest.approx(functional.cross_entropy(logits, labels).item(), rel=1e-5)


# ------------------------------------------------------------------------------------ who learns from what
def one_step(method: Method, seed: int | None = None) -> Simulation:
    """One full-batch step of plain SGD with rate 1 by two clients; estimates are drawn from the seed."""
    settings = {**LENET, "fraction": 0.34, "batch_size": FULL_BATCH, "lr": 1.0, **PLAIN}
    federation = simulation(method, executor=Tracing, **settings)
    if seed is not None:
        known = torch.ones(CLASSES).index_fill(0, torch.tensor([seed, seed + 1]), 0.0)
        give_estimates(federation, **random_estimates(federation, seed), seen=known, spread_seen=known)
    federation.round(0)
    return federation


def moved(federation: Simulation, cut: int, below: bool) -> Tensor:
    """How the clients moved the parameters below or above a cut ``[m, ...]``."""
    names = list(dict(federation.network.named_children()))
    lower = names[: names.index(federation.network.splits[cut]) + 1]
    rows = torch.stack([update.displacement for update in federation.executor.updates])
    slots = federation.model.layout.parameters
    marks = [
        torch.full((slot.stop - slot.start,), (slot.name.split(".")[0] in lower) == below) for slot in slots
    ]
    return rows[:, torch.cat(marks)]


def check_lower_part_learns_from_images_alone(method: type[FedImpro], **settings: object) -> None:
    """Its gradient is that of the real term, whatever is sampled; the upper part's is not."""
    for cut in (1, 2):
        plain = one_step(FedAvg())
        first, second = (one_step(method(split=cut, weight="constant", **settings), seed) for seed in (1, 6))
        assert torch.equal(moved(first, cut, below=True), moved(second, cut, below=True))
        assert not torch.equal(moved(first, cut, below=False), moved(second, cut, below=False))
        expected = moved(plain, cut, below=True)
        assert expected.norm() > 0.01
        torch.testing.assert_close(moved(first, cut, below=True), expected, rtol=1e-4, atol=1e-6)
        upper = moved(plain, cut, below=False)
        assert (moved(first, cut, below=False) - upper).norm() > 0.1 * upper.norm()


@pytest.mark.parametrize("settings", [{}, {"labels": "tiled"}, {"shape": "channel", "n_hat": 50}], ids=str)
def test_lower_part_learns_from_images_alone(settings: dict[str, object]) -> None:
    check_lower_part_learns_from_images_alone(FedImpro, **settings)


def test_upper_part_learns_from_images_and_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient of L + w L', by autograd on the maps that entered it."""
    cut, method = 1, FedImpro(split=1, weight="ramp", ramp_rounds=4, n_hat=30)
    federation = simulation(
        method, **LENET, fraction=0.1, batch_size=FULL_BATCH, lr=1.0, executor=Tracing, **PLAIN
    )
    network = copy.deepcopy(federation.network)
    passes = watch(federation, cut, monkeypatch)
    give_estimates(federation, **random_estimates(federation))
    federation.round(3)
    (one,) = passes
    loss = functional.cross_entropy(network.upper(one.real, cut), one.labels)
    loss = loss + 0.75 * functional.cross_entropy(network.upper(one.sampled, cut), one.sampled_labels)
    loss.backward()
    gradients = [p.grad.flatten() for name, p in network.named_parameters() if not name.startswith("conv1.")]
    torch.testing.assert_close(
        -moved(federation, cut, below=False)[0], torch.cat(gradients), rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize("base", [FedAvg(), Scaffold(), Moon(), FedSOL()], ids=by_name)
def test_without_samples_it_is_the_base_method_bit_for_bit(base: Method) -> None:
    """Estimates go up all the same."""
    plain = trained(base, **LENET, rounds=2)
    for settings in ({}, {"labels": "tiled", "noise": 0.5, "initial": "uniform", "split": 2}):
        improved = trained(base, FedImpro(n_hat=0, **settings), **LENET, rounds=2)
        assert_same_model(improved, plain)
        assert estimates(improved)["seen"].sum() > 5
        assert rows_of(improved, "evaluation") == rows_of(plain, "evaluation")


def test_with_weight_zero_it_is_the_base_method(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the first round of the ramp, samples pass through the network, to no effect without BatchNorm."""
    plain = trained(FedAvg(), **LENET, rounds=1)
    federation = simulation(FedImpro(initial="uniform"), **LENET)
    passes = watch(federation, 1, monkeypatch)
    federation.round(0)
    assert all(len(one.sampled) == len(one.labels) for one in passes)
    torch.testing.assert_close(federation.server.weights, plain.server.weights, rtol=1e-5, atol=1e-6)
    other = trained(FedImpro(**AT_ONCE), **LENET, rounds=1)
    assert (other.server.weights - plain.server.weights).norm() > 1e-3


def test_batchnorm_above_the_cut_sees_images_and_samples_together() -> None:
    """Below the cut it sees images; running statistics above are those of the joint batch."""
    federation = simulation(FedImpro(split=4, n_hat=33, **AT_ONCE), fraction=0.1, batch_size=FULL_BATCH)
    inputs: dict[str, Tensor] = {}
    norms = {name: module for name, module in federation.network.named_modules() if name.endswith("_norm")}

    def keep(name: str) -> Callable[..., None]:
        return lambda module, args: inputs.update({name: args[0].detach()} if module.training else {})

    for name, module in norms.items():
        module.register_forward_pre_hook(keep(name))
    before = {
        name: (module.running_mean.clone(), module.running_var.clone()) for name, module in norms.items()
    }
    start = federation.server
    (client,) = federation.sample(0)
    images = len(federation.data.clients[client])
    federation.round(0)
    assert not torch.equal(start.buffers, federation.server.buffers)
    federation.model.load(federation.server.weights, federation.server.buffers, federation.server.counters)
    for name, module in norms.items():
        assert len(inputs[name]) == images + 33 * (not name.startswith("stage1")), name
        mean, variance = inputs[name].mean((0, 2, 3)), inputs[name].var((0, 2, 3))
        torch.testing.assert_close(
            module.running_mean, 0.9 * before[name][0] + 0.1 * mean, rtol=1e-4, atol=1e-6
        )
        torch.testing.assert_close(
            module.running_var, 0.9 * before[name][1] + 0.1 * variance, rtol=1e-4, atol=1e-6
        )


def test_evaluation_sees_images_alone() -> None:
    federation = simulation(FedImpro(**AT_ONCE))
    seen: list[int] = []

    def count(module: nn.Module, inputs: tuple[Tensor]) -> None:
        if not module.training:
            seen.append(len(inputs[0]))

    federation.network.classifier.register_forward_pre_hook(count)
    rows = federation.round(0)
    assert sum(seen) == len(federation.data.test) == 40
    (row,) = (row for row in rows if row["kind"] == "evaluation")
    network = federation.network.eval()
    correct = (
        network(federation.data.test.batch(torch.arange(40))[0]).argmax(1) == federation.data.test.labels
    )
    assert row["accuracy"] == pytest.approx(correct.double().mean().item())


# ------------------------------------------------------------------------------------ gradient dissimilarity
class LinearTop(Model):
    """A convolution below the cut, a linear classifier above it."""

    name: Literal["linear_top"] = "linear_top"
    min_side: ClassVar[int] = 1

    def network(self, channels: int, side: int, classes: int) -> Network:
        stem = nn.Sequential(nn.Conv2d(channels, 4, 3, stride=2), nn.ReLU(), nn.Flatten())
        return Network(stem=stem, classifier=nn.Linear(4 * ((side - 1) // 2) ** 2, classes))


def dissimilarity_above(method: Method, number: int = 0) -> float:
    """That of the upper part's gradients, of four clients with 30 images each that all get the same samples.

    The estimates have no spread and every class is sampled equally often, so that nothing is left to chance.
    """
    settings = {"partition": evenly(4), "fraction": 1.0, "batch_size": 30, "lr": 1.0, **PLAIN}
    federation = simulation(method, model=LinearTop(), executor=Tracing, **settings)
    if isinstance(method, FedImpro):
        shape = estimates(federation)["mean"].shape
        give_estimates(federation, mean=drawn(*shape).abs(), spread=torch.zeros(shape))
    federation.round(number)
    gradients = -torch.stack([update.displacement for update in federation.executor.updates])
    head = [slot for slot in federation.model.layout.parameters if slot.name.startswith("classifier.")]
    measured = gradient_variance(gradients, head)
    rows = gradients[:, federation.model.layout.head :].double()
    assert measured == pytest.approx(float((rows - rows.mean(0)).norm(dim=1).square().mean()), rel=1e-9)
    return measured


@pytest.mark.parametrize(
    ("settings", "number", "factor"),
    [
        ({"weight": "mean_concat"}, 0, 1 / 4),
        ({"weight": "half_half", "ramp_rounds": 3}, 3, 1 / 4),
        ({"weight": "mean_concat", "n_hat": 90}, 0, 1 / 16),
        ({"weight": "mean_concat", "n_hat": 10}, 0, 9 / 16),
        ({"weight": "constant"}, 0, 1),
    ],
    ids=str,
)
def test_shared_samples_reduce_the_dissimilarity(
    settings: dict[str, object], number: int, factor: float
) -> None:
    """By N^2 / (N + n)^2: a quarter for as many samples as images."""
    plain = dissimilarity_above(FedAvg(), number)
    assert plain > 1e-3
    assert dissimilarity_above(FedImpro(**settings), number) == pytest.approx(factor * plain, rel=1e-4)


# ------------------------------------------------------------------------------------ cuts, sizes, traffic
def described(model: Model, channels: int, side: int, classes: int) -> tuple[Task, Tensor]:
    """A task with a large network that has shapes only, and weights to start from."""
    with torch.device("meta"):
        network = model.network(channels, side, classes)
        example = torch.zeros(1, channels, side, side)
    task = replace(
        task_of(), network=network, classes=classes, map_shape=partial(map_shape, network, example)
    )
    return task, torch.zeros(1, device="meta")


def payload_of(method: FedImpro, task: Task, start: Tensor) -> dict[str, Tensor]:
    return method.payload(method.server_init(task, start))


@pytest.mark.parametrize(
    ("split", "numbers", "megabytes"), [(5, 65536, 5.2), (9, 32768, 2.6), (13, 16384, 1.3), (17, 512, 0.04)]
)
def test_numbers_at_the_cuts_of_resnet18(split: int, numbers: int, megabytes: float) -> None:
    """D per class at each cut, and 2 C D floats of traffic for ten classes."""
    payload = payload_of(FedImpro(split=split), *described(ResNet18(), 3, 32, 10))
    assert payload["mean"].shape == payload["spread"].shape
    assert payload["mean"].flatten(1).shape == (10, numbers)
    assert 4 * 2 * payload["mean"].numel() / 1e6 == pytest.approx(megabytes, rel=0.03)


def test_the_default_cut_is_the_middle_one() -> None:
    """ResNet-18: behind convolution 9; ResNet-50: behind 22; Federated EMNIST's images have 28 pixels."""
    shapes = {
        (ResNet18(), 3, 32, 10): (10, 128, 16, 16),
        (ResNet18(), 1, 28, 62): (62, 128, 14, 14),
        (ResNet50(), 3, 32, 100): (100, 512, 16, 16),
        (MobileNetTiny(), 1, 8, 10): (10, 16, 8, 8),
        (LeNet5(), 1, 28, 10): (10, 6, 14, 14),
    }
    defaults = (9, 9, 22, 4, 1)
    for (case, shape), cut in zip(shapes.items(), defaults, strict=True):
        for method in (FedImpro(), FedImpro(split=cut)):
            assert payload_of(method, *described(*case))["mean"].shape == shape
    vgg9 = payload_of(FedImpro(split=6), *described(Vgg9(), 3, 32, 10))
    assert vgg9["mean"].shape == (10, 4096)


def test_statistics_by_channel_are_smaller() -> None:
    """ResNet-50 with 100 classes: 105 MB, or 0.41 MB by channel."""
    large = described(ResNet50(), 3, 32, 100)
    for shape, megabytes in (("element", 105), ("channel", 0.41)):
        payload = payload_of(FedImpro(shape=shape), *large)
        assert 8 * payload["mean"].numel() / 1e6 == pytest.approx(megabytes, rel=0.01)
    behind_pooling = described(ResNet18(), 3, 32, 10)
    shapes = [
        payload_of(FedImpro(split=17, shape=shape), *behind_pooling) for shape in ("element", "channel")
    ]
    assert shapes[0]["mean"].shape == shapes[1]["mean"].shape == (10, 512)


@pytest.mark.parametrize(
    ("settings", "numbers"),
    [
        ({}, 384),
        ({"shape": "channel"}, 6),
        ({"split": 2}, 64),
        ({"aggregation": "holders_only"}, 384),
        ({"aggregation": "label_size", "noise": 0.1, "initial": "uniform"}, 384),
    ],
    ids=str,
)
def test_traffic(settings: dict[str, object], numbers: int) -> None:
    """Mean and spread, 2 C D floats, and what is known of which class, 2 C, each way; counts go up too."""
    improved, plain = (
        trained(*methods, **LENET, rounds=2) for methods in ((FedImpro(**settings),), (FedAvg(),))
    )
    extra = 4 * (2 * CLASSES * numbers + 2 * CLASSES)
    trips = 2 * 3
    assert improved.bytes_down - plain.bytes_down == trips * extra
    counts = 4 * CLASSES if "aggregation" in settings else 0
    assert improved.bytes_up - plain.bytes_up == trips * (extra + counts)
    assert not any(kept["fedimpro"] for kept in improved.clients.values()), "clients keep nothing"
    assert sum(tensor.numel() for tensor in estimates(improved).values()) == extra / 4


def test_unknown_cuts_are_refused() -> None:
    with pytest.raises(FltrainError, match=r"cannot be split at convolution 3 \(possible: 1, 4, 7, 8\)"):
        simulation(FedImpro(split=3))

    class Flat(Model):
        name: Literal["flat"] = "flat"
        min_side: ClassVar[int] = 1

        def network(self, channels: int, side: int, classes: int) -> Network:
            return Network(flatten=nn.Flatten(), classifier=nn.Linear(channels * side**2, classes))

    for split in (None, 1):
        with pytest.raises(FltrainError, match="it has no convolutions"):
            simulation(FedImpro(split=split), model=Flat())


def test_labels_that_say_how_many_leave_no_choice() -> None:
    for labels in ("batch", "tiled"):
        run = {"dataset": "digits", "partition": "iid", "model": "mobilenet_tiny", "method": "fedavg"}
        with pytest.raises(FltrainError, match=f"n_hat: labels '{labels}' decide how many"):
            RunSpec.parse({**run, "plugins": [{"name": "fedimpro", "labels": labels, "n_hat": 5}]}, "run")
        assert FedImpro(labels=labels, n_hat=0).n_hat == 0


@pytest.mark.parametrize("model", [MobileNetTiny(), LeNet5()], ids=by_name)
def test_parts_of_a_network_are_the_network(model: Model) -> None:
    """Below and above any cut together: features and logits, bit for bit, in both modes."""
    side = 16 if isinstance(model, LeNet5) else 8
    network, images = build(model, 1, side, CLASSES, seed=0), drawn(5, 1, side, side)
    for mode in (True, False):
        for cut in network.splits:
            whole, parts = (copy.deepcopy(network).train(mode) for _ in range(2))
            maps = parts.lower(images, cut)
            assert map_shape(network, images[:1], cut) == maps.shape[1:]
            features = parts.upper_features(maps, cut)
            assert torch.equal(features, whole.features(images))
            assert torch.equal(parts.classifier(features), whole.classifier(features))


@pytest.mark.parametrize("training", [True, False])
def test_looking_at_the_shape_leaves_the_network_as_it_was(training: bool) -> None:
    network = build(MobileNetTiny(), 1, 8, CLASSES, seed=0).train(training)
    before = copy.deepcopy(network.state_dict())
    map_shape(network, drawn(1, 1, 8, 8), 4)
    assert network.training == training
    assert all(module.training == training for module in network.modules())
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


# ------------------------------------------------------------------------------------ with other methods
@pytest.mark.parametrize(
    "methods",
    [
        (Moon(),),
        (FedSOL(),),
        (Scaffold(),),
        (FedAvg(), Flfa(strategy="fixed", layers="all")),
        (FedAvg(), Ecgr()),
    ],
    ids=by_name,
)
def test_combinations_train(methods: tuple[Method, ...]) -> None:
    """With samples from the first round on, not as without them, and in any order of plug-ins."""
    base, *plugins = methods
    federation = trained(base, FedImpro(**AT_ONCE), *plugins, rounds=1, fraction=0.34)
    plain = trained(*methods, rounds=1, fraction=0.34)
    for part in (federation.server.weights, federation.server.buffers, estimates(federation)["mean"]):
        assert part.isfinite().all()
    assert not torch.equal(federation.server.weights, plain.server.weights)
    assert estimates(federation)["seen"].sum() == CLASSES
    if plugins:
        other = trained(base, *plugins, FedImpro(**AT_ONCE), rounds=1, fraction=0.34)
        assert_same_model(federation, other)
        for name in NUMBERS:
            assert torch.equal(estimates(federation)[name], estimates(other)[name])


def test_samples_are_the_same_in_all_passes_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """FedSOL goes through the network twice, with other weights; only the second pass has labels."""
    federation = simulation(FedSOL(), FedImpro(**AT_ONCE), **LENET, executor=Tracing, partition=evenly(4))
    passes = watch(federation, 1, monkeypatch)
    federation.round(0)
    steps = list(zip(passes[::2], passes[1::2], strict=True))
    assert len(steps) == sum(update.steps for update in federation.executor.updates) > 2
    for first, second in steps:
        assert not first.losses
        images = len(second.labels)
        assert torch.equal(first.maps[images:], second.sampled)
    assert any(not torch.equal(first.maps, second.maps) for first, second in steps)


def test_what_a_base_method_does_to_logits_is_for_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """FedRS scales logits of classes that the client lacks; samples are of all classes."""
    federation = simulation(
        FedRS(), FedImpro(**AT_ONCE), **LENET, partition=by_class(), fraction=0.1, batch_size=FULL_BATCH
    )
    network = copy.deepcopy(federation.network)
    passes = watch(federation, 1, monkeypatch)
    federation.round(0)
    (one,) = passes
    (scaled, _), (logits, _) = one.losses
    torch.testing.assert_close(logits, network.upper(one.sampled, 1), rtol=1e-5, atol=1e-6)
    assert (scaled - network.upper(one.real, 1)).abs().max() > 1e-2


# ------------------------------------------------------------------------------------ centralised training
def plain_sgd(model: Model, epochs: int, batch_size: int, lr: float, weight_decay: float) -> nn.Module:
    """PyTorch's SGD without momentum on all images, in the order that a single client visits them."""
    federation = simulation(model=model)
    data, side = federation.data.train, federation.data.train.images.shape[-1]
    network = build(model, 1, side, CLASSES, seed=0).train()
    optimiser = torch.optim.SGD(network.parameters(), lr=lr, weight_decay=weight_decay)
    for epoch in range(epochs):
        order = stream(0, Purpose.BATCH_ORDER, round=epoch, client=0, epoch=0).permutation(len(data))
        for chosen in torch.from_numpy(order).split(batch_size):
            images, labels = data.batch(chosen)
            optimiser.zero_grad()
            functional.cross_entropy(network(images), labels).backward()
            optimiser.step()
    return network


@pytest.mark.parametrize("model", [MobileNetTiny(), LeNet5()], ids=by_name)
def test_one_client_with_everything_is_centralised_training(model: Model) -> None:
    """One local epoch a round without momentum is an epoch of plain SGD, bit for bit."""
    everything = Partition([np.arange(120)], digest="")
    settings = {"lr": 0.1, "momentum": 0.0, "weight_decay": 1e-4, "batch_size": 32}
    federation = trained(model=model, partition=everything, fraction=1.0, rounds=3, epochs=1, **settings)
    network = plain_sgd(model, epochs=3, batch_size=32, lr=0.1, weight_decay=1e-4)
    trained_weights = torch.cat([parameter.detach().flatten() for parameter in network.parameters()])
    assert torch.equal(federation.server.weights, trained_weights)
    buffers = [buffer.flatten() for buffer in network.buffers() if buffer.is_floating_point()]
    assert torch.equal(federation.server.buffers, torch.cat([torch.zeros(0), *buffers]))


def test_cosine_schedule_of_the_tuned_recipe() -> None:
    """Full rate in the first round, half of it half-way, none after the last."""
    schedule = Cosine(rounds=200)
    factors = [schedule.factor(number) for number in (0, 50, 100, 150, 200, 300)]
    quarter = math.cos(math.pi / 8) ** 2
    assert factors == pytest.approx([1, quarter, 0.5, 1 - quarter, 0, 0], abs=1e-12)


@pytest.mark.parametrize("layer", ["stage1.expand", "stage2.expand", "classifier"])
def test_direct_feedback_reaches_layers_below_and_above_the_cut(layer: str) -> None:
    """Above the cut there are more rows than images: the samples', which come last."""
    direct = Flfa(strategy="fixed", layers=(layer,), feedback="direct")
    federation = trained(FedImpro(split=4), direct, rounds=2)
    assert federation.server.weights.isfinite().all()
    assert not torch.equal(federation.server.weights, trained(FedImpro(split=4), rounds=2).server.weights)
