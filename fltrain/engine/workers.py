"""Division of the work of one run among processes (``--workers``).

Each call forks the training process. The children see its data, weights and client states without a copy;
only results travel, through a file in memory. To start and end a child takes about 35 ms of CPU time
(LeNet-5, MNIST), half of it in the parent.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing import connection, get_context
from multiprocessing.pool import ExceptionWithTraceback  # type: ignore[attr-defined]
from multiprocessing.process import BaseProcess
from typing import IO, Any, TypeVar

import numpy as np
import torch

from fltrain.core.errors import FltrainError
from fltrain.runtime.process import end_with_parent
from fltrain.runtime.signals import ENDINGS

POLL_SECONDS = 0.1

Item = TypeVar("Item")
Result = TypeVar("Result")
Poll = Callable[[], None]
"""Called between items; it may raise to end the work."""


def never() -> None:
    """Do not end the work."""


@dataclass(frozen=True)
class Workers:
    """Processes that divide the work of a run on the CPU; the training process is one of them."""

    count: int = 1

    def prepare(self, device: torch.device, threads: int) -> None:
        """Prepare this process to fork; refuse several workers if the run cannot use them."""
        if self.count == 1:
            return
        problems = {
            f"they train on the CPU only, and the run is on {device}; use --device cpu": device.type != "cpu",
            "each has one thread; leave out --threads": threads != 1,
            "this needs Linux": not hasattr(os, "memfd_create"),
        }
        for problem, found in problems.items():
            if found:
                raise FltrainError(f"--workers {self.count}: {problem}, or leave out --workers")
        # Autograd starts a thread for each visible GPU, and would refuse to work in a child.
        os.environ["CUDA_VISIBLE_DEVICES"] = ""

    def map(
        self,
        work: Callable[[Item], Result],
        items: Sequence[Item],
        size: Callable[[Item], int] = lambda item: 1,
        poll: Poll = never,
    ) -> list[Result]:
        """Return the results of ``work`` in the order of the items, whichever process computes them.

        Args:
            work: a function whose results depend on its argument only; results must be picklable.
            items: its arguments; large ones are worked on first.
            size: amount of work of an item.
            poll: called before each item.

        Raises:
            FltrainError: if a process was killed.
        """
        count, results = min(self.count, len(items)), dict[int, Result]()
        if count <= 1:
            for index, item in enumerate(items):
                poll()
                results[index] = work(item)
            return list(results.values())
        order = np.array(sorted(range(len(items)), key=lambda index: -size(items[index])), np.uint32)
        with ExitStack() as stack:

            def memory_file() -> IO[bytes]:
                return stack.enter_context(open(os.memfd_create("workers"), "w+b", buffering=0))

            # The processes share the position in this file: each index is read once.
            queue = memory_file()
            queue.write(order.tobytes())
            queue.seek(0)

            def take(poll: Poll) -> dict[int, Result]:
                """Work until no item is left: a process that is done early takes more."""
                taken: dict[int, Result] = {}
                while read := queue.read(order.itemsize):
                    poll()
                    (index,) = np.frombuffer(read, order.dtype).tolist()
                    taken[index] = work(items[index])
                return taken

            children = []
            for _ in range(count - 1):
                file = memory_file()
                child = get_context("fork").Process(target=_work, args=(take, file, os.getpid()))
                child.start()
                stack.callback(child.join)
                stack.callback(child.kill)
                children.append((child, file))
            results = take(poll)
            while waiting := [child.sentinel for child, _ in children if child.is_alive()]:
                connection.wait(waiting, POLL_SECONDS)
                poll()
            for child, file in children:
                results |= _results(child, file)
        return [results[index] for index in range(len(items))]


ONE_PROCESS = Workers()


def _work(take: Callable[[Poll], Mapping[int, Any]], file: IO[bytes], parent: int) -> None:
    """In a child: work, and write the results or the exception to the file."""
    for number in ENDINGS:  # a terminal sends them to all processes; the parent decides
        signal.signal(number, signal.SIG_IGN)
    end_with_parent(parent)
    try:
        outcome: Any = take(never)
    except Exception as error:
        outcome = ExceptionWithTraceback(error, error.__traceback__)
    torch.save(outcome, file)


def _results(child: BaseProcess, file: IO[bytes]) -> Mapping[int, Any]:
    """Return the results of an ended child by index, or raise its exception."""
    child.join()
    if code := child.exitcode:
        ending = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        raise FltrainError(
            f"a worker {ending}; if memory ran out, use fewer --workers. The next start resumes from the "
            "last checkpoint"
        )
    file.seek(0)
    # The file is safe: our child has written it, and no other process can open it by a name.
    outcome = torch.load(file, weights_only=False)  # noqa: TID251
    if isinstance(outcome, Exception):
        raise outcome
    results: Mapping[int, Any] = outcome
    return results
