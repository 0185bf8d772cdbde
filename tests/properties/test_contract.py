"""Errors of hooks name the method, the hook, its result and the expected one."""

from typing import Any, ClassVar, Literal

import pytest
import torch

from fltrain.core.errors import FltrainError
from fltrain.methods.base import Method
from fltrain.methods.fedavg import FedAvg
from fltrain.methods.types import Aggregate

from .helpers import trained

P = 998
"""Parameters of the tests' network on the digits."""

WRONG: dict[str, tuple[Any, str]] = {
    "aggregate": (
        lambda self, task, state, before, updates: before.weights,
        rf"a tensor of float32 \[{P}\]; expected Aggregate\(weights, state\), or Aggregate\(state=state\)",
    ),
    "aggregate (weights)": (
        lambda self, task, state, before, updates: Aggregate(before.weights[1:]),
        rf"Aggregate\(weights=a tensor of float32 \[{P - 1}\]\); expected weights \[{P}\]",
    ),
    "aggregate (row)": (
        lambda self, task, state, before, updates: Aggregate(row={"norm": before.weights.norm()}),
        r"Aggregate\(row=.*; expected a row of numbers",
    ),
    "correct": (
        lambda self, gradient, weights, local, step_state: gradient.long(),
        rf"a tensor of int64 \[{P}\]; expected a tensor \[{P}\]",
    ),
    "post_step": (
        lambda self, weights, local, step_state: None,
        rf"None; expected a tensor \[{P}\], as it was given",
    ),
    "loss": (
        lambda self, loss, outputs, step, local, step_state: outputs.logits.sum(1),
        r"a tensor of float32 \[\d+\]; expected a scalar tensor",
    ),
    "forward": (
        lambda self, network, step, local, step_state: network(step.images),
        r"a tensor of float32 \[\d+, 10\]; expected Outputs\(features, logits\)",
    ),
    "gradient": (
        lambda self, step, weights, local, step_state: step.differentiate()[0],
        rf"a tensor of float32 \[{P}\]; expected the gradient, a tensor \[{P}\], and the loss, a scalar",
    ),
    "client_init": (
        lambda self, local: {"done": 0},
        r"a dictionary \{'done': 0\}; expected a dictionary of tensors",
    ),
    "client_final": (
        lambda self, update, local, step_state: update,
        r"Update; expected the update and the client's state, a dictionary of tensors",
    ),
    "client_final (upload)": (
        lambda self, update, local, step_state: ({"change": update.weights}, {}),
        r"\(a dictionary .*; to upload further tensors, return update\.sending\(self\.name, \{\.\.\.\}\)",
    ),
    "client_final (state)": (
        lambda self, update, local, step_state: (update, {"rounds": 1}),
        r"\(Update, a dictionary \{'rounds': 1\}\); expected the update and the client's state",
    ),
    "server_init": (
        lambda self, task, start: {"momentum": 0.9},
        r"a dictionary \{'momentum': 0.9\}; expected a dictionary of tensors",
    ),
    "start_weights": (
        lambda self, weights, state, local: local.state,
        rf"a dictionary \{{\}}; expected a tensor \[{P}\]",
    ),
    "route": (lambda self, network, local, step_state: True, r"True; expected a context manager"),
    "adapt": (lambda self, network, classes: None, r"None; expected the network"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_result_of_the_wrong_kind_is_refused(case: str) -> None:
    hook, (wrong, message) = case.partition(" ")[0], WRONG[case]
    method = type("Wrong", (FedAvg,), {"__module__": __name__, hook: wrong})
    with pytest.raises(FltrainError, match=rf"^'{hook}' of method 'fedavg' returned {message}"):
        trained(method(), rounds=1, fraction=0.34)


class Other(Method):
    """A plug-in that returns weights."""

    name: Literal["other"] = "other"
    plugin: ClassVar[bool] = True

    def aggregate(self, task, state, before, updates):
        return Aggregate(before.weights.clone())


def test_only_one_method_returns_weights() -> None:
    method = type("Keeping", (FedAvg,), {"__module__": __name__, "aggregate": Other.aggregate})
    with pytest.raises(FltrainError, match="'aggregate' of the methods 'fedavg' and 'other' return weights"):
        trained(method(), Other(), rounds=1, fraction=0.34)
    alone = trained(FedAvg(), Other(), rounds=1, fraction=0.34)
    initial = trained(FedAvg(), rounds=0)
    assert torch.equal(alone.server.weights, initial.server.weights)


def test_rows_of_a_method_have_none_for_infinity_and_nan() -> None:
    """A diverging run can have both, and JSON has neither."""

    class Infinite(FedAvg):
        def aggregate(self, task: Any, state: Any, before: Any, updates: Any) -> Aggregate:
            return Aggregate(row={"scale": float("inf"), "layers": [{"norm": float("nan")}, 1.0]})

    rows = [row for row in trained(Infinite(), rounds=1).rows if row["kind"] == "fedavg"]
    assert rows == [{"round": 1, "kind": "fedavg", "scale": None, "layers": [{"norm": None}, 1.0]}]
