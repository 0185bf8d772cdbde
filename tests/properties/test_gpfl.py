"""GPFL: against the published formulas in plain torch, over rounds in which clients pause and return."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.utils import vector_to_parameters

from fltrain.methods.composition import Composition
from fltrain.methods.fedavg import FedAvg
from fltrain.methods.gpfl import Gpfl
from fltrain.models.base import Model
from fltrain.models.network import Network
from fltrain.models.networks.mlp import Mlp
from fltrain.models.networks.mobilenet_tiny import MobileNetTiny

from .helpers import Tracing, digits, mean_by_size, simulation, skewed, trained, with_tests
from .ordinary import check_client_tests, flat, replica, running, step_of

POOR = 0
"""A client of the small federation that has images of classes 0, 1 and 2 only."""

SMALL = Mlp(hidden=12)
"""No BatchNorm, few features."""

ADDITIONS = ("valve.", "embeddings.")


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
        branches.append(norm[0] * centred / ((centred**2).sum() / len(hidden) + 1e-5).sqrt() + norm[1])
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


def check_rounds(method: Gpfl, model: Model) -> None:
    """Compare local steps, client states, averages and tests with the formulas."""
    rounds = 4
    settings = {"epochs": 2, "momentum": 0.5, "weight_decay": 0.01, "rounds": 9, "fraction": 0.34}
    federation = simulation(method, model=model, trainer=Tracing, **settings)
    data, slots = federation.data, federation.model.layout.parameters
    labels = [data.train.labels[own].tolist() for own in data.clients]
    slot = next(slot for slot in slots if slot.name == "embeddings.weight")
    head = torch.cat([torch.full((s.stop - s.start,), s.name.startswith("classifier.")) for s in slots])
    heads: dict[int, Tensor] = {}  # client states
    own_embeddings: dict[int, Tensor] = {}
    initial = federation.server.weights.clone()

    def model_of(client: int) -> Tensor:
        """The client's model after the server's message."""
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

        for update in federation.trainer.updates:
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
            for step in federation.trainer.of(client, number):
                images, targets = data.train.batch(step.chosen)
                network.zero_grad()
                loss = client_loss(network, images, targets, known[client], received, method.weight)
                loss.backward()
                for optimiser in optimisers:
                    optimiser.step()
                losses.append(loss.item())
                # Start from the end of the traced step: a rounding error can cross the kink of a ReLU.
                torch.testing.assert_close(step.weights, flat(network.parameters()), rtol=1e-4, atol=2e-6)
                vector_to_parameters(step.weights.clone(), network.parameters())
            assert len(losses) == update.steps > 1
            assert float(update.loss) == pytest.approx(np.mean(losses), rel=1e-4)
            torch.testing.assert_close(update.buffers, running(network), rtol=1e-4, atol=1e-6)
            heads[client] = update.trained.clone()
            own_embeddings[client] = slot.of(update.trained).clone()

        for part in ("weights", "buffers"):
            mean = mean_by_size(federation.trainer.updates, part).float()
            if part == "weights":
                mean = torch.where(head, initial, mean)
            torch.testing.assert_close(getattr(federation.server, part), mean, rtol=1e-5, atol=1e-6)

        def logits(client: int, images: Tensor, number: int = number) -> Tensor:
            network = replica(federation, model_of(client), federation.server.buffers).eval()
            return decided(network, extracted(network, images), conditions(client, number + 1)[1])

        check_client_tests(federation, rows[-1], logits)
    assert len(heads) < 2 * rounds  # some clients returned; in the first rounds some had not taken part yet


@pytest.mark.parametrize("conditions", ["global", "trained"])
def test_rounds_follow_the_formulas(conditions: str) -> None:
    check_rounds(Gpfl(conditions=conditions, weight=0.3), SMALL)


def test_rounds_with_batchnorm_and_the_authors_settings_follow_the_formulas() -> None:
    check_rounds(Gpfl(), MobileNetTiny())


def test_the_distance_acts_through_the_global_route_only() -> None:
    """Its gradient is zero outside the global route: in the classifier, and in the embeddings in training."""
    federation = trained(Gpfl(weight=0.5), model=SMALL, rounds=1)
    found = step_of(federation, client=POOR).differentiate()[0].clone()
    federation.composition = Composition((Gpfl(weight=0.0),))
    without = step_of(federation, client=POOR).differentiate()[0].clone()
    for slot in federation.model.layout.parameters:
        same = torch.equal(slot.of(without), slot.of(found))
        assert same == slot.name.startswith(("classifier.", "embeddings.")), slot.name


@pytest.mark.parametrize("conditions", ["global", "trained"])
def test_all_parts_except_the_classifier_are_sent(conditions: str) -> None:
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
