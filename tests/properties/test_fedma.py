"""FedMA: hidden neurons are matched across clients before weights are averaged."""

from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar, Literal

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from fltrain.core.errors import FltrainError
from fltrain.engine.simulation import Simulation
from fltrain.methods.ecgr import Ecgr
from fltrain.methods.fedma import FedMA
from fltrain.models.base import Model
from fltrain.models.network import Network
from fltrain.models.networks.lenet5 import LeNet5
from fltrain.models.networks.mlp import Mlp
from fltrain.models.networks.vgg import Vgg9
from fltrain.runs.spec import RunSpec

from .helpers import Tracing, changed_parameters, rows_of, simulation, trained, update_of

CLASSES = 10
LAYERS = ["conv1.0", "conv2.0", "fc1.0", "classifier"]
WIDTHS, CAPACITIES = (4, 6, 10), (5, 7, 12)
"""Widths of the hidden layers below, and widths with a quarter more neurons, at least one."""


class Small(Model):
    """Four layers; 8 x 8 images give maps of 2 x 2 before they are flattened."""

    name: Literal["small"] = "small"
    min_side: ClassVar[int] = 1

    def network(self, channels: int, side: int, classes: int) -> Network:
        first, second, third = WIDTHS
        return Network(
            conv1=nn.Sequential(nn.Conv2d(channels, first, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            conv2=nn.Sequential(nn.Conv2d(first, second, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            flatten=nn.Flatten(),
            fc1=nn.Sequential(nn.Linear(second * (side // 4) ** 2, third), nn.ReLU()),
            classifier=nn.Linear(third, classes),
        )


SETTINGS = {"model": Small(), "batch_size": 32, "momentum": 0.9, "weight_decay": 1e-2}

MODELS = pytest.mark.parametrize("model", [LeNet5(), Vgg9()], ids=["lenet5", "vgg9"])


Parts = dict[str, np.ndarray]


def parts_of(federation: Simulation, weights: Tensor) -> Parts:
    """Weights and biases by name, in double precision."""
    slots = federation.model.layout.parameters
    return {slot.name: slot.of(weights).double().numpy().copy() for slot in slots}


def layer_names(federation: Simulation) -> list[str]:
    return [layer.name for layer in federation.model.layout.layers]


def as_vector(parts: Parts) -> Tensor:
    return torch.from_numpy(np.concatenate([part.reshape(-1) for part in parts.values()]))


def with_inputs(weight: np.ndarray, order: Sequence[int]) -> np.ndarray:
    """A layer's weights with its inputs, or with blocks of consecutive inputs, in another order."""
    block = weight.shape[1] // len(order)
    return weight[:, [block * source + pixel for source in order for pixel in range(block)]]


def rows_with_bias(parts: Parts, name: str) -> np.ndarray:
    """Incoming weights and bias of each neuron of a layer."""
    bias = parts[f"{name}.bias"]
    return np.hstack([parts[f"{name}.weight"].reshape(len(bias), -1), bias[:, None]])


def by_hand(
    federation: Simulation, clients: list[Parts], reference: Parts, shares: list[float], counts: np.ndarray
) -> Parts:
    """FedMA's merge of networks with biases, as in the paper's pseudo-code, at most five sweeps."""
    names = layer_names(federation)
    clients = [dict(parts) for parts in clients]
    merged: Parts = {}
    for name, following in pairwise(names):
        vectors, target = [rows_with_bias(parts, name) for parts in clients], rows_with_bias(reference, name)
        orders: list[list[int]] = []
        for _ in range(5):
            new_orders = []
            for vector in vectors:
                cost = np.array([[((neuron - mean) ** 2).sum() for mean in target] for neuron in vector])
                rows, columns = linear_sum_assignment(cost)
                position = dict(zip(columns.tolist(), rows.tolist(), strict=True))
                new_orders.append([position[place] for place in range(len(vector))])
            if new_orders == orders:
                break
            orders = new_orders
            target = sum(
                share * vector[order] for share, vector, order in zip(shares, vectors, orders, strict=True)
            )
        for parts, order in zip(clients, orders, strict=True):
            for kind in ("weight", "bias"):
                parts[f"{name}.{kind}"] = parts[f"{name}.{kind}"][order]
            parts[f"{following}.weight"] = with_inputs(parts[f"{following}.weight"], order)
        for kind in ("weight", "bias"):
            merged[f"{name}.{kind}"] = sum(
                share * parts[f"{name}.{kind}"] for share, parts in zip(shares, clients, strict=True)
            )
    totals = counts.sum(0)
    weights = np.where(totals > 0, counts / np.maximum(totals, 1), np.array(shares)[:, None])
    for kind, factors in (("weight", weights[:, :, None]), ("bias", weights)):
        merged[f"classifier.{kind}"] = sum(
            share * parts[f"classifier.{kind}"] for share, parts in zip(factors, clients, strict=True)
        )
    return merged


def merged(
    federation: Simulation,
    weights: Sequence[Tensor],
    samples: Sequence[int] | None = None,
    counts: Tensor | None = None,
    rounds: int = 0,
) -> Tensor:
    """The new global weights."""
    method = federation.composition.methods[0]
    counts = torch.ones(len(weights), CLASSES) if counts is None else counts
    samples = samples or [1] * len(weights)
    updates = [
        update_of(torch.zeros_like(vector), vector, i, size, extras={method.name: {"classes": counts[i]}})
        for i, (vector, size) in enumerate(zip(weights, samples, strict=True))
    ]
    state = {**federation.server.states[method.name], "rounds": torch.tensor(rounds)}
    result = method.aggregate(federation.task, state, federation.server, updates).weights
    assert result.dtype == torch.float32
    return result


def logits(federation: Simulation, weights: Tensor) -> Tensor:
    """Logits of the training images for these weights."""
    model, split = federation.model, federation.data.train
    model.load(weights, federation.server.buffers, federation.server.counters)
    model.network.eval()
    with torch.no_grad():
        expected = model.network(split.batch(torch.arange(40))[0])
    return expected / expected.std()


def shuffled(federation: Simulation, weights: Tensor, seed: int) -> Tensor:
    """The same function with its hidden neurons in a random order."""
    random = np.random.default_rng(seed)
    parts, names = parts_of(federation, weights), layer_names(federation)
    for name, following in pairwise(names):
        order = random.permutation(len(parts[f"{name}.bias"]))
        for kind in ("weight", "bias"):
            parts[f"{name}.{kind}"] = parts[f"{name}.{kind}"][order]
        parts[f"{following}.weight"] = with_inputs(parts[f"{following}.weight"], order)
    return as_vector(parts).float()


def noisy(federation: Simulation, size: float, seed: int) -> Tensor:
    """The initial weights plus noise; ``size`` is relative to the spread of the weights."""
    start = federation.server.weights
    noise = torch.randn(len(start), generator=torch.Generator().manual_seed(seed))
    return start + size * start.std() * noise


@MODELS
def test_shuffled_copies_average_to_the_same_function(model: Model) -> None:
    method = FedMA()
    federation = simulation(method, model=model)
    weights = federation.server.weights
    copies = [shuffled(federation, weights, seed) for seed in range(3)]
    expected = logits(federation, weights)
    for rounds in (0, 1):
        matched = merged(federation, copies, samples=[5, 2, 3], rounds=rounds)
        torch.testing.assert_close(logits(federation, matched), expected, rtol=0, atol=1e-5)
    plain = torch.stack(copies).mean(0)
    assert (logits(federation, plain) - expected).abs().max() > 0.5


def test_a_merge_equals_the_pseudo_code() -> None:
    """Different networks, sizes and class counts; one class that no client has; first and later rounds.

    With six unrelated networks, the assignments change in later sweeps.
    """
    method = FedMA()
    federation = simulation(method, model=Mlp(hidden=12))
    samples = [10, 20, 15, 5, 20, 30]
    shares, counts = [size / 100 for size in samples], torch.ones(6, CLASSES)
    counts[0], counts[2] = 3, 0
    counts[:, 4] = 0
    counts[0, 7] = 0
    clients = [shuffled(federation, noisy(federation, 20.0, seed), seed) for seed in range(6)]
    parts = [parts_of(federation, weights) for weights in clients]
    for rounds in (0, 1):
        reference = parts_of(federation, federation.server.weights) if rounds else parts[-1]  # of the largest
        expected = as_vector(by_hand(federation, parts, reference, shares, counts.numpy()))
        actual = merged(federation, clients, samples, counts, rounds)
        torch.testing.assert_close(actual.double(), expected, rtol=1e-5, atol=1e-6)


PASS = len(LAYERS)
"""A pass takes one round per layer; in its n-th round, counted from 0, n layers are fixed."""


def growing(method: FedMA | None = None, *plugins: object, **settings: object) -> Simulation:
    return simulation(
        method or FedMA(mode="bbp_map"),
        *plugins,
        **{"fraction": 1.0, "trainer": Tracing, **SETTINGS, **settings},
    )


def sources_of(federation: Simulation, layer: int) -> Tensor:
    """The client neurons that each neuron of a layer was merged from, ``[clients, width]``."""
    (state,) = (state for state in federation.server.states.values() if "sources" in state)
    return state["sources"].split(CAPACITIES, 1)[layer]


def widely(flags: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Mask of the remaining inputs, for inputs in blocks."""
    mask = flags.repeat(weight.shape[1] // len(flags))
    return mask.reshape(1, -1, *[1] * (weight.ndim - 2))


@pytest.mark.parametrize("plugins", [(), (Ecgr(),)], ids=["alone", "ecgr"])
def test_layers_are_fixed_one_by_one(plugins: tuple) -> None:
    method = FedMA(mode="bbp_map")
    federation = growing(method, *plugins, clip_norm=0.5)
    slots = {slot.name: slot for slot in federation.model.layout.parameters}
    for number in range(PASS + 2):
        before, fixed = federation.server.weights, number % PASS
        (report,) = (row for row in federation.round(number) if row["kind"] == method.name)
        assert report["fixed"] == fixed
        trained_names = {f"{name}.{kind}" for name in LAYERS[fixed:] for kind in ("weight", "bias")}
        for update in federation.trainer.updates:
            for weights in (update.trained, update.weights):
                assert changed_parameters(federation, update.start, weights) == trained_names
        after = federation.server.weights
        start = slots[f"{LAYERS[fixed]}.weight"].start
        assert torch.equal(after[:start], before[:start])
        assert changed_parameters(federation, before, after) == trained_names


def test_clients_start_from_fixed_layers_and_their_own_later_layers() -> None:
    """Fixed layers of the server, own layers above; a new pass starts from neurons of the global model."""
    method = FedMA(mode="bbp_map", gamma=50.0)
    federation = growing(method, lr=0.2, epochs=2)
    clients = range(6)
    last: list[Parts] = []
    for number in range(2 * PASS + 1):
        fixed, server = number % PASS, parts_of(federation, federation.server.weights)
        sources = [sources_of(federation, layer).numpy() for layer in range(len(WIDTHS))]
        federation.round(number)
        starts = [parts_of(federation, update.start) for update in federation.trainer.updates]
        for client in clients:
            for index, name in enumerate(LAYERS):
                weight, bias = (starts[client][f"{name}.{kind}"] for kind in ("weight", "bias"))
                server_weight, server_bias = (server[f"{name}.{kind}"] for kind in ("weight", "bias"))
                if index < fixed:
                    expected, expected_bias = server_weight, server_bias
                elif fixed:
                    expected, expected_bias = (last[client][f"{name}.{kind}"] for kind in ("weight", "bias"))
                    if index == fixed:
                        source = sources[index - 1][client]
                        expected = with_inputs(expected, source.clip(0)) * widely(source >= 0, expected)
                else:
                    expected, expected_bias = server_weight.copy(), server_bias.copy()
                    if index < len(WIDTHS):
                        expected[sources[index][client] < 0] = 0
                        expected_bias[sources[index][client] < 0] = 0
                    if index:
                        expected = expected * widely(sources[index - 1][client] >= 0, expected)
                np.testing.assert_array_equal(weight, expected)
                np.testing.assert_array_equal(bias, expected_bias)
        last = [parts_of(federation, update.weights) for update in federation.trainer.updates]
        for client in clients:  # neurons that a client lacks stay zero in its training
            for index, name in list(enumerate(LAYERS))[fixed : len(WIDTHS)]:
                is_missing = sources[index][client] < 0
                assert is_missing.any()
                assert not last[client][f"{name}.weight"][is_missing].any()
                assert not last[client][f"{name}.bias"][is_missing].any()
                next_weight = last[client][f"{LAYERS[index + 1]}.weight"]
                assert not (next_weight * widely(is_missing, next_weight)).any()
    widths = [int((source >= 0).any(0).sum()) for source in sources]
    assert all(low <= width for low, width in zip(WIDTHS, widths, strict=True))
    assert sum(widths) > sum(WIDTHS), "no layer has grown"


def test_fixed_layers_are_posterior_means() -> None:
    """(s0 mu0 + s sum v) / (s0 + m s) of the members in ``sources``; no neuron is missing."""
    method = FedMA(mode="bbp_map", sigma=0.5, sigma0=4.0)
    federation = growing(method)
    s, s0 = 1 / method.sigma, 1 / method.sigma0
    for number in range(PASS - 1):
        federation.round(number)
        name, sources = LAYERS[number], sources_of(federation, number).tolist()
        server = parts_of(federation, federation.server.weights)
        sums = s0 * np.zeros_like(server[f"{name}.weight"])
        biases = s0 * np.full_like(server[f"{name}.bias"], 0.1)
        members = np.zeros(len(biases))
        for update in federation.trainer.updates:
            parts = parts_of(federation, update.weights)
            assert sorted(source for source in sources[update.client] if source >= 0) == list(
                range(WIDTHS[number])
            )
            for place, source in enumerate(sources[update.client]):
                if source >= 0:
                    sums[place] += s * parts[f"{name}.weight"][source]
                    biases[place] += s * parts[f"{name}.bias"][source]
                    members[place] += 1
        used = members > 0
        precision = s0 + s * members[used]
        weights = server[f"{name}.weight"]
        expected = sums[used] / precision.reshape(-1, *[1] * (weights.ndim - 1))
        np.testing.assert_allclose(weights[used], expected, rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(
            server[f"{name}.bias"][used], biases[used] / precision, rtol=1e-5, atol=1e-7
        )
        assert not weights[~used].any() and not server[f"{name}.bias"][~used].any()


def test_growth_is_reported_and_bounded() -> None:
    federation = trained(FedMA(mode="bbp_map", gamma=1e9), rounds=PASS + 1, fraction=1.0, **SETTINGS)
    first, *_, last = rows_of(federation, "fedma")
    assert (first["fixed"], first["widths"]) == (0, [*WIDTHS])
    assert (last["fixed"], last["widths"]) == (0, [*CAPACITIES])


def test_growing_needs_all_clients() -> None:
    spec = {"dataset": "digits", "partition": {"name": "iid", "clients": 4}, "model": "mlp"}
    spec |= {"participation": {"fraction": 0.5}}
    with pytest.raises(FltrainError, match=r"'fedma' needs all clients .*; set participation.fraction to 1"):
        RunSpec.parse({**spec, "method": {"name": "fedma", "mode": "bbp_map"}}, "test")
    for changes in ({"participation": {"fraction": 1.0}}, {"method": "fedma"}):
        RunSpec.parse({**spec, "method": {"name": "fedma", "mode": "bbp_map"}, **changes}, "test")
