"""Client state between rounds: in memory, or in a memory-mapped file once it is too large for that."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from fltrain.core.errors import FltrainError
from fltrain.engine.clients import ClientState

LARGE = 4096
"""Minimum size in bytes of a tensor that is moved to the file; smaller ones always stay in memory."""

_ALIGNMENT = 64


@dataclass(frozen=True)
class Spilled:
    """A tensor in a file: its offset in bytes, and the device that it belongs to."""

    file: SpillFile
    offset: int
    shape: torch.Size
    dtype: torch.dtype
    device: torch.device

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.shape.numel() * self.dtype.itemsize

    def view(self) -> Tensor:
        """Return the tensor in the file; it changes when something else is written there."""
        content = torch.from_numpy(self.file.content[self.offset : self.offset + self.nbytes])
        return content.view(self.dtype).view(self.shape)

    def load(self) -> Tensor:
        """Copy the tensor to its device."""
        return self.view().to(self.device, copy=True)


class SpillFile:
    """A file without a name in ``folder``, which the system removes with the process."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (it lives as long as the store)
        self.content: NDArray[np.uint8] = np.empty(0, np.uint8)

    def write(self, tensor: Tensor, old: Tensor | Spilled | None) -> Spilled:
        """Copy a tensor into the file, over ``old`` if that has the same size.

        Raises:
            FltrainError: if the disk is full.
        """
        offset = len(self.content)
        if isinstance(old, Spilled) and old.nbytes == tensor.nbytes:
            offset = old.offset
        else:
            self._grow(tensor.nbytes)
        spilled = Spilled(self, offset, tensor.shape, tensor.dtype, tensor.device)
        spilled.view().copy_(tensor)
        return spilled

    def _grow(self, nbytes: int) -> None:
        """Reserve space on the disk: writing to a mapped page that has none would kill the process."""
        nbytes += -nbytes % _ALIGNMENT
        try:
            os.posix_fallocate(self._file.fileno(), len(self.content), nbytes)
            self.content = np.memmap(self._file, np.uint8, "r+")
        except OSError as error:
            raise FltrainError(
                f"{self.folder}: client state cannot be written ({error.strerror}); free some space there, "
                "or keep it in memory with --client-memory"
            ) from None


class ClientStore(Mapping[int, ClientState]):
    """Client states by client.

    Tensors stay on their device until all of them together take more than ``limit`` bytes. From then on, the
    large ones are in a file in ``folder``, whose pages the system keeps in memory as long as there is room.
    """

    def __init__(self, folder: Path = Path(), limit: float = math.inf) -> None:
        self.folder = folder
        self.limit = limit
        self.bytes = 0
        self._clients: dict[int, dict[str, dict[str, Tensor | Spilled]]] = {}
        self._file: SpillFile | None = None

    @property
    def spilled(self) -> bool:
        """True if large tensors are in a file."""
        return self._file is not None

    def stored(self, client: int) -> dict[str, dict[str, Tensor | Spilled]]:
        """Return a client's state as it is stored; writing to the store may change it."""
        return self._clients[client]

    def __contains__(self, client: object) -> bool:
        return client in self._clients

    def __getitem__(self, client: int) -> ClientState:
        states: ClientState = tree_map(
            lambda stored: stored.load() if isinstance(stored, Spilled) else stored, self._clients[client]
        )
        return states

    def __setitem__(self, client: int, states: ClientState) -> None:
        """Replace a client's state.

        Raises:
            FltrainError: if it cannot be written.
        """
        self.bytes += _size(states) - _size(self._clients.get(client, {}))
        if self._file is None and self.bytes > self.limit:
            self._file = SpillFile(self.folder)
            for number in self._clients:
                self._put(number, self[number])
        self._put(client, states)

    def __iter__(self) -> Iterator[int]:
        return iter(self._clients)

    def __len__(self) -> int:
        return len(self._clients)

    def _put(self, client: int, states: ClientState) -> None:
        old, file = self._clients.get(client, {}), self._file
        self._clients[client] = {
            method: {
                name: tensor
                if file is None or tensor.nbytes < LARGE
                else file.write(tensor.detach(), old.get(method, {}).get(name))
                for name, tensor in state.items()
            }
            for method, state in states.items()
        }


def _size(states: ClientState | dict[str, dict[str, Tensor | Spilled]]) -> int:
    return sum(stored.nbytes for stored in tree_leaves(states))
