"""Executors by name, and the rule that chooses one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from fltrain.core.errors import FltrainError
from fltrain.engine import ExecutorName
from fltrain.engine.clients import Clients
from fltrain.engine.executors.cuda_graph import CudaGraphExecutor
from fltrain.engine.executors.sequential import SequentialExecutor
from fltrain.engine.executors.vectorized import VectorizedExecutor
from fltrain.engine.executors.vectorized_cuda_graph import VectorizedCudaGraphExecutor
from fltrain.methods.types import Place

EXECUTORS: Mapping[str, type[SequentialExecutor]] = {
    executor.name: executor
    for executor in (SequentialExecutor, VectorizedExecutor, CudaGraphExecutor, VectorizedCudaGraphExecutor)
}


SIDE_BY_SIDE = [name for name, executor in EXECUTORS.items() if issubclass(executor, VectorizedExecutor)]
"""Executors that train clients side by side."""


def executor_for(
    name: ExecutorName, recordings: Place = "device", lanes: int | None = None
) -> Callable[[Clients], SequentialExecutor]:
    """Return the function that makes an executor; ``recordings`` and ``lanes`` are settings of the execution.

    ``auto`` is ``sequential`` on every device. On the CPU it is the fastest: ``vectorized`` takes 1.3 to 1.6
    times as long. On CUDA the others have not been measured yet, and ``sequential`` is the reference.

    Raises:
        FltrainError: if the executor has no lanes.
    """
    executor: type[SequentialExecutor] = SequentialExecutor if name == "auto" else EXECUTORS[name]
    if lanes is None:
        return partial(executor, recordings=recordings)
    if not issubclass(executor, VectorizedExecutor):
        raise FltrainError(
            f"--lanes {lanes}: executor {name!r} trains clients one by one; leave out --lanes, or use "
            f"--executor {' or '.join(SIDE_BY_SIDE)}"
        )
    return partial(executor, recordings=recordings, lanes=lanes)
