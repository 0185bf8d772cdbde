"""Local steps of every method stay on the device: no host synchronisation, no random numbers."""

import random
from collections.abc import Callable
from contextlib import contextmanager
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fltrain.engine.executors.sequential import SequentialExecutor
from fltrain.methods.base import Method
from fltrain.methods.fedavg import FedAvg
from fltrain.methods.flfa import Flfa
from fltrain.methods.types import Local, State

from ..guard import no_host_sync
from .helpers import COMBINATIONS, assert_same_model, by_name, slow_unless_daily, trained


class Guarded(SequentialExecutor):
    """The reference loop whose local steps run under the guard; what begins and finishes them does not."""

    def _step(self, images, chosen, how, hooks, optimiser):
        with no_host_sync():
            return super()._step(images, chosen, how, hooks, optimiser)


FLFA_SETTINGS = [
    {"n_fa": 3},
    {"n_fa": 2, "feedback": "random"},
    {"n_fa": 2, "feedback": "random", "scale": "none"},
    {"n_fa": 2, "feedback": "direct"},
    {"n_fa": 2, "feedback": "local"},
    {"n_fa": 2, "scale": "none"},
    {"n_fa": 2, "target": "next"},
    {"strategy": "fixed", "layers": "all"},
]


@pytest.mark.parametrize("methods", slow_unless_daily(COMBINATIONS), ids=by_name)
def test_local_steps_stay_on_the_device(methods: tuple[Method, ...]) -> None:
    trained(*methods, executor=Guarded, rounds=3, clip_norm=1.0, fraction=0.34)


@pytest.mark.parametrize("settings", FLFA_SETTINGS, ids=str)
def test_local_steps_of_every_feedback_stay_on_the_device(settings: dict[str, object]) -> None:
    trained(FedAvg(), Flfa(**settings), executor=Guarded, rounds=3, clip_norm=1.0, fraction=0.34)


def test_the_guard_changes_no_result() -> None:
    assert_same_model(trained(Flfa(n_fa=3), executor=Guarded), trained(Flfa(n_fa=3)))


# ------------------------------------------------------------------------------------ the guard notices
class Misbehaving(FedAvg):
    """Does something in ``correct`` that a local step must not do."""

    name: Literal["misbehaving"] = "misbehaving"
    deed: str

    def _misbehave(self, tensor: Tensor) -> None:
        MISDEEDS[self.deed][0](tensor)

    def correct(self, gradient: Tensor, weights: Tensor, local: Local, step_state: State) -> Tensor:
        self._misbehave(gradient)
        return gradient


class MisbehavingLater(Misbehaving):
    """Does it in ``next_state``."""

    name: Literal["misbehaving_later"] = "misbehaving_later"

    def correct(self, gradient: Tensor, weights: Tensor, local: Local, step_state: State) -> Tensor:
        return gradient

    def next_state(self, outputs, step, weights: Tensor, local: Local, step_state: State) -> State:
        self._misbehave(weights)
        return step_state


class Backward(torch.autograd.Function):
    """Identity that misbehaves on the way back."""

    @staticmethod
    def forward(ctx, tensor: Tensor, deed: Callable[[Tensor], object]) -> Tensor:
        ctx.deed = deed
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx, error: Tensor):
        ctx.deed(error)
        return error, None


class MisbehavingBackwards(Misbehaving):
    """Does it in the backward pass."""

    name: Literal["misbehaving_backwards"] = "misbehaving_backwards"

    def correct(self, gradient: Tensor, weights: Tensor, local: Local, step_state: State) -> Tensor:
        return gradient

    @contextmanager
    def route(self, network: nn.Module, local: Local, step_state: State):
        deed = MISDEEDS[self.deed][0]
        handle = network.classifier.register_forward_hook(
            lambda _module, _args, output: Backward.apply(output, deed)
        )
        yield
        handle.remove()


class AllowedOutside(FedAvg):
    """Reads values and draws numbers where it may: before and after the local steps, and on the server."""

    name: Literal["allowed_outside"] = "allowed_outside"

    def client_init(self, local: Local) -> State:
        return {"noise": torch.from_numpy(np.random.rand(3)) * local.start.norm().item()}

    def client_final(self, update, local, step_state):
        assert step_state["noise"].tolist() and random.random() < 1
        return update, local.state

    def server_step(self, task, state, before, updates):
        return {"share": torch.rand(1) if updates[0].weights[0] > 0 else torch.zeros(1)}


def branch(tensor: Tensor) -> None:
    if tensor.sum() > 0:
        pass


# What is done, and what the error names.
MISDEEDS: dict[str, tuple[Callable[[Tensor], object], str]] = {
    "item": (lambda tensor: tensor.norm().item(), r"Tensor\.item"),
    "tolist": (lambda tensor: tensor.tolist(), r"Tensor\.tolist"),
    "numpy": (lambda tensor: tensor.detach().numpy(), r"Tensor\.numpy"),
    "asarray": (lambda tensor: np.asarray(tensor.detach()), r"Tensor\.__array__"),
    "cpu": (lambda tensor: tensor.cpu(), r"Tensor\.cpu"),
    "to cpu": (lambda tensor: tensor.to("cpu"), r"Tensor\.to\('cpu'\)"),
    "to device cpu": (lambda tensor: tensor.to(device="cpu"), r"Tensor\.to\('cpu'\)"),
    "float": (lambda tensor: float(tensor[0]), r"Tensor\.__float__"),
    "int": (lambda tensor: int(tensor[0]), r"Tensor\.__int__"),
    "bool": (branch, r"Tensor\.__bool__"),
    "max": (lambda tensor: max(tensor[0], tensor[1]), r"Tensor\.__bool__"),
    "range": (lambda tensor: range(tensor.argmax()), r"Tensor\.__index__"),
    "print": (lambda tensor: f"{tensor[0]}", r"Tensor\.__format__"),
    "repr": (lambda tensor: repr(tensor), r"Tensor\.__repr__"),
    "index": (lambda tensor: tensor[tensor.argmax()], "_local_scalar_dense"),
    "alpha": (lambda tensor: tensor.add(tensor, alpha=tensor.flatten()[0].detach()), "_local_scalar_dense"),
    "equal": (lambda tensor: torch.equal(tensor, tensor), r"aten\.equal"),
    "allclose": (lambda tensor: torch.allclose(tensor, tensor), r"aten\.allclose"),
    "nonzero": (lambda tensor: tensor.nonzero(), r"aten\.nonzero"),
    "where": (lambda tensor: torch.where(tensor > 0), r"aten\.nonzero"),
    "unique": (lambda tensor: tensor.unique(), r"aten\._unique2"),
    "masked_select": (lambda tensor: tensor.masked_select(tensor > 0), r"aten\.masked_select"),
    "mask": (lambda tensor: tensor[tensor > 0], r"aten\.index\.Tensor"),
    "masked write": (lambda tensor: tensor.clone().__setitem__(tensor > 0, 0.0), r"aten\.index_put_"),
    "tensor": (lambda tensor: torch.tensor([1.0, 2.0]), r"torch\.tensor"),
    "from_numpy": (lambda tensor: torch.from_numpy(np.zeros(2)), r"torch\.from_numpy"),
    "new_tensor": (lambda tensor: tensor.new_tensor([1.0]), r"Tensor\.new_tensor"),
    "device": (lambda tensor: tensor.to("meta"), r"aten\._to_copy.*cpu, meta"),
    "rand": (lambda tensor: torch.rand(2), r"aten\.rand.*random numbers"),
    "randn_like": (lambda tensor: torch.randn_like(tensor), r"aten\.randn_like.*random numbers"),
    "in place": (lambda tensor: torch.empty(3).normal_(), r"aten\.normal_.*random numbers"),
    "dropout": (lambda tensor: nn.functional.dropout(tensor), r"aten\..*random numbers"),
    "own generator": (
        lambda tensor: torch.rand(2, generator=torch.Generator()),
        r"aten\.rand\.generator.*random numbers",
    ),
    "numpy.random": (lambda tensor: np.random.rand(), r"numpy\.random is refused here: it draws random"),
    "random": (lambda tensor: random.random(), "random is refused here: it draws random"),
}

FINE: dict[str, Callable[[Tensor], object]] = {
    "norm": lambda tensor: tensor * (1.0 / tensor.norm()).clamp(max=1.0),
    "where": lambda tensor: torch.where(tensor > 0, tensor, 0.0),
    "integer index": lambda tensor: tensor[torch.arange(3)],
    "slice": lambda tensor: tensor[1:3],
    "write": lambda tensor: tensor.clone().__setitem__(slice(1, 3), 0.0),
    "new": lambda tensor: tensor.new_zeros(3) + torch.full((3,), 2.0),
    "like": lambda tensor: tensor.to(torch.float64).to(tensor),
    "shape": lambda tensor: [len(tensor), tensor.numel(), *tensor.shape],
    "unbind": lambda tensor: sum(part.sum() for part in tensor[:4].split(2)),
}


@pytest.mark.parametrize("deed", MISDEEDS)
def test_host_synchronisation_and_random_numbers_are_refused(deed: str) -> None:
    operation, message = MISDEEDS[deed]
    tensor = torch.arange(1.0, 5.0, requires_grad=True)
    operation(tensor.detach() if deed == "alpha" else tensor)
    with pytest.raises(RuntimeError, match=message), no_host_sync():
        operation(tensor)


@pytest.mark.parametrize("deed", ["item", "equal", "rand"])
@pytest.mark.parametrize("method", [Misbehaving, MisbehavingLater, MisbehavingBackwards], ids=by_name)
def test_every_part_of_a_local_step_is_guarded(method: type[Misbehaving], deed: str) -> None:
    with pytest.raises(RuntimeError, match=MISDEEDS[deed][1]):
        trained(method(deed=deed), rounds=1, fraction=0.1, executor=Guarded)


@pytest.mark.parametrize("deed", FINE)
def test_what_stays_on_the_device_is_allowed(deed: str) -> None:
    tensor = torch.arange(4.0)
    with no_host_sync():
        FINE[deed](tensor)


def test_numbers_of_the_host_may_take_part_but_not_be_copied() -> None:
    on_device, number = torch.ones(3, device="meta"), torch.ones(())
    with no_host_sync():
        on_device * number
    with no_host_sync(), pytest.raises(RuntimeError, match="mixes devices"):
        number.to(on_device)


def test_methods_are_free_outside_the_local_steps() -> None:
    trained(AllowedOutside(), rounds=2, executor=Guarded)


def test_everything_is_as_before_afterwards() -> None:
    def look() -> tuple:
        return dict(vars(Tensor)), {
            name: getattr(torch, name) for name in ("tensor", "as_tensor", "from_numpy")
        }

    before = look()
    with no_host_sync(), no_host_sync():
        pass
    assert look() == before
    with pytest.raises(RuntimeError), no_host_sync():
        torch.ones(1).item()
    assert look() == before
    with pytest.raises(KeyError), no_host_sync():
        raise KeyError
    assert look() == before
    assert torch.ones(1).item() == 1
    assert torch.rand(2).tolist()
