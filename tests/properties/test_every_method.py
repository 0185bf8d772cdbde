"""Properties of every method and plug-in, also of methods added later."""

import math
import warnings
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import pytest
import torch
from torch import Tensor, nn

from fltrain.core.errors import FltrainError
from fltrain.engine.simulation import Simulation
from fltrain.methods import METHODS
from fltrain.methods.base import Method
from fltrain.methods.composition import Composition
from fltrain.methods.fedavg import FedAvg
from fltrain.methods.types import Local, State
from fltrain.models.networks import MODELS

from .helpers import (
    BASES,
    COMBINATIONS,
    EVERY,
    MODEL_FOR,
    PLUGINS,
    VARIED,
    assert_same_model,
    by_name,
    digits,
    goes_with,
    reference,
    rows_of,
    slow_unless,
    strict_about_writes,
    trained,
)

ROUNDS, CLIENTS = 3, 2

A_FEW_NUMBERS = 64
"""Bytes per client and round: indices, normalisers, counts of ten classes."""


@pytest.mark.usefixtures("watch")
@pytest.mark.parametrize("methods", slow_unless(map(by_name, EVERY), COMBINATIONS), ids=by_name)
def test_three_rounds_of_every_method_run_and_stay_consistent(methods: tuple[Method, ...]) -> None:
    """Hooks stay on the device, and do not write into tensors that they were handed."""
    uploads = Composition(methods).needs.private != "all"
    with strict_about_writes():
        federation = trained(
            *methods,
            rounds=ROUNDS,
            fraction=CLIENTS / 6,
            statistics=("drift", "similarity", "separability") if uploads else (),
            clip_norm=1.0,
        )
    for part in ("weights", "buffers"):
        assert getattr(federation.server, part).isfinite().all()
    assert federation.server.counters.dtype == torch.int64
    assert_positive_variances(federation)
    for row in federation.rows:
        for key, value in row.items():
            assert not isinstance(value, float) or math.isfinite(value), f"{key!r} is not finite: {row}"

    assert [row["round"] for row in rows_of(federation, "train")] == [1, 2, 3]
    assert [len(row["clients"]) for row in rows_of(federation, "train")] == [CLIENTS] * ROUNDS
    for row in rows_of(federation, "evaluation"):
        assert 0 <= row["accuracy"] <= 1
    assert len(rows_of(federation, "updates")) == (ROUNDS if uploads else 0)
    for row in rows_of(federation, "updates"):
        assert row["drift"] > 0
        # A layer without a change has no cosine: a private one, or one that a sparse upload leaves out.
        needs = federation.composition.needs
        is_sparse = needs.private is not None or needs.uploads
        for layer, value in row["similarity"].items():
            assert is_sparse if value is None else -1 <= value <= 1, (
                f"similarity of layer {layer!r} is {value}; expected -1 to 1. If the method does not upload "
                "changes of every layer, declare Needs(uploads=True) or Needs(private=...)"
            )

    assert_footprint(federation, methods)


def tensors_of(states: dict[str, dict[str, Tensor]]) -> list[Tensor]:
    return [tensor for state in states.values() for tensor in state.values()]


def assert_footprint(federation: Simulation, methods: tuple[Method, ...]) -> None:
    """Check that traffic and state are what the methods declare, and at most a few numbers more."""
    # Weights and running statistics have 32 bits.
    weights = 4 * sum(parameter.numel() for parameter in federation.network.parameters())
    private = federation.model.layout.private(federation.ownership.private)
    shared = weights - 4 * len(federation.server.weights[private])
    buffers = 4 * sum(buffer.numel() for buffer in federation.network.buffers() if buffer.is_floating_point())
    buffers *= not federation.ownership.buffers
    trips = federation.finished * CLIENTS
    sent = math.ceil(shared * math.prod(method.footprint.upload for method in methods))
    client_state = [tensor for states in federation.clients.values() for tensor in tensors_of(states)]
    sizes = [tensor.numel() for tensor in client_state if tensor.numel() >= weights / 4]
    server_state = tensors_of(federation.server.states)
    measured = {
        "down": federation.bytes_down / trips - buffers - shared,
        "up": federation.bytes_up / trips - buffers - sent,
        "client": 4 * sum(sizes) / len(federation.clients),
        "server": weights * sum(tensor.numel() >= weights / 4 for tensor in server_state),
    }
    counts = {place: max(0, round(size / weights)) for place, size in measured.items()}
    fitting = ", ".join(f"{place}={number}" for place, number in counts.items() if number)
    for place, size in measured.items():
        vectors = [getattr(method.footprint, place) for method in methods]
        assert None in vectors or 0 <= size - sum(vectors) * weights <= A_FEW_NUMBERS, (
            f"footprint: {place} is declared as {vectors} vectors of the model's size; the run has "
            f"{size / weights:.3f}, in addition to the model that is sent. Declare `footprint: ClassVar"
            f"[Footprint] = Footprint({fitting})`, or {place}=None if the cost depends on the network; of "
            "several methods, each declares its part"
        )


class Remembering(Method):
    """Keeps and uploads a vector, and declares neither."""

    name: Literal["remembering"] = "remembering"

    def client_final(self, update, local, step_state):
        return update.sending(self.name, {"change": update.displacement}), {"memory": update.displacement}


def test_an_undeclared_footprint_names_the_declaration() -> None:
    method = Remembering()
    federation = trained(method, rounds=1, fraction=CLIENTS / 6)
    with pytest.raises(AssertionError, match=r"Declare `.* = Footprint\(up=1, client=1\)`, or up=None"):
        assert_footprint(federation, (method,))


def assert_positive_variances(federation: Simulation) -> None:
    """Check the running variances of every norm layer."""
    variances = [value for name, value in federation.network.named_buffers() if name.endswith("running_var")]
    norms = [module for module in federation.network.modules() if isinstance(module, nn.BatchNorm2d)]
    assert len(variances) == len(norms)
    for variance in variances:
        assert (variance > 0).all()


ROUNDING = (
    "; if the formulas are equal and only their rounding differs, average with `data_weighted_mean`, or "
    "declare no `neutral`"
)


@pytest.mark.parametrize("method", [base for base in BASES if base.neutral is not None], ids=by_name)
def test_neutral_base_is_federated_averaging_bit_for_bit(method: type[Method]) -> None:
    model = MODEL_FOR.get(by_name(method))
    neutral, plain = trained(method(**method.neutral), model=model), reference(FedAvg(), model=model)
    assert_same_model(neutral, plain, ROUNDING)
    assert not torch.equal(reference(method(), model=model).server.weights, plain.server.weights)


@pytest.mark.parametrize(
    ("plugin", "base"),
    [
        pytest.param(plugin, base, marks=() if by_name(base) in VARIED else pytest.mark.slow)
        for plugin in PLUGINS
        for base in BASES
        if plugin.neutral is not None and goes_with(base(), plugin())
    ],
    ids=by_name,
)
def test_neutral_plugin_is_its_base_bit_for_bit(plugin: type[Method], base: type[Method]) -> None:
    assert_same_model(trained(base(), plugin(**plugin.neutral)), reference(base()), ROUNDING)


class Scribbling(Method):
    """Overwrites, after another pass on the batch, all tensors that a hook may change in a step."""

    name: Literal["scribbling"] = "scribbling"
    plugin: ClassVar[bool] = True

    def client_init(self, local: Local) -> State:
        return {"steps": local.start.new_zeros(())}

    def next_state(self, outputs, step, weights, local, step_state):
        gradient, loss = step.differentiate(at=weights + 1, track=False, observe=False)
        for tensor in (gradient, loss, outputs.features, outputs.logits, step.images):
            tensor.detach().fill_(7.0)
        return {"steps": step_state["steps"] + 1}

    def client_final(self, update, local, step_state):
        assert int(step_state["steps"]) == update.steps
        return update, {}


@pytest.mark.parametrize(
    "methods",
    [(base(),) for base in BASES]
    + [(FedAvg(), plugin()) for plugin in PLUGINS]
    + [(FedAvg(), METHODS["ecgr"](vector="gradient"))],
    ids=by_name,
)
def test_hooks_may_overwrite_their_own_tensors(methods: tuple[Method, ...]) -> None:
    settings = {"rounds": 1, "fraction": 0.34}
    assert_same_model(trained(*methods, Scribbling(), **settings), reference(*methods, **settings))


SHARED: dict[str, Callable[..., Tensor]] = {
    "start_weights": lambda weights, state, local: weights,
    "client_init": lambda local: local.class_counts,
    "correct": lambda gradient, weights, local, step_state: gradient,
    "post_step": lambda weights, local, step_state: local.start,
    "next_state": lambda outputs, step, weights, local, step_state: weights,
    "loss": lambda loss, outputs, step, local, step_state: local.buffers,
    "gradient": lambda step, weights, local, step_state: weights,
    "client_final": lambda update, local, step_state: update.trained,
    "aggregate": lambda task, state, before, updates: before.weights,
    "server_init": lambda task, start: start,
    "test_weights": lambda weights, local: local.start,
}
"""A tensor per hook that other hooks read, too."""


@pytest.mark.parametrize("hook", SHARED)
def test_writing_into_shared_tensors_is_refused(hook: str) -> None:
    def writing(self: Method, *arguments: Any) -> Any:
        SHARED[hook](*arguments).mul_(2.0)
        return getattr(FedAvg, hook)(self, *arguments)

    writer = type("Writer", (FedAvg,), {"__module__": __name__, hook: writing})
    with pytest.raises(FltrainError, match=rf"^'{hook}' of method 'fedavg' writes into a tensor"):
        trained(writer(), rounds=1)


EVERYTHING = [(base(),) for base in BASES] + [(plugin(),) for plugin in PLUGINS]
SMALL = ("lenet5", "mlp", "mobilenet_tiny")
"""Networks for tests of every method; the other networks take minutes."""

FEW = ("fedavg", "fedma", "fed2", "fedproto", "gpfl", "flfa", "fedimpro")
"""Methods that depend on the network's structure, and federated averaging, for the large networks."""

DEEPER = dict.fromkeys(("resnet50", "vgg11", "vgg16"), ("fedavg", "flfa"))
"""Methods for networks that differ from a tested one in depth or width."""


@pytest.mark.parametrize(
    "name", [name if name in SMALL else pytest.param(name, marks=pytest.mark.slow) for name in MODELS]
)
def test_every_method_trains_or_refuses_every_network(name: str, request: pytest.FixtureRequest) -> None:
    """With `--own`, the summary of pytest lists the refusals."""
    model = MODELS[name]()
    data = digits(8 * -(-model.min_side // 8))
    refused: dict[str, str] = {}
    names = DEEPER.get(name, FEW)
    for methods in EVERYTHING if name in SMALL else [pair for pair in EVERYTHING if pair[0].name in names]:
        try:
            settings = {"model": model, "data": data, "rounds": 1, "fraction": 0.17}
            federation = trained(*methods, batch_size=32, lr=0.001, **settings)
        except FltrainError as error:
            assert "\n" not in str(error)
            refused[methods[0].name] = str(error)
        else:
            assert federation.server.weights.isfinite().all()
    assert refused.keys() <= {"fedma", "fed2", "fedimpro", "fedbn"}, (
        "these need chains of layers, a cut, or BatchNorm"
    )
    if refused and request.config.getoption("--own"):
        warnings.warn("\n".join(f"{method} refuses: {why}" for method, why in refused.items()), stacklevel=1)
