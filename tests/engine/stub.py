"""A stub device for tests without a GPU: PyTorch checks devices and host reads, and computes no numbers.

Tensors are fake: they have a shape, a type and a device, but no content. As on CUDA, an operation on tensors
of several devices is an error. Reads of values on the host are answered with ones and recorded.
"""

from __future__ import annotations

import functools
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from fltrain.engine.local import LocalTraining
from fltrain.engine.simulation import Simulation
from fltrain.models.network import Network

NAME = "fgpu"
CPU = torch.device("cpu")
ATEN = torch.ops.aten


@functools.cache
def stub_device() -> torch.device:
    """The device; PyTorch allows one registration per process."""
    torch.utils.backend_registration._setup_privateuseone_for_python_backend(NAME)
    return torch.device(NAME, 0)


class Transfers(TorchDispatchMode):
    """Answers reads of the device's values, and records every transfer between host and device.

    Attributes:
        in_steps: functions of the package that transfer within a local step.
        elsewhere: number of other transfers, by function.
    """

    def __init__(self) -> None:
        super().__init__()
        self.in_steps: set[str] = set()
        self.elsewhere: Counter[str] = Counter()
        self.stepping = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs, operation = kwargs or {}, func.overloadpacket
        if operation in (ATEN._to_copy, ATEN.copy_):
            tensors = [arg for arg in args if isinstance(arg, Tensor)]
            source, target = tensors[-1:], kwargs.get("device") or (tensors and tensors[0].device)
            if source and target != source[0].device:
                self.note()
        elif operation in (ATEN.index, ATEN.index_put, ATEN.index_put_):  # it copies indices of the host
            if any(index is not None and index.device != args[0].device for index in args[1]):
                self.note()
        elif operation in (ATEN._local_scalar_dense, ATEN.nonzero, ATEN.equal) and args[0].device != CPU:
            self.note()
        if operation is ATEN._local_scalar_dense:
            return 1.0 if args[0].is_floating_point() else 1
        if operation is ATEN.nonzero:
            return args[0].new_zeros((args[0].numel(), args[0].dim()), dtype=torch.int64)
        return True if operation is ATEN.equal else func(*args, **kwargs)

    def note(self) -> None:
        """Record the innermost function of the package, for example ``methods.ecgr._select``."""
        frame = sys._getframe()
        while not frame.f_globals["__name__"].startswith("fltrain."):
            frame = frame.f_back
        place = f"{frame.f_globals['__name__'].removeprefix('fltrain.')}.{frame.f_code.co_name}"
        if self.stepping:
            self.in_steps.add(place)
        else:
            self.elsewhere[place] += 1

    def watched(self, take: Callable[..., Any]) -> Callable[..., Any]:
        """A local step during which transfers are faults."""

        def step(*args: Any) -> Any:
            self.stepping = True
            try:
                return take(*args)
            finally:
                self.stepping = False

        return step


class Mode(FakeTensorMode):
    """Fake tensors whose copies have the same mode."""

    def __deepcopy__(self, memo: object) -> Mode:
        return self


@contextmanager
def on_stub_device() -> Iterator[Transfers]:
    """Compute without numbers within the context."""
    stub_device()
    transfers, mode, build = Transfers(), Mode(), Simulation._network

    def network(run: Simulation, client: int | None = None) -> Network:
        with _disable_current_modes():
            return build(run, client)._apply(lambda tensor: mode.from_tensor(tensor).to(run.device))

    changes: list[tuple[Any, str, Callable[..., Any]]] = [
        (Simulation, "_network", network),
        (LocalTraining, "step", transfers.watched(LocalTraining.step)),
        (nn.Module, "to", lambda module, device: module),  # it is there already
        (Tensor, "numpy", lambda tensor: np.ones(tensor.shape, str(tensor.dtype).removeprefix("torch."))),
        (Tensor, "new_tensor", lambda tensor, content: created(content, tensor.dtype, tensor.device)),
        *((torch, name, without_content(getattr(torch, name))) for name in CREATING),
    ]
    created = without_content(torch.tensor)
    with ExitStack() as stack:
        for change in changes:
            stack.enter_context(patch.object(*change))
        stack.enter_context(mode)
        stack.enter_context(transfers)
        yield transfers


CREATING = ("tensor", "as_tensor", "from_numpy")
"""Functions that create tensors from data of the host."""


def without_content(create: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function that creates a tensor on the host as ``create`` does, and then moves it."""

    def created(content: Any, dtype: torch.dtype | None = None, device: Any = None) -> Tensor:
        tensor = create(content) if dtype is None else create(content, dtype=dtype)
        if isinstance(tensor, FakeTensor):
            tensor.constant = None
        return tensor if device is None else tensor.to(device)

    return created
