"""Two levels of determinism, and the profiles of CUDA that lead to them.

``bitwise``: the same run on the same kind of machine, with the same packages and the same number of threads,
gives the same bytes. ``statistical``: it gives numbers that differ by rounding, which training magnifies.

On the CPU a run is bitwise. The number of threads counts, because it decides the order in which numbers are
added up: with two threads instead of one, the gradients of every network and the weights after a few rounds
of every method that was tried had other last digits.

On CUDA the profile ``exact`` has PyTorch choose deterministic algorithms; the level is bitwise unless PyTorch
reports an operation that has none. ``fast`` lets PyTorch choose the fastest, and is statistical. Neither uses
TF32, whose products have ten bits, outside the layers of a run with that precision.
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

# Warnings of PyTorch about operations; the second comes if cuBLAS has no fixed workspace.
_ADMITTED = re.compile(r"(.+?) does not have a deterministic implementation|.*because it uses (CuBLAS)")


@dataclass(frozen=True)
class Determinism:
    """Determinism of a run on a device.

    ``operations`` are the operations so far for which PyTorch has no deterministic algorithm, and other
    reasons why the next run may differ.
    """

    device: torch.device
    profile: Profile
    operations: set[str] = field(default_factory=set)

    @property
    def level(self) -> Level:
        """The level reached so far."""
        exact = self.device.type == "cpu" or self.profile == "exact"
        return "bitwise" if exact and not self.operations else "statistical"

    @property
    def facts(self) -> dict[str, Any]:
        """Facts for the record of a run."""
        return {"determinism": self.level, "nondeterministic_operations": sorted(self.operations)}


@contextmanager
def determined(profile: Profile, device: torch.device, tf32: bool = False) -> Iterator[Determinism]:
    """Apply a profile within the context; restore PyTorch's settings afterwards.

    Enter it before CUDA computes anything, because cuBLAS chooses its workspace only once. It has no effect
    on the CPU.

    Args:
        profile: profile of CUDA.
        device: device of the run.
        tf32: true if convolutions may use TF32; for matrix products see ``tf32_products``.

    Raises:
        FltrainError: if TF32 is wanted on a device without it.
    """
    import torch  # in the function, so that the command line can list the profiles without PyTorch

    determinism = Determinism(device, profile)
    if device.type == "cpu":
        if tf32:
            raise FltrainError("precision: 'tf32' needs a GPU, this is the CPU; use fp32 or bf16")
        yield determinism
        return
    exact = profile == "exact"
    if exact:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    settings: Any = torch.utils.deterministic
    mode, fill = torch.get_deterministic_debug_mode(), settings.fill_uninitialized_memory
    matmul = torch.backends.cuda.matmul.allow_tf32
    cudnn = torch.backends.cudnn.flags(
        enabled=torch.backends.cudnn.enabled, benchmark=not exact, deterministic=exact, allow_tf32=tf32
    )
    with cudnn, _noting(determinism.operations):
        try:
            torch.backends.cuda.matmul.allow_tf32 = False
            torch.set_deterministic_debug_mode("warn" if exact else "default")
            # Filling costs a kernel per new tensor, and no memory here is read before it is written.
            settings.fill_uninitialized_memory = False
            yield determinism
        finally:
            torch.set_deterministic_debug_mode(mode)
            settings.fill_uninitialized_memory = fill
            torch.backends.cuda.matmul.allow_tf32 = matmul


@contextmanager
def tf32_products(allowed: bool) -> Iterator[None]:
    """Allow TF32 for matrix products on CUDA within the context.

    It encloses the passes of a network only, so that products of methods and statistics stay in single
    precision: PyTorch's flag holds for the whole process.
    """
    if not allowed:
        yield
        return
    import torch

    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


@contextmanager
def _noting(operations: set[str]) -> Iterator[None]:
    """Collect the names of operations from PyTorch's warnings; show all other warnings as usual."""
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
