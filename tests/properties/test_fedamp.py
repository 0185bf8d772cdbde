"""FedAMP: the cloud models of the server, the pull on clients, and the tested weights."""

import math
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fltrain.engine.clients import OWN
from fltrain.methods.fedamp import FedAmp
from fltrain.methods.local import LocalOnly
from fltrain.methods.types import Update
from fltrain.models.network import Network

from .helpers import Tracing, assert_same_steps, drawn, simulation, trained
from .ordinary import check_steps, check_tests, cross_entropy, replica

METHODS = [
    FedAmp(scale=300.0, alpha=0.5, alpha_decay=0.5, decay_every=1),
    FedAmp(self_weight=0.6, alpha=1.0, weight=0.0),
    FedAmp(alpha=1e-6),
    FedAmp(variant="kernel", alpha=0.4, weight=2.0),
    FedAmp(variant="kernel", alpha=2.0),
]
"""The last one's shares of the others exceed one: they are limited."""


def mixed(method: FedAmp, weights: list[Tensor]) -> list[Tensor]:
    """Every client's cloud model, computed pair by pair in double precision."""
    vectors, count = [vector.double() for vector in weights], len(weights)
    clouds = []
    for i, own in enumerate(vectors):
        others = [j for j in range(count) if j != i]
        if method.variant == "kernel":
            alpha = 1.0 if method.alpha is None else method.alpha
            share = {
                j: alpha * math.exp(-float((own - vectors[j]).square().sum()) / method.sigma) / method.sigma
                for j in others
            }
            total = max(1.0, sum(share.values()))
            share = {j: value / total for j, value in share.items()}
            mine = 1 - sum(share.values())
        else:
            mine = 1 / count if method.self_weight is None else method.self_weight
            mine = mine if others else 1.0
            cosine = {j: float(functional.cosine_similarity(own, vectors[j], dim=0)) for j in others}
            likeness = {j: math.exp(method.scale * (cosine[j] - 1)) for j in others}
            share = {j: (1 - mine) * likeness[j] / sum(likeness.values()) for j in others}
        clouds.append(mine * own + sum(share[j] * vectors[j] for j in others))
    return clouds


def test_kernel_shares_do_not_depend_on_a_common_offset() -> None:
    """Weights are far longer than their differences, which must not be lost to rounding."""
    # Multiples of a power of two, so that adding the common part is exact.
    weights = (0.01 * drawn(4, 4000) * 2**14).round() / 2**14
    method = FedAmp(variant="kernel", alpha=0.3, sigma=0.5)
    near, far = method.shares(list(weights)), method.shares(list(weights + 1.0))
    assert 0.1 < float(near[0, 1]) < 0.3
    torch.testing.assert_close(far, near, rtol=0, atol=1e-5)


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_clients_start_from_cloud_models_and_are_pulled_to_them(method: FedAmp) -> None:
    """From their last cloud models, with the steps of an ordinary loop."""
    federation = simulation(method, trainer=Tracing, evaluate_every=100, lr=0.2)
    lr = federation.spec.training.lr
    initial, clouds, seen = federation.server.weights, {}, []
    for number in range(3):
        received = federation.server
        federation.round(number)
        alpha = 1e4 if method.alpha is None else method.alpha
        if method.variant == "heuristic":
            for _ in range(number // method.decay_every):
                alpha *= method.alpha_decay
        pull = min(method.weight / alpha, 1 / lr)
        updates = federation.trainer.updates
        for update in updates:
            start = clouds.get(update.client, initial)
            torch.testing.assert_close(update.start, start.float(), rtol=1e-5, atol=1e-6)
            network = replica(federation, update.start, received.buffers)

            def towards(network: Network, start: Tensor = update.start, pull: float = pull) -> Tensor:
                weights = torch.cat([parameter.flatten() for parameter in network.parameters()])
                return pull / 2 * (weights - start).square().sum()

            loss = partial(cross_entropy, update.client)
            check_steps(federation, number, update, network, loss, penalty=towards, atol=2e-6)
            assert torch.equal(update.weights, update.trained)
            seen.append(update.client)
        # Clients that were not sampled keep their cloud models.
        mixtures = mixed(method, [update.weights for update in updates])
        clouds |= {update.client: cloud for update, cloud in zip(updates, mixtures, strict=True)}
    again, new = len(seen) - len(set(seen)), len(set(seen) - set(seen[:3]))
    assert again and new, "no client returned or joined later"


def test_a_single_client_continues_from_its_own_weights() -> None:
    for method in (FedAmp(), FedAmp(variant="kernel")):
        federation = simulation(method, trainer=Tracing, fraction=1 / 6, evaluate_every=100)
        initial, own = federation.server.weights, {}
        for number in range(8):
            federation.round(number)
            (update,) = federation.trainer.updates
            assert torch.equal(update.start, own.get(update.client, initial))
            own[update.client] = update.trained
        assert len(own) < 8, "no client returned"


@pytest.mark.parametrize("method", [FedAmp(), FedAmp(variant="kernel", alpha=0.2)], ids=str)
def test_clients_are_tested_with_their_own_weights(method: FedAmp) -> None:
    """With their last trained weights, or with the initial weights."""
    federation = simulation(method, trainer=Tracing, fraction=0.34, epochs=3)
    initial = federation.server.weights

    def model_of(client: int, update: Update | None) -> tuple[Tensor, Tensor]:
        return update.trained if update else initial, federation.server.buffers

    check_tests(federation, 2, model_of)


def test_the_pfllib_variant_equals_local_training_bit_for_bit() -> None:
    settings = {"rounds": 3, "batchnorm": "local", "trainer": Tracing, "epochs": 2}
    method = FedAmp(variant="pfllib")
    mixing, alone = trained(method, **settings), trained(LocalOnly(), **settings)
    assert_same_steps(mixing, alone)
    assert mixing.clients.keys() == alone.clients.keys()
    for client, kept in mixing.clients.items():
        assert torch.equal(kept[method.name]["weights"], alone.clients[client][OWN]["weights"])
    assert mixing.rows == alone.rows
