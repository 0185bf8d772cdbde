"""FedImpro: estimates of features at a cut, samples from the estimates, and training on the samples."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fltrain.data.prepared import Partition
from fltrain.engine.simulation import Simulation
from fltrain.methods.base import Method
from fltrain.methods.fedavg import FedAvg
from fltrain.methods.fedimpro import FedImpro
from fltrain.methods.fedrs import FedRS
from fltrain.methods.ops.counter_normal import standard_normal
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
    rows_of,
    simulation,
    task_of,
    trained,
    update_of,
)
from .reference import Reference, check

CLASSES = 10
NUMBERS = ("mean", "spread", "seen", "spread_seen")
LENET = {"model": LeNet5()}
"""A network without BatchNorm: cuts 1 (6 maps of 8 x 8 pixels) and 2 (64 numbers)."""


def evenly(clients: int) -> Partition:
    """Clients of equal size."""
    order = np.random.default_rng(0).permutation(120)
    return Partition(np.split(order, clients), digest="")


def by_class() -> Partition:
    """Three clients, each of which lacks some classes."""
    order = np.argsort(digits().train_labels, kind="stable")
    return Partition([order[:45], np.concatenate([order[45:70], order[:10]]), order[70:]], digest="")


class Sampling(Reference):
    """A base method whose part above the cut also trains on samples.

    Their labels and the key of their noise come from the traced steps.
    """

    def __init__(self, run: Simulation) -> None:
        super().__init__(run)
        self.plugin = next(method for method in run.composition.methods if isinstance(method, FedImpro))
        self.keys: list[int] = []

    def start(self, client: int) -> Tensor:
        self.sent = self.run.server.states["fedimpro"]
        return super().start(client)

    def begin(self, update: Update) -> None:
        self.state = self.run.trainer.steps_of(update.client, self.number)[0].step_states["fedimpro"]
        self.estimates = {name: self.sent[name].double().clone() for name in NUMBERS}
        self.step = 0
        self.keys += [int(self.state["key"])] if "key" in self.state else []

    def samples(self, maps: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Labels and maps of this step."""
        chosen, plugin = self.state["labels"][self.step], self.plugin
        if plugin.labels == "tiled":
            classes = int((self.sent["seen"] * self.sent["spread_seen"]).sum())
            chosen = chosen[: classes * (len(labels) // CLASSES + 1)]
        elif plugin.n_hat is None:
            chosen = chosen[: len(labels)]
        if plugin.labels == "batch":
            has_estimate = (self.sent["seen"] * self.sent["spread_seen"]) > 0
            pairs = zip(labels.tolist(), chosen.tolist(), strict=True)
            chosen = torch.tensor([label if has_estimate[label] else other for label, other in pairs])
        source = self.sent if plugin.source == "global" else self.estimates
        deviation = source["spread"] if plugin.moment == "std" else source["spread"].sqrt()
        shape, key = (len(chosen), *maps.shape[1:]), self.state["key"]
        noise = standard_normal(shape, key, torch.tensor(self.step))
        return chosen, (source["mean"][chosen] + deviation[chosen] * noise).float()

    def weights_of_losses(self, images: int, samples: int) -> tuple[float, float]:
        ramp = self.number / (self.plugin.ramp_rounds or self.run.spec.rounds / 2)
        return {
            "ramp": (1, min(1, ramp)),
            "ramp_unclipped": (1, ramp * self.run.spec.training.epochs),
            "constant": (1, 1),
            "half_half": (1 - min(1, ramp) / 2, min(1, ramp) / 2),
            "mean_concat": (images / (images + samples), samples / (images + samples)),
        }[self.plugin.weight]

    def loss(self, network: Network, images: Tensor, labels: Tensor) -> Tensor:
        """One pass of the part above the cut for images and samples; FedRS scales the images' logits only."""
        cut, count = network.cut(self.plugin.split), len(labels)
        maps = network.lower(images, cut)
        chosen, sampled = self.samples(maps, labels) if "labels" in self.state else (labels[:0], maps[:0])
        logits = network.classifier(network.upper_features(torch.cat([maps, sampled]), cut))
        counts, real, sampling = torch.tensor(self.counts(self.client)), logits[:count], logits[count:]
        if isinstance(self.method, FedRS):
            real = real * torch.where(counts > 0, 1.0, self.method.alpha)
        loss = functional.cross_entropy(real, labels)
        self.estimate(maps.detach().double(), labels)
        self.step += 1
        if not len(chosen):
            return loss
        first, second = self.weights_of_losses(count, len(chosen))
        return first * loss + second * functional.cross_entropy(sampling, chosen)

    def estimate(self, maps: Tensor, labels: Tensor) -> None:
        """Renew the moving averages of the client, class by class."""
        plugin, estimates = self.plugin, self.estimates
        for label in set(labels.tolist()):
            class_maps = maps[labels == label]
            images = len(class_maps)
            if plugin.shape == "channel":  # every pixel counts as an image
                class_maps = class_maps.transpose(0, 1).flatten(1).T[:, :, None, None]
            deviation = class_maps.std(0, correction=int(len(class_maps) > 1))
            spread = deviation if plugin.moment == "std" else deviation**2
            for name, flag, fresh, least in (
                ("mean", "seen", class_maps.mean(0), 1),
                ("spread", "spread_seen", spread, 2),
            ):
                if images < least:
                    continue
                share = 1.0
                if estimates[flag][label] and plugin.beta_client == "count":
                    share = min(1.0, images / self.counts(self.client)[label])
                elif estimates[flag][label]:
                    share = 1 - plugin.beta_client
                estimates[name][label] = (1 - share) * estimates[name][label] + share * fresh
                estimates[flag][label] = 1
        estimates["spread"].clamp_(0, plugin.sigma_cap)

    def finish(self, update: Update) -> None:
        """The estimates are uploaded; classes that the client lacks come back bit for bit."""
        upload, lacking = update.extras["fedimpro"], torch.tensor(self.counts(update.client)) == 0
        for name in NUMBERS:
            torch.testing.assert_close(upload[name].double(), self.estimates[name], rtol=1e-4, atol=1e-6)
            assert torch.equal(upload[name][lacking], self.sent[name][lacking])


AT_ONCE = {"initial": "uniform", "weight": "constant"}
"""Samples of all classes from the first round on, fully weighted."""


@pytest.mark.parametrize(
    ("plugin", "settings"),
    [
        ({}, {"partition": by_class(), "cohorts": ([0, 1], [1, 2], [0, 2])}),
        ({"shape": "channel", "moment": "var", "weight": "half_half", "ramp_rounds": 1}, {}),
        ({"beta_client": 0.5, "sigma_cap": None, "ramp_rounds": 4, "split": 1}, {"momentum": 0.0}),
        ({"beta_client": "count", "sigma_cap": None, "shape": "channel", "source": "running"}, {}),
        ({"labels": "tiled", "source": "running", "beta_client": 0.5}, {"batch_size": 12}),
        (
            {"labels": "batch", "weight": "ramp_unclipped"},
            {"partition": by_class(), "cohorts": ([0], [1, 2])},
        ),
        ({"split": 2, "n_hat": 25, "weight": "mean_concat"}, {}),
        ({"ramp_rounds": 1}, {}),
        ({**AT_ONCE, "moment": "var"}, {"method": FedRS(), "partition": by_class(), "cohorts": ([0, 1],)}),
        ({**AT_ONCE, "split": 4, "n_hat": 33}, {"model": MobileNetTiny()}),
    ],
    ids=lambda value: str(value)[:60],
)
def test_rounds_follow_the_formulas(plugin: dict[str, object], settings: dict[str, object]) -> None:
    """In the first round, estimates begin; in the next ones they start from the server's, with samples."""
    method = settings.get("method", FedAvg())
    settings = {**LENET, **{key: value for key, value in settings.items() if key != "method"}}
    reference = check(Sampling, method, FedImpro(**plugin), **settings)
    assert len(set(reference.keys)) == len(reference.keys) > 1, "no random number is used twice"


@pytest.mark.parametrize(("moment", "spread"), [("std", 0.1), ("var", 0.01)])
def test_uniform_initial_estimates(moment: str, spread: float) -> None:
    state = simulation(FedImpro(initial="uniform", moment=moment), **LENET).server.states["fedimpro"]
    assert (state["spread"] == spread).all() and state["seen"].all() and state["spread_seen"].all()
    assert state["mean"].min() > 0 and state["mean"].max() < 1
    assert float(state["mean"].mean()) == pytest.approx(0.5, abs=0.05)


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
    empty = torch.zeros(0)
    server = Server(empty, empty, empty.long(), {method.name: state})
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
    empty = {name: [[0.0], [0.0]] for name in ("mean", "spread")}
    empty |= {name: [0.0, 0.0] for name in ("seen", "spread_seen")}
    mean, first = [[2.0], [0.0]], [1.0, 0.0]
    uploads = [
        upload(method, [4, 0], **{**empty, "mean": mean, "seen": first}),
        upload(method, [2, 0], mean=mean, spread=[[0.5], [0.0]], seen=first, spread_seen=first),
    ]
    after = served(method, empty, uploads)
    assert after["mean"].flatten().tolist() == [2.0, 0.0]
    torch.testing.assert_close(after["spread"].flatten(), torch.tensor([0.5, 0.0]))
    assert after["seen"].tolist() == after["spread_seen"].tolist() == [1.0, 0.0]


def noise_of(method: FedImpro, **settings: object) -> tuple[list[dict[str, Tensor]], Simulation]:
    """The noise in the uploads of two clients in round 0, and the federation."""
    noiseless = method.model_copy(update={"noise": 0.0})
    noisy, exact = (
        trained(variant, **LENET, rounds=1, fraction=0.34, trainer=Tracing, **settings)
        for variant in (method, noiseless)
    )
    pairs = zip(noisy.trainer.updates, exact.trainer.updates, strict=True)
    return [
        {name: update.extras["fedimpro"][name] - other.extras["fedimpro"][name] for name in NUMBERS}
        for update, other in pairs
    ], noisy


def test_uploads_have_independent_noise() -> None:
    """On every number, of known and unknown classes alike; independent by client and tensor."""
    method = FedImpro(noise=0.5)
    noises, federation = noise_of(method)
    flat = torch.stack([noise[name].flatten() for noise in noises for name in ("mean", "spread")])
    products = flat @ flat.T / flat.shape[1]
    torch.testing.assert_close(products, method.noise**2 * torch.eye(4), rtol=0, atol=0.02)
    assert not any(noise[name].any() for noise in noises for name in ("seen", "spread_seen"))
    assert federation.server.states["fedimpro"]["spread"].min() == 0, (
        "spreads that became negative are clamped on receipt"
    )
    assert federation.server.states["fedimpro"]["spread"].max() <= 0.1 + 1e-7


def labels_of(method: FedImpro, classes: Sequence[int], images: int = 8) -> Tensor:
    """Labels of the samples of eight steps, ``[steps, n]``, if the server knows some classes."""
    task = simulation(**LENET, batch_size=images).task
    seen = torch.zeros(CLASSES).index_fill(0, torch.tensor(classes), 1.0)
    payload = {"seen": seen, "spread_seen": seen}
    return method.client_init(local_of(torch.zeros(1), payload, steps=8, task=task))["labels"]


@pytest.mark.parametrize("classes", [range(10), [2, 5, 7], [3]], ids=str)
@pytest.mark.parametrize("n_hat", [None, 25])
def test_balanced_labels(n_hat: int | None, classes: Sequence[int]) -> None:
    """Every known class floor(n / C) times; the rest at random, each class at most once."""
    steps = labels_of(FedImpro(n_hat=n_hat), classes)
    for count in range(1, steps.shape[1] + 1):  # also in incomplete batches
        quotient, remainder = divmod(count, len(classes))
        counts = torch.stack([labels[:count].bincount(minlength=CLASSES) for labels in steps])[:, classes]
        assert (counts.sum(1) == count).all() and ((counts - quotient).sort(1).values >= 0).all()
        assert ((counts - quotient).sum(1) == remainder).all() and (counts - quotient).max() <= 1
    assert len(classes) == 1 or len(steps.unique(dim=0)) == len(steps), "every step draws new labels"


@pytest.mark.parametrize("classes", [range(10), [2, 5, 7]], ids=str)
def test_tiled_labels_repeat_the_known_classes(classes: Sequence[int]) -> None:
    """B // C + 1 samples of every known class."""
    for labels in labels_of(FedImpro(labels="tiled"), classes, images=12):
        assert labels.tolist() == [*classes] * 2


@pytest.mark.parametrize("labels", ["balanced", "batch", "tiled"])
def test_without_estimates_there_are_no_samples(labels: str) -> None:
    """The first round is the base method's, bit for bit; the record has the known classes."""
    federation = trained(FedImpro(labels=labels), **LENET, rounds=1)
    assert_same_model(federation, trained(FedAvg(), **LENET, rounds=1))
    assert rows_of(federation, "fedimpro") == [{"round": 1, "kind": "fedimpro", "known_classes": 0}]
    count = int(federation.server.states["fedimpro"]["seen"].sum())
    assert count > 5 and {"round": 2, "kind": "fedimpro", "known_classes": count} in federation.round(1)


def dissimilarity_above(method: Method) -> float:
    """Dissimilarity of the gradients above the cut, of four clients with 30 images each.

    Estimates without spread, and equally many samples of every class, give all clients the same samples.
    """
    settings = {"partition": evenly(4), "fraction": 1.0, "batch_size": FULL_BATCH, "lr": 1.0}
    settings |= {"momentum": 0.0, "weight_decay": 0.0}
    federation = simulation(method, trainer=Tracing, **settings, **LENET)
    if isinstance(method, FedImpro):
        shape, ones = federation.server.states["fedimpro"]["mean"].shape, torch.ones(CLASSES)
        state = {"mean": drawn(*shape).abs(), "spread": torch.zeros(shape), "seen": ones, "spread_seen": ones}
        federation.server = replace(federation.server, states={"fedavg": {}, "fedimpro": state})
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
