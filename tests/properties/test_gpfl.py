"""GPFL: against the published formulas in plain torch, over rounds in which clients pause and return."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import vector_to_parameters

from fltrain.methods.composition import Composition
from fltrain.methods.fedavg import FedAvg
from fltrain.methods.gpfl import Gpfl
from fltrain.models.base import Model
from fltrain.models.flat import Slot
from fltrain.models.network import Network
from fltrain.models.networks.fedavg_cnn import FedAvgCnn
from fltrain.models.networks.lenet5 import LeNet5
from fltrain.models.networks.mlp import Mlp
from fltrain.models.networks.mobilenet_tiny import MobileNetTiny

from .helpers import (
    Tracing,
    by_name,
    digits,
    local_of,
    rows_of,
    simulation,
    skewed,
    task_of,
    trained,
    update_of,
    with_tests,
)
from .ordinary import flat, replica, running, step_of

POOR = 0
"""A client of the small federation that has images of classes 0, 1 and 2 only."""

SMALL = Mlp(hidden=12)
"""No BatchNorm, few features."""

ADDITIONS = ("valve.", "embeddings.")


# ------------------------------------------------------------------------------------ the formulas, naively
def valve(parameters: dict[str, Tensor], features: Tensor, condition: Tensor) -> Tensor:
    """ReLU(x (gamma(v) + 1) + beta(v)), with gamma and beta = LayerNorm(ReLU(Linear(v)))."""
    branches = []
    for name in ("gamma", "beta"):
        linear, norm = (
            (parameters[f"valve.{name}.{place}.weight"], parameters[f"valve.{name}.{place}.bias"])
            for place in (0, 2)
        )
        hidden = (linear[0] @ condition + linear[1]).clamp(min=0)
        centred = hidden - hidden.sum() / len(hidden)
        deviation = ((centred**2).sum() / len(hidden) + 1e-5).sqrt()
        branches.append(norm[0] * centred / deviation + norm[1])
    gamma, beta = branches
    return (features * (gamma + 1) + beta).clamp(min=0)


def extracted(network: Network, images: Tensor) -> Tensor:
    """Features before the valve."""
    for name, block in network.named_children():
        if not f"{name}.".startswith((*ADDITIONS, "classifier.")):
            images = block(images)
    return images


def decided(network: Network, features: Tensor, personal: Tensor) -> Tensor:
    """Logits h_i(CoV(f(x), v_i)), given f(x)."""
    parameters = dict(network.named_parameters())
    seen = valve(parameters, features, personal)
    return seen @ parameters["classifier.weight"].T + parameters["classifier.bias"]


def cross_entropies(logits: Tensor, labels: Tensor) -> Tensor:
    return logits.exp().sum(1).log() - logits[torch.arange(len(labels)), labels]


def client_loss(
    network: Network,
    images: Tensor,
    labels: Tensor,
    conditions: tuple[Tensor, Tensor],
    received: Tensor,
    weight: float,
) -> Tensor:
    """Cross entropies of logits and of cosines, and the unsquared distance of the batch as one matrix."""
    parameters = dict(network.named_parameters())
    embeddings, (general, personal) = parameters["embeddings.weight"], conditions
    features = extracted(network, images)
    drawn = valve(parameters, features, general)
    lengths = drawn.square().sum(1).sqrt()[:, None] * embeddings.square().sum(1).sqrt()[None, :]
    cosines = (drawn @ embeddings.T) / lengths
    distance = sum((row - received[label]).square().sum() for row, label in zip(drawn, labels, strict=True))
    loss = cross_entropies(decided(network, features, personal), labels).mean()
    return loss + cross_entropies(cosines, labels).mean() + weight * distance.sqrt()


def conditions_of(embeddings: Tensor, labels: list[int]) -> tuple[Tensor, Tensor]:
    """Mean of all embeddings, and of the embeddings of a client's images."""
    general = sum(embeddings) / len(embeddings)
    return general, sum(embeddings[label] for label in labels) / len(labels)


# ------------------------------------------------------------------------------------ whole rounds
def check_rounds(method: Gpfl, model: Model) -> None:
    """Local steps, what is kept, what is averaged and what is tested, by the formulas."""
    rounds = 4
    settings = {"epochs": 2, "momentum": 0.5, "weight_decay": 0.01, "rounds": 9, "fraction": 0.34}
    federation = simulation(method, model=model, executor=Tracing, **settings)
    data, slots = federation.data, federation.model.layout.parameters
    labels = [data.train.labels[own].tolist() for own in data.clients]
    slot = next(slot for slot in slots if slot.name == "embeddings.weight")
    head = torch.cat([torch.full((s.stop - s.start,), s.name.startswith("classifier.")) for s in slots])
    heads: dict[int, Tensor] = {}  # what clients keep
    own_embeddings: dict[int, Tensor] = {}
    initial = federation.server.weights.clone()

    def model_of(client: int) -> Tensor:
        """What the client has after the server's message."""
        return torch.where(head, heads.get(client, initial), federation.server.weights)

    def conditions(client: int, number: int) -> tuple[Tensor, Tensor]:
        if method.conditions == "global":
            source = slot.of(federation.server.weights) if number else torch.zeros(slot.shape)
        else:
            source = own_embeddings.get(client, torch.zeros(slot.shape))
        return conditions_of(source.clone(), labels[client])

    for number in range(rounds):
        sampled = federation.sample(number)
        starts = {client: model_of(client) for client in sampled}
        known = {client: conditions(client, number) for client in sampled}
        before = federation.server
        rows = federation.round(number)

        for update in federation.executor.updates:
            client = update.client
            network = replica(federation, starts[client], before.buffers)
            groups = ([], [])
            for name, parameter in network.named_parameters():
                groups[name.startswith(ADDITIONS)].append(parameter)
            sgd = {"lr": 0.05, "momentum": 0.5}
            optimisers = [
                torch.optim.SGD(groups[0], weight_decay=0.01, **sgd),
                torch.optim.SGD(groups[1], weight_decay=0.01 + method.decay, **sgd),
            ]
            received = slot.of(starts[client]).clone()
            losses = []
            for step in federation.executor.of(client, number):
                images, targets = data.train.batch(step.chosen)
                network.zero_grad()
                loss = client_loss(network, images, targets, known[client], received, method.weight)
                loss.backward()
                for optimiser in optimisers:
                    optimiser.step()
                losses.append(loss.item())
                # From where the traced step ended: a rounding error can cross the kink of a ReLU.
                torch.testing.assert_close(step.weights, flat(network.parameters()), rtol=1e-4, atol=2e-6)
                vector_to_parameters(step.weights.clone(), network.parameters())
            assert len(losses) == update.steps > 1
            assert float(update.loss) == pytest.approx(np.mean(losses), rel=1e-4)
            torch.testing.assert_close(update.buffers, running(network), rtol=1e-4, atol=1e-6)
            heads[client] = update.trained.clone()
            own_embeddings[client] = slot.of(update.trained).clone()

        shares = torch.tensor([float(update.samples) for update in federation.executor.updates])
        shares /= shares.sum()
        for part in ("weights", "buffers"):
            sent = torch.stack([getattr(update, part) for update in federation.executor.updates])
            mean = shares @ sent
            if part == "weights":
                mean = torch.where(head, initial, mean)
            torch.testing.assert_close(getattr(federation.server, part), mean, rtol=1e-5, atol=1e-6)

        correct, losses = [], []
        for client, chosen in enumerate(data.tests):
            images, targets = data.train.batch(chosen)
            network = replica(federation, model_of(client), federation.server.buffers).eval()
            with torch.no_grad():
                logits = decided(network, extracted(network, images), conditions(client, number + 1)[1])
            correct.append((logits.argmax(1) == targets).double())
            losses.append(cross_entropies(logits, targets).double())
        (row,) = [row for row in rows if row["kind"] == "evaluation"]
        assert row["view"] == "personal"
        assert row["loss"] == pytest.approx(torch.cat(losses).mean().item(), rel=1e-4)
        assert row["accuracy"] == pytest.approx(torch.cat(correct).mean().item())
        assert row["macro"] == pytest.approx(np.mean([one.mean().item() for one in correct]))
    assert len(heads) < 2 * rounds  # some clients returned; in the first rounds some had not taken part yet


# ------------------------------------------------------------------------------------ tests
@pytest.mark.parametrize("conditions", ["global", "trained"])
def test_rounds_are_those_of_the_formulas(conditions: str) -> None:
    check_rounds(Gpfl(conditions=conditions, weight=0.3), SMALL)


def test_rounds_with_batchnorm_and_the_authors_settings_are_those_of_the_formulas() -> None:
    check_rounds(Gpfl(), MobileNetTiny())


def test_conditions_are_means_of_embeddings_and_zero_at_first() -> None:
    """By hand: zero at first, then of the received embeddings or of those that the client trained."""
    received = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 12.0]])
    own = torch.tensor([[1.0, 0.0], [0.0, 1.0], [8.0, 8.0]])
    # Three classes, of which the client has 1, 3 and 0 images.
    layout = SimpleNamespace(parameters=(Slot("embeddings.weight", received.shape, 0),))
    counts, zero = torch.tensor([1.0, 3.0, 0.0]), [0.0, 0.0]

    def found(conditions: str, round: int, state: dict[str, Tensor]) -> list[list[float]]:
        task = replace(task_of(layout), classes=3)
        local = local_of(received.flatten(), state=state, counts=counts, samples=4, task=task)
        step_state = Gpfl(conditions=conditions).client_init(replace(local, round=round))
        return [step_state["general"].tolist(), step_state["personal"].tolist()]

    def kept(conditions: str) -> dict[str, Tensor]:
        update = update_of(received.flatten(), own.flatten())
        update = replace(update, weights=-update.weights)  # as if a plug-in had replaced what is sent
        return Gpfl(conditions=conditions).client_final(update, local_of(received.flatten(), task=task), {})[
            1
        ]

    task = replace(task_of(layout), classes=3)
    assert found("global", 0, {}) == [zero, zero]
    for round in (1, 7):
        assert found("global", round, kept("global")) == [[3.0, 6.0], [2.5, 3.5]]
    for round in (0, 1, 7):
        assert found("trained", round, {}) == [zero, zero]
        assert found("trained", round, kept("trained")) == [[3.0, 3.0], [0.25, 0.75]]


@pytest.mark.parametrize("model", [SMALL, MobileNetTiny()], ids=by_name)
def test_without_condition_and_biases_the_valve_is_a_relu(model: Model) -> None:
    """gamma and beta are zero then, whatever the other weights."""
    network = simulation(Gpfl(), model=model).network
    images = torch.randn(7, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    for name, parameter in network.valve.named_parameters():
        if name.endswith("bias"):  # of the linear layers, and the LayerNorms' beta
            nn.init.zeros_(parameter)
    width = network.classifier.in_features
    features = torch.randn(7, width, generator=torch.Generator().manual_seed(1))
    for branch in (network.valve.gamma, network.valve.beta):
        assert torch.equal(branch(torch.zeros(width)), torch.zeros(width))
    assert torch.equal(network.valve(features, torch.zeros(width)), features.clamp(min=0))
    assert not torch.equal(network.valve(features, torch.ones(width)), features.clamp(min=0))
    with torch.no_grad():
        network.eval()
        expected = network.classifier(extracted(network, images).clamp(min=0))
        assert torch.equal(network(images), expected)
        assert torch.equal(network.features(images), extracted(network, images))


def test_the_distance_acts_through_the_global_route_only() -> None:
    """Its gradient is zero where the global route does not pass: classifier, and embeddings in training."""
    federation = trained(Gpfl(weight=0.5), model=SMALL, rounds=1)
    found = step_of(federation, client=POOR).differentiate()[0].clone()
    federation.composition = Composition((Gpfl(weight=0.0),))
    without = step_of(federation, client=POOR).differentiate()[0].clone()
    for slot in federation.model.layout.parameters:
        same = torch.equal(slot.of(without), slot.of(found))
        assert same == slot.name.startswith(("classifier.", "embeddings.")), slot.name


def test_embeddings_of_absent_classes_are_pushed_by_the_cosine_softmax() -> None:
    """The cosine softmax pushes them: mean of p_c (g - cos(g, e_c) e_c) / |e_c| for directions g, e_c."""
    method = Gpfl()
    federation = trained(method, model=SMALL, rounds=1)
    step = step_of(federation, client=POOR)
    gradient = step.differentiate()[0].clone()
    slots = {slot.name: slot for slot in federation.model.layout.parameters}
    parameters = {name: slot.of(federation.server.weights) for name, slot in slots.items()}
    embeddings = parameters["embeddings.weight"]
    labels = federation.data.train.labels[federation.data.clients[POOR]].tolist()
    assert set(labels) == {0, 1, 2}
    general, _ = conditions_of(embeddings, labels)
    network = replica(federation, federation.server.weights, federation.server.buffers)
    with torch.no_grad():
        drawn = valve(parameters, extracted(network, step.images), general)
    drawn = drawn / drawn.norm(dim=1, keepdim=True)
    lengths = embeddings.norm(dim=1, keepdim=True)
    directions = embeddings / lengths
    cosines = drawn @ directions.T
    shares = cosines.exp() / cosines.exp().sum(1, keepdim=True)
    found = slots["embeddings.weight"].of(gradient)
    for label in range(3, 10):
        pushed = shares[:, label, None] * (drawn - cosines[:, label, None] * directions[label])
        expected = pushed.mean(0) / lengths[label]
        assert found[label].norm() > 1e-4
        torch.testing.assert_close(found[label], expected, rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_weight_decay_is_that_of_valve_and_embeddings(decay: float) -> None:
    """It adds mu w to the gradient of valve and embeddings, and nothing elsewhere."""
    method = Gpfl(decay=decay)
    federation = trained(method, model=SMALL, rounds=1)
    hooks, weights = step_of(federation).hooks, federation.server.weights
    added = hooks.correct(torch.zeros_like(weights), weights)
    decayed = set()
    for slot in federation.model.layout.parameters:
        factor = method.decay if slot.name.startswith(ADDITIONS) else 0.0
        torch.testing.assert_close(slot.of(added), factor * slot.of(weights), rtol=1e-6, atol=0)
        decayed |= {slot.name.partition(".")[0]} if slot.of(added).any() else set()
    assert decayed == ({"valve", "embeddings"} if method.decay else set())


@pytest.mark.parametrize("conditions", ["global", "trained"])
def test_all_but_the_classifier_goes_down_and_up(conditions: str) -> None:
    settings = {"model": MobileNetTiny(), "rounds": 2, "fraction": 0.5}
    plain = trained(FedAvg(), partition=with_tests(skewed(digits())), **settings)
    federation = trained(Gpfl(conditions=conditions), **settings)
    width, classes, trips = 64, 10, 2 * 3
    head = width * classes + classes
    additions = 2 * (width**2 + width) + 4 * width + classes * width
    expected = plain.bytes_up + 4 * trips * (additions - head)
    assert federation.bytes_down == federation.bytes_up == expected
    kept = {"own model", "gpfl"}
    for client in federation.clients.values():
        assert client.keys() <= kept
        numbers = sum(tensor.numel() for state in client.values() for tensor in state.values())
        assert numbers == head + (classes * width if conditions == "trained" else 0)


@pytest.mark.parametrize("model", [SMALL, FedAvgCnn(), LeNet5(), MobileNetTiny()], ids=by_name)
def test_networks_of_several_kinds_get_a_valve_and_embeddings(model: Model) -> None:
    """Before the classifier; all else is drawn as without them."""
    data = digits(16) if isinstance(model, LeNet5 | FedAvgCnn) else digits()
    plain = simulation(model=model, data=data)
    federation = trained(Gpfl(), model=model, data=data, rounds=1, fraction=0.2, batch_size=4, lr=0.01)
    start, _ = federation.task.initialise()
    slots = {slot.name: slot for slot in federation.model.layout.parameters}
    names = [name.partition(".")[0] for name in slots]
    assert list(dict.fromkeys(names))[-3:] == ["valve", "embeddings", "classifier"]
    for slot in plain.model.layout.parameters:
        assert torch.equal(slots[slot.name].of(start), slot.of(plain.server.weights))
    assert slots.keys() - {slot.name for slot in plain.model.layout.parameters} == {
        "embeddings.weight",
        *(f"valve.{b}.{p}.{k}" for b in ("gamma", "beta") for p in (0, 2) for k in ("weight", "bias")),
    }
    embeddings = slots["embeddings.weight"].of(start)
    assert embeddings.shape == (10, plain.network.classifier.in_features)
    spread = 4 / embeddings.numel() ** 0.5
    assert abs(float(embeddings.mean())) < spread and abs(float(embeddings.std()) - 1) < spread
    assert federation.server.weights.isfinite().all()
    for name in ("embeddings.weight", "valve.gamma.0.bias", "valve.beta.2.weight"):
        slot = slots[name]
        assert not torch.equal(slot.of(federation.server.weights), slot.of(start))
    assert len(rows_of(federation, "evaluation")) == 1
