"""Client state between rounds: in memory, or in a memory-mapped file once it is too large for that."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from fltrain.core.errors import FltrainError
from fltrain.engine.clients import ClientState
from fltrain.methods.types import State

LARGE = 4096
"""Minimum size in bytes of a tensor that is moved to the file; smaller ones always stay in memory."""

PART = 4 * 2**30
"""Bytes that one file can hold; it takes up only the written ones."""

ALIGNMENT = 64


class ClientStore(Mapping[int, ClientState]):
    """Client states by client.

    Tensors stay on the run's device until all of them together take more than ``limit`` bytes. From then on,
    the large ones are in a file in ``folder``, whose pages the system keeps in memory as long as there is
    room. The file has no name: the system removes it with the process.
    """

    def __init__(
        self, folder: Path = Path(), limit: float = math.inf, device: torch.device | str = "cpu"
    ) -> None:
        self.folder, self.limit, self.device = folder, limit, device
        self.bytes = 0
        self.spilled = False
        self._clients: dict[int, ClientState] = {}
        self._free = torch.empty(0, dtype=torch.uint8)

    def stored(self, client: int) -> ClientState:
        """Return a client's state as it is stored; writing to the store may change it."""
        return self._clients[client]

    def __contains__(self, client: object) -> bool:
        return client in self._clients

    def __getitem__(self, client: int) -> ClientState:
        states: ClientState = tree_map(
            lambda stored: stored.to(self.device, copy=True) if self._in_file(stored) else stored,
            self._clients[client],
        )
        return states

    def __setitem__(self, client: int, states: ClientState) -> None:
        """Replace a client's state.

        Raises:
            FltrainError: if it cannot be written.
        """
        old = self._clients.get(client, {})
        self.bytes += _size(states) - _size(old)
        self._clients[client] = self._written(states, old) if self.spilled else states
        if not self.spilled and self.bytes > self.limit:
            self.spilled = True
            self._clients = {number: self._written(one, {}) for number, one in self._clients.items()}

    def __iter__(self) -> Iterator[int]:
        return iter(self._clients)

    def __len__(self) -> int:
        return len(self._clients)

    def _in_file(self, tensor: Tensor) -> bool:
        return self.spilled and tensor.nbytes >= LARGE

    def _written(self, states: ClientState, old: ClientState) -> ClientState:
        """Return a state with large tensors in the file, in the place of old ones of the same size."""

        def written(tensor: Tensor, old: Tensor | None) -> Tensor:
            if not self._in_file(tensor):
                return tensor
            place = old if old is not None and old.nbytes == tensor.nbytes else self._reserved(tensor.nbytes)
            place = place.view(-1).view(torch.uint8).view(tensor.dtype).view(tensor.shape)
            return place.copy_(tensor.detach())

        empty: State = {}
        return {
            name: {key: written(tensor, old.get(name, empty).get(key)) for key, tensor in state.items()}
            for name, state in states.items()
        }

    def _reserved(self, nbytes: int) -> Tensor:
        """Return new bytes of the file. Without reserved space, a full disk would kill the process."""
        size = nbytes + -nbytes % ALIGNMENT
        try:
            if size > len(self._free):
                self.folder.mkdir(parents=True, exist_ok=True)
                self._file = tempfile.TemporaryFile(dir=self.folder)  # noqa: SIM115 (as long as the store)
                self._free = torch.from_numpy(np.memmap(self._file, np.uint8, "r+", shape=max(size, PART)))
            os.posix_fallocate(self._file.fileno(), int(self._free.storage_offset()), size)
        except OSError as error:
            raise FltrainError(
                f"{self.folder}: client state cannot be written ({error.strerror}); free some space there, "
                "or keep it in memory with --client-memory"
            ) from None
        reserved, self._free = self._free[:nbytes], self._free[size:]
        return reserved


def _size(states: ClientState) -> int:
    return sum(tensor.nbytes for tensor in tree_leaves(states))
