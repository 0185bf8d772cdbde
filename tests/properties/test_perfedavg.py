"""Per-FedAvg: meta-gradients of local steps, and tests after a step of adaptation."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils import vector_to_parameters

from fltrain.core.rng import Purpose, stream
from fltrain.data.prepared import Partition
from fltrain.engine.simulation import Simulation
from fltrain.methods.perfedavg import PerFedAvg
from fltrain.methods.training import Exponential
from fltrain.models.network import Network

from .helpers import Tracing, assert_same_model, rows_of, simulation, trained
from .ordinary import check_client_tests, gradient_of, replica, running

BATCH = 5
"""Clients of the small federation have 6 to 26 images: full chunks, usable rests and dropped rests."""

METHODS = [PerFedAvg(inner_lr=0.5), PerFedAvg(passes=1), PerFedAvg(version="hf", inner_lr=0.5, delta=0.1)]


def federation_of(method: PerFedAvg, **settings: object) -> Simulation:
    """A traced federation whose learning rate is halved after every round."""
    settings = {"batch_size": BATCH, "lr_schedule": Exponential(decay=0.5), **settings}
    return simulation(method, trainer=Tracing, fraction=1.0, **settings)


def chunks(
    federation: Simulation, client: int, number: int, parts: int, passes: int
) -> Iterator[list[Tensor]]:
    """D1, D2 (, D3) of every local step, cut by hand from the client's order of images."""
    images, size = federation.data.clients[client], federation.spec.training.batch_size
    for visit in range(passes * federation.spec.training.epochs):
        random = stream(0, Purpose.BATCH_ORDER, round=number, client=client, epoch=visit)
        order = images[torch.from_numpy(random.permutation(len(images)))].tolist()
        while order:
            chunk, order = order[: parts * size], order[parts * size :]
            whole, first = len(chunk) == parts * size, len(chunk) == len(images)
            if not (whole or first or len(chunk) >= 2 * parts):
                continue  # a rest with fewer than two images per part
            if len(chunk) < 2 * parts:
                yield [torch.tensor(chunk)] * parts
                continue
            each, more = divmod(len(chunk), parts)
            cuts = [each + (part < more) for part in range(parts)]
            assert not whole or cuts == [size] * parts
            yield list(torch.tensor(chunk).split(cuts))


def few_images(images: int) -> dict[str, object]:
    """A client with fewer images than a step takes; BatchNorm could not train on a part of one image."""
    clients, tests = [np.arange(images), np.arange(6, 30)], [np.arange(30, 40), np.arange(40, 50)]
    return {"partition": Partition(clients, digest="", tests=tests)}


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        *((method, {}) for method in METHODS),
        *((PerFedAvg(version="fo"), few_images(images)) for images in (1, 3)),
        (PerFedAvg(version="hf", delta=0.1), few_images(5)),
    ],
    ids=lambda value: str(value)[:60],
)
def test_local_training_equals_a_loop_over_copies(method: PerFedAvg, settings: dict[str, object]) -> None:
    """Successive disjoint batches, incomplete chunks, momentum and decay outside, statistics of D2 only.

    Steps start where the traced ones did, as in check_round. Clients with few images use all in each batch.
    """
    federation = federation_of(method, evaluate_every=100, **settings)
    data, training = federation.data.train, federation.spec.training
    parts = {"fo": 2, "hf": 3}[method.version]

    def gradient(network: Network, weights: Tensor, chosen: Tensor) -> tuple[Tensor, float]:
        vector_to_parameters(weights.clone(), network.parameters())
        images, labels = data.batch(chosen)
        loss = functional.cross_entropy(network(images), labels)
        return gradient_of(loss, network), loss.item()

    for number in range(2):
        received, lr = federation.server, training.lr * 0.5**number
        inner = lr if method.inner_lr is None else method.inner_lr
        federation.round(number)
        for update in federation.trainer.updates:
            traced = federation.trainer.of(update.client, number)
            cut = list(chunks(federation, update.client, number, parts, method.passes))
            assert len(traced) == len(cut) == update.steps > 0
            network = replica(federation, received.weights, received.buffers)
            weights, velocity, losses = received.weights, torch.zeros_like(received.weights), []
            for step, batches in zip(traced, cut, strict=True):

                def aside(
                    at: Tensor, chosen: Tensor, now: Tensor = weights, model: Network = network
                ) -> Tensor:
                    """Gradient on a copy, whose running statistics are discarded."""
                    return gradient(replica(federation, now, running(model)), at, chosen)[0]

                adapted = weights - inner * aside(weights, batches[0])
                moved, loss = gradient(network, adapted, batches[1])
                if parts == 3:
                    there, back = (
                        aside(weights + sign * method.delta * moved, batches[2]) for sign in (1, -1)
                    )
                    moved = moved - inner * (there - back) / (2 * method.delta)
                velocity = training.momentum * velocity + moved + training.weight_decay * weights
                torch.testing.assert_close(step.weights, weights - lr * velocity, rtol=1e-5, atol=2e-6)
                weights = step.weights
                losses.append(loss)
            torch.testing.assert_close(update.weights, weights, rtol=0, atol=0)
            torch.testing.assert_close(update.buffers, running(network), rtol=1e-5, atol=1e-6)
            assert float(update.loss) == pytest.approx(np.mean(losses), rel=1e-5)


@pytest.mark.parametrize(
    "method",
    [PerFedAvg(inner_lr=0.5), PerFedAvg(eval_steps=3), PerFedAvg(eval_steps=0), PerFedAvg(version="hf")],
    ids=str,
)
def test_clients_are_tested_after_adaptation(method: PerFedAvg) -> None:
    """Plain SGD on random batches, with the global model's running statistics."""
    federation = federation_of(method, momentum=0.9, weight_decay=0.1)
    training, data = federation.spec.training, federation.data
    for number in range(2):
        *_, row = federation.round(number)
        inner = training.lr * 0.5 ** (number + 1) if method.inner_lr is None else method.inner_lr

        def logits(client: int, tests: Tensor, number: int = number, inner: float = inner) -> Tensor:
            images, server = data.clients[client], federation.server
            random = method.random(federation.task, round=number + 1, client=client, use="adaptation")
            network = replica(federation, server.weights, server.buffers)
            weights = server.weights
            for _ in range(method.eval_steps):
                chosen = random.choice(len(images), min(len(images), training.batch_size), replace=False)
                batch, labels = data.train.batch(images[torch.from_numpy(chosen)])
                with torch.enable_grad():
                    loss = functional.cross_entropy(network(batch), labels)
                    weights = weights - inner * gradient_of(loss, network)
                vector_to_parameters(weights.clone(), network.parameters())
            return replica(federation, weights, server.buffers).eval()(tests)

        check_client_tests(federation, row, logits)


def test_adaptation_changes_no_model_state_or_random_number() -> None:
    often, never = (
        trained(PerFedAvg(inner_lr=0.5, eval_steps=2), rounds=3, evaluate_every=every) for every in (1, 100)
    )
    assert_same_model(often, never)
    assert rows_of(often, "train") == rows_of(never, "train")
    assert len(rows_of(often, "evaluation")) == 3 > len(rows_of(never, "evaluation"))
    assert all(not any(kept.values()) for kept in often.clients.values())
