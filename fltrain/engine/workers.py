"""Division of the work of one run among processes (``--workers``).

Each call forks the training process. The children see its data, weights and client states without a copy, and
need no protocol between rounds: only results travel, through a file in memory. To start and end a
child takes about 35 ms of CPU time (LeNet-5, MNIST), half of it in the parent.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing import connection, get_context
from multiprocessing.pool import ExceptionWithTraceback  # type: ignore[attr-defined]
from typing import IO, Any, TypeVar

import torch

from fltrain.core.errors import FltrainError
from fltrain.engine import memory
from fltrain.runtime.process import end_with_parent
from fltrain.runtime.signals import ENDINGS

POLL_SECONDS = 0.1
MOST_TICKETS = 4096
"""Maximum number of tickets, each for some items; their numbers must fit into a pipe (64 KiB)."""

Item = TypeVar("Item")
Result = TypeVar("Result")


def _nothing() -> None:
    """Do nothing."""


@dataclass(frozen=True)
class Workers:
    """Processes that divide the work of a run on the CPU; the training process is one of them."""

    count: int = 1

    def prepare(self, device: torch.device, threads: int) -> None:
        """Prepare this process to fork; refuse several workers if the run cannot use them.

        Raises:
            FltrainError: with the reason.
        """
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
        poll: Callable[[], None] = _nothing,
    ) -> list[Result]:
        """Return the results of ``work`` in the order of the items, whichever process computes them.

        Args:
            work: a function whose results depend on its argument only; results must be picklable.
            items: its arguments; large ones are worked on first.
            size: amount of work of an item.
            poll: called before each item; it may raise to end the work.

        Raises:
            FltrainError: if a process was killed.
        """
        count = min(self.count, len(items))
        results: dict[int, Result] = {}
        if count <= 1:
            for index, item in enumerate(items):
                poll()
                results[index] = work(item)
            return list(results.values())
        order = sorted(range(len(items)), key=lambda index: -size(items[index]))
        tickets = min(len(items), MOST_TICKETS)
        with ExitStack() as stack:
            queue, entry = os.pipe()
            stack.callback(os.close, queue)
            os.write(entry, b"".join(number.to_bytes(4) for number in range(tickets)))
            os.close(entry)

            def take(poll: Callable[[], None]) -> dict[int, Result]:
                """Take tickets until none is left: a process that is done early takes more."""
                taken: dict[int, Result] = {}
                while ticket := os.read(queue, 4):
                    for index in order[int.from_bytes(ticket) :: tickets]:
                        poll()
                        taken[index] = work(items[index])
                return taken

            helpers = [stack.enter_context(_Helper(take)) for _ in range(count - 1)]
            results = take(poll)
            while waiting := [helper.process.sentinel for helper in helpers if helper.process.is_alive()]:
                connection.wait(waiting, POLL_SECONDS)
                poll()
            for helper in helpers:
                results |= helper.results()
        return [results[index] for index in range(len(items))]


ALONE = Workers()
"""The training process only."""


class _Helper:
    """A forked process that works until nothing is left; the context kills it if it still works."""

    def __init__(self, take: Callable[[Callable[[], None]], Mapping[int, Any]]) -> None:
        self.file: IO[bytes] = open(os.memfd_create("worker"), "w+b")  # noqa: SIM115 (closed by the context)
        self.process = get_context("fork").Process(target=self._work, args=(take, os.getpid()))
        self.process.start()

    def __enter__(self) -> _Helper:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.join()
        self.file.close()

    def _work(self, take: Callable[[Callable[[], None]], Mapping[int, Any]], parent: int) -> None:
        """In the child: work, and write the results or the exception to the file."""
        for number in ENDINGS:  # a terminal sends them to all processes; the parent decides
            signal.signal(number, signal.SIG_IGN)
        end_with_parent(parent)
        try:
            outcome: Any = take(_nothing)
        except Exception as error:
            outcome = ExceptionWithTraceback(error, error.__traceback__)
        torch.save((outcome, memory.BATCH), self.file)
        self.file.flush()

    def results(self) -> Mapping[int, Any]:
        """Return the results of the ended process by place, or raise its exception."""
        self.process.join()
        if code := self.process.exitcode:
            ending = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
            raise FltrainError(
                f"a worker {ending}; if memory ran out, use fewer --workers. The next start resumes from the "
                "last checkpoint"
            )
        self.file.seek(0)
        # The file is safe: our child has written it, and no other process can open it by a name.
        outcome, batches = torch.load(self.file, weights_only=False)  # noqa: TID251
        memory.BATCH.update({device: min(size, memory.BATCH[device]) for device, size in batches.items()})
        if isinstance(outcome, Exception):
            raise outcome
        results: Mapping[int, Any] = outcome
        return results
