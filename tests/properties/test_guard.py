"""Local steps of every method stay on the device: no host synchronisation, no random numbers."""

from collections.abc import Callable
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fltrain.core.errors import FltrainError
from fltrain.engine import local
from fltrain.methods.fedavg import FedAvg
from fltrain.methods.flfa import Flfa
from fltrain.methods.types import Local, State
from fltrain.runtime import guard
from fltrain.runtime.guard import no_host_sync

from .helpers import assert_same_model, trained
from .test_statistics import DroppingModel

pytestmark = pytest.mark.usefixtures("watch")

FLFA_SETTINGS = [
    {"n_fa": 2},
    {"n_fa": 2, "feedback": "random", "scale": "none"},
    {"n_fa": 2, "feedback": "direct"},
    {"n_fa": 2, "feedback": "local"},
]


@pytest.mark.parametrize("settings", FLFA_SETTINGS, ids=str)
def test_the_guard_of_the_first_steps_changes_no_result(
    settings: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    guarded = trained(Flfa(**settings), clip_norm=1.0, fraction=0.34)
    monkeypatch.setattr(local, "WATCHED_ROUNDS", 0)
    assert_same_model(guarded, trained(Flfa(**settings), clip_norm=1.0, fraction=0.34))


class Misbehaving(FedAvg):
    """Reads a value in a local step, or draws a number."""

    name: Literal["misbehaving"] = "misbehaving"
    hook: Literal["correct", "next_state"] = "correct"

    def correct(self, gradient: Tensor, weights: Tensor, local: Local, step_state: State) -> Tensor:
        return gradient * gradient.norm().item() if self.hook == "correct" else gradient

    def next_state(self, outputs, step, weights: Tensor, local: Local, step_state: State) -> State:
        return {"noise": torch.rand(2)} if self.hook == "next_state" else step_state


class Passing(FedAvg):
    """Runs the network in a hook."""

    name: Literal["passing"] = "passing"

    def forward(self, network, step, local, step_state):
        return super().forward(network, step, local, step_state)


def branch(tensor: Tensor) -> None:
    if tensor.sum() > 0:
        pass


# One example of each kind, and the name in the error.
MISDEEDS: dict[str, tuple[Callable[[Tensor], object], str]] = {
    "item": (lambda tensor: tensor.norm().item(), r"Tensor\.item"),
    "asarray": (lambda tensor: np.asarray(tensor.detach()), r"Tensor\.__array__"),
    "to cpu": (lambda tensor: tensor.to("cpu"), r"Tensor\.to\('cpu'\)"),
    "bool": (branch, r"Tensor\.__bool__"),
    "index": (lambda tensor: tensor[tensor.argmax()], "_local_scalar_dense"),
    "equal": (lambda tensor: torch.equal(tensor, tensor), r"aten\.equal"),
    "nonzero": (lambda tensor: tensor.nonzero(), r"aten\.nonzero"),
    "mask": (lambda tensor: tensor[tensor > 0], r"aten\.index\.Tensor"),
    "masked write": (lambda tensor: tensor.clone().__setitem__(tensor > 0, 0.0), r"aten\.index_put_"),
    "tensor": (lambda tensor: torch.tensor([1.0, 2.0]), r"torch\.tensor"),
    "device": (lambda tensor: tensor.to("meta"), r"aten\._to_copy.*cpu, meta"),
    "rand": (lambda tensor: torch.rand(2), r"aten\.rand.*random numbers"),
    "dropout": (lambda tensor: nn.functional.dropout(tensor), r"aten\..*random numbers"),
}


@pytest.mark.parametrize("deed", MISDEEDS)
def test_host_synchronisation_and_random_numbers_are_refused(deed: str) -> None:
    operation, message = MISDEEDS[deed]
    tensor = torch.arange(1.0, 5.0, requires_grad=True)
    with pytest.raises(RuntimeError, match=message), no_host_sync():
        operation(tensor)


@pytest.mark.parametrize(("hook", "message"), [("correct", r"Tensor\.item"), ("next_state", r"aten\.rand")])
def test_the_first_steps_of_a_run_are_guarded(hook: str, message: str) -> None:
    with pytest.raises(
        FltrainError, match=rf"^'{hook}' of method 'misbehaving': {message}.* is refused here"
    ):
        trained(Misbehaving(hook=hook), rounds=1, fraction=0.1)


def test_networks_may_drop_features_in_guarded_hooks() -> None:
    plain, passing = (trained(method, model=DroppingModel(), rounds=1) for method in (FedAvg(), Passing()))
    assert_same_model(plain, passing)


def test_the_guard_loads_no_compiler() -> None:
    """PyTorch wraps the function of such a class in one that imports the compiler, which takes seconds."""
    assert not hasattr(guard._Watch.__torch_dispatch__, "__wrapped__")
