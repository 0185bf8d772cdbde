"""The engine's support of personal models: private parts, tests of all clients, phases, initial uploads."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import pytest
import torch
from torch import Tensor
from torch.nn.utils import vector_to_parameters

from fltrain.core.errors import FltrainError
from fltrain.data.prepared import Partition
from fltrain.engine.simulation import Diverged, Simulation
from fltrain.methods import METHODS
from fltrain.methods.base import Method, Needs
from fltrain.methods.composition import Composition
from fltrain.methods.fedavg import FedAvg
from fltrain.methods.fedbn import FedBN
from fltrain.methods.types import Update
from fltrain.models.base import Private
from fltrain.models.networks.mlp import Mlp
from fltrain.runs.spec import RunSpec

from .helpers import (
    BASES,
    PLUGINS,
    Tracing,
    by_name,
    digits,
    mean_by_size,
    simulation,
    skewed,
    with_tests,
)
from .ordinary import check_client_tests, check_tests, replica, running

PARTS = ("head", "body", "all", "batchnorm")
CLIENTS = 6
FEW = {"fraction": 0.34, "model": Mlp(hidden=12)}
"""Two of the six clients in a round, and a small network."""
CONVOLUTIONS, NORMS = ("stem.0", "last.0"), ("stem.1", "last.1")
"""Layers of the default network before its classifier."""


def own_tests() -> Partition:
    return with_tests(skewed(digits()))


def part_mask(federation: Simulation, part: Private) -> Tensor:
    """Mask of a part in the weight vector, by the parameters' names."""
    slots = federation.model.layout.parameters
    modules = {"head": ["classifier"], "body": [*CONVOLUTIONS, *NORMS], "batchnorm": NORMS}
    modules["all"] = [*modules["head"], *modules["body"]]
    held = [slot.name.rpartition(".")[0] in modules[part] for slot in slots]
    return torch.cat(
        [torch.full((slot.stop - slot.start,), own) for slot, own in zip(slots, held, strict=True)]
    )


def logits_of(
    federation: Simulation, model_of: Callable[[int], tuple[Tensor, Tensor]]
) -> Callable[[int, Tensor], Tensor]:
    """Logits from every client's own weights and buffers."""
    return lambda client, images: replica(federation, *model_of(client)).eval()(images)


class Keeping(Method):
    """Federated averaging of all parts except a private one."""

    name: Literal["keeping"] = "keeping"
    keeps: Literal["all", "head", "body", "batchnorm"] = "head"

    @property
    def needs(self) -> Needs:
        return Needs(private=self.keeps)


@pytest.mark.parametrize("part", PARTS)
def test_private_parameters_stay_with_their_client(part: Private) -> None:
    """Clients start and are tested with their own part and the mean of the rest."""
    federation = simulation(Keeping(keeps=part), trainer=Tracing, fraction=0.34)
    private, initial = part_mask(federation, part), federation.server.weights.clone()
    own: dict[int, Tensor] = {}
    own_statistics = part in ("all", "batchnorm")
    own_buffers: dict[int, Tensor] = {}

    def model_of(client: int) -> tuple[Tensor, Tensor]:
        server = federation.server
        weights = torch.where(private, own.get(client, initial), server.weights)
        return weights, own_buffers.get(client, server.buffers)

    returned = set()
    for number in range(4):
        sampled = federation.sample(number)
        returned |= own.keys() & set(sampled)
        expected = [model_of(client)[0] for client in sampled]
        rows = federation.round(number)
        updates = federation.trainer.updates
        for update, start in zip(updates, expected, strict=True):
            assert torch.equal(update.start, start)
            assert (update.trained != start).double().mean() > 0.5
            assert torch.equal(update.weights, torch.where(private, start, update.trained))
            own[update.client] = update.trained.clone()
            if own_statistics:
                own_buffers[update.client] = update.buffers.clone()
        mean = mean_by_size(updates, "trained").float()
        public = federation.server.weights[~private]
        torch.testing.assert_close(public, mean[~private], rtol=1e-5, atol=1e-6)
        assert torch.equal(federation.server.weights[private], initial[private])
        check_client_tests(federation, rows[-1], logits_of(federation, model_of))
    assert returned and len(own) > 2
    sent = 4 * (int((~private).sum()) + (0 if own_statistics else len(federation.server.buffers)))
    assert federation.bytes_up == federation.bytes_down == 4 * 2 * sent


def test_local_statistics_stay_with_their_client() -> None:
    settings = {"batchnorm": "local", "partition": own_tests(), "fraction": 0.34}
    federation = simulation(FedAvg(), trainer=Tracing, **settings)
    initial, data = federation.server, federation.data.train
    buffers: dict[int, Tensor] = {}
    counters: dict[int, Tensor] = {}
    for number in range(4):
        before = federation.server
        rows = federation.round(number)
        updates = federation.trainer.updates
        for update in updates:
            client = update.client
            network = replica(federation, before.weights, buffers.get(client, initial.buffers))
            for step in federation.trainer.of(client, number):
                with torch.no_grad():
                    network(data.batch(step.chosen)[0])
                vector_to_parameters(step.weights.clone(), network.parameters())
            torch.testing.assert_close(update.buffers, running(network), rtol=1e-4, atol=1e-5)
            assert torch.equal(update.start, before.weights)
            expected = counters.get(client, initial.counters) + update.steps
            assert torch.equal(update.counters, expected)
            buffers[client], counters[client] = update.buffers.clone(), update.counters.clone()
        assert torch.equal(federation.server.buffers, initial.buffers)
        assert torch.equal(federation.server.counters, initial.counters)
        mean = mean_by_size(updates, "trained").float()
        torch.testing.assert_close(federation.server.weights, mean, rtol=1e-5, atol=1e-6)

        def model_of(client: int) -> tuple[Tensor, Tensor]:
            return federation.server.weights, buffers.get(client, initial.buffers)

        check_client_tests(federation, rows[-1], logits_of(federation, model_of))
    assert len(counters) < 4 * 2  # some returned
    assert federation.bytes_up == federation.bytes_down == 4 * 2 * 4 * len(initial.weights)


@pytest.mark.parametrize("point", ["after_download", "after_local"])
def test_clients_are_tested_at_the_configured_point(point: str) -> None:
    """The newest global model, or the client's last trained model (the global model if it never trained)."""
    federation = simulation(FedAvg(), trainer=Tracing, point=point, partition=own_tests(), **FEW)
    after = point == "after_local"

    def model_of(client: int, update: Update | None) -> tuple[Tensor, Tensor]:
        if after and update:
            return update.trained, update.buffers
        return federation.server.weights, federation.server.buffers

    last = check_tests(federation, 3, model_of, "personal" if after else "global")
    assert 2 < len(last) < CLIENTS


def test_fedbn_needs_batchnorm() -> None:
    with pytest.raises(FltrainError, match="method 'fedbn' needs a model with BatchNorm"):
        simulation(FedBN(), model=Mlp())


SENDING = [plugin for plugin in PLUGINS if plugin().needs.uploads]


@pytest.mark.parametrize("plugin", SENDING, ids=by_name)
def test_plugins_that_change_uploads_are_refused_without_uploads(plugin: type[Method]) -> None:
    with pytest.raises(ValueError, match=f"{plugin().name!r} needs the weights .* 'keeping'"):
        Composition((Keeping(keeps="all"), plugin()))
    for part in ("head", "body"):
        Composition((Keeping(keeps=part), plugin()))
    for base in ("local", "fedproto"):
        message = refusal(method=base, plugins=[plugin().name], local_test={})
        assert repr(plugin().name) in message and repr(base) in message


RUN = {
    "dataset": {"name": "digits", "image_size": 16},
    "partition": {"name": "iid", "clients": 4},
    "model": "mobilenet_tiny",
    "method": "fedavg",
}
PERSONAL = [base().name for base in BASES if Composition((base(),)).personal]


def refusal(**settings: object) -> str:
    with pytest.raises(FltrainError) as caught:
        RunSpec.parse({**RUN, **settings}, "run")
    message = str(caught.value)
    assert message.startswith("run: ") and "\n" not in message
    return message.removeprefix("run: ")


@pytest.mark.parametrize(
    ("settings", "key", "value"),
    [
        *(({"method": name}, "method", name) for name in PERSONAL[:2]),
        ({"batchnorm": "local"}, "batchnorm", "local"),
        ({"evaluation": {"point": "after_local"}}, "evaluation.point", "after_local"),
    ],
    ids=str,
)
def test_personal_models_need_test_images(settings: dict[str, Any], key: str, value: str) -> None:
    message = refusal(**settings)
    assert message.startswith(f"{key}: {value!r} ")
    assert "; set local_test" in message
    assert RunSpec.parse({**RUN, **settings, "local_test": {}}, "run").view == "personal"


@pytest.mark.parametrize(
    ("settings", "culprit", "refused"),
    [
        ({"method": "local"}, "method 'local'", ("divergence", "dissimilarity", "drift", "similarity")),
        # If only classifiers are private, the shared part is compared.
        ({"method": "gpfl"}, "method 'gpfl'", ("divergence", "dissimilarity")),
        ({"batchnorm": "local"}, "batchnorm 'local'", ()),
    ],
    ids=str,
)
def test_settings_that_need_a_global_model_are_refused_without_one(
    settings: dict[str, Any], culprit: str, refused: tuple[str, ...]
) -> None:
    settings = {**settings, "local_test": {}}
    statistics = [{"statistics": [statistic]} for statistic in refused]
    for evaluation in ({"extra": [{"name": "mnist", "image_size": 16}]}, {"keep": "model"}, *statistics):
        message = refusal(**settings, evaluation=evaluation)
        assert message.startswith(f"evaluation.{next(iter(evaluation))}: ") and culprit in message
    allowed = [one for one in ("drift", "similarity") if one not in refused]
    RunSpec.parse({**RUN, **settings, "evaluation": {"statistics": allowed}}, "run")


@pytest.mark.parametrize("method", ["local", "fedamp", "gpfl", "ditto"])
def test_private_weights_that_overflow_in_the_last_step_end_the_run(method: str) -> None:
    class Overflowing(Tracing):
        """The losses are finite; the weights after the last step are not."""

        def train(self, *args):
            results = super().train(*args)
            update = results[0].update
            broken = replace(update, trained=update.trained * torch.inf)
            return [replace(results[0], update=broken), *results[1:]]

    federation = simulation(METHODS[method](), trainer=Overflowing)
    with pytest.raises(Diverged, match="a client's weight"):
        federation.round(0)
