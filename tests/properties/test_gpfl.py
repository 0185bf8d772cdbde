"""GPFL: against the published formulas in plain torch, over rounds in which clients pause and return."""

import pytest
import torch
from torch import Tensor

from fltrain.methods.gpfl import Gpfl
from fltrain.models.base import Model
from fltrain.models.network import Network
from fltrain.models.networks.mlp import Mlp
from fltrain.models.networks.mobilenet_tiny import MobileNetTiny

from .helpers import Tracing, mean_by_size, simulation
from .ordinary import check_client_tests, check_steps, replica

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


CASES = [
    *((Gpfl(conditions=conditions, weight=0.3), SMALL) for conditions in ("global", "trained")),
    (Gpfl(), MobileNetTiny()),
]
"""The last one has BatchNorm and the authors' settings."""


@pytest.mark.parametrize(("method", "model"), CASES, ids=str)
def test_rounds_follow_the_formulas(method: Gpfl, model: Model) -> None:
    """Local steps, client states, averages and tests."""
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

    def decay(network: Network) -> Tensor:
        """Weight decay of the additions alone, as a penalty."""
        named = network.named_parameters()
        return method.decay / 2 * sum(one.square().sum() for name, one in named if name.startswith(ADDITIONS))

    for number in range(rounds):
        sampled = federation.sample(number)
        starts = {client: model_of(client) for client in sampled}
        known = {client: conditions(client, number) for client in sampled}
        before = federation.server
        rows = federation.round(number)

        for update in federation.trainer.updates:
            client = update.client
            network = replica(federation, starts[client], before.buffers)
            received = slot.of(starts[client]).clone()

            def loss(
                network: Network,
                images: Tensor,
                labels: Tensor,
                conditions: tuple[Tensor, Tensor] = known[client],
                received: Tensor = received,
            ) -> Tensor:
                return client_loss(network, images, labels, conditions, received, method.weight)

            check_steps(federation, number, update, network, loss, penalty=decay, rtol=1e-4, atol=2e-6)
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
