"""What all clients of a run keep between rounds: in memory, or in a file once it is too much for that."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import torch
from torch import Tensor

from fltrain.engine.clients import Kept
from fltrain.errors import FltrainError

LARGE = 4096
"""Tensors of so many bytes or more go into the file; smaller ones always stay in memory."""


@dataclass(frozen=True)
class Spilled:
    """Where in the file a tensor lies."""

    offset: int
    shape: torch.Size
    dtype: torch.dtype
    device: torch.device

    @property
    def bytes(self) -> int:
        """Its size."""
        return self.shape.numel() * self.dtype.itemsize


Held = dict[str, dict[str, Tensor | Spilled]]


class ClientStore(MutableMapping[int, Kept]):
    """States by client. Those of hundreds of personal models need not fit into memory.

    Until the tensors of all clients together take more than ``limit`` bytes, they stay on their device. From
    then on the large ones lie in a file without a name in ``folder``, which the system removes with the
    process, and are mapped into memory when they are read and written.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder = folder
        self.limit = limit
        self.bytes = 0
        self._clients: dict[int, Held] = {}
        self._file: IO[bytes] | None = None

    @property
    def spilled(self) -> bool:
        """Whether there is a file."""
        return self._file is not None

    def __getitem__(self, client: int) -> Kept:
        return {
            method: {name: self._read(held) for name, held in state.items()}
            for method, state in self._clients[client].items()
        }

    def __setitem__(self, client: int, kept: Kept) -> None:
        self.bytes += _bytes(kept) - _bytes(self._clients.get(client, {}))
        if not self.spilled and self.bytes > self.limit:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._file = tempfile.TemporaryFile(dir=self.folder)  # noqa: SIM115 it lives as long as the store
            for number, held in self._clients.items():
                self._clients[number] = self._spill(held, {})
        old = self._clients.get(client, {})
        new: Held = {method: dict(state) for method, state in kept.items()}
        self._clients[client] = self._spill(new, old) if self.spilled else new

    def __delitem__(self, client: int) -> None:
        self.bytes -= _bytes(self._clients.pop(client))

    def __iter__(self) -> Iterator[int]:
        return iter(self._clients)

    def __len__(self) -> int:
        return len(self._clients)

    def _spill(self, new: Held, old: Held) -> Held:
        """Put the large tensors of a client into the file, each in its old place if that is of its size."""
        return {
            method: {
                name: self._write(tensor, old.get(method, {}).get(name))
                if isinstance(tensor, Tensor) and tensor.nbytes >= LARGE
                else tensor
                for name, tensor in state.items()
            }
            for method, state in new.items()
        }

    def _write(self, tensor: Tensor, old: Tensor | Spilled | None) -> Spilled:
        assert self._file is not None
        values = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
        if isinstance(old, Spilled) and old.bytes == values.nbytes:
            self._mapped(old)[:] = values
            return Spilled(old.offset, tensor.shape, tensor.dtype, tensor.device)
        try:
            offset = self._file.seek(0, 2)
            # Writing, where mapping would do, too: a full disk is then an error that can be caught.
            self._file.write(values.data)
            self._file.flush()
        except OSError as error:
            raise FltrainError(
                f"{self.folder}: what clients keep between rounds cannot be written ({error.strerror}); free "
                f"some space there, or let it stay in memory with --client-memory"
            ) from None
        return Spilled(offset, tensor.shape, tensor.dtype, tensor.device)

    def _read(self, held: Tensor | Spilled) -> Tensor:
        if isinstance(held, Tensor):
            return held
        # A copy: what is in the file changes when the client is trained again.
        values = torch.from_numpy(np.array(self._mapped(held)))
        return values.view(held.dtype).view(held.shape).to(held.device)

    def _mapped(self, place: Spilled) -> np.memmap[tuple[int], np.dtype[np.uint8]]:
        assert self._file is not None
        return np.memmap(self._file, np.uint8, "r+", offset=place.offset, shape=(place.bytes,))


def _bytes(kept: Kept | Held) -> int:
    return sum(
        held.nbytes if isinstance(held, Tensor) else held.bytes
        for state in kept.values()
        for held in state.values()
    )
