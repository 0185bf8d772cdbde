"""Division of the work of one run among processes (``--workers``).

Each call forks the training process. The children see its data, weights and client states without a copy;
only results travel, through a file in memory. To start and end a child takes about 35 ms of CPU time
(LeNet-5, MNIST), half of it in the parent.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from multiprocessing import get_context
from multiprocessing.pool import ExceptionWithTraceback  # type: ignore[attr-defined]
from typing import IO, Any, TypeVar

import torch

from fltrain.core.errors import FltrainError
from fltrain.runtime.process import end_with_parent
from fltrain.runtime.signals import ENDINGS

Item = TypeVar("Item")
Result = TypeVar("Result")


def prepare(workers: int, device: torch.device, threads: int) -> None:
    """Prepare this process to fork; refuse several workers if the run cannot use them."""
    if workers == 1:
        return
    if device.type != "cpu" or threads > 1 or sys.platform != "linux":
        raise FltrainError(
            f"--workers {workers}: needs Linux, the CPU and one thread, not {device} and {threads} threads; "
            "use --device cpu --threads 1, or leave out --workers"
        )
    # Autograd starts a thread for each visible GPU, and would refuse to work in a child.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""


def divide(
    workers: int,
    work: Callable[[Item], Result],
    items: Sequence[Item],
    size: Callable[[Item], int] = lambda item: 1,
    poll: Callable[[], None] = lambda: None,
) -> list[Result]:
    """Return the results of ``work`` in the order of the items; ``workers`` processes compute them.

    This process is one of them. Results must be picklable and depend on the item only. The largest items by
    ``size`` come first. ``poll`` is called before each item; it may raise to end the work.

    Raises:
        FltrainError: if a process was killed.
        RuntimeError: for an exception of another process that cannot be pickled; it has type and message.
    """

    def worked(indices: Iterable[int]) -> Iterator[tuple[int, Result]]:
        for index in indices:
            poll()
            yield index, work(items[index])

    count = min(workers, len(items))
    if count <= 1:
        return [result for _, result in worked(range(len(items)))]
    with ExitStack() as stack:
        queue, *files = (
            stack.enter_context(open(os.memfd_create("workers"), "w+b", buffering=0)) for _ in range(count)
        )
        for index in sorted(range(len(items)), key=lambda index: -size(items[index])):
            queue.write(index.to_bytes(4, "big"))
        queue.seek(0)
        # The processes share the position in the queue: each index is read once.
        indices = (int.from_bytes(read, "big") for read in iter(lambda: queue.read(4), b""))
        children = []
        for file in files:
            child = get_context("fork").Process(target=_work, args=(worked(indices), file, os.getpid()))
            children.append(child)
            child.start()
            stack.callback(child.join)
            stack.callback(child.kill)
        results = dict(worked(indices))
        for child, file in zip(children, files, strict=True):
            while child.exitcode is None:
                child.join(timeout=0.1)
                poll()
            if child.exitcode:
                raise FltrainError(
                    f"a worker was killed (exit code {child.exitcode}); if memory ran out, use fewer "
                    "--workers. The next start resumes from the last checkpoint"
                )
            file.seek(0)
            # The file is safe: our child has written it, and no other process can open it by a name.
            outcome = torch.load(file, weights_only=False)  # noqa: TID251
            if isinstance(outcome, BaseException):
                raise outcome
            results |= outcome
    return [results[index] for index in range(len(items))]


def _work(results: Iterator[tuple[int, Any]], file: IO[bytes], parent: int) -> None:
    """In a child: work, and write the results or the exception to the file."""
    for number in ENDINGS:  # a terminal sends them to all processes; the parent decides
        signal.signal(number, signal.SIG_IGN)
    end_with_parent(parent)
    try:
        outcome: Any = dict(results)
    except BaseException as error:  # also of ``poll``, if a signal came before the fork
        try:
            pickle.loads(pickle.dumps(error))  # noqa: S301
        except Exception:  # for example, a class whose __init__ needs two arguments
            plain = RuntimeError(f"{type(error).__name__}: {error}").with_traceback(error.__traceback__)
            plain.__notes__ = getattr(error, "__notes__", [])
            error = plain
        outcome = ExceptionWithTraceback(error, error.__traceback__)
    torch.save(outcome, file)
