"""What the engine does for personal models: private parts, tests of all clients, phases, introductions."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils import vector_to_parameters

from fltrain.core.errors import FltrainError
from fltrain.data.prepared import Partition
from fltrain.engine.executors.sequential import Sgd
from fltrain.engine.simulation import Diverged, Simulation
from fltrain.methods import METHODS
from fltrain.methods.base import Method
from fltrain.methods.composition import Composition
from fltrain.methods.fedavg import FedAvg
from fltrain.methods.training import Exponential, Training
from fltrain.methods.types import Local, Needs, Phase, Schedule, State
from fltrain.models.networks.mlp import Mlp
from fltrain.models.networks.mobilenet_tiny import MobileNetTiny
from fltrain.models.part import Part
from fltrain.runs.spec import RunSpec

from .helpers import (
    BASES,
    CPU,
    PLUGINS,
    Tracing,
    assert_same_model,
    by_name,
    digits,
    rows_of,
    simulation,
    skewed,
    trained,
    with_tests,
)
from .ordinary import flat, replica, running

PARTS = ("head", "body", "all")
CLIENTS = 6
FEW = {"fraction": 0.34, "model": Mlp(hidden=12)}
"""Two of the six clients in a round, and a small network."""
NORMED = {"fraction": 0.34, "model": MobileNetTiny()}
"""One with BatchNorm."""


def own_tests() -> Partition:
    return with_tests(skewed(digits()))


def where(federation: Simulation, part: Part | None) -> Tensor:
    """Which entries of the weight vector belong to a part, by the parameters' names."""
    slots = federation.model.layout.parameters
    masks = [
        torch.full((slot.stop - slot.start,), part == "all" or (part == "head") == is_head)
        for slot in slots
        for is_head in [slot.name in ("classifier.weight", "classifier.bias")]
    ]
    return torch.cat(masks) & (part is not None)


def shares(federation: Simulation) -> Tensor:
    sizes = torch.tensor([float(update.samples) for update in federation.executor.updates])
    return sizes / sizes.sum()


def row_of(
    federation: Simulation,
    model_of: Callable[[int], tuple[Tensor, Tensor]],
    decide: Callable[[int, Tensor], Tensor] = lambda _client, logits: logits,
) -> dict[str, Any]:
    """The row of a test in which every client has weights and buffers, and makes something of the logits."""
    shares_correct, hits, losses = [], [], []
    for client, chosen in enumerate(federation.data.tests):
        images, labels = federation.data.train.batch(chosen)
        with torch.no_grad():
            logits = decide(client, replica(federation, *model_of(client)).eval()(images))
        correct = [int(row.argmax()) == int(label) for row, label in zip(logits, labels, strict=True)]
        shares_correct.append(sum(correct) / len(correct))
        hits += correct
        losses += functional.cross_entropy(logits, labels, reduction="none").tolist()
    return {
        "accuracy": sum(hits) / len(hits),
        "loss": pytest.approx(sum(losses) / len(losses), rel=1e-5),
        "images": len(hits),
        "macro": pytest.approx(np.mean(shares_correct)),
        "std": pytest.approx(np.std(shares_correct)),
    }


def assert_tested(row: dict[str, Any], expected: dict[str, Any], view: str) -> None:
    assert {**row, **expected} == row
    assert (row["kind"], row["split"], row["view"]) == ("evaluation", "local_test", view)


# ------------------------------------------------------------------------------------ private parameters
class Keeping(Method):
    """Federated averaging of all but a part."""

    name: Literal["keeping"] = "keeping"
    keeps: Literal["all", "head", "body"] = "head"

    @property
    def needs(self) -> Needs:
        return Needs(private=self.keeps)


@pytest.mark.parametrize("part", PARTS)
def test_private_parameters_stay_with_their_client(part: Part) -> None:
    """Clients start with their own part and the others' mean of the rest; so they are tested, too."""
    federation = simulation(Keeping(keeps=part), executor=Tracing, **NORMED)
    private, initial = where(federation, part), federation.server.weights.clone()
    own: dict[int, Tensor] = {}
    # Clients that keep the whole model keep its statistics, too.
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
        updates = federation.executor.updates
        for update, start in zip(updates, expected, strict=True):
            assert torch.equal(update.start, start)
            assert (update.trained != start).double().mean() > 0.5
            assert torch.equal(update.weights, torch.where(private, start, update.trained))
            own[update.client] = update.trained.clone()
            if part == "all":
                own_buffers[update.client] = update.buffers.clone()
        mean = shares(federation) @ torch.stack([update.trained for update in updates])
        public = federation.server.weights[~private]
        torch.testing.assert_close(public, mean[~private], rtol=1e-5, atol=1e-6)
        assert torch.equal(federation.server.weights[private], initial[private])
        assert_tested(rows[-1], row_of(federation, model_of), "personal")
    assert returned and len(own) > 2
    sent = 4 * (int((~private).sum()) + (0 if part == "all" else len(federation.server.buffers)))
    assert federation.bytes_up == federation.bytes_down == 4 * 2 * sent


# ------------------------------------------------------------------------ local BatchNorm statistics


def test_local_statistics_stay_with_their_client() -> None:
    """Weights are averaged; running statistics and their counters go on where each client left off."""
    federation = simulation(FedAvg(), executor=Tracing, batchnorm="local", partition=own_tests(), **NORMED)
    initial, data = federation.server, federation.data.train
    buffers: dict[int, Tensor] = {}
    counters: dict[int, Tensor] = {}
    for number in range(4):
        before = federation.server
        rows = federation.round(number)
        updates = federation.executor.updates
        for update in updates:
            client = update.client
            network = replica(federation, before.weights, buffers.get(client, initial.buffers))
            for step in federation.executor.of(client, number):
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
        mean = shares(federation) @ torch.stack([update.trained for update in updates])
        torch.testing.assert_close(federation.server.weights, mean, rtol=1e-5, atol=1e-6)

        def model_of(client: int) -> tuple[Tensor, Tensor]:
            return federation.server.weights, buffers.get(client, initial.buffers)

        assert_tested(rows[-1], row_of(federation, model_of), "personal")
    assert len(counters) < 4 * 2  # some returned
    assert federation.bytes_up == federation.bytes_down == 4 * 2 * 4 * len(initial.weights)


def test_weights_do_not_depend_on_whose_statistics_are_tested() -> None:
    """Local steps use those of the batch."""
    runs = [trained(FedAvg(), partition=own_tests(), batchnorm=how) for how in ("average", "local")]
    assert torch.equal(runs[0].server.weights, runs[1].server.weights)
    assert [row["loss"] for row in runs[0].rows if row["kind"] == "train"] == [
        row["loss"] for row in runs[1].rows if row["kind"] == "train"
    ]


# ------------------------------------------------------------------------------------ the point of the test


@pytest.mark.parametrize("point", ["after_download", "after_local"])
def test_clients_are_tested_at_the_point(point: str) -> None:
    """The newest global model, or what each client trained last (the global model if it never did)."""
    federation = simulation(FedAvg(), executor=Tracing, point=point, partition=own_tests(), **FEW)
    last: dict[int, tuple[Tensor, Tensor]] = {}
    for number in range(4):
        rows = federation.round(number)
        for update in federation.executor.updates if point == "after_local" else ():
            last[update.client] = update.trained.clone(), update.buffers.clone()

        def model_of(client: int) -> tuple[Tensor, Tensor]:
            return last.get(client, (federation.server.weights, federation.server.buffers))

        view = "personal" if point == "after_local" else "global"
        assert_tested(rows[-1], row_of(federation, model_of), view)
        if number == 0:
            assert len(last) < CLIENTS


def test_the_point_of_the_test_does_not_change_the_training() -> None:
    runs = [
        trained(*methods, point=point, partition=own_tests(), rounds=3, **FEW)
        for methods in ((FedAvg(),), (Keeping(),))
        for point in ("after_download", "after_local")
    ]
    assert_same_model(runs[0], runs[1])
    assert_same_model(runs[2], runs[3])
    for client, kept in runs[2].clients.items():
        assert torch.equal(kept["own model"]["weights"], runs[3].clients[client]["own model"]["weights"])


class OwnNumber(FedAvg):
    """Client k is sure that all of its images are of class k."""

    name: Literal["own_number"] = "own_number"

    def predict(self, network, images, local):
        return 5.0 * functional.one_hot(torch.full((len(images),), local.client), 10).float()


def test_accuracies_of_clients_are_averaged_over_images_and_over_clients() -> None:
    """By hand: one of two, three of three, none of five; only one client is ever sampled in a round."""
    labels = digits().train_labels
    of = {label: np.flatnonzero(labels == label) for label in (0, 1, 2)}
    tests = [np.array([of[0][0], of[1][0]]), of[1][1:4], of[0][1:6]]
    rest = np.setdiff1d(np.arange(len(labels)), np.concatenate(tests))
    partition = Partition([rest[k::3] for k in range(3)], digest="", tests=tests)
    row = trained(OwnNumber(), partition=partition, fraction=0.34, rounds=1).rows[-1]
    assert len({len(own) for own in tests}) == 3
    right, wrong = np.log1p(9 * np.exp(-5)), np.log(np.exp(5) + 9)
    assert {key: row[key] for key in ("accuracy", "macro", "std", "images", "loss")} == {
        "accuracy": pytest.approx(4 / 10),
        "macro": pytest.approx((1 / 2 + 1 + 0) / 3),
        "std": pytest.approx((1 / 6) ** 0.5),
        "images": 10,
        "loss": pytest.approx((4 * right + 6 * wrong) / 10, rel=1e-5),
    }
    assert (row["view"], row["split"]) == ("personal", "local_test")


# ------------------------------------------------------------------------------------ hooks of the tests
class Shifting(FedAvg):
    """Clients are tested with shifted weights, and turn every second logit round."""

    name: Literal["shifting"] = "shifting"

    @staticmethod
    def shift(client: int) -> float:
        return 0.003 * (client + 1)

    @staticmethod
    def decide(client: int, logits: Tensor) -> Tensor:
        signs = torch.ones(10)
        signs[client % 2 :: 2] = -1
        return logits * signs

    def test_weights(self, weights, local):
        return weights.add_(self.shift(local.client))  # in place: the weights are the test's own

    def predict(self, network, images, local):
        return self.decide(local.client, network(images))


class ShiftingAtHome(Keeping, Shifting):
    """The same with a private classifier."""

    name: Literal["shifting_at_home"] = "shifting_at_home"


@pytest.mark.parametrize("method", [Shifting(), ShiftingAtHome()], ids=by_name)
def test_clients_are_tested_with_personal_weights_and_decisions(method: Method) -> None:
    """Both hooks act, for all clients, and nothing is left of it on the server or with the clients."""
    federation = trained(method, rounds=3, **FEW)
    private, initial = where(federation, method.needs.private), federation.task.initialise()[0]
    assert len(federation.clients) < CLIENTS
    server = federation.server

    def model_of(client: int) -> tuple[Tensor, Tensor]:
        own = federation.clients.get(client, {}).get("own model", {}).get("weights")
        weights = server.weights.clone()
        weights[private] = initial[private] if own is None else own
        return weights + Shifting.shift(client), server.buffers

    expected = row_of(federation, model_of, Shifting.decide)
    assert_tested(federation.rows[-1], expected, "personal")
    assert expected != row_of(federation, lambda client: (server.weights, server.buffers))
    seldom = trained(method, rounds=3, evaluate_every=3, **FEW)
    assert len(rows_of(seldom, "evaluation")) == 1
    plain = trained(Keeping() if private.any() else FedAvg(), rounds=3, partition=own_tests(), **FEW)
    for other in (seldom, plain):
        assert_same_model(federation, other)
        for client, kept in federation.clients.items():
            for name, tensor in kept.get("own model", {}).items():
                assert torch.equal(tensor, other.clients[client]["own model"][name])


class Asking(FedAvg):
    """Notes down what the tests are told of a client."""

    name: Literal["asking"] = "asking"
    told: ClassVar[list[Local]] = []

    def payload(self, state: State) -> State:
        return {"sent": torch.tensor(7.0)}

    def client_final(self, update, local, step_state):
        return update, {"rounds": local.state.get("rounds", torch.zeros(())) + 1}

    def predict(self, network, images, local):
        self.told.append(local)
        return network(images)


def test_the_tests_know_clients_as_they_would_begin_the_next_round() -> None:
    Asking.told.clear()
    federation = trained(Asking(), rounds=3, evaluate_every=3, **FEW)
    often = [sum(client in federation.sample(number) for number in range(3)) for client in range(CLIENTS)]
    assert 0 in often and max(often) > 0
    assert [local.client for local in Asking.told] == list(range(CLIENTS))
    for local, count in zip(Asking.told, often, strict=True):
        assert (local.round, local.samples) == (3, len(federation.data.clients[local.client]))
        assert local.payload == {"sent": 7.0}
        assert local.state == ({"rounds": count} if count else {})
        assert torch.equal(local.class_counts, federation.data.class_counts[local.client])
        assert torch.equal(local.start, federation.server.weights)


# ------------------------------------------------------------------------------------ phases
class Phased(FedAvg):
    """Extractor and classifier train in turn, each with its own rate."""

    name: Literal["phased"] = "phased"
    order: tuple[Literal["all", "body", "head"], ...] = ("body", "head")
    alternate: Literal["epoch", "batch"] = "epoch"
    batches: int = 1
    passes: int = 1
    head_lr: float | None = 0.02

    @property
    def needs(self) -> Needs:
        phases = tuple(Phase(part, self.head_lr if part == "head" else None) for part in self.order)
        return Needs(schedule=Schedule(phases, self.alternate, self.batches, self.passes))


class Watching(Tracing):
    """Keeps the running statistics after every step, too."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.statistics: list[tuple[Tensor, Tensor]] = []

    def _step(self, images, chosen, how, hooks, optimiser):
        result = super()._step(images, chosen, how, hooks, optimiser)
        self.statistics.append((self.model.buffers.clone(), self.model.counters.clone()))
        return result


def visited(images: list[list[int]], method: Phased) -> list[tuple[str, list[int]]]:
    """Phase and images of each step, given the images of each batch-wise visit, for one pass."""
    if method.alternate == "epoch":
        return [(part, batch) for part in method.order for batch in images]
    return [(part, batch) for batch in images for part in method.order]


PHASED = [
    Phased(),
    Phased(order=("head", "body"), alternate="batch", head_lr=None),
    Phased(order=("head",), batches=2, passes=2),
    Phased(order=("body",), batches=3),
    Phased(order=("all", "head"), alternate="batch"),
]


@pytest.mark.parametrize("method", PHASED, ids=lambda method: f"{'-'.join(method.order)} {method.alternate}")
def test_phases_train_their_parameters_and_leave_all_else_alone(method: Phased) -> None:
    """Each phase is an ordinary optimiser of its parameters, which leaves all else as it was, to the bit."""
    settings = {"momentum": 0.9, "weight_decay": 0.1, "epochs": 2, "batch_size": 12}
    federation = simulation(method, executor=Watching, fraction=0.34, rounds=2, **settings)
    layout, data = federation.model.layout, federation.data
    before = federation.server
    federation.round(0)
    masks = {part: where(federation, part) for part in ("head", "body", "all")}
    statistics = iter(federation.executor.statistics)
    for update in federation.executor.updates:
        steps = federation.executor.of(update.client)
        sizes = federation.spec.training.batch_sizes(update.samples, method.batches)
        assert len(steps) == update.steps == 2 * method.passes * len(method.order) * len(sizes)
        network = replica(federation, before.weights, before.buffers)
        named = dict(network.named_parameters())
        assert list(named) == [slot.name for slot in layout.parameters]
        head = [parameter for name, parameter in named.items() if name.startswith("classifier.")]
        body = [parameter for name, parameter in named.items() if not name.startswith("classifier.")]
        groups = {"head": head, "body": body, "all": [*body, *head]}
        rates = {"head": method.head_lr or 0.05, "body": 0.05, "all": 0.05}
        optimisers = [
            torch.optim.SGD(groups[part], lr=rates[part], momentum=0.9, weight_decay=0.1)
            for part in method.order
        ]
        weights, (buffers, counters) = before.weights, (before.buffers, before.counters)
        orders, losses = [], []
        taken = iter(steps)
        for _ in range(2 * method.passes):
            one_pass = [next(taken) for _ in range(len(method.order) * len(sizes))]
            stride = 1 if method.alternate == "epoch" else len(method.order)
            batches = [step.chosen.tolist() for step in one_pass[::stride][: len(sizes)]]
            expected = visited(batches, method)
            assert [len(batch) for batch in batches] == sizes
            assert len({image for batch in batches for image in batch}) == sum(sizes)
            assert {image for batch in batches for image in batch} <= set(
                data.clients[update.client].tolist()
            )
            orders.append([image for batch in batches for image in batch])
            for step, (part, batch) in zip(one_pass, expected, strict=True):
                assert step.chosen.tolist() == batch
                network.zero_grad()
                loss = functional.cross_entropy(
                    network(data.train.batch(step.chosen)[0]), data.train.batch(step.chosen)[1]
                )
                loss.backward()
                losses.append(loss.item())
                optimisers[method.order.index(part)].step()
                torch.testing.assert_close(step.weights, flat(network.parameters()), rtol=1e-4, atol=1e-5)
                vector_to_parameters(step.weights.clone(), network.parameters())
                resting = ~masks[part]
                assert torch.equal(step.weights[resting], weights[resting])
                assert (step.weights[~resting] != weights[~resting]).double().mean() > 0.5
                found, count = next(statistics)
                if part == "head":
                    assert torch.equal(found, buffers) and torch.equal(count, counters)
                else:
                    torch.testing.assert_close(found, running(network), rtol=1e-4, atol=1e-5)
                    assert torch.equal(count, counters + 1)
                fresh = replica(
                    federation, step.weights, found
                )  # statistics, too, go on from the traced ones
                network.load_state_dict({**network.state_dict(), **dict(fresh.named_buffers())})
                weights, buffers, counters = step.weights, found, count
        assert torch.equal(update.trained, weights)
        assert torch.equal(update.buffers, buffers) and torch.equal(update.counters, counters)
        assert len({tuple(order) for order in orders}) == len(orders)
        assert float(update.loss) == pytest.approx(np.mean(losses), rel=1e-4)


def test_rates_of_phases_follow_the_schedule_of_the_run() -> None:
    federation = simulation()
    round = replace(federation._at(1), training=Training(lr=0.2, lr_schedule=Exponential(decay=0.5)))
    for phase, rate in ((Phase("head", 0.04), 0.02), (Phase("body"), 0.1)):
        optimiser = Sgd(phase, federation.model)
        optimiser.reset(round)
        assert optimiser.rate == pytest.approx(rate)


# ------------------------------------------------------------------------------------ before the first round
class Introducing(FedAvg):
    """Clients say what they have; the server counts how often it hears from each, and sends the counts on."""

    name: Literal["introducing"] = "introducing"
    needs: ClassVar[Needs] = Needs(initial_upload=True)

    def server_init(self, task, start):
        return {"heard": torch.zeros(task.clients), "rounds": torch.zeros(())}

    def payload(self, state: State) -> State:
        return {"heard": state["heard"], **({"said": state["said"]} if "said" in state else {})}

    def client_final(self, update, local, step_state):
        if update.steps:
            return update, local.state
        features = local.examples.features()
        said = torch.cat([local.class_counts, features.mean(0), local.start[:4]])
        return replace(update, extras={self.name: {"said": said}}), local.state

    def client_init(self, local: Local) -> State:
        return {"heard": local.payload["heard"]}

    def server_step(self, task, state, before, updates):
        said = [update.extras[self.name]["said"] for update in updates if self.name in update.extras]
        if not said:
            return {**state, "rounds": state["rounds"] + 1}
        heard = state["heard"].clone()
        for update in updates:
            heard[update.client] += 1
        return {**state, "heard": heard, "said": torch.stack(said)}


def test_clients_introduce_themselves_once_before_the_first_round() -> None:
    """Once from every client, of the initial model, before anybody trains; counted; never again."""

    def federation_of_six() -> Simulation:
        federation = simulation(Introducing(), executor=Tracing, partition=own_tests(), **FEW)
        return federation

    federation = federation_of_six()
    start, data = federation.server, federation.data
    federation.round(0)
    network = replica(federation, start.weights, start.buffers).eval()
    state = federation.server.states["introducing"]
    width = network.classifier.in_features
    for client, own in enumerate(data.clients):
        images, labels = data.train.batch(own)
        counts, features, weights = state["said"][client].split([10, width, 4])
        assert counts.tolist() == np.bincount(labels, minlength=10).tolist()
        with torch.no_grad():
            torch.testing.assert_close(features, network.features(images).mean(0), rtol=1e-4, atol=1e-5)
        assert torch.equal(weights, start.weights[:4])
    for step in federation.executor.steps:
        assert step.step_states["introducing"]["heard"].tolist() == [1] * CLIENTS
    federation.round(1)
    state = federation.server.states["introducing"]
    assert state["heard"].tolist() == [1] * CLIENTS
    assert int(state["rounds"]) == 2
    model = 4 * (len(start.weights) + len(start.buffers))
    said = 4 * CLIENTS * (10 + width + 4)
    assert federation.bytes_up == said + 2 * 2 * model
    assert federation.bytes_down == 2 * 2 * (model + 4 * CLIENTS + said)

    resumed = federation_of_six()
    resumed.server = federation.server
    resumed.clients.update(federation.clients)
    for one in (federation, resumed):
        one.round(2)
    assert_same_model(federation, resumed)
    assert resumed.server.states["introducing"]["heard"].tolist() == [1] * CLIENTS
    assert resumed.bytes_up == 2 * model


# ------------------------------------------------------------------------------------ broadcasts by client
class ToEach(FedAvg):
    """Every client starts from weights of its own."""

    name: Literal["to_each"] = "to_each"

    def start_weights(self, weights, state, local):
        return weights if local.testing else weights + 0.01 * local.client


def test_every_client_can_be_sent_weights_of_its_own() -> None:
    """Clients train from what they were sent; the global weights are those that are tested."""
    method = ToEach()
    federation = simulation(method, executor=Tracing, partition=own_tests(), **FEW)
    for number in range(2):
        before = federation.server.weights.clone()
        rows = federation.round(number)
        for update in federation.executor.updates:
            assert torch.equal(update.start, before + 0.01 * update.client)
        expected = row_of(federation, lambda _: (federation.server.weights, federation.server.buffers))
        assert_tested(rows[-1], expected, "global")
    assert federation.bytes_down == federation.bytes_up


# ------------------------------------------------------------------------------------ what is refused
class Predicting(OwnNumber):
    name: Literal["predicting"] = "predicting"
    plugin: ClassVar[bool] = True


class KeepingToo(Keeping):
    name: Literal["keeping_too"] = "keeping_too"
    plugin: ClassVar[bool] = True


class PhasedToo(Phased):
    name: Literal["phased_too"] = "phased_too"
    plugin: ClassVar[bool] = True


@pytest.mark.parametrize(
    ("hook", "base", "plugin"),
    [
        ("predict", OwnNumber(), Predicting()),
        ("private", Keeping(), KeepingToo()),
        ("schedule", Phased(), PhasedToo()),
    ],
)
def test_two_methods_cannot_both_decide(hook: str, base: Method, plugin: Method) -> None:
    said = f"^{base.name!r} and {plugin.name!r} cannot be combined: both define {hook!r}$"
    with pytest.raises(ValueError, match=said):
        Composition((base, plugin))
    Composition((FedAvg(), plugin))  # a plug-in may on a base that does not


def test_what_a_plug_in_says_of_personal_models_counts() -> None:
    assert Composition((FedAvg(), KeepingToo(keeps="body"))).needs.private == "body"
    assert Composition((FedAvg(), PhasedToo(passes=3))).schedule.passes == 3
    for plugins, personal in (((), False), ((KeepingToo(),), True), ((Predicting(),), True)):
        assert Composition((FedAvg(), *plugins)).personal == personal


SENDING = [plugin for plugin in PLUGINS if plugin().needs.uploads]


@pytest.mark.parametrize("plugin", SENDING, ids=by_name)
def test_plugins_that_work_on_uploads_need_some(plugin: type[Method]) -> None:
    said = f"^{plugin().name!r} needs the weights that clients send; with 'keeping' they send none$"
    with pytest.raises(ValueError, match=said):
        Composition((Keeping(keeps="all"), plugin()))
    for part in ("head", "body"):
        Composition((Keeping(keeps=part), plugin()))
    silent = [base() for base in BASES if base().needs.private == "all"]
    assert {"local", "fedproto", "fedgh", "fedfcd"} <= {base.name for base in silent}
    for base in silent:
        message = refusal(method=base.name, plugins=[plugin().name], local_test={})
        assert repr(plugin().name) in message and repr(base.name) in message


def test_plugins_that_do_not_say_that_they_need_uploads_go_with_all() -> None:
    assert {"flfa", "ecgr"} <= {plugin().name for plugin in SENDING}

    class Modest(FedAvg):
        name: Literal["modest"] = "modest"
        plugin: ClassVar[bool] = True

    Composition((Keeping(keeps="all"), Modest()))


RUN = {
    "dataset": {"name": "digits", "image_size": 16},
    "partition": {"name": "iid", "clients": 4},
    "model": "mobilenet_tiny",
    "method": "fedavg",
}
MORE = [{"name": "mnist", "image_size": 16}]
PERSONAL = [base().name for base in BASES if Composition((base(),)).personal]
PRIVATE = [base().name for base in BASES if not Composition((base(),)).needs.global_model]


def refusal(**settings: object) -> str:
    with pytest.raises(FltrainError) as caught:
        RunSpec.parse({**RUN, **settings}, "run")
    message = str(caught.value)
    assert message.startswith("run: ") and "\n" not in message
    return message.removeprefix("run: ")


def test_methods_are_personal_that_should_be() -> None:
    assert {*PERSONAL} == {"local", "perfedavg", "fedamp", "fedproto", "gpfl", "fedgh", "fedfcd"}
    assert {*PERSONAL} - {*PRIVATE} <= {"perfedavg", "fedamp"}


@pytest.mark.parametrize(
    ("settings", "key", "value"),
    [
        *(({"method": name}, "method", name) for name in PERSONAL),
        ({"batchnorm": "local"}, "batchnorm", "local"),
        ({"evaluation": {"point": "after_local"}}, "evaluation.point", "after_local"),
    ],
    ids=str,
)
def test_personal_models_need_images_to_test_them_on(settings: dict[str, Any], key: str, value: str) -> None:
    message = refusal(**settings)
    assert message.startswith(f"{key}: {value!r} ")
    assert "; set local_test" in message
    assert RunSpec.parse({**RUN, **settings, "local_test": {}}, "run").view == "personal"


@pytest.mark.parametrize(
    ("settings", "culprit"),
    [
        *(({"method": name}, f"method {name!r}") for name in PRIVATE),
        ({"batchnorm": "local"}, "batchnorm 'local'"),
    ],
    ids=str,
)
def test_what_needs_a_global_model_is_refused_without_one(settings: dict[str, Any], culprit: str) -> None:
    settings = {**settings, "local_test": {}}
    for evaluation in ({"extra": MORE}, {"keep": "model"}):
        message = refusal(**settings, evaluation=evaluation)
        assert message.startswith(f"evaluation.{next(iter(evaluation))}: ") and culprit in message
        assert message.endswith(("; leave it out", "; keep 'clients'"))
    composition = Composition((METHODS[settings.get("method", "fedavg")](),))
    # Weights are shared if BatchNorm statistics alone are not; of classifiers alone, the rest is compared.
    refused = [] if composition.needs.global_model else ["divergence", "dissimilarity"]
    allowed = ["drift", "similarity"]
    if refused and composition.needs.private != "head":
        refused, allowed = refused + allowed, []
    for statistic in refused:
        message = refusal(**settings, evaluation={"statistics": [statistic]})
        assert message.startswith(f"evaluation.statistics: {statistic!r} compares models that clients share")
        assert culprit in message and message.endswith("; leave it out")
    RunSpec.parse({**RUN, **settings, "evaluation": {"statistics": allowed}}, "run")


@pytest.mark.parametrize(
    "settings", [{"method": "perfedavg"}, {"evaluation": {"point": "after_local"}}], ids=str
)
def test_where_there_is_a_global_model_it_is_tested_on_further_images(settings: dict[str, Any]) -> None:
    evaluation = {**settings.get("evaluation", {}), "extra": [{"name": "mnist"}]}
    spec = RunSpec.parse({**RUN, **settings, "local_test": {}, "evaluation": evaluation}, "run")
    federation = Simulation(spec, digits(), own_tests(), CPU, extra={"mnist": digits()})
    rows = {row["split"]: row for row in federation.round(0) if row["kind"] == "evaluation"}
    assert {split: row["view"] for split, row in rows.items()} == {
        "local_test": "personal",
        "mnist": "global",
    }
    network = replica(federation, federation.server.weights, federation.server.buffers).eval()
    with torch.no_grad():
        images, labels = federation.data.test.batch(torch.arange(len(digits().test_labels)))
        hits = network(images).argmax(1) == labels
    assert rows["mnist"]["accuracy"] == pytest.approx(float(hits.double().mean()))


def test_a_global_model_can_be_tested_on_own_images_and_others() -> None:
    evaluation = {"extra": MORE, "statistics": ["divergence", "dissimilarity"]}
    spec = RunSpec.parse({**RUN, "local_test": {}, "evaluation": evaluation}, "run")
    assert (spec.view, spec.test_split) == ("global", "local_test")


@pytest.mark.parametrize("method", ["local", "fedamp", "gpfl"])
def test_a_weight_of_a_clients_own_that_overflows_in_the_last_step_ends_the_run(method: str) -> None:
    class Overflowing(Tracing):
        """The losses are finite; what the last step leaves is not."""

        def train(self, *args):
            results = super().train(*args)
            update = results[0].update
            broken = replace(update, trained=update.trained * torch.inf)
            return [replace(results[0], update=broken), *results[1:]]

    federation = simulation(METHODS[method](), executor=Overflowing)
    with pytest.raises(Diverged, match="a client's weight"):
        federation.round(0)
