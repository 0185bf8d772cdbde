"""What all clients of a run keep between rounds: in memory, or in a file once it is too much for that."""

from __future__ import annotations

import errno
import math
import os
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from fltrain.core.errors import FltrainError
from fltrain.engine.clients import Kept
from fltrain.engine.tensorfile import memory_of

LARGE = 4096
"""Tensors of so many bytes or more go into the file; smaller ones always stay in memory."""


@dataclass(frozen=True)
class Spilled:
    """Where in the file a tensor lies, and on which device it belongs."""

    offset: int
    shape: torch.Size
    dtype: torch.dtype
    device: torch.device

    @property
    def nbytes(self) -> int:
        """Its size."""
        return self.shape.numel() * self.dtype.itemsize


Held = Mapping[str, Mapping[str, Tensor | Spilled]]
"""What a client keeps, some of it in the file."""


class SpillFile:
    """A file without a name in ``folder``, which the system removes with the process."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        # It lives as long as the store; a buffer would not see what is written past it.
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
        self._end = 0

    def place(self, tensor: Tensor, old: Tensor | Spilled | None) -> Spilled:
        """Where a tensor shall lie: in its old place if that is of its size."""
        offset = self._end
        if isinstance(old, Spilled) and old.nbytes == tensor.nbytes:
            offset = old.offset
        else:
            self._end += tensor.nbytes
        return Spilled(offset, tensor.shape, tensor.dtype, tensor.device)

    def write(self, values: Iterable[tuple[Spilled, Tensor]]) -> None:
        """Put tensors of the host into their places.

        Raises:
            FltrainError: if they cannot be written, as the disk is full.
        """
        try:
            for place, tensor in values:
                left, offset = memory_of(tensor), place.offset
                while left.size:
                    written = os.pwrite(self._file.fileno(), left.data, offset)
                    left, offset = left[written:], offset + written
        except OSError as error:
            raise FltrainError(
                f"{self.folder}: what clients keep between rounds cannot be written ({error.strerror}); free "
                f"some space there, or let it stay in memory with --client-memory"
            ) from None

    def read(self, values: Iterable[tuple[Spilled, Tensor]]) -> None:
        """Fill tensors of the host with what lies in the places.

        Raises:
            FltrainError: if it cannot be read.
        """
        try:
            for place, tensor in values:
                left = memory_of(tensor)
                self._file.seek(place.offset)
                while left.size:
                    count = self._file.readinto(left.data)
                    if not count:
                        raise OSError(errno.EIO, "the file is too short")
                    left = left[count:]
        except OSError as error:
            raise FltrainError(
                f"{self.folder}: what clients keep between rounds cannot be read ({error.strerror}); start "
                f"the run again: it goes on from its last checkpoint"
            ) from None


class ClientStore(MutableMapping[int, Kept]):
    """States by client. Those of hundreds of personal models need not fit into memory.

    Until the tensors of all clients together take more than ``limit`` bytes, they stay on their device. From
    then on the large ones lie in a file in ``folder``. Training does not wait for it as long as clients are
    read as they are expected and no more than ``limit`` bytes are still to be written: one thread reads
    ahead, another writes behind. Neither of them calls the device, so that both may work while local steps
    are captured.
    """

    def __init__(self, folder: Path = Path(), limit: float = math.inf) -> None:
        self.folder = folder
        self.limit = limit
        self.bytes = 0
        self._clients: dict[int, Held] = {}
        self._file: SpillFile | None = None
        self._reader, self._writer = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
        self._expected: deque[int] = deque()
        self._ahead: dict[int, Future[Kept]] = {}
        self._behind: dict[int, tuple[Future[None], int]] = {}

    @property
    def spilled(self) -> bool:
        """Whether there is a file."""
        return self._file is not None

    def expect(self, clients: Iterable[int]) -> None:
        """Say who will be read next, in this order: each of them is read while the one before is in use."""
        self._ahead.clear()
        self._expected = deque(clients)
        self._read_ahead()

    def close(self) -> None:
        """Write no more: nobody will read it."""
        for threads in (self._reader, self._writer):
            threads.shutdown(wait=False, cancel_futures=True)

    def __contains__(self, client: object) -> bool:
        return client in self._clients

    def __getitem__(self, client: int) -> Kept:
        held = self._clients[client]
        if self._file is None:
            return _in_memory(held)
        reading = self._ahead.pop(client, None) or self._read(self._file, client)
        self._read_ahead()
        read = reading.result()
        return {
            method: {
                name: read[method][name].to(place.device, non_blocking=True) for name, place in state.items()
            }
            for method, state in held.items()
        }

    def __setitem__(self, client: int, kept: Kept) -> None:
        """Keep what a client has after a round.

        Raises:
            FltrainError: if this, or what was put in earlier, cannot be written.
        """
        old = self._clients.get(client, {})
        self.bytes += _size(kept) - _size(old)
        if self._file is None and self.bytes > self.limit:
            self._file = SpillFile(self.folder)
            for number, held in self._clients.items():
                self._spill(self._file, number, _in_memory(held), {})
        if self._file is None:
            self._clients[client] = {method: dict(state) for method, state in kept.items()}
        else:
            self._spill(self._file, client, kept, old)

    def __delitem__(self, client: int) -> None:
        self.bytes -= _size(self._clients.pop(client))
        self._ahead.pop(client, None)

    def __iter__(self) -> Iterator[int]:
        return iter(self._clients)

    def __len__(self) -> int:
        return len(self._clients)

    def _read_ahead(self) -> None:
        """Begin to read the next of those expected who keeps anything, if nobody else waits to be fetched."""
        while self._file is not None and self._expected and not self._ahead:
            client = self._expected.popleft()
            if client in self._clients:
                self._ahead[client] = self._read(self._file, client)
                break

    def _read(self, file: SpillFile, client: int) -> Future[Kept]:
        """Begin to read what a client keeps; what is in the file comes into memory of the host."""
        kept: dict[str, dict[str, Tensor]] = {}
        places: list[tuple[Spilled, Tensor]] = []
        for method, state in self._clients[client].items():
            kept[method] = {}
            for name, held in state.items():
                if isinstance(held, Spilled):
                    # From pinned memory, a copy to the device is queued like all that the device has to do.
                    pinned = held.device.type == "cuda"
                    tensor = torch.empty(held.shape, dtype=held.dtype, pin_memory=pinned)
                    places.append((held, tensor))
                else:
                    tensor = held
                kept[method][name] = tensor
        writing, _ = self._behind.get(client, (None, 0))

        def read() -> Kept:
            if writing is not None:
                writing.result()
            file.read(places)
            return kept

        return self._reader.submit(read)

    def _spill(self, file: SpillFile, client: int, kept: Kept, old: Held) -> None:
        """Begin to put the large tensors of a client into the file."""
        self._ahead.pop(client, None)  # it is not what the client keeps any longer
        held: dict[str, dict[str, Tensor | Spilled]] = {}
        places: list[tuple[Spilled, Tensor]] = []
        for method, state in kept.items():
            held[method] = dict(state)
            for name, tensor in state.items():
                if tensor.nbytes >= LARGE:
                    place = file.place(tensor, old.get(method, {}).get(name))
                    places.append((place, tensor.detach().cpu().contiguous()))
                    held[method][name] = place
        self._clients[client] = held
        self._behind.pop(client, None)  # the writer takes one after the other: it comes before this
        self._behind[client] = self._writer.submit(file.write, places), _size(held)
        self._catch_up()

    def _catch_up(self) -> None:
        """Wait for the writer until no more than ``limit`` bytes are waiting for it."""
        waiting = sum(size for _, size in self._behind.values())
        for client, (writing, size) in list(self._behind.items()):
            if not writing.done() and waiting <= self.limit:
                break
            del self._behind[client]
            writing.result()
            waiting -= size


def _in_memory(held: Held) -> Kept:
    """What a client keeps, given that nothing of it is in the file."""
    return {method: dict(state) for method, state in cast("Kept", held).items()}


def _size(kept: Kept | Held) -> int:
    return sum(held.nbytes for state in kept.values() for held in state.values())
