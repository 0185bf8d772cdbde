"""How exactly a run can be repeated: two levels, and the profiles of CUDA that lead to them.

``bitwise``: the same run on the same kind of machine, with the same packages and the same number of threads,
gives the same bytes. ``statistical``: it gives numbers that differ by rounding, which training magnifies.

On the CPU a run is bitwise, but for clients that are trained side by side (``stack``, which ``fast`` allows).
The number of threads counts, as it decides in which order numbers are added
up: with two threads in place of one, the gradients of every network and the weights after a few rounds of
every method that was tried had other last digits. With two threads twice, they had the same.

On CUDA the profile ``exact`` has PyTorch choose deterministic algorithms; the level is bitwise unless PyTorch
says of an operation that it has none. ``fast`` leaves the choice to PyTorch and is statistical. Neither uses
TF32, whose products have ten bits, unless the run's precision is that.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from fltrain.core.errors import FltrainError

if TYPE_CHECKING:
    import torch

Profile = Literal["exact", "fast"]
Level = Literal["bitwise", "statistical"]

# What PyTorch says in place of failing; the second if cuBLAS was not told which workspace to use.
_ADMITTED = re.compile(r"(.+?) does not have a deterministic implementation|.*because it uses (CuBLAS)")


@dataclass(frozen=True)
class Determinism:
    """What can be promised of a run on a device.

    ``operations`` are those that PyTorch has no deterministic algorithm for, as far as the run has used them,
    and whatever else was not done as it would be the next time.
    """

    device: torch.device
    profile: Profile = "fast"
    operations: set[str] = field(default_factory=set)

    @property
    def level(self) -> Level:
        """The level reached so far."""
        exact = self.device.type == "cpu" or self.profile == "exact"
        return "bitwise" if exact and not self.operations else "statistical"

    @property
    def facts(self) -> dict[str, Any]:
        """What the record of a run says of it."""
        return {"determinism": self.level, "nondeterministic_operations": sorted(self.operations)}


@contextmanager
def determined(profile: Profile, device: torch.device, tf32: bool = False) -> Iterator[Determinism]:
    """Compute within the context as the profile says; afterwards PyTorch's settings are as they were.

    It has to be entered before CUDA computes anything, as cuBLAS chooses its workspace then, once for all.
    On the CPU it has no effect.

    Args:
        profile: what to promise.
        device: that computes.
        tf32: whether products may have ten bits.

    Raises:
        FltrainError: if they may, and the device has no such products.
    """
    import torch  # here, as the command line names the profiles without waiting for PyTorch

    determinism = Determinism(device, profile)
    if device.type == "cpu":
        if tf32:
            raise FltrainError("precision: 'tf32' needs a GPU, this is the CPU; use fp32 or bf16")
        yield determinism
        return
    exact = profile == "exact"
    if exact:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    mode, before = torch.get_deterministic_debug_mode(), torch.backends.cuda.matmul.allow_tf32
    cudnn = torch.backends.cudnn.flags(
        enabled=torch.backends.cudnn.enabled, benchmark=False, deterministic=exact, allow_tf32=tf32
    )
    with cudnn, _noting(determinism.operations):
        try:
            torch.backends.cuda.matmul.allow_tf32 = tf32
            torch.set_deterministic_debug_mode("warn" if exact else "default")
            yield determinism
        finally:
            torch.set_deterministic_debug_mode(mode)
            torch.backends.cuda.matmul.allow_tf32 = before


@contextmanager
def _noting(operations: set[str]) -> Iterator[None]:
    """Take the names of operations out of PyTorch's warnings, and show all other warnings as usual."""
    with warnings.catch_warnings():
        warnings.filterwarnings("always", message=_ADMITTED.pattern)
        show = warnings.showwarning

        def note(message: Warning | str, *where: Any, **more: Any) -> None:
            admitted = _ADMITTED.match(str(message))
            if admitted:
                operations.add(admitted[1] or admitted[2])
            else:
                show(message, *where, **more)

        warnings.showwarning = note
        yield
